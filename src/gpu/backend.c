/* Weights on the GPU: found in the graph, streamed through a staging buffer, repacked by a kernel. */

#include "gpu/backend.h"

#include "gpu/matmul.h"
#include "gpu/pipeline.h"

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
    if (b->staging) gpu_buffer_free(b->host, b->staging);
    if (b->piece) gpu_buffer_free(b->host, b->piece);
    if (b->slot) gpu_buffer_free(b->host, b->slot);
    free(b->weights);
    free(b->slots);
    *b = (gpu_backend){ .host = b->host, .precise = b->precise, .budget = b->budget };
}

void gpu_backend_close(gpu_backend *b) {
    if (!b->host) return;
    gpu_backend_clear(b);
    gpu_host_close(b->host);
    *b = (gpu_backend){ 0 };
}

void gpu_backend_keep_to(gpu_backend *b, const gpu_budget *budget) { b->budget = budget; }

bool gpu_backend_needs_host(const gpu_backend *b) { return b->budget && b->budget->token_bytes; }

/* ---- which weights there are ----------------------------------------------------------------------------------------- */

static size_t slot_of(const gpu_backend *b, const void *data) {
    size_t at = (size_t)(((uintptr_t)data >> 5) * 0x9e3779b97f4a7c15u) % b->slot_count;
    while (b->slots[at] && b->weights[b->slots[at] - 1].parts[0].data != data) at = (at + 1) % b->slot_count;
    return at;
}

const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t) {
    const uint32_t found = b->slot_count ? b->slots[slot_of(b, t->data)] : 0;
    return found ? &b->weights[found - 1] : NULL;
}

fuse_options gpu_backend_fusion(const gpu_backend *b, size_t tokens, size_t outputs) {
    const uint64_t padding = 1 << 16; /* planes are a little longer than the tensors they are made of */
    return (fuse_options){ .one_token = tokens == 1,
                           .one_output = outputs == 1,
                           .most_bytes = gpu_host_info(b->host)->max_binding - padding,
                           .most_column = gpu_matvec_most_column(gpu_host_info(b->host)) };
}

/* In main memory: as the budget says. Parts that are joined come into the slot as one tile. */
static gm_status lay_out(gpu_backend *b, gpu_weight *w, const tensor *first, const uint64_t ne[3], error *e) {
    const budget_weight *plan = b->budget ? gpu_budget_weight(b->budget, first->data) : NULL;
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
        w->parts[w->part_count].data = t->data;
        w->parts[w->part_count].name = t->name;
        w->parts[w->part_count++].bytes =
            quant_row_bytes(quant_format_of((uint32_t)t->type), t->ne[0]) * t->ne[1] * t->ne[2];
        ne[1] += t->ne[1];
    }
    return lay_out(b, w, parts[0], ne, e);
}

static void add_vector(gpu_weight *w, const tensor *t) {
    w->part_count = 1;
    w->parts[0].data = t->data;
    w->parts[0].name = t->name;
    w->parts[0].bytes = t->ne[0] * sizeof(float);
    w->layout = (weight_layout){ .type = TYPE_F32, .k = (uint32_t)t->ne[0], .rows = 1, .experts = 1, .tiles = 1 };
}

/* `parts` of a matrix: up to three, then NULL. */
static gm_status add_weight(gpu_backend *b, tensor *const *parts, bool matrix, error *e) {
    const size_t at = slot_of(b, parts[0]->data);
    if (b->slots[at]) return GM_OK;
    gpu_weight *w = &b->weights[b->count];
    *w = (gpu_weight){ 0 };
    if (!matrix) add_vector(w, parts[0]);
    else if (add_matrix(b, w, parts, e)) return e->status;
    w->tiles = calloc(w->layout.tiles, sizeof *w->tiles);
    if (!w->tiles) return fail_memory(e, "a weight's tiles", w->layout.tiles * sizeof *w->tiles);
    b->slots[at] = (uint32_t)++b->count;
    for (size_t i = 0; i < w->part_count; i++) {
        b->total += w->parts[i].bytes;
        if (matrix) b->staging_bytes = max_size(b->staging_bytes, budget_staging(&w->layout, w->parts[i].bytes));
    }
    return GM_OK;
}

static gm_status add_weights_of(gpu_backend *b, const op *o, error *e) {
    if (o->kind == OP_EMBED || o->kind == OP_PRODUCTS) {
        tensor *parts[GPU_WEIGHT_PARTS + 1] = { o->in[0] };
        if (o->kind == OP_PRODUCTS) memcpy(parts, o->in, GPU_WEIGHT_PARTS * sizeof *parts);
        if (add_weight(b, parts, true, e)) return e->status;
    }
    const size_t first = o->kind == OP_PRODUCTS ? FUSED_A : o->kind == OP_EMBED;
    for (size_t j = first; j < OP_INPUTS; j++) {
        tensor *parts[] = { o->in[j], NULL };
        if (o->in[j] && o->in[j]->kind == TENSOR_WEIGHT && add_weight(b, parts, false, e)) return e->status;
    }
    return GM_OK;
}

static gm_status find_weights(gpu_backend *b, const graph *g, error *e) {
    const fuse_options options = gpu_backend_fusion(b, 0, 0);
    const size_t       most = 3 * g->op_count;
    graph              fused;
    if (graph_fuse(g, &options, &fused, e)) return e->status;
    b->slot_count = 2 * most + 1;
    b->weights = calloc(most, sizeof *b->weights);
    b->slots = calloc(b->slot_count, sizeof *b->slots);
    if (!b->weights || !b->slots) fail_memory(e, "the table of weights", most * sizeof *b->weights);
    for (size_t i = 0; i < fused.op_count && !e->status; i++) add_weights_of(b, &fused.ops[i], e);
    graph_free(&fused);
    if (!e->status) b->staging = gpu_buffer_new(b->host, max_size(b->staging_bytes, 256), e);
    if (!e->status && b->budget && b->budget->slot) b->slot = gpu_buffer_new(b->host, b->budget->slot, e);
    if (!e->status) b->piece = gpu_buffer_new(b->host, WEIGHT_PIECE_WORDS * sizeof(uint32_t), e);
    return e->status;
}

/* ---- bringing them over ------------------------------------------------------------------------------------------------ */

/* A GPU may compute with NaN as it likes, so that logits need not show it: damage is looked for on the way in. */
static gm_status check_blocks(const char *name, quant_type type, const uint8_t *bytes, uint64_t count, uint64_t before,
                              error *e) {
    const quant_format *format = quant_format_of((uint32_t)type);
    const uint64_t      blocks = count / format->bytes, broken = quant_first_broken(type, bytes, blocks);
    if (broken == blocks) return GM_OK;
    return fail(e, GM_BAD_FILE, "tensor '%s' (%s) holds NaN or an infinity in block %llu: the file is damaged", name,
                format->name, (unsigned long long)(before / format->bytes + broken));
}

/* Bytes to the staging buffer, which takes whole words: the last one is filled up. */
static gm_status stage(gpu_backend *b, uint64_t at, const uint8_t *bytes, uint64_t count, error *e) {
    const uint64_t whole = count / 4 * 4;
    uint8_t        tail[4] = { 0 };
    memcpy(tail, bytes + whole, (size_t)(count - whole));
    gm_status status = whole ? gpu_buffer_write(b->host, b->staging, at, bytes, whole, e) : GM_OK;
    if (!status && whole < count) status = gpu_buffer_write(b->host, b->staging, at + whole, tail, 4, e);
    return status;
}

/* A piece's bytes, from the parts that it lies in. */
static gm_status stage_piece(gpu_backend *b, const gpu_weight *w, const weight_piece *piece, error *e) {
    uint64_t part_begins = 0;
    for (size_t i = 0; i < w->part_count; part_begins += w->parts[i++].bytes) {
        const uint64_t part_ends = part_begins + w->parts[i].bytes, piece_ends = piece->source + piece->bytes;
        const uint64_t begin = piece->source > part_begins ? piece->source : part_begins;
        const uint64_t end = piece_ends < part_ends ? piece_ends : part_ends;
        if (begin >= end) continue;
        const uint8_t *bytes = w->parts[i].data + (begin - part_begins);
        if (check_blocks(w->parts[i].name, w->layout.type, bytes, end - begin, begin - part_begins, e))
            return e->status;
        const gm_status status = stage(b, begin - piece->source, bytes, end - begin, e);
        if (status) return status;
    }
    return GM_OK;
}

/* One piece of a tile: its bytes to the staging buffer, then the repack kernel. */
static gm_status upload_piece(gpu_backend *b, const gpu_weight *w, uint32_t index, gpu_id target, uint32_t *chunk,
                              uint64_t most_bytes, error *e) {
    const weight_tile  tile = weight_tile_of(&w->layout, index);
    const weight_piece piece = weight_piece_at(&w->layout, index, *chunk, most_bytes);
    gm_status          status = stage_piece(b, w, &piece, e);
    if (status) return status;

    gpu_kernel kernel = { 0 };
    weight_repack_kernel(&kernel, gpu_host_info(b->host), &w->layout, &piece);
    const gpu_id pipeline = gpu_kernel_pipeline(b->host, &kernel, e);
    gpu_binding  bindings[KERNEL_BINDS];
    for (uint32_t i = 0; i < kernel.bind_count; i++) {
        const bool raw = !strcmp(kernel.binds[i], "raw"), planes = !strcmp(kernel.binds[i], "planes");
        bindings[i] = (gpu_binding){ i,
                                     raw      ? b->staging
                                     : planes ? target
                                              : b->piece,
                                     0,
                                     raw      ? b->staging_bytes
                                     : planes ? tile.bytes
                                              : WEIGHT_PIECE_WORDS * sizeof(uint32_t) };
    }
    const gpu_id group = pipeline ? gpu_group_new(b->host, pipeline, bindings, kernel.bind_count, e) : 0;
    if (!group) return e->status;
    gpu_words words = { 0 };
    gpu_words_begin(&words);
    gpu_words_write(&words, b->piece, 0, piece.parameters, WEIGHT_PIECE_WORDS);
    gpu_words_dispatch(&words, pipeline, group, kernel.x, kernel.y, kernel.z);
    status = words.failed ? fail_memory(e, "a command list", 64) : gpu_submit(b->host, words.data, words.count, e);
    free(words.data);
    gpu_group_free(b->host, group);
    if (!status) {
        b->uploaded += piece.bytes;
        *chunk = piece.next;
    }
    return status;
}

static gm_status upload_vector(gpu_backend *b, gpu_weight *w, error *e) {
    const uint64_t bytes = (uint64_t)w->layout.k * sizeof(float);
    if (!w->tiles[0]) w->tiles[0] = gpu_buffer_new(b->host, round_up(bytes, 16), e);
    if (!w->tiles[0]) return e->status;
    const gm_status status = gpu_buffer_write(b->host, w->tiles[0], 0, w->parts[0].data, bytes, e);
    if (!status) {
        b->uploaded += bytes;
        b->next_tile = 1;
    }
    return status;
}

gm_status gpu_backend_stream(gpu_backend *b, const gpu_weight *w, uint32_t tile, uint32_t *chunk, uint32_t end,
                             error *e) {
    const uint64_t  left = round_up(weight_source_bytes(&w->layout, end - *chunk), 4);
    const uint64_t  most = left < b->staging_bytes ? left : b->staging_bytes;
    uint32_t        next = *chunk;
    const gm_status status =
        upload_piece(b, w, tile, b->slot, &next, most < weight_staging_least(&w->layout) ? b->staging_bytes : most, e);
    if (!status) *chunk = next ? next : end;
    return status;
}

static gm_status upload_matrix(gpu_backend *b, gpu_weight *w, error *e) {
    gpu_id *tile = &w->tiles[b->next_tile];
    error   refused = { 0 };
    if (!*tile) *tile = gpu_buffer_new(b->host, weight_tile_of(&w->layout, b->next_tile).bytes, &refused);
    if (!*tile) return fail(e, refused.status, "tensor '%s': %s", w->parts[0].name, refused.why);
    const gm_status status = upload_piece(b, w, b->next_tile, *tile, &b->next_chunk, b->staging_bytes, e);
    if (!status && !b->next_chunk) b->next_tile++;
    return status;
}

gm_status gpu_backend_upload(gpu_backend *b, const graph *g, error *e) {
    if (!b->weights && find_weights(b, g, e)) return e->status;
    for (; b->next_weight < b->count; b->next_weight++, b->next_tile = 0) {
        gpu_weight *w = &b->weights[b->next_weight];
        if (w->gathered || w->streamed) continue;
        while (b->next_tile < w->layout.tiles) {
            const gm_status status = w->matrix ? upload_matrix(b, w, e) : upload_vector(b, w, e);
            if (status) return status;
        }
    }
    if (b->slot) return gpu_host_problem(b->host, e);
    gpu_buffer_free(b->host, b->staging);
    gpu_buffer_free(b->host, b->piece);
    b->staging = b->piece = 0;
    return gpu_host_problem(b->host, e);
}
