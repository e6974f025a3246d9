// The box to type in: pictures and sounds, dictation, send and stop, what waits to be sent, thinking and tools, and how much of the context
// is used.

import type { JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { stopShown, takeBack } from '../answering.ts';
import { chat } from '../chat.ts';
import { whyClamped } from '../context.ts';
import { path, type Conversation } from '../conversation.ts';
import { attachedTo, draftOf, drafts, setDraft } from '../drafts.ts';
import { openFiles } from '../files.ts';
import { Icon } from '../icons.tsx';
import { inWords } from '../media.ts';
import { model } from '../models.ts';
import { recording, startRecording } from '../recording.ts';
import { pageHref } from '../route.ts';
import { contextSize, usedTokens } from '../sessions.ts';
import { changeSettings, settings, type Settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { AdapterButton } from './adapter_picker.tsx';
import { Tray } from './attachments.tsx';
import { CameraDialog } from './camera.tsx';
import { reading, sendDraft, takeFiles } from './drop_files.ts';
import { Menu, type Action } from './menu.tsx';
import { Recorder } from './recorder.tsx';
import { SystemDialog } from './system_dialog.tsx';

/** Whether a key sends what was typed, here and where a message is edited. Shift+Enter never does. */
export function isSendKey(event: KeyboardEvent, sendKey: Settings['sendKey']): boolean {
    const command = event.ctrlKey || event.metaKey;
    return event.key === 'Enter' && !event.shiftKey && !event.isComposing && (sendKey === 'enter' ? !command : command);
}

/** `place`: the id of the conversation, which may not have been read yet; '' for a new one. */
export function Composer({ conversation, place }: { conversation: Conversation | undefined; place: string }): JSX.Element {
    const text = useStore(drafts, () => draftOf(place));
    const attached = useStore(drafts, () => attachedTo(place));
    const records = useStore(recording, (state) => state.phase !== null && state.place === place);
    const writing = useStore(chat, (state) => (state.writing ? state.writing.conversation : place in state.elsewhere ? place : null));
    const sendKey = useStore(settings, (state) => state.sendKey);
    const reads = useStore(reading, (state) => (state.places[place] ?? 0) > 0);
    const later = useStore(reading, (state) => state.later[place] ?? false); // it is sent when the files are read
    const box = useRef<HTMLTextAreaElement>(null);
    useLayoutEffect(() => showDraft(box.current!, text));
    useLayoutEffect(() => {
        const area = box.current!;
        area.style.height = 'auto';
        area.style.height = `${Math.min(area.scrollHeight, window.innerHeight * 0.4)}px`;
    }, [text]);
    useLayoutEffect(() => { if (matchMedia('(hover: hover)').matches && !isTyping()) box.current!.focus(); }, [place]);

    const empty = text.trim() === '' && attached.length === 0;
    const type = (typed: string): void => {
        if (chat.get().refusal?.place === place) chat.set({ refusal: null });
        setDraft(place, typed);
    };
    const submit = (): void => sendDraft(place);
    const paste = (event: ClipboardEvent): void => {
        const files = [...(event.clipboardData?.files ?? [])];
        if (files.length === 0) return;
        event.preventDefault();
        void takeFiles(place, files);
    };
    const key = (event: KeyboardEvent): void => {
        if (isSendKey(event, sendKey)) {
            event.preventDefault();
            submit();
        } else if (event.key === 'ArrowUp' && text === '') {
            const edits = document.querySelectorAll<HTMLElement>('.edit-message');
            if (edits.length === 0) return;
            event.preventDefault();
            edits[edits.length - 1]!.click();
        }
    };
    const elsewhere = writing !== null && writing !== place;
    return (
        <>
            <Queue place={place} />
            <RefusalNote place={place} />
            <form class="composer" onSubmit={(event) => { event.preventDefault(); submit(); }}>
                <Tray place={place} />
                <label class="visually-hidden" for="composer">Message</label>
                <textarea id="composer" ref={box} rows={1} placeholder="Ask anything"
                    onInput={(event) => type(event.currentTarget.value)} onKeyDown={key} onPaste={paste} enterkeyhint="send" dir="auto" />
                {records ? <Recorder /> : <div class="composer-row">
                    <AddMenu place={place} />
                    <Toggle label="Think" title="Let the model think before it answers" icon="bulb" setting="think" />
                    <Toggle label="Tools" title="Offer the model a clock and a calculator, which run in this page" icon="tool" setting="tools" />
                    <AdapterButton place={place} />
                    <SystemButton conversation={conversation} />
                    <ContextMeter conversation={conversation} />
                    <DictateButton place={place} />
                    {writing !== null && !empty && !reads && (
                        <button type="submit" class="send-later" aria-label="Send after this answer" title="Send after this answer"><Icon name="send" /></button>
                    )}
                    {writing !== null
                        ? (
                            <button type="button" class="send stop"
                                aria-label={elsewhere ? 'Stop the answer in the other conversation' : 'Stop'}
                                title={elsewhere ? 'An answer is being written in another conversation' : 'Stop (Esc)'} onClick={stopShown}>
                                <Icon name="stop" />
                            </button>
                        )
                        : (
                            <button type="submit" class="send" aria-label="Send" title={later ? 'Sent when the files are read' : 'Send'}
                                disabled={later || (empty && !reads)}>
                                <Icon name="send" />
                            </button>
                        )}
                </div>}
            </form>
        </>
    );
}

/* As the attribute `value`, it would take the caret to the end: where something is added before or behind what is being typed, the caret
 * stays at its place in the text. */
function showDraft(area: HTMLTextAreaElement, text: string): void {
    const { value: before, selectionStart, selectionEnd } = area;
    if (before === text) return;
    area.value = text; // the caret is at the end now
    if (document.activeElement !== area || before === '') return;
    const shift = text.endsWith(before) ? text.length - before.length : text.startsWith(before) ? 0 : null;
    if (shift !== null) area.setSelectionRange(selectionStart + shift, selectionEnd + shift);
}

/* Whoever types somewhere else is not interrupted: a conversation may also begin by itself, with a message that had to wait. */
const isTyping = (): boolean => document.activeElement?.matches('input, textarea, select') ?? false;

const ACCEPTED = 'image/png,image/gif,image/jpeg,image/webp,image/avif,audio/*,video/*,text/*';

function AddMenu({ place }: { place: string }): JSX.Element {
    const [open, setOpen] = useState(false);
    const [camera, setCamera] = useState(false);
    const loaded = useStore(model, (state) => state.loaded);
    const deaf = loaded && !loaded.info.audio ? 'The loaded model cannot hear sounds' : '';
    const blind = loaded && !loaded.info.vision ? 'The loaded model cannot see pictures' : '';
    const actions: Action[] = [
        { icon: 'file', label: 'Add files', run: () => void openFiles(ACCEPTED, { several: true }).then((files) => takeFiles(place, files)) },
        { icon: 'camera', label: 'Take a photo', run: () => setCamera(true), unavailable: blind },
        { icon: 'wave', label: 'Record a sound', run: () => void startRecording(place, 'attach', loaded), unavailable: deaf },
    ];
    const take = (photo: File): void => {
        setCamera(false);
        void takeFiles(place, [photo]);
    };
    return (
        <>
            <Menu place="add-menu" icon="plus" size={18} open={open} setOpen={setOpen} label="Add pictures, sounds, videos or text" title="Add" within=".chat" actions={actions} />
            <CameraDialog open={camera} onClose={() => setCamera(false)} onPhoto={take} />
        </>
    );
}

// Only with a model that hears.
function DictateButton({ place }: { place: string }): JSX.Element | null {
    const loaded = useStore(model, (state) => state.loaded);
    if (!loaded?.info.audio) return null;
    return (
        <button type="button" class="icon-button" aria-label="Dictate" title="Dictate: speak, and the model writes it down"
            onClick={() => void startRecording(place, 'dictate', loaded)}>
            <Icon name="microphone" />
        </button>
    );
}

function Queue({ place }: { place: string }): JSX.Element | null {
    const queue = useStore(chat, (state) => state.queue);
    const waiting = queue.filter((job) => job.place === place);
    if (waiting.length === 0) return null;
    return (
        <ul class="queue" aria-label="Waiting to be sent">
            {waiting.map((job) => (
                <li key={job.id}>
                    <span class="queue-text" dir="auto">{job.rewrite ? 'A part to rewrite' : job.content === null ? 'Another answer' : job.content || inWords(job.attachments)}</span>
                    <span class="quiet">Queued</span>
                    <button type="button" class="icon-button" aria-label="Do not send" title={job.content === null ? 'Remove' : 'Back to the draft'}
                        onClick={() => takeBack(job)}>
                        <Icon name="close" size={16} />
                    </button>
                </li>
            ))}
        </ul>
    );
}

function RefusalNote({ place }: { place: string }): JSX.Element | null {
    const refusal = useStore(chat, (state) => (state.refusal?.place === place && state.refusal.question === null ? state.refusal : null));
    return refusal && <p class="dock-note box-note" role="alert">{refusal.why}</p>;
}

function Toggle({ label, title, icon, setting }: { label: string; title: string; icon: 'bulb' | 'tool'; setting: 'think' | 'tools' }): JSX.Element {
    const on = useStore(settings, (state) => state[setting]);
    return (
        <button type="button" class="toggle" aria-pressed={on} title={title} onClick={() => changeSettings({ [setting]: !on })}>
            <Icon name={icon} size={16} /><span>{label}</span>
        </button>
    );
}

function SystemButton({ conversation }: { conversation: Conversation | undefined }): JSX.Element | null {
    const [open, setOpen] = useState(false);
    if (!conversation) return null;
    return (
        <>
            <button type="button" class="toggle" aria-pressed={conversation.system !== null} title="The system prompt of this conversation" onClick={() => setOpen(true)}>
                <Icon name="sliders" size={16} /><span>Prompt</span>
            </button>
            <SystemDialog open={open} conversation={conversation} onClose={() => setOpen(false)} />
        </>
    );
}

function ContextMeter({ conversation }: { conversation: Conversation | undefined }): JSX.Element | null {
    const [open, setOpen] = useState(false);
    const loaded = useStore(model, (state) => state.loaded);
    const overflow = useStore(settings, (state) => state.overflow);
    const asked = useStore(settings, (state) => state.context);
    if (!loaded || !conversation || path(conversation).length === 0) return <span class="grow" />;
    const size = contextSize(loaded), used = Math.min(size, usedTokens(conversation));
    const share = used / size;
    const round = 2 * Math.PI * 8;
    const words = `${used.toLocaleString('en')} of ${size.toLocaleString('en')} tokens of context used`;
    return (
        <span class="grow meter-place">
            <button type="button" class={`meter${share > 0.85 ? ' meter-high' : ''}`} aria-expanded={open} aria-label={`${Math.round(share * 100)} %: ${words}`}
                title={words} onClick={() => setOpen(!open)} onBlur={() => setOpen(false)}>
                <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
                    <circle class="meter-back" cx="10" cy="10" r="8" />
                    <circle class="meter-fill" cx="10" cy="10" r="8" stroke-dasharray={`${share * round} ${round}`} transform="rotate(-90 10 10)" />
                </svg>
                <span>{Math.round(share * 100)} %</span>
            </button>
            {open && (
                <span class="popover" role="note">
                    <strong>{words}.</strong> {whyClamped(asked, loaded.info.context)} {overflow === 'stop'
                        ? 'When the context is full, the answer stops and says so.'
                        : 'When the context is nearly full, the model no longer sees the oldest messages. They stay in the conversation.'}{' '}
                    <a href={pageHref('settings')} onPointerDown={(event) => event.preventDefault()}>Change</a>
                </span>
            )}
        </span>
    );
}
