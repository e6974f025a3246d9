/* The vocabulary on AVX2: completes vec_x86.h. */

#ifndef GM_CPU_VEC_AVX2_H
#define GM_CPU_VEC_AVX2_H

#include "cpu/vec_x86.h"

/* Signed weights stay signed: dot_signed moves their sign to the other factor. */
enum { SIGNED_BIAS = 0 };
INLINE b32 b_signed(b32 a) { return a; }

/* acc + the products of 4 bytes each, summed: w from 0 to 127, x from -127 to 127 (the pairs fit 16 bits). */
INLINE i32x8 dot(i32x8 acc, b32 w, b32 x) {
    const __m256i pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/* The same for signed w. */
INLINE i32x8 dot_signed(i32x8 acc, b32 w, b32 x) { return dot(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }

/* 32 bits as 32 bytes: 0 or 255. */
INLINE b32 b_bits(uint32_t bits) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i each = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
}

INLINE f32x8 f32_from_f16_apart(const uint8_t *p, size_t stride) { return _mm256_cvtph_ps(halves_apart(p, stride)); }

#include "cpu/vec_wide8.h"

INLINE wide_i wide_i_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE wide_i wide_i_set(int32_t a) { return _mm256_set1_epi32(a); }
/* dot with the same 4 bytes of x in every lane. */
INLINE wide_i wide_dot(wide_i acc, wide_i w, int32_t x) { return dot(acc, w, _mm256_set1_epi32(x)); }
INLINE wide_i wide_dot_signed(wide_i acc, wide_i w, int32_t x) { return dot_signed(acc, w, _mm256_set1_epi32(x)); }

#endif
