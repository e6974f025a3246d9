/* Expectations of a diffusion model: two steps of a canvas after a prompt, the second conditioned by the first. */

#include "cli/check.h"

#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps are computed together, when the first of their lines is checked. */
enum { CHECK_STEPS = 2 };

/* The temperature of both steps; the expectation's first step has been divided by it before it conditions the second. */
static const float check_temperature = 0.8f;

struct check_canvas {
    size_t   length, vocabulary, prompt;
    int32_t *seen[2]; /* [prompt]: how many tokens each token of the prompt sees in full and in sliding layers */
    float   *logits[CHECK_STEPS], *findings[CHECK_STEPS];
};

bool check_is_canvas(const check_state *c) { return gguf_find_tensor(c->expect, "canvas.0") != NULL; }

/* The prompt, with the expectation's picture if it has one. */
static gm_status canvas_hold_prompt(check_state *c, gm_session *s, error *e) {
    const int32_t *ids;
    size_t         count;
    char           why[sizeof e->why] = "";
    gm_status      status;
    TRY(check_find_ids(c, "ids", c->engine->weights.config.vocabulary, &ids, &count, e));
    if (gguf_find_tensor(c->expect, "image.soft_tokens")) {
        media_rows soft = { 0 };
        int32_t    id;
        TRY(check_find_soft(c, true, &id, &soft, e));
        return check_hold_prompt(s, ids, count, id, &soft, true, e);
    }
    while ((status = gm_session_set(s, ids, count, why, sizeof why)) == GM_AGAIN) {}
    return status ? fail(e, status, "%s", why) : GM_OK;
}

static gm_status canvas_compute_held(gm_session *s, error *e) {
    gm_status status;
    do {
        engine_enter(s->engine);
        status = session_compute(s, engine_deadline(s->engine), e);
        engine_leave(s->engine);
    } while (status == GM_AGAIN);
    return status;
}

/* From the records that the prompt is computed with. */
static gm_status canvas_count_seen(struct check_canvas *out, const gm_session *s, error *e) {
    const record_sequence sequence = session_sequence(s);
    const size_t          n = out->prompt = s->tokens.count;
    token_record         *records = calloc(n, sizeof *records);
    for (size_t i = 0; i < 2; i++) out->seen[i] = calloc(n, sizeof *out->seen[i]);
    if (!records || !out->seen[0] || !out->seen[1]) {
        free(records);
        return fail_memory(e, "the prompt's records", n * sizeof *records);
    }
    records_of_text(records, 0, &sequence, s->tokens.ids, 0, n);
    soft_mark(&s->soft, records, 0, n, s->engine->weights.config.whole_blocks);
    for (size_t i = 0; i < 2 * n; i++) {
        const bool sliding = i >= n;
        out->seen[sliding][i % n] =
            (int32_t)(record_last(&records[i % n], sliding) - record_first(&records[i % n], sliding) + 1);
    }
    free(records);
    return GM_OK;
}

static gm_status canvas_run_steps(check_state *c, struct check_canvas *out, session_canvas *canvas, error *e) {
    for (size_t i = 0; i < CHECK_STEPS; i++) {
        char           name[16];
        const int32_t *ids;
        size_t         count;
        snprintf(name, sizeof name, "canvas.%zu", i);
        TRY(check_find_ids(c, name, (uint32_t)out->vocabulary, &ids, &count, e));
        if (count != out->length)
            return fail(e, GM_BAD_ARGUMENT, "%s has %zu tokens, but the model's canvas has %zu", name, count,
                        out->length);
        out->logits[i] = malloc(out->length * out->vocabulary * sizeof(float));
        out->findings[i] = malloc(out->length * CANVAS_FINDINGS * sizeof(float));
        if (!out->logits[i] || !out->findings[i])
            return fail_memory(e, "the logits", out->length * out->vocabulary * sizeof(float));
        engine_enter(c->engine);
        const gm_status status =
            session_canvas_check(canvas, ids, check_temperature, out->logits[i], out->findings[i], e);
        engine_leave(c->engine);
        TRY(status);
    }
    return GM_OK;
}

static gm_status canvas_compute(check_state *c, struct check_canvas *out, error *e) {
    gm_session     *s = NULL;
    session_canvas *canvas = NULL;
    size_t          count;
    const int32_t  *ids;
    TRY(check_need_engine(c, e));
    *out = (struct check_canvas){ .length = c->engine->weights.config.canvas.length,
                                  .vocabulary = c->engine->weights.config.vocabulary };
    if (!out->length) return fail(e, GM_UNSUPPORTED, "the model does not write by diffusion");
    TRY(check_find_ids(c, "ids", (uint32_t)out->vocabulary, &ids, &count, e));
    TRY(check_new_session(c, count + out->length, &s, e));
    gm_status status = canvas_hold_prompt(c, s, e);
    if (!status) status = canvas_compute_held(s, e);
    if (!status) status = canvas_count_seen(out, s, e);
    engine_enter(c->engine);
    if (!status) status = session_canvas_get(s, &canvas, e);
    if (!status) status = session_canvas_begin(canvas, 0, 0, NULL, 0, e);
    engine_leave(c->engine);
    if (!status) status = canvas_run_steps(c, out, canvas, e);
    check_end_session(s);
    return status;
}

static gm_status canvas_need(check_state *c, error *e) {
    if (c->canvas) return GM_OK;
    if (!c->canvas_problem.status) {
        struct check_canvas *made = calloc(1, sizeof *made);
        if (!made) return fail_memory(e, "the canvas", sizeof *made);
        c->canvas = made;
        if (!canvas_compute(c, made, &c->canvas_problem)) return GM_OK;
        check_end_canvas(c);
    }
    return fail(e, c->canvas_problem.status, "%s", c->canvas_problem.why);
}

void check_end_canvas(check_state *c) {
    for (size_t i = 0; i < CHECK_STEPS && c->canvas; i++) {
        free(c->canvas->seen[i]);
        free(c->canvas->logits[i]);
        free(c->canvas->findings[i]);
    }
    free(c->canvas);
    c->canvas = NULL;
}

/* The number of the step in a tensor's name. */
static gm_status canvas_step_of(const char *rest, size_t *step, error *e) {
    if (rest[0] < '0' || rest[0] >= '0' + CHECK_STEPS || rest[1])
        return fail(e, GM_BAD_ARGUMENT, "a step is 0 or 1, found '%s'", rest);
    *step = (size_t)(rest[0] - '0');
    return GM_OK;
}

gm_status check_canvas_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                              error *e) {
    size_t step = 0;
    TRY(canvas_step_of(rest, &step, e));
    TRY(canvas_need(c, e));
    TRY(check_logits_shape(want, (uint32_t)c->canvas->vocabulary, c->canvas->length, e));
    result->error = check_logits_error(c, want, c->canvas->logits[step], c->canvas->length);
    return GM_OK;
}

gm_status check_mask(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    const bool sliding = !strcmp(rest, "sliding");
    size_t     differ = 0;
    result->exact = true;
    TRY(canvas_need(c, e));
    if (want->type != TYPE_I32 || want->count != c->canvas->prompt)
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s with %llu values, expected I32 with %zu",
                    want->format->name, (unsigned long long)want->count, c->canvas->prompt);
    const int32_t *expected = check_values_of(c->expect, want);
    for (size_t i = 0; i < c->canvas->prompt; i++) differ += c->canvas->seen[sliding][i] != expected[i];
    result->error = (double)differ / (double)c->canvas->prompt;
    return GM_OK;
}

gm_status check_entropy(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    size_t step = 0;
    TRY(canvas_step_of(rest, &step, e));
    TRY(canvas_need(c, e));
    if (want->type != TYPE_F32 || want->count != c->canvas->length)
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s with %llu values, expected F32 with %zu",
                    want->format->name, (unsigned long long)want->count, c->canvas->length);
    float *got = malloc(want->count * sizeof *got);
    if (!got) return fail_memory(e, "the entropies", want->count * sizeof *got);
    for (size_t i = 0; i < want->count; i++) got[i] = c->canvas->findings[step][i * CANVAS_FINDINGS + CANVAS_ENTROPY];
    result->error = relative_error(got, check_values_of(c->expect, want), want->count);
    free(got);
    return GM_OK;
}

gm_status check_accept(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    size_t step = 0, differ = 0;
    result->exact = true;
    TRY(canvas_step_of(rest, &step, e));
    TRY(canvas_need(c, e));
    const size_t n = c->canvas->length;
    if (want->type != TYPE_I32 || want->count != n)
        return fail(e, GM_BAD_ARGUMENT, "the expectation is %s with %llu values, expected I32 with %zu",
                    want->format->name, (unsigned long long)want->count, n);
    uint32_t *entropies = malloc(n * sizeof *entropies);
    bool     *accepted = malloc(n * sizeof *accepted);
    if (entropies && accepted) {
        const int32_t    *expected = check_values_of(c->expect, want);
        const canvas_rule rule = model_canvas_rule(&c->engine->weights.config);
        for (size_t i = 0; i < n; i++)
            entropies[i] = canvas_units(&rule, c->canvas->findings[step][i * CANVAS_FINDINGS + CANVAS_ENTROPY]);
        canvas_accept(entropies, n, rule.bound, accepted);
        for (size_t i = 0; i < n; i++) differ += accepted[i] != (expected[i] != 0);
        result->error = (double)differ / (double)n;
    }
    const gm_status status = entropies && accepted ? GM_OK : fail_memory(e, "the acceptance", n * sizeof *entropies);
    free(entropies);
    free(accepted);
    return status;
}
