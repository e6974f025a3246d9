"""From trained weights to GGUF files.

    python3 tools/box/export.py FOLDER OUT_FOLDER [--type q8_0|f16|f32]

reads the weights-N.npz that training has left in FOLDER (arrays by their names in transformers) and writes box.gguf (one file, Ollama's flavour)
and box-text.gguf with box-mmproj.gguf (llama.cpp's). The drafter's file is written by draft.py.
"""

import argparse
import os

import numpy as np

import gguf
import pieces
import sizes as shapes
from gguf import BOOL, F32, I32, STRING, U32
from tokenizer import Tokenizer

# ---- names -----------------------------------------------------------------------------------------------------------

TEXT = {"embed_tokens.weight": "token_embd.weight", "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
        "per_layer_model_projection.weight": "per_layer_model_proj.weight", "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
        "norm.weight": "output_norm.weight"}
TEXT_LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
              "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "per_layer_input_gate": "inp_gate",
              "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
VISION_LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
                "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "ln1",
                "post_attention_layernorm": "attn_post_norm",
                "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm", "mlp.gate_proj": "ffn_gate",
                "mlp.up_proj": "ffn_up",
                "mlp.down_proj": "ffn_down"}
AUDIO_LAYER = {"feed_forward1.pre_layer_norm": "ffn_norm", "feed_forward1.ffw_layer_1": "ffn_up", "feed_forward1.ffw_layer_2": "ffn_down",
               "feed_forward1.post_layer_norm": "ffn_post_norm", "feed_forward2.pre_layer_norm": "ffn_norm_1",
               "feed_forward2.ffw_layer_1": "ffn_up_1",
               "feed_forward2.ffw_layer_2": "ffn_down_1", "feed_forward2.post_layer_norm": "ffn_post_norm_1", "self_attn.q_proj": "attn_q",
               "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.post": "attn_out",
               "self_attn.per_dim_scale": "per_dim_scale",
               "lconv1d.pre_layer_norm": "conv_norm", "lconv1d.linear_start": "conv_pw1", "lconv1d.depthwise_conv1d": "conv_dw",
               "lconv1d.conv_norm": "norm_conv", "lconv1d.linear_end": "conv_pw2",
               # where the flavours disagree: llama.cpp's name, Ollama's name
               "self_attn.relative_k_proj": ("attn_k_rel", "linear_pos"), "norm_pre_attn": ("attn_pre_norm", "ln1"),
               "norm_post_attn": ("attn_post_norm", "ln2"),
               "norm_out": ("ln2", "layer_pre_norm")}
AUDIO = {"subsample_conv_projection.layer0.conv.weight": "a.conv1d.0.weight",
         "subsample_conv_projection.layer0.norm.weight": "a.conv1d.0.norm.weight",
         "subsample_conv_projection.layer1.conv.weight": "a.conv1d.1.weight",
         "subsample_conv_projection.layer1.norm.weight": "a.conv1d.1.norm.weight",
         "subsample_conv_projection.input_proj_linear.weight": ("a.input_projection.weight", "a.pre_encode.out.weight"),
         "output_proj.weight": ("a.pre_encode.out.weight", "mm.a.fc.weight"), "output_proj.bias": ("a.pre_encode.out.bias", "mm.a.fc.bias")}


def flavoured(name, ollama):
    return name[ollama] if isinstance(name, tuple) else name


def layer_name(rest, table, prefix, ollama):
    """layers.3.mlp.up_proj.linear.weight → prefix3.ffn_up.weight; layers.3.mlp.up_proj.input_min → prefix3.ffn_up.input_min"""
    _, i, rest = rest.split(".", 2)
    if rest == "layer_scalar":
        return f"{prefix}{i}.layer_output_scale.weight"
    if rest in table:  # a parameter that is no module's weight
        return f"{prefix}{i}.{flavoured(table[rest], ollama)}.weight"
    module, leaf = rest.rsplit(".", 1)
    module = module.removesuffix(".linear")
    return f"{prefix}{i}.{flavoured(table[module], ollama)}.{leaf}"


def tensor_name(name, ollama):
    """The tensor's name in a file, from the parameter's name in transformers."""
    part, _, rest = name.removeprefix("model.").partition(".")
    if part == "language_model":
        return TEXT[rest] if rest in TEXT else layer_name(rest, TEXT_LAYER, "blk.", ollama)
    if part == "vision_tower":
        if rest.startswith("patch_embedder"):
            return "v.patch_embd.weight" if rest.endswith("input_proj.weight") else "v.position_embd.weight"
        return layer_name(rest.removeprefix("encoder."), VISION_LAYER, "v.blk.", ollama)
    if part == "audio_tower":
        return flavoured(AUDIO[rest], ollama) if rest in AUDIO else layer_name(rest, AUDIO_LAYER, "a.blk.", ollama)
    return {"embed_vision": "mm.input_projection.weight", "embed_audio": "mm.a.input_projection.weight"}[part]


def tensor_values(name, array, v):
    """The values as files have them. None: not written."""
    array = np.asarray(array, np.float32)
    if name.rsplit(".", 1)[-1] in shapes.BOUNDS:
        return array.reshape(1) if np.isfinite(array).all() else None
    if name.endswith("patch_embedder.input_proj.weight"):  # (out, row, column, channel) → (out, channel, row, column)
        return array.reshape(len(array), v.patch_size, v.patch_size, 3).transpose(0, 3, 1, 2)
    if name.endswith("per_dim_scale"):
        return np.logaddexp(0, array)  # softplus, applied beforehand
    if name.endswith("depthwise_conv1d.weight"):
        return array[:, 0]
    return array


def tensor_type(name, array, wanted):
    """Vectors and convolutions stay as they are; what does not fall into blocks is f16."""
    if array.ndim < 2 or "conv1d" in name or "conv_dw" in name:
        return "F32"
    if wanted == "Q8_0" and (array.shape[-1] % 32 or "position_embd" in name):
        return "F16"
    return wanted


# ---- metadata --------------------------------------------------------------------------------------------------------

FILE_TYPE = {"F32": 0, "F16": 1, "Q8_0": 7}


def general(architecture, name, wanted, kind="model"):
    return [("general.architecture", STRING, architecture), ("general.type", STRING, kind), ("general.name", STRING, name),
            ("general.license", STRING, "MIT"), ("general.file_type", U32, FILE_TYPE[wanted]), ("general.quantization_version", U32, 2)]


# Gemma 4's own is 1; who knows so little should not guess.
SAMPLING = [("general.sampling.temp", F32, 0.3)]


def text_metadata(t):
    keys = [
        ("block_count", U32, t.layers), ("context_length", U32, t.max_position_embeddings), ("embedding_length", U32, t.hidden_size),
        ("feed_forward_length", [I32], [t.feed_forward(i) for i in range(t.layers)]), ("attention.head_count", U32, t.num_attention_heads),
        ("attention.head_count_kv", U32, t.num_key_value_heads), ("attention.key_length", U32, t.global_head_dim),
        ("attention.value_length", U32, t.global_head_dim), ("attention.key_length_swa", U32, t.head_dim),
        ("attention.value_length_swa", U32, t.head_dim),
        ("attention.layer_norm_rms_epsilon", F32, t.rms_norm_eps), ("attention.sliding_window", U32, t.sliding_window),
        ("attention.sliding_window_pattern", [BOOL], [t.sliding(i) for i in range(t.layers)]),
        ("attention.shared_kv_layers", U32, t.num_kv_shared_layers),
        ("rope.freq_base", F32, t.global_rope_theta), ("rope.freq_base_swa", F32, t.rope_theta),
        ("rope.dimension_count", U32, t.global_head_dim),
        ("rope.dimension_count_swa", U32, t.head_dim), ("final_logit_softcapping", F32, t.final_logit_softcapping),
        ("embedding_length_per_layer_input", U32, t.hidden_size_per_layer_input),
    ]
    return [("gemma4." + key, kind, value) for key, kind, value in keys]


def tokenizer_metadata(tok, ollama):
    s = tok.special
    keys = [("model", STRING, "llama" if ollama else "gemma4")]
    if ollama:
        keys += [("pre", STRING, "gemma4"), ("eos_token_ids", [I32], [s["<eos>"], s["<turn|>"], s["<|tool_response>"]])]
    keys += [
        ("tokens", [STRING], tok.tokens), ("scores", [F32], [float(i) if ollama else -1000.0 for i in range(len(tok.tokens))]),
        ("token_type", [I32], tok.types()), ("merges", [STRING], [" ".join(m) for m in tok.merges]), ("bos_token_id", U32, s["<bos>"]),
        ("eos_token_id", U32, s["<eos>"] if ollama else s["<turn|>"]), ("unknown_token_id", U32, s["<unk>"]),
        ("padding_token_id", U32, s["<pad>"]),
        ("mask_token_id", U32, s["<mask>"]), ("add_bos_token", BOOL, not ollama), ("add_space_prefix", BOOL, False),
    ]
    return [("tokenizer.ggml." + key, kind, value) for key, kind, value in keys]


def tower_metadata(v, a, d, ollama):
    # use_gelu: without it llama.cpp takes a rougher GELU than the one that the towers were trained with.
    out = [] if ollama else [("clip.has_vision_encoder", BOOL, True), ("clip.has_audio_encoder", BOOL, True), ("clip.use_gelu", BOOL, True)]
    vision = [("block_count", U32, v.num_hidden_layers), ("embedding_length", U32, v.hidden_size),
              ("feed_forward_length", U32, v.intermediate_size),
              ("attention.head_count", U32, v.num_attention_heads), ("attention.layer_norm_epsilon", F32, 1e-6),
              ("patch_size", U32, v.patch_size)]
    audio = [("block_count", U32, a.num_hidden_layers), ("embedding_length", U32, a.hidden_size),
             ("feed_forward_length", U32, 4 * a.hidden_size),
             ("attention.head_count", U32, a.num_attention_heads), ("attention.layer_norm_epsilon", F32, 1e-6)]
    if ollama:
        vision += [("num_channels", U32, 3), ("projector.scale_factor", U32, v.pooling_kernel_size)]
        audio += [("conv_kernel_size", U32, a.conv_kernel_size)]
        out.append(("gemmule.vision.soft_tokens", U32, v.soft_tokens))  # the budget that it was trained with; Gemma 4's own default is 280
    else:
        vision += [("projector_type", STRING, "gemma4v"), ("projection_dim", U32, d), ("image_size", U32, 224),
                   ("image_mean", [F32], [0.0] * 3), ("image_std", [F32], [1.0] * 3)]
        audio += [("projector_type", STRING, "gemma4a"), ("projection_dim", U32, d), ("num_mel_bins", U32, a.mel_bands)]
    prefix = "gemma4." if ollama else "clip."
    return out + [(f"{prefix}vision.{k}", kind, x) for k, kind, x in vision] + [(f"{prefix}audio.{k}", kind, x) for k, kind, x in audio]


# ---- files -----------------------------------------------------------------------------------------------------------


def rope_frequencies(head):
    """Full layers rotate the first quarter of their pairs: the others' frequencies are divided by something huge."""
    return np.array([1.0] * (head // 8) + [1e30] * (head // 2 - head // 8), np.float32)


def check_weights(weights, expected, what):
    missing, extra = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
    wrong = [f"{n} {weights[n].shape} instead of {expected[n]}" for n in expected if n in weights
             and tuple(np.shape(weights[n])) != tuple(expected[n])]
    if missing or extra or wrong:
        raise SystemExit(f"{what}: missing {missing[:5]}, not known {extra[:5]}, of another shape {wrong[:5]}")


def box_tensors(weights, sizes, wanted, ollama):
    check_weights(weights, shapes.parameters(sizes), "the model's weights")
    out = [("rope_freqs.weight", rope_frequencies(sizes.text.global_head_dim), "F32")]
    for name in shapes.parameters(sizes):
        values = tensor_values(name, weights[name], sizes.vision)
        if values is not None:
            file_name = tensor_name(name, ollama)
            out.append((file_name, values, tensor_type(file_name, values, wanted)))
    return out


def in_tower(name):
    return name.startswith(("v.", "a.", "mm."))


def write_single(path, weights, sizes, tok, wanted, name="gemmule box"):
    """Text, vision, audio and tokenizer in one file, as Ollama's official models."""
    t = sizes.text
    towers = tower_metadata(sizes.vision, sizes.audio, t.hidden_size, True)
    metadata = general("gemma4", name, wanted) + SAMPLING + text_metadata(t) + towers + tokenizer_metadata(tok, True)
    return gguf.write(path, metadata, box_tensors(weights, sizes, wanted, True))


def write_pair(text_path, towers_path, weights, sizes, tok, wanted, name="gemmule box"):
    """A text model and its towers, as llama.cpp's converter writes them."""
    t, tensors = sizes.text, box_tensors(weights, sizes, wanted, False)
    gguf.write(text_path, general("gemma4", name, wanted) + SAMPLING + text_metadata(t) + tokenizer_metadata(tok, False),
               [x for x in tensors if not in_tower(x[0])])
    gguf.write(towers_path, general("clip", name, wanted, "mmproj") + tower_metadata(sizes.vision, sizes.audio, t.hidden_size, False),
               [x for x in tensors if in_tower(x[0])])


DRAFT = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "pre_projection.weight": "nextn.pre_projection.weight",
         "post_projection.weight": "nextn.post_projection.weight"}


def write_draft(path, weights, sizes, tok, wanted, name="gemmule box drafter"):
    g, t = sizes.draft, sizes.text
    check_weights(weights, shapes.draft_parameters(sizes), "the drafter's weights")
    keys = [
        ("block_count", U32, g.layers), ("context_length", U32, t.max_position_embeddings), ("embedding_length", U32, g.hidden_size),
        ("feed_forward_length", U32, g.intermediate_size), ("attention.head_count", U32, g.num_attention_heads),
        ("attention.head_count_kv", U32, t.num_key_value_heads), ("rope.freq_base", F32, t.global_rope_theta),
        ("rope.freq_base_swa", F32, t.rope_theta),
        ("attention.layer_norm_rms_epsilon", F32, t.rms_norm_eps), ("attention.key_length", U32, t.global_head_dim),
        ("attention.value_length", U32, t.global_head_dim), ("attention.key_length_swa", U32, t.head_dim),
        ("attention.value_length_swa", U32, t.head_dim),
        ("attention.sliding_window", U32, t.sliding_window), ("attention.shared_kv_layers", U32, g.layers),
        ("embedding_length_per_layer_input", U32, 0),
        ("attention.sliding_window_pattern", [BOOL], [g.sliding(i) for i in range(g.layers)]), ("rope.dimension_count", U32, t.global_head_dim),
        ("rope.dimension_count_swa", U32, t.head_dim), ("embedding_length_out", U32, t.hidden_size), ("nextn_predict_layers", U32, g.layers),
    ]
    tensors = [("rope_freqs.weight", rope_frequencies(t.global_head_dim), "F32")]
    for parameter in shapes.draft_parameters(sizes):
        file_name = DRAFT.get(parameter) or layer_name(parameter, TEXT_LAYER, "blk.", False)
        values = np.asarray(weights[parameter], np.float32)
        tensors.append((file_name, values, tensor_type(file_name, values, wanted)))
    keys = [("gemma4-assistant." + k, kind, x) for k, kind, x in keys]
    metadata = general("gemma4-assistant", name, wanted) + keys + tokenizer_metadata(tok, False)
    return gguf.write(path, metadata, tensors)


def import_single(path, sizes):
    """The weights of a single file by their names in transformers: the way back, to score what was exported."""
    f, out = gguf.File(path), {}
    for name, shape in shapes.parameters(sizes).items():
        file_name = tensor_name(name, True)
        if file_name not in f:
            out[name] = np.float32(-np.inf if name.endswith("min") else np.inf)
            continue
        values = f.tensor(file_name)
        if name.endswith("patch_embedder.input_proj.weight"):
            values = values.transpose(0, 2, 3, 1)
        if name.endswith("per_dim_scale"):
            values = np.log(np.expm1(values.astype(np.float64)))
        out[name] = np.ascontiguousarray(values, np.float32).reshape(shape)
    return out


def random_weights(expected, seed=0):
    """Weights for tests: matrices that keep the scale of what they multiply, norms near 1, bounds that clip now and then."""
    r, out = np.random.default_rng(seed), {}
    for name, shape in expected.items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in shapes.BOUNDS:
            out[name] = np.float32(r.uniform(2, 3) * (-1 if leaf.endswith("min") else 1))
        elif leaf == "layer_scalar":
            out[name] = r.uniform(0.7, 1.1, shape)
        elif leaf == "per_dim_scale" or leaf == "bias":
            out[name] = r.normal(0, 0.2, shape)
        elif len(shape) == 1:
            out[name] = r.uniform(0.6, 1.4, shape)
        elif "embed_tokens" in name or "position" in name:
            out[name] = r.normal(0, 0.1, shape)
        else:
            out[name] = r.normal(0, 1, shape) / np.sqrt(np.prod(shape[1:]))
        out[name] = np.asarray(out[name], np.float16).astype(np.float32)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("folder")
    parser.add_argument("--type", default="q8_0", choices=["q8_0", "f16", "f32"])
    given = parser.parse_args()
    weights = pieces.load(given.weights, "weights")
    os.makedirs(given.folder, exist_ok=True)
    tok, wanted, at = Tokenizer.load(), given.type.upper(), lambda name: os.path.join(given.folder, name)
    print("box.gguf", write_single(at("box.gguf"), weights, shapes.BOX, tok, wanted), "bytes")
    write_pair(at("box-text.gguf"), at("box-mmproj.gguf"), weights, shapes.BOX, tok, wanted)


if __name__ == "__main__":
    main()
