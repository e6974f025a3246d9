#include "session/decoder.h"

#include "session/decoder_gpu.h"

#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t          token;
    gm_status        status;  /* of drawing it */
    double           seconds; /* that its step took */
    gm_token_logprob logprobs[1 + SAMPLER_MOST_ALTERNATIVES];
} row_draw;

typedef struct {
    gm_session *session;  /* NULL: the row is free */
    gm_sampling sampling; /* its bias is the caller's, who leaves before freeing it */
    bool        logprobs;
    size_t      alternatives;
    size_t      left; /* draws that the session may still want, counted from the last one taken */
    int32_t  token; /* the last one taken, or the one to begin with; the row goes on only while the session holds it */
    row_draw draws[DECODER_AHEAD];
    size_t   first, count; /* of the draws not taken, which are a ring */
    bool     over;         /* the last draw ends the row, and its logits are kept */
    float   *logits;
    error    problem; /* why the last draw failed */
} decoder_row;

struct decoder {
    gm_engine     *engine;
    kv_store      *store;
    runner         run;
    decoder_row    rows[DECODER_ROWS];
    size_t         count;    /* of rows that are taken */
    size_t         planned;  /* there is a plan for so many rows, */
    size_t         adapted;  /* and one for so many if some have adapters */
    double         began;    /* when the step began that is under way */
    size_t         stepping; /* its rows; 0: none is */
    decoder_totals totals;
    decoder_row   *taking[DECODER_ROWS]; /* NULL: it has left */
    token_record   records[DECODER_ROWS];
    int32_t        outputs[DECODER_ROWS];
};

/* ---- life ---- */

gm_status decoder_new(gm_engine *engine, kv_store *store, decoder **out, error *e) {
    decoder *d = *out = calloc(1, sizeof *d);
    if (!d) return fail_memory(e, "the decoder", sizeof *d);
    d->engine = engine;
    d->store = store;
    d->planned = 1; /* runner_open sees to it */
    for (size_t i = 0; i < DECODER_ROWS; i++) d->outputs[i] = (int32_t)i;
    const gm_status status = runner_open(&d->run, engine, e);
    d->run.rows = true;
    if (!status) return GM_OK;
    decoder_free(d);
    *out = NULL;
    return status;
}

void decoder_free(decoder *d) {
    if (!d) return;
    for (size_t i = 0; i < DECODER_ROWS; i++) free(d->rows[i].logits);
    runner_close(&d->run);
    free(d);
}

static decoder *decoder_of(const gm_session *s) {
    const kv_store *store = s->kv.store;
    return store ? s->engine->decoders[store - s->engine->stores] : NULL;
}

decoder_totals decoder_count(const decoder *d) { return d->totals; }

/* ---- rows ---- */

static decoder_row *decoder_find_row(decoder *d, const gm_session *s) {
    for (size_t i = 0; i < DECODER_ROWS; i++) {
        if (d->rows[i].session == s) return &d->rows[i];
    }
    return NULL;
}

/* Takes the row out of the step that is under way. */
static void row_leave_step(decoder *d, const decoder_row *row) {
    bool others = false;
    for (size_t i = 0; i < d->stepping; i++) {
        if (d->taking[i] == row) d->taking[i] = NULL;
        others = others || d->taking[i];
    }
    if (others || !d->stepping) return;
    d->stepping = 0;
    runner_restart(&d->run);
}

static gpu_decoder *gpu_decoder_of(const gm_session *s) {
    const kv_store *store = s->kv.store;
    return store ? s->engine->gpu_decoders[store - s->engine->stores] : NULL;
}

void decoder_leave(gm_session *s) {
    decoder *d = decoder_of(s);
    gpu_decoder_leave(gpu_decoder_of(s), s);
    decoder_row *row = d ? decoder_find_row(d, s) : NULL;
    if (!row) return;
    row_leave_step(d, row);
    row->session = NULL;
    d->count--;
}

bool decoder_takes(const gm_session *s) {
    return decoder_of(s) && !s->running && s->computed + 1 == s->tokens.count && soft_end(&s->soft) <= s->computed;
}

bool decoder_is_shared(const gm_session *s) {
    const decoder *d = decoder_of(s);
    return (d && d->count > 1) || gpu_decoder_is_shared(gpu_decoder_of(s));
}

/* Whether the row's session wants what the row draws. */
static bool row_goes_on(const decoder_row *row) {
    const gm_session *s = row->session;
    return s->computed + 1 == s->tokens.count && s->tokens.ids[s->computed] == row->token;
}

static bool row_fits(const decoder_row *row, const draw_wish *wish) {
    return row_goes_on(row) && !(row->over && !row->count) && row->logprobs == (wish->logprobs != NULL) &&
           row->alternatives == wish->alternatives && sampling_equal(&row->sampling, wish->sampling);
}

/* Whether a step can compute the row's next token. */
static bool row_is_ready(const decoder_row *row) {
    return row->session && row_goes_on(row) && !row->over && row->count < DECODER_AHEAD && row->count < row->left;
}

/* Memory is prepared when a row is taken, and not while it decodes. */
static gm_status decoder_prepare(decoder *d, decoder_row *row, bool adapted, error *e) {
    const size_t vocabulary = d->engine->weights.config.vocabulary;
    if (!row->logits) row->logits = malloc(vocabulary * sizeof *row->logits);
    if (!row->logits) return fail_memory(e, "the logits", vocabulary * sizeof *row->logits);
    if (d->count >= d->planned) {
        TRY(runner_prepare(&d->run, d->store, d->count + 1, false, e));
        while (d->planned <= d->count) d->planned *= 2;
    }
    if (adapted && d->count >= d->adapted) {
        TRY(runner_prepare(&d->run, d->store, d->count + 1, true, e));
        for (d->adapted = 1; d->adapted <= d->count;) d->adapted *= 2;
    }
    return GM_OK;
}

static bool decoder_has_adapters(const decoder *d) {
    for (size_t i = 0; i < DECODER_ROWS; i++) {
        if (d->rows[i].session && d->rows[i].session->adapters) return true;
    }
    return false;
}

void decoder_forget_adapters(decoder *d) {
    if (d) d->adapted = 0;
}

/* The session's row, which draws what is wished; NULL: there is none for it. */
static decoder_row *decoder_join(decoder *d, gm_session *s, const draw_wish *wish) {
    error        ignored = { 0 };
    decoder_row *row = decoder_find_row(d, s);
    if (row && row_fits(row, wish)) {
        row->left = wish->most;
        return row;
    }
    if (row) decoder_leave(s);
    row = decoder_find_row(d, NULL);
    if (!row || decoder_prepare(d, row, s->adapters || decoder_has_adapters(d), &ignored)) return NULL;
    row->session = s;
    row->sampling = *wish->sampling;
    row->logprobs = wish->logprobs != NULL;
    row->alternatives = wish->alternatives;
    row->left = wish->most;
    row->token = s->tokens.ids[s->computed];
    row->first = row->count = 0;
    row->over = false;
    d->count++;
    return row;
}

static gm_status row_take(decoder_row *row, const draw_wish *wish, int32_t *token, error *e) {
    gm_session     *s = row->session;
    const row_draw *draw = &row->draws[row->first];
    row->first = (row->first + 1) % DECODER_AHEAD;
    row->count--;
    if (row->left) row->left--;
    row->token = *token = draw->token;
    s->computed++;
    s->step_seconds = draw->seconds;
    s->has_logits = row->over && !row->count;
    if (s->has_logits) {
        float *logits = s->logits;
        s->logits = row->logits;
        row->logits = logits;
    }
    if (draw->status == GM_BAD_FILE) {
        s->has_logits = false;
        return session_not_finite(s, e);
    }
    if (draw->status) return fail(e, draw->status, "%s", row->problem.why);
    if (wish->logprobs) memcpy(wish->logprobs, draw->logprobs, (1 + row->alternatives) * sizeof *draw->logprobs);
    return GM_OK;
}

/* ---- steps ---- */

/* The rows of the next step. A row without room for its token is left out; if it is the asker's, that is an error. */
static gm_status decoder_gather(decoder *d, const gm_session *asker, error *e) {
    for (size_t i = 0; i < DECODER_ROWS; i++) {
        decoder_row *row = &d->rows[i];
        if (!row_is_ready(row)) continue;
        gm_session  *s = row->session;
        error        problem = { 0 };
        const size_t position = s->computed + row->count;
        if (kv_reserve(&s->kv, position, 1, &problem)) {
            if (s != asker) continue;
            d->stepping = 0;
            return fail(e, problem.status, "%s", problem.why);
        }
        kv_written(&s->kv, position + 1); /* already now: a step that is dropped halfway has written, too */
        d->taking[d->stepping++] = row;
    }
    d->began = clock_seconds();
    return GM_OK;
}

/* They are made for each part of a step, because keys and values may move between two of them. A row that has left is nowhere and
 * sees one slot, whatever is in it. */
static void decoder_write_records(decoder *d) {
    for (size_t i = 0; i < d->stepping; i++) {
        const decoder_row *row = d->taking[i];
        if (!row) {
            d->records[i] =
                (token_record){ .at = RUN_NOWHERE, .span_first = (uint32_t)i, .span_count = 1, .ring_slots = 1 };
            continue;
        }
        const gm_session     *s = row->session;
        const record_sequence sequence = session_sequence(s);
        const int32_t id = row->count ? row->draws[(row->first + row->count - 1) % DECODER_AHEAD].token : row->token;
        records_of_text(d->records, i, &sequence, &id, s->computed + row->count, 1);
    }
}

/* Draws the token behind those that the session holds and the row has drawn. */
static void row_draw_next(decoder_row *row, const float *logits, double seconds) {
    gm_session        *s = row->session;
    const gm_engine   *engine = s->engine;
    const gm_sampling *sampling = &row->sampling;
    row_draw          *draw = &row->draws[(row->first + row->count) % DECODER_AHEAD];
    const size_t       at = s->tokens.count + row->count, window = min_size(sampling->penalty_window, at);
    row->problem = (error){ 0 };
    draw->seconds = seconds;
    draw->token = 0;
    draw->status = session_is_finite(s, logits)
                       ? sampler_draw(s->chooser, sampling, logits, window ? s->tokens.ids + (at - window) : NULL,
                                      window, engine->suppressed, at, &draw->token, &row->problem)
                       : GM_BAD_FILE;
    if (!draw->status && row->logprobs)
        sampler_logprobs(s->chooser, logits, draw->token, draw->logprobs, draw->logprobs + 1, row->alternatives);
    if (at < s->tokens.capacity) s->tokens.ids[at] = draw->token; /* behind those held: what the next draw looks at */
    row->count++;
    row->over =
        draw->status || at >= s->kv.context || row->count >= row->left || tokenizer_is_stop(engine->words, draw->token);
    if (row->over) memcpy(row->logits, logits, engine->weights.config.vocabulary * sizeof *logits);
}

typedef struct {
    decoder     *d;
    const float *logits;
    double       seconds;
} draw_job;

static void decoder_draw(void *context, size_t thread, size_t threads) {
    const draw_job *job = context;
    const size_t    vocabulary = job->d->engine->weights.config.vocabulary, n = job->d->stepping;
    pool           *p = job->d->engine->cpu.threads;
    (void)thread, (void)threads;
    for (size_t i = pool_take(p); i < n; i = pool_take(p)) {
        decoder_row *row = job->d->taking[i];
        if (row) row_draw_next(row, job->logits + i * vocabulary, job->seconds);
    }
}

/* Runs the step that is under way, or the next one. GM_OK also if no row was ready. */
static gm_status decoder_step(decoder *d, const gm_session *asker, double deadline, error *e) {
    if (!d->stepping) TRY(decoder_gather(d, asker, e));
    if (!d->stepping) return GM_OK;
    decoder_write_records(d);
    const run_inputs in = {
        .records = d->records, .tokens = d->stepping, .output_rows = d->outputs, .outputs = d->stepping
    };
    const gm_status status = runner_step(&d->run, d->store, &in, NULL, deadline, e);
    if (status == GM_AGAIN) return status;
    if (!status) {
        draw_job job = { d, runner_logits(&d->run), clock_seconds() - d->began };
        pool_run(d->engine->cpu.threads, decoder_draw, &job);
        d->totals.steps++;
        d->totals.tokens += d->stepping;
    } else runner_restart(&d->run);
    d->stepping = 0;
    return status;
}

gm_status decoder_next(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e) {
    decoder *d = decoder_of(s);
    TRY(sampling_check(wish->sampling, s->engine->weights.config.vocabulary, e));
    token_list_reserve(&s->tokens, s->tokens.count + DECODER_AHEAD + 1);
    if (s->tokens.failed) {
        s->tokens.failed = false;
        return fail_memory(e, "the tokens", (s->tokens.count + DECODER_AHEAD + 1) * sizeof *token);
    }
    decoder_row *row = decoder_join(d, s, wish);
    if (!row) return GM_BUSY;
    for (;;) {
        if (atomic_exchange(&s->cancelled, false)) return fail(e, GM_CANCELLED, "cancelled at token %zu", s->computed);
        if (row->count) return row_take(row, wish, token, e);
        const gm_status status = decoder_step(d, s, deadline, e);
        if (status) return status;
        if (!row->count && clock_seconds() > deadline) return GM_AGAIN;
    }
}

bool decoder_keep_up(const gm_session *s, double deadline) {
    bool any = false;
    for (size_t i = 0; i < COUNT_OF(s->engine->gpu_decoders); i++) gpu_decoder_keep_up(s->engine->gpu_decoders[i], s);
    for (size_t i = 0; i < COUNT_OF(s->engine->decoders); i++) {
        decoder *d = s->engine->decoders[i];
        error    ignored = { 0 };
        bool     due = false;
        for (size_t k = 0; d && d->count && k < DECODER_ROWS; k++)
            due = due || (d->rows[k].session != s && !d->rows[k].count && row_is_ready(&d->rows[k]));
        if (due) decoder_step(d, NULL, deadline, &ignored);
        any = any || due;
    }
    return any;
}
