/* Compares what adapters change, without computing the changes: <B·A, D·C> = Σ (Bᵀ·D) ∘ (A·Cᵀ), two matrices of rank × rank. */

#include "adapter/adapter.h"

#include <stdlib.h>

/* Row i of the rank × n matrix of a pair's half, as a first element and a stride. */
typedef struct {
    const float *first;
    size_t       row, step, n;
} half_view;

static half_view view_a(const adapter_pair *p, size_t expert) {
    const size_t n = p->in, r = p->rank;
    if (adapter_is_embedding(p)) return (half_view){ p->a, 1, r, n };
    return (half_view){ p->a + expert * r * n, n, 1, n };
}

static half_view view_b(const adapter_pair *p, size_t expert) {
    return (half_view){ p->b + expert * p->rank * p->out, 1, p->rank, p->out };
}

static double row_product(half_view x, size_t i, half_view y, size_t j) {
    double sum = 0;
    for (size_t k = 0; k < x.n; k++) sum += (double)x.first[i * x.row + k * x.step] * y.first[j * y.row + k * y.step];
    return sum;
}

gm_status adapter_inner_product(const adapter_pair *x, const adapter_pair *y, double *out, error *e) {
    double sum = 0;
    if (x->in != y->in || x->out != y->out || x->experts != y->experts)
        return fail(e, GM_BAD_ARGUMENT, "'%s' and '%s' have different shapes", x->base, y->base);
    for (size_t expert = 0; expert < x->experts; expert++)
        for (size_t i = 0; i < x->rank; i++)
            for (size_t j = 0; j < y->rank; j++)
                sum += row_product(view_a(x, expert), i, view_a(y, expert), j) *
                       row_product(view_b(x, expert), i, view_b(y, expert), j);
    *out = sum * x->scale * y->scale;
    return GM_OK;
}
