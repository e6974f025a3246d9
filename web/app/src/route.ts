// The page that is shown, from the part of the URL after #.

import { chat } from './chat.ts';
import { Store } from './store.ts';

export type Page = 'chat' | 'models' | 'teach' | 'benchmark' | 'settings' | 'about';
export const PAGES: Record<Exclude<Page, 'chat'>, string> = { models: 'Models', teach: 'Teach', benchmark: 'Benchmark', settings: 'Settings', about: 'About' };

export const route = new Store<{ page: Page }>({ page: 'chat' });

export const chatHref = (id: string | null): string => (id ? `#/chat/${id}` : '#/');
export const pageHref = (page: Page): string => `#/${page === 'chat' ? '' : page}`;

function follow(): void {
    const [first = '', second = ''] = location.hash.replace(/^#\/?/, '').split('/');
    if (Object.hasOwn(PAGES, first)) {
        route.set({ page: first as Page });
        return;
    }
    route.set({ page: 'chat' });
    chat.set({ current: first === 'chat' && second !== '' ? second : null });
}

window.addEventListener('hashchange', follow);
follow();

export function go(href: string): void {
    if (location.hash !== href) location.hash = href;
}
