/* The matrix products of the scalar table, as plain as possible. */

#include "cpu/exact.h"
#include "cpu/reference.h"
#include "cpu/unpack.h"

static const float *column_of_x(const matmul_job *job, size_t column) {
    return job->x + (job->x_index ? (size_t)job->x_index[column] : column) * job->k;
}

static float *column_of_y(const matmul_job *job, size_t column) {
    return job->y + (job->y_index ? (size_t)job->y_index[column] : column) * job->y_stride;
}

/* Σ over the groups of 16 of a block: scale · d · Σ q_w q_x + offset · d · Σ q_x. The inner sum is an integer. */
static float dot_block(const unpacked_block *w, const int8_t *q, const float *d, const float *s, size_t block) {
    float sum = 0;
    for (size_t group = 0; group < block / 16; group++) {
        int32_t dot = 0;
        for (size_t i = 16 * group; i < 16 * group + 16; i++) dot += w->q[i] * q[i];
        sum += w->scale[group] * d[group / 2] * (float)dot + w->offset[group] * s[group];
    }
    return sum;
}

void reference_matmul_q8(const matmul_job *job, size_t first, size_t last, void *scratch) {
    const quant_format   *format = quant_format_of((uint32_t)job->type);
    const unpack_function unpack = unpack_of(job->type);
    const size_t          k = job->k, blocks = k / format->block;
    unpacked_block       *w = scratch;
    for (size_t row = first; row < last; row++) {
        for (size_t column = 0; column < job->columns; column++) column_of_y(job, column)[row] = 0;
        for (size_t b = 0; b < blocks; b++) {
            unpack(w, job->w + row * job->row_bytes + b * format->bytes);
            const size_t at = b * format->block;
            for (size_t column = 0; column < job->columns; column++) {
                const size_t x = job->x_index ? (size_t)job->x_index[column] : column;
                column_of_y(job, column)[row] += dot_block(w, job->x8.q + x * k + at, job->x8.d + (x * k + at) / 32,
                                                           job->x8.s + (x * k + at) / 16, format->block);
            }
        }
    }
}

/* Weights are converted to f32 a piece at a time; a piece is a multiple of every block length. */
enum { PIECE = 4096, COLUMNS = 64 };

/* One row times the columns from `first` on; the order of the sums is that of cpu/exact.h. */
static void row_times_columns(const matmul_job *job, size_t row, size_t first, size_t count, float *w) {
    const quant_format *format = quant_format_of((uint32_t)job->type);
    float               lanes[COLUMNS][4] = { 0 };
    for (size_t at = 0; at < job->k; at += PIECE) {
        const size_t n = min_size(PIECE, job->k - at);
        format->dequantise(w, job->w + row * job->row_bytes + quant_row_bytes(format, at), n / format->block);
        for (size_t i = 0; i < count; i++) exact_dot_add(lanes[i], w, column_of_x(job, first + i) + at, n);
    }
    for (size_t i = 0; i < count; i++) column_of_y(job, first + i)[row] = exact_dot_end(lanes[i]);
}

void reference_matmul_f32(const matmul_job *job, size_t first, size_t last, void *scratch) {
    for (size_t row = first; row < last; row++) {
        for (size_t column = 0; column < job->columns; column += COLUMNS)
            row_times_columns(job, row, column, min_size(COLUMNS, job->columns - column), scratch);
    }
}
