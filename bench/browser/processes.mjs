// The memory of Chromium's processes, from /proc.

import { readFileSync, readdirSync } from 'node:fs';

function about(pid) {
    try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
        const status = readFileSync(`/proc/${pid}/status`, 'utf8');
        const number = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
        return { pid: Number(pid), parent: number('PPid'), command, most: number('VmHWM') * 1024 };
    } catch {
        return null; // it has ended meanwhile
    }
}

/** Bytes resident at most so far, of the page's renderer and of the GPU process, of the browser with this profile. The renderer is the largest:
 * the others are spare ones. */
export function memoryOf(profile) {
    const all = readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(about).filter(Boolean);
    const main = all.find(({ command }) => command.includes(`--user-data-dir=${profile}`) && !command.includes('--type='));
    if (!main) throw new Error(`no browser has the profile ${profile}`);
    const family = new Set([main.pid]);
    for (let size = 0; size !== family.size;) {
        size = family.size;
        for (const { pid, parent } of all) if (family.has(parent)) family.add(pid);
    }
    const largest = (type) => Math.max(0, ...all.filter(({ pid, command }) => family.has(pid) && command.includes(`--type=${type}`)).map(({ most }) => most));
    return { renderer: largest('renderer'), gpu: largest('gpu-process') };
}
