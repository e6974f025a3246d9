/* The wide words where a wide register is the 8-lane one: included by a vocabulary after its 8-lane words. */

#ifndef GM_CPU_VEC_WIDE8_H
#define GM_CPU_VEC_WIDE8_H

enum { WIDE = 8 };
typedef f32x8 wide_f;
typedef i32x8 wide_i;

INLINE wide_f wide_zero(void) { return f32_zero(); }
INLINE wide_f wide_set(float a) { return f32_set(a); }
INLINE wide_f wide_load(const float *p) { return f32_load(p); }
INLINE void   wide_store(float *p, wide_f a) { f32_store(p, a); }
INLINE wide_f wide_add(wide_f a, wide_f b) { return f32_add(a, b); }
INLINE wide_f wide_mul(wide_f a, wide_f b) { return f32_mul(a, b); }
INLINE wide_f wide_fma(wide_f a, wide_f b, wide_f c) { return f32_fma(a, b, c); }
INLINE float  wide_sum(wide_f a) { return f32_sum(a); }
INLINE void   wide_sum_4(float *out, wide_f a, wide_f b, wide_f c, wide_f d) { f32_sum_4(out, a, b, c, d); }
INLINE wide_f wide_from_f16(const void *p) { return f32_from_f16(p); }
INLINE wide_f wide_from_bf16(const void *p) { return f32_from_bf16(p); }
INLINE wide_f wide_from_i(wide_i a) { return f32_from_i32(a); }

#endif
