/* The towers of the released models: tensors and metadata, beside the text model (Ollama) or in a file of their own (llama.cpp). */

#include "model/synth_parts.h"

#include <stdio.h>
#include <string.h>

/* Without an encoder, layers and heads are 0 and `width` is the text model's. */
typedef struct {
    uint32_t width, layers, heads, feed_forward, positions;
    bool     clipped, standardised;
} tower_shape;

static const tower_shape small_vision = { 768, 16, 12, 3072, 10240, true, false },
                         large_vision = { 1152, 27, 16, 4304, 10240, false, true },
                         conformer = { 1024, 12, 8, 4096, 0, true, false };

static tower_shape vision_shape(const synth_plan *plan) {
    if (plan->size->per_layer) return small_vision;
    return plan->size->suppresses ? (tower_shape){ .width = plan->size->width, .positions = 1120 } : large_vision;
}

/* E2B and E4B have a conformer; the 12B reads samples; the others are deaf. */
static bool hears(const synth_plan *plan) { return plan->size->per_layer || plan->size->suppresses; }

/* ---- tensors ---- */

static void add_tower_vector(synth_list *list, synth_fill fill, uint64_t n, const char *name) {
    synth_list_add(list, fill, TYPE_F32, (const uint64_t[]){ n, 0, 0, 0 }, name);
}

static void add_tower_matrix(synth_list *list, quant_type type, uint64_t k, uint64_t m, const char *name) {
    synth_list_add(list, type == TYPE_F32 ? FILL_TABLE : FILL_MATRIX, type, (const uint64_t[]){ k, m, 0, 0 }, name);
}

/* PREFIX.blk.LAYER.NAMEEND */
static const char *block_name(char out[64], const char *prefix, uint32_t layer, const char *name, const char *end) {
    snprintf(out, 64, "%s.blk.%u.%s%s", prefix, layer, name, end);
    return out;
}

static void add_linear(synth_list *list, const char *prefix, uint32_t layer, const char *name, uint64_t k, uint64_t m,
                       bool clipped) {
    static const char *const ends[] = { ".input_min", ".input_max", ".output_min", ".output_max" };
    const bool               bf16 = list->plan->ollama && prefix[0] == 'a';
    char                     full[64];
    add_tower_matrix(list, bf16 ? TYPE_BF16 : TYPE_F16, k, m, block_name(full, prefix, layer, name, ".weight"));
    for (size_t i = 0; i < COUNT_OF(ends) && clipped; i++)
        add_tower_vector(list, i % 2 ? FILL_MOST : FILL_LEAST, 1, block_name(full, prefix, layer, name, ends[i]));
}

static void add_norm(synth_list *list, const char *prefix, uint32_t layer, const char *name, synth_fill fill,
                     uint64_t n) {
    char full[64];
    add_tower_vector(list, fill, n, block_name(full, prefix, layer, name, ".weight"));
}

static void add_vision_layer(synth_list *list, const tower_shape *s, uint32_t i) {
    const uint64_t n = s->width, ff = s->feed_forward, head = n / s->heads;
    add_norm(list, "v", i, "ln1", FILL_NORM, n);
    add_linear(list, "v", i, "attn_q", n, n, s->clipped);
    add_linear(list, "v", i, "attn_k", n, n, s->clipped);
    add_linear(list, "v", i, "attn_v", n, n, s->clipped);
    add_linear(list, "v", i, "attn_out", n, n, s->clipped);
    add_norm(list, "v", i, "attn_q_norm", FILL_QUERY_KEY_NORM, head);
    add_norm(list, "v", i, "attn_k_norm", FILL_QUERY_KEY_NORM, head);
    add_norm(list, "v", i, "attn_post_norm", FILL_ATTENTION_NORM, n);
    add_norm(list, "v", i, "ln2", FILL_NORM, n);
    add_linear(list, "v", i, "ffn_gate", n, ff, s->clipped);
    add_linear(list, "v", i, "ffn_up", n, ff, s->clipped);
    add_linear(list, "v", i, "ffn_down", ff, n, s->clipped);
    add_norm(list, "v", i, "ffn_post_norm", FILL_BRANCH_NORM, n);
}

static void add_vision(synth_list *list) {
    const tower_shape s = vision_shape(list->plan);
    const uint64_t    n = s.width, d = list->plan->size->width, patch = 48 * 48 * 3;
    if (s.layers) {
        synth_list_add(list, FILL_MATRIX, TYPE_F16, (const uint64_t[]){ 16, 16, 3, n }, "v.patch_embd.weight");
    } else {
        add_tower_matrix(list, TYPE_F32, patch, n, "v.patch_embd.weight");
        add_tower_vector(list, FILL_TABLE, n, "v.patch_embd.bias");
        for (uint32_t i = 1; i <= 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "v.patch_norm.%u.weight", i);
            add_tower_vector(list, FILL_NORM, i == 1 ? patch : n, name);
            snprintf(name, sizeof name, "v.patch_norm.%u.bias", i);
            add_tower_vector(list, FILL_TABLE, i == 1 ? patch : n, name);
        }
    }
    synth_list_add(list, FILL_TABLE, TYPE_F32, (const uint64_t[]){ n, s.positions, 2, 0 }, "v.position_embd.weight");
    for (uint32_t i = 0; i < s.layers; i++) add_vision_layer(list, &s, i);
    if (s.standardised) {
        add_tower_vector(list, FILL_TABLE, n, "v.std_bias");
        add_tower_vector(list, FILL_NORM, n, "v.std_scale");
    }
    add_tower_matrix(list, TYPE_F16, n, d, "mm.input_projection.weight");
}

static void add_audio_layer(synth_list *list, const tower_shape *s, uint32_t i) {
    const bool     ollama = list->plan->ollama;
    const uint64_t n = s->width, ff = s->feed_forward;
    add_norm(list, "a", i, "ffn_norm", FILL_NORM, n);
    add_linear(list, "a", i, "ffn_up", n, ff, true);
    add_linear(list, "a", i, "ffn_down", ff, n, true);
    add_norm(list, "a", i, "ffn_post_norm", FILL_BRANCH_NORM, n);
    add_norm(list, "a", i, ollama ? "ln1" : "attn_pre_norm", FILL_NORM, n);
    add_linear(list, "a", i, "attn_q", n, n, true);
    add_linear(list, "a", i, "attn_k", n, n, true);
    add_linear(list, "a", i, "attn_v", n, n, true);
    add_linear(list, "a", i, "attn_out", n, n, true);
    add_linear(list, "a", i, ollama ? "linear_pos" : "attn_k_rel", n, n, false);
    add_norm(list, "a", i, "per_dim_scale", FILL_NORM, n / s->heads);
    add_norm(list, "a", i, ollama ? "ln2" : "attn_post_norm", FILL_ATTENTION_NORM, n);
    add_norm(list, "a", i, "conv_norm", FILL_NORM, n);
    add_linear(list, "a", i, "conv_pw1", n, 2 * n, true);
    char name[64];
    add_tower_matrix(list, TYPE_F32, 5, n, block_name(name, "a", i, "conv_dw", ".weight"));
    add_norm(list, "a", i, "norm_conv", FILL_NORM, n);
    add_linear(list, "a", i, "conv_pw2", n, n, true);
    add_norm(list, "a", i, "ffn_norm_1", FILL_NORM, n);
    add_linear(list, "a", i, "ffn_up_1", n, ff, true);
    add_linear(list, "a", i, "ffn_down_1", ff, n, true);
    add_norm(list, "a", i, "ffn_post_norm_1", FILL_BRANCH_NORM, n);
    add_norm(list, "a", i, ollama ? "layer_pre_norm" : "ln2", FILL_NORM, n);
}

static void add_audio(synth_list *list) {
    enum { FIRST_CHANNELS = 128, CHANNELS = 32, BINS = 128, RESULT = 1536, FRAME = 640 };
    const bool       ollama = list->plan->ollama;
    const uint64_t   n = conformer.width, d = list->plan->size->width;
    const quant_type type = ollama ? TYPE_BF16 : TYPE_F16;
    if (!hears(list->plan)) return;
    if (list->plan->size->suppresses) {
        add_tower_matrix(list, TYPE_F16, FRAME, d, "mm.a.input_projection.weight");
        return;
    }
    synth_list_add(list, FILL_TABLE, TYPE_F32, (const uint64_t[]){ 3, 3, 1, FIRST_CHANNELS }, "a.conv1d.0.weight");
    add_tower_vector(list, FILL_NORM, FIRST_CHANNELS, "a.conv1d.0.norm.weight");
    synth_list_add(list, FILL_TABLE, TYPE_F32, (const uint64_t[]){ 3, 3, FIRST_CHANNELS, CHANNELS },
                   "a.conv1d.1.weight");
    add_tower_vector(list, FILL_NORM, CHANNELS, "a.conv1d.1.norm.weight");
    add_tower_matrix(list, type, BINS / 4 * CHANNELS, n,
                     ollama ? "a.pre_encode.out.weight" : "a.input_projection.weight");
    for (uint32_t i = 0; i < conformer.layers; i++) add_audio_layer(list, &conformer, i);
    add_tower_matrix(list, type, n, RESULT, ollama ? "mm.a.fc.weight" : "a.pre_encode.out.weight");
    add_tower_vector(list, FILL_TABLE, RESULT, ollama ? "mm.a.fc.bias" : "a.pre_encode.out.bias");
    add_tower_matrix(list, type, RESULT, d, "mm.a.input_projection.weight");
}

void synth_add_towers(synth_list *list) {
    add_vision(list);
    add_audio(list);
}

/* ---- metadata ---- */

static void write_tower(gguf_writer *w, const char *prefix, const tower_shape *s) {
    const struct {
        const char *key;
        uint32_t    value;
    } numbers[] = {
        { "block_count", s->layers },
        { "embedding_length", s->width },
        { "feed_forward_length", s->feed_forward },
        { "attention.head_count", s->heads },
    };
    char key[80];
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", prefix, numbers[i].key);
        gguf_write_u32(w, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_epsilon", prefix);
    gguf_write_f32(w, key, 1e-6f);
}

static tower_shape audio_shape(const synth_plan *plan) {
    return plan->size->per_layer ? conformer : (tower_shape){ .width = 640 };
}

void synth_write_tower_keys(const synth_plan *plan, gguf_writer *w) {
    const tower_shape vision = vision_shape(plan), audio = audio_shape(plan);
    write_tower(w, "gemma4.vision", &vision);
    gguf_write_u32(w, "gemma4.vision.patch_size", 16);
    gguf_write_u32(w, "gemma4.vision.num_channels", 3);
    gguf_write_u32(w, "gemma4.vision.projector.scale_factor", 3);
    if (!hears(plan)) return;
    write_tower(w, "gemma4.audio", &audio);
    gguf_write_u32(w, "gemma4.audio.conv_kernel_size", 5);
}

void synth_write_projector_keys(const synth_plan *plan, gguf_writer *w) {
    const tower_shape vision = vision_shape(plan), audio = audio_shape(plan);
    const bool        encoder = vision.layers > 0;
    gguf_write_str(w, "general.architecture", str_of("clip"));
    gguf_write_str(w, "general.type", str_of("mmproj"));
    gguf_write_str(w, "general.size_label", str_of(plan->size->label));
    gguf_write_u32(w, "general.file_type", 1);
    gguf_write_bool(w, "clip.has_vision_encoder", true);
    gguf_write_str(w, "clip.vision.projector_type", str_of(encoder ? "gemma4v" : "gemma4uv"));
    write_tower(w, "clip.vision", &vision);
    gguf_write_u32(w, "clip.vision.image_size", 224);
    gguf_write_u32(w, "clip.vision.patch_size", 16);
    gguf_write_u32(w, "clip.vision.projection_dim", plan->size->width);
    gguf_write_array(w, "clip.vision.image_mean", GGUF_F32, (const float[]){ 0, 0, 0 }, 3);
    gguf_write_array(w, "clip.vision.image_std", GGUF_F32, (const float[]){ 1, 1, 1 }, 3);
    gguf_write_bool(w, "clip.has_audio_encoder", hears(plan));
    if (!hears(plan)) return;
    gguf_write_str(w, "clip.audio.projector_type", str_of(encoder ? "gemma4a" : "gemma4ua"));
    write_tower(w, "clip.audio", &audio);
    gguf_write_u32(w, "clip.audio.num_mel_bins", 128);
    gguf_write_u32(w, "clip.audio.projection_dim", plan->size->width);
}
