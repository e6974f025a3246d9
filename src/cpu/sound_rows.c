#include "cpu/sound_rows.h"

#include "graph/graph.h"

#include <math.h>
#include <string.h>

void conv_grid_row(const cpu_kernels *k, const conv_grid_job *job, float *y) {
    const size_t frequencies = (job->frequencies + 1) / 2, channels = job->channels, out = job->out;
    memset(y, 0, frequencies * out * sizeof *y);
    for (size_t f = 0; f < frequencies; f++)
        for (size_t tap = 0; tap < 9; tap++) {
            const size_t at = 2 * f + tap % 3; /* plus 1 */
            if (at < 1 || at > job->frequencies) continue;
            const float *x = job->x + tap / 3 * job->stride + (at - 1) * channels, *w = job->w + tap * channels * out;
            for (size_t c = 0; c < channels; c++)
                if (x[c] != 0) k->add_scaled(y + f * out, w + c * out, x[c], out); /* after a ReLU half of them are 0 */
        }
}

void conv_tokens_row(const cpu_kernels *k, float *y, const float *x, size_t stride, const float *w, size_t taps,
                     size_t before, size_t n) {
    k->mul(y, x, w + (taps - 1) * n, n);
    for (size_t back = 1; back < taps && back <= before; back++) {
        const float *earlier = x - back * stride, *row = w + (taps - 1 - back) * n;
        for (size_t i = 0; i < n; i++) y[i] += row[i] * earlier[i];
    }
}

void local_attention_row(const cpu_kernels *k, const local_attention_job *job, float *y) {
    float score[LOCAL_ATTENTION_MOST], most = -INFINITY, sum = 0;
    for (size_t back = 0; back < job->seen; back++) {
        const float *key = job->k - back * job->k_stride, *relative = job->relative + back * job->r_stride;
        float        dot = 0;
        for (size_t i = 0; i < job->head; i++) dot += job->q[i] * (key[i] + relative[i]);
        score[back] = job->cap * tanhf(dot / job->cap);
        most = fmaxf(most, score[back]);
    }
    for (size_t back = 0; back < job->seen; back++) sum += score[back] = expf(score[back] - most);
    memset(y, 0, job->head * sizeof *y);
    for (size_t back = 0; back < job->seen; back++)
        k->add_scaled(y, job->v - back * job->v_stride, score[back] / sum, job->head);
}
