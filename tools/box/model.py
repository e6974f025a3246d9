"""The model in PyTorch: functions on a dictionary of weights with transformers' names.

Training packs many conversations into rows of one fixed shape, so that a step is one CUDA graph; transformers' own class pads and
launches thousands of small kernels. So the formulas stand here once more, and `train.py --smoke` compares them with
transformers' Gemma4ForConditionalGeneration on the same weights before anything else is done.

A batch is a dictionary of tensors (batches.py): tokens, positions, segments [rows, length]; soft [rows, length]: 0, or 1 + the place of the soft token
among those of all pictures and sounds; patches [images, 630, 768] uint8 with places, cells and seen; mel [sounds, 400, 128] with heard.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

import export
import sizes as shapes


def rms(x, weight=None):
    y = x.float()
    if hasattr(F, "rms_norm"):  # one kernel instead of five, where PyTorch has it
        return F.rms_norm(y, y.shape[-1:], weight, 1e-6)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y if weight is None else y * weight


def linear(x, weight):
    return F.linear(x.to(weight.dtype), weight)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def rotate(x, cos, sin):
    """x [rows, heads, length, size]; pairs are (j, j + size/2)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v, visible, dtype=torch.float32):
    """q [rows, heads, length, size], k and v with one head for all; f32. visible [rows, 1, length or 1, keys]. In bf16 by one kernel."""
    rows, heads, length, size = q.shape
    if dtype is torch.bfloat16:
        k, v = (t.to(dtype).expand(-1, heads, -1, -1) for t in (k, v))
        visible = visible.expand(-1, -1, length, -1)
        return F.scaled_dot_product_attention(q.to(dtype), k, v, attn_mask=visible, scale=1.0)
    if k.shape[1] == 1:
        scores = (q.reshape(rows, heads * length, size) @ k[:, 0].transpose(1, 2)).view(rows, heads, length, -1)
    else:
        scores = q @ k.transpose(2, 3)
    p = scores.masked_fill(~visible, -1e30).softmax(-1)
    return (p.view(rows, heads * length, -1) @ v[:, 0]).view(rows, heads, length, size) if v.shape[1] == 1 else p @ v


def blocked(q, k, v, visible, dtype):
    """The same for a sliding layer, in blocks as long as its window: each sees itself and the one before. visible [rows · blocks, 1, block, 2 · block]."""
    rows, heads, length, size = q.shape
    block = visible.shape[-2]
    q = q.reshape(rows, heads, -1, block, size).transpose(1, 2).reshape(-1, heads, block, size)

    def pairs(x):
        x = x.reshape(rows, 1, -1, block, size)
        before = torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], 2)
        return torch.cat([before, x], 3).reshape(-1, 1, 2 * block, size)
    out = attention(q, pairs(k), pairs(v), visible, dtype)
    return out.reshape(rows, -1, heads, block, size).transpose(1, 2).reshape(rows, heads, length, size)


def heads_of(x, size):
    rows, length, _ = x.shape
    return x.float().view(rows, length, -1, size).transpose(1, 2)


def joined(x):
    rows, heads, length, size = x.shape
    return x.transpose(1, 2).reshape(rows, length, heads * size)


# ---- text ------------------------------------------------------------------------------------------------------------


def angles(t, positions, sliding):
    size = t.head_dim if sliding else t.global_head_dim
    j = torch.arange(size // 2, device=positions.device, dtype=torch.float32)
    frequency = (t.rope_theta if sliding else t.global_rope_theta) ** (-2.0 * j / size)
    if not sliding:
        frequency = torch.where(j < size // 8, frequency, torch.zeros_like(frequency))
    angle = positions.float()[:, None, :, None] * frequency
    return angle.cos(), angle.sin()


def masks(t, positions, segments):
    """Who sees whom: the tokens before it, of its own conversation; on sliding layers the last `window` of them."""
    distance = positions[:, :, None] - positions[:, None, :]
    full = (segments[:, :, None] == segments[:, None, :]) & (distance >= 0)
    length = positions.shape[1]
    if length % t.sliding_window or length <= 2 * t.sliding_window:
        return {"F": full[:, None], "S": (full & (distance < t.sliding_window))[:, None]}
    return {"F": full[:, None], "S": block_mask(t.sliding_window, positions, segments)}


def block_mask(window, positions, segments):
    """The same for sliding layers, in blocks (see `blocked`): most of a long row lies outside of the window."""
    rows = len(positions)
    p, s = positions.reshape(rows, -1, window), segments.reshape(rows, -1, window)
    with_before = lambda x, none: torch.cat([torch.cat([torch.full_like(x[:, :1], none), x[:, :-1]], 1), x], 2)[:, :, None]
    distance = p[..., None] - with_before(p, 0)
    visible = (s[..., None] == with_before(s, -2)) & (distance >= 0) & (distance < window)
    return visible.reshape(-1, 1, window, 2 * window)


def inside(w, at):
    """The weights below a name, by the rest of their names."""
    return {n.removeprefix(at): value for n, value in w.items() if n.startswith(at)}


def decoder_layer(w, x, size, cos, sin, kv, visible, per_layer=None):
    """w: the weights of this layer. kv: (k, v) to use, or None: its own. Returns the new x and what was used."""
    a = rms(x, w["input_layernorm.weight"])
    q = rotate(rms(heads_of(linear(a, w["self_attn.q_proj.weight"]), size), w["self_attn.q_norm.weight"]), cos, sin)
    if kv is None:
        k = rotate(rms(heads_of(linear(a, w["self_attn.k_proj.weight"]), size), w["self_attn.k_norm.weight"]), cos, sin)
        kv = k, rms(heads_of(linear(a, w["self_attn.v_proj.weight"]), size))
    attend = attention if visible.shape[-1] == kv[0].shape[2] else blocked
    o = joined(attend(q, *kv, visible, w["self_attn.q_proj.weight"].dtype))
    x = x + rms(linear(o, w["self_attn.o_proj.weight"]), w["post_attention_layernorm.weight"])
    m = rms(x, w["pre_feedforward_layernorm.weight"])
    m = gelu(linear(m, w["mlp.gate_proj.weight"])) * linear(m, w["mlp.up_proj.weight"])
    x = x + rms(linear(m, w["mlp.down_proj.weight"]), w["post_feedforward_layernorm.weight"])
    if per_layer is not None:
        g = gelu(linear(x, w["per_layer_input_gate.weight"])) * per_layer
        x = x + rms(linear(g, w["per_layer_projection.weight"]), w["post_per_layer_input_norm.weight"])
    return x * w["layer_scalar"], kv


def text(w, t, tokens, positions, segments, soft_index=None, soft=None, layer=decoder_layer):
    """Hidden states behind the last norm [rows, length, width], and the keys and values of the owners."""
    base = "model.language_model."
    x, plain = F.embedding(tokens, w[base + "embed_tokens.weight"]).float() * math.sqrt(t.hidden_size), tokens
    if soft is not None:
        is_soft = soft_index > 0
        x = torch.where(is_soft[..., None], F.embedding((soft_index - 1).clamp(min=0), soft).float(), x)
        plain = torch.where(is_soft, torch.zeros_like(tokens), tokens)
    shape = (*tokens.shape, t.layers, t.hidden_size_per_layer_input)
    token = F.embedding(plain, w[base + "embed_tokens_per_layer.weight"]).float().view(shape) * math.sqrt(t.hidden_size_per_layer_input)
    context = (linear(x, w[base + "per_layer_model_projection.weight"]).float() * t.hidden_size**-0.5).view(shape)
    per_layer = (rms(context, w[base + "per_layer_projection_norm.weight"]) + token) * 2**-0.5

    visible, kv = masks(t, positions, segments), [None] * t.layers
    turn = {"S": angles(t, positions, True), "F": angles(t, positions, False)}
    for i, kind in enumerate(t.layer_types):
        given = None if i < t.owners else kv[t.donor(i)]
        x, kv[i] = layer(inside(w, f"{base}layers.{i}."), x, t.head(i), *turn[kind], given, visible[kind], per_layer[:, :, i])
    return rms(x, w[base + "norm.weight"]), kv


def logits(w, t, hidden):
    out = linear(hidden, w["model.language_model.embed_tokens.weight"]).float()
    return t.final_logit_softcapping * torch.tanh(out / t.final_logit_softcapping)


# ---- towers ----------------------------------------------------------------------------------------------------------


def clipped(w, at, x):
    x = torch.minimum(torch.maximum(x, w[at + ".input_min"].to(x.dtype)), w[at + ".input_max"].to(x.dtype))
    y = linear(x, w[at + ".linear.weight"])
    return torch.minimum(torch.maximum(y, w[at + ".output_min"].to(y.dtype)), w[at + ".output_max"].to(y.dtype))


class Watch:
    """Stands in for `clipped` while bounds are being found: remembers the range of every linear's input and output."""

    def __init__(self):
        self.range = {}

    def __call__(self, w, at, x):
        y = linear(x, w[at + ".linear.weight"])
        for side, value in (("input", x), ("output", y)):
            low, high = value.min().float(), value.max().float()
            if (at, side) in self.range:
                before = self.range[at, side]
                low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
            self.range[at, side] = (low, high)
        return y


def vision(w, v, patches, places, cells, seen, lin=clipped):
    """[images, soft tokens, width of the text]. cells: the soft token of each patch (one more for padding); seen: no padding."""
    base, images, count = "model.vision_tower.", *patches.shape[:2]
    pixels = patches.float() * (1 / 255)
    table = w[base + "patch_embedder.position_embedding_table"]
    at = places.clamp(min=0)
    x = linear(2 * pixels - 1, w[base + "patch_embedder.input_proj.weight"]).float()
    x = x + F.embedding(at[..., 0], table[0]).float() + F.embedding(at[..., 1], table[1]).float()
    quarter, size = v.head_dim // 4, v.head_dim
    j = torch.arange(quarter, device=x.device, dtype=torch.float32)
    frequency = v.rope_theta ** (-2.0 * j / (size // 2))
    turn = [((p := at[..., axis].float()[:, None, :, None] * frequency).cos(), p.sin()) for axis in range(2)]
    rope = lambda t: torch.cat([rotate(t[..., :size // 2], *turn[0]), rotate(t[..., size // 2:], *turn[1])], -1)
    visible = seen[:, None, None, :]
    for i in range(v.num_hidden_layers):
        here = f"{base}encoder.layers.{i}."
        a = rms(x, w[here + "input_layernorm.weight"])
        q, k, val = (heads_of(lin(w, f"{here}self_attn.{n}_proj", a), size) for n in "qkv")
        q, k = rope(rms(q, w[here + "self_attn.q_norm.weight"])), rope(rms(k, w[here + "self_attn.k_norm.weight"]))
        o = joined(attention(q, k, rms(val), visible, w[here + "self_attn.q_proj.linear.weight"].dtype))
        x = x + rms(lin(w, here + "self_attn.o_proj", o), w[here + "post_attention_layernorm.weight"])
        m = rms(x, w[here + "pre_feedforward_layernorm.weight"])
        m = gelu(lin(w, here + "mlp.gate_proj", m)) * lin(w, here + "mlp.up_proj", m)
        x = x + rms(lin(w, here + "mlp.down_proj", m), w[here + "post_feedforward_layernorm.weight"])
    pooled = torch.zeros(images, v.soft_tokens + 1, x.shape[-1], device=x.device)
    pooled = pooled.scatter_add(1, cells[..., None].expand(-1, -1, x.shape[-1]), x)[:, :-1]
    pooled = pooled * (math.sqrt(v.hidden_size) / v.pooling_kernel_size**2)
    return linear(rms(pooled), w["model.embed_vision.embedding_projection.weight"]).float()


def audio(w, a, mel, heard, lin=clipped):
    """[sounds, frames / 4, width of the text]; frames that were not heard give rows that nobody reads."""
    base = "model.audio_tower."
    conv, x, mask = base + "subsample_conv_projection.", mel.float()[:, None], heard
    for k in range(2):
        x = x * mask[:, None, :, None]
        kernel = w[f"{conv}layer{k}.conv.weight"]
        y = F.conv2d(x.to(kernel.dtype), kernel, stride=2, padding=1).float()
        y = F.layer_norm(y.permute(0, 2, 3, 1), y.shape[1:2], w[f"{conv}layer{k}.norm.weight"].float(), None, 1e-6).permute(0, 3, 1, 2)
        x, mask = F.relu(y), mask[:, ::2]
    sounds, _, times, _ = x.shape
    x = linear(x.permute(0, 2, 3, 1).reshape(sounds, times, -1), w[conv + "input_proj_linear.weight"]).float()
    width, size = a.hidden_size, a.head_dim
    steps = torch.arange(width // 2, device=x.device, dtype=torch.float32)
    slow = torch.exp(-steps * (math.log(10_000) / (width // 2 - 1)))
    offset = torch.arange(a.context_left, device=x.device, dtype=torch.float32)[:, None] * slow
    waves = torch.cat([offset.sin(), offset.cos()], -1)
    here_, there = torch.arange(times, device=x.device)[:, None], torch.arange(times, device=x.device)
    distance = here_ - there
    visible = ((distance >= 0) & (distance < a.context_left - 1))[None, None] & mask[:, None, None, :]
    near = distance.clamp(0, a.context_left - 1)

    for i in range(a.num_hidden_layers):
        at = f"{base}layers.{i}."

        def feed_forward(x, which):
            name = f"{at}feed_forward{which}."
            inner = F.silu(lin(w, name + "ffw_layer_1", rms(x, w[name + "pre_layer_norm.weight"])))
            return x + 0.5 * rms(lin(w, name + "ffw_layer_2", inner), w[name + "post_layer_norm.weight"])

        x = feed_forward(x, 1)
        n = rms(x, w[at + "norm_pre_attn.weight"])
        q, k, v = (heads_of(lin(w, f"{at}self_attn.{part}_proj", n), size) for part in "qkv")
        q = q * (size**-0.5 / math.log(2)) * F.softplus(w[at + "self_attn.per_dim_scale"].float())
        k = k * (math.log(1 + math.e) / math.log(2))
        relative = linear(waves, w[at + "self_attn.relative_k_proj.weight"]).float().view(-1, a.num_attention_heads, size).permute(1, 2, 0)
        by_distance = (q @ relative).gather(3, near.expand(sounds, a.num_attention_heads, times, times))
        scores = 50 * torch.tanh((q @ k.transpose(2, 3) + by_distance) / 50)
        o = joined(scores.masked_fill(~visible, -1e9).softmax(-1) @ v)
        x = x + rms(lin(w, at + "self_attn.post", o), w[at + "norm_post_attn.weight"])
        c = F.glu(lin(w, at + "lconv1d.linear_start", rms(x, w[at + "lconv1d.pre_layer_norm.weight"])).float(), -1)
        c = F.conv1d(F.pad(c.transpose(1, 2), (a.conv_kernel_size - 1, 0)), w[at + "lconv1d.depthwise_conv1d.weight"].float(),
                     groups=width).transpose(1, 2)
        x = x + lin(w, at + "lconv1d.linear_end", F.silu(rms(c, w[at + "lconv1d.conv_norm.weight"]))).float()
        x = rms(feed_forward(x, 2), w[at + "norm_out.weight"])
    y = linear(x, w[base + "output_proj.weight"]).float() + w[base + "output_proj.bias"].float()
    return linear(rms(y), w["model.embed_audio.embedding_projection.weight"]).float()


def soft_tokens(w, sizes, batch, lin=clipped, towers=(vision, audio)):
    """All soft tokens of a batch in one list: those of the pictures, then those of the sounds."""
    see, hear = towers
    parts = []
    if batch["patches"].shape[0]:
        parts.append(see(w, sizes.vision, batch["patches"], batch["places"], batch["cells"], batch["seen"], lin).flatten(0, 1))
    if batch["mel"].shape[0]:
        parts.append(hear(w, sizes.audio, batch["mel"], batch["heard"], lin).flatten(0, 1))
    return torch.cat(parts) if parts else None


def hidden_states(w, sizes, batch):
    return text(w, sizes.text, batch["tokens"], batch["positions"], batch["segments"], batch["soft"], soft_tokens(w, sizes, batch))


def hint_loss(w, soft, valid, marks):
    """How little the soft tokens [things, places, width] look like the words that they should be about: the softmax runs over all words at all places, and a
    word may come from any place. It brings young towers to where the language model understands them."""
    if not soft.shape[0]:
        return soft.sum()
    scores = linear(soft, w["model.language_model.embed_tokens.weight"]).float().masked_fill(~valid[..., None], -1e30)
    found = scores.gather(2, marks[:, None].expand(-1, scores.shape[1], -1)).logsumexp(1)
    each = (scores.flatten(1).logsumexp(1, keepdim=True) - found) * (marks > 0)
    return each.sum() / (marks > 0).sum().clamp(min=1)


def hints(w, sizes, batch, soft):
    """Of the pictures and of the sounds in a batch."""
    images, sounds = batch["patches"].shape[0], batch["mel"].shape[0]
    if not images + sounds:
        return 0.0
    places, width, times = sizes.vision.soft_tokens, soft.shape[-1], batch["heard"][:, ::4]
    seen, heard = soft[:images * places].view(images, places, width), soft[images * places:].view(sounds, times.shape[1], width)
    there = torch.arange(places, device=soft.device) < batch["seen"].sum(1, keepdim=True) // sizes.vision.pooling_kernel_size**2
    return hint_loss(w, seen, there, batch["image_marks"]) + hint_loss(w, heard, times, batch["sound_marks"])


def loss(w, sizes, batch, hint=0.0, layer=decoder_layer, towers=(vision, audio)):
    """Mean over the tokens to be predicted, by their weights, and `hint` times the hints; and how many were right. `layer` and `towers`: the same
    functions, compiled."""
    soft = soft_tokens(w, sizes, batch, towers=towers)
    hidden, _ = text(w, sizes.text, batch["tokens"], batch["positions"], batch["segments"], batch["soft"], soft, layer)
    out = logits(w, sizes.text, hidden).flatten(0, 1)
    target, weight = batch["targets"].flatten(), batch["weights"].flatten()
    each = F.cross_entropy(out, target, reduction="none")
    right = ((out.argmax(-1) == target) & (weight > 0)).sum()
    mean = (each * weight).sum() / weight.sum().clamp(min=1e-6)
    return mean, mean + hint * hints(w, sizes, batch, soft), right


# ---- weights ---------------------------------------------------------------------------------------------------------


def initial_weights(sizes, seed, device="cpu"):
    """f32. Matrices get the usual spread of 1/√inputs, what adds to the residual begins small (its norm), positions at zero."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.parameters(sizes).items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in shapes.BOUNDS:
            value = torch.tensor(-math.inf if leaf.endswith("min") else math.inf)
        elif leaf in ("per_dim_scale", "bias", "position_embedding_table"):
            value = torch.zeros(shape)
        elif "embed_tokens" in name:
            value = torch.randn(shape, generator=g) / math.sqrt(shape[1] if "per_layer" not in name else sizes.text.hidden_size_per_layer_input)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            value = torch.full(shape, shape[0] ** -0.25)  # scores are not divided by √size: they begin with a spread of 1 like this
        elif len(shape) < 2:
            after = any(part in name for part in ("post_attention", "post_feedforward", "post_per_layer", "post_layer_norm", "norm_post_attn"))
            value = torch.full(shape, 0.5 if after else 1.0)
        else:
            inputs = math.prod(shape[1:])
            value = torch.randn(shape, generator=g) / math.sqrt(inputs)
        out[name] = value.to(device)
    return out


def trained(name):
    """Bounds and layer scalars are buffers."""
    return name.rsplit(".", 1)[-1] not in (*shapes.BOUNDS, "layer_scalar")


class Rounded(torch.autograd.Function):
    """Q8_0's rounding, which the gradient does not see."""

    @staticmethod
    def forward(ctx, w):
        blocks = w.reshape(-1, 32)
        scale = (blocks.abs().amax(1, keepdim=True) / 127)
        q = torch.round(blocks / scale.clamp(min=1e-30)).clamp(-127, 127)
        return (q * scale.half().float()).view_as(w)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def working(weights, dtype, rounded=()):
    """The weights as a step multiplies with them: matrices in `dtype`, after Q8_0's rounding where it is to be trained for."""
    out = {}
    for name, value in weights.items():
        if value.ndim >= 2:
            value = (Rounded.apply(value) if name in rounded else value).to(dtype)
        out[name] = value
    return out


def rounded_names(sizes):
    """The matrices that a Q8_0 export rounds."""
    out = []
    for name, shape in shapes.parameters(sizes).items():
        values = export.tensor_values(name, np.zeros(shape, np.float32), sizes.vision)
        if values is not None and export.tensor_type(export.tensor_name(name, True), values, "Q8_0") == "Q8_0":
            out.append(name)
    return out


# ---- answering -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def greedy(w, sizes, prompts, soft, stops, most=160):
    """Answers to many prompts at once, each step over everything: no cache, but a few hundred short rows go through at once.

    prompts: [(ids, soft indices or zeros)]; returns the tokens of each answer, with the stop token if one came."""
    device = w["model.language_model.norm.weight"].device
    longest = max(len(ids) for ids, _ in prompts) + most
    tokens, index = torch.zeros(len(prompts), longest, dtype=torch.long), torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, (ids, places) in enumerate(prompts):
        tokens[row, :len(ids)] = torch.as_tensor(ids)
        index[row, :len(ids)] = torch.as_tensor(places)
    tokens, index = tokens.to(device), index.to(device)
    length = torch.tensor([len(ids) for ids, _ in prompts], device=device)
    start, open_ = length.clone(), torch.ones(len(prompts), dtype=torch.bool, device=device)
    stop = torch.tensor(sorted(stops), device=device)
    rows = torch.arange(len(prompts), device=device)
    for _ in range(most):
        n = int(length.max())
        positions = torch.arange(n, device=device).expand(len(prompts), n)
        hidden, _ = text(w, sizes.text, tokens[:, :n], positions, torch.zeros_like(positions), index[:, :n] if soft is not None else None, soft)
        best = logits(w, sizes.text, hidden[rows, length - 1]).argmax(-1)
        tokens[rows[open_], length[open_]] = best[open_]
        length = length + open_.long()
        open_ = open_ & ~(best[:, None] == stop).any(1)
        if not bool(open_.any()):
            break
    return [tokens[row, start[row]:length[row]].tolist() for row in range(len(prompts))]
