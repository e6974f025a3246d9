/* Weights on the GPU: found in the graph, streamed through a staging buffer, repacked by a kernel. */

#include "gpu/backend.h"

#include "gpu/pipeline.h"

#include <stdlib.h>
#include <string.h>

enum { STAGING_BYTES = 16 << 20 };

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
    free(b->weights);
    free(b->slots);
    *b = (gpu_backend){ .host = b->host, .precise = b->precise };
}

void gpu_backend_close(gpu_backend *b) {
    if (!b->host) return;
    gpu_backend_clear(b);
    gpu_host_close(b->host);
    *b = (gpu_backend){ 0 };
}

/* ---- which weights there are ----------------------------------------------------------------------------------------- */

static size_t slot_of(const gpu_backend *b, const void *data) {
    size_t at = (size_t)(((uintptr_t)data >> 5) * 0x9e3779b97f4a7c15u) % b->slot_count;
    while (b->slots[at] && b->weights[b->slots[at] - 1].data != data) at = (at + 1) % b->slot_count;
    return at;
}

const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t) {
    const uint32_t found = b->slot_count ? b->slots[slot_of(b, t->data)] : 0;
    return found ? &b->weights[found - 1] : NULL;
}

static gm_status add_weight(gpu_backend *b, const tensor *t, bool matrix, error *e) {
    const size_t at = slot_of(b, t->data);
    if (b->slots[at]) return GM_OK;
    gpu_weight *w = &b->weights[b->count];
    *w = (gpu_weight){ .data = t->data, .name = t->name, .matrix = matrix };
    if (matrix && weight_layout_make(&w->layout, t->type, t->ne, gpu_host_info(b->host)->max_binding, e))
        return e->status;
    if (!matrix)
        w->layout = (weight_layout){ .type = TYPE_F32, .k = (uint32_t)t->ne[0], .rows = 1, .experts = 1, .tiles = 1 };
    w->tiles = calloc(w->layout.tiles, sizeof *w->tiles);
    if (!w->tiles) return fail_memory(e, "a weight's tiles", w->layout.tiles * sizeof *w->tiles);
    b->slots[at] = (uint32_t)++b->count;
    b->total += quant_row_bytes(quant_format_of(w->layout.type), w->layout.k) * w->layout.rows * w->layout.experts;
    return GM_OK;
}

static gm_status find_weights(gpu_backend *b, const graph *g, error *e) {
    const size_t most = 3 * g->op_count;
    b->slot_count = 2 * most + 1;
    b->weights = calloc(most, sizeof *b->weights);
    b->slots = calloc(b->slot_count, sizeof *b->slots);
    if (!b->weights || !b->slots) return fail_memory(e, "the table of weights", most * sizeof *b->weights);
    for (size_t i = 0; i < g->op_count; i++) {
        const op  *o = &g->ops[i];
        const bool product = o->kind == OP_EMBED || o->kind == OP_MATMUL || o->kind == OP_MATMUL_EXPERTS;
        for (size_t j = 0; j < COUNT_OF(o->in); j++) {
            if (o->in[j] && o->in[j]->kind == TENSOR_WEIGHT && add_weight(b, o->in[j], product && j == 0, e))
                return e->status;
        }
    }
    b->staging = gpu_buffer_new(b->host, STAGING_BYTES, e);
    b->piece = gpu_buffer_new(b->host, WEIGHT_PIECE_WORDS * sizeof(uint32_t), e);
    return e->status;
}

/* ---- bringing them over ------------------------------------------------------------------------------------------------ */

/* A GPU may compute with NaN as it likes, so that logits need not show it: damage is looked for on the way in. */
static gm_status check_piece(const gpu_weight *w, const uint8_t *bytes, const weight_piece *piece, error *e) {
    const quant_format *format = quant_format_of(w->layout.type);
    const uint64_t blocks = piece->bytes / format->bytes, broken = quant_first_broken(w->layout.type, bytes, blocks);
    if (broken == blocks) return GM_OK;
    return fail(e, GM_BAD_FILE, "tensor '%s' (%s) holds NaN or an infinity in block %llu: the file is damaged", w->name,
                format->name, (unsigned long long)(piece->source / format->bytes + broken));
}

/* One piece of a tile: its bytes to the staging buffer, then the repack kernel. */
static gm_status upload_piece(gpu_backend *b, gpu_weight *w, const weight_tile *tile, error *e) {
    const weight_piece piece = weight_piece_at(&w->layout, b->next_tile, b->next_chunk, STAGING_BYTES);
    const uint8_t     *bytes = (const uint8_t *)w->data + piece.source;
    const uint64_t     whole = piece.bytes / 4 * 4;
    if (check_piece(w, bytes, &piece, e)) return e->status;
    uint8_t tail[4] = { 0 };
    memcpy(tail, bytes + whole, (size_t)(piece.bytes - whole));
    gm_status status = whole ? gpu_buffer_write(b->host, b->staging, 0, bytes, whole, e) : GM_OK;
    if (status) return status;
    if (whole < piece.bytes) {
        status = gpu_buffer_write(b->host, b->staging, whole, tail, 4, e);
        if (status) return status;
    }

    gpu_kernel kernel = { 0 };
    weight_repack_kernel(&kernel, gpu_host_info(b->host), &w->layout, &piece);
    const gpu_id pipeline = gpu_kernel_pipeline(b->host, &kernel, e);
    gpu_binding  bindings[KERNEL_BINDS];
    for (uint32_t i = 0; i < kernel.bind_count; i++) {
        const bool raw = !strcmp(kernel.binds[i], "raw"), planes = !strcmp(kernel.binds[i], "planes");
        bindings[i] = (gpu_binding){ i,
                                     raw      ? b->staging
                                     : planes ? w->tiles[b->next_tile]
                                              : b->piece,
                                     0,
                                     raw      ? STAGING_BYTES
                                     : planes ? tile->bytes
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
        b->next_chunk = piece.next;
        if (!piece.next) b->next_tile++;
    }
    return status;
}

static gm_status upload_vector(gpu_backend *b, gpu_weight *w, error *e) {
    const uint64_t bytes = (uint64_t)w->layout.k * sizeof(float);
    if (!w->tiles[0]) w->tiles[0] = gpu_buffer_new(b->host, round_up(bytes, 16), e);
    if (!w->tiles[0]) return e->status;
    const gm_status status = gpu_buffer_write(b->host, w->tiles[0], 0, w->data, bytes, e);
    if (!status) {
        b->uploaded += bytes;
        b->next_tile = 1;
    }
    return status;
}

gm_status gpu_backend_upload(gpu_backend *b, const graph *g, error *e) {
    if (!b->weights && find_weights(b, g, e)) return e->status;
    for (; b->next_weight < b->count; b->next_weight++, b->next_tile = 0) {
        gpu_weight *w = &b->weights[b->next_weight];
        while (b->next_tile < w->layout.tiles) {
            gm_status status;
            if (w->matrix) {
                const weight_tile tile = weight_tile_of(&w->layout, b->next_tile);
                if (!w->tiles[b->next_tile]) w->tiles[b->next_tile] = gpu_buffer_new(b->host, tile.bytes, e);
                status = w->tiles[b->next_tile] ? upload_piece(b, w, &tile, e) : e->status;
            } else status = upload_vector(b, w, e);
            if (status) return status;
        }
    }
    gpu_buffer_free(b->host, b->staging);
    gpu_buffer_free(b->host, b->piece);
    b->staging = b->piece = 0;
    return gpu_host_problem(b->host, e);
}
