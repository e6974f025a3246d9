// One message of a conversation: a question that can be edited, or an answer with its thoughts, tool calls and speed.

import type { JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { edit, regenerate } from '../answering.ts';
import { framesOf, type Frame } from '../canvas.ts';
import { chat, showBranch, type Refusal, type Writing } from '../chat.ts';
import { answerText, type Answer, type Question, type Step, type ToolUse } from '../conversation.ts';
import { formatSeconds, formatSpeed } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { Markdown } from '../markdown/view.tsx';
import { memo } from '../memo.ts';
import { model } from '../models.ts';
import { chatHref, pageHref } from '../route.ts';
import { contextSize } from '../sessions.ts';
import { settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { MOST_ROUNDS } from '../tools.ts';
import { Attachments } from './attachments.tsx';
import { CanvasSlider, CanvasView, LiveCanvas } from './canvas.tsx';
import { isSendKey } from './composer.tsx';
import { CopyButton } from './copy_button.tsx';
import { useRewrite } from './rewrite.tsx';

interface Around {
    conversation: string;
    /** The alternatives at this place, itself among them. */
    beside: string[];
    /** An answer is being written in this conversation. */
    busy: boolean;
}

const sameAround = (a: Around, b: Around): boolean => a.busy === b.busy && a.conversation === b.conversation && a.beside.join() === b.beside.join();

export const QuestionView = memo(({ question, ...around }: { question: Question } & Around): JSX.Element => {
    const refusal = useStore(chat, (state) => (state.refusal?.question === question.id ? state.refusal : null));
    const [open, setOpen] = useState(false);
    const editing = open || refusal !== null;
    const close = (): void => {
        setOpen(false);
        if (refusal) chat.set({ refusal: null });
    };
    return (
        <article class="message question" aria-label="You" data-id={question.id}>
            {question.attachments && <Attachments attachments={question.attachments} />}
            {editing
                ? (
                    <EditBox text={refusal?.content ?? question.content} refusal={refusal} onClose={close}
                        onSend={(text) => { close(); edit(around.conversation, question.id, text); }} />
                )
                : question.content !== '' && <div class="bubble" dir="auto">{question.content}</div>}
            {!editing && (
                <div class="message-tools">
                    <Branches id={question.id} {...around} />
                    <CopyButton text={() => question.content} label="Copy message" />
                    <button type="button" class="icon-button edit-message" aria-label="Edit message" title="Edit" disabled={around.busy}
                        onClick={() => setOpen(true)}>
                        <Icon name="edit" size={16} />
                    </button>
                </div>
            )}
        </article>
    );
}, (a, b) => a.question === b.question && sameAround(a, b));

const rowsFor = (text: string): number => Math.min(12, text.split('\n').reduce((rows, line) => rows + Math.ceil((line.length + 1) / 80), 1));

interface EditProps {
    text: string;
    refusal: Refusal | null;
    onClose: () => void;
    onSend: (text: string) => void;
}

function EditBox({ text, refusal, onClose, onSend }: EditProps): JSX.Element {
    const box = useRef<HTMLTextAreaElement>(null);
    const sendKey = useStore(settings, (state) => state.sendKey);
    // Before it is seen: later, the caret would jump from under what is typed already.
    useLayoutEffect(() => {
        box.current!.focus();
        box.current!.setSelectionRange(text.length, text.length);
    }, []);
    const key = (event: KeyboardEvent): void => {
        if (event.key === 'Escape') onClose();
        else if (isSendKey(event, sendKey)) onSend(box.current!.value);
        else return;
        event.preventDefault();
        event.stopPropagation();
    };
    return (
        <div class="edit-box">
            <textarea ref={box} aria-label="Edit your message" rows={rowsFor(text)} defaultValue={text} onKeyDown={key} />
            {refusal ? <p class="box-note" role="alert">{refusal.why}</p>
                : <p class="quiet">Sending starts a new branch. The answers so far are kept.</p>}
            <div class="actions">
                <button type="button" class="button" onClick={onClose}>Cancel</button>
                <button type="button" class="button primary" onClick={() => onSend(box.current!.value)}>Send</button>
            </div>
        </div>
    );
}

interface AnswerProps extends Around {
    answer: Answer;
    live: Writing | null;
    /** How many questions the answer before was written without. */
    leftOutBefore: number;
}

export const AnswerView = memo(({ answer, live, leftOutBefore, ...around }: AnswerProps): JSX.Element => {
    const empty = answer.steps.every((step) => step.content === '' && step.thinking === '' && step.calls.length === 0);
    const again = answer.finish === 'error' ? 'Try again' : 'Another answer';
    const frames = live ? [] : framesOf(answer.id);
    const [looking, setLooking] = useState<number | null>(null); // at a step of the canvas
    const frame = frames[looking ?? frames.length];
    const body = useRef<HTMLDivElement>(null);
    const rewriting = useRewrite({ answer, conversation: around.conversation, free: !live && !around.busy && !frame, body });
    return (
        <article class="message answer" aria-label="Answer" aria-busy={live !== null} data-id={answer.id}>
            <div class="avatar"><Logo size={22} /></div>
            <div class="answer-body" ref={body}>
                {answer.leftOut && answer.leftOut !== leftOutBefore && <LeftOut count={answer.leftOut} />}
                {frame ? <PastCanvas answer={answer} frame={frame} />
                    : answer.steps.map((step, at) => <StepView key={at} step={step} writing={live?.rewriting === false && at === answer.steps.length - 1} />)}
                {live && <Progress live={live} empty={empty} />}
                {!live && !frame && <Ending answer={answer} />}
                {frames.length > 0 && <CanvasSlider frames={frames} at={looking} onMove={setLooking} />}
                {rewriting.box}
                {!live && (
                    <div class="message-tools">
                        <Branches id={answer.id} {...around} />
                        <CopyButton text={() => answerText(answer)} label="Copy answer" />
                        <button type="button" class="icon-button" aria-label={again} title={again} disabled={around.busy}
                            onClick={() => regenerate(around.conversation, answer.id)}><Icon name="redo" size={16} /></button>
                        {rewriting.button}
                        <Stats answer={answer} />
                    </div>
                )}
            </div>
        </article>
    );
}, (a, b) => a.answer === b.answer && a.live?.answer === b.live?.answer && a.live?.phase === b.live?.phase && a.live?.prompt === b.live?.prompt &&
    a.live?.canvas === b.live?.canvas && a.leftOutBefore === b.leftOutBefore && sameAround(a, b));

function LeftOut({ count }: { count: number }): JSX.Element {
    return (
        <p class="left-out quiet">
            Earlier messages are left out: the context is full, so the model no longer
            sees the {count === 1 ? 'oldest question and its answer' : `${count} oldest questions and their answers`}.
        </p>
    );
}

function StepView({ step, writing }: { step: Step; writing: boolean }): JSX.Element {
    const thinkingNow = writing && step.content === '' && step.calls.length === 0;
    return (
        <>
            {step.thinking !== '' && (
                <details class="fold">
                    <summary><Icon name="bulb" size={16} />{thinkingNow ? 'Thinking…' : 'Thoughts'}</summary>
                    <div class="fold-body thinking"><Markdown text={step.thinking} /></div>
                </details>
            )}
            {step.content !== '' && <Markdown text={step.content} />}
            {step.calls.map((call) => <CallView key={call.id} call={call} />)}
        </>
    );
}

// The answer as it was after a step: earlier blocks are text, and the one that was being written is a canvas.
function PastCanvas({ answer, frame }: { answer: Answer; frame: Frame }): JSX.Element {
    const settled = (answer.steps[frame.pass]?.content ?? '').slice(0, frame.settled);
    return (
        <>
            {answer.steps.slice(0, frame.pass).map((step, at) => <StepView key={at} step={step} writing={false} />)}
            {settled !== '' && <Markdown text={settled} />}
            <CanvasView frame={frame} />
        </>
    );
}

function CallView({ call }: { call: ToolUse }): JSX.Element {
    return (
        <details class="fold">
            <summary><Icon name="tool" size={16} />{call.result === undefined ? 'Calling' : 'Called'} <code>{call.name}</code></summary>
            <div class="fold-body">
                <p class="quiet">Input</p>
                <pre>{JSON.stringify(call.arguments, null, 2)}</pre>
                {call.result !== undefined && <><p class="quiet">Result</p><pre>{call.result}</pre></>}
            </div>
        </details>
    );
}

function Progress({ live, empty }: { live: Writing; empty: boolean }): JSX.Element {
    const { phase, prompt, speed } = live;
    if (phase === 'waiting') return <WaitingForModel />;
    if (phase === 'prompt' && prompt?.media && prompt.media.done < prompt.media.total) {
        return (
            <div class="prompt-progress">
                <progress max={prompt.media.total} value={prompt.media.done || undefined} aria-label="Reading pictures and sounds" />
                <span class="quiet">{prompt.media.total === 1 ? 'Looking and listening' : `Looking and listening: ${prompt.media.done} of ${prompt.media.total}`}</span>
            </div>
        );
    }
    if (phase === 'prompt' && prompt) {
        return (
            <div class="prompt-progress">
                <progress max={prompt.total} value={prompt.done} aria-label="Reading the conversation" />
                <span class="quiet">Reading: {prompt.done.toLocaleString('en')} of {prompt.total.toLocaleString('en')} tokens</span>
            </div>
        );
    }
    if (live.canvas) return <LiveCanvas frame={live.canvas} />;
    return (
        <div class="live-line">
            {empty ? <span class="dots" aria-hidden="true"><i /><i /><i /></span> : <span class="caret" aria-hidden="true" />}
            {speed > 0 && <span class="quiet speed">{formatSpeed(speed)} tokens/s</span>}
        </div>
    );
}

function WaitingForModel(): JSX.Element {
    const progress = useStore(model, (state) => (state.phase === 'loading' ? state.progress : null));
    const loading = useStore(model, (state) => state.phase === 'loading');
    if (!loading) return <div class="live-line"><span class="dots" aria-hidden="true"><i /><i /><i /></span></div>;
    return (
        <div class="prompt-progress">
            <progress max={1} value={progress && progress.total > 0 ? progress.done / progress.total : 0} aria-label="Loading the model" />
            <span class="quiet">The model is loading. The answer starts when it is ready.</span>
        </div>
    );
}

function Ending({ answer }: { answer: Answer }): JSX.Element | null {
    switch (answer.finish) {
        case 'cancelled': return <p class="ending quiet">Stopped.</p>;
        case 'length': return <p class="ending quiet">Stopped at the maximum answer length.</p>;
        case 'tools': return <p class="ending quiet">Stopped after {MOST_ROUNDS} rounds of tool calls.</p>;
        case 'full': return <FullNote />;
        case 'error': return (
            <div class="ending box-note box-error" role="alert">
                <p><strong>Something went wrong.</strong> {answer.error}</p>
            </div>
        );
        case 'writing': return null;
        default: {
            const silent = answer.steps.every((step) => step.content === '' && step.calls.length === 0);
            return silent ? <p class="ending quiet">The model gave no answer.</p> : null;
        }
    }
}

// What helps depends on the model: the context can be raised only up to its own.
function FullNote(): JSX.Element {
    const overflow = useStore(settings, (state) => state.overflow);
    const loaded = useStore(model, (state) => state.loaded);
    const size = contextSize(loaded), raisable = loaded !== null && size < loaded.info.context;
    const settingsLink = (words: string): JSX.Element => <a href={pageHref('settings')}>{words}</a>;
    return (
        <div class="ending box-note">
            <p>
                <strong>The context is full.</strong> The answer stops here: the model reads {size.toLocaleString('en')} tokens at once, and this
                conversation has filled them.{' '}
                {overflow === 'leave-out' ? <>Keep going: the oldest messages will be left out.</>
                    : <><a href={chatHref(null)}>Start a new conversation</a>, or {settingsLink('let the oldest messages be left out')}.</>}
                {raisable && <> This model can read up to {loaded.info.context.toLocaleString('en')}: {settingsLink('raise the context size')}.</>}
            </p>
        </div>
    );
}

function Branches({ id, conversation, beside, busy }: { id: string } & Around): JSX.Element | null {
    const at = beside.indexOf(id);
    if (beside.length < 2) return null;
    const show = (place: number): void => showBranch(conversation, beside[place]!);
    return (
        <div class="branches" role="group" aria-label="Versions">
            <button type="button" class="icon-button" aria-label="Previous version" disabled={busy || at === 0} onClick={() => show(at - 1)}>
                <Icon name="left" size={16} />
            </button>
            <span aria-label={`Version ${at + 1} of ${beside.length}`} role="img">{at + 1}/{beside.length}</span>
            <button type="button" class="icon-button" aria-label="Next version" disabled={busy || at === beside.length - 1}
                onClick={() => show(at + 1)}>
                <Icon name="right" size={16} />
            </button>
        </div>
    );
}

function Stats({ answer }: { answer: Answer }): JSX.Element | null {
    const { stats } = answer;
    if (!stats || stats.replyTokens === 0) return null;
    const speed = stats.replySeconds > 0 ? stats.replyTokens / stats.replySeconds : 0;
    const fresh = stats.promptTokens - stats.cachedTokens;
    const title = `${stats.model}${stats.adapters ? ` with ${stats.adapters}` : ''}\n${stats.replyTokens} tokens in ${formatSeconds(stats.replySeconds)}\n` +
        `Prompt: ${stats.promptTokens} tokens, ${stats.cachedTokens} cached, ${fresh} computed in ${formatSeconds(stats.promptSeconds)}`;
    return <span class="stats quiet" title={title}>{stats.replyTokens} tokens{speed > 0 && ` · ${formatSpeed(speed)}/s`}{stats.adapters && ` · ${stats.adapters}`}</span>;
}
