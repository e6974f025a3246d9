// TeX to MathML by temml, loaded with the first formula. Its tree is copied through a list of allowed elements and attributes: no links, no
// images, nothing that loads anything.

/** A MathML element, or text. */
export type MathNode = string | { name: string; attributes: Record<string, string>; styles: Record<string, string>; className: string; children: MathNode[] };

const ELEMENTS = new Set([
    'math', 'semantics', 'mrow', 'mi', 'mn', 'mo', 'ms', 'mtext', 'mspace', 'mfrac', 'msqrt', 'mroot', 'mstyle', 'merror', 'mpadded', 'mphantom',
    'msub', 'msup', 'msubsup', 'munder', 'mover', 'munderover', 'mmultiscripts', 'mprescripts', 'none', 'mtable', 'mtr', 'mtd', 'menclose',
]);
const ATTRIBUTES = new Set([
    'display', 'displaystyle', 'scriptlevel', 'mathvariant', 'mathcolor', 'mathbackground', 'mathsize', 'stretchy', 'symmetric', 'fence', 'separator', 'form',
    'lspace', 'rspace', 'minsize', 'maxsize', 'largeop', 'movablelimits', 'accent', 'accentunder', 'linethickness', 'width', 'height', 'depth', 'voffset',
    'columnalign', 'rowspacing', 'columnspacing', 'columnlines', 'rowlines', 'frame', 'rowspan', 'columnspan', 'notation',
]);

// Only styles for spacing and lines: the gaps of a table, the frame of a box.
const STYLE = /^(?:padding|border)(?:-?(?:left|right|top|bottom))?$/i;
const STYLE_VALUE = /^[\d.]+(?:em|ex|px|pt)(?: (?:solid|dashed))?$/;

type Temml = typeof import('temml').default;
let ready: Temml | null = null;
let loading: Promise<void> | null = null;

export function loadMaths(): Promise<void> {
    loading ??= import('temml').then((module) => {
        ready = module.default;
    });
    return loading;
}

/** The formula; null while temml is not loaded, or if the text is not valid TeX. */
export function mathsTree(tex: string, display: boolean): MathNode | null {
    if (!ready || tex.length > 10_000) return null;
    try {
        return copy(ready.__renderToMathMLTree(tex, { displayMode: display, throwOnError: true, trust: false, strict: false, maxSize: [20, 20], maxExpand: 500 }));
    } catch {
        return null;
    }
}

interface TreeNode {
    type?: string;
    text?: unknown;
    attributes?: Record<string, unknown>;
    classes?: unknown[];
    style?: Record<string, unknown>;
    children?: TreeNode[];
}

export function copy(node: TreeNode): MathNode {
    if (typeof node.text === 'string') return node.text;
    const children = (node.children ?? []).map(copy);
    const name = node.type ?? '';
    // A fragment or an unknown element: its children are kept.
    if (!ELEMENTS.has(name)) return { name: 'mrow', attributes: {}, styles: {}, className: '', children };
    const attributes: Record<string, string> = {};
    for (const [key, value] of Object.entries(node.attributes ?? {})) {
        if (ATTRIBUTES.has(key) && /^[\w\s.#%+()-]*$/.test(String(value))) attributes[key] = String(value);
    }
    const styles: Record<string, string> = {};
    for (const [key, value] of Object.entries(node.style ?? {})) if (STYLE.test(key) && STYLE_VALUE.test(String(value))) styles[key] = String(value);
    const className = (node.classes ?? []).filter((each): each is string => typeof each === 'string' && /^[\w-]+$/.test(each)).join(' ');
    return { name, attributes, styles, className, children };
}
