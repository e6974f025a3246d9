/* Encodes pictures or sounds: loads the tower, then runs the items in batches. */

#include "session/tower_parts.h"

#include "gpu/kernels.h"
#include "session/runner.h"

#include <stdlib.h>
#include <string.h>

/* The most tokens of a batch: as many as the largest picture has. On a CPU larger batches gain nothing and only take memory. */
enum { BATCH_TOKENS = 10080, CPU_BATCH_TOKENS = 2520, CPU_VALUE_BYTES = 96 << 20, PIECE_TOKENS = 512 };

struct tower_job {
    gm_engine    *engine;
    engine_tower *tower;
    tower_job    *next_job;
    uint32_t      set;     /* of adapters */
    bool          adapted; /* the batch runs on the tower's graph with corrections */
    tower_kv      kv;      /* its own: batches of other jobs may run between two steps of this one */
    tower_item   *items;
    size_t        count, capacity;
    float        *rows; /* [all outputs, soft_width] */
    size_t        row_count, soft_width;
    /* The batch that is being computed: items [next, next + batch) */
    size_t        next, batch;
    size_t        tokens, outputs;
    token_record *records;
    int32_t      *output_rows;
    shared_plan  *plan;
    size_t        filled_items, filled_tokens; /* of the leaf: whole items, and tokens of the next one */
    float        *piece;                       /* GPU: of the leaf, on its way */
    bool          submitted;
    uint32_t      ticket;
};

/* ---- life ---- */

gm_status tower_job_new(gm_engine *engine, tower_kind kind, size_t count, tower_job **out, error *e) {
    tower_job *job = calloc(1, sizeof *job);
    *out = NULL;
    if (!job) return fail_memory(e, "a job", sizeof *job);
    *job = (tower_job){ .engine = engine, .capacity = count, .soft_width = engine->weights.config.width };
    job->items = calloc(max_size(count, 1), sizeof *job->items);
    gm_status status = job->items ? GM_OK : fail_memory(e, "a job's items", count * sizeof *job->items);
    if (!status) status = engine_tower_use(engine, kind, &job->tower, e);
    if (!status) {
        job->next_job = job->tower->first;
        job->tower->first = job;
    }
    if (status) tower_job_free(job);
    else *out = job;
    return status;
}

tower_item *tower_job_add(tower_job *job, const void *data, size_t bytes, size_t tokens, size_t outputs, error *e) {
    if (job->count == job->capacity) {
        fail(e, GM_BAD_ARGUMENT, "a job for %zu items gets no more", job->capacity);
        return NULL;
    }
    tower_item *item = &job->items[job->count];
    *item = (tower_item){ .data = malloc(max_size(bytes, 1)), .tokens = tokens, .outputs = outputs };
    if (!item->data) {
        fail_memory(e, "a picture or sound", bytes);
        return NULL;
    }
    memcpy(item->data, data, bytes);
    item->first_row = job->row_count;
    job->row_count += outputs;
    job->count++;
    return item;
}

static void job_drop_batch(tower_job *job) {
    if (job->ticket) gpu_ticket_done(job->engine->gpu.host, job->ticket);
    plans_return(job->plan);
    job->plan = NULL;
    job->ticket = 0;
    job->submitted = false;
    job->batch = job->filled_items = job->filled_tokens = 0;
}

tower_job *tower_job_forget_adapters(tower_job *job) {
    if (job->adapted) job_drop_batch(job);
    return job->next_job;
}

void tower_job_use(tower_job *job, uint32_t set) {
    if (job->set == set) return;
    engine_adapters_keep_set(job->engine, set);
    engine_adapters_leave_set(job->engine, job->set);
    job->set = set;
}

/* The tower stays for the next job, unless it is not loaded yet. */
static void job_leave_tower(tower_job *job) {
    engine_tower *t = job->tower;
    if (!t) return;
    for (tower_job **link = &t->first; *link; link = &(*link)->next_job) {
        if (*link != job) continue;
        *link = job->next_job;
        break;
    }
    tower_job_use(job, 0);
    if (!t->kv.slots) {
        t->kv = job->kv;
        job->kv = (tower_kv){ 0 };
    }
    engine_tower_free_kv(job->engine, &job->kv);
    job->tower = NULL;
    if (!--t->jobs && !t->ready) engine_tower_unload(job->engine, t);
}

void tower_job_free(tower_job *job) {
    if (!job) return;
    job_drop_batch(job);
    job_leave_tower(job);
    for (size_t i = 0; i < job->count; i++) free(job->items[i].data);
    free(job->items);
    free(job->rows);
    free(job->records);
    free(job->output_rows);
    free(job->piece);
    free(job);
}

const float *tower_job_rows(const tower_job *job, size_t item, size_t *count) {
    *count = item < job->next ? job->items[item].outputs : 0;
    return *count ? job->rows + job->items[item].first_row * job->soft_width : NULL;
}

tower_progress tower_job_progress(const tower_job *job) {
    const engine_tower *t = job->tower;
    const gpu_backend  *gpu = &job->engine->gpu;
    if (!t || t->ready) return (tower_progress){ TOWER_ENCODING, job->next, job->count };
    return (tower_progress){ TOWER_LOADING, t->fetch.done + (t->built ? gpu->uploaded - t->uploaded : 0),
                             t->fetch.total + (t->built ? gpu->total - t->total : 0) };
}

/* ---- batches ---- */

static const graph *job_graph(const tower_job *job) { return job->adapted ? job->tower->adapted : &job->tower->g; }

static const tensor *job_leaf(const tower_job *job) {
    return job->adapted ? job->tower->adapted_leaf : job->tower->leaf;
}

/* Whether the job's adapters correct this tower. */
static bool job_is_adapted(const tower_job *job) {
    char digest[65];
    engine_adapters_part_digest(job->engine, job->set, job->tower->type->part, digest);
    return *digest;
}

/* A GPU binds each value as a whole; products with the same input are joined, two or three to a row. On a CPU the widest value decides,
 * so that the activations of a batch stay small. */
static size_t batch_limit(const tower_job *job) {
    const gm_engine *engine = job->engine;
    uint64_t         widest = 1;
    for (size_t i = 0; i < job_graph(job)->op_count; i++) {
        const op     *o = &job_graph(job)->ops[i];
        const tensor *out = o->out;
        if (out && out->kind == TENSOR_VALUE)
            widest = max_size(widest, out->ne[0] * out->ne[1] * (engine->on_gpu && o->kind == OP_MATMUL ? 2 : 1));
    }
    if (!engine->on_gpu) return min_size(CPU_BATCH_TOKENS, CPU_VALUE_BYTES / (widest * sizeof(float)));
    return min_size(BATCH_TOKENS, gpu_host_info(engine->gpu.host)->max_binding / (widest * sizeof(float)));
}

static bool others_have_kv(const tower_job *job) {
    const tower_job *other = job->tower->first;
    while (other && (other == job || !other->kv.slots)) other = other->next_job;
    return other;
}

/* If there is no memory for a second batch, the job waits for the one that has it. */
static gm_status job_reserve(tower_job *job, error *e) {
    engine_tower *t = job->tower;
    error         lacking = { 0 };
    if (!job->kv.slots) {
        job->kv = t->kv;
        t->kv = (tower_kv){ 0 };
    }
    const gm_status status = engine_tower_reserve(job->engine, t, job->tokens, &job->kv, &lacking);
    if (status) engine_tower_free_kv(job->engine, &job->kv);
    if (status == GM_NO_MEMORY && others_have_kv(job)) return GM_AGAIN;
    return status ? fail(e, status, "%s", lacking.why) : GM_OK;
}

/* Chooses the items of the next batch and makes its records. Each item is a span that sees all of itself. */
static gm_status batch_begin(tower_job *job, error *e) {
    job->adapted = job_is_adapted(job);
    if (job->adapted) {
        const gm_status status = engine_tower_adapt(job->engine, job->tower, e);
        if (status) return status;
    }
    const size_t limit = batch_limit(job);
    /* with limited memory, as many as there is room reserved for: towers_bytes */
    const size_t together = job->engine->gpu.budget ? min_size(limit, CPU_BATCH_TOKENS) : limit;
    job->tokens = job->outputs = job->batch = 0;
    while (job->next + job->batch < job->count) {
        const tower_item *item = &job->items[job->next + job->batch];
        if (job->batch && job->tokens + item->tokens > together) break;
        job->tokens += item->tokens;
        job->outputs += item->outputs;
        job->batch++;
    }
    if (job->tokens > limit && job->engine->on_gpu)
        return fail(e, GM_UNSUPPORTED,
                    "this GPU encodes at most %zu patches at once, and the picture has %zu: choose fewer tokens for it",
                    limit, job->tokens);
    const gm_status reserved = job_reserve(job, e);
    if (reserved) {
        job->batch = 0;
        return reserved;
    }
    token_record *records = realloc(job->records, job->tokens * sizeof *records);
    if (records) job->records = records;
    int32_t *rows = realloc(job->output_rows, job->outputs * sizeof *rows);
    if (rows) job->output_rows = rows;
    if (!records || !rows) return fail_memory(e, "the patches' records", job->tokens * sizeof *records);
    for (size_t i = 0, first = 0, output = 0; i < job->batch; i++) {
        const tower_item *item = &job->items[job->next + i];
        for (size_t t = 0; t < item->tokens; t++)
            records[first + t] = (token_record){ .sequence = (uint32_t)i,
                                                 .at = (uint32_t)t,
                                                 .span_first = (uint32_t)first,
                                                 .span_count = (uint32_t)item->tokens,
                                                 .full_last = (uint32_t)item->tokens - 1,
                                                 .own = (uint32_t)first,
                                                 .adapter = job->adapted ? job->set : 0 };
        job->tower->type->mark(job->tower, item, records + first, rows + output);
        for (size_t j = 0; j < item->outputs; j++) rows[output + j] += (int32_t)first;
        first += item->tokens;
        output += item->outputs;
    }
    return GM_OK;
}

static gpu_kv_layer gpu_cache(const tower_job *job) {
    const engine_tower *t = job->tower;
    const quant_type    type = engine_tower_kv_type(job->engine);
    return (gpu_kv_layer){ .k = job->kv.keys.device,
                           .v = job->kv.values.device,
                           .type = type,
                           .kv_heads = t->kv_heads,
                           .head = t->head,
                           .bytes = job->kv.slots * gpu_kv_row_bytes(type, t->kv_heads, t->head) };
}

static gm_status batch_borrow(tower_job *job, error *e) {
    const gpu_kv_layer kv = gpu_cache(job);
    if (job->plan) return GM_OK;
    job->plan = plans_borrow(&job->engine->plans,
                             &(plan_wish){ .g = job_graph(job),
                                           .tokens = job->tokens,
                                           .outputs = job->outputs,
                                           .most_outputs = max_size(job->outputs, 2),
                                           .kv = &kv },
                             e);
    return job->plan ? GM_OK : e->status;
}

/* Writes the leaf, item by item and piece by piece. */
static gm_status batch_fill(tower_job *job, error *e) {
    const engine_tower *t = job->tower;
    const tensor       *leaf = job_leaf(job);
    const size_t        values = leaf->ne[0] * leaf->ne[1];
    size_t              first = 0;
    if (job->plan->gpu && !job->piece) job->piece = malloc(PIECE_TOKENS * values * sizeof *job->piece);
    if (job->plan->gpu && !job->piece) return fail_memory(e, "a piece of a picture", PIECE_TOKENS * values * 4);
    for (size_t i = 0; i < job->filled_items; i++) first += job->items[job->next + i].tokens;
    for (; job->filled_items < job->batch; job->filled_items++, job->filled_tokens = 0) {
        const tower_item *item = &job->items[job->next + job->filled_items];
        while (job->filled_tokens < item->tokens) {
            const size_t n = min_size(item->tokens - job->filled_tokens, PIECE_TOKENS), at = first + job->filled_tokens;
            float       *out = job->plan->gpu ? job->piece : cpu_plan_leaf(job->plan->cpu, leaf) + at * values;
            t->type->fill(t, item, job->filled_tokens, n, out);
            const gm_status status = job->plan->gpu ? gpu_plan_write_leaf(job->plan->gpu, leaf, at, out, n, e) : GM_OK;
            if (status) return status;
            job->filled_tokens += n;
        }
        first += item->tokens;
    }
    return GM_OK;
}

/* ---- runs ---- */

static run_inputs batch_inputs(const tower_job *job) {
    return (run_inputs){
        .records = job->records, .tokens = job->tokens, .output_rows = job->output_rows, .outputs = job->outputs
    };
}

/* The batch's rows follow each other among the job's. */
static void batch_end(tower_job *job, const float *rows) {
    memcpy(job->rows + job->items[job->next].first_row * job->soft_width, rows,
           job->outputs * job->soft_width * sizeof *rows);
    const size_t done = job->batch;
    job_drop_batch(job);
    job->next += done;
}

static gm_status batch_on_cpu(tower_job *job, double deadline) {
    const engine_tower *t = job->tower;
    const kv_layer      kv = { job->kv.keys.host, job->kv.values.host, engine_tower_kv_type(job->engine), t->kv_heads,
                               t->head };
    const cpu_inputs    in = { .run = batch_inputs(job), .kv = &kv };
    const gm_status     status = cpu_plan_step(job->plan->cpu, &in, deadline);
    if (!status) batch_end(job, cpu_plan_result(job->plan->cpu));
    return status;
}

static gm_status batch_on_gpu(tower_job *job, error *e) {
    gpu_host        *h = job->engine->gpu.host;
    const run_inputs in = batch_inputs(job);
    const uint64_t   bytes = job->outputs * job->soft_width * sizeof(float);
    uint64_t         arrived = 0;
    if (!job->ticket) job->ticket = gpu_ticket_new(h);
    if (!job->ticket) return fail_memory(e, "a ticket", sizeof job->ticket);
    if (!job->submitted) {
        const gm_status status = gpu_plan_submit(job->plan->gpu, &in, job->ticket, e);
        if (status) return status;
        job->submitted = true;
    }
    const float *rows = gpu_ticket_data(h, job->ticket, &arrived);
    TRY(gpu_host_problem(h, e));
    if (!rows) return GM_AGAIN;
    if (arrived < bytes)
        return fail(e, GM_IO, "the GPU returned %llu bytes of soft tokens, expected %llu", (unsigned long long)arrived,
                    (unsigned long long)bytes);
    batch_end(job, rows);
    return GM_OK;
}

static gm_status job_work(tower_job *job, double deadline, error *e) {
    if (!job->tower) return GM_OK; /* all is done */
    const gm_status loaded = engine_tower_step(job->engine, job->tower, e);
    if (loaded) return loaded;
    if (!job->rows) job->rows = malloc(max_size(job->row_count * job->soft_width, 1) * sizeof *job->rows);
    if (!job->rows) return fail_memory(e, "the soft tokens", job->row_count * job->soft_width * sizeof *job->rows);
    while (job->next < job->count) {
        const gm_status begun = job->batch ? GM_OK : batch_begin(job, e);
        if (begun) return begun;
        TRY(batch_borrow(job, e));
        const gm_status filled = batch_fill(job, e);
        if (filled) return filled;
        const gm_status status = job->engine->on_gpu ? batch_on_gpu(job, e) : batch_on_cpu(job, deadline);
        if (status) return status;
        if (job->next < job->count && clock_seconds() > deadline) return GM_AGAIN;
    }
    return GM_OK;
}

gm_status tower_job_step(tower_job *job, error *e) {
    const double deadline = engine_deadline(job->engine);
    for (;;) {
        const gm_status status = job_work(job, deadline, e);
        if (status_failed(status)) job_drop_batch(job);
        if (!status) job_leave_tower(job);
        if (status != GM_AGAIN || !job->engine->on_gpu || !runner_wait(job->engine->gpu.host, deadline)) return status;
    }
}
