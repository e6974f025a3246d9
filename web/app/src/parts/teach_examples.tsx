// Examples on the Teach page: rows to write, files to import, conversations to take them from.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Conversation } from '../conversation.ts';
import { folderOfDrop, messageOf } from '../engine.ts';
import { openFiles } from '../files.ts';
import { countOf } from '../format.ts';
import { Icon } from '../icons.tsx';
import { useStore } from '../store.ts';
import { addConversation, addRow, changeRow, dropFile, exportExamples, importExamples, removeRow, teach, usableConversations, type ExampleRow } from '../teach.ts';
import { Dialog } from './dialog.tsx';

const KINDS = '.jsonl,.ndjson,.json,.csv,.tsv,.txt,.md,image/*,audio/*';

/** Files or a folder that were dropped. The browser empties `data` after the event. */
export async function importDrop(data: DataTransfer): Promise<void> {
    const isFolder = [...data.items].some((item) => item.kind === 'file' && item.webkitGetAsEntry?.()?.isDirectory);
    const folder = isFolder ? folderOfDrop(data) : null, files = [...data.files];
    await taking(async () => {
        if (folder) return importExamples(await folder, (await folder).name);
        return takeFiles(files);
    });
}

async function taking(work: () => Promise<void>): Promise<void> {
    try {
        await work();
    } catch (error) {
        teach.set({ problem: messageOf(error).message });
    }
}

async function takeFiles(files: File[]): Promise<void> {
    if (files.length === 1) return importExamples(files[0]!, files[0]!.name);
    if (files.length > 1) return importExamples(files, countOf(files.length, 'file'));
}

export function Examples(): JSX.Element {
    const { rows, file } = useStore(teach, (state) => state);
    const [choosing, setChoosing] = useState(false);
    return (
        <div class="card teach-examples">
            {file ? <FileCard name={file.name} /> : (
                <ul class="teach-rows">
                    {rows.map((row, at) => <RowFields key={row.id} row={row} number={at + 1} last={at === rows.length - 1} />)}
                </ul>
            )}
            <div class="actions start">
                {!file && <button type="button" class="button" onClick={addRow}><Icon name="plus" size={16} />Add</button>}
                <button type="button" class="button" onClick={() => void openFiles(KINDS, { several: true }).then((files) => taking(() => takeFiles(files)))}>
                    <Icon name="file" size={16} />Import
                </button>
                {!matchMedia('(pointer: coarse)').matches && (
                    <button type="button" class="button" onClick={() => void openFiles('', { folder: true }).then((files) => taking(() => takeFiles(files)))}>
                        <Icon name="folder" size={16} />Folder
                    </button>
                )}
                <button type="button" class="button" onClick={() => setChoosing(true)}><Icon name="copy" size={16} />From conversations</button>
                {!file && rows.length > 1 && (
                    <button type="button" class="icon-button" aria-label="Save the examples" title="Save the examples" onClick={exportExamples}><Icon name="download" /></button>
                )}
            </div>
            <p class="quiet hint-line">Or drop a file here: JSONL, CSV or plain text, or a folder with pictures and sounds.</p>
            <FromConversations open={choosing} onClose={() => setChoosing(false)} />
        </div>
    );
}

function FileCard({ name }: { name: string }): JSX.Element {
    const form = useStore(teach, (state) => state.report?.form ?? '');
    return (
        <div class="teach-file">
            <Icon name="file" size={24} />
            <p><strong>{name}</strong>{form && <span class="quiet"> {form}</span>}</p>
            <button type="button" class="icon-button" aria-label={`Remove ${name}`} onClick={dropFile}><Icon name="close" /></button>
        </div>
    );
}

function RowFields({ row, number, last }: { row: ExampleRow; number: number; last: boolean }): JSX.Element {
    const enter = (event: KeyboardEvent): void => {
        if (event.key !== 'Enter' || event.shiftKey || !last || row.answer.trim() === '') return;
        event.preventDefault();
        addRow();
        requestAnimationFrame(() => document.querySelector<HTMLTextAreaElement>('.teach-rows li:last-child textarea')?.focus());
    };
    return (
        <li>
            <textarea rows={1} value={row.question} placeholder="Question" aria-label={`Question ${number}`}
                onInput={(event) => changeRow(row.id, { question: event.currentTarget.value })} />
            <Icon name="right" size={16} />
            <textarea rows={1} value={row.answer} placeholder="How the model should answer" aria-label={`Answer ${number}`} onKeyDown={enter}
                onInput={(event) => changeRow(row.id, { answer: event.currentTarget.value })} />
            <button type="button" class="icon-button" aria-label={`Remove example ${number}`} onClick={() => removeRow(row.id)}><Icon name="close" size={16} /></button>
        </li>
    );
}

function FromConversations({ open, onClose }: { open: boolean; onClose: () => void }): JSX.Element {
    const [taken, setTaken] = useState<Record<string, number>>({});
    const all = open ? usableConversations() : [];
    const take = (conversation: Conversation): void => setTaken({ ...taken, [conversation.id]: addConversation(conversation) });
    return (
        <Dialog open={open} title="From conversations" onClose={onClose}>
            <p class="quiet">{all.length === 0 ? 'There are no conversations yet.' : 'Each question and its answer become an example, which you can change.'}</p>
            <ul class="teach-conversations">
                {all.map((each) => (
                    <li key={each.id}>
                        <span class="row-title">{each.title || 'New conversation'}</span>
                        {each.id in taken ? <span class="quiet">{countOf(taken[each.id]!, 'example')}</span>
                            : <button type="button" class="button small" onClick={() => take(each)}><Icon name="plus" size={16} />Take</button>}
                    </li>
                ))}
            </ul>
        </Dialog>
    );
}
