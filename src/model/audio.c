/* The audio towers as graphs, formula by formula. */

#include "model/towers.h"

#include <float.h>
#include <math.h>

#define AUDIO_EPS 1e-6f /* old files have another one, which is wrong */
#define AUDIO_CAP 50.0f

typedef struct {
    graph               *g;
    const audio_weights *w;
    const audio_config  *c;
    last_clip            clip;
    corrections          added; /* by adapters */
} audio_builder;

static tensor *audio_norm(audio_builder *b, tensor *x, const weight *w) {
    return graph_rms_norm(b->g, x, w ? weight_tensor(b->g, w) : NULL, AUDIO_EPS);
}

static tensor *audio_linear(audio_builder *b, const clipped_linear *l, tensor *x) {
    return tower_linear(&b->added, &b->clip, l, x);
}

/* relu(LN(conv(x))): a window of three rows becomes one row of half as many frequencies. LN is over the channels. */
static tensor *subsample(audio_builder *b, size_t i, tensor *x, uint64_t channels, uint64_t frequencies,
                         uint64_t windows) {
    const uint64_t out = b->c->channels[i], half = (frequencies + 1) / 2;
    tensor        *y = graph_conv_grid(b->g, x, weight_tensor(b->g, &b->w->conv[i]), (uint32_t)channels);
    y = graph_layer_norm(b->g, graph_reshape(b->g, y, out, half * windows), weight_tensor(b->g, &b->w->conv_norm[i]),
                         NULL, AUDIO_EPS);
    return graph_reshape(b->g, graph_clamp(b->g, y, 0, FLT_MAX), out * half, windows);
}

/* x + ½ · rms(Wdown · silu(Wup · rms(x))); the weight of the outer norm has the half */
static tensor *audio_ff(audio_builder *b, const audio_feed_forward *w, tensor *x) {
    tensor *up = audio_linear(b, &w->up, audio_norm(b, x, &w->norm));
    tensor *down = audio_linear(b, &w->down, graph_gate(b->g, up, up));
    return graph_add(b->g, x, audio_norm(b, down, &w->post_norm));
}

/* Wo · local_attention(s ⊙ Wq·a, k · ln(1 + e) / ln 2, Wv·a); s has the scale of the scores */
static tensor *audio_attention(audio_builder *b, const audio_layer *w, tensor *a) {
    const audio_config *c = b->c;
    graph              *g = b->g;
    tensor             *q = graph_reshape(g, audio_linear(b, &w->q, a), c->head, c->heads);
    tensor             *k = graph_reshape(g, audio_linear(b, &w->k, a), c->head, c->heads);
    tensor             *v = graph_reshape(g, audio_linear(b, &w->v, a), c->head, c->heads);
    q = graph_mul(g, q, weight_tensor(g, &w->query_scale));
    k = graph_scale(g, k, (float)(log1p(exp(1)) / log(2)));
    tensor *o = graph_local_attention(g, q, k, v, weight_tensor(g, &w->relative), AUDIO_REACH, AUDIO_CAP);
    return audio_linear(b, &w->out, graph_reshape(g, o, c->width, 1));
}

/* W₂ · silu(rms(conv(u ⊙ sigmoid(v)))), [u, v] = W₁·a */
static tensor *audio_conv(audio_builder *b, const audio_layer *w, tensor *a) {
    const uint32_t n = b->c->width;
    graph         *g = b->g;
    tensor        *both = audio_linear(b, &w->conv_in, a);
    tensor        *gated = graph_gate(g, graph_slice(g, both, 0, n, 1), graph_slice(g, both, n, n, 1));
    tensor        *c =
        audio_norm(b, graph_conv_tokens(g, gated, weight_tensor(g, &w->conv_taps), b->c->taps), &w->conv_inner_norm);
    return audio_linear(b, &w->conv_out, graph_gate(g, c, c));
}

static tensor *conformer_layer(audio_builder *b, const audio_layer *w, tensor *x) {
    x = audio_ff(b, &w->ff[0], x);
    tensor *o = audio_attention(b, w, audio_norm(b, x, &w->attention_norm));
    x = graph_add(b->g, x, audio_norm(b, o, &w->attention_post_norm));
    x = graph_add(b->g, x, audio_conv(b, w, audio_norm(b, x, &w->conv_norm)));
    return audio_norm(b, audio_ff(b, &w->ff[1], x), &w->output_norm);
}

/* y = Wout · layers(Win · subsample(subsample(mel))) + b */
static tensor *audio_encoder(audio_builder *b, tensor *mel) {
    const audio_config *c = b->c;
    graph              *g = b->g;
    tensor             *x = subsample(b, 0, mel, 1, AUDIO_MEL_BINS, AUDIO_WINDOW);
    x = subsample(b, 1, x, c->channels[0], AUDIO_MEL_BINS / 2, 1);
    x = tower_product(&b->added, &b->w->input_projection, x);
    for (uint32_t i = 0; i < c->layers; i++) x = conformer_layer(b, &b->w->layer[i], x);
    x = tower_product(&b->added, &b->w->output_projection, graph_select_rows(g, x));
    return graph_add(g, x, weight_tensor(g, &b->w->output_bias));
}

/* The widest moment is the first convolution and its norm, or the feed-forward. */
uint64_t audio_run_bytes(const audio_config *c) {
    enum { TOKENS = 750 };
    const uint64_t mel = AUDIO_MEL_BINS * AUDIO_WINDOW * AUDIO_WINDOW;
    const uint64_t first = UINT64_C(2) * c->channels[0] * (AUDIO_MEL_BINS / 2) * AUDIO_WINDOW;
    const uint64_t ff = UINT64_C(6) * c->width + UINT64_C(3) * c->feed_forward;
    return TOKENS * sizeof(float) * (c->layers ? mel + (first > ff ? first : ff) : c->frame + c->soft_width);
}

/* soft = W · rms(y) */
gm_status audio_graph(const audio_weights *w, const model_adapters *adapters, graph *out, tensor **leaf, error *e) {
    *out = (graph){ 0 };
    audio_builder b = { .g = out, .w = w, .c = &w->config };
    corrections_begin(&b.added, out, adapters);
    if (b.c->layers) *leaf = graph_leaf(out, AXIS_TOKENS, AUDIO_MEL_BINS, AUDIO_WINDOW * AUDIO_WINDOW);
    else *leaf = graph_leaf(out, AXIS_TOKENS, b.c->frame, 1);
    tensor *y = b.c->layers ? audio_encoder(&b, *leaf) : graph_select_rows(out, *leaf);
    out->result = tower_product(&b.added, &w->projection, audio_norm(&b, y, NULL));
    corrections_end(&b.added, "the audio tower");
    if (!out->result && !out->problem.status)
        fail(&out->problem, GM_BAD_FILE, "the graph of the audio tower could not be built");
    if (!out->problem.status) return GM_OK;
    const gm_status status = fail(e, out->problem.status, "%s", out->problem.why);
    graph_free(out);
    return status;
}
