// A modal dialog: the browser's own <dialog>, which traps the focus and closes on Escape.

import type { ComponentChildren, JSX } from 'preact';
import { useId, useLayoutEffect, useRef } from 'preact/hooks';
import { Icon } from '../icons.tsx';

export function Dialog({ open, title, onClose, children }: { open: boolean; title: string; onClose: () => void; children: ComponentChildren }): JSX.Element {
    const element = useRef<HTMLDialogElement>(null);
    const id = useId();
    // Not after the next frame: until it is closed the rest of the page takes no input, and what is typed there would be lost.
    useLayoutEffect(() => {
        const dialog = element.current!;
        if (open && !dialog.open) dialog.showModal();
        if (!open && dialog.open) dialog.close();
    }, [open]);
    return (
        <dialog ref={element} class="dialog" aria-labelledby={id} onClose={onClose} onClick={(event) => { if (event.target === element.current) onClose(); }}>
            {open && (
                <div class="dialog-body">
                    <header>
                        <h2 id={id}>{title}</h2>
                        <button type="button" class="icon-button" aria-label="Close" onClick={onClose}><Icon name="close" /></button>
                    </header>
                    {children}
                </div>
            )}
        </dialog>
    );
}
