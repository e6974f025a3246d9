/* Weights on the GPU: finds the weights of a graph and decides their layout. upload.c uploads them. */

#include "gpu/backend.h"

#include "gpu/matmul.h"

#include <stdlib.h>
#include <string.h>

gm_status gpu_backend_open(gpu_backend *b, const gpu_options *options, bool precise, error *e) {
    *b = (gpu_backend){ .precise = precise };
    return gpu_host_open(options, &b->host, e);
}

void gpu_backend_clear(gpu_backend *b) {
    for (size_t i = 0; i < b->count; i++) {
        for (uint32_t tile = 0; tile < b->weights[i].layout.tiles; tile++) {
            if (b->weights[i].tiles[tile]) gpu_buffer_free(b->host, b->weights[i].tiles[tile]);
        }
        free(b->weights[i].tiles);
    }
    const gpu_id buffers[] = { b->staging, b->piece, b->flags, b->slot };
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        if (buffers[i]) gpu_buffer_free(b->host, buffers[i]);
    }
    gpu_backend_stream_restart(b);
    if (b->flag_ticket) gpu_ticket_done(b->host, b->flag_ticket);
    free(b->weights);
    free(b->slots);
    *b = (gpu_backend){ .host = b->host, .precise = b->precise, .budget = b->budget, .reads = b->reads };
}

void gpu_backend_close(gpu_backend *b) {
    if (!b->host) return;
    gpu_backend_clear(b);
    gpu_host_close(b->host);
    *b = (gpu_backend){ 0 };
}

void gpu_backend_keep_to(gpu_backend *b, const gpu_budget *budget) { b->budget = budget; }

void gpu_backend_read_by(gpu_backend *b, reads *r) { b->reads = r; }

bool gpu_backend_needs_host(const gpu_backend *b) { return b->budget && b->budget->token_bytes; }

/* ---- the table of weights ---- */

static size_t backend_slot(const gpu_backend *b, const tensor *t) {
    const uint64_t key = t->data ? (uintptr_t)t->data : t->place;
    size_t         at = (size_t)((key >> 5) * 0x9e3779b97f4a7c15u % b->slot_count);
    while (b->slots[at] && !tensor_same_weight(&b->weights[b->slots[at] - 1].parts[0].weight, t))
        at = (at + 1) % b->slot_count;
    return at;
}

const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t) {
    const uint32_t found = b->slot_count ? b->slots[backend_slot(b, t)] : 0;
    return found ? &b->weights[found - 1] : NULL;
}

fuse_options gpu_backend_fusion(const gpu_backend *b, size_t tokens, size_t outputs) {
    const uint64_t padding = 1 << 16; /* planes are a little larger than the tensors that they hold */
    return (fuse_options){ .one_token = tokens == 1,
                           .one_output = outputs == 1,
                           .most_bytes = gpu_host_info(b->host)->max_binding - padding,
                           .most_column = gpu_matvec_most_column(gpu_host_info(b->host)) };
}

/* The budget says which weights stay in main memory. Joined parts are uploaded into the slot as one tile. */
static gm_status lay_out(gpu_backend *b, gpu_weight *w, const tensor *first, const uint64_t ne[3], error *e) {
    const budget_weight *plan = b->budget ? gpu_budget_weight(b->budget, first) : NULL;
    uint64_t             most = gpu_host_info(b->host)->max_binding;
    w->gathered = plan && plan->out && plan->table;
    w->streamed = plan && plan->out && plan->kind != BUDGET_TABLES;
    if (w->streamed && w->part_count == 1 && plan->slot < most) most = plan->slot;
    return weight_layout_make(&w->layout, first->type, ne, most, e);
}

static gm_status add_matrix(gpu_backend *b, gpu_weight *w, tensor *const *parts, error *e) {
    uint64_t ne[3] = { parts[0]->ne[0], 0, parts[0]->ne[2] };
    w->matrix = true;
    for (size_t i = 0; i < GPU_WEIGHT_PARTS && parts[i]; i++) {
        const tensor *t = parts[i];
        w->parts[w->part_count].weight = *t;
        w->parts[w->part_count++].bytes =
            quant_row_bytes(quant_format_of((uint32_t)t->type), t->ne[0]) * t->ne[1] * t->ne[2];
        ne[1] += t->ne[1];
    }
    return lay_out(b, w, parts[0], ne, e);
}

static void add_vector(gpu_weight *w, const tensor *t) {
    w->part_count = 1;
    w->parts[0].weight = *t;
    w->parts[0].bytes = t->ne[0] * sizeof(float);
    w->layout = (weight_layout){ .type = TYPE_F32, .k = (uint32_t)t->ne[0], .rows = 1, .experts = 1, .tiles = 1 };
}

/* `parts` are the parts of a matrix: up to three, then NULL. */
static gm_status add_weight(gpu_backend *b, tensor *const *parts, bool matrix, error *e) {
    const size_t at = backend_slot(b, parts[0]);
    if (b->slots[at]) return GM_OK;
    gpu_weight *w = &b->weights[b->count];
    *w = (gpu_weight){ 0 };
    if (!matrix) add_vector(w, parts[0]);
    else TRY(add_matrix(b, w, parts, e));
    w->tiles = calloc(w->layout.tiles, sizeof *w->tiles);
    if (!w->tiles) return fail_memory(e, "a weight's tiles", w->layout.tiles * sizeof *w->tiles);
    b->slots[at] = (uint32_t)++b->count;
    w->first_flag = b->flag_count;
    if (matrix) {
        b->flag_count += w->layout.tiles;
        b->staging_least = max_size(b->staging_least, weight_staging_least(&w->layout));
    }
    for (size_t i = 0; i < w->part_count; i++) {
        if (!w->gathered && !w->streamed) b->total += w->parts[i].bytes;
        if (matrix) b->staging_bytes = max_size(b->staging_bytes, budget_staging(&w->layout, w->parts[i].bytes));
    }
    return GM_OK;
}

static gm_status add_weights_of(gpu_backend *b, const op *o, error *e) {
    if (o->kind == OP_EMBED || o->kind == OP_PRODUCTS) {
        tensor *parts[GPU_WEIGHT_PARTS + 1] = { o->in[0] };
        if (o->kind == OP_PRODUCTS) memcpy(parts, o->in, GPU_WEIGHT_PARTS * sizeof *parts);
        TRY(add_weight(b, parts, true, e));
    }
    const size_t first = o->kind == OP_PRODUCTS ? FUSED_A : o->kind == OP_EMBED;
    for (size_t j = first; j < OP_INPUTS; j++) {
        tensor *parts[] = { o->in[j], NULL };
        if (o->in[j] && o->in[j]->kind == TENSOR_WEIGHT) TRY(add_weight(b, parts, false, e));
    }
    return GM_OK;
}

/* One lane if the bytes are in memory. Several if they must be read, so that reads run in parallel. */
static void make_lanes(gpu_backend *b) {
    const uint64_t unit = max_size(gpu_host_info(b->host)->alignment, 256),
                   part = b->staging_bytes / GPU_LANES / unit * unit;
    const bool several = b->reads && part >= b->staging_least;
    b->lanes = several ? GPU_LANES : 1;
    b->lane_bytes = several ? part : b->staging_bytes;
}

gm_status gpu_backend_list_weights(gpu_backend *b, const graph *g, error *e) {
    const fuse_options options = gpu_backend_fusion(b, 0, 0);
    const size_t       most = 3 * g->op_count;
    graph              fused;
    TRY(graph_fuse(g, &options, &fused, e));
    b->slot_count = 2 * most + 1;
    b->weights = calloc(most, sizeof *b->weights);
    b->slots = calloc(b->slot_count, sizeof *b->slots);
    gm_status status = GM_OK;
    if (!b->weights || !b->slots) status = fail_memory(e, "the table of weights", most * sizeof *b->weights);
    for (size_t i = 0; i < fused.op_count && !status; i++) status = add_weights_of(b, &fused.ops[i], e);
    for (size_t i = 0; i < b->count; i++) b->weights[i].like = b->weights[i].layout;
    graph_free(&fused);
    return status;
}

gm_status gpu_backend_find_weights(gpu_backend *b, const graph *g, error *e) {
    TRY(gpu_backend_list_weights(b, g, e));
    b->staging_bytes = max_size(b->staging_bytes, 256);
    make_lanes(b);
    const uint64_t slot = b->budget ? b->budget->slot : 0;
    b->staging = gpu_buffer_new(b->host, b->staging_bytes, e);
    if (!b->staging) return e->status;
    b->flags = gpu_buffer_new(b->host, max_size(b->flag_count, 4) * sizeof(uint32_t), e);
    if (!b->flags) return e->status;
    b->slot = slot ? gpu_buffer_new(b->host, slot, e) : 0;
    if (slot && !b->slot) return e->status;
    b->piece = gpu_buffer_new(b->host, WEIGHT_PIECE_WORDS * sizeof(uint32_t), e);
    if (!b->piece) return e->status;
    return GM_OK;
}
