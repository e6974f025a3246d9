// notices.txt of the package and of the app: the licences of everything in them that others wrote. The bundler's own list of modules
// says what that is, so a new dependency brings its notice along, and one without a licence fails the build.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import type { Plugin, Rolldown } from 'vite';

export const NOTICES = 'notices.txt';

/** Where Debian keeps the licences of the C library that is linked into the engine's WebAssembly. */
const C_LIBRARY = { name: 'wasi-libc', file: '/usr/share/doc/wasi-libc/copyright' };

export interface Notice {
    name: string;
    text: string;
}

/** The folder of the package that a module comes from; null: the module is gemmule's own. */
export function packageFolder(id: string, modules: string): string | null {
    // Helpers that the bundler adds have no file: '\0vite/preload-helper.js', '\0rolldown/runtime.js'.
    if (id.startsWith('\0')) return join(modules, id.slice(1).split('/')[0]!);
    const found = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id);
    return found ? found[0] : null;
}

/** A package's notice, from its licence file. */
export function packageNotice(folder: string): Notice {
    const manifest = join(folder, 'package.json');
    if (!existsSync(manifest)) throw new Error(`${folder}: expected the package of a bundled module, found no package.json`);
    const { name = basename(folder), version = '' } = JSON.parse(readFileSync(manifest, 'utf8')) as { name?: string; version?: string };
    const file = readdirSync(folder).filter((each) => /^(?:licen[cs]e|copying)(?:[.-]|$)/i.test(each)).sort()[0];
    const whole = file ? readFileSync(join(folder, file), 'utf8') : '';
    // Vite lists the packages inside its own build as well; none of them reaches this bundle.
    const text = whole.split(/^# Licenses of bundled dependencies$/m)[0]!.trim();
    if (text === '') throw new Error(`${name} is in the bundle, but ${folder} has no licence file`);
    return { name: `${name} ${version}`.trim(), text };
}

const cLibraryNotice = (): Notice => ({ name: C_LIBRARY.name, text: readFileSync(C_LIBRARY.file, 'utf8').trim() });

export function noticesText(notices: Notice[]): string {
    const sorted = [...notices].sort((a, b) => (a.name < b.name ? -1 : 1));
    const rule = '-'.repeat(80);
    return ['gemmule contains the following software by others.', ...sorted.map(({ name, text }) => `${rule}\n${name}\n${rule}\n\n${text}`)].join('\n\n') + '\n';
}

/** `collect` notes the packages of a bundle; workers are bundles of their own. `write` belongs to the last bundle. `text` is for builds
 * that write the file themselves: `engine` says whether they have the engine's WebAssembly. */
export function notices(modules: string): { collect: () => Plugin; write: () => Plugin; text: (engine: boolean) => string } {
    const folders = new Set<string>();
    let engine = false;
    const note = (bundle: Rolldown.OutputBundle): void => {
        for (const [name, file] of Object.entries(bundle)) {
            engine ||= name.endsWith('.wasm');
            for (const id of file.type === 'chunk' ? file.moduleIds : []) {
                const folder = packageFolder(id, modules);
                if (folder !== null) folders.add(folder);
            }
        }
    };
    const text = (withEngine: boolean): string => noticesText([...[...folders].map(packageNotice), ...(withEngine ? [cLibraryNotice()] : [])]);
    return {
        text,
        collect: () => ({ name: 'notices-collect', apply: 'build', generateBundle: (_, bundle) => note(bundle) }),
        write: () => ({
            name: 'notices-write',
            apply: 'build',
            generateBundle(_, bundle) {
                note(bundle);
                this.emitFile({ type: 'asset', fileName: NOTICES, source: text(engine) });
            },
        }),
    };
}
