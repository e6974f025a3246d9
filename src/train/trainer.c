#include "base/random.h"
#include "session/records.h"
#include "train/trainer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_LOGITS_BYTES (UINT64_C(64) << 20)

/* Subgroup matrices compute many columns at a time, and so fast that these are no long dispatch. */
uint64_t trainer_logits_bytes(const gm_engine *engine) {
    return engine->on_gpu && gpu_host_info(engine->gpu.host)->subgroup_matrix ? 2 * TRAIN_LOGITS_BYTES
                                                                              : TRAIN_LOGITS_BYTES;
}

const train_parameters *trainer_parameters(const trainer *t) { return &t->parameters; }
uint64_t                trainer_bytes(const trainer *t) { return t->bytes; }
uint32_t                trainer_kept(const trainer *t) { return t->kept; }
double                  trainer_loss(const trainer *t) { return t->loss; }
double                  trainer_span_loss(const trainer *t, size_t span) { return t->losses[span]; }

double trainer_longest_piece(trainer *t) {
    const double longest = t->gpu.longest;
    t->gpu.longest = 0;
    return longest;
}

/* ---- making ---- */

void *trainer_alloc(trainer *t, size_t count, size_t size, error *e) {
    void *p = count && size > SIZE_MAX / count ? NULL : calloc(max_size(count, 1), size);
    if (!p) fail_memory(e, "the memory of training", (uint64_t)count * size);
    t->bytes += (uint64_t)count * size;
    return p;
}

/* The optimiser: the norm of all gradients, then a step on each part. */
static gm_status trainer_build_update(trainer *t, float rate_of_b, error *e) {
    graph  *g = &t->update;
    tensor *squares = NULL;
    t->rates = graph_leaf(g, AXIS_RUN, ADAMW_RATES, 1);
    for (size_t i = 0; i < t->parameters.count; i++) {
        train_part *part = &t->parameters.parts[i];
        if (part->pair) squares = graph_square_sum(g, &part->tensors[TRAIN_GRADIENT], squares);
    }
    for (size_t i = 0; i < t->parameters.count; i++) {
        train_part      *part = &t->parameters.parts[i];
        const adamw_part work = { .parameter = &part->tensors[TRAIN_VALUES],
                                  .gradient = &part->tensors[TRAIN_GRADIENT],
                                  .moments = { &part->tensors[TRAIN_MOMENT_1], &part->tensors[TRAIN_MOMENT_2] },
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
    return t->backend->measure(t, bytes, e);
}

/* Keeps as many layers as there is memory for. */
static gm_status trainer_fit(trainer *t, uint64_t memory, uint32_t repeated, error *e) {
    const uint32_t layers = t->m->config.layers - (uint32_t)min_size(repeated, t->m->config.layers);
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

/* If memory turns out to be short, fewer layers are kept. */
static gm_status trainer_make_plans(trainer *t, bool retries, error *e) {
    error     cause = { 0 };
    gm_status status = t->backend->plan(t, &cause);
    while (status == GM_NO_MEMORY && retries && t->kept) {
        uint64_t bytes;
        t->backend->close(t);
        TRY(trainer_build(t, t->kept / 2, &bytes, e));
        cause = (error){ 0 };
        status = t->backend->plan(t, &cause);
    }
    return status ? fail(e, status, "%s", cause.why) : GM_OK;
}

static gm_status trainer_plan(trainer *t, const trainer_options *o, error *e) {
    const uint64_t all = o->logits_bytes ? o->logits_bytes : trainer_logits_bytes(t->engine);
    const uint64_t row = (uint64_t)t->m->config.vocabulary * sizeof(float);
    t->chunk = min_size(t->tokens, all / row ? (size_t)(all / row) : 1);
    TRY(trainer_fit(t, o->memory ? o->memory : t->backend->memory ? t->backend->memory(t) : 0, o->repeated, e));
    TRY(trainer_build_update(t, o->rate_of_b, e));
    t->bytes += t->parameters.bytes;
    t->records = trainer_alloc(t, t->tokens, sizeof *t->records, e);
    t->rows = t->records ? trainer_alloc(t, t->tokens, sizeof *t->rows, e) : NULL;
    t->goals = t->rows ? trainer_alloc(t, 2 * t->tokens, sizeof *t->goals, e) : NULL;
    t->owners = t->goals ? trainer_alloc(t, t->tokens, sizeof *t->owners, e) : NULL;
    t->losses = t->owners ? trainer_alloc(t, t->tokens, sizeof *t->losses, e) : NULL;
    return t->losses ? trainer_make_plans(t, !o->memory, e) : e->status;
}

gm_status trainer_new(gm_engine *engine, const trainer_options *o, trainer **out, error *e) {
    const weight *table = &engine->weights.per_layer_token_embd;
    if (!engine->on_gpu && table->name && !table->data)
        return fail(e, GM_UNSUPPORTED, "training needs the table %s in memory, which has too little room for it",
                    table->name);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return fail(e, GM_BAD_ARGUMENT, "dropout %g: expected 0 to less than 1", (double)o->dropout);
    if (!o->tokens) return fail(e, GM_BAD_ARGUMENT, "training needs runs of at least 1 token");
    trainer *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "the memory of training", sizeof *t);
    *t = (trainer){ .engine = engine, .m = &engine->weights, .tokens = o->tokens };
    t->dropout = o->dropout;
    t->seed = o->seed;
    t->backend = engine->on_gpu ? &trainer_on_gpu : &trainer_on_cpu;
    gm_status status = adapter_fits(o->adapter, t->m, NULL, NULL, e);
    for (size_t i = 0; !status && i < o->frozen_count; i++) status = adapter_fits(o->frozen[i], t->m, NULL, NULL, e);
    if (!status)
        status = train_parameters_make(&t->parameters, t->m, o->adapter, o->frozen, o->scales, o->frozen_count,
                                       engine->on_gpu ? &engine->adapters.places : NULL, e);
    if (!status) status = trainer_plan(t, o, e);
    if (status) trainer_free(t);
    else *out = t;
    return status;
}

void trainer_free(trainer *t) {
    if (!t) return;
    t->backend->close(t);
    graph_free(&t->update);
    train_graphs_free(&t->graphs);
    train_parameters_free(&t->parameters);
    free(t->move.scratch);
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
        records_join_block(t->records + t->run.blocks[i].first, t->run.blocks[i].count, false);
}

void trainer_draw(const trainer *t, size_t part, uint32_t key[2]) {
    uint32_t words[4] = { UINT32_MAX, UINT32_MAX };
    if (t->run.draw)
        philox((uint32_t[]){ (uint32_t)t->run.draw, (uint32_t)(t->run.draw >> 32), (uint32_t)part, 0 },
               (uint32_t[]){ (uint32_t)t->seed, (uint32_t)(t->seed >> 32) }, words);
    memcpy(key, words, 2 * sizeof *words);
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
    return GM_OK;
}

run_inputs trainer_inputs(const trainer *t, size_t first, size_t outputs) {
    return (run_inputs){ .records = t->records,
                         .tokens = t->run.count,
                         .output_rows = t->rows + first,
                         .outputs = outputs,
                         .given = t->run.given };
}

size_t trainer_chunk(const trainer *t) { return min_size(t->chunk, t->outputs - t->done); }

void trainer_add_losses(trainer *t, size_t first, size_t count, const float *losses) {
    for (size_t i = 0; i < count; i++) t->losses[t->owners[first + i]] += (double)losses[i];
    for (size_t i = 0; i < count && !t->run.measured; i++) t->loss += (double)losses[i];
}

gm_status trainer_work(trainer *t, double deadline, error *e) { return t->backend->work(t, deadline, e); }

void trainer_forget(trainer *t) {
    t->backend->forget(t);
    t->phase = TRAIN_IDLE;
    t->move.kind = MOVE_NONE;
    t->loss = 0;
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

gm_status trainer_update(trainer *t, const adamw_settings *s, uint64_t step, double *norm, double deadline, error *e) {
    TRY(adamw_check(s, step, e));
    if (t->phase != TRAIN_IDLE) return fail(e, GM_BAD_ARGUMENT, "a run of this step is not finished");
    const float rates[ADAMW_RATES] = {
        [ADAMW_RATE] = (float)s->rate,
        [ADAMW_BETA_1] = (float)s->beta[0],
        [ADAMW_BETA_2] = (float)s->beta[1],
        [ADAMW_EPS] = (float)s->eps,
        [ADAMW_DECAY] = (float)s->decay,
        [ADAMW_CORRECTION_1] = (float)(1 / (1 - pow(s->beta[0], (double)step))),
        [ADAMW_CORRECTION_2] = (float)(1 / (1 - pow(s->beta[1], (double)step))),
        [ADAMW_MOST_NORM] = (float)s->most_norm,
    };
    float           squares = 0;
    const gm_status status = t->backend->update(t, rates, &squares, deadline, e);
    if (status) return status;
    *norm = sqrt((double)squares);
    if (isfinite(*norm)) t->loss = 0;
    return GM_OK;
}
