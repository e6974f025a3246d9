"""Trains the model in the box, in chunks that can be taken up again.

    python3 tools/box/train.py --smoke                       builds everything, compares with transformers, takes a few steps: a minute
    python3 tools/box/train.py --out OUT --seconds 500 --steps 20000 [--resume FOLDER]
    python3 tools/box/train.py --out OUT --begin models/box.gguf --rate 1.2e-3 --seconds 500 --by-time   more of it, from an exported file
    python3 tools/box/train.py --out OUT --resume FOLDER --finish   exports, scores, writes transformers' logits as an expectation file

A chunk ends when its seconds or the steps are over and leaves checkpoint-N.npz files (below 15 MB each), scores.json and log.txt in OUT.
The schedule counts steps, so chunks add up to the same training; optimiser state is not kept: after a resume the rate rises again
over a hundred steps.
"""

import argparse
import json
import math
import os
import random
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers are as many as the cores

import numpy as np
import torch

import batches
import export
import gguf
import model
import optimiser
import pieces
import score
import selftest
import sizes as shapes
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
HELD_OUT = os.path.join(HERE, "..", "..", "tests", "box")
BOUNDS_AT, ROUNDING_AT = 0.80, 0.88  # shares of the steps: clipping of the towers' linears, rounding to Q8_0

# ---- checkpoints -----------------------------------------------------------------------------------------------------


def three_bytes(x):
    """f32 → its upper 24 bits, rounded: a checkpoint must be small enough to carry."""
    bits = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)
    upper = np.where(bits & 0x7F800000 == 0x7F800000, bits >> 8, (bits + np.uint32(0x80)) >> 8)  # an infinity stays one
    return np.stack([upper & 255, upper >> 8 & 255, upper >> 16], -1).astype(np.uint8)


def from_three_bytes(data, shape):
    parts = data.astype(np.uint32)
    return (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24).view(np.float32).reshape(shape)


class State:
    """Weights, their running average, and how far training is. A checkpoint holds the average: training goes on from there."""

    def __init__(self, sizes, seed, resume=None, begin=None):
        """On the CPU: `move` comes after the workers were started. `begin`: an exported file, whose weights are where training starts from; the bounds
        of its towers are found anew."""
        self.sizes, self.seed, self.device = sizes, seed, torch.device("cpu")
        self.weights = model.initial_weights(sizes, seed)
        self.average, self.step, self.bounded, self.young = None, 0, False, not begin
        if resume:
            self.load(resume)
        elif begin:
            found = export.import_single(begin, sizes)
            self.weights |= {n: torch.tensor(a) for n, a in found.items() if n.rsplit(".", 1)[-1] not in shapes.BOUNDS}

    def move(self, device):
        self.device = device
        self.weights = {n: w.to(device) for n, w in self.weights.items()}
        self.average = self.average and {n: a.to(device) for n, a in self.average.items()}
        return self

    def save(self, folder):
        arrays = {n: three_bytes(w.cpu().numpy()) for n, w in self.final().items()}
        arrays["state"] = np.array([self.step, self.seed, self.bounded])
        pieces.save(folder, "checkpoint", arrays)

    def load(self, folder):
        arrays, expected = pieces.load(folder, "checkpoint"), shapes.parameters(self.sizes)
        self.step, self.seed, self.bounded = (int(x) for x in arrays.pop("state"))
        if set(arrays) != set(expected):
            raise SystemExit(f"the checkpoint in {folder} is of another model")
        self.weights = {n: torch.tensor(from_three_bytes(a, expected[n])) for n, a in arrays.items()}
        self.average = {n: w.clone() for n, w in self.weights.items() if model.trained(n)}

    def final(self):
        """The averaged weights with the buffers."""
        return {n: self.average.get(n, w).detach() for n, w in self.weights.items()}


# ---- one step --------------------------------------------------------------------------------------------------------


class Trainer:
    def __init__(self, state, shape, steps, rate, graph, compile_=True, deadline=None):
        """`deadline`: when training ends, whatever its steps: the schedule ends then, too."""
        self.state, self.steps, self.graphed = state, steps, graph and state.device.type == "cuda"
        self.deadline, self.compiled_at = deadline, None
        self.names = [n for n in state.weights if model.trained(n)]
        self.optimiser = optimiser.Optimiser(state.weights, self.names, rate)
        self.optimiser.age += state.step  # a checkpoint's weights are an average already
        state.average = self.optimiser.average
        self.dtype = torch.bfloat16 if state.device.type == "cuda" else torch.float32
        self.rounded, self.graph, self.started = [], None, state.step
        self.batch = {n: torch.zeros(sides, dtype=getattr(torch, np.dtype(kind).name if kind is not np.bool_ else "bool"), device=state.device)
                      for n, (sides, kind) in batches.fields(shape).items()}
        compiled = (lambda f: torch.compile(f, dynamic=False)) if compile_ and self.graphed else (lambda f: f)
        self.layer, self.towers = compiled(model.decoder_layer), (compiled(model.vision), compiled(model.audio))
        self.hint = torch.zeros((), device=state.device)
        self.result = torch.zeros(4, device=state.device)  # sums: loss, right, predicted, gradient norm

    def compute(self):
        w = model.working(self.state.weights, self.dtype, self.rounded)
        loss, whole, right = model.loss(w, self.state.sizes, self.batch, self.hint, self.layer, self.towers)
        gradients = torch.autograd.grad(whole, [self.state.weights[n] for n in self.names], allow_unused=True)
        found = {n: g if g is not None else torch.zeros_like(self.state.weights[n]) for n, g in zip(self.names, gradients)}
        norm = self.optimiser.step(found)
        with torch.no_grad():
            self.result += torch.stack([loss.detach(), right.float(), (self.batch["weights"] > 0).sum().float(), norm])

    def record(self):
        """The whole step as one CUDA graph. A few steps beside the graph come first, as PyTorch asks for; they train too."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.compute()

    def progress(self):
        """How much of the training is over, from 0 to 1."""
        share = self.state.step / self.steps
        if self.deadline and self.compiled_at:
            share = max(share, (time.time() - self.compiled_at) / max(1e-3, self.deadline - self.compiled_at))
        return min(1.0, share)

    def rate(self):
        """Rises over 200 steps (100 after a resume), then falls by a cosine to a twentieth."""
        progress = self.progress()
        fresh = (self.state.step - self.started + 1) / (100 if self.started else 200)
        return min(1.0, fresh) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))

    def load(self, arrays):
        for n, a in arrays.items():
            self.batch[n].copy_(torch.as_tensor(a))

    def step(self, arrays):
        self.load(arrays)
        self.optimiser.lr.fill_(self.rate())
        self.hint.fill_(max(0.0, 0.2 * (1 - 2 * self.state.step / self.steps)) if self.state.young else 0.0)  # gone after half of the steps
        if self.graphed and self.graph is None:
            try:
                self.record()
            except RuntimeError as e:
                print(f"no CUDA graph ({e}): going on without one", flush=True)
                self.graphed, self.graph = False, None
                self.compute()
        elif self.graphed:
            self.graph.replay()
        else:
            self.compute()
        self.compiled_at = self.compiled_at or time.time()
        self.state.step += 1

    def begin_rounding(self):
        self.rounded, self.graph = model.rounded_names(self.state.sizes), None

    @torch.no_grad()
    def find_bounds(self, feed, count=24):
        """Bounds of the clipped linears: what the averaged weights were seen to need, and a little more."""
        watch, w = model.Watch(), model.working(self.state.final(), self.dtype)
        for _ in range(count):
            self.load(feed.take())
            model.soft_tokens(w, self.state.sizes, self.batch, watch)
        for (at, side), (low, high) in watch.range.items():
            self.state.weights[f"{at}.{side}_min"].fill_(float(low) * 1.02 if low < 0 else float(low) * 0.98)
            self.state.weights[f"{at}.{side}_max"].fill_(float(high) * 1.02 if high > 0 else float(high) * 0.98)
        self.state.bounded = True


class Echo:
    """Batches that were seen, kept where they are fast to read: making one takes longer than learning from it, so each is learned from again."""

    def __init__(self, room, seed):
        self.room, self.kept, self.random = room, [], random.Random(f"echo {seed}")

    def keep(self, batch):
        batch = {n: a.clone() for n, a in batch.items()}
        if len(self.kept) < self.room:
            self.kept.append(batch)
        else:
            self.kept[self.random.randrange(self.room)] = batch

    def draw(self):
        return self.random.choice(self.kept)


# ---- scoring ---------------------------------------------------------------------------------------------------------


def groups(lengths, rows, most=400_000):
    """Places of texts of about one length, so many at a time that none is padded far and all fit: at most `rows`, and `most` characters."""
    out = [[]]
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if len(out[-1]) == rows or (len(out[-1]) + 1) * lengths[i] > most:
            out.append([])
        out[-1].append(i)
    return [g for g in out if g]


@torch.no_grad()
def score_sets(weights, sizes, tok, paths, most=None, rows=192, dtype=None):
    """Greedy answers to the held-out sets, many at a time."""
    device = weights["model.language_model.norm.weight"].device
    w = model.working(weights, dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32))
    samples, results, wrong = [s for p in paths for s in score.spread(score.read_set(p), most)], {}, []
    for places in groups([len(batches.chat.prompt(s)) for s in samples], rows):
        part, prompts = [samples[i] for i in places], []
        shape = batches.Shape(1, 8, sum("image" in s for s in part), sum("audio" in s for s in part))
        arrays, images, sounds = batches.empty(shape), 0, 0
        for s in part:
            count = first = 0
            if "image" in s:
                from PIL import Image

                found, count = batches.picture_arrays(Image.open(s["image"]))
                for name, a in zip(("patches", "places", "cells", "seen"), found):
                    arrays[name][images] = a
                first, images = images * batches.PICTURE_TOKENS, images + 1
            elif "audio" in s:
                found, count = batches.sound_arrays(batches.sounds.read_wav(s["audio"]) * 32768)
                arrays["mel"][sounds], arrays["heard"][sounds] = found
                first, sounds = shape.images * batches.PICTURE_TOKENS + sounds * batches.SOUND_TOKENS, sounds + 1
            ids = batches.prompt_tokens(tok, s, count)
            soft = np.isin(ids, [tok.special["<|image|>"], tok.special["<|audio|>"]])
            prompts.append((ids, np.where(soft, first + np.cumsum(soft), 0)))
        media = {n: torch.from_numpy(arrays[n]).to(device) for n in ("patches", "places", "cells", "seen", "mel", "heard")}
        answers = model.greedy(w, sizes, prompts, model.soft_tokens(w, sizes, media), tok.stops)
        for i, s, ids in zip(places, part, answers):
            output = score.parse_output(tok.decode(ids), s)
            right = score.passes(s["check"], output)
            results[i] = (s["task"], right, output["ended"])
            if not right:
                wrong.append(f"{s['task']}: {s['messages'][-1]['content']} → {tok.decode(ids)!r}")
    return score.table([results[i] for i in range(len(samples))]), wrong


def score_file(given, sizes, device, tok):
    """What score.py does with numpy, in f32 on the GPU: seconds instead of minutes."""
    tensor_float_32(False)
    weights = {n: torch.tensor(a, device=device) for n, a in export.import_single(given.score, sizes).items()}
    for path in given.sets:
        rows, wrong = score_sets(weights, sizes, tok, [path], dtype=torch.float32)
        print(path, *rows, *wrong, sep="\n")


def held_out_sets():
    return [os.path.join(HELD_OUT, n) for n in ("text.jsonl", "pictures.jsonl", "sounds.jsonl")]


# ---- the witness -----------------------------------------------------------------------------------------------------


def transformers_model(weights, sizes, tok, device):
    """transformers' own model with these weights, in f32. Names and shapes must agree exactly."""
    from transformers import Gemma4AudioConfig, Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4VisionConfig

    text, vision, audio, whole = shapes.transformers_config(sizes, tok.special)
    config = Gemma4Config(text_config=Gemma4TextConfig(**text), vision_config=Gemma4VisionConfig(**vision),
                          audio_config=Gemma4AudioConfig(**audio), **whole)
    witness = Gemma4ForConditionalGeneration(config).float().eval()
    theirs = {n: tuple(v.shape) for n, v in witness.state_dict().items() if n != "lm_head.weight"}
    ours = {n: tuple(s) for n, s in shapes.parameters(sizes).items()}
    unused = [f"model.language_model.layers.{i}.self_attn.{n}.weight" for i in range(sizes.text.owners, sizes.text.layers)
              for n in ("k_proj", "v_proj", "k_norm")]
    theirs = {n: s for n, s in theirs.items() if n not in unused}  # some versions give sharing layers keys and values that nobody reads
    if theirs != ours:
        print("only in transformers:", sorted(theirs.items() - ours.items())[:20])
        print("only here:", sorted(ours.items() - theirs.items())[:20])
        raise SystemExit("transformers has other parameters: sizes.py must be brought in line")
    with torch.no_grad():
        state = witness.state_dict()
        for n, w in weights.items():
            state[n].copy_(w)
        witness.tie_weights()
    return witness.to(device)


@torch.no_grad()
def witness_logits(witness, tok, sample, device):
    """transformers' logits of a prompt [length, vocabulary], and its ids."""
    media = score.media_arrays(sample)
    ids = batches.prompt_tokens(tok, sample, media[3] if media else 0)
    inputs = {"input_ids": torch.tensor([ids], device=device)}
    if media and media[0] == "image":
        inputs["pixel_values"] = torch.tensor(media[1], device=device)[None].float() * (1 / 255)
        inputs["image_position_ids"] = torch.tensor(media[2], device=device)[None]
    elif media:
        inputs["input_features"] = torch.tensor(media[1], device=device)[None]
        inputs["input_features_mask"] = torch.tensor(media[2], device=device)[None]
    return witness(**inputs).logits[0].float(), ids


@torch.no_grad()
def our_logits(weights, sizes, tok, sample, device):
    media = score.media_arrays(sample)
    ids = batches.prompt_tokens(tok, sample, media[3] if media else 0)
    arrays = batches.empty(batches.Shape(1, len(ids), int(bool(media) and media[0] == "image"), int(bool(media) and media[0] == "audio")))
    arrays["tokens"][0], arrays["positions"][0] = ids, np.arange(len(ids))
    soft = np.isin(ids, [tok.special["<|image|>"], tok.special["<|audio|>"]])
    arrays["soft"][0] = np.where(soft, np.cumsum(soft), 0)
    if media and media[0] == "image":
        from PIL import Image

        found, _ = batches.picture_arrays(Image.open(sample["image"]))
        for name, a in zip(("patches", "places", "cells", "seen"), found):
            arrays[name][0] = a
    elif media:
        n = min(len(media[1]), batches.FRAMES)
        arrays["mel"][0, :n], arrays["heard"][0, :n] = media[1][:n], media[2][:n]
    batch = {n: torch.from_numpy(a).to(device) for n, a in arrays.items()}
    return model.logits(weights, sizes.text, model.hidden_states(weights, sizes, batch)[0])[0]


def tensor_float_32(allowed):
    """Faster products of f32 with 10 bits of mantissa: good enough to train with, not to compare with."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def compare_with_transformers(weights, sizes, tok, device):
    witness, worst = transformers_model(weights, sizes, tok, device), 0.0
    for path in held_out_sets():
        sample = score.read_set(path)[0]
        theirs, _ = witness_logits(witness, tok, sample, device)
        ours = our_logits(weights, sizes, tok, sample, device)
        error = float((ours - theirs).norm() / theirs.norm())
        worst = max(worst, error)
        print(f"logits of {sample['task']}: relative error against transformers {error:.2e}", flush=True)
    return witness, worst


def write_expectation(path, witness, tok, device, count=4, rows=6):
    """transformers' logits of the last tokens of held-out prompts of text, as `gemmule check` reads them."""
    metadata, tensors = [("general.architecture", gguf.STRING, "expect")], []
    short = [s for s in score.read_set(held_out_sets()[0]) if len(s["messages"]) < 5]
    for i, sample in enumerate(score.spread(short, count)):
        found, ids = witness_logits(witness, tok, sample, device)
        metadata.append((f"prompt.{i}", gguf.STRING, batches.chat.prompt(sample).removeprefix("<bos>")))
        tensors += [(f"ids.{i}", np.array(ids, np.int32), "I32"), (f"logits.{i}", found[-rows:].cpu().numpy(), "F32")]
    gguf.write(path, metadata, tensors)


# ---- commands --------------------------------------------------------------------------------------------------------


def new_feed(tok, shape, state, workers, steps):
    easy = lambda batch: max(0.0, 0.6 * (1 - 8 * batch / steps)) if state.young else 0.0  # the first eighth begins with single shapes, digits and words
    return batches.Feed(tok, shape, state.seed, first=state.step, workers=workers, easy=easy)


def train(given, sizes, shape, device, tok):
    began = time.time()
    state = State(sizes, given.seed, given.resume, given.begin)
    print(f"beginning at step {state.step}" + (f" with the weights of {given.begin}" if not state.young else ""), flush=True)
    feed = new_feed(tok, shape, state, given.workers, given.steps // given.echo)
    trainer = Trainer(state.move(device), shape, given.steps, given.rate, not given.no_graph, not given.no_compile,
                      began + given.seconds if given.by_time else None)
    echo, repeats = Echo(1000, state.seed + state.step), 0
    log, shown, waited = [], time.time(), 0.0
    since = state.step
    while state.step < given.steps and time.time() - began < given.seconds:
        progress = trainer.progress()
        if progress >= BOUNDS_AT and not state.bounded:
            trainer.find_bounds(feed)
        if progress >= ROUNDING_AT and not trainer.rounded:
            trainer.begin_rounding()
        if repeats:
            trainer.step(echo.draw())
            repeats -= 1
        else:
            asked = time.time()
            arrays = feed.take()
            waited += time.time() - asked
            trainer.step(arrays)
            if given.echo > 1:
                echo.keep(trainer.batch)
                repeats = given.echo - 1
        if time.time() - shown > given.report:
            loss, right, predicted, norm = (trainer.result / max(1, state.step - since)).tolist()
            trainer.result.zero_()
            seconds = time.time() - shown
            log.append({"step": state.step, "loss": loss, "right": right / max(1, predicted), "norm": norm, "rate": trainer.rate(),
                        "steps per second": (state.step - since) / seconds, "waiting for data": waited / seconds})
            print(json.dumps(log[-1]), flush=True)
            if not math.isfinite(loss):
                raise SystemExit("the loss is not finite")
            shown, since, waited = time.time(), state.step, 0.0
    feed.close()
    state.save(given.out)
    rows, wrong = ([], []) if given.most == 0 else score_sets(state.final(), sizes, tok, held_out_sets(), given.most)
    score.show(rows)
    with open(os.path.join(given.out, "scores.json"), "w", encoding="utf-8") as f:
        json.dump({"step": state.step, "scores": rows, "wrong": wrong, "log": log}, f, indent=1)
    print(f"step {state.step} of {given.steps}", flush=True)


def finish(given, sizes, device, tok):
    """The averaged weights, rounded to f16 as the f16 export holds them; transformers' logits of exactly these; scores of the Q8_0 file."""
    state = State(sizes, given.seed, given.resume).move(device)
    weights = {n: (w.half().float() if w.ndim >= 2 else w.float()) for n, w in state.final().items()}
    arrays = {n: w.cpu().numpy() for n, w in weights.items()}
    pieces.save(given.out, "weights", {n: a.astype(np.float16) if a.ndim >= 2 else a for n, a in arrays.items()})
    path = os.path.join(given.out, "box.gguf")
    print("box.gguf", export.write_single(path, arrays, sizes, tok, "Q8_0"), "bytes")
    back = {n: torch.tensor(a, device=device) for n, a in export.import_single(path, sizes).items()}
    rows, wrong = score_sets(back, sizes, tok, held_out_sets(), given.most, dtype=torch.float32)
    score.show(rows)
    result = {"step": state.step, "scores": rows, "wrong": wrong}
    if not given.no_transformers:
        tensor_float_32(False)
        witness, result["error against transformers"] = compare_with_transformers(weights, sizes, tok, device)
        write_expectation(os.path.join(given.out, "box.expect.gguf"), witness, tok, device)
    with open(os.path.join(given.out, "final.json"), "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)


def smoke(given, sizes, shape, device, tok):
    """Everything once, at the real size, with random weights."""
    began = time.time()
    stamp = lambda what: print(f"[{time.time() - began:5.1f} s] {what}", flush=True)
    for name, n in shapes.report(sizes).items():
        print(f"{name:>15} {n:>10,}")
    selftest.run()
    stamp("PyTorch agrees with numpy")
    state = State(sizes, given.seed, begin=given.begin)
    feed = new_feed(tok, shape, state, given.workers, given.steps)
    arbitrary = {n: torch.tensor(w, device=device) for n, w in export.random_weights(shapes.parameters(sizes)).items()}
    if given.no_transformers:
        stamp("transformers was left out")
    else:
        tensor_float_32(False)
        if not compare_with_transformers(arbitrary, sizes, tok, device)[1] < 1e-4:
            raise SystemExit("the formulas of model.py disagree with transformers")
        tensor_float_32(True)
        stamp("the formulas agree with transformers")
    trainer = Trainer(state.move(device), shape, given.steps, given.rate, not given.no_graph, not given.no_compile)
    feed.take()
    stamp("the first batch is there")
    for phase in ("plain", "rounded"):
        if phase == "rounded":
            trainer.find_bounds(feed, 2)
            trainer.begin_rounding()
        trainer.step(feed.take())
        trainer.result.zero_()
        start, count = time.time(), given.smoke_steps
        for _ in range(count):
            trainer.step(feed.take())
        loss = float(trainer.result[0]) / count
        speed, graph = count / (time.time() - start), "yes" if trainer.graph else "no"
        stamp(f"{phase}: {count} steps, {speed:.1f} a second with data, mean loss {loss:.3f}, graph {graph}")
        if not math.isfinite(loss):
            raise SystemExit("the loss is not finite")
        if device.type == "cuda" and trainer.graph:
            torch.cuda.synchronize()
            start = time.time()
            for _ in range(count):
                trainer.graph.replay()
            torch.cuda.synchronize()
            speed, memory = count / (time.time() - start), torch.cuda.max_memory_allocated() / 2**30
            stamp(f"{phase}: {speed:.1f} steps a second without waiting for data, {memory:.1f} GiB")
    feed.close()
    state.save(given.out)
    again = State(sizes, 0, given.out).move(device)
    worst = max(float((again.final()[n] - w).abs().max()) for n, w in state.final().items() if model.trained(n))
    files = [os.path.getsize(os.path.join(given.out, n)) for n in os.listdir(given.out) if n.startswith("checkpoint")]
    stamp(f"checkpoint: {sum(files) / 2**20:.1f} MiB in {len(files)} files, back to {worst:.1e}")
    arrays = {n: w.cpu().numpy() for n, w in state.final().items()}
    path = os.path.join(given.out, "smoke.gguf")
    size = export.write_single(path, arrays, sizes, tok, "Q8_0")
    back = {n: torch.tensor(a, device=device) for n, a in export.import_single(path, sizes).items()}
    stamp(f"exported {size} bytes, read back")
    rows, _ = score_sets(back, sizes, tok, held_out_sets(), given.most or 12)
    stamp(f"scored {rows[-1][2]} held-out samples")
    os.remove(path)
    print("smoke: all good")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="build/box", help="folder for what is written")
    parser.add_argument("--resume", help="folder with a checkpoint")
    parser.add_argument("--begin", help="an exported file (Ollama's flavour) with the weights to start from")
    parser.add_argument("--by-time", action="store_true", help="end the schedule with --seconds, if that comes before --steps")
    parser.add_argument("--seconds", type=float, default=500, help="of training in this chunk")
    parser.add_argument("--steps", type=int, default=20_000, help="of the whole training")
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes that make data")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--sounds", type=int, default=40)
    parser.add_argument("--echo", type=int, default=2, help="how often each batch is learned from")
    parser.add_argument("--most", type=int, help="score at most this many samples of each held-out set; 0: do not score")
    parser.add_argument("--report", type=float, default=10, help="seconds between lines of the log")
    parser.add_argument("--tiny", action="store_true", help="a model for tests")
    parser.add_argument("--no-graph", action="store_true", help="no CUDA graphs")
    parser.add_argument("--no-compile", action="store_true", help="layers as they stand: three times slower, but at once")
    parser.add_argument("--no-transformers", action="store_true", help="smoke and finish without the witness")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--smoke-steps", type=int, default=20)
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--score", help="an exported file to score on --sets, and nothing else")
    parser.add_argument("--sets", nargs="+", default=held_out_sets())
    given = parser.parse_args()
    os.makedirs(given.out, exist_ok=True)
    sizes, tok = shapes.TINY if given.tiny else shapes.BOX, Tokenizer.load()
    shape = batches.Shape(given.rows, given.length, given.images, given.sounds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tensor_float_32(True)
    if given.smoke:
        smoke(given, sizes, shape, device, tok)
    elif given.finish:
        finish(given, sizes, device, tok)
    elif given.score:
        score_file(given, sizes, device, tok)
    else:
        train(given, sizes, shape, device, tok)


if __name__ == "__main__":
    main()
