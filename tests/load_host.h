/* A host for tests that open an engine from pieces. It answers the job's reads from a file in memory, some at a time, in any order and
 * with failures on request. */

#ifndef GM_LOAD_HOST_H
#define GM_LOAD_HOST_H

#include "session/load_parts.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *bytes[4]; /* of the parts */
    uint64_t       sizes[4];
    size_t         parts;
    const uint8_t *projector; /* a second file with towers; NULL: none */
    uint64_t       projector_size;
    bool           backwards; /* the newest read is answered first */
    size_t         fail_at;   /* the read that fails, from 1 on; 0: none */
    size_t         answered;
    uint64_t       read;                /* bytes */
    uint32_t       pending[READS_MOST]; /* tickets taken and not answered */
    size_t         pending_count;
} load_host;

static inline gm_status load_host_start(const load_host *h, const load_options *options, uint64_t piece,
                                        engine_load **out, error *e) {
    source *parts[4] = { 0 };
    gguf   *file = NULL;
    for (size_t i = 0; i < h->parts && !e->status; i++) source_pieces(h->sizes[i], &parts[i], e);
    if (e->status) {
        for (size_t i = 0; i < h->parts; i++) source_free(parts[i]);
        return e->status;
    }
    if (piece) source_set_piece(parts[0], piece);
    if (gguf_new(parts[0], &file, e)) {
        for (size_t i = 1; i < h->parts; i++) source_free(parts[i]);
        return e->status;
    }
    load_options both = *options;
    source      *towers = NULL;
    if (h->projector && !source_pieces(h->projector_size, &towers, e)) gguf_new(towers, &both.projector, e);
    return engine_load_new(file, parts + 1, h->parts - 1, &both, out, e);
}

static inline const uint8_t *load_host_bytes(const load_host *h, const gguf *file, const read_order *order) {
    size_t part = 0;
    while (part < h->parts && gguf_source(file, (uint32_t)part) != order->from) part++;
    return (part < h->parts ? h->bytes[part] : h->projector) + order->offset;
}

/* Whole words; GM_AGAIN when too much is in flight. */
static inline gm_status load_host_write(gpu_host *gpu, const read_order *order, const uint8_t *bytes, error *e) {
    const size_t length = (size_t)round_up(order->length, 4);
    uint8_t     *words = calloc(1, length);
    if (!words) return fail_memory(e, "a write", length);
    memcpy(words, bytes, (size_t)order->length);
    const gm_status status = gpu_buffer_write(gpu, order->buffer, order->at, words, length, e);
    free(words);
    return status;
}

/* Answers one read. False: there is none, or the GPU has no room. `gpu` may be NULL. */
static inline bool load_host_answer(load_host *h, reads *r, const gguf *file, gpu_host *gpu) {
    read_order order;
    uint32_t   ticket;
    while ((ticket = reads_next(r, &order))) h->pending[h->pending_count++] = ticket;
    if (!h->pending_count) return false;
    const size_t at = h->backwards ? h->pending_count - 1 : 0;
    ticket = h->pending[at];
    const read_order *wanted = reads_order(r, ticket);
    error             e = { 0 };
    if (wanted && h->answered + 1 != h->fail_at) {
        const uint8_t *bytes = load_host_bytes(h, file, wanted);
        if (wanted->memory) memcpy(wanted->memory, bytes, (size_t)wanted->length);
        else if (load_host_write(gpu, wanted, bytes, &e) == GM_AGAIN) return false;
        h->read += wanted->length;
    }
    memmove(h->pending + at, h->pending + at + 1, (h->pending_count - at - 1) * sizeof *h->pending);
    h->pending_count--;
    if (++h->answered == h->fail_at) reads_answer(r, ticket, GM_IO, "the cable was pulled");
    else reads_answer(r, ticket, e.status, e.why);
    return true;
}

/* Drives the job to its end. */
static inline gm_status load_host_run(load_host *h, engine_load *load, gm_engine **out, error *e) {
    gm_status status;
    while ((status = engine_load_step(load, e)) == GM_AGAIN) {
        gpu_host *gpu = load->engine->gpu.host;
        if (!load_host_answer(h, engine_load_reads(load), engine_load_file(load), gpu)) engine_load_wait(load);
    }
    if (!status) *out = engine_load_take(load);
    engine_load_free(load);
    return status;
}

/* The same for a session that needs bytes while it computes. */
static inline gm_status load_host_set(load_host *h, gm_session *s, const int32_t *tokens, size_t n, error *e) {
    gm_status status;
    while ((status = session_set(s, tokens, n, e)) == GM_AGAIN) {
        gpu_host *gpu = s->engine->gpu.host;
        if (!load_host_answer(h, s->engine->reads, s->engine->file, gpu) && gpu) gpu_host_wait(gpu, 10);
    }
    return status;
}

#endif
