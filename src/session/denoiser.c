#include "session/denoiser.h"

#include "gpu/pipeline.h"
#include "session/records.h"
#include "session/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run: the canvases in it, and how far it is. */
typedef struct {
    const canvas_graph *graph;
    session_canvas     *members[DENOISER_CANVASES]; /* NULL: it left */
    uint32_t            steps[DENOISER_CANVASES];   /* which one each takes */
    size_t              count, tokens;
    kv_store           *store;
    uint32_t            moves; /* of the store, when the records were made */
    shared_plan        *plan;
    bool                filled, submitted; /* the leaves are written; the GPU has the run */
    uint32_t            tickets[2];        /* of its results */
    size_t              results;
    float              *logits; /* where they go, in a check; NULL: not wanted */
} denoiser_run;

struct denoiser {
    gm_engine      *engine;
    canvas_graph    graph;
    session_canvas *first;
    size_t          length, width;
    token_record   *records;             /* [DENOISER_CANVASES · length] */
    int32_t        *rows;                /* the same; outputs of checks */
    float          *settings;            /* [DENOISER_CANVASES · length, CANVAS_SETTINGS] */
    denoiser_run    runs[DENOISER_RUNS]; /* the oldest first; all but the last are submitted */
    size_t          run_count, last_canvases;
    double          since; /* when the oldest run began, or the one before it ended */
};

static gpu_host *denoiser_gpu(const denoiser *d) { return d->engine->on_gpu ? d->engine->gpu.host : NULL; }

/* Ends this run, one way or another, and those after it. */
static void denoiser_end_runs(denoiser *d, size_t first) {
    for (; d->run_count > first; d->run_count--) {
        denoiser_run *r = &d->runs[d->run_count - 1];
        for (size_t i = 0; i < r->results && denoiser_gpu(d); i++) {
            if (r->tickets[i]) gpu_ticket_done(denoiser_gpu(d), r->tickets[i]);
        }
        plans_return(r->plan);
        for (size_t i = 0; i < r->count; i++) {
            if (r->members[i]) r->members[i]->flying--;
        }
    }
}

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
    gm_status status = GM_OK;
    if (!d->records || !d->rows || !d->settings) status = fail_memory(e, "the denoiser", most * sizeof *d->records);
    if (!status) status = model_canvas_graph(&engine->weights, false, &d->graph, e);
    if (status) denoiser_free(d);
    else *out = d;
    return status;
}

void denoiser_free(denoiser *d) {
    if (!d) return;
    denoiser_end_runs(d, 0); /* one that was submitted ahead may be left */
    graph_free(&d->graph.g);
    free(d->records);
    free(d->rows);
    free(d->settings);
    free(d);
}

const graph *denoiser_graph(const denoiser *d) { return &d->graph.g; }
size_t       denoiser_last_canvases(const denoiser *d) { return d->last_canvases; }

/* What a canvas keeps from step to step, one behind the other: how many values. */
static size_t canvas_soft_values(const denoiser *d) { return d->length * d->width; }
static size_t canvas_found_values(const denoiser *d) { return d->length * CANVAS_FINDINGS; }
static size_t canvas_state_values(const denoiser *d) { return d->length * CANVAS_STATE; }

gm_status session_canvas_get(gm_session *s, session_canvas **out, error *e) {
    denoiser *d = s->engine->denoiser;
    *out = s->canvas;
    if (s->canvas) return GM_OK;
    session_canvas *c = calloc(1, sizeof *c);
    if (!c) return fail_memory(e, "a canvas", sizeof *c);
    const size_t bytes = (canvas_soft_values(d) + canvas_found_values(d) + canvas_state_values(d)) * sizeof *c->memory;
    c->session = s;
    gm_status status = canvas_new(&s->engine->weights.config, &c->numbers, e);
    c->found = malloc(DENOISER_RUNS * canvas_found_values(d) * sizeof *c->found);
    if (!status && denoiser_gpu(d)) {
        c->buffer = gpu_buffer_new(denoiser_gpu(d), bytes, e);
        status = c->buffer ? GM_OK : e->status;
    } else if (!status) c->memory = malloc(bytes);
    if (!status && (!c->found || (!c->memory && !c->buffer))) status = fail_memory(e, "a canvas", bytes);
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
    free(c->memory);
    free(c->found);
    canvas_free(&c->numbers);
    free(c);
}

/* ---- runs ---- */

void session_canvas_leave(session_canvas *c) {
    if (!c) return;
    denoiser *d = c->session->engine->denoiser;
    for (size_t i = 0; i < d->run_count; i++) {
        denoiser_run *r = &d->runs[i];
        for (size_t j = 0; j < r->count; j++) {
            if (r->members[j] != c) continue;
            if (r->submitted) r->members[j] = NULL;
            else denoiser_end_runs(d, i); /* the others begin theirs again */
        }
    }
    c->active = false;
    c->flying = c->arrived = 0;
}

/* How many steps may be under way: the host takes part in each if it uploads weights, and whoever times steps wants one at a time. */
static size_t denoiser_most_runs(const denoiser *d) {
    const gpu_backend *gpu = &d->engine->gpu;
    return d->engine->on_gpu && !gpu->experts && !gpu_backend_needs_host(gpu) && !gpu->watch ? DENOISER_RUNS : 1;
}

static uint32_t canvas_next_step(const session_canvas *c) {
    return c->numbers.step + (uint32_t)(c->arrived + c->flying);
}

static bool canvas_may_join(const denoiser *d, const session_canvas *c) {
    return c->active && c->arrived + c->flying < denoiser_most_runs(d) && canvas_next_step(c) < c->numbers.config.steps;
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

/* The records and the settings of all members. The ids are on the device. */
static void denoiser_fill(denoiser *d, denoiser_run *r) {
    static const int32_t none[CANVAS_MOST];
    r->tokens = 0;
    for (size_t i = 0; i < r->count; i++) {
        const session_canvas *c = r->members[i];
        const record_sequence sequence = session_sequence(c->session);
        records_of_canvas(d->records, r->tokens, &sequence, none, c->session->computed, d->length);
        canvas_settings(&c->numbers, r->steps[i], d->settings + r->tokens * CANVAS_SETTINGS);
        r->tokens += d->length;
    }
    for (size_t i = 0; i < r->tokens; i++) d->rows[i] = (int32_t)i;
    r->moves = r->store->moves;
    r->filled = false;
}

/* A run of this canvas and of others that wait. */
static gm_status denoiser_begin_run(denoiser *d, session_canvas *c, error *e) {
    denoiser_run *r = &d->runs[d->run_count];
    *r = (denoiser_run){ .graph = &d->graph, .store = c->session->kv.store, .results = 1 };
    TRY(canvas_reserve(c, e));
    r->members[r->count++] = c;
    const size_t most = d->engine->budget.options.limit ? 1 : DENOISER_CANVASES; /* what the memory plan has room for */
    for (session_canvas *other = d->first; other && r->count < most; other = other->next) {
        error none = { 0 };
        if (other != c && canvas_may_join(d, other) && other->session->kv.store == r->store &&
            !canvas_reserve(other, &none))
            r->members[r->count++] = other;
    }
    for (size_t i = 0; i < r->count; i++) {
        r->steps[i] = canvas_next_step(r->members[i]);
        r->members[i]->flying++;
    }
    if (!d->run_count++) d->since = clock_seconds();
    denoiser_fill(d, r); /* after all reservations, which may have moved each other's slots */
    return GM_OK;
}

static run_inputs denoiser_inputs(const denoiser *d, const denoiser_run *r) {
    return (run_inputs){
        .records = d->records, .tokens = r->tokens, .output_rows = d->rows, .outputs = r->logits ? r->tokens : 0
    };
}

static gm_status denoiser_borrow(denoiser *d, denoiser_run *r, error *e) {
    const size_t    outputs = r->logits ? r->tokens : 0;
    const plan_wish wish = {
        .g = &r->graph->g, .tokens = r->tokens, .outputs = outputs, .most_outputs = outputs, .kv = r->store->gpu_layers
    };
    if (r->moves != r->store->moves) { /* another session made them move: begin again */
        plans_return(r->plan);
        r->plan = NULL;
        denoiser_fill(d, r);
    }
    if (!r->plan) r->plan = runner_borrow(d->engine, &wish, e);
    else if (r->plan->gpu) return gpu_plan_bind(r->plan->gpu, wish.kv, e);
    return r->plan ? GM_OK : e->status;
}

/* ---- CPU ---- */

/* Copies what the members keep into the plan, or what the run leaves to them out of it. */
static void denoiser_copy_cpu(const denoiser *d, const denoiser_run *r, bool in) {
    const size_t  values[] = { canvas_soft_values(d), canvas_found_values(d), canvas_state_values(d) };
    const tensor *leaves[] = { r->graph->soft, r->graph->before, r->graph->state };
    float        *memory[COUNT_OF(values)];
    for (size_t i = 0; i < COUNT_OF(values); i++) memory[i] = cpu_plan_leaf(r->plan->cpu, leaves[i]);
    if (!in) memory[1] = (float *)(uintptr_t)cpu_plan_results(r->plan->cpu, r->results - 1);
    for (size_t i = 0; i < r->count; i++) {
        float *own = r->members[i]->memory;
        for (size_t j = 0; j < COUNT_OF(values); own += values[j++]) {
            float *other = memory[j] + i * values[j];
            memcpy(in ? other : own, in ? own : other, values[j] * sizeof *own);
        }
    }
}

static gm_status denoiser_run_cpu(denoiser *d, denoiser_run *r, double deadline, error *e) {
    TRY(denoiser_borrow(d, r, e));
    if (!r->filled) {
        denoiser_copy_cpu(d, r, true);
        memcpy(cpu_plan_leaf(r->plan->cpu, r->graph->settings), d->settings,
               r->tokens * CANVAS_SETTINGS * sizeof *d->settings);
    }
    r->filled = true;
    const cpu_inputs inputs = { .run = denoiser_inputs(d, r), .kv = r->store->cpu_layers };
    if (cpu_plan_step(r->plan->cpu, &inputs, deadline) == GM_AGAIN) return GM_AGAIN;
    denoiser_copy_cpu(d, r, false);
    for (size_t i = 0; i < r->count; i++)
        memcpy(r->members[i]->found, r->members[i]->memory + canvas_soft_values(d),
               canvas_found_values(d) * sizeof *r->members[i]->found);
    if (r->logits)
        memcpy(r->logits, cpu_plan_results(r->plan->cpu, 0),
               r->tokens * d->engine->weights.config.vocabulary * sizeof *r->logits);
    return GM_OK;
}

/* ---- GPU ---- */

static gm_status denoiser_copy_gpu(const denoiser *d, const denoiser_run *r, bool in, error *e) {
    const uint64_t word = sizeof(float), soft = canvas_soft_values(d), found = canvas_found_values(d);
    gpu_value_copy copies[3 * DENOISER_CANVASES], *next = copies;
    for (size_t i = 0; i < r->count; i++) {
        const gpu_id own = r->members[i]->buffer;
        const size_t first = i * d->length;
        *next++ = (gpu_value_copy){ r->graph->soft, first, d->length, own, 0 };
        *next++ = (gpu_value_copy){ in ? r->graph->before : r->graph->found, first, d->length, own, soft * word };
        *next++ = (gpu_value_copy){ r->graph->state, first, d->length, own, (soft + found) * word };
    }
    return gpu_plan_copy_values(r->plan->gpu, copies, (size_t)(next - copies), in, e);
}

static gm_status denoiser_submit(denoiser *d, denoiser_run *r, error *e) {
    gpu_host        *h = denoiser_gpu(d);
    const run_inputs in = denoiser_inputs(d, r);
    gm_status        status = engine_check_kv(d->engine, r->store->type, e);
    if (!status) status = denoiser_borrow(d, r, e);
    if (!status && !r->filled)
        status = gpu_plan_write_leaf(r->plan->gpu, r->graph->settings, 0, d->settings, r->tokens, e);
    if (!status && !r->filled) status = denoiser_copy_gpu(d, r, true, e);
    if (status) return status;
    r->filled = true;
    for (size_t i = 0; i < r->results; i++) {
        if (!r->tickets[i]) r->tickets[i] = gpu_ticket_new(h);
    }
    status = gpu_plan_submit_results(r->plan->gpu, &in, r->tickets, r->results, e);
    if (!status) status = denoiser_copy_gpu(d, r, false, e);
    if (status) return status;
    plans_return(r->plan); /* all of it was submitted: the next run may use the plan */
    r->plan = NULL;
    r->submitted = true;
    return GM_OK;
}

/* Fetches the results that have arrived; GM_AGAIN: not all have. */
static gm_status denoiser_fetch(const denoiser *d, const denoiser_run *r, error *e) {
    const float *data[2] = { NULL };
    for (size_t i = 0; i < r->results; i++) {
        const size_t values = i + 1 < r->results ? d->engine->weights.config.vocabulary : CANVAS_FINDINGS;
        const size_t wanted = r->tokens * values * sizeof(float);
        uint64_t     bytes = 0;
        data[i] = gpu_ticket_data(denoiser_gpu(d), r->tickets[i], &bytes);
        if (!data[i]) return GM_AGAIN;
        if (bytes < wanted)
            return fail(e, GM_IO, "the GPU returned %llu bytes of a step, expected %zu", (unsigned long long)bytes,
                        wanted);
        if (i + 1 < r->results) memcpy(r->logits, data[i], wanted);
    }
    for (size_t i = 0; i < r->count; i++) {
        session_canvas *c = r->members[i];
        const size_t    values = canvas_found_values(d);
        if (c) memcpy(c->found + c->arrived * values, data[r->results - 1] + i * values, values * sizeof *c->found);
    }
    return GM_OK;
}

/* Submits what has begun, and steps of this canvas, as many as may be under way. */
static gm_status denoiser_submit_ahead(denoiser *d, session_canvas *c, error *e) {
    for (;;) {
        denoiser_run *last = d->run_count ? &d->runs[d->run_count - 1] : NULL;
        if (last && !last->submitted) {
            const gm_status status = denoiser_submit(d, last, e);
            if (status && status != GM_AGAIN) denoiser_end_runs(d, d->run_count - 1);
            if (status) return status;
        }
        if (d->run_count == denoiser_most_runs(d) || !canvas_may_join(d, c)) return GM_OK;
        TRY(denoiser_begin_run(d, c, e));
    }
}

static gm_status denoiser_run_gpu(denoiser *d, session_canvas *c, double deadline, error *e) {
    for (;;) {
        const gm_status ahead = denoiser_submit_ahead(d, c, e);
        if (ahead && ahead != GM_AGAIN) return ahead;
        gm_status status = d->runs[0].submitted ? denoiser_fetch(d, &d->runs[0], e) : GM_AGAIN;
        if (status == GM_AGAIN) status = gpu_host_problem(denoiser_gpu(d), e) ? e->status : GM_AGAIN;
        if (status && status != GM_AGAIN) denoiser_end_runs(d, 0);
        if (status != GM_AGAIN) return status;
        if (!runner_wait(denoiser_gpu(d), deadline)) return GM_AGAIN;
    }
}

/* ---- steps ---- */

/* The oldest run has ended, and its canvases have what it found. */
static void denoiser_take_run(denoiser *d) {
    denoiser_run *r = &d->runs[0], rest[DENOISER_RUNS];
    const double  now = clock_seconds();
    const size_t  left = d->run_count - 1;
    for (size_t i = 0; i < r->count; i++) {
        if (!r->members[i]) continue;
        r->members[i]->arrived++;
        r->members[i]->seconds = now - d->since;
    }
    d->since = now;
    d->last_canvases = r->count;
    memcpy(rest, d->runs + 1, left * sizeof *rest);
    d->run_count = 1;
    denoiser_end_runs(d, 0);
    memcpy(d->runs, rest, left * sizeof *rest);
    d->run_count = left;
}

/* Goes on with the oldest run, or with a new one of this canvas. */
static gm_status denoiser_step(denoiser *d, session_canvas *c, double deadline, error *e) {
    if (!d->run_count) TRY(denoiser_begin_run(d, c, e));
    const gm_status status =
        d->engine->on_gpu ? denoiser_run_gpu(d, c, deadline, e) : denoiser_run_cpu(d, &d->runs[0], deadline, e);
    if (!status) denoiser_take_run(d);
    else if (status != GM_AGAIN && !d->engine->on_gpu) denoiser_end_runs(d, 0);
    return status;
}

/* Writes the states to where the next run reads them, and zeros to what it is conditioned by, if it is the first one. */
static gm_status canvas_write(session_canvas *c, bool first, error *e) {
    denoiser    *d = c->session->engine->denoiser;
    const size_t soft = canvas_soft_values(d), found = canvas_found_values(d), count = canvas_state_values(d);
    if (c->memory) {
        if (first) memset(c->memory, 0, soft * sizeof *c->memory);
        memcpy(c->memory + soft + found, c->numbers.states, count * sizeof *c->memory);
        return GM_OK;
    }
    gpu_words words = { 0 };
    uint32_t  states[CANVAS_MOST * CANVAS_STATE];
    memcpy(states, c->numbers.states, count * sizeof *states);
    gpu_words_begin(&words);
    gpu_words_write(&words, c->buffer, (soft + found) * sizeof *states, states, count);
    if (first) gpu_words_clear(&words, c->buffer, 0, soft * sizeof *states);
    const gm_status status = words.failed ? fail_memory(e, "a command list", words.count * sizeof(uint32_t))
                                          : gpu_submit(denoiser_gpu(d), words.data, words.count, e);
    free(words.data);
    return status;
}

gm_status session_canvas_begin(session_canvas *c, uint64_t seed, uint32_t block, const canvas_start *start,
                               size_t count, error *e) {
    session_canvas_leave(c);
    TRY(canvas_reserve(c, e));
    canvas_begin(&c->numbers, seed, block, start, count);
    if (c->numbers.done) return GM_OK; /* all of it is pinned */
    TRY(canvas_write(c, true, e));
    c->active = true;
    return GM_OK;
}

gm_status session_canvas_step(session_canvas *c, double deadline, error *e) {
    denoiser    *d = c->session->engine->denoiser;
    const size_t values = canvas_found_values(d);
    while (!c->arrived) {
        if (atomic_exchange(&c->session->cancelled, false)) /* what is under way counts, should the caller go on */
            return fail(e, GM_CANCELLED, "cancelled in step %u of a canvas", c->numbers.step + 1);
        const gm_status status = denoiser_step(d, c, deadline, e);
        if (status) return status;
        if (!c->arrived && clock_seconds() > deadline) return GM_AGAIN; /* it was another's step */
    }
    const bool finite = canvas_take(&c->numbers, c->found);
    memmove(c->found, c->found + values, --c->arrived * values * sizeof *c->found);
    if (!finite || c->numbers.done) session_canvas_leave(c);
    return finite ? GM_OK : session_not_finite(c->session, e);
}

bool denoiser_is_shared(const gm_session *s) {
    const denoiser *d = s->engine->denoiser;
    for (const session_canvas *c = d ? d->first : NULL; c; c = c->next) {
        if (c->session != s && c->active) return true;
    }
    return false;
}

/* ---- checks ---- */

gm_status session_canvas_check(session_canvas *c, const int32_t *ids, float temperature, float *logits, float *findings,
                               error *e) {
    denoiser    *d = c->session->engine->denoiser;
    canvas_graph checked;
    for (size_t i = 0; i < d->length; i++) c->numbers.states[i].id = ids[i];
    canvas_set_temperature(&c->numbers, temperature);
    c->active = false; /* no step is submitted ahead */
    TRY(canvas_write(c, false, e));
    TRY(model_canvas_graph(&d->engine->weights, true, &checked, e));
    gm_status status = GM_OK;
    while (d->engine->on_gpu && (status = gpu_backend_upload(&d->engine->gpu, &checked.g, e)) == GM_AGAIN)
        gpu_host_wait(d->engine->gpu.host, 1);
    if (!status) status = denoiser_begin_run(d, c, e);
    d->runs[0].graph = &checked;
    d->runs[0].logits = logits;
    d->runs[0].results = 2;
    while (!status && !c->arrived && (status = denoiser_step(d, c, INFINITY, e)) == GM_AGAIN) status = GM_OK;
    memcpy(findings, c->found, canvas_found_values(d) * sizeof *findings);
    session_canvas_leave(c);
    plans_drop(&d->engine->plans, &checked.g);
    if (d->engine->on_gpu) gpu_backend_release(&d->engine->gpu, &checked.g);
    graph_free(&checked.g);
    return status;
}
