/* Block formats: the table, and the exact values of each.
 *
 * Every function follows the formula above it, with f32 arithmetic in that order, so that results are the same to the bit
 * everywhere (the build forbids contraction to fused multiply-adds). `e` is an element's index in its block. Blocks may lie
 * at any address. */

#include "gguf/quant.h"
#include "base/half.h"

#include <string.h>

const int8_t quant_iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t quant_mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static uint16_t read_u16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static float read_f16(const uint8_t *at) { return f16_to_f32(read_u16(at)); }

static uint32_t load_u32(const uint8_t *at) { return read_u16(at) | (uint32_t)read_u16(at + 2) << 16; }

/* All 32-wide formats have the same order: first the low nibbles, then the high ones. */
static int nibble_at(const uint8_t *qs, int e) { return e < 16 ? qs[e] & 15 : qs[e - 16] >> 4; }

/* ---- plain numbers ---- */

static void dequantise_f32(float *out, const void *in, size_t blocks) { memcpy(out, in, blocks * sizeof *out); }

static void dequantise_f16(float *out, const void *in, size_t blocks) {
    const uint8_t *at = in;
    for (size_t i = 0; i < blocks; i++) out[i] = read_f16(at + 2 * i);
}

static void dequantise_bf16(float *out, const void *in, size_t blocks) {
    const uint8_t *at = in;
    for (size_t i = 0; i < blocks; i++) out[i] = bf16_to_f32(read_u16(at + 2 * i));
}

/* ---- 32 elements ---- */

/* { f16 d; u8 qs[16] }: w = (q − 8)·d */
static void dequantise_q4_0(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 18, out += 32) {
        const float d = read_f16(b);
        for (int e = 0; e < 32; e++) out[e] = (float)(nibble_at(b + 2, e) - 8) * d;
    }
}

/* { f16 d, m; u8 qs[16] }: w = q·d + m */
static void dequantise_q4_1(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 20, out += 32) {
        const float d = read_f16(b), m = read_f16(b + 2);
        for (int e = 0; e < 32; e++) out[e] = (float)nibble_at(b + 4, e) * d + m;
    }
}

/* { f16 d; u32 qh; u8 qs[16] }: bit e of qh is the fifth bit of q; w = (q − 16)·d */
static void dequantise_q5_0(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 22, out += 32) {
        const float    d = read_f16(b);
        const uint32_t high = load_u32(b + 2);
        for (int e = 0; e < 32; e++) out[e] = (float)((nibble_at(b + 6, e) | (int)(high >> e & 1) << 4) - 16) * d;
    }
}

/* { f16 d, m; u32 qh; u8 qs[16] }: w = q·d + m */
static void dequantise_q5_1(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 24, out += 32) {
        const float    d = read_f16(b), m = read_f16(b + 2);
        const uint32_t high = load_u32(b + 4);
        for (int e = 0; e < 32; e++) out[e] = (float)(nibble_at(b + 8, e) | (int)(high >> e & 1) << 4) * d + m;
    }
}

/* { f16 d; i8 qs[32] }: w = q·d */
static void dequantise_q8_0(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 34, out += 32) {
        const float d = read_f16(b);
        for (int e = 0; e < 32; e++) out[e] = (float)(int8_t)b[2 + e] * d;
    }
}

/* { f16 d; u8 qs[16] }: w = d·T[q] */
static void dequantise_iq4_nl(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 18, out += 32) {
        const float d = read_f16(b);
        for (int e = 0; e < 32; e++) out[e] = d * (float)quant_iq4_values[nibble_at(b + 2, e)];
    }
}

/* 2^(exponent − 128); the two smallest are subnormal. */
static float mxfp4_scale(uint8_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float          scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* { u8 e8; u8 qs[16] }: w = 2^(e8 − 128)·M[q], M being twice the e2m1 value */
static void dequantise_mxfp4(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 17, out += 32) {
        const float scale = mxfp4_scale(b[0]);
        for (int e = 0; e < 32; e++) out[e] = scale * (float)quant_mxfp4_values[nibble_at(b + 1, e)];
    }
}

/* ---- 256 elements ---- */

/* The 6-bit scale and minimum of sub-block s of 8, out of 12 bytes. */
static void scale_and_minimum(const uint8_t *scales, int s, int *scale, int *minimum) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *minimum = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
        *minimum = scales[s + 4] >> 4 | scales[s] >> 6 << 4;
    }
}

/* { f16 d, dmin; u8 scales[12]; u8 qs[128] }: s = e/32; w = (d·scale)·q − (dmin·minimum) */
static void dequantise_q4_k(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 144) {
        const float d = read_f16(b), dmin = read_f16(b + 2);
        for (int s = 0; s < 8; s++, out += 32) {
            const uint8_t *qs = b + 16 + 32 * (s / 2);
            int            scale, minimum;
            scale_and_minimum(b + 4, s, &scale, &minimum);
            const float a = d * (float)scale, m = dmin * (float)minimum;
            for (int c = 0; c < 32; c++) out[c] = a * (float)(qs[c] >> 4 * (s & 1) & 15) - m;
        }
    }
}

/* { f16 d, dmin; u8 scales[12]; u8 qh[32]; u8 qs[128] }: as Q4_K, with bit s of qh[e % 32] as the fifth bit of q */
static void dequantise_q5_k(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 176) {
        const float    d = read_f16(b), dmin = read_f16(b + 2);
        const uint8_t *qh = b + 16;
        for (int s = 0; s < 8; s++, out += 32) {
            const uint8_t *qs = b + 48 + 32 * (s / 2);
            int            scale, minimum;
            scale_and_minimum(b + 4, s, &scale, &minimum);
            const float a = d * (float)scale, m = dmin * (float)minimum;
            for (int c = 0; c < 32; c++) {
                const int q = (qs[c] >> 4 * (s & 1) & 15) + 16 * (qh[c] >> s & 1);
                out[c] = a * (float)q - m;
            }
        }
    }
}

/* The other K formats number elements by half h of 2, group g of 4 and l of 32; scale k = 8h + 2g + l/16. */

/* { u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d }: q = (nibble | two high bits << 4) − 32; w = (d·scale)·q */
static void dequantise_q6_k(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 210) {
        const float d = read_f16(b + 208);
        for (int h = 0; h < 2; h++) {
            for (int g = 0; g < 4; g++, out += 32) {
                const uint8_t *ql = b + 64 * h + 32 * (g & 1), *qh = b + 128 + 32 * h;
                const int8_t  *scales = (const int8_t *)(b + 192 + 8 * h + 2 * g);
                const float    a[2] = { d * (float)scales[0], d * (float)scales[1] };
                for (int l = 0; l < 32; l++) {
                    const int low = g < 2 ? ql[l] & 15 : ql[l] >> 4, high = qh[l] >> 2 * g & 3;
                    out[l] = a[l / 16] * (float)((low | high << 4) - 32);
                }
            }
        }
    }
}

/* { u8 scales[16]; u8 qs[64]; f16 d, dmin }: w = (d·(scale & 15))·q − dmin·(scale >> 4) */
static void dequantise_q2_k(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 84) {
        const float d = read_f16(b + 80), dmin = read_f16(b + 82);
        for (int h = 0; h < 2; h++) {
            for (int g = 0; g < 4; g++, out += 32) {
                const uint8_t *scales = b + 8 * h + 2 * g, *qs = b + 16 + 32 * h;
                const float    a[2] = { d * (float)(scales[0] & 15), d * (float)(scales[1] & 15) };
                const float    m[2] = { dmin * (float)(scales[0] >> 4), dmin * (float)(scales[1] >> 4) };
                for (int l = 0; l < 32; l++) out[l] = a[l / 16] * (float)(qs[l] >> 2 * g & 3) - m[l / 16];
            }
        }
    }
}

/* The 6-bit scale k of 16, less 32. */
static int q3_k_scale(const uint8_t *scales, int k) {
    const int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4, high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
    return (low | high << 4) - 32;
}

/* { u8 hmask[32]; u8 qs[64]; u8 scales[12]; f16 d }: q = two bits, less 4 where the mask's bit is 0; w = (d·scale)·q */
static void dequantise_q3_k(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 110) {
        const float d = read_f16(b + 108);
        for (int h = 0; h < 2; h++) {
            for (int g = 0; g < 4; g++, out += 32) {
                const uint8_t *mask = b, *qs = b + 32 + 32 * h;
                const int      k = 8 * h + 2 * g;
                const float    a[2] = { d * (float)q3_k_scale(b + 96, k), d * (float)q3_k_scale(b + 96, k + 1) };
                for (int l = 0; l < 32; l++) {
                    const int q = (qs[l] >> 2 * g & 3) - (mask[l] >> (4 * h + g) & 1 ? 0 : 4);
                    out[l] = a[l / 16] * (float)q;
                }
            }
        }
    }
}

/* { f16 d; u16 scales_h; u8 scales_l[4]; u8 qs[128] }: 6-bit scale of each 32; w = (d·(scale − 32))·T[q] */
static void dequantise_iq4_xs(float *out, const void *in, size_t blocks) {
    const uint8_t *b = in;
    for (; blocks; blocks--, b += 136) {
        const float d = read_f16(b);
        const int   high = read_u16(b + 2);
        for (int s = 0; s < 8; s++, out += 32) {
            const int   scale = (b[4 + s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4;
            const float a = d * (float)(scale - 32);
            for (int e = 0; e < 32; e++) out[e] = a * (float)quant_iq4_values[nibble_at(b + 8 + 16 * s, e)];
        }
    }
}

/* ---- the table ---- */

static const quant_format formats[TYPE_COUNT] = {
    [TYPE_F32] = { "F32", 1, 4, dequantise_f32 },
    [TYPE_F16] = { "F16", 1, 2, dequantise_f16 },
    [TYPE_Q4_0] = { "Q4_0", 32, 18, dequantise_q4_0 },
    [TYPE_Q4_1] = { "Q4_1", 32, 20, dequantise_q4_1 },
    [TYPE_Q5_0] = { "Q5_0", 32, 22, dequantise_q5_0 },
    [TYPE_Q5_1] = { "Q5_1", 32, 24, dequantise_q5_1 },
    [TYPE_Q8_0] = { "Q8_0", 32, 34, dequantise_q8_0 },
    [TYPE_Q2_K] = { "Q2_K", 256, 84, dequantise_q2_k },
    [TYPE_Q3_K] = { "Q3_K", 256, 110, dequantise_q3_k },
    [TYPE_Q4_K] = { "Q4_K", 256, 144, dequantise_q4_k },
    [TYPE_Q5_K] = { "Q5_K", 256, 176, dequantise_q5_k },
    [TYPE_Q6_K] = { "Q6_K", 256, 210, dequantise_q6_k },
    [TYPE_IQ4_NL] = { "IQ4_NL", 32, 18, dequantise_iq4_nl },
    [TYPE_IQ4_XS] = { "IQ4_XS", 256, 136, dequantise_iq4_xs },
    [TYPE_I8] = { "I8", 1, 1, NULL },
    [TYPE_I16] = { "I16", 1, 2, NULL },
    [TYPE_I32] = { "I32", 1, 4, NULL },
    [TYPE_I64] = { "I64", 1, 8, NULL },
    [TYPE_F64] = { "F64", 1, 8, NULL },
    [TYPE_BF16] = { "BF16", 1, 2, dequantise_bf16 },
    [TYPE_MXFP4] = { "MXFP4", 32, 17, dequantise_mxfp4 },
};

const quant_format *quant_format_of(uint32_t type) {
    return type < TYPE_COUNT && formats[type].name ? &formats[type] : NULL;
}

/* ---- NaN and infinities ---- */

/* Byte offsets of a block's f16 scales; -1: none. Integers times finite scales are finite, so only the scales can be broken. */
static const struct {
    int16_t at[2];
} scale_places[TYPE_COUNT] = {
    [TYPE_Q4_0] = { { 0, -1 } },   [TYPE_Q4_1] = { { 0, 2 } },    [TYPE_Q5_0] = { { 0, -1 } },
    [TYPE_Q5_1] = { { 0, 2 } },    [TYPE_Q8_0] = { { 0, -1 } },   [TYPE_Q2_K] = { { 80, 82 } },
    [TYPE_Q3_K] = { { 108, -1 } }, [TYPE_Q4_K] = { { 0, 2 } },    [TYPE_Q5_K] = { { 0, 2 } },
    [TYPE_Q6_K] = { { 208, -1 } }, [TYPE_IQ4_NL] = { { 0, -1 } }, [TYPE_IQ4_XS] = { { 0, -1 } },
    [TYPE_F16] = { { 0, -1 } },
};

static bool f16_is_broken(const uint8_t *at) { return (at[1] & 0x7c) == 0x7c; }

static bool block_is_broken(quant_type type, const uint8_t *block) {
    switch (type) {
    case TYPE_F32: return (block[3] & 0x7f) == 0x7f && (block[2] & 0x80);
    case TYPE_BF16: return (block[1] & 0x7f) == 0x7f && (block[0] & 0x80);
    case TYPE_MXFP4: return block[0] == 0xff;
    default: {
        const int16_t *at = scale_places[type].at;
        return f16_is_broken(block + at[0]) || (at[1] >= 0 && f16_is_broken(block + at[1]));
    }
    }
}

uint64_t quant_first_broken(quant_type type, const void *data, uint64_t blocks) {
    const quant_format *format = quant_format_of(type);
    if (!format || !format->dequantise) return blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        if (block_is_broken(type, (const uint8_t *)data + i * format->bytes)) return i;
    }
    return blocks;
}
