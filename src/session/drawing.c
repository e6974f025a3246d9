/* Drawing tokens: from logits that came back, by way of the decoder on the CPU, or on the GPU, which then works ahead of us.
 *
 * A step on the GPU computes one token and draws the next, which the following step computes. So we can submit steps before the
 * earlier draws have arrived here. A position counts as computed once its draw has arrived. When an answer ends unexpectedly (a
 * stop token, a cancel, a rollback), later positions are simply not counted: their keys and values lie beyond the end, where
 * no mask looks, and the rings have spare slots for them (kv_written counts them). */

#include "session/decoder.h"
#include "session/decoder_gpu.h"
#include "session/drawing.h"

#include "gpu/sampler_kernels.h"
#include "text/sampler_settings.h"

#include <stdlib.h>

/* ---- from logits ---- */

gm_status session_sample(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e) {
    if (!s->has_logits)
        return fail(e, GM_BAD_ARGUMENT, "there are no logits to draw from: compute at least one token first");
    TRY(sampling_check(sampling, s->engine->weights.config.vocabulary, e));
    const size_t   window = min_size(sampling->penalty_window, s->tokens.count);
    const int32_t *history = window ? s->tokens.ids + (s->tokens.count - window) : NULL;
    return sampler_draw(s->chooser, sampling, s->logits, history, window, s->engine->suppressed, s->tokens.count, token,
                        e);
}

/* If everything is in the cache but the logits are missing, computes the last token once more. */
static void step_back(gm_session *s) {
    if (s->has_logits || !s->tokens.count || s->computed < s->tokens.count) return;
    session_abandon(s);
    session_go_back(s, session_batch_begin(s, s->tokens.count - 1));
}

gm_status session_want_logits(gm_session *s, double deadline, error *e) {
    step_back(s);
    return session_compute(s, deadline, e);
}

/* ---- on the GPU ---- */

/* Whether the steps under way will give the next draw. Without steps under way, and without room for one, drawing starts anew. */
static bool draw_goes_on(const gm_session *s, const draw_wish *wish) {
    return runner_is_drawing(&s->run) && s->tokens.ids[s->computed] == s->ahead.token &&
           s->ahead.moves == s->kv.store->moves && (s->ahead.end > s->computed || s->ahead.end < kv_capacity(&s->kv)) &&
           s->ahead.logprobs == (wish->logprobs != NULL) && s->ahead.alternatives == wish->alternatives &&
           sampling_equal(&s->ahead.sampling, wish->sampling);
}

gm_status drawing_start_make(gm_session *s, const draw_wish *wish, bool logprobs, size_t behind, drawing_start *out,
                             error *e) {
    const gm_sampling     *sampling = wish->sampling;
    const sampler_settings settings = { .sampling = sampling,
                                        .vocabulary = s->engine->weights.config.vocabulary,
                                        .suppressed = s->engine->suppressed,
                                        .advance = true };
    const size_t           words = sampler_settings_words(&settings), at = s->computed + behind, end = at + 1;
    *out = (drawing_start){ .words = malloc(words * sizeof *out->words) };
    if (!out->words) return fail_memory(e, "the sampler's settings", words * sizeof *out->words);
    TRY(sampler_settings_write(&settings, out->words, e));
    out->words[SAMPLER_FINITE] = 1; /* an infinite logit is an error, as on the CPU */
    out->words[SAMPLER_ALTERNATIVES] = (uint32_t)min_size(wish->alternatives, SAMPLER_MOST_ALTERNATIVES);
    const bool            edits = sampler_settings_edits(&settings);
    const size_t          window = edits ? min_size(sampling->penalty_window, end) : 0;
    const record_sequence sequence = session_sequence(s);
    records_of_text(&out->record, 0, &sequence, s->tokens.ids + at, at, 1);
    out->start = (generator_start){ .settings = out->words,
                                    .setting_words = words,
                                    .greedy = sampler_settings_greedy(&settings),
                                    .edits = edits,
                                    .steps = sampler_settings_steps(&settings),
                                    .logprobs = logprobs,
                                    .token = &out->record,
                                    .window = sequence.window,
                                    .history = s->tokens.ids + (end - window),
                                    .history_count = window };
    return GM_OK;
}

void drawing_start_free(drawing_start *start) { free(start->words); }

static gm_status begin(gm_session *s, const draw_wish *wish, error *e) {
    TRY(sampling_check(wish->sampling, s->engine->weights.config.vocabulary, e));
    TRY(kv_reserve(&s->kv, s->computed, 1, e));
    gm_status ready = engine_check_kv(s->engine, s->kv.store->type, e);
    if (!ready && s->adapters) ready = engine_adapters_ready(s->engine, PART_TEXT, e);
    if (ready) return ready;
    gpu_generator *generator = runner_generator(&s->run, &s->kv, s->adapters != 0, e);
    if (!generator) return e->status;
    drawing_start start;
    gm_status     status = drawing_start_make(s, wish, wish->logprobs != NULL, 0, &start, e);
    if (!status) status = gpu_generator_begin(generator, &start.start, e);
    drawing_start_free(&start);
    s->ahead.sampling = *wish->sampling;
    s->ahead.logprobs = wish->logprobs != NULL;
    s->ahead.alternatives = wish->alternatives;
    s->ahead.token = s->tokens.ids[s->computed];
    s->ahead.end = s->computed;
    s->ahead.moves = s->kv.store->moves;
    return status;
}

/* Submits as many steps as are wanted and have room. Growing may move the rows, so it waits until no step is under way. */
static gm_status go_ahead(gm_session *s, size_t most, error *e) {
    const size_t end = min_size(kv_capacity(&s->kv), s->computed + min_size(max_size(most, 1), GENERATOR_STEPS));
    if (s->ahead.end >= end) return GM_OK;
    const gpu_generator *generator = runner_generator(&s->run, &s->kv, s->adapters != 0, e);
    if (!generator) return e->status;
    while (s->ahead.end < end) {
        const gm_status status = gpu_generator_submit(s->run.generator, e);
        if (status == GM_AGAIN && s->ahead.end > s->computed) break; /* those in flight come first */
        if (status) return status;
        kv_written(&s->kv, ++s->ahead.end);
    }
    return GM_OK;
}

gm_status drawing_take(gm_session *s, const draw_wish *wish, const sampler_record *draw, int32_t *token, error *e) {
    s->computed++;
    s->has_logits = false;
    *token = (int32_t)draw->token;
    if (wish->logprobs) sampler_record_logprobs(draw, wish->logprobs, wish->alternatives);
    if (draw->status == SAMPLER_DRAWN) return GM_OK;
    if (draw->status == SAMPLER_NOT_A_NUMBER) return session_not_finite(s, e);
    return fail(e, GM_BAD_ARGUMENT, "no token can be drawn: all %u are suppressed or impossible",
                s->engine->weights.config.vocabulary);
}

static gm_status take(gm_session *s, const draw_wish *wish, int32_t *token, error *e) {
    sampler_record draw;
    if (s->engine->gpu.experts) TRY(gpu_generator_bind(s->run.generator, s->kv.store->gpu_layers, e));
    const gm_status status = gpu_generator_take(s->run.generator, &draw, e);
    if (status) return status;
    s->ahead.token = (int32_t)draw.token;
    return drawing_take(s, wish, &draw, token, e);
}

/* Draws with a generator of its own. If others write now, too, only takes what is on its way. */
static gm_status next_alone(gm_session *s, const draw_wish *wish, bool ends, int32_t *token, double deadline,
                            error *e) {
    if (atomic_exchange(&s->cancelled, false)) return fail(e, GM_CANCELLED, "cancelled at token %zu", s->computed);
    for (;;) {
        gm_status status = draw_goes_on(s, wish) ? GM_OK : begin(s, wish, e);
        if (!status && !ends) status = go_ahead(s, wish->most, e);
        if (!status) status = take(s, wish, token, e);
        if (status != GM_AGAIN || !runner_wait(s->engine->gpu.host, deadline)) return status;
    }
}

static gm_status next_on_gpu(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e) {
    gpu_decoder *d = s->engine->gpu_decoders[s->kv.store - s->engine->stores];
    if (!gpu_decoder_wants(d, s, wish)) return next_alone(s, wish, false, token, deadline, e);
    if (draw_goes_on(s, wish) && s->ahead.end > s->computed) return next_alone(s, wish, true, token, deadline, e);
    if (s->run.generator) gpu_generator_drop(s->run.generator);
    TRY(sampling_check(wish->sampling, s->engine->weights.config.vocabulary, e));
    const gm_status ready = engine_check_kv(s->engine, s->kv.store->type, e);
    if (ready) return ready;
    const gm_status status = gpu_decoder_next(d, s, wish, token, deadline, e);
    return status == GM_BUSY ? next_alone(s, wish, false, token, deadline, e) : status;
}

gm_status session_next(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e) {
    step_back(s);
    s->step_seconds = 0;
    if (s->ahead.possible && !s->running && s->computed + 1 == s->tokens.count && soft_end(&s->soft) <= s->computed) {
        const gm_status status = next_on_gpu(s, wish, token, deadline, e);
        if (status_failed(status)) session_forget_uncomputed(s);
        return status;
    }
    if (decoder_takes(s)) {
        const gm_status status = decoder_next(s, wish, token, deadline, e);
        if (status_failed(status) && status != GM_BUSY) session_forget_uncomputed(s);
        if (status != GM_BUSY) return status;
    }
    gm_status status = session_compute(s, deadline, e);
    if (!status) status = session_sample(s, wish->sampling, token, e);
    if (!status && wish->logprobs)
        sampler_logprobs(s->chooser, s->logits, *token, wish->logprobs, wish->logprobs + 1, wish->alternatives);
    return status;
}

size_t session_dispatches(const gm_session *s) {
    return s->run.generator ? gpu_generator_dispatches(s->run.generator) : 0;
}
