/* Pictures, sounds and videos as browsers decode them, for the tests of both browsers. The pages run the sources. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Wav, writeWav } from '../support/wav.ts';

type Evaluate = (script: string) => Promise<unknown>;

/* Canvases premultiply alpha, browsers convert CMYK by their own rules, and they do not turn WebP by its EXIF orientation. */
const DIFFERENT = ['webp-alpha.webp', 'webp-exact.webp', 'jpeg-cmyk.jpg', 'webp-turned.webp'];

/** JPEG and WebP have the pixels that Pillow gives them, upright. */
export async function checkPictures(evaluate: Evaluate): Promise<void> {
    const expected = readFileSync('tests/fixtures/pictures/pictures.txt', 'utf8').trim().split('\n').map((line) => line.split(' '))
        .filter(([name]) => /\.(jpg|webp)$/.test(name!) && !DIFFERENT.includes(name!));
    assert.ok(expected.length >= 12, 'there are pictures to compare');
    const found = (await evaluate(`(async () => {
        const { plainPicture } = await import('/web/src/media/picture.ts');
        const found = [];
        for (const name of ${JSON.stringify(expected.map(([name]) => name))}) {
            const { pixels, width, height } = await plainPicture(await (await fetch('/tests/fixtures/pictures/' + name)).blob());
            found.push([name, width, height, [...pixels]]);
        }
        return found;
    })()`)) as [string, number, number, number[]][];
    const hashed = found.map(([name, width, height, pixels]) => [name, `${width}`, `${height}`, createHash('sha256').update(Uint8Array.from(pixels)).digest('hex')]);
    assert.deepEqual(hashed, expected);
}

/** A damaged file is refused. ImageBitmaps and canvases are pictures, too. */
export async function checkOtherPictures(evaluate: Evaluate): Promise<void> {
    const found = await evaluate(`(async () => {
        const { plainPicture } = await import('/web/src/media/picture.ts');
        const jpeg = await (await fetch('/tests/fixtures/pictures/jpeg-444.jpg')).blob();
        const damaged = await plainPicture(new File([jpeg.slice(0, 200), new Uint8Array(100)], 'a.jpg')).catch(({ name, message }) => name + ': ' + message);
        const canvas = new OffscreenCanvas(2, 1);
        const context = canvas.getContext('2d');
        context.fillStyle = 'rgb(10, 20, 30)';
        context.fillRect(1, 0, 1, 1);
        const all = [canvas, await createImageBitmap(canvas), context.getImageData(0, 0, 2, 1)];
        return [damaged, ...(await Promise.all(all.map(plainPicture))).map(({ pixels, width }) => width + ': ' + pixels.join())];
    })()`);
    assert.deepEqual(found, ['BadArgument: cannot decode a.jpg: the JPEG file is damaged', ...Array(3).fill('2: 0,0,0,10,20,30')]);
}

/** Every sound is decoded at its own rate, and is the tone that was encoded: 440 Hz with an amplitude of 0.5. */
export async function checkSounds(evaluate: Evaluate): Promise<void> {
    const files = ['22050.mp3', '44100-stereo.mp3', '32000.flac', '16000.ogg', '48000.opus'];
    const { found, mixed, broken } = (await evaluate(`(async () => {
        const { plainSound } = await import('/web/src/media/sound.ts');
        const found = [];
        for (const name of ${JSON.stringify(files)}) {
            const sound = await plainSound(await (await fetch('/tests/fixtures/sounds/tone-' + name)).blob());
            found.push([sound.sampleRate, [...sound.samples]]);
        }
        const context = new OfflineAudioContext(2, 100, 8000);
        const buffer = context.createBuffer(2, 100, 8000);
        buffer.getChannelData(0).fill(0.5);
        const { samples, sampleRate } = await plainSound(buffer);
        const broken = await plainSound(new File([new TextEncoder().encode('fLaC and then nothing')], 'a.flac')).catch(({ name, message }) => name + ': ' + message);
        return { found, mixed: [sampleRate, samples.length, samples[50]], broken };
    })()`)) as { found: [number, number[]][]; mixed: number[]; broken: string };
    assert.deepEqual(found.map(([rate]) => rate), files.map((name) => parseInt(name, 10)));
    for (const [i, [rate, samples]] of found.entries()) {
        const [amplitude, seconds] = [toneAmplitude(samples, rate, 440), samples.length / rate];
        assert.ok(Math.abs(amplitude - 0.5) < 0.02 && Math.abs(seconds - 0.3) < 0.1, `${files[i]}: amplitude ${amplitude}, ${seconds} s`);
    }
    assert.deepEqual(found[2]![1].length, 9600); // lossless
    assert.deepEqual(mixed, [8000, 100, 0.25]);
    assert.match(broken, /^BadArgument: cannot decode a\.flac: it is damaged, or this browser does not read such FLAC files$/);
}

/** Frames of a video come from the right times: colours.webm is red, green, blue and white for a second each (64 × 48, VP8; written by
 * ffmpeg from its sources of plain colour). */
export async function checkVideos(evaluate: Evaluate): Promise<void> {
    const { times, colours, size, told, many, same, element, refused, still } = (await evaluate(`(async () => {
        const { videoFrames } = await import('/web/src/media/video.ts');
        const { plainMessages } = await import('/web/src/media/parts.ts');
        const film = await (await fetch('/tests/fixtures/colours.webm')).blob();
        const colour = ({ image: { data } }) => [0, 1, 2].map((i) => (data[i] > 128 ? 1 : 0)).join('');
        const caught = (promise) => promise.then(() => 'nothing', ({ name, message }) => name + ': ' + message);
        const told = [];
        const frames = await videoFrames(film, { frames: 8, onProgress: (done, total) => told.push(done + '/' + total) });
        const content = [{ type: 'video', video: film }];
        const [first, second] = [await plainMessages([{ role: 'user', content }]), await plainMessages([{ role: 'user', content }])];
        const video = document.createElement('video');
        video.src = URL.createObjectURL(film);
        await new Promise((resolve) => video.addEventListener('loadeddata', resolve));
        video.currentTime = 1.5;
        const seen = await videoFrames(video, { frames: 4 });
        const { setTimeout } = window;
        window.setTimeout = (run, time, ...rest) => (time < 2000 ? setTimeout(run, time, ...rest) : 0); // a browser that shows a picture says so
        const still = await videoFrames(await (await fetch('/tests/fixtures/shapes.webm')).blob()).finally(() => { window.setTimeout = setTimeout; });
        const controller = new AbortController();
        const stopped = await caught(videoFrames(film, { signal: controller.signal, onProgress: (done) => done === 2 && controller.abort() }));
        return {
            times: frames.map(({ time }) => time), colours: frames.map(colour), size: [frames[0].image.width, frames[0].image.height], told,
            many: first[0].content[0].frames.length, same: first[0].content[0].frames.every(({ image }, i) => image.pixels.join() === second[0].content[0].frames[i].image.pixels.join()),
            element: [seen.map(colour).join(' '), video.currentTime],
            still: still.map(({ time, image: { data } }) => [time, ...data.slice(0, 3)].join()),
            refused: [
                await caught(videoFrames(new File(['hello'], 'a.mp4'))), await caught(videoFrames(await (await fetch('/tests/fixtures/tiny-mm.wav')).blob())),
                await caught(videoFrames(film, { frames: 513 })), await caught(videoFrames('film.mp4')), stopped,
            ],
        };
    })()`)) as { times: number[]; colours: string[]; size: number[]; told: string[]; many: number; same: boolean; element: unknown; refused: string[]; still: string[] };
    assert.ok(times.every((time, i) => Math.abs(time - i / 2) < 0.1), `${times}`);
    assert.deepEqual(colours, ['100', '100', '010', '010', '001', '001', '111', '111']);
    assert.deepEqual([size, told.length, told.at(-1), many, same], [[64, 48], 8, '8/8', 32, true]);
    assert.deepEqual(element, ['100 010 001 111', 1.5]);
    assert.match(still.join(' '), /^0,1[12]\d,7\d,[3-5]\d$/, 'one frame, on brown');
    assert.deepEqual(refused, [
        'BadArgument: a.mp4 is not a video that this browser can play', 'BadArgument: the video has no pictures, only sound',
        'BadArgument: a video has 1 to 512 frames, not 513', 'BadArgument: a video must be a Blob or a <video> element', 'Aborted: stopped by the caller',
    ]);
}

/** A recording of this browser, which does not say how long it is. */
export async function checkRecordedVideo(evaluate: Evaluate): Promise<void> {
    const { times, first, last } = (await evaluate(`(async () => {
        const { videoFrames } = await import('/web/src/media/video.ts');
        const canvas = document.createElement('canvas');
        canvas.width = canvas.height = 64;
        const context = canvas.getContext('2d');
        const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: 'video/webm' });
        const pieces = [];
        recorder.ondataavailable = ({ data }) => data.size && pieces.push(data);
        const show = async (colour, least) => { // until this many pieces are recorded
            for (let i = 0; pieces.length < least; i++) {
                context.fillStyle = colour;
                context.fillRect(0, 0, 64, 64);
                context.fillStyle = i % 2 ? '#888' : '#999'; // a picture that does not change is not recorded
                context.fillRect(60, 60, 4, 4);
                await new Promise((resolve) => setTimeout(resolve, 30));
            }
        };
        recorder.start(100);
        await show('#f00', 4);
        await show('#00f', 12);
        const stopped = new Promise((resolve) => (recorder.onstop = resolve));
        recorder.stop();
        await stopped;
        const frames = await videoFrames(new Blob(pieces, { type: 'video/webm' }));
        const red = ({ image: { data } }) => data[0] > 128 && data[2] < 128;
        return { times: frames.map(({ time }) => time), first: red(frames[0]), last: red(frames.at(-1)) };
    })()`)) as { times: number[]; first: boolean; last: boolean };
    assert.ok(times.length > 1 && times.every((time, i) => time > (times[i - 1] ?? -1) && time < 600), `${times}`);
    assert.deepEqual([first, last], [true, false]);
}

/** The amplitude of one frequency within the middle half of the samples. */
function toneAmplitude(samples: readonly number[], rate: number, frequency: number): number {
    const [start, end] = [Math.floor(samples.length / 4), Math.floor((3 * samples.length) / 4)];
    let [sine, cosine] = [0, 0];
    for (let i = start; i < end; i++) {
        const angle = (2 * Math.PI * frequency * i) / rate;
        sine += samples[i]! * Math.sin(angle);
        cosine += samples[i]! * Math.cos(angle);
    }
    return (2 * Math.hypot(sine, cosine)) / (end - start);
}

/* A second of 440 Hz with an amplitude of 0.5. */
const tone = (rate: number): Wav => ({ rate, samples: Float32Array.from({ length: rate }, (_, i) => 0.5 * Math.sin((2 * Math.PI * 440 * i) / rate)) });

/** Chromium's flags for a microphone that plays a sound, by default a tone. There is a second of silence before and after it: Chromium
 * repeats the last buffer for ever. */
export function fakeMicrophone(folder: string, { samples, rate } = tone(44_100)): string[] {
    const padded = new Float32Array(samples.length + 2 * rate);
    padded.set(samples, rate);
    const file = join(folder, 'microphone.wav');
    writeFileSync(file, writeWav({ samples: padded, rate }));
    return ['--use-fake-device-for-media-stream', '--use-fake-ui-for-media-stream', `--use-file-for-fake-audio-capture=${file}%noloop`];
}

/** Records it with the built package. */
export async function checkMicrophone(evaluate: Evaluate): Promise<void> {
    const { rate, samples, levels, seconds } = (await evaluate(`(async () => {
        const { Microphone } = await import('/web/dist/index.js');
        const levels = [];
        const microphone = await Microphone.start({ onLevel: (level, seconds) => levels.push([level, seconds]) });
        while (microphone.seconds < 2.7) await new Promise((resolve) => setTimeout(resolve, 20));
        const { samples, sampleRate } = await microphone.stop();
        return { rate: sampleRate, samples: [...samples], levels, seconds: microphone.seconds };
    })()`)) as { rate: number; samples: number[]; levels: [number, number][]; seconds: number };
    assert.equal(samples.length, Math.round(seconds * rate));
    assert.ok(levels.length > 40 && levels.some(([level]) => level < 0.01) && levels.some(([level]) => level > 0.45 && level < 0.55), 'the meter shows both');
    const loud = samples.flatMap((value, i) => (Math.abs(value) > 0.1 ? [i] : []));
    const tone = samples.slice(loud[0], loud.at(-1)! + 1);
    assert.ok(Math.abs(tone.length / rate - 1) < 0.05, `the tone takes ${tone.length / rate} s`);
    const amplitude = toneAmplitude(tone, rate, 440);
    assert.ok(Math.abs(amplitude - 0.5) < 0.02, `the tone has an amplitude of ${amplitude}`);
}

interface Question {
    task: string;
    image?: string;
    audio?: string;
    messages: { content: { text?: string }[] }[];
    check: { exact?: string[]; contains?: string[]; number?: number };
}

const fileOf = ({ image, audio }: Question): string => image ?? audio!;

/** As many of every kind of file and task, those with the shortest answers: a GPU in software writes two tokens per second. */
function questionsOf(set: 'pictures' | 'sounds', most: number): Question[] {
    const all = readFileSync(`tests/box/${set}.jsonl`, 'utf8').trim().split('\n').map((line) => JSON.parse(line) as Question);
    const kindOf = (question: Question) => `${question.task} ${fileOf(question).split('.').at(-1)!}`;
    const lengthOf = ({ check: { exact, contains, number } }: Question) => (exact ?? contains ?? [String(number)])[0]!.length;
    const kinds = [...new Set(all.map(kindOf))];
    const some = kinds.flatMap((kind) => all.filter((question) => kindOf(question) === kind).sort((a, b) => lengthOf(a) - lengthOf(b)).slice(0, most / kinds.length));
    assert.equal(some.length, Math.min(most, all.length));
    return some;
}

/* The rules of `gemmule eval` that are used here. A number is the last one of the answer. */
function isRight(answer: string, { exact, contains, number }: Question['check']): boolean {
    if (exact) return exact.includes(answer);
    if (contains) return contains.every((piece) => answer.includes(piece));
    return number !== undefined && Number(/\d+(?=\D*$)/.exec(answer)?.[0]) === number;
}

/** The answers of the model in the box to questions about pictures and sounds that its training never saw: to 8 and 6, of every kind of file
 * and task, with short answers, or to all of them. Right are at least 9 of 10. */
export async function checkBox(evaluate: Evaluate, options: object, all: boolean): Promise<string[]> {
    const some = [...questionsOf('pictures', all ? Infinity : 4), ...questionsOf('sounds', all ? Infinity : 3)];
    const asked = some.map((question) => [`/tests/box/${fileOf(question)}`, question.messages[0]!.content.find(({ text }) => text !== undefined)!.text!]);
    const answers = (await evaluate(`(async () => {
        const { Gemmule } = await import('/web/dist/index.js');
        const engine = await Gemmule.load('/models/box.gguf', { cache: false, ...${JSON.stringify(options)} });
        const answers = [];
        for (const [address, text] of ${JSON.stringify(asked)}) {
            const file = await (await fetch(address)).blob();
            const media = address.endsWith('.wav') ? { type: 'audio', audio: file } : { type: 'image', image: file };
            const session = await engine.session();
            let answer = '';
            for await (const piece of session.reply([{ role: 'user', content: [media, { type: 'text', text }] }], { sampling: { temperature: 0 } })) {
                if (piece.kind === 'content') answer += piece.text;
            }
            await session.close();
            answers.push(answer);
        }
        await engine.unload();
        return answers;
    })()`)) as string[];
    const wrong = some.flatMap((question, i) => (isRight(answers[i]!, question.check) ? [] : [`${fileOf(question)}: ${answers[i]!}`]));
    assert.ok(wrong.length <= some.length / 10, wrong.join('\n'));
    return answers;
}
