/* Q4_K times few columns on AVX-512: the format that most of a model's bytes are in, so it gets a kernel of its own.
 *
 * The general kernel (simd_matmul_q8.h) turns each group's integer sum into floats by itself. Here a lane belongs to a group
 * throughout a block: all of a block's products are summed as integers in two registers, which are converted and scaled
 * once (a third faster). To this end x is permuted beforehand. The 128 bytes of a block are 4 × 32: byte c of the i-th 32
 * has value c of group 2i in its low nibble and of group 2i + 1 in its high one. Two permutations of 8-byte words make
 * registers whose halves hold words j of i = 0, 1, 2, 3; masks that alternate by 4 bytes then take the low nibbles of one
 * half-word and the high nibbles of the other (left in place: a factor of 16, which the scales absorb), or the other way
 * round:
 *     straight:  lanes 2i, 2i + 1 of a half belong to groups 2i, 2i + 1
 *     crossed:   lanes 2i, 2i + 1 of a half belong to groups 2i + 1, 2i
 * Rows are taken one after the other, not several at once: memory is fastest as one long stream (two rows at a time halved
 * the speed). Q6_K was tried likewise, and lost to the general kernel. */

#ifndef GM_CPU_AVX512_Q4_K_H
#define GM_CPU_AVX512_Q4_K_H

#include "cpu/simd_matmul_q8.h"

/* One unit of x, permuted: straight and crossed for the first permutation, then for the second. */
typedef struct {
    int8_t q[4][64];
    float  d[8];         /* of the groups; of odd ones a 16th */
    float  minus_sum[8]; /* −d · Σ p of the groups */
} q4_k_unit;

_Static_assert(sizeof(q4_k_unit) == 320, "units are loaded as whole registers");

/* Where word `lane` of register `which` comes from, in the 32 words of two pairs of groups: words of groups 0 and 1, then of
 * 2 and 3. Lanes of the other two pairs get the same numbers. */
INLINE int32_t q4_k_source(int which, int lane) {
    const int half = lane / 8, i = lane / 2 % 4, odd = lane % 2, group = which % 2 ? 1 - odd : odd;
    return 16 * (i % 2) + 8 * group + 2 * (2 * (which / 2) + half) + odd;
}

static void q4_k_permute(q4_k_unit *out, q8_column x, size_t units) {
    int32_t source[4][16];
    for (int which = 0; which < 4; which++)
        for (int lane = 0; lane < 16; lane++) source[which][lane] = q4_k_source(which, lane);
    for (size_t u = 0; u < units; u++, out++, x = q8_advance(x, UNIT)) {
        const __m512i a = _mm512_loadu_si512(x.q), b = _mm512_loadu_si512(x.q + 64);
        const __m512i c = _mm512_loadu_si512(x.q + 128), d = _mm512_loadu_si512(x.q + 192);
        for (int which = 0; which < 4; which++) {
            const __m512i from = _mm512_loadu_si512(source[which]);
            const __m512i low = _mm512_permutex2var_epi32(a, from, b), high = _mm512_permutex2var_epi32(c, from, d);
            _mm512_storeu_si512(out->q[which], _mm512_mask_blend_epi32(0xf0f0, low, high));
        }
        for (size_t g = 0; g < 8; g++) {
            out->d[g] = g % 2 ? x.d[g] / 16 : x.d[g];
            out->minus_sum[g] = -(x.s[2 * g] + x.s[2 * g + 1]);
        }
    }
}

/* The block's 8 scales, then its 8 minima, as 16 bytes; the 12 bytes a, b, c are explained in simd_unpack.h. */
INLINE __m128i q4_k_scales(__m128i head) {
    const __m128i low_from = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);  /* a c b c */
    const __m128i high_from = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11); /* - a - b */
    const __m128i low_mask = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi8(head, low_from), _mm_setr_epi32(0, 0, 0, 4));
    const __m128i high = _mm_srli_epi32(_mm_shuffle_epi8(head, high_from), 2);
    return _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, _mm_set1_epi32(0x30303030)));
}

typedef struct {
    __m512 straight, crossed, minima; /* of minima the upper half counts */
} q4_k_sums;

/* The scales of the groups times those of x, twice; the minima's part of the sum is added to `minima`. */
INLINE __m512 q4_k_scale(const uint8_t *block, const q4_k_unit *x, __m512 *minima) {
    prefetch_ahead(block, 144);
    const __m128i head = _mm_loadu_si128((const __m128i *)block);
    const __m512i halve = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512  both = _mm512_permutexvar_ps(halve, _mm512_castps128_ps512(_mm_cvtph_ps(head))); /* d, d_min */
    __m512        scale = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(q4_k_scales(head)));
    scale = _mm512_mul_ps(_mm512_mul_ps(scale, both), _mm512_loadu_ps(x->d));
    *minima = _mm512_add_ps(*minima, scale);
    return _mm512_shuffle_f32x4(scale, scale, 0x44);
}

INLINE void q4_k_add(q4_k_sums *sums, const uint8_t *block, const q4_k_unit *x) {
    const __m512i straight = _mm512_set1_epi64((long long)0xf0f0f0f00f0f0f0f);
    const __m512i crossed = _mm512_set1_epi64(0x0f0f0f0ff0f0f0f0);
    const __m512i first = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13),
                  last = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_loadu_si512(block + 16), b = _mm512_loadu_si512(block + 80), zero = _mm512_setzero_si512();
    const __m512i w0 = _mm512_permutex2var_epi64(a, first, b), w1 = _mm512_permutex2var_epi64(a, last, b);
    const __m512  scale = q4_k_scale(block, x, &sums->minima);
    __m512i       s = _mm512_dpbusd_epi32(zero, _mm512_and_si512(w0, straight), _mm512_loadu_si512(x->q[0]));
    __m512i       c = _mm512_dpbusd_epi32(zero, _mm512_and_si512(w0, crossed), _mm512_loadu_si512(x->q[1]));
    s = _mm512_dpbusd_epi32(s, _mm512_and_si512(w1, straight), _mm512_loadu_si512(x->q[2]));
    c = _mm512_dpbusd_epi32(c, _mm512_and_si512(w1, crossed), _mm512_loadu_si512(x->q[3]));
    sums->straight = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, sums->straight);
    sums->crossed = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), _mm512_permute_ps(scale, 0xb1), sums->crossed);
}

INLINE float q4_k_total(const q4_k_sums *sums) {
    const __m512 products = _mm512_add_ps(sums->straight, sums->crossed);
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(products), _mm512_extractf32x8_ps(products, 1));
    return f32_sum(_mm256_add_ps(halves, _mm512_extractf32x8_ps(sums->minima, 1)));
}

INLINE float q4_k_row(const uint8_t *w, const q4_k_unit *x, size_t units) {
    q4_k_sums sums = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (size_t u = 0; u < units; u++) q4_k_add(&sums, w + u * 144, x + u);
    return q4_k_total(&sums);
}

/* One column: the rows come from two places at a time, because memory gives two streams faster than one. */
static void q4_k_one_column(float *y, const uint8_t *w, size_t row_bytes, size_t rows, const q4_k_unit *x,
                            size_t units) {
    const size_t half = rows / 2;
    for (size_t row = 0; row < half; row++) {
        const uint8_t *above = w + row * row_bytes, *below = above + half * row_bytes;
        q4_k_sums      a = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps() }, b = a;
        for (size_t u = 0; u < units; u++) {
            q4_k_add(&a, above + u * 144, x + u);
            q4_k_add(&b, below + u * 144, x + u);
        }
        y[row] = q4_k_total(&a);
        y[row + half] = q4_k_total(&b);
    }
    for (size_t row = 2 * half; row < rows; row++) y[row] = q4_k_row(w + row * row_bytes, x, units);
}

static void q4_k_few_columns(const matmul_job *job, size_t first, size_t last, void *scratch) {
    enum { ROWS = 8 }; /* that columns take turns on */
    q4_k_unit     *x = scratch;
    const uint8_t *w = job->w + first * job->row_bytes;
    const size_t   units = job->k / UNIT, rows = last - first;
    for (size_t column = 0; column < job->columns; column++)
        q4_k_permute(x + column * units, q8_column_of(job, column), units);
    if (job->columns == 1) {
        q4_k_one_column(y_column_of(job, 0) + first, w, job->row_bytes, rows, x, units);
        return;
    }
    for (size_t begin = 0; begin < rows; begin += ROWS)
        for (size_t column = 0; column < job->columns; column++) {
            float *y = y_column_of(job, column) + first;
            for (size_t row = begin; row < min_size(begin + ROWS, rows); row++)
                y[row] = q4_k_row(w + row * job->row_bytes, x + column * units, units);
        }
}

#endif
