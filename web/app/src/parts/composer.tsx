// The box to type in: send and stop, thinking and tools, and how much of the context is used.

import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { chat, contextSize, send, stop, usedTokens } from '../chat.ts';
import { path, type Conversation } from '../conversation.ts';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { chatHref, go, pageHref } from '../route.ts';
import { changeSettings, settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { SystemDialog } from './system_dialog.tsx';

const drafts = new Map<string, string>(); // what was typed and not sent, by conversation

export function Composer({ conversation }: { conversation: Conversation | undefined }): JSX.Element {
    const place = conversation?.id ?? '';
    const [text, setText] = useState(drafts.get(place) ?? '');
    const writing = useStore(chat, (state) => state.writing);
    const sendKey = useStore(settings, (state) => state.sendKey);
    const box = useRef<HTMLTextAreaElement>(null);
    useEffect(() => setText(drafts.get(place) ?? ''), [place]);
    useLayoutEffect(() => {
        const area = box.current!;
        area.style.height = 'auto';
        area.style.height = `${Math.min(area.scrollHeight, window.innerHeight * 0.4)}px`;
    }, [text]);
    useEffect(() => { if (matchMedia('(hover: hover)').matches) box.current?.focus(); }, [place]);

    const type = (typed: string): void => {
        drafts.set(place, typed);
        setText(typed);
    };
    const submit = (): void => {
        const id = send(text);
        if (id === null) return;
        drafts.delete(place);
        setText('');
        go(chatHref(id));
    };
    const key = (event: KeyboardEvent): void => {
        if (event.isComposing) return;
        const command = event.ctrlKey || event.metaKey;
        if (event.key === 'Enter' && !event.shiftKey && (sendKey === 'enter' ? !command : command)) {
            event.preventDefault();
            submit();
        } else if (event.key === 'ArrowUp' && text === '') {
            const edits = document.querySelectorAll<HTMLElement>('.edit-message');
            if (edits.length === 0) return;
            event.preventDefault();
            edits[edits.length - 1]!.click();
        }
    };
    const elsewhere = writing !== null && writing.conversation !== place;
    return (
        <form class="composer" onSubmit={(event) => { event.preventDefault(); submit(); }}>
            <label class="visually-hidden" for="composer">Message</label>
            <textarea id="composer" ref={box} rows={1} value={text} placeholder="Ask anything"
                onInput={(event) => type(event.currentTarget.value)} onKeyDown={key} enterkeyhint="send" dir="auto" />
            <div class="composer-row">
                <Toggle label="Think" title="Let the model think before it answers" icon="bulb" setting="think" />
                <Toggle label="Tools" title="Offer the model a clock and a calculator, which run in this page" icon="tool" setting="tools" />
                <SystemButton conversation={conversation} />
                <ContextMeter conversation={conversation} />
                {writing
                    ? (
                        <button type="button" class="send stop"
                            aria-label={elsewhere ? 'Stop the answer in the other conversation' : 'Stop'}
                            title={elsewhere ? 'An answer is being written in another conversation' : 'Stop (Esc)'}
                            onClick={() => void stop()}>
                            <Icon name="stop" />
                        </button>
                    )
                    : <button type="submit" class="send" aria-label="Send" title="Send" disabled={text.trim() === ''}><Icon name="send" /></button>}
            </div>
        </form>
    );
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
    const whenFull = useStore(settings, (state) => state.whenFull);
    useStore(settings, (state) => state.context);
    if (!loaded || !conversation || path(conversation).length === 0) return <span class="grow" />;
    const size = contextSize(), used = Math.min(size, usedTokens(conversation));
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
                    <strong>{words}.</strong> {whenFull === 'stop'
                        ? 'When it is full, the answer stops and says so; nothing is dropped silently.'
                        : 'When it is nearly full, the oldest questions and answers are left out of what the model sees; they stay in the list above.'}{' '}
                    <a href={pageHref('settings')} onPointerDown={(event) => event.preventDefault()}>Change</a>
                </span>
            )}
        </span>
    );
}
