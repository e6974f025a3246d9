/* Vector unpacking of every quantised format: 256 values at a time as 8 × 32 bytes, with their scales and offsets.
 *
 * w = scale · (q − bias) + offset. A format has one scale for each group of 32 or 16 values, and either a bias (the same
 * for all blocks) or an offset (stored in the block), not both. q is from 0 to 127, or signed where the format says so
 * (b_signed: the form that the vocabulary's signed dot product takes; its SIGNED_BIAS counts as bias). Formats with blocks of 32
 * are unpacked 8 blocks at a time; see simd_matmul_q8.h for the rest of a row. */

#ifndef GM_CPU_SIMD_UNPACK_H
#define GM_CPU_SIMD_UNPACK_H

#include "gguf/quant.h"

typedef struct {
    b32   q[8];
    f32x8 scale[2];  /* of groups 0..7; 8..15 in formats with groups of 16 */
    f32x8 offset[2]; /* in formats with an offset */
} unpacked;

typedef void (*unpack_256)(unpacked *u, const uint8_t *p);

/* q[0..7] from 8 blocks: `expression` of i. Written out so that the array lives in registers. */
#define EIGHT_TIMES(u, expression)                                                                                     \
    do {                                                                                                               \
        {                                                                                                              \
            enum { i = 0 };                                                                                            \
            (u)->q[0] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 1 };                                                                                            \
            (u)->q[1] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 2 };                                                                                            \
            (u)->q[2] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 3 };                                                                                            \
            (u)->q[3] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 4 };                                                                                            \
            (u)->q[4] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 5 };                                                                                            \
            (u)->q[5] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 6 };                                                                                            \
            (u)->q[6] = (expression);                                                                                  \
        }                                                                                                              \
        {                                                                                                              \
            enum { i = 7 };                                                                                            \
            (u)->q[7] = (expression);                                                                                  \
        }                                                                                                              \
    } while (0)

/* Moves bit `from` of every byte to bit `to`; the other bits are masked away. */
#define MOVE_BIT(bytes, from, to)                                                                                      \
    b_and((from) <= (to) ? b_left(bytes, (from) <= (to) ? (to) - (from) : 0)                                           \
                         : b_right(bytes, (from) <= (to) ? 0 : (from) - (to)),                                         \
          b_set(1 << (to)))

/* ---- blocks of 32 ---- */

INLINE void simd_unpack_q4_0(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 18);
    EIGHT_TIMES(u, b_nibbles(p + 18 * i + 2));
}

INLINE void simd_unpack_q4_1(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 20);
    u->offset[0] = f32_from_f16_apart(p + 2, 20);
    EIGHT_TIMES(u, b_nibbles(p + 20 * i + 4));
}

INLINE b32 with_fifth_bits(b32 nibbles, const uint8_t *bits) {
    return b_or(nibbles, b_and(b_bits(load_u32(bits)), b_set(16)));
}

INLINE void simd_unpack_q5_0(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 22);
    EIGHT_TIMES(u, with_fifth_bits(b_nibbles(p + 22 * i + 6), p + 22 * i + 2));
}

INLINE void simd_unpack_q5_1(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 24);
    u->offset[0] = f32_from_f16_apart(p + 2, 24);
    EIGHT_TIMES(u, with_fifth_bits(b_nibbles(p + 24 * i + 8), p + 24 * i + 4));
}

INLINE void simd_unpack_q8_0(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 34);
    EIGHT_TIMES(u, b_signed(b_load(p + 34 * i + 2)));
}

INLINE void simd_unpack_iq4_nl(unpacked *u, const uint8_t *p) {
    u->scale[0] = f32_from_f16_apart(p, 18);
    EIGHT_TIMES(u, b_signed(b_look_up(quant_iq4_values, b_nibbles(p + 18 * i + 2))));
}

/* The scale of MXFP4 is 2^(e − 128); the two smallest are subnormal. */
INLINE void simd_unpack_mxfp4(unpacked *u, const uint8_t *p) {
    uint32_t bits[8];
    for (size_t i = 0; i < 8; i++) bits[i] = p[17 * i] < 2 ? UINT32_C(0x200000) << p[17 * i] : (p[17 * i] - 1u) << 23;
    u->scale[0] = f32_from_bits(b_load(bits));
    EIGHT_TIMES(u, b_signed(b_look_up(quant_mxfp4_values, b_nibbles(p + 17 * i + 1))));
}

/* ---- blocks of 256 ---- */

/* Scales and minima of Q4_K and Q5_K, 6 bits each: in 12 bytes a, b, c of 4 each, the first four scales are the low bits of
 * a, the minima those of b; the last four have their low nibbles in c and their high bits on top of a and b. */
INLINE void k_scales(unpacked *u, const uint8_t *p) {
    const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    const uint64_t scale_low = a & 0x3f3f3f3f, scale_high = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    const uint64_t minimum_low = b & 0x3f3f3f3f, minimum_high = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    f32x8          d, minus_d_min;
    f32_set_two_f16(&d, &minus_d_min, load_u32(p) ^ 0x80000000);
    u->scale[0] = f32_mul(d, f32_from_u8(scale_low | scale_high << 32));
    u->offset[0] = f32_mul(minus_d_min, f32_from_u8(minimum_low | minimum_high << 32));
}

INLINE void simd_unpack_q4_k(unpacked *u, const uint8_t *p) {
    k_scales(u, p);
    const uint8_t *qs = p + 16;
    EIGHT_TIMES(u, b_and(i % 2 ? b_right(b_load(qs + i / 2 * 32), 4) : b_load(qs + i / 2 * 32), b_set(15)));
}

INLINE void simd_unpack_q5_k(unpacked *u, const uint8_t *p) {
    k_scales(u, p);
    const uint8_t *qs = p + 48;
    const b32      high = b_load(p + 16);
    EIGHT_TIMES(u, b_or(b_and(i % 2 ? b_right(b_load(qs + i / 2 * 32), 4) : b_load(qs + i / 2 * 32), b_set(15)),
                        MOVE_BIT(high, i, 4)));
}

/* One half of Q6_K: 128 values from 64 bytes of nibbles and 32 bytes of their two high bits. */
INLINE void q6_k_half(b32 *q, const uint8_t *low, const uint8_t *high) {
    const b32 a = b_load(low), b = b_load(low + 32), h = b_load(high), nibble = b_set(15), two = b_set(0x30);
    q[0] = b_or(b_and(a, nibble), b_and(b_left(h, 4), two));
    q[1] = b_or(b_and(b, nibble), b_and(b_left(h, 2), two));
    q[2] = b_or(b_and(b_right(a, 4), nibble), b_and(h, two));
    q[3] = b_or(b_and(b_right(b, 4), nibble), b_and(b_right(h, 2), two));
}

INLINE void simd_unpack_q6_k(unpacked *u, const uint8_t *p) {
    const f32x8 d = f32_set_f16(p + 208);
    u->scale[0] = f32_mul(d, f32_from_i8(load_u64(p + 192)));
    u->scale[1] = f32_mul(d, f32_from_i8(load_u64(p + 200)));
    q6_k_half(u->q, p, p + 128);
    q6_k_half(u->q + 4, p + 64, p + 160);
}

INLINE void simd_unpack_q2_k(unpacked *u, const uint8_t *p) {
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f, a = load_u64(p), b = load_u64(p + 8);
    f32x8          d, minus_d_min;
    f32_set_two_f16(&d, &minus_d_min, load_u32(p + 80) ^ 0x80000000);
    u->scale[0] = f32_mul(d, f32_from_u8(a & nibbles));
    u->scale[1] = f32_mul(d, f32_from_u8(b & nibbles));
    u->offset[0] = f32_mul(minus_d_min, f32_from_u8(a >> 4 & nibbles));
    u->offset[1] = f32_mul(minus_d_min, f32_from_u8(b >> 4 & nibbles));
    EIGHT_TIMES(u, b_and(b_right(b_load(p + 16 + i / 4 * 32), 2 * (i % 4)), b_set(3)));
}

/* The 16 scales of Q3_K have their low nibbles in 8 bytes, as Q2_K's quants have theirs, and two bits each in 4 bytes. */
INLINE void simd_unpack_q3_k(unpacked *u, const uint8_t *p) {
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f, two = 0x03030303, low = load_u64(p + 96), high = load_u32(p + 104);
    const uint64_t a = (low & nibbles) | ((high & two) | (high >> 2 & two) << 32) << 4;
    const uint64_t b = (low >> 4 & nibbles) | ((high >> 4 & two) | (high >> 6 & two) << 32) << 4;
    const f32x8    d = f32_set_f16(p + 108), middle = f32_set(32);
    const b32      mask = b_load(p);
    u->scale[0] = f32_mul(d, f32_sub(f32_from_u8(a), middle));
    u->scale[1] = f32_mul(d, f32_sub(f32_from_u8(b), middle));
    EIGHT_TIMES(u, b_or(b_and(b_right(b_load(p + 32 + i / 4 * 32), 2 * (i % 4)), b_set(3)), MOVE_BIT(mask, i, 2)));
}

INLINE void simd_unpack_iq4_xs(unpacked *u, const uint8_t *p) {
    const uint32_t high = load_u16(p + 2), low = load_u32(p + 4);
    uint64_t       scales = 0;
    for (int i = 0; i < 8; i++) scales |= (uint64_t)((low >> 4 * i & 15) | (high >> 2 * i & 3) << 4) << 8 * i;
    u->scale[0] = f32_mul(f32_set_f16(p), f32_sub(f32_from_u8(scales), f32_set(32)));
    EIGHT_TIMES(u, b_signed(b_look_up(quant_iq4_values, b_nibbles(p + 8 + 16 * i))));
}

#endif
