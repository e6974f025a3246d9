import { keptGpu } from '../support/kept_gpu.ts';

/** The GPU of this page, with one device for everything that runs here. */
export const pageGpu = keptGpu(navigator.gpu);
