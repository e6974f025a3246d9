// The Models page: the loaded model, models on this machine, other sources, and whether each fits.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useId, useState } from 'preact/hooks';
import { checkAddress } from '../address.ts';
import { announce, whenSilent } from '../chat.ts';
import { canPickFolder, deleteStored, folderFromDrop, folderFromFiles, listStored, messageOf, nameOfUrl, pickFolder, savedFolder } from '../engine.ts';
import type { FitReport, FolderModel, FoundModels, LoadedModel, ModelChoice, StoredModel } from '../engine.ts';
import { openFiles } from '../files.ts';
import { countOf, formatBytes, formatCount, formatDevice, sentence } from '../format.ts';
import { Icon, type IconName } from '../icons.tsx';
import {
    askFit, askFits, BOX, copying, copyLoaded, fits, load, loadFile, lookAtServer, model, server, stopCopying, unload, wantsCopy,
} from '../models.ts';
import { Problem } from '../parts/problem.tsx';
import { ChoiceStatus, LoadProgress, ModelStatus } from '../parts/welcome.tsx';
import { StorageMeter } from '../parts/storage.tsx';
import { useStore } from '../store.ts';

export function ModelsPage(): JSX.Element {
    const [stored, setStored] = useState<StoredModel[]>([]);
    const phase = useStore(model, (state) => state.phase);
    const refresh = (): void => void listStored().then(setStored, () => setStored([]));
    const copies = useStore(copying, (state) => state.progress !== null);
    useEffect(refresh, [phase, copies]);
    return (
        <div class="page">
            <Current />
            <OllamaSection />
            <ServerSection />
            <section class="card-section">
                <h2>Other sources</h2>
                <div class="cards">
                    <UrlCard />
                    <FileCard />
                    <ChoiceCard choice={BOX} icon="box" words="A very small model (10 MB) that comes with the app. It starts at once but knows little." />
                </div>
            </section>
            <StoredSection stored={stored} onChange={refresh} />
        </div>
    );
}

function Current(): JSX.Element {
    const { phase, loaded } = useStore(model, (state) => state);
    return (
        <section class="card-section">
            <h2>Loaded model</h2>
            <div class="card current-model">
                <ModelStatus />
                {phase === 'ready' && loaded && (
                    <>
                        <dl class="facts">
                            <Fact name="Parameters" value={formatCount(loaded.info.parameters)} />
                            <Fact name="Layers" value={`${loaded.info.layers} × ${loaded.info.width.toLocaleString('en')}`} />
                            <Fact name="Maximum context" value={`${loaded.info.context.toLocaleString('en')} tokens`} />
                            <Fact name="File size" value={formatBytes(loaded.info.fileBytes)} />
                            <Fact name="Device" value={formatDevice(loaded.info.device)} />
                        </dl>
                        {loaded.info.backendReason !== '' && loaded.info.backendReason !== 'requested' && (
                            <p class="quiet reason">Why this device: {loaded.info.backendReason.replace(/\bwasm\b/g, 'WebAssembly')}.</p>
                        )}
                        {loaded.info.note && <p class="box-note">{sentence(loaded.info.note)}</p>}
                    </>
                )}
                <CopyOffer loaded={loaded} />
                {phase === 'ready' && (
                    <div class="actions start"><button type="button" class="button" onClick={() => void unload()}>Unload</button></div>
                )}
            </div>
        </section>
    );
}

function CopyOffer({ loaded }: { loaded: LoadedModel | null }): JSX.Element | null {
    const { name, progress, problem } = useStore(copying, (state) => state);
    if (progress) return <div class="choice-status"><LoadProgress progress={progress} name={name} label="Copying the model" onStop={stopCopying} /></div>;
    if (!loaded || !wantsCopy(loaded)) return null;
    return (
        <div class="box-note">
            <p>
                This model does not fit on the GPU, so parts of it are read from its file while it answers. A copy in this browser’s storage
                ({formatBytes(loaded.info.fileBytes)}) is faster to read.
            </p>
            {problem && <Problem words={problem} />}
            <div class="actions start">
                <button type="button" class="button primary" onClick={() => void copyLoaded(whenSilent)}>Copy into this browser</button>
            </div>
        </div>
    );
}

export function Fact({ name, value }: { name: string; value: ComponentChildren }): JSX.Element {
    return <div><dt>{name}</dt><dd>{value}</dd></div>;
}

// ---- a model to choose --------------------------------------------------------------------------------------------------------

function ChoiceCard({ choice, icon, words, problem = '' }: { choice: ModelChoice; icon: IconName; words: string; problem?: string }): JSX.Element {
    const current = useStore(model, (state) => (state.choice?.id === choice.id ? state.phase : 'none'));
    const fit = useStore(fits, (state) => state.reports[choice.id]);
    return (
        <div class={`card choice${current === 'ready' ? ' choice-current' : ''}`}>
            <div class="choice-head"><Icon name={icon} size={20} /><h3>{choice.name}</h3></div>
            <p class="quiet">{words}</p>
            {problem && <p class="fit fit-no"><Icon name="warn" size={16} />{problem}</p>}
            {fit && <FitLine fit={fit} />}
            <ChoiceStatus is={(id) => id === choice.id} />
            <div class="actions start">
                <button type="button" class="button primary" disabled={problem !== '' || current === 'loading' || current === 'ready'} onClick={() => void load(choice)}>
                    {current === 'ready' ? 'Loaded' : current === 'loading' ? 'Loading…' : 'Load'}
                </button>
                {!fit && !problem && current !== 'loading' && <button type="button" class="button" onClick={() => void askFit(choice)}>Does it fit?</button>}
            </div>
        </div>
    );
}

function FitLine({ fit }: { fit: NonNullable<ReturnType<typeof fits.get>['reports'][string]> }): JSX.Element {
    if (fit === 'asking') return <p class="fit quiet">Reading the file header…</p>;
    if ('kind' in fit) return <p class="fit fit-no"><Icon name="warn" size={16} />{fit.message}</p>;
    const memory = fit.backend === 'gpu' ? 'GPU memory' : 'memory';
    return (
        <div class={`fit ${fit.fits ? 'fit-yes' : 'fit-no'}`}>
            <p>
                <Icon name={fit.fits ? 'check' : 'warn'} size={16} />
                {fit.fits ? `Fits: needs ${formatBytes(fit.gpuBytes)} of ${memory}, plus ${formatBytes(fit.kvBytesPerToken)} per token of context.` : 'Does not fit.'}
            </p>
            {[fit.why, tableWords(fit), ...fit.notes].filter((each) => each !== '').map((each) => <p key={each} class="quiet">{sentence(each)}</p>)}
        </div>
    );
}

/** Where a model's per-layer table is kept, which decides how fast it writes; '' if it has none. */
function tableWords({ fits: fitting, backend, tableBytes, tableKept }: FitReport): string {
    if (!fitting || tableBytes === 0) return '';
    const table = `The per-layer table (${formatBytes(tableBytes)})`;
    return tableKept ? `${table} is kept in ${backend === 'gpu' ? 'GPU memory' : 'memory'} too, so answers come at full speed.`
        : `${table} stays in the file. Each token reads a row of it from there, so answers come more slowly.`;
}

// ---- Ollama's folder ----------------------------------------------------------------------------------------------------------

function OllamaSection(): JSX.Element {
    const [models, setModels] = useState<FolderModel[] | null>(null);
    const [saved, setSaved] = useState(false);
    const [over, setOver] = useState(false);
    const [problem, setProblem] = useState('');
    useEffect(() => void savedFolder(false).then(({ known, found }) => { setSaved(known); void take(Promise.resolve(found)); }, () => undefined), []);
    const take = async (work: Promise<FoundModels | null>): Promise<void> => {
        setProblem('');
        try {
            const found = await work;
            if (!found) return;
            const { models: list } = found;
            setModels(list);
            setProblem(found.problem);
            void askFits(list.filter((each) => !each.problem).map((each) => each.choice));
            announce(`${countOf(list.length, 'model')} found.`);
        } catch (error) {
            const { kind, message } = messageOf(error);
            if (kind !== 'Aborted') setProblem(message);
        }
    };
    const pick = async (): Promise<FoundModels | null> => {
        if (canPickFolder()) return pickFolder();
        const files = await openFiles('', { folder: true });
        return files.length > 0 ? folderFromFiles(files) : null;
    };
    const drop = (event: DragEvent): void => {
        event.preventDefault();
        setOver(false);
        if (event.dataTransfer) void take(folderFromDrop(event.dataTransfer));
    };
    return (
        <section class="card-section">
            <h2>Your Ollama folder</h2>
            <div class={`card folder${over ? ' drop-over' : ''}`} onDrop={drop} onDragLeave={() => setOver(false)}
                onDragOver={(event) => { event.preventDefault(); setOver(true); }}>
                <div class="choice-head">
                    <Icon name="folder" size={20} />
                    <h3>{models ? 'Models in the folder' : 'Use models that Ollama has downloaded'}</h3>
                </div>
                <p class="quiet">Files are read in place. Nothing is copied or uploaded.</p>
                <div class="actions start">
                    {saved && !models && (
                        <button type="button" class="button primary" onClick={() => void take(savedFolder(true).then(({ found }) => found))}>
                            Reopen folder
                        </button>
                    )}
                    <button type="button" class={`button${saved || models ? '' : ' primary'}`} onClick={() => void take(pick())}>
                        {saved || models ? 'Choose another folder' : 'Choose folder'}
                    </button>
                    <span class="quiet only-wide">or drop it here</span>
                </div>
                {problem && <Problem words={problem} />}
                <details class="hint">
                    <summary>Where is the folder?</summary>
                    <ul>
                        <li>
                            macOS: <code>~/.ollama/models</code>. In the dialog, press <Keys keys="⌘ Shift ." /> to show hidden folders
                            or <Keys keys="⌘ Shift G" /> to type the path.
                        </li>
                        <li>
                            Linux: <code>~/.ollama/models</code>, or <code>/usr/share/ollama/.ollama/models</code> if Ollama runs as a
                            service. <Keys keys="Ctrl H" /> shows hidden folders.
                        </li>
                        <li>Windows: <code>%USERPROFILE%\.ollama\models</code>. Type the path into the dialog's address bar.</li>
                        <li>
                            If <code>OLLAMA_MODELS</code> is set, it names the folder. Browsers may refuse system folders: choose a model
                            file below instead, or run <code>gemmule serve</code>, which lists your Ollama models on this page.
                        </li>
                    </ul>
                </details>
            </div>
            {models && (
                <div class="cards">
                    {models.map((each) => (
                        <ChoiceCard key={each.choice.id} choice={each.choice} icon="chip" words={each.words} problem={each.problem} />
                    ))}
                </div>
            )}
            {models?.length === 0 && <p class="quiet">No models found in this folder.</p>}
        </section>
    );
}

const Keys = ({ keys }: { keys: string }): JSX.Element => <>{keys.split(' ').map((key) => <kbd key={key}>{key}</kbd>)}</>;

// ---- the local server, URLs, files -----------------------------------------------------------------------------------------------

function ServerSection(): JSX.Element | null {
    const { models, problem } = useStore(server, (state) => state);
    useEffect(() => void lookAtServer(), []);
    useEffect(() => void askFits(models.filter((each) => !each.problem).map((each) => each.choice)), [models]);
    if (models.length === 0 && problem === '') return null;
    return (
        <section class="card-section">
            <h2>On this machine, from gemmule serve</h2>
            {problem && <Problem words={problem} />}
            <div class="cards">
                {models.map((each) => (
                    <ChoiceCard key={each.choice.id} choice={each.choice} icon="server" words={each.words} problem={each.problem} />
                ))}
            </div>
        </section>
    );
}

const isUrl = (id: string): boolean => id.startsWith('url:');
const isFile = (id: string): boolean => id.startsWith('file:');

function UrlCard(): JSX.Element {
    const hint = useId();
    const [url, setUrl] = useState(() => loadingUrl() ?? '');
    const check = checkAddress(url, location.origin);
    const submit = (event: Event): void => {
        event.preventDefault();
        if (check?.ok) void load({ id: `url:${check.url}`, name: nameOfUrl(check.url), source: { kind: 'url', url: check.url } });
    };
    return (
        <form class="card choice" onSubmit={submit}>
            <div class="choice-head"><Icon name="link" size={20} /><h3>URL</h3></div>
            <p class="quiet">
                Downloads a GGUF file from an https:// URL or from Hugging Face (<code>hf:owner/repo/file.gguf</code>) and stores it in this
                browser. Interrupted downloads resume. Nothing else in this app uses the network.
            </p>
            <label class="field"><span class="visually-hidden">URL of a GGUF file</span>
                <input type="text" inputMode="url" autoComplete="off" autoCapitalize="off" spellcheck={false} aria-describedby={hint}
                    aria-invalid={check !== null && !check.ok} placeholder="https://… or hf:owner/repo/file.gguf" value={url}
                    onInput={(event) => setUrl(event.currentTarget.value)} />
            </label>
            <div id={hint} role="status">
                {check && !check.ok && (
                    <p class="fit fit-no">
                        <Icon name="warn" size={16} />
                        <span>
                            {check.why}{' '}
                            {check.instead && <button type="button" class="link" onClick={() => setUrl(check.instead!)}>Use {check.instead}</button>}
                        </span>
                    </p>
                )}
            </div>
            {(!check || check.ok) && <ChoiceStatus is={isUrl} />}
            <div class="actions start"><button type="submit" class="button primary" disabled={!check?.ok}>Download and load</button></div>
        </form>
    );
}

// The URL of a load that is under way or has failed, so that the field has it after a look at another page.
function loadingUrl(): string | null {
    const { choice, phase } = model.get();
    return choice && phase !== 'ready' && isUrl(choice.id) && choice.source.kind === 'url' ? choice.source.url : null;
}

function FileCard(): JSX.Element {
    const [problem, setProblem] = useState('');
    const choose = (): void => {
        setProblem('');
        loadFile().catch((error: unknown) => setProblem(messageOf(error).message));
    };
    return (
        <div class="card choice">
            <div class="choice-head"><Icon name="file" size={20} /><h3>File</h3></div>
            <p class="quiet">
                A GGUF file or an Ollama blob (<code>sha256-…</code>) on this machine. For a split model, select all parts. Files are read in
                place.
            </p>
            {problem ? <Problem words={problem} /> : <ChoiceStatus is={isFile} />}
            <div class="actions start"><button type="button" class="button primary" onClick={choose}>Choose file</button></div>
        </div>
    );
}

// ---- stored models ------------------------------------------------------------------------------------------------------------

const storedWords = ({ done, stored, size }: StoredModel): string =>
    done ? formatBytes(stored) : `${formatBytes(stored)}${size ? ` of ${formatBytes(size)}` : ''}, incomplete`;

function StoredSection({ stored, onChange }: { stored: StoredModel[]; onChange: () => void }): JSX.Element {
    const [problem, setProblem] = useState('');
    const used = useStore(model, (state) => (state.phase === 'ready' ? state.choice?.source : undefined));
    const isUsed = ({ key, url }: StoredModel, source = used): boolean =>
        (source?.kind === 'stored' && source.key === key) || (source?.kind === 'url' && source.url === url);
    const remove = async (each: StoredModel): Promise<void> => {
        setProblem('');
        try {
            if (isUsed(each, model.get().choice?.source)) await unload();
            await deleteStored(each.key);
            announce(`${each.choice.name} deleted.`);
        } catch (error) {
            setProblem(messageOf(error).message);
        }
        onChange();
    };
    return (
        <section class="card-section">
            <h2>Stored in this browser</h2>
            <StorageMeter />
            {stored.length > 0 && (
                <ul class="stored">
                    {stored.map((each) => (
                        <li key={each.key} class="card">
                            <div>
                                <strong>{each.choice.name}</strong>
                                <p class="quiet">
                                    {each.problem || storedWords(each)}
                                </p>
                                {!each.done && !each.problem && each.size && (
                                    <progress max={each.size} value={each.stored} aria-label={`${each.choice.name}, downloaded part`} />
                                )}
                                <ChoiceStatus is={(id) => id === each.choice.id} />
                            </div>
                            <div class="actions">
                                {!each.problem && (
                                    <button type="button" class="button" disabled={isUsed(each)} onClick={() => void load(each.choice)}>
                                        {isUsed(each) ? 'Loaded' : each.done ? 'Load' : 'Resume'}
                                    </button>
                                )}
                                <button type="button" class="button" aria-label={`Delete ${each.choice.name}`} onClick={() => void remove(each)}>
                                    <Icon name="trash" size={16} />Delete
                                </button>
                            </div>
                        </li>
                    ))}
                </ul>
            )}
            {problem && <Problem words={problem} />}
        </section>
    );
}
