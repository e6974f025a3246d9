/* The vision towers as graphs, formula by formula. */

#include "model/towers.h"

#include <math.h>

enum { TOWER_CACHE = 0 }; /* every layer's keys and values go to one cache, and the next layer overwrites them */

#define WITHOUT_ENCODER_EPS 1e-5f /* of the layer norms; no key has it */

typedef struct {
    graph                *g;
    const vision_weights *w;
    const vision_config  *c;
    tensor               *rope; /* cosines and sines of the patches' columns, and of their rows */
    last_clip             clip;
    corrections           added; /* by adapters */
} vision_builder;

static tensor *vision_norm(vision_builder *b, tensor *x, const weight *w) {
    return graph_rms_norm(b->g, x, w ? weight_tensor(b->g, w) : NULL, b->c->eps);
}

static tensor *vision_clipped(vision_builder *b, const clipped_linear *l, tensor *x) {
    return tower_linear(&b->added, &b->clip, l, x);
}

/* The first half of each head turns with the patch's column, the second with its row. */
static tensor *rotate(vision_builder *b, tensor *x) {
    const vision_config *c = b->c;
    tensor              *halves = graph_reshape(b->g, x, c->head / 2, UINT64_C(2) * c->heads);
    return graph_reshape(b->g, graph_rope(b->g, halves, b->rope), c->head, c->heads);
}

/* o = Wo · attention(rope(norm(Wq·a)), rope(norm(Wk·a)), rms(Wv·a)); every patch of a picture sees all of them */
static tensor *vision_attention(vision_builder *b, const vision_layer *w, tensor *a) {
    const vision_config *c = b->c;
    tensor              *q = graph_reshape(b->g, vision_clipped(b, &w->q, a), c->head, c->heads);
    tensor              *k = graph_reshape(b->g, vision_clipped(b, &w->k, a), c->head, c->heads);
    tensor              *v = graph_reshape(b->g, vision_clipped(b, &w->v, a), c->head, c->heads);
    tensor              *cache =
        graph_kv_store(b->g, rotate(b, vision_norm(b, k, &w->k_norm)), vision_norm(b, v, NULL), TOWER_CACHE, 0);
    tensor *o = graph_attention(b->g, rotate(b, vision_norm(b, q, &w->q_norm)), cache);
    return vision_clipped(b, &w->out, graph_reshape(b->g, o, c->width, 1));
}

static tensor *encoder_layer(vision_builder *b, const vision_layer *w, tensor *x) {
    graph  *g = b->g;
    tensor *o = vision_attention(b, w, vision_norm(b, x, &w->ln1));
    x = graph_add(g, x, vision_norm(b, o, &w->attention_post_norm));
    tensor *n = vision_norm(b, x, &w->ln2), *gate = vision_clipped(b, &w->gate, n), *up = vision_clipped(b, &w->up, n);
    tensor *f = vision_clipped(b, &w->down, graph_geglu(g, gate, up));
    x = graph_add(g, x, vision_norm(b, f, &w->feed_forward_post_norm));
    return w->output_scale == 1 ? x : graph_scale(g, x, w->output_scale);
}

static tensor *positions(vision_builder *b) {
    return graph_add(b->g, graph_embed(b->g, weight_tensor(b->g, &b->w->position_x), 1),
                     graph_embed_position(b->g, weight_tensor(b->g, &b->w->position_y), 1));
}

/* x = W·(2·patch − 1) + X[column] + Y[row]; the layers; √n · the mean of the patches of a soft token, standardised.
 * The caller writes 2·patch − 1 into the leaf. */
static tensor *encoder(vision_builder *b, tensor *patches) {
    const vision_weights *w = b->w;
    const vision_config  *c = b->c;
    graph                *g = b->g;
    tensor               *x = graph_add(g, graph_matmul(g, weight_tensor(g, &w->patch_embd), patches), positions(b));
    b->rope = graph_rope_table(g, weight_tensor(g, &w->frequencies), 2);
    for (uint32_t i = 0; i < c->layers; i++) x = encoder_layer(b, &w->layer[i], x);
    tensor *p = graph_scale(g, graph_select_means(g, x, c->merged * c->merged), sqrtf((float)c->width));
    if (!w->scale.name) return p;
    return graph_mul(g, graph_add(g, p, weight_tensor(g, &w->negative_bias)), weight_tensor(g, &w->scale));
}

static tensor *patch_norm(vision_builder *b, size_t i, tensor *x) {
    return graph_layer_norm(b->g, x, weight_tensor(b->g, &b->w->patch_norm[i]),
                            weight_tensor(b->g, &b->w->patch_norm_bias[i]), WITHOUT_ENCODER_EPS);
}

/* u = LN₃(LN₂(W·LN₁(patch) + b) + X[column] + Y[row]) */
static tensor *without_encoder(vision_builder *b, tensor *patches) {
    graph  *g = b->g;
    tensor *u = graph_matmul(g, weight_tensor(g, &b->w->patch_embd), patch_norm(b, 0, patches));
    u = patch_norm(b, 1, graph_add(g, u, weight_tensor(g, &b->w->patch_bias)));
    return graph_select_rows(g, patch_norm(b, 2, graph_add(g, u, positions(b))));
}

/* The widest moment is the feed-forward: the residual, its norm, gate, up and their product. Keys and values are f32 at most. */
uint64_t vision_run_bytes(const vision_config *c, uint32_t soft_tokens) {
    const uint64_t patches = (uint64_t)soft_tokens * c->merged * c->merged, values = UINT64_C(3) * c->patch * c->patch;
    return patches * sizeof(float) * (values + UINT64_C(4) * c->width + UINT64_C(3) * c->feed_forward);
}

gm_status vision_graph(const vision_weights *w, const model_adapters *adapters, graph *out, tensor **patches,
                       error *e) {
    *out = (graph){ 0 };
    vision_builder b = { .g = out, .w = w, .c = &w->config };
    corrections_begin(&b.added, out, adapters);
    *patches = graph_leaf(out, AXIS_TOKENS, w->patch_embd.ne[0], 1);
    tensor *p = b.c->layers ? encoder(&b, *patches) : without_encoder(&b, *patches);
    out->result = tower_product(&b.added, &w->projection, vision_norm(&b, p, NULL));
    corrections_end(&b.added, "the vision tower");
    if (!out->result && !out->problem.status)
        fail(&out->problem, GM_BAD_FILE, "the graph of the vision tower could not be built");
    if (!out->problem.status) return GM_OK;
    const gm_status status = fail(e, out->problem.status, "%s", out->problem.why);
    graph_free(out);
    return status;
}
