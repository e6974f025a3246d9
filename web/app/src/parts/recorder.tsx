// What replaces the composer's buttons while the microphone records.

import type { JSX } from 'preact';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { cancelRecording, finishRecording, recording } from '../recording.ts';
import { useStore } from '../store.ts';
import { minutes } from './attachments.tsx';

const WORDS = { starting: 'Waiting for the microphone…', running: 'Recording', writing: 'Transcribing…' };

export function Recorder(): JSX.Element {
    const { phase, purpose, seconds } = useStore(recording, (state) => state);
    const loaded = useStore(model, (state) => state.loaded);
    return (
        <div class="recorder" role="group" aria-label="Recording">
            <span class={phase === 'running' ? 'recorder-light' : 'pulse'} aria-hidden="true" />
            <span role="status">{phase && WORDS[phase]}</span>
            {phase === 'running' && <span class="recorder-time">{minutes(seconds)}</span>}
            {phase === 'running' ? <LevelMeter /> : <span class="grow" />}
            <button type="button" class="button" onClick={cancelRecording}>Cancel</button>
            <button type="button" class="send" disabled={phase !== 'running'} aria-label={purpose === 'attach' ? 'Attach the recording' : 'Transcribe the recording'}
                title={purpose === 'attach' ? 'Attach the recording' : 'Transcribe the recording'} onClick={() => void finishRecording(loaded)}>
                <Icon name="check" />
            </button>
        </div>
    );
}

/** In decibels, since ears hear so: from -60 dB to the loudest. */
function LevelMeter(): JSX.Element {
    const level = useStore(recording, (state) => Math.round(Math.max(0, 1 + Math.log10(Math.max(state.level, 1e-6)) / 3) * 100));
    return <meter class="grow level" min={0} max={100} low={0} high={95} optimum={50} value={level} aria-label="Level" />;
}
