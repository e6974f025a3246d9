// Dawn for Node (the npm package webgpu) on SwiftShader, without zeroing workgroup memory, which is slow there.

import { execFileSync } from 'node:child_process';

/** VK_ICD_FILENAMES, by default the software GPU of Debian's Chromium. */
export function softwareDriver(): string {
    if (process.env.VK_ICD_FILENAMES) return process.env.VK_ICD_FILENAMES;
    const files = execFileSync('dpkg', ['-L', 'chromium', 'chromium-common'], { encoding: 'utf8' });
    const found = files.split('\n').find((file) => file.endsWith('vk_swiftshader_icd.json'));
    if (!found) throw new Error('no software GPU found: install the package chromium');
    return found;
}

export async function nodeGpu(): Promise<GPU> {
    process.env.VK_ICD_FILENAMES = softwareDriver();
    const { create } = (await import('webgpu')) as { create(options: string[]): GPU };
    const on = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia', 'disable_workgroup_init', 'disable_robustness', 'use_vulkan_memory_model'];
    return create([`enable-dawn-features=${on}`]);
}
