#include "session/denoiser.h"

#include "session/records.h"
#include "session/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run: the canvases in it, and how far it is. */
typedef struct {
    const canvas_graph *graph;
    session_canvas     *members[DENOISER_CANVASES]; /* NULL: it left */
    size_t              count, tokens;
    kv_store           *store;
    uint32_t            moves; /* of the store, when the records were made */
    shared_plan        *plan;
    bool                filled, submitted; /* the leaves are written; the GPU has the run */
    uint32_t            tickets[2];        /* of its results */
    size_t              results;
    double              since;
    float              *logits; /* where they go, in a check; NULL: not wanted */
} denoiser_run;

struct denoiser {
    gm_engine      *engine;
    canvas_graph    graph;
    session_canvas *first;
    size_t          length, width;
    token_record   *records;  /* [DENOISER_CANVASES · length] */
    int32_t        *rows;     /* the same; outputs of checks */
    float          *settings; /* [DENOISER_CANVASES · length, CANVAS_SETTINGS] */
    float          *zeros;    /* [length, width] */
    float          *found;    /* [DENOISER_CANVASES · length, CANVAS_FINDINGS] */
    denoiser_run    run;      /* count 0: none */
    size_t          last_canvases;
};

/* ---- life ---- */

gm_status denoiser_new(gm_engine *engine, denoiser **out, error *e) {
    denoiser *d = calloc(1, sizeof *d);
    if (!d) return fail_memory(e, "the denoiser", sizeof *d);
    const model_config *c = &engine->weights.config;
    const size_t        most = DENOISER_CANVASES * (size_t)c->canvas.length;
    *d = (denoiser){ .engine = engine, .length = c->canvas.length, .width = c->width };
    d->records = calloc(most, sizeof *d->records);
    d->rows = calloc(most, sizeof *d->rows);
    d->settings = calloc(most * CANVAS_SETTINGS, sizeof *d->settings);
    d->zeros = calloc(d->length * d->width, sizeof *d->zeros);
    d->found = calloc(most * CANVAS_FINDINGS, sizeof *d->found);
    gm_status status = GM_OK;
    if (!d->records || !d->rows || !d->settings || !d->zeros || !d->found)
        status = fail_memory(e, "the denoiser", d->length * d->width * sizeof *d->zeros);
    if (!status) status = model_canvas_graph(&engine->weights, false, &d->graph, e);
    if (status) denoiser_free(d);
    else *out = d;
    return status;
}

void denoiser_free(denoiser *d) {
    if (!d) return;
    graph_free(&d->graph.g);
    free(d->records);
    free(d->rows);
    free(d->settings);
    free(d->zeros);
    free(d->found);
    free(d);
}

const graph *denoiser_graph(const denoiser *d) { return &d->graph.g; }
size_t       denoiser_last_canvases(const denoiser *d) { return d->last_canvases; }

static gpu_host *denoiser_gpu(const denoiser *d) { return d->engine->on_gpu ? d->engine->gpu.host : NULL; }

gm_status session_canvas_get(gm_session *s, session_canvas **out, error *e) {
    denoiser *d = s->engine->denoiser;
    *out = s->canvas;
    if (s->canvas) return GM_OK;
    session_canvas *c = calloc(1, sizeof *c);
    if (!c) return fail_memory(e, "a canvas", sizeof *c);
    const uint64_t bytes = (uint64_t)d->length * d->width * sizeof *c->soft;
    c->session = s;
    gm_status status = canvas_new(&s->engine->weights.config, &c->numbers, e);
    if (!status && denoiser_gpu(d)) {
        c->buffer = gpu_buffer_new(denoiser_gpu(d), bytes, e);
        status = c->buffer ? GM_OK : e->status;
    } else if (!status) {
        c->soft = malloc((size_t)bytes);
        if (!c->soft) status = fail_memory(e, "a canvas", bytes);
    }
    c->next = d->first;
    d->first = c;
    if (status) session_canvas_free(c);
    else *out = s->canvas = c;
    return status;
}

void session_canvas_free(session_canvas *c) {
    if (!c) return;
    denoiser *d = c->session->engine->denoiser;
    session_canvas_leave(c);
    session_canvas **at = &d->first;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    if (c->buffer) gpu_buffer_free(denoiser_gpu(d), c->buffer);
    free(c->soft);
    canvas_free(&c->numbers);
    free(c);
}

/* ---- runs ---- */

/* The run is over, one way or another. */
static void denoiser_end_run(denoiser *d) {
    denoiser_run *r = &d->run;
    for (size_t i = 0; i < r->results && denoiser_gpu(d); i++) {
        if (r->tickets[i]) gpu_ticket_done(denoiser_gpu(d), r->tickets[i]);
    }
    plans_return(r->plan);
    for (size_t i = 0; i < r->count; i++) {
        if (r->members[i] && r->members[i]->state == CANVAS_RUNS) r->members[i]->state = CANVAS_WAITS;
    }
    *r = (denoiser_run){ 0 };
}

void session_canvas_leave(session_canvas *c) {
    if (!c) return;
    denoiser *d = c->session->engine->denoiser;
    if (c->state == CANVAS_RUNS && !d->run.submitted) denoiser_end_run(d); /* the others begin theirs again */
    for (size_t i = 0; i < d->run.count; i++) {
        if (d->run.members[i] == c) d->run.members[i] = NULL;
    }
    c->state = CANVAS_IDLE;
}

/* Room for the canvas's keys and values, behind all that the session has computed. */
static gm_status canvas_reserve(session_canvas *c, error *e) {
    gm_session  *s = c->session;
    const size_t n = c->numbers.config.length;
    if (s->computed + n > s->kv.context)
        return fail(e, GM_CONTEXT_FULL, "the context is full: %zu of %zu tokens are in use, and a canvas has %zu",
                    s->computed, s->kv.context, n);
    TRY(kv_reserve(&s->kv, s->computed, n, e));
    kv_written(&s->kv, s->computed + n);
    return GM_OK;
}

/* The records and the settings of all members. */
static void denoiser_fill(denoiser *d) {
    denoiser_run *r = &d->run;
    r->tokens = 0;
    for (size_t i = 0; i < r->count; i++) {
        const session_canvas *c = r->members[i];
        const record_sequence sequence = session_sequence(c->session);
        const float           inverse = 1 / canvas_temperature(&c->numbers);
        records_of_canvas(d->records, r->tokens, &sequence, c->numbers.ids, c->session->computed, d->length);
        for (size_t p = 0; p < d->length; p++) {
            float         *at = d->settings + (r->tokens + p) * CANVAS_SETTINGS;
            const uint32_t words[] = { (uint32_t)c->numbers.seed, (uint32_t)(c->numbers.seed >> 32),
                                       canvas_draw_number(&c->numbers, p) };
            at[CANVAS_INVERSE] = inverse;
            memcpy(at + CANVAS_KEY_0, words, sizeof words);
        }
        r->tokens += d->length;
    }
    for (size_t i = 0; i < r->tokens; i++) d->rows[i] = (int32_t)i;
    r->moves = r->store->moves;
    r->filled = false;
}

/* A run of this canvas and of others that wait. */
static gm_status denoiser_begin_run(denoiser *d, session_canvas *c, error *e) {
    denoiser_run *r = &d->run;
    *r = (denoiser_run){ .graph = &d->graph, .store = c->session->kv.store, .results = 1, .since = clock_seconds() };
    TRY(canvas_reserve(c, e));
    r->members[r->count++] = c;
    const size_t most = d->engine->budget.options.limit ? 1 : DENOISER_CANVASES; /* what the memory plan has room for */
    for (session_canvas *other = d->first; other && r->count < most; other = other->next) {
        error none = { 0 };
        if (other != c && other->state == CANVAS_WAITS && other->session->kv.store == r->store &&
            !canvas_reserve(other, &none))
            r->members[r->count++] = other;
    }
    for (size_t i = 0; i < r->count; i++) r->members[i]->state = CANVAS_RUNS;
    denoiser_fill(d); /* after all reservations, which may have moved each other's slots */
    return GM_OK;
}

static run_inputs denoiser_inputs(const denoiser *d) {
    const denoiser_run *r = &d->run;
    return (run_inputs){
        .records = d->records, .tokens = r->tokens, .output_rows = d->rows, .outputs = r->logits ? r->tokens : 0
    };
}

static gm_status denoiser_borrow(denoiser *d, error *e) {
    denoiser_run   *r = &d->run;
    const size_t    outputs = r->logits ? r->tokens : 0;
    const plan_wish wish = {
        .g = &r->graph->g, .tokens = r->tokens, .outputs = outputs, .most_outputs = outputs, .kv = r->store->gpu_layers
    };
    if (r->moves != r->store->moves && !r->submitted) { /* another session made them move: begin again */
        plans_return(r->plan);
        r->plan = NULL;
        denoiser_fill(d);
    }
    if (!r->plan) r->plan = runner_borrow(d->engine, &wish, e);
    else if (r->plan->gpu && !r->submitted) return gpu_plan_bind(r->plan->gpu, wish.kv, e);
    return r->plan ? GM_OK : e->status;
}

/* ---- CPU ---- */

static gm_status denoiser_run_cpu(denoiser *d, double deadline, error *e) {
    denoiser_run *r = &d->run;
    const size_t  values = d->length * d->width;
    TRY(denoiser_borrow(d, e));
    float *soft = cpu_plan_leaf(r->plan->cpu, r->graph->soft),
          *settings = cpu_plan_leaf(r->plan->cpu, r->graph->settings);
    for (size_t i = 0; i < r->count && !r->filled; i++)
        memcpy(soft + i * values, r->members[i]->begun ? r->members[i]->soft : d->zeros, values * sizeof *soft);
    if (!r->filled) memcpy(settings, d->settings, r->tokens * CANVAS_SETTINGS * sizeof *settings);
    r->filled = true;
    const cpu_inputs inputs = { .run = denoiser_inputs(d), .kv = r->store->cpu_layers };
    if (cpu_plan_step(r->plan->cpu, &inputs, deadline) == GM_AGAIN) return GM_AGAIN;
    memcpy(d->found, cpu_plan_results(r->plan->cpu, r->logits ? 1 : 0), r->tokens * CANVAS_FINDINGS * sizeof *d->found);
    if (r->logits)
        memcpy(r->logits, cpu_plan_results(r->plan->cpu, 0),
               r->tokens * d->engine->weights.config.vocabulary * sizeof *r->logits);
    for (size_t i = 0; i < r->count; i++) memcpy(r->members[i]->soft, soft + i * values, values * sizeof *soft);
    return GM_OK;
}

/* ---- GPU ---- */

/* Writes the leaves. GM_AGAIN: call again. */
static gm_status denoiser_write_leaves(denoiser *d, error *e) {
    const denoiser_run *r = &d->run;
    gpu_plan           *p = r->plan->gpu;
    gm_status           status = gpu_plan_write_leaf(p, r->graph->settings, 0, d->settings, r->tokens, e);
    for (size_t i = 0; i < r->count && !status; i++) {
        const size_t first = i * d->length;
        if (r->members[i]->begun)
            status = gpu_plan_copy_leaf(p, r->graph->soft, first, d->length, r->members[i]->buffer, true, e);
        else status = gpu_plan_write_leaf(p, r->graph->soft, first, d->zeros, d->length, e);
    }
    return status;
}

static gm_status denoiser_submit(denoiser *d, error *e) {
    denoiser_run    *r = &d->run;
    gpu_host        *h = denoiser_gpu(d);
    const run_inputs in = denoiser_inputs(d);
    gm_status        status = engine_check_kv(d->engine, r->store->type, e);
    if (!status) status = denoiser_borrow(d, e);
    if (!status && !r->filled) status = denoiser_write_leaves(d, e);
    if (status) return status;
    r->filled = true;
    for (size_t i = 0; i < r->results; i++) {
        if (!r->tickets[i]) r->tickets[i] = gpu_ticket_new(h);
    }
    status = gpu_plan_submit_results(r->plan->gpu, &in, r->tickets, r->results, e);
    for (size_t i = 0; i < r->count && !status; i++)
        status =
            gpu_plan_copy_leaf(r->plan->gpu, r->graph->soft, i * d->length, d->length, r->members[i]->buffer, false, e);
    r->submitted = !status;
    return status;
}

/* Fetches the results that have arrived; GM_AGAIN: not all have. */
static gm_status denoiser_fetch(denoiser *d, error *e) {
    const denoiser_run *r = &d->run;
    const size_t        vocabulary = d->engine->weights.config.vocabulary;
    for (size_t i = 0; i < r->results; i++) {
        const bool   logits = r->logits && i == 0;
        const size_t wanted = r->tokens * (logits ? vocabulary : CANVAS_FINDINGS) * sizeof(float);
        uint64_t     bytes = 0;
        const void  *data = gpu_ticket_data(denoiser_gpu(d), r->tickets[i], &bytes);
        if (!data) return GM_AGAIN;
        if (bytes < wanted)
            return fail(e, GM_IO, "the GPU returned %llu bytes of a step, expected %zu", (unsigned long long)bytes,
                        wanted);
        memcpy(logits ? r->logits : d->found, data, wanted);
    }
    return GM_OK;
}

static gm_status denoiser_run_gpu(denoiser *d, double deadline, error *e) {
    for (;;) {
        gm_status status = d->run.submitted ? GM_OK : denoiser_submit(d, e);
        if (!status) status = denoiser_fetch(d, e);
        if (status == GM_AGAIN) TRY(gpu_host_problem(denoiser_gpu(d), e));
        if (status != GM_AGAIN) return status;
        if (!runner_wait(denoiser_gpu(d), deadline)) return GM_AGAIN;
    }
}

/* ---- steps ---- */

/* Goes on with the run. When it ends, its canvases have what it found. */
static gm_status denoiser_step(denoiser *d, double deadline, error *e) {
    denoiser_run   *r = &d->run;
    const gm_status status = d->engine->on_gpu ? denoiser_run_gpu(d, deadline, e) : denoiser_run_cpu(d, deadline, e);
    if (status == GM_AGAIN) return GM_AGAIN;
    for (size_t i = 0; i < r->count && !status; i++) {
        session_canvas *c = r->members[i];
        if (!c) continue;
        c->begun = true;
        c->state = CANVAS_FOUND;
        c->seconds = clock_seconds() - r->since;
        /* One that found NaN says so when its session asks. */
        if (!r->logits && !canvas_take(&c->numbers, d->found + i * d->length * CANVAS_FINDINGS)) c->numbers.mean = NAN;
    }
    d->last_canvases = r->count;
    denoiser_end_run(d);
    return status;
}

gm_status session_canvas_begin(session_canvas *c, uint64_t seed, uint32_t block, const canvas_start *start,
                               size_t count, error *e) {
    session_canvas_leave(c);
    TRY(canvas_reserve(c, e));
    canvas_begin(&c->numbers, seed, block, start, count);
    c->begun = false;
    c->state = CANVAS_WAITS;
    return GM_OK;
}

gm_status session_canvas_step(session_canvas *c, double deadline, error *e) {
    denoiser *d = c->session->engine->denoiser;
    while (c->state != CANVAS_FOUND) {
        if (atomic_exchange(&c->session->cancelled, false)) {
            session_canvas_leave(c);
            return fail(e, GM_CANCELLED, "cancelled in step %u of a canvas", c->numbers.step + 1);
        }
        if (!d->run.count) {
            const gm_status begun = denoiser_begin_run(d, c, e);
            if (begun) {
                denoiser_end_run(d);
                return begun;
            }
        }
        const gm_status status = denoiser_step(d, deadline, e);
        if (status) return status;
        if (c->state != CANVAS_FOUND && clock_seconds() > deadline) return GM_AGAIN; /* it was another's step */
    }
    if (isnan(c->numbers.mean)) {
        c->state = CANVAS_IDLE;
        return session_not_finite(c->session, e);
    }
    c->state = c->numbers.done ? CANVAS_IDLE : CANVAS_WAITS;
    return GM_OK;
}

bool denoiser_is_shared(const gm_session *s) {
    const denoiser *d = s->engine->denoiser;
    for (const session_canvas *c = d ? d->first : NULL; c; c = c->next) {
        if (c->session != s && c->state != CANVAS_IDLE) return true;
    }
    return false;
}

/* ---- checks ---- */

gm_status session_canvas_check(session_canvas *c, const int32_t *ids, float temperature, float *logits, float *findings,
                               error *e) {
    denoiser       *d = c->session->engine->denoiser;
    canvas_graph    checked;
    canvas_numbers *n = &c->numbers;
    memcpy(n->ids, ids, d->length * sizeof *ids);
    n->warmth *= temperature / canvas_temperature(n);
    TRY(model_canvas_graph(&d->engine->weights, true, &checked, e));
    gm_status status = GM_OK;
    while (d->engine->on_gpu && (status = gpu_backend_upload(&d->engine->gpu, &checked.g, e)) == GM_AGAIN)
        gpu_host_wait(d->engine->gpu.host, 1);
    if (!status) status = denoiser_begin_run(d, c, e);
    d->run.graph = &checked;
    d->run.logits = logits;
    d->run.results = 2;
    while (!status && (status = denoiser_step(d, INFINITY, e)) == GM_AGAIN) status = GM_OK;
    memcpy(findings, d->found, d->length * CANVAS_FINDINGS * sizeof *findings);
    denoiser_end_run(d);
    plans_drop(&d->engine->plans, &checked.g);
    if (d->engine->on_gpu) gpu_backend_release(&d->engine->gpu, &checked.g);
    graph_free(&checked.g);
    return status;
}
