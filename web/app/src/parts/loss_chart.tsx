// The loss of each step as a line, smoothed, with the evaluations as dots.

import type { JSX } from 'preact';

interface LossChartProps {
    losses: number[];
    evaluations: { step: number; loss: number }[];
    /** In all. */
    steps: number;
}

const WIDE = 720, NARROW = 360; // the width of a card in pixels, about, so that text has its size
const HEIGHT = 190, LEFT = 44, RIGHT = 12, TOP = 14, BOTTOM = 30;
const MOST_SMOOTH = 0.85; // how much of the mean before stays, in a long training
const MOST_POINTS = 600; // of a line

function smoothed(losses: number[]): number[] {
    const smooth = Math.min(MOST_SMOOTH, losses.length / 120);
    let mean = 0, weight = 0;
    return losses.map((loss) => {
        mean = smooth * mean + (1 - smooth) * loss;
        weight = smooth * weight + 1 - smooth;
        return mean / weight;
    });
}

export function LossChart({ losses, evaluations, steps }: LossChartProps): JSX.Element {
    const width = matchMedia('(max-width: 560px)').matches ? NARROW : WIDE;
    const all = [...losses, ...evaluations.map(({ loss }) => loss)].filter((loss) => Number.isFinite(loss));
    const most = Math.max(0.1, ...all), top = most * 1.05, count = Math.max(2, steps, losses.length);
    const x = (step: number): number => LEFT + ((width - LEFT - RIGHT) * (step - 1)) / (count - 1);
    const y = (loss: number): number => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * Math.max(0, loss)) / top;
    const every = Math.max(1, Math.ceil(losses.length / MOST_POINTS));
    const line = (values: number[]): string => values.map((value, at) => ({ value, at })).filter(({ at }) => at % every === 0 || at === values.length - 1)
        .map(({ value, at }, first) => `${first === 0 ? 'M' : 'L'}${x(at + 1).toFixed(1)} ${y(value).toFixed(1)}`).join('');
    const path = line(smoothed(losses)), end = losses.length > 0 ? x(losses.length) : LEFT;
    const words = `Loss after ${losses.length} of ${steps} steps: ${(losses.at(-1) ?? 0).toFixed(3)}, at first ${(losses[0] ?? 0).toFixed(3)}`;
    return (
        <figure class="chart loss-chart">
            <figcaption>
                Loss <span class="quiet">lower is better</span>
                <span class="loss-key"><i class="loss-key-line" />learning{evaluations.length > 0 && <><i class="loss-key-dot" />evaluation</>}</span>
            </figcaption>
            <svg viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={words}>
                {[0, 0.5, 1].map((share) => (
                    <g key={share}>
                        <line class="chart-grid" x1={LEFT} x2={width - RIGHT} y1={y(most * share)} y2={y(most * share)} />
                        <text class="chart-label" x={LEFT - 8} y={y(most * share) + 4} text-anchor="end">{(most * share).toFixed(most < 1 ? 2 : 1)}</text>
                    </g>
                ))}
                {losses.length > 1 && <path class="loss-area" d={`${path}L${end.toFixed(1)} ${y(0)}L${x(1)} ${y(0)}Z`} />}
                <path class="loss-raw" d={line(losses)} />
                <path class="chart-line" d={path} />
                {evaluations.length > 1 && (
                    <path class="chart-line-before" d={evaluations.map(({ step, loss }, at) => `${at === 0 ? 'M' : 'L'}${x(Math.max(1, step)).toFixed(1)} ${y(loss).toFixed(1)}`).join('')} />
                )}
                {evaluations.map(({ step, loss }) => <circle key={step} class="loss-dot" cx={x(Math.max(1, step))} cy={y(loss)} r="4.5" />)}
                {losses.length > 0 && <circle class="chart-dot" cx={end} cy={y(smoothed(losses).at(-1)!)} r="4.5" />}
                <text class="chart-label" x={LEFT} y={HEIGHT - 8}>1</text>
                <text class="chart-label" x={width - RIGHT} y={HEIGHT - 8} text-anchor="end">{count} steps</text>
            </svg>
        </figure>
    );
}
