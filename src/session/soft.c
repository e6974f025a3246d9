#include "session/soft.h"

#include "base/sha256.h"

#include <stdlib.h>
#include <string.h>

static size_t soft_span_end(const soft_span *span) { return span->begin + span->count; }

/* Makes room for `count` things; at least doubles, so that many small additions cost little. */
static gm_status soft_grow(void **things, size_t *capacity, size_t count, size_t size, error *e) {
    if (count <= *capacity) return GM_OK;
    const size_t more = max_size(count, 2 * *capacity);
    void        *moved = more <= SIZE_MAX / size ? realloc(*things, more * size) : NULL;
    if (!moved) return fail_memory(e, "soft tokens", (uint64_t)more * size);
    *things = moved;
    *capacity = more;
    return GM_OK;
}

static gm_status soft_reserve(soft_tokens *s, size_t spans, size_t rows, error *e) {
    void *moved = s->spans;
    TRY(soft_grow(&moved, &s->span_capacity, spans, sizeof *s->spans, e));
    s->spans = moved;
    moved = s->rows;
    TRY(soft_grow(&moved, &s->row_capacity, rows, s->width * sizeof *s->rows, e));
    s->rows = moved;
    return GM_OK;
}

static void soft_digest_rows(const float *rows, size_t values, uint8_t digest[32]) {
    sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, rows, values * sizeof *rows);
    sha256_end(&hash, digest);
}

gm_status soft_add(soft_tokens *s, size_t begin, const float *rows, size_t count, size_t width, bool block,
                   const uint8_t digest[32], error *e) {
    uint8_t of_rows[32];
    s->width = width;
    TRY(soft_reserve(s, s->span_count + 1, s->row_count + count, e));
    memcpy(s->rows + s->row_count * width, rows, count * width * sizeof *rows);
    if (!digest) soft_digest_rows(rows, count * width, of_rows);
    TRY(soft_declare(s, begin, count, block, digest ? digest : of_rows, e));
    s->row_count += count;
    return GM_OK;
}

gm_status soft_declare(soft_tokens *s, size_t begin, size_t count, bool block, const uint8_t digest[32], error *e) {
    void *spans = s->spans;
    TRY(soft_grow(&spans, &s->span_capacity, s->span_count + 1, sizeof *s->spans, e));
    s->spans = spans;
    soft_span *span = &s->spans[s->span_count++];
    *span = (soft_span){ .begin = begin, .count = count, .first_row = s->row_count, .block = block, .added = count };
    memcpy(span->digest, digest, sizeof span->digest);
    return GM_OK;
}

const float *soft_find(const soft_tokens *s, const uint8_t digest[32], size_t *count) {
    for (size_t i = 0; i < s->span_count; i++) {
        const soft_span *span = &s->spans[i];
        if (!s->rows || span->count != span->added || memcmp(span->digest, digest, sizeof span->digest)) continue;
        *count = span->count;
        return s->rows + span->first_row * s->width;
    }
    return NULL;
}

void soft_truncate(soft_tokens *s, size_t keep) {
    while (s->span_count && s->spans[s->span_count - 1].begin >= keep) s->span_count--;
    soft_span *last = s->span_count ? &s->spans[s->span_count - 1] : NULL;
    if (last) last->count = min_size(last->count, keep - last->begin);
    s->row_count = last ? last->first_row + last->count : 0;
}

gm_status soft_copy(soft_tokens *out, const soft_tokens *s, error *e) {
    *out = (soft_tokens){ .width = s->width };
    if (!s->span_count) return GM_OK;
    TRY(soft_reserve(out, s->span_count, s->row_count, e));
    memcpy(out->spans, s->spans, s->span_count * sizeof *s->spans);
    memcpy(out->rows, s->rows, s->row_count * s->width * sizeof *s->rows);
    out->span_count = s->span_count;
    out->row_count = s->row_count;
    return GM_OK;
}

void soft_free(soft_tokens *s) {
    free(s->spans);
    free(s->rows);
    *s = (soft_tokens){ 0 };
}

void soft_forget_rows(soft_tokens *s) {
    free(s->rows);
    s->rows = NULL;
    s->row_count = s->row_capacity = 0;
}

static bool same_span(const soft_span *a, const soft_span *b) {
    return a->begin == b->begin && a->added == b->added && a->block == b->block &&
           !memcmp(a->digest, b->digest, sizeof a->digest);
}

size_t soft_common(const soft_tokens *a, const soft_tokens *b, size_t most) {
    for (size_t i = 0; i < a->span_count || i < b->span_count; i++) {
        const soft_span *x = i < a->span_count ? &a->spans[i] : NULL, *y = i < b->span_count ? &b->spans[i] : NULL;
        const size_t     first = min_size(x ? x->begin : SIZE_MAX, y ? y->begin : SIZE_MAX);
        if (first >= most) return most;
        if (!x || !y || !same_span(x, y)) return first;
        if (x->count != y->count) most = min_size(most, x->begin + min_size(x->count, y->count));
    }
    return most;
}

size_t soft_first(const soft_tokens *s, size_t otherwise) { return s->span_count ? s->spans[0].begin : otherwise; }

size_t soft_end(const soft_tokens *s) { return s->span_count ? soft_span_end(&s->spans[s->span_count - 1]) : 0; }

const soft_span *soft_block_around(const soft_tokens *s, size_t position) {
    for (size_t i = 0; i < s->span_count; i++) {
        const soft_span *span = &s->spans[i];
        if (span->block && span->begin < position && position < soft_span_end(span)) return span;
    }
    return NULL;
}

const float *soft_mark(const soft_tokens *s, token_record *records, size_t begin, size_t count, bool whole) {
    const size_t end = begin + count;
    bool         found = false;
    for (size_t i = 0; i < s->span_count; i++) {
        const soft_span *span = &s->spans[i];
        const size_t     first = max_size(begin, span->begin), last = min_size(end, soft_span_end(span));
        if (first >= last) continue;
        found = true;
        for (size_t p = first; p < last; p++) records[p - begin].id = -1 - (int32_t)(span->first_row + p - span->begin);
        if (span->block) records_join_block(&records[first - begin], last - first, whole);
    }
    return found ? s->rows : NULL;
}
