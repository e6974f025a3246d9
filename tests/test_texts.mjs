// Texts that people read: English quotation marks, no line of 200 characters (150 in documents), and none of the phrases that were
// rewritten because they sounded translated.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const MOST = 200, MOST_IN_DOCUMENTS = 150;
const DOCUMENTS = /^(?!bench\/).*\.md$/; // tables of measurements are wide
const TESTS = /(^|\/)tests\//;
const KINDS = /\.(c|h|ts|tsx|mjs|js|sh|py|md|wgsl|cmake|css|html|txt|1)$/;

// Data rather than text.
const EXCEPT = [
    /^bench\/RESULTS\.md$/, // generated tables
    /^web\/app\/index\.html$/, // its policy is one value
];

// What was written once, and what is written now.
const OLD_PHRASES = {
    'nothing shows it': 'without an argument, shows it', 'As the system': 'Match system', 'The thrifty one': 'Power-saving', 'Best there is': 'Automatic',
    'This did not work.': 'Something went wrong.', 'It counts from the next': 'Applies from the next', 'is no GGUF file': 'is not a GGUF file',
    "' is too much": 'unexpected argument', 'more were to be added': 'the prompt has 5,011 tokens; the context holds 2,048', 'were known)': 'cached',
    'one answer at a time is all': 'n must be 1', 'application/json, and say so': 'send Content-Type: application/json',
    'computes what it should': 'Passed: results are correct', 'More ways': 'Other sources', 'must lie between': 'must be between',
    'was asked for, but': 'is too large', 'gave back %': 'returned', 'were announced': 'n is 3, but tokens is NULL',
};

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const files = execFileSync('git', ['ls-files', '-z'], { cwd: root, encoding: 'utf8' }).split('\0');
const texts = files.filter((file) => KINDS.test(file) && !EXCEPT.some((data) => data.test(file)));
const problems = texts.flatMap((file) =>
    readFileSync(join(root, file), 'utf8').split('\n').flatMap((line, i) => [
        ...(/[\u00ab\u00bb]/.test(line) ? [`${file}:${i + 1}: guillemets`] : []),
        ...([...line].length >= (DOCUMENTS.test(file) ? MOST_IN_DOCUMENTS + 1 : MOST) ? [`${file}:${i + 1}: ${[...line].length} characters`] : []),
        ...Object.entries(OLD_PHRASES).filter(([old]) => !TESTS.test(file) && line.includes(old)).map(([old, now]) => `${file}:${i + 1}: '${old}', better '${now}'`),
    ]),
);

if (texts.length < 400) problems.push(`only ${texts.length} files were found`);
for (const problem of problems) console.error(`FAILED: ${problem}`);
console.log(`${texts.length} files, ${problems.length} problems`);
process.exit(problems.length ? 1 : 0);
