// Tools that the app itself offers to the model: a clock and a calculator. Both run here and send nothing anywhere.

export interface ToolDescription {
    type: 'function';
    function: { name: string; description: string; parameters: unknown };
}

interface BuiltIn {
    description: string;
    parameters: unknown;
    run(given: Record<string, unknown>): string;
}

const BUILT_IN: Record<string, BuiltIn> = {
    current_time: {
        description: "The user's date, time and time zone.",
        parameters: { type: 'object', properties: {} },
        run: () => JSON.stringify({ time: new Date().toString(), zone: Intl.DateTimeFormat().resolvedOptions().timeZone }),
    },
    calculate: {
        description:
            'The value of an arithmetic expression with + - * / % ^, parentheses, pi, e, sqrt, abs, ln, log10, exp, sin, cos, tan, round, floor, ' +
            'ceil, min and max.',
        parameters: { type: 'object', properties: { expression: { type: 'string', description: 'For example (3 + 4) * sqrt(2)' } }, required: ['expression'] },
        run: ({ expression }) => JSON.stringify({ value: calculate(String(expression ?? '')) }),
    },
};

export const TOOLS: ToolDescription[] = Object.entries(BUILT_IN).map(([name, { description, parameters }]) => ({
    type: 'function',
    function: { name, description, parameters },
}));

/** What a tool says to the model; a mistake is an answer, too, so that the model can mend it. */
export function runTool(name: string, given: unknown): string {
    const tool = Object.hasOwn(BUILT_IN, name) ? BUILT_IN[name] : undefined;
    if (!tool) return JSON.stringify({ error: `there is no tool «${name}»` });
    try {
        return tool.run((typeof given === 'object' && given !== null ? given : {}) as Record<string, unknown>);
    } catch (error) {
        return JSON.stringify({ error: error instanceof Error ? error.message : String(error) });
    }
}

const CONSTANTS: Record<string, number> = { pi: Math.PI, e: Math.E };
const FUNCTIONS: Record<string, (...values: number[]) => number> = {
    sqrt: Math.sqrt, abs: Math.abs, ln: Math.log, log10: Math.log10, exp: Math.exp, sin: Math.sin, cos: Math.cos, tan: Math.tan,
    round: Math.round, floor: Math.floor, ceil: Math.ceil, min: Math.min, max: Math.max,
};

/** Arithmetic by recursive descent: sum → product → power → sign → value. */
export function calculate(expression: string): number {
    if (expression.length > 1000) throw new Error('the expression is longer than 1000 characters');
    const tokens = expression.match(/\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|[a-z]+\d*|[-+*/%^(),]|\S/gi) ?? [];
    let at = 0;
    const peek = (): string | undefined => tokens[at];
    const take = (wanted: string): void => {
        if (tokens[at] !== wanted) throw new Error(`expected «${wanted}», found «${tokens[at] ?? 'the end'}»`);
        at++;
    };
    const sum = (): number => {
        let value = product();
        while (peek() === '+' || peek() === '-') value = tokens[at++] === '+' ? value + product() : value - product();
        return value;
    };
    const product = (): number => {
        let value = sign();
        for (;;) {
            const mark = peek();
            if (mark !== '*' && mark !== '/' && mark !== '%') return value;
            at++;
            const by = sign();
            value = mark === '*' ? value * by : mark === '/' ? value / by : value % by;
        }
    };
    const sign = (): number => {
        if (peek() === '-') return at++, -sign();
        if (peek() === '+') return at++, sign();
        return power();
    };
    const power = (): number => {
        const base = value();
        if (peek() !== '^') return base;
        at++;
        return base ** sign();
    };
    const value = (): number => {
        const token = tokens[at++];
        if (token === undefined) throw new Error('expected a number, found the end');
        if (token === '(') {
            const inner = sum();
            take(')');
            return inner;
        }
        if (/^[\d.]/.test(token)) return Number(token);
        const name = token.toLowerCase();
        if (Object.hasOwn(CONSTANTS, name)) return CONSTANTS[name]!;
        if (!Object.hasOwn(FUNCTIONS, name)) throw new Error(`expected a number or a function, found «${token}»`);
        take('(');
        const values = [sum()];
        while (peek() === ',') {
            at++;
            values.push(sum());
        }
        take(')');
        return FUNCTIONS[name]!(...values);
    };
    const result = sum();
    if (at < tokens.length) throw new Error(`expected the end, found «${tokens[at]}»`);
    return result;
}
