// The real browsers that tests run in, headless, with WebGPU in software: Debian's Chromium on its SwiftShader, and Firefox ESR on Mesa's
// lavapipe. Two witnesses: Chromium has subgroups of 4 and no f16 here, Firefox f16 and bindings of 128 MiB.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';

import { chromium } from 'playwright-core';
import type { Browser as PlaywrightBrowser, LaunchOptions } from 'playwright-core';
import puppeteer from 'puppeteer-core';

export { chromium }; // for tools in folders that do not see web/node_modules

export const which = (program: string) => execFileSync('which', [program], { encoding: 'utf8' }).trim();

/** Chromium's flags: workgroup memory is not zeroed, which SwiftShader does at great cost. */
export const CHROMIUM_FLAGS = ['--enable-unsafe-webgpu', '--no-sandbox', '--enable-dawn-features=disable_workgroup_init'];

export function launchChromium(options: LaunchOptions = {}): Promise<PlaywrightBrowser> {
    return chromium.launch({ executablePath: which('chromium'), headless: true, ...options, args: [...CHROMIUM_FLAGS, ...(options.args ?? [])] });
}

/** Chromium without a debugger on its network, which would keep 200 MB of what a page receives in the page's own memory. */
export function launchUnwatchedChromium() {
    return puppeteer.launch({ executablePath: which('chromium'), headless: true, args: CHROMIUM_FLAGS, networkEnabled: false, protocolTimeout: 600_000 });
}

const LAVAPIPE = ['/usr/share/vulkan/icd.d/lvp_icd.x86_64.json', '/usr/share/vulkan/icd.d/lvp_icd.json'];

export function launchFirefox() {
    const driver = LAVAPIPE.find((file) => existsSync(file));
    if (!driver) throw new Error('no lavapipe for Firefox: the package mesa-vulkan-drivers brings it');
    return puppeteer.launch({
        browser: 'firefox',
        executablePath: which('firefox-esr'),
        headless: true,
        protocolTimeout: 600_000,
        env: { ...process.env, VK_ICD_FILENAMES: driver },
        extraPrefsFirefox: {
            'dom.webgpu.enabled': true,
            'gfx.webgpu.ignore-blocklist': true,
            'javascript.options.wasm_js_promise_integration': true, // for tests of C programs; the package needs none
        },
    });
}
