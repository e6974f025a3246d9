// Copies a text, and confirms it for a moment.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { announce } from '../chat.ts';
import { Icon } from '../icons.tsx';

export function CopyButton({ text, label }: { text: () => string; label: string }): JSX.Element {
    const [copied, setCopied] = useState(false);
    const timer = useRef(0);
    useEffect(() => () => clearTimeout(timer.current), []);
    const copy = async (): Promise<void> => {
        await navigator.clipboard.writeText(text());
        setCopied(true);
        announce('Copied.');
        clearTimeout(timer.current);
        timer.current = window.setTimeout(() => setCopied(false), 1600);
    };
    return (
        <button type="button" class="icon-button" aria-label={label} title={label} onClick={() => void copy().catch(() => announce('The browser did not allow copying.'))}>
            <Icon name={copied ? 'check' : 'copy'} size={16} />
        </button>
    );
}
