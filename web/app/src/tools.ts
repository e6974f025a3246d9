// Tools that the app itself offers to the model: a clock and a calculator. Both run here and send nothing anywhere.

import { timeIn } from './time.ts';

export interface ToolDescription {
    type: 'function';
    function: { name: string; description: string; parameters: unknown };
}

interface BuiltIn {
    description: string;
    parameters: unknown;
    run(given: Record<string, unknown>): object;
}

// The model in the box was trained on these names and descriptions (tools/box/tasks_tools.py): change them only together.
const BUILT_IN: Record<string, BuiltIn> = {
    get_time: {
        description: 'Tells the current time',
        parameters: { type: 'object', properties: { city: { type: 'string', description: 'Name of the city' } } },
        run: ({ city }) => timeIn(typeof city === 'string' ? city : ''),
    },
    calculate: {
        description: 'Calculates the value of an expression',
        parameters: {
            type: 'object',
            properties: { expression: { type: 'string', description: 'What to compute, for example 2 * 3' } },
            required: ['expression'],
        },
        run: ({ expression }) => ({ result: calculate(String(expression ?? '')) }),
    },
};

export const TOOLS: ToolDescription[] = Object.entries(BUILT_IN).map(([name, { description, parameters }]) => ({
    type: 'function',
    function: { name, description, parameters },
}));

/** What a tool says to the model. A mistake is an answer, too: the model can correct itself, or tell the user. */
export function runTool(name: string, given: unknown): string {
    const tool = Object.hasOwn(BUILT_IN, name) ? BUILT_IN[name] : undefined;
    if (!tool) return toolError(`There is no tool named '${name}'. The tools are: ${Object.keys(BUILT_IN).join(', ')}.`);
    try {
        return JSON.stringify(tool.run((typeof given === 'object' && given !== null ? given : {}) as Record<string, unknown>));
    } catch (error) {
        return toolError(error instanceof Error ? error.message : String(error));
    }
}

const toolError = (error: string): string => JSON.stringify({ error });

export const MOST_ROUNDS = 5;
export const noMoreTools = (): string => toolError(`Tools may be called in at most ${MOST_ROUNDS} rounds for one answer.`);

/** Lets the model write until it calls no tool. Tools run in MOST_ROUNDS rounds; calls after that are not `allowed`, and end it: `cut`. */
export async function inRounds<T>(
    write: () => Promise<T>, calls: (written: T) => boolean, run: (allowed: boolean) => void,
): Promise<{ last: T; cut: boolean }> {
    for (let round = 1; ; round++) {
        const last = await write();
        if (!calls(last)) return { last, cut: false };
        run(round <= MOST_ROUNDS);
        if (round > MOST_ROUNDS) return { last, cut: true };
    }
}

const CONSTANTS: Record<string, number> = { pi: Math.PI, e: Math.E };
const FUNCTIONS: Record<string, (...values: number[]) => number> = {
    sqrt: Math.sqrt, abs: Math.abs, ln: Math.log, log10: Math.log10, exp: Math.exp, sin: Math.sin, cos: Math.cos, tan: Math.tan,
    round: Math.round, floor: Math.floor, ceil: Math.ceil, min: Math.min, max: Math.max,
};

// What models write for operators.
const OPERATORS: Record<string, string> = { '×': '*', '·': '*', '÷': '/', '−': '-', '–': '-' };

/** Arithmetic by recursive descent: sum → product → sign → power → value. Rounded to 12 digits: 0.1 + 0.2 is 0.3. */
export function calculate(expression: string): number {
    if (expression.length > 1000) throw new Error('The expression is longer than 1,000 characters.');
    const tokens = expression.replace(/[×·÷−–]/g, (mark) => OPERATORS[mark]!).match(/\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|[a-z]+\d*|[-+*/%^(),]|\S/gi) ?? [];
    let at = 0;
    const peek = (): string | undefined => tokens[at];
    const found = (): string => (at < tokens.length ? `'${tokens[at]}'` : 'the end');
    const take = (wanted: string): void => {
        if (tokens[at] !== wanted) throw new Error(`Expected '${wanted}', found ${found()}.`);
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
            if (by === 0 && mark !== '*') throw new Error('Division by zero has no result.');
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
        const token = tokens[at];
        if (token === undefined) throw new Error('Expected a number, found the end.');
        const name = token.toLowerCase();
        if (!/^[\d.(]/.test(token) && !Object.hasOwn(CONSTANTS, name) && !Object.hasOwn(FUNCTIONS, name)) {
            throw new Error(`Expected a number or a function, found ${found()}.`);
        }
        at++;
        if (token === '(') {
            const inner = sum();
            take(')');
            return inner;
        }
        if (/^[\d.]/.test(token)) return Number(token);
        if (Object.hasOwn(CONSTANTS, name)) return CONSTANTS[name]!;
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
    if (at < tokens.length) throw new Error(`Expected an operator or the end, found ${found()}.`);
    if (!Number.isFinite(result)) throw new Error('The result is not a finite number.');
    return Number(result.toPrecision(12));
}
