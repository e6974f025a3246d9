/* Training on the CPU. */

#include "base/free_memory.h"
#include "train/trainer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static gm_status cpu_measure(trainer *t, uint64_t *bytes, error *e) {
    t->cpu.backend = t->engine->cpu;
    t->cpu.backend.precise = true;
    return cpu_plan_measure(&t->cpu.backend, &t->graphs.body, t->tokens, 1, bytes, e);
}

/* Keys and values of all tokens, in every layer that has some. */
static gm_status cpu_open_kv(trainer *t, error *e) {
    const model_config *c = &t->m->config;
    kv_layer           *kv = t->cpu.kv = trainer_alloc(t, c->layers, sizeof *kv, e);
    if (!kv) return e->status;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        const size_t        row = (size_t)layer->kv_heads * layer->head * sizeof(float);
        kv[i] = (kv_layer){ .type = TYPE_F32, .kv_heads = layer->kv_heads, .head = layer->head };
        if (!layer->owns_kv) continue;
        kv[i].k = trainer_alloc(t, t->tokens, row, e);
        kv[i].v = kv[i].k ? trainer_alloc(t, t->tokens, row, e) : NULL;
        if (!kv[i].v) return e->status;
    }
    return GM_OK;
}

static gm_status cpu_plan_all(trainer *t, error *e) {
    trainer_cpu *c = &t->cpu;
    TRY(cpu_plan_new(&c->backend, &t->graphs.body, t->tokens, 1, &c->body, e));
    TRY(cpu_plan_new(&c->backend, &t->graphs.head, t->tokens, t->chunk, &c->head, e));
    TRY(cpu_plan_new(&c->backend, &t->update, 1, 1, &c->optimiser, e));
    t->bytes += cpu_plan_bytes(c->body) + cpu_plan_bytes(c->head);
    return cpu_open_kv(t, e);
}

static void cpu_close(trainer *t) {
    trainer_cpu *c = &t->cpu;
    for (uint32_t i = 0; c->kv && i < t->m->config.layers; i++) {
        free(c->kv[i].k);
        free(c->kv[i].v);
    }
    cpu_plan_free(c->body);
    cpu_plan_free(c->head);
    cpu_plan_free(c->optimiser);
    free(c->kv);
    *c = (trainer_cpu){ 0 };
}

/* ---- a run ---- */

static void cpu_draw(trainer *t, size_t part) {
    const tensor *leaf = t->graphs.keys[part ? 1 : 0];
    uint32_t      key[2];
    if (!leaf) return;
    trainer_draw(t, part, key);
    memcpy(cpu_plan_leaf(part ? t->cpu.head : t->cpu.body, leaf), key, sizeof key);
}

/* What passes between body and head: rows of the model's width, one for each token. */
static void pass_rows(const trainer *t, float *to, const float *from) {
    const size_t bytes = t->run.count * t->m->config.width * sizeof *to;
    if (from) memcpy(to, from, bytes);
    else memset(to, 0, bytes);
}

static cpu_inputs cpu_inputs_of(const trainer *t, size_t first, size_t outputs) {
    return (cpu_inputs){ .run = trainer_inputs(t, first, outputs), .kv = t->cpu.kv };
}

static gm_status cpu_forward(trainer *t, double deadline) {
    const cpu_inputs in = cpu_inputs_of(t, 0, 0);
    cpu_draw(t, 0);
    const gm_status status = cpu_plan_step_part(t->cpu.body, &in, 0, deadline);
    if (status) return status;
    pass_rows(t, cpu_plan_leaf(t->cpu.head, t->graphs.x), cpu_plan_result(t->cpu.body));
    if (t->graphs.before) pass_rows(t, cpu_plan_leaf(t->cpu.head, t->graphs.before), NULL);
    t->phase = TRAIN_HEAD;
    return GM_OK;
}

static void cpu_end_chunk(trainer *t) {
    t->done += trainer_chunk(t);
    t->phase = TRAIN_HEAD;
    if (t->done < t->outputs) return;
    t->phase = t->graphs.gradient && !t->run.measured ? TRAIN_BACKWARD : TRAIN_IDLE;
    if (t->phase == TRAIN_BACKWARD)
        pass_rows(t, cpu_plan_leaf(t->cpu.body, t->graphs.gradient), cpu_plan_leaf(t->cpu.head, t->graphs.before));
}

/* The loss of one chunk of the tokens that count. */
static gm_status cpu_head(trainer *t, double deadline) {
    cpu_plan        *head = t->cpu.head;
    const size_t     n = trainer_chunk(t);
    const cpu_inputs in = cpu_inputs_of(t, t->done, n);
    cpu_draw(t, 1 + t->done);
    memcpy(cpu_plan_leaf(head, t->graphs.goals), t->goals + 2 * t->done, 2 * n * sizeof *t->goals);
    const gm_status status = cpu_plan_step_part(head, &in, 0, deadline);
    if (status) return status;
    trainer_add_losses(t, t->done, n, cpu_plan_result(head));
    if (t->graphs.head.split && !t->run.measured) t->phase = TRAIN_HEAD_BACK;
    else cpu_end_chunk(t);
    return GM_OK;
}

static gm_status cpu_head_back(trainer *t, double deadline) {
    const cpu_inputs in = cpu_inputs_of(t, t->done, trainer_chunk(t));
    const gm_status  status = cpu_plan_step_part(t->cpu.head, &in, 1, deadline);
    if (status) return status;
    if (t->graphs.before) pass_rows(t, cpu_plan_leaf(t->cpu.head, t->graphs.before), cpu_plan_results(t->cpu.head, 1));
    cpu_end_chunk(t);
    return GM_OK;
}

static gm_status cpu_backward(trainer *t, double deadline) {
    const cpu_inputs in = cpu_inputs_of(t, 0, 0);
    const gm_status  status = cpu_plan_step_part(t->cpu.body, &in, 1, deadline);
    if (!status) t->phase = TRAIN_IDLE;
    return status;
}

static gm_status cpu_work(trainer *t, double deadline, error *e) {
    (void)e;
    while (t->phase != TRAIN_IDLE) {
        const gm_status status = t->phase == TRAIN_FORWARD     ? cpu_forward(t, deadline)
                                 : t->phase == TRAIN_HEAD      ? cpu_head(t, deadline)
                                 : t->phase == TRAIN_HEAD_BACK ? cpu_head_back(t, deadline)
                                                               : cpu_backward(t, deadline);
        if (status) return status;
        if (t->phase != TRAIN_IDLE && clock_seconds() > deadline) return GM_AGAIN;
    }
    return GM_OK;
}

static void cpu_forget(trainer *t) {
    cpu_plan_restart(t->cpu.body);
    cpu_plan_restart(t->cpu.head);
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        float            *gradient = part->states[TRAIN_GRADIENT];
        if (gradient) memset(gradient, 0, (size_t)part->size * sizeof *gradient);
    }
}

/* ---- the update, and states ---- */

static gm_status cpu_update(trainer *t, const float rates[ADAMW_RATES], float *squares, double deadline, error *e) {
    const cpu_inputs in = { .kv = t->cpu.kv };
    (void)e;
    memcpy(cpu_plan_leaf(t->cpu.optimiser, t->rates), rates, ADAMW_RATES * sizeof *rates);
    const gm_status status = cpu_plan_step(t->cpu.optimiser, &in, deadline);
    if (!status) *squares = *cpu_plan_result(t->cpu.optimiser);
    return status;
}

static gm_status cpu_fetch(trainer *t, const train_part *part, train_state what, const float **out, double deadline,
                           error *e) {
    (void)t, (void)deadline, (void)e;
    *out = part->states[what];
    return GM_OK;
}

static gm_status cpu_put(trainer *t, const train_part *part, train_state what, const float *values, double deadline,
                         error *e) {
    (void)t, (void)deadline, (void)e;
    memcpy(part->states[what], values, (size_t)part->size * sizeof *values);
    return GM_OK;
}

/* The rest is for what training takes besides activations, and for others. */
static uint64_t cpu_memory(const trainer *t) {
    (void)t;
    return free_memory() / 5 * 4;
}

const trainer_backend trainer_on_cpu = { .measure = cpu_measure,
                                         .memory = cpu_memory,
                                         .plan = cpu_plan_all,
                                         .close = cpu_close,
                                         .work = cpu_work,
                                         .forget = cpu_forget,
                                         .update = cpu_update,
                                         .fetch = cpu_fetch,
                                         .put = cpu_put };
