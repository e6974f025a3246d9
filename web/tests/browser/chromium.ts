// Chromium for the browser benchmark. Node looks for packages in the folders above a file, and playwright-core is in web/node_modules.

export { chromium } from 'playwright-core';
