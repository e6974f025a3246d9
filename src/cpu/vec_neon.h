/* The vocabulary on AArch64: pairs of 128-bit registers. With the dot-product extension (-march=…+dotprod) the byte products
 * are one instruction. */

#ifndef GM_CPU_VEC_NEON_H
#define GM_CPU_VEC_NEON_H

#include "cpu/vec.h"

#include <arm_neon.h>

typedef struct {
    float32x4_t low, high;
} f32x8;
typedef struct {
    int32x4_t low, high;
} i32x8;
typedef struct {
    uint8x16_t low, high;
} b32; /* 32 bytes */

/* ---- floats ---- */

INLINE f32x8 f32_set(float a) { return (f32x8){ vdupq_n_f32(a), vdupq_n_f32(a) }; }
INLINE f32x8 f32_zero(void) { return f32_set(0); }
INLINE f32x8 f32_load(const float *p) { return (f32x8){ vld1q_f32(p), vld1q_f32(p + 4) }; }
INLINE void  f32_store(float *p, f32x8 a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}
INLINE f32x8 f32_add(f32x8 a, f32x8 b) { return (f32x8){ vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high) }; }
INLINE f32x8 f32_sub(f32x8 a, f32x8 b) { return (f32x8){ vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high) }; }
INLINE f32x8 f32_mul(f32x8 a, f32x8 b) { return (f32x8){ vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high) }; }
INLINE f32x8 f32_div(f32x8 a, f32x8 b) { return (f32x8){ vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high) }; }
INLINE f32x8 f32_fma(f32x8 a, f32x8 b, f32x8 c) {
    return (f32x8){ vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high) };
}
INLINE f32x8 f32_min(f32x8 a, f32x8 b) { return (f32x8){ vminq_f32(a.low, b.low), vminq_f32(a.high, b.high) }; }
INLINE f32x8 f32_max(f32x8 a, f32x8 b) { return (f32x8){ vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high) }; }
INLINE f32x8 f32_abs(f32x8 a) { return (f32x8){ vabsq_f32(a.low), vabsq_f32(a.high) }; }
INLINE f32x8 f32_copy_sign(f32x8 a, f32x8 sign) {
    const uint32x4_t bit = vdupq_n_u32(0x80000000);
    return (f32x8){ vbslq_f32(bit, sign.low, a.low), vbslq_f32(bit, sign.high, a.high) };
}
/* a < b ? yes : no in each lane. */
INLINE f32x8 f32_choose_less(f32x8 a, f32x8 b, f32x8 yes, f32x8 no) {
    return (f32x8){ vbslq_f32(vcltq_f32(a.low, b.low), yes.low, no.low),
                    vbslq_f32(vcltq_f32(a.high, b.high), yes.high, no.high) };
}
INLINE float f32_sum(f32x8 a) { return vaddvq_f32(vaddq_f32(a.low, a.high)); }
INLINE void  f32_sum_4(float *out, f32x8 a, f32x8 b, f32x8 c, f32x8 d) {
    const float32x4_t ab = vpaddq_f32(vaddq_f32(a.low, a.high), vaddq_f32(b.low, b.high));
    const float32x4_t cd = vpaddq_f32(vaddq_f32(c.low, c.high), vaddq_f32(d.low, d.high));
    vst1q_f32(out, vpaddq_f32(ab, cd));
}
INLINE float f32_most(f32x8 a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }

/* Lane `lane` in all lanes; lanes 2i and 2i + 1 in four lanes each. */
INLINE float32x4_t quad_pick(float32x4_t a, int lane) {
    return lane == 0   ? vdupq_laneq_f32(a, 0)
           : lane == 1 ? vdupq_laneq_f32(a, 1)
           : lane == 2 ? vdupq_laneq_f32(a, 2)
                       : vdupq_laneq_f32(a, 3);
}
INLINE f32x8 f32_lane(f32x8 a, int lane) {
    const float32x4_t one = quad_pick(lane < 4 ? a.low : a.high, lane % 4);
    return (f32x8){ one, one };
}
INLINE f32x8 f32_pick_pair(f32x8 a, int i) {
    const float32x4_t quad = i < 2 ? a.low : a.high;
    return (f32x8){ quad_pick(quad, i % 2 * 2), quad_pick(quad, i % 2 * 2 + 1) };
}
/* Lanes 0..3, or 4..7, each twice. */
INLINE f32x8 f32_double_low(f32x8 a) { return (f32x8){ vzip1q_f32(a.low, a.low), vzip2q_f32(a.low, a.low) }; }
INLINE f32x8 f32_double_high(f32x8 a) { return (f32x8){ vzip1q_f32(a.high, a.high), vzip2q_f32(a.high, a.high) }; }

/* ---- conversions ---- */

INLINE f32x8 f32_from_i32(i32x8 a) { return (f32x8){ vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high) }; }
INLINE i32x8 f32_round(f32x8 a) {
    return (i32x8){ vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high) };
} /* to nearest even */
/* 2^n for n from -126 to 127. */
INLINE f32x8 f32_power_of_2(i32x8 n) {
    const int32x4_t bias = vdupq_n_s32(127);
    return (f32x8){ vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.low, bias), 23)),
                    vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.high, bias), 23)) };
}
INLINE f32x8 f32_from_u8(uint64_t bytes) {
    const uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
    return (f32x8){ vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide)) };
}
INLINE f32x8 f32_from_i8(uint64_t bytes) {
    const int16x8_t wide = vmovl_s8(vcreate_s8(bytes));
    return (f32x8){ vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide)) };
}
INLINE f32x8 f32_of_halves(uint16x8_t h) {
    const float16x8_t f = vreinterpretq_f16_u16(h);
    return (f32x8){ vcvt_f32_f16(vget_low_f16(f)), vcvt_high_f32_f16(f) };
}
INLINE f32x8 f32_from_f16(const void *p) { return f32_of_halves(vreinterpretq_u16_u8(vld1q_u8(p))); }
INLINE void  f32_to_f16_store(void *p, f32x8 a) {
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high)));
}
INLINE f32x8 f32_from_bf16(const void *p) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return (f32x8){ vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                    vreinterpretq_f32_u32(vshll_high_n_u16(h, 16)) };
}
/* One half in all lanes. */
INLINE f32x8 f32_set_f16(const uint8_t *p) { return f32_of_halves(vdupq_n_u16(load_u16(p))); }
/* Two halves in all lanes of two registers. */
INLINE void f32_set_two_f16(f32x8 *a, f32x8 *b, uint32_t halves) {
    *a = f32_of_halves(vdupq_n_u16((uint16_t)halves));
    *b = f32_of_halves(vdupq_n_u16((uint16_t)(halves >> 16)));
}
/* Eight halves, `stride` bytes apart. */
INLINE f32x8 f32_from_f16_apart(const uint8_t *p, size_t stride) {
    uint16x8_t h = vdupq_n_u16(load_u16(p));
    h = vsetq_lane_u16(load_u16(p + 1 * stride), h, 1);
    h = vsetq_lane_u16(load_u16(p + 2 * stride), h, 2);
    h = vsetq_lane_u16(load_u16(p + 3 * stride), h, 3);
    h = vsetq_lane_u16(load_u16(p + 4 * stride), h, 4);
    h = vsetq_lane_u16(load_u16(p + 5 * stride), h, 5);
    h = vsetq_lane_u16(load_u16(p + 6 * stride), h, 6);
    h = vsetq_lane_u16(load_u16(p + 7 * stride), h, 7);
    return f32_of_halves(h);
}

/* ---- integers ---- */

INLINE i32x8 i32_set(int32_t a) { return (i32x8){ vdupq_n_s32(a), vdupq_n_s32(a) }; }
INLINE i32x8 i32_zero(void) { return i32_set(0); }
INLINE i32x8 i32_add(i32x8 a, i32x8 b) { return (i32x8){ vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high) }; }
INLINE i32x8 i32_mul(i32x8 a, int32_t b) { return (i32x8){ vmulq_n_s32(a.low, b), vmulq_n_s32(a.high, b) }; }
INLINE void  i32_store(int32_t *p, i32x8 a) {
    vst1q_s32(p, a.low);
    vst1q_s32(p + 4, a.high);
}
INLINE int32_t i32_sum(i32x8 a) { return vaddvq_s32(vaddq_s32(a.low, a.high)); }
/* Four times 8 integers from -128 to 127 as 32 bytes. */
INLINE int8x8_t bytes_of(i32x8 a) { return vqmovn_s16(vcombine_s16(vqmovn_s32(a.low), vqmovn_s32(a.high))); }
INLINE void     i32_to_bytes(int8_t *out, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
    vst1q_s8(out, vcombine_s8(bytes_of(a), bytes_of(b)));
    vst1q_s8(out + 16, vcombine_s8(bytes_of(c), bytes_of(d)));
}

/* ---- bytes ---- */

INLINE b32  b_load(const void *p) { return (b32){ vld1q_u8(p), vld1q_u8((const uint8_t *)p + 16) }; }
INLINE void b_store(void *p, b32 a) {
    vst1q_u8(p, a.low);
    vst1q_u8((uint8_t *)p + 16, a.high);
}
INLINE b32 b_set(int a) { return (b32){ vdupq_n_u8((uint8_t)a), vdupq_n_u8((uint8_t)a) }; }
INLINE b32 b_and(b32 a, b32 b) { return (b32){ vandq_u8(a.low, b.low), vandq_u8(a.high, b.high) }; }
INLINE b32 b_or(b32 a, b32 b) { return (b32){ vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high) }; }
INLINE b32 b_left(b32 a, int n) {
    const int8x16_t by = vdupq_n_s8((int8_t)n);
    return (b32){ vshlq_u8(a.low, by), vshlq_u8(a.high, by) };
}
INLINE b32 b_right(b32 a, int n) { return b_left(a, -n); }
/* 16 bytes: their low nibbles, then their high ones. */
INLINE b32 b_nibbles(const uint8_t *p) {
    const uint8x16_t a = vld1q_u8(p);
    return (b32){ vandq_u8(a, vdupq_n_u8(15)), vshrq_n_u8(a, 4) };
}
/* table[index] for indices below 16. */
INLINE b32 b_look_up(const int8_t *table, b32 index) {
    const uint8x16_t t = vreinterpretq_u8_s8(vld1q_s8(table));
    return (b32){ vqtbl1q_u8(t, index.low), vqtbl1q_u8(t, index.high) };
}
/* 32 bits as 32 bytes: 0 or 255. */
INLINE b32 b_bits(uint32_t bits) {
    const uint8x16_t each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t low = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));
    const uint8x16_t high = vcombine_u8(vdup_n_u8((uint8_t)(bits >> 16)), vdup_n_u8((uint8_t)(bits >> 24)));
    return (b32){ vtstq_u8(low, each), vtstq_u8(high, each) };
}
INLINE b32   b_from_f32(f32x8 a) { return (b32){ vreinterpretq_u8_f32(a.low), vreinterpretq_u8_f32(a.high) }; }
INLINE f32x8 f32_from_bits(b32 a) { return (f32x8){ vreinterpretq_f32_u8(a.low), vreinterpretq_f32_u8(a.high) }; }

/* 4 rows of 4 words become columns. */
INLINE void transpose_4x4(uint8x16_t *a, uint8x16_t *b, uint8x16_t *c, uint8x16_t *d) {
    const uint32x4_t a32 = vreinterpretq_u32_u8(*a), b32_ = vreinterpretq_u32_u8(*b);
    const uint32x4_t c32 = vreinterpretq_u32_u8(*c), d32 = vreinterpretq_u32_u8(*d);
    const uint64x2_t ab_even = vreinterpretq_u64_u32(vtrn1q_u32(a32, b32_)),
                     ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a32, b32_));
    const uint64x2_t cd_even = vreinterpretq_u64_u32(vtrn1q_u32(c32, d32)),
                     cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c32, d32));
    *a = vreinterpretq_u8_u64(vtrn1q_u64(ab_even, cd_even));
    *b = vreinterpretq_u8_u64(vtrn1q_u64(ab_odd, cd_odd));
    *c = vreinterpretq_u8_u64(vtrn2q_u64(ab_even, cd_even));
    *d = vreinterpretq_u8_u64(vtrn2q_u64(ab_odd, cd_odd));
}
/* 8 rows of 8 words of 4 bytes become 8 columns. */
INLINE void transpose_8x8(b32 r[8]) {
    for (int i = 0; i < 8; i += 4) {
        transpose_4x4(&r[i].low, &r[i + 1].low, &r[i + 2].low, &r[i + 3].low);
        transpose_4x4(&r[i].high, &r[i + 1].high, &r[i + 2].high, &r[i + 3].high);
    }
    for (int i = 0; i < 4; i++) {
        const uint8x16_t corner = r[i].high;
        r[i].high = r[i + 4].low;
        r[i + 4].low = corner;
    }
}

/* ---- products ---- */

enum { SIGNED_BIAS = 0 };
INLINE b32 b_signed(b32 a) { return a; }

INLINE int32x4_t dot_16(int32x4_t acc, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, w, x);
#else
    /* Pairs of neighbours, twice: the lanes of the sums are those of the instruction above. */
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
/* acc + the products of 4 bytes each, summed: w from -128 to 127, which includes 0 to 127. */
INLINE i32x8 dot(i32x8 acc, b32 w, b32 x) {
    return (i32x8){ dot_16(acc.low, vreinterpretq_s8_u8(w.low), vreinterpretq_s8_u8(x.low)),
                    dot_16(acc.high, vreinterpretq_s8_u8(w.high), vreinterpretq_s8_u8(x.high)) };
}
INLINE i32x8 dot_signed(i32x8 acc, b32 w, b32 x) { return dot(acc, w, x); }

#include "cpu/vec_wide8.h"

INLINE wide_i wide_i_load(const void *p) { return (wide_i){ vld1q_s32(p), vld1q_s32((const int32_t *)p + 4) }; }
INLINE wide_i wide_i_set(int32_t a) { return i32_set(a); }
/* dot with the same 4 bytes of x in every lane. */
INLINE wide_i wide_dot(wide_i acc, wide_i w, int32_t x) {
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x));
    return (wide_i){ dot_16(acc.low, vreinterpretq_s8_s32(w.low), four),
                     dot_16(acc.high, vreinterpretq_s8_s32(w.high), four) };
}
INLINE wide_i wide_dot_signed(wide_i acc, wide_i w, int32_t x) { return wide_dot(acc, w, x); }

/* Into the second-level cache; the address may be anything. */
INLINE void prefetch(uintptr_t p) { __builtin_prefetch((const void *)p, 0, 2); }

#endif
