// Markdown as elements. Nothing here makes markup from text: every string ends as a text node or as a checked attribute.

import { createElement, Fragment, type JSX } from 'preact';
import { memo } from '../memo.ts';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Icon } from '../icons.tsx';
import { CopyButton } from '../parts/copy_button.tsx';
import { cutSections, parseMarkdown, type Block, type Sections } from './blocks.ts';
import { highlight, languageOf, loadLanguage, type Token } from './highlight.ts';
import type { Inline } from './inline.ts';
import { loadMaths, mathsTree, type MathNode } from './maths.ts';

export function Markdown({ text }: { text: string }): JSX.Element {
    const cut = useRef<Sections>(undefined);
    cut.current = useMemo(() => cutSections(text, cut.current), [text]);
    return (
        <div class="prose">
            {cut.current.parts.map((source, index) => <Section key={index} source={source} />)}
        </div>
    );
}

// Renders again only when its own text changes, so a growing answer costs its last paragraph.
const Section = memo(({ source }: { source: string }): JSX.Element => <>{parseMarkdown(source).map(drawBlock)}</>, (a, b) => a.source === b.source);

function drawBlock(block: Block, key: number): JSX.Element {
    switch (block.kind) {
        case 'paragraph': return <p key={key} dir="auto">{drawInlines(block.inline)}</p>;
        // The page's only h1 is the conversation's title; headings of answers start below it.
        case 'heading': return createElement(`h${Math.min(6, block.level + 2)}`, { key, class: `level-${block.level}`, dir: 'auto' }, drawInlines(block.inline));
        case 'code': return <CodeBlock key={key} language={block.language} text={block.text} open={block.open} />;
        case 'maths': return (
            <div key={key} class="maths-block" tabIndex={0} role="group" aria-label="Formula">
                <Maths tex={block.text} display={true} open={block.open} />
            </div>
        );
        case 'quote': return <blockquote key={key}>{block.blocks.map(drawBlock)}</blockquote>;
        case 'rule': return <hr key={key} />;
        case 'list': return drawList(block, key);
        case 'table': return drawTable(block, key);
    }
}

function drawList(list: Extract<Block, { kind: 'list' }>, key: number): JSX.Element {
    const items = list.items.map((item, index) => (
        <li key={index} class={item.task === undefined ? '' : 'task'}>
            {item.task !== undefined && <input type="checkbox" checked={item.task} disabled aria-label={item.task ? 'done' : 'to do'} />}
            {item.blocks.map((block, at) => (list.tight && block.kind === 'paragraph' ? <Fragment key={at}>{drawInlines(block.inline)}</Fragment> : drawBlock(block, at)))}
        </li>
    ));
    return list.ordered ? <ol key={key} start={list.start}>{items}</ol> : <ul key={key}>{items}</ul>;
}

function drawTable(table: Extract<Block, { kind: 'table' }>, key: number): JSX.Element {
    const cellClass = (at: number): string => (table.align[at] ? `align-${table.align[at]}` : '');
    return (
        <div key={key} class="table-scroll" tabIndex={0} role="group" aria-label="Table">
            <table>
                <thead><tr>{table.head.map((cell, at) => <th key={at} scope="col" class={cellClass(at)}>{drawInlines(cell)}</th>)}</tr></thead>
                <tbody>
                    {table.rows.map((row, index) => (
                        <tr key={index}>{row.map((cell, at) => <td key={at} class={cellClass(at)}>{drawInlines(cell)}</td>)}</tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

function drawInlines(inlines: Inline[]): JSX.Element[] {
    return inlines.map((inline, key) => {
        switch (inline.kind) {
            case 'text': return <Fragment key={key}>{inline.text}</Fragment>;
            case 'code': return <code key={key}>{inline.text}</code>;
            case 'break': return <br key={key} />;
            case 'maths': return <Maths key={key} tex={inline.text} display={inline.display} open={false} />;
            case 'emphasis': return <em key={key}>{drawInlines(inline.children)}</em>;
            case 'strong': return <strong key={key}>{drawInlines(inline.children)}</strong>;
            case 'strike': return <s key={key}>{drawInlines(inline.children)}</s>;
            case 'link': return (
                <a key={key} href={inline.href} target="_blank" rel="noopener noreferrer" title={inline.href}>
                    {inline.image && <Icon name="link" size={14} />}
                    {drawInlines(inline.children)}
                </a>
            );
        }
    });
}

function CodeBlock({ language, text, open }: { language: string; text: string; open: boolean }): JSX.Element {
    const known = languageOf(language);
    const [loaded, setLoaded] = useState('');
    useEffect(() => {
        if (known !== '') void loadLanguage(known).then(() => setLoaded(known), () => undefined);
    }, [known]);
    // A long block stays plain while it grows: highlighting all of it for each word would cost more each time.
    const tokens = useMemo(() => (known !== '' && loaded === known && !(open && text.length > 6000) ? highlight(text, known) : null), [text, known, loaded, open]);
    return (
        <figure class="code-block">
            <figcaption>
                <span>{language || 'text'}</span>
                <CopyButton text={() => text} label="Copy code" />
            </figcaption>
            <pre tabIndex={0} aria-label={`Code${language ? ` in ${language}` : ''}`} role="group">
                <code>{tokens ? drawTokens(tokens) : text}</code>
            </pre>
        </figure>
    );
}

function drawTokens(tokens: Token[]): (JSX.Element | string)[] {
    return tokens.map((token, key) => {
        if (typeof token === 'string') return token;
        return <span key={key} class={token.scope ? `t-${token.scope}` : ''}>{drawTokens(token.children)}</span>;
    });
}

function Maths({ tex, display, open }: { tex: string; display: boolean; open: boolean }): JSX.Element {
    const [, setLoaded] = useState(false);
    useEffect(() => {
        if (!open) void loadMaths().then(() => setLoaded(true), () => undefined);
    }, [open]);
    const tree = open ? null : mathsTree(tex, display);
    if (!tree) return <code class={display ? 'tex tex-display' : 'tex'}>{tex}</code>;
    return drawMaths(tree, 0, tex) as JSX.Element;
}

function drawMaths(node: MathNode, key: number, label?: string): JSX.Element | string {
    if (typeof node === 'string') return node;
    const children = node.children.map((child, at) => drawMaths(child, at));
    // The TeX is the label for screen readers that do not read MathML.
    const props: Record<string, unknown> = { key, ...node.attributes };
    if (Object.keys(node.styles).length > 0) props['style'] = node.styles; // an object: set property by property, which the policy allows
    if (node.className) props['class'] = node.className;
    if (label !== undefined) props['aria-label'] = label;
    return createElement(node.name, props, ...children);
}
