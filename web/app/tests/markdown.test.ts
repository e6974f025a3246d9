// Markdown as a table of cases: source → a short form of the tree. And texts that try to break out of it.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { cutSections, parseMarkdown, type Block, type Sections } from '../src/markdown/blocks.ts';
import { parseInline, safeHref, type Inline } from '../src/markdown/inline.ts';

// The short form: paragraphs as their text; marks as in (em …).
function short(blocks: Block[]): string {
    return blocks.map((block) => {
        switch (block.kind) {
            case 'paragraph': return shortInline(block.inline);
            case 'heading': return `(h${block.level} ${shortInline(block.inline)})`;
            case 'code': return `(${block.open ? 'open-' : ''}code${block.language ? `:${block.language}` : ''} ${JSON.stringify(block.text)})`;
            case 'maths': return `(${block.open ? 'open-' : ''}maths ${JSON.stringify(block.text)})`;
            case 'quote': return `(quote ${short(block.blocks)})`;
            case 'rule': return '(rule)';
            case 'list': {
                const items = block.items.map((item) => `[${item.task === undefined ? '' : item.task ? 'x ' : 'o '}${short(item.blocks)}]`);
                return `(${block.ordered ? `ol${block.start}` : 'ul'}${block.tight ? '' : '-loose'} ${items.join('')})`;
            }
            case 'table': return `(table ${block.align.join(',')} ${[block.head, ...block.rows].map((row) => row.map(shortInline).join('|')).join(' / ')})`;
        }
    }).join(' ¶ ');
}

function shortInline(inlines: Inline[]): string {
    return inlines.map((inline) => {
        switch (inline.kind) {
            case 'text': return inline.text;
            case 'code': return `(code ${inline.text})`;
            case 'maths': return `(${inline.display ? 'display' : 'maths'} ${inline.text})`;
            case 'break': return '(br)';
            case 'emphasis': return `(em ${shortInline(inline.children)})`;
            case 'strong': return `(strong ${shortInline(inline.children)})`;
            case 'strike': return `(del ${shortInline(inline.children)})`;
            case 'link': return `(${inline.image ? 'image-' : ''}link ${inline.href} ${shortInline(inline.children)})`;
        }
    }).join('');
}

const CASES: [string, string][] = [
    // headings
    ['# One', '(h1 One)'],
    ['###### Six ######', '(h6 Six)'],
    ['####### seven', '####### seven'],
    ['#no space', '#no space'],
    ['#', '(h1 )'],
    ['Title\n===', '(h1 Title)'],
    ['Title\n---', '(h2 Title)'],
    ['# a *b*', '(h1 a (em b))'],
    // paragraphs and breaks
    ['a\nb', 'a\nb'],
    ['a\n\nb', 'a ¶ b'],
    ['a  \nb', 'a(br)b'],
    ['a\\\nb', 'a(br)b'],
    ['a<br>b', 'a(br)b'],
    ['a\r\nb\r\n\r\nc', 'a\nb ¶ c'],
    // emphasis
    ['*a*', '(em a)'],
    ['_a_', '(em a)'],
    ['**a**', '(strong a)'],
    ['__a__', '(strong a)'],
    ['***a***', '(em (strong a))'],
    ['***a** b*', '(em (strong a) b)'],
    ['*a **b** c*', '(em a (strong b) c)'],
    ['**a *b* c**', '(strong a (em b) c)'],
    ['a * b * c', 'a * b * c'],
    ['snake_case_name', 'snake_case_name'],
    ['2*3*4', '2(em 3)4'],
    ['**unfinished', '**unfinished'],
    ['*a _b* c_', '(em a _b) c_'],
    ['\\*not\\*', '*not*'],
    ['~~gone~~', '(del gone)'],
    ['~a~', '(del a)'],
    ['**„Zitat“**', '(strong „Zitat“)'],
    // code
    ['`a*b*`', '(code a*b*)'],
    ['``a`b``', '(code a`b)'],
    ['`` ` ``', '(code `)'],
    ['`open', '`open'],
    ['`a\nb`', '(code a b)'],
    ['```\na\n```', '(code "a")'],
    ['```js\nlet a;\n\nb\n```', '(code:js "let a;\\n\\nb")'],
    ['~~~ python\nx\n~~~', '(code:python "x")'],
    ['```js\nlet a', '(open-code:js "let a")'],
    ['```', '(open-code "")'],
    ['````md\n```js\nx\n```\n````', '(code:md "```js\\nx\\n```")'],
    ['text\n```\ncode\n```\nmore', 'text ¶ (code "code") ¶ more'],
    ['    four', '(code "four")'],
    ['```a`b', '```a`b'],
    // lists
    ['- a\n- b', '(ul [a][b])'],
    ['* a\n\n* b', '(ul-loose [a][b])'],
    ['1. a\n2. b', '(ol1 [a][b])'],
    ['7) a\n8) b', '(ol7 [a][b])'],
    ['- a\n  - b\n    - c\n- d', '(ul [a ¶ (ul [b ¶ (ul [c])])][d])'],
    ['1. a\n   - b\n2. c', '(ol1 [a ¶ (ul [b])][c])'],
    ['1. a\n  - b\n2. c', '(ol1 [a ¶ (ul [b])][c])'],
    ['- a\n  more\n- b', '(ul [a\nmore][b])'],
    ['- a\nlazy\n- b', '(ul [a\nlazy][b])'],
    ['- a\n\n  second\n- b', '(ul-loose [a ¶ second][b])'],
    ['- a\n  ```\n  x\n\n  y\n  ```\n- b', '(ul [a ¶ (code "x\\n\\ny")][b])'],
    ['- a\n+ b', '(ul [a]) ¶ (ul [b])'],
    ['- [ ] todo\n- [x] done', '(ul [o todo][x done])'],
    ['text\n- a', 'text ¶ (ul [a])'],
    ['in 2024\n2024. was', 'in 2024\n2024. was'],
    ['1. a\n```\nx\n```\n2. b', '(ol1 [a]) ¶ (code "x") ¶ (ol2 [b])'],
    ['-', '(ul [])'],
    ['- **a**: b', '(ul [(strong a): b])'],
    ['\t- a', '(code "- a")'],
    ['- a\n\t- b', '(ul [a ¶ (ul [b])])'],
    // quotes and rules
    ['> a\n> b', '(quote a\nb)'],
    ['> a\nlazy', '(quote a\nlazy)'],
    ['> - a\n> - b', '(quote (ul [a][b]))'],
    ['> > deep', '(quote (quote deep))'],
    ['> ```\n> x', '(quote (open-code "x"))'],
    ['---', '(rule)'],
    ['* * *', '(rule)'],
    ['a\n\n***\n\nb', 'a ¶ (rule) ¶ b'],
    // tables
    ['| a | b |\n|---|--:|\n| 1 | 2 |', '(table ,right a|b / 1|2)'],
    ['a | b\n:-: | :--\n1', '(table center,left a|b / 1|)'],
    ['| a |\n|---|\n| `x|y` |\n| p\\|q |', '(table  a / (code x|y) / p|q)'],
    ['| a | b |\n| 1 | 2 |', '| a | b |\n| 1 | 2 |'],
    ['before\n| a | b |\n|---|---|\n| 1 | 2 | 3 |\n\nafter', 'before ¶ (table , a|b / 1|2) ¶ after'],
    // links
    ['[a](https://b.example/c)', '(link https://b.example/c a)'],
    ['[a](<https://b.example/c d>)', '(link https://b.example/c%20d a)'],
    ['[a](https://b.example "title")', '(link https://b.example/ a)'],
    ['[**a**](https://b.example/(x))', '(link https://b.example/(x) (strong a))'],
    ['[a](mailto:x@y.example)', '(link mailto:x@y.example a)'],
    ['[a] (https://b.example)', '[a] ((link https://b.example/ https://b.example))'],
    ['[a](no end', '[a](no end'],
    ['[a](/relative)', 'a'],
    ['<https://b.example>', '(link https://b.example/ https://b.example)'],
    ['<me@b.example>', '(link mailto:me@b.example me@b.example)'],
    ['see https://b.example/x, and more', 'see (link https://b.example/x https://b.example/x), and more'],
    ['(www.b.example/a_(b))', '((link https://www.b.example/a_(b) www.b.example/a_(b)))'],
    ['![alt](https://b.example/i.png)', '(image-link https://b.example/i.png alt)'],
    ['![](https://b.example/i.png)', '(image-link https://b.example/i.png https://b.example/i.png)'],
    ['[![i](https://b.example/i)](https://b.example)', '(link https://b.example/ (image-link https://b.example/i i))'],
    ['[[a](https://b.example)](https://c.example)', '[(link https://b.example/ a)]((link https://c.example/ https://c.example))'],
    // maths
    ['$x^2$', '(maths x^2)'],
    ['\\(x\\)', '(maths x)'],
    ['\\[x\\]', '(maths "x")'],
    ['a \\[x\\] b', 'a (display x) b'],
    ['$$\nx\n$$', '(maths "x")'],
    ['$$x$$', '(maths "x")'],
    ['a $$x$$ b', 'a (display x) b'],
    ['$$\nx', '(open-maths "x")'],
    ['It costs $5 or $6.', 'It costs $5 or $6.'],
    ['$5$ coins', '(maths 5) coins'],
    ['US$5 and US$6', 'US$5 and US$6'],
    ['$ a $', '$ a $'],
    ['`$x$`', '(code $x$)'],
    ['$a_b$ and $c_d$', '(maths a_b) and (maths c_d)'],
    // entities and raw HTML
    ['a &amp; b &lt; &#65; &#x42; &nope;', 'a & b < A B &nope;'],
    ['&#0;', '\ufffd'],
    ['<b>bold</b>', '<b>bold</b>'],
    ['<script>alert(1)</script>', '<script>alert(1)</script>'],
    ['', ''],
    ['   \n\n  ', ''],
];

test('markdown: cases', () => {
    for (const [source, expected] of CASES) assert.equal(short(parseMarkdown(source)), expected, JSON.stringify(source));
});

test('markdown: sections put together are the whole', () => {
    for (const [source] of CASES) {
        const whole = short(parseMarkdown(source));
        assert.equal(cutSections(source).parts.flatMap((part) => short(parseMarkdown(part))).join(' ¶ '), whole, JSON.stringify(source));
    }
});

test('markdown: a text that grows is cut as if it were whole, and its first blocks stay', () => {
    const closed = CASES.map(([source]) => source).filter((source) => !/```|~~~|\$\$/.test(source)).join('\n\n');
    for (const text of [closed, CASES.map(([source]) => source).join('\n\n'), CASES.map(([source]) => source).toReversed().join('\n')]) {
        for (const step of [1, 7, 50]) {
            let before: Sections | undefined;
            for (let end = 0; end < text.length; end += step) {
                const now = cutSections(text.slice(0, end), before);
                assert.deepEqual(now, cutSections(text.slice(0, end)), `at ${end} by ${step}`);
                before = now;
            }
        }
    }
    assert.deepEqual(cutSections('b', cutSections('a\n\nb\n\nc\n\nd\n\ne')).parts, ['b'], 'another text is cut anew');
});

test('markdown: every prefix of everything parses', () => {
    const text = CASES.map(([source]) => source).join('\n\n');
    for (let end = 0; end <= text.length; end += 3) parseMarkdown(text.slice(0, end));
});

test('markdown: long and deep texts take no more than their length', () => {
    const texts = ['*a ', '[', '`a``', '> ', '- ', '$a', '](', '**a ', '*a_ ', '<http://', '&', 'http://a.b)', '[a](b ', '\\(a', '- a\n', '> a\nb\n', '| a ', '![', '~~', '$$a\n'];
    for (const text of texts) {
        const blocks = parseMarkdown(text.repeat(5000));
        assert.ok(JSON.stringify(blocks).length < 40 * text.length * 5000 + 1000, JSON.stringify(text));
    }
});

test('links lead only to http, https and mailto', () => {
    for (const address of [
        'javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\nscript:alert(1)', '\u0001javascript:alert(1)', 'data:text/html,x',
        'vbscript:x', 'file:///etc/passwd', 'blob:https://a/b', 'about:blank', '//evil.example', '/path', '#x', 'http:', 'https://', 'x',
        '', 'javascript://https://a.example', 'view-source:https://a.example',
    ]) assert.equal(safeHref(address), '', JSON.stringify(address));
    assert.equal(safeHref('HTTPS://A.example'), 'https://a.example/');
});

test('the XSS corpus becomes text and harmless links', () => {
    const corpus = JSON.parse(readFileSync(new URL('xss.json', import.meta.url), 'utf8')) as string[];
    assert.ok(corpus.length >= 40);
    const check = (inlines: Inline[]): void => {
        for (const inline of inlines) {
            if (inline.kind === 'link') assert.match(inline.href, /^(?:https?:\/\/|mailto:)/);
            if ('children' in inline) check(inline.children);
        }
    };
    const walk = (blocks: Block[]): void => {
        for (const block of blocks) {
            if (block.kind === 'paragraph' || block.kind === 'heading') check(block.inline);
            else if (block.kind === 'quote') walk(block.blocks);
            else if (block.kind === 'list') block.items.forEach((item) => walk(item.blocks));
            else if (block.kind === 'table') [block.head, ...block.rows].flat().forEach(check);
        }
    };
    for (const text of corpus) walk(parseMarkdown(text));
    assert.deepEqual(parseInline('<img src=x onerror=alert(1)>'), [{ kind: 'text', text: '<img src=x onerror=alert(1)>' }]);
});
