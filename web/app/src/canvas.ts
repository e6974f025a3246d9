// The canvas of a diffusion model. The app keeps the steps of an answer in memory, as long as the page is open, to look back at them.

import type { Canvas } from './engine.ts';

/** How a position of the canvas stands. */
export const OPEN = 0, ACCEPTED = 1, PINNED = 2;

/** The canvas after a step. */
export interface Frame {
    block: number;
    step: number;
    mostSteps: number;
    meanEntropy: number;
    /** By position: the likeliest token, its entropy in nats, and whether it is OPEN, ACCEPTED or PINNED. */
    texts: string[];
    entropies: Float32Array;
    states: Uint8Array;
    /** The pass of the answer (Answer.steps) that it belongs to, and how many characters of that were settled before this block. */
    pass: number;
    settled: number;
}

const MOST_POSITIONS = 1_000_000; // of all frames together: about 10 MB
const kept = new Map<string, Frame[]>(); // by answer, the oldest first
let positions = 0;

/** `most`: tokens of the whole answer. What is behind them is not part of it, and not shown. */
export function frameOf(canvas: Canvas, pass: number, settled: number, most = Infinity): Frame {
    const { block, step, most_steps: mostSteps, mean_entropy: meanEntropy } = canvas;
    const tokens = canvas.tokens.slice(0, Math.max(0, most - block * canvas.tokens.length));
    return {
        block, step, mostSteps, meanEntropy, pass, settled,
        texts: tokens.map(({ text }) => text),
        entropies: Float32Array.from(tokens, ({ entropy }) => entropy),
        states: Uint8Array.from(tokens, ({ accepted, pinned }) => (pinned ? PINNED : accepted ? ACCEPTED : OPEN)),
    };
}

/** Keeps a frame of an answer. If there are too many, those of older answers go first, then the first ones of this answer. */
export function keepFrame(answer: string, frame: Frame, most = MOST_POSITIONS): void {
    const frames = kept.get(answer) ?? [], last = frames.at(-1);
    kept.set(answer, frames);
    // A position that stays the same shares its string with the frame before.
    frames.push({ ...frame, texts: frame.texts.map((text, at) => (last?.texts[at] === text ? last.texts[at]! : text)) });
    positions += frame.texts.length;
    for (const [id, oldest] of kept) {
        while (positions > most && oldest.length > (id === answer ? 1 : 0)) positions -= oldest.shift()!.texts.length;
        if (oldest.length > 0) break;
        kept.delete(id);
    }
}

export const framesOf = (answer: string): readonly Frame[] => kept.get(answer) ?? [];

export function dropFrames(answer: string): void {
    for (const frame of framesOf(answer)) positions -= frame.texts.length;
    kept.delete(answer);
}

// ---- rewriting ----------------------------------------------------------------------------------------------------------------

/** A part of an answer's text that is written anew, with so many tokens. */
export interface Gap {
    from: number;
    to: number;
    tokens: number;
}

/** The text around a gap, which stays as it is. */
export const around = (text: string, { from, to }: Gap): { before: string; after: string } => ({ before: text.slice(0, from), after: text.slice(to) });

/** The text with a hole, in the form that the engine reads. */
export function withHole(text: string, gap: Gap): string {
    const { before, after } = around(text, gap);
    return `${asPinned(before)}[[${gap.tokens}]]${asPinned(after)}`;
}

const asPinned = (text: string): string => text.replaceAll('[[', '[[[[]]');

/** Where a part of the text as it is shown is in its Markdown. Markdown hides characters (marks, addresses of links) and shows none that it
 * does not have, but for a few. Where the part occurs several times, the same occurrence is meant. */
export function sourceRange(source: string, shown: string, from: number, to: number): { from: number; to: number } {
    const part = shown.slice(from, to);
    const inShown = occurrences(shown, part), inSource = occurrences(source, part), which = inShown.indexOf(from);
    if (which >= 0 && inShown.length === inSource.length) return { from: inSource[which]!, to: inSource[which]! + part.length };
    let at = 0, first = -1, end = 0;
    for (let i = 0; i < to; i++) {
        const found = isSpace(shown[i]!) ? nextSpace(source, at) : source.indexOf(shown[i]!, at);
        if (found < 0 || found - at > FARTHEST) continue; // shown, but not in the source
        at = found + 1;
        if (i < from) continue;
        if (first < 0) first = found;
        end = at;
    }
    return { from: Math.max(first, 0), to: Math.max(end, first, 0) };
}

const FARTHEST = 500; // characters that Markdown hides in a row, as in the address of a link

const isSpace = (character: string): boolean => /\s/.test(character);

function nextSpace(text: string, at: number): number {
    const found = text.slice(at).search(/\s/);
    return found < 0 ? -1 : at + found;
}

function occurrences(text: string, part: string): number[] {
    const found: number[] = [];
    for (let at = text.indexOf(part); at >= 0 && part !== ''; at = text.indexOf(part, at + 1)) found.push(at);
    return found;
}
