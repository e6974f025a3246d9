// About: what this is, the device and what it can do, the self-check, what is used.

import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { chat } from '../chat.ts';
import { engineDevices, messageOf, type DeviceInfo, type EngineStats } from '../engine.ts';
import { formatBytes, formatSeconds } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { model } from '../models.ts';
import { Fact } from './models.tsx';
import { StorageMeter } from '../parts/storage.tsx';
import { pageHref } from '../route.ts';
import { useStore } from '../store.ts';

export function AboutPage(): JSX.Element {
    return (
        <div class="page">
            <section class="about-head">
                <Logo size={48} />
                <p class="lead">
                    gemmule runs Gemma 4 in your browser: an engine in C, compiled to WebAssembly, that drives your GPU through WebGPU. There is
                    no server behind this page; once loaded, it works without a network.
                </p>
            </section>
            <SelfCheck />
            <Devices />
            <EngineFacts />
            <section class="card-section">
                <h2>Storage</h2>
                <StorageMeter />
                <p class="quiet">Export, import and «Erase everything» are in the <a href={pageHref('settings')}>settings</a>.</p>
            </section>
            <section class="card-section">
                <h2>Made with</h2>
                <p class="quiet">
                    gemmule {__VERSION__}, MIT licence. It contains Preact, highlight.js, Temml and other open-source software:{' '}
                    <a href="./notices.txt" target="_blank" rel="noopener">licence notices</a>. Models have licences of their own.
                </p>
            </section>
        </div>
    );
}

function SelfCheck(): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const answering = useStore(chat, (state) => state.writing !== null);
    const [state, setState] = useState<{ kind: 'idle' | 'running' | 'good' | 'bad'; words: string }>({ kind: 'idle', words: '' });
    useEffect(() => setState({ kind: 'idle', words: '' }), [loaded]);
    const check = async (): Promise<void> => {
        setState({ kind: 'running', words: '' });
        const began = performance.now();
        try {
            await loaded!.selfCheck();
            setState({ kind: 'good', words: `The device computes what it should (${formatSeconds((performance.now() - began) / 1000)}).` });
        } catch (error) {
            setState({ kind: 'bad', words: messageOf(error).message });
        }
    };
    return (
        <section class="card-section">
            <h2>Self-check</h2>
            <div class="card">
                <p>Some GPUs and drivers compute wrong results without saying so. The self-check computes known things on the device and compares.</p>
                <div class="actions start">
                    <button type="button" class="button primary" disabled={!loaded || answering || state.kind === 'running'}
                        onClick={() => void check()}>
                        <Icon name="shield" size={16} />
                        {state.kind === 'running' ? 'Checking…' : 'Check this device'}
                    </button>
                    {!loaded && <span class="quiet">Load a model first.</span>}
                </div>
                <div role="status">
                    {state.kind === 'good' && <p class="fit fit-yes"><Icon name="check" size={16} />{state.words}</p>}
                    {state.kind === 'bad' && <p class="fit fit-no"><Icon name="warn" size={16} />{state.words}</p>}
                </div>
            </div>
        </section>
    );
}

const LIMITS: [string, string, boolean][] = [
    ['max_buffer', 'Largest buffer', true],
    ['max_binding', 'Largest binding', true],
    ['max_workgroup_bytes', 'Workgroup memory', true],
    ['max_invocations', 'Invocations in a workgroup', false],
    ['max_storage_buffers', 'Storage buffers in a shader', false],
    ['subgroup_max', 'Subgroup size, at most', false],
];

function Devices(): JSX.Element {
    const [devices, setDevices] = useState<DeviceInfo[] | null>(null);
    const [failure, setFailure] = useState('');
    useEffect(() => void engineDevices().then(setDevices, (error: unknown) => setFailure(messageOf(error).message)), []);
    return (
        <section class="card-section">
            <h2>Devices</h2>
            {failure && <p class="box-note">{failure}</p>}
            {devices && !devices.some((device) => device.backend === 'gpu') && (
                <p class="box-note">
                    This browser offers no WebGPU here: models run on the CPU. Chrome, Edge, Safari 26 and Firefox have it; it may have to be
                    switched on.
                </p>
            )}
            {devices?.map((device) => (
                <div class="card device" key={device.backend + device.name}>
                    <div class="choice-head">
                        <Icon name="chip" size={20} />
                        <h3>{device.backend === 'gpu' ? device.name || device.vendor || 'GPU' : 'CPU by WebAssembly'}</h3>
                    </div>
                    {device.backend === 'gpu' && <dl class="facts">
                        {device.vendor && <Fact name="Vendor" value={device.vendor} />}
                        {device.driver && <Fact name="Driver" value={device.driver} />}
                        {device.backend === 'gpu' && device.software && <Fact name="Kind" value="software: a CPU that plays a GPU" />}
                        {LIMITS.filter(([key]) => device.limits[key]).map(([key, words, bytes]) => (
                            <Fact key={key} name={words}
                                value={bytes ? formatBytes(device.limits[key]!) : device.limits[key]!.toLocaleString('en')} />
                        ))}
                    </dl>}
                    {device.features.length > 0 && (
                        <ul class="tags" aria-label="Features">{device.features.map((feature) => <li key={feature}>{feature}</li>)}</ul>
                    )}
                </div>
            ))}
        </section>
    );
}

function EngineFacts(): JSX.Element | null {
    const loaded = useStore(model, (state) => state.loaded);
    const [stats, setStats] = useState<EngineStats | null>(null);
    useEffect(() => {
        setStats(null);
        if (loaded) void loaded.stats().then(setStats, () => undefined);
    }, [loaded]);
    if (!loaded || !stats) return null;
    return (
        <section class="card-section">
            <h2>Engine</h2>
            <div class="card">
                <dl class="facts">
                    <Fact name="WebAssembly memory" value={formatBytes(stats.wasmBytes)} />
                    {stats.gpuBytes > 0 && <Fact name="GPU memory" value={formatBytes(stats.gpuBytes)} />}
                    {stats.dispatchesPerToken > 0 && <Fact name="Dispatches per token" value={stats.dispatchesPerToken.toLocaleString('en')} />}
                    <Fact name="Weights read per token" value={formatBytes(loaded.info.bytesPerToken)} />
                    <Fact name="Loading took" value={formatSeconds(stats.checkSeconds + stats.loadSeconds + stats.planSeconds)} />
                </dl>
            </div>
        </section>
    );
}
