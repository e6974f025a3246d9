// A bar or line chart as SVG. Values are printed at the marks, so that the chart can be read without colours.

import type { JSX } from 'preact';
import { formatSpeed } from '../format.ts';

export interface ChartPoint {
    label: string;
    value: number;
}

interface ChartProps {
    title: string;
    unit: string;
    /** What the labels on the x axis mean. */
    axis: string;
    points: ChartPoint[];
    /** An earlier run, drawn behind this one. */
    before?: ChartPoint[] | undefined;
    kind: 'bars' | 'line';
    /** How values are printed. */
    format?: (value: number) => string;
}

const WIDTH = 400, HEIGHT = 220, LEFT = 44, RIGHT = 8, TOP = 26, BOTTOM = 42; // in a card of a phone about 0.8 of this

export function Chart({ title, unit, axis, points, before, kind, format = formatSpeed }: ChartProps): JSX.Element {
    const top = niceTop(Math.max(1e-9, ...points.map((point) => point.value), ...(before ?? []).map((point) => point.value)));
    const step = (WIDTH - LEFT - RIGHT) / Math.max(1, points.length);
    const x = (at: number): number => LEFT + step * (at + 0.5);
    const y = (value: number): number => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
    const line = (list: ChartPoint[]): string => list.map((point, at) => `${at === 0 ? 'M' : 'L'}${x(at).toFixed(1)} ${y(point.value).toFixed(1)}`).join('');
    const words = `${title}, ${unit}: ${points.map((point) => `${point.label} ${format(point.value)}`).join(', ')}`;
    return (
        <figure class="chart">
            <figcaption>{title} <span class="quiet">{unit}</span></figcaption>
            <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={words}>
                {[0, 0.25, 0.5, 0.75, 1].map((share) => (
                    <g key={share}>
                        <line class="chart-grid" x1={LEFT} x2={WIDTH - RIGHT} y1={y(top * share)} y2={y(top * share)} />
                        <text class="chart-label" x={LEFT - 8} y={y(top * share) + 4} text-anchor="end">{axisNumber(top * share)}</text>
                    </g>
                ))}
                {kind === 'bars' && points.map((point, at) => (
                    <g key={at}>
                        {before?.[at] && (
                            <rect class="chart-before" x={x(at) - step * 0.36} width={step * 0.3} y={y(before[at].value)}
                                height={HEIGHT - BOTTOM - y(before[at].value)} rx="3" />
                        )}
                        <rect class="chart-bar" x={x(at) - (before ? step * 0.02 : step * 0.22)} width={step * (before ? 0.34 : 0.44)}
                            y={y(point.value)} height={HEIGHT - BOTTOM - y(point.value)} rx="4" />
                    </g>
                ))}
                {kind === 'line' && (
                    <>
                        {before && <path class="chart-line-before" d={line(before)} />}
                        <path class="chart-line" d={line(points)} />
                        {points.map((point, at) => <circle key={at} class="chart-dot" cx={x(at)} cy={y(point.value)} r="4.5" />)}
                    </>
                )}
                {points.map((point, at) => (
                    <g key={at}>
                        <text class="chart-value" x={x(at) + (kind === 'bars' && before ? step * 0.15 : 0)} y={y(point.value) - 9}
                            text-anchor="middle">
                            {format(point.value)}
                        </text>
                        <text class="chart-label" x={x(at)} y={HEIGHT - BOTTOM + 18} text-anchor="middle">{point.label}</text>
                    </g>
                ))}
                <text class="chart-label" x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">{axis}</text>
            </svg>
        </figure>
    );
}

const axisNumber = (value: number): string => (value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : String(+value.toFixed(2)));

/** The next larger number whose quarters are round as well. */
function niceTop(value: number): number {
    const power = 10 ** Math.floor(Math.log10(value));
    return (([1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10] as const).find((step) => step * power >= value * 1.02) ?? 10) * power;
}
