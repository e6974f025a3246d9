"""The shapes of the model in the box and of its drafter, and how many weights that makes.

Everything else in the recipe takes its numbers from here. The names are those of transformers' configuration classes, so that
`transformers_config` is a plain copy. The limits are checked by the test of the recipe.
"""

from dataclasses import dataclass, field

# What the model may cost. Bytes are those of the committed file.
MOST_READ_PER_TOKEN = 6_000_000
MOST_VISION = 1_500_000
MOST_AUDIO = 2_000_000
MOST_FILE_BYTES = 10_000_000
MOST_DRAFT_BYTES = 2_000_000


@dataclass
class Text:
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 352  # doubled on layers that share keys and values
    layer_types: str = "SSSFSSSF"  # S: sliding, F: full
    num_kv_shared_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 64
    global_head_dim: int = 128
    hidden_size_per_layer_input: int = 32
    sliding_window: int = 128
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    global_rope_theta: float = 1_000_000.0
    final_logit_softcapping: float = 30.0
    rms_norm_eps: float = 1e-6

    @property
    def layers(self):
        return len(self.layer_types)

    @property
    def owners(self):
        return self.layers - self.num_kv_shared_layers

    def sliding(self, layer):
        return self.layer_types[layer] == "S"

    def head(self, layer):
        return self.head_dim if self.sliding(layer) else self.global_head_dim

    def feed_forward(self, layer):
        return self.intermediate_size * (1 if layer < self.owners else 2)

    def donor(self, layer):
        """The layer whose keys and values this one reads: the last owner of its kind."""
        if layer < self.owners:
            return layer
        return max(i for i in range(self.owners) if self.layer_types[i] == self.layer_types[layer])


@dataclass
class Vision:
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    patch_size: int = 16
    pooling_kernel_size: int = 3
    position_embedding_size: int = 256  # 70 tokens are at most 210 patches in a row
    rope_theta: float = 100.0
    soft_tokens: int = 70

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


@dataclass
class Audio:
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    subsampling_conv_channels: tuple = (128, 16)  # the first must be the number of mel bands
    conv_kernel_size: int = 5
    output_proj_dims: int = 128
    mel_bands: int = 128
    chunk: int = 12
    context_left: int = 13

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


@dataclass
class Draft:
    """Four layers that read the target's keys and values, so heads, K/V heads and head sizes are the target's."""

    hidden_size: int = 128
    intermediate_size: int = 256
    layer_types: str = "SSSF"
    num_attention_heads: int = 4

    @property
    def layers(self):
        return len(self.layer_types)

    def sliding(self, layer):
        return self.layer_types[layer] == "S"


@dataclass
class Sizes:
    text: Text = field(default_factory=Text)
    vision: Vision = field(default_factory=Vision)
    audio: Audio = field(default_factory=Audio)
    draft: Draft = field(default_factory=Draft)


BOX = Sizes()

# The same kind of model, small enough for tests.
TINY = Sizes(
    Text(hidden_size=64, intermediate_size=96, layer_types="SSFSF", num_kv_shared_layers=2, num_attention_heads=2,
         head_dim=32, global_head_dim=64, sliding_window=24),
    Vision(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2),
    Audio(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, subsampling_conv_channels=(128, 4), output_proj_dims=32),
    Draft(hidden_size=32, intermediate_size=64, num_attention_heads=2),
)


# ---- parameters by their names in transformers -----------------------------------------------------------------------

LINEARS_VISION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                  "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
LINEARS_AUDIO = ("feed_forward1.ffw_layer_1", "feed_forward1.ffw_layer_2", "feed_forward2.ffw_layer_1", "feed_forward2.ffw_layer_2",
                 "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.post",
                 "lconv1d.linear_start", "lconv1d.linear_end")
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def text_parameters(t):
    """name → shape (PyTorch's order) of the language model, without the tied head."""
    base, d, width, layers = "model.language_model.", t.hidden_size, t.hidden_size_per_layer_input, t.layers
    shapes = {
        base + "embed_tokens.weight": (t.vocab_size, d),
        base + "embed_tokens_per_layer.weight": (t.vocab_size, layers * width),
        base + "per_layer_model_projection.weight": (layers * width, d),
        base + "per_layer_projection_norm.weight": (width,),
        base + "norm.weight": (d,),
    }
    for i in range(layers):
        layer, q, kv, ff = f"{base}layers.{i}.", t.num_attention_heads * t.head(i), t.num_key_value_heads * t.head(i), t.feed_forward(i)
        shapes |= {layer + "self_attn.q_proj.weight": (q, d), layer + "self_attn.o_proj.weight": (d, q),
                   layer + "self_attn.q_norm.weight": (t.head(i),)}
        if i < t.owners:
            shapes |= {layer + "self_attn.k_proj.weight": (kv, d), layer + "self_attn.v_proj.weight": (kv, d),
                       layer + "self_attn.k_norm.weight": (t.head(i),)}
        shapes |= {layer + "mlp.gate_proj.weight": (ff, d), layer + "mlp.up_proj.weight": (ff, d), layer + "mlp.down_proj.weight": (d, ff),
                   layer + "per_layer_input_gate.weight": (width, d), layer + "per_layer_projection.weight": (d, width)}
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                     "post_per_layer_input_norm"):
            shapes[f"{layer}{norm}.weight"] = (d,)
        shapes[layer + "layer_scalar"] = (1,)  # a buffer: it stays 1
    return shapes


def vision_parameters(v, t):
    base, n, ff = "model.vision_tower.", v.hidden_size, v.intermediate_size
    shapes = {
        base + "patch_embedder.input_proj.weight": (n, 3 * v.patch_size**2),
        base + "patch_embedder.position_embedding_table": (2, v.position_embedding_size, n),
        "model.embed_vision.embedding_projection.weight": (t.hidden_size, n),
    }
    for i in range(v.num_hidden_layers):
        layer = f"{base}encoder.layers.{i}."
        for linear in LINEARS_VISION:
            wide = {"mlp.gate_proj": (ff, n), "mlp.up_proj": (ff, n), "mlp.down_proj": (n, ff)}.get(linear, (n, n))
            shapes[f"{layer}{linear}.linear.weight"] = wide
            shapes |= {f"{layer}{linear}.{bound}": () for bound in BOUNDS}
        shapes |= {f"{layer}self_attn.{norm}.weight": (v.head_dim,) for norm in ("q_norm", "k_norm")}
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (n,)
    return shapes


def audio_parameters(a, t):
    base, n = "model.audio_tower.", a.hidden_size
    first, second = a.subsampling_conv_channels
    conv = base + "subsample_conv_projection."
    shapes = {
        conv + "layer0.conv.weight": (first, 1, 3, 3), conv + "layer0.norm.weight": (first,),
        conv + "layer1.conv.weight": (second, first, 3, 3), conv + "layer1.norm.weight": (second,),
        conv + "input_proj_linear.weight": (n, a.mel_bands // 4 * second),
        base + "output_proj.weight": (a.output_proj_dims, n), base + "output_proj.bias": (a.output_proj_dims,),
        "model.embed_audio.embedding_projection.weight": (t.hidden_size, a.output_proj_dims),
    }
    wide = {"feed_forward1.ffw_layer_1": (4 * n, n), "feed_forward2.ffw_layer_1": (4 * n, n), "feed_forward1.ffw_layer_2": (n, 4 * n),
            "feed_forward2.ffw_layer_2": (n, 4 * n), "lconv1d.linear_start": (2 * n, n)}
    for i in range(a.num_hidden_layers):
        layer = f"{base}layers.{i}."
        for linear in LINEARS_AUDIO:
            shapes[f"{layer}{linear}.linear.weight"] = wide.get(linear, (n, n))
            shapes |= {f"{layer}{linear}.{bound}": () for bound in BOUNDS}
        shapes |= {layer + "self_attn.relative_k_proj.weight": (n, n), layer + "self_attn.per_dim_scale": (a.head_dim,),
                   layer + "lconv1d.depthwise_conv1d.weight": (n, 1, a.conv_kernel_size)}
        for norm in ("feed_forward1.pre_layer_norm", "feed_forward1.post_layer_norm", "feed_forward2.pre_layer_norm",
                     "feed_forward2.post_layer_norm", "lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn",
                     "norm_out"):
            shapes[f"{layer}{norm}.weight"] = (n,)
    return shapes


def parameters(sizes):
    return (text_parameters(sizes.text) | vision_parameters(sizes.vision, sizes.text) | audio_parameters(sizes.audio, sizes.text))


def draft_parameters(sizes):
    """The drafter's own names: it exists in no checkpoint but ours."""
    g, t = sizes.draft, sizes.text
    shapes = {"embed_tokens.weight": (t.vocab_size, g.hidden_size), "norm.weight": (g.hidden_size,),
              "pre_projection.weight": (g.hidden_size, 2 * t.hidden_size), "post_projection.weight": (t.hidden_size, g.hidden_size)}
    for i in range(g.layers):
        head = t.head_dim if g.sliding(i) else t.global_head_dim
        layer, d, q, ff = f"layers.{i}.", g.hidden_size, g.num_attention_heads * head, g.intermediate_size
        shapes |= {layer + "self_attn.q_proj.weight": (q, d), layer + "self_attn.o_proj.weight": (d, q),
                   layer + "self_attn.q_norm.weight": (head,), layer + "mlp.gate_proj.weight": (ff, d),
                   layer + "mlp.up_proj.weight": (ff, d), layer + "mlp.down_proj.weight": (d, ff)}
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (d,)
        shapes[layer + "layer_scalar"] = (1,)
    return shapes


# ---- counting --------------------------------------------------------------------------------------------------------

def count(shapes):
    total = 0
    for shape in shapes.values():
        n = 1
        for side in shape:
            n *= side
        total += n
    return total


def read_per_token(t):
    """Weights that decoding one token reads: every matrix of the layers, the head, and one row of each table."""
    shapes = text_parameters(t)
    table = shapes.pop("model.language_model.embed_tokens_per_layer.weight")
    return count(shapes) + t.hidden_size + table[1]


def report(sizes=BOX):
    return {
        "read per token": read_per_token(sizes.text), "text": count(text_parameters(sizes.text)),
        "vision": count(vision_parameters(sizes.vision, sizes.text)), "audio": count(audio_parameters(sizes.audio, sizes.text)),
        "drafter": count(draft_parameters(sizes)),
    }


def transformers_config(sizes, ids):
    """Arguments for transformers' Gemma4TextConfig, Gemma4VisionConfig, Gemma4AudioConfig and Gemma4Config; `ids` are the special tokens'."""
    t, v, a = sizes.text, sizes.vision, sizes.audio
    text = dict(
        vocab_size=t.vocab_size, vocab_size_per_layer_input=t.vocab_size, hidden_size=t.hidden_size,
        intermediate_size=t.intermediate_size, num_hidden_layers=t.layers, num_attention_heads=t.num_attention_heads,
        num_key_value_heads=t.num_key_value_heads, head_dim=t.head_dim, global_head_dim=t.global_head_dim,
        layer_types=["sliding_attention" if c == "S" else "full_attention" for c in t.layer_types],
        hidden_size_per_layer_input=t.hidden_size_per_layer_input, num_kv_shared_layers=t.num_kv_shared_layers,
        use_double_wide_mlp=True, sliding_window=t.sliding_window, max_position_embeddings=t.max_position_embeddings,
        final_logit_softcapping=t.final_logit_softcapping, rms_norm_eps=t.rms_norm_eps, attention_k_eq_v=False,
        enable_moe_block=False, use_bidirectional_attention=None, tie_word_embeddings=True, pad_token_id=ids["<pad>"],
        bos_token_id=ids["<bos>"], eos_token_id=ids["<eos>"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": t.rope_theta},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": t.global_rope_theta},
        })
    vision = dict(
        hidden_size=v.hidden_size, intermediate_size=v.intermediate_size, num_hidden_layers=v.num_hidden_layers,
        num_attention_heads=v.num_attention_heads, num_key_value_heads=v.num_attention_heads, head_dim=v.head_dim,
        patch_size=v.patch_size, pooling_kernel_size=v.pooling_kernel_size, position_embedding_size=v.position_embedding_size,
        use_clipped_linears=True, standardize=False, rope_parameters={"rope_type": "default", "rope_theta": v.rope_theta})
    audio = dict(
        hidden_size=a.hidden_size, num_hidden_layers=a.num_hidden_layers, num_attention_heads=a.num_attention_heads,
        subsampling_conv_channels=list(a.subsampling_conv_channels), conv_kernel_size=a.conv_kernel_size,
        output_proj_dims=a.output_proj_dims, attention_chunk_size=a.chunk, attention_context_left=a.context_left,
        attention_context_right=0, use_clipped_linears=True)
    whole = dict(image_token_id=ids["<|image|>"], audio_token_id=ids["<|audio|>"], video_token_id=ids["<|video|>"], tie_word_embeddings=True)
    return text, vision, audio, whole


if __name__ == "__main__":
    for name, n in report().items():
        print(f"{name:>15} {n:>10,}")
