/* Vector kernels on rows: norm, sums, activation functions, rotation, and the 8-bit format of activations. */

#ifndef GM_CPU_SIMD_ROWS_H
#define GM_CPU_SIMD_ROWS_H

#include "cpu/kernels.h"

#include <math.h>

/* The last n < 8 values of a row; the missing lanes are zero. */
INLINE f32x8 load_part(const float *p, size_t n) {
    float lanes[8] = { 0 };
    memcpy(lanes, p, n * sizeof *p);
    return f32_load(lanes);
}

INLINE void store_part(float *p, f32x8 a, size_t n) {
    float lanes[8];
    f32_store(lanes, a);
    memcpy(p, lanes, n * sizeof *p);
}

/* e^x = 2^n · e^r with r = x − n·ln 2, |r| ≤ 0.35. A Taylor polynomial of degree 7 is exact to 1e-8; the rest is rounding. Below
 * -87 the result stays at about 1e-38. */
INLINE f32x8 f32_exp(f32x8 x) {
    x = f32_min(f32_set(88), f32_max(f32_set(-87), x)); /* in this order NaN stays NaN on x86 */
    const i32x8 n = f32_round(f32_mul(x, f32_set(1.44269504f)));
    const f32x8 m = f32_from_i32(n);
    f32x8       r = f32_fma(m, f32_set(-0.693359375f), x); /* ln 2 in two pieces: the first product is exact */
    r = f32_fma(m, f32_set(2.12194440e-4f), r);
    f32x8 p = f32_fma(f32_set(1.0f / 5040), r, f32_set(1.0f / 720));
    p = f32_fma(p, r, f32_set(1.0f / 120));
    p = f32_fma(p, r, f32_set(1.0f / 24));
    p = f32_fma(p, r, f32_set(1.0f / 6));
    p = f32_fma(p, r, f32_set(0.5f));
    p = f32_fma(p, r, f32_set(1));
    p = f32_fma(p, r, f32_set(1));
    return f32_mul(p, f32_power_of_2(n));
}

/* tanh x = (1 − e^−2|x|) / (1 + e^−2|x|) with x's sign; near zero, where that cancels, its Taylor series. */
INLINE f32x8 f32_tanh(f32x8 x) {
    const f32x8 size = f32_abs(x), e = f32_exp(f32_mul(size, f32_set(-2))), one = f32_set(1);
    const f32x8 far = f32_copy_sign(f32_div(f32_sub(one, e), f32_add(one, e)), x);
    const f32x8 z = f32_mul(x, x);
    f32x8       p = f32_fma(f32_set(21844.0f / 6081075), z, f32_set(-1382.0f / 155925));
    p = f32_fma(p, z, f32_set(62.0f / 2835));
    p = f32_fma(p, z, f32_set(-17.0f / 315));
    p = f32_fma(p, z, f32_set(2.0f / 15));
    p = f32_fma(p, z, f32_set(-1.0f / 3));
    p = f32_fma(f32_mul(p, z), x, x);
    return f32_choose_less(size, f32_set(0.5f), p, far);
}

/* x/2 · (1 + tanh u) = x / (1 + e^−2u), u = √(2/π) · (x + 0.044715 x³). */
INLINE f32x8 f32_gelu(f32x8 x) {
    const f32x8 cubic = f32_fma(f32_mul(x, x), f32_set(0.044715f), f32_set(1));
    const f32x8 e = f32_exp(f32_mul(f32_mul(x, f32_set(-2 * 0.79788456f)), cubic));
    return f32_div(x, f32_add(f32_set(1), e));
}

/* Blocks are summed in f32 lanes, the blocks' sums in double. */
INLINE double sum_of_squares(const float *x, size_t n) {
    enum { BLOCK = 256 };
    double total = 0;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        f32x8 a = f32_zero(), b = f32_zero();
        for (size_t j = i; j < i + BLOCK; j += 16) {
            const f32x8 x0 = f32_load(x + j), x1 = f32_load(x + j + 8);
            a = f32_fma(x0, x0, a);
            b = f32_fma(x1, x1, b);
        }
        total += f32_sum(f32_add(a, b));
    }
    for (; i < n; i++) total += (double)x[i] * x[i];
    return total;
}

static void simd_rms_norm(float *y, const float *x, const float *w, float eps, size_t n) {
    const float r = (float)(1 / sqrt(sum_of_squares(x, n) / (double)n + eps));
    size_t      i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 scaled = f32_mul(f32_load(x + i), f32_set(r));
        f32_store(y + i, w ? f32_mul(scaled, f32_load(w + i)) : scaled);
    }
    for (; i < n; i++) y[i] = x[i] * r * (w ? w[i] : 1);
}

/* Σ w·d·x, in blocks as above. */
INLINE double sum_of_products(const float *x, const float *w, const float *d, size_t n) {
    enum { BLOCK = 256 };
    double total = 0;
    size_t i = 0;
    for (size_t end; i + 8 <= n; i = end) {
        f32x8 sum = f32_zero();
        end = min_size(i + BLOCK, n / 8 * 8);
        for (size_t j = i; j < end; j += 8) {
            const f32x8 weighted = w ? f32_mul(f32_load(w + j), f32_load(d + j)) : f32_load(d + j);
            sum = f32_fma(weighted, f32_load(x + j), sum);
        }
        total += f32_sum(sum);
    }
    for (; i < n; i++) total += (double)(w ? w[i] : 1) * d[i] * x[i];
    return total;
}

static void simd_rms_norm_back(float *y, const float *x, const float *w, const float *d, float eps, size_t n) {
    const double exact = 1 / sqrt(sum_of_squares(x, n) / (double)n + eps);
    const float  r = (float)exact, pull = (float)(exact * exact * exact * sum_of_products(x, w, d, n) / (double)n);
    size_t       i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 weighted = w ? f32_mul(f32_load(w + i), f32_load(d + i)) : f32_load(d + i);
        f32_store(y + i, f32_sub(f32_mul(weighted, f32_set(r)), f32_mul(f32_load(x + i), f32_set(pull))));
    }
    for (; i < n; i++) y[i] = r * (w ? w[i] : 1) * d[i] - x[i] * pull;
}

/* Σ (x − centre)^power, in blocks as above; power is 1 or 2. */
INLINE double sum_of_powers(const float *x, float centre, int power, size_t n) {
    enum { BLOCK = 256 };
    double total = 0;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        f32x8 sum = f32_zero();
        for (size_t j = i; j < i + BLOCK; j += 8) {
            const f32x8 d = f32_sub(f32_load(x + j), f32_set(centre));
            sum = power == 2 ? f32_fma(d, d, sum) : f32_add(d, sum);
        }
        total += f32_sum(sum);
    }
    for (; i < n; i++) {
        const double d = (double)x[i] - centre;
        total += power == 2 ? d * d : d;
    }
    return total;
}

static void simd_layer_norm(float *y, const float *x, const float *w, const float *b, float eps, size_t n) {
    const float mean = (float)(sum_of_powers(x, 0, 1, n) / (double)n);
    const float r = (float)(1 / sqrt(sum_of_powers(x, mean, 2, n) / (double)n + eps));
    size_t      i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 scaled = f32_mul(f32_mul(f32_sub(f32_load(x + i), f32_set(mean)), f32_set(r)), f32_load(w + i));
        f32_store(y + i, b ? f32_add(scaled, f32_load(b + i)) : scaled);
    }
    for (; i < n; i++) y[i] = (x[i] - mean) * r * w[i] + (b ? b[i] : 0);
}

static void simd_mul(float *y, const float *a, const float *b, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_mul(f32_load(a + i), f32_load(b + i)));
    for (; i < n; i++) y[i] = a[i] * b[i];
}

static void simd_clamp(float *y, const float *a, float least, float most, size_t n) {
    size_t i = 0; /* with the value as the second argument NaN stays NaN on x86 */
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_min(f32_set(most), f32_max(f32_set(least), f32_load(a + i))));
    for (; i < n; i++) y[i] = a[i] < least ? least : a[i] > most ? most : a[i];
}

static void simd_add(float *y, const float *a, const float *b, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_add(f32_load(a + i), f32_load(b + i)));
    for (; i < n; i++) y[i] = a[i] + b[i];
}

static void simd_scale(float *y, const float *a, float factor, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_mul(f32_load(a + i), f32_set(factor)));
    for (; i < n; i++) y[i] = a[i] * factor;
}

static void simd_add_scaled(float *y, const float *x, float factor, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_fma(f32_load(x + i), f32_set(factor), f32_load(y + i)));
    if (i < n) store_part(y + i, f32_fma(load_part(x + i, n - i), f32_set(factor), load_part(y + i, n - i)), n - i);
}

static void simd_add_rows(float *y, const float *x, size_t stride, const float *factors, size_t rows, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        f32x8 a = f32_load(y + i), b = f32_load(y + i + 8), c = f32_load(y + i + 16), d = f32_load(y + i + 24);
        for (size_t r = 0; r < rows; r++) {
            const float *from = x + r * stride + i;
            const f32x8  factor = f32_set(factors[r]);
            a = f32_fma(f32_load(from), factor, a);
            b = f32_fma(f32_load(from + 8), factor, b);
            c = f32_fma(f32_load(from + 16), factor, c);
            d = f32_fma(f32_load(from + 24), factor, d);
        }
        f32_store(y + i, a), f32_store(y + i + 8, b), f32_store(y + i + 16, c), f32_store(y + i + 24, d);
    }
    for (; i < n; i += 8) {
        const size_t part = n - i < 8 ? n - i : 8;
        f32x8        sum = load_part(y + i, part);
        for (size_t r = 0; r < rows; r++) sum = f32_fma(load_part(x + r * stride + i, part), f32_set(factors[r]), sum);
        store_part(y + i, sum, part);
    }
}

static void simd_geglu(float *y, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_mul(f32_gelu(f32_load(gate + i)), f32_load(up + i)));
    if (i < n) store_part(y + i, f32_mul(f32_gelu(load_part(gate + i, n - i)), load_part(up + i, n - i)), n - i);
}

/* With s = 1 / (1 + e^−2u) as in f32_gelu: s + x · s · (1 − s) · 2u'. */
INLINE f32x8 f32_gelu_slope(f32x8 x) {
    const f32x8 one = f32_set(1), squares = f32_mul(x, x), cubic = f32_fma(squares, f32_set(0.044715f), one);
    const f32x8 s = f32_div(one, f32_add(one, f32_exp(f32_mul(f32_mul(x, f32_set(-2 * 0.79788456f)), cubic))));
    const f32x8 steep = f32_mul(f32_fma(squares, f32_set(3 * 0.044715f), one), f32_set(2 * 0.79788456f));
    return f32_fma(f32_mul(x, steep), f32_mul(s, f32_sub(one, s)), s);
}

static void simd_geglu_back(float *y, const float *gate, const float *up, const float *d, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        f32_store(y + i, f32_mul(f32_gelu_slope(f32_load(gate + i)), f32_mul(f32_load(up + i), f32_load(d + i))));
    if (i < n)
        store_part(y + i,
                   f32_mul(f32_gelu_slope(load_part(gate + i, n - i)),
                           f32_mul(load_part(up + i, n - i), load_part(d + i, n - i))),
                   n - i);
}

/* f32_exp is for exponents from −87 to 88; e^87 gives almost 0. */
INLINE f32x8 f32_gate(f32x8 a, f32x8 b) {
    const f32x8 e = f32_exp(f32_min(f32_max(f32_sub(f32_zero(), b), f32_set(-87)), f32_set(87)));
    return f32_div(a, f32_add(f32_set(1), e));
}

static void simd_gate(float *y, const float *a, const float *b, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_gate(f32_load(a + i), f32_load(b + i)));
    if (i < n) store_part(y + i, f32_gate(load_part(a + i, n - i), load_part(b + i, n - i)), n - i);
}

INLINE f32x8 f32_softcap(f32x8 x, float cap) { return f32_mul(f32_tanh(f32_div(x, f32_set(cap))), f32_set(cap)); }

static void simd_softcap(float *y, const float *x, float cap, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) f32_store(y + i, f32_softcap(f32_load(x + i), cap));
    if (i < n) store_part(y + i, f32_softcap(load_part(x + i, n - i), cap), n - i);
}

static void simd_rope(float *x, const float *table, size_t n) {
    const size_t half = n / 2;
    size_t       i = 0;
    for (; i + 8 <= half; i += 8) {
        const f32x8 a = f32_load(x + i), b = f32_load(x + half + i);
        const f32x8 cosine = f32_load(table + i), sine = f32_load(table + half + i);
        f32_store(x + i, f32_sub(f32_mul(a, cosine), f32_mul(b, sine)));
        f32_store(x + half + i, f32_add(f32_mul(b, cosine), f32_mul(a, sine)));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i], cosine = table[i], sine = table[half + i];
        x[i] = a * cosine - b * sine;
        x[half + i] = b * cosine + a * sine;
    }
}

/* Converts 32 values to 8 bits; returns the scale, and the sums of both halves in `sums`. 8 bits cannot represent NaN or infinity,
 * so the scale becomes NaN and a damaged model shows in its logits. */
INLINE float quantise_32(int8_t *q, const float *x, int32_t sums[2]) {
    const f32x8 x0 = f32_load(x), x1 = f32_load(x + 8), x2 = f32_load(x + 16), x3 = f32_load(x + 24);
    const f32x8 most = f32_max(f32_max(f32_abs(x0), f32_abs(x1)), f32_max(f32_abs(x2), f32_abs(x3)));
    const float d = f32_most(most) / 127, inverse = d > 1e-35f ? 1 / d : 0;
    const f32x8 by = f32_set(inverse);
    const i32x8 q0 = f32_round(f32_mul(x0, by)), q1 = f32_round(f32_mul(x1, by));
    const i32x8 q2 = f32_round(f32_mul(x2, by)), q3 = f32_round(f32_mul(x3, by));
    i32_to_bytes(q, q0, q1, q2, q3);
    const i32x8 low = i32_add(q0, q1), high = i32_add(q2, q3);
    sums[0] = i32_sum(low);
    sums[1] = i32_sum(high);
    const f32x8 spoilt = f32_mul(f32_add(f32_add(x0, x1), f32_add(x2, x3)), f32_set(0)); /* 0, or NaN */
    return (inverse > 0 ? d : 0) + f32_sum(spoilt);
}

static void simd_quantise(q8 out, const float *x, size_t rows, size_t k) {
    for (size_t i = 0; i < rows * k / 32; i++) {
        int32_t     sums[2];
        const float d = quantise_32(out.q + 32 * i, x + 32 * i, sums);
        out.d[i] = d;
        out.s[2 * i] = d * (float)sums[0];
        out.s[2 * i + 1] = d * (float)sums[1];
    }
}

static void simd_store(void *out, quant_type type, const float *x, size_t n) {
    if (type == TYPE_F16) {
        size_t i = 0;
        for (; i + 8 <= n; i += 8) f32_to_f16_store((uint16_t *)out + i, f32_load(x + i));
        if (i < n) {
            uint16_t lanes[8];
            f32_to_f16_store(lanes, load_part(x + i, n - i));
            memcpy((uint16_t *)out + i, lanes, (n - i) * sizeof *lanes);
        }
        return;
    }
    if (type == TYPE_F32) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    uint8_t *block = out;
    for (size_t i = 0; i < n; i += 32, block += 34) {
        int32_t  sums[2];
        float    lanes[8] = { 0 };
        uint16_t half[8];
        int8_t   q[32];
        lanes[0] = quantise_32(q, x + i, sums);
        f32_to_f16_store(half, f32_load(lanes));
        memcpy(block, half, sizeof *half);
        memcpy(block + 2, q, sizeof q);
    }
}

static void simd_load_row(float *out, quant_type type, const void *row, float factor, size_t n) {
    const quant_format *format = quant_format_of((uint32_t)type);
    format->dequantise(out, row, n / format->block);
    simd_scale(out, out, factor, n);
}

#endif
