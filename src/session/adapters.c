#include "session/adapters.h"

#include "base/sha256.h"
#include "session/decoder.h"
#include "session/decoder_gpu.h"
#include "session/tower_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const graph *engine_adapters_graph(const gm_engine *engine, bool adapted) {
    return adapted && engine->adapters.sites.parts[PART_TEXT].count ? engine->adapters.sites.g : &engine->text;
}

/* ---- sets ---- */

static float *set_row(const engine_adapters *a, uint32_t set) {
    return a->sites.table + (size_t)set * a->sites.model.slots;
}

static bool slot_in_set(const engine_adapters *a, uint32_t set, uint32_t slot) {
    return a->users[set] && set_row(a, set)[slot] != 0;
}

/* Frees parked sessions that use any set other than 0, or only those with this slot. Nobody has them open. */
static bool adapters_unpark(gm_engine *engine, const gm_adapter *only) {
    bool any = false;
    for (gm_session *s = engine->parked, *next; s; s = next) {
        next = s->next;
        if (!s->adapters || (only && !slot_in_set(&engine->adapters, s->adapters, only->slot))) continue;
        session_free(s);
        any = true;
    }
    return any;
}

static uint32_t set_find(const engine_adapters *a, const float *weights) {
    const size_t bytes = a->sites.model.slots * sizeof *weights;
    for (uint32_t i = 1; i < ADAPTER_SETS; i++) {
        if (a->users[i] && !memcmp(set_row(a, i), weights, bytes)) return i;
    }
    return 0;
}

static uint32_t set_free(const engine_adapters *a) {
    uint32_t i = 1;
    while (i < ADAPTER_SETS && a->users[i]) i++;
    return i < ADAPTER_SETS ? i : 0;
}

static gm_status set_weights_of(const gm_engine *engine, gm_adapter *const *adapters, const float *scales, size_t count,
                                float *weights, bool *any, error *e) {
    for (size_t i = 0; i < engine->adapters.own; i++) weights[i] = 1;
    for (size_t i = 0; i < count; i++) {
        if (!adapters[i] || adapters[i]->engine != engine)
            return fail(e, GM_BAD_ARGUMENT, "adapter %zu does not belong to the session's engine", i);
        if (!isfinite(scales ? scales[i] : 1))
            return fail(e, GM_BAD_ARGUMENT, "the scale of adapter '%s' is not a finite number",
                        gm_adapter_name(adapters[i]));
        weights[adapters[i]->slot] += scales ? scales[i] : 1;
        if (!isfinite(weights[adapters[i]->slot]))
            return fail(e, GM_BAD_ARGUMENT, "the scales of adapter '%s' add up to more than a number can hold",
                        gm_adapter_name(adapters[i]));
    }
    for (uint32_t i = 0; i < engine->adapters.sites.model.slots; i++) {
        if (weights[i] == 0) weights[i] = 0; /* never −0: sets are compared bit by bit */
        *any = *any || weights[i] != 0;
    }
    return GM_OK;
}

/* Takes a free row of the table. Its adapters get a user more. */
static gm_status set_make(gm_engine *engine, const float *weights, uint32_t *set, error *e) {
    engine_adapters *a = &engine->adapters;
    if (!set_free(a)) adapters_unpark(engine, NULL);
    *set = set_free(a);
    if (!*set)
        return fail(e, GM_BUSY, "sessions already use %d different sets of adapters, the most at once",
                    ADAPTER_SETS - 1);
    memcpy(set_row(a, *set), weights, a->sites.model.slots * sizeof *weights);
    for (uint32_t i = 0; i < a->sites.model.slots; i++) {
        if (weights[i] != 0) a->slots[i]->users++;
    }
    a->users[*set] = 1;
    a->table_written = false;
    return GM_OK;
}

gm_status engine_adapters_take_set(gm_engine *engine, gm_adapter *const *adapters, const float *scales, size_t count,
                                   uint32_t *set, error *e) {
    engine_adapters *a = &engine->adapters;
    bool             any = false;
    *set = 0;
    if (!count && !a->own) return GM_OK;
    float    *weights = calloc(a->sites.model.slots + 1, sizeof *weights);
    gm_status status = weights ? set_weights_of(engine, adapters, scales, count, weights, &any, e)
                               : fail_memory(e, "a set of adapters", sizeof *weights);
    if (!status && any) {
        *set = set_find(a, weights);
        if (*set) a->users[*set]++;
        else status = set_make(engine, weights, set, e);
    }
    free(weights);
    return status;
}

void engine_adapters_keep_set(gm_engine *engine, uint32_t set) {
    if (set) engine->adapters.users[set]++;
}

void engine_adapters_leave_set(gm_engine *engine, uint32_t set) {
    engine_adapters *a = &engine->adapters;
    if (!set || --a->users[set]) return;
    gm_adapter **slots = a->slots;
    for (uint32_t i = 0; a->count && i < a->sites.model.slots; i++) {
        const bool in = set_row(a, set)[i] != 0;
        set_row(a, set)[i] = 0;
        if (in) engine_adapters_drop(slots[i]);
    }
}

bool engine_adapters_set_lasts(const gm_engine *engine, uint32_t set) {
    const engine_adapters *a = &engine->adapters;
    bool                   lasts = true;
    for (uint32_t i = 0; set && i < a->sites.model.slots; i++)
        lasts = lasts && (!slot_in_set(a, set, i) || a->slots[i]->owned);
    return lasts;
}

static int digest_order(const void *a, const void *b) { return memcmp(a, b, 32); }

static bool adapter_corrects(const adapter *a, model_part part) {
    for (size_t i = 0; i < a->count; i++) {
        if (adapter_pair_part(&a->pairs[i]) == part) return true;
    }
    return false;
}

/* `part` MODEL_PARTS: of all adapters. Without memory it identifies nothing: what is restored is computed again. */
static void set_digest(const gm_engine *engine, uint32_t set, model_part part, char hex[65]) {
    enum { ENTRY = 32 + sizeof(float) };
    const engine_adapters *a = &engine->adapters;
    const uint32_t         slots = a->sites.model.slots;
    uint8_t               *entries = malloc((size_t)slots * ENTRY + 1), digest[32];
    size_t                 count = 0;
    sha256                 hash;
    *hex = 0;
    for (uint32_t i = 0; entries && set && i < slots; i++) {
        if (!slot_in_set(a, set, i)) continue;
        if (part < MODEL_PARTS && !adapter_corrects(a->slots[i]->content, part)) continue;
        memcpy(entries + count * ENTRY, a->slots[i]->content->digest, 32);
        memcpy(entries + count++ * ENTRY + 32, &set_row(a, set)[i], sizeof(float));
    }
    if (count) {
        qsort(entries, count, ENTRY, digest_order);
        sha256_start(&hash);
        sha256_add(&hash, entries, count * ENTRY);
        sha256_end(&hash, digest);
        sha256_hex(digest, hex);
    }
    free(entries);
}

void engine_adapters_digest(const gm_engine *engine, uint32_t set, char hex[65]) {
    set_digest(engine, set, MODEL_PARTS, hex);
}

void engine_adapters_part_digest(const gm_engine *engine, uint32_t set, model_part part, char hex[65]) {
    set_digest(engine, set, part, hex);
}

bool engine_adapters_see_alike(const gm_engine *engine, uint32_t set, uint32_t other) {
    bool alike = true;
    for (model_part part = PART_VISION; part < MODEL_PARTS; part++) {
        char one[65], two[65];
        set_digest(engine, set, part, one);
        set_digest(engine, other, part, two);
        alike = alike && !strcmp(one, two);
    }
    return alike;
}

/* ---- slots ---- */

/* Sessions and decoders drop what they have under way: the plans of the graph with corrections are about to go. */
static void adapters_stop_runs(gm_engine *engine) {
    for (gm_session *s = engine->sessions; s; s = s->next) {
        session_abandon(s);
        gpu_generator_free(s->run.generator);
        s->run.generator = NULL;
    }
    for (size_t i = 0; i < COUNT_OF(engine->decoders); i++) {
        decoder_forget_adapters(engine->decoders[i]);
        gpu_decoder_forget_adapters(engine->gpu_decoders[i]);
    }
    engine_towers_forget_adapters(engine);
    plans_drop(&engine->plans, engine->adapters.sites.g);
}

static void adapters_begin_writing(engine_adapters *a) {
    a->table_written = false;
    a->next.part = 0;
    a->next.row = 0;
}

static void slot_fill_memory(const engine_adapters *a, const gm_adapter *held) {
    for (size_t i = 0; i < 2 * a->sites.model.count; i++) {
        const site_part p = site_part_of(&a->sites, i);
        site_fill(&a->sites, &p, held->content, 0, p.rows, a->sites.matrices[i] + held->slot * p.rows * p.length);
    }
}

static void slot_put(gm_engine *engine, gm_adapter *held, uint32_t slot) {
    engine_adapters *a = &engine->adapters;
    held->slot = slot;
    for (size_t i = 0; i < MODEL_PARTS; i++) held->written[i] = !engine->on_gpu;
    a->slots[slot] = held;
    if (!engine->on_gpu) slot_fill_memory(a, held);
    adapters_begin_writing(a);
}

/* Puts new sites in the place of the old ones. The adapters keep their slots, and the sets their numbers. */
static gm_status adapters_replace_sites(gm_engine *engine, adapter_sites *fresh, error *e) {
    engine_adapters *a = &engine->adapters;
    const uint32_t   before = a->sites.model.slots, slots = fresh->model.slots;
    gm_adapter     **grown = realloc(a->slots, slots * sizeof *grown);
    if (!grown) return fail_memory(e, "the adapters' slots", slots * sizeof *grown);
    a->slots = grown;
    for (uint32_t i = before; i < slots; i++) grown[i] = NULL;
    for (uint32_t set = 0; set < ADAPTER_SETS && before; set++)
        memcpy(fresh->table + (size_t)set * slots, set_row(a, set), before * sizeof *fresh->table);
    if (before) adapters_stop_runs(engine);
    adapter_sites_free(&a->sites, engine);
    a->sites = *fresh;
    for (uint32_t i = 0; i < slots; i++) {
        if (grown[i]) slot_put(engine, grown[i], i);
    }
    return GM_OK;
}

/* Sites for the adapters that there are, and one more. */
static gm_status adapters_make_sites(gm_engine *engine, adapter *content, error *e) {
    engine_adapters *a = &engine->adapters;
    const uint32_t   slots = a->sites.model.slots;
    adapter        **contents = calloc(slots + 1, sizeof *contents);
    adapter_sites    fresh;
    size_t           count = 0;
    if (!contents) return fail_memory(e, "the adapters", sizeof *contents);
    for (uint32_t i = 0; i < slots; i++) {
        if (a->slots[i]) contents[count++] = a->slots[i]->content;
    }
    contents[count++] = content;
    gm_status status = adapter_sites_make(&fresh, engine, contents, count, slots, &a->places, e);
    free(contents);
    if (status) return status;
    status = adapters_replace_sites(engine, &fresh, e);
    if (status) adapter_sites_free(&fresh, engine);
    return status;
}

static uint32_t slot_free(const engine_adapters *a) {
    uint32_t i = 0;
    while (i < a->sites.model.slots && a->slots[i]) i++;
    return i;
}

gm_status engine_adapters_check(const gm_engine *engine, const adapter *content, error *e) {
    if (engine->denoiser) return fail(e, GM_UNSUPPORTED, "a diffusion model does not support adapters");
    TRY(adapter_fits(content, &engine->weights, engine_tower_file(engine, TOWER_VISION),
                     engine_tower_file(engine, TOWER_AUDIO), e));
    for (size_t i = 0; i < content->count; i++) {
        if (str_ends_with(str_of(content->pairs[i].base), ".attn_k_rel.weight"))
            return fail(
                e, GM_UNSUPPORTED,
                "adapter of '%s': the audio tower computes its relative positions once, when it is loaded, so an "
                "adapter cannot correct them; merge it into the model (gemmule adapter merge)",
                content->pairs[i].base);
    }
    return GM_OK;
}

gm_status engine_adapters_add(gm_engine *engine, adapter *content, gm_adapter **out, error *e) {
    engine_adapters *a = &engine->adapters;
    gm_adapter      *added = calloc(1, sizeof *added);
    gm_status status = added ? engine_adapters_check(engine, content, e) : fail_memory(e, "an adapter", sizeof *added);
    if (!status && (slot_free(a) == a->sites.model.slots || !adapter_sites_take(&a->sites, &engine->weights, content)))
        status = adapters_make_sites(engine, content, e);
    if (status) {
        adapter_free(content);
        free(added);
        return status;
    }
    *added = (gm_adapter){ .engine = engine, .content = content, .users = 1, .owned = true };
    a->count++;
    slot_put(engine, added, slot_free(a));
    *out = added;
    return GM_OK;
}

void engine_adapters_drop(gm_adapter *held) {
    gm_engine       *engine = held->engine;
    engine_adapters *a = &engine->adapters;
    if (--held->users) return;
    adapters_begin_writing(a); /* another slot is not written from where this one may have stopped */
    a->slots[held->slot] = NULL;
    adapter_free(held->content);
    free(held);
    if (--a->count) return;
    adapters_stop_runs(engine);
    engine_adapters_close(engine);
}

void engine_adapters_close(gm_engine *engine) {
    engine_adapters *a = &engine->adapters;
    for (uint32_t i = 0; i < a->sites.model.slots; i++) {
        if (!a->slots[i]) continue;
        adapter_free(a->slots[i]->content);
        free(a->slots[i]);
    }
    const uint64_t places = a->places;
    adapter_sites_free(&a->sites, engine);
    free(a->slots);
    free(a->next.scratch);
    *a = (engine_adapters){ .places = places };
}

/* ---- the GPU ---- */

static gm_status adapters_write(gm_engine *engine, uint64_t place, uint64_t offset, const float *values, uint64_t count,
                                error *e) {
    const tensor vector = { .kind = TENSOR_WEIGHT, .place = place, .name = "adapters" };
    return gpu_backend_write_vector(&engine->gpu, &vector, offset * sizeof *values, values, count * sizeof *values, e);
}

/* Writes a slot's matrices for a part of the model, from where the last call stopped. */
static gm_status slot_write(gm_engine *engine, const gm_adapter *held, model_part part, error *e) {
    enum { PIECE = 1 << 18 }; /* values */
    engine_adapters *a = &engine->adapters;
    const size_t     first = 2 * (size_t)(a->sites.parts[part].sites - a->sites.sites);
    if (a->next.of != part) a->next.part = a->next.row = 0;
    a->next.of = part;
    for (; a->next.part < 2 * a->sites.parts[part].count; a->next.part++, a->next.row = 0) {
        const site_part p = site_part_of(&a->sites, first + a->next.part);
        const uint64_t  most = max_size(PIECE / p.length, 1), place = p.site->place + (p.is_b ? MODEL_PLACES : 0);
        while (a->next.row < p.rows) {
            const uint64_t rows = p.rows - a->next.row < most ? p.rows - a->next.row : most;
            float         *values = realloc(a->next.scratch, max_size(PIECE, rows * p.length) * sizeof *values);
            if (!values) return fail_memory(e, "a piece of an adapter", rows * p.length * sizeof *values);
            a->next.scratch = values;
            site_fill(&a->sites, &p, held->content, a->next.row, rows, values);
            const uint64_t  at = (held->slot * p.rows + a->next.row) * p.length;
            const gm_status status = adapters_write(engine, place, at, values, rows * p.length, e);
            if (status) return status;
            a->next.row += rows;
        }
    }
    return GM_OK;
}

static gm_status table_write(gm_engine *engine, error *e) {
    engine_adapters *a = &engine->adapters;
    if (a->table_written) return GM_OK;
    const gm_status status =
        adapters_write(engine, a->sites.model.place, 0, a->sites.table, ADAPTER_SETS * a->sites.model.slots, e);
    a->table_written = !status;
    return status;
}

gm_status engine_adapters_ready(gm_engine *engine, model_part part, error *e) {
    engine_adapters *a = &engine->adapters;
    if (!engine->on_gpu || !a->count || !a->sites.parts[part].count) return GM_OK;
    if (part == PART_TEXT) {
        const gm_status uploaded = gpu_backend_upload(&engine->gpu, a->sites.g, e);
        if (uploaded) return uploaded;
    }
    for (uint32_t i = 0; i < a->sites.model.slots; i++) {
        if (!a->slots[i] || a->slots[i]->written[part]) continue;
        const gm_status status = slot_write(engine, a->slots[i], part, e);
        if (status) return status;
        a->slots[i]->written[part] = true;
        a->next.part = 0;
        free(a->next.scratch);
        a->next.scratch = NULL;
    }
    return table_write(engine, e);
}

void engine_adapters_lost(gm_engine *engine, model_part part) {
    engine_adapters *a = &engine->adapters;
    for (uint32_t i = 0; a->slots && i < a->sites.model.slots; i++) {
        if (a->slots[i]) a->slots[i]->written[part] = !engine->on_gpu;
    }
    adapters_begin_writing(a);
}

/* ---- sessions ---- */

gm_status session_set_adapters(gm_session *s, gm_adapter *const *adapters, const float *scales, size_t count,
                               error *e) {
    gm_engine *engine = s->engine;
    uint32_t   set = 0;
    TRY(session_check_free(s, e));
    TRY(engine_adapters_take_set(engine, adapters, scales, count, &set, e));
    gm_status status = GM_OK;
    if (set && !engine->on_gpu) status = runner_prepare(&s->run, s->kv.store, 1, true, e);
    if (status || set == s->adapters) {
        engine_adapters_leave_set(engine, set);
        return status;
    }
    session_release(s);
    session_go_back(s, 0);
    s->has_logits = false;
    if (!engine_adapters_see_alike(engine, s->adapters, set)) session_forget_soft(s);
    engine_adapters_leave_set(engine, s->adapters);
    s->adapters = set;
    return GM_OK;
}

gm_status gm_session_adapters(gm_session *s, gm_adapter *const *adapters, const float *scales, size_t count, char *why,
                              size_t why_size) {
    error e = { 0 };
    engine_enter(s->engine);
    session_set_adapters(s, adapters, scales, count, &e);
    engine_leave(s->engine);
    return error_report(&e, why, why_size);
}

static gm_status adapter_take(gm_engine *engine, gm_status status, adapter *content, gm_adapter **out, error *e,
                              char *why, size_t why_size) {
    *out = NULL;
    if (!status) {
        engine_enter(engine);
        engine_adapters_add(engine, content, out, e);
        engine_leave(engine);
    }
    return error_report(e, why, why_size);
}

gm_status gm_adapter_load(gm_engine *engine, const char *path, gm_adapter **out, char *why, size_t why_size) {
    error           e = { 0 };
    adapter        *content = NULL;
    const gm_status status = adapter_open(path ? path : "", &content, &e);
    return adapter_take(engine, status, content, out, &e, why, why_size);
}

gm_status gm_adapter_load_data(gm_engine *engine, const char *name, const void *weights, size_t weights_size,
                               const void *config, size_t config_size, gm_adapter **out, char *why, size_t why_size) {
    error           e = { 0 };
    adapter        *content = NULL;
    const gm_status status = adapter_open_memory((str){ weights, weights_size }, (str){ config, config_size },
                                                 name ? name : "adapter", &content, &e);
    return adapter_take(engine, status, content, out, &e, why, why_size);
}

const char *gm_adapter_name(const gm_adapter *held) { return held->content->name; }

void gm_adapter_free(gm_adapter *held) {
    if (!held) return;
    gm_engine *engine = held->engine;
    engine_enter(engine);
    adapters_unpark(engine, held);
    held->owned = false;
    engine_adapters_drop(held);
    engine_leave(engine);
}
