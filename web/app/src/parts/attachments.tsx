// Pictures and sounds: those of the draft, with what they cost, and those of a message.

import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { BUDGETS, type Attachment } from '../conversation.ts';
import { attachedTo, drafts, setAttached } from '../drafts.ts';
import type { PictureBudget } from '../engine.ts';
import { countOf } from '../format.ts';
import { Icon } from '../icons.tsx';
import { detach, tokensOf, urlNow, urlOf, whyUnreadable } from '../media.ts';
import { model } from '../models.ts';
import { useStore } from '../store.ts';
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
    return <span class="attachment-gone quiet"><Icon name="warn" size={16} />{attachment.name} is no longer in this browser.</span>;
}

// ---- the draft ------------------------------------------------------------------------------------------------------------------

export function Tray({ place }: { place: string }): JSX.Element | null {
    const attachments = useStore(drafts, () => attachedTo(place));
    const loaded = useStore(model, (state) => state.loaded);
    if (attachments.length === 0) return null;
    const problem = whyUnreadable(attachments, loaded);
    return (
        <>
            <ul class="tray" aria-label="Attached">
                {attachments.map((each) => <TrayItem key={each.id} attachment={each} place={place} />)}
            </ul>
            {problem !== '' && <p class="tray-problem" role="alert"><Icon name="warn" size={16} />{problem}</p>}
        </>
    );
}

function TrayItem({ attachment, place }: { attachment: Attachment; place: string }): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const url = useUrl(attachment);
    const { kind, name, budget, seconds = 0 } = attachment;
    const usual = loaded?.info.pictureBudget ?? 280;
    const change = (value: PictureBudget): void =>
        setAttached(place, attachedTo(place).map((each) => (each.id === attachment.id ? { ...each, budget: value } : each)));
    const remove = (): void => {
        setAttached(place, attachedTo(place).filter((each) => each.id !== attachment.id));
        void detach(attachment);
    };
    return (
        <li class="tray-item">
            {kind === 'image' && url ? <img class="tray-thumb" src={url} alt="" /> : <span class="tray-thumb tray-sign"><Icon name={kind === 'image' ? 'picture' : 'wave'} /></span>}
            <div class="tray-about">
                <span class="tray-name" title={name}>{name}</span>
                <span class="quiet tray-cost">
                    {kind === 'audio' && <>{minutes(seconds)} · </>}{countOf(tokensOf(attachment, loaded), 'token')}
                </span>
                {kind === 'image' && (
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
            {attachments.map((each) => (each.kind === 'image' ? <Picture key={each.id} attachment={each} /> : <Sound key={each.id} attachment={each} />))}
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
