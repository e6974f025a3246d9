#include "model/miniature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_WIDTH = 768, SMALL_FEED_FORWARD = 512, SMALL_VOCABULARY = 512, SMALL_WINDOW = 16, MOST_LAYERS = 16 };

/* ---- shapes ---- */

typedef enum {
    DIM_NONE,
    DIM_WIDTH,
    DIM_Q,
    DIM_KV,
    DIM_HEAD,
    DIM_FEED_FORWARD,
    DIM_PER_LAYER,
    DIM_EXPERTS,
    DIM_EXPERT,
    DIM_EXPERT_PAIR
} small_dim;

#define SHAPE(field, ...)                                                                                              \
    {                                                                                                                  \
        offsetof(layer_weights, field), { __VA_ARGS__ }                                                                \
    }
static const struct {
    size_t    offset;
    small_dim dims[3];
} layer_shapes[] = {
    SHAPE(attn_norm, DIM_WIDTH),
    SHAPE(attn_q, DIM_WIDTH, DIM_Q),
    SHAPE(attn_k, DIM_WIDTH, DIM_KV),
    SHAPE(attn_v, DIM_WIDTH, DIM_KV),
    SHAPE(attn_output, DIM_Q, DIM_WIDTH),
    SHAPE(attn_q_norm, DIM_HEAD),
    SHAPE(attn_k_norm, DIM_HEAD),
    SHAPE(post_attention_norm, DIM_WIDTH),
    SHAPE(ffn_norm, DIM_WIDTH),
    SHAPE(ffn_gate, DIM_WIDTH, DIM_FEED_FORWARD),
    SHAPE(ffn_up, DIM_WIDTH, DIM_FEED_FORWARD),
    SHAPE(ffn_down, DIM_FEED_FORWARD, DIM_WIDTH),
    SHAPE(post_ffw_norm, DIM_WIDTH),
    SHAPE(inp_gate, DIM_WIDTH, DIM_PER_LAYER),
    SHAPE(proj, DIM_PER_LAYER, DIM_WIDTH),
    SHAPE(post_norm, DIM_WIDTH),
    SHAPE(router, DIM_WIDTH, DIM_EXPERTS),
    SHAPE(router_scale, DIM_WIDTH),
    SHAPE(gate_up_exps, DIM_WIDTH, DIM_EXPERT_PAIR, DIM_EXPERTS),
    SHAPE(gate_exps, DIM_WIDTH, DIM_EXPERT, DIM_EXPERTS),
    SHAPE(up_exps, DIM_WIDTH, DIM_EXPERT, DIM_EXPERTS),
    SHAPE(down_exps, DIM_EXPERT, DIM_WIDTH, DIM_EXPERTS),
    SHAPE(expert_scale, DIM_EXPERTS),
    SHAPE(pre_ffw_norm_2, DIM_WIDTH),
    SHAPE(post_ffw_norm_1, DIM_WIDTH),
    SHAPE(post_ffw_norm_2, DIM_WIDTH),
};
#undef SHAPE

typedef struct {
    const weight *of; /* NULL: `scale` */
    float         scale;
    char          name[96];
    uint32_t      dims;
    uint64_t      ne[3], bytes;
    uint8_t      *read;   /* its bytes, if they were not in memory */
    const void   *inside; /* where they are in the small model's file */
} small_tensor;

struct miniature {
    const model  *of;
    reads        *reads;
    model_config  config; /* of the small model; without its layers */
    uint32_t      layers[MOST_LAYERS], count, sharing;
    small_tensor *tensors;
    size_t        tensor_count;
    size_t        next; /* to be read */
    uint32_t      ticket;
    buffer        bytes;
    gguf         *file;
    model         small;
    bool          made;
};

const model *miniature_model(const miniature *m) { return &m->small; }

const weight *miniature_origin(const miniature *m, const void *data) {
    for (size_t i = 0; i < m->tensor_count; i++) {
        if (m->tensors[i].inside == data && m->tensors[i].of) return m->tensors[i].of;
    }
    return NULL;
}

/* ---- what it is made of ---- */

static const weight *layer_weight(const layer_weights *w, size_t i) {
    return (const weight *)((const char *)w + layer_shapes[i].offset);
}

/* Whether two layers compute in the same way, on the same types. */
static bool layers_alike(const model *m, uint32_t a, uint32_t b) {
    const layer_config *x = &m->config.layer[a], *y = &m->config.layer[b];
    if (x->sliding != y->sliding || x->owns_kv != y->owns_kv || x->heads != y->heads || x->kv_heads != y->kv_heads)
        return false;
    for (size_t i = 0; i < COUNT_OF(layer_shapes); i++) {
        const weight *v = layer_weight(&m->layer[a], i), *w = layer_weight(&m->layer[b], i);
        if (!v->name != !w->name || (v->name && v->type != w->type)) return false;
    }
    return true;
}

/* A layer of each kind. Layers that share keys and values come last, as in the model. */
static void choose_layers(miniature *m) {
    for (uint32_t i = 0; i < m->of->config.layers && m->count < MOST_LAYERS; i++) {
        bool known = false;
        for (uint32_t j = 0; j < m->count; j++) known = known || layers_alike(m->of, m->layers[j], i);
        if (known) continue;
        m->layers[m->count++] = i;
        m->sharing += !m->of->config.layer[i].owns_kv;
    }
}

static uint32_t at_most(uint32_t value, uint32_t most) { return value < most ? value : most; }

static uint64_t small_size(const miniature *m, const layer_config *l, small_dim dim) {
    const model_config *c = &m->config;
    switch (dim) {
    case DIM_WIDTH: return c->width;
    case DIM_Q: return (uint64_t)l->heads * l->head;
    case DIM_KV: return (uint64_t)l->kv_heads * l->head;
    case DIM_HEAD: return l->head;
    case DIM_FEED_FORWARD: return at_most(l->feed_forward, SMALL_FEED_FORWARD);
    case DIM_PER_LAYER: return c->per_layer_width;
    case DIM_EXPERTS: return c->experts;
    case DIM_EXPERT: return c->expert_feed_forward;
    case DIM_EXPERT_PAIR: return 2 * (uint64_t)c->expert_feed_forward;
    default: return 1;
    }
}

static small_tensor *miniature_add(miniature *m, const weight *of, uint64_t n0, uint64_t n1, uint64_t n2) {
    small_tensor *t = &m->tensors[m->tensor_count];
    if (!of->name) return NULL;
    *t = (small_tensor){ .of = of, .dims = n2 > 1 ? 3 : n1 > 1 ? 2 : 1, .ne = { n0, n1, n2 } };
    t->bytes = quant_row_bytes(quant_format_of(of->type), n0) * n1 * n2;
    snprintf(t->name, sizeof t->name, "%s", of->name);
    m->tensor_count++;
    return t;
}

static void miniature_add_layer(miniature *m, uint32_t index) {
    const uint32_t       from = m->layers[index];
    const layer_config  *l = &m->of->config.layer[from];
    const layer_weights *w = &m->of->layer[from];
    for (size_t i = 0; i < COUNT_OF(layer_shapes); i++) {
        const small_dim *d = layer_shapes[i].dims;
        const weight    *of = layer_weight(w, i);
        small_tensor *t = miniature_add(m, of, small_size(m, l, d[0]), small_size(m, l, d[1]), small_size(m, l, d[2]));
        const char   *rest = t ? strchr(of->name + strlen("blk."), '.') : NULL;
        if (rest) snprintf(t->name, sizeof t->name, "blk.%u%s", index, rest);
    }
    small_tensor *scale = &m->tensors[m->tensor_count++];
    *scale = (small_tensor){ .scale = w->output_scale, .dims = 1, .ne = { 1, 1, 1 }, .bytes = sizeof scale->scale };
    snprintf(scale->name, sizeof scale->name, "blk.%u.layer_output_scale.weight", index);
}

static gm_status miniature_list(miniature *m, error *e) {
    const model        *of = m->of;
    const model_config *c = &m->config;
    const uint64_t      per_layer = (uint64_t)c->per_layer_width * m->count;
    const size_t        most = 6 + m->count * (COUNT_OF(layer_shapes) + 1);
    m->tensors = calloc(most, sizeof *m->tensors);
    if (!m->tensors) return fail_memory(e, "a small model", most * sizeof *m->tensors);
    miniature_add(m, &of->token_embd, c->width, c->vocabulary, 1);
    miniature_add(m, &of->output, c->width, c->vocabulary, 1);
    miniature_add(m, &of->output_norm, c->width, 1, 1);
    miniature_add(m, &of->per_layer_token_embd, per_layer, c->vocabulary, 1);
    miniature_add(m, &of->per_layer_model_proj, c->width, per_layer, 1);
    miniature_add(m, &of->per_layer_proj_norm, c->per_layer_width, 1, 1);
    for (uint32_t i = 0; i < m->count; i++) miniature_add_layer(m, i);
    return GM_OK;
}

gm_status miniature_new(const model *of, reads *r, miniature **out, error *e) {
    const model_config *c = &of->config;
    miniature          *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return fail_memory(e, "a small model", sizeof *m);
    *m = (miniature){ .of = of, .reads = r, .config = *c };
    m->config.width = at_most(c->width, SMALL_WIDTH);
    m->config.vocabulary = at_most(c->vocabulary, SMALL_VOCABULARY + c->vocabulary % 4); /* kernels depend on that */
    m->config.window = at_most(c->window, SMALL_WINDOW);
    m->config.experts = c->experts_used; /* all are chosen: rounding changes no choice */
    m->config.expert_feed_forward = at_most(c->expert_feed_forward, SMALL_FEED_FORWARD);
    choose_layers(m);
    const gm_status status = miniature_list(m, e);
    if (status) miniature_free(m);
    else *out = m;
    return status;
}

void miniature_free(miniature *m) {
    if (!m) return;
    if (m->made) model_free(&m->small);
    if (m->file) gguf_free(m->file);
    if (m->ticket) reads_drop(m->reads, m->ticket);
    for (size_t i = 0; m->tensors && i < m->tensor_count; i++) free(m->tensors[i].read);
    free(m->tensors);
    buffer_free(&m->bytes);
    free(m);
}

/* ---- making it ---- */

/* Blocks that are in the source only come into memory. */
static gm_status miniature_read(miniature *m, small_tensor *t, error *e) {
    if (!m->reads || t->bytes > READ_BYTES_MOST) return fail(e, GM_IO, "tensor '%s' is not in memory", t->of->name);
    if (!t->read) t->read = malloc((size_t)t->bytes);
    if (!t->read) return fail_memory(e, t->of->name, t->bytes);
    if (!m->ticket)
        m->ticket = reads_ask(
            m->reads,
            &(read_order){ .from = t->of->from, .offset = t->of->place, .length = t->bytes, .memory = t->read });
    if (!m->ticket) return GM_AGAIN;
    const gm_status status = reads_take(m->reads, m->ticket, e);
    if (status != GM_AGAIN) m->ticket = 0;
    return status;
}

static void write_key_u32(gguf_writer *w, const char *key, uint32_t value) {
    char whole[96];
    snprintf(whole, sizeof whole, "gemma4.%s", key);
    gguf_write_u32(w, whole, value);
}

static void write_layer_keys(const miniature *m, gguf_writer *w) {
    uint32_t heads[MOST_LAYERS], kv_heads[MOST_LAYERS], feed_forward[MOST_LAYERS], full = 0, small = 0;
    uint8_t  sliding[MOST_LAYERS];
    for (uint32_t i = 0; i < m->count; i++) {
        const layer_config *l = &m->of->config.layer[m->layers[i]];
        heads[i] = l->heads;
        kv_heads[i] = l->kv_heads;
        feed_forward[i] = (uint32_t)small_size(m, l, DIM_FEED_FORWARD);
        sliding[i] = l->sliding;
        *(l->sliding ? &small : &full) = l->head;
    }
    write_key_u32(w, "attention.key_length", full ? full : small);
    write_key_u32(w, "attention.key_length_swa", small ? small : full);
    gguf_write_array(w, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, sliding, m->count);
    gguf_write_array(w, "gemma4.attention.head_count", GGUF_U32, heads, m->count);
    gguf_write_array(w, "gemma4.attention.head_count_kv", GGUF_U32, kv_heads, m->count);
    gguf_write_array(w, "gemma4.feed_forward_length", GGUF_U32, feed_forward, m->count);
}

static gm_status miniature_write(miniature *m, gguf_writer *w, error *e) {
    const model_config *c = &m->config;
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    write_key_u32(w, "block_count", m->count);
    write_key_u32(w, "embedding_length", c->width);
    write_key_u32(w, "context_length", c->context);
    write_key_u32(w, "attention.sliding_window", c->window);
    write_key_u32(w, "attention.shared_kv_layers", m->sharing);
    if (c->per_layer_width) write_key_u32(w, "embedding_length_per_layer_input", c->per_layer_width);
    if (c->experts) {
        write_key_u32(w, "expert_count", c->experts);
        write_key_u32(w, "expert_used_count", c->experts_used);
        write_key_u32(w, "expert_feed_forward_length", c->expert_feed_forward);
    }
    gguf_write_f32(w, "gemma4.attention.layer_norm_rms_epsilon", c->eps);
    gguf_write_f32(w, "gemma4.final_logit_softcapping", c->softcap);
    gguf_write_f32(w, "gemma4.rope.freq_base", c->rope_base_full);
    gguf_write_f32(w, "gemma4.rope.freq_base_swa", c->rope_base_sliding);
    write_layer_keys(m, w);
    for (size_t i = 0; i < m->tensor_count; i++) {
        const small_tensor *t = &m->tensors[i];
        gguf_write_tensor(w, t->name, t->of ? t->of->type : TYPE_F32, t->dims, t->ne);
    }
    TRY(gguf_writer_head(w, buffer_sink, &m->bytes, e));
    for (size_t i = 0; i < m->tensor_count; i++) {
        const small_tensor *t = &m->tensors[i];
        const void         *data = !t->of ? &t->scale : t->read ? t->read : t->of->data;
        TRY(gguf_writer_data(w, data, t->bytes, e));
    }
    return gguf_writer_end(w, e);
}

static gm_status miniature_load(miniature *m, error *e) {
    gguf_writer *w = NULL;
    TRY(gguf_writer_new(&w, e));
    gm_status status = miniature_write(m, w, e);
    gguf_writer_free(w);
    if (!status) status = gguf_open_memory(m->bytes.data, m->bytes.length, &m->file, e);
    if (!status) status = model_load(m->file, &m->small, e);
    m->made = !status;
    for (size_t i = 0; i < m->tensor_count && !status; i++) {
        small_tensor *t = &m->tensors[i];
        t->inside = gguf_tensor_data(m->file, gguf_find_tensor(m->file, t->name));
        free(t->read);
        t->read = NULL;
    }
    return status;
}

gm_status miniature_step(miniature *m, error *e) {
    for (; m->next < m->tensor_count; m->next++) {
        small_tensor *t = &m->tensors[m->next];
        if (!t->of || t->of->data) continue;
        const gm_status status = miniature_read(m, t, e);
        if (status) return status;
    }
    return m->made ? GM_OK : miniature_load(m, e);
}
