"""Samples to batches: tokens with their targets, packed into rows of one length, with pictures and sounds beside them.

Every batch has the same shape. Worker processes make them beside training, in memory that they share with the trainer, and are asked in turn:
so a batch is a function of the seed and its number. Speech is the exception: espeak-ng carries something over from word to word, so it is
the same only for the same number of workers and the same first batch.
"""

import mmap
import multiprocessing
import random
from dataclasses import dataclass

import numpy as np

import chat
import pictures
import sounds
import talks
import tasks

PATCHES, PICTURE_TOKENS = 630, 70
FRAMES, SOUND_TOKENS = 400, 100
MEDIA_WEIGHT = 4
MARKS = 24  # tokens of a hint, at most
TALKS = 0.5  # the share of long conversations in the tokens that pictures and sounds leave


@dataclass
class Shape:
    rows: int = 16
    length: int = 2048
    images: int = 28
    sounds: int = 32


def fields(shape):
    """name → (sides, type) of a batch's arrays."""
    grid = (shape.rows, shape.length)
    return {
        "tokens": (grid, np.int64), "positions": (grid, np.int64), "segments": (grid, np.int64), "soft": (grid, np.int64),
        "targets": (grid, np.int64), "weights": (grid, np.float32),
        "patches": ((shape.images, PATCHES, 768), np.uint8), "places": ((shape.images, PATCHES, 2), np.int64),
        "cells": ((shape.images, PATCHES), np.int64), "seen": ((shape.images, PATCHES), np.bool_),
        "mel": ((shape.sounds, FRAMES, 128), np.float32), "heard": ((shape.sounds, FRAMES), np.bool_),
        "image_marks": ((shape.images, MARKS), np.int64), "sound_marks": ((shape.sounds, MARKS), np.int64),
    }


def empty(shape):
    return {name: np.zeros(sides, kind) for name, (sides, kind) in fields(shape).items()}


# ---- one sample ------------------------------------------------------------------------------------------------------


def picture_arrays(image):
    """patches, places, cells, seen, padded; and the number of soft tokens."""
    patches, places, count = pictures.preprocess(image)
    n = len(patches)
    columns = places[:, 0].max() + 1
    out_patches, out_places = np.zeros((PATCHES, 768), np.uint8), np.full((PATCHES, 2), -1, np.int64)
    cells, seen = np.full(PATCHES, PICTURE_TOKENS, np.int64), np.zeros(PATCHES, bool)
    out_patches[:n], out_places[:n], seen[:n] = patches, places, True
    cells[:n] = places[:, 0] // 3 + columns // 3 * (places[:, 1] // 3)
    return (out_patches, out_places, cells, seen), count


def sound_arrays(samples):
    mel, valid = sounds.features(np.asarray(samples, np.float64) / 32768)
    n = min(len(mel), FRAMES)
    out_mel, heard = np.zeros((FRAMES, 128), np.float32), np.zeros(FRAMES, bool)
    out_mel[:n], heard[:n] = mel[:n], valid[:n]
    return (out_mel, heard), sounds.soft_tokens(int(heard.sum()))


def prompt_tokens(tok, sample, count=0):
    """Ids of the prompt, with the one soft token repeated `count` times."""
    ids, out = tok.encode(chat.prompt(sample)), []
    soft = {tok.special["<|image|>"], tok.special["<|audio|>"]}
    for i in ids:
        out += [i] * (count if i in soft else 1)
    return out


def answers_in(tok, ids):
    """Where the model writes in a whole conversation: [(first, end)], each from behind <|turn>model, or behind a tool's response, to the token that
    ends the answer, which belongs to it. The first tokens of a response come from the program."""
    turn, end, respond, responded = (tok.special[s] for s in ("<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>"))
    model = tok.encode("model\n")
    found, first = [], None
    for i, token in enumerate(ids):
        if first is None and (token == responded or (i >= len(model) and ids[i - len(model)] == turn and ids[i - len(model) + 1:i + 1] == model)):
            first = i + 1
        elif first is not None and token in (end, respond):
            found.append((first, i + 1))
            first = None
    return found


# ---- packing ---------------------------------------------------------------------------------------------------------


class Packer:
    """Fills a batch's arrays in place."""

    def __init__(self, tok, shape, arrays):
        self.tok, self.shape, self.to = tok, shape, arrays
        for a in arrays.values():
            a[...] = 0
        arrays["cells"][...] = PICTURE_TOKENS
        arrays["places"][...] = -1
        arrays["segments"][...] = -1
        self.used, self.parts = [0] * shape.rows, [0] * shape.rows
        self.images = self.sounds = 0
        self.soft_ids = {tok.special["<|image|>"], tok.special["<|audio|>"]}

    def add(self, ids, answers, first_soft=None):
        """Into the first row with room; False: there is none. `answers`: [(first, end)], what is to be learned. `first_soft`: where its soft tokens lie
        among all."""
        n = len(ids)
        row = next((i for i, used in enumerate(self.used) if used + n <= self.shape.length), None)
        if row is None:
            return False
        at = slice(self.used[row], self.used[row] + n)
        ids = np.array(ids)
        to = self.to
        to["tokens"][row, at] = ids
        to["positions"][row, at] = np.arange(n)
        to["segments"][row, at] = self.parts[row]
        # The token before a token of the answer predicts it. A long answer counts for more, but not by its length; pictures and sounds are
        # few in a batch, and have towers to train.
        to["targets"][row, at][:-1] = ids[1:]
        for first, end in answers:
            to["weights"][row, at][first - 1:end - 1] = (end - first) ** -0.5 * (1 if first_soft is None else MEDIA_WEIGHT)
        if first_soft is not None:
            soft = np.isin(ids, list(self.soft_ids))
            to["soft"][row, at][soft] = 1 + first_soft + np.arange(soft.sum())
        self.used[row] += n
        self.parts[row] += 1
        return True

    def add_one(self, sample, count=0, first_soft=None):
        """A sample of which the last answer is learned."""
        prompt, answer = prompt_tokens(self.tok, sample, count), self.tok.encode(chat.answer(sample))
        return self.add(prompt + answer, [(len(prompt), len(prompt) + len(answer))], first_soft)

    def add_text(self, sample):
        if not sample.get("all"):
            return self.add_one(sample)
        ids = self.tok.encode(chat.render(sample))
        return self.add(ids, answers_in(self.tok, ids))

    def marks(self, sample):
        ids = self.tok.encode(" " + sample["marks"])[:MARKS] if sample["marks"] else []
        ids = [i for i in ids if i != self.tok.ids["▁"]]
        return ids + [0] * (MARKS - len(ids))

    def add_picture(self, sample):
        arrays, count = picture_arrays(sample["image"])
        if not self.add_one(sample, count, self.images * PICTURE_TOKENS):
            return False
        for name, a in zip(("patches", "places", "cells", "seen"), arrays):
            self.to[name][self.images] = a
        self.to["image_marks"][self.images] = self.marks(sample)
        self.images += 1
        return True

    def add_sound(self, sample):
        arrays, count = sound_arrays(sample["audio"])
        first = self.shape.images * PICTURE_TOKENS + self.sounds * SOUND_TOKENS
        if not self.add_one(sample, count, first):
            return False
        self.to["mel"][self.sounds], self.to["heard"][self.sounds] = arrays
        self.to["sound_marks"][self.sounds] = self.marks(sample)
        self.sounds += 1
        return True

    def fill(self, r, easy):
        for _ in range(self.shape.images):
            self.add_picture(pictures.picture_sample(r, easy=easy))
        for _ in range(self.shape.sounds):
            self.add_sound(sounds.sound_sample(r, easy=easy))
        room = self.shape.rows * self.shape.length
        most, misses = sum(self.used) + TALKS * (room - sum(self.used)), 0
        while sum(self.used) < most and misses < 4:
            misses += not self.add_text(talks.talk(r, most=talks.MOST_CHARACTERS * self.shape.length // 2048))
        misses = 0
        while misses < 8:
            misses += not self.add_text(tasks.sample(r))


# ---- processes -------------------------------------------------------------------------------------------------------


class Feed:
    """`take()` gives the next batch as arrays that are valid until the next call. Start it before CUDA is touched: workers are forked."""

    def __init__(self, tok, shape, seed, first=0, workers=8, depth=2, easy=lambda batch: 0.0):
        self.shape, self.workers, self.first, self.next = shape, workers, first, first
        context = multiprocessing.get_context("fork")
        layout, size = {}, 0
        for name, (sides, kind) in fields(shape).items():
            layout[name] = (size, sides, kind)
            size += -(-int(np.prod(sides)) * np.dtype(kind).itemsize // 64) * 64
        self.slots, self.pipes, self.processes, self.held = [], [], [], None
        for k in range(workers):
            memory = [mmap.mmap(-1, max(size, 4096)) for _ in range(depth)]
            slots = [{n: np.frombuffer(m, kind, int(np.prod(sides)), at).reshape(sides) for n, (at, sides, kind) in layout.items()}
                     for m in memory]
            ours, theirs = context.Pipe()
            process = context.Process(target=self.work, args=(theirs, slots, tok, shape, seed, first + k, workers, easy), daemon=True)
            process.start()
            self.slots.append(slots)
            self.pipes.append(ours)
            self.processes.append(process)
            for i in range(depth):
                ours.send(i)

    @staticmethod
    def work(pipe, slots, tok, shape, seed, batch, step, easy):
        while True:
            slot = pipe.recv()
            if slot is None:
                return
            Packer(tok, shape, slots[slot]).fill(random.Random(f"batch {seed} {batch}"), easy(batch))
            pipe.send(slot)
            batch += step

    def take(self):
        if self.held:
            self.pipes[self.held[0]].send(self.held[1])
        worker = (self.next - self.first) % self.workers
        slot = self.pipes[worker].recv()
        self.held, self.next = (worker, slot), self.next + 1
        return self.slots[worker][slot]

    def close(self):
        for pipe, process in zip(self.pipes, self.processes):
            process.terminate()
            process.join()
            pipe.close()
