// Dawn for Node (the npm package webgpu), as tests open it: on SwiftShader, which zeroes workgroup memory at great cost unless told not to.

import { execFileSync } from 'node:child_process';

/** What tests set VK_ICD_FILENAMES to, if it is not set: the GPU in software that comes with Debian's Chromium. */
export function softwareDriver(): string {
    if (process.env.VK_ICD_FILENAMES) return process.env.VK_ICD_FILENAMES;
    const files = execFileSync('dpkg', ['-L', 'chromium', 'chromium-common'], { encoding: 'utf8' });
    const found = files.split('\n').find((file) => file.endsWith('vk_swiftshader_icd.json'));
    if (!found) throw new Error('no GPU in software: the package chromium brings one');
    return found;
}

export async function nodeGpu(): Promise<GPU> {
    process.env.VK_ICD_FILENAMES = softwareDriver();
    const { create } = (await import('webgpu')) as { create(options: string[]): GPU };
    const on = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia', 'disable_workgroup_init', 'disable_robustness', 'use_vulkan_memory_model'];
    return create([`enable-dawn-features=${on}`]);
}
