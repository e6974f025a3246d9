// What is in the examples: numbers, their lengths as a chart, and one of them as the model sees it.

import type { JSX } from 'preact';
import type { DataReport } from '../engine.ts';
import { countOf } from '../format.ts';
import { Icon } from '../icons.tsx';
import { useStore } from '../store.ts';
import { showExample, teach } from '../teach.ts';
import { Chart } from './chart.tsx';
import { Problem } from './problem.tsx';

export function DataView(): JSX.Element {
    const { report, reading, problem, problems } = useStore(teach, (state) => state);
    if (problem !== '') {
        return (
            <div class="card">
                <Problem words={problem} />
                {problems.length > 1 && <ul class="teach-problems">{problems.map((each) => <li key={each}>{each}</li>)}</ul>}
            </div>
        );
    }
    if (!report) {
        return <div class="card empty-chart teach-empty">{reading ? <progress aria-label="Reading the examples" /> : <Icon name="cap" size={32} />}
            <p class="quiet">{reading ? 'Reading the examples…' : 'No examples yet.'}</p></div>;
    }
    return (
        <div class="charts teach-data">
            <div class="card"><Numbers report={report} /></div>
            <div class="card"><Preview count={report.examples} /></div>
        </div>
    );
}

const number = (value: number): string => value.toLocaleString('en');

function Numbers({ report }: { report: DataReport }): JSX.Element {
    const facts: [string, string][] = [['Examples', number(report.examples)], ['Tokens', number(report.tokens)], ['of which count', number(report.counted)]];
    if (report.truncated > 0) facts.push(['Cut off', number(report.truncated)]);
    if (report.leftOut > 0) facts.push(['Left out', `${number(report.leftOut)}, from line ${report.leftOutLine} on`]);
    if (report.duplicates > 0) facts.push(['Duplicates', `${number(report.duplicates)} (${report.duplicateLine} = ${report.duplicateOf})`]);
    if (report.media > 0) facts.push(['Pictures and sounds', number(report.media)]);
    if (report.evaluation > 0) facts.push(['For evaluation', number(report.evaluation)]);
    return (
        <>
            <dl class="facts teach-facts">{facts.map(([what, value]) => <div key={what}><dt>{what}</dt><dd>{value}</dd></div>)}</dl>
            <Histogram histogram={report.histogram} />
        </>
    );
}

function Histogram({ histogram }: { histogram: number[] }): JSX.Element {
    const first = histogram.findIndex((count) => count > 0), last = histogram.findLastIndex((count) => count > 0);
    const shown = histogram.slice(Math.max(0, first - 1), last + 2), from = Math.max(0, first - 1);
    const label = (bin: number): string => (bin === histogram.length - 1 ? 'more' : number(32 * 2 ** bin));
    return <Chart title="Lengths" unit="examples" axis="up to this many tokens" kind="bars" format={(value) => (value > 0 ? number(value) : '')}
        points={shown.map((value, at) => ({ label: label(from + at), value }))} />;
}

function Preview({ count }: { count: number }): JSX.Element {
    const preview = useStore(teach, (state) => state.preview);
    if (!preview) return <p class="quiet">…</p>;
    const { index, shown } = preview;
    const go = (by: number): void => void showExample((index + by + count) % count);
    return (
        <div class="teach-preview">
            <header>
                <h3>As the model sees it</h3>
                <button type="button" class="icon-button" aria-label="Previous example" disabled={count < 2} onClick={() => go(-1)}><Icon name="left" /></button>
                <span class="quiet">{index + 1} of {number(count)}</span>
                <button type="button" class="icon-button" aria-label="Next example" disabled={count < 2} onClick={() => go(1)}><Icon name="right" /></button>
            </header>
            {shown.sequences.map((sequence, at) => (
                <div key={at}>
                    {shown.sequences.length > 1 && <p class="quiet">{at === 0 ? 'Better' : 'Worse'}</p>}
                    <pre tabIndex={0} aria-label="An example; what counts is marked">
                        {sequence.parts.map(({ text, counts }, part) => (counts ? <mark key={part}>{text}</mark> : <span key={part}>{text}</span>))}
                    </pre>
                    <p class="quiet hint-line">
                        {countOf(sequence.tokens, 'token')}, of which the {number(sequence.counted)} that are marked are learned.
                        {sequence.truncated && ' It is cut off.'}{shown.evaluation && ' It is kept for evaluation.'}
                    </p>
                </div>
            ))}
        </div>
    );
}
