/* The vocabulary on AVX-512 with VNNI: the 8-lane words of vec_x86.h with better instructions, and 16 wide lanes. */

#ifndef GM_CPU_VEC_AVX512_H
#define GM_CPU_VEC_AVX512_H

#include "cpu/vec_x86.h"

/* The instruction takes unsigned times signed bytes: signed weights are stored plus 128. */
enum { SIGNED_BIAS = 128 };
INLINE b32 b_signed(b32 a) { return _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80)); }

/* acc + the products of 4 bytes each, summed: w from 0 to 255, x signed. */
INLINE i32x8 dot(i32x8 acc, b32 w, b32 x) { return _mm256_dpbusd_epi32(acc, w, x); }
INLINE i32x8 dot_signed(i32x8 acc, b32 w, b32 x) { return _mm256_dpbusd_epi32(acc, w, x); }

/* 32 bits as 32 bytes: 0 or 255. */
INLINE b32 b_bits(uint32_t bits) { return _mm256_movm_epi8(bits); }

/* Eight halves, `stride` bytes apart. Where two registers of words hold them all (Q4_0: words 0, 9, … 63), or three, one
 * or two permutations fetch them. */
INLINE f32x8 f32_from_f16_apart(const uint8_t *p, size_t stride) {
    if (stride == 18) {
        const __m512i index = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
        const __m512i words = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), index, _mm512_loadu_si512(p + 64));
        return _mm256_cvtph_ps(_mm512_castsi512_si128(words));
    }
    if (stride == 22) {
        const __m512i first = _mm512_castsi128_si512(_mm_setr_epi16(0, 11, 22, 33, 44, 55, 0, 0));
        const __m512i last = _mm512_castsi128_si512(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 32 + 10, 32 + 21));
        const __m512i words = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), first, _mm512_loadu_si512(p + 64));
        return _mm256_cvtph_ps(
            _mm512_castsi512_si128(_mm512_permutex2var_epi16(words, last, _mm512_loadu_si512(p + 112))));
    }
    return _mm256_cvtph_ps(halves_apart(p, stride));
}

enum { WIDE = 16 };
typedef __m512  wide_f;
typedef __m512i wide_i;

INLINE wide_f wide_zero(void) { return _mm512_setzero_ps(); }
INLINE wide_f wide_set(float a) { return _mm512_set1_ps(a); }
INLINE wide_f wide_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void   wide_store(float *p, wide_f a) { _mm512_storeu_ps(p, a); }
INLINE wide_f wide_add(wide_f a, wide_f b) { return _mm512_add_ps(a, b); }
INLINE wide_f wide_mul(wide_f a, wide_f b) { return _mm512_mul_ps(a, b); }
INLINE wide_f wide_fma(wide_f a, wide_f b, wide_f c) { return _mm512_fmadd_ps(a, b, c); }
INLINE float  wide_sum(wide_f a) {
    return f32_sum(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
INLINE void wide_sum_4(float *out, wide_f a, wide_f b, wide_f c, wide_f d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
INLINE wide_f wide_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE wide_f wide_from_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
INLINE wide_f wide_from_i(wide_i a) { return _mm512_cvtepi32_ps(a); }

INLINE wide_i wide_i_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE wide_i wide_i_set(int32_t a) { return _mm512_set1_epi32(a); }
/* dot with the same 4 bytes of x in every lane. */
INLINE wide_i wide_dot(wide_i acc, wide_i w, int32_t x) { return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x)); }
INLINE wide_i wide_dot_signed(wide_i acc, wide_i w, int32_t x) { return wide_dot(acc, w, x); }

/* Two 8-lane registers side by side in a wide one. */
#define HAS_PAIRS
INLINE wide_i pair_of_b(b32 a, b32 b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
INLINE wide_i pair_dot(wide_i w, wide_i x) { return _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, x); }
INLINE f32x8  pair_low(wide_f a) { return _mm512_castps512_ps256(a); }
INLINE f32x8  pair_high(wide_f a) { return _mm512_extractf32x8_ps(a, 1); }
/* f32_lane of 2i, then of 2i + 1. */
INLINE wide_f pair_of_lanes(f32x8 a, int i) {
    const __m512i lane = _mm512_inserti64x4(_mm512_set1_epi32(2 * i), _mm256_set1_epi32(2 * i + 1), 1);
    return _mm512_permutexvar_ps(lane, _mm512_castps256_ps512(a));
}
/* f32_pick_pair of 2i, then of 2i + 1. */
INLINE wide_f pair_of_pairs(f32x8 a, int i) {
    const int     j = 4 * i;
    const __m512i lane = _mm512_setr_epi32(j, j, j, j, j + 1, j + 1, j + 1, j + 1, j + 2, j + 2, j + 2, j + 2, j + 3,
                                           j + 3, j + 3, j + 3);
    return _mm512_permutexvar_ps(lane, _mm512_castps256_ps512(a));
}

#endif
