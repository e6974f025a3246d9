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

void train_part_store(const train_parameters *p, const train_part *part, train_state what, const float *slot,
                      const adapter_pair *into) {
    value_copy copy = { slot, part->is_b ? into->b : into->a, what == TRAIN_VALUES ? 1 / part->scale : 1 };
    visit_values(&p->sites[part->site], part->pair, part->is_b, copy_into_pair, &copy);
}

void train_part_fill(const train_parameters *p, const train_part *part, size_t slot, float *out) {
    const model_site   *site = &p->sites[part->site];
    const adapter_pair *pair = adapter_find(p->adapters[slot], site->base);
    memset(out, 0, (size_t)part->size * sizeof *out);
    if (!pair) return;
    value_copy copy = { part->is_b ? pair->b : pair->a, out, part->is_b ? scale_of_b(p, pair) : 1 };
    visit_values(site, pair, part->is_b, copy_into_slot, &copy);
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

/* In memory, or a number for a vector on the GPU. */
static gm_status make_state(train_parameters *p, train_part *part, train_state what, uint64_t count, uint64_t *places,
                            error *e) {
    p->bytes += count * sizeof(float);
    part->tensors[what] =
        (tensor){ .kind = TENSOR_WEIGHT, .type = TYPE_F32, .ne = { count, 1, 1 }, .name = p->sites[part->site].base };
    if (places) {
        part->tensors[what].place = *places += MODEL_PLACES;
        return GM_OK;
    }
    part->states[what] = count > SIZE_MAX / sizeof(float) ? NULL : calloc((size_t)count, sizeof(float));
    part->tensors[what].data = part->states[what];
    return part->states[what] ? GM_OK : fail_memory(e, "the adapter's values", count * sizeof(float));
}

static gm_status make_values(train_parameters *p, train_part *part, size_t slots, uint64_t *places, error *e) {
    const model_site *site = &p->sites[part->site];
    part->size = site->experts * site->rank * (part->is_b ? site->out : site->in);
    part->pair = adapter_find(p->adapters[0], site->base);
    part->scale = part->pair && part->is_b ? scale_of_b(p, part->pair) : 1;
    TRY(make_state(p, part, TRAIN_VALUES, part->size * slots, places, e));
    for (size_t i = 0; i < slots && !places; i++)
        train_part_fill(p, part, i, part->states[TRAIN_VALUES] + i * part->size);
    return GM_OK;
}

static gm_status make_trained(train_parameters *p, train_part *part, uint64_t *places, error *e) {
    for (train_state i = TRAIN_GRADIENT; i < TRAIN_STATES; i++) TRY(make_state(p, part, i, part->size, places, e));
    p->trained[p->trained_count++] = (backward_part){ .weight = &part->tensors[TRAIN_VALUES],
                                                      .gradient = &part->tensors[TRAIN_GRADIENT],
                                                      .factor = part->scale };
    return GM_OK;
}

/* The values of A and B of a site are at places one after the other. */
static gm_status make_parts(train_parameters *p, size_t slots, uint64_t *places, error *e) {
    p->count = 2 * p->model.count;
    p->parts = arena_array(&p->memory, p->count, sizeof *p->parts);
    p->trained = arena_array(&p->memory, p->count, sizeof *p->trained);
    if (!p->parts || !p->trained) return fail_memory(e, "the adapter's parts", p->count * sizeof *p->parts);
    for (size_t i = 0; i < p->count; i++) {
        train_part *part = &p->parts[i];
        model_site *site = &p->sites[i / 2];
        *part = (train_part){ .site = i / 2, .is_b = i % 2 };
        TRY(make_values(p, part, slots, places, e));
        *(part->is_b ? &site->b : &site->a) = part->states[TRAIN_VALUES];
        if (!part->is_b) site->place = part->tensors[TRAIN_VALUES].place;
    }
    for (size_t i = 0; i < p->count; i++) {
        if (p->parts[i].pair) TRY(make_trained(p, &p->parts[i], places, e));
    }
    return GM_OK;
}

gm_status train_parameters_make(train_parameters *p, const model *m, const adapter *trained,
                                const adapter *const *frozen, const float *scales, size_t count, uint64_t *places,
                                error *e) {
    *p = (train_parameters){ .width = (float)m->config.width };
    p->adapters = arena_array(&p->memory, count + 1, sizeof *p->adapters);
    p->table = arena_array(&p->memory, TRAIN_SETS * (count + 1), sizeof *p->table);
    gm_status status =
        p->adapters && p->table ? GM_OK : fail_memory(e, "the adapters", (count + 1) * sizeof *p->adapters);
    for (size_t i = 0; !status && i <= count; i++) {
        p->adapters[i] = i ? frozen[i - 1] : trained;
        p->table[TRAIN_SET_ALL * (count + 1) + i] = i ? scales[i - 1] : 1;
        p->table[TRAIN_SET_FROZEN * (count + 1) + i] = i ? scales[i - 1] : 0;
    }
    if (!status) status = collect_sites(p, m, p->adapters, count + 1, e);
    if (!status) status = make_parts(p, count + 1, places, e);
    p->model.sites = p->sites;
    p->model.slots = (uint32_t)count + 1;
    p->model.sets = TRAIN_SETS;
    if (places) p->model.place = *places += MODEL_PLACES;
    else p->model.table = p->table;
    if (status) train_parameters_free(p);
    return status;
}

void train_parameters_free(train_parameters *p) {
    for (size_t i = 0; i < p->count && p->parts; i++) {
        train_part *part = &p->parts[i];
        for (train_state what = 0; what < TRAIN_STATES; what++) free(part->states[what]);
    }
    arena_free(&p->memory);
    *p = (train_parameters){ 0 };
}
