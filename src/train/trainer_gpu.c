/* Training on the GPU: the plans of body, head and update, which run there from one end to the other. Of a run its losses come back, of
 * an update the sum of the gradients' squares. Nothing here waits for the GPU except at the end of a job. */

#include "gpu/kernels.h"
#include "session/runner.h"
#include "train/trainer_parts.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_SECONDS 0.05 /* what a submit may take */
#define FIRST_WORK 1e9     /* operations of the first one, when the speed is not known */
/* Of activations, where the GPU's memory has no limit that we know of. Who learns from more tokens at a time has more memory: so much for each
 * of the first 512, for each one beyond up to MOST_BYTES in all, and in any case LEAST_TOKEN_BYTES for each. */
#define FEW_TOKENS 512
#define TOKEN_BYTES ((uint64_t)11 << 19)
#define FURTHER_BYTES ((uint64_t)10 << 20)
#define MOST_BYTES ((uint64_t)10 << 30)
#define LEAST_TOKEN_BYTES ((uint64_t)5 << 20)
#define LEAST_BYTES (256 << 20)
#define WRITE_BYTES (8 << 20) /* at a time */
#define READ_BYTES (32 << 20)

static gpu_host *gpu_of(const trainer *t) { return t->engine->gpu.host; }

/* ---- making ---- */

static gpu_kv gpu_kv_of(const layer_config *layer) {
    return (gpu_kv){ .type = TYPE_F32, .kv_heads = layer->kv_heads, .head = layer->head };
}

static gm_status gpu_describe_kv(trainer *t, error *e) {
    const model_config *c = &t->m->config;
    if (t->gpu.kv) return GM_OK;
    t->gpu.kv = trainer_alloc(t, c->layers, sizeof *t->gpu.kv, e);
    if (!t->gpu.kv) return e->status;
    for (uint32_t i = 0; i < c->layers; i++) {
        const gpu_kv kv = gpu_kv_of(&c->layer[i]);
        t->gpu.kv[i] = (gpu_kv_layer){
            .type = kv.type, .kv_heads = kv.kv_heads, .head = kv.head, .bytes = gpu_kv_bytes(&kv, t->tokens)
        };
    }
    return GM_OK;
}

static gm_status gpu_open_kv(trainer *t, error *e) {
    for (uint32_t i = 0; i < t->m->config.layers; i++) {
        gpu_kv_layer *kv = &t->gpu.kv[i];
        if (!t->m->config.layer[i].owns_kv) continue;
        kv->k = gpu_buffer_new(gpu_of(t), kv->bytes, e);
        kv->v = kv->k ? gpu_buffer_new(gpu_of(t), kv->bytes, e) : 0;
        if (!kv->v) return e->status;
        t->bytes += 2 * kv->bytes;
    }
    return GM_OK;
}

/* Weights that a limit leaves in main memory would be uploaded twice for each run: that is slower than the CPU. */
static gm_status gpu_need_all(const trainer *t, error *e) {
    const gpu_budget *b = t->engine->gpu.budget;
    uint64_t          outside = 0;
    if (b && b->options.slots)
        return fail(e, GM_UNSUPPORTED,
                    "training needs all experts on the GPU from the beginning: leave out --gpu-experts");
    for (size_t i = 0; b && i < BUDGET_KINDS; i++) outside += b->outside[i];
    if (!outside) return GM_OK;
    return fail(e, GM_UNSUPPORTED,
                "training needs all weights on the GPU, but a limit of %.1f MB leaves %.1f MB of them in main memory. "
                "Allow at least %.1f MB and room for activations (--gpu-memory), or train on the CPU (--backend cpu)",
                (double)b->options.limit / 1e6, (double)outside / 1e6,
                (double)(b->everything + t->parameters.bytes) / 1e6);
}

static gm_status gpu_measure(trainer *t, uint64_t *bytes, error *e) {
    TRY(gpu_need_all(t, e));
    TRY(gpu_describe_kv(t, e));
    return gpu_plan_measure(&t->engine->gpu, &t->graphs.body, t->tokens, 1, t->gpu.kv, bytes, e);
}

static uint64_t gpu_usual_memory(uint64_t tokens) {
    const uint64_t few = tokens < FEW_TOKENS ? tokens : FEW_TOKENS, least = tokens * LEAST_TOKEN_BYTES;
    uint64_t       usual = TOKEN_BYTES * few + FURTHER_BYTES * (tokens - few);
    if (usual > MOST_BYTES) usual = MOST_BYTES;
    if (usual < least) usual = least;
    return usual > LEAST_BYTES ? usual : LEAST_BYTES;
}

static uint64_t gpu_memory(const trainer *t) {
    const uint64_t limit = gpu_host_limit(gpu_of(t)), used = gpu_host_bytes(gpu_of(t));
    if (!limit) return gpu_usual_memory(t->tokens);
    uint64_t others = used + t->parameters.bytes + 2 * (uint64_t)t->chunk * t->m->config.vocabulary * sizeof(float);
    for (uint32_t i = 0; i < t->m->config.layers; i++) {
        const gpu_kv kv = gpu_kv_of(&t->m->config.layer[i]);
        if (t->m->config.layer[i].owns_kv) others += 2 * gpu_kv_bytes(&kv, t->tokens);
    }
    return limit > others ? limit - others : 1;
}

static const graph *gpu_graph(const trainer *t, size_t i) {
    return i == 0 ? &t->graphs.body : i == 1 ? &t->graphs.head : &t->update;
}

static gm_status gpu_plan_all(trainer *t, error *e) {
    trainer_gpu *g = &t->gpu;
    gpu_backend *b = &t->engine->gpu;
    TRY(gpu_describe_kv(t, e));
    TRY(gpu_open_kv(t, e));
    for (; g->listed < 3; g->listed++) TRY(gpu_backend_reserve(b, gpu_graph(t, g->listed), e));
    TRY(gpu_plan_new(b, &t->graphs.body, t->tokens, 1, g->kv, &g->body, e));
    TRY(gpu_plan_new(b, &t->graphs.head, t->tokens, t->chunk, g->kv, &g->head, e));
    TRY(gpu_plan_new(b, &t->update, 1, 1, g->kv, &g->optimiser, e));
    t->bytes += gpu_plan_bytes(g->body) + gpu_plan_bytes(g->head);
    if (gpu_plan_streams(g->body))
        return fail(e, GM_UNSUPPORTED, "training needs all tables on the GPU, and its memory has too little room");
    g->tickets = trainer_alloc(t, t->tokens / t->chunk + 1, sizeof *g->tickets, e);
    return g->tickets ? GM_OK : e->status;
}

static void drop_ticket(trainer *t, uint32_t *ticket) {
    if (*ticket) gpu_ticket_done(gpu_of(t), *ticket);
    *ticket = 0;
}

/* Forgets all answers that are on their way. */
static void gpu_drop(trainer *t) {
    trainer_gpu *g = &t->gpu;
    for (size_t i = g->taken; g->tickets && i < g->asked; i++) drop_ticket(t, &g->tickets[i]);
    g->asked = g->taken = 0;
    g->running = g->passed = false;
    drop_ticket(t, &g->norm);
    for (; g->read_count; g->read_count--) {
        drop_ticket(t, &g->reads[g->first_read].ticket);
        g->first_read = (g->first_read + 1) % TRAIN_READS;
    }
    drop_ticket(t, &g->held);
    g->put = 0;
}

static void gpu_close(trainer *t) {
    trainer_gpu *g = &t->gpu;
    gpu_drop(t);
    gpu_plan_free(g->body);
    gpu_plan_free(g->head);
    gpu_plan_free(g->optimiser);
    while (g->listed) gpu_backend_release(&t->engine->gpu, gpu_graph(t, --g->listed));
    for (uint32_t i = 0; g->kv && i < t->m->config.layers; i++) {
        if (g->kv[i].k) gpu_buffer_free(gpu_of(t), g->kv[i].k);
        if (g->kv[i].v) gpu_buffer_free(gpu_of(t), g->kv[i].v);
    }
    free(g->kv);
    free(g->tickets);
    *g = (trainer_gpu){ 0 };
}

/* ---- before the first run ---- */

/* Writes so many bytes from where the last call stopped. */
static gm_status gpu_write(trainer *t, const tensor *to, uint64_t offset, const float *data, uint64_t bytes, error *e) {
    uint64_t *at = &t->gpu.put;
    while (*at < bytes) {
        const uint64_t  n = bytes - *at < WRITE_BYTES ? bytes - *at : WRITE_BYTES;
        const gm_status status =
            gpu_backend_write_vector(&t->engine->gpu, to, offset + *at, (const char *)data + *at, n, e);
        if (status) return status;
        *at += n;
    }
    *at = 0;
    return GM_OK;
}

/* The first values of all slots, and the table of sets. */
static gm_status gpu_fill(trainer *t, error *e) {
    train_parameters *p = &t->parameters;
    const size_t      slots = p->model.slots;
    float            *values = trainer_scratch(t, e);
    if (!values) return e->status;
    for (; t->gpu.filled < p->count * slots; t->gpu.filled++) {
        const train_part *part = &p->parts[t->gpu.filled / slots];
        const size_t      slot = t->gpu.filled % slots;
        const uint64_t    bytes = part->size * sizeof(float);
        train_part_fill(p, part, slot, values);
        const gm_status status = gpu_write(t, &part->tensors[TRAIN_VALUES], slot * bytes, values, bytes, e);
        if (status) return status;
    }
    if (t->gpu.filled > p->count * slots) return GM_OK;
    const tensor table = { .kind = TENSOR_WEIGHT, .type = TYPE_F32, .place = p->model.place, .name = "adapter sets" };
    const gm_status status = gpu_write(t, &table, 0, p->table, (uint64_t)p->model.sets * slots * sizeof(float), e);
    if (!status) t->gpu.filled++;
    return status;
}

/* Everything is there that a run needs, and nothing of a step that was abandoned. */
static gm_status gpu_ready(trainer *t, error *e) {
    gm_status status = engine_check_kv(t->engine, TYPE_F32, e);
    for (size_t i = 0; i < t->gpu.listed && !status; i++)
        status = gpu_backend_upload(&t->engine->gpu, gpu_graph(t, i), e);
    if (!status) status = gpu_fill(t, e);
    if (status || !t->gpu.forgets) return status;
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        if (part->pair) TRY(gpu_backend_clear_vector(&t->engine->gpu, &part->tensors[TRAIN_GRADIENT], e));
    }
    t->gpu.forgets = false;
    return GM_OK;
}

/* ---- jobs ---- */

typedef gm_status (*gpu_job)(trainer *t, void *arguments, error *e);

/* Goes on with a job until it is done, or the deadline passes. */
static gm_status gpu_drive(trainer *t, gpu_job job, void *arguments, double deadline, error *e) {
    for (;;) {
        gm_status status = gpu_ready(t, e);
        if (!status) status = job(t, arguments, e);
        if (status && status != GM_AGAIN) return status;
        TRY(gpu_host_problem(gpu_of(t), e));
        if (!status) return GM_OK;
        if (!runner_wait(gpu_of(t), deadline)) return GM_AGAIN;
    }
}

/* Takes note of pieces that have run, and of how long they took. */
static void gpu_note_passed(trainer *t) {
    trainer_gpu *g = &t->gpu;
    while (g->flying_count && gpu_passed(gpu_of(t), g->flying[0].mark)) {
        const double now = clock_seconds(), took = now - g->since;
        if (took > g->longest) g->longest = took;
        if (took > 0) {
            const double speed = g->flying[0].work / took;
            g->speed = g->speed > 0 && speed > 2 * g->speed ? 2 * g->speed : speed;
        }
        g->since = now;
        memmove(g->flying, g->flying + 1, --g->flying_count * sizeof *g->flying);
    }
}

/* Submits a part of a plan. */
static gm_status gpu_submit_part(trainer *t, gpu_plan *plan, size_t part, const run_inputs *in, uint32_t ticket,
                                 error *e) {
    trainer_gpu *g = &t->gpu;
    if (!g->running) g->pieces = gpu_plan_part(plan, part);
    g->running = true;
    while (g->pieces.next < g->pieces.end) {
        gpu_note_passed(t);
        if (g->flying_count == TRAIN_FLYING) return GM_AGAIN;
        double          work = g->speed > 0 ? g->speed * PIECE_SECONDS : FIRST_WORK;
        const gm_status status = gpu_plan_submit_piece(plan, in, &g->pieces, &work, ticket, e);
        if (status) return status;
        if (!g->flying_count) g->since = clock_seconds();
        g->flying[g->flying_count].mark = gpu_submitted(gpu_of(t));
        g->flying[g->flying_count++].work = work;
    }
    g->running = false;
    g->passed = false;
    return GM_OK;
}

/* The answer under a ticket, of at least so many floats. */
static gm_status gpu_answer(trainer *t, uint32_t ticket, uint64_t count, const float **out, error *e) {
    uint64_t bytes = 0;
    *out = gpu_ticket_data(gpu_of(t), ticket, &bytes);
    if (!*out) return GM_AGAIN;
    if (bytes >= count * sizeof(float)) return GM_OK;
    return fail(e, GM_IO, "the GPU returned %llu bytes of training, expected %llu", (unsigned long long)bytes,
                (unsigned long long)(count * sizeof(float)));
}

static gm_status new_ticket(trainer *t, uint32_t *ticket, error *e) {
    if (!*ticket) *ticket = gpu_ticket_new(gpu_of(t));
    return *ticket ? GM_OK : fail_memory(e, "a ticket", sizeof *ticket);
}

/* ---- a run ---- */

/* Writes a part's key, unless that is done: of the body (0), or of a chunk of the head. */
static gm_status gpu_draw(trainer *t, size_t part, error *e) {
    const tensor *leaf = t->graphs.keys[part ? 1 : 0];
    uint32_t      key[2];
    float         bits[2];
    if (!leaf) return GM_OK;
    trainer_draw(t, part, key);
    memcpy(bits, key, sizeof bits);
    return gpu_plan_write_leaf(part ? t->gpu.head : t->gpu.body, leaf, 0, bits, 1, e);
}

static gm_status gpu_forward(trainer *t, error *e) {
    trainer_gpu     *g = &t->gpu;
    const run_inputs in = trainer_inputs(t, 0, 0);
    gm_status        status = g->passed ? GM_OK : gpu_draw(t, 0, e);
    if (status) return status;
    g->passed = true;
    status = gpu_submit_part(t, g->body, 0, &in, 0, e);
    if (status) return status;
    TRY(gpu_plan_pass(g->head, t->graphs.x, g->body, 0, t->run.count, e));
    if (t->graphs.before) TRY(gpu_plan_pass(g->head, t->graphs.before, NULL, 0, t->run.count, e));
    t->phase = TRAIN_HEAD;
    return GM_OK;
}

static gm_status gpu_end_chunk(trainer *t, error *e) {
    t->done += trainer_chunk(t);
    t->phase = TRAIN_HEAD;
    if (t->done < t->outputs) return GM_OK;
    t->phase = t->graphs.gradient && !t->run.measured ? TRAIN_BACKWARD : TRAIN_LOSSES;
    if (t->phase == TRAIN_LOSSES) return GM_OK;
    return gpu_plan_pass(t->gpu.body, t->graphs.gradient, t->gpu.head, 1, t->run.count, e);
}

static gm_status gpu_head(trainer *t, error *e) {
    trainer_gpu     *g = &t->gpu;
    const size_t     n = trainer_chunk(t);
    const run_inputs in = trainer_inputs(t, t->done, n);
    gm_status        status = g->passed ? GM_OK : gpu_draw(t, 1 + t->done, e);
    if (!status && !g->passed) status = gpu_plan_write_leaf(g->head, t->graphs.goals, 0, t->goals + 2 * t->done, n, e);
    if (status) return status;
    g->passed = true;
    TRY(new_ticket(t, &g->tickets[g->asked], e));
    status = gpu_submit_part(t, g->head, 0, &in, g->tickets[g->asked], e);
    if (status) return status;
    g->asked++;
    t->phase = TRAIN_HEAD_BACK;
    return t->graphs.head.split && !t->run.measured ? GM_OK : gpu_end_chunk(t, e);
}

static gm_status gpu_head_back(trainer *t, error *e) {
    const run_inputs in = trainer_inputs(t, t->done, trainer_chunk(t));
    const gm_status  status = gpu_submit_part(t, t->gpu.head, 1, &in, 0, e);
    if (status) return status;
    if (t->graphs.before && t->done + trainer_chunk(t) < t->outputs)
        TRY(gpu_plan_pass(t->gpu.head, t->graphs.before, t->gpu.head, 1, t->run.count, e));
    return gpu_end_chunk(t, e);
}

static gm_status gpu_backward(trainer *t, error *e) {
    const run_inputs in = trainer_inputs(t, 0, 0);
    const gm_status  status = gpu_submit_part(t, t->gpu.body, 1, &in, 0, e);
    if (!status) t->phase = TRAIN_LOSSES;
    return status;
}

static gm_status gpu_losses(trainer *t, error *e) {
    trainer_gpu *g = &t->gpu;
    for (; g->taken < g->asked; g->taken++) {
        const size_t    first = g->taken * t->chunk, n = min_size(t->chunk, t->outputs - first);
        const float    *losses;
        const gm_status status = gpu_answer(t, g->tickets[g->taken], n, &losses, e);
        if (status) return status;
        trainer_add_losses(t, first, n, losses);
        drop_ticket(t, &g->tickets[g->taken]);
    }
    g->asked = g->taken = 0;
    t->phase = TRAIN_IDLE;
    return GM_OK;
}

static gm_status gpu_run(trainer *t, void *arguments, error *e) {
    (void)arguments;
    while (t->phase != TRAIN_IDLE) {
        const gm_status status = t->phase == TRAIN_FORWARD     ? gpu_forward(t, e)
                                 : t->phase == TRAIN_HEAD      ? gpu_head(t, e)
                                 : t->phase == TRAIN_HEAD_BACK ? gpu_head_back(t, e)
                                 : t->phase == TRAIN_BACKWARD  ? gpu_backward(t, e)
                                                               : gpu_losses(t, e);
        if (status) return status;
    }
    return GM_OK;
}

static gm_status gpu_work(trainer *t, double deadline, error *e) { return gpu_drive(t, gpu_run, NULL, deadline, e); }

static void gpu_forget(trainer *t) {
    gpu_drop(t);
    t->gpu.forgets = true;
}

/* ---- the update ---- */

typedef struct {
    const float *rates;
    float       *squares;
} gpu_updating;

static gm_status gpu_run_update(trainer *t, void *arguments, error *e) {
    const gpu_updating *u = arguments;
    trainer_gpu        *g = &t->gpu;
    const token_record  none = { .span_count = 1 };
    const run_inputs    in = { .records = &none, .tokens = 1 };
    if (!g->norm) {
        const gm_status status = gpu_plan_write_leaf(g->optimiser, t->rates, 0, u->rates, 1, e);
        if (status) return status;
        TRY(new_ticket(t, &g->norm, e));
        g->pieces = gpu_plan_part(g->optimiser, 0);
        g->running = true;
    }
    if (g->running) {
        const gm_status status = gpu_submit_part(t, g->optimiser, 0, &in, g->norm, e);
        if (status) return status;
    }
    const float    *answer;
    const gm_status status = gpu_answer(t, g->norm, 1, &answer, e);
    if (status) return status;
    *u->squares = *answer;
    drop_ticket(t, &g->norm);
    return GM_OK;
}

static gm_status gpu_update(trainer *t, const float rates[ADAMW_RATES], float *squares, double deadline, error *e) {
    return gpu_drive(t, gpu_run_update, &(gpu_updating){ rates, squares }, deadline, e);
}

/* ---- states ---- */

typedef struct {
    const train_part *part;
    train_state       what;
    const float      *in, **out;
} gpu_moving;

/* Asks for the pieces of the move that is under way, from the one that is wanted now on. */
static gm_status gpu_ask(trainer *t, error *e) {
    trainer_gpu *g = &t->gpu;
    if (g->read_count && g->reads[g->first_read].piece != t->move.at) gpu_drop(t);
    uint64_t bytes = 0;
    size_t   piece = t->move.at;
    for (size_t i = 0; i < g->read_count; i++) {
        piece = g->reads[(g->first_read + i) % TRAIN_READS].piece;
        bytes += t->parameters.parts[piece / t->move.count].size * sizeof(float);
        piece++;
    }
    for (; piece < t->move.count * t->parameters.count && g->read_count < TRAIN_READS; piece++) {
        const train_part *part = &t->parameters.parts[piece / t->move.count];
        if (!part->pair) continue;
        if (g->read_count && bytes + part->size * sizeof(float) > READ_BYTES) return GM_OK;
        uint32_t ticket = 0;
        TRY(new_ticket(t, &ticket, e));
        const gm_status status =
            gpu_backend_read_vector(&t->engine->gpu, &part->tensors[t->move.states[piece % t->move.count]],
                                    part->size * sizeof(float), ticket, e);
        if (status) return drop_ticket(t, &ticket), status;
        g->reads[(g->first_read + g->read_count) % TRAIN_READS].piece = piece;
        g->reads[(g->first_read + g->read_count++) % TRAIN_READS].ticket = ticket;
        bytes += part->size * sizeof(float);
    }
    return GM_OK;
}

static gm_status gpu_run_fetch(trainer *t, void *arguments, error *e) {
    const gpu_moving *m = arguments;
    trainer_gpu      *g = &t->gpu;
    drop_ticket(t, &g->held);
    TRY(gpu_ask(t, e));
    const gm_status status = gpu_answer(t, g->reads[g->first_read].ticket, m->part->size, m->out, e);
    if (status) return status;
    g->held = g->reads[g->first_read].ticket;
    g->first_read = (g->first_read + 1) % TRAIN_READS;
    g->read_count--;
    return GM_OK;
}

static gm_status gpu_fetch(trainer *t, const train_part *part, train_state what, const float **out, double deadline,
                           error *e) {
    return gpu_drive(t, gpu_run_fetch, &(gpu_moving){ part, what, .out = out }, deadline, e);
}

static gm_status gpu_run_put(trainer *t, void *arguments, error *e) {
    const gpu_moving *m = arguments;
    return gpu_write(t, &m->part->tensors[m->what], 0, m->in, m->part->size * sizeof(float), e);
}

static gm_status gpu_put(trainer *t, const train_part *part, train_state what, const float *values, double deadline,
                         error *e) {
    return gpu_drive(t, gpu_run_put, &(gpu_moving){ part, what, .in = values }, deadline, e);
}

const trainer_backend trainer_on_gpu = { .measure = gpu_measure,
                                         .memory = gpu_memory,
                                         .plan = gpu_plan_all,
                                         .close = gpu_close,
                                         .work = gpu_work,
                                         .forget = gpu_forget,
                                         .update = gpu_update,
                                         .restart = gpu_drop,
                                         .fetch = gpu_fetch,
                                         .put = gpu_put };
