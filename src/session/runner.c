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
    return engine->on_gpu ? GM_OK : cpu_plan_new(&engine->cpu, &engine->text, 1, 1, &r->one, e);
}

static void drop_gpu_plans(runner *r) {
    gpu_generator_free(r->generator);
    r->generator = NULL;
    for (size_t i = 0; i < RUNNER_CLASSES; i++) {
        for (size_t j = 0; j < 2; j++) {
            gpu_plan_free(r->classes[i][j]);
            r->classes[i][j] = NULL;
        }
    }
}

void runner_close(runner *r) {
    if (!r->engine) return;
    if (r->ticket) gpu_ticket_done(r->engine->gpu.host, r->ticket);
    cpu_plan_free(r->one);
    cpu_plan_free(r->batch);
    table_rows_free(&r->table);
    drop_gpu_plans(r);
    *r = (runner){ 0 };
}

void runner_restart(runner *r) {
    if (r->one) cpu_plan_restart(r->one);
    if (r->batch) cpu_plan_restart(r->batch);
    if (r->ticket) gpu_ticket_done(r->engine->gpu.host, r->ticket);
    for (size_t i = 0; i < RUNNER_CLASSES; i++) {
        for (size_t j = 0; j < 2; j++) {
            if (r->classes[i][j]) gpu_plan_restart(r->classes[i][j]);
        }
    }
    r->ticket = 0;
    r->submitted = false;
    r->has_rows = false;
    table_rows_restart(&r->table);
    if (r->generator) gpu_generator_drop(r->generator);
}

bool runner_wait(gpu_host *gpu, double deadline) {
#ifdef __wasm__
    (void)gpu, (void)deadline;
    return false;
#else
    if (clock_seconds() > deadline) return false;
    gpu_host_wait(gpu, 1);
    return true;
#endif
}

static size_t logit_bytes(const runner *r, size_t rows) {
    return rows * r->engine->weights.config.vocabulary * sizeof(float);
}

enum { OUTPUT_BYTES = 64 << 20, LARGEST_CLASS = 256, LARGER_STEP = 64, BLOCKS_CLASS = 16 };

size_t runner_outputs(size_t vocabulary) {
    return max_size(1, min_size(KV_BATCH, OUTPUT_BYTES / (vocabulary * sizeof(float))));
}

size_t runner_most_outputs(const runner *r) { return runner_outputs(r->engine->weights.config.vocabulary); }

/* ---- CPU ------------------------------------------------------------------------------------------------------------ */

/* The plan for one token, or the batch plan, which is made again when it is too small. */
static cpu_plan *cpu_plan_for(runner *r, const run_inputs *in, error *e) {
    if (in->tokens == 1) return r->one;
    if (r->batch && cpu_plan_tokens(r->batch) >= in->tokens && cpu_plan_outputs(r->batch) >= in->outputs)
        return r->batch;
    size_t tokens = 16;
    while (tokens < in->tokens) tokens *= 2;
    cpu_plan_free(r->batch);
    r->batch = NULL;
    cpu_plan_new(&r->engine->cpu, &r->engine->text, tokens, max_size(in->outputs, 1), &r->batch, e);
    return r->batch;
}

static gm_status cpu_step(runner *r, const kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e) {
    cpu_plan *plan = cpu_plan_for(r, in, e);
    if (!plan) return e->status;
    if (r->table.row && !r->has_rows) {
        const gm_status status = table_rows_fetch(&r->table, &in->records->id, RECORD_WORDS, in->tokens, e);
        if (status) return status;
        r->has_rows = true;
    }
    const cpu_inputs inputs = { .run = *in, .kv = kv->store->cpu_layers, .rows = r->table.memory };
    if (cpu_plan_step(plan, &inputs, deadline) == GM_AGAIN) return GM_AGAIN;
    r->has_rows = false;
    if (in->outputs) memcpy(out, cpu_plan_result(plan), logit_bytes(r, in->outputs));
    return GM_OK;
}

/* ---- GPU ------------------------------------------------------------------------------------------------------------ */

static gpu_plan *gpu_plan_for(runner *r, const kv_cache *kv, size_t count, size_t outputs, error *e) {
    if (r->kv_changes != kv->store->changes) drop_gpu_plans(r); /* they are bound to memory that no longer exists */
    r->kv_changes = kv->store->changes;
    size_t class = 0, tokens = 1;
    for (; tokens < count && tokens <= LARGEST_CLASS; tokens *= 4) class ++;
    gpu_plan **plan = &r->classes[class][outputs > 1];
    if (tokens > LARGEST_CLASS) tokens = (size_t)round_up(count, LARGER_STEP);
    if (*plan && gpu_plan_tokens(*plan) < tokens) {
        gpu_plan_free(*plan);
        *plan = NULL;
    }
    if (!*plan) {
        const double start = clock_seconds();
        const size_t most = outputs > 1 ? min_size(tokens, runner_most_outputs(r)) : 1;
        gpu_plan_new(&r->engine->gpu, &r->engine->text, tokens, most, kv->store->gpu_layers, plan, e);
        r->engine->seconds.plans += clock_seconds() - start;
    }
    return *plan;
}

gpu_generator *runner_generator(runner *r, const kv_cache *kv, error *e) {
    gpu_plan *plan = gpu_plan_for(r, kv, 1, 1, e);
    if (plan && !r->generator)
        gpu_generator_new(plan, r->engine->weights.config.vocabulary, kv->context, &r->generator, e);
    return r->generator;
}

bool runner_is_drawing(const runner *r, const kv_cache *kv) {
    return r->generator && gpu_generator_begun(r->generator) && r->kv_changes == kv->store->changes;
}

static gm_status gpu_submit_run(runner *r, const kv_cache *kv, const run_inputs *in, error *e) {
    bool ahead = false; /* plans for few tokens have kernels that know nothing of blocks */
    for (size_t i = 0; i < in->tokens; i++) ahead |= in->records[i].sliding_last > in->records[i].at;
    gpu_plan *plan = gpu_plan_for(r, kv, ahead ? max_size(in->tokens, BLOCKS_CLASS) : in->tokens, in->outputs, e);
    if (!plan) return e->status;
    if (r->generator) gpu_generator_drop(r->generator); /* this run may overwrite what its steps read */
    if (in->outputs && !r->ticket) r->ticket = gpu_ticket_new(r->engine->gpu.host);
    const gm_status status = gpu_plan_submit(plan, in, r->ticket, e);
    r->submitted = status == GM_OK;
    r->behind = gpu_submitted(r->engine->gpu.host);
    return status;
}

/* Waits for the logits or, if none are wanted, until the GPU has run the batch: a session has at most one under way, so that a
 * cancel takes effect soon. */
static gm_status gpu_step(runner *r, const kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e) {
    gpu_host *h = r->engine->gpu.host;
    for (;;) {
        gm_status status = r->submitted ? GM_OK : engine_check_kv(r->engine, kv->store->type, e);
        if (!status && !r->submitted) status = gpu_submit_run(r, kv, in, e);
        if (status == GM_AGAIN) { /* results of the check, or weights, are on their way */
            if (!runner_wait(h, deadline)) return GM_AGAIN;
            continue;
        }
        if (e->status) return e->status;
        uint64_t    bytes = 0;
        const void *logits = r->ticket ? gpu_ticket_data(h, r->ticket, &bytes) : NULL;
        if (gpu_host_problem(h, e)) return e->status;
        if (logits && bytes < logit_bytes(r, in->outputs))
            return fail(e, GM_IO, "the GPU gave back %llu bytes of logits, %zu were expected",
                        (unsigned long long)bytes, logit_bytes(r, in->outputs));
        if (logits) memcpy(out, logits, logit_bytes(r, in->outputs));
        if (logits || (!r->ticket && gpu_passed(h, r->behind))) break;
        if (!runner_wait(h, deadline)) return GM_AGAIN;
    }
    runner_restart(r);
    return gpu_backend_damage(&r->engine->gpu, e) && e->status ? e->status : GM_OK;
}

gm_status runner_step(runner *r, kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e) {
    return r->engine->on_gpu ? gpu_step(r, kv, in, out, deadline, e) : cpu_step(r, kv, in, out, deadline, e);
}
