/* The sites of adapters: which weights they correct, the memory for their matrices, and how a slot's matrices are laid out there. */

#include "session/adapter_sites.h"

#include "session/engine.h"
#include "session/tower_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_RANK = 8, FEWEST_SLOTS = 4 };
/* Sites with few slots are cheap, and spare ones save making plans anew. Beyond this many bytes there are no spare ones. */
#define SPARE_SLOT_BYTES (UINT64_C(256) << 20)

static uint32_t rank_class(uint32_t rank) {
    uint32_t class = LEAST_RANK;
    while (class < rank) class *= 2;
    return class;
}

static model_site *site_named(const adapter_sites *s, const char *pair) {
    for (size_t i = 0; i < s->model.count; i++) {
        if (!strcmp(s->pairs[i], pair)) return &s->sites[i];
    }
    return NULL;
}

/* ---- parts: A and B of a site ---- */

site_part site_part_of(const adapter_sites *s, size_t part) {
    const model_site *site = &s->sites[part / 2];
    site_part         out = { .site = site, .pair = s->pairs[part / 2], .is_b = part % 2 };
    out.is_table = !strcmp(site->base, "token_embd.weight");
    out.rows = out.is_table && !out.is_b ? site->in : site->rank * site->experts;
    out.length = out.is_table && !out.is_b ? site->rank : out.is_b ? site->out : site->in;
    return out;
}

/* Row `row` of a slot's matrices, which are those of all experts in turn. */
static void site_fill_row(const adapter_sites *s, const site_part *p, const adapter_pair *pair, uint64_t row,
                          float *out) {
    const uint32_t class = p->site->rank;
    memset(out, 0, (size_t)p->length * sizeof *out);
    if (!pair) return;
    if (p->is_table && !p->is_b) {
        memcpy(out, pair->a + row * pair->rank, pair->rank * sizeof *out);
        return;
    }
    const uint64_t expert = row / class, rank = row % class;
    if (rank >= pair->rank) return;
    if (!p->is_b) {
        memcpy(out, pair->a + (expert * pair->rank + rank) * pair->in, pair->in * sizeof *out);
        return;
    }
    const float  scale = pair->scale * (p->is_table ? sqrtf((float)s->width) : 1);
    const float *b = pair->b + expert * pair->out * pair->rank + rank;
    for (uint64_t i = 0; i < pair->out; i++) out[i] = scale * b[i * pair->rank];
}

void site_fill(const adapter_sites *s, const site_part *p, const adapter *content, uint64_t row, uint64_t count,
               float *out) {
    const adapter_pair *pair = adapter_find(content, p->pair);
    for (uint64_t i = 0; i < count; i++) site_fill_row(s, p, pair, row + i, out + i * p->length);
}

/* ---- making ---- */

/* The weight of a pair, as the model's file or its projector calls it. */
static const char *site_weight(adapter_sites *s, const gm_engine *engine, const adapter_pair *pair) {
    const model_part   part = adapter_pair_part(pair);
    const gguf        *file = part ? engine_tower_file(engine, part == PART_VISION ? TOWER_VISION : TOWER_AUDIO) : NULL;
    const gguf_tensor *found = file ? adapter_tower_tensor(file, pair->base) : NULL;
    return arena_copy(&s->memory, found ? found->name : str_of(pair->base));
}

static gm_status site_add(adapter_sites *s, const gm_engine *engine, const adapter_pair *pair, error *e) {
    model_site *site = site_named(s, pair->base);
    if (!site) {
        site = &s->sites[s->model.count];
        *site = (model_site){
            .base = site_weight(s, engine, pair), .in = pair->in, .out = pair->out, .experts = pair->experts
        };
        const char *name = arena_copy(&s->memory, str_of(pair->base));
        if (!site->base || !name) return fail_memory(e, "an adapter's site", ADAPTER_NAME);
        s->pairs[s->model.count++] = name;
    }
    site->rank = (uint32_t)max_size(site->rank, rank_class(pair->rank));
    return GM_OK;
}

static gm_status sites_collect(adapter_sites *s, const gm_engine *engine, adapter *const *contents, size_t count,
                               error *e) {
    size_t most = 1;
    for (size_t i = 0; i < count; i++) most += contents[i]->count;
    s->sites = arena_array(&s->memory, most, sizeof *s->sites);
    s->pairs = arena_array(&s->memory, most, sizeof *s->pairs);
    if (!s->sites || !s->pairs) return fail_memory(e, "the adapters' sites", most * sizeof *s->sites);
    for (model_part part = 0; part < MODEL_PARTS; part++) {
        s->parts[part].sites = s->sites + s->model.count;
        for (size_t i = 0; i < count; i++) {
            for (size_t j = 0; j < contents[i]->count; j++) {
                const adapter_pair *pair = &contents[i]->pairs[j];
                if (adapter_pair_part(pair) != part || adapter_pair_is_unused(pair, &engine->weights)) continue;
                TRY(site_add(s, engine, pair, e));
            }
        }
        s->parts[part].count = (size_t)(s->sites + s->model.count - s->parts[part].sites);
    }
    return GM_OK;
}

static uint64_t slot_bytes(const adapter_sites *s) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < 2 * s->model.count; i++) {
        const site_part p = site_part_of(s, i);
        bytes += p.rows * p.length * sizeof(float);
    }
    return bytes;
}

static uint32_t slots_for(const adapter_sites *s, size_t count, bool spare) {
    uint32_t slots = 1;
    while (slots < count) slots *= 2;
    spare = spare && slots < FEWEST_SLOTS && slot_bytes(s) * FEWEST_SLOTS <= SPARE_SLOT_BYTES;
    return spare ? FEWEST_SLOTS : slots;
}

/* A kernel has a workgroup for each rank of each slot, and binds the matrices of all slots at once. */
static gm_status sites_check_limits(const adapter_sites *s, const gpu_info *gpu, error *e) {
    const uint64_t slots = s->model.slots;
    for (size_t i = 0; i < s->model.count; i++) {
        const model_site *site = &s->sites[i];
        const uint64_t    longest = site->in > site->out ? site->in : site->out;
        const uint64_t    bytes = slots * site->experts * site->rank * longest * sizeof(float);
        if (slots * site->rank > gpu->max_workgroups)
            return fail(e, GM_UNSUPPORTED,
                        "adapters of '%s' with a rank of up to %u need %llu workgroups in %llu slots; %s runs %u at "
                        "once: free other adapters, or use one with a lower rank",
                        site->base, site->rank, (unsigned long long)(slots * site->rank), (unsigned long long)slots,
                        gpu->name, gpu->max_workgroups);
        if (bytes > gpu->max_binding)
            return fail(e, GM_NO_MEMORY,
                        "adapters of '%s' with a rank of up to %u take %llu bytes in %llu slots; %s binds %llu at "
                        "once: free other adapters, or use one with a lower rank",
                        site->base, site->rank, (unsigned long long)bytes, (unsigned long long)slots, gpu->name,
                        (unsigned long long)gpu->max_binding);
    }
    return GM_OK;
}

/* Matrices in memory, or numbers for those on the GPU. */
static gm_status sites_allocate(adapter_sites *s, bool on_gpu, uint64_t *places, error *e) {
    s->table = calloc((size_t)ADAPTER_SETS * s->model.slots, sizeof *s->table);
    s->matrices = calloc(2 * s->model.count + 1, sizeof *s->matrices);
    if (!s->table || !s->matrices) return fail_memory(e, "the adapters' sets", ADAPTER_SETS * sizeof *s->table);
    for (size_t i = 0; i < 2 * s->model.count; i++) {
        const site_part p = site_part_of(s, i);
        const uint64_t  n = p.rows * p.length * s->model.slots;
        *places += MODEL_PLACES;
        if (i % 2 == 0) s->sites[i / 2].place = *places;
        if (on_gpu) continue;
        if (n > SIZE_MAX / sizeof(float)) return fail_memory(e, "the adapters", SIZE_MAX); /* on 32 bits */
        s->matrices[i] = calloc((size_t)n, sizeof(float));
        if (!s->matrices[i]) return fail_memory(e, "the adapters", n * sizeof(float));
        *(i % 2 ? &s->sites[i / 2].b : &s->sites[i / 2].a) = s->matrices[i];
    }
    s->model.place = *places += MODEL_PLACES;
    s->model.table = on_gpu ? NULL : s->table;
    for (model_part part = 0; part < MODEL_PARTS; part++) {
        const model_adapters own = s->parts[part];
        s->parts[part] = s->model;
        s->parts[part].sites = own.sites;
        s->parts[part].count = own.count;
    }
    return GM_OK;
}

static gm_status sites_reserve(adapter_sites *s, gm_engine *engine, error *e) {
    error inner = { 0 };
    TRY(sites_check_limits(s, gpu_host_info(engine->gpu.host), e));
    const gm_status status = gpu_backend_reserve(&engine->gpu, s->g, &inner);
    if (status != GM_NO_MEMORY) return status ? fail(e, status, "%s", inner.why) : GM_OK;
    return fail(e, status, "the adapters take %llu bytes of GPU memory in %u slots: %s",
                (unsigned long long)(slot_bytes(s) * s->model.slots), s->model.slots, inner.why);
}

static gm_status sites_try(adapter_sites *s, gm_engine *engine, adapter *const *contents, size_t count, size_t slots,
                           bool spare, uint64_t *places, error *e) {
    *s = (adapter_sites){ .width = engine->weights.config.width };
    gm_status status = sites_collect(s, engine, contents, count, e);
    s->model.sites = s->sites;
    s->model.sets = ADAPTER_SETS;
    if (!status) s->model.slots = slots_for(s, slots, spare);
    if (!status) status = sites_allocate(s, engine->on_gpu, places, e);
    if (!status) {
        s->g = calloc(1, sizeof *s->g);
        status = s->g ? model_text_graph(&engine->weights, &s->parts[PART_TEXT], s->g, e)
                      : fail_memory(e, "the adapters' graph", sizeof *s->g);
    }
    if (!status && engine->on_gpu) status = sites_reserve(s, engine, e);
    if (status) adapter_sites_free(s, engine);
    return status;
}

/* If memory is short, there are no spare slots, and towers give up theirs. */
gm_status adapter_sites_make(adapter_sites *s, gm_engine *engine, adapter *const *contents, size_t count,
                             uint32_t least_slots, uint64_t *places, error *e) {
    const size_t slots = max_size(count, least_slots);
    error        first = { 0 };
    gm_status    status = sites_try(s, engine, contents, count, slots, true, places, &first);
    if (status != GM_NO_MEMORY) return status ? fail(e, status, "%s", first.why) : GM_OK;
    engine_release_towers(engine);
    return sites_try(s, engine, contents, count, slots, false, places, e);
}

void adapter_sites_free(adapter_sites *s, gm_engine *engine) {
    if (s->g && engine->on_gpu) gpu_backend_release(&engine->gpu, s->g);
    for (size_t i = 0; s->matrices && i < 2 * s->model.count; i++) free(s->matrices[i]);
    free(s->matrices);
    free(s->table);
    if (s->g) graph_free(s->g);
    free(s->g);
    arena_free(&s->memory);
    *s = (adapter_sites){ 0 };
}

bool adapter_sites_take(const adapter_sites *s, const model *m, const adapter *content) {
    for (size_t i = 0; i < content->count; i++) {
        const model_site *site = site_named(s, content->pairs[i].base);
        if (adapter_pair_is_unused(&content->pairs[i], m)) continue;
        if (!site || site->rank < content->pairs[i].rank) return false;
    }
    return true;
}
