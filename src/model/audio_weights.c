/* Finds the weights of the audio tower and checks them. Ollama's file and llama.cpp's mmproj file name some tensors differently, and
 * use two of the names for different things, so the flavour is decided first. */

#include "model/towers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_AUDIO_LAYERS = 1024, MOST_AUDIO_WIDTH = 1 << 16, MOST_TAPS = 64 };

/* What is named differently. */
typedef struct {
    const char *prefix; /* of the metadata keys */
    const char *input_projection, *output_projection, *output_bias;
    const char *attention_norm, *attention_post_norm, *output_norm, *relative;
} audio_names;

static const audio_names separate_names = { "clip.audio.",
                                            "a.input_projection.weight",
                                            "a.pre_encode.out.weight",
                                            "a.pre_encode.out.bias",
                                            "attn_pre_norm",
                                            "attn_post_norm",
                                            "ln2",
                                            "attn_k_rel" };
static const audio_names inline_names = {
    "gemma4.audio.", "a.pre_encode.out.weight", "mm.a.fc.weight", "mm.a.fc.bias", "ln1",
    "ln2",           "layer_pre_norm",          "linear_pos"
};

typedef struct {
    audio_weights     *w;
    weight_loader      from;
    const audio_names *names;
    float             *waves; /* while loading: sines and cosines of the distances */
    char               text[128];
} audio_loader;

/* ---- hyper-parameters ---- */

static uint32_t audio_u32(audio_loader *l, const char *name, uint32_t most) {
    uint32_t value = 0;
    if (l->from.status) return 0;
    snprintf(l->text, sizeof l->text, "%s%s", l->names->prefix, name);
    l->from.status = gguf_get_u32(l->from.file, l->text, &value, NULL, l->from.e);
    if (!l->from.status && (value < 1 || value > most))
        l->from.status =
            fail(l->from.e, GM_BAD_FILE, "metadata key '%s' must be between 1 and %u, found %u", l->text, most, value);
    return value;
}

/* The file has a tower, and one that we know. */
static gm_status audio_find(audio_loader *l) {
    str         architecture = { "", 0 }, projector = { "", 0 };
    bool        found;
    error       ignored = { 0 };
    const gguf *file = l->from.file;
    gguf_get_str(file, "general.architecture", &architecture, &found, &ignored);
    l->names =
        gguf_find_tensor(file, "mm.a.fc.weight") || !str_is(architecture, "clip") ? &inline_names : &separate_names;
    if (!gguf_find_tensor(file, "mm.a.input_projection.weight"))
        return fail(l->from.e, GM_UNSUPPORTED, "there is no audio tower (no tensor 'mm.a.input_projection.weight')");
    if (l->names == &inline_names) return GM_OK;
    gguf_get_str(file, "clip.audio.projector_type", &projector, &found, &ignored);
    if (!found) gguf_get_str(file, "clip.projector_type", &projector, &found, &ignored);
    if (!found || str_is(projector, "gemma4a") || str_is(projector, "gemma4ua")) return GM_OK;
    return fail(l->from.e, GM_UNSUPPORTED,
                "the audio tower is of the type '%.*s'; Gemma 4's are 'gemma4a' and 'gemma4ua'", STR_ARGS(projector));
}

/* A length that only a tensor's shape tells. */
static uint32_t audio_dimension(audio_loader *l, const char *name, size_t axis, uint32_t most) {
    uint64_t ne[4] = { 0 };
    loader_any(&l->from, name, ne, true);
    if (!l->from.status && (ne[axis] < 1 || ne[axis] > most))
        l->from.status = fail(l->from.e, GM_BAD_FILE, "tensor '%s' has the length %llu; 1 to %u were expected", name,
                              (unsigned long long)ne[axis], most);
    return l->from.status ? 0 : (uint32_t)ne[axis];
}

static void audio_config_read(audio_loader *l, uint32_t soft_width) {
    audio_config *c = &l->w->config;
    c->soft_width = soft_width;
    if (!gguf_find_tensor(l->from.file, "a.conv1d.0.weight")) {
        c->frame = audio_dimension(l, "mm.a.input_projection.weight", 0, MOST_AUDIO_WIDTH);
        return;
    }
    c->layers = audio_u32(l, "block_count", MOST_AUDIO_LAYERS);
    c->width = audio_u32(l, "embedding_length", MOST_AUDIO_WIDTH);
    c->heads = audio_u32(l, "attention.head_count", 1024);
    c->feed_forward = audio_u32(l, "feed_forward_length", MOST_AUDIO_WIDTH);
    c->channels[0] = audio_dimension(l, "a.conv1d.0.weight", 3, 4096);
    c->channels[1] = audio_dimension(l, "a.conv1d.1.weight", 3, 4096);
    c->taps = audio_dimension(l, "a.blk.0.conv_dw.weight", 0, MOST_TAPS);
    c->output_width = audio_dimension(l, l->names->output_projection, 1, MOST_AUDIO_WIDTH);
    if (l->from.status) return;
    c->head = c->width / c->heads;
    if (c->width % c->heads || c->width % 2 || c->width < 4)
        l->from.status =
            fail(l->from.e, GM_BAD_FILE, "the audio tower has %u heads on a width of %u", c->heads, c->width);
}

/* ---- tensors ---- */

/* All values of a tensor as f32; the caller frees them. NULL: only shapes are wanted, or it failed. */
static float *audio_values(audio_loader *l, const char *name, uint64_t count) {
    uint64_t     ne[4] = { 0 };
    const weight w = loader_any(&l->from, name, ne, true);
    if (l->from.status || l->from.shapes) return NULL;
    if (ne[0] * ne[1] * ne[2] * ne[3] != count || count % quant_format_of(w.type)->block) {
        l->from.status = fail(l->from.e, GM_BAD_FILE, "tensor '%s' has %llu values; %llu were expected", name,
                              (unsigned long long)(ne[0] * ne[1] * ne[2] * ne[3]), (unsigned long long)count);
        return NULL;
    }
    if (!w.data) {
        l->from.status = fail(l->from.e, GM_IO, "tensor '%s' is not in memory", name);
        return NULL;
    }
    float *values = malloc(count * sizeof *values);
    if (!values) l->from.status = fail_memory(l->from.e, name, count * sizeof *values);
    else quant_format_of(w.type)->dequantise(values, w.data, count / quant_format_of(w.type)->block);
    return values;
}

/* In files [3 (frequency), 3 (time), in, out], the first fastest; for the op the channels out are fastest, then in. */
static void load_convolution(audio_loader *l, size_t i) {
    static const char *const names[] = { "a.conv1d.0.weight", "a.conv1d.1.weight" };
    const uint64_t           in = i ? l->w->config.channels[0] : 1, out = l->w->config.channels[i], area = 9;
    float                   *values = audio_values(l, names[i], area * in * out);
    float                   *to = loader_new_vector(&l->from, names[i], area * in * out, &l->w->conv[i]);
    for (uint64_t at = 0; values && to && at < area * in * out; at++) /* at % area is already 3 · time + frequency */
        to[(at % area * in + at / area % in) * out + at / area / in] = values[at];
    free(values);
    snprintf(l->text, sizeof l->text, "a.conv1d.%zu.norm.weight", i);
    l->w->conv_norm[i] = loader_vector(&l->from, l->text, out, true);
}

static const char *audio_tensor(audio_loader *l, uint32_t layer, const char *name, const char *end) {
    snprintf(l->text, sizeof l->text, "a.blk.%u.%s%s", layer, name, end);
    return l->text;
}

static weight audio_vector(audio_loader *l, uint32_t layer, const char *name, uint64_t n) {
    return loader_vector(&l->from, audio_tensor(l, layer, name, ".weight"), n, true);
}

static clipped_linear audio_matrix(audio_loader *l, uint32_t layer, const char *name, uint64_t k, uint64_t m) {
    return tower_linear_load(&l->from, audio_tensor(l, layer, name, ""), k, m, NULL);
}

/* [sin(δ·τ), cos(δ·τ)] for every distance δ, τ_i = 10000^(−i / (n/2 − 1)): [n, AUDIO_REACH]. */
static void make_waves(audio_loader *l) {
    const uint64_t n = l->w->config.width, half = n / 2;
    l->waves = malloc(n * AUDIO_REACH * sizeof *l->waves);
    if (!l->waves)
        l->from.status = fail_memory(l->from.e, "the audio tower's distances", n * AUDIO_REACH * sizeof *l->waves);
    for (uint64_t i = 0; l->waves && i < half * AUDIO_REACH; i++) {
        const double angle =
            (double)(i % AUDIO_REACH) * exp(-(double)(i / AUDIO_REACH) * log(10000) / (double)(half - 1));
        l->waves[i] = (float)sin(angle);
        l->waves[half * AUDIO_REACH + i] = (float)cos(angle);
    }
}

/* R_δ = Wrel · waves_δ: what the distance δ adds to a key. */
static void load_relative(audio_loader *l, uint32_t layer) {
    const uint64_t n = l->w->config.width;
    float         *w = audio_values(l, audio_tensor(l, layer, l->names->relative, ".weight"), n * n);
    float         *to = loader_new_vector(&l->from, "audio.relative", n * AUDIO_REACH, &l->w->layer[layer].relative);
    for (uint64_t row = 0; w && to && row < n; row++) {
        double sums[AUDIO_REACH] = { 0 };
        for (uint64_t i = 0; i < n; i++)
            for (size_t distance = 0; distance < AUDIO_REACH; distance++)
                sums[distance] += (double)w[row * n + i] * l->waves[i * AUDIO_REACH + distance];
        for (size_t distance = 0; distance < AUDIO_REACH; distance++) to[distance * n + row] = (float)sums[distance];
    }
    free(w);
}

/* s · head^(−½) / ln 2 */
static void load_query_scale(audio_loader *l, uint32_t layer) {
    const uint32_t head = l->w->config.head;
    const weight   file = audio_vector(l, layer, "per_dim_scale", head);
    float         *to = loader_new_vector(&l->from, "audio.query_scale", head, &l->w->layer[layer].query_scale);
    for (uint32_t i = 0; to && file.data && i < head; i++)
        to[i] = (float)(((const float *)file.data)[i] / sqrt((double)head) / log(2));
}

/* A feed-forward adds half of its normed result: the norm's weight has the half. */
static void load_half(audio_loader *l, weight file, uint64_t n, weight *out) {
    float *to = loader_new_vector(&l->from, "audio.half_norm", n, out);
    for (uint64_t i = 0; to && file.data && i < n; i++) to[i] = 0.5f * ((const float *)file.data)[i];
}

/* In files [taps, width]; for the op tap by tap. */
static void load_taps(audio_loader *l, uint32_t layer) {
    const uint64_t n = l->w->config.width, taps = l->w->config.taps;
    float         *values = audio_values(l, audio_tensor(l, layer, "conv_dw", ".weight"), n * taps);
    float         *to = loader_new_vector(&l->from, "audio.taps", n * taps, &l->w->layer[layer].conv_taps);
    for (uint64_t i = 0; values && to && i < n * taps; i++) to[i % taps * n + i / taps] = values[i];
    free(values);
}

static void load_audio_feed_forward(audio_loader *l, uint32_t i, audio_feed_forward *w, const char *const names[4]) {
    const uint64_t n = l->w->config.width, ff = l->w->config.feed_forward;
    w->norm = audio_vector(l, i, names[0], n);
    w->up = audio_matrix(l, i, names[1], n, ff);
    w->down = audio_matrix(l, i, names[2], ff, n);
    load_half(l, audio_vector(l, i, names[3], n), n, &w->post_norm);
}

static void load_audio_layer(audio_loader *l, uint32_t i) {
    static const char *const first[] = { "ffn_norm", "ffn_up", "ffn_down", "ffn_post_norm" };
    static const char *const second[] = { "ffn_norm_1", "ffn_up_1", "ffn_down_1", "ffn_post_norm_1" };
    const uint64_t           n = l->w->config.width;
    audio_layer             *w = &l->w->layer[i];
    load_audio_feed_forward(l, i, &w->ff[0], first);
    w->attention_norm = audio_vector(l, i, l->names->attention_norm, n);
    w->q = audio_matrix(l, i, "attn_q", n, n);
    w->k = audio_matrix(l, i, "attn_k", n, n);
    w->v = audio_matrix(l, i, "attn_v", n, n);
    w->out = audio_matrix(l, i, "attn_out", n, n);
    w->attention_post_norm = audio_vector(l, i, l->names->attention_post_norm, n);
    load_query_scale(l, i);
    load_relative(l, i);
    w->conv_norm = audio_vector(l, i, "conv_norm", n);
    w->conv_in = audio_matrix(l, i, "conv_pw1", n, 2 * n);
    load_taps(l, i);
    w->conv_inner_norm = audio_vector(l, i, "norm_conv", n);
    w->conv_out = audio_matrix(l, i, "conv_pw2", n, n);
    load_audio_feed_forward(l, i, &w->ff[1], second);
    w->output_norm = audio_vector(l, i, l->names->output_norm, n);
}

static void load_audio_encoder(audio_loader *l) {
    const audio_config *c = &l->w->config;
    const uint64_t      flat = (uint64_t)c->channels[1] * (AUDIO_MEL_BINS / 4);
    for (size_t i = 0; i < 2; i++) load_convolution(l, i);
    l->w->input_projection = loader_matrix(&l->from, l->names->input_projection, flat, c->width, 1, true);
    l->w->output_projection = loader_matrix(&l->from, l->names->output_projection, c->width, c->output_width, 1, true);
    l->w->output_bias = loader_vector(&l->from, l->names->output_bias, c->output_width, true);
    l->w->layer = l->from.status ? NULL : arena_array(&l->w->memory, c->layers, sizeof *l->w->layer);
    if (!l->from.status && !l->w->layer)
        l->from.status = fail_memory(l->from.e, "the audio tower's layers", c->layers * sizeof *l->w->layer);
    if (!l->from.status && !l->from.shapes) make_waves(l);
    for (uint32_t i = 0; i < c->layers && !l->from.status; i++) load_audio_layer(l, i);
    free(l->waves);
}

/* The one matrix that connects tower and text model: it shows whether they belong together. */
static void load_audio_projection(audio_loader *l) {
    const audio_config *c = &l->w->config;
    uint64_t            ne[4] = { 0 };
    loader_any(&l->from, "mm.a.input_projection.weight", ne, true);
    if (!l->from.status && ne[1] != c->soft_width)
        l->from.status = fail(
            l->from.e, GM_BAD_FILE,
            "the audio tower does not fit the model: it makes rows of %llu values, but the text model's width is %u",
            (unsigned long long)ne[1], c->soft_width);
    l->w->projection = loader_matrix(&l->from, "mm.a.input_projection.weight", c->layers ? c->output_width : c->frame,
                                     c->soft_width, 1, true);
}

static gm_status audio_read(const gguf *file, uint32_t soft_width, bool shapes, audio_weights *out, error *e) {
    *out = (audio_weights){ 0 };
    audio_loader l = { .w = out, .from = { .file = file, .memory = &out->memory, .shapes = shapes, .e = e } };
    TRY(audio_find(&l));
    audio_config_read(&l, soft_width);
    load_audio_projection(&l);
    if (out->config.layers && !l.from.status) load_audio_encoder(&l);
    if (l.from.status) audio_free(out);
    return l.from.status;
}

gm_status audio_load(const gguf *file, uint32_t soft_width, audio_weights *out, error *e) {
    return audio_read(file, soft_width, false, out, e);
}

gm_status audio_shapes(const gguf *file, uint32_t soft_width, audio_weights *out, error *e) {
    return audio_read(file, soft_width, true, out, e);
}

void audio_free(audio_weights *w) {
    arena_free(&w->memory);
    *w = (audio_weights){ 0 };
}
