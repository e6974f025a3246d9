/* Q6_K times few columns on AVX-512. This is the format of a model's head and of many other tensors.
 *
 * As in avx512_q4_k.h, all products of a block are summed as integers in one register, here with one lane for each of the 16
 * groups. Half a block is 128 values: 64 bytes with value c in the low nibble of byte c and value 64 + c in the high one,
 * and 32 bytes with the two high bits of values c, 32 + c, 64 + c and 96 + c in byte c. Words of 4 bytes of the two halves
 * alternate, so that quarter L of a register, which holds 16 bytes of each half, has words of
 *     straight:  groups L, 8 + L (low nibbles), 4 + L, 12 + L (high nibbles)
 *     crossed:   groups 4 + L, 12 + L (high nibbles), L, 8 + L (low nibbles)
 * x is permuted into these two orders. No value moves between the quarters of a register, which would be slow. */

#ifndef GM_CPU_AVX512_Q6_K_H
#define GM_CPU_AVX512_Q6_K_H

#include "cpu/simd_columns.h"

/* One unit of x: straight and crossed for the first words of all 16 bytes, then for the last. */
typedef struct {
    int8_t  q[4][64];
    float   d[16];    /* by lanes */
    int32_t bias[16]; /* −32 · Σ p, because weights are q − 32; in the crossed order, in which the sums start */
} q6_k_unit;

_Static_assert(sizeof(q6_k_unit) == 384, "units are loaded as whole registers");

/* From the crossed order of sums to the straight one, and back. */
INLINE __m512i q6_k_cross(__m512i sums) { return _mm512_shuffle_epi32(sums, 0x4e); }

static void q6_k_permute(q6_k_unit *out, q8_column x, size_t units) {
    enum { ODD = 0xaa };
    const __m512i pair = _mm512_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6, 1, 5, 3, 7, 1, 5, 3, 7); /* of groups */
    const __m512i all_32 = _mm512_set1_epi8(32);
    for (size_t u = 0; u < units; u++, out++, x = q8_advance(x, UNIT)) {
        const __m512i a = _mm512_loadu_si512(x.q), b = _mm512_loadu_si512(x.q + 64);
        const __m512i c = _mm512_loadu_si512(x.q + 128), d = _mm512_loadu_si512(x.q + 192);
        const __m512i low = _mm512_unpacklo_epi32(a, c),
                      high = _mm512_unpacklo_epi32(b, d); /* of what nibbles they meet */
        const __m512i low_last = _mm512_unpackhi_epi32(a, c), high_last = _mm512_unpackhi_epi32(b, d);
        const __m512i straight = _mm512_mask_blend_epi64(ODD, low, high),
                      crossed = _mm512_mask_blend_epi64(ODD, high, low);
        const __m512i straight_last = _mm512_mask_blend_epi64(ODD, low_last, high_last),
                      crossed_last = _mm512_mask_blend_epi64(ODD, high_last, low_last);
        _mm512_storeu_si512(out->q[0], straight);
        _mm512_storeu_si512(out->q[1], crossed);
        _mm512_storeu_si512(out->q[2], straight_last);
        _mm512_storeu_si512(out->q[3], crossed_last);
        const __m512 scales = _mm512_castps256_ps512(_mm256_loadu_ps(x.d));
        _mm512_storeu_ps(out->d, _mm512_permutexvar_ps(pair, scales));
        __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), all_32, straight);
        sums = q6_k_cross(_mm512_dpbusd_epi32(sums, all_32, straight_last));
        sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, all_32, crossed), all_32, crossed_last);
        _mm512_storeu_si512(out->bias, _mm512_sub_epi32(_mm512_setzero_si512(), sums));
    }
}

/* Words of both halves of a block in turn: nibbles and high bits, the first and last words of all 16 bytes. */
typedef struct {
    __m512i first, last, top_first, top_last;
} q6_k_words;

INLINE q6_k_words q6_k_load(const uint8_t *block) {
    const __m512i a = _mm512_loadu_si512(block), b = _mm512_loadu_si512(block + 64);
    const __m512i top_a = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(block + 128)));
    const __m512i top_b = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(block + 160)));
    const __m512i used = _mm512_inserti64x4(_mm512_set1_epi8(0x33), _mm256_set1_epi8((char)0xcc), 1);
    return (q6_k_words){ _mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b),
                         _mm512_and_si512(_mm512_unpacklo_epi32(top_a, top_b), used),
                         _mm512_and_si512(_mm512_unpackhi_epi32(top_a, top_b), used) };
}

/* The values: the high nibbles of the words in `high` and the low nibbles of the others, with two bits of `top` above them.
 * Shifted left by 4, 2, 0 and −2 bits, the high bits of the four quarters are in place. q6_k_load keeps only those that this half
 * of the register uses: the other two bits of a byte are 0. */
INLINE __m512i q6_k_values(__m512i words, __m512i top, __mmask16 high, __m512i left) {
    enum { A_WHERE_C_ELSE_B = 0xe4 };
    return _mm512_ternarylogic_epi32(_mm512_mask_srli_epi32(words, high, words, 4), _mm512_rolv_epi32(top, left),
                                     _mm512_set1_epi8(15), A_WHERE_C_ELSE_B);
}
INLINE __m512i q6_k_straight(__m512i words, __m512i top) {
    return q6_k_values(words, top, 0xcccc, _mm512_setr_epi32(4, 4, 0, 0, 4, 4, 0, 0, 2, 2, 30, 30, 2, 2, 30, 30));
}
INLINE __m512i q6_k_crossed(__m512i words, __m512i top) {
    return q6_k_values(words, top, 0x3333, _mm512_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4, 30, 30, 2, 2, 30, 30, 2, 2));
}

INLINE __m512i q6_k_scales(const uint8_t *block) {
    const __m128i order = _mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
    return _mm512_cvtepi8_epi32(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 192)), order));
}

/* Two rows, which may be the same, one step at a time for both. */
INLINE void q6_k_rows(float *y, const uint8_t *w, size_t row_bytes, size_t above, size_t below, const q6_k_unit *x,
                      size_t units) {
#define BOTH UNROLL for (int i = 0; i < 2; i++)
    const bool     long_x = is_long(units);
    const uint8_t *block[2] = { w + above * row_bytes, w + below * row_bytes };
    __m512         total[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (size_t u = 0; u < units; u++, x++) {
        q6_k_words words[2];
        __m512i    sums[2], scales[2];
        __m512     d[2];
        BOTH       prefetch_ahead(block[i], 210, long_x);
        BOTH       words[i] = q6_k_load(block[i]);
        BOTH       sums[i] = _mm512_dpbusd_epi32(
            _mm512_loadu_si512(x->bias), q6_k_crossed(words[i].first, words[i].top_first), _mm512_loadu_si512(x->q[1]));
        BOTH sums[i] =
            _mm512_dpbusd_epi32(sums[i], q6_k_crossed(words[i].last, words[i].top_last), _mm512_loadu_si512(x->q[3]));
        BOTH sums[i] = _mm512_dpbusd_epi32(q6_k_cross(sums[i]), q6_k_straight(words[i].first, words[i].top_first),
                                           _mm512_loadu_si512(x->q[0]));
        BOTH d[i] = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(block[i] + 208))));
        BOTH scales[i] = q6_k_scales(block[i]);
        BOTH sums[i] =
            _mm512_dpbusd_epi32(sums[i], q6_k_straight(words[i].last, words[i].top_last), _mm512_loadu_si512(x->q[2]));
        BOTH d[i] = _mm512_mul_ps(d[i], _mm512_loadu_ps(x->d));
        BOTH total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_mullo_epi32(sums[i], scales[i])), d[i], total[i]);
        BOTH block[i] += 210;
    }
    y[above] = wide_sum(total[0]);
    y[below] = wide_sum(total[1]);
#undef BOTH
}

/* The same two rows times several columns: the weights are unpacked once for all. */
INLINE void q6_k_rows_of_columns(const matmul_job *job, size_t above, size_t below, size_t column, size_t count,
                                 const q6_k_unit *x, size_t units) {
#define BOTH UNROLL for (int i = 0; i < 2; i++)
    const uint8_t *block[2] = { job->w + above * job->row_bytes, job->w + below * job->row_bytes };
    __m512         total[MOST_COLUMNS][2];
    memset(total, 0, count * sizeof *total);
    for (size_t u = 0; u < units; u++, x++) {
        __m512i first[2], last[2], first_crossed[2], last_crossed[2], scales[2];
        __m512  d[2];
        BOTH {
            prefetch_ahead(block[i], 210, true);
            const q6_k_words words = q6_k_load(block[i]);
            first[i] = q6_k_straight(words.first, words.top_first);
            last[i] = q6_k_straight(words.last, words.top_last);
            first_crossed[i] = q6_k_crossed(words.first, words.top_first);
            last_crossed[i] = q6_k_crossed(words.last, words.top_last);
            scales[i] = q6_k_scales(block[i]);
            d[i] = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(block[i] + 208))));
            block[i] += 210;
        }
        for (size_t c = 0; c < count; c++) {
            const q6_k_unit *at = x + c * units;
            BOTH {
                __m512i sum =
                    _mm512_dpbusd_epi32(_mm512_loadu_si512(at->bias), first_crossed[i], _mm512_loadu_si512(at->q[1]));
                sum = _mm512_dpbusd_epi32(sum, last_crossed[i], _mm512_loadu_si512(at->q[3]));
                sum = _mm512_dpbusd_epi32(q6_k_cross(sum), first[i], _mm512_loadu_si512(at->q[0]));
                sum = _mm512_dpbusd_epi32(sum, last[i], _mm512_loadu_si512(at->q[2]));
                total[c][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_mullo_epi32(sum, scales[i])),
                                              _mm512_mul_ps(d[i], _mm512_loadu_ps(at->d)), total[c][i]);
            }
        }
    }
    for (size_t c = 0; c < count; c++) {
        float *y = y_column_of(job, column + c);
        y[above] = wide_sum(total[c][0]);
        y[below] = wide_sum(total[c][1]);
    }
#undef BOTH
}

INLINE void q6_k_pair(const matmul_job *job, size_t above, size_t below, size_t column, size_t count,
                      const q6_k_unit *x, size_t units) {
    if (count == 1) q6_k_rows(y_column_of(job, column), job->w, job->row_bytes, above, below, x, units);
    else q6_k_rows_of_columns(job, above, below, column, count, x, units);
}

static void q6_k_few_columns(const matmul_job *job, size_t first, size_t last, void *scratch) {
    q6_k_unit   *x = scratch;
    const size_t units = job->k / UNIT, half = (last - first) / 2;
    const size_t most = min_size(MOST_COLUMNS, MATMUL_SCRATCH / (units * sizeof *x));
    for (size_t column = 0, count; column < job->columns; column += count) {
        count = min_size(most, job->columns - column);
        for (size_t c = 0; c < count; c++) q6_k_permute(x + c * units, q8_column_of(job, column + c), units);
        for (size_t row = first; row < first + half; row++) q6_k_pair(job, row, row + half, column, count, x, units);
        if ((last - first) % 2) q6_k_pair(job, last - 1, last - 1, column, count, x, units);
    }
}

#endif
