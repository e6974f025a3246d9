"""Sounds and how the audio tower is given them.

`features` is Gemma 4's log-mel spectrogram. Speech comes from the library of espeak-ng, loaded into the process (ESPEAK_LIBRARY and
ESPEAK_DATA_PATH say where it lies, if not where Debian has it); tones are made here.
"""

import ctypes
import functools
import math
import os
import struct

import numpy as np

import captions
from words import DIGITS

RATE = 16_000
FRAME, HOP, FFT, BANDS = 320, 160, 512, 128
MOST_SECONDS = 4.0

# ---- preprocessing ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def mel_filters():
    """[257, 128]: triangles, equally spaced on the mel scale from 0 to 8000 Hz."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    low, centre, high = points[:-2], points[1:-1], points[2:]
    return np.maximum(0, np.minimum((bins[:, None] - low) / (centre - low), (high - bins[:, None]) / (high - centre)))


WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32).astype(np.float64)


def features(samples):
    """f32 [frames, 128] and which frames are valid. `samples` at 16 kHz, from -1 to 1."""
    x = np.asarray(samples, np.float64)[:30 * RATE]
    n, padded = len(x), -(-len(x) // 128) * 128
    x = np.concatenate([np.zeros(HOP), x, np.zeros(padded - n)])
    count = (len(x) - FRAME - 1) // HOP + 1
    frames = np.lib.stride_tricks.as_strided(x, (count, FRAME), (HOP * x.itemsize, x.itemsize)) * WINDOW
    spectrum = np.abs(np.fft.rfft(frames.astype(np.float32), FFT, axis=-1)).astype(np.float32).astype(np.float64)
    out = np.log(spectrum @ mel_filters() + 0.001)
    valid = HOP * np.arange(count) + HOP < n
    out[~valid] = 0
    return out.astype(np.float32), valid


def soft_tokens(valid_frames):
    return -(-(-(-valid_frames // 2)) // 2)


def resample(x, rate_in, rate_out=RATE):
    """By cutting or padding the spectrum."""
    if rate_in == rate_out:
        return x
    common = math.gcd(rate_in, rate_out)
    up, down = rate_out // common, rate_in // common
    blocks = -(-len(x) // down)
    x = np.concatenate([x, np.zeros(blocks * down - len(x))])
    spectrum, bins = np.fft.rfft(x), blocks * up // 2 + 1
    spectrum = spectrum[:bins] if len(spectrum) >= bins else np.concatenate([spectrum, np.zeros(bins - len(spectrum))])
    return np.fft.irfft(spectrum, blocks * up) * (up / down)


# ---- speech ----------------------------------------------------------------------------------------------------------

VOICES = {  # the second list is for the held-out set alone
    False: [f"{language}+{variant}" for language in ("en-US", "en", "en-GB-x-rp", "en-GB-scotland")
            for variant in ("m1", "m2", "m3", "m4", "m5", "m6", "f1", "f2", "f3", "Andy", "Annie", "Mario")],
    True: [f"{language}+{variant}" for language in ("en-US", "en") for variant in ("m7", "m8", "f4", "f5", "steph", "Michael")],
}


class Espeak:
    """One synthesiser per process."""

    def __init__(self):
        name = os.environ.get("ESPEAK_LIBRARY", "libespeak-ng.so.1")
        try:
            self.library = ctypes.CDLL(name)
        except OSError as e:
            raise SystemExit(f"espeak-ng is missing ({e}): tools/setup.sh box installs it") from None
        self.library.espeak_Synth.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
                                              ctypes.c_void_p, ctypes.c_void_p]
        path = os.environ.get("ESPEAK_DATA_PATH")
        self.rate = self.library.espeak_Initialize(2, 0, path.encode() if path else None, 0)  # 2: synchronous, to a callback
        if self.rate <= 0:
            raise SystemExit(f"espeak-ng finds no data (ESPEAK_DATA_PATH is {path!r})")
        self.pieces = []

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        def take(wave, count, events):
            if wave and count > 0:
                self.pieces.append(np.ctypeslib.as_array(wave, (count,)).copy())
            return 0

        self.callback = take  # kept alive
        self.library.espeak_SetSynthCallback(take)

    def say(self, text, voice, speed, pitch):
        """f64 samples at `self.rate`. speed: words a minute; pitch: 0 to 99."""
        self.pieces.clear()
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SystemExit(f"espeak-ng has no voice {voice}")
        self.library.espeak_SetParameter(1, speed, 0)
        self.library.espeak_SetParameter(3, pitch, 0)
        data = text.encode()
        self.library.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
        self.library.espeak_Synchronize()
        return np.concatenate(self.pieces).astype(np.float64) / 32768 if self.pieces else np.zeros(0)


@functools.lru_cache(maxsize=1)
def espeak():
    return Espeak()


def speech(r, text, held):
    voice, pitch = r.choice(VOICES[held]), r.randrange(30, 70)
    for speed in (r.randrange(120, 210), 230, 280, 350):
        x = resample(espeak().say(text, voice, speed, pitch), espeak().rate)
        if len(x) <= (MOST_SECONDS - 0.3) * RATE:
            break
    return x


# ---- tones and noise -------------------------------------------------------------------------------------------------

def tone(r):
    """A sweep of at least a third of an octave; (samples, rising)."""
    rising, n = r.random() < 0.5, int(RATE * r.uniform(0.5, 2.0))
    low = r.uniform(150, 900)
    high = low * 2 ** r.uniform(0.35, 2)
    t = np.arange(n) / n
    frequency = low * (high / low) ** (t if rising else 1 - t)
    phase = 2 * np.pi * np.cumsum(frequency) / RATE
    x = sum(np.sin(k * phase) * a for k, a in ((1, 1), (2, r.uniform(0, 0.6)), (3, r.uniform(0, 0.4))))
    edge = np.minimum(1, np.minimum(np.arange(n), np.arange(n)[::-1]) / (0.02 * RATE))
    return x / np.abs(x).max() * edge, rising


def spoil(r, x):
    """Silence around it, another loudness, noise; as 16-bit samples, which is what a file holds."""
    x = np.concatenate([np.zeros(int(RATE * r.uniform(0, 0.15))), x, np.zeros(int(RATE * r.uniform(0.02, 0.15)))])[:int(MOST_SECONDS * RATE)]
    x = x / max(1e-6, np.abs(x).max()) * r.uniform(0.15, 0.95)
    if r.random() < 0.6:
        noise = np.random.default_rng(r.getrandbits(32)).normal(0, 1, len(x))
        if r.random() < 0.5:  # darker noise
            noise = np.convolve(noise, np.ones(8) / 8, "same")
        power = np.sqrt(np.mean(x * x)) * 10 ** (-r.uniform(8, 40) / 20)
        x = x + noise / np.sqrt(np.mean(noise * noise)) * power
    return np.clip(np.round(x * 32768), -32768, 32767).astype(np.int16)


def sound_sample(r, held=False, easy=0.0):
    """A sample with its sound in "audio" (int16 at 16 kHz)."""
    kind = r.random()
    if kind < 0.4:
        digits = captions.spoken_digits(r, easy)
        sample = captions.sample_of("audio", *captions.about_digits(r, digits), "spoken digits", "".join(map(str, digits)))
        x = speech(r, ", ".join(DIGITS[d] for d in digits) if r.random() < 0.5 else " ".join(DIGITS[d] for d in digits), held)
    elif kind < 0.92:
        words = captions.spoken_words(r, easy)
        sample = captions.sample_of("audio", *captions.about_words(r, words), "spoken words", " ".join(words))
        x = speech(r, ", ".join(words) if r.random() < 0.7 else " ".join(words), held)
    else:
        x, rising = tone(r)
        sample = captions.sample_of("audio", *captions.about_tone(r, rising), "tones", "rising" if rising else "falling")
    sample["audio"] = spoil(r, x)
    return captions.thoughtful(r, sample)


# ---- files -----------------------------------------------------------------------------------------------------------

def write_wav(path, samples):
    """8 bits a sample: half the size, and quieter than the noise that is in it anyway."""
    data = np.clip((samples.astype(np.int32) + 128) // 256 + 128, 0, 255).astype(np.uint8).tobytes()
    head = b"RIFF" + struct.pack("<I", 36 + len(data) + len(data) % 2) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, RATE, 1, 8)
    with open(path, "wb") as f:
        f.write(head + b"data" + struct.pack("<I", len(data)) + data + bytes(len(data) % 2))


def read_wav(path):
    """f64 samples of an 8- or 16-bit mono file at 16 kHz with nothing but sound in it, such as write_wav's."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:4] != b"RIFF" or data[8:16] != b"WAVEfmt " or struct.unpack("<HHI", data[20:28]) != (1, 1, RATE) or data[36:40] != b"data":
        raise ValueError(f"{path} is no plain mono WAV file at 16 kHz")
    bits, size = struct.unpack("<H", data[34:36])[0], struct.unpack("<I", data[40:44])[0]
    if bits == 8:
        return (np.frombuffer(data, np.uint8, size, 44).astype(np.float64) - 128) / 128
    return np.frombuffer(data, "<i2", size // 2, 44).astype(np.float64) / 32768
