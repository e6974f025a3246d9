// Markdown within a line: emphasis, code, links, maths. Follows CommonMark for what people and models write; raw HTML is text.
//
// The result is a tree of plain objects, which the view turns into elements, never into markup.

export type Inline =
    | { kind: 'text'; text: string }
    | { kind: 'code'; text: string }
    | { kind: 'maths'; text: string; display: boolean }
    | { kind: 'break' }
    | { kind: 'emphasis' | 'strong' | 'strike'; children: Inline[] }
    /** image: shown as a link, so that a model cannot send data out by making the page load a picture. */
    | { kind: 'link'; href: string; children: Inline[]; image?: boolean };

/** The URL if a link may lead there (http, https, mailto, or relative to one of them); else ''. */
export function safeHref(address: string): string {
    const trimmed = address.trim();
    if (!/^(?:https?:\/\/|mailto:)/i.test(trimmed)) return '';
    // URL drops tabs and line breaks inside a URL, as the browser does.
    try {
        const url = new URL(trimmed);
        return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : '';
    } catch {
        return '';
    }
}

const ENTITIES: Record<string, string> = {
    amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', trade: '™', hellip: '…', mdash: '—', ndash: '–',
    lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”', laquo: '\u00ab', raquo: '\u00bb', times: '×', middot: '·', bull: '•', deg: '°', rarr: '→', larr: '←',
    euro: '€', le: '≤', ge: '≥', ne: '≠', plusmn: '±', infin: '∞',
};

function entity(name: string): string | undefined {
    if (!name.startsWith('#')) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : undefined;
    const code = /^#[xX]/.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return valid ? String.fromCodePoint(code) : '\ufffd';
}

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;

/** Text with backslash escapes and entities resolved, for link targets and fence languages. */
export function unescapeText(text: string): string {
    return text.replace(/\\([!-/:-@[-`{-~])|&(#[xX]?[0-9a-fA-F]{1,7}|[a-zA-Z]{2,8});/g, (whole, escaped, name) =>
        escaped ?? entity(name) ?? whole);
}

// Finished inlines and delimiter runs in text order; emphasis is found by walking the sequence.
interface Entry {
    inline?: Inline;
    delimiter?: { mark: string; count: number; length: number; opens: boolean; closes: boolean };
    bracket?: { image: boolean; active: boolean; at: number };
    previous: Entry | undefined;
    next: Entry | undefined;
}

class Sequence {
    first: Entry | undefined;
    last: Entry | undefined;

    push(entry: Omit<Entry, 'previous' | 'next'>): Entry {
        const added: Entry = { ...entry, previous: this.last, next: undefined };
        if (this.last) this.last.next = added;
        else this.first = added;
        this.last = added;
        return added;
    }

    text(text: string): void {
        if (text === '') return;
        const inline = this.last?.inline;
        if (inline?.kind === 'text') inline.text += text;
        else this.push({ inline: { kind: 'text', text } });
    }

    /** Removes everything after `after` from the sequence and returns it, finished. */
    cut(after: Entry | undefined): Inline[] {
        resolveEmphasis(this, after);
        const taken: Inline[] = [];
        for (let entry = after ? after.next : this.first; entry; entry = entry.next) appendFinished(taken, entry);
        this.last = after;
        if (after) after.next = undefined;
        else this.first = undefined;
        return taken;
    }
}

function appendFinished(out: Inline[], entry: Entry): void {
    const inline: Inline = entry.inline ?? {
        kind: 'text',
        text: entry.delimiter ? entry.delimiter.mark.repeat(entry.delimiter.count) : entry.bracket?.image ? '![' : '[',
    };
    const last = out.at(-1);
    if (inline.kind === 'text' && last?.kind === 'text') last.text += inline.text;
    else if (inline.kind !== 'text' || inline.text !== '') out.push(inline.kind === 'text' ? { ...inline } : inline);
}

// CommonMark's procedure: each closer pairs with the nearest opener that fits. `bottom` records, for each kind of closer, the point below
// which there is no opener, so that a long run of closers takes linear time.
function resolveEmphasis(sequence: Sequence, after: Entry | undefined): void {
    const bottom = new Map<string, Entry | undefined>();
    let closer = after ? after.next : sequence.first;
    while (closer) {
        const close = closer.delimiter;
        if (!close?.closes || close.count === 0) {
            closer = closer.next;
            continue;
        }
        const key = `${close.mark}${close.opens}${close.length % 3}`;
        const stop = bottom.has(key) ? bottom.get(key) : after;
        let opener = closer.previous;
        while (opener && opener !== stop && opener !== after && !pairs(opener, close)) opener = opener.previous;
        if (!opener || opener === stop || opener === after) {
            bottom.set(key, closer.previous);
            closer = closer.next;
            continue;
        }
        wrap(opener, closer);
        if (close.count === 0) closer = closer.next;
    }
}

function pairs(opener: Entry, close: NonNullable<Entry['delimiter']>): boolean {
    const open = opener.delimiter;
    if (!open || !open.opens || open.count === 0 || open.mark !== close.mark) return false;
    if (close.mark === '~') return open.count === close.count;
    // CommonMark's rule of three: if either run can both open and close, they do not pair when their lengths add up to a multiple of three.
    return !((open.closes || close.opens) && (open.length + close.length) % 3 === 0 && (open.length % 3 !== 0 || close.length % 3 !== 0));
}

function wrap(opener: Entry, closer: Entry): void {
    const open = opener.delimiter!, close = closer.delimiter!;
    const use = close.mark === '~' ? close.count : open.count >= 2 && close.count >= 2 ? 2 : 1;
    const children: Inline[] = [];
    for (let entry = opener.next; entry && entry !== closer; entry = entry.next) appendFinished(children, entry);
    open.count -= use;
    close.count -= use;
    const inline: Inline = { kind: close.mark === '~' ? 'strike' : use === 2 ? 'strong' : 'emphasis', children };
    const wrapped: Entry = { inline, previous: opener, next: closer };
    opener.next = wrapped;
    closer.previous = wrapped;
}

const MOST_BRACKETS = 64; // more open brackets than this at once are text: nobody means them, and they would cost

class InlineParser {
    private readonly text: string;
    private at = 0;
    private readonly out = new Sequence();
    private readonly brackets: Entry[] = [];
    private readonly absent = new Set<string>(); // closers known not to come any more

    constructor(text: string) {
        this.text = text;
    }

    parse(): Inline[] {
        while (this.at < this.text.length) this.step();
        return this.out.cut(undefined);
    }

    private step(): void {
        const plain = /[^\\`*_~[\]!<&\n$hHwW]+/y;
        plain.lastIndex = this.at;
        const run = plain.exec(this.text);
        if (run) {
            this.out.text(run[0]);
            this.at += run[0].length;
            return;
        }
        const mark = this.text[this.at]!;
        const handled =
            mark === '\\' ? this.backslash()
            : mark === '`' ? this.code()
            : mark === '*' || mark === '_' || mark === '~' ? this.delimiter(mark)
            : mark === '[' ? this.open(false)
            : mark === '!' ? this.text[this.at + 1] === '[' && this.open(true)
            : mark === ']' ? this.close()
            : mark === '<' ? this.angle()
            : mark === '&' ? this.reference()
            : mark === '\n' ? this.lineEnd()
            : mark === '$' ? this.dollar()
            : this.address();
        if (!handled) {
            this.out.text(mark);
            this.at++;
        }
    }

    // The position of `closer` at or after `from`. A miss is remembered, so that openers without a closer stay cheap.
    private find(closer: string, from: number): number {
        if (this.absent.has(closer)) return -1;
        const found = this.text.indexOf(closer, from);
        if (found < 0) this.absent.add(closer);
        return found;
    }

    private backslash(): boolean {
        const next = this.text[this.at + 1];
        if (next === '(' || next === '[') {
            const closer = next === '(' ? '\\)' : '\\]';
            const end = this.find(closer, this.at + 2);
            if (end > 0 && this.text.slice(this.at + 2, end).trim() !== '') return this.maths(this.at + 2, end, end + 2, next === '[');
        }
        if (next === '\n') {
            this.out.push({ inline: { kind: 'break' } });
            this.at += 2;
            return true;
        }
        if (next === undefined || !ESCAPABLE.test(next)) return false;
        this.out.text(next);
        this.at += 2;
        return true;
    }

    private code(): boolean {
        const run = /`+/y;
        run.lastIndex = this.at;
        const ticks = run.exec(this.text)![0];
        const key = `\`${ticks.length}`;
        if (!this.absent.has(key)) {
            const closer = /`+/g;
            closer.lastIndex = this.at + ticks.length;
            for (let found = closer.exec(this.text); found; found = closer.exec(this.text)) {
                if (found[0].length !== ticks.length) continue;
                let text = this.text.slice(this.at + ticks.length, found.index).replaceAll('\n', ' ');
                if (/^ .*[^ ].* $/.test(text) || /^ [^ ] $/.test(text)) text = text.slice(1, -1);
                this.out.push({ inline: { kind: 'code', text } });
                this.at = closer.lastIndex;
                return true;
            }
            this.absent.add(key);
        }
        this.out.text(ticks);
        this.at += ticks.length;
        return true;
    }

    private delimiter(mark: string): boolean {
        let end = this.at;
        while (this.text[end] === mark) end++;
        const length = end - this.at;
        if (mark === '~' && length > 2) {
            this.out.text(mark.repeat(length));
            this.at = end;
            return true;
        }
        const before = characterBefore(this.text, this.at), behind = characterAt(this.text, end);
        const spaceBefore = before === '' || /\s/u.test(before), spaceBehind = behind === '' || /\s/u.test(behind);
        const markBefore = PUNCTUATION.test(before), markBehind = PUNCTUATION.test(behind);
        const left = !spaceBehind && (!markBehind || spaceBefore || markBefore);
        const right = !spaceBefore && (!markBefore || spaceBehind || markBehind);
        const inWord = mark === '_';
        const opens = left && (!inWord || !right || markBefore), closes = right && (!inWord || !left || markBehind);
        this.out.push({ delimiter: { mark, count: length, length, opens, closes } });
        this.at = end;
        return true;
    }

    private open(image: boolean): boolean {
        if (this.brackets.length >= MOST_BRACKETS) return false;
        this.at += image ? 2 : 1;
        this.brackets.push(this.out.push({ bracket: { image, active: true, at: this.at } }));
        return true;
    }

    private close(): boolean {
        const opener = this.brackets.pop();
        if (!opener?.bracket!.active) return false;
        const target = this.target(this.at + 1);
        if (!target) return false;
        const { image } = opener.bracket!;
        const children = this.out.cut(opener);
        this.out.last = opener.previous;
        if (opener.previous) opener.previous.next = undefined;
        else this.out.first = undefined;
        this.at = target.end;
        const href = safeHref(target.href);
        if (href === '') {
            for (const child of children) this.out.push({ inline: child }); // the words stay, the link does not
        } else {
            this.out.push({ inline: { kind: 'link', href, children: children.length ? children : [{ kind: 'text', text: href }], ...(image && { image }) } });
        }
        if (!image) for (const bracket of this.brackets) bracket.bracket!.active &&= bracket.bracket!.image;
        return true;
    }

    // `(target "title")` after a closing bracket.
    private target(at: number): { href: string; end: number } | null {
        if (this.text[at] !== '(') return null;
        const angled = /\(\s*<([^<>\n]*)>(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/y;
        angled.lastIndex = at;
        const inAngles = angled.exec(this.text);
        if (inAngles) return { href: unescapeText(inAngles[1]!), end: angled.lastIndex };
        let end = at + 1;
        while (/\s/.test(this.text[end] ?? '')) end++;
        const from = end;
        for (let depth = 0; end < this.text.length; end++) {
            const character = this.text[end]!;
            if (character <= ' ') break;
            if (character === '\\') end++;
            else if (character === '(' && ++depth > 32) return null;
            else if (character === ')' && depth-- === 0) break;
        }
        const rest = /(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/y;
        rest.lastIndex = end;
        return rest.test(this.text) ? { href: unescapeText(this.text.slice(from, end)), end: rest.lastIndex } : null;
    }

    private angle(): boolean {
        const line = /<br\s*\/?>/iy; // the one tag that has a meaning here: models write it inside table cells
        line.lastIndex = this.at;
        if (line.test(this.text)) {
            this.out.push({ inline: { kind: 'break' } });
            this.at = line.lastIndex;
            return true;
        }
        const auto = /<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)>/iy;
        auto.lastIndex = this.at;
        const match = auto.exec(this.text);
        if (!match) return false;
        const shown = match[1]!;
        return this.link(/^[a-z]+:/i.test(shown) ? shown : `mailto:${shown}`, shown, auto.lastIndex);
    }

    private reference(): boolean {
        const pattern = /&(#[xX]?[0-9a-fA-F]{1,7}|[a-zA-Z]{2,8});/y;
        pattern.lastIndex = this.at;
        const match = pattern.exec(this.text);
        const character = match && entity(match[1]!);
        if (!character) return false;
        this.out.text(character);
        this.at = pattern.lastIndex;
        return true;
    }

    private lineEnd(): boolean {
        const last = this.out.last?.inline;
        const hard = last?.kind === 'text' && last.text.endsWith('  ');
        if (last?.kind === 'text') last.text = last.text.replace(/ +$/, '');
        if (hard) this.out.push({ inline: { kind: 'break' } });
        else this.out.text('\n');
        this.at++;
        while (this.text[this.at] === ' ') this.at++;
        return true;
    }

    // $…$ is maths only where it cannot be money: no space next to the inner side of a dollar, no digit right after the closing one.
    private dollar(): boolean {
        if (this.text.startsWith('$$', this.at)) {
            const end = this.find('$$', this.at + 2);
            if (end > this.at + 2) return this.maths(this.at + 2, end, end + 2, true);
            this.out.text('$$');
            this.at += 2;
            return true;
        }
        if (/\w/.test(this.text[this.at - 1] ?? '') || /\s/.test(this.text[this.at + 1] ?? ' ')) return false;
        for (let end = this.find('$', this.at + 1); end > 0; end = this.find('$', end + 1)) {
            const before = this.text[end - 1]!, behind = this.text[end + 1] ?? '';
            if (before === '\\') continue;
            if (this.text.slice(this.at, end).includes('\n\n')) return false;
            if (/\s/.test(before) || /\d/.test(behind)) return false;
            return this.maths(this.at + 1, end, end + 1, false);
        }
        return false;
    }

    private maths(from: number, to: number, end: number, display: boolean): boolean {
        this.out.push({ inline: { kind: 'maths', text: this.text.slice(from, to).trim(), display } });
        this.at = end;
        return true;
    }

    private address(): boolean {
        if (/[\w/]/.test(this.text[this.at - 1] ?? '')) return false;
        const pattern = /(?:https?:\/\/|www\.)[^\s<>"`]+/iy;
        pattern.lastIndex = this.at;
        const match = pattern.exec(this.text);
        if (!match) return false;
        const shown = trimAddress(match[0]);
        if (!/^(?:https?:\/\/|www\.)[^\s./]+(?:[./:]|$)/i.test(shown) || (/^www/i.test(shown) && !/^www\.[^.]+\./i.test(shown))) return false;
        return this.link(/^www/i.test(shown) ? `https://${shown}` : shown, shown, this.at + shown.length);
    }

    private link(address: string, shown: string, end: number): boolean {
        const href = safeHref(address);
        if (href === '') return false;
        // URLs inside a link's text stay text: links do not nest.
        if (this.brackets.some((entry) => entry.bracket!.active && !entry.bracket!.image && this.text.indexOf('](', end) > 0)) {
            this.out.text(this.text.slice(this.at, end));
        } else {
            this.out.push({ inline: { kind: 'link', href, children: [{ kind: 'text', text: shown }] } });
        }
        this.at = end;
        return true;
    }
}

// Trailing punctuation belongs to the sentence, not to the URL; so does a closing parenthesis that the URL does not open.
function trimAddress(address: string): string {
    for (;;) {
        const shorter = address.replace(/(?:[?!.,:;*_~'"]+|&\w+;)$/, '');
        const unbalanced = shorter.endsWith(')') && shorter.split(')').length > shorter.split('(').length;
        const next = unbalanced ? shorter.slice(0, -1) : shorter;
        if (next === address) return address;
        address = next;
    }
}

function characterBefore(text: string, at: number): string {
    const low = text.charCodeAt(at - 1);
    return at === 0 ? '' : low >= 0xdc00 && low <= 0xdfff ? text.slice(at - 2, at) : text[at - 1]!;
}

function characterAt(text: string, at: number): string {
    const code = text.codePointAt(at);
    return code === undefined ? '' : String.fromCodePoint(code);
}

export function parseInline(text: string): Inline[] {
    return new InlineParser(text.trim()).parse();
}
