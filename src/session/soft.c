#include "session/soft.h"

#include <stdlib.h>
#include <string.h>

static size_t end_of(const soft_span *span) { return span->begin + span->count; }

/* Makes room for `count` things; at least doubles, so that many small additions cost little. */
static void *grown(void *things, size_t *capacity, size_t count, size_t size, error *e) {
    if (count <= *capacity) return things;
    const size_t more = max_size(count, 2 * *capacity);
    void        *moved = more <= SIZE_MAX / size ? realloc(things, more * size) : NULL;
    if (!moved) {
        fail_memory(e, "soft tokens", (uint64_t)more * size);
        return things;
    }
    *capacity = more;
    return moved;
}

static gm_status reserve(soft_tokens *s, size_t spans, size_t rows, size_t batch, error *e) {
    size_t ids = s->batch_capacity, seen = s->batch_capacity;
    s->spans = grown(s->spans, &s->span_capacity, spans, sizeof *s->spans, e);
    s->rows = grown(s->rows, &s->row_capacity, rows, s->width * sizeof *s->rows, e);
    s->ids = grown(s->ids, &ids, batch, sizeof *s->ids, e);
    s->last_seen = grown(s->last_seen, &seen, batch, sizeof *s->last_seen, e);
    s->batch_capacity = min_size(ids, seen);
    return e->status;
}

gm_status soft_add(soft_tokens *s, size_t begin, const float *rows, size_t count, size_t width, bool block,
                   size_t batch, error *e) {
    s->width = width;
    if (reserve(s, s->span_count + 1, s->row_count + count, max_size(batch, count), e)) return e->status;
    memcpy(s->rows + s->row_count * width, rows, count * width * sizeof *rows);
    s->spans[s->span_count++] =
        (soft_span){ .begin = begin, .count = count, .first_row = s->row_count, .block = block };
    s->row_count += count;
    return GM_OK;
}

void soft_truncate(soft_tokens *s, size_t keep) {
    while (s->span_count && s->spans[s->span_count - 1].begin >= keep) s->span_count--;
    soft_span *last = s->span_count ? &s->spans[s->span_count - 1] : NULL;
    if (last) last->count = min_size(last->count, keep - last->begin);
    s->row_count = last ? last->first_row + last->count : 0;
}

gm_status soft_copy(soft_tokens *out, const soft_tokens *s, error *e) {
    *out = (soft_tokens){ .width = s->width };
    if (!s->span_count || reserve(out, s->span_count, s->row_count, s->batch_capacity, e)) return e->status;
    memcpy(out->spans, s->spans, s->span_count * sizeof *s->spans);
    memcpy(out->rows, s->rows, s->row_count * s->width * sizeof *s->rows);
    out->span_count = s->span_count;
    out->row_count = s->row_count;
    return GM_OK;
}

void soft_free(soft_tokens *s) {
    free(s->spans);
    free(s->rows);
    free(s->ids);
    free(s->last_seen);
    *s = (soft_tokens){ 0 };
}

size_t soft_first(const soft_tokens *s, size_t otherwise) { return s->span_count ? s->spans[0].begin : otherwise; }

size_t soft_end(const soft_tokens *s) { return s->span_count ? end_of(&s->spans[s->span_count - 1]) : 0; }

const soft_span *soft_block_around(const soft_tokens *s, size_t position) {
    for (size_t i = 0; i < s->span_count; i++) {
        const soft_span *span = &s->spans[i];
        if (span->block && span->begin < position && position < end_of(span)) return span;
    }
    return NULL;
}

soft_batch soft_fill(soft_tokens *s, const int32_t *ids, size_t begin, size_t count) {
    soft_batch   out = { .ids = ids };
    const size_t end = begin + count;
    for (size_t i = 0; i < s->span_count; i++) {
        const soft_span *span = &s->spans[i];
        const size_t     first = max_size(begin, span->begin), last = min_size(end, end_of(span));
        if (first >= last) continue;
        if (!out.given) { /* the first span of this batch */
            memcpy(s->ids, ids, count * sizeof *ids);
            for (size_t t = 0; t < count; t++) s->last_seen[t] = (uint32_t)t;
            out.ids = s->ids;
            out.given = s->rows;
        }
        if (span->block) out.last_seen = s->last_seen;
        for (size_t p = first; p < last; p++) {
            s->ids[p - begin] = -1 - (int32_t)(span->first_row + p - span->begin);
            if (span->block) s->last_seen[p - begin] = (uint32_t)(last - begin - 1);
        }
    }
    return out;
}
