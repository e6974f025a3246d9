// One message of a conversation: a question that can be edited, or an answer with its thoughts, tool calls and speed.

import type { JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { edit, regenerate, showBranch, type Writing } from '../chat.ts';
import { answerText, type Answer, type Question, type Step, type ToolUse } from '../conversation.ts';
import { formatSeconds, formatSpeed } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { Markdown } from '../markdown/view.tsx';
import { memo } from '../memo.ts';
import { model } from '../models.ts';
import { chatHref, pageHref } from '../route.ts';
import { useStore } from '../store.ts';
import { MOST_ROUNDS } from '../tools.ts';
import { CopyButton } from './copy_button.tsx';

interface Around {
    conversation: string;
    /** The alternatives at this place, itself among them. */
    beside: string[];
    /** An answer is being written in this conversation. */
    busy: boolean;
}

const sameAround = (a: Around, b: Around): boolean => a.busy === b.busy && a.conversation === b.conversation && a.beside.join() === b.beside.join();

export const QuestionView = memo(({ question, ...around }: { question: Question } & Around): JSX.Element => {
    const [editing, setEditing] = useState(false);
    return (
        <article class="message question" aria-label="You" data-id={question.id}>
            {editing
                ? (
                    <EditBox text={question.content} onClose={() => setEditing(false)}
                        onSend={(text) => { setEditing(false); edit(around.conversation, question.id, text); }} />
                )
                : <div class="bubble" dir="auto">{question.content}</div>}
            {!editing && (
                <div class="message-tools">
                    <Branches id={question.id} {...around} />
                    <CopyButton text={() => question.content} label="Copy message" />
                    <button type="button" class="icon-button edit-message" aria-label="Edit message" title="Edit" disabled={around.busy}
                        onClick={() => setEditing(true)}>
                        <Icon name="edit" size={16} />
                    </button>
                </div>
            )}
        </article>
    );
}, (a, b) => a.question === b.question && sameAround(a, b));

function EditBox({ text, onClose, onSend }: { text: string; onClose: () => void; onSend: (text: string) => void }): JSX.Element {
    const box = useRef<HTMLTextAreaElement>(null);
    // Before it is seen: later, the caret would jump from under what is typed already.
    useLayoutEffect(() => {
        box.current!.focus();
        box.current!.setSelectionRange(text.length, text.length);
    }, []);
    const key = (event: KeyboardEvent): void => {
        if (event.key === 'Escape') onClose();
        else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) onSend(box.current!.value);
        else return;
        event.preventDefault();
        event.stopPropagation();
    };
    return (
        <div class="edit-box">
            <textarea ref={box} aria-label="Edit your message" rows={Math.min(12, text.split('\n').length + 1)} defaultValue={text} onKeyDown={key} />
            <p class="quiet">The answers so far stay: the edited message begins a branch.</p>
            <div class="actions">
                <button type="button" class="button" onClick={onClose}>Cancel</button>
                <button type="button" class="button primary" onClick={() => onSend(box.current!.value)}>Send</button>
            </div>
        </div>
    );
}

export const AnswerView = memo(({ answer, live, ...around }: { answer: Answer; live: Writing | null } & Around): JSX.Element => {
    const empty = answer.steps.every((step) => step.content === '' && step.thinking === '' && step.calls.length === 0);
    const again = answer.finish === 'error' ? 'Try again' : 'Another answer';
    return (
        <article class="message answer" aria-label="Answer" aria-busy={live !== null} data-id={answer.id}>
            <div class="avatar"><Logo size={22} /></div>
            <div class="answer-body">
                {answer.leftOut && (
                    <p class="ending quiet">
                        To make room, the model was not shown the {answer.leftOut === 1 ? 'oldest exchange' : `${answer.leftOut} oldest exchanges`}.
                    </p>
                )}
                {answer.steps.map((step, at) => <StepView key={at} step={step} writing={live !== null && at === answer.steps.length - 1} />)}
                {live && <Progress live={live} empty={empty} />}
                {!live && <Ending answer={answer} />}
                {!live && (
                    <div class="message-tools">
                        <Branches id={answer.id} {...around} />
                        <CopyButton text={() => answerText(answer)} label="Copy answer" />
                        <button type="button" class="icon-button" aria-label={again} title={again} disabled={around.busy}
                            onClick={() => regenerate(around.conversation, answer.id)}><Icon name="redo" size={16} /></button>
                        <Stats answer={answer} />
                    </div>
                )}
            </div>
        </article>
    );
}, (a, b) => a.answer === b.answer && a.live === b.live && sameAround(a, b));

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
    if (phase === 'prompt' && prompt) {
        return (
            <div class="prompt-progress">
                <progress max={prompt.total} value={prompt.done} aria-label="Reading the conversation" />
                <span class="quiet">Reading: {prompt.done.toLocaleString('en')} of {prompt.total.toLocaleString('en')} tokens</span>
            </div>
        );
    }
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
        case 'full': return (
            <div class="ending box-note">
                <p>
                    <strong>The context is full.</strong> The model can see no more of this conversation at once.{' '}
                    <a href={chatHref(null)}>Start a new one</a>, or raise the context or let the oldest messages be left out in
                    the <a href={pageHref('settings')}>settings</a>.
                </p>
            </div>
        );
        case 'error': return (
            <div class="ending box-note box-error" role="alert">
                <p><strong>Something went wrong.</strong> {answer.error}</p>
            </div>
        );
        default: {
            const silent = answer.steps.every((step) => step.content === '' && step.calls.length === 0);
            return silent ? <p class="ending quiet">The model gave no answer.</p> : null;
        }
    }
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
    const title = `${stats.model}\n${stats.replyTokens} tokens in ${formatSeconds(stats.replySeconds)}\n` +
        `Prompt: ${stats.promptTokens} tokens, ${stats.cachedTokens} cached, ${fresh} computed in ${formatSeconds(stats.promptSeconds)}`;
    return <span class="stats quiet" title={title}>{stats.replyTokens} tokens{speed > 0 && ` · ${formatSpeed(speed)}/s`}</span>;
}
