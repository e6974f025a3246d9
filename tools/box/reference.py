"""The model in plain numpy, from an exported file: what tests compare with, and what scores pictures and sounds without PyTorch.

It follows the formulas of the architecture, one line each, and knows nothing of the training code.
"""

import math

import numpy as np

import gguf


def rms(x, weight=None):
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
    return y if weight is None else y * weight


def gelu(x):
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608028654) * x * (1 + np.float32(0.044715) * x * x)))


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Weights:
    """The tensors of one or two files by name, and the keys behind the architecture's name."""

    def __init__(self, *paths):
        files = [gguf.File(p) for p in paths]
        self.tensors = {n: f.tensor(n) for f in files for n in f.infos}
        self.metadata = {}
        for f in reversed(files):
            self.metadata |= f.metadata
        self.architecture = self.metadata["general.architecture"]

    def key(self, name, otherwise=None):
        return self.metadata.get(f"{self.architecture}.{name}", otherwise)

    def tower_key(self, name):
        found = self.metadata.get("gemma4." + name, self.metadata.get("clip." + name))
        if found is None:
            raise KeyError(name)
        return found

    def __getitem__(self, name):
        return self.tensors[name + ".weight"]

    def get(self, name):
        return self.tensors.get(name)


# ---- text ------------------------------------------------------------------------------------------------------------


class Stack:
    """Decoder layers: of the model, and (without keys and values of their own) of the drafter."""

    def __init__(self, weights):
        w = self.w = weights
        self.layers, self.width = w.key("block_count"), w.key("embedding_length")
        self.sliding, self.window = w.key("attention.sliding_window_pattern"), w.key("attention.sliding_window")
        self.heads, self.kv_heads = w.key("attention.head_count"), w.key("attention.head_count_kv")
        self.head_sizes = [w.key("attention.key_length_swa") if s else w.key("attention.key_length") for s in self.sliding]
        self.owners = self.layers - w.key("attention.shared_kv_layers", 0)
        self.per_layer = w.key("embedding_length_per_layer_input", 0)
        self.cap = w.key("final_logit_softcapping", 0)
        self.table = w["token_embd"]

    def donor(self, i):
        return i if i < self.owners else max(j for j in range(self.owners) if self.sliding[j] == self.sliding[i])

    def rope(self, x, positions, i):
        n = x.shape[-1]
        j = np.arange(n // 2)
        if self.sliding[i]:
            frequency = self.w.key("rope.freq_base_swa") ** (-2.0 * j / n)
        else:
            frequency = np.where(j < n // 8, self.w.key("rope.freq_base") ** (-2.0 * j / n), 0)
        angle = np.asarray(positions)[:, None] * frequency
        c, s = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
        a, b = x[..., :n // 2], x[..., n // 2:]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def attend(self, q, k, v, visible):
        groups = q.shape[1] // k.shape[1]
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, groups, 1))
        return np.einsum("hqk,khd->qhd", softmax(np.where(visible, scores, -np.inf)), np.repeat(v, groups, 1))

    def run(self, x, positions, visible, kv, per_layer=None, borrowed=None):
        """x [n, width]; visible(sliding) → [n, keys]; `kv`: per layer (k, v) of what came before, replaced by what is there now."""
        n = len(x)
        for i in range(self.layers):
            w, size = (lambda name: self.w[f"blk.{i}.{name}"]), self.head_sizes[i]
            a = rms(x, w("attn_norm"))
            q = self.rope(rms((a @ w("attn_q").T).reshape(n, -1, size), w("attn_q_norm")), positions, i)
            if borrowed:
                k, v = borrowed(self.sliding[i])
            elif i < self.owners:
                k = self.rope(rms((a @ w("attn_k").T).reshape(n, -1, size), w("attn_k_norm")), positions, i)
                v = rms((a @ w("attn_v").T).reshape(n, -1, size))
                if kv[i]:
                    k, v = np.concatenate([kv[i][0], k]), np.concatenate([kv[i][1], v])
                kv[i] = (k, v)
            else:
                k, v = kv[self.donor(i)]
            o = self.attend(q, k, v, visible(self.sliding[i])).reshape(n, -1)
            x = x + rms(o @ w("attn_output").T, w("post_attention_norm"))
            m = rms(x, w("ffn_norm"))
            x = x + rms((gelu(m @ w("ffn_gate").T) * (m @ w("ffn_up").T)) @ w("ffn_down").T, w("post_ffw_norm"))
            if per_layer is not None:
                x = x + rms((gelu(x @ w("inp_gate").T) * per_layer[:, i]) @ w("proj").T, w("post_norm"))
            x = x * w("layer_output_scale")
        return x

    def head(self, x):
        h = rms(x, self.w["output_norm"])
        logits = h @ self.table.T
        return h, (np.float32(self.cap) * np.tanh(logits / np.float32(self.cap)) if self.cap else logits)


class Text(Stack):
    """A conversation: `append` takes tokens (and soft tokens for those with id `soft_id`) and returns their hidden states and logits."""

    def __init__(self, weights):
        super().__init__(weights)
        self.reset()

    def reset(self):
        self.kv, self.length = [None] * self.layers, 0

    def embed(self, ids):
        return self.table[ids] * np.float32(math.sqrt(self.width))

    def per_layer_inputs(self, ids, x):
        shape = (len(ids), self.layers, self.per_layer)
        token = self.w["per_layer_token_embd"][ids].reshape(shape) * np.float32(math.sqrt(self.per_layer))
        context = (x @ self.w["per_layer_model_proj"].T * np.float32(self.width**-0.5)).reshape(shape)
        return (rms(context, self.w["per_layer_proj_norm"]) + token) * np.float32(2**-0.5)

    def append(self, ids, soft=None, soft_id=None):
        ids = np.asarray(ids)
        x, plain = self.embed(ids), ids.copy()
        if soft is not None:
            x[ids == soft_id] = soft
            plain[ids == soft_id] = 0
        positions = self.length + np.arange(len(ids))
        keys = np.arange(self.length + len(ids))
        causal = keys <= positions[:, None]
        visible = lambda sliding: causal & (positions[:, None] - keys < self.window) if sliding else causal
        x = self.run(x, positions, visible, self.kv, self.per_layer_inputs(plain, x) if self.per_layer else None)
        self.length += len(ids)
        return self.head(x)

    def logits(self, ids, soft=None, soft_id=None):
        self.reset()
        return self.append(ids, soft, soft_id)[1]

    def greedy(self, ids, stops, most=200, soft=None, soft_id=None):
        """The answer's tokens, with the stop token if one came."""
        self.reset()
        out = [int(self.append(ids, soft, soft_id)[1][-1].argmax())]
        while out[-1] not in stops and len(out) < most:
            out.append(int(self.append([out[-1]])[1][-1].argmax()))
        return out


class Drafter(Stack):
    def draft(self, target, hidden, token, count=4):
        """`target`: a Text that holds all tokens before `token`; `hidden`: its normed state of the last of them."""
        n, out = target.length, []
        last = {s: max(i for i in range(target.owners) if target.sliding[i] == s) for s in (True, False)}
        keys = np.arange(n)
        visible = lambda sliding: (n - 1 - keys <= self.window)[None] if sliding else np.ones((1, n), bool)
        for _ in range(count):
            x = np.concatenate([target.embed([token])[0], hidden])[None] @ self.w["nextn.pre_projection"].T
            o, logits = self.head(self.run(x, [n], visible, [None] * self.layers, borrowed=lambda s: target.kv[last[s]]))
            token, hidden = int(logits[0].argmax()), (o @ self.w["nextn.post_projection"].T)[0]
            out.append((token, logits[0]))
        return out


# ---- towers ----------------------------------------------------------------------------------------------------------


class Towers:
    def __init__(self, weights):
        self.w = weights
        self.ollama = weights.get("mm.a.fc.weight") is not None

    def linear(self, name, x):
        """Clipped, where the file has bounds."""
        bound = lambda which: self.w.get(f"{name}.{which}")
        if bound("input_min") is not None:
            x = np.clip(x, bound("input_min"), bound("input_max"))
        y = x @ self.w[name].T
        return y if bound("output_min") is None else np.clip(y, bound("output_min"), bound("output_max"))

    def see(self, patches, places):
        """Soft tokens of uint8 patches [n, 768] at places (x, y)."""
        w, heads, layers = self.w, self.w.tower_key("vision.attention.head_count"), self.w.tower_key("vision.block_count")
        embed = w["v.patch_embd"].transpose(0, 2, 3, 1)
        n, width = len(patches), len(embed)
        size, quarter = width // heads, width // heads // 4
        table = w["v.position_embd"]
        pixels = patches.astype(np.float32) * np.float32(1 / 255)
        x = (2 * pixels - 1) @ embed.reshape(width, -1).T + table[0][places[:, 0]] + table[1][places[:, 1]]
        frequency = 100.0 ** (-2.0 * np.arange(quarter) / (size // 2))

        def rope(t):
            out = []
            for axis in range(2):
                angle = places[:, axis, None] * frequency
                c, s = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
                a, b = t[..., 2 * axis * quarter:(2 * axis + 1) * quarter], t[..., (2 * axis + 1) * quarter:(2 * axis + 2) * quarter]
                out += [a * c - b * s, b * c + a * s]
            return np.concatenate(out, -1)

        for i in range(layers):
            at = f"v.blk.{i}."
            a = rms(x, w[at + "ln1"])
            q, k, v = (self.linear(at + name, a).reshape(n, heads, size) for name in ("attn_q", "attn_k", "attn_v"))
            q, k = rope(rms(q, w[at + "attn_q_norm"])), rope(rms(k, w[at + "attn_k_norm"]))
            o = np.einsum("hqk,khd->qhd", softmax(np.einsum("qhd,khd->hqk", q, k)), rms(v)).reshape(n, width)
            x = x + rms(self.linear(at + "attn_out", o), w[at + "attn_post_norm"])
            m = rms(x, w[at + "ln2"])
            x = x + rms(self.linear(at + "ffn_down", gelu(self.linear(at + "ffn_gate", m)) * self.linear(at + "ffn_up", m)),
                        w[at + "ffn_post_norm"])
        columns, rows = places.max(0) + 1
        pooled = x.reshape(rows // 3, 3, columns // 3, 3, width).mean((1, 3)).reshape(-1, width) * np.float32(math.sqrt(width))
        return rms(pooled) @ w["mm.input_projection"].T

    def hear(self, mel, valid):
        """Soft tokens of a log-mel spectrogram [frames, 128]."""
        w, heads = self.w, self.w.tower_key("audio.attention.head_count")
        name = lambda llama, ollama: ollama if self.ollama else llama
        x, mask = mel.astype(np.float32)[None], np.asarray(valid, bool)
        for k in range(2):
            x = np.where(mask[None, :, None], x, 0)
            kernel = w[f"a.conv1d.{k}"]
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
            times, bands = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
            y = sum(np.tensordot(kernel[:, :, a, b], padded[:, a:a + 2 * times - 1:2, b:b + 2 * bands - 1:2], (1, 0)) for a in range(3)
                    for b in range(3))
            y = y - y.mean(0)
            x = np.maximum(0, y / np.sqrt((y * y).mean(0) + np.float32(1e-6)) * w[f"a.conv1d.{k}.norm"][:, None, None])
            mask = mask[::2]
        times = x.shape[1]
        x = x.transpose(1, 2, 0).reshape(times, -1) @ w[name("a.input_projection", "a.pre_encode.out")].T
        width = x.shape[-1]
        size = width // heads
        scale = np.exp(-np.arange(width // 2) * math.log(10_000) / (width // 2 - 1))
        offsets = np.arange(13)[:, None] * scale
        waves = np.concatenate([np.sin(offsets), np.cos(offsets)], -1).astype(np.float32)
        distance = np.arange(times)[:, None] - np.arange(times)
        visible, near = (distance >= 0) & (distance <= 11) & mask, np.clip(distance, 0, 12)
        for i in range(w.tower_key("audio.block_count")):
            at = f"a.blk.{i}."

            def feed_forward(x, which):
                inner = silu(self.linear(f"{at}ffn_up{which}", rms(x, w[f"{at}ffn_norm{which}"])))
                return x + np.float32(0.5) * rms(self.linear(f"{at}ffn_down{which}", inner), w[f"{at}ffn_post_norm{which}"])

            x = feed_forward(x, "")
            a = rms(x, w[at + name("attn_pre_norm", "ln1")])
            q, k, v = (self.linear(at + part, a).reshape(times, heads, size) for part in ("attn_q", "attn_k", "attn_v"))
            q = q * np.float32(size**-0.5 / math.log(2)) * w[at + "per_dim_scale"]
            k = k * np.float32(math.log(1 + math.e) / math.log(2))
            relative = (waves @ w[at + name("attn_k_rel", "linear_pos")].T).reshape(13, heads, size)
            by_distance = np.einsum("qhd,rhd->hqr", q, relative)
            scores = np.einsum("qhd,khd->hqk", q, k) + np.take_along_axis(by_distance, np.broadcast_to(near, (heads, times, times)), 2)
            scores = np.where(visible, 50 * np.tanh(scores / 50), np.float32(-1e9))
            o = np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(times, width)
            x = x + rms(self.linear(at + "attn_out", o), w[at + name("attn_post_norm", "ln2")])
            c = self.linear(at + "conv_pw1", rms(x, w[at + "conv_norm"]))
            c = np.pad(c[:, :width] / (1 + np.exp(-c[:, width:])), ((4, 0), (0, 0)))
            c = sum(c[tap:tap + times] * w[at + "conv_dw"][:, tap] for tap in range(5))
            x = x + self.linear(at + "conv_pw2", silu(rms(c, w[at + "norm_conv"])))
            x = rms(feed_forward(x, "_1"), w[at + name("ln2", "layer_pre_norm")])
        out = name("a.pre_encode.out", "mm.a.fc")
        y = x @ w[out].T + w.get(out + ".bias")
        return (rms(y) @ w["mm.a.input_projection"].T)[mask]


def relative_error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
