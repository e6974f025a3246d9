/* gemmule for the browser: the engine runs in a worker, and models come from wherever the user has them.
 *
 *     const engine = await Gemmule.load('hf:owner/repo/model.gguf', { onProgress: console.log });
 *     const stream = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello!' }], stream: true });
 *     for await (const chunk of stream) console.log(chunk.choices[0]?.delta.content);
 */

import { askPersistence } from '../sources/persist.ts';
import { connectWorker } from './connect.ts';
import { type Loader, makeLoader } from './engine.ts';
import { type Source, specify } from './source.ts';

/** Loads models: `Gemmule.load(source, options)`. */
export const Gemmule: Loader<Source> = makeLoader<Source>(connectWorker, specify, ({ sources }) => {
    if (sources.some((source) => source.kind === 'url' && source.cache)) void askPersistence();
});

export type { Loader, LoadOptions } from './engine.ts';
export { Engine } from './engine.ts';
export { copyModel } from './copy.ts';
export type { CopyOptions } from './copy.ts';
export { Session, Reply } from './session.ts';
export { Adapter, Adapters } from './adapters.ts';
export type { AdapterChoice, AdapterOptions } from './adapters.ts';
export type { SessionReplyOptions } from './session.ts';
export { Dataset } from './dataset.ts';
export type { DatasetOptions } from './dataset.ts';
export { Training } from './training.ts';
export type { TrainingOptions, TrainingResult } from './training.ts';
export { TrainingStore } from '../sources/training_store.ts';
export type { KeptTraining, TrainingAdapter } from '../sources/training_store.ts';
export type { DataSource } from '../sources/data.ts';
export type { AdapterSource } from '../sources/adapter.ts';
export { AdapterStore } from '../sources/adapter_store.ts';
export type { KeptAdapter } from '../sources/adapter_store.ts';
export type { Source, SourceOptions } from './source.ts';
export type { WorkerOptions } from './connect.ts';
export type * from './chat.ts';
export { ERROR_CODES, GemmuleError } from '../core/errors.ts';
export type { ErrorName, WireError } from '../core/errors.ts';
export { ModelCache } from '../sources/opfs.ts';
export type { CacheEntry } from '../sources/opfs.ts';
export { Microphone } from '../media/microphone.ts';
export type { MicrophoneOptions } from '../media/microphone.ts';
export { pictureTokens, soundTokens } from '../media/tokens.ts';
export { videoFrames } from '../media/video.ts';
export type { VideoOptions } from '../media/video.ts';
export type { PictureBudget, PictureInput, Samples, SoundInput, VideoFrameInput, VideoInput } from '../media/types.ts';
export { OllamaFolder } from '../sources/ollama.ts';
export type { OllamaAdapter, OllamaModel } from '../sources/ollama.ts';
export type { Folder } from '../sources/folder.ts';
export type { CacheMode, DeviceEvent, Progress, ReplyPiece, TokenLogprobText, TrainingEvent } from '../worker/protocol.ts';
export type {
    AdapterForm, AdapterInfo, AdapterReport, Backend, Canvas, DataOptions, DataPreview, DataProgress, DataReport, DeviceInfo, EngineInfo,
    EngineStats, FitReport, KeyValueType, Message, Part, ReplyOptions, ReplyStats, Sampling, SessionOptions, Tool,
    ToolCall, TrainingEnd, TrainingHistory, TrainingSettings, TrainingState,
} from '../core/types.ts';
