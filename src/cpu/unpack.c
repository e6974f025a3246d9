/* Scalar unpacking of every quantised format: the reference for simd_unpack.h. */

#include "cpu/unpack.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static float half_at(const uint8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return f16_to_f32(bits);
}

static void set_groups(unpacked_block *out, size_t first, size_t count, float scale, float offset) {
    for (size_t i = first; i < first + count; i++) {
        out->scale[i] = scale;
        out->offset[i] = offset;
    }
}

/* 16 bytes: the low nibbles are values 0..15, the high ones 16..31. */
static void unpack_nibbles(int16_t *q, const uint8_t *qs) {
    for (size_t i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

/* The fifth bits, one for each of 32 values. */
static void add_fifth_bits(int16_t *q, const uint8_t *bits) {
    for (size_t i = 0; i < 32; i++) q[i] = (int16_t)(q[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

static void map_values(int16_t *q, size_t n, const int8_t *values) {
    for (size_t i = 0; i < n; i++) q[i] = values[q[i]];
}

static void unpack_q4_0(unpacked_block *out, const uint8_t *block) {
    const float d = half_at(block);
    set_groups(out, 0, 2, d, -8 * d);
    unpack_nibbles(out->q, block + 2);
}

static void unpack_q4_1(unpacked_block *out, const uint8_t *block) {
    set_groups(out, 0, 2, half_at(block), half_at(block + 2));
    unpack_nibbles(out->q, block + 4);
}

static void unpack_q5_0(unpacked_block *out, const uint8_t *block) {
    const float d = half_at(block);
    set_groups(out, 0, 2, d, -16 * d);
    unpack_nibbles(out->q, block + 6);
    add_fifth_bits(out->q, block + 2);
}

static void unpack_q5_1(unpacked_block *out, const uint8_t *block) {
    set_groups(out, 0, 2, half_at(block), half_at(block + 2));
    unpack_nibbles(out->q, block + 8);
    add_fifth_bits(out->q, block + 4);
}

static void unpack_q8_0(unpacked_block *out, const uint8_t *block) {
    set_groups(out, 0, 2, half_at(block), 0);
    for (size_t i = 0; i < 32; i++) out->q[i] = (int8_t)block[2 + i];
}

static void unpack_iq4_nl(unpacked_block *out, const uint8_t *block) {
    set_groups(out, 0, 2, half_at(block), 0);
    unpack_nibbles(out->q, block + 2);
    map_values(out->q, 32, quant_iq4_values);
}

static void unpack_mxfp4(unpacked_block *out, const uint8_t *block) {
    set_groups(out, 0, 2, ldexpf(1, block[0] - 128), 0);
    unpack_nibbles(out->q, block + 1);
    map_values(out->q, 32, quant_mxfp4_values);
}

/* Scales and minima of Q4_K and Q5_K: eight of 6 bits each in 12 bytes. */
static void set_k_scales(unpacked_block *out, const uint8_t *block) {
    const float    d = half_at(block), d_min = half_at(block + 2);
    const uint8_t *s = block + 4;
    for (size_t i = 0; i < 8; i++) {
        const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        const int minimum = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
        set_groups(out, 2 * i, 2, d * (float)scale, -(d_min * (float)minimum));
    }
}

/* 128 bytes: in each 32 bytes the low nibbles are 32 values and the high nibbles the next 32. */
static void unpack_k_nibbles(int16_t *q, const uint8_t *qs) {
    for (size_t i = 0; i < 256; i++) q[i] = i / 32 % 2 ? qs[i / 64 * 32 + i % 32] >> 4 : qs[i / 64 * 32 + i % 32] & 15;
}

static void unpack_q4_k(unpacked_block *out, const uint8_t *block) {
    set_k_scales(out, block);
    unpack_k_nibbles(out->q, block + 16);
}

static void unpack_q5_k(unpacked_block *out, const uint8_t *block) {
    set_k_scales(out, block);
    unpack_k_nibbles(out->q, block + 48);
    for (size_t i = 0; i < 256; i++) out->q[i] = (int16_t)(out->q[i] | (block[16 + i % 32] >> i / 32 & 1) << 4);
}

static void unpack_q6_k(unpacked_block *out, const uint8_t *block) {
    const uint8_t *low = block, *high = block + 128;
    const float    d = half_at(block + 208);
    for (size_t i = 0; i < 16; i++) {
        const float scale = d * (int8_t)block[192 + i];
        set_groups(out, i, 1, scale, -32 * scale);
    }
    for (size_t i = 0; i < 256; i++) {
        const size_t half = i / 128, group = i / 32 % 4, at = i % 32;
        const int    nibble = low[64 * half + 32 * (group & 1) + at] >> (group < 2 ? 0 : 4) & 15;
        out->q[i] = (int16_t)(nibble | (high[32 * half + at] >> 2 * group & 3) << 4);
    }
}

static void unpack_q2_k(unpacked_block *out, const uint8_t *block) {
    const float d = half_at(block + 80), d_min = half_at(block + 82);
    for (size_t i = 0; i < 16; i++)
        set_groups(out, i, 1, d * (float)(block[i] & 15), -(d_min * (float)(block[i] >> 4)));
    for (size_t i = 0; i < 256; i++) out->q[i] = block[16 + i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
}

static void unpack_q3_k(unpacked_block *out, const uint8_t *block) {
    const uint8_t *mask = block, *low = block + 32, *s = block + 96;
    const float    d = half_at(block + 108);
    for (size_t i = 0; i < 16; i++) {
        const int   bits = (i < 8 ? s[i] & 15 : s[i - 8] >> 4) | (s[8 + i % 4] >> 2 * (i / 4) & 3) << 4;
        const float scale = d * (float)(bits - 32);
        set_groups(out, i, 1, scale, -4 * scale);
    }
    for (size_t i = 0; i < 256; i++)
        out->q[i] = (int16_t)((low[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3) | (mask[i % 32] >> i / 32 & 1) << 2);
}

static void unpack_iq4_xs(unpacked_block *out, const uint8_t *block) {
    const float d = half_at(block);
    const int   high = block[2] | block[3] << 8;
    for (size_t i = 0; i < 8; i++) {
        const int scale = (block[4 + i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4;
        set_groups(out, 2 * i, 2, d * (float)(scale - 32), 0);
        unpack_nibbles(out->q + 32 * i, block + 8 + 16 * i);
    }
    map_values(out->q, 256, quant_iq4_values);
}

unpack_function unpack_of(quant_type type) {
    static const unpack_function functions[TYPE_COUNT] = {
        [TYPE_Q4_0] = unpack_q4_0,   [TYPE_Q4_1] = unpack_q4_1,     [TYPE_Q5_0] = unpack_q5_0,
        [TYPE_Q5_1] = unpack_q5_1,   [TYPE_Q8_0] = unpack_q8_0,     [TYPE_Q2_K] = unpack_q2_k,
        [TYPE_Q3_K] = unpack_q3_k,   [TYPE_Q4_K] = unpack_q4_k,     [TYPE_Q5_K] = unpack_q5_k,
        [TYPE_Q6_K] = unpack_q6_k,   [TYPE_IQ4_NL] = unpack_iq4_nl, [TYPE_IQ4_XS] = unpack_iq4_xs,
        [TYPE_MXFP4] = unpack_mxfp4,
    };
    return (unsigned)type < TYPE_COUNT ? functions[type] : NULL;
}
