/* Products with f32 activations and f32 sums: for F32, F16 and BF16 weights, and for every type in precise mode.
 *
 * Quantised weights are converted to their exact f32 values a piece at a time. The sum of a row and a column does not depend on
 * which other rows and columns are computed with it, but the paths for few and for many columns add in different orders. */

#ifndef GM_CPU_SIMD_MATMUL_F32_H
#define GM_CPU_SIMD_MATMUL_F32_H

#include "cpu/kernels.h"

enum {
    PIECE = 1024, /* values of k at a time: a multiple of every block */
    TILE_ROWS = 4,
    TILE_COLUMNS = WIDE == 16 ? 4 : 2, /* as many as the registers hold */
};

INLINE const float *x_column_of(const matmul_job *job, size_t column) {
    return job->x + (job->x_index ? (size_t)job->x_index[column] : column) * job->k;
}

INLINE float *y_column(const matmul_job *job, size_t column) {
    return job->y + (job->y_index ? (size_t)job->y_index[column] : column) * job->y_stride;
}

/* ---- few columns: rows are converted in registers ---- */

typedef wide_f (*load_wide)(const void *p);

INLINE wide_f wide_from_f32(const void *p) { return wide_load(p); }

/* The last n < WIDE values, padded with zeros. */
INLINE wide_f load_wide_part(load_wide load, size_t size, const void *p, size_t n) {
    float lanes[WIDE] = { 0 };
    memcpy(lanes, p, n * size);
    return load(lanes);
}

/* w · x, with w of `size` bytes each. */
INLINE float dot_row(load_wide load, size_t size, const uint8_t *w, const float *x, size_t n) {
    wide_f a = wide_zero(), b = wide_zero(), c = wide_zero(), d = wide_zero();
    size_t i = 0;
    for (; i + 4 * WIDE <= n; i += 4 * WIDE) {
        a = wide_fma(load(w + i * size), wide_load(x + i), a);
        b = wide_fma(load(w + (i + WIDE) * size), wide_load(x + i + WIDE), b);
        c = wide_fma(load(w + (i + 2 * WIDE) * size), wide_load(x + i + 2 * WIDE), c);
        d = wide_fma(load(w + (i + 3 * WIDE) * size), wide_load(x + i + 3 * WIDE), d);
    }
    for (; i + WIDE <= n; i += WIDE) a = wide_fma(load(w + i * size), wide_load(x + i), a);
    if (i < n)
        b = wide_fma(load_wide_part(load, size, w + i * size, n - i),
                     load_wide_part(wide_from_f32, sizeof *x, x + i, n - i), b);
    return wide_sum(wide_add(wide_add(a, b), wide_add(c, d)));
}

INLINE void rows_directly(load_wide load, size_t size, const matmul_job *job, size_t first, size_t last) {
    for (size_t row = first; row < last; row++)
        for (size_t column = 0; column < job->columns; column++)
            y_column(job, column)[row] =
                dot_row(load, size, job->w + row * job->row_bytes, x_column_of(job, column), job->k);
}

static void rows_by_pieces(const matmul_job *job, size_t first, size_t last, float *piece) {
    const quant_format *format = quant_format_of((uint32_t)job->type);
    for (size_t row = first; row < last; row++)
        for (size_t at = 0; at < job->k; at += PIECE) {
            const size_t n = min_size(PIECE, job->k - at);
            format->dequantise(piece, job->w + row * job->row_bytes + quant_row_bytes(format, at), n / format->block);
            for (size_t column = 0; column < job->columns; column++) {
                float      *y = y_column(job, column) + row;
                const float sum =
                    dot_row(wide_from_f32, sizeof *piece, (const uint8_t *)piece, x_column_of(job, column) + at, n);
                *y = at ? *y + sum : sum;
            }
        }
}

/* ---- many columns: a few rows as f32, then tiles of 4 rows and a few columns ---- */

/* sums[i][j] = a[i] · b[j] for 4 rows and a constant number of columns, n values each. */
INLINE void dot_tile(float sums[TILE_ROWS][TILE_COLUMNS], const float *const *a, const float *const *b, size_t columns,
                     size_t n) {
    wide_f total[TILE_COLUMNS][TILE_ROWS];
    UNROLL for (size_t c = 0; c < columns; c++) {
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++) total[c][r] = wide_zero();
    }
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        wide_f y[TILE_COLUMNS];
        UNROLL for (size_t c = 0; c < columns; c++) y[c] = wide_load(b[c] + i);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++) {
            const wide_f x = wide_load(a[r] + i);
            UNROLL for (size_t c = 0; c < columns; c++) total[c][r] = wide_fma(x, y[c], total[c][r]);
        }
    }
    UNROLL for (size_t c = 0; c < columns; c++) {
        float four[TILE_ROWS];
        wide_sum_4(four, total[c][0], total[c][1], total[c][2], total[c][3]);
        for (size_t r = 0; r < TILE_ROWS; r++) {
            sums[r][c] = four[r];
            for (size_t rest = i; rest < n; rest++) sums[r][c] += a[r][rest] * b[c][rest];
        }
    }
}

/* Converts n values of a row to f32. Half floats use vector code, because each row is converted again for every few columns. */
INLINE void row_to_f32(float *out, quant_type type, const uint8_t *w, size_t n) {
    const quant_format *format = quant_format_of((uint32_t)type);
    size_t              i = 0;
    if (type == TYPE_F16)
        for (; i + WIDE <= n; i += WIDE) wide_store(out + i, wide_from_f16(w + 2 * i));
    if (type == TYPE_BF16)
        for (; i + WIDE <= n; i += WIDE) wide_store(out + i, wide_from_bf16(w + 2 * i));
    if (i < n) format->dequantise(out + i, w + quant_row_bytes(format, i), (n - i) / format->block);
}

/* At most TILE_ROWS rows, all columns. Missing rows and columns of a tile are computed as copies and discarded. */
static void multiply_rows(const matmul_job *job, size_t first, size_t rows, float *scratch) {
    const quant_format *format = quant_format_of((uint32_t)job->type);
    for (size_t at = 0; at < job->k; at += PIECE) {
        const size_t n = min_size(PIECE, job->k - at);
        const float *a[TILE_ROWS];
        for (size_t r = 0; r < TILE_ROWS; r++) {
            a[r] = scratch + (r < rows ? r : 0) * PIECE;
            if (r < rows)
                row_to_f32(scratch + r * PIECE, job->type,
                           job->w + (first + r) * job->row_bytes + quant_row_bytes(format, at), n);
        }
        for (size_t column = 0; column < job->columns; column += TILE_COLUMNS) {
            const size_t columns = min_size(TILE_COLUMNS, job->columns - column);
            const float *b[TILE_COLUMNS];
            float        sums[TILE_ROWS][TILE_COLUMNS];
            for (size_t c = 0; c < TILE_COLUMNS; c++) b[c] = x_column_of(job, column + (c < columns ? c : 0)) + at;
            dot_tile(sums, a, b, TILE_COLUMNS, n);
            for (size_t c = 0; c < columns; c++) {
                float *y = y_column(job, column + c) + first;
                for (size_t r = 0; r < rows; r++) y[r] = at ? y[r] + sums[r][c] : sums[r][c];
            }
        }
    }
}

static void simd_matmul_f32(const matmul_job *job, size_t first, size_t last, void *scratch) {
    if (job->columns >= 4 && !job->alone) {
        for (size_t row = first; row < last; row += TILE_ROWS)
            multiply_rows(job, row, min_size(TILE_ROWS, last - row), scratch);
        return;
    }
    switch (job->type) {
    case TYPE_F32: rows_directly(wide_from_f32, 4, job, first, last); break;
    case TYPE_F16: rows_directly(wide_from_f16, 2, job, first, last); break;
    case TYPE_BF16: rows_directly(wide_from_bf16, 2, job, first, last); break;
    default: rows_by_pieces(job, first, last, scratch);
    }
}

#endif
