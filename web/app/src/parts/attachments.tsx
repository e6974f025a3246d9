// Pictures, sounds and videos: those of the draft, with what they cost, and those of a message.

import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { BUDGETS, type Attachment } from '../conversation.ts';
import { attachedTo, drafts, setAttached } from '../drafts.ts';
import type { PictureBudget } from '../engine.ts';
import { countOf } from '../format.ts';
import { Icon } from '../icons.tsx';
import { blobOf, detach, tokensOf, urlNow, urlOf, whyUnreadable } from '../media.ts';
import { model } from '../models.ts';
import { useStore } from '../store.ts';
import { FRAME_BUDGET, framesOf, taking, type Taking } from '../videos.ts';
import { Dialog } from './dialog.tsx';

/** The address of an attachment; '' while it is read, null if it is gone. */
function useUrl(attachment: Attachment): string | null {
    const [url, setUrl] = useState<string | null>(urlNow(attachment));
    useEffect(() => {
        let shown = true;
        urlOf(attachment).then((found) => { if (shown) setUrl(found); }, () => { if (shown) setUrl(null); });
        return () => { shown = false; };
    }, [attachment.id]);
    return url;
}

const minutes = (seconds: number): string => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, '0')}`;
export { minutes };

function Gone({ attachment }: { attachment: Attachment }): JSX.Element {
    return <span class="attachment-gone quiet"><Icon name="warn" size={16} />{attachment.name} is no longer stored in this browser.</span>;
}

// ---- the draft ------------------------------------------------------------------------------------------------------------------

export function Tray({ place }: { place: string }): JSX.Element | null {
    const attachments = useStore(drafts, () => attachedTo(place));
    const loaded = useStore(model, (state) => state.loaded);
    const videos = useStore(taking, (state) => state.videos).filter((each) => each.place === place);
    if (attachments.length === 0 && videos.length === 0) return null;
    const problem = whyUnreadable(attachments, loaded);
    return (
        <>
            <ul class="tray" aria-label="Attached">
                {attachments.map((each) => <TrayItem key={each.id} attachment={each} place={place} />)}
                {videos.map((each) => <TakingItem key={each.id} video={each} />)}
            </ul>
            {problem !== '' && <p class="tray-problem" role="alert"><Icon name="warn" size={16} />{problem}</p>}
        </>
    );
}

function TakingItem({ video: { name, done, total, stop } }: { video: Taking }): JSX.Element {
    return (
        <li class="tray-item">
            <span class="tray-thumb tray-sign"><Icon name="film" /></span>
            <div class="tray-about">
                <span class="tray-name" title={name}>{name}</span>
                <span class="quiet tray-cost" role="status">{total > 0 ? `Frame ${done} of ${total}` : 'Opening…'}</span>
                <progress class="tray-progress" aria-label={`Frames of ${name}`} max={total || 1} value={total > 0 ? done : undefined} />
            </div>
            <button type="button" class="icon-button tray-remove" aria-label={`Stop ${name}`} title="Stop" onClick={() => stop.abort()}><Icon name="close" size={16} /></button>
        </li>
    );
}

const SIGNS = { image: 'picture', audio: 'wave', video: 'film' } as const;

function TrayItem({ attachment, place }: { attachment: Attachment; place: string }): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const url = useUrl(attachment);
    const { kind, name, budget, seconds = 0, frames = [] } = attachment;
    const usual = kind === 'video' ? FRAME_BUDGET : (loaded?.info.pictureBudget ?? 280);
    const change = (value: PictureBudget): void =>
        setAttached(place, attachedTo(place).map((each) => (each.id === attachment.id ? { ...each, budget: value } : each)));
    const remove = (): void => {
        setAttached(place, attachedTo(place).filter((each) => each.id !== attachment.id));
        void detach(attachment);
    };
    return (
        <li class="tray-item">
            {kind !== 'audio' && url ? <img class="tray-thumb" src={url} alt="" /> : <span class="tray-thumb tray-sign"><Icon name={SIGNS[kind]} /></span>}
            <div class="tray-about">
                <span class="tray-name" title={name}>{name}</span>
                <span class="quiet tray-cost">
                    {kind === 'audio' && <>{minutes(seconds)} · </>}{kind === 'video' && <>{countOf(frames.length, 'frame')} · </>}{countOf(tokensOf(attachment, loaded), 'token')}
                </span>
                {kind !== 'audio' && (
                    <label class="tray-detail">
                        <span class="visually-hidden">Detail of {name}, in tokens at most</span>
                        <select value={budget ?? usual} title="How much detail the model sees"
                            onChange={(event) => change(Number(event.currentTarget.value) as PictureBudget)}>
                            {BUDGETS.map((each) => <option key={each} value={each}>{DETAILS[each]}</option>)}
                        </select>
                    </label>
                )}
            </div>
            <button type="button" class="icon-button tray-remove" aria-label={`Remove ${name}`} title="Remove" onClick={remove}><Icon name="close" size={16} /></button>
        </li>
    );
}

const DETAILS: Record<number, string> = { 70: 'Least detail', 140: 'Less detail', 280: 'Normal detail', 560: 'More detail', 1120: 'Most detail' };

// ---- a message --------------------------------------------------------------------------------------------------------------------

export function Attachments({ attachments }: { attachments: Attachment[] }): JSX.Element {
    return (
        <div class="attachments">
            {attachments.map((each) => {
                const Shown = { image: Picture, audio: Sound, video: Video }[each.kind];
                return <Shown key={each.id} attachment={each} />;
            })}
        </div>
    );
}

function Picture({ attachment }: { attachment: Attachment }): JSX.Element {
    const url = useUrl(attachment);
    const [open, setOpen] = useState(false);
    if (url === null) return <Gone attachment={attachment} />;
    const { name, width, height } = attachment;
    return (
        <>
            <button type="button" class="attachment-picture" aria-label={`Show ${name} larger`} onClick={() => setOpen(true)}>
                {url !== '' && <img src={url} alt={name} width={width} height={height} />}
            </button>
            <Dialog open={open} title={name} onClose={() => setOpen(false)}><img class="attachment-large" src={url} alt={name} /></Dialog>
        </>
    );
}

function Sound({ attachment }: { attachment: Attachment }): JSX.Element {
    const url = useUrl(attachment);
    if (url === null) return <Gone attachment={attachment} />;
    return (
        <figure class="attachment-sound">
            <figcaption><Icon name="wave" size={16} />{attachment.name} · {minutes(attachment.seconds ?? 0)}</figcaption>
            {url !== '' && <audio controls src={url} aria-label={attachment.name} />}
        </figure>
    );
}

/* The first frame; all of them on request. */
function Video({ attachment }: { attachment: Attachment }): JSX.Element {
    const url = useUrl(attachment);
    const [open, setOpen] = useState(false);
    if (url === null) return <Gone attachment={attachment} />;
    const { name, width, height, frames = [] } = attachment;
    return (
        <figure class="attachment-video">
            <button type="button" class="attachment-picture" aria-label={`Show the frames of ${name}`} onClick={() => setOpen(true)}>
                {url !== '' && <img src={url} alt={name} width={width} height={height} />}
            </button>
            <figcaption><Icon name="film" size={16} />{name} · {countOf(frames.length, 'frame')}</figcaption>
            <Dialog open={open} title={name} onClose={() => setOpen(false)}>{open && <Frames attachment={attachment} />}</Dialog>
        </figure>
    );
}

function Frames({ attachment }: { attachment: Attachment }): JSX.Element {
    const [shown, setShown] = useState<{ time: number; url: string }[]>([]);
    useEffect(() => {
        let urls: string[] = [], here = true;
        blobOf(attachment).then((blob) => {
            if (!here) return;
            const frames = framesOf(attachment, blob).map(({ time, image }) => ({ time, url: URL.createObjectURL(image) }));
            urls = frames.map(({ url }) => url);
            setShown(frames);
        }, () => undefined);
        return () => {
            here = false;
            for (const url of urls) URL.revokeObjectURL(url);
        };
    }, [attachment.id]);
    return (
        <ol class="attachment-frames">
            {shown.map(({ time, url }) => <li key={url}><img src={url} alt="" /><span class="quiet">{minutes(time)}</span></li>)}
        </ol>
    );
}
