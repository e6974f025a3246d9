#include "session/runner.h"

#include "base/clock.h"

#include <string.h>

gm_status runner_open(runner *r, gm_engine *engine, error *e) {
    *r = (runner){ .engine = engine };
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
    if (r->generator) gpu_generator_drop(r->generator);
}

static size_t logit_bytes(const runner *r, size_t rows) {
    return rows * r->engine->weights.config.vocabulary * sizeof(float);
}

/* ---- CPU ------------------------------------------------------------------------------------------------------------ */

/* The plan for a single token, else the batch plan, made again when it is too small. */
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
    const cpu_inputs inputs = { .ids = in->ids,
                                .tokens = in->tokens,
                                .output_rows = in->output_rows,
                                .outputs = in->outputs,
                                .start = in->start,
                                .kv = kv->cpu_layers };
    if (cpu_plan_step(plan, &inputs, deadline) == GM_AGAIN) return GM_AGAIN;
    if (in->outputs) memcpy(out, cpu_plan_result(plan), logit_bytes(r, in->outputs));
    return GM_OK;
}

/* ---- GPU ------------------------------------------------------------------------------------------------------------ */

static gpu_plan *gpu_plan_for(runner *r, const kv_cache *kv, size_t count, size_t outputs, error *e) {
    if (r->kv_changes != kv->changes) drop_gpu_plans(r); /* they are bound to memory that is gone */
    r->kv_changes = kv->changes;
    size_t class = 0, tokens = 1;
    for (; tokens < count; tokens *= 4) class ++;
    gpu_plan **plan = &r->classes[class][outputs > 1];
    if (!*plan) {
        const double start = clock_seconds();
        gpu_plan_new(&r->engine->gpu, &r->engine->text, tokens, outputs > 1 ? tokens : 1, kv->gpu_layers, plan, e);
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
    return r->generator && gpu_generator_begun(r->generator) && r->kv_changes == kv->changes;
}

static gm_status gpu_submit_run(runner *r, const kv_cache *kv, const run_inputs *in, error *e) {
    gpu_plan *plan = gpu_plan_for(r, kv, in->tokens, in->outputs, e);
    if (!plan) return e->status;
    if (r->generator) gpu_generator_drop(r->generator); /* this run may write where its steps read */
    const gpu_inputs inputs = {
        .ids = in->ids, .tokens = in->tokens, .output_rows = in->output_rows, .outputs = in->outputs, .start = in->start
    };
    if (in->outputs && !r->ticket) r->ticket = gpu_ticket_new(r->engine->gpu.host);
    const gm_status status = gpu_plan_submit(plan, &inputs, r->ticket, e);
    r->submitted = status == GM_OK;
    return status;
}

/* Waits for the logits or, if none are wanted, until the GPU is done: so that at most one batch is under way, and a cancel is
 * heard. */
static gm_status gpu_step(runner *r, const kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e) {
    gpu_host *h = r->engine->gpu.host;
    for (;;) {
        if (!r->submitted && gpu_submit_run(r, kv, in, e) == GM_AGAIN) { /* weights are on their way */
            if (clock_seconds() > deadline) return GM_AGAIN;
            gpu_host_wait(h, 1);
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
        if (logits || (!r->ticket && gpu_idle(h))) break;
        if (clock_seconds() > deadline) return GM_AGAIN;
        gpu_host_wait(h, 1);
    }
    runner_restart(r);
    return GM_OK;
}

gm_status runner_step(runner *r, kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e) {
    return r->engine->on_gpu ? gpu_step(r, kv, in, out, deadline, e) : cpu_step(r, kv, in, out, deadline, e);
}
