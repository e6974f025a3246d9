// Rewriting a part of an answer with a diffusion model: select text in the answer, or in the box that shows its Markdown, and say how many
// tokens the new text has. Everything else is pinned.

import type { ComponentChildren, JSX, RefObject } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { rewrite } from '../answering.ts';
import { sourceRange } from '../canvas.ts';
import type { Answer } from '../conversation.ts';
import { isDiffusion, type LoadedModel } from '../engine.ts';
import { countOf } from '../format.ts';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { contextSize } from '../sessions.ts';
import { useStore } from '../store.ts';

interface Part {
    from: number;
    to: number;
}

interface RewriteProps {
    answer: Answer;
    conversation: string;
    /** Nothing is being written, and the answer is shown as text. */
    free: boolean;
    body: RefObject<HTMLDivElement | null>;
}

/** The button of an answer, and the box that it opens. Text that is selected in the answer gets a button of its own beside it. */
export function useRewrite({ answer, conversation, free, body }: RewriteProps): { button: ComponentChildren; box: ComponentChildren } {
    const loaded = useStore(model, (state) => state.loaded);
    const [open, setOpen] = useState<Part | null>(null);
    const text = answer.steps.at(-1)?.content ?? '';
    const possible = isDiffusion(loaded) && text !== '' && answer.finish !== 'writing';
    const selected = useSelection(body, text, possible && free && !open);
    if (!possible) return { button: null, box: null };
    const start = (gap: Part, tokens: number): void => {
        setOpen(null);
        rewrite(conversation, answer.id, { ...gap, tokens });
    };
    const button = (
        <button type="button" class="icon-button" aria-label="Rewrite a part" title="Rewrite a part" aria-expanded={open !== null} disabled={!free}
            onClick={() => setOpen(open ? null : selected?.part ?? { from: 0, to: 0 })}><Icon name="edit" size={16} /></button>
    );
    const box = open && free ? <RewriteBox text={text} first={open} loaded={loaded!} onClose={() => setOpen(null)} onStart={start} />
        : selected && (
            <button type="button" class="rewrite-pill button primary small" style={{ top: `${selected.top}px`, left: `${selected.left}px` }}
                onPointerDown={(event) => event.preventDefault()} onClick={() => setOpen(selected.part)}>
                <Icon name="edit" size={16} />Rewrite
            </button>
        );
    return { button, box };
}

// ---- selecting ------------------------------------------------------------------------------------------------------------------

interface Selected {
    part: Part;
    /** Where the button goes, in the answer's body. */
    top: number;
    left: number;
}

const NOT_TEXT = 'figcaption, button, math, .tex';

/** What is selected in the answer's last text. */
function useSelection(body: RefObject<HTMLDivElement | null>, text: string, wanted: boolean): Selected | null {
    const [selected, setSelected] = useState<Selected | null>(null);
    useEffect(() => {
        if (!wanted) return setSelected(null);
        const look = (): void => setSelected(body.current && selectionIn(body.current, text));
        document.addEventListener('selectionchange', look);
        return () => document.removeEventListener('selectionchange', look);
    }, [text, wanted]);
    return wanted ? selected : null;
}

function selectionIn(body: HTMLElement, text: string): Selected | null {
    const selection = getSelection(), prose = [...body.querySelectorAll(':scope > .prose')].at(-1);
    if (!prose || !selection || selection.isCollapsed || selection.rangeCount === 0) return null;
    const range = selection.getRangeAt(0);
    if (!prose.contains(range.startContainer) && !prose.contains(range.endContainer)) return null;
    const shown = shownRange(prose, range);
    if (!shown) return null;
    const part = sourceRange(text, shown.text, shown.from, shown.to);
    if (part.to <= part.from) return null;
    const at = range.getBoundingClientRect(), frame = body.getBoundingClientRect();
    return { part, top: at.bottom - frame.top + 6, left: Math.max(0, Math.min(at.left - frame.left, frame.width - 120)) };
}

/** The text of an element as it is shown, and which part of it is in a range. */
function shownRange(prose: Element, range: Range): { text: string; from: number; to: number } | null {
    const walker = document.createTreeWalker(prose, NodeFilter.SHOW_TEXT);
    let text = '', from = -1, to = 0;
    while (walker.nextNode()) {
        const node = walker.currentNode as Text;
        if (node.parentElement?.closest(NOT_TEXT)) continue;
        if (range.intersectsNode(node)) {
            if (from < 0) from = text.length + (node === range.startContainer ? range.startOffset : 0);
            to = text.length + (node === range.endContainer ? range.endOffset : node.length);
        }
        text += node.data;
    }
    return from >= 0 && to > from ? { text, from, to } : null;
}

// ---- the box --------------------------------------------------------------------------------------------------------------------

interface BoxProps {
    text: string;
    first: Part;
    loaded: LoadedModel;
    onClose: () => void;
    onStart: (part: Part, tokens: number) => void;
}

// A text box ends lines with one character, however many the text has there.
const boxOffset = (text: string, at: number): number => text.slice(0, at).replaceAll('\r\n', '\n').length;
function textOffset(text: string, at: number): number {
    let found = 0;
    for (let i = 0; i < at; i++) found += text.startsWith('\r\n', found) ? 2 : 1;
    return found;
}

function RewriteBox({ text, first, loaded, onClose, onStart }: BoxProps): JSX.Element {
    const box = useRef<HTMLTextAreaElement>(null);
    const [part, setPart] = useState(first);
    const [size, setSize] = useState(0); // tokens of the selection
    const [wanted, setWanted] = useState<string | null>(null); // as the user typed it
    const chosen = text.slice(part.from, part.to), tokens = wanted === null ? size : Number(wanted), most = contextSize(loaded);
    const bad = chosen === '' || !Number.isInteger(tokens) || tokens < 1 || tokens > most;
    useLayoutEffect(() => {
        box.current!.focus();
        box.current!.setSelectionRange(boxOffset(text, first.from), boxOffset(text, first.to));
    }, []);
    useEffect(() => {
        let current = true;
        void loaded.tokenize(chosen).then(({ length }) => { if (current) setSize(length); }, () => undefined);
        return () => { current = false; };
    }, [chosen]);
    const look = (): void => {
        const { selectionStart, selectionEnd } = box.current!;
        if (selectionEnd > selectionStart) setPart({ from: textOffset(text, selectionStart), to: textOffset(text, selectionEnd) });
    };
    const key = (event: KeyboardEvent): void => {
        if (event.key !== 'Escape') return;
        event.stopPropagation();
        onClose();
    };
    return (
        <form class="edit-box rewrite-box" onKeyDown={key} onSubmit={(event) => { event.preventDefault(); if (!bad) onStart(part, tokens); }}>
            <textarea ref={box} readOnly aria-label="Select the text to rewrite" rows={6} value={text} onSelect={look} onMouseUp={look} onKeyUp={look} />
            <p class="rewrite-part">
                {chosen === '' ? <span class="quiet">Select the text to rewrite.</span>
                    : <><span class="quiet">Rewrites</span> <mark dir="auto">{chosen.length > 160 ? `${chosen.slice(0, 80)} … ${chosen.slice(-80)}` : chosen}</mark></>}
            </p>
            <p class="quiet">Everything else stays as it is. This answer is kept as a version.</p>
            <div class="actions">
                <label class="rewrite-length">
                    New length
                    <input type="number" min={1} max={most} step={1} value={wanted ?? (size || '')} onInput={(event) => setWanted(event.currentTarget.value)} />
                    tokens <span class="quiet">{size > 0 && `(now ${countOf(size, 'token')})`}</span>
                </label>
                <button type="button" class="button" onClick={onClose}>Cancel</button>
                <button type="submit" class="button primary" disabled={bad}>Rewrite</button>
            </div>
        </form>
    );
}
