/* For test_ops.c: ops that compute each row by itself or with its neighbours: norms, elementwise ops, convolutions, embeddings, RoPE. */

#ifndef GM_OP_ROWS_H
#define GM_OP_ROWS_H

#include "op_case.h"

static void test_norm(const backend *b, size_t tokens, size_t n, size_t rows, bool weighted) {
    CASE("%s: rms_norm %zu × [%zu, %zu]%s", b->name, tokens, n, rows, weighted ? " weighted" : "");
    op_case c = case_begin(b, tokens, n * rows);
    float  *w = random_units(n);
    double *want = doubles(tokens * n * rows);
    tensor *y = graph_rms_norm(&c.g, graph_reshape(&c.g, c.x, n, rows),
                               weighted ? weight(&c, "w", TYPE_F32, n, 1, 1, w) : NULL, 1e-6f);
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *x = case_input(&c, r / rows) + r % rows * n;
        double       sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
        for (size_t i = 0; i < n; i++) want[r * n + i] = x[i] / sqrt(sum / (double)n + 1e-6) * (weighted ? w[i] : 1);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 1e-6);
    free(w);
    free(want);
    end(&c);
}

/* The mean is far from 0 and the variance small, as in pictures. */
static void test_layer_norm(const backend *b, size_t tokens, size_t n, size_t rows, bool biased) {
    CASE("%s: layer_norm %zu × [%zu, %zu]%s", b->name, tokens, n, rows, biased ? " with a bias" : "");
    op_case c = case_begin(b, tokens, n * rows);
    float  *w = random_units(n), *bias = random_units(n);
    double *want = doubles(tokens * n * rows);
    for (size_t i = 0; i < 50 * c.width; i++) c.table[i] = 3 + c.table[i] / 4;
    tensor *y = graph_layer_norm(&c.g, graph_reshape(&c.g, c.x, n, rows), weight(&c, "w", TYPE_F32, n, 1, 1, w),
                                 biased ? weight(&c, "b", TYPE_F32, n, 1, 1, bias) : NULL, 1e-3f);
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *x = case_input(&c, r / rows) + r % rows * n;
        double       mean = 0, squares = 0;
        for (size_t i = 0; i < n; i++) mean += x[i] / (double)n;
        for (size_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
        for (size_t i = 0; i < n; i++)
            want[r * n + i] = (x[i] - mean) / sqrt(squares / (double)n + 1e-3) * w[i] + (biased ? bias[i] : 0);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 5e-6);
    free(w);
    free(bias);
    free(want);
    end(&c);
}

static void test_elementwise(const backend *b, size_t tokens, size_t n) {
    CASE("%s: add, scale, geglu, softcap, slices %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, 2 * n);
    double *want = doubles(tokens * n);
    tensor *left = graph_slice(&c.g, c.x, 0, n, 1), *right = graph_slice(&c.g, c.x, n, n, 1);
    tensor *y = graph_softcap(&c.g, graph_scale(&c.g, graph_add(&c.g, graph_geglu(&c.g, left, right), right), 3), 2.5f);
    for (size_t i = 0; i < tokens * n; i++) {
        const double l = case_input(&c, i / n)[i % n], r = case_input(&c, i / n)[n + i % n];
        want[i] = 2.5 * tanh((op_gelu(l) * r + r) * 3 / 2.5);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(want);
    end(&c);
}

static void test_gate(const backend *b, size_t tokens, size_t n) {
    CASE("%s: gate %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, 2 * n);
    double *want = doubles(tokens * n);
    for (size_t i = 0; i < 50 * c.width; i++) c.table[i] *= 8;
    tensor *left = graph_slice(&c.g, c.x, 0, n, 1), *right = graph_slice(&c.g, c.x, n, n, 1);
    tensor *gated = graph_gate(&c.g, left, right), *y = graph_add(&c.g, gated, graph_gate(&c.g, right, right));
    for (size_t i = 0; i < tokens * n; i++) {
        const double l = case_input(&c, i / n)[i % n], r = case_input(&c, i / n)[n + i % n];
        want[i] = (l + r) / (1 + exp(-r));
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(want);
    end(&c);
}

static void test_conv_grid(const backend *b, size_t tokens, size_t frequencies, size_t channels, size_t out,
                           size_t windows) {
    CASE("%s: conv_grid %zu × [%zu · %zu → %zu, %zu]", b->name, tokens, channels, frequencies, out, windows);
    const size_t row = channels * frequencies, half = (frequencies + 1) / 2, taps = 9 * channels;
    op_case      c = case_begin(b, tokens, row * 3 * windows);
    float       *w = random_units(taps * out);
    double      *want = doubles(tokens * windows * half * out);
    tensor      *y = graph_conv_grid(&c.g, graph_reshape(&c.g, c.x, row, 3 * windows),
                                     weight(&c, "w", TYPE_F32, taps * out, 1, 1, w), (uint32_t)channels);
    for (size_t i = 0; i < tokens * windows * half * out; i++) {
        const size_t o = i % out, f = i / out % half, window = i / out / half % windows, t = i / out / half / windows;
        for (size_t tap = 0; tap < taps; tap++) {
            const size_t channel = tap % channels, column = 2 * f + tap / channels % 3, time = tap / channels / 3;
            if (column < 1 || column > frequencies) continue;
            want[i] += (double)w[tap * out + o] *
                       case_input(&c, t)[(3 * window + time) * row + (column - 1) * channels + channel];
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * windows * half * out, 2e-6);
    free(w);
    free(want);
    end(&c);
}

static void test_conv_tokens(const backend *b, size_t tokens, size_t n, size_t taps) {
    CASE("%s: conv_tokens %zu × %zu, %zu taps", b->name, tokens, n, taps);
    op_case c = case_begin(b, tokens, n);
    float  *w = random_units(taps * n);
    double *want = doubles(tokens * n);
    case_spans(&c);
    tensor *y = graph_conv_tokens(&c.g, c.x, weight(&c, "w", TYPE_F32, taps * n, 1, 1, w), (uint32_t)taps);
    for (size_t i = 0; i < tokens * n; i++) {
        const size_t t = i / n;
        for (size_t back = 0; back < taps && span_start(&c, t) + back <= t; back++)
            want[i] += (double)w[(taps - 1 - back) * n + i % n] * case_input(&c, t - back)[i % n];
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(w);
    free(want);
    end(&c);
}

static void test_op_vectors(const backend *b, size_t tokens, size_t n, size_t rows) {
    CASE("%s: clamp, and vectors added and multiplied %zu × [%zu, %zu]", b->name, tokens, n, rows);
    op_case c = case_begin(b, tokens, 2 * n * rows);
    float  *v = random_units(2 * n);
    double *want = doubles(tokens * n * rows);
    tensor *x = graph_reshape(&c.g, c.x, 2 * n, rows), *bias = weight(&c, "b", TYPE_F32, n, 1, 1, v),
           *gain = weight(&c, "g", TYPE_F32, n, 1, 1, v + n);
    tensor *left = graph_slice(&c.g, x, 0, n, rows), *right = graph_slice(&c.g, x, n, n, rows);
    tensor *y = graph_mul(&c.g, graph_add(&c.g, graph_mul(&c.g, left, right), bias), gain);
    y = graph_add(&c.g, graph_mul(&c.g, graph_clamp(&c.g, y, -0.125f, 0.25f), left), graph_clamp(&c.g, right, 0, 1));
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *row = case_input(&c, r / rows) + r % rows * 2 * n;
        for (size_t i = 0; i < n; i++) {
            const double sum = ((double)row[i] * row[n + i] + v[i]) * v[n + i];
            want[r * n + i] = (sum < -0.125 ? -0.125
                               : sum > 0.25 ? 0.25
                                            : sum) *
                                  row[i] +
                              (row[n + i] > 0 ? row[n + i] : 0);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 2e-6);
    free(v);
    free(want);
    end(&c);
}

static void test_embed(const backend *b, quant_type type, size_t tokens, size_t n) {
    CASE("%s: embed %s %zu × %zu", b->name, quant_format_of(type)->name, tokens, n);
    op_case  c = case_begin(b, tokens, 8);
    uint8_t *data = random_weights(type, 50 * n);
    float   *w = dequantised(type, data, 50 * n);
    double  *want = doubles(tokens * n);
    tensor  *y = graph_embed(&c.g, weight(&c, "e", type, n, 50, 1, data), 1.5f);
    for (size_t i = 0; i < tokens * n; i++) want[i] = 1.5 * w[(size_t)c.ids[i / n] * n + i % n];
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(data);
    free(w);
    free(want);
    end(&c);
}

static void test_embed_position(const backend *b, size_t tokens, size_t n) {
    CASE("%s: embed by position %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, n);
    float  *table = random_units(80 * n);
    double *want = doubles(tokens * n);
    c.start = 7;
    tensor *y = graph_add(&c.g, c.x, graph_embed_position(&c.g, weight(&c, "p", TYPE_F32, n, 80, 1, table), 2));
    for (size_t i = 0; i < tokens * n; i++)
        want[i] = case_input(&c, i / n)[i % n] + 2.0 * table[((size_t)c.start + i / n) * n + i % n];
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(table);
    free(want);
    end(&c);
}

/* Ids below 0: one table takes given rows in their place, the other its row 0. Given rows come in no order. */
static void test_given(const backend *b, quant_type type, size_t tokens, size_t n) {
    CASE("%s: embed %s %zu × %zu, some rows given", b->name, quant_format_of(type)->name, tokens, n);
    op_case  c = case_begin(b, tokens, 8);
    uint8_t *data = random_weights(type, 2 * 50 * n);
    float   *w = dequantised(type, data, 2 * 50 * n), *rows = random_units(tokens * n);
    double  *want = doubles(tokens * n);
    tensor  *first = weight(&c, "first", type, n, 50, 1, data),
           *second = weight(&c, "second", type, n, 50, 1, data + quant_row_bytes(quant_format_of(type), n) * 50);
    tensor *y = graph_add(&c.g, graph_embed(&c.g, second, 3), graph_embed_or_given(&c.g, first, 1.5f));
    for (size_t t = 0; t < tokens; t++) { /* the last token always, and of every four two that follow each other */
        if (t + 1 == tokens) c.ids[t] = -1;
        else if (t % 4 > 1) c.ids[t] = -1 - (int32_t)(tokens - 1 - t);
        else if (t % 8 > 3) c.ids[t] = -1 - (int32_t)t;
    }
    c.given = rows;
    for (size_t i = 0; i < tokens * n; i++) {
        const int32_t id = c.ids[i / n];
        const double  added = id < 0 ? rows[(size_t)(-1 - id) * n + i % n] : 1.5 * w[(size_t)id * n + i % n];
        want[i] = added + 3.0 * w[(50 + (size_t)(id < 0 ? 0 : id)) * n + i % n];
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(data);
    free(w);
    free(rows);
    free(want);
    end(&c);
}

static void test_rope(const backend *b, size_t tokens, size_t head, size_t heads) {
    CASE("%s: rope %zu × %zu heads of %zu", b->name, tokens, heads, head);
    op_case c = case_begin(b, tokens, head * heads);
    float  *frequencies = malloc(head / 2 * sizeof *frequencies);
    double *want = doubles(tokens * head * heads);
    for (size_t j = 0; j < head / 2; j++) frequencies[j] = (float)pow(10000, -2.0 * (double)j / (double)head);
    c.start = 1000;
    tensor *y = graph_rope(&c.g, graph_reshape(&c.g, c.x, head, heads),
                           graph_rope_table(&c.g, weight(&c, "f", TYPE_F32, head / 2, 1, 1, frequencies), 1));
    for (size_t r = 0; r < tokens * heads; r++) {
        const float *x = case_input(&c, r / heads) + r % heads * head;
        for (size_t j = 0; j < head / 2; j++) {
            const double angle = (float)(c.start + r / heads) * frequencies[j];
            want[r * head + j] = x[j] * cos(angle) - x[j + head / 2] * sin(angle);
            want[r * head + j + head / 2] = x[j + head / 2] * cos(angle) + x[j] * sin(angle);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * head * heads, 2e-6);
    free(frequencies);
    free(want);
    end(&c);
}

/* As patches of a picture: the id is the column and the position the row. Of each head the first half is turned by the column. */
static void test_rope_of_patches(const backend *b, size_t tokens, size_t head, size_t heads) {
    CASE("%s: rope along two axes %zu × %zu heads of %zu", b->name, tokens, heads, head);
    op_case      c = case_begin(b, tokens, head * heads);
    const size_t half = head / 2, pairs = head / 4;
    float       *frequencies = malloc(pairs * sizeof *frequencies);
    double      *want = doubles(tokens * head * heads);
    for (size_t j = 0; j < pairs; j++) frequencies[j] = (float)pow(100, -2.0 * (double)j / (double)half);
    c.start = 20;
    tensor *table = graph_rope_table(&c.g, weight(&c, "f", TYPE_F32, pairs, 1, 1, frequencies), 2);
    tensor *y = graph_rope(&c.g, graph_reshape(&c.g, c.x, half, 2 * heads), table);
    for (size_t r = 0; r < tokens * heads * 2; r++) {
        const size_t t = r / heads / 2;
        const float *x = case_input(&c, t) + r % (2 * heads) * half;
        for (size_t j = 0; j < pairs; j++) {
            const double angle = (r % 2 ? (double)(c.start + t) : (double)c.ids[t]) * frequencies[j];
            want[r * half + j] = x[j] * cos(angle) - x[j + pairs] * sin(angle);
            want[r * half + j + pairs] = x[j + pairs] * cos(angle) + x[j] * sin(angle);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * head * heads, 2e-6);
    free(frequencies);
    free(want);
    end(&c);
}

#endif
