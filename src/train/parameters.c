#include "train/parameters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRAIN_SETS = 3 }; /* none, all slots, and all but the trained one */

/* ---- layouts: a slot's values ↔ those of a pair ---- */

/* Where value (expert, rank, i) is, i counting the values of a row of A, or of a column of B. */
static uint64_t index_in_slot(const model_site *site, bool is_b, bool is_table, uint64_t expert, uint64_t rank,
                              uint64_t i) {
    if (is_table && !is_b) return i * site->rank + rank;
    return (expert * site->rank + rank) * (is_b ? site->out : site->in) + i;
}

static uint64_t index_in_pair(const adapter_pair *pair, bool is_b, uint64_t expert, uint64_t rank, uint64_t i) {
    if (is_b) return (expert * pair->out + i) * pair->rank + rank;
    return adapter_is_embedding(pair) ? i * pair->rank + rank : (expert * pair->rank + rank) * pair->in + i;
}

typedef void (*value_visit)(void *context, uint64_t in_slot, uint64_t in_pair);

static void visit_values(const model_site *site, const adapter_pair *pair, bool is_b, value_visit visit,
                         void *context) {
    const bool     table = adapter_is_embedding(pair);
    const uint64_t length = is_b ? pair->out : pair->in;
    for (uint64_t expert = 0; expert < pair->experts; expert++) {
        for (uint64_t rank = 0; rank < pair->rank; rank++) {
            for (uint64_t i = 0; i < length; i++)
                visit(context, index_in_slot(site, is_b, table, expert, rank, i),
                      index_in_pair(pair, is_b, expert, rank, i));
        }
    }
}

typedef struct {
    const float *from;
    float       *to;
    float        scale;
} value_copy;

static void copy_into_slot(void *context, uint64_t in_slot, uint64_t in_pair) {
    const value_copy *c = context;
    c->to[in_slot] = c->from[in_pair] * c->scale;
}

static void copy_into_pair(void *context, uint64_t in_slot, uint64_t in_pair) {
    const value_copy *c = context;
    c->to[in_pair] = c->from[in_slot] * c->scale;
}

/* What B is multiplied by in a slot: the embedding's rows are multiplied by the root of the width, and so is their correction. */
static float scale_of_b(const train_parameters *p, const adapter_pair *pair) {
    return pair->scale * (adapter_is_embedding(pair) ? sqrtf(p->width) : 1);
}

void train_part_store(const train_parameters *p, const train_part *part, bool gradient, float *out) {
    value_copy copy = { gradient ? part->gradient : part->values, out, gradient ? 1 : 1 / part->scale };
    visit_values(&p->sites[part->site], part->pair, part->is_b, copy_into_pair, &copy);
}

void train_part_convert(const train_parameters *p, const train_part *part, const float *values, float *out) {
    value_copy copy = { values, out, 1 / part->scale };
    visit_values(&p->sites[part->site], part->pair, part->is_b, copy_into_pair, &copy);
}

const train_part *train_part_find(const train_parameters *p, const char *base, bool is_b) {
    for (size_t i = 0; i < p->count; i++) {
        if (p->parts[i].pair && p->parts[i].is_b == is_b && !strcmp(p->sites[p->parts[i].site].base, base))
            return &p->parts[i];
    }
    return NULL;
}

/* ---- making ---- */

static gm_status collect_sites(train_parameters *p, const model *m, const adapter *const *all, size_t count, error *e) {
    size_t most = 1;
    for (size_t i = 0; i < count; i++) most += all[i]->count;
    p->sites = arena_array(&p->memory, most, sizeof *p->sites);
    if (!p->sites) return fail_memory(e, "the adapters' sites", most * sizeof *p->sites);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < all[i]->count; j++) {
            const adapter_pair *pair = &all[i]->pairs[j];
            size_t              at = 0;
            if (adapter_pair_is_unused(pair, m)) continue;
            while (at < p->model.count && strcmp(p->sites[at].base, pair->base)) at++;
            if (at == p->model.count)
                p->sites[p->model.count++] =
                    (model_site){ .base = pair->base, .in = pair->in, .out = pair->out, .experts = pair->experts };
            p->sites[at].rank = (uint32_t)max_size(p->sites[at].rank, pair->rank);
        }
    }
    return p->model.count ? GM_OK
                          : fail(e, GM_BAD_ARGUMENT, "the adapter corrects no weight that this model computes with");
}

static float *new_values(train_parameters *p, uint64_t count) {
    if (count > SIZE_MAX / sizeof(float)) return NULL;
    p->bytes += count * sizeof(float);
    return calloc((size_t)count, sizeof(float));
}

static tensor state_tensor(const char *name, uint64_t n, const float *data) {
    return (tensor){ .kind = TENSOR_WEIGHT, .type = TYPE_F32, .ne = { n, 1, 1 }, .data = data, .name = name };
}

static gm_status make_part(train_parameters *p, train_part *part, const adapter *const *all, size_t count, error *e) {
    const model_site *site = &p->sites[part->site];
    const uint64_t    size = site->experts * site->rank * (part->is_b ? site->out : site->in);
    part->size = size;
    part->values = new_values(p, size * count);
    if (!part->values) return fail_memory(e, "the adapter's values", size * count * sizeof(float));
    for (size_t slot = 0; slot < count; slot++) {
        const adapter_pair *pair = adapter_find(all[slot], site->base);
        if (!pair) continue;
        const float scale = part->is_b ? scale_of_b(p, pair) : 1;
        value_copy  copy = { part->is_b ? pair->b : pair->a, part->values + slot * size, scale };
        visit_values(site, pair, part->is_b, copy_into_slot, &copy);
        if (slot) continue;
        part->pair = pair;
        part->scale = scale;
    }
    part->tensors[0] = state_tensor(site->base, size * count, part->values);
    if (!part->pair) return GM_OK;
    for (size_t i = 0; i < 3; i++) {
        float **state = i ? &part->moments[i - 1] : &part->gradient;
        *state = new_values(p, size);
        if (!*state) return fail_memory(e, "the optimiser's values", size * sizeof(float));
        part->tensors[1 + i] = state_tensor(site->base, size, *state);
    }
    p->trained[p->trained_count++] =
        (backward_part){ .weight = &part->tensors[0], .gradient = &part->tensors[1], .factor = part->scale };
    return GM_OK;
}

static gm_status make_parts(train_parameters *p, const adapter *const *all, size_t count, error *e) {
    p->count = 2 * p->model.count;
    p->parts = arena_array(&p->memory, p->count, sizeof *p->parts);
    p->trained = arena_array(&p->memory, p->count, sizeof *p->trained);
    if (!p->parts || !p->trained) return fail_memory(e, "the adapter's parts", p->count * sizeof *p->parts);
    for (size_t i = 0; i < p->count; i++) {
        p->parts[i] = (train_part){ .site = i / 2, .is_b = i % 2 };
        TRY(make_part(p, &p->parts[i], all, count, e));
        *(i % 2 ? &p->sites[i / 2].b : &p->sites[i / 2].a) = p->parts[i].values;
    }
    return GM_OK;
}

gm_status train_parameters_make(train_parameters *p, const model *m, const adapter *trained,
                                const adapter *const *frozen, const float *scales, size_t count, error *e) {
    *p = (train_parameters){ .width = (float)m->config.width };
    const adapter **all = arena_array(&p->memory, count + 1, sizeof *all);
    float          *table = arena_array(&p->memory, TRAIN_SETS * (count + 1), sizeof *table);
    gm_status       status = all && table ? GM_OK : fail_memory(e, "the adapters", (count + 1) * sizeof *all);
    for (size_t i = 0; !status && i <= count; i++) {
        all[i] = i ? frozen[i - 1] : trained;
        table[TRAIN_SET_ALL * (count + 1) + i] = i ? scales[i - 1] : 1;
        table[TRAIN_SET_FROZEN * (count + 1) + i] = i ? scales[i - 1] : 0;
    }
    if (!status) status = collect_sites(p, m, all, count + 1, e);
    if (!status) status = make_parts(p, all, count + 1, e);
    p->model.sites = p->sites;
    p->model.slots = (uint32_t)count + 1;
    p->model.sets = TRAIN_SETS;
    p->model.table = table;
    if (status) train_parameters_free(p);
    return status;
}

void train_parameters_free(train_parameters *p) {
    for (size_t i = 0; i < p->count && p->parts; i++) {
        train_part *part = &p->parts[i];
        free(part->values);
        free(part->gradient);
        free(part->moments[0]);
        free(part->moments[1]);
    }
    arena_free(&p->memory);
    *p = (train_parameters){ 0 };
}
