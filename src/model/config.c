#include "model/config.h"

#include <math.h>
#include <stdio.h>

enum { MOST_LAYERS = 1024, MOST_HEADS = 1024, MOST_HEAD_SIZE = 1024, MOST_WIDTH = 1 << 20, MOST_CANVAS = 1024 };

/* Reads the keys of the model's architecture. After a failure it reads nothing more; model_config_read asks at the end. */
typedef struct {
    const gguf *g;
    str         architecture;
    char        key[128];
    gm_status   status; /* the first failure */
    error      *e;
} config_reader;

static const char *key_of(config_reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%.*s.%s", STR_ARGS(r->architecture), name);
    return r->key;
}

static void check_between(config_reader *r, const char *name, uint64_t value, uint64_t least, uint64_t most) {
    if (r->status || (value >= least && value <= most)) return;
    r->status = fail(r->e, GM_BAD_FILE, "metadata key '%s' must be between %llu and %llu, found %llu", key_of(r, name),
                     (unsigned long long)least, (unsigned long long)most, (unsigned long long)value);
}

static uint32_t config_u32(config_reader *r, const char *name, uint32_t least, uint32_t most) {
    uint32_t value = 0;
    if (!r->status && !(r->status = gguf_get_u32(r->g, key_of(r, name), &value, NULL, r->e)))
        check_between(r, name, value, least, most);
    return value;
}

static uint32_t config_u32_or(config_reader *r, const char *name, uint32_t otherwise, uint32_t least, uint32_t most) {
    bool     found = false;
    uint32_t value = otherwise;
    if (!r->status && !(r->status = gguf_get_u32(r->g, key_of(r, name), &value, &found, r->e)) && found)
        check_between(r, name, value, least, most);
    return value;
}

static float config_f32_or(config_reader *r, const char *name, float otherwise) {
    bool  found = false;
    float value = otherwise;
    if (r->status || (r->status = gguf_get_f32(r->g, key_of(r, name), &value, &found, r->e))) return otherwise;
    if (!isfinite(value) || value < 0) {
        r->status = fail(r->e, GM_BAD_FILE, "metadata key '%s' must be a finite number of at least 0, found %g",
                         key_of(r, name), (double)value);
    }
    return value;
}

static void config_per_layer(config_reader *r, const char *name, uint32_t *values, uint32_t layers, uint32_t least,
                             uint32_t most) {
    if (r->status || (r->status = gguf_get_u32s(r->g, key_of(r, name), values, layers, NULL, r->e))) return;
    for (uint32_t i = 0; i < layers; i++) check_between(r, name, values[i], least, most);
}

/* Keys of diffusion have no prefix of the architecture. */
static uint32_t canvas_u32(config_reader *r, const char *key, uint32_t otherwise, uint32_t least, uint32_t most) {
    bool     found = false;
    uint32_t value = otherwise;
    if (r->status || (r->status = gguf_get_u32(r->g, key, &value, &found, r->e)) || !found) return otherwise;
    if (value < least || value > most)
        r->status =
            fail(r->e, GM_BAD_FILE, "metadata key '%s' must be between %u and %u, found %u", key, least, most, value);
    return value;
}

static float canvas_f32(config_reader *r, const char *key, float otherwise, float least) {
    bool  found = false;
    float value = otherwise;
    if (r->status || (r->status = gguf_get_f32(r->g, key, &value, &found, r->e)) || !found) return otherwise;
    if (!(value >= least && value <= 1000))
        r->status = fail(r->e, GM_BAD_FILE, "metadata key '%s' must be between %g and 1000, found %g", key,
                         (double)least, (double)value);
    return value;
}

static void config_read_canvas(config_reader *r, canvas_config *c) {
    *c = (canvas_config){ .length = canvas_u32(r, "diffusion.canvas_length", 256, 1, MOST_CANVAS),
                          .steps = canvas_u32(r, "diffusion.eb_max_steps", 48, 1, CANVAS_MOST_STEPS),
                          .coolest = canvas_f32(r, "diffusion.eb_t_min", 0.4f, 0.001f),
                          .warmest = canvas_f32(r, "diffusion.eb_t_max", 0.8f, 0.001f),
                          .entropy_bound = canvas_f32(r, "diffusion.eb_entropy_bound", 0.1f, 0),
                          .stability = canvas_u32(r, "diffusion.eb_stability_threshold", 1, 0, CANVAS_MOST_STEPS),
                          .confidence = canvas_f32(r, "diffusion.eb_confidence_threshold", 0.005f, 0) };
}

/* true: sliding. The file has a bool per layer, or a number n: every n-th layer is full. */
static void config_pattern(config_reader *r, bool *sliding, uint32_t layers) {
    if (r->status) return;
    const char       *key = key_of(r, "attention.sliding_window_pattern");
    const gguf_value *value = gguf_find(r->g, key);
    if (!value) {
        r->status = fail(r->e, GM_BAD_FILE, "metadata key '%s' is missing; it says which layers are sliding", key);
        return;
    }
    if (!value->array && value->type != GGUF_BOOL) {
        uint32_t period = 0;
        if ((r->status = gguf_get_u32(r->g, key, &period, NULL, r->e))) return;
        check_between(r, "attention.sliding_window_pattern", period, 1, MOST_LAYERS);
        for (uint32_t i = 0; i < layers && period; i++) sliding[i] = (i + 1) % period != 0;
        return;
    }
    r->status = gguf_get_bools(r->g, key, sliding, layers, NULL, r->e);
}

/* A sharing layer reads the last layer of its own kind that owns a cache. */
static void find_donors(config_reader *r, model_config *c, uint32_t shared) {
    const uint32_t owners = c->layers - shared;
    for (uint32_t i = 0; i < c->layers && !r->status; i++) {
        layer_config *layer = &c->layer[i];
        layer->owns_kv = i < owners;
        layer->donor = i;
        if (layer->owns_kv) continue;
        uint32_t donor = owners;
        while (donor > 0 && c->layer[donor - 1].sliding != layer->sliding) donor--;
        if (donor == 0) {
            r->status = fail(r->e, GM_BAD_FILE,
                             "layer %u shares keys and values, but none of the %u layers with their own is %s", i,
                             owners, layer->sliding ? "sliding" : "full");
            return;
        }
        layer->donor = donor - 1;
        if (c->layer[layer->donor].kv_heads != layer->kv_heads) {
            r->status = fail(r->e, GM_BAD_FILE, "layer %u has %u K/V heads, but shares those of layer %u, which has %u",
                             i, layer->kv_heads, layer->donor, c->layer[layer->donor].kv_heads);
        }
    }
}

static void config_read_layers(config_reader *r, model_config *c, arena *a) {
    const size_t n = c->layers;
    uint32_t    *heads = arena_array(a, n, sizeof *heads), *kv_heads = arena_array(a, n, sizeof *kv_heads),
             *feed_forward = arena_array(a, n, sizeof *feed_forward);
    bool *sliding = arena_array(a, n, sizeof *sliding);
    c->layer = arena_array(a, n, sizeof *c->layer);
    if (!heads || !kv_heads || !feed_forward || !sliding || !c->layer) {
        r->status = fail_memory(r->e, "the layer table", n * sizeof *c->layer);
        return;
    }
    config_pattern(r, sliding, c->layers);
    config_per_layer(r, "attention.head_count", heads, c->layers, 1, MOST_HEADS);
    config_per_layer(r, "attention.head_count_kv", kv_heads, c->layers, 1, MOST_HEADS);
    config_per_layer(r, "feed_forward_length", feed_forward, c->layers, 1, MOST_WIDTH);
    const uint32_t full = config_u32(r, "attention.key_length", 2, MOST_HEAD_SIZE);
    const uint32_t small = config_u32_or(r, "attention.key_length_swa", full, 2, MOST_HEAD_SIZE);
    if (config_u32_or(r, "attention.value_length", full, 2, MOST_HEAD_SIZE) != full ||
        config_u32_or(r, "attention.value_length_swa", small, 2, MOST_HEAD_SIZE) != small) {
        r->status = fail(r->e, GM_UNSUPPORTED,
                         "keys and values of different sizes are not supported (attention.value_length, "
                         "attention.value_length_swa)");
    }
    if (config_u32_or(r, "rope.dimension_count", full, 0, MOST_HEAD_SIZE) != full ||
        config_u32_or(r, "rope.dimension_count_swa", small, 0, MOST_HEAD_SIZE) != small) {
        r->status = fail(r->e, GM_UNSUPPORTED,
                         "rope.dimension_count must be the size of a head (%u, and %u on sliding layers)", full, small);
    }
    for (uint32_t i = 0; i < c->layers && !r->status; i++) {
        const uint32_t head = sliding[i] ? small : full;
        c->layer[i] = (layer_config){ .sliding = sliding[i],
                                      .heads = heads[i],
                                      .kv_heads = kv_heads[i],
                                      .head = head,
                                      .feed_forward = feed_forward[i] };
        if (heads[i] % kv_heads[i]) {
            r->status = fail(r->e, GM_BAD_FILE,
                             "layer %u: attention.head_count %u is not a multiple of attention.head_count_kv %u", i,
                             heads[i], kv_heads[i]);
        }
        if (head % 2)
            r->status = fail(r->e, GM_BAD_FILE, "layer %u: a head of %u values cannot be rotated in pairs", i, head);
    }
    if (!r->status) find_donors(r, c, config_u32_or(r, "attention.shared_kv_layers", 0, 0, c->layers - 1));
}

gm_status model_config_read(const gguf *g, arena *a, model_config *out, error *e) {
    config_reader r = { .g = g, .e = e };
    *out = (model_config){ 0 };
    TRY(gguf_get_str(g, "general.architecture", &r.architecture, NULL, e));
    const bool diffusion = str_is(r.architecture, "diffusion-gemma");
    if (!diffusion && !str_is(r.architecture, "gemma4")) {
        return fail(e, GM_UNSUPPORTED,
                    "general.architecture is '%.*s'; this program runs 'gemma4' and 'diffusion-gemma' models",
                    STR_ARGS(r.architecture));
    }
    out->layers = config_u32(&r, "block_count", 1, MOST_LAYERS);
    out->width = config_u32(&r, "embedding_length", 1, MOST_WIDTH);
    out->context = config_u32(&r, "context_length", 1, 1u << 30);
    out->window = config_u32(&r, "attention.sliding_window", 1, 1u << 30);
    out->per_layer_width = config_u32_or(&r, "embedding_length_per_layer_input", 0, 0, MOST_WIDTH);
    out->image_blocks = !out->per_layer_width; /* no key says this: only models without per-layer embeddings do it */
    out->whole_blocks = diffusion;
    if (diffusion) config_read_canvas(&r, &out->canvas);
    out->experts = config_u32_or(&r, "expert_count", 0, 0, 65536);
    if (out->experts) {
        out->experts_used = config_u32(&r, "expert_used_count", 1, out->experts < 64 ? out->experts : 64);
        out->expert_feed_forward = config_u32(&r, "expert_feed_forward_length", 1, MOST_WIDTH);
    }
    out->eps = config_f32_or(&r, "attention.layer_norm_rms_epsilon", 1e-6f);
    out->softcap = config_f32_or(&r, "final_logit_softcapping", 0);
    out->rope_base_full = config_f32_or(&r, "rope.freq_base", 1e6f);
    out->rope_base_sliding = config_f32_or(&r, "rope.freq_base_swa", 1e4f);
    TRY(r.status);
    if (out->rope_base_full < 1 || out->rope_base_sliding < 1) {
        return fail(e, GM_BAD_FILE, "rope.freq_base and rope.freq_base_swa must be at least 1, found %g and %g",
                    (double)out->rope_base_full, (double)out->rope_base_sliding);
    }
    config_read_layers(&r, out, a);
    TRY(r.status);
    const gguf_tensor *embedding = gguf_find_tensor(g, "token_embd.weight");
    if (!embedding) return fail(e, GM_BAD_FILE, "tensor 'token_embd.weight' is missing");
    if (embedding->ne[1] < 1 || embedding->ne[1] > 1u << 24) {
        return fail(e, GM_BAD_FILE, "tensor 'token_embd.weight' has %llu rows; expected a vocabulary of 1 to 16777216",
                    (unsigned long long)embedding->ne[1]);
    }
    out->vocabulary = (uint32_t)embedding->ne[1];
    return GM_OK;
}
