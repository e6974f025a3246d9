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

/* The data of an F32 or I32 tensor, which the format aligns. */
static const void *tensor_values(const gguf *file, const gguf_tensor *t) { return gguf_tensor_data(file, t); }

/* ---- text models ---- */

static gm_status need_engine(check_state *c, error *e) {
    if (!c->engine && c->engine_problem.status == GM_OK) {
        engine_open(c->values, c->engine_name, false, &c->engine, &c->engine_problem);
    }
    return c->engine ? GM_OK : fail(e, c->engine_problem.status, "%s", c->engine_problem.why);
}

/* The values of an I32 tensor. */
static gm_status find_integers(check_state *c, const char *name, const int32_t **values, size_t *count, error *e) {
    const gguf_tensor *t = gguf_find_tensor(c->expect, name);
    if (!t) return fail(e, GM_BAD_ARGUMENT, "%s has no %s (diffusion is not supported yet)", c->expect_path, name);
    if (t->type != TYPE_I32) return fail(e, GM_BAD_ARGUMENT, "%s is %s, expected I32", name, t->format->name);
    *values = tensor_values(c->expect, t);
    *count = (size_t)t->count;
    return *values && *count ? GM_OK : fail(e, GM_BAD_ARGUMENT, "%s has no data", name);
}

/* The token ids of a prompt, checked against the vocabulary. */
static gm_status find_ids_by_name(check_state *c, const char *name, uint32_t vocabulary, const int32_t **ids,
                                  size_t *count, error *e) {
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
    return find_ids_by_name(c, name, vocabulary, ids, count, e);
}

/* An expectation has the logits of all tokens of the prompt, or of its last ones. */
static gm_status check_logits_shape(const gguf_tensor *want, uint32_t vocabulary, size_t count, error *e) {
    const uint64_t rows = want->ne[0] ? want->count / want->ne[0] : 0;
    if (want->type == TYPE_F32 && want->ne[0] == vocabulary && rows > 0 && rows <= count) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "the expectation is %s [%llu, %llu], expected F32 [%u (the vocabulary), 1 to %zu (the prompt)]",
                want->format->name, (unsigned long long)want->ne[0], (unsigned long long)want->ne[1], vocabulary,
                count);
}

/* How far the last rows of `got`, which has one row per token, are from the expectation. */
static double logits_error(check_state *c, const gguf_tensor *want, const float *got, size_t count) {
    const size_t skipped = count * want->ne[0] - want->count;
    return relative_error(got + skipped, tensor_values(c->expect, want), want->count);
}

/* Moves the rows that `rows` lists (in rising order) behind the others, where logits_error looks for them. */
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

static gm_status check_new_session(check_state *c, size_t tokens, gm_session **out, error *e) {
    const gm_status status = session_open(c->values, c->engine, tokens, out, e);
    if (status == GM_OK) interrupt_watch(*out);
    return status;
}

static void end_session(gm_session *session) {
    interrupt_watch(NULL);
    gm_session_free(session);
}

gm_status check_logits(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e) {
    const int32_t *ids;
    size_t         count;
    gm_session    *session = NULL;
    gm_engine_info info;
    gm_status      status = need_engine(c, e);
    if (status != GM_OK) return status;
    gm_engine_get_info(c->engine, &info);
    if ((status = find_ids(c, number, info.vocabulary, &ids, &count, e)) != GM_OK) return status;
    TRY(check_logits_shape(want, info.vocabulary, count, e));
    float *got = malloc(count * want->ne[0] * sizeof *got);
    if (!got) return fail_memory(e, "the logits", count * want->ne[0] * sizeof *got);
    status = check_new_session(c, count, &session, e);
    if (status == GM_OK) status = session_logits_all(session, ids, count, got, e);
    if (status == GM_OK && !*number) status = gather_logits(c, want, got, count, e);
    if (status == GM_OK) result->error = logits_error(c, want, got, count);
    end_session(session);
    free(got);
    return status;
}

/* ---- images and audio ---- */

/* The rows that take the place of a prompt's soft tokens. */
typedef struct {
    int32_t      id;
    const float *rows; /* [count, width] */
    size_t       count, width;
    bool         image;
} soft_rows;

static gm_status find_soft(check_state *c, const char *kind, soft_rows *out, error *e) {
    char name[80];
    snprintf(name, sizeof name, "%s.soft_tokens", kind);
    const gguf_tensor *t = gguf_find_tensor(c->expect, name);
    out->width = c->engine->weights.config.width;
    out->image = !strcmp(kind, "image");
    out->id = tokenizer_special(c->engine->words, out->image ? SPECIAL_IMAGE_SOFT : SPECIAL_AUDIO_SOFT);
    if (out->id < 0) return fail(e, GM_UNSUPPORTED, "the model's vocabulary has no token for an %s", kind);
    if (!t) return fail(e, GM_BAD_ARGUMENT, "%s has no %s", c->expect_path, name);
    if (t->type != TYPE_F32 || t->ne[0] != out->width)
        return fail(e, GM_BAD_ARGUMENT, "%s is %s [%llu, %llu], expected F32 with rows of %zu", name, t->format->name,
                    (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], out->width);
    out->rows = tensor_values(c->expect, t);
    out->count = (size_t)(t->count / t->ne[0]);
    return out->rows ? GM_OK : fail(e, GM_BAD_ARGUMENT, "%s has no data", name);
}

/* Adds the prompt to the session; each run of soft tokens takes the next rows. */
static gm_status hold_prompt(gm_session *s, const int32_t *ids, size_t count, const soft_rows *soft, error *e) {
    size_t used = 0;
    for (size_t i = 0, n = 1; i < count; i += n, n = 1) {
        if (ids[i] != soft->id) {
            TRY(session_hold(s, ids[i], e));
            continue;
        }
        while (i + n < count && ids[i + n] == soft->id) n++;
        if (used + n <= soft->count)
            TRY(session_hold_soft(s, soft->id, soft->rows + used * soft->width, n, soft->image, e));
        used += n;
    }
    if (used == soft->count) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "the prompt has %zu soft tokens, but the expectation has %zu", used, soft->count);
}

gm_status check_soft_logits(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e) {
    const int32_t *ids = NULL;
    size_t         count = 0;
    soft_rows      soft = { 0 };
    gm_session    *session = NULL;
    char           name[80];
    snprintf(name, sizeof name, "%s.ids", kind);
    gm_status status = need_engine(c, e);
    if (status != GM_OK) return status;
    const uint32_t vocabulary = c->engine->weights.config.vocabulary;
    TRY(find_ids_by_name(c, name, vocabulary, &ids, &count, e));
    TRY(find_soft(c, kind, &soft, e));
    TRY(check_logits_shape(want, vocabulary, count, e));
    float *got = malloc(count * want->ne[0] * sizeof *got);
    if (!got) return fail_memory(e, "the logits", count * want->ne[0] * sizeof *got);
    status = check_new_session(c, count, &session, e);
    if (status == GM_OK) status = hold_prompt(session, ids, count, &soft, e);
    if (status == GM_OK) status = session_logits_held(session, got, e);
    if (status == GM_OK) result->error = logits_error(c, want, got, count);
    end_session(session);
    free(got);
    return status;
}

static int32_t likeliest(const float *logits, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* Generates `count` greedy tokens after the prompt. */
static gm_status write_greedy(gm_session *session, const int32_t *prompt, size_t prompt_count, uint32_t vocabulary,
                              int32_t *out, size_t count, error *e) {
    char      why[sizeof e->why] = "";
    gm_status status;
    while ((status = gm_session_set(session, prompt, prompt_count, why, sizeof why)) == GM_AGAIN) {}
    for (size_t i = 0; status == GM_OK && i < count; i++) {
        out[i] = likeliest(gm_session_logits(session), vocabulary);
        while ((status = gm_session_append(session, &out[i], 1, why, sizeof why)) == GM_AGAIN) {}
    }
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

gm_status check_greedy(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e) {
    const int32_t *ids;
    size_t         prompt_count, differ = 0;
    gm_session    *session = NULL;
    gm_engine_info info;
    gm_status      status = need_engine(c, e);
    if (status != GM_OK) return status;
    gm_engine_get_info(c->engine, &info);
    if ((status = find_ids(c, number, info.vocabulary, &ids, &prompt_count, e)) != GM_OK) return status;
    if (want->type != TYPE_I32)
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s, expected I32", want->format->name);
    const size_t   count = (size_t)want->count;
    const int32_t *tokens = tensor_values(c->expect, want);
    int32_t       *got = calloc(count + 1, sizeof *got);
    if (!got) return fail_memory(e, "the tokens", want->bytes);
    status = check_new_session(c, prompt_count + count, &session, e);
    if (status == GM_OK) status = write_greedy(session, ids, prompt_count, info.vocabulary, got, count, e);
    for (size_t i = 0; i < count; i++) differ += got[i] != tokens[i];
    if (status == GM_OK) result->error = count ? (double)differ / (double)count : 0;
    end_session(session);
    free(got);
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
