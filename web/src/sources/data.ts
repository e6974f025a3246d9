/* Where examples to learn from come from, and their description for the worker. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import { readPictureHeader } from '../media/picture_header.ts';
import { plainPicture } from '../media/picture.ts';
import { plainSound } from '../media/sound.ts';
import { pngFile, wavFile } from '../media/plain_files.ts';
import type { DataSpec } from '../worker/protocol.ts';
import type { Folder } from './folder.ts';

/** Examples to learn from:
 * - a file: JSONL, a JSON list, CSV or plain text (docs/DATA.md describes them);
 * - a list of examples, as in a line of JSONL: `[{ messages: […] }, …]` or `[{ prompt, completion }, …]`;
 * - a list of files, or the handle of a folder: one file of examples, and the pictures and sounds that it names. */
export type DataSource = Blob | readonly File[] | readonly object[] | FileSystemDirectoryHandle | Folder;

interface PathFile {
    path: string;
    file: Blob;
}

const MOST_FILES = 100_000; // of a folder
const isExamples = (path: string): boolean => /^[^/]*\.(jsonl|ndjson|json|csv|tsv|txt|md)$/i.test(path);

/** Describes examples for the worker. */
export async function specifyData(source: DataSource): Promise<DataSpec> {
    if (source instanceof Blob) return { name: source instanceof File ? source.name : 'examples', blob: source, media: [] };
    if (Array.isArray(source)) {
        const list = source as readonly object[];
        if (list.length > 0 && list.every((one) => one instanceof File)) return fromFiles(list.map((file) => ({ path: pathOf(file as File), file: file as File })));
        return fromObjects(list);
    }
    if (typeof source === 'object' && source !== null && 'kind' in source && source.kind === 'directory') return fromFolder(source as unknown as Folder);
    throw new GemmuleError('BadArgument', 'examples must be a File or Blob, a list of files, a list of examples, or the handle of a folder');
}

function fromObjects(examples: readonly object[]): DataSpec {
    if (examples.length === 0) throw new GemmuleError('BadArgument', 'there are no examples');
    return { name: 'examples.jsonl', blob: new Blob([examples.map((one) => `${JSON.stringify(one)}\n`).join('')]), media: [] };
}

/* Within the folder that was chosen, if one was. */
const pathOf = (file: File): string => (file.webkitRelativePath || '').split('/').slice(1).join('/') || file.name;

async function fromFolder(folder: Folder): Promise<DataSpec> {
    const files: PathFile[] = [];
    const add = async (from: Folder, before: string): Promise<void> => {
        for await (const [name, entry] of from.entries()) {
            if (name.startsWith('.')) continue;
            if (files.length >= MOST_FILES) throw new GemmuleError('BadArgument', `the folder ${folder.name} has more than ${MOST_FILES} files`);
            if (entry.kind === 'directory') await add(entry, `${before}${name}/`);
            else files.push({ path: before + name, file: await entry.getFile() });
        }
    };
    try {
        await add(folder, '');
    } catch (thrown) {
        throw toGemmuleError(thrown, `cannot read the folder ${folder.name}`);
    }
    return fromFiles(files);
}

async function fromFiles(files: readonly PathFile[]): Promise<DataSpec> {
    const named = files.filter(({ path }) => isExamples(path)), main = files.length === 1 ? files : named;
    if (main.length === 0) throw new GemmuleError('NotFound', `no file of examples found: one that ends with .jsonl, .json, .csv or .txt was expected among ${files.length} files`);
    if (main.length > 1) {
        const names = main.slice(0, 5).map(({ path }) => path).join(', ');
        throw new GemmuleError('BadArgument', `there are ${main.length} files of examples (${names}); give one at a time`);
    }
    const { path, file } = main[0]!;
    const others = files.filter((one) => one !== main[0]);
    const text = others.length > 0 ? await file.text() : '';
    const media: DataSpec['media'] = [];
    for (const other of others) if (text.includes(other.path.split('/').at(-1)!)) media.push({ path: other.path, blob: await readable(other) });
    return { name: path, blob: file, media };
}

/* The engine reads PNG, GIF and WAV itself; the browser decodes the others. */
async function readable({ path, file }: PathFile): Promise<Blob> {
    try {
        const head = new Uint8Array(await file.slice(0, 4096).arrayBuffer());
        if (readPictureHeader(head)) {
            const picture = await plainPicture(file);
            return 'bytes' in picture ? file : await pngFile(picture);
        }
        const sound = await plainSound(file);
        return 'bytes' in sound ? file : wavFile(sound);
    } catch (thrown) {
        throw toGemmuleError(thrown, path);
    }
}
