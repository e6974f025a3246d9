// Markdown's blocks: headings, lists, quotes, fences, tables, maths. Made for text that still grows: a fence without an end is an open code
// block, and `cutSections` separates the blocks so that only the last few are parsed again.

import { parseInline, unescapeText, type Inline } from './inline.ts';

export type Align = 'left' | 'center' | 'right' | '';

export interface ListItem {
    /** In a task list: whether the item is ticked. */
    task?: boolean;
    blocks: Block[];
}

export type Block =
    | { kind: 'paragraph'; inline: Inline[] }
    | { kind: 'heading'; level: number; inline: Inline[] }
    /** open: the closing fence has not come (yet). */
    | { kind: 'code'; language: string; text: string; open: boolean }
    | { kind: 'maths'; text: string; open: boolean }
    | { kind: 'quote'; blocks: Block[] }
    | { kind: 'list'; ordered: boolean; start: number; tight: boolean; items: ListItem[] }
    | { kind: 'table'; align: Align[]; head: Inline[][]; rows: Inline[][][] }
    | { kind: 'rule' };

const DEEPEST = 16; // containers inside each other; deeper ones are text

// A block that was found: where it ends, and how to build it.
interface Found {
    end: number;
    build(): Block[];
}
type Finder = (lines: string[], at: number, depth: number) => Found | null;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|[ \t]*)$/;
const MATHS = /^ {0,3}(\$\$|\\\[)(.*)$/;

const isBlank = (line: string | undefined): boolean => line === undefined || line.trim() === '';
const indentOf = (line: string): number => line.length - line.trimStart().length;

const fence: Finder = (lines, at) => {
    const open = FENCE.exec(lines[at]!);
    if (!open || (open[2]!.startsWith('`') && open[3]!.includes('`'))) return null;
    const [, indent, marks, info] = open as unknown as [string, string, string, string];
    const closing = new RegExp(`^ {0,3}${marks[0] === '`' ? '`' : '~'}{${marks.length},}[ \\t]*$`);
    let end = at + 1;
    while (end < lines.length && !closing.test(lines[end]!)) end++;
    const closed = end < lines.length;
    const build = (): Block[] => {
        const strip = new RegExp(`^ {0,${indent.length}}`);
        const text = lines.slice(at + 1, end).map((line) => line.replace(strip, '')).join('\n');
        return [{ kind: 'code', language: unescapeText(info.trim().split(/\s+/)[0] ?? '').slice(0, 40), text, open: !closed }];
    };
    return { end: closed ? end + 1 : end, build };
};

// $$ … $$ and \[ … \] at the start of a line. If text follows the closer on its line, it is a paragraph instead.
const maths: Finder = (lines, at) => {
    const open = MATHS.exec(lines[at]!);
    if (!open) return null;
    const closer = open[1] === '$$' ? '$$' : '\\]';
    const parts: string[] = [];
    for (let end = at; end < lines.length; end++) {
        const line = end === at ? open[2]! : lines[end]!;
        const found = line.indexOf(closer);
        if (found >= 0) {
            if (line.slice(found + 2).trim() !== '') return null;
            parts.push(line.slice(0, found));
            return { end: end + 1, build: () => [{ kind: 'maths', text: parts.join('\n').trim(), open: false }] };
        }
        if (isBlank(line) && end > at) return null; // no formula has an empty line
        parts.push(line);
    }
    return { end: lines.length, build: () => [{ kind: 'maths', text: parts.join('\n').trim(), open: true }] };
};

const heading: Finder = (lines, at) => {
    const match = HEADING.exec(lines[at]!);
    return match && { end: at + 1, build: () => [{ kind: 'heading', level: match[1]!.length, inline: parseInline(match[2] ?? '') }] };
};

const rule: Finder = (lines, at) => (RULE.test(lines[at]!) ? { end: at + 1, build: () => [{ kind: 'rule' }] } : null);

const quote: Finder = (lines, at, depth) => {
    if (depth >= DEEPEST || !QUOTE.test(lines[at]!)) return null;
    const inner = new Inner();
    let end = at;
    for (; end < lines.length; end++) {
        const line = lines[end]!;
        if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ''));
        else if (!isBlank(line) && inner.goesOn(lines, end)) inner.push(line.trimStart());
        else break;
    }
    return { end, build: () => [{ kind: 'quote', blocks: buildAll(inner.lines, depth + 1) }] };
};

// The lines of a container, without its marks.
class Inner {
    readonly lines: string[] = [];
    private fenced = false;

    push(line: string): void {
        this.lines.push(line);
        if (FENCE.test(line)) this.fenced = !this.fenced;
    }

    /** Whether the unmarked line `at` continues the paragraph of the line before. */
    goesOn(lines: string[], at: number): boolean {
        const last = this.lines.at(-1);
        if (this.fenced || isBlank(last) || HEADING.test(last!) || RULE.test(last!)) return false;
        return !interrupts(lines, at) && !ITEM.test(lines[at]!);
    }
}

const indented: Finder = (lines, at) => {
    if (indentOf(lines[at]!) < 4) return null;
    let end = at;
    for (let next = at; next < lines.length && (isBlank(lines[next]) || indentOf(lines[next]!) >= 4); next++) {
        if (!isBlank(lines[next])) end = next + 1;
    }
    const build = (): Block[] => [{ kind: 'code', language: '', text: lines.slice(at, end).map((line) => line.slice(4)).join('\n'), open: false }];
    return { end, build };
};

const list: Finder = (lines, at, depth) => {
    const first = ITEM.exec(lines[at]!);
    if (!first || first[1]!.length > 3 || depth >= DEEPEST || RULE.test(lines[at]!)) return null;
    const kind = first[2]!.at(-1)!; // - * + . )
    const items: string[][] = [];
    let end = at, loose = false;
    while (end < lines.length) {
        const marker = ITEM.exec(lines[end]!);
        if (!marker || marker[1]!.length > 3 || marker[2]!.at(-1) !== kind || RULE.test(lines[end]!)) break;
        const item = takeItem(lines, end, marker);
        items.push(item.lines);
        end = item.end;
        let next = end;
        while (next < lines.length && isBlank(lines[next])) next++;
        const follows = next > end && next < lines.length ? ITEM.exec(lines[next]!) : null;
        if (next > end && follows && follows[1]!.length <= 3 && follows[2]!.at(-1) === kind && !RULE.test(lines[next]!)) {
            loose = true;
            end = next;
        }
    }
    const build = (): Block[] => {
        const built = items.map((each) => buildItem(each, depth + 1));
        const tight = !loose && !items.some(hasGap);
        return [{ kind: 'list', ordered: kind === '.' || kind === ')', start: parseInt(first[2]!, 10) || 0, tight, items: built }];
    };
    return { end, build };
};

function takeItem(lines: string[], at: number, marker: RegExpExecArray): { lines: string[]; end: number } {
    const [, indent, mark, space, rest] = marker as unknown as [string, string, string, string?, string?];
    const wide = space === undefined || space.length > 4;
    let width = indent.length + mark.length + (wide ? 1 : space.length);
    const inner = new Inner();
    inner.push(wide && space ? ' '.repeat(space.length - 1) + rest : (rest ?? ''));
    let end = at + 1;
    for (let next = end; next < lines.length; next++) {
        const line = lines[next]!;
        if (isBlank(line)) {
            if (next === at + 1 && isBlank(inner.lines[0])) break; // an empty item ends at once
            inner.push('');
            continue;
        }
        const deep = indentOf(line);
        // Models often indent by two below `1.`: a marker that is indented by two or more belongs to the item.
        if (deep < width && deep >= indent.length + 2 && ITEM.test(line)) width = deep;
        if (deep >= width) inner.push(line.slice(width));
        else if (inner.goesOn(lines, next)) inner.push(line.trimStart());
        else break;
        end = next + 1;
    }
    return { lines: inner.lines.slice(0, end - at), end };
}

function buildItem(lines: string[], depth: number): ListItem {
    const task = /^\[([ xX])\][ \t]+(?=\S)/.exec(lines[0] ?? '');
    if (!task) return { blocks: buildAll(lines, depth) };
    return { task: task[1] !== ' ', blocks: buildAll([lines[0]!.slice(task[0].length), ...lines.slice(1)], depth) };
}

// An empty line between two blocks of an item makes the list loose; one inside a fence does not.
function hasGap(lines: string[]): boolean {
    let at = 0, blocks = 0;
    while (at < lines.length) {
        const blank = isBlank(lines[at]);
        if (blank && blocks > 0 && lines.slice(at).some((line) => !isBlank(line))) return true;
        if (blank) at++;
        else {
            at = findBlock(lines, at, DEEPEST - 1).end;
            blocks++;
        }
    }
    return false;
}

const table: Finder = (lines, at) => {
    const align = tableStart(lines, at);
    if (!align) return null;
    let end = at + 2;
    while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) end++;
    const build = (): Block[] => {
        const cells = (line: string): Inline[][] => splitRow(line).slice(0, align.length).map(parseInline);
        const padded = (row: Inline[][]): Inline[][] => [...row, ...Array.from({ length: align.length - row.length }, () => [])];
        return [{ kind: 'table', align, head: cells(lines[at]!), rows: lines.slice(at + 2, end).map((line) => padded(cells(line))) }];
    };
    return { end, build };
};

function tableStart(lines: string[], at: number): Align[] | null {
    const head = lines[at]!, below = lines[at + 1];
    if (below === undefined || !head.includes('|') || !/^[ \t|:-]*-[ \t|:-]*$/.test(below)) return null;
    const marks = splitRow(below);
    if (marks.length !== splitRow(head).length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
    return marks.map((mark) => (mark.endsWith(':') ? (mark.startsWith(':') ? 'center' : 'right') : mark.startsWith(':') ? 'left' : ''));
}

// A row's cells, split at bars that are neither escaped nor inside code.
function splitRow(line: string): string[] {
    const cells: string[] = [];
    let cell = '', ticks = false;
    const trimmed = line.trim().replace(/^\|/, '');
    for (let at = 0; at < trimmed.length; at++) {
        const character = trimmed[at]!;
        if (character === '\\' && trimmed[at + 1] === '|') {
            cell += '|';
            at++;
        } else if (character === '|' && !(ticks && trimmed.indexOf('`', at) > 0)) {
            cells.push(cell.trim());
            cell = '';
        } else {
            if (character === '`') ticks = !ticks;
            cell += character;
        }
    }
    if (cell.trim() !== '' || cells.length === 0) cells.push(cell.trim());
    return cells;
}

// What can end a paragraph without an empty line.
function interrupts(lines: string[], at: number): boolean {
    const line = lines[at]!;
    if (HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || fence(lines, at, 0) || (MATHS.test(line) && maths(lines, at, 0))) return true;
    const item = ITEM.exec(line);
    return !!item && item[1]!.length <= 3 && !isBlank(item[4]) && (!/^\d/.test(item[2]!) || parseInt(item[2]!, 10) === 1);
}

const paragraph: Finder = (lines, at) => {
    let end = at + 1;
    for (; end < lines.length && !isBlank(lines[end]); end++) {
        const under = /^ {0,3}(=+|-+)[ \t]*$/.exec(lines[end]!);
        if (under) {
            const text = lines.slice(at, end).join('\n');
            return { end: end + 1, build: () => [{ kind: 'heading', level: under[1]!.startsWith('=') ? 1 : 2, inline: parseInline(text) }] };
        }
        if (interrupts(lines, end) || tableStart(lines, end)) break;
    }
    const text = lines.slice(at, end).map((line) => line.trimStart()).join('\n');
    return { end, build: () => [{ kind: 'paragraph', inline: parseInline(text) }] };
};

const FINDERS: Finder[] = [indented, fence, maths, heading, rule, quote, list, table];

function findBlock(lines: string[], at: number, depth: number): Found {
    for (const finder of FINDERS) {
        const found = finder(lines, at, depth);
        if (found) return found;
    }
    return paragraph(lines, at, depth)!;
}

function buildAll(lines: string[], depth: number): Block[] {
    const blocks: Block[] = [];
    for (let at = 0; at < lines.length;) {
        if (isBlank(lines[at])) {
            at++;
            continue;
        }
        const found = findBlock(lines, at, depth);
        blocks.push(...found.build());
        at = found.end;
    }
    return blocks;
}

function toLines(text: string): string[] {
    return text.replaceAll('\0', '\ufffd').split(/\r\n|\n|\r/).map((line) =>
        /^ *\t/.test(line) ? line.replace(/^[ \t]+/, (space) => expandTabs(space)) : line);
}

function expandTabs(space: string): string {
    let width = 0;
    for (const character of space) width += character === '\t' ? 4 - (width % 4) : 1;
    return ' '.repeat(width);
}

export function parseMarkdown(text: string): Block[] {
    return buildAll(toLines(text), 0);
}

/** The top-level blocks of a text: the text of each, and its first line. */
export interface Sections {
    text: string;
    parts: string[];
    starts: number[];
}

/** Cuts a text into its top-level blocks. While it grows, `before` is what the shorter text gave: all but the last few blocks stay the
 * same strings, so that neither they are looked for again nor what was drawn for them is drawn again. */
export function cutSections(text: string, before?: Sections): Sections {
    const lines = toLines(text);
    // New text can change the last block and join it with the ones before; nothing further back changes.
    const keep = before && text.startsWith(before.text) ? Math.max(0, before.parts.length - 3) : 0;
    const parts = keep > 0 ? before!.parts.slice(0, keep) : [];
    const starts = keep > 0 ? before!.starts.slice(0, keep) : [];
    for (let at = keep > 0 ? before!.starts[keep]! : 0; at < lines.length;) {
        if (isBlank(lines[at])) {
            at++;
            continue;
        }
        const { end } = findBlock(lines, at, 0);
        parts.push(lines.slice(at, end).join('\n'));
        starts.push(at);
        at = end;
    }
    return { text, parts, starts };
}
