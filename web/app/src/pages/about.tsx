// The About page: what this is, the self-check, devices and their limits, storage, licences.

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
                    gemmule runs Gemma 4 in your browser. Its engine is written in C, compiled to WebAssembly, and uses your GPU through
                    WebGPU. There is no server behind this page: once loaded, it works offline.
                </p>
            </section>
            <SelfCheck />
            <Devices />
            <EngineFacts />
            <section class="card-section">
                <h2>Storage</h2>
                <StorageMeter />
                <p class="quiet">You can export, import or erase your data in <a href={pageHref('settings')}>Settings</a>.</p>
            </section>
            <section class="card-section">
                <h2>Licences</h2>
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
            setState({ kind: 'good', words: `Passed: results are correct (${formatSeconds((performance.now() - began) / 1000)}).` });
        } catch (error) {
            setState({ kind: 'bad', words: messageOf(error).message });
        }
    };
    return (
        <section class="card-section">
            <h2>Self-check</h2>
            <div class="card">
                <p>Some GPUs and drivers give wrong results without reporting an error. The self-check runs known computations and compares the results.</p>
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
    ['max_invocations', 'Invocations per workgroup', false],
    ['max_storage_buffers', 'Storage buffers per shader', false],
    ['subgroup_max', 'Largest subgroup', false],
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
                    WebGPU is not available here, so models run on the CPU. Chrome, Edge, Firefox and Safari 26 support WebGPU; you may have
                    to turn it on.
                </p>
            )}
            {devices?.map((device) => (
                <div class="card device" key={device.backend + device.name}>
                    <div class="choice-head">
                        <Icon name="chip" size={20} />
                        <h3>{device.backend === 'gpu' ? device.name || device.vendor || 'GPU' : 'CPU (WebAssembly)'}</h3>
                    </div>
                    {device.backend === 'gpu' && device.software && (
                        <p class="quiet">This GPU is emulated on the CPU, and slow. It is used only if you choose “GPU” in Settings.</p>
                    )}
                    {device.backend === 'gpu' && <dl class="facts">
                        {device.vendor && <Fact name="Vendor" value={device.vendor} />}
                        {device.driver && <Fact name="Driver" value={device.driver} />}
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
                    <Fact name="Weights used per token" value={formatBytes(loaded.info.bytesPerToken)} />
                    {stats.expertHitRate !== undefined && <Fact name="Experts found on the GPU" value={`${Math.floor(100 * stats.expertHitRate)} %`} />}
                    {stats.expertBytesPerToken !== undefined && <Fact name="Experts loaded per token" value={formatBytes(stats.expertBytesPerToken)} />}
                    <Fact name="Load time" value={formatSeconds(Math.max(stats.checkSeconds, stats.loadSeconds) + stats.shaderSeconds + stats.planSeconds)} />
                </dl>
            </div>
        </section>
    );
}
