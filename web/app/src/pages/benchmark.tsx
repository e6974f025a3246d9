// The Benchmark page: the speed of the loaded model as charts, and all earlier results.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { announce, chat } from '../chat.ts';
import { runBenchmark, type BenchProgress } from '../bench.ts';
import { erase, readAll, type BenchResult } from '../database.ts';
import { isAbort, messageOf } from '../engine.ts';
import { formatCount, formatDevice, formatSpeed } from '../format.ts';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { Chart } from '../parts/chart.tsx';
import { Problem } from '../parts/problem.tsx';
import { ModelStatus } from '../parts/welcome.tsx';
import { useStore } from '../store.ts';

export function BenchmarkPage(): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const name = useStore(model, (state) => state.loaded?.info.name || state.choice?.name || '');
    const answering = useStore(chat, (state) => state.writing !== null);
    const [progress, setProgress] = useState<BenchProgress | null>(null);
    const [results, setResults] = useState<BenchResult[]>([]);
    const [shown, setShown] = useState<string | null>(null);
    const [failure, setFailure] = useState('');
    const stopper = useRef<AbortController | null>(null);
    const refresh = (): Promise<void> => readAll('benchmarks').then((all) => setResults(all.sort((a, b) => b.when - a.when)), () => undefined);
    useEffect(() => {
        void refresh();
        return () => stopper.current?.abort();
    }, []);
    const start = async (): Promise<void> => {
        if (!loaded) return;
        const stop = (stopper.current = new AbortController());
        setFailure('');
        try {
            const result = await runBenchmark(loaded, name, stop.signal, setProgress);
            await refresh();
            setResults((all) => (all.some((each) => each.id === result.id) ? all : [result, ...all]));
            setShown(result.id);
            announce('Benchmark finished.');
        } catch (error) {
            if (!stop.signal.aborted && !isAbort(error)) setFailure(messageOf(error).message);
        } finally {
            setProgress(null);
        }
    };
    const current = results.find((each) => each.id === shown) ?? results[0];
    const before = current && results.find((each) => each.when < current.when && each.prefill.length === current.prefill.length);
    return (
        <div class="page">
            <p class="lead">
                Measures how fast {loaded ? name : 'a model'} reads prompts and writes answers on this machine. A run takes between a few
                seconds and a few minutes.
            </p>
            {!loaded && <ModelStatus />}
            <div class="actions start">
                {progress
                    ? <button type="button" class="button" onClick={() => stopper.current?.abort()}><Icon name="stop" size={16} />Stop</button>
                    : (
                        <button type="button" class="button primary" disabled={!loaded || answering} onClick={() => void start()}>
                            <Icon name="chart" size={16} />Run benchmark
                        </button>
                    )}
                {answering && <span class="quiet">Wait until the current answer is finished.</span>}
            </div>
            {progress && (
                <div class="prompt-progress">
                    <progress max={progress.total} value={progress.done} aria-label="Benchmark" />
                    <span class="quiet">{progress.doing}</span>
                </div>
            )}
            {failure && <div class="box-note box-error" role="alert"><p><strong>Something went wrong.</strong> {failure}</p></div>}
            {current ? <Result result={current} before={before} /> : !progress && (
                <div class="card empty-chart"><Icon name="chart" size={32} /><p class="quiet">No results yet.</p></div>
            )}
            {results.length > 0 && (
                <History results={results} shown={current?.id} onShow={setShown} onDelete={(id) => erase('benchmarks', id).then(refresh)} />
            )}
        </div>
    );
}

function Result({ result, before }: { result: BenchResult; before: BenchResult | undefined }): JSX.Element {
    const prefill = (each: BenchResult) => each.prefill.map(({ tokens, speed }) => ({ label: String(tokens), value: speed }));
    const decode = (each: BenchResult) => each.decode.map(({ depth, speed }) => ({ label: String(depth), value: speed }));
    return (
        <section class="card-section" aria-label="Result">
            <h2>{result.model} <span class="quiet">on {formatDevice(result.device)}</span></h2>
            <div class="charts">
                <div class="card">
                    <Chart title="Reading" unit="tokens per second" axis="length of the prompt in tokens" kind="bars" points={prefill(result)}
                        before={before && prefill(before)} />
                </div>
                <div class="card">
                    <Chart title="Writing" unit="tokens per second" axis="tokens already in the context" kind="line" points={decode(result)}
                        before={before && decode(before)} />
                </div>
            </div>
            {before && <p class="quiet">Grey: {before.model} on {new Date(before.when).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })}.</p>}
        </section>
    );
}

interface HistoryProps {
    results: BenchResult[];
    shown: string | undefined;
    onShow: (id: string) => void;
    onDelete: (id: string) => Promise<void>;
}

function History({ results, shown, onShow, onDelete }: HistoryProps): JSX.Element {
    const [problem, setProblem] = useState('');
    const remove = (id: string): void => {
        onDelete(id).then(() => setProblem(''), (error) => setProblem(`The result could not be deleted. ${messageOf(error).message}`));
    };
    return (
        <section class="card-section">
            <h2>All results</h2>
            <div class="table-scroll" tabIndex={0} role="group" aria-label="All results">
                <table class="plain">
                    <thead>
                        <tr>
                            <th scope="col">Date</th>
                            <th scope="col">Model</th>
                            <th scope="col" class="align-right">Parameters</th>
                            <th scope="col" class="align-right">Best reading</th>
                            <th scope="col" class="align-right">Best writing</th>
                            <th scope="col"><span class="visually-hidden">Actions</span></th>
                        </tr>
                    </thead>
                    <tbody>
                        {results.map((each) => (
                            <tr key={each.id} class={each.id === shown ? 'row-shown' : ''}>
                                <td>
                                    <button type="button" class="link" onClick={() => onShow(each.id)}>
                                        {new Date(each.when).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })}
                                    </button>
                                </td>
                                <td>{each.model}</td>
                                <td class="align-right">{formatCount(each.parameters)}</td>
                                <td class="align-right">{formatSpeed(Math.max(0, ...each.prefill.map((point) => point.speed)))}</td>
                                <td class="align-right">{formatSpeed(Math.max(0, ...each.decode.map((point) => point.speed)))}</td>
                                <td class="align-right">
                                    <button type="button" class="icon-button" aria-label={`Delete the result for ${each.model}`}
                                        onClick={() => remove(each.id)}>
                                        <Icon name="trash" size={16} />
                                    </button>
                                </td>
                            </tr>
                        ))}
                    </tbody>
                </table>
            </div>
            {problem && <Problem words={problem} />}
        </section>
    );
}
