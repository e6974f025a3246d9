/* Uploads weights: bytes go through lanes of a staging buffer, from memory or by reads that the host answers; a kernel
 * repacks them into tiles and records damage. The queue keeps the order, so a lane is free once its repacking is
 * submitted. */

#include "gpu/backend.h"
#include "gpu/experts.h"
#include "gpu/pipeline.h"

#include <stdlib.h>
#include <string.h>

/* ---- staging ---- */

/* Writes bytes to the staging buffer, padded to whole words. */
static gm_status write_bytes(gpu_backend *b, gpu_id staging, uint64_t at, const uint8_t *bytes, uint64_t count,
                             error *e) {
    const uint64_t whole = count / 4 * 4;
    uint8_t        tail[4] = { 0 };
    memcpy(tail, bytes + whole, (size_t)(count - whole));
    gm_status status = whole ? gpu_buffer_write(b->host, staging, at, bytes, whole, e) : GM_OK;
    if (!status && whole < count) status = gpu_buffer_write(b->host, staging, at + whole, tail, 4, e);
    return status;
}

static void drop_reads(const gpu_backend *b, gpu_staged *s) {
    for (size_t i = 0; i < GPU_WEIGHT_PARTS; i++) {
        reads_drop(b->reads, s->tickets[i]);
        s->tickets[i] = 0;
    }
}

void gpu_lanes_clear(gpu_backend *b, gpu_lanes *l) {
    for (; l->used; l->used--) {
        drop_reads(b, &l->staged[l->first]);
        l->first = (l->first + 1) % l->count;
    }
}

void gpu_backend_stream_restart(gpu_backend *b) { gpu_lanes_clear(b, &b->lanes); }

/* One lane if the bytes are in memory. Several if they must be read, so that reads run in parallel. */
gm_status gpu_lanes_make(gpu_backend *b, gpu_lanes *l, size_t lanes, uint64_t bytes, error *e) {
    const uint64_t unit = max_size(gpu_host_info(b->host)->alignment, 256), part = bytes / lanes / unit * unit;
    const bool     several = b->reads && part >= b->staging_least;
    l->count = several ? lanes : 1;
    l->lane_bytes = several ? part : bytes;
    l->bytes = bytes;
    l->buffer = gpu_buffer_new(b->host, bytes, e);
    return l->buffer ? GM_OK : e->status;
}

/* Copies bytes [begin, end) of a part into the lane, at once or by a read. */
static gm_status stage_part(gpu_backend *b, gpu_id staging, gpu_staged *s, size_t part, uint64_t begin, uint64_t end,
                            uint64_t at, error *e) {
    const tensor *w = &s->weight->parts[part].weight;
    if (w->data) return write_bytes(b, staging, at, (const uint8_t *)w->data + begin, end - begin, e);
    if (!b->reads || !w->from) return fail(e, GM_IO, "tensor '%s' is not in memory", w->name);
    s->tickets[part] = reads_ask(
        b->reads,
        &(read_order){
            .from = w->from, .offset = w->place + begin, .length = end - begin, .buffer = staging, .at = at });
    return s->tickets[part] ? GM_OK : GM_AGAIN;
}

/* Stages a piece of a tile in the next lane. The piece may span several parts. */
static gm_status piece_stage(gpu_backend *b, gpu_lanes *l, const gpu_staged *what, error *e) {
    const size_t      lane = (l->first + l->used) % l->count;
    gpu_staged       *s = &l->staged[lane];
    const gpu_weight *w = what->weight;
    const uint64_t    at = lane * l->lane_bytes, piece_ends = what->piece.source + what->piece.bytes;
    uint64_t          part_begins = 0;
    *s = *what;
    for (size_t i = 0; i < w->part_count; part_begins += w->parts[i++].bytes) {
        const uint64_t part_ends = part_begins + w->parts[i].bytes;
        const uint64_t begin = s->piece.source > part_begins ? s->piece.source : part_begins;
        const uint64_t end = piece_ends < part_ends ? piece_ends : part_ends;
        if (begin >= end) continue;
        const gm_status status =
            stage_part(b, l->buffer, s, i, begin - part_begins, end - part_begins, at + (begin - s->piece.source), e);
        if (status) {
            drop_reads(b, s);
            return status;
        }
    }
    l->used++;
    return GM_OK;
}

gm_status gpu_lanes_stage_expert(gpu_backend *b, gpu_lanes *l, const gpu_weight *w, uint32_t expert, uint32_t slot,
                                 uint32_t *chunk, error *e) {
    gpu_staged s = { .weight = w };
    s.piece = weight_piece_of_expert(&w->layout, expert, slot, *chunk, l->lane_bytes, &s.tile);
    s.target = w->tiles[s.tile];
    const gm_status status = piece_stage(b, l, &s, e);
    if (!status) *chunk = s.piece.next;
    return status;
}

/* ---- repacking ---- */

static gm_status repack(gpu_backend *b, const gpu_lanes *l, gpu_staged *s, error *e) {
    const weight_layout *layout = &s->weight->layout;
    gpu_kernel           kernel = { 0 };
    weight_repack_kernel(&kernel, gpu_host_info(b->host), layout, &s->piece);
    const gpu_binding bindings[] = {
        { REPACK_RAW, l->buffer, l->first * l->lane_bytes, l->lane_bytes },
        { REPACK_PLANES, s->target, 0, weight_tile_of(layout, s->tile).bytes },
        { REPACK_PIECE, b->piece, 0, WEIGHT_PIECE_WORDS * sizeof(uint32_t) },
        { REPACK_FLAGS, b->flags, 0, b->flags_made * sizeof(uint32_t) },
    };
    const gpu_id pipeline = gpu_kernel_pipeline(b->host, &kernel, e);
    const gpu_id group = pipeline ? gpu_group_new(b->host, pipeline, bindings, COUNT_OF(bindings), e) : 0;
    if (!group) return e->status;
    gpu_words words = { 0 };
    s->piece.parameters[WEIGHT_PIECE_FLAG] = s->weight->first_flag + s->tile;
    gpu_words_begin(&words);
    gpu_words_write(&words, b->piece, 0, s->piece.parameters, WEIGHT_PIECE_WORDS);
    gpu_words_dispatch(&words, pipeline, group, kernel.x, kernel.y, kernel.z);
    const gm_status status =
        words.failed ? fail_memory(e, "a command list", 64) : gpu_submit(b->host, words.data, words.count, e);
    free(words.data);
    gpu_group_free(b->host, group);
    if (!status) b->uploaded += s->piece.bytes;
    return status;
}

gm_status gpu_lanes_finish(gpu_backend *b, gpu_lanes *l, uint32_t *next, error *e) {
    gpu_staged *s = &l->staged[l->first];
    for (size_t i = 0; i < GPU_WEIGHT_PARTS; i++) {
        if (!s->tickets[i]) continue;
        const gm_status status = reads_take(b->reads, s->tickets[i], e);
        if (status == GM_AGAIN) TRY(gpu_host_problem(b->host, e));
        if (status == GM_AGAIN) return GM_AGAIN;
        s->tickets[i] = 0;
        if (status) return status;
    }
    *next = s->piece.next;
    const gm_status status = repack(b, l, s, e);
    if (status == GM_AGAIN) return status; /* the kernel still compiles */
    l->first = (l->first + 1) % l->count;
    l->used--;
    return status;
}

/* ---- damage ---- */

/* `place` as repack.wgsl reports it: a chunk of the tile, or an element with padding. */
static gm_status name_damage(const gpu_backend *b, const gpu_weight *w, uint32_t tile, uint32_t place, error *e) {
    const weight_layout *layout = &w->layout;
    const quant_format  *format = quant_format_of((uint32_t)layout->type);
    const uint32_t       padded = 32 * layout->chunks;
    uint64_t             row = weight_tile_of(layout, tile).first_row;
    if (w->cached) { /* the file has the expert elsewhere */
        const uint32_t each = layout->rows * (format->block == 1 ? padded : layout->chunks);
        row = (uint64_t)expert_cache_in_slot(b, w, (uint32_t)(row / layout->rows) + place / each) * layout->rows;
        place %= each;
    }
    uint64_t block = row * layout->k / format->block;
    if (format->block == 1) block += (uint64_t)(place / padded) * layout->k + place % padded;
    else block += (uint64_t)place * 32 / format->block;
    size_t part = 0;
    for (; part + 1 < w->part_count && block >= w->parts[part].bytes / format->bytes; part++)
        block -= w->parts[part].bytes / format->bytes;
    return fail(e, GM_BAD_FILE, "tensor '%s' (%s) holds NaN or an infinity in block %llu: the file is damaged",
                w->parts[part].weight.name, format->name, (unsigned long long)block);
}

static gm_status look_at_flags(const gpu_backend *b, const uint32_t *flags, error *e) {
    for (const gpu_weight_set *set = b->sets; set; set = set->next) {
        for (size_t i = 0; i < set->count; i++) {
            const gpu_weight *w = &set->weights[i];
            const bool        listed = w->matrix && w->first_flag + w->layout.tiles <= b->flags_made;
            for (uint32_t tile = 0; listed && tile < w->layout.tiles; tile++) {
                const uint32_t found = flags[w->first_flag + tile];
                if (found) return name_damage(b, w, tile, ~found, e);
            }
        }
    }
    return GM_OK;
}

gm_status gpu_backend_ask_damage(gpu_backend *b, error *e) {
    if (b->flag_ticket) gpu_ticket_done(b->host, b->flag_ticket);
    b->flag_ticket = gpu_ticket_new(b->host);
    if (!b->flag_ticket) return fail_memory(e, "a ticket", sizeof b->flag_ticket);
    gpu_words words = { 0 };
    gpu_words_begin(&words);
    const size_t at = gpu_words_read(&words, b->flags, 0, b->flags_made * sizeof(uint32_t));
    if (!words.failed) words.data[at] = b->flag_ticket;
    const gm_status status =
        words.failed ? fail_memory(e, "a command list", 64) : gpu_submit(b->host, words.data, words.count, e);
    free(words.data);
    return status;
}

gm_status gpu_backend_damage(gpu_backend *b, error *e) {
    uint64_t        bytes = 0;
    const uint32_t *flags = b->flag_ticket ? gpu_ticket_data(b->host, b->flag_ticket, &bytes) : NULL;
    TRY(gpu_host_problem(b->host, e));
    if (!flags) return b->flag_ticket ? GM_AGAIN : GM_OK;
    const gm_status status =
        bytes < b->flags_made * sizeof *flags
            ? fail(e, GM_IO, "the GPU returned %llu bytes about the weights", (unsigned long long)bytes)
            : look_at_flags(b, flags, e);
    gpu_ticket_done(b->host, b->flag_ticket);
    b->flag_ticket = 0;
    return status;
}

/* ---- upload everything now, or on first use ---- */

static gm_status upload_vector(gpu_backend *b, gpu_weight *w, error *e) {
    const uint64_t bytes = (uint64_t)w->layout.k * sizeof(float);
    if (!w->tiles[0]) w->tiles[0] = gpu_buffer_new(b->host, round_up(bytes, 16), e);
    if (!w->tiles[0]) return e->status;
    uint64_t at = 0;
    for (size_t i = 0; i < w->part_count; at += w->parts[i++].bytes) {
        const tensor *vector = &w->parts[i].weight;
        if (!vector->data && !vector->from) continue; /* gpu_backend_write_vector fills it */
        const gm_status status = gpu_buffer_write(b->host, w->tiles[0], at, vector->data, w->parts[i].bytes, e);
        if (status) return status;
    }
    b->uploaded += bytes;
    b->next_tile = 1;
    return GM_OK;
}

/* The buffer of a vector that has so many bytes at this offset, which becomes the one in the buffer. */
static gpu_id find_vector(gpu_backend *b, const tensor *t, uint64_t *offset, uint64_t bytes, error *e) {
    const gpu_weight_part found = gpu_backend_part(b, t);
    const gpu_weight     *w = found.weight;
    if (!w || w->matrix || !w->tiles[0] || *offset + bytes > w->parts[found.part].bytes) {
        fail(e, GM_BAD_ARGUMENT, "'%s' is not a vector on the GPU with room for %llu bytes at %llu", t->name,
             (unsigned long long)bytes, (unsigned long long)*offset);
        return 0;
    }
    for (size_t i = 0; i < found.part; i++) *offset += w->parts[i].bytes;
    return w->tiles[0];
}

gm_status gpu_backend_write_vector(gpu_backend *b, const tensor *t, uint64_t offset, const void *data, uint64_t bytes,
                                   error *e) {
    const gpu_id found = find_vector(b, t, &offset, bytes, e);
    return found ? gpu_buffer_write(b->host, found, offset, data, bytes, e) : e->status;
}

gm_status gpu_backend_read_vector(gpu_backend *b, const tensor *t, uint64_t bytes, uint32_t ticket, error *e) {
    uint64_t     offset = 0;
    const gpu_id found = find_vector(b, t, &offset, bytes, e);
    if (!found) return e->status;
    const uint32_t words[] = {
        GPU_LIST_VERSION, GPU_READ | 6u << 16,     found, (uint32_t)offset, (uint32_t)(offset >> 32),
        (uint32_t)bytes,  (uint32_t)(bytes >> 32), ticket
    };
    return gpu_submit(b->host, words, COUNT_OF(words), e);
}

gm_status gpu_backend_clear_vector(gpu_backend *b, const tensor *t, error *e) {
    uint64_t       offset = 0;
    const uint64_t bytes = t->ne[0] * sizeof(float);
    const gpu_id   found = find_vector(b, t, &offset, bytes, e);
    if (!found) return e->status;
    const uint32_t words[] = { GPU_LIST_VERSION,       GPU_CLEAR | 5u << 16,     found,
                               (uint32_t)offset,       (uint32_t)(offset >> 32), (uint32_t)bytes,
                               (uint32_t)(bytes >> 32) };
    return gpu_submit(b->host, words, COUNT_OF(words), e);
}

static gm_status stage_next(gpu_backend *b, gpu_weight *w, error *e) {
    gpu_id *tile = &w->tiles[b->next_tile];
    error   refused = { 0 };
    if (!*tile) *tile = gpu_buffer_new(b->host, weight_tile_of(&w->layout, b->next_tile).bytes, &refused);
    if (!*tile) return fail(e, refused.status, "tensor '%s': %s", w->parts[0].weight.name, refused.why);
    const gpu_staged what = { .weight = w,
                              .tile = b->next_tile,
                              .target = *tile,
                              .piece = weight_piece_at(&w->layout, b->next_tile, b->next_chunk, b->lanes.lane_bytes) };
    const gm_status  status = piece_stage(b, &b->lanes, &what, e);
    if (status) return status;
    b->next_chunk = what.piece.next;
    if (!b->next_chunk) b->next_tile++;
    return GM_OK;
}

/* Fills all free lanes. Returns GM_OK also when nothing is left to stage. */
static gm_status fill_lanes(gpu_backend *b, gpu_weight_set *set, error *e) {
    for (; b->next_weight < set->count; b->next_weight++, b->next_tile = 0) {
        gpu_weight *w = &set->weights[b->next_weight];
        if (w->gathered || w->streamed || w->cached) continue;
        while (b->next_tile < w->layout.tiles) {
            if (w->matrix && b->lanes.used == b->lanes.count) return GM_OK;
            const gm_status status = w->matrix ? stage_next(b, w, e) : upload_vector(b, w, e);
            if (status) return status;
        }
    }
    return GM_OK;
}

/* After the last submit: reads the damage flags, and frees the buffers that only uploading needs. */
static gm_status complete(gpu_backend *b, gpu_weight_set *set, error *e) {
    if (!b->flag_ticket) TRY(gpu_backend_ask_damage(b, e));
    const gm_status status = gpu_backend_damage(b, e);
    if (status) return status;
    set->complete = true;
    if (b->slot || b->experts) return GM_OK;
    gpu_buffer_free(b->host, b->lanes.buffer);
    gpu_buffer_free(b->host, b->piece);
    gpu_buffer_free(b->host, b->flags);
    b->lanes.buffer = b->piece = b->flags = 0;
    return GM_OK;
}

gm_status gpu_backend_upload(gpu_backend *b, const graph *g, error *e) {
    uint32_t        ignored;
    gpu_weight_set *set = gpu_backend_set(b, g);
    if (set && set->complete) return gpu_host_problem(b->host, e);
    if ((!set || !set->begun) && gpu_backend_is_busy(b, g)) return GM_AGAIN;
    if (!set || !set->begun) TRY(gpu_backend_find_weights(b, g, e));
    set = gpu_backend_set(b, g);
    for (;;) {
        gm_status status = fill_lanes(b, set, e);
        if (status && (status != GM_AGAIN || !b->lanes.used)) return status;
        if (!b->lanes.used) return complete(b, set, e);
        status = gpu_lanes_finish(b, &b->lanes, &ignored, e);
        if (status) return status;
    }
}

gm_status gpu_backend_stream(gpu_backend *b, const gpu_weight *w, uint32_t tile, uint32_t *chunk, uint32_t end,
                             error *e) {
    if (!b->lanes.used) {
        const uint64_t   left = round_up(weight_source_bytes(&w->layout, end - *chunk), 4), lane = b->lanes.lane_bytes;
        const uint64_t   most = left < lane ? left : lane;
        const gpu_staged what = { .weight = w,
                                  .tile = tile,
                                  .target = b->slot,
                                  .piece = weight_piece_at(&w->layout, tile, *chunk,
                                                           most < weight_staging_least(&w->layout) ? lane : most) };
        const gm_status  status = piece_stage(b, &b->lanes, &what, e);
        if (status) return status;
    }
    uint32_t        next = *chunk;
    const gm_status status = gpu_lanes_finish(b, &b->lanes, &next, e);
    if (!status) *chunk = next ? next : end;
    return status;
}
