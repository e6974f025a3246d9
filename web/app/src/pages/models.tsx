// The model manager: what is loaded, what is on this machine, where others come from, and what fits.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { announce, report } from '../chat.ts';
import { canPickFolder, deleteStored, folderFromDrop, folderFromFiles, listStored, messageOf, nameOfUrl, pickFolder, savedFolder } from '../engine.ts';
import type { FitReport, FolderModel, ModelChoice, StoredModel } from '../engine.ts';
import { openFiles } from '../files.ts';
import { formatBytes, formatCount } from '../format.ts';
import { Icon, type IconName } from '../icons.tsx';
import { askFit, askFits, BOX, fits, load, lookAtServer, model, server, unload } from '../models.ts';
import { ModelStatus } from '../parts/welcome.tsx';
import { StorageMeter } from '../parts/storage.tsx';
import { useStore } from '../store.ts';

export function ModelsPage(): JSX.Element {
    const [stored, setStored] = useState<StoredModel[]>([]);
    const phase = useStore(model, (state) => state.phase);
    const refresh = (): void => void listStored().then(setStored, () => setStored([]));
    useEffect(refresh, [phase]);
    return (
        <div class="page">
            <Current />
            <OllamaSection />
            <ServerSection />
            <section class="card-section">
                <h2>More ways</h2>
                <div class="cards">
                    <UrlCard />
                    <FileCard />
                    <ChoiceCard choice={BOX} icon="box" words="Small: 10 MB. Comes with the app, works at once, knows little." />
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
            <h2>Loaded now</h2>
            <div class="card current-model">
                <ModelStatus />
                {phase === 'ready' && loaded && (
                    <>
                        <dl class="facts">
                            <Fact name="Parameters" value={formatCount(loaded.info.parameters)} />
                            <Fact name="Layers" value={`${loaded.info.layers} × ${loaded.info.width.toLocaleString('en')}`} />
                            <Fact name="Context, at most" value={`${loaded.info.context.toLocaleString('en')} tokens`} />
                            <Fact name="File" value={formatBytes(loaded.info.fileBytes)} />
                            <Fact name="Device" value={loaded.info.device} />
                        </dl>
                        {loaded.info.note && <p class="box-note">{loaded.info.note}</p>}
                        <div class="actions start"><button type="button" class="button" onClick={() => void unload()}>Unload</button></div>
                    </>
                )}
            </div>
        </section>
    );
}

export function Fact({ name, value }: { name: string; value: ComponentChildren }): JSX.Element {
    return <div><dt>{name}</dt><dd>{value}</dd></div>;
}

// ---- one model to choose ------------------------------------------------------------------------------------------------------

function ChoiceCard({ choice, icon, words, problem = '' }: { choice: ModelChoice; icon: IconName; words: string; problem?: string }): JSX.Element {
    const current = useStore(model, (state) => (state.choice?.id === choice.id ? state.phase : 'none'));
    const fit = useStore(fits, (state) => state.reports[choice.id]);
    return (
        <div class={`card choice${current === 'ready' ? ' choice-current' : ''}`}>
            <div class="choice-head"><Icon name={icon} size={20} /><h3>{choice.name}</h3></div>
            <p class="quiet">{words}</p>
            {problem && <p class="fit fit-no"><Icon name="warn" size={16} />{problem}</p>}
            {fit && <FitLine fit={fit} />}
            <div class="actions start">
                <button type="button" class="button primary" disabled={problem !== '' || current === 'loading' || current === 'ready'} onClick={() => void load(choice)}>
                    {current === 'ready' ? 'Loaded' : current === 'loading' ? 'Loading…' : 'Load'}
                </button>
                {!fit && !problem && <button type="button" class="button" onClick={() => void askFit(choice)}>Does it fit?</button>}
            </div>
        </div>
    );
}

function FitLine({ fit }: { fit: NonNullable<ReturnType<typeof fits.get>['reports'][string]> }): JSX.Element {
    if (fit === 'asking') return <p class="fit quiet">Reading its header…</p>;
    if ('kind' in fit) return <p class="fit fit-no"><Icon name="warn" size={16} />{fit.message}</p>;
    const where = fit.backend === 'gpu' ? 'GPU memory' : 'main memory';
    return (
        <div class={`fit ${fit.fits ? 'fit-yes' : 'fit-no'}`}>
            <p>
                <Icon name={fit.fits ? 'check' : 'warn'} size={16} />
                {fit.fits ? `Fits: ${formatBytes(fit.gpuBytes)} of ${where}, ${formatBytes(fit.kvBytesPerToken)} more for each token.` : 'Does not fit.'}
            </p>
            {[fit.why, tableWords(fit), ...fit.notes].filter((each) => each !== '').map((each) => <p key={each} class="quiet">{each}</p>)}
        </div>
    );
}

/** Of models with a per-layer table: where it is, which decides how fast answers are written. */
function tableWords({ fits: fitting, backend, tableBytes, tableKept }: FitReport): string {
    if (!fitting || tableBytes === 0) return '';
    const table = `Its per-layer table of ${formatBytes(tableBytes)}`;
    return tableKept ? `${table} is in ${backend === 'gpu' ? 'GPU' : 'main'} memory, too: answers are written at full speed.`
        : `${table} stays in the file: a row is read for each token, and answers are written more slowly.`;
}

// ---- Ollama's folder ----------------------------------------------------------------------------------------------------------

function OllamaSection(): JSX.Element {
    const [models, setModels] = useState<FolderModel[] | null>(null);
    const [saved, setSaved] = useState(false);
    const [over, setOver] = useState(false);
    useEffect(() => void savedFolder(false).then(({ known, models: list }) => { setSaved(known); if (list) void take(Promise.resolve(list)); }, () => undefined), []);
    const take = async (work: Promise<FolderModel[] | null>): Promise<void> => {
        try {
            const list = await work;
            if (!list) return;
            setModels(list);
            void askFits(list.filter((each) => !each.problem).map((each) => each.choice));
            announce(`${list.length} models found.`);
        } catch (error) {
            const { kind, message } = messageOf(error);
            if (kind !== 'Aborted') report(message);
        }
    };
    const pick = async (): Promise<FolderModel[] | null> => {
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
                    <h3>{models ? 'Models in the folder' : 'Use what Ollama has already downloaded'}</h3>
                </div>
                <p class="quiet">The files are read where they are: nothing is copied and nothing is uploaded.</p>
                <div class="actions start">
                    {saved && !models && (
                        <button type="button" class="button primary" onClick={() => void take(savedFolder(true).then(({ models: list }) => list))}>
                            Open it again
                        </button>
                    )}
                    <button type="button" class={`button${saved || models ? '' : ' primary'}`} onClick={() => void take(pick())}>
                        {saved || models ? 'Choose another folder' : 'Choose the folder'}
                    </button>
                    <span class="quiet only-wide">or drop it here</span>
                </div>
                <details class="hint">
                    <summary>Where is it?</summary>
                    <ul>
                        <li>
                            macOS: <code>~/.ollama/models</code>. In the dialog press <Keys keys="⌘ Shift ." /> to see hidden folders,
                            or <Keys keys="⌘ Shift G" /> to type the path.
                        </li>
                        <li>
                            Linux: <code>~/.ollama/models</code>; where Ollama runs as a service, <code>/usr/share/ollama/.ollama/models</code>.{' '}
                            <Keys keys="Ctrl H" /> shows hidden folders.
                        </li>
                        <li>Windows: <code>%USERPROFILE%\.ollama\models</code>. Type the path into the dialog's address bar.</li>
                        <li>
                            Elsewhere if <code>OLLAMA_MODELS</code> is set. A browser may refuse folders of the system: then choose the file
                            below, or use <code>gemmule serve</code>, which lists them here by itself.
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
            {models?.length === 0 && <p class="quiet">The folder has no models.</p>}
        </section>
    );
}

const Keys = ({ keys }: { keys: string }): JSX.Element => <>{keys.split(' ').map((key) => <kbd key={key}>{key}</kbd>)}</>;

// ---- the local server, URLs, files -----------------------------------------------------------------------------------------------

function ServerSection(): JSX.Element | null {
    const models = useStore(server, (state) => state.models);
    useEffect(() => void lookAtServer(), []);
    useEffect(() => void askFits(models.filter((each) => !each.problem).map((each) => each.choice)), [models]);
    if (models.length === 0) return null;
    return (
        <section class="card-section">
            <h2>From the gemmule server on this machine</h2>
            <div class="cards">
                {models.map((each) => (
                    <ChoiceCard key={each.choice.id} choice={each.choice} icon="server" words={each.words} problem={each.problem} />
                ))}
            </div>
        </section>
    );
}

function UrlCard(): JSX.Element {
    const [url, setUrl] = useState('');
    const valid = /^(?:hf:[^\s/]+\/[^\s/]+\/\S+|https?:\/\/\S+)$/i.test(url.trim());
    const submit = (event: Event): void => {
        event.preventDefault();
        if (valid) void load({ id: `url:${url.trim()}`, name: nameOfUrl(url.trim()), source: { kind: 'url', url: url.trim() } });
    };
    return (
        <form class="card choice" onSubmit={submit}>
            <div class="choice-head"><Icon name="link" size={20} /><h3>Address</h3></div>
            <p class="quiet">
                A GGUF file by https, or <code>hf:owner/repo/file.gguf</code>. It is kept on this machine; a download that breaks off goes on
                where it stopped. This is the one thing here that uses the network.
            </p>
            <label class="field"><span class="visually-hidden">Address of a GGUF file</span>
                <input type="text" inputMode="url" autoComplete="off" spellcheck={false}
                    placeholder="https://… or hf:owner/repo/file.gguf" value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
            </label>
            <div class="actions start"><button type="submit" class="button primary" disabled={!valid}>Download and load</button></div>
        </form>
    );
}

function FileCard(): JSX.Element {
    const pick = async (): Promise<void> => {
        const files = await openFiles('', { several: true });
        if (files.length > 0) void load({ id: `file:${files[0]!.name}`, name: files[0]!.name.replace(/\.gguf$/i, ''), source: { kind: 'file', files } });
    };
    return (
        <div class="card choice">
            <div class="choice-head"><Icon name="file" size={20} /><h3>File</h3></div>
            <p class="quiet">
                A GGUF file, or a blob of Ollama's folder (<code>sha256-…</code>). All parts of a split one together. It is read where it is.
            </p>
            <div class="actions start"><button type="button" class="button primary" onClick={() => void pick()}>Choose a file</button></div>
        </div>
    );
}

// ---- what is stored -----------------------------------------------------------------------------------------------------------

const storedWords = ({ done, stored, size }: StoredModel): string =>
    done ? formatBytes(stored) : `${formatBytes(stored)}${size ? ` of ${formatBytes(size)}` : ''}: not complete`;

function StoredSection({ stored, onChange }: { stored: StoredModel[]; onChange: () => void }): JSX.Element {
    const remove = async (each: StoredModel): Promise<void> => {
        try {
            const source = model.get().choice?.source;
            const inUse = (source?.kind === 'stored' && source.key === each.key) || (source?.kind === 'url' && source.url === each.url);
            if (inUse) await unload();
            await deleteStored(each.key);
            announce(`${each.choice.name} was deleted.`);
        } catch (error) {
            report(messageOf(error).message);
        }
        onChange();
    };
    return (
        <section class="card-section">
            <h2>Stored on this machine</h2>
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
                                    <progress max={each.size} value={each.stored} aria-label={`${each.choice.name}, stored part`} />
                                )}
                            </div>
                            <div class="actions">
                                {!each.problem && (
                                    <button type="button" class="button" onClick={() => void load(each.choice)}>
                                        {each.done ? 'Load' : 'Resume'}
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
        </section>
    );
}
