// Texts that people read: English quotation marks, and no line of 200 characters or more.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const MOST = 200;
const KINDS = /\.(c|h|ts|tsx|mjs|js|sh|py|md|wgsl|cmake|css|html|txt|1)$/;

// Data rather than text.
const EXCEPT = [
    /^bench\/RESULTS\.md$/, // generated tables
    /^web\/app\/index\.html$/, // its policy is one value
];

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const files = execFileSync('git', ['ls-files', '-z'], { cwd: root, encoding: 'utf8' }).split('\0');
const texts = files.filter((file) => KINDS.test(file) && !EXCEPT.some((data) => data.test(file)));
const problems = texts.flatMap((file) =>
    readFileSync(join(root, file), 'utf8').split('\n').flatMap((line, i) => [
        ...(/[\u00ab\u00bb]/.test(line) ? [`${file}:${i + 1}: guillemets`] : []),
        ...([...line].length >= MOST ? [`${file}:${i + 1}: ${[...line].length} characters`] : []),
    ]),
);

if (texts.length < 400) problems.push(`only ${texts.length} files were found`);
for (const problem of problems) console.error(`FAILED: ${problem}`);
console.log(`${texts.length} files, ${problems.length} problems`);
process.exit(problems.length ? 1 : 0);
