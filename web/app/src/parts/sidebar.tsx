// The sidebar: new conversation, search, the list by day with rename, export and delete; below it the other pages and the theme.

import type { JSX } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { chat, exportConversations, removeConversation, rename, report } from '../chat.ts';
import { matches, type Conversation } from '../conversation.ts';
import { messageOf } from '../engine.ts';
import { saveFile } from '../files.ts';
import { dayGroup } from '../format.ts';
import { Icon, Logo, type IconName } from '../icons.tsx';
import { chatHref, go, pageHref, PAGES, route, type Page } from '../route.ts';
import { changeSettings, settings, type Settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { Dialog } from './dialog.tsx';
import { Menu } from './menu.tsx';

const PAGE_ICONS: Record<keyof typeof PAGES, IconName> = { models: 'chip', teach: 'cap', benchmark: 'chart', settings: 'sliders', about: 'info' };

export function Sidebar({ onClose, onHelp }: { onClose: () => void; onHelp: () => void }): JSX.Element {
    const [query, setQuery] = useState('');
    return (
        <nav class="sidebar" aria-label="Conversations and pages">
            <div class="sidebar-head">
                <a class="wordmark" href={chatHref(null)} onClick={onClose}><Logo size={26} />gemmule</a>
                <button type="button" class="icon-button only-narrow" aria-label="Close conversation list" onClick={onClose}>
                    <Icon name="close" size={20} />
                </button>
            </div>
            <a class="button wide" href={chatHref(null)} onClick={() => { onClose(); requestAnimationFrame(() => document.getElementById('composer')?.focus()); }}>
                <Icon name="plus" />New conversation
            </a>
            <label class="search">
                <Icon name="search" size={16} />
                <span class="visually-hidden">Search conversations</span>
                <input id="search" type="search" placeholder="Search" value={query} onInput={(event) => setQuery(event.currentTarget.value)}
                    onKeyDown={(event) => { if (event.key === 'Escape') { setQuery(''); event.currentTarget.blur(); } }} />
            </label>
            <ConversationList query={query} onOpen={onClose} />
            <PageLinks onHelp={onHelp} />
        </nav>
    );
}

function ConversationList({ query, onOpen }: { query: string; onOpen: () => void }): JSX.Element {
    const conversations = useStore(chat, (state) => state.conversations);
    const ready = useStore(chat, (state) => state.ready);
    const found = useMemo(() => conversations.filter((each) => matches(each, query)), [conversations, query]);
    const groups = useMemo(() => {
        const byDay = new Map<string, Conversation[]>();
        for (const each of found) byDay.set(dayGroup(each.updated, Date.now()), [...(byDay.get(dayGroup(each.updated, Date.now())) ?? []), each]);
        return [...byDay];
    }, [found]);
    if (found.length === 0) {
        return (
            <div class="conversations">
                <p class="quiet empty">{!ready ? '' : query ? 'No conversations found.' : 'Your conversations will appear here. They stay on this machine.'}</p>
            </div>
        );
    }
    return (
        <div class="conversations">
            {groups.map(([day, list]) => (
                <section key={day} aria-label={day}>
                    <h2>{day}</h2>
                    <ul>{list.map((each) => <Row key={each.id} conversation={each} onOpen={onOpen} />)}</ul>
                </section>
            ))}
        </div>
    );
}

function Row({ conversation, onOpen }: { conversation: Conversation; onOpen: () => void }): JSX.Element {
    const current = useStore(chat, (state) => state.current === conversation.id);
    const onChat = useStore(route, (state) => state.page === 'chat');
    const busy = useStore(chat, (state) => state.writing?.conversation === conversation.id || conversation.id in state.elsewhere);
    const [open, setOpen] = useState(false);
    const [dialog, setDialog] = useState<'rename' | 'delete' | null>(null);
    const title = conversation.title || 'Untitled';
    const shown = current && onChat;
    const save = (): void => {
        const named = (text: string): void => saveFile(`${fileName(title)}.json`, text);
        exportConversations([conversation], new Date()).then(named, (error: unknown) => report(messageOf(error).message));
    };
    return (
        <li class={`row${shown ? ' row-current' : ''}`}>
            <a href={chatHref(conversation.id)} aria-current={shown ? 'page' : undefined} onClick={onOpen} title={title}>
                <span class="row-title">{title}</span>
                {busy && <span class="pulse" aria-label="answer in progress" role="img" />}
            </a>
            <Menu place="row-menu" icon="dots" open={open} setOpen={setOpen} label={`More actions for “${title}”`} title={title} within=".conversations" actions={[
                { icon: 'edit', label: 'Rename', run: () => setDialog('rename') },
                { icon: 'download', label: 'Export', run: save },
                { icon: 'trash', label: 'Delete', run: () => setDialog('delete') },
            ]} />
            <RenameDialog open={dialog === 'rename'} title={title} onClose={() => setDialog(null)}
                onRename={(name) => rename(conversation.id, name)} />
            <Dialog open={dialog === 'delete'} title="Delete this conversation?" onClose={() => setDialog(null)}>
                <p>“{title}” and its saved context will be removed from this browser. This cannot be undone.</p>
                <div class="actions">
                    <button type="button" class="button" onClick={() => setDialog(null)}>Cancel</button>
                    <button type="button" class="button danger"
                        onClick={() => { if (shown) go(chatHref(null)); void removeConversation(conversation.id); }}>
                        Delete
                    </button>
                </div>
            </Dialog>
        </li>
    );
}

const fileName = (title: string): string => title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'conversation';

function RenameDialog({ open, title, onClose, onRename }: { open: boolean; title: string; onClose: () => void; onRename: (title: string) => void }): JSX.Element {
    const input = useRef<HTMLInputElement>(null);
    useLayoutEffect(() => { if (open) input.current?.select(); }, [open]);
    const done = (event: Event): void => {
        event.preventDefault();
        onRename(input.current!.value);
        onClose();
    };
    return (
        <Dialog open={open} title="Rename" onClose={onClose}>
            <form onSubmit={done}>
                <label class="field">Title<input ref={input} type="text" defaultValue={title} maxLength={200} /></label>
                <div class="actions"><button type="submit" class="button primary">Rename</button></div>
            </form>
        </Dialog>
    );
}

const THEMES: { value: Settings['theme']; icon: IconName; label: string }[] = [
    { value: 'light', icon: 'sun', label: 'Light' },
    { value: 'dark', icon: 'moon', label: 'Dark' },
    { value: 'system', icon: 'auto', label: 'Match system' },
];

function PageLinks({ onHelp }: { onHelp: () => void }): JSX.Element {
    const page = useStore(route, (state) => state.page);
    const theme = useStore(settings, (state) => state.theme);
    return (
        <div class="sidebar-foot">
            <ul>
                {(Object.keys(PAGES) as (keyof typeof PAGES)[]).map((each) => (
                    <li key={each}>
                        <a href={pageHref(each as Page)} class="page-link" aria-current={page === each ? 'page' : undefined}>
                            <Icon name={PAGE_ICONS[each]} />
                            {PAGES[each]}
                        </a>
                    </li>
                ))}
            </ul>
            <div class="foot-row">
                <div class="segments" role="group" aria-label="Theme">
                    {THEMES.map(({ value, icon, label }) => (
                        <button key={value} type="button" aria-pressed={theme === value} aria-label={label} title={label}
                            onClick={() => changeSettings({ theme: value })}>
                            <Icon name={icon} size={16} />
                        </button>
                    ))}
                </div>
                <button type="button" class="icon-button only-wide" aria-label="Keyboard shortcuts" title="Keyboard shortcuts" onClick={onHelp}>
                    <Icon name="keyboard" />
                </button>
            </div>
        </div>
    );
}
