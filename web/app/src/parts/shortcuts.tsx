// The keyboard shortcuts.

import type { JSX } from 'preact';
import { settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { Dialog } from './dialog.tsx';

const command = /Mac|iPhone|iPad/.test(navigator.platform) ? '⌘' : 'Ctrl';

export function ShortcutsDialog({ open, onClose }: { open: boolean; onClose: () => void }): JSX.Element {
    const enter = useStore(settings, (state) => state.sendKey === 'enter');
    const rows: [string[], string][] = [
        [enter ? ['Enter'] : [command, 'Enter'], 'Send'],
        [enter ? ['Shift', 'Enter'] : ['Enter'], 'New line'],
        [['Esc'], 'Stop the answer'],
        [['↑'], 'Edit your last message (if the message box is empty)'],
        [['/'], 'Go to the message box'],
        [[command, 'K'], 'Search conversations'],
        [[command, 'Shift', 'O'], 'New conversation'],
        [['?'], 'Show this list'],
    ];
    return (
        <Dialog open={open} title="Keyboard shortcuts" onClose={onClose}>
            <dl class="shortcuts">
                {rows.map(([keys, does]) => (
                    <div key={does}>
                        <dt>{does}</dt>
                        <dd>{keys.map((key) => <kbd key={key}>{key}</kbd>)}</dd>
                    </div>
                ))}
            </dl>
        </Dialog>
    );
}
