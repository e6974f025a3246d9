/* Files of tiny-mm-bidir that follow from others: Ollama's single file, and the sound of the expectation as a WAV.
 *
 *     node web/tests/support/bidir.ts FOLDER */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { ollamaGguf, readGguf } from './gguf.ts';
import { writeWav } from './wav.ts';

const fixture = (name: string) => readFileSync(`tests/fixtures/tiny-mm-bidir.${name}`);

export function writeBidir(folder: string): { ollama: string; sound: string } {
    const [ollama, sound] = [join(folder, 'tiny-mm-bidir-ollama.gguf'), join(folder, 'tiny-mm-bidir.wav')];
    writeFileSync(ollama, ollamaGguf(fixture('gguf'), fixture('mmproj.gguf')));
    writeFileSync(sound, writeWav({ samples: readGguf(fixture('expect.gguf')).float32('audio.pcm'), rate: 16_000 }));
    return { ollama, sound };
}

if (import.meta.main) writeBidir(process.argv[2]!);
