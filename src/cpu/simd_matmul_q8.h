/* Quantised weights times 8-bit activations, for one column: reads W once, row by row, at memory speed.
 *
 * With w = scale · (q − bias) + offset and x = d · p, a group contributes
 *     scale · d · Σ q p + (offset − bias · scale) · s,   s = d · Σ p,
 * where Σ q p is an integer; the second terms of 8 groups take one multiply-add. Rows are split into units of 256 values; the rest
 * of a row is padded with zeros. The hardware prefetcher stops at the end of each page, so we prefetch explicitly
 * (prefetch_ahead). For several columns see simd_columns.h, for many simd_panels.h. */

#ifndef GM_CPU_SIMD_MATMUL_Q8_H
#define GM_CPU_SIMD_MATMUL_Q8_H

#include "cpu/kernels.h"
#include "cpu/simd_unpack.h"

/* A format's properties, known at compile time. */
typedef struct {
    unpack_256 unpack;
    size_t     unit_bytes; /* of 256 values */
    int        group;      /* 16 or 32 values */
    int        bias;
    bool       offset;
    bool       is_signed;
} unpack_traits;

#define TRAITS_OF_TYPES(TYPE)                                                                                          \
    TYPE(Q4_0, ((unpack_traits){ simd_unpack_q4_0, 8 * 18, 32, 8, false, false }))                                     \
    TYPE(Q4_1, ((unpack_traits){ simd_unpack_q4_1, 8 * 20, 32, 0, true, false }))                                      \
    TYPE(Q5_0, ((unpack_traits){ simd_unpack_q5_0, 8 * 22, 32, 16, false, false }))                                    \
    TYPE(Q5_1, ((unpack_traits){ simd_unpack_q5_1, 8 * 24, 32, 0, true, false }))                                      \
    TYPE(Q8_0, ((unpack_traits){ simd_unpack_q8_0, 8 * 34, 32, SIGNED_BIAS, false, true }))                            \
    TYPE(Q2_K, ((unpack_traits){ simd_unpack_q2_k, 84, 16, 0, true, false }))                                          \
    TYPE(Q3_K, ((unpack_traits){ simd_unpack_q3_k, 110, 16, 4, false, false }))                                        \
    TYPE(Q4_K, ((unpack_traits){ simd_unpack_q4_k, 144, 32, 0, true, false }))                                         \
    TYPE(Q5_K, ((unpack_traits){ simd_unpack_q5_k, 176, 32, 0, true, false }))                                         \
    TYPE(Q6_K, ((unpack_traits){ simd_unpack_q6_k, 210, 16, 32, false, false }))                                       \
    TYPE(IQ4_NL, ((unpack_traits){ simd_unpack_iq4_nl, 8 * 18, 32, SIGNED_BIAS, false, true }))                        \
    TYPE(IQ4_XS, ((unpack_traits){ simd_unpack_iq4_xs, 136, 32, SIGNED_BIAS, false, true }))                           \
    TYPE(MXFP4, ((unpack_traits){ simd_unpack_mxfp4, 8 * 17, 32, SIGNED_BIAS, false, true }))

enum {
    UNIT = 256,
    MOST_UNIT_BYTES = 8 * 34,
};

/* Where code must be small, code that runs at most once per row is shared between types. */
#if defined(SHARE_KERNELS)
#define RARELY static __attribute__((noinline))
enum { SHARED_CODE = 1 };
#else
#define RARELY INLINE
enum { SHARED_CODE = 0 };
#endif

/* One column of x. An incomplete last unit is in `tail`, padded. */
typedef struct {
    const int8_t *q;
    const float  *d, *s;
} q8_column;

typedef struct {
    int8_t q[UNIT];
    float  d[UNIT / 32], s[UNIT / 16];
} q8_unit;

INLINE q8_column q8_column_of(const matmul_job *job, size_t column) {
    const size_t at = (job->x_index ? (size_t)job->x_index[column] : column) * job->k;
    return (q8_column){ job->x8.q + at, job->x8.d + at / 32, job->x8.s + at / 16 };
}

INLINE q8_column q8_advance(q8_column x, size_t values) {
    return (q8_column){ x.q + values, x.d + values / 32, x.s + values / 16 };
}

INLINE q8_column q8_pad(unpack_traits t, q8_unit *unit, q8_column x, size_t values) {
    memset(unit, 0, sizeof *unit);
    memcpy(unit->q, x.q, values);
    memcpy(unit->d, x.d, values / 32 * sizeof *x.d);
    memcpy(unit->s, x.s, values / (unsigned)t.group * sizeof *x.s);
    return (q8_column){ unit->q, unit->d, unit->s };
}

INLINE float *y_column_of(const matmul_job *job, size_t column) {
    return job->y + (job->y_index ? (size_t)job->y_index[column] : column) * job->y_stride;
}

/* The running sums of a row; two accumulators hide the latency of an addition. */
typedef struct {
    f32x8 products[2], rest;
} row_sums;

INLINE f32x8 dot_of(unpack_traits t, b32 w, const int8_t *x) {
    return f32_from_i32(t.is_signed ? dot_signed(i32_zero(), w, b_load(x)) : dot(i32_zero(), w, b_load(x)));
}

/* Formats with groups of 32: x.s has one sum for each (see sums_of_32). */
INLINE void add_groups_of_32(unpack_traits t, row_sums *sums, const unpacked *u, q8_column x) {
    const f32x8 scale = f32_mul(u->scale[0], f32_load(x.d));
    if (t.offset || t.bias) sums->rest = f32_fma(t.offset ? u->offset[0] : u->scale[0], f32_load(x.s), sums->rest);
#define ADD(i)                                                                                                         \
    sums->products[i % 2] = f32_fma(dot_of(t, u->q[i], x.q + 32 * i), f32_lane(scale, i), sums->products[i % 2]);
    ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
#undef ADD
}

INLINE void add_groups_of_16(unpack_traits t, row_sums *sums, const unpacked *u, q8_column x) {
    const f32x8 d = f32_load(x.d);
    const f32x8 low = f32_mul(u->scale[0], f32_double_low(d)), high = f32_mul(u->scale[1], f32_double_high(d));
    sums->rest = f32_fma(t.offset ? u->offset[0] : u->scale[0], f32_load(x.s), sums->rest);
    sums->rest = f32_fma(t.offset ? u->offset[1] : u->scale[1], f32_load(x.s + 8), sums->rest);
#define ADD(i)                                                                                                         \
    sums->products[i % 2] =                                                                                            \
        f32_fma(dot_of(t, u->q[i], x.q + 32 * i), f32_pick_pair(i < 4 ? low : high, i % 4), sums->products[i % 2]);
    ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
#undef ADD
}

/* Prefetches weights far ahead into the second-level cache, which can wait for more lines of memory at once than the
 * first-level cache, and later from there into the first-level cache, past the second one. A long x, or several columns of x, do
 * not stay in the first-level cache and must not queue there behind weights; for these the second-level cache is enough. The far
 * prefetch made decoding of one sequence 1.4 times as fast on Sapphire Rapids. */
INLINE void prefetch_ahead(const uint8_t *w, size_t bytes, bool long_x) {
    enum { AHEAD = 2048, FAR_AHEAD = 4096, LINE = 64 };
    for (size_t at = 0; at < bytes; at += LINE) {
        prefetch_later((uintptr_t)w + FAR_AHEAD + at);
        if (!long_x) prefetch_once((uintptr_t)w + AHEAD + at);
    }
}

/* Whether x, beside the weights that pass through, is too long for a first-level cache; measured on Zen 4 (32 KB). */
INLINE bool is_long(size_t units) { return units > 32; }

INLINE void add_groups(unpack_traits t, row_sums *sums, const unpacked *u, q8_column x) {
    if (t.group == 32) add_groups_of_32(t, sums, u, x);
    else add_groups_of_16(t, sums, u, x);
}

INLINE void add_unit(unpack_traits t, row_sums *sums, const uint8_t *w, q8_column x) {
    unpacked u;
    prefetch_ahead(w, t.unit_bytes, false);
    t.unpack(&u, w);
    add_groups(t, sums, &u, x);
}

INLINE float total(unpack_traits t, const row_sums *sums) {
    const f32x8 products = f32_add(sums->products[0], sums->products[1]);
    if (!t.offset && !t.bias) return f32_sum(products);
    return f32_sum(f32_fma(sums->rest, f32_set(t.offset ? 1 : -(float)t.bias), products));
}

/* For formats with groups of 32: adds up pairs of x's sums over 16 values. */
INLINE const float *sums_of_32(unpack_traits t, const matmul_job *job, q8_column x, float *scratch) {
    if (t.group == 16) return x.s;
    for (size_t i = 0; i < job->k / 32; i++) scratch[i] = x.s[2 * i] + x.s[2 * i + 1];
    return scratch;
}

INLINE q8_column unit_of(unpack_traits t, q8_column x, size_t unit) {
    return (q8_column){ x.q + unit * UNIT, x.d + unit * UNIT / 32, x.s + unit * UNIT / (unsigned)t.group };
}

/* A prepared column of x: its sums by group, and the padded rest after the last whole unit. */
typedef struct {
    q8_column x, rest;
    q8_unit   padded;
    size_t    units, rest_bytes; /* whole units of a row, and the bytes of w after them */
} ready_column;

INLINE void prepare_column(unpack_traits t, const matmul_job *job, size_t column, float *scratch, ready_column *out) {
    const size_t rest = job->k % UNIT;
    out->x = q8_column_of(job, column);
    out->x.s = sums_of_32(t, job, out->x, scratch);
    out->units = job->k / UNIT;
    out->rest_bytes = rest * t.unit_bytes / UNIT;
    if (rest) out->rest = q8_pad(t, &out->padded, unit_of(t, out->x, out->units), rest);
}

RARELY void add_rest(unpack_traits t, row_sums *sums, const uint8_t *w, const ready_column *c) {
    uint8_t padded[MOST_UNIT_BYTES] = { 0 };
    memcpy(padded, w + c->units * t.unit_bytes, c->rest_bytes);
    add_unit(t, sums, padded, c->rest);
}

INLINE float finish_row(unpack_traits t, row_sums *sums, const uint8_t *w, const ready_column *c) {
    if (c->rest_bytes) add_rest(t, sums, w, c);
    return total(t, sums);
}

RARELY float multiply_row(unpack_traits t, const uint8_t *w, const ready_column *c) {
    row_sums sums = { { f32_zero(), f32_zero() }, f32_zero() };
    for (size_t i = 0; i < c->units; i++) add_unit(t, &sums, w + i * t.unit_bytes, unit_of(t, c->x, i));
    return finish_row(t, &sums, w, c);
}

/* Rows [first, last) times one column. Reads from two places in turn: memory delivers two streams faster than one. */
INLINE void multiply_column(unpack_traits t, const matmul_job *job, size_t first, size_t last, size_t column,
                            float *scratch) {
    const size_t   half = (last - first) / 2, row_bytes = job->row_bytes;
    float         *y = y_column_of(job, column) + first;
    const uint8_t *w = job->w + first * row_bytes;
    ready_column   c;
    prepare_column(t, job, column, scratch, &c);
    for (size_t row = 0; row < half; row++) {
        const uint8_t *above = w + row * row_bytes, *below = above + half * row_bytes;
        row_sums       a = { { f32_zero(), f32_zero() }, f32_zero() }, b = a;
        for (size_t i = 0; i < c.units; i++) {
            add_unit(t, &a, above + i * t.unit_bytes, unit_of(t, c.x, i));
            add_unit(t, &b, below + i * t.unit_bytes, unit_of(t, c.x, i));
        }
        y[row] = finish_row(t, &a, above, &c);
        y[row + half] = finish_row(t, &b, below, &c);
    }
    for (size_t row = 2 * half; row < last - first; row++) y[row] = multiply_row(t, w + row * row_bytes, &c);
}

#endif
