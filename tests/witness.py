"""The text model in double precision, from its formulas alone: makes expectation files for `gemmule check`.

    /usr/bin/python3 tests/witness.py MODEL EXPECT [--tokens N] [--rows N]

Chooses N tokens, computes the model on them with numpy and writes them (ids.0) and the logits of the last rows (logits.0; default: all).
It reads the types that `gemmule synth` writes, one tensor at a time, so a model needs little memory. It is slow: a layer with 500 MB of
weights takes about a minute for 1,000 tokens. Debian's package libopenblas0-pthread makes it several times faster.
"""

import argparse
import math
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools/box"))
sys.dont_write_bytecode = True

import gguf

# ---- blocks: [blocks, bytes of a block] → [blocks, values of a block] ------------------------------------------------------------


def half(blocks, at):
    return np.ascontiguousarray(blocks[:, at:at + 2]).view("<f2").astype(np.float32)


def nibbles(data):
    return np.concatenate([data & 15, data >> 4], -1).astype(np.float32)


def q4_0(b):
    return half(b, 0) * (nibbles(b[:, 2:]) - 8)


def q5_0(b):
    high = np.unpackbits(np.ascontiguousarray(b[:, 2:6]), axis=1, bitorder="little")
    return half(b, 0) * (nibbles(b[:, 6:]) + 16 * high.astype(np.float32) - 16)


def q8_0(b):
    return half(b, 0) * np.ascontiguousarray(b[:, 2:]).view(np.int8)


def q4_k(b):
    s = b[:, 4:16]
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1).astype(np.float32)
    minimum = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1).astype(np.float32)
    q = nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return ((half(b, 0) * scale)[:, :, None] * q - (half(b, 2) * minimum)[:, :, None]).reshape(-1, 256)


def q6_k(b):
    low = nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    q = (low + 16 * high.astype(np.float32) - 32).reshape(-1, 16, 16)
    scale = half(b, 208) * np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return (scale[:, :, None] * q).reshape(-1, 256)


# Number in the file: values and bytes of a block, and what makes values of blocks.
TYPES = {
    0: (1, 4, lambda b: b.view("<f4")),
    1: (1, 2, lambda b: b.view("<f2").astype(np.float32)),
    2: (32, 18, q4_0),
    6: (32, 22, q5_0),
    8: (32, 34, q8_0),
    12: (256, 144, q4_k),
    14: (256, 210, q6_k),
    30: (1, 2, lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32)),
}
gguf.NAMES.update({number: number for number in TYPES})


class Weights(gguf.File):
    """The file's tensors, each read when it is asked for."""

    def rows(self, name, first=0, count=None):
        """Some rows of a tensor, in double precision."""
        sides, number, offset = self.infos[name + ".weight" if name + ".weight" in self.infos else name]
        block, size, values = TYPES[number]
        row, total = sides[0] // block * size, int(np.prod(sides[1:]))
        count = total - first if count is None else count
        at = self.start + offset + first * row
        data = np.ascontiguousarray(self.bytes[at:at + count * row]).reshape(-1, size)
        return values(data).reshape(count, sides[0]).astype(np.float64)

    def vector(self, name):
        return self.rows(name).reshape(-1)

    def has(self, name):
        return name + ".weight" in self.infos

    def outputs(self, name):
        return self.infos[name + ".weight"][0][1]

    def product(self, x, name, first=0, count=None):
        """x · Wᵀ with all rows of W, or with some."""
        count = self.outputs(name) if count is None else count
        step = max(1, (64 << 20) // x.shape[1])
        parts = [x @ self.rows(name, first + i, min(step, count - i)).T for i in range(0, count, step)]
        return np.concatenate(parts, -1)


# ---- the model -------------------------------------------------------------------------------------------------------------------


def rms(x, weight=1.0):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, path):
        self.w = w = Weights(path)
        key = lambda name, otherwise=None: w.metadata.get("gemma4." + name, otherwise)
        self.layers, self.width, self.heads = key("block_count"), key("embedding_length"), key("attention.head_count")
        self.sliding, self.window = key("attention.sliding_window_pattern"), key("attention.sliding_window")
        self.head_sizes = [key("attention.key_length_swa" if s else "attention.key_length") for s in self.sliding]
        self.bases = [key("rope.freq_base_swa" if s else "rope.freq_base") for s in self.sliding]
        self.owners = self.layers - key("attention.shared_kv_layers", 0)
        self.per_layer, self.cap = key("embedding_length_per_layer_input", 0), key("final_logit_softcapping")
        self.used, self.expert_width = key("expert_used_count", 0), key("expert_feed_forward_length", 0)
        self.vocabulary = w.outputs("token_embd")

    def embed(self, name, ids):
        return np.stack([self.w.rows(name, int(i), 1)[0] for i in ids])

    def per_layer_inputs(self, ids, x):
        shape = (len(ids), self.layers, self.per_layer)
        token = self.embed("per_layer_token_embd", ids).reshape(shape) * math.sqrt(self.per_layer)
        context = (self.w.product(x, "per_layer_model_proj") / math.sqrt(self.width)).reshape(shape)
        return (rms(context, self.w.vector("per_layer_proj_norm")) + token) / math.sqrt(2)

    def rope(self, x, i):
        half_size = x.shape[-1] // 2
        frequency = self.bases[i] ** (-np.arange(half_size) / half_size)
        if not self.sliding[i]:
            frequency = frequency / self.w.vector("rope_freqs")
        angle = np.arange(len(x))[:, None, None] * frequency
        a, b = x[..., :half_size], x[..., half_size:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def attention(self, i, a, kv):
        w, name, n, size = self.w, f"blk.{i}.", len(a), self.head_sizes[i]
        split = lambda y: y.reshape(n, -1, size)
        q = self.rope(rms(split(w.product(a, name + "attn_q")), w.vector(name + "attn_q_norm")), i)
        if i < self.owners:
            k = split(w.product(a, name + "attn_k"))
            v = split(w.product(a, name + "attn_v")) if w.has(name + "attn_v") else k
            kv[self.sliding[i]] = self.rope(rms(k, w.vector(name + "attn_k_norm")), i), rms(v)
        k, v = kv[self.sliding[i]]
        behind = np.arange(n)[:, None] - np.arange(n)
        visible = (behind >= 0) & (behind < (self.window if self.sliding[i] else n))
        group, out = self.heads // k.shape[1], np.empty_like(q)
        for h in range(self.heads):
            scores = np.where(visible, q[:, h] @ k[:, h // group].T, -np.inf)
            out[:, h] = softmax(scores) @ v[:, h // group]
        return w.product(out.reshape(n, -1), name + "attn_output")

    def experts(self, i, r):
        w, name, ff = self.w, f"blk.{i}.", self.expert_width
        z = rms(r, w.vector(name + "ffn_gate_inp.scale")) / math.sqrt(self.width)
        probability = softmax(w.product(z, name + "ffn_gate_inp"))
        best = np.argsort(-probability, -1, kind="stable")[:, :self.used]
        share = np.zeros_like(probability)
        np.put_along_axis(share, best, np.take_along_axis(probability, best, -1), -1)
        share = share / share.sum(-1, keepdims=True) * w.vector(name + "ffn_down_exps.scale")
        u, out = rms(r, w.vector(name + "pre_ffw_norm_2")), np.zeros_like(r)
        for expert in range(share.shape[1]):
            rows = np.flatnonzero(share[:, expert])
            if len(rows):
                both = w.product(u[rows], name + "ffn_gate_up_exps", expert * 2 * ff, 2 * ff)
                down = w.product(gelu(both[:, :ff]) * both[:, ff:], name + "ffn_down_exps", expert * self.width, self.width)
                out[rows] += share[rows, expert, None] * down
        return rms(out, w.vector(name + "post_ffw_norm_2"))

    def layer(self, i, x, kv, per_layer):
        w, name = self.w, f"blk.{i}."
        norm = lambda y, which: rms(y, w.vector(name + which))
        x = x + norm(self.attention(i, norm(x, "attn_norm"), kv), "post_attention_norm")
        n = norm(x, "ffn_norm")
        m = w.product(gelu(w.product(n, name + "ffn_gate")) * w.product(n, name + "ffn_up"), name + "ffn_down")
        if self.used:
            m = norm(m, "post_ffw_norm_1") + self.experts(i, x)
        x = x + norm(m, "post_ffw_norm")
        if per_layer is not None:
            x = x + norm(w.product(gelu(w.product(x, name + "inp_gate")) * per_layer[:, i], name + "proj"), "post_norm")
        return x * w.vector(name + "layer_output_scale")

    def logits(self, ids, rows):
        x, kv = self.embed("token_embd", ids) * math.sqrt(self.width), {}
        per_layer = self.per_layer_inputs(ids, x) if self.per_layer else None
        for i in range(self.layers):
            x = self.layer(i, x, kv, per_layer)
            print(f"layer {i + 1} of {self.layers}: rms {np.sqrt(np.mean(x * x)):.3f}", file=sys.stderr)
        return self.cap * np.tanh(self.w.product(rms(x[-rows:], self.w.vector("output_norm")), "token_embd") / self.cap)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("expect")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    model = Model(given.model)
    ids = np.random.RandomState(0).randint(5, model.vocabulary, given.tokens)
    logits = model.logits(ids, given.rows or given.tokens)
    gguf.write(given.expect, [("general.architecture", gguf.STRING, "expect")], [("ids.0", ids, "I32"), ("logits.0", logits, "F32")])


if __name__ == "__main__":
    main()
