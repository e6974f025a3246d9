// Checks pages of the app for barriers.

import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';

const AXE = readFileSync('web/node_modules/axe-core/axe.min.js', 'utf8');

interface Axe {
    run(context: Document, options: object): Promise<{ violations: { id: string; impact: string; nodes: { html: string; failureSummary: string }[] }[] }>;
}

/** What axe finds wrong with the page, if it is serious. */
export async function seriousFindings(page: Page): Promise<string[]> {
    await page.evaluate(AXE);
    return page.evaluate(async () => {
        const { axe } = globalThis as unknown as { axe: Axe };
        const { violations } = await axe.run(document, { resultTypes: ['violations'] });
        return violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
            .map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join('; ')}`);
    });
}
