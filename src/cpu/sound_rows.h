/* Rows of the ops that only audio towers have, on plain arrays. They are a small part of a tower's time: the matrices are the rest. */

#ifndef GM_CPU_SOUND_ROWS_H
#define GM_CPU_SOUND_ROWS_H

#include "cpu/kernels.h"

/* One window of CONV_GRID: three rows of `frequencies` · `channels` values, `stride` apart. y [⌈frequencies / 2⌉, out]. */
typedef struct {
    const float *x;
    size_t       stride, frequencies, channels, out;
    const float *w; /* [3 (time), 3 (frequency), channels, out] */
} conv_grid_job;

void conv_grid_row(const cpu_kernels *k, const conv_grid_job *job, float *y);

/* One token of CONV_TOKENS: `taps` rows w [taps, n], of which the last belongs to x, and those before to the tokens before x. */
void conv_tokens_row(const cpu_kernels *k, float *y, const float *x, size_t stride, const float *w, size_t taps,
                     size_t before, size_t n);

/* One head of one token of LOCAL_ATTENTION, which sees itself and the tokens before it. */
typedef struct {
    const float *q, *k, *v, *relative;         /* k and v: the token's own */
    size_t       k_stride, v_stride, r_stride; /* from token to token, and from distance to distance */
    size_t       seen, head;
    float        cap;
} local_attention_job;

void local_attention_row(const cpu_kernels *k, const local_attention_job *job, float *y);

#endif
