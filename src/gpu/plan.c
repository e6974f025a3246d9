/* Creates plans, and submits their runs. */

#include "gpu/plan.h"

#include "gpu/experts_ahead.h"
#include "gpu/generator.h"
#include "gpu/streaming.h"

#include <stdlib.h>
#include <string.h>

static gm_status plan_copy_kv(gpu_plan *p, const gpu_kv_layer *kv, error *e) {
    for (size_t i = 0; i < p->g.op_count; i++) {
        const op *o = &p->g.ops[i];
        if (op_has_cache(o)) p->layers = max_size(p->layers, o->layer + 1);
    }
    if (!p->layers) return GM_OK;
    p->kv = malloc(p->layers * sizeof *p->kv);
    if (!p->kv) return fail_memory(e, "a plan's layers", p->layers * sizeof *p->kv);
    memcpy(p->kv, kv, p->layers * sizeof *p->kv);
    return GM_OK;
}

/* What a plan is for, and who only wants to see its kernels. */
typedef struct {
    size_t            tokens, outputs;
    bool              rows;
    gpu_kernel_visit *visit;
    void             *user;
    uint64_t         *bytes; /* only this is wanted: of its values */
} plan_purpose;

static gm_status plan_make(gpu_backend *b, const graph *g, const plan_purpose *purpose, const gpu_kv_layer *kv,
                           gpu_plan **out, error *e) {
    *out = NULL;
    if (!g->result) return fail(e, GM_BAD_ARGUMENT, "a graph without a result cannot be planned");
    gpu_plan *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "a plan", sizeof *p);
    *p = (gpu_plan){ .backend = b,
                     .tokens = (uint32_t)purpose->tokens,
                     .outputs = (uint32_t)max_size(purpose->outputs, 1),
                     .rows_alone = purpose->rows && purpose->tokens > 1,
                     .visit = purpose->visit,
                     .visit_user = purpose->user };
    fuse_options fusion = gpu_backend_fusion(b, p->tokens, p->outputs);
    fusion.rows = p->rows_alone;
    gm_status status = graph_fuse(g, &fusion, &p->g, e);
    if (!status) status = plan_add_ahead(p, e);
    if (!status) status = plan_copy_kv(p, kv, e);
    if (!status) status = plan_decide(p, e);
    if (!status) status = plan_lay_out(p, e);
    if (!status && purpose->bytes) *purpose->bytes = p->bytes;
    if (!status && !purpose->bytes) status = plan_record(p, e);
    if (status) gpu_plan_free(p);
    else *out = p;
    return status;
}

gm_status gpu_plan_new(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                       gpu_plan **out, error *e) {
    return plan_make(b, g, &(plan_purpose){ .tokens = tokens, .outputs = outputs }, kv, out, e);
}

gm_status gpu_plan_new_rows(gpu_backend *b, const graph *g, size_t rows, const gpu_kv_layer *kv, gpu_plan **out,
                            error *e) {
    return plan_make(b, g, &(plan_purpose){ .tokens = rows, .outputs = rows, .rows = true }, kv, out, e);
}

gm_status gpu_plan_measure(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                           uint64_t *bytes, error *e) {
    gpu_plan          *p = NULL;
    const plan_purpose purpose = { .tokens = tokens, .outputs = outputs, .bytes = bytes };
    const gm_status    status = plan_make(b, g, &purpose, kv, &p, e);
    gpu_plan_free(p);
    return status;
}

gm_status gpu_plan_visit(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                         gpu_kernel_visit *visit, void *user, error *e) {
    gpu_plan          *p = NULL;
    const plan_purpose purpose = { .tokens = tokens, .outputs = outputs, .visit = visit, .user = user };
    const gm_status    status = plan_make(b, g, &purpose, kv, &p, e);
    gpu_plan_free(p);
    return status;
}

gm_status gpu_plan_visit_rows(gpu_backend *b, const graph *g, size_t rows, const gpu_kv_layer *kv,
                              gpu_kernel_visit *visit, void *user, error *e) {
    gpu_plan          *p = NULL;
    const plan_purpose purpose = { .tokens = rows, .outputs = rows, .rows = true, .visit = visit, .user = user };
    const gm_status    status = plan_make(b, g, &purpose, kv, &p, e);
    gpu_plan_free(p);
    return status;
}

gm_status gpu_plan_kernels(gpu_plan *p, gpu_kernel_visit *visit, void *user, error *e) {
    p->visit = visit;
    p->visit_user = user;
    const gm_status status = plan_record(p, e);
    p->visit = NULL;
    return status;
}

void gpu_plan_free(gpu_plan *p) {
    if (!p) return;
    gpu_host    *h = p->backend->host;
    const gpu_id buffers[] = { p->run, p->rows, p->report, p->numbers, p->passing };
    streaming_free(p);
    for (size_t i = 0; i < p->group_count; i++) gpu_group_free(h, p->groups[i]);
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        if (buffers[i]) gpu_buffer_free(h, buffers[i]);
    }
    for (size_t i = 0; i < PLAN_MEMORIES; i++) {
        if (p->memory[i]) gpu_buffer_free(h, p->memory[i]);
    }
    graph_free(&p->g);
    free(p->steps);
    free(p->piece.data);
    free(p->pipelines);
    free(p->groups);
    free(p->tiles);
    free(p->ops);
    free(p->kv);
    free(p->kv_dispatches);
    free(p->items);
    free(p->ahead);
    free(p->words.data);
    free(p->ahead_words.data);
    free(p->number_words.data);
    free(p);
}

size_t   gpu_plan_tokens(const gpu_plan *p) { return p->tokens; }
size_t   gpu_plan_outputs(const gpu_plan *p) { return p->outputs; }
uint64_t gpu_plan_bytes(const gpu_plan *p) { return p->bytes; }
size_t   gpu_plan_dispatches(const gpu_plan *p) { return p->dispatches; }
bool     gpu_plan_streams(const gpu_plan *p) { return p->streaming != NULL; }
uint32_t gpu_plan_rebinds(const gpu_plan *p) { return p->rebinds; }

bool gpu_plan_serves(const gpu_plan *p, const gpu_kv_layer *kv) {
    for (size_t i = 0; i < p->layers; i++) {
        const gpu_kv_layer *a = &p->kv[i], *b = &kv[i];
        if (a->type != b->type || a->kv_heads != b->kv_heads || a->head != b->head) return false;
    }
    return true;
}

gpu_binding gpu_plan_result_range(const gpu_plan *p, uint64_t bytes) {
    const uint64_t at = p->items[plan_base(p->g.result)->index].offset;
    return (gpu_binding){ 0, plan_memory(p, at), at % p->segment, bytes };
}

/* Writes to a place in the plan's memory. */
static gm_status plan_write(const gpu_plan *p, uint64_t at, const void *data, uint64_t bytes, error *e) {
    return gpu_buffer_write(p->backend->host, plan_memory(p, at), at % p->segment, data, bytes, e);
}

void gpu_plan_restart(gpu_plan *p) { streaming_abandon(p); }

/* The number of tokens from `first` on whose given rows are consecutive. */
static size_t given_in_a_row(const run_inputs *in, size_t first) {
    size_t n = 1;
    while (first + n < in->tokens && in->records[first + n].id == in->records[first].id - (int32_t)n) n++;
    return n;
}

gm_status gpu_plan_write_given(const gpu_plan *p, const run_inputs *in, error *e) {
    for (size_t i = 0; i < p->g.op_count && in->given; i++) {
        const op      *o = &p->g.ops[i];
        const uint64_t row = o->out ? o->out->token_stride * sizeof(float) : 0;
        for (size_t t = 0, n; o->kind == OP_EMBED && o->given && t < in->tokens; t += n) {
            n = 1;
            if (in->records[t].id >= 0) continue;
            n = given_in_a_row(in, t);
            const float    *from = in->given + (size_t)(-1 - in->records[t].id) * o->out->token_stride;
            const gm_status status = plan_write(p, p->items[o->out->index].offset + t * row, from, n * row, e);
            if (status) return status;
        }
    }
    return GM_OK;
}

/* The tiles of queries that a run has: a tile never crosses the end of a span. */
static uint32_t run_tiles(const run_inputs *in, const plan_tiles *t) {
    uint32_t tiles = 0;
    for (size_t row = 0; row < in->tokens; row += in->records[row].span_count)
        tiles += (in->records[row].span_count * t->token_queries + t->tile_queries - 1) / t->tile_queries;
    return tiles;
}

gm_status gpu_plan_write_leaf(gpu_plan *p, const tensor *leaf, size_t first, const float *data, size_t entries,
                              error *e) {
    const uint64_t entry = leaf->token_stride * sizeof *data;
    if (first + entries > plan_count(p, leaf)) return fail(e, GM_BAD_ARGUMENT, "the plan is too small for this leaf");
    return plan_write(p, p->items[leaf->index].offset + first * entry, data, entries * entry, e);
}

gm_status gpu_plan_copy_values(gpu_plan *p, const gpu_value_copy *copies, size_t count, bool in, error *e) {
    gpu_words words = { 0 };
    gpu_words_begin(&words);
    for (const gpu_value_copy *c = copies; c < copies + count; c++) {
        const uint64_t entry = c->value->token_stride * sizeof(float), bytes = c->entries * entry;
        const uint64_t place = p->items[c->value->index].offset + c->first * entry, at = place % p->segment;
        if (c->first + c->entries > plan_count(p, c->value)) {
            free(words.data);
            return fail(e, GM_BAD_ARGUMENT, "the plan is too small for this value");
        }
        if (in) gpu_words_copy(&words, c->buffer, c->offset, plan_memory(p, place), at, bytes);
        else gpu_words_copy(&words, plan_memory(p, place), at, c->buffer, c->offset, bytes);
    }
    const gm_status status = words.failed ? fail_memory(e, "a command list", words.count * sizeof(uint32_t))
                                          : gpu_submit(p->backend->host, words.data, words.count, e);
    free(words.data);
    return status;
}

/* Writes the run's records into the list, and those that it does not hold into the buffer. */
static gm_status plan_write_records(gpu_plan *p, const run_inputs *in, error *e) {
    const size_t listed = min_size(in->tokens, PLAN_LISTED_TOKENS), others = in->tokens - listed;
    uint32_t    *words = p->words.data + p->at_run;
    words[0] = (uint32_t)in->tokens;
    words[1] = (uint32_t)in->outputs;
    memcpy(words + RUN_HEADER_WORDS, in->records, listed * sizeof *in->records);
    return others ? gpu_buffer_write(p->backend->host, p->run, plan_run_bytes(listed), in->records + listed,
                                     others * sizeof *in->records, e)
                  : GM_OK;
}

gm_status gpu_plan_submit(gpu_plan *p, const run_inputs *in, uint32_t ticket, error *e) {
    return gpu_plan_submit_results(p, in, &ticket, ticket ? 1 : 0, e);
}

gm_status plan_write_inputs(gpu_plan *p, const run_inputs *in, error *e) {
    if (in->tokens > p->tokens || in->outputs > p->outputs)
        return fail(e, GM_BAD_ARGUMENT, "the plan is too small for this run");
    if (!run_spans_fit(in))
        return fail(e, GM_BAD_ARGUMENT, "the spans of a run of %zu tokens do not fit it", in->tokens);
    if (p->drawing) TRY(gpu_generator_set_aside(p->drawing, e));
    uint32_t       *words = p->words.data;
    const gm_status written = plan_write_records(p, in, e);
    if (written) return written;
    for (size_t i = 0; i < p->tiles_count; i++) words[p->tiles[i].at] = run_tiles(in, &p->tiles[i]);
    for (size_t i = 0; i < in->outputs; i++) words[p->at_rows + i] = (uint32_t)in->output_rows[i];
    return GM_OK;
}

gm_status gpu_plan_submit_results(gpu_plan *p, const run_inputs *in, const uint32_t *tickets, size_t count, error *e) {
    uint32_t       *words = p->words.data;
    const gm_status written = plan_write_inputs(p, in, e);
    if (written) return written;
    if (count > GRAPH_RESULTS || (count && !p->end_read[count - 1]))
        return fail(e, GM_BAD_ARGUMENT, "the graph does not have %zu results", count);
    for (size_t i = 0; i < count; i++) words[p->at_ticket[i]] = tickets[i];
    const size_t end = count ? p->end_read[count - 1] : p->end_dispatch;
    if (p->streaming) return streaming_submit(p, in, end, e);
    const gm_status status = gpu_plan_write_given(p, in, e);
    if (status) return status;
    TRY(gpu_submit(p->backend->host, words, end, e));
    if (p->backend->watch) {
        const gpu_submission done = {
            .plan = p, .in = *in, .words = words + p->first_dispatch, .count = p->end_dispatch - p->first_dispatch
        };
        p->backend->watch(p->backend->watch_user, &done);
    }
    return GM_OK;
}
