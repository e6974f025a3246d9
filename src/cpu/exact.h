/* Functions that give the same bits on every processor, and on GPUs by wgsl/exact.wgsl, which has the same ones. They consist of sums, products
 * and differences of f32, each rounded to nearest, in this order, and of integer arithmetic: no division, no square root, no library. They are
 * right to about 2 · 10^-7. */

#ifndef GM_CPU_EXACT_H
#define GM_CPU_EXACT_H

#include "base/base.h"

#include <math.h>
#include <string.h>

static inline uint32_t exact_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float exact_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 1 / x by Newton's method, 2^-120 < x < 2^120. */
static inline float exact_inverse(float x) {
    float y = exact_float(0x7ef311c7u - exact_bits(x)); /* within 12 % */
    for (int i = 0; i < 4; i++) y = y * (2 - x * y);
    return y;
}

/* 1 / √x, the same. */
static inline float exact_inverse_root(float x) {
    float y = exact_float(0x5f3759dfu - (exact_bits(x) >> 1)); /* within 4 % */
    for (int i = 0; i < 4; i++) y = y * (1.5f - 0.5f * x * y * y);
    return y;
}

/* e^x up to x = 80; 0 below −70, so that no product with it is subnormal, which a GPU may take for 0. */
static inline float exact_exp(float x) {
    if (!(x >= -70)) return x < -70 ? 0 : x; /* or NaN */
    if (x > 80) x = 80;
    const float n = floorf(x * 1.44269504f + 0.5f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* x − n · ln 2 */
    float       p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1;
    return exact_float(exact_bits(p) + ((uint32_t)(int32_t)n << 23));
}

/* ln((1 + s) / (1 − s)), |s| ≤ 1/3 */
static inline float exact_log_ratio(float s) {
    const float q = s * s;
    float       p = 1.0f / 13;
    for (int odd = 11; odd > 0; odd -= 2) p = p * q + 1.0f / (float)odd;
    return 2 * s * p;
}

/* ln x of a normal x > 0 */
static inline float exact_log(float x) {
    int32_t exponent = (int32_t)(exact_bits(x) >> 23) - 127;
    float   m = exact_float((exact_bits(x) & 0x7fffffu) | 0x3f800000u);
    if (m > 1.41421356f) {
        m *= 0.5f;
        exponent++;
    }
    return (float)exponent * 0.693147181f + exact_log_ratio((m - 1) * exact_inverse(m + 1));
}

/* (1 − e) / (1 + e) with e = e^(−2|x|). Near 0 that loses digits, so the series is used there. */
static inline float exact_tanh(float x) {
    const float size = fabsf(x), q = x * x;
    if (size < 0.2f) return x * (((((62.0f / 2835) * q - 17.0f / 315) * q + 2.0f / 15) * q - 1.0f / 3) * q + 1);
    const float e = exact_exp(fmaxf(-2 * size, -70)), t = (1 - e) * exact_inverse(1 + e);
    return x < 0 ? -t : size > 0 ? t : x; /* or NaN */
}

/* x/2 · (1 + tanh u) = x / (1 + e^(−2u)) with u = √(2/π) · (x + 0.044715 x³) */
static inline float exact_gelu(float x) {
    const float u = 0.7978845608f * x * (1 + 0.044715f * x * x);
    return x * exact_inverse(1 + exact_exp(fminf(-2 * u, 70)));
}

/* Cosine and sine of an angle of up to 2^24: whole turns are removed in integers, where the angle is m · 2^-shift and 1/2π has 96 bits. */
static inline void exact_cosine_sine(float angle, float *cosine, float *sine) {
    const uint32_t bits = exact_bits(angle) & 0x7fffffffu;
    uint32_t       quarter = 0;
    float          rest = fabsf(angle);
    if (bits >= 0x3f000000u) { /* smaller angles need no reduction */
        const uint64_t m = (bits & 0x7fffffu) | 0x800000u;
        const uint32_t above = bits >> 23, shift = above >= 150 ? 1 : above <= 119 ? 31 : 150 - above;
        const uint64_t low = m * 0x7f09d5f4u, middle = m * 0x9391054au + (low >> 32),
                       high = m * 0x28be60dbu + (middle >> 32);
        const uint32_t turn = (uint32_t)(high >> shift),
                       finer = (uint32_t)high << (32 - shift) | (uint32_t)middle >> shift;
        quarter = (turn + 0x20000000u) >> 30;
        rest = ((float)(int32_t)(turn - (quarter << 30)) + (float)finer * 0x1p-32f) * (6.283185307179586f * 0x1p-32f);
    }
    /* |rest| ≤ π/4, where the series converges quickly */
    const float q = rest * rest;
    const float c = 1 + q * (-0.5f + q * (1.0f / 24 + q * (-1.0f / 720 + q * (1.0f / 40320 - q * (1.0f / 3628800)))));
    const float s = rest * (1 + q * (-1.0f / 6 + q * (1.0f / 120 + q * (-1.0f / 5040 + q * (1.0f / 362880)))));
    *cosine = quarter & 1 ? -s : c;
    *sine = quarter & 1 ? c : s;
    if (quarter & 2) *cosine = -*cosine, *sine = -*sine;
    if (angle < 0) *sine = -*sine;
}

/* ---- sums ---- */

/* A dot product has four lanes: lane l adds the products l, l + 4, … */
static inline void exact_dot_add(float lanes[4], const float *a, const float *b, size_t n) {
    float  sums[4] = { lanes[0], lanes[1], lanes[2], lanes[3] };
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t l = 0; l < 4; l++) sums[l] += a[i + l] * b[i + l];
    }
    for (size_t l = 0; i + l < n; l++) sums[l] += a[i + l] * b[i + l];
    for (size_t l = 0; l < 4; l++) lanes[l] = sums[l];
}

static inline float exact_dot_end(const float lanes[4]) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

/* Sums of many values have more: lane l adds the values l, l + EXACT_LANES, …, and then the lanes are added up in halves. */
enum { EXACT_LANES = 256 };

static inline float exact_lanes_sum(float lanes[EXACT_LANES]) {
    for (size_t half = EXACT_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

#endif
