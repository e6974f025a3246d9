/* A model in several files: name-00001-of-00005.gguf and so on. The first part's name says them all. */

import { GemmuleError } from '../core/errors.ts';

const PART = /^(.*)-(\d{5})-of-(\d{5})(\.gguf)$/i;
const MOST_PARTS = 999;

export interface PartName {
    stem: string;
    part: number;
    count: number;
    ending: string;
}

/** What a file's name says about parts; null for a model in one file. */
export function partName(name: string): PartName | null {
    const found = PART.exec(name);
    if (!found) return null;
    const [, stem, part, count, ending] = found as unknown as [string, string, string, string, string];
    const parsed = { stem, part: Number(part), count: Number(count), ending };
    if (parsed.part < 1 || parsed.part > parsed.count || parsed.count > MOST_PARTS) {
        throw new GemmuleError('BadArgument', `cannot load ${name}: there can be no part ${parsed.part} of ${parsed.count}`);
    }
    return parsed;
}

/** The names of all parts, given the first; the name alone for a model in one file. */
export function partNames(first: string): string[] {
    const slash = Math.max(first.lastIndexOf('/'), first.lastIndexOf('\\')) + 1;
    const parsed = partName(first.slice(slash));
    if (!parsed) return [first];
    if (parsed.part !== 1) {
        throw new GemmuleError('BadArgument', `cannot load ${first}: it is part ${parsed.part} of ${parsed.count}. Give the first one, ${nameOf(parsed, 1)}`);
    }
    return Array.from({ length: parsed.count }, (_, i) => first.slice(0, slash) + nameOf(parsed, i + 1));
}

/** The URLs of all parts, given the first. A query (?download=true) is kept. */
export function partUrls(first: string): string[] {
    const end = first.search(/[?#]/);
    const path = end < 0 ? first : first.slice(0, end);
    return partNames(path).map((name) => name + (end < 0 ? '' : first.slice(end)));
}

/** Files in the order of their parts. Throws if one is missing or does not belong. */
export function sortParts<T extends { readonly name: string }>(files: readonly T[]): T[] {
    if (files.length === 1) {
        const parsed = partName(files[0]!.name);
        if (parsed && parsed.count > 1) throw missing(parsed, [parsed.part]);
        return [...files];
    }
    const parts = files.map((file) => ({ file, parsed: partName(file.name) }));
    const first = parts[0]?.parsed;
    for (const { file, parsed } of parts) {
        if (!first || !parsed || parsed.stem !== first.stem || parsed.count !== first.count) {
            throw new GemmuleError('BadArgument', `cannot load ${file.name}: it is not a part of the same model as ${parts[0]!.file.name}`);
        }
    }
    if (!first) throw new GemmuleError('BadArgument', 'no file given');
    const there = parts.map(({ parsed }) => parsed!.part).sort((a, b) => a - b);
    if (there.length !== first.count || there.some((part, i) => part !== i + 1)) throw missing(first, there);
    return parts.sort((a, b) => a.parsed!.part - b.parsed!.part).map(({ file }) => file);
}

function nameOf({ stem, count, ending }: PartName, part: number): string {
    const digits = (n: number) => String(n).padStart(5, '0');
    return `${stem}-${digits(part)}-of-${digits(count)}${ending}`;
}

function missing(name: PartName, there: number[]): GemmuleError {
    const absent = Array.from({ length: name.count }, (_, i) => i + 1).filter((part) => !there.includes(part));
    const what = absent.length ? `${nameOf(name, absent[0]!)} is missing` : 'a part was given twice';
    return new GemmuleError('NotFound', `the model has ${name.count} parts, got ${there.length}: ${what}`, { missing: absent });
}
