// The engine's session for the conversation that was answered last; others come back from their snapshots.

import { chat, find } from './chat.ts';
import { path, type AdapterUse, type Answer, type Conversation, type Node } from './conversation.ts';
import type { ChatSession, LoadedModel } from './engine.ts';
import { model } from './models.ts';
import { settings } from './settings.ts';
import { adaptersFit, fitOf } from './snapshot_index.ts';
import { keepSnapshot, restoreSnapshot } from './snapshots.ts';

interface Live {
    loaded: LoadedModel;
    session: ChatSession;
    conversation: string;
    /** What snapshots fit it, without the adapters; and the adapters, as part of that. */
    fit: string;
    adapters: string;
    /** As asked for; 0: the model's usual one. */
    context: number;
    /** The answer behind which it stands, if that has not been kept yet. */
    node: string | null;
}
let live: Live | null = null;
let keeping: Promise<unknown> = Promise.resolve();

/** The setting, within what the model was made for; 0: the model's usual one. */
const contextFor = (loaded: LoadedModel): number => Math.min(settings.get().context, loaded.info.context);

/** The session of a conversation, with its adapters. Switching adapters loads nothing, but the conversation is computed again. */
export async function sessionFor(loaded: LoadedModel, conversation: string, shown: Node[], uses: AdapterUse[]): Promise<ChatSession> {
    await keepNow();
    const { kv, snapshots } = settings.get();
    const context = contextFor(loaded), fit = fitOf(loaded.info.digest, kv);
    if (live && (live.loaded !== loaded || live.fit !== fit || live.context !== context)) await closeSession();
    live ??= { loaded, session: await loaded.session({ kv, ...(context > 0 && { context }) }), conversation: '', fit, adapters: '', context, node: null };
    const adapters = adaptersFit(uses), same = live.conversation === conversation && live.adapters === adapters;
    if (live.adapters !== adapters) {
        await live.session.useAdapters(uses);
        live.adapters = adapters;
    }
    if (!same) {
        live.conversation = conversation;
        if (snapshots) await restoreSnapshot(live.session, conversation, fit + adapters, shown.map((node) => node.id)).catch(() => 0);
    }
    return live.session;
}

export async function closeSession(): Promise<void> {
    await live?.session.free().catch(() => undefined);
    live = null;
}

/** The session stands behind this answer now. Reading keys and values back takes the GPU a moment: not while the user may be about to
 * ask again. */
export async function keepSoon(session: ChatSession, answer: string): Promise<void> {
    if (live?.session !== session) return;
    live.node = answer;
    await new Promise((resolve) => setTimeout(resolve, 1500));
    if (live?.node === answer && !chat.get().writing) await keepNow();
}

/** Keeps the live session's keys and values if they have not been kept. */
export function keepNow(): Promise<unknown> {
    keeping = keeping.then(async () => {
        if (!live?.node || !settings.get().snapshots) return;
        const { session, conversation, node } = live, fit = live.fit + live.adapters;
        live.node = null;
        const kept = find(conversation);
        if (kept) await keepSnapshot(session, conversation, node, fit, path(kept).map((each) => each.id));
    });
    return keeping;
}

// ---- the context meter --------------------------------------------------------------------------------------------------------

/** Tokens of the conversation as shown, by the last answer that counted them. */
export function usedTokens(conversation: Conversation | undefined): number {
    const last = conversation && path(conversation).findLast((node): node is Answer => node.role === 'assistant' && node.stats !== undefined);
    return last?.stats?.held ?? 0;
}

/** The most tokens that the model sees at once: the session's, the settings' or the model's. */
export function contextSize(loaded: LoadedModel | null = model.get().loaded): number {
    const set = loaded ? contextFor(loaded) : settings.get().context;
    if (live && live.loaded === loaded && live.context === set) return live.session.context;
    return Math.min(set > 0 ? set : 8192, loaded?.info.context ?? 8192);
}
