/* What pictures and sounds cost in tokens, by the rules of the towers (gemma4.md 4.1, 5.1 and 5.2). */

import { GemmuleError } from '../core/errors.ts';
import { PICTURE_BUDGETS, type PictureBudget } from './types.ts';

const SIDE = 48; // pixels along the side of a soft token
const MARKS = 2; // tokens around a picture or a sound

export const DEFAULT_BUDGET: PictureBudget = 280;
export const FRAME_BUDGET: PictureBudget = 70;

export function checkBudget(budget: number): PictureBudget {
    if (PICTURE_BUDGETS.includes(budget as PictureBudget)) return budget as PictureBudget;
    throw new GemmuleError('BadArgument', `the budget of a picture must be ${PICTURE_BUDGETS.join(', ')} tokens, found ${String(budget)}`);
}

/** Tokens of a picture in the prompt. The model sees it stretched to whole squares of 48 pixels, as many as the budget allows, so small
 * pictures cost as much as large ones. */
export function pictureTokens(width: number, height: number, budget: PictureBudget = DEFAULT_BUDGET): number {
    const scale = Math.sqrt((checkBudget(budget) * SIDE * SIDE) / (width * height));
    let rows = Math.floor((scale * height) / SIDE);
    let columns = Math.floor((scale * width) / SIDE);
    if (rows === 0) [rows, columns] = [1, Math.min(Math.floor(width / height), budget)];
    else if (columns === 0) [rows, columns] = [Math.min(Math.floor(height / width), budget), 1];
    return rows * columns + MARKS;
}

const RATE = 16_000;
const PIECE = 30 * RATE;

/** Tokens of a sound in the prompt, about 25 per second. Exact up to 30 s; longer sounds are cut where they are quiet. */
export function soundTokens(seconds: number): number {
    let tokens = MARKS;
    for (let left = Math.round(seconds * RATE); left > 0; left -= PIECE) {
        const frames = Math.floor((Math.min(left, PIECE) - 1) / 160);
        tokens += Math.ceil(Math.ceil(frames / 2) / 2);
    }
    return tokens;
}
