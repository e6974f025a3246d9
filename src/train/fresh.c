#include "train/fresh.h"

#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { FRESH_LAYER, FRESH_TABLE, FRESH_HEAD, FRESH_ONCE } fresh_place;

static const struct {
    const char *name, *tensor;
    fresh_place place;
} fresh_targets[] = {
    { "q", "attn_q", FRESH_LAYER },
    { "k", "attn_k", FRESH_LAYER },
    { "v", "attn_v", FRESH_LAYER },
    { "o", "attn_output", FRESH_LAYER },
    { "gate", "ffn_gate", FRESH_LAYER },
    { "up", "ffn_up", FRESH_LAYER },
    { "down", "ffn_down", FRESH_LAYER },
    { "per_layer_gate", "inp_gate", FRESH_LAYER },
    { "per_layer_projection", "proj", FRESH_LAYER },
    { "router", "ffn_gate_inp", FRESH_LAYER },
    { "experts", "ffn_gate_up_exps", FRESH_LAYER },
    { "experts", "ffn_gate_exps", FRESH_LAYER },
    { "experts", "ffn_up_exps", FRESH_LAYER },
    { "experts", "ffn_down_exps", FRESH_LAYER },
    { "embedding", "token_embd", FRESH_TABLE },
    { "per_layer_model_projection", "per_layer_model_proj", FRESH_ONCE },
    { "head", "output", FRESH_HEAD },
};

const char *fresh_target_names(void) {
    return "q, k, v, o, gate, up, down, per_layer_gate, per_layer_projection, per_layer_model_projection, router, "
           "experts, "
           "embedding, head";
}

/* Whether a list with commas has the word. */
static bool list_has(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const char *begin = at + strspn(at, " ");
        size_t      n = strcspn(begin, ",");
        while (n && begin[n - 1] == ' ') n--;
        if (n == length && !strncmp(begin, word, n)) return true;
    }
    return false;
}

static gm_status check_targets(const char *list, error *e) {
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char   word[40];
        bool   known = false;
        size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), at);
        for (size_t i = 0; i < COUNT_OF(fresh_targets) && !known; i++) known = list_has(word, fresh_targets[i].name);
        if (!known)
            return fail(e, GM_BAD_ARGUMENT, "'%s' cannot be trained; expected one of %s", word, fresh_target_names());
    }
    return GM_OK;
}

/* Marks the layers of "0-5,9". */
static gm_status read_layers(const char *list, bool *wanted, uint32_t layers, error *e) {
    for (const char *at = list; *at;) {
        unsigned first = 0, last = 0;
        int      used = 0, more = 0;
        if (sscanf(at, " %u %n", &first, &used) < 1) used = 0;
        last = first;
        if (used && at[used] == '-' && sscanf(at + used, "- %u %n", &last, &more) == 1) used += more;
        if (!used || (at[used] && at[used] != ',') || first > last || last >= layers)
            return fail(e, GM_BAD_ARGUMENT, "layers '%s': expected numbers and ranges below %u, such as 0-3,5", list,
                        layers);
        for (unsigned i = first; i <= last; i++) wanted[i] = true;
        at += used + (at[used] == ',');
    }
    return GM_OK;
}

/* A pair of this tensor, if the model has it and computes with it. */
static gm_status add_pair(adapter *a, const model *m, size_t target, uint32_t layer, const fresh_options *o, error *e) {
    adapter_pair  *p = &a->pairs[a->count];
    const uint32_t width = m->config.width, vocabulary = m->config.vocabulary;
    uint64_t       ne[3] = { width, vocabulary, 1 };
    *p = (adapter_pair){ .rank = o->rank, .alpha = o->alpha };
    if (fresh_targets[target].place == FRESH_LAYER)
        snprintf(p->base, sizeof p->base, "blk.%u.%s.weight", layer, fresh_targets[target].tensor);
    else snprintf(p->base, sizeof p->base, "%s.weight", fresh_targets[target].tensor);
    if (fresh_targets[target].place == FRESH_TABLE) {
        ne[0] = vocabulary;
        ne[1] = width;
    } else if (fresh_targets[target].place != FRESH_HEAD) {
        const gguf_tensor *t = gguf_find_tensor(m->file, p->base);
        if (!t || adapter_pair_is_unused(p, m)) return GM_OK;
        memcpy(ne, t->ne, sizeof ne);
    }
    const uint64_t rows = ne[2] * o->rank;
    p->in = (uint32_t)ne[0];
    p->out = (uint32_t)ne[1];
    p->experts = (uint32_t)ne[2];
    p->scale = (float)(o->alpha / (o->rslora ? sqrt(o->rank) : (double)o->rank));
    p->alpha = (double)p->scale * o->rank;
    p->a = arena_array(&a->memory, (size_t)(rows * ne[0]), sizeof *p->a);
    p->b = arena_array(&a->memory, (size_t)(rows * ne[1]), sizeof *p->b);
    if (!p->a || !p->b) return fail_memory(e, "the new adapter", rows * (ne[0] + ne[1]) * sizeof *p->a);
    a->bytes += rows * (ne[0] + ne[1]) * sizeof *p->a;
    a->count++;
    return GM_OK;
}

/* A half of a pair, evenly between ± most. */
static void fill_half(const adapter_pair *p, bool is_b, float most, uint64_t seed, size_t number) {
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const uint64_t count = (uint64_t)p->experts * p->rank * (is_b ? p->out : p->in);
    float         *values = is_b ? p->b : p->a;
    uint32_t       words[4];
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t counter[4] = { (uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), (uint32_t)number, 0 };
        if (i % 4 == 0) philox(counter, key, words);
        values[i] = most * ((float)(words[i % 4] >> 8) / (1 << 23) - 1);
    }
}

/* A evenly between ±1/√in, and B 0. Of an embedding, B, and A 0: only ids that are learned move. */
static void fill_pair(const adapter_pair *p, const fresh_options *o, size_t number) {
    const bool table = adapter_is_embedding(p);
    fill_half(p, table, 1 / sqrtf(table ? (float)p->rank : (float)p->in), o->seed, number);
    if (o->other > 0) fill_half(p, !table, (float)o->other, o->seed + 1, number);
}

static gm_status add_pairs(adapter *a, const model *m, const fresh_options *o, const char *targets, error *e) {
    const uint32_t layers = m->config.layers;
    const size_t   most = (size_t)layers * COUNT_OF(fresh_targets) + COUNT_OF(fresh_targets);
    bool          *wanted = arena_array(&a->memory, layers, sizeof *wanted);
    a->pairs = arena_array(&a->memory, most, sizeof *a->pairs);
    if (!wanted || !a->pairs) return fail_memory(e, "the new adapter", most * sizeof *a->pairs);
    if (o->layers) TRY(read_layers(o->layers, wanted, layers, e));
    else memset(wanted, true, layers);
    for (int stage = 0; stage < 3; stage++) { /* tables, layers, head: the order of an adapter's pairs */
        for (uint32_t layer = 0; layer < (stage == 1 ? layers : 1); layer++) {
            for (size_t i = 0; i < COUNT_OF(fresh_targets); i++) {
                const fresh_place place = fresh_targets[i].place;
                const bool        here = stage == 1            ? place == FRESH_LAYER && wanted[layer]
                                         : place == FRESH_HEAD ? stage == 2
                                                               : place != FRESH_LAYER && stage == 0;
                if (here && list_has(targets, fresh_targets[i].name)) TRY(add_pair(a, m, i, layer, o, e));
            }
        }
    }
    return a->count ? GM_OK : fail(e, GM_BAD_ARGUMENT, "the model has none of the targets '%s'", targets);
}

gm_status adapter_fresh(const model *m, const fresh_options *o, const char *name, adapter **out, error *e) {
    const char *targets = o->targets ? o->targets : "q,k,v,o,gate,up,down";
    if (!o->rank || o->rank > ADAPTER_MOST_RANK)
        return fail(e, GM_BAD_ARGUMENT, "rank %u: expected 1 to %d", o->rank, ADAPTER_MOST_RANK);
    if (!(o->alpha > 0) || !isfinite(o->alpha))
        return fail(e, GM_BAD_ARGUMENT, "alpha %g: expected more than 0", o->alpha);
    TRY(check_targets(targets, e));
    adapter *a = calloc(1, sizeof *a);
    if (!a) return fail_memory(e, "the new adapter", sizeof *a);
    a->name = arena_copy(&a->memory, str_of(name));
    a->prefix = arena_copy(&a->memory, str_of("model.language_model."));
    gm_status status = a->name && a->prefix ? GM_OK : fail_memory(e, "the new adapter", sizeof *a);
    if (!status) status = add_pairs(a, m, o, targets, e);
    for (size_t i = 0; !status && i < a->count; i++) fill_pair(&a->pairs[i], o, i);
    if (!status) status = adapter_fits(a, m, NULL, NULL, e);
    if (status) {
        adapter_free(a);
        return status;
    }
    adapter_hash(a);
    *out = a;
    return GM_OK;
}
