/* Finds a model's weights and checks them against the hyper-parameters. */

#include "model/loader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    model        *m;
    weight_loader from;
} loader;

/* "blk.<layer>.<name>", in a buffer that the next call reuses. */
typedef struct {
    char text[96];
} layer_name;

static const char *layer_tensor(layer_name *n, uint32_t layer, const char *name) {
    snprintf(n->text, sizeof n->text, "blk.%u.%s", layer, name);
    return n->text;
}

static void load_attention(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    const layer_config *layer = &c->layer[i];
    layer_weights      *w = &l->m->layer[i];
    const uint64_t d = c->width, q = (uint64_t)layer->heads * layer->head, kv = (uint64_t)layer->kv_heads * layer->head;
    layer_name     n;

    w->attn_norm = loader_vector(&l->from, layer_tensor(&n, i, "attn_norm.weight"), d, true);
    w->attn_q = loader_matrix(&l->from, layer_tensor(&n, i, "attn_q.weight"), d, q, 1, true);
    w->attn_q_norm = loader_vector(&l->from, layer_tensor(&n, i, "attn_q_norm.weight"), layer->head, true);
    w->attn_output = loader_matrix(&l->from, layer_tensor(&n, i, "attn_output.weight"), q, d, 1, true);
    w->post_attention_norm = loader_vector(&l->from, layer_tensor(&n, i, "post_attention_norm.weight"), d, true);
    if (!layer->owns_kv) return; /* files may contain k and v of sharing layers, which are never used */
    w->attn_k = loader_matrix(&l->from, layer_tensor(&n, i, "attn_k.weight"), d, kv, 1, true);
    w->attn_k_norm = loader_vector(&l->from, layer_tensor(&n, i, "attn_k_norm.weight"), layer->head, true);
    /* Full layers of the large models have no attn_v: their values are the raw keys. */
    const bool keys_are_values_allowed = !layer->sliding && !c->per_layer_width;
    w->attn_v = loader_matrix(&l->from, layer_tensor(&n, i, "attn_v.weight"), d, kv, 1, !keys_are_values_allowed);
}

static void load_feed_forward(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    layer_weights      *w = &l->m->layer[i];
    const uint64_t      d = c->width, ff = c->layer[i].feed_forward;
    layer_name          n;

    w->ffn_norm = loader_vector(&l->from, layer_tensor(&n, i, "ffn_norm.weight"), d, true);
    w->ffn_gate = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_gate.weight"), d, ff, 1, true);
    w->ffn_up = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_up.weight"), d, ff, 1, true);
    w->ffn_down = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_down.weight"), ff, d, 1, true);
    w->post_ffw_norm = loader_vector(&l->from, layer_tensor(&n, i, "post_ffw_norm.weight"), d, true);
    const weight scale = loader_vector(&l->from, layer_tensor(&n, i, "layer_output_scale.weight"), 1, false);
    w->output_scale = scale.data ? *(const float *)scale.data : 1;
    if (c->canvas.length) {
        const weight encoder = loader_vector(&l->from, layer_tensor(&n, i, "enc_layer_output_scale.weight"), 1, true);
        w->encoder_scale = encoder.data ? *(const float *)encoder.data : 1;
    } else w->encoder_scale = w->output_scale;

    const uint64_t p = c->per_layer_width;
    if (!p) return;
    w->inp_gate = loader_matrix(&l->from, layer_tensor(&n, i, "inp_gate.weight"), d, p, 1, true);
    w->proj = loader_matrix(&l->from, layer_tensor(&n, i, "proj.weight"), p, d, 1, true);
    w->post_norm = loader_vector(&l->from, layer_tensor(&n, i, "post_norm.weight"), d, true);
}

static void load_experts(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    layer_weights      *w = &l->m->layer[i];
    const uint64_t      d = c->width, ff = c->expert_feed_forward, experts = c->experts;
    layer_name          n;

    if (!experts) return;
    w->router = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_gate_inp.weight"), d, experts, 1, true);
    w->router_scale = loader_vector(&l->from, layer_tensor(&n, i, "ffn_gate_inp.scale"), d, true);
    w->gate_up_exps =
        loader_matrix(&l->from, layer_tensor(&n, i, "ffn_gate_up_exps.weight"), d, 2 * ff, experts, false);
    if (!w->gate_up_exps.name) { /* early files have them in two tensors */
        w->gate_exps = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_gate_exps.weight"), d, ff, experts, true);
        w->up_exps = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_up_exps.weight"), d, ff, experts, true);
    }
    w->down_exps = loader_matrix(&l->from, layer_tensor(&n, i, "ffn_down_exps.weight"), ff, d, experts, true);
    w->expert_scale = loader_vector(&l->from, layer_tensor(&n, i, "ffn_down_exps.scale"), experts, false);
    if (!w->expert_scale.name)
        w->expert_scale = loader_vector(&l->from, layer_tensor(&n, i, "ffn_gate_inp.per_expert_scale"), experts, false);
    w->pre_ffw_norm_2 = loader_vector(&l->from, layer_tensor(&n, i, "pre_ffw_norm_2.weight"), d, true);
    w->post_ffw_norm_1 = loader_vector(&l->from, layer_tensor(&n, i, "post_ffw_norm_1.weight"), d, true);
    w->post_ffw_norm_2 = loader_vector(&l->from, layer_tensor(&n, i, "post_ffw_norm_2.weight"), d, true);
}

/* If only some layers have a tensor, the file is damaged, and nothing else would notice. */
static void check_agreement(loader *l) {
    const model_config *c = &l->m->config;
    int                 raw_values = -1, scaled = -1;
    layer_name          n;
    for (uint32_t i = 0; i < c->layers && !l->from.status; i++) {
        const int has_scale = gguf_find_tensor(l->m->file, layer_tensor(&n, i, "layer_output_scale.weight")) != NULL;
        if (scaled >= 0 && scaled != has_scale) {
            l->from.status = fail(l->from.e, GM_BAD_FILE,
                                  "tensor 'blk.%u.layer_output_scale.weight' is missing, but other layers have one",
                                  has_scale ? i - 1 : i);
        }
        scaled = has_scale;
        if (c->layer[i].sliding || !c->layer[i].owns_kv) continue;
        const int is_raw = !l->m->layer[i].attn_v.name;
        if (raw_values >= 0 && raw_values != is_raw)
            l->from.status =
                fail(l->from.e, GM_BAD_FILE,
                     "tensor 'blk.%u.attn_v.weight': some full layers have this tensor and some do not", i);
        raw_values = is_raw;
    }
}

/* Refuses a file with tensors that its metadata denies: the model would silently compute without them. */
static void check_unexpected(loader *l) {
    const model_config *c = &l->m->config;
    const struct {
        const char *tensor, *key;
        bool        used;
    } rows[] = {
        { "per_layer_token_embd.weight", "embedding_length_per_layer_input", c->per_layer_width != 0 },
        { "blk.0.ffn_gate_inp.weight", "expert_count", c->experts != 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows) && !l->from.status; i++) {
        if (rows[i].used || !gguf_find_tensor(l->m->file, rows[i].tensor)) continue;
        l->from.status =
            fail(l->from.e, GM_BAD_FILE, "metadata key '%s.%s' is 0 or missing, but there is a tensor '%s'",
                 c->canvas.length ? "diffusion-gemma" : "gemma4", rows[i].key, rows[i].tensor);
    }
}

/* Pair j of a head of n values rotates by base^(-2j/n) per position. On full layers only the first quarter of the pairs rotates:
 * rope_freqs divides the others by 1e30. Without that tensor the rule is j < n/8. */
static void load_frequencies(loader *l, bool sliding, weight *out) {
    const model_config *c = &l->m->config;
    uint32_t            head = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->layer[i].sliding == sliding) head = c->layer[i].head;
    }
    if (!head || l->from.status) return;
    const uint32_t pairs = head / 2;
    const weight   factors = sliding ? (weight){ 0 } : loader_vector(&l->from, "rope_freqs.weight", pairs, false);
    float         *values = loader_new_vector(&l->from, "rope frequencies", pairs, out);
    if (!values) return;
    const double base = sliding ? c->rope_base_sliding : c->rope_base_full;
    for (uint32_t j = 0; j < pairs; j++) {
        const double frequency = pow(base, -2.0 * j / head);
        if (sliding) values[j] = (float)frequency;
        else if (factors.data) values[j] = (float)(frequency / ((const float *)factors.data)[j]);
        else values[j] = j < head / 8 ? (float)frequency : 0;
    }
}

static uint64_t weight_row_bytes(const weight *w) { return w->name ? w->bytes / w->ne[1] / w->ne[2] : 0; }

static void count_bytes(model *m) {
    const model_config *c = &m->config;
    const weight       *head = m->output.name ? &m->output : &m->token_embd;
    for (size_t i = 0; i < gguf_tensor_count(m->file); i++) m->parameters += gguf_tensor_at(m->file, i)->count;
    m->bytes_per_token = head->bytes + weight_row_bytes(&m->token_embd) + weight_row_bytes(&m->per_layer_token_embd) +
                         m->per_layer_model_proj.bytes + m->per_layer_proj_norm.bytes + m->output_norm.bytes;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_weights *w = &m->layer[i];
        const weight *const  always[] = {
            &w->attn_norm,      &w->attn_q,       &w->attn_k,         &w->attn_v,
            &w->attn_output,    &w->attn_q_norm,  &w->attn_k_norm,    &w->post_attention_norm,
            &w->ffn_norm,       &w->ffn_gate,     &w->ffn_up,         &w->ffn_down,
            &w->post_ffw_norm,  &w->inp_gate,     &w->proj,           &w->post_norm,
            &w->router,         &w->router_scale, &w->pre_ffw_norm_2, &w->post_ffw_norm_1,
            &w->post_ffw_norm_2
        };
        const weight *const chosen[] = { &w->gate_up_exps, &w->gate_exps, &w->up_exps, &w->down_exps };
        for (size_t j = 0; j < COUNT_OF(always); j++) m->bytes_per_token += always[j]->bytes;
        for (size_t j = 0; j < COUNT_OF(chosen); j++) {
            if (c->experts) m->bytes_per_token += chosen[j]->bytes / c->experts * c->experts_used;
        }
    }
}

/* Self-conditioning is a feed-forward layer of its own; its width is that of its matrix. */
static void load_self_conditioning(loader *l) {
    const gguf_tensor *gate = gguf_find_tensor(l->m->file, "self_cond_gate.weight");
    const uint64_t     d = l->m->config.width, ff = gate && gate->ne[1] ? gate->ne[1] : 1;
    if (!l->m->config.canvas.length) return;
    if (l->m->output.name && !l->from.status)
        l->from.status = fail(l->from.e, GM_UNSUPPORTED,
                              "there is a tensor 'output.weight', but the head of a diffusion model is its embedding");
    l->m->self_norm = loader_vector(&l->from, "self_cond_pre_norm.weight", d, true);
    l->m->self_gate = loader_matrix(&l->from, "self_cond_gate.weight", d, ff, 1, true);
    l->m->self_up = loader_matrix(&l->from, "self_cond_up.weight", d, ff, 1, true);
    l->m->self_down = loader_matrix(&l->from, "self_cond_down.weight", ff, d, 1, true);
}

static gm_status load_all(loader *l) {
    model              *out = l->m;
    const model_config *c = &out->config;
    TRY(model_config_read(out->file, &out->memory, &out->config, l->from.e));
    out->layer = arena_array(&out->memory, c->layers, sizeof *out->layer);
    if (!out->layer) return fail_memory(l->from.e, "the layers' weights", c->layers * sizeof *out->layer);
    const uint64_t d = c->width, p = (uint64_t)c->per_layer_width * c->layers;
    out->token_embd = loader_matrix(&l->from, "token_embd.weight", d, c->vocabulary, 1, true);
    out->output = loader_matrix(&l->from, "output.weight", d, c->vocabulary, 1, false);
    out->output_norm = loader_vector(&l->from, "output_norm.weight", d, true);
    if (p) {
        out->per_layer_token_embd = loader_matrix(&l->from, "per_layer_token_embd.weight", p, c->vocabulary, 1, true);
        out->per_layer_model_proj = loader_matrix(&l->from, "per_layer_model_proj.weight", d, p, 1, true);
        out->per_layer_proj_norm = loader_vector(&l->from, "per_layer_proj_norm.weight", c->per_layer_width, true);
    }
    for (uint32_t i = 0; i < c->layers && !l->from.status; i++) {
        load_attention(l, i);
        load_feed_forward(l, i);
        load_experts(l, i);
    }
    load_self_conditioning(l);
    check_agreement(l);
    check_unexpected(l);
    load_frequencies(l, true, &out->frequencies_sliding);
    load_frequencies(l, false, &out->frequencies_full);
    return l->from.status;
}

static gm_status model_read(const gguf *file, bool shapes, model *out, error *e) {
    *out = (model){ .file = file };
    const gm_status status =
        load_all(&(loader){ .m = out, .from = { .file = file, .memory = &out->memory, .shapes = shapes, .e = e } });
    if (status) model_free(out);
    else count_bytes(out);
    return status;
}

gm_status model_load(const gguf *file, model *out, error *e) { return model_read(file, false, out, e); }

gm_status model_shapes(const gguf *file, model *out, error *e) { return model_read(file, true, out, e); }

void model_free(model *m) {
    arena_free(&m->memory);
    *m = (model){ 0 };
}

gm_status model_find_nan(const model *m, error *e) {
    for (size_t i = 0; i < gguf_tensor_count(m->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(m->file, i);
        const uint8_t     *data = source_held(gguf_source(m->file, t->part), t->offset, t->bytes);
        const uint64_t     blocks = t->count / t->format->block,
                       broken = data ? quant_first_broken(t->type, data, blocks) : blocks;
        if (broken == blocks) continue;
        return fail(e, GM_BAD_FILE, "tensor '%.*s' (%s) holds NaN or an infinity in block %llu: the file is damaged",
                    STR_ARGS(t->name), t->format->name, (unsigned long long)broken);
    }
    return GM_OK;
}
