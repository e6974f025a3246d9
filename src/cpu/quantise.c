/* Quantises in three steps, of which only the first and the last know the format: choose the scales and write them to the block;
 * read them back as unpack.h gives them (w = scale · q + offset) and round every value on that grid; pack the q. */

#include "cpu/quantise.h"

#include "base/half.h"
#include "cpu/unpack.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    int           low, high;                        /* q, as unpack.h has it */
    const int8_t *table;                            /* 16 values that q takes; NULL: all from low to high */
    void (*fit)(const float *x, uint8_t *block);    /* writes the scales */
    void (*pack)(const int16_t *q, uint8_t *block); /* writes q, or its index in the table */
} quantiser;

static void put_half(uint8_t *at, float value) {
    const uint16_t bits = f32_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}

/* To the nearest, ties to even: so large a number has no room for fractions. Much faster than a call of nearbyintf. */
static int clamp_int(float value, int low, int high) {
    if (!(value > (float)low)) return low; /* NaN, too */
    if (value >= (float)high) return high;
    const float whole = value + 0x1.8p23f;
    return (int)(whole - 0x1.8p23f);
}

/* ---- scales of one group ---- */

static float extreme_of(const float *x, size_t n) { /* the value of the largest magnitude, with its sign */
    float most = 0;
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    return most;
}

static int nearest_in(const int8_t *table, float value) {
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(value - table[i]) < fabsf(value - table[best])) best = i;
    return best;
}

/* The scale d that makes Σ (x − d·q)² small, q rounded from low to high, or in the table. Tries ways to map the extreme value to
 * the ends of the range; with q fixed, the best d is Σxq / Σq², and the error shrinks by (Σxq)² / Σq². */
static float fit_scale(const float *x, size_t n, int low, int high, const int8_t *table) {
    const float extreme = extreme_of(x, n);
    float       best = 0, gain = 0;
    if (fabsf(extreme) < FLT_MIN) return 0;
    for (int sign = 0; sign < 2; sign++) {
        for (int step = -6; step <= 6; step++) {
            const float end = (float)(sign ? high : low), to = end + 0.1f * (float)step * end / 8;
            const float inverse = to / extreme;
            double      xq = 0, qq = 0;
            for (size_t i = 0; i < n; i++) {
                const int q = table ? table[nearest_in(table, x[i] * inverse)] : clamp_int(x[i] * inverse, low, high);
                xq += (double)x[i] * q;
                qq += (double)q * q;
            }
            if (qq == 0 || xq * xq / qq <= gain) continue;
            gain = (float)(xq * xq / qq);
            best = (float)(xq / qq);
        }
    }
    return best;
}

/* Scale and offset that make Σ (x − a·q − o)² small, q from 0 to high. With `below`, the offset is not positive. */
static void fit_affine(const float *x, size_t n, int high, bool below, float *a, float *o) {
    float  least = x[0], most = x[0];
    double best = INFINITY;
    for (size_t i = 1; i < n; i++) least = fminf(least, x[i]), most = fmaxf(most, x[i]);
    if (below && least > 0) least = 0;
    *a = 0;
    *o = least;
    if (most <= least) return;
    for (int step = -5; step <= 10; step++) {
        const float inverse = ((float)high + 0.1f * (float)step * (float)high / 15) / (most - least);
        double      sq = 0, sqq = 0, sx = 0, sxq = 0, sxx = 0;
        for (size_t i = 0; i < n; i++) {
            const int q = clamp_int((x[i] - least) * inverse, 0, high);
            sq += q, sqq += (double)q * q, sx += x[i], sxq += (double)x[i] * q, sxx += (double)x[i] * x[i];
        }
        const double determinant = (double)n * sqq - sq * sq;
        if (determinant <= 0) continue;
        double scale = ((double)n * sxq - sq * sx) / determinant, offset = (sx - scale * sq) / (double)n;
        if (below && offset > 0) offset = 0, scale = sxq / sqq;
        const double wrong = sxx - 2 * scale * sxq - 2 * offset * sx + scale * scale * sqq + 2 * scale * offset * sq +
                             (double)n * offset * offset;
        if (scale <= 0 || wrong >= best) continue;
        best = wrong;
        *a = (float)scale;
        *o = (float)offset;
    }
}

/* ---- blocks of 32 ---- */

static void fit_q4_0(const float *x, uint8_t *block) { put_half(block, fit_scale(x, 32, -8, 7, NULL)); }
static void fit_q5_0(const float *x, uint8_t *block) { put_half(block, fit_scale(x, 32, -16, 15, NULL)); }
static void fit_q8_0(const float *x, uint8_t *block) { put_half(block, fabsf(extreme_of(x, 32)) / 127); }
static void fit_iq4_nl(const float *x, uint8_t *block) {
    put_half(block, fit_scale(x, 32, -127, 113, quant_iq4_values));
}

static void fit_with_offset(const float *x, int high, uint8_t *block) {
    float a, o;
    fit_affine(x, 32, high, false, &a, &o);
    put_half(block, a);
    put_half(block + 2, o);
}

static void fit_q4_1(const float *x, uint8_t *block) { fit_with_offset(x, 15, block); }
static void fit_q5_1(const float *x, uint8_t *block) { fit_with_offset(x, 31, block); }

/* A power of two. Of the smallest one that clips nothing and the next smaller one, the better. */
static void fit_mxfp4(const float *x, uint8_t *block) {
    const float most = fabsf(extreme_of(x, 32));
    int         power = 0;
    double      wrong[2] = { 0 };
    if (most < FLT_MIN) {
        block[0] = 0;
        return;
    }
    frexpf(most / 12, &power); /* most ≤ 12 · 2^power */
    for (int i = 0; i < 2; i++) {
        const float scale = ldexpf(1, power - i);
        for (size_t j = 0; j < 32; j++) {
            const double d = x[j] - scale * (float)quant_mxfp4_values[nearest_in(quant_mxfp4_values, x[j] / scale)];
            wrong[i] += d * d;
        }
    }
    const int exponent = 128 + power - (wrong[1] < wrong[0]);
    block[0] = (uint8_t)(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent);
}

static void pack_nibbles(const int16_t *q, uint8_t *qs) {
    for (size_t i = 0; i < 16; i++) qs[i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

static void pack_fifth_bits(const int16_t *q, uint8_t *bits) {
    memset(bits, 0, 4);
    for (size_t i = 0; i < 32; i++) bits[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
}

static void pack_low_nibbles(const int16_t *q, uint8_t *qs) {
    for (size_t i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void pack_q4_0(const int16_t *q, uint8_t *block) { pack_nibbles(q, block + 2); }
static void pack_q4_1(const int16_t *q, uint8_t *block) { pack_nibbles(q, block + 4); }
static void pack_mxfp4(const int16_t *q, uint8_t *block) { pack_nibbles(q, block + 1); }

static void pack_q5_0(const int16_t *q, uint8_t *block) {
    pack_fifth_bits(q, block + 2);
    pack_low_nibbles(q, block + 6);
}

static void pack_q5_1(const int16_t *q, uint8_t *block) {
    pack_fifth_bits(q, block + 4);
    pack_low_nibbles(q, block + 8);
}

static void pack_q8_0(const int16_t *q, uint8_t *block) {
    for (size_t i = 0; i < 32; i++) block[2 + i] = (uint8_t)(int8_t)q[i];
}

/* ---- blocks of 256 ---- */

/* Eight scales and minima of 6 bits in 12 bytes: the inverse of what quant.c reads. */
static void put_k_scale(uint8_t *scales, int i, int scale, int minimum) {
    if (i < 4) {
        scales[i] = (uint8_t)((scales[i] & 0xc0) | scale);
        scales[i + 4] = (uint8_t)((scales[i + 4] & 0xc0) | minimum);
    } else {
        scales[i + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
        scales[i - 4] = (uint8_t)((scales[i - 4] & 63) | scale >> 4 << 6);
        scales[i] = (uint8_t)((scales[i] & 63) | minimum >> 4 << 6);
    }
}

/* Scales and minima of `groups` groups as whole numbers up to `most` times two half floats. */
static void fit_k(const float *x, size_t groups, int high, int most, int scale[16], int minimum[16], float d[2]) {
    float        a[16], o[16], largest[2] = { 0 };
    const size_t n = 256 / groups;
    for (size_t i = 0; i < groups; i++) {
        fit_affine(x + i * n, n, high, true, &a[i], &o[i]);
        largest[0] = fmaxf(largest[0], a[i]);
        largest[1] = fmaxf(largest[1], -o[i]);
    }
    for (int i = 0; i < 2; i++) d[i] = f16_to_f32(f32_to_f16(largest[i] / (float)most));
    for (size_t i = 0; i < groups; i++) {
        scale[i] = d[0] > 0 ? clamp_int(a[i] / d[0], 0, most) : 0;
        minimum[i] = d[1] > 0 ? clamp_int(-o[i] / d[1], 0, most) : 0;
    }
}

static void fit_k_nibbles(const float *x, int high, uint8_t *block) {
    int   scale[16], minimum[16];
    float d[2];
    fit_k(x, 8, high, 63, scale, minimum, d);
    put_half(block, d[0]);
    put_half(block + 2, d[1]);
    memset(block + 4, 0, 12);
    for (int i = 0; i < 8; i++) put_k_scale(block + 4, i, scale[i], minimum[i]);
}

static void fit_q4_k(const float *x, uint8_t *block) { fit_k_nibbles(x, 15, block); }
static void fit_q5_k(const float *x, uint8_t *block) { fit_k_nibbles(x, 31, block); }

static void fit_q2_k(const float *x, uint8_t *block) {
    int   scale[16], minimum[16];
    float d[2];
    fit_k(x, 16, 3, 15, scale, minimum, d);
    for (int i = 0; i < 16; i++) block[i] = (uint8_t)(scale[i] | minimum[i] << 4);
    put_half(block + 80, d[0]);
    put_half(block + 82, d[1]);
}

/* Signed scales of `groups` groups as whole numbers from -most to most - 1 times one half float. */
static float fit_signed(const float *x, size_t groups, int low, int high, const int8_t *table, int most,
                        int scale[16]) {
    float        own[16];
    const size_t n = 256 / groups;
    for (size_t i = 0; i < groups; i++) own[i] = fit_scale(x + i * n, n, low, high, table);
    const float d = f16_to_f32(f32_to_f16(extreme_of(own, groups) / (float)-most));
    for (size_t i = 0; i < groups; i++) scale[i] = d != 0 ? clamp_int(own[i] / d, -most, most - 1) : 0;
    return d;
}

static void fit_q6_k(const float *x, uint8_t *block) {
    int scale[16];
    put_half(block + 208, fit_signed(x, 16, -32, 31, NULL, 128, scale));
    for (int i = 0; i < 16; i++) block[192 + i] = (uint8_t)(int8_t)scale[i];
}

static void fit_q3_k(const float *x, uint8_t *block) {
    int      scale[16];
    uint8_t *s = block + 96;
    put_half(block + 108, fit_signed(x, 16, -4, 3, NULL, 32, scale));
    memset(s, 0, 12);
    for (int i = 0; i < 16; i++) {
        const int bits = scale[i] + 32;
        s[i % 8] |= (uint8_t)(i < 8 ? bits & 15 : (bits & 15) << 4);
        s[8 + i % 4] |= (uint8_t)(bits >> 4 << 2 * (i / 4));
    }
}

static void fit_iq4_xs(const float *x, uint8_t *block) {
    int scale[16], high = 0;
    put_half(block, fit_signed(x, 8, -127, 113, quant_iq4_values, 32, scale));
    memset(block + 4, 0, 4);
    for (int i = 0; i < 8; i++) {
        const int bits = scale[i] + 32;
        block[4 + i / 2] |= (uint8_t)((bits & 15) << 4 * (i % 2));
        high |= bits >> 4 << 2 * i;
    }
    block[2] = (uint8_t)high;
    block[3] = (uint8_t)(high >> 8);
}

static void pack_k_nibbles(const int16_t *q, uint8_t *qs) {
    for (size_t i = 0; i < 128; i++) {
        const int16_t *from = q + i / 32 * 64 + i % 32;
        qs[i] = (uint8_t)((from[0] & 15) | (from[32] & 15) << 4);
    }
}

static void pack_q4_k(const int16_t *q, uint8_t *block) { pack_k_nibbles(q, block + 16); }

static void pack_q5_k(const int16_t *q, uint8_t *block) {
    pack_k_nibbles(q, block + 48);
    memset(block + 16, 0, 32);
    for (size_t i = 0; i < 256; i++) block[16 + i % 32] |= (uint8_t)((q[i] >> 4 & 1) << i / 32);
}

static void pack_q6_k(const int16_t *q, uint8_t *block) {
    memset(block, 0, 192);
    for (size_t i = 0; i < 256; i++) {
        const size_t half = i / 128, group = i / 32 % 4, at = i % 32;
        block[64 * half + 32 * (group & 1) + at] |= (uint8_t)((q[i] & 15) << (group < 2 ? 0 : 4));
        block[128 + 32 * half + at] |= (uint8_t)(q[i] >> 4 << 2 * group);
    }
}

/* Two bits of each value, in 64 bytes. */
static void pack_pairs_of_bits(const int16_t *q, uint8_t *qs) {
    memset(qs, 0, 64);
    for (size_t i = 0; i < 256; i++) qs[i / 128 * 32 + i % 32] |= (uint8_t)((q[i] & 3) << 2 * (i / 32 % 4));
}

static void pack_q2_k(const int16_t *q, uint8_t *block) { pack_pairs_of_bits(q, block + 16); }

static void pack_q3_k(const int16_t *q, uint8_t *block) {
    pack_pairs_of_bits(q, block + 32);
    memset(block, 0, 32);
    for (size_t i = 0; i < 256; i++) block[i % 32] |= (uint8_t)((q[i] >> 2 & 1) << i / 32);
}

static void pack_iq4_xs(const int16_t *q, uint8_t *block) {
    for (size_t i = 0; i < 8; i++) pack_nibbles(q + 32 * i, block + 8 + 16 * i);
}

/* ---- all ---- */

static const quantiser quantisers[TYPE_COUNT] = {
    [TYPE_Q4_0] = { 0, 15, NULL, fit_q4_0, pack_q4_0 },
    [TYPE_Q4_1] = { 0, 15, NULL, fit_q4_1, pack_q4_1 },
    [TYPE_Q5_0] = { 0, 31, NULL, fit_q5_0, pack_q5_0 },
    [TYPE_Q5_1] = { 0, 31, NULL, fit_q5_1, pack_q5_1 },
    [TYPE_Q8_0] = { -128, 127, NULL, fit_q8_0, pack_q8_0 },
    [TYPE_Q2_K] = { 0, 3, NULL, fit_q2_k, pack_q2_k },
    [TYPE_Q3_K] = { 0, 7, NULL, fit_q3_k, pack_q3_k },
    [TYPE_Q4_K] = { 0, 15, NULL, fit_q4_k, pack_q4_k },
    [TYPE_Q5_K] = { 0, 31, NULL, fit_q5_k, pack_q5_k },
    [TYPE_Q6_K] = { 0, 63, NULL, fit_q6_k, pack_q6_k },
    [TYPE_IQ4_NL] = { -127, 113, quant_iq4_values, fit_iq4_nl, pack_q4_0 },
    [TYPE_IQ4_XS] = { -127, 113, quant_iq4_values, fit_iq4_xs, pack_iq4_xs },
    [TYPE_MXFP4] = { -12, 12, quant_mxfp4_values, fit_mxfp4, pack_mxfp4 },
};

static bool is_float(quant_type type) { return type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16; }

bool quantise_known(quant_type type) {
    return (unsigned)type < TYPE_COUNT && (is_float(type) || quantisers[type].fit != NULL);
}

/* Rounds the values on the grid of the block's scales and packs them. Returns the sum of squared errors; *outside: a value was more
 * than half a step beyond the end of its grid. */
static double round_block(const quantiser *z, quant_type type, size_t n, const float *x, uint8_t *block,
                          bool *outside) {
    unpacked_block grid;
    int16_t        q[UNPACK_MOST];
    double         wrong = 0;
    unpack_of(type)(&grid, block);
    *outside = false;
    for (size_t i = 0; i < n; i++) {
        const float scale = grid.scale[i / 16], offset = grid.offset[i / 16];
        const float wanted = scale != 0 ? (x[i] - offset) / scale : 0;
        const int   at = z->table ? nearest_in(z->table, wanted) : clamp_int(wanted, z->low, z->high);
        const float value = scale * (float)(z->table ? z->table[at] : at) + offset;
        q[i] = (int16_t)at;
        wrong += ((double)x[i] - value) * ((double)x[i] - value);
        *outside |=
            wanted < (float)z->low - 0.501f || wanted > (float)z->high + 0.501f || (scale == 0 && x[i] != offset);
    }
    z->pack(q, block);
    return wrong;
}

static void quantise_block(quant_type type, const quant_format *format, const float *x, const uint8_t *old,
                           uint8_t *out) {
    const quantiser *z = &quantisers[type];
    uint8_t          kept[256] = { 0 };
    bool             outside = true;
    double           wrong = INFINITY;
    if (old) {
        memcpy(kept, old, format->bytes);
        wrong = round_block(z, type, format->block, x, kept, &outside);
    }
    if (outside) {
        memset(out, 0, format->bytes);
        z->fit(x, out);
        if (round_block(z, type, format->block, x, out, &outside) < wrong) return;
    }
    memcpy(out, kept, format->bytes);
}

void quantise_blocks(quant_type type, uint8_t *out, const float *values, const uint8_t *old, size_t blocks) {
    const quant_format *format = quant_format_of((uint32_t)type);
    for (size_t i = 0; i < blocks; i++, out += format->bytes, values += format->block) {
        const uint16_t half = type == TYPE_BF16 ? f32_to_bf16(*values) : f32_to_f16(*values);
        if (type == TYPE_F32) memcpy(out, values, 4);
        else if (is_float(type)) memcpy(out, &half, 2);
        else quantise_block(type, format, values, old ? old + i * format->bytes : NULL, out);
    }
}
