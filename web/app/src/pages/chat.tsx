// The conversation: messages, the answer as it grows, the composer.

import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { chat, find, type Writing } from '../chat.ts';
import { alternatives, path, type Answer, type Node } from '../conversation.ts';
import { Icon } from '../icons.tsx';
import { takeDrop } from '../parts/adapter_picker.tsx';
import { Composer } from '../parts/composer.tsx';
import { hasFiles } from '../parts/drop_files.ts';
import { AnswerView, QuestionView } from '../parts/message.tsx';
import { ModelNotice } from '../parts/model_notice.tsx';
import { Welcome } from '../parts/welcome.tsx';
import { useStore } from '../store.ts';

export function ChatPage(): JSX.Element {
    const conversation = useStore(chat, (state) => find(state.current));
    const ready = useStore(chat, (state) => state.ready);
    const current = useStore(chat, (state) => state.current);
    const writing = useStore(chat, (state) => (state.writing?.conversation === state.current ? state.writing : state.elsewhere[state.current ?? ''] ?? null));
    const busy = useStore(chat, (state) => state.writing?.conversation === state.current || (state.current ?? '') in state.elsewhere);
    const shown = useMemo(() => (conversation ? path(conversation) : []), [conversation]);
    const places = useMemo(() => (conversation ? alternatives(conversation) : new Map<string, string[]>()), [conversation]);
    const scroll = useStickyScroll(current, shown.length);
    const place = conversation?.id ?? (ready ? '' : current ?? '');
    const drop = useFileDrop(place);
    return (
        <div class={`chat${drop.over ? ' drop-over' : ''}`} {...drop.handlers}>
            <div class="messages" ref={scroll.box} onScroll={scroll.onScroll} tabIndex={0} role="log" aria-label="Messages" aria-live="off">
                <div ref={scroll.content} class="messages-content">
                    {shown.length === 0 ? <Welcome missing={ready && current !== null && !conversation} />
                        : (
                            <div class="thread">
                                {shown.map((node, at) => (
                                    <MessageRow key={node.id} node={node} conversation={current!} beside={places.get(node.parent ?? '') ?? []}
                                        writing={writing} busy={busy} leftOutBefore={leftOutBefore(shown, at)} />
                                ))}
                            </div>
                        )}
                </div>
            </div>
            <div class="dock">
                {scroll.away && shown.length > 0 && (
                    <button type="button" class="to-end icon-button" aria-label="Scroll to the end" onClick={scroll.toEnd}><Icon name="down" /></button>
                )}
                <ModelNotice conversation={conversation} />
                <Composer conversation={conversation} place={place} />
            </div>
        </div>
    );
}

/** How many questions the answer before this message was written without. */
const leftOutBefore = (shown: Node[], at: number): number =>
    shown.slice(0, at).findLast((node): node is Answer => node.role === 'assistant')?.leftOut ?? 0;

interface RowProps {
    node: Node;
    conversation: string;
    beside: string[];
    writing: Writing | null;
    busy: boolean;
    leftOutBefore: number;
}

function MessageRow({ node, conversation, beside, writing, busy, leftOutBefore: before }: RowProps): JSX.Element {
    if (node.role === 'user') return <QuestionView question={node} conversation={conversation} beside={beside} busy={busy} />;
    const live = writing?.answer.id === node.id ? writing : node.finish === 'writing' ? unseen(conversation, node) : null;
    return <AnswerView answer={live ? live.answer : node} live={live} conversation={conversation} beside={beside} busy={busy} leftOutBefore={before} />;
}

// Another tab writes the answer and has not said how far it is.
const unseen = (conversation: string, answer: Answer): Writing => ({ conversation, answer, phase: 'answer', prompt: null, speed: 0, canvas: null, rewriting: false });

// Stays at the end while the messages grow or the room for them shrinks, unless the reader has scrolled up. Distance from the end alone
// does not tell: the event of our own scrolling may come after the messages have grown again.
function useStickyScroll(conversation: string | null, count: number) {
    const box = useRef<HTMLDivElement>(null), content = useRef<HTMLDivElement>(null);
    const stuck = useRef(true), lastTop = useRef(0);
    const [away, setAway] = useState(false);
    const toEnd = (): void => {
        stuck.current = true;
        if (box.current) box.current.scrollTop = box.current.scrollHeight;
    };
    const onScroll = (): void => {
        if (!box.current) return; // another page is shown by now
        const { scrollTop, scrollHeight, clientHeight } = box.current;
        const atEnd = scrollHeight - scrollTop - clientHeight < 40;
        if (atEnd || scrollTop < lastTop.current) stuck.current = atEnd;
        lastTop.current = scrollTop;
        setAway(!stuck.current);
    };
    useEffect(toEnd, [conversation, count]);
    useEffect(() => {
        const observer = new ResizeObserver(() => (stuck.current ? toEnd() : onScroll()));
        observer.observe(box.current!);
        observer.observe(content.current!);
        return () => observer.disconnect();
    }, []);
    return { box, content, onScroll, toEnd, away };
}

function useFileDrop(place: string) {
    const [over, setOver] = useState(false);
    const handlers = {
        onDragOver: (event: DragEvent): void => {
            if (!hasFiles(event)) return;
            event.preventDefault();
            setOver(true);
        },
        onDragLeave: (event: DragEvent): void => {
            if (!(event.currentTarget as Element).contains(event.relatedTarget as Element | null)) setOver(false);
        },
        onDrop: (event: DragEvent): void => {
            if (!hasFiles(event)) return;
            event.preventDefault();
            setOver(false);
            takeDrop(place, event.dataTransfer!);
        },
    };
    return { over, handlers };
}
