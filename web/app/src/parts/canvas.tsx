// The canvas of a diffusion model: its tokens, faint where the model is unsure, and the slider back through its steps.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ACCEPTED, OPEN, PINNED, type Frame } from '../canvas.ts';
import { Icon } from '../icons.tsx';

const FAINTER_FROM = [0.02, 0.1, 0.4, 1, 2, 4]; // entropies in nats
const faintness = (entropy: number): number => FAINTER_FROM.filter((from) => entropy >= from).length;
const isControl = (text: string): boolean => /^<\|?[a-z_]+\|?>$|^<0x[0-9A-F]{2}>$/.test(text);

/* What a token looks like. A line ends only where the model is sure of it: otherwise the whole canvas would jump at every step. */
function tokenText(text: string, state: number): string {
    if (isControl(text)) return '·';
    const signs = text.replaceAll('\n', '⏎');
    return state === OPEN || signs === text ? signs : text;
}

/** The tokens after a step. `live`: those that settle light up. */
export function CanvasView({ frame, live = false }: { frame: Frame; live?: boolean }): JSX.Element {
    const { texts, entropies, states } = frame;
    const pins = states.includes(PINNED);
    return (
        <div class={`canvas${live ? ' live' : ''}`} dir="auto" {...(live ? { 'aria-hidden': true } : { role: 'group', 'aria-label': stepWords(frame) })}>
            {texts.map((text, at) => {
                const state = states[at]!, entropy = entropies[at]!;
                const look = state === OPEN ? `faint-${faintness(entropy)}` : state === ACCEPTED ? 'firm' : 'pinned';
                const title = live || state === PINNED ? undefined : `${text.trim() || JSON.stringify(text)} · entropy ${entropy.toFixed(2)}`;
                return <span key={at} class={`token ${look}${pins && state !== PINNED ? ' gap' : ''}`} title={title}>{tokenText(text, state)}</span>;
            })}
        </div>
    );
}

/** 'Block 2, step 3 of at most 48'. */
const stepWords = ({ block, step, mostSteps }: Frame): string => `${block > 0 ? `Block ${block + 1}, step` : 'Step'} ${step} of at most ${mostSteps}`;

function frameWords(frame: Frame): string {
    const open = frame.states.reduce((sum, state) => sum + (state === OPEN ? 1 : 0), 0);
    return `${stepWords(frame)} · mean entropy ${frame.meanEntropy.toFixed(2)} · ${frame.states.length - open} of ${frame.states.length} tokens firm`;
}

const CALM = 1000; // milliseconds between two frames for those who want little motion

/** The newest frame; with reduced motion, one a second. */
function useCalm(frame: Frame): Frame {
    const shown = useRef({ frame, at: performance.now() });
    const [, draw] = useState({});
    const calm = useRef(matchMedia('(prefers-reduced-motion: reduce)')).current.matches;
    const wait = calm ? shown.current.at + CALM - performance.now() : 0;
    if (wait <= 0) shown.current = { frame, at: performance.now() };
    useEffect(() => {
        if (wait <= 0) return undefined;
        const timer = setTimeout(() => draw({}), wait);
        return () => clearTimeout(timer);
    });
    return shown.current.frame;
}

/** The canvas while it settles. Screen readers are told when the answer is complete; the canvas itself is hidden from them. */
export function LiveCanvas({ frame }: { frame: Frame }): JSX.Element {
    const shown = useCalm(frame);
    return (
        <div class="canvas-live" aria-live="off">
            <CanvasView frame={shown} live={true} />
            <p class="canvas-words quiet">{frameWords(shown)}</p>
        </div>
    );
}

const PLAY_EVERY = 120; // milliseconds

interface SliderProps {
    frames: readonly Frame[];
    /** The step that is shown; null: the finished answer. */
    at: number | null;
    onMove: (at: number | null) => void;
}

/** Goes back through the steps. Its last position is the finished answer. */
export function CanvasSlider({ frames, at, onMove }: SliderProps): JSX.Element {
    const [playing, setPlaying] = useState(false);
    const place = at ?? frames.length, frame = frames[place];
    const move = (to: number): void => onMove(to >= frames.length ? null : to);
    useEffect(() => {
        if (!playing) return undefined;
        if (at === null) return setPlaying(false);
        const timer = setTimeout(() => move(at + 1), PLAY_EVERY);
        return () => clearTimeout(timer);
    }, [playing, at]);
    const play = (): void => {
        if (!playing && at === null) move(0);
        setPlaying(!playing);
    };
    const words = frame ? frameWords(frame) : 'Finished';
    return (
        <div class="canvas-steps">
            <button type="button" class="icon-button" aria-label={playing ? 'Pause' : 'Play the steps'} title={playing ? 'Pause' : 'Play the steps'} onClick={play}>
                <Icon name={playing ? 'pause' : 'play'} size={16} />
            </button>
            <input type="range" min={0} max={frames.length} step={1} value={place} aria-label="Steps of the canvas" aria-valuetext={words}
                onInput={(event) => { setPlaying(false); move(Number(event.currentTarget.value)); }} />
            <span class="canvas-words quiet" aria-hidden="true">{frame ? words : `Finished after ${frames.length} step${frames.length === 1 ? '' : 's'}`}</span>
        </div>
    );
}
