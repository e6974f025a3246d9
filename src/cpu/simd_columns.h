/* Quantised weights times 8-bit activations, for several columns. A unit of W is unpacked once for all of them. Each column is added up
 * in the order of simd_matmul_q8.h, so that it gets the same sums as alone, bit for bit. */

#ifndef GM_CPU_SIMD_COLUMNS_H
#define GM_CPU_SIMD_COLUMNS_H

#include "cpu/simd_matmul_q8.h"

enum {
    MOST_COLUMNS = 32, /* at once */
    STREAMS = SHARED_CODE ? 1 : 2,
};

/* ---- one unit ---- */

#if defined(HAS_PAIRS)

/* The two sums of products, and the groups that go into them, side by side in one register. */
typedef struct {
    wide_i q[4];
    f32x8  scale[2], offset[2];
} shared_unit;

typedef struct {
    wide_f products;
    f32x8  rest;
} column_sums;

INLINE void shared_unpack(unpack_traits t, shared_unit *out, const uint8_t *w) {
    unpacked u;
    t.unpack(&u, w);
    UNROLL for (size_t i = 0; i < 4; i++) out->q[i] = pair_of_b(u.q[2 * i], u.q[2 * i + 1]);
    UNROLL for (size_t i = 0; i < 2; i++) {
        if (i == 0 || t.group == 16) out->scale[i] = u.scale[i];
        if (t.offset && (i == 0 || t.group == 16)) out->offset[i] = u.offset[i];
    }
}

INLINE void shared_add(unpack_traits t, column_sums *sums, const shared_unit *u, q8_column x) {
    const f32x8 d = f32_load(x.d), *rest = t.offset ? u->offset : u->scale;
    const f32x8 low = f32_mul(u->scale[0], t.group == 32 ? d : f32_double_low(d)),
                high = t.group == 32 ? low : f32_mul(u->scale[1], f32_double_high(d));
    if (t.offset || t.bias) sums->rest = f32_fma(rest[0], f32_load(x.s), sums->rest);
    if (t.group == 16) sums->rest = f32_fma(rest[1], f32_load(x.s + 8), sums->rest);
    UNROLL for (int i = 0; i < 4; i++) {
        const wide_f scale = t.group == 32 ? pair_of_lanes(low, i) : pair_of_pairs(i < 2 ? low : high, i % 2);
        sums->products = wide_fma(wide_from_i(pair_dot(u->q[i], wide_i_load(x.q + 64 * i))), scale, sums->products);
    }
}

INLINE float shared_total(unpack_traits t, const column_sums *sums) {
    return total(t, &(row_sums){ { pair_low(sums->products), pair_high(sums->products) }, sums->rest });
}

#else

typedef unpacked shared_unit;
typedef row_sums column_sums;

INLINE void shared_unpack(unpack_traits t, shared_unit *out, const uint8_t *w) { t.unpack(out, w); }
INLINE void shared_add(unpack_traits t, column_sums *sums, const shared_unit *u, q8_column x) {
    add_groups(t, sums, u, x);
}
INLINE float shared_total(unpack_traits t, const column_sums *sums) { return total(t, sums); }

#endif

/* ---- rows ---- */

typedef struct {
    ready_column columns[MOST_COLUMNS];
    column_sums  sums[STREAMS][MOST_COLUMNS];
    float        s[]; /* of the columns, if groups have 32 values */
} columns_scratch;

/* Unit i of a row times all columns. */
RARELY void add_unit_of_columns(unpack_traits t, column_sums *sums, const uint8_t *w, const ready_column *columns,
                                size_t count, size_t i) {
    shared_unit u;
    prefetch_ahead(w, t.unit_bytes, true);
    shared_unpack(t, &u, w);
    for (size_t c = 0; c < count; c++)
        shared_add(t, &sums[c], &u, i < columns[c].units ? unit_of(t, columns[c].x, i) : columns[c].rest);
}

/* Rows `stride` apart, a constant number of them, times columns [column, column + count). */
INLINE void multiply_streams(unpack_traits t, const matmul_job *job, size_t row, size_t stride, size_t streams,
                             size_t column, size_t count, columns_scratch *scratch) {
    const size_t   units = job->k / UNIT, rest_bytes = job->k % UNIT * t.unit_bytes / UNIT;
    const uint8_t *w[STREAMS];
    for (size_t r = 0; r < streams; r++) w[r] = job->w + (row + r * stride) * job->row_bytes;
    for (size_t r = 0; r < streams; r++) memset(scratch->sums[r], 0, count * sizeof scratch->sums[r][0]);
    for (size_t i = 0; i < units; i++)
        for (size_t r = 0; r < streams; r++)
            add_unit_of_columns(t, scratch->sums[r], w[r] + i * t.unit_bytes, scratch->columns, count, i);
    for (size_t r = 0; r < streams; r++) {
        if (rest_bytes) {
            uint8_t padded[MOST_UNIT_BYTES] = { 0 };
            memcpy(padded, w[r] + units * t.unit_bytes, rest_bytes);
            add_unit_of_columns(t, scratch->sums[r], padded, scratch->columns, count, units);
        }
        for (size_t c = 0; c < count; c++)
            y_column_of(job, column + c)[row + r * stride] = shared_total(t, &scratch->sums[r][c]);
    }
}

/* Rows [first, last) times several columns: as many at once as the scratch memory holds. */
RARELY void multiply_several(unpack_traits t, const matmul_job *job, size_t first, size_t last,
                             columns_scratch *scratch) {
    const size_t room = (MATMUL_SCRATCH - sizeof *scratch) / sizeof *scratch->s, sums = job->k / 32;
    const size_t most = min_size(MOST_COLUMNS, room / max_size(1, sums)), half = (last - first) / STREAMS;
    for (size_t column = 0, count; column < job->columns; column += count) {
        count = min_size(most, job->columns - column);
        for (size_t c = 0; c < count; c++)
            prepare_column(t, job, column + c, scratch->s + c * sums, &scratch->columns[c]);
        for (size_t row = first; row < first + half; row++)
            multiply_streams(t, job, row, half, STREAMS, column, count, scratch);
        for (size_t row = first + STREAMS * half; row < last; row++)
            multiply_streams(t, job, row, 0, 1, column, count, scratch);
    }
}

INLINE void multiply_columns(unpack_traits t, const matmul_job *job, size_t first, size_t last, void *scratch) {
    if (job->columns == 1) multiply_column(t, job, first, last, 0, scratch);
    else multiply_several(t, job, first, last, scratch);
}

#endif
