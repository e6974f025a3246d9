/* gemmule adapter random: writes an adapter with random values that fits a model, to measure speed and memory with. */

#include "cli/adapter.h"

#include "base/random.h"
#include "session/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_RANK = 16 };

typedef struct {
    adapter *a;
    uint32_t rank;
    uint64_t seed, drawn;
    uint32_t words[4];
} random_work;

/* Values of B · A · x that are small beside those of a product: a model with this adapter does not lose its balance. */
static float *random_matrix(random_work *w, uint64_t count, float size, error *e) {
    float *values = arena_array(&w->a->memory, (size_t)count, sizeof *values);
    if (!values) {
        fail_memory(e, "a random adapter", count * sizeof *values);
        return NULL;
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = w->drawn++;
        if (at % 4 == 0)
            philox((uint32_t[]){ (uint32_t)(at / 4), (uint32_t)(at >> 34), 0, 0 },
                   (uint32_t[]){ (uint32_t)w->seed, (uint32_t)(w->seed >> 32) }, w->words);
        values[i] = size * ((float)(w->words[at % 4] >> 8) / (1 << 23) - 1);
    }
    w->a->bytes += count * sizeof *values;
    return values;
}

static gm_status random_pair(random_work *w, const weight *base, error *e) {
    if (!base->name) return GM_OK;
    adapter_pair *p = &w->a->pairs[w->a->count];
    *p = (adapter_pair){ .rank = w->rank,
                         .in = (uint32_t)base->ne[0],
                         .out = (uint32_t)base->ne[1],
                         .experts = 1,
                         .alpha = w->rank,
                         .scale = 1 };
    snprintf(p->base, sizeof p->base, "%s", base->name);
    p->a = random_matrix(w, (uint64_t)p->rank * p->in, 1 / sqrtf((float)p->in), e);
    p->b = p->a ? random_matrix(w, (uint64_t)p->rank * p->out, 0.02f / sqrtf((float)p->rank), e) : NULL;
    if (!p->b) return e->status;
    w->a->count++;
    return GM_OK;
}

/* The seven projections of every layer; experts have none. */
static gm_status random_pairs(random_work *w, const model *m, error *e) {
    enum { PROJECTIONS = 7 };
    w->a->pairs = arena_array(&w->a->memory, (size_t)PROJECTIONS * m->config.layers, sizeof *w->a->pairs);
    if (!w->a->pairs) return fail_memory(e, "a random adapter", m->config.layers * sizeof *w->a->pairs);
    for (uint32_t i = 0; i < m->config.layers; i++) {
        const layer_weights *l = &m->layer[i];
        const weight *const  bases[PROJECTIONS] = { &l->attn_q,   &l->attn_k, &l->attn_v,  &l->attn_output,
                                                    &l->ffn_gate, &l->ffn_up, &l->ffn_down };
        for (size_t j = 0; j < PROJECTIONS; j++) TRY(random_pair(w, bases[j], e));
    }
    return GM_OK;
}

int adapter_random_run(const adapter_values *v, const char *const *given, size_t count) {
    adapter       made = { .name = "random", .prefix = "model.language_model." };
    random_work   w = { .a = &made,
                        .rank = v->rank.given ? (uint32_t)v->rank.value : DEFAULT_RANK,
                        .seed = v->seed.value };
    arena         memory = { 0 };
    engine_origin origin = { 0 };
    gguf         *file = NULL;
    model         m = { 0 };
    const char   *path = NULL;
    error         e = { 0 };
    (void)count;
    gm_status status = engine_find_model(given[0], &memory, &path, &origin, &e);
    if (!status) status = gguf_open_file(path, &file, &e);
    if (!status) status = model_shapes(file, &m, &e);
    if (!status) status = random_pairs(&w, &m, &e);
    if (!status) status = adapter_save(&made, given[1], &e);
    model_free(&m);
    gguf_free(file);
    arena_free(&memory);
    arena_free(&made.memory);
    return status ? complain_error(&e) : EXIT_OK;
}
