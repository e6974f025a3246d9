// Pictures, sounds and videos of messages and drafts. A message has their description; their content is in the database, by id.

import type { Attachment, Conversation, ModelMessage, Node } from './conversation.ts';
import { erase, read, write } from './database.ts';
import { describeMedia, isOnlySound, mediaTokens, type LoadedModel, type Message } from './engine.ts';
import { countOf } from './format.ts';
import { FRAME_BUDGET, framesOf, takeVideo, type Film } from './videos.ts';

/** What was attached or shown in this visit: a database that is off or full still lets messages be sent. */
const known = new Map<string, Blob>();
const urls = new Map<string, string>();

async function keep(blob: Blob, about: Omit<Attachment, 'id' | 'size'>): Promise<Attachment> {
    const id = crypto.randomUUID();
    known.set(id, blob);
    await write('media', { id, blob }).catch(() => undefined);
    return { ...about, id, size: blob.size };
}

const keepFilm = ({ blob, ...about }: Film, name: string): Promise<Attachment> => keep(blob, { kind: 'video', name, type: 'image/jpeg', ...about });

/** Takes the frames of a video, and keeps them; null if the user stopped that. A video of sound alone is a sound. Rejects, with the reason, for one that cannot be played. */
export async function attachVideo(place: string, file: Blob, name: string): Promise<Attachment | null> {
    try {
        const film = await takeVideo(place, file, name);
        return film && keepFilm(film, name);
    } catch (error) {
        const sound = isOnlySound(error) ? await attach(file, name) : null;
        if (!sound) throw error;
        return sound;
    }
}

/** Keeps a file; null if it is neither a picture nor a sound. Rejects, with the reason, for one that cannot be read. */
export async function attach(file: Blob, name: string): Promise<Attachment | null> {
    const about = await describeMedia(file);
    return about && keep(file, { ...about, name, type: file.type });
}

export async function blobOf({ id, name }: Attachment): Promise<Blob> {
    const blob = known.get(id) ?? (await read('media', id))?.blob;
    if (!blob) throw new Error(`${name} is no longer stored in this browser`);
    known.set(id, blob);
    return blob;
}

/** An address for <img> and <audio>, for as long as the page lives; of a video, that of its first frame. */
export async function urlOf(attachment: Attachment): Promise<string> {
    const blob = await blobOf(attachment);
    const url = urls.get(attachment.id) ?? URL.createObjectURL(attachment.kind === 'video' ? framesOf(attachment, blob)[0]!.image : blob);
    urls.set(attachment.id, url);
    return url;
}

/** The address if it is known already; '' if it must be read first. */
export const urlNow = ({ id }: Attachment): string => urls.get(id) ?? '';

export async function detach({ id }: Attachment): Promise<void> {
    const url = urls.get(id);
    if (url) URL.revokeObjectURL(url);
    urls.delete(id);
    known.delete(id);
    await erase('media', id).catch(() => undefined);
}

// ---- for the model --------------------------------------------------------------------------------------------------------------

export const tokensOf = (attachment: Attachment, loaded: LoadedModel | null): number =>
    mediaTokens(attachment, attachment.budget ?? (attachment.kind === 'video' ? FRAME_BUDGET : (loaded?.info.pictureBudget ?? 280)));

/** Messages with the content of their attachments, which come before the text. */
export function withParts(messages: ModelMessage[]): Promise<Message[]> {
    return Promise.all(messages.map(async ({ attachments, ...message }): Promise<Message> => {
        if (!attachments?.length) return message;
        const media = await Promise.all(attachments.map(async (each) => {
            const blob = await blobOf(each);
            if (each.kind === 'video') return { type: 'video' as const, frames: framesOf(each, blob), ...(each.budget && { budget: each.budget }) };
            return each.kind === 'audio' ? { type: 'audio' as const, audio: blob } : { type: 'image' as const, image: blob, ...(each.budget && { budget: each.budget }) };
        }));
        return { ...message, content: [...media, ...(message.content === '' ? [] : [{ type: 'text' as const, text: message.content }])] };
    }));
}

/** Why a model cannot read these attachments; '' if it can. */
export function whyUnreadable(attachments: Attachment[], loaded: LoadedModel | null): string {
    if (!loaded) return '';
    const blind = !loaded.info.vision && attachments.some(({ kind }) => kind !== 'audio');
    const deaf = !loaded.info.audio && attachments.some(({ kind }) => kind === 'audio');
    if (!blind && !deaf) return '';
    const lacks = blind && deaf ? 'see pictures or hear sounds' : blind ? 'see pictures' : 'hear sounds';
    return `${loaded.info.name || 'The loaded model'} cannot ${lacks}. Load a model that can, or send text alone.`;
}

export const attachmentsOf = (nodes: Node[]): Attachment[] => nodes.flatMap((node) => (node.role === 'user' ? (node.attachments ?? []) : []));

/** In a few words, for titles and for what waits to be sent. */
export function inWords(attachments: Attachment[]): string {
    const words = { image: 'picture', audio: 'sound', video: 'video' };
    return (['image', 'audio', 'video'] as const).map((kind) => [attachments.filter((each) => each.kind === kind).length, words[kind]] as const)
        .filter(([count]) => count > 0).map(([count, word]) => countOf(count, word)).join(', ');
}

// ---- files ----------------------------------------------------------------------------------------------------------------------

async function base64Of(blob: Blob): Promise<string> {
    const bytes = new Uint8Array(await blob.arrayBuffer());
    let text = '';
    for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    return btoa(text);
}

function fromBase64(text: string, type: string): Blob {
    const letters = atob(text);
    return new Blob([Uint8Array.from(letters, (letter) => letter.charCodeAt(0))], { type });
}

async function eachAttachment(conversation: Conversation, change: (attachment: Attachment) => Promise<Attachment | null>): Promise<Conversation> {
    const nodes: Record<string, Node> = {};
    for (const [id, node] of Object.entries(conversation.nodes)) {
        nodes[id] = node;
        if (node.role !== 'user' || !node.attachments?.length) continue;
        const changed = await Promise.all(node.attachments.map(change));
        nodes[id] = { ...node, attachments: changed.filter((each) => each !== null) };
    }
    return { ...conversation, nodes };
}

/** A conversation for a file: with the content of its attachments. */
export function withContent(conversation: Conversation): Promise<Conversation> {
    return eachAttachment(conversation, async (attachment) => {
        const blob = await blobOf(attachment).catch(() => null);
        return blob ? { ...attachment, data: await base64Of(blob) } : attachment;
    });
}

/* A video from a file: every frame must be a picture, and nothing may be left over. */
async function readFilm(blob: Blob, name: string, frames: NonNullable<Attachment['frames']>): Promise<Attachment | null> {
    const about = await Promise.all(framesOf({ frames } as Attachment, blob).map(({ image }) => describeMedia(image)));
    const whole = frames.reduce((sum, { bytes }) => sum + bytes, 0) === blob.size && about.every((each) => each?.kind === 'image');
    const { width = 0, height = 0 } = about[0] ?? {};
    return whole && about.length > 0 ? keepFilm({ blob, width, height, seconds: frames.at(-1)!.time, frames }, name) : null;
}

/** A conversation from a file: keeps the content of its attachments, and drops those that cannot be read. */
export function keepContent(conversation: Conversation): Promise<Conversation> {
    return eachAttachment(conversation, async ({ data, name, type, budget, frames }) => {
        if (data === undefined) return null;
        const attachment = await Promise.resolve().then(() => (frames ? readFilm(fromBase64(data, type), name, frames) : attach(fromBase64(data, type), name))).catch(() => null);
        return attachment && { ...attachment, ...(budget && { budget }) };
    });
}
