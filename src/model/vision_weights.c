/* Finds the weights of the vision tower and checks them. Ollama's file has them beside the text model's, llama.cpp's mmproj file by
 * themselves; tensors have the same names in both, metadata keys do not. */

#include "model/towers.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_SOFT_TOKENS = 1120, /* of a picture */
    MOST_TOWER_LAYERS = 1024,
    MOST_TOWER_WIDTH = 1 << 16,
    MOST_TOWER_HEAD = 512,
    CHANNELS = 3,
    MERGED = 3, /* patches along a side of a soft token */
};

typedef struct {
    vision_weights *w;
    weight_loader   from;
    const char     *prefix; /* of the metadata keys */
    weight          bounds; /* v.clamp_data: 4 bounds for each of 7 linears of each layer */
    char            text[128];
} vision_loader;

/* ---- hyper-parameters ---- */

static const char *vision_key(vision_loader *l, const char *name) {
    snprintf(l->text, sizeof l->text, "%s%s", l->prefix, name);
    return l->text;
}

static uint32_t vision_u32(vision_loader *l, const char *name, uint32_t least, uint32_t most) {
    uint32_t value = 0;
    if (l->from.status) return 0;
    l->from.status = gguf_get_u32(l->from.file, vision_key(l, name), &value, NULL, l->from.e);
    if (!l->from.status && (value < least || value > most))
        l->from.status = fail(l->from.e, GM_BAD_FILE, "metadata key '%s' must be between %u and %u, found %u",
                              vision_key(l, name), least, most, value);
    return value;
}

/* The file has a tower, and one that we know. */
static gm_status vision_find(vision_loader *l) {
    str   architecture = { "", 0 }, projector = { "", 0 };
    bool  found;
    error ignored = { 0 };
    gguf_get_str(l->from.file, "general.architecture", &architecture, &found, &ignored);
    const bool separate = str_is(architecture, "clip");
    l->prefix = separate ? "clip.vision." : "gemma4.vision.";
    if (!gguf_find_tensor(l->from.file, "v.patch_embd.weight"))
        return fail(l->from.e, GM_UNSUPPORTED, "there is no vision tower (no tensor 'v.patch_embd.weight')");
    if (!separate) return GM_OK;
    gguf_get_str(l->from.file, "clip.vision.projector_type", &projector, &found, &ignored);
    if (!found) gguf_get_str(l->from.file, "clip.projector_type", &projector, &found, &ignored);
    if (!found || str_is(projector, "gemma4v") || str_is(projector, "gemma4uv")) return GM_OK;
    return fail(l->from.e, GM_UNSUPPORTED,
                "the vision tower is of the type '%.*s'; Gemma 4's are 'gemma4v' and 'gemma4uv'", STR_ARGS(projector));
}

/* Ollama's files say how many patches a soft token has along a side; sizes of pictures depend on it. */
static void check_merged(vision_loader *l) {
    uint32_t merged = MERGED;
    bool     found;
    if (l->from.status) return;
    l->from.status = gguf_get_u32(l->from.file, vision_key(l, "projector.scale_factor"), &merged, &found, l->from.e);
    if (!l->from.status && merged != MERGED)
        l->from.status = fail(l->from.e, GM_UNSUPPORTED, "metadata key '%s' must be %d, found %u",
                              vision_key(l, "projector.scale_factor"), MERGED, merged);
}

static void vision_config_read(vision_loader *l) {
    vision_config *c = &l->w->config;
    const bool     encoder = !gguf_find_tensor(l->from.file, "v.patch_norm.1.weight");
    bool           found;
    uint32_t       patch = 16;
    c->eps = 1e-6f;
    c->width = vision_u32(l, "embedding_length", 1, MOST_TOWER_WIDTH);
    if (!l->from.status)
        l->from.status = gguf_get_u32(l->from.file, vision_key(l, "patch_size"), &patch, &found, l->from.e);
    if (!l->from.status && (!patch || patch > 64))
        l->from.status = fail(l->from.e, GM_BAD_FILE, "metadata key '%s' must be between 1 and 64, found %u",
                              vision_key(l, "patch_size"), patch);
    c->patch = encoder ? patch : patch * MERGED;
    c->merged = encoder ? MERGED : 1;
    check_merged(l);
    if (!encoder) return;
    c->layers = vision_u32(l, "block_count", 1, MOST_TOWER_LAYERS);
    c->heads = vision_u32(l, "attention.head_count", 1, 1024);
    c->feed_forward = vision_u32(l, "feed_forward_length", 1, MOST_TOWER_WIDTH);
    if (!l->from.status)
        l->from.status =
            gguf_get_f32(l->from.file, vision_key(l, "attention.layer_norm_epsilon"), &c->eps, &found, l->from.e);
    if (l->from.status) return;
    c->head = c->width / c->heads;
    if (c->width % c->heads || c->head % 4 || c->head > MOST_TOWER_HEAD)
        l->from.status = fail(l->from.e, GM_BAD_FILE,
                              "the vision tower has %u heads on a width of %u: heads must have a multiple of 4 values, "
                              "at most %d",
                              c->heads, c->width, MOST_TOWER_HEAD);
}

/* ---- tensors ---- */

/* In files a convolution, [patch, patch, channels, width], or already a matrix. */
static void load_patch_embedding(vision_loader *l) {
    const vision_config *c = &l->w->config;
    const uint64_t       values = (uint64_t)c->patch * c->patch * CHANNELS;
    uint64_t             ne[4] = { 0 };
    weight               w = loader_any(&l->from, "v.patch_embd.weight", ne, true);
    const bool           matrix = ne[0] == values && ne[1] == c->width && ne[2] == 1 && ne[3] == 1;
    const bool           convolution = ne[0] == c->patch && ne[1] == c->patch && ne[2] == CHANNELS && ne[3] == c->width;
    if (!l->from.status && !matrix && !convolution)
        l->from.status = fail(l->from.e, GM_BAD_FILE,
                              "tensor 'v.patch_embd.weight' has the shape [%llu, %llu, %llu, %llu]; the metadata "
                              "requires [%u, %u, 3, %u]",
                              (unsigned long long)ne[0], (unsigned long long)ne[1], (unsigned long long)ne[2],
                              (unsigned long long)ne[3], c->patch, c->patch, c->width);
    w.ne[0] = values;
    w.ne[1] = c->width;
    w.ne[2] = 1;
    l->w->patch_embd = w;
}

/* One tensor has the table for columns, and behind it the one for rows. Only what the largest picture needs is kept. */
static void load_positions(vision_loader *l) {
    vision_config *c = &l->w->config;
    uint64_t       ne[4] = { 0 };
    weight         both = loader_any(&l->from, "v.position_embd.weight", ne, true);
    if (l->from.status) return;
    if (ne[0] != c->width || !ne[1] || ne[2] != 2 || ne[3] != 1) {
        l->from.status =
            fail(l->from.e, GM_BAD_FILE,
                 "tensor 'v.position_embd.weight' has the shape [%llu, %llu, %llu, %llu]; expected [%u, positions, 2]",
                 (unsigned long long)ne[0], (unsigned long long)ne[1], (unsigned long long)ne[2],
                 (unsigned long long)ne[3], c->width);
        return;
    }
    const uint64_t table = both.bytes / 2, most = (uint64_t)MOST_SOFT_TOKENS * c->merged;
    c->positions = (uint32_t)(ne[1] < most ? ne[1] : most);
    both.ne[1] = c->positions;
    both.ne[2] = 1;
    both.bytes = table / ne[1] * c->positions;
    l->w->position_x = l->w->position_y = both;
    l->w->position_y.place += table;
    if (both.data) l->w->position_y.data = (const uint8_t *)both.data + table;
}

static const char *vision_tensor(vision_loader *l, uint32_t layer, const char *name, const char *end) {
    snprintf(l->text, sizeof l->text, "v.blk.%u.%s%s", layer, name, end);
    return l->text;
}

static weight vision_vector(vision_loader *l, uint32_t layer, const char *name, uint64_t n) {
    return loader_vector(&l->from, vision_tensor(l, layer, name, ".weight"), n, true);
}

static float vision_number(vision_loader *l, uint32_t layer, const char *name, const char *end, float otherwise) {
    const weight w = loader_vector(&l->from, vision_tensor(l, layer, name, end), 1, false);
    return w.data ? *(const float *)w.data : otherwise;
}

/* The bounds are tensors of their own, or together in v.clamp_data. `place` is the linear's number there. */
static clipped_linear vision_linear(vision_loader *l, uint32_t layer, size_t place, const char *name, uint64_t k,
                                    uint64_t m) {
    const float *bounds = l->bounds.data ? (const float *)l->bounds.data + (layer * 7 + place) * 4 : NULL;
    return tower_linear_load(&l->from, vision_tensor(l, layer, name, ""), k, m, bounds);
}

static void load_vision_layer(vision_loader *l, uint32_t i) {
    const vision_config *c = &l->w->config;
    vision_layer        *w = &l->w->layer[i];
    const uint64_t       n = c->width, ff = c->feed_forward;
    w->ln1 = vision_vector(l, i, "ln1", n);
    w->q = vision_linear(l, i, 0, "attn_q", n, n);
    w->k = vision_linear(l, i, 1, "attn_k", n, n);
    w->v = vision_linear(l, i, 2, "attn_v", n, n);
    w->out = vision_linear(l, i, 3, "attn_out", n, n);
    w->q_norm = vision_vector(l, i, "attn_q_norm", c->head);
    w->k_norm = vision_vector(l, i, "attn_k_norm", c->head);
    w->attention_post_norm = vision_vector(l, i, "attn_post_norm", n);
    w->ln2 = vision_vector(l, i, "ln2", n);
    w->gate = vision_linear(l, i, 4, "ffn_gate", n, ff);
    w->up = vision_linear(l, i, 5, "ffn_up", n, ff);
    w->down = vision_linear(l, i, 6, "ffn_down", ff, n);
    w->feed_forward_post_norm = vision_vector(l, i, "ffn_post_norm", n);
    w->output_scale = vision_number(l, i, "out_scale", ".weight", 1);
}

static void load_vision_layers(vision_loader *l) {
    const vision_config *c = &l->w->config;
    if (l->from.status) return;
    l->bounds = loader_vector(&l->from, "v.clamp_data", (c->layers * UINT64_C(7) + 1) * 4, false);
    l->w->layer = arena_array(l->from.memory, c->layers, sizeof *l->w->layer);
    if (!l->w->layer && !l->from.status)
        l->from.status = fail_memory(l->from.e, "the vision tower's layers", c->layers * sizeof *l->w->layer);
    for (uint32_t i = 0; i < c->layers && !l->from.status; i++) load_vision_layer(l, i);
    const uint32_t pairs = c->head / 4;
    float         *values = loader_new_vector(&l->from, "vision rope frequencies", pairs, &l->w->frequencies);
    for (uint32_t j = 0; values && j < pairs; j++) values[j] = (float)pow(100, -2.0 * j / (c->head / 2.0));
}

/* (p − bias) · scale becomes (p + (−bias)) · scale. */
static void load_standard(vision_loader *l) {
    const uint64_t n = l->w->config.width;
    const weight   bias = loader_vector(&l->from, "v.std_bias", n, false);
    l->w->scale = loader_vector(&l->from, "v.std_scale", n, bias.name != NULL);
    if (!bias.name && l->w->scale.name && !l->from.status)
        l->from.status = fail(l->from.e, GM_BAD_FILE, "tensor 'v.std_scale' has no 'v.std_bias' beside it");
    if (!bias.name) return;
    float *values = loader_new_vector(&l->from, "negative v.std_bias", n, &l->w->negative_bias);
    for (uint64_t i = 0; values && bias.data && i < n; i++) values[i] = -((const float *)bias.data)[i];
}

static void load_without_encoder(vision_loader *l) {
    const vision_config *c = &l->w->config;
    l->w->patch_bias = loader_vector(&l->from, "v.patch_embd.bias", c->width, true);
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t n = i ? c->width : (uint64_t)c->patch * c->patch * CHANNELS;
        snprintf(l->text, sizeof l->text, "v.patch_norm.%u.weight", i + 1);
        l->w->patch_norm[i] = loader_vector(&l->from, l->text, n, true);
        snprintf(l->text, sizeof l->text, "v.patch_norm.%u.bias", i + 1);
        l->w->patch_norm_bias[i] = loader_vector(&l->from, l->text, n, true);
    }
}

/* The one matrix that connects tower and text model: it shows whether they belong together. */
static void load_projection(vision_loader *l, uint32_t soft_width) {
    uint64_t ne[4] = { 0 };
    l->w->config.soft_width = soft_width;
    loader_any(&l->from, "mm.input_projection.weight", ne, true);
    if (!l->from.status && ne[1] != soft_width)
        l->from.status = fail(l->from.e, GM_BAD_FILE,
                              "the vision tower does not fit the model: it makes rows of %llu values, but the text "
                              "model's width is %u",
                              (unsigned long long)ne[1], soft_width);
    l->w->projection = loader_matrix(&l->from, "mm.input_projection.weight", l->w->config.width, soft_width, 1, true);
}

static gm_status vision_read(const gguf *file, uint32_t soft_width, bool shapes, vision_weights *out, error *e) {
    *out = (vision_weights){ 0 };
    vision_loader l = { .w = out, .from = { .file = file, .memory = &out->memory, .shapes = shapes, .e = e } };
    TRY(vision_find(&l));
    vision_config_read(&l);
    load_projection(&l, soft_width);
    load_patch_embedding(&l);
    load_positions(&l);
    if (out->config.layers) load_vision_layers(&l);
    else load_without_encoder(&l);
    load_standard(&l);
    if (l.from.status) vision_free(out);
    return l.from.status;
}

gm_status vision_load(const gguf *file, uint32_t soft_width, vision_weights *out, error *e) {
    return vision_read(file, soft_width, false, out, e);
}

gm_status vision_shapes(const gguf *file, uint32_t soft_width, vision_weights *out, error *e) {
    return vision_read(file, soft_width, true, out, e);
}

void vision_free(vision_weights *w) {
    arena_free(&w->memory);
    *w = (vision_weights){ 0 };
}
