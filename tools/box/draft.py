"""Trains the drafter against the finished, quantised model.

    python3 tools/box/draft.py --target OUT/box.gguf --out OUT --seconds 120 --steps 3000

The drafter reads the target's keys and values and its last hidden state, and guesses the next tokens one by one. Training unrolls four guesses from every
position of a conversation at once: guess k sees what was known before the first one, and learns the target's distribution k - 1 tokens on.
Leaves draft.gguf and draft.json (how often each guess is the target's own choice).
"""

import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F

import batches
import export
import model
import optimiser
import sizes as shapes
from tokenizer import Tokenizer

GUESSES = 4
SHARE = (1.0, 0.8, 0.65, 0.5)  # how much each guess counts


def initial_weights(sizes, seed):
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.draft_parameters(sizes).items():
        if len(shape) == 1:
            out[name] = torch.full(shape, 0.5 if "post_" in name else shape[0] ** -0.25 if "q_norm" in name else 1.0)
        else:
            out[name] = torch.randn(shape, generator=g) / math.sqrt(shape[1])
    return out


def shifted(x, k):
    """Along the tokens: what stands k places on; zeros behind the end."""
    return torch.cat([x[:, k:], torch.zeros_like(x[:, :k])], 1) if k else x


def guess(w, sizes, embedded, hidden, positions, kv, visible):
    """One guess at every position: its state behind the last norm."""
    g, t = sizes.draft, sizes.text
    x = model.linear(torch.cat([embedded, hidden], -1), w["pre_projection.weight"]).float()
    for i, kind in enumerate(g.layer_types):
        size = t.head_dim if kind == "S" else t.global_head_dim
        x, _ = model.decoder_layer(model.inside(w, f"layers.{i}."), x, size, *model.angles(t, positions, kind == "S"), kv[kind], visible[kind])
    return model.rms(x, w["norm.weight"])


def guesses(w, sizes, target, batch, hidden, kv):
    """Logits of all four guesses from every position. hidden: the target's states; kv: its keys and values."""
    t, tokens, positions = sizes.text, batch["tokens"], batch["positions"]
    distance = positions[:, :, None] - positions[:, None, :]
    full = (batch["segments"][:, :, None] == batch["segments"][:, None, :]) & (distance >= 1)  # the token itself has not been run yet
    visible = {"F": full[:, None], "S": (full & (distance - 1 <= t.sliding_window))[:, None]}
    last = {kind: kv[max(i for i in range(t.owners) if t.layer_types[i] == kind)] for kind in "SF"}
    table = target["model.language_model.embed_tokens.weight"]
    state = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
    out = []
    for k in range(GUESSES):
        embedded = F.embedding(shifted(tokens, k), table).float() * math.sqrt(t.hidden_size)
        o = guess(w, sizes, embedded, state, positions, last, visible)
        out.append(model.linear(o, w["embed_tokens.weight"]).float())
        state = model.linear(o, w["post_projection.weight"]).float()
    return out


def loss(w, sizes, target, batch):
    """Mean cross-entropy with the target's distribution where it is to answer; and how often guess k and all before it are its choice."""
    with torch.no_grad():
        hidden, kv = model.hidden_states(target, sizes, batch)
        wanted = model.logits(target, sizes.text, hidden)
    total, agreed, counts = 0.0, torch.ones_like(batch["weights"], dtype=torch.bool), []
    start = batch["weights"] > 0
    for k, logits in enumerate(guesses(w, sizes, target, batch, hidden, kv)):
        teacher, here = shifted(wanted, k), start & (shifted(batch["weights"], k) > 0) & (shifted(batch["segments"], k) == batch["segments"])
        each = -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        total = total + SHARE[k] * (each * here).sum() / here.sum().clamp(min=1)
        agreed = agreed & (logits.argmax(-1) == teacher.argmax(-1))
        counts += [(agreed & here).sum(), here.sum()]
    return total / sum(SHARE), torch.stack(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", default="build/box")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--rows", type=int, default=18)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    sizes, tok = shapes.TINY if given.tiny else shapes.BOX, Tokenizer.load()
    os.makedirs(given.out, exist_ok=True)
    shape = batches.Shape(given.rows, given.length, 0, 0)
    feed = batches.Feed(tok, shape, given.seed, workers=given.workers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = model.working({n: torch.tensor(a, device=device) for n, a in export.import_single(given.target, sizes).items()}, dtype)
    weights = {n: w.to(device) for n, w in initial_weights(sizes, given.seed).items()}
    names = [n for n in weights if model.trained(n)]
    steps = optimiser.Optimiser(weights, names, given.rate)
    began = shown = time.time()
    step, seen = 0, torch.zeros(2 * GUESSES, dtype=torch.long, device=device)
    while step < given.steps and time.time() - began < given.seconds:
        batch = {n: torch.from_numpy(a).to(device) for n, a in feed.take().items()}
        progress = max(step / given.steps, (time.time() - began) / given.seconds)  # whatever ends first, the rate has fallen by then
        steps.lr.fill_(min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))))
        value, counts = loss(model.working(weights, dtype), sizes, target, batch)
        steps.step(dict(zip(names, torch.autograd.grad(value, [weights[n] for n in names]))))
        seen += counts
        step += 1
        if time.time() - shown > 5 or step == given.steps:
            shares = [f"{100 * a / max(1, b):.1f} %" for a, b in zip(seen[::2].tolist(), seen[1::2].tolist())]
            print(f"step {step}: loss {float(value):.3f}, guesses accepted {', '.join(shares)}", flush=True)
            shown = time.time()
            if step < given.steps:
                seen.zero_()
    feed.close()
    final = {n: steps.average.get(n, w).detach().cpu().numpy() for n, w in weights.items()}
    size = export.write_draft(os.path.join(given.out, "draft.gguf"), final, sizes, tok, "Q8_0")
    shares = [a / max(1, b) for a, b in zip(seen[::2].tolist(), seen[1::2].tolist())]
    with open(os.path.join(given.out, "draft.json"), "w", encoding="utf-8") as f:
        json.dump({"steps": step, "accepted": shares, "bytes": size}, f)
    print(f"draft.gguf {size} bytes")


if __name__ == "__main__":
    main()
