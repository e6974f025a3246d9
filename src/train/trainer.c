#include "train/trainer.h"

#include "base/random.h"
#include "model/train.h"
#include "session/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_LOGITS_BYTES (UINT64_C(64) << 20)

typedef enum { TRAIN_IDLE, TRAIN_FORWARD, TRAIN_HEAD, TRAIN_HEAD_BACK, TRAIN_BACKWARD } train_phase;

struct trainer {
    gm_engine       *engine;
    const model     *m;
    cpu_backend      cpu; /* the engine's, with f32 activations */
    train_parameters parameters;
    train_graphs     graphs;
    graph            update;
    tensor          *rates; /* a leaf of it */
    cpu_plan        *body, *head, *optimiser;
    kv_layer        *kv; /* by layer, a slot for each token */
    size_t           tokens, chunk;
    uint32_t         kept;
    float            dropout;
    uint64_t         seed; /* of dropout */
    uint64_t         bytes;
    token_record    *records; /* [tokens] of the run */
    int32_t         *rows;    /* [tokens]: those whose next token counts, and */
    float           *goals;   /* [tokens, 2]: what it is and how much it weighs */
    uint32_t        *owners;  /* [tokens]: the sequence of each of these rows */
    double          *losses;  /* [tokens]: of the run's sequences */
    size_t           outputs;
    train_run        run;
    train_phase      phase;
    size_t           done; /* outputs */
    double           loss;
};

const train_parameters *trainer_parameters(const trainer *t) { return &t->parameters; }
uint64_t                trainer_bytes(const trainer *t) { return t->bytes; }
uint32_t                trainer_kept(const trainer *t) { return t->kept; }
double                  trainer_loss(const trainer *t) { return t->loss; }
double                  trainer_span_loss(const trainer *t, size_t span) { return t->losses[span]; }

/* ---- making ---- */

static void *trainer_alloc(trainer *t, size_t count, size_t size, error *e) {
    void *p = count && size > SIZE_MAX / count ? NULL : calloc(max_size(count, 1), size);
    if (!p) fail_memory(e, "the memory of training", (uint64_t)count * size);
    t->bytes += (uint64_t)count * size;
    return p;
}

/* Keys and values of all tokens, in every layer that has some. */
static gm_status trainer_open_kv(trainer *t, error *e) {
    const model_config *c = &t->m->config;
    t->kv = trainer_alloc(t, c->layers, sizeof *t->kv, e);
    if (!t->kv) return e->status;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        const size_t        row = (size_t)layer->kv_heads * layer->head * sizeof(float);
        t->kv[i] = (kv_layer){ .type = TYPE_F32, .kv_heads = layer->kv_heads, .head = layer->head };
        if (!layer->owns_kv) continue;
        t->kv[i].k = trainer_alloc(t, t->tokens, row, e);
        t->kv[i].v = t->kv[i].k ? trainer_alloc(t, t->tokens, row, e) : NULL;
        if (!t->kv[i].v) return e->status;
    }
    return GM_OK;
}

/* The optimiser: the norm of all gradients, then a step on each part. */
static gm_status trainer_build_update(trainer *t, float rate_of_b, error *e) {
    graph  *g = &t->update;
    tensor *squares = NULL;
    t->rates = graph_leaf(g, AXIS_RUN, ADAMW_RATES, 1);
    for (size_t i = 0; i < t->parameters.count; i++) {
        train_part *part = &t->parameters.parts[i];
        if (part->pair) squares = graph_square_sum(g, &part->tensors[1], squares);
    }
    for (size_t i = 0; i < t->parameters.count; i++) {
        train_part      *part = &t->parameters.parts[i];
        const adamw_part work = { .parameter = &part->tensors[0],
                                  .gradient = &part->tensors[1],
                                  .moments = { &part->tensors[2], &part->tensors[3] },
                                  .scale = part->scale,
                                  .rate = part->is_b && rate_of_b > 0 ? rate_of_b : 1 };
        if (part->pair) graph_adamw(g, &work, t->rates, squares);
    }
    g->result = squares;
    return g->problem.status ? fail(e, g->problem.status, "%s", g->problem.why) : GM_OK;
}

static gm_status trainer_build(trainer *t, uint32_t kept, uint64_t *bytes, error *e) {
    train_graphs_free(&t->graphs);
    t->kept = kept;
    const train_graph_options options = { .adapters = &t->parameters.model,
                                          .parts = t->parameters.trained,
                                          .count = t->parameters.trained_count,
                                          .kept = kept,
                                          .dropout = t->dropout };
    TRY(model_train_graphs(t->m, &options, &t->graphs, e));
    return cpu_plan_measure(&t->cpu, &t->graphs.body, t->tokens, 1, bytes, e);
}

/* Keeps as many layers as there is memory for. */
static gm_status trainer_fit(trainer *t, uint64_t memory, error *e) {
    const uint32_t layers = t->m->config.layers;
    uint32_t       fits = 0, least = layers; /* the most that fits, the fewest that do not */
    uint64_t       bytes = 0;
    TRY(trainer_build(t, layers, &bytes, e));
    if (!memory || bytes <= memory) return GM_OK;
    TRY(trainer_build(t, 0, &bytes, e));
    if (bytes > memory)
        return fail(e, GM_NO_MEMORY,
                    "training on %zu tokens at a time needs %.1f MB for activations, but only %.1f MB are allowed; "
                    "shorter sequences need less",
                    t->tokens, (double)bytes / 1e6, (double)memory / 1e6);
    while (least > fits + 1) {
        const uint32_t middle = (fits + least) / 2;
        TRY(trainer_build(t, middle, &bytes, e));
        *(bytes <= memory ? &fits : &least) = middle;
    }
    return t->kept == fits ? GM_OK : trainer_build(t, fits, &bytes, e);
}

static gm_status trainer_plan(trainer *t, const trainer_options *o, error *e) {
    const uint64_t all = o->logits_bytes ? o->logits_bytes : TRAIN_LOGITS_BYTES;
    const uint64_t row = (uint64_t)t->m->config.vocabulary * sizeof(float);
    t->chunk = min_size(t->tokens, all / row ? (size_t)(all / row) : 1);
    TRY(trainer_fit(t, o->memory, e));
    TRY(trainer_build_update(t, o->rate_of_b, e));
    TRY(cpu_plan_new(&t->cpu, &t->graphs.body, t->tokens, 1, &t->body, e));
    TRY(cpu_plan_new(&t->cpu, &t->graphs.head, t->tokens, t->chunk, &t->head, e));
    TRY(cpu_plan_new(&t->cpu, &t->update, 1, 1, &t->optimiser, e));
    t->bytes += cpu_plan_bytes(t->body) + cpu_plan_bytes(t->head) + t->parameters.bytes;
    t->records = trainer_alloc(t, t->tokens, sizeof *t->records, e);
    t->rows = t->records ? trainer_alloc(t, t->tokens, sizeof *t->rows, e) : NULL;
    t->goals = t->rows ? trainer_alloc(t, 2 * t->tokens, sizeof *t->goals, e) : NULL;
    t->owners = t->goals ? trainer_alloc(t, t->tokens, sizeof *t->owners, e) : NULL;
    t->losses = t->owners ? trainer_alloc(t, t->tokens, sizeof *t->losses, e) : NULL;
    return t->losses ? trainer_open_kv(t, e) : e->status;
}

gm_status trainer_new(gm_engine *engine, const trainer_options *o, trainer **out, error *e) {
    const weight *table = &engine->weights.per_layer_token_embd;
    if (engine->on_gpu) return fail(e, GM_UNSUPPORTED, "training on the GPU is not supported yet; use --backend cpu");
    if (table->name && !table->data)
        return fail(e, GM_UNSUPPORTED, "training needs the table %s in memory, which has too little room for it",
                    table->name);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return fail(e, GM_BAD_ARGUMENT, "dropout %g: expected 0 to less than 1", (double)o->dropout);
    if (!o->tokens) return fail(e, GM_BAD_ARGUMENT, "training needs runs of at least 1 token");
    trainer *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "the memory of training", sizeof *t);
    *t = (trainer){ .engine = engine, .m = &engine->weights, .cpu = engine->cpu, .tokens = o->tokens };
    t->dropout = o->dropout;
    t->seed = o->seed;
    t->cpu.precise = true;
    gm_status status = adapter_fits(o->adapter, t->m, NULL, NULL, e);
    for (size_t i = 0; !status && i < o->frozen_count; i++) status = adapter_fits(o->frozen[i], t->m, NULL, NULL, e);
    if (!status)
        status = train_parameters_make(&t->parameters, t->m, o->adapter, o->frozen, o->scales, o->frozen_count, e);
    if (!status) status = trainer_plan(t, o, e);
    if (status) trainer_free(t);
    else *out = t;
    return status;
}

void trainer_free(trainer *t) {
    if (!t) return;
    for (uint32_t i = 0; t->kv && i < t->m->config.layers; i++) {
        free(t->kv[i].k);
        free(t->kv[i].v);
    }
    cpu_plan_free(t->body);
    cpu_plan_free(t->head);
    cpu_plan_free(t->optimiser);
    graph_free(&t->update);
    train_graphs_free(&t->graphs);
    train_parameters_free(&t->parameters);
    free(t->kv);
    free(t->records);
    free(t->rows);
    free(t->goals);
    free(t->owners);
    free(t->losses);
    free(t);
}

/* ---- a run ---- */

static gm_status train_run_check(const trainer *t, const train_run *run, error *e) {
    size_t at = 0;
    for (size_t i = 0; i < run->span_count; i++) {
        if (run->spans[i].first != at || !run->spans[i].count || run->spans[i].count > run->count - at)
            return fail(e, GM_BAD_ARGUMENT, "the sequences of a run must follow one another; the one at %zu does not",
                        run->spans[i].first);
        at += run->spans[i].count;
    }
    if (at != run->count || !at || at > t->tokens)
        return fail(e, GM_BAD_ARGUMENT, "a run has %zu tokens in sequences of %zu; expected 1 to %zu", run->count, at,
                    t->tokens);
    for (size_t i = 0; i < run->count; i++) {
        if (run->ids[i] >= 0 ? (uint32_t)run->ids[i] >= t->m->config.vocabulary : !run->given)
            return fail(e, GM_BAD_ARGUMENT, "token %d at %zu is not in the vocabulary of %u", (int)run->ids[i], i,
                        t->m->config.vocabulary);
    }
    for (size_t i = 0; i < run->block_count; i++) {
        if (run->blocks[i].count > run->count || run->blocks[i].first > run->count - run->blocks[i].count)
            return fail(e, GM_BAD_ARGUMENT, "the block of %zu soft tokens at %zu is outside of the run of %zu",
                        run->blocks[i].count, run->blocks[i].first, run->count);
    }
    return run->without && !run->measured
               ? fail(e, GM_BAD_ARGUMENT, "a run without the trained adapter can only be measured")
               : GM_OK;
}

/* Sequences lie one behind the other in the caches, in full layers as in sliding ones. */
static void train_run_lay_out(trainer *t, const train_span *span, double share) {
    const record_sequence sequence = { .sequence = (uint32_t)(span - t->run.spans),
                                       .adapter = t->run.without ? TRAIN_SET_FROZEN : TRAIN_SET_ALL,
                                       .window = t->m->config.window,
                                       .own = (uint32_t)span->first,
                                       .ring = (uint32_t)span->first,
                                       .ring_slots = (uint32_t)span->count };
    records_of_text(t->records, span->first, &sequence, t->run.ids + span->first, 0, span->count);
    for (size_t i = span->first + 1; i < span->first + span->count; i++) {
        if (t->run.weights[i] == 0 || t->run.ids[i] < 0) continue;
        memcpy(&t->goals[2 * t->outputs], &t->run.ids[i], sizeof *t->goals);
        t->goals[2 * t->outputs + 1] = (float)(t->run.weights[i] * share);
        t->owners[t->outputs] = sequence.sequence;
        t->rows[t->outputs++] = (int32_t)(i - 1);
    }
}

/* Soft tokens are numbered by their rows, and those of a block see each other. */
static void train_run_mark_soft(trainer *t) {
    int32_t next = 0;
    for (size_t i = 0; i < t->run.count; i++) {
        if (t->run.ids[i] < 0) t->records[i].id = -1 - next++;
    }
    for (size_t i = 0; i < t->run.block_count; i++)
        records_join_block(t->records + t->run.blocks[i].first, t->run.blocks[i].count);
}

/* Other values are left out in every run, in the body (0), and in every chunk of the head (from 1 on). */
static void draw_anew(trainer *t, size_t part) {
    tensor  *leaf = t->graphs.keys[part ? 1 : 0];
    uint32_t words[4] = { UINT32_MAX, UINT32_MAX };
    if (!leaf) return;
    if (t->run.draw)
        philox((uint32_t[]){ (uint32_t)t->run.draw, (uint32_t)(t->run.draw >> 32), (uint32_t)part, 0 },
               (uint32_t[]){ (uint32_t)t->seed, (uint32_t)(t->seed >> 32) }, words);
    memcpy(cpu_plan_leaf(part ? t->head : t->body, leaf), words, 2 * sizeof *words);
}

gm_status trainer_begin(trainer *t, const train_run *run, double share, error *e) {
    if (t->phase != TRAIN_IDLE) return fail(e, GM_BAD_ARGUMENT, "the run before is not finished");
    TRY(train_run_check(t, run, e));
    t->run = *run;
    t->outputs = t->done = 0;
    for (size_t i = 0; i < run->span_count; i++) t->losses[i] = 0;
    for (size_t i = 0; i < run->span_count; i++) train_run_lay_out(t, &t->run.spans[i], share);
    train_run_mark_soft(t);
    t->phase = t->outputs ? TRAIN_FORWARD : TRAIN_IDLE;
    draw_anew(t, 0);
    draw_anew(t, 1);
    return GM_OK;
}

/* What passes between body and head: rows of the model's width, one for each token. */
static void pass_rows(const trainer *t, float *to, const float *from) {
    const size_t bytes = t->run.count * t->m->config.width * sizeof *to;
    if (from) memcpy(to, from, bytes);
    else memset(to, 0, bytes);
}

static cpu_inputs run_inputs_of(const trainer *t, size_t first, size_t outputs) {
    return (cpu_inputs){ .run = { .records = t->records,
                                  .tokens = t->run.count,
                                  .output_rows = t->rows + first,
                                  .outputs = outputs,
                                  .given = t->run.given },
                         .kv = t->kv };
}

static gm_status work_forward(trainer *t, double deadline) {
    const cpu_inputs in = run_inputs_of(t, 0, 0);
    const gm_status  status = cpu_plan_step_part(t->body, &in, 0, deadline);
    if (status) return status;
    pass_rows(t, cpu_plan_leaf(t->head, t->graphs.x), cpu_plan_result(t->body));
    if (t->graphs.before) pass_rows(t, cpu_plan_leaf(t->head, t->graphs.before), NULL);
    t->phase = TRAIN_HEAD;
    return GM_OK;
}

static size_t chunk_outputs(const trainer *t) { return min_size(t->chunk, t->outputs - t->done); }

static void chunk_end(trainer *t) {
    t->done += chunk_outputs(t);
    draw_anew(t, 1 + t->done);
    t->phase = TRAIN_HEAD;
    if (t->done < t->outputs) return;
    t->phase = t->graphs.gradient && !t->run.measured ? TRAIN_BACKWARD : TRAIN_IDLE;
    if (t->phase == TRAIN_BACKWARD)
        pass_rows(t, cpu_plan_leaf(t->body, t->graphs.gradient), cpu_plan_leaf(t->head, t->graphs.before));
}

/* The loss of one chunk of the tokens that count. */
static gm_status work_head(trainer *t, double deadline) {
    const size_t     n = chunk_outputs(t);
    const cpu_inputs in = run_inputs_of(t, t->done, n);
    memcpy(cpu_plan_leaf(t->head, t->graphs.goals), t->goals + 2 * t->done, 2 * n * sizeof *t->goals);
    const gm_status status = cpu_plan_step_part(t->head, &in, 0, deadline);
    if (status) return status;
    for (size_t i = 0; i < n; i++) t->losses[t->owners[t->done + i]] += cpu_plan_result(t->head)[i];
    for (size_t i = 0; i < n && !t->run.measured; i++) t->loss += cpu_plan_result(t->head)[i];
    if (t->graphs.head.split && !t->run.measured) t->phase = TRAIN_HEAD_BACK;
    else chunk_end(t);
    return GM_OK;
}

static gm_status work_head_back(trainer *t, double deadline) {
    const cpu_inputs in = run_inputs_of(t, t->done, chunk_outputs(t));
    const gm_status  status = cpu_plan_step_part(t->head, &in, 1, deadline);
    if (status) return status;
    if (t->graphs.before) pass_rows(t, cpu_plan_leaf(t->head, t->graphs.before), cpu_plan_results(t->head, 1));
    chunk_end(t);
    return GM_OK;
}

static gm_status work_backward(trainer *t, double deadline) {
    const cpu_inputs in = run_inputs_of(t, 0, 0);
    const gm_status  status = cpu_plan_step_part(t->body, &in, 1, deadline);
    if (!status) t->phase = TRAIN_IDLE;
    return status;
}

gm_status trainer_work(trainer *t, double deadline, error *e) {
    (void)e;
    while (t->phase != TRAIN_IDLE) {
        const gm_status status = t->phase == TRAIN_FORWARD     ? work_forward(t, deadline)
                                 : t->phase == TRAIN_HEAD      ? work_head(t, deadline)
                                 : t->phase == TRAIN_HEAD_BACK ? work_head_back(t, deadline)
                                                               : work_backward(t, deadline);
        if (status) return status;
        if (t->phase != TRAIN_IDLE && clock_seconds() > deadline) return GM_AGAIN;
    }
    return GM_OK;
}

void trainer_forget(trainer *t) {
    cpu_plan_restart(t->body);
    cpu_plan_restart(t->head);
    t->phase = TRAIN_IDLE;
    t->loss = 0;
    for (size_t i = 0; i < t->parameters.count; i++) {
        train_part *part = &t->parameters.parts[i];
        if (part->gradient) memset(part->gradient, 0, (size_t)part->size * sizeof *part->gradient);
    }
}

/* ---- the update ---- */

static gm_status adamw_check(const adamw_settings *s, uint64_t step, error *e) {
    const bool betas = s->beta[0] >= 0 && s->beta[0] < 1 && s->beta[1] >= 0 && s->beta[1] < 1;
    if (betas && s->eps > 0 && isfinite(s->eps) && isfinite(s->rate) && s->rate >= 0 && isfinite(s->decay) &&
        s->decay >= 0 && s->most_norm >= 0 && step)
        return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "AdamW with rate %g, betas %g and %g, eps %g, decay %g, norm %g in step %llu: expected betas from 0 to "
                "less than 1, eps "
                "above 0, the others at least 0, and steps from 1 on",
                s->rate, s->beta[0], s->beta[1], s->eps, s->decay, s->most_norm, (unsigned long long)step);
}

gm_status trainer_update(trainer *t, const adamw_settings *s, uint64_t step, double *norm, error *e) {
    TRY(adamw_check(s, step, e));
    if (t->phase != TRAIN_IDLE) return fail(e, GM_BAD_ARGUMENT, "a run of this step is not finished");
    float *rates = cpu_plan_leaf(t->optimiser, t->rates);
    rates[ADAMW_RATE] = (float)s->rate;
    rates[ADAMW_BETA_1] = (float)s->beta[0];
    rates[ADAMW_BETA_2] = (float)s->beta[1];
    rates[ADAMW_EPS] = (float)s->eps;
    rates[ADAMW_DECAY] = (float)s->decay;
    rates[ADAMW_CORRECTION_1] = (float)(1 / (1 - pow(s->beta[0], (double)step)));
    rates[ADAMW_CORRECTION_2] = (float)(1 / (1 - pow(s->beta[1], (double)step)));
    rates[ADAMW_MOST_NORM] = (float)s->most_norm;
    const cpu_inputs in = { .kv = t->kv };
    cpu_plan_step(t->optimiser, &in, INFINITY);
    *norm = sqrt((double)*cpu_plan_result(t->optimiser));
    if (isfinite(*norm)) t->loss = 0;
    return GM_OK;
}

void trainer_store(const trainer *t, adapter *into) {
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part   *part = &t->parameters.parts[i];
        const adapter_pair *pair = part->pair ? adapter_find(into, part->pair->base) : NULL;
        if (pair) train_part_store(&t->parameters, part, false, part->is_b ? pair->b : pair->a);
    }
    adapter_hash(into);
}

gm_status trainer_reduce(trainer *t, train_reduce reduce, void *user, error *e) {
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        if (part->gradient) TRY(reduce(user, part->gradient, (size_t)part->size, e));
    }
    return GM_OK;
}

/* ---- the state ---- */

/* Part after part: its values (slot 0 of all), then both moments. */
static float *state_piece(const train_part *part, size_t piece) {
    return piece ? part->moments[piece - 1] : part->values;
}

size_t trainer_state_size(const trainer *t) {
    size_t size = 0;
    for (size_t i = 0; i < t->parameters.count; i++)
        size += t->parameters.parts[i].pair ? 3 * (size_t)t->parameters.parts[i].size : 0;
    return size;
}

gm_status trainer_read_state(trainer *t, float *out, double deadline, error *e) {
    (void)deadline;
    (void)e;
    for (size_t i = 0; i < 3 * t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i / 3];
        if (!part->pair) continue;
        memcpy(out, state_piece(part, i % 3), (size_t)part->size * sizeof *out);
        out += part->size;
    }
    return GM_OK;
}

gm_status trainer_write_state(trainer *t, const float *state, double deadline, error *e) {
    (void)deadline;
    (void)e;
    for (size_t i = 0; i < 3 * t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i / 3];
        if (!part->pair) continue;
        memcpy(state_piece(part, i % 3), state, (size_t)part->size * sizeof *state);
        state += part->size;
    }
    return GM_OK;
}

void trainer_state_adapter(const trainer *t, const float *state, adapter *into) {
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        if (!part->pair) continue;
        const adapter_pair *pair = adapter_find(into, part->pair->base);
        if (pair) train_part_convert(&t->parameters, part, state, part->is_b ? pair->b : pair->a);
        state += 3 * (size_t)part->size;
    }
    adapter_hash(into);
}
