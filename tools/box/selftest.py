"""PyTorch's formulas (model.py, draft.py) against numpy's (reference.py), on a tiny model with random weights: packed rows, both towers, the drafter, the
rounding to Q8_0. Run by `train.py --smoke`, and alone:

    python3 tools/box/selftest.py
"""

import os
import random
import tempfile

import numpy as np
import torch

import batches
import captions
import chat
import draft
import export
import gguf
import model
import pictures
import reference
import sizes
import sounds
import tasks
from tokenizer import Tokenizer

S = sizes.TINY


def expect(what, error, most):
    if not error < most:
        raise SystemExit(f"selftest: {what}: relative error {error:.1e}, at most {most:.0e} was expected")


def media_samples(r):
    """A picture and a sound that need neither fonts nor espeak-ng."""
    what = captions.scene(r)
    picture = captions.sample_of("image", *captions.about_scene(r, what), "shapes") | {"image": pictures.draw_scene(r, what)}
    tone, rising = sounds.tone(r)
    return picture, captions.sample_of("audio", *captions.about_tone(r, rising), "tones") | {"audio": sounds.spoil(r, tone)}


def check_packed_rows(tok, torch_weights, weights):
    """Every conversation of a packed batch has the logits that it would have alone."""
    r, shape = random.Random(3), batches.Shape(3, 384, 1, 1)
    arrays = batches.empty(shape)
    packer, (picture, sound) = batches.Packer(tok, shape, arrays), media_samples(r)
    packer.add_picture(picture)
    packer.add_sound(sound)
    for _ in range(10):
        packer.add_text(tasks.sample(r))
    with torch.no_grad():
        hidden, _ = model.hidden_states(torch_weights, S, {n: torch.from_numpy(a) for n, a in arrays.items()})
        logits = model.logits(torch_weights, S.text, hidden).numpy()
    text, towers = reference.Text(weights), reference.Towers(weights)
    patches, places, _ = pictures.preprocess(picture["image"])
    soft = {tok.special["<|image|>"]: towers.see(patches, places), tok.special["<|audio|>"]: towers.hear(*sounds.features(sound["audio"] / 32768))}
    for row in range(shape.rows):
        for part in range(arrays["segments"][row].max() + 1):
            here = arrays["segments"][row] == part
            ids = arrays["tokens"][row][here]
            kind = next((k for k in soft if k in ids), None)
            expect(f"conversation {part} of row {row}", reference.relative_error(logits[row][here], text.logits(ids, soft.get(kind), kind)), 1e-4)


def check_greedy(tok, torch_weights, weights):
    text, prompts = reference.Text(weights), [tok.encode(chat.prompt(tasks.sample(random.Random(i)))) for i in range(3)]
    found = model.greedy(torch_weights, S, [(p, [0] * len(p)) for p in prompts], None, tok.stops, 5)
    if found != [text.greedy(p, tok.stops, 5) for p in prompts]:
        raise SystemExit("selftest: greedy answers differ")


def check_draft(tok, torch_weights, weights, folder):
    drafter = export.random_weights(sizes.draft_parameters(S), 1)
    export.write_draft(os.path.join(folder, "draft.gguf"), drafter, S, tok, "F32")
    ids = tok.encode(chat.render(tasks.sample(random.Random(2))))
    n, target = len(ids) - 8, reference.Text(weights)
    hidden, _ = target.append(ids[:n])
    wanted = reference.Drafter(reference.Weights(os.path.join(folder, "draft.gguf"))).draft(target, hidden[-1], ids[n])
    arrays = batches.empty(batches.Shape(1, len(ids), 0, 0))
    arrays["tokens"][0] = ids[:n + 1] + [t for t, _ in wanted[:3]] + [0] * (len(ids) - n - 4)  # its own guesses follow
    arrays["positions"][0] = np.arange(len(ids))
    batch = {k: torch.from_numpy(a) for k, a in arrays.items()}
    with torch.no_grad():
        states, kv = model.hidden_states(torch_weights, S, batch)
        found = draft.guesses({k: torch.tensor(a) for k, a in drafter.items()}, S, torch_weights, batch, states, kv)
    for k, most in enumerate((1e-4, 1e-3, 1e-2)):  # guesses are fed with guesses, and random weights make small errors large
        expect(f"guess {k + 1}", reference.relative_error(found[k][0, n].numpy(), wanted[k][1]), most)


def run():
    tok = Tokenizer.load()
    values = export.random_weights(sizes.parameters(S))
    torch_weights = {n: torch.tensor(a) for n, a in values.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tiny.gguf")
        export.write_single(path, values, S, tok, "F32")
        weights = reference.Weights(path)
        check_packed_rows(tok, torch_weights, weights)
        check_greedy(tok, torch_weights, weights)
        check_draft(tok, torch_weights, weights, folder)
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    if not np.array_equal(gguf.dequantise_q8_0(gguf.quantise_q8_0(x)), model.Rounded.apply(torch.tensor(x)).numpy().ravel()):
        raise SystemExit("selftest: training does not round as the export does")
    if len(model.rounded_names(sizes.BOX)) < 150:
        raise SystemExit("selftest: too few matrices are rounded")
    print("selftest: PyTorch and numpy agree")


if __name__ == "__main__":
    run()
