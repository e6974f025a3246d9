/* Sends the microphone's samples to the page in blocks, as the mean of its channels. Plain JavaScript in a file of its own: an AudioWorklet
 * loads it by its address, unbundled. */

const BLOCK = 2048; // samples of one message

class GemmuleMicrophone extends AudioWorkletProcessor {
    #block = new Float32Array(BLOCK);
    #used = 0;
    #open = true;

    constructor() {
        super();
        this.port.onmessage = () => {
            this.#open = false;
            this.#send();
            this.port.postMessage(null);
        };
    }

    #send() {
        const part = this.#block.slice(0, this.#used);
        this.#used = 0;
        if (part.length) this.port.postMessage(part, [part.buffer]);
    }

    process([channels]) {
        const length = this.#open ? (channels[0]?.length ?? 0) : 0;
        for (let i = 0; i < length; i++) {
            let sum = 0;
            for (const channel of channels) sum += channel[i];
            this.#block[this.#used++] = sum / channels.length;
            if (this.#used === BLOCK) this.#send();
        }
        return this.#open;
    }
}

registerProcessor('gemmule-microphone', GemmuleMicrophone);
