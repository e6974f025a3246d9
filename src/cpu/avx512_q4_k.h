/* Q4_K times few columns on AVX-512. Most of a model's bytes are in this format, so it has a kernel of its own.
 *
 * The general kernel (simd_matmul_q8.h) converts the integer sum of each group to float separately. Here a lane belongs to one
 * group for a whole block: all products of a block are summed as integers in one register, which is converted and scaled
 * once. For this, x is permuted beforehand. The 128 bytes of a block are 4 × 32: byte c of the i-th 32 has value c of
 * group 2i in its low nibble and of group 2i + 1 in its high one. Two permutations of 8-byte words make registers whose
 * halves hold words j of i = 0, 1, 2, 3; masks that alternate every 4 bytes then take the low nibbles of one half-word and the
 * high nibbles of the other (not shifted: the scales absorb the factor of 16), or the other way round:
 *     straight:  lanes 2i, 2i + 1 of a half belong to groups 2i, 2i + 1
 *     crossed:   lanes 2i, 2i + 1 of a half belong to groups 2i + 1, 2i
 * Swapping neighbours moves the crossed sums to the lanes of the straight ones.
 *
 * The vector unit is busy for most of the time that memory takes, so the scalar unit unpacks the scales. Two rows are computed
 * together, because one row would wait for its own results (35 GB/s instead of 30 from the second-level cache). The two rows are
 * far apart: memory delivers two streams faster than one, but four much more slowly. */

#ifndef GM_CPU_AVX512_Q4_K_H
#define GM_CPU_AVX512_Q4_K_H

#include "cpu/simd_columns.h"

/* One unit of x, permuted: straight and crossed for the first permutation, then for the second. */
typedef struct {
    int8_t q[4][64];
    float  d[8];         /* of the groups; a 16th of it for odd ones */
    float  minus_sum[8]; /* −d · Σ p of the groups */
} q4_k_unit;

_Static_assert(sizeof(q4_k_unit) == 320, "units are loaded as whole registers");

/* The source of word `lane` of register `which`, in the 32 words of two pairs of groups: first groups 0 and 1, then 2 and 3. The
 * lanes of the other two pairs have the same numbers. */
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

/* The block's 8 scales and 8 minima, a byte each; the 12 bytes a, b, c are explained in simd_unpack.h. */
INLINE void q4_k_bytes(const uint8_t *block, uint64_t *scales, uint64_t *minima) {
    const uint64_t ab = load_u64(block + 4), c = load_u32(block + 12), top = 0xffffffff00000000;
    const uint64_t first = ab & 0x3f3f3f3f3f3f3f3f; /* four scales, four minima */
    const uint64_t last = (ab >> 2 & 0x3030303030303030) | ((c | c << 28) & 0x0f0f0f0f0f0f0f0f);
    *scales = (first & ~top) | last << 32;
    *minima = first >> 32 | (last & top);
}

/* The nibbles of a block, permuted. */
typedef struct {
    __m512i first, last;
} q4_k_words;

INLINE q4_k_words q4_k_load(const uint8_t *block) {
    const __m512i a = _mm512_loadu_si512(block + 16), b = _mm512_loadu_si512(block + 80);
    return (q4_k_words){ _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13), b),
                         _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15), b) };
}

INLINE __m512i q4_k_straight(__m512i w) {
    return _mm512_and_si512(_mm512_set1_epi64((long long)0xf0f0f0f00f0f0f0f), w);
}
INLINE __m512i q4_k_crossed(__m512i w) {
    return _mm512_andnot_si512(_mm512_set1_epi64((long long)0xf0f0f0f00f0f0f0f), w);
}

/* Two rows, which may be the same, one step at a time for both. */
INLINE void q4_k_rows(float *y, const uint8_t *w, size_t row_bytes, size_t above, size_t below, const q4_k_unit *x,
                      size_t units) {
#define BOTH UNROLL for (int i = 0; i < 2; i++)
    const bool     long_x = is_long(units);
    const uint8_t *block[2] = { w + above * row_bytes, w + below * row_bytes };
    __m256         products[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() }, rest[2] = { products[0], products[0] };
    for (size_t u = 0; u < units; u++, x++) {
        q4_k_words    words[2];
        __m512i       sums[2];
        __m256        scale[2], minima[2];
        __m128        d[2];
        uint64_t      scale_bytes[2], minimum_bytes[2];
        BOTH          prefetch_ahead(block[i], 144, long_x);
        BOTH          words[i] = q4_k_load(block[i]);
        const __m512i crossed = _mm512_loadu_si512(x->q[1]), crossed_last = _mm512_loadu_si512(x->q[3]);
        BOTH          sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q4_k_crossed(words[i].first), crossed);
        BOTH          q4_k_bytes(block[i], &scale_bytes[i], &minimum_bytes[i]);
        BOTH          d[i] = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(block[i]))); /* d, d_min */
        BOTH          sums[i] = _mm512_dpbusd_epi32(sums[i], q4_k_crossed(words[i].last), crossed_last);
        BOTH          scale[i] = _mm256_mul_ps(f32_from_u8(scale_bytes[i]), _mm256_loadu_ps(x->d));
        BOTH          minima[i] = _mm256_mul_ps(f32_from_u8(minimum_bytes[i]), _mm256_loadu_ps(x->minus_sum));
        const __m512i straight = _mm512_loadu_si512(x->q[0]), straight_last = _mm512_loadu_si512(x->q[2]);
        BOTH          sums[i] =
            _mm512_dpbusd_epi32(_mm512_shuffle_epi32(sums[i], 0xb1), q4_k_straight(words[i].first), straight);
        BOTH rest[i] = _mm256_fmadd_ps(minima[i], _mm256_broadcastss_ps(_mm_movehdup_ps(d[i])), rest[i]);
        BOTH scale[i] = _mm256_mul_ps(scale[i], _mm256_broadcastss_ps(d[i]));
        BOTH sums[i] = _mm512_dpbusd_epi32(sums[i], q4_k_straight(words[i].last), straight_last);
        BOTH {
            const __m256i sum =
                _mm256_add_epi32(_mm512_castsi512_si256(sums[i]), _mm512_extracti64x4_epi64(sums[i], 1));
            products[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale[i], products[i]);
        }
        BOTH block[i] += 144;
    }
    y[above] = f32_sum(_mm256_add_ps(products[0], rest[0]));
    y[below] = f32_sum(_mm256_add_ps(products[1], rest[1]));
#undef BOTH
}

/* The same two rows times several columns: the weights are unpacked once for all. */
typedef struct {
    __m256 products[2], rest[2];
} q4_k_sums;

INLINE void q4_k_rows_of_columns(const matmul_job *job, size_t above, size_t below, size_t column, size_t count,
                                 const q4_k_unit *x, size_t units) {
#define BOTH UNROLL for (int i = 0; i < 2; i++)
    const uint8_t *block[2] = { job->w + above * job->row_bytes, job->w + below * job->row_bytes };
    q4_k_sums      sums[MOST_COLUMNS];
    memset(sums, 0, count * sizeof *sums);
    for (size_t u = 0; u < units; u++, x++) {
        __m512i first[2], last[2], first_crossed[2], last_crossed[2];
        __m256  scale[2], minima[2], d[2], d_min[2];
        BOTH {
            uint64_t scale_bytes, minimum_bytes;
            prefetch_ahead(block[i], 144, true);
            const q4_k_words words = q4_k_load(block[i]);
            first[i] = q4_k_straight(words.first);
            last[i] = q4_k_straight(words.last);
            first_crossed[i] = q4_k_crossed(words.first);
            last_crossed[i] = q4_k_crossed(words.last);
            q4_k_bytes(block[i], &scale_bytes, &minimum_bytes);
            scale[i] = f32_from_u8(scale_bytes);
            minima[i] = f32_from_u8(minimum_bytes);
            const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(block[i])));
            d[i] = _mm256_broadcastss_ps(both);
            d_min[i] = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
            block[i] += 144;
        }
        for (size_t c = 0; c < count; c++) {
            const q4_k_unit *at = x + c * units;
            BOTH {
                __m512i sum =
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), first_crossed[i], _mm512_loadu_si512(at->q[1]));
                sum = _mm512_dpbusd_epi32(sum, last_crossed[i], _mm512_loadu_si512(at->q[3]));
                sum = _mm512_dpbusd_epi32(_mm512_shuffle_epi32(sum, 0xb1), first[i], _mm512_loadu_si512(at->q[0]));
                sum = _mm512_dpbusd_epi32(sum, last[i], _mm512_loadu_si512(at->q[2]));
                const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
                const __m256  factor = _mm256_mul_ps(_mm256_mul_ps(scale[i], _mm256_loadu_ps(at->d)), d[i]);
                sums[c].rest[i] = _mm256_fmadd_ps(_mm256_mul_ps(minima[i], _mm256_loadu_ps(at->minus_sum)), d_min[i],
                                                  sums[c].rest[i]);
                sums[c].products[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(eight), factor, sums[c].products[i]);
            }
        }
    }
    for (size_t c = 0; c < count; c++) {
        float *y = y_column_of(job, column + c);
        y[above] = f32_sum(_mm256_add_ps(sums[c].products[0], sums[c].rest[0]));
        y[below] = f32_sum(_mm256_add_ps(sums[c].products[1], sums[c].rest[1]));
    }
#undef BOTH
}

INLINE void q4_k_pair(const matmul_job *job, size_t above, size_t below, size_t column, size_t count,
                      const q4_k_unit *x, size_t units) {
    if (count == 1) q4_k_rows(y_column_of(job, column), job->w, job->row_bytes, above, below, x, units);
    else q4_k_rows_of_columns(job, above, below, column, count, x, units);
}

static void q4_k_few_columns(const matmul_job *job, size_t first, size_t last, void *scratch) {
    q4_k_unit   *x = scratch;
    const size_t units = job->k / UNIT, half = (last - first) / 2;
    const size_t most = min_size(MOST_COLUMNS, MATMUL_SCRATCH / (units * sizeof *x));
    for (size_t column = 0, count; column < job->columns; column += count) {
        count = min_size(most, job->columns - column);
        for (size_t c = 0; c < count; c++) q4_k_permute(x + c * units, q8_column_of(job, column + c), units);
        for (size_t row = first; row < first + half; row++) q4_k_pair(job, row, row + half, column, count, x, units);
        if ((last - first) % 2) q4_k_pair(job, last - 1, last - 1, column, count, x, units);
    }
}

#endif
