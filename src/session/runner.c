#include "session/runner.h"

#include "base/clock.h"

#include <string.h>

gm_status runner_open(runner *r, gm_engine *engine, error *e) {
    *r = (runner){ .engine = engine };
    const weight *table = &engine->weights.per_layer_token_embd;
    if (table->name && !table->data)
        r->table = (table_rows){
            .reads = engine->reads, .from = table->from, .offset = table->place, .row = table->bytes / table->ne[1]
        };
    if (engine->on_gpu) return GM_OK;
    shared_plan *one = plans_borrow(&engine->plans, &(plan_wish){ .g = &engine->text, .tokens = 1, .outputs = 1 }, e);
    plans_return(one); /* it is there: decoding will not run out of memory */
    return one ? GM_OK : e->status;
}

void runner_close(runner *r) {
    if (!r->engine) return;
    if (r->ticket) gpu_ticket_done(r->engine->gpu.host, r->ticket);
    plans_return(r->plan);
    gpu_generator_free(r->generator);
    table_rows_free(&r->table);
    *r = (runner){ 0 };
}

/* The run is over, one way or another. */
static void runner_end(runner *r) {
    if (r->ticket) gpu_ticket_done(r->engine->gpu.host, r->ticket);
    plans_return(r->plan);
    r->plan = NULL;
    r->ticket = 0;
    r->submitted = false;
    r->has_rows = false;
    table_rows_restart(&r->table);
    if (r->generator) gpu_generator_drop(r->generator);
}

void runner_restart(runner *r) {
    runner_end(r);
    r->behind_tokens = r->before_tokens = 0; /* what may still be running is not measured */
}

bool runner_wait(gpu_host *gpu, double deadline) {
#ifdef __wasm__
    (void)gpu, (void)deadline;
    return false;
#else
    const bool late = clock_seconds() > deadline;
    gpu_host_wait(
        gpu, late ? 0 : 1); /* takes in what is ready even then: a caller that is always late would wait for ever */
    return !late;
#endif
}

static size_t logit_bytes(const runner *r, size_t rows) {
    return rows * r->engine->weights.config.vocabulary * sizeof(float);
}

enum { OUTPUT_BYTES = 64 << 20 };

size_t runner_outputs(size_t vocabulary) {
    return max_size(1, min_size(KV_BATCH, OUTPUT_BYTES / (vocabulary * sizeof(float))));
}

size_t runner_most_outputs(const runner *r) { return runner_outputs(r->engine->weights.config.vocabulary); }

static void runner_return_plan(runner *r) {
    plans_return(r->plan);
    r->plan = NULL;
}

shared_plan *runner_borrow(gm_engine *engine, const plan_wish *wish, error *e) {
    error        cause = { 0 };
    shared_plan *plan = plans_borrow(&engine->plans, wish, &cause);
    if (!plan && cause.status == GM_NO_MEMORY && engine_release_towers(engine)) {
        cause = (error){ 0 };
        plan = plans_borrow(&engine->plans, wish, &cause);
    }
    if (!plan) fail(e, cause.status, "%s", cause.why);
    return plan;
}

/* Whether some token has adapters. Otherwise the run is as if there were none. */
static bool run_is_adapted(const run_inputs *in) {
    for (size_t i = 0; i < in->tokens; i++) {
        if (in->records[i].adapter) return true;
    }
    return false;
}

/* The plan of the current run. A run that was submitted in part has records with places of keys and values. If another session made
 * these move, the run begins again. */
static shared_plan *runner_plan(runner *r, const kv_store *store, size_t tokens, size_t outputs, bool adapted,
                                error *e) {
    const plan_wish wish = { .g = engine_adapters_graph(r->engine, adapted),
                             .tokens = tokens,
                             .outputs = outputs,
                             .most_outputs = runner_most_outputs(r),
                             .rows = r->rows,
                             .kv = store->gpu_layers };
    if (r->plan && r->plan->gpu && r->moves != store->moves) runner_return_plan(r);
    r->moves = store->moves;
    if (!r->plan) r->plan = runner_borrow(r->engine, &wish, e);
    else if (r->plan->gpu && gpu_plan_bind(r->plan->gpu, wish.kv, e)) return NULL; /* another session moved the cache */
    return r->plan;
}

gm_status runner_prepare(const runner *r, const kv_store *store, size_t tokens, bool adapted, error *e) {
    const plan_wish wish = { .g = engine_adapters_graph(r->engine, adapted),
                             .tokens = tokens,
                             .outputs = tokens,
                             .rows = r->rows,
                             .kv = store->gpu_layers };
    shared_plan    *plan = runner_borrow(r->engine, &wish, e);
    plans_return(plan);
    return plan ? GM_OK : e->status;
}

const float *runner_logits(const runner *r) { return r->logits; }

/* ---- CPU ------------------------------------------------------------------------------------------------------------ */

static gm_status cpu_step(runner *r, const kv_store *store, const run_inputs *in, float *out, double deadline,
                          error *e) {
    const shared_plan *plan = runner_plan(r, store, in->tokens, in->outputs, run_is_adapted(in), e);
    if (!plan) return e->status;
    if (r->table.row && !r->has_rows) {
        const gm_status status = table_rows_fetch(&r->table, &in->records->id, RECORD_WORDS, in->tokens, e);
        if (status) return status;
        r->has_rows = true;
    }
    const cpu_inputs inputs = { .run = *in, .kv = store->cpu_layers, .rows = r->table.memory };
    if (cpu_plan_step(plan->cpu, &inputs, deadline) == GM_AGAIN) return GM_AGAIN;
    r->has_rows = false;
    r->logits = cpu_plan_result(plan->cpu);
    if (in->outputs && out) memcpy(out, r->logits, logit_bytes(r, in->outputs));
    runner_return_plan(r);
    return GM_OK;
}

/* ---- GPU ------------------------------------------------------------------------------------------------------------ */

bool runner_is_drawing(const runner *r) { return r->generator && gpu_generator_begun(r->generator); }

gpu_generator *runner_generator(runner *r, const kv_cache *kv, bool adapted, error *e) {
    if (runner_is_drawing(r) && plans_lent(&r->engine->plans, r->generator)) /* it waits for its plan */
        return gpu_generator_bind(r->generator, kv->store->gpu_layers, e) ? NULL : r->generator;
    const shared_plan *plan = runner_plan(r, kv->store, 1, 1, adapted, e);
    if (plan && r->generator && !gpu_generator_uses(r->generator, plan->gpu)) { /* its plan is for another cache */
        gpu_generator_free(r->generator);
        r->generator = NULL;
    }
    gm_status status = plan ? GM_OK : e->status;
    if (!status && !r->generator)
        status = gpu_generator_new(plan->gpu, r->engine->weights.config.vocabulary, kv->context, &r->generator, e);
    runner_return_plan(r); /* steps are submitted whole, so that others may use the plan between them */
    return status ? NULL : r->generator;
}

static gm_status gpu_submit_run(runner *r, const kv_store *store, const run_inputs *in, error *e) {
    const shared_plan *plan = runner_plan(r, store, in->tokens, in->outputs, run_is_adapted(in), e);
    if (!plan) return e->status;
    if (r->generator) gpu_generator_drop(r->generator); /* this run may overwrite what its steps read */
    if (in->outputs && !r->ticket) r->ticket = gpu_ticket_new(r->engine->gpu.host);
    const gm_status status = gpu_plan_submit(plan->gpu, in, r->ticket, e);
    const bool      streams = gpu_plan_streams(plan->gpu);
    r->submitted = status == GM_OK;
    if (status != GM_AGAIN || !streams) runner_return_plan(r); /* all of the list was submitted, or nothing */
    if (!r->submitted) return status;
    r->before = r->behind;
    r->behind = gpu_submitted(r->engine->gpu.host);
    if (streams) r->before = r->behind; /* the host takes part: the next batch could not be submitted early */
    if (!r->behind_tokens) r->since = clock_seconds();
    r->before_tokens = r->behind_tokens;
    r->behind_tokens = in->tokens;
    return GM_OK;
}

/* ---- the size of batches ---- */

/* Until the kernels of the larger plan are compiled, batches stay small. */
size_t runner_batch(const runner *r) {
    return r->engine->on_gpu && gpu_pipelines_pending(r->engine->gpu.host) ? KV_BATCH : r->engine->batches.now;
}

/* Makes the plan for larger batches. Its kernels compile while smaller batches run. */
static void runner_plan_large(runner *r, const kv_store *store) {
    gm_engine      *engine = r->engine;
    error           none = { 0 };
    const plan_wish wish = { .g = &engine->text, .tokens = BATCH_MOST, .outputs = 1, .kv = store->gpu_layers };
    engine->plans.largest_batch = BATCH_MOST;
    shared_plan *plan = plans_borrow(&engine->plans, &wish, &none);
    plans_return(plan);
    if (plan) return;
    engine->plans.largest_batch = 0;
    batch_sizes_stay_small(&engine->batches);
}

/* Notes how long the batches took that have just ended: the one before the last, or, with `all`, both that can be under way. Whatever
 * disturbs this makes them seem slower, not faster. */
static void runner_note_speed(runner *r, const kv_store *store, bool all) {
    batch_sizes *sizes = &r->engine->batches;
    const double now = clock_seconds(), took = now - r->since;
    const size_t tokens = r->before_tokens + (all ? r->behind_tokens : 0);
    const bool   full = (!r->before_tokens || r->before_tokens == sizes->now) &&
                      (!all || !r->behind_tokens || r->behind_tokens == sizes->now);
    if (tokens && full && !gpu_backend_needs_host(&r->engine->gpu)) {
        batch_sizes_note(sizes, took * (double)sizes->now / (double)tokens);
        if (sizes->now > KV_BATCH && !r->engine->plans.largest_batch) runner_plan_large(r, store);
    }
    r->since = now;
    r->before_tokens = 0;
    if (all) r->behind_tokens = 0;
}

/* Waits for the logits or, if none are wanted, until the GPU has run the batch before this one. So the next batch is submitted while this
 * one runs, and the GPU is never idle; and a session has at most two under way, so that a cancel takes effect soon. */
static gm_status gpu_step(runner *r, const kv_store *store, const run_inputs *in, float *out, double deadline,
                          error *e) {
    gpu_host *h = r->engine->gpu.host;
    for (;;) {
        gm_status status = r->submitted ? GM_OK : engine_check_kv(r->engine, store->type, e);
        if (!status && !r->submitted && run_is_adapted(in)) status = engine_adapters_ready(r->engine, PART_TEXT, e);
        if (!status && !r->submitted) status = gpu_submit_run(r, store, in, e);
        if (status == GM_AGAIN) { /* results of the check, or weights, are on their way */
            if (!runner_wait(h, deadline)) return GM_AGAIN;
            continue;
        }
        TRY(status);
        uint64_t    bytes = 0;
        const void *logits = r->ticket ? gpu_ticket_data(h, r->ticket, &bytes) : NULL;
        TRY(gpu_host_problem(h, e));
        if (logits && bytes < logit_bytes(r, in->outputs))
            return fail(e, GM_IO, "the GPU returned %llu bytes of logits, expected %zu", (unsigned long long)bytes,
                        logit_bytes(r, in->outputs));
        if (logits) memcpy(out, logits, logit_bytes(r, in->outputs));
        if (logits || (!r->ticket && gpu_passed(h, r->before))) break;
        if (!runner_wait(h, deadline)) return GM_AGAIN;
    }
    runner_note_speed(r, store, r->ticket != 0);
    runner_end(r);
    const gm_status damage = gpu_backend_damage(&r->engine->gpu, e);
    return damage == GM_AGAIN ? GM_OK : damage; /* what is not known yet, a later run reports */
}

gm_status runner_step(runner *r, const kv_store *store, const run_inputs *in, float *out, double deadline, error *e) {
    return r->engine->on_gpu ? gpu_step(r, store, in, out, deadline, e) : cpu_step(r, store, in, out, deadline, e);
}
