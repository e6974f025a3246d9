// The browsers for the tests, headless, with software WebGPU: Debian's Chromium on its SwiftShader, and Firefox ESR on Mesa's lavapipe. They
// differ: here Chromium has subgroups of 4 and no f16; Firefox has f16 and bindings of 128 MiB.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';

import { chromium } from 'playwright-core';
import type { Browser as PlaywrightBrowser, LaunchOptions } from 'playwright-core';
import puppeteer from 'puppeteer-core';

export { chromium }; // for tools in folders that do not see web/node_modules

export const which = (program: string) => execFileSync('which', [program], { encoding: 'utf8' }).trim();

/** Milliseconds after which a page that does not do what a test waits for is stuck. A busy machine takes long. */
export const PATIENCE = 300_000;
// One evaluation in a page may be a whole op test on a software GPU.
const PROTOCOL_PATIENCE = 3_600_000;

/** Chromium's flags. Zeroing workgroup memory is off, because it is slow on SwiftShader. */
export const CHROMIUM_FLAGS = ['--enable-unsafe-webgpu', '--no-sandbox', '--enable-dawn-features=disable_workgroup_init'];

export function launchChromium(options: LaunchOptions = {}): Promise<PlaywrightBrowser> {
    return chromium.launch({ executablePath: which('chromium'), headless: true, timeout: PATIENCE, ...options, args: [...CHROMIUM_FLAGS, ...(options.args ?? [])] });
}

/** Chromium without network debugging, which would keep 200 MB of received data in the page's memory. */
export function launchUnwatchedChromium() {
    return puppeteer.launch({
        executablePath: which('chromium'), headless: true, args: CHROMIUM_FLAGS, networkEnabled: false, timeout: PATIENCE, protocolTimeout: PROTOCOL_PATIENCE,
    });
}

const LAVAPIPE = ['/usr/share/vulkan/icd.d/lvp_icd.x86_64.json', '/usr/share/vulkan/icd.d/lvp_icd.json'];

export function launchFirefox() {
    const driver = LAVAPIPE.find((file) => existsSync(file));
    if (!driver) throw new Error('no lavapipe for Firefox: install the package mesa-vulkan-drivers');
    return puppeteer.launch({
        browser: 'firefox',
        executablePath: which('firefox-esr'),
        headless: true,
        timeout: PATIENCE,
        protocolTimeout: PROTOCOL_PATIENCE,
        env: { ...process.env, VK_ICD_FILENAMES: driver },
        extraPrefsFirefox: {
            'dom.webgpu.enabled': true,
            'gfx.webgpu.ignore-blocklist': true,
            'javascript.options.wasm_js_promise_integration': true, // for tests of C programs; the package needs none
        },
    });
}
