/* A graph made ready for the GPU: pipelines, bind groups and memory, recorded as a command list that is submitted for every run.
 *
 * One value is one range of one big buffer. What changes from run to run (ids, wanted rows, the run record, the ticket of the
 * result) stands in the list itself, and a run writes it there. */

#include "gpu/backend.h"
#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "gpu/pipeline.h"
#include "graph/layout.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_WORDS = 4, GPU_ALIGNMENT = 256 };

struct gpu_plan {
    gpu_backend        *backend;
    const graph        *g;
    const gpu_kv_layer *kv;
    uint32_t            tokens, outputs;
    layout_item        *items; /* values by index, then what the plan adds */
    size_t              item_count;
    gpu_id              memory, run, ids, rows;
    uint64_t            bytes;
    gpu_id             *groups;
    size_t              group_count, group_capacity;
    gpu_words           words;
    size_t              at_run, at_ids, at_rows, at_ticket, read_record; /* places in the words */
    size_t              dispatches;
};

/* What the plan keeps beside a value, by the value's index: items, or -1. */
typedef struct {
    int32_t quantised, groups;
} value_notes;

static const tensor *storage(const tensor *t) { return t->base ? t->base : t; }

static gpu_place place_of(const tensor *t) {
    return (gpu_place){ (uint32_t)t->offset, (uint32_t)t->token_stride, (uint32_t)t->row_stride };
}

static uint32_t count_of(const gpu_plan *p, const tensor *t) { return t->axis == AXIS_TOKENS ? p->tokens : p->outputs; }

static gpu_kv kv_of(const gpu_kv_layer *l) {
    return (gpu_kv){ .type = l->type, .kv_heads = l->kv_heads, .head = l->head, .slots = l->slots };
}

/* ---- which items there are, and when they live --------------------------------------------------------------------------- */

static bool is_product(const op *o) { return o->kind == OP_MATMUL || o->kind == OP_MATMUL_EXPERTS; }

static bool wants_q8(const gpu_plan *p, const op *o) {
    return is_product(o) && !p->backend->precise &&
           gpu_matmul_takes_q8(gpu_host_info(p->backend->host), o->in[0]->type, count_of(p, o->in[1]));
}

static uint32_t splits_of(const gpu_plan *p, const op *o) {
    const gpu_kv kv = kv_of(&p->kv[o->layer]);
    return gpu_attention_splits(o, &kv, p->tokens,
                                p->kv[o->layer].bytes / gpu_kv_row_bytes(kv.type, kv.kv_heads, kv.head));
}

static int32_t new_item(gpu_plan *p, uint64_t bytes, uint32_t now) {
    p->items[p->item_count] = (layout_item){ .bytes = round_up(bytes, GPU_ALIGNMENT), .first = now, .last = now };
    return (int32_t)p->item_count++;
}

static void lives(layout_item *item, uint32_t now) {
    if (now < item->first) item->first = now;
    if (now > item->last) item->last = now;
}

static gm_status lay_out(gpu_plan *p, value_notes *notes, int32_t *partials, error *e) {
    const graph *g = p->g;
    for (size_t i = 0; i < g->value_count; i++) {
        notes[i] = (value_notes){ -1, -1 };
        new_item(p, 0, UINT32_MAX);
        p->items[i].last = 0;
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        const op *o = &g->ops[i];
        if (o->out) {
            p->items[o->out->index].bytes =
                round_up(count_of(p, o->out) * o->out->token_stride * sizeof(float), GPU_ALIGNMENT);
            lives(&p->items[o->out->index], i);
        }
        for (size_t j = 0; j < COUNT_OF(o->in); j++) {
            if (o->in[j] && o->in[j]->kind == TENSOR_VALUE) lives(&p->items[storage(o->in[j])->index], i);
        }
        partials[i] = -1;
        if (o->kind == OP_ATTENTION) {
            const uint64_t bytes = gpu_attention_partial_bytes(o, p->tokens, splits_of(p, o));
            if (bytes) partials[i] = new_item(p, bytes, i);
        }
        if (wants_q8(p, o)) {
            value_notes   *note = &notes[storage(o->in[1])->index];
            const uint64_t rows = (uint64_t)count_of(p, o->in[1]) * o->in[1]->ne[1];
            if (note->quantised < 0)
                note->quantised = new_item(p, gpu_quantised_bytes((uint32_t)o->in[1]->ne[0], rows), i);
            lives(&p->items[note->quantised], i);
        }
        if (o->kind == OP_MATMUL_EXPERTS && gpu_matmul_takes_groups(p->tokens)) {
            value_notes *note = &notes[storage(o->in[2])->index];
            if (note->groups < 0)
                note->groups = new_item(p, gpu_groups_bytes((uint32_t)o->in[0]->ne[2], p->tokens, o->used), i);
            lives(&p->items[note->groups], i);
        }
    }
    lives(&p->items[storage(g->result)->index], (uint32_t)g->op_count);
    return layout_assign(p->items, p->item_count, GPU_ALIGNMENT, &p->bytes, e);
}

/* ---- recording ------------------------------------------------------------------------------------------------------------- */

/* What the names of a kernel's bindings mean for the op at hand. */
typedef struct {
    const op *op;
    gpu_id    weights; /* the tile */
    uint64_t  weight_bytes;
    int32_t   quantised, groups, partial;
    bool      x_is_quantised;
} binding_names;

static gpu_binding item_binding(const gpu_plan *p, int32_t item) {
    return (gpu_binding){ 0, p->memory, p->items[item].offset, p->items[item].bytes };
}

static gpu_binding tensor_binding(const gpu_plan *p, const tensor *t) {
    if (t->kind == TENSOR_VALUE) return item_binding(p, (int32_t)storage(t)->index);
    const gpu_weight *w = gpu_backend_weight(p->backend, t);
    return (gpu_binding){ 0, w->tiles[0], 0, round_up((uint64_t)w->layout.k * sizeof(float), 16) };
}

static gm_status bind(const gpu_plan *p, const binding_names *n, const char *name, gpu_binding *out, error *e) {
    const op           *o = n->op;
    const gpu_kv_layer *kv = o->kind == OP_KV_STORE || o->kind == OP_ATTENTION ? &p->kv[o->layer] : NULL;
    const bool          product = is_product(o) || o->kind == OP_EMBED;
    if (!strcmp(name, "run")) *out = (gpu_binding){ 0, p->run, 0, RUN_WORDS * 4 };
    else if (!strcmp(name, "ids")) *out = (gpu_binding){ 0, p->ids, 0, round_up(p->tokens * 4, 16) };
    else if (!strcmp(name, "rows")) *out = (gpu_binding){ 0, p->rows, 0, round_up(p->outputs * 4, 16) };
    else if (!strcmp(name, "keys") && kv) *out = (gpu_binding){ 0, kv->k, 0, kv->bytes };
    else if (!strcmp(name, "values") && kv) *out = (gpu_binding){ 0, kv->v, 0, kv->bytes };
    else if (!strcmp(name, "weights")) *out = (gpu_binding){ 0, n->weights, 0, n->weight_bytes };
    else if (!strcmp(name, "partial") && n->partial >= 0) *out = item_binding(p, n->partial);
    else if (!strcmp(name, "groups") && n->groups >= 0) *out = item_binding(p, n->groups);
    else if (!strcmp(name, "routes")) *out = tensor_binding(p, o->in[2]);
    else if (!strcmp(name, "x") && n->x_is_quantised) *out = item_binding(p, n->quantised);
    else if (!strcmp(name, "x")) *out = tensor_binding(p, o->in[1]);
    else if (!strcmp(name, "out") && product) *out = item_binding(p, n->quantised);
    else if (!strcmp(name, "y") || !strcmp(name, "out")) *out = tensor_binding(p, o->out);
    else if (!strcmp(name, "a")) *out = tensor_binding(p, o->in[0]);
    else if (!strcmp(name, "b")) *out = tensor_binding(p, o->in[1]);
    else
        return fail(e, GM_BAD_ARGUMENT, "the kernel of %s binds '%s', which this plan does not know", op_name(o->kind),
                    name);
    return GM_OK;
}

static gm_status emit(gpu_plan *p, const gpu_kernel *k, const binding_names *names, error *e) {
    gpu_binding bindings[KERNEL_BINDS];
    for (uint32_t i = 0; i < k->bind_count; i++) {
        if (bind(p, names, k->binds[i], &bindings[i], e)) return e->status;
        bindings[i].binding = i;
    }
    if (p->group_count == p->group_capacity) {
        const size_t capacity = p->group_capacity ? 2 * p->group_capacity : 256;
        gpu_id      *groups = realloc(p->groups, capacity * sizeof *groups);
        if (!groups) return fail_memory(e, "bind groups", capacity * sizeof *groups);
        p->groups = groups;
        p->group_capacity = capacity;
    }
    const gpu_id pipeline = gpu_kernel_pipeline(p->backend->host, k, e);
    const gpu_id group = pipeline ? gpu_group_new(p->backend->host, pipeline, bindings, k->bind_count, e) : 0;
    if (!group) return e->status;
    p->groups[p->group_count++] = group;
    gpu_words_dispatch(&p->words, pipeline, group, k->x, k->y, k->z);
    p->dispatches++;
    return GM_OK;
}

static gm_status emit_embed(gpu_plan *p, const op *o, binding_names names, error *e) {
    const gpu_weight *w = gpu_backend_weight(p->backend, o->in[0]);
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel          k = { 0 };
        const gpu_embed_job job = {
            .table = &w->layout, .tile = tile, .tokens = p->tokens, .factor = o->factor, .y = place_of(o->out)
        };
        gpu_embed_kernel(&k, gpu_host_info(p->backend->host), &job);
        names.weights = w->tiles[tile];
        names.weight_bytes = weight_tile_of(&w->layout, tile).bytes;
        emit(p, &k, &names, e);
    }
    return e->status;
}

static gm_status emit_product(gpu_plan *p, const op *o, binding_names names, error *e) {
    const gpu_weight *w = gpu_backend_weight(p->backend, o->in[0]);
    const tensor     *x = o->in[1];
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel           k = { 0 };
        const gpu_matmul_job job = {
            .weights = &w->layout,
            .tile = tile,
            .tokens = count_of(p, x),
            .outputs = x->axis == AXIS_OUTPUTS,
            .q8 = names.x_is_quantised,
            .used = o->kind == OP_MATMUL_EXPERTS ? o->used : 0,
            .x_slots = x->ne[1] > 1,
            .x = names.x_is_quantised ? (gpu_place){ 0 } : place_of(x),
            .y = place_of(o->out),
            .routes = o->in[2] && names.groups < 0 ? place_of(o->in[2]) : (gpu_place){ 0 },
        };
        gpu_matmul_kernel(&k, gpu_host_info(p->backend->host), &job);
        names.weights = w->tiles[tile];
        names.weight_bytes = weight_tile_of(&w->layout, tile).bytes;
        emit(p, &k, &names, e);
    }
    return e->status;
}

/* What a product needs first, once for all that share it: its input in 8 bits, the pairs by expert. */
static gm_status prepare_product(gpu_plan *p, const op *o, binding_names *names, value_notes *notes, bool *made,
                                 error *e) {
    const tensor *x = o->in[1];
    gpu_kernel    k = { 0 };
    if (wants_q8(p, o)) {
        names->quantised = notes[storage(x)->index].quantised;
        if (!made[names->quantised]) {
            const gpu_quantise_job job = { .k = (uint32_t)x->ne[0],
                                           .rows = (uint32_t)x->ne[1],
                                           .tokens = count_of(p, x),
                                           .outputs = x->axis == AXIS_OUTPUTS,
                                           .x = place_of(x) };
            gpu_quantise_kernel(&k, gpu_host_info(p->backend->host), &job);
            if (emit(p, &k, names, e)) return e->status;
            made[names->quantised] = true;
        }
        names->x_is_quantised = true;
    }
    if (o->kind == OP_MATMUL_EXPERTS && gpu_matmul_takes_groups(p->tokens)) {
        names->groups = notes[storage(o->in[2])->index].groups;
        if (!made[names->groups]) {
            k = (gpu_kernel){ 0 };
            if (gpu_group_kernel((uint32_t)o->in[0]->ne[2], o->used, &k, e) || emit(p, &k, names, e)) return e->status;
            made[names->groups] = true;
        }
    }
    return GM_OK;
}

static gm_status emit_op(gpu_plan *p, const op *o, int32_t partial, value_notes *notes, bool *made, error *e) {
    binding_names names = { .op = o, .quantised = -1, .groups = -1, .partial = partial };
    gpu_kernel    k[2] = { { 0 }, { 0 } };
    size_t        count = 1;
    switch (o->kind) {
    case OP_EMBED: return emit_embed(p, o, names, e);
    case OP_MATMUL:
    case OP_MATMUL_EXPERTS:
        if (prepare_product(p, o, &names, notes, made, e)) return e->status;
        return emit_product(p, o, names, e);
    case OP_KV_STORE: {
        const gpu_kv kv = kv_of(&p->kv[o->layer]);
        gpu_kv_store_kernel(o, &kv, p->tokens, k, e);
        break;
    }
    case OP_ATTENTION: {
        const gpu_kv kv = kv_of(&p->kv[o->layer]);
        gpu_attention_kernels(o, &kv, p->tokens, splits_of(p, o), k, &count, e);
        break;
    }
    default: gpu_op_kernel(o, p->tokens, p->outputs, k, e); break;
    }
    for (size_t i = 0; i < count && !e->status; i++) emit(p, &k[i], &names, e);
    return e->status;
}

static gm_status record(gpu_plan *p, value_notes *notes, const int32_t *partials, error *e) {
    gpu_host *h = p->backend->host;
    bool     *made = calloc(p->item_count, sizeof *made);
    uint32_t *zeros = calloc(max_size(max_size(p->tokens, p->outputs), RUN_WORDS), sizeof *zeros);
    if (!made || !zeros) fail_memory(e, "a plan", p->item_count);
    if (!e->status) p->memory = gpu_buffer_new(h, p->bytes ? p->bytes : GPU_ALIGNMENT, e);
    if (!e->status) p->run = gpu_buffer_new(h, RUN_WORDS * 4, e);
    if (!e->status) p->ids = gpu_buffer_new(h, round_up(p->tokens * 4, 16), e);
    if (!e->status) p->rows = gpu_buffer_new(h, round_up(p->outputs * 4, 16), e);
    if (!e->status) {
        gpu_words_begin(&p->words);
        p->at_run = gpu_words_write(&p->words, p->run, 0, zeros, RUN_WORDS);
        p->at_ids = gpu_words_write(&p->words, p->ids, 0, zeros, p->tokens);
        p->at_rows = gpu_words_write(&p->words, p->rows, 0, zeros, p->outputs);
    }
    for (size_t i = 0; i < p->g->op_count && !e->status; i++) emit_op(p, &p->g->ops[i], partials[i], notes, made, e);
    if (!e->status) {
        const tensor *result = p->g->result;
        p->read_record = p->words.count;
        p->at_ticket = gpu_words_read(&p->words, p->memory, p->items[result->index].offset,
                                      count_of(p, result) * result->token_stride * sizeof(float));
        if (p->words.failed) fail_memory(e, "a command list", p->words.count * 4);
    }
    free(made);
    free(zeros);
    return e->status;
}

gm_status gpu_plan_new(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                       gpu_plan **out, error *e) {
    *out = NULL;
    if (!g->result) return fail(e, GM_BAD_ARGUMENT, "a graph without a result cannot be planned");
    gpu_plan *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "a plan", sizeof *p);
    *p = (gpu_plan){
        .backend = b, .g = g, .kv = kv, .tokens = (uint32_t)tokens, .outputs = (uint32_t)max_size(outputs, 1)
    };
    p->items = calloc(g->value_count + 3 * g->op_count, sizeof *p->items);
    value_notes *notes = calloc(max_size(g->value_count, 1), sizeof *notes);
    int32_t     *partials = calloc(max_size(g->op_count, 1), sizeof *partials);
    if (!p->items || !notes || !partials) fail_memory(e, "a plan's items", g->value_count * sizeof *p->items);
    if (!e->status && !lay_out(p, notes, partials, e)) record(p, notes, partials, e);
    free(notes);
    free(partials);
    if (e->status) gpu_plan_free(p);
    else *out = p;
    return e->status;
}

void gpu_plan_free(gpu_plan *p) {
    if (!p) return;
    gpu_host    *h = p->backend->host;
    const gpu_id buffers[] = { p->memory, p->run, p->ids, p->rows };
    for (size_t i = 0; i < p->group_count; i++) gpu_group_free(h, p->groups[i]);
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        if (buffers[i]) gpu_buffer_free(h, buffers[i]);
    }
    free(p->groups);
    free(p->items);
    free(p->words.data);
    free(p);
}

size_t gpu_plan_tokens(const gpu_plan *p) { return p->tokens; }
size_t gpu_plan_outputs(const gpu_plan *p) { return p->outputs; }
size_t gpu_plan_dispatches(const gpu_plan *p) { return p->dispatches; }

gm_status gpu_plan_submit(gpu_plan *p, const gpu_inputs *in, uint32_t ticket, error *e) {
    if (in->tokens > p->tokens || in->outputs > p->outputs)
        return fail(e, GM_BAD_ARGUMENT, "the plan is too small for this run");
    uint32_t *words = p->words.data;
    words[p->at_run] = (uint32_t)in->tokens;
    words[p->at_run + 1] = (uint32_t)in->outputs;
    words[p->at_run + 2] = (uint32_t)in->start;
    for (size_t i = 0; i < in->tokens; i++) words[p->at_ids + i] = (uint32_t)in->ids[i];
    for (size_t i = 0; i < in->outputs; i++) words[p->at_rows + i] = (uint32_t)in->output_rows[i];
    words[p->at_ticket] = ticket;
    return gpu_submit(p->backend->host, words, ticket ? p->words.count : p->read_record, e);
}
