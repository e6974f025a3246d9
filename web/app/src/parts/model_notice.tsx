// Says that the model of a conversation is not the one that is loaded, and offers to load it again: a model never silently takes
// another's place.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { path, type Answer, type Conversation } from '../conversation.ts';
import { messageOf, type ModelChoice } from '../engine.ts';
import { Icon } from '../icons.tsx';
import { BOX, load, loadAgain, model, type WantedModel } from '../models.ts';
import { pageHref } from '../route.ts';
import { useStore } from '../store.ts';

/** The model of last time, whose file or folder the browser opens only after a click. */
export function WantedNote({ wanted: { choice, kept } }: { wanted: WantedModel }): JSX.Element {
    const origin = choice.source.kind === 'folder' ? 'folder' : 'file';
    return (
        <div class="model-status box-note">
            <p>
                <strong>{choice.name} is not loaded.</strong>{' '}
                {kept ? `The browser needs your permission to open its ${origin} again.`
                    : `It came from a ${origin}, and the browser cannot open this ${origin} again by itself.`}
            </p>
            <div class="actions">
                <button type="button" class="button" onClick={() => void load(BOX)}>Use the model in the box</button>
                {origin === 'folder' && !kept ? <a class="button primary" href={pageHref('models')}>Choose the folder again</a>
                    : <LoadAgain choice={choice} words={kept ? `Open ${choice.name}` : 'Choose the file again'} />}
            </div>
        </div>
    );
}

function LoadAgain({ choice, words }: { choice: ModelChoice; words: string }): JSX.Element {
    const [problem, setProblem] = useState('');
    const open = (): void => {
        setProblem('');
        loadAgain(choice).catch((error: unknown) => setProblem(messageOf(error).message));
    };
    return (
        <>
            {problem && <p class="fit fit-no" role="alert"><Icon name="warn" size={16} />{problem}</p>}
            <button type="button" class="button primary" onClick={open}>{words}</button>
        </>
    );
}

const accepted = new Set<string>(); // conversations whose user goes on with another model

/** Above the composer. */
export function ModelNotice({ conversation }: { conversation: Conversation | undefined }): JSX.Element | null {
    const { wanted, loaded, choice } = useStore(model, (state) => state);
    const [, draw] = useState({});
    const last = conversation && path(conversation).findLast((node): node is Answer => node.role === 'assistant' && node.stats !== undefined);
    if (!conversation || path(conversation).length === 0) return null;
    if (wanted) return <div class="dock-note"><WantedNote wanted={wanted} /></div>;
    const now = loaded?.info.name || choice?.name;
    const place = `${conversation.id} ${now}`;
    if (!last?.stats || !loaded || last.stats.model === now || accepted.has(place)) return null;
    const accept = (): void => {
        accepted.add(place);
        draw({});
    };
    return (
        <div class="dock-note box-note" role="status">
            <p>The last answer here came from <strong>{last.stats.model}</strong>. <strong>{now}</strong> is loaded now.</p>
            <div class="actions">
                <button type="button" class="button" onClick={accept}>Go on with {choice?.id === BOX.id ? 'the model in the box' : now}</button>
                {last.choice ? <LoadAgain choice={last.choice} words={`Load ${last.stats.model}`} />
                    : <a class="button primary" href={pageHref('models')}>Choose a model</a>}
            </div>
        </div>
    );
}
