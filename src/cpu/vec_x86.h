/* The vocabulary on x86-64 with AVX2, FMA and F16C: 8 floats, 8 integers or 32 bytes in a register.
 * vec_avx2.h and vec_avx512.h add what differs between the two. */

#ifndef GM_CPU_VEC_X86_H
#define GM_CPU_VEC_X86_H

#include "cpu/vec.h"

#include <immintrin.h>

typedef __m256  f32x8;
typedef __m256i i32x8;
typedef __m256i b32; /* 32 bytes */

/* ---- floats ---- */

INLINE f32x8 f32_zero(void) { return _mm256_setzero_ps(); }
INLINE f32x8 f32_set(float a) { return _mm256_set1_ps(a); }
INLINE f32x8 f32_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void  f32_store(float *p, f32x8 a) { _mm256_storeu_ps(p, a); }
INLINE f32x8 f32_add(f32x8 a, f32x8 b) { return _mm256_add_ps(a, b); }
INLINE f32x8 f32_sub(f32x8 a, f32x8 b) { return _mm256_sub_ps(a, b); }
INLINE f32x8 f32_mul(f32x8 a, f32x8 b) { return _mm256_mul_ps(a, b); }
INLINE f32x8 f32_div(f32x8 a, f32x8 b) { return _mm256_div_ps(a, b); }
INLINE f32x8 f32_fma(f32x8 a, f32x8 b, f32x8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE f32x8 f32_min(f32x8 a, f32x8 b) { return _mm256_min_ps(a, b); }
INLINE f32x8 f32_max(f32x8 a, f32x8 b) { return _mm256_max_ps(a, b); }
INLINE f32x8 f32_abs(f32x8 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE f32x8 f32_copy_sign(f32x8 a, f32x8 sign) { return _mm256_or_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign)); }
/* a < b ? yes : no in each lane. */
INLINE f32x8 f32_choose_less(f32x8 a, f32x8 b, f32x8 yes, f32x8 no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE float f32_sum(f32x8 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE void f32_sum_4(float *out, f32x8 a, f32x8 b, f32x8 c, f32x8 d) {
    const __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
}
INLINE float f32_most(f32x8 a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* Lane `lane` in all lanes. */
INLINE f32x8 f32_lane(f32x8 a, int lane) { return _mm256_permutevar8x32_ps(a, _mm256_set1_epi32(lane)); }
/* Lanes 2i and 2i + 1 in four lanes each. */
INLINE f32x8 f32_pick_pair(f32x8 a, int i) {
    const int low = 2 * i, high = 2 * i + 1;
    return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(low, low, low, low, high, high, high, high));
}
/* Lanes 0..3, or 4..7, each twice. */
INLINE f32x8 f32_double_low(f32x8 a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)); }
INLINE f32x8 f32_double_high(f32x8 a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)); }

/* ---- conversions ---- */

INLINE f32x8 f32_from_i32(i32x8 a) { return _mm256_cvtepi32_ps(a); }
INLINE i32x8 f32_round(f32x8 a) { return _mm256_cvtps_epi32(a); } /* to nearest even */
/* 2^n for n from -126 to 127. */
INLINE f32x8 f32_power_of_2(i32x8 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
INLINE f32x8 f32_from_u8(uint64_t bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)));
}
INLINE f32x8 f32_from_i8(uint64_t bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes)));
}
INLINE f32x8 f32_from_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE void  f32_to_f16_store(void *p, f32x8 a) {
    _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE f32x8 f32_from_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
/* One half in all lanes. */
INLINE f32x8 f32_set_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_set1_epi16((short)load_u16(p))); }
/* Two halves in all lanes of two registers. */
INLINE void f32_set_two_f16(f32x8 *a, f32x8 *b, uint32_t halves) {
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)halves));
    *a = _mm256_broadcastss_ps(both);
    *b = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
}
/* Eight halves, `stride` bytes apart. */
INLINE __m128i halves_apart(const uint8_t *p, size_t stride) {
    __m128i h = _mm_cvtsi32_si128(load_u16(p));
    h = _mm_insert_epi16(h, load_u16(p + 1 * stride), 1);
    h = _mm_insert_epi16(h, load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, load_u16(p + 6 * stride), 6);
    h = _mm_insert_epi16(h, load_u16(p + 7 * stride), 7);
    return h;
}
/* Four times 8 integers from -128 to 127 as 32 bytes. */
INLINE void i32_to_bytes(int8_t *out, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)out, _mm256_permutevar8x32_epi32(bytes, order));
}

/* ---- integers ---- */

INLINE i32x8   i32_zero(void) { return _mm256_setzero_si256(); }
INLINE i32x8   i32_add(i32x8 a, i32x8 b) { return _mm256_add_epi32(a, b); }
INLINE i32x8   i32_mul(i32x8 a, int32_t b) { return _mm256_mullo_epi32(a, _mm256_set1_epi32(b)); }
INLINE void    i32_store(int32_t *p, i32x8 a) { _mm256_storeu_si256((__m256i *)p, a); }
INLINE int32_t i32_sum(i32x8 a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* ---- bytes ---- */

INLINE b32  b_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE void b_store(void *p, b32 a) { _mm256_storeu_si256(p, a); }
INLINE b32  b_set(int a) { return _mm256_set1_epi8((char)a); }
INLINE b32  b_and(b32 a, b32 b) { return _mm256_and_si256(a, b); }
INLINE b32  b_or(b32 a, b32 b) { return _mm256_or_si256(a, b); }
/* Shifts of at most 7 whose bits from the neighbour byte the caller masks away. */
INLINE b32 b_right(b32 a, int n) { return _mm256_srli_epi16(a, n); }
INLINE b32 b_left(b32 a, int n) { return _mm256_slli_epi16(a, n); }
/* 16 bytes: their low nibbles, then their high ones. */
INLINE b32 b_nibbles(const uint8_t *p) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
}
/* table[index] for indices below 16. */
INLINE b32 b_look_up(const int8_t *table, b32 index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}
INLINE b32   b_from_f32(f32x8 a) { return _mm256_castps_si256(a); }
INLINE f32x8 f32_from_bits(b32 a) { return _mm256_castsi256_ps(a); }

/* 8 rows of 8 words of 4 bytes become 8 columns. */
INLINE void transpose_8x8(b32 r[8]) {
    const __m256i a0 = _mm256_unpacklo_epi32(r[0], r[1]), a1 = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i a2 = _mm256_unpacklo_epi32(r[2], r[3]), a3 = _mm256_unpackhi_epi32(r[2], r[3]);
    const __m256i a4 = _mm256_unpacklo_epi32(r[4], r[5]), a5 = _mm256_unpackhi_epi32(r[4], r[5]);
    const __m256i a6 = _mm256_unpacklo_epi32(r[6], r[7]), a7 = _mm256_unpackhi_epi32(r[6], r[7]);
    const __m256i b0 = _mm256_unpacklo_epi64(a0, a2), b1 = _mm256_unpackhi_epi64(a0, a2);
    const __m256i b2 = _mm256_unpacklo_epi64(a1, a3), b3 = _mm256_unpackhi_epi64(a1, a3);
    const __m256i b4 = _mm256_unpacklo_epi64(a4, a6), b5 = _mm256_unpackhi_epi64(a4, a6);
    const __m256i b6 = _mm256_unpacklo_epi64(a5, a7), b7 = _mm256_unpackhi_epi64(a5, a7);
    r[0] = _mm256_permute2x128_si256(b0, b4, 0x20);
    r[1] = _mm256_permute2x128_si256(b1, b5, 0x20);
    r[2] = _mm256_permute2x128_si256(b2, b6, 0x20);
    r[3] = _mm256_permute2x128_si256(b3, b7, 0x20);
    r[4] = _mm256_permute2x128_si256(b0, b4, 0x31);
    r[5] = _mm256_permute2x128_si256(b1, b5, 0x31);
    r[6] = _mm256_permute2x128_si256(b2, b6, 0x31);
    r[7] = _mm256_permute2x128_si256(b3, b7, 0x31);
}

/* Into the second-level cache; the address may be anything. */
INLINE void prefetch(uintptr_t p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
