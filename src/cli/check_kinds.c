/* How each kind of expectation is recomputed. */

#include "cli/check.h"

#include "cli/interrupt.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double relative_error(const float *got, const float *want, uint64_t count) {
    double difference = 0, size = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue; /* a NaN scale must give NaN */
        if (got[i] == want[i]) {
            if (isfinite(want[i])) size += (double)want[i] * want[i];
            continue;
        }
        const double d = (double)got[i] - want[i];
        difference += d * d;
        size += (double)want[i] * want[i];
    }
    if (difference == 0) return 0;
    const double relative = sqrt(difference / size);
    return isnan(relative) ? INFINITY : relative;
}

const void *check_values_of(const gguf *file, const gguf_tensor *t) { return gguf_tensor_data(file, t); }

/* ---- text models ---- */

gm_status check_need_engine(check_state *c, error *e) {
    if (!c->engine && c->engine_problem.status == GM_OK) {
        engine_open(c->values, c->engine_name, false, &c->engine, &c->engine_problem);
    }
    return c->engine ? GM_OK : fail(e, c->engine_problem.status, "%s", c->engine_problem.why);
}

/* The values of an I32 tensor. */
static gm_status find_integers(check_state *c, const char *name, const int32_t **values, size_t *count, error *e) {
    const gguf_tensor *t = gguf_find_tensor(c->expect, name);
    if (!t) return fail(e, GM_BAD_ARGUMENT, "%s has no %s", c->expect_path, name);
    if (t->type != TYPE_I32) return fail(e, GM_BAD_ARGUMENT, "%s is %s, expected I32", name, t->format->name);
    *values = check_values_of(c->expect, t);
    *count = (size_t)t->count;
    return *values && *count ? GM_OK : fail(e, GM_BAD_ARGUMENT, "%s has no data", name);
}

gm_status check_find_ids(check_state *c, const char *name, uint32_t vocabulary, const int32_t **ids, size_t *count,
                         error *e) {
    TRY(find_integers(c, name, ids, count, e));
    for (size_t i = 0; i < *count; i++) {
        if ((*ids)[i] < 0 || (uint32_t)(*ids)[i] >= vocabulary) {
            return fail(e, GM_BAD_ARGUMENT, "%s has token %d at position %zu, but the vocabulary has %u tokens", name,
                        (int)(*ids)[i], i, vocabulary);
        }
    }
    return GM_OK;
}

static gm_status find_ids(check_state *c, const char *number, uint32_t vocabulary, const int32_t **ids, size_t *count,
                          error *e) {
    char name[80];
    snprintf(name, sizeof name, "ids%s%s", *number ? "." : "", number);
    return check_find_ids(c, name, vocabulary, ids, count, e);
}

gm_status check_logits_shape(const gguf_tensor *want, uint32_t vocabulary, size_t count, error *e) {
    const uint64_t rows = want->ne[0] ? want->count / want->ne[0] : 0;
    if (want->type == TYPE_F32 && want->ne[0] == vocabulary && rows > 0 && rows <= count) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "the expectation is %s [%llu, %llu], expected F32 [%u (the vocabulary), 1 to %zu (the prompt)]",
                want->format->name, (unsigned long long)want->ne[0], (unsigned long long)want->ne[1], vocabulary,
                count);
}

double check_logits_error(check_state *c, const gguf_tensor *want, const float *got, size_t count) {
    const size_t skipped = count * want->ne[0] - want->count;
    return relative_error(got + skipped, check_values_of(c->expect, want), want->count);
}

/* Moves the rows that `rows` lists (in rising order) behind the others, where check_logits_error looks for them. */
static gm_status gather_logits(check_state *c, const gguf_tensor *want, float *got, size_t count, error *e) {
    const size_t   width = want->ne[0], wanted = (size_t)(want->count / width);
    const int32_t *rows = NULL;
    size_t         listed = 0;
    if (!gguf_find_tensor(c->expect, "rows")) return GM_OK;
    TRY(find_integers(c, "rows", &rows, &listed, e));
    if (listed != wanted)
        return fail(e, GM_BAD_ARGUMENT, "rows lists %zu tokens, but the logits are those of %zu", listed, wanted);
    for (size_t i = listed, end = count; i-- > 0; end = (size_t)rows[i]) {
        if (rows[i] < 0 || (size_t)rows[i] >= end)
            return fail(e, GM_BAD_ARGUMENT, "rows must rise and be below %zu (the prompt), but has %d at %zu", count,
                        (int)rows[i], i);
        memmove(got + (count - listed + i) * width, got + (size_t)rows[i] * width, width * sizeof *got);
    }
    return GM_OK;
}

gm_status check_new_session(check_state *c, size_t tokens, gm_session **out, error *e) {
    const gm_status status = session_open(c->values, c->engine, tokens, out, e);
    if (status == GM_OK) interrupt_watch(*out);
    return status;
}

void check_end_session(gm_session *session) {
    interrupt_watch(NULL);
    gm_session_free(session);
}

/* ---- adapters ---- */

/* Expectations of several adapters: the factors that they were computed with. Any other name is that of one adapter. */
static const struct {
    const char *name, *adapters[2];
    float       factors[2];
} adapter_mixes[] = {
    { "base", { NULL, NULL }, { 0, 0 } },
    { "embedding_head", { "embedding", "head" }, { 1, 1 } },
    { "two", { "tiny-dense-lora", "part" }, { 0.7f, -0.3f } },
};

static gm_status use_named_adapters(const check_state *c, gm_session *session, const char *name, error *e) {
    for (size_t i = 0; i < COUNT_OF(adapter_mixes); i++) {
        if (strcmp(adapter_mixes[i].name, name)) continue;
        const size_t count = adapter_mixes[i].adapters[0] ? 2 : 0;
        return session_use_adapters(c->values, session, adapter_mixes[i].adapters, adapter_mixes[i].factors, count, e);
    }
    return session_use_adapters(c->values, session, &name, NULL, 1, e);
}

/* Whether the rest of "logits.NAME" names adapters: then all lines have the same prompt. Otherwise it is the number of a prompt. */
static bool names_adapters(const check_state *c, const char *rest) {
    char ids[80];
    snprintf(ids, sizeof ids, "ids.%s", rest);
    return *rest && !gguf_find_tensor(c->expect, ids) && gguf_find_tensor(c->expect, "ids");
}

/* An expectation of training that names its tokens in the metadata has the logits of the model alone. */
static bool logits_are_plain(const check_state *c) {
    for (size_t i = 0; i < gguf_value_count(c->expect); i++) {
        if (str_is(gguf_value_at(c->expect, i)->key, "train_tokens")) return true;
    }
    return false;
}

gm_status check_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    const bool     named = names_adapters(c, rest);
    const char    *number = named ? "" : rest;
    const int32_t *ids;
    size_t         count;
    gm_session    *session = NULL;
    gm_engine_info info;
    gm_status      status = check_need_engine(c, e);
    if (status != GM_OK) return status;
    gm_engine_get_info(c->engine, &info);
    if ((status = find_ids(c, number, info.vocabulary, &ids, &count, e)) != GM_OK) return status;
    TRY(check_logits_shape(want, info.vocabulary, count, e));
    float *got = malloc(count * want->ne[0] * sizeof *got);
    if (!got) return fail_memory(e, "the logits", count * want->ne[0] * sizeof *got);
    status = check_new_session(c, count, &session, e);
    if (status == GM_OK && named) status = use_named_adapters(c, session, rest, e);
    else if (status == GM_OK && logits_are_plain(c)) status = use_named_adapters(c, session, "base", e);
    if (status == GM_OK) status = session_logits_all(session, ids, count, got, e);
    if (status == GM_OK && !*number) status = gather_logits(c, want, got, count, e);
    if (status == GM_OK) result->error = check_logits_error(c, want, got, count);
    check_end_session(session);
    free(got);
    return status;
}

/* The likeliest token that may be chosen. */
static int32_t likeliest(const gm_engine *engine, const float *logits) {
    const uint32_t count = engine->weights.config.vocabulary;
    uint32_t       best = count;
    for (uint32_t i = 0; i < count; i++) {
        if (engine->suppressed && engine->suppressed[i / 32] >> i % 32 & 1) continue;
        if (best == count || logits[i] > logits[best]) best = i;
    }
    return (int32_t)(best < count ? best : 0);
}

gm_status check_continuation(check_state *c, gm_session *session, const gguf_tensor *want, check_result *result,
                             error *e) {
    if (want->type != TYPE_I32)
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s, expected I32", want->format->name);
    const int32_t *tokens = check_values_of(c->expect, want);
    char           why[sizeof e->why] = "";
    gm_status      status = GM_OK;
    size_t         differ = 0;
    for (size_t i = 0; status == GM_OK && i < want->count; i++) {
        const int32_t next = likeliest(c->engine, gm_session_logits(session));
        differ += next != tokens[i];
        while ((status = gm_session_append(session, &next, 1, why, sizeof why)) == GM_AGAIN) {}
    }
    if (status) return fail(e, status, "%s", why);
    result->error = want->count ? (double)differ / (double)want->count : 0;
    return GM_OK;
}

gm_status check_greedy(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e) {
    const int32_t *ids;
    size_t         count;
    gm_session    *session = NULL;
    char           why[sizeof e->why] = "";
    gm_status      status = check_need_engine(c, e);
    if (status != GM_OK) return status;
    TRY(find_ids(c, number, c->engine->weights.config.vocabulary, &ids, &count, e));
    TRY(check_new_session(c, count + (size_t)want->count, &session, e));
    while ((status = gm_session_set(session, ids, count, why, sizeof why)) == GM_AGAIN) {}
    status = status ? fail(e, status, "%s", why) : check_continuation(c, session, want, result, e);
    check_end_session(session);
    return status;
}

gm_status check_prompt(check_state *c, str text, const char *number, check_result *result, error *e) {
    const int32_t *ids = NULL;
    size_t         count = 0;
    token_list     got = { 0 };
    if (!c->words && c->words_problem.status == GM_OK) tokenizer_new(c->model, &c->words, &c->words_problem);
    if (!c->words) return fail(e, c->words_problem.status, "%s", c->words_problem.why);
    gm_status status = find_ids(c, number, (uint32_t)tokenizer_size(c->words), &ids, &count, e);
    if (status != GM_OK || !ids) return status;
    token_list_add(&got, tokenizer_special(c->words, SPECIAL_BOS));
    status = tokenizer_encode(c->words, text, true, &got, e);
    if (status == GM_OK && got.failed) status = fail_memory(e, "the tokens", text.length);
    if (status == GM_OK) result->error = !(got.count == count && !memcmp(got.ids, ids, count * sizeof *ids));
    token_list_free(&got);
    return status;
}

/* ---- quantised blocks ---- */

gm_status check_blocks(check_state *c, const gguf_tensor *want, const char *type, check_result *result, error *e) {
    result->exact = true;
    const gguf_tensor *blocks = gguf_find_tensor(c->model, type);
    if (!blocks)
        return fail(e, GM_BAD_ARGUMENT, "MODEL has no tensor %s; for blocks, MODEL must be the expectation file itself",
                    type);
    if (!blocks->format->dequantise)
        return fail(e, GM_UNSUPPORTED, "weights cannot have type %s", blocks->format->name);
    if (want->type != TYPE_F32 || want->count != blocks->count) {
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s with %llu values, expected F32 with %llu",
                    want->format->name, (unsigned long long)want->count, (unsigned long long)blocks->count);
    }
    const void *data = gguf_tensor_data(c->model, blocks), *values = gguf_tensor_data(c->expect, want);
    float      *got = malloc((size_t)want->bytes + 1);
    if (!got) return fail_memory(e, "the values", want->bytes);
    blocks->format->dequantise(got, data, (size_t)(blocks->count / blocks->format->block));
    result->error = relative_error(got, values, want->count);
    free(got);
    return GM_OK;
}
