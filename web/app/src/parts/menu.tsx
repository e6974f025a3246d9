// A button with a menu: arrow keys move in it, Escape and a click elsewhere close it.

import type { JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon, type IconName } from '../icons.tsx';

export interface Action {
    icon: IconName;
    label: string;
    run: () => void;
    /** Why it cannot be chosen now; '' or absent if it can. */
    unavailable?: string;
}

interface MenuProps {
    /** The class of the element around button and menu. */
    place: string;
    icon: IconName;
    size?: number;
    open: boolean;
    setOpen: (open: boolean) => void;
    /** Of the button. */
    label: string;
    /** Of the menu. */
    title: string;
    /** The menu opens upwards where it would leave this element. */
    within: string;
    actions: Action[];
}

const HEIGHT = 140; // of a menu, about

export function Menu({ place, icon, size = 16, open, setOpen, label, title, within, actions }: MenuProps): JSX.Element {
    const element = useRef<HTMLDivElement>(null);
    const [up, setUp] = useState(false);
    useLayoutEffect(() => {
        if (!open) return undefined;
        const around = element.current!.closest(within)!.getBoundingClientRect();
        setUp(element.current!.getBoundingClientRect().bottom + HEIGHT > around.bottom);
        const away = (event: Event): void => { if (!element.current?.contains(event.target as globalThis.Node)) setOpen(false); };
        document.addEventListener('pointerdown', away);
        element.current?.querySelector<HTMLElement>('[role=menuitem]')?.focus();
        return () => document.removeEventListener('pointerdown', away);
    }, [open]);
    const key = (event: KeyboardEvent): void => {
        const items = [...(element.current?.querySelectorAll<HTMLElement>('[role=menuitem]') ?? [])];
        const at = items.indexOf(document.activeElement as HTMLElement);
        if (event.key === 'Escape') {
            setOpen(false);
            element.current?.querySelector<HTMLElement>('button')?.focus();
        } else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
            items[(at + (event.key === 'ArrowDown' ? 1 : items.length - 1)) % items.length]?.focus();
        } else return;
        event.preventDefault();
        event.stopPropagation();
    };
    return (
        <div class={place} ref={element} onKeyDown={open ? key : undefined}>
            <button type="button" class="icon-button" aria-haspopup="menu" aria-expanded={open} aria-label={label} title={title} onClick={() => setOpen(!open)}>
                <Icon name={icon} size={size} />
            </button>
            {open && (
                <div class={`menu${up ? ' menu-up' : ''}`} role="menu" aria-label={title}>
                    {actions.map(({ icon: sign, label: words, run, unavailable = '' }) => (
                        <button key={words} type="button" role="menuitem" tabIndex={-1} aria-disabled={unavailable !== ''} title={unavailable}
                            onClick={() => { if (unavailable === '') { setOpen(false); run(); } }}>
                            <Icon name={sign} size={16} />
                            {words}
                        </button>
                    ))}
                </div>
            )}
        </div>
    );
}
