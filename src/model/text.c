/* The text model as a graph, formula by formula. */

#include "model/text_parts.h"

#include <math.h>

tensor *weight_tensor(graph *g, const weight *w) {
    tensor *t = w->name ? graph_weight(g, w->name, w->type, w->ne, w->data) : NULL;
    if (t) t->from = w->from;
    if (t) t->place = w->place;
    return t;
}

/* ---- linears ---- */

static tensor *corrected(text_builder *b, tensor *y, const weight *w, tensor *x) {
    return corrections_add(&b->added, y, w->name, x);
}

/* x + Σ_s w_s · B_s · A_s[id], in which √d is part of B_s, as in the row of the table */
static tensor *corrected_embedding(text_builder *b, tensor *x) {
    lora_site site;
    if (!corrections_site(&b->added, b->m->token_embd.name, &site)) return x;
    return graph_lora_expand(b->g, &site, x, graph_lora_shrink_id(b->g, &site), NULL, 0);
}

static tensor *product(text_builder *b, const weight *w, tensor *x) {
    return graph_matmul(b->g, weight_tensor(b->g, w), x);
}

static tensor *linear(text_builder *b, const weight *w, tensor *x) { return corrected(b, product(b, w, x), w, x); }

static tensor *expert_linear(text_builder *b, const weight *w, tensor *x, tensor *routes) {
    const uint32_t used = b->c->experts_used;
    tensor        *y = graph_matmul_experts(b->g, weight_tensor(b->g, w), x, routes, used);
    lora_site      site;
    if (!corrections_site(&b->added, w->name, &site)) return y;
    tensor *seen = corrections_seen(&b->added, w->name, x);
    return graph_lora_expand(b->g, &site, y, graph_lora_shrink(b->g, &site, seen, routes, used), routes, used);
}

/* ---- layers ---- */

tensor *text_norm(text_builder *b, tensor *x, const weight *w) {
    return graph_rms_norm(b->g, x, weight_tensor(b->g, w), b->c->eps);
}

static tensor *norm_plain(text_builder *b, tensor *x) { return graph_rms_norm(b->g, x, NULL, b->c->eps); }

/* pli[l] = (rms(Wp·x · d^-½, w)[l] + E_pl[id][l] · √P) / √2; soft tokens have the row of id 0, the padding */
static tensor *per_layer_inputs(text_builder *b, tensor *x) {
    const uint32_t p = b->c->per_layer_width, layers = b->c->layers;
    tensor        *tokens = graph_embed(b->g, weight_tensor(b->g, &b->m->per_layer_token_embd), sqrtf((float)p));
    tensor *context = graph_scale(b->g, linear(b, &b->m->per_layer_model_proj, x), 1 / sqrtf((float)b->c->width));
    context = text_norm(b, graph_reshape(b->g, context, p, layers), &b->m->per_layer_proj_norm);
    return graph_scale(b->g, graph_add(b->g, context, graph_reshape(b->g, tokens, p, layers)), sqrtf(0.5f));
}

/* o = Wo · text_attention(rope(text_norm(Wq·a)), K, V); K = rope(text_norm(Wk·a)), V = rms(Wv·a), or of the raw keys without Wv */
static tensor *text_attention(text_builder *b, uint32_t i, tensor *a) {
    const layer_config  *layer = &b->c->layer[i];
    const layer_weights *w = &b->m->layer[i];
    tensor              *rope = layer->sliding ? b->rope_sliding : b->rope_full;
    const uint32_t       window = layer->sliding ? b->c->window : 0;

    /* the products first: backends compute them together */
    tensor *q = product(b, &w->attn_q, a), *k = layer->owns_kv ? product(b, &w->attn_k, a) : NULL;
    tensor *v = layer->owns_kv && w->attn_v.name ? product(b, &w->attn_v, a) : NULL, **cache = &b->caches[layer->donor];
    q = corrected(b, q, &w->attn_q, a);
    if (layer->owns_kv) {
        k = corrected(b, k, &w->attn_k, a);
        v = w->attn_v.name ? corrected(b, v, &w->attn_v, a) : k;
        k = graph_reshape(b->g, k, layer->head, layer->kv_heads);
        v = graph_reshape(b->g, v, layer->head, layer->kv_heads);
        *cache =
            graph_kv_store(b->g, graph_rope(b->g, text_norm(b, k, &w->attn_k_norm), rope), norm_plain(b, v), i, window);
    }
    q = graph_rope(b->g, text_norm(b, graph_reshape(b->g, q, layer->head, layer->heads), &w->attn_q_norm), rope);
    tensor *o = graph_attention(b->g, q, *cache);
    return linear(b, &w->attn_output, graph_reshape(b->g, o, (uint64_t)layer->head * layer->heads, 1));
}

/* Wdown · (gelu(Wgate·n) ⊙ Wup·n) */
tensor *text_feed_forward(text_builder *b, const weight *w_gate, const weight *w_up, const weight *w_down, tensor *n) {
    tensor *gate = product(b, w_gate, n), *up = product(b, w_up, n);
    gate = corrected(b, gate, w_gate, n);
    up = corrected(b, up, w_up, n);
    return linear(b, w_down, graph_geglu(b->g, gate, up));
}

/* Σ_e w_e · Wdown_e · (gelu(Wgate_e·u) ⊙ Wup_e·u): the router reads the residual itself, the experts their own norm of it */
static tensor *experts(text_builder *b, const layer_weights *w, tensor *r) {
    const uint32_t used = b->c->experts_used, ff = b->c->expert_feed_forward;
    tensor        *z = graph_scale(b->g, text_norm(b, r, &w->router_scale), 1 / sqrtf((float)b->c->width));
    tensor        *routes = graph_route(b->g, linear(b, &w->router, z), weight_tensor(b->g, &w->expert_scale), used);

    tensor *u = text_norm(b, r, &w->pre_ffw_norm_2), *gate, *up;
    if (w->gate_up_exps.name) {
        tensor *both = expert_linear(b, &w->gate_up_exps, u, routes);
        gate = graph_slice(b->g, both, 0, ff, used);
        up = graph_slice(b->g, both, ff, ff, used);
    } else {
        gate = expert_linear(b, &w->gate_exps, u, routes);
        up = expert_linear(b, &w->up_exps, u, routes);
    }
    tensor *down = expert_linear(b, &w->down_exps, graph_geglu(b->g, gate, up), routes);
    return text_norm(b, graph_expert_sum(b->g, down, routes, used), &w->post_ffw_norm_2);
}

tensor *text_layer(text_builder *b, uint32_t i, tensor *x) {
    const layer_weights *w = &b->m->layer[i];
    graph               *g = b->g;

    tensor *r =
        graph_add(g, x, text_norm(b, text_attention(b, i, text_norm(b, x, &w->attn_norm)), &w->post_attention_norm));
    tensor *m = text_feed_forward(b, &w->ffn_gate, &w->ffn_up, &w->ffn_down, text_norm(b, r, &w->ffn_norm));
    if (b->c->experts) m = graph_add(g, text_norm(b, m, &w->post_ffw_norm_1), experts(b, w, r));
    tensor *y = graph_add(g, r, text_norm(b, m, &w->post_ffw_norm));
    if (b->per_layer_inputs) {
        const uint32_t p = b->c->per_layer_width;
        tensor        *gated =
            graph_geglu(g, linear(b, &w->inp_gate, y), graph_slice(g, b->per_layer_inputs, (uint64_t)i * p, p, 1));
        y = graph_add(g, y, text_norm(b, linear(b, &w->proj, gated), &w->post_norm));
    }
    const float scale = b->denoises ? w->output_scale : w->encoder_scale;
    return scale == 1 ? y : graph_scale(g, y, scale);
}

void text_begin(text_builder *b, graph *g, const model *m, const model_adapters *adapters) {
    *b = (text_builder){ .g = g, .m = m, .c = &m->config };
    corrections_begin(&b->added, g, adapters);
    b->caches = arena_array(&g->memory, b->c->layers, sizeof *b->caches);
    if (!b->caches) fail_memory(&g->problem, "the graph's caches", b->c->layers * sizeof *b->caches);
}

void text_rope(text_builder *b) {
    b->rope_full = graph_rope_table(b->g, weight_tensor(b->g, &b->m->frequencies_full), 1);
    b->rope_sliding = graph_rope_table(b->g, weight_tensor(b->g, &b->m->frequencies_sliding), 1);
}

tensor *text_input(text_builder *b) {
    graph  *g = b->g;
    tensor *x = graph_embed_or_given(g, weight_tensor(g, &b->m->token_embd), sqrtf((float)b->c->width));
    x = corrected_embedding(b, x);
    if (b->c->per_layer_width) b->per_layer_inputs = per_layer_inputs(b, x);
    text_rope(b);
    return b->caches ? x : NULL;
}

tensor *text_head(text_builder *b, tensor *x) {
    tensor *h = text_norm(b, graph_select_rows(b->g, x), &b->m->output_norm);
    tensor *logits = product(b, b->m->output.name ? &b->m->output : &b->m->token_embd, h);
    return corrections_add(&b->added, logits, "output.weight", h);
}

void text_check_sites(const text_builder *b) { corrections_end(&b->added, "the text model"); }

gm_status text_finish(graph *g, const char *what, error *e) {
    if (!g->result && !g->problem.status)
        fail(&g->problem, GM_BAD_FILE, "the graph of the %s could not be built", what);
    if (!g->problem.status) return GM_OK;
    const gm_status status = fail(e, g->problem.status, "%s", g->problem.why);
    graph_free(g);
    return status;
}

gm_status model_text_graph(const model *m, const model_adapters *adapters, graph *out, error *e) {
    *out = (graph){ .batched = true };
    text_builder b;
    text_begin(&b, out, m, adapters);
    tensor *x = text_input(&b);
    for (uint32_t i = 0; i < b.c->layers && x; i++) x = text_layer(&b, i, x);
    tensor *logits = text_head(&b, x);
    out->result = b.c->softcap > 0 ? graph_softcap(out, logits, b.c->softcap) : logits;
    text_check_sites(&b);
    return text_finish(out, "text model", e);
}
