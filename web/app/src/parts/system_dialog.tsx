// The system prompt of one conversation: the default from the settings, or its own.

import type { JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { setSystem } from '../chat.ts';
import type { Conversation } from '../conversation.ts';
import { settings } from '../settings.ts';
import { Dialog } from './dialog.tsx';

export function SystemDialog({ open, conversation, onClose }: { open: boolean; conversation: Conversation; onClose: () => void }): JSX.Element {
    const box = useRef<HTMLTextAreaElement>(null);
    const save = (system: string | null): void => {
        setSystem(conversation.id, system);
        onClose();
    };
    return (
        <Dialog open={open} title="System prompt" onClose={onClose}>
            <p class="quiet">Instructions for the model in this conversation. Applies from the next answer.</p>
            <label class="field"><span class="visually-hidden">System prompt</span>
                <textarea ref={box} rows={6} defaultValue={conversation.system ?? settings.get().system}
                    placeholder="You are a patient teacher. Answer briefly." />
            </label>
            <div class="actions">
                {conversation.system !== null && <button type="button" class="button" onClick={() => save(null)}>Use the default</button>}
                <button type="button" class="button primary" onClick={() => save(box.current!.value)}>Save</button>
            </div>
        </Dialog>
    );
}
