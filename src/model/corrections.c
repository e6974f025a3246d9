#include "model/corrections.h"

#include <string.h>

static tensor *correction_vector(graph *g, const char *name, const float *data, uint64_t place, uint64_t n) {
    tensor *t = graph_weight(g, name, TYPE_F32, (uint64_t[]){ n, 1, 1 }, data);
    if (t && !data) t->place = place;
    return t;
}

void corrections_begin(corrections *c, graph *g, const model_adapters *adapters) {
    *c = (corrections){ .g = g };
    if (!adapters) return;
    c->sets = correction_vector(g, "adapter sets", adapters->table, adapters->place,
                                (uint64_t)adapters->sets * adapters->slots);
    c->done = arena_array(&g->memory, adapters->count + 1, sizeof *c->done);
    if (c->done) c->adapters = adapters;
    else fail_memory(&g->problem, "the graph's adapters", adapters->count * sizeof *c->done);
}

bool corrections_site(corrections *c, const char *base, lora_site *out) {
    const model_adapters *a = c->adapters;
    const model_site     *s = NULL;
    for (size_t i = 0; a && base && i < a->count && !s; i++) {
        if (!strcmp(a->sites[i].base, base)) s = &a->sites[i];
    }
    if (!s) return false;
    const uint64_t columns = a->slots * s->experts * s->rank;
    *out = (lora_site){ .a = correction_vector(c->g, base, s->a, s->place, columns * s->in),
                        .b = correction_vector(c->g, base, s->b, s->place + MODEL_PLACES, columns * s->out),
                        .sets = c->sets,
                        .rank = s->rank,
                        .slots = a->slots,
                        .experts = s->experts };
    c->done[s - a->sites] = true;
    return true;
}

tensor *corrections_seen(corrections *c, const char *base, tensor *x) {
    uint32_t site = 0;
    if (!c->dropout_key) return x;
    while (strcmp(c->adapters->sites[site].base, base)) site++;
    return graph_dropout(c->g, x, c->dropout_key, c->dropout, site);
}

tensor *corrections_add(corrections *c, tensor *y, const char *base, tensor *x) {
    lora_site site;
    if (!corrections_site(c, base, &site)) return y;
    return graph_lora_expand(c->g, &site, y, graph_lora_shrink(c->g, &site, corrections_seen(c, base, x), NULL, 0),
                             NULL, 0);
}

void corrections_end(const corrections *c, const char *what) {
    for (size_t i = 0; c->adapters && i < c->adapters->count && !c->g->problem.status; i++) {
        if (!c->done[i])
            fail(&c->g->problem, GM_UNSUPPORTED, "an adapter corrects '%s', which %s does not compute with",
                 c->adapters->sites[i].base, what);
    }
}
