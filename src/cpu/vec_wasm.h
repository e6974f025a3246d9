/* The vocabulary on WebAssembly with SIMD128: pairs of 128-bit registers. There are no fused multiply-adds and no halves:
 * f32_fma rounds twice, and halves are converted by their bits. */

#ifndef GM_CPU_VEC_WASM_H
#define GM_CPU_VEC_WASM_H

#include "base/half.h"
#include "cpu/vec.h"

#include <wasm_simd128.h>

typedef struct {
    v128_t low, high;
} f32x8;
typedef struct {
    v128_t low, high;
} i32x8;
typedef struct {
    v128_t low, high;
} b32; /* 32 bytes */

/* ---- floats ---- */

INLINE f32x8 f32_set(float a) { return (f32x8){ wasm_f32x4_splat(a), wasm_f32x4_splat(a) }; }
INLINE f32x8 f32_zero(void) { return f32_set(0); }
INLINE f32x8 f32_load(const float *p) { return (f32x8){ wasm_v128_load(p), wasm_v128_load(p + 4) }; }
INLINE void  f32_store(float *p, f32x8 a) {
    wasm_v128_store(p, a.low);
    wasm_v128_store(p + 4, a.high);
}
INLINE f32x8 f32_add(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_add(a.low, b.low), wasm_f32x4_add(a.high, b.high) };
}
INLINE f32x8 f32_sub(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_sub(a.low, b.low), wasm_f32x4_sub(a.high, b.high) };
}
INLINE f32x8 f32_mul(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_mul(a.low, b.low), wasm_f32x4_mul(a.high, b.high) };
}
INLINE f32x8 f32_div(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_div(a.low, b.low), wasm_f32x4_div(a.high, b.high) };
}
INLINE f32x8 f32_fma(f32x8 a, f32x8 b, f32x8 c) { return f32_add(f32_mul(a, b), c); }
INLINE f32x8 f32_min(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_min(a.low, b.low), wasm_f32x4_min(a.high, b.high) };
}
INLINE f32x8 f32_max(f32x8 a, f32x8 b) {
    return (f32x8){ wasm_f32x4_max(a.low, b.low), wasm_f32x4_max(a.high, b.high) };
}
INLINE f32x8 f32_abs(f32x8 a) { return (f32x8){ wasm_f32x4_abs(a.low), wasm_f32x4_abs(a.high) }; }
INLINE f32x8 f32_copy_sign(f32x8 a, f32x8 sign) {
    const v128_t bit = wasm_i32x4_splat(INT32_MIN);
    return (f32x8){ wasm_v128_bitselect(sign.low, a.low, bit), wasm_v128_bitselect(sign.high, a.high, bit) };
}
/* a < b ? yes : no in each lane. */
INLINE f32x8 f32_choose_less(f32x8 a, f32x8 b, f32x8 yes, f32x8 no) {
    return (f32x8){ wasm_v128_bitselect(yes.low, no.low, wasm_f32x4_lt(a.low, b.low)),
                    wasm_v128_bitselect(yes.high, no.high, wasm_f32x4_lt(a.high, b.high)) };
}
INLINE float f32_sum(f32x8 a) {
    v128_t s = wasm_f32x4_add(a.low, a.high);
    s = wasm_f32x4_add(s, wasm_i32x4_shuffle(s, s, 2, 3, 0, 1));
    return wasm_f32x4_extract_lane(s, 0) + wasm_f32x4_extract_lane(s, 1);
}
INLINE void f32_sum_4(float *out, f32x8 a, f32x8 b, f32x8 c, f32x8 d) {
    out[0] = f32_sum(a), out[1] = f32_sum(b), out[2] = f32_sum(c), out[3] = f32_sum(d);
}
INLINE float f32_most(f32x8 a) {
    v128_t s = wasm_f32x4_max(a.low, a.high);
    s = wasm_f32x4_max(s, wasm_i32x4_shuffle(s, s, 2, 3, 0, 1));
    s = wasm_f32x4_max(s, wasm_i32x4_shuffle(s, s, 1, 0, 3, 2));
    return wasm_f32x4_extract_lane(s, 0);
}

/* Lane `lane` in all lanes; lanes 2i and 2i + 1 in four lanes each. */
INLINE v128_t quad_pick(v128_t a, int lane) {
    return lane == 0   ? wasm_i32x4_shuffle(a, a, 0, 0, 0, 0)
           : lane == 1 ? wasm_i32x4_shuffle(a, a, 1, 1, 1, 1)
           : lane == 2 ? wasm_i32x4_shuffle(a, a, 2, 2, 2, 2)
                       : wasm_i32x4_shuffle(a, a, 3, 3, 3, 3);
}
INLINE f32x8 f32_lane(f32x8 a, int lane) {
    const v128_t one = quad_pick(lane < 4 ? a.low : a.high, lane % 4);
    return (f32x8){ one, one };
}
INLINE f32x8 f32_pick_pair(f32x8 a, int i) {
    const v128_t quad = i < 2 ? a.low : a.high;
    return (f32x8){ quad_pick(quad, i % 2 * 2), quad_pick(quad, i % 2 * 2 + 1) };
}
/* Lanes 0..3, or 4..7, each twice. */
INLINE f32x8 quad_double(v128_t a) {
    return (f32x8){ wasm_i32x4_shuffle(a, a, 0, 0, 1, 1), wasm_i32x4_shuffle(a, a, 2, 2, 3, 3) };
}
INLINE f32x8 f32_double_low(f32x8 a) { return quad_double(a.low); }
INLINE f32x8 f32_double_high(f32x8 a) { return quad_double(a.high); }

/* ---- conversions ---- */

INLINE f32x8 f32_from_i32(i32x8 a) {
    return (f32x8){ wasm_f32x4_convert_i32x4(a.low), wasm_f32x4_convert_i32x4(a.high) };
}
INLINE i32x8 f32_round(f32x8 a) { /* to nearest even */
    return (i32x8){ wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(a.low)),
                    wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(a.high)) };
}
/* 2^n for n from -126 to 127. */
INLINE f32x8 f32_power_of_2(i32x8 n) {
    const v128_t bias = wasm_i32x4_splat(127);
    return (f32x8){ wasm_i32x4_shl(wasm_i32x4_add(n.low, bias), 23), wasm_i32x4_shl(wasm_i32x4_add(n.high, bias), 23) };
}
INLINE f32x8 f32_from_u8(uint64_t bytes) {
    const v128_t wide = wasm_u16x8_extend_low_u8x16(wasm_i64x2_splat((int64_t)bytes));
    return (f32x8){ wasm_f32x4_convert_i32x4(wasm_u32x4_extend_low_u16x8(wide)),
                    wasm_f32x4_convert_i32x4(wasm_u32x4_extend_high_u16x8(wide)) };
}
INLINE f32x8 f32_from_i8(uint64_t bytes) {
    const v128_t wide = wasm_i16x8_extend_low_i8x16(wasm_i64x2_splat((int64_t)bytes));
    return (f32x8){ wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wide)),
                    wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(wide)) };
}
/* 4 halves in the low bits of 4 words: the exponent is moved into place and corrected by a product with 2^112, which makes
 * subnormals right too; infinities and NaN get the highest exponent. */
INLINE v128_t quad_of_halves(v128_t h) {
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x8000)), 16);
    const v128_t size = wasm_v128_and(h, wasm_i32x4_splat(0x7fff));
    const v128_t value = wasm_f32x4_mul(wasm_i32x4_shl(size, 13), wasm_f32x4_splat(0x1p112f));
    const v128_t special = wasm_v128_and(wasm_i32x4_gt(size, wasm_i32x4_splat(0x7bff)), wasm_i32x4_splat(0x7f800000));
    return wasm_v128_or(wasm_v128_or(value, special), sign);
}
INLINE f32x8 f32_of_halves(v128_t h) {
    return (f32x8){ quad_of_halves(wasm_u32x4_extend_low_u16x8(h)), quad_of_halves(wasm_u32x4_extend_high_u16x8(h)) };
}
INLINE f32x8 f32_from_f16(const void *p) { return f32_of_halves(wasm_v128_load(p)); }
/* Only K/V are stored as halves: one at a time is fast enough. */
INLINE void f32_to_f16_store(void *p, f32x8 a) {
    float    lanes[8];
    uint16_t halves[8];
    f32_store(lanes, a);
    for (int i = 0; i < 8; i++) halves[i] = f32_to_f16(lanes[i]);
    memcpy(p, halves, sizeof halves);
}
INLINE f32x8 f32_from_bf16(const void *p) {
    const v128_t h = wasm_v128_load(p);
    return (f32x8){ wasm_i32x4_shl(wasm_u32x4_extend_low_u16x8(h), 16),
                    wasm_i32x4_shl(wasm_u32x4_extend_high_u16x8(h), 16) };
}
/* One half in all lanes. */
INLINE f32x8 f32_set_f16(const uint8_t *p) {
    const v128_t one = quad_of_halves(wasm_i32x4_splat(load_u16(p)));
    return (f32x8){ one, one };
}
/* Two halves in all lanes of two registers. */
INLINE void f32_set_two_f16(f32x8 *a, f32x8 *b, uint32_t halves) {
    const v128_t low = quad_of_halves(wasm_i32x4_splat((int32_t)(halves & 0xffff)));
    const v128_t high = quad_of_halves(wasm_i32x4_splat((int32_t)(halves >> 16)));
    *a = (f32x8){ low, low };
    *b = (f32x8){ high, high };
}
/* Eight halves, `stride` bytes apart. */
INLINE f32x8 f32_from_f16_apart(const uint8_t *p, size_t stride) {
    return f32_of_halves(wasm_u16x8_make(load_u16(p), load_u16(p + stride), load_u16(p + 2 * stride),
                                         load_u16(p + 3 * stride), load_u16(p + 4 * stride), load_u16(p + 5 * stride),
                                         load_u16(p + 6 * stride), load_u16(p + 7 * stride)));
}

/* ---- integers ---- */

INLINE i32x8 i32_set(int32_t a) { return (i32x8){ wasm_i32x4_splat(a), wasm_i32x4_splat(a) }; }
INLINE i32x8 i32_zero(void) { return i32_set(0); }
INLINE i32x8 i32_add(i32x8 a, i32x8 b) {
    return (i32x8){ wasm_i32x4_add(a.low, b.low), wasm_i32x4_add(a.high, b.high) };
}
INLINE i32x8 i32_mul(i32x8 a, int32_t b) {
    return (i32x8){ wasm_i32x4_mul(a.low, wasm_i32x4_splat(b)), wasm_i32x4_mul(a.high, wasm_i32x4_splat(b)) };
}
INLINE void i32_store(int32_t *p, i32x8 a) {
    wasm_v128_store(p, a.low);
    wasm_v128_store(p + 4, a.high);
}
INLINE int32_t i32_sum(i32x8 a) {
    v128_t s = wasm_i32x4_add(a.low, a.high);
    s = wasm_i32x4_add(s, wasm_i32x4_shuffle(s, s, 2, 3, 0, 1));
    s = wasm_i32x4_add(s, wasm_i32x4_shuffle(s, s, 1, 0, 3, 2));
    return wasm_i32x4_extract_lane(s, 0);
}
/* Four times 8 integers from -128 to 127 as 32 bytes. */
INLINE void i32_to_bytes(int8_t *out, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
    wasm_v128_store(
        out, wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(a.low, a.high), wasm_i16x8_narrow_i32x4(b.low, b.high)));
    wasm_v128_store(out + 16, wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(c.low, c.high),
                                                      wasm_i16x8_narrow_i32x4(d.low, d.high)));
}

/* ---- bytes ---- */

INLINE b32  b_load(const void *p) { return (b32){ wasm_v128_load(p), wasm_v128_load((const uint8_t *)p + 16) }; }
INLINE void b_store(void *p, b32 a) {
    wasm_v128_store(p, a.low);
    wasm_v128_store((uint8_t *)p + 16, a.high);
}
INLINE b32 b_set(int a) { return (b32){ wasm_i8x16_splat((int8_t)a), wasm_i8x16_splat((int8_t)a) }; }
INLINE b32 b_and(b32 a, b32 b) { return (b32){ wasm_v128_and(a.low, b.low), wasm_v128_and(a.high, b.high) }; }
INLINE b32 b_or(b32 a, b32 b) { return (b32){ wasm_v128_or(a.low, b.low), wasm_v128_or(a.high, b.high) }; }
/* Shifts of at most 7 whose bits from the neighbour byte the caller masks away: 16-bit shifts, because processors have no
 * 8-bit ones. */
INLINE b32 b_left(b32 a, int n) {
    return (b32){ wasm_i16x8_shl(a.low, (uint32_t)n), wasm_i16x8_shl(a.high, (uint32_t)n) };
}
INLINE b32 b_right(b32 a, int n) {
    return (b32){ wasm_u16x8_shr(a.low, (uint32_t)n), wasm_u16x8_shr(a.high, (uint32_t)n) };
}
/* 16 bytes: their low nibbles, then their high ones. */
INLINE b32 b_nibbles(const uint8_t *p) {
    const v128_t a = wasm_v128_load(p), mask = wasm_i8x16_splat(15);
    return (b32){ wasm_v128_and(a, mask), wasm_v128_and(wasm_u16x8_shr(a, 4), mask) };
}
/* table[index] for indices below 16. */
INLINE b32 b_look_up(const int8_t *table, b32 index) {
    const v128_t t = wasm_v128_load(table);
    return (b32){ wasm_i8x16_swizzle(t, index.low), wasm_i8x16_swizzle(t, index.high) };
}
/* 32 bits as 32 bytes: 0 or 255. */
INLINE b32 b_bits(uint32_t bits) {
    const v128_t each = wasm_i64x2_splat((int64_t)0x8040201008040201), all = wasm_i32x4_splat((int32_t)bits);
    const v128_t low = wasm_i8x16_shuffle(all, all, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const v128_t high = wasm_i8x16_shuffle(all, all, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    return (b32){ wasm_i8x16_eq(wasm_v128_and(low, each), each), wasm_i8x16_eq(wasm_v128_and(high, each), each) };
}
INLINE b32   b_from_f32(f32x8 a) { return (b32){ a.low, a.high }; }
INLINE f32x8 f32_from_bits(b32 a) { return (f32x8){ a.low, a.high }; }

/* 4 rows of 4 words become columns. */
INLINE void transpose_4x4(v128_t *a, v128_t *b, v128_t *c, v128_t *d) {
    const v128_t ab_low = wasm_i32x4_shuffle(*a, *b, 0, 4, 1, 5), ab_high = wasm_i32x4_shuffle(*a, *b, 2, 6, 3, 7);
    const v128_t cd_low = wasm_i32x4_shuffle(*c, *d, 0, 4, 1, 5), cd_high = wasm_i32x4_shuffle(*c, *d, 2, 6, 3, 7);
    *a = wasm_i64x2_shuffle(ab_low, cd_low, 0, 2);
    *b = wasm_i64x2_shuffle(ab_low, cd_low, 1, 3);
    *c = wasm_i64x2_shuffle(ab_high, cd_high, 0, 2);
    *d = wasm_i64x2_shuffle(ab_high, cd_high, 1, 3);
}
/* 8 rows of 8 words of 4 bytes become 8 columns. */
INLINE void transpose_8x8(b32 r[8]) {
    for (int i = 0; i < 8; i += 4) {
        transpose_4x4(&r[i].low, &r[i + 1].low, &r[i + 2].low, &r[i + 3].low);
        transpose_4x4(&r[i].high, &r[i + 1].high, &r[i + 2].high, &r[i + 3].high);
    }
    for (int i = 0; i < 4; i++) {
        const v128_t corner = r[i].high;
        r[i].high = r[i + 4].low;
        r[i + 4].low = corner;
    }
}

/* ---- products ---- */

enum { SIGNED_BIAS = 0 };
INLINE b32 b_signed(b32 a) { return a; }

/* Pairs of neighbours by the 16-bit dot product, pairs of those by an addition of even and odd lanes. */
INLINE v128_t dot_16(v128_t acc, v128_t w, v128_t x) {
    const v128_t low = wasm_i32x4_dot_i16x8(wasm_i16x8_extend_low_i8x16(w), wasm_i16x8_extend_low_i8x16(x));
    const v128_t high = wasm_i32x4_dot_i16x8(wasm_i16x8_extend_high_i8x16(w), wasm_i16x8_extend_high_i8x16(x));
    return wasm_i32x4_add(
        acc, wasm_i32x4_add(wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), wasm_i32x4_shuffle(low, high, 1, 3, 5, 7)));
}
/* acc + the products of 4 bytes each, summed: w from -128 to 127, which includes 0 to 127. */
INLINE i32x8 dot(i32x8 acc, b32 w, b32 x) {
    return (i32x8){ dot_16(acc.low, w.low, x.low), dot_16(acc.high, w.high, x.high) };
}
INLINE i32x8 dot_signed(i32x8 acc, b32 w, b32 x) { return dot(acc, w, x); }

#include "cpu/vec_wide8.h"

INLINE wide_i wide_i_load(const void *p) {
    return (wide_i){ wasm_v128_load(p), wasm_v128_load((const uint8_t *)p + 16) };
}
INLINE wide_i wide_i_set(int32_t a) { return i32_set(a); }
/* dot with the same 4 bytes of x in every lane. */
INLINE wide_i wide_dot(wide_i acc, wide_i w, int32_t x) {
    const v128_t four = wasm_i32x4_splat(x);
    return (wide_i){ dot_16(acc.low, w.low, four), dot_16(acc.high, w.high, four) };
}
INLINE wide_i wide_dot_signed(wide_i acc, wide_i w, int32_t x) { return wide_dot(acc, w, x); }

INLINE void prefetch(uintptr_t p) { (void)p; } /* there is no such instruction */

#endif
