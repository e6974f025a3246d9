// The conversation: messages, the answer as it grows, the composer.

import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { chat, find, type Writing } from '../chat.ts';
import { alternatives, path, type Answer, type Node } from '../conversation.ts';
import { Icon } from '../icons.tsx';
import { Composer } from '../parts/composer.tsx';
import { AnswerView, QuestionView } from '../parts/message.tsx';
import { Welcome } from '../parts/welcome.tsx';
import { useStore } from '../store.ts';

export function ChatPage(): JSX.Element {
    const conversation = useStore(chat, (state) => find(state.current));
    const ready = useStore(chat, (state) => state.ready);
    const current = useStore(chat, (state) => state.current);
    const writing = useStore(chat, (state) => (state.writing && state.writing.conversation === state.current ? state.writing : null));
    const shown = useMemo(() => (conversation ? path(conversation) : []), [conversation]);
    const places = useMemo(() => (conversation ? alternatives(conversation) : new Map<string, string[]>()), [conversation]);
    const scroll = useStickyScroll(current, shown.length, writing);
    return (
        <div class="chat">
            <div class="messages" ref={scroll.box} onScroll={scroll.onScroll} tabIndex={0} role="log" aria-label="Messages" aria-live="off">
                {shown.length === 0 ? <Welcome missing={ready && current !== null && !conversation} />
                    : (
                        <div class="thread">
                            {shown.map((node) => (
                                <MessageRow key={node.id} node={node} conversation={current!} beside={places.get(node.parent ?? '') ?? []} writing={writing} />
                            ))}
                        </div>
                    )}
            </div>
            <div class="dock">
                {scroll.away && shown.length > 0 && (
                    <button type="button" class="to-end icon-button" aria-label="Scroll to the end" onClick={scroll.toEnd}><Icon name="down" /></button>
                )}
                <Composer conversation={conversation} />
            </div>
        </div>
    );
}

function MessageRow({ node, conversation, beside, writing }: { node: Node; conversation: string; beside: string[]; writing: Writing | null }): JSX.Element {
    if (node.role === 'user') return <QuestionView question={node} conversation={conversation} beside={beside} busy={writing !== null} />;
    const live = writing?.answer.id === node.id ? writing : null;
    const answer: Answer = live ? live.answer : node;
    return <AnswerView answer={answer} live={live} conversation={conversation} beside={beside} busy={writing !== null} />;
}

// Stays at the end while the answer grows, unless the reader has scrolled up.
function useStickyScroll(conversation: string | null, count: number, writing: Writing | null) {
    const box = useRef<HTMLDivElement>(null);
    const stuck = useRef(true);
    const [away, setAway] = useState(false);
    const toEnd = (): void => {
        stuck.current = true;
        if (box.current) box.current.scrollTop = box.current.scrollHeight;
    };
    const onScroll = (): void => {
        const { scrollTop, scrollHeight, clientHeight } = box.current!;
        stuck.current = scrollHeight - scrollTop - clientHeight < 40;
        setAway(!stuck.current);
    };
    useEffect(toEnd, [conversation, count]);
    useLayoutEffect(() => { if (stuck.current && writing) toEnd(); }, [writing]);
    return { box, onScroll, toEnd, away };
}
