// Syntax highlighting by highlight.js, loaded with the first code block in a known language. Its token tree becomes elements; its HTML is
// never used.

import type { LanguageFn } from 'highlight.js';

/** A string, or tokens with a scope such as 'keyword'. */
export type Token = string | { scope: string; children: Token[] };

const LANGUAGES: Record<string, () => Promise<{ default: LanguageFn }>> = {
    bash: () => import('highlight.js/lib/languages/bash'),
    c: () => import('highlight.js/lib/languages/c'),
    cpp: () => import('highlight.js/lib/languages/cpp'),
    csharp: () => import('highlight.js/lib/languages/csharp'),
    css: () => import('highlight.js/lib/languages/css'),
    diff: () => import('highlight.js/lib/languages/diff'),
    dockerfile: () => import('highlight.js/lib/languages/dockerfile'),
    go: () => import('highlight.js/lib/languages/go'),
    haskell: () => import('highlight.js/lib/languages/haskell'),
    ini: () => import('highlight.js/lib/languages/ini'),
    java: () => import('highlight.js/lib/languages/java'),
    javascript: () => import('highlight.js/lib/languages/javascript'),
    json: () => import('highlight.js/lib/languages/json'),
    kotlin: () => import('highlight.js/lib/languages/kotlin'),
    latex: () => import('highlight.js/lib/languages/latex'),
    lua: () => import('highlight.js/lib/languages/lua'),
    makefile: () => import('highlight.js/lib/languages/makefile'),
    markdown: () => import('highlight.js/lib/languages/markdown'),
    perl: () => import('highlight.js/lib/languages/perl'),
    php: () => import('highlight.js/lib/languages/php'),
    powershell: () => import('highlight.js/lib/languages/powershell'),
    python: () => import('highlight.js/lib/languages/python'),
    r: () => import('highlight.js/lib/languages/r'),
    ruby: () => import('highlight.js/lib/languages/ruby'),
    rust: () => import('highlight.js/lib/languages/rust'),
    scala: () => import('highlight.js/lib/languages/scala'),
    sql: () => import('highlight.js/lib/languages/sql'),
    swift: () => import('highlight.js/lib/languages/swift'),
    typescript: () => import('highlight.js/lib/languages/typescript'),
    xml: () => import('highlight.js/lib/languages/xml'),
    yaml: () => import('highlight.js/lib/languages/yaml'),
};

const ALIASES: Record<string, string> = {
    sh: 'bash', shell: 'bash', zsh: 'bash', console: 'bash', h: 'c', 'c++': 'cpp', cc: 'cpp', hpp: 'cpp', cs: 'csharp', 'c#': 'csharp',
    docker: 'dockerfile', golang: 'go', hs: 'haskell', toml: 'ini', js: 'javascript', jsx: 'javascript', mjs: 'javascript', node: 'javascript',
    jsonc: 'json', json5: 'json', kt: 'kotlin', tex: 'latex', make: 'makefile', md: 'markdown', pl: 'perl', ps1: 'powershell', py: 'python',
    python3: 'python', rb: 'ruby', rs: 'rust', ts: 'typescript', tsx: 'typescript', html: 'xml', svg: 'xml', xhtml: 'xml', yml: 'yaml', wgsl: 'rust',
};

const LONGEST = 50_000; // characters; what is longer stays plain

/** The name that highlight.js uses for a language; '' if it is not supported. */
export function languageOf(info: string): string {
    const name = info.toLowerCase();
    const known = Object.hasOwn(ALIASES, name) ? ALIASES[name]! : name;
    return Object.hasOwn(LANGUAGES, known) ? known : '';
}

let core: Promise<typeof import('highlight.js/lib/core').default> | null = null;
const registered = new Map<string, Promise<void>>();
let ready: typeof import('highlight.js/lib/core').default | null = null;

export async function loadLanguage(language: string): Promise<void> {
    core ??= import('highlight.js/lib/core').then((module) => (ready = module.default));
    const hljs = await core;
    let loading = registered.get(language);
    if (!loading) {
        // HTML and PHP contain other languages.
        const needed = language === 'xml' || language === 'php' ? [...new Set([language, 'xml', 'css', 'javascript'])] : [language];
        loading = Promise.all(needed.map(async (name) => hljs.registerLanguage(name, (await LANGUAGES[name]!()).default))).then(() => undefined);
        registered.set(language, loading);
    }
    await loading;
}

/** The tokens of the code; null if the language is not loaded. */
export function highlight(code: string, language: string): Token[] | null {
    if (!ready?.getLanguage(language) || code.length > LONGEST) return null;
    const result = ready.highlight(code, { language, ignoreIllegals: true });
    const root = (result as unknown as { _emitter: { rootNode: unknown } })._emitter.rootNode;
    return children(root);
}

function children(node: unknown): Token[] {
    const list = (node as { children?: unknown[] }).children ?? [];
    return list.map((child): Token => {
        if (typeof child === 'string') return child;
        const { scope } = child as { scope?: unknown };
        // 'title.function' is coloured as 'title'; scopes that are not plain words are dropped.
        const name = typeof scope === 'string' ? (scope.split('.')[0] ?? '') : '';
        return { scope: /^[a-z_-]+$/.test(name) ? name : '', children: children(child) };
    });
}
