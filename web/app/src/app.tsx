// The frame: the sidebar, the page beside it, the live region for screen readers, keyboard shortcuts.

import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { stopShown } from './answering.ts';
import { chat, find, report } from './chat.ts';
import { Icon, Logo } from './icons.tsx';
import { model } from './models.ts';
import { AboutPage } from './pages/about.tsx';
import { BenchmarkPage } from './pages/benchmark.tsx';
import { ChatPage } from './pages/chat.tsx';
import { ModelsPage } from './pages/models.tsx';
import { SettingsPage } from './pages/settings.tsx';
import { TeachPage } from './pages/teach.tsx';
import { ModelChip } from './parts/model_chip.tsx';
import { ShortcutsDialog } from './parts/shortcuts.tsx';
import { Sidebar } from './parts/sidebar.tsx';
import { chatHref, go, PAGES, route, type Page } from './route.ts';
import { useStore } from './store.ts';

const VIEWS: Record<Page, () => JSX.Element> = { chat: ChatPage, models: ModelsPage, teach: TeachPage, benchmark: BenchmarkPage, settings: SettingsPage, about: AboutPage };

export function App(): JSX.Element {
    const page = useStore(route, (state) => state.page);
    const title = useStore(chat, (state) => (page === 'chat' ? (find(state.current)?.title ?? '') : ''));
    const announcement = useStore(chat, (state) => state.announcement);
    const [drawer, setDrawer] = useState(false);
    const [help, setHelp] = useState(false);
    const main = useRef<HTMLElement>(null);
    const shown = page === 'chat' ? title : PAGES[page];

    useEffect(() => {
        document.title = shown ? `${shown} – gemmule` : 'gemmule';
    }, [shown]);
    useEffect(() => setDrawer(false), [page, title]);
    useLayoutEffect(() => { if (main.current) main.current.scrollTop = 0; }, [page]); // all pages scroll in <main>
    useEffect(() => {
        if (!drawer) return undefined;
        const escape = (event: KeyboardEvent): void => { if (event.key === 'Escape') setDrawer(false); };
        window.addEventListener('keydown', escape);
        return () => window.removeEventListener('keydown', escape);
    }, [drawer]);
    useShortcuts({ openSearch: () => setDrawer(true), openHelp: () => setHelp(true) });

    const View = VIEWS[page];
    return (
        <div class={`app${drawer ? ' drawer-open' : ''}`}>
            <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
            <Sidebar onClose={() => setDrawer(false)} onHelp={() => setHelp(true)} />
            <div class="scrim" onClick={() => setDrawer(false)} />
            <div class="column">
                <header class="topbar">
                    <button type="button" class="icon-button only-narrow" aria-label="Open conversation list" aria-expanded={drawer}
                        onClick={() => setDrawer(true)}>
                        <Icon name="menu" size={20} />
                    </button>
                    <h1 class="topbar-title">{shown || <span class="wordmark"><Logo size={22} />gemmule</span>}</h1>
                    <ModelChip />
                    <a class="icon-button only-narrow" href={chatHref(null)} aria-label="New conversation"><Icon name="plus" size={20} /></a>
                </header>
                <Notices />
                <main id="main" ref={main} tabIndex={-1}><View /></main>
            </div>
            <ShortcutsDialog open={help} onClose={() => setHelp(false)} />
            <div class="visually-hidden" role="status" aria-live="polite">{announcement}</div>
        </div>
    );
}

function Notices(): JSX.Element {
    const problem = useStore(chat, (state) => state.problem);
    const notice = useStore(model, (state) => state.notice);
    return (
        <div class="notices">
            {problem && <Notice text={problem} onClose={() => report('')} />}
            {notice && <Notice text={notice} onClose={() => model.set({ notice: '' })} />}
        </div>
    );
}

function Notice({ text, onClose }: { text: string; onClose: () => void }): JSX.Element {
    return (
        <div class="notice" role="alert">
            <Icon name="warn" />
            <p>{text}</p>
            <button type="button" class="icon-button" aria-label="Dismiss" onClick={onClose}><Icon name="close" size={16} /></button>
        </div>
    );
}

function useShortcuts({ openSearch, openHelp }: { openSearch: () => void; openHelp: () => void }): void {
    useEffect(() => {
        const pressed = (event: KeyboardEvent): void => {
            const command = event.ctrlKey || event.metaKey;
            const typing = event.target instanceof HTMLElement && (event.target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName));
            if (command && !event.shiftKey && event.key.toLowerCase() === 'k') {
                event.preventDefault();
                openSearch();
                requestAnimationFrame(() => document.getElementById('search')?.focus());
            } else if (command && event.shiftKey && event.key.toLowerCase() === 'o') {
                event.preventDefault();
                go(chatHref(null));
                requestAnimationFrame(() => document.getElementById('composer')?.focus());
            } else if (event.key === 'Escape' && document.querySelector('.send.stop') && !document.querySelector('dialog[open]')) {
                event.preventDefault();
                stopShown();
            } else if ((event.key === '?' && !typing) || (command && event.key === '/')) {
                event.preventDefault();
                openHelp();
            } else if (event.key === '/' && !typing) {
                event.preventDefault();
                document.getElementById('composer')?.focus();
            }
        };
        window.addEventListener('keydown', pressed);
        return () => window.removeEventListener('keydown', pressed);
    }, []);
}
