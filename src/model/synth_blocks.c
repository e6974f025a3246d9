/* Random weights, generated directly in the blocks of each format. Quants are random bits; scales are chosen so that the weights
 * have a mean of about 0 and a standard deviation of about 0.02, like trained weights. */

#include "model/synth_parts.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

/* ---- random bits ---- */

static uint64_t rotate_left(uint64_t x, int k) { return x << k | x >> (64 - k); }

static inline uint64_t random_next(synth_random *r) {
    uint64_t      *s = r->state;
    const uint64_t result = rotate_left(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* Initialises the state with splitmix64, so that any seed will do. */
void synth_random_start(synth_random *random, uint64_t seed, uint64_t stream) {
    uint64_t x = seed ^ stream * 0xd1342543de82ef95;
    for (int i = 0; i < 4; i++) {
        uint64_t z = x += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        random->state[i] = z ^ z >> 31;
    }
}

static void random_bytes(synth_random *r, uint8_t *out, size_t words) {
    synth_random local = *r; /* in registers */
    for (size_t i = 0; i < words; i++) {
        const uint64_t word = random_next(&local);
        memcpy(out + 8 * i, &word, 8);
    }
    *r = local;
}

static double random_uniform(synth_random *r) { return (double)(random_next(r) >> 11) / 9007199254740992.0; }

/* ---- blocks ---- */

/* Writes an f16 between 1 and 1.25 times the power of two with the given bits. */
static void put_scale(uint8_t *out, uint32_t power, uint64_t word) {
    const uint16_t bits = (uint16_t)(power | (word & 255));
    memcpy(out, &bits, 2);
}

static uint32_t random_sign(uint64_t word) { return (uint32_t)(word >> 8 & 1) << 15; }

/* 16 levels have a deviation of 4.6 scales. Zero is not their middle; random signs of the scale even that out. */
static void fill_q4_0(synth_random *r, uint8_t *out, size_t blocks) {
    for (; blocks--; out += 18) {
        const uint64_t word = random_next(r);
        put_scale(out, 0x1c00 | random_sign(word), word); /* 2^-8 */
        random_bytes(r, out + 2, 2);
    }
}

static void fill_q5_0(synth_random *r, uint8_t *out, size_t blocks) {
    for (; blocks--; out += 22) {
        const uint64_t word = random_next(r);
        const uint32_t high = (uint32_t)(word >> 32);
        put_scale(out, 0x1800 | random_sign(word), word); /* 2^-9 */
        memcpy(out + 2, &high, 4);
        random_bytes(r, out + 6, 2);
    }
}

static void fill_q8_0(synth_random *r, uint8_t *out, size_t blocks) {
    for (; blocks--; out += 34) {
        put_scale(out, 0x0c00, random_next(r)); /* 2^-12 */
        random_bytes(r, out + 2, 4);
    }
}

/* Sub-block scales of 16 to 47 times d = 2^-13, and minima that cancel the mean: 8d · 15/16 · scale ≈ 7.5d · scale. */
static void fill_q4_k(synth_random *r, uint8_t *out, size_t blocks) {
    for (; blocks--; out += 144) {
        const uint64_t word = random_next(r), choice = random_next(r);
        uint32_t       scale[8], minimum[8];
        for (int i = 0; i < 8; i++) {
            scale[i] = 16 + (choice >> 8 * i & 31);
            minimum[i] = scale[i] - ((scale[i] + 8) >> 4);
        }
        put_scale(out, 0x0800, word);     /* 2^-13 */
        put_scale(out + 2, 0x1400, word); /* 2^-10 */
        for (int i = 0; i < 4; i++) {
            out[4 + i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
            out[8 + i] = (uint8_t)(minimum[i] | minimum[i + 4] >> 4 << 6);
            out[12 + i] = (uint8_t)((scale[i + 4] & 15) | (minimum[i + 4] & 15) << 4);
        }
        random_bytes(r, out + 16, 16);
    }
}

/* Sub-block scales of ±4 to ±11 times d = 2^-13. */
static void fill_q6_k(synth_random *r, uint8_t *out, size_t blocks) {
    for (; blocks--; out += 210) {
        const uint64_t word = random_next(r), choice = random_next(r);
        random_bytes(r, out, 24);
        for (int i = 0; i < 16; i++) {
            const int size = 4 + (int)(choice >> 4 * i & 7);
            out[192 + i] = (uint8_t)(choice >> (4 * i + 3) & 1 ? -size : size);
        }
        put_scale(out + 208, 0x0800, word);
    }
}

/* The p-quantile of a normal distribution with standard deviation 0.02, by bisection. */
static float normal_quantile(double p) {
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / 1.4142135623730951) < p) low = middle;
        else high = middle;
    }
    return (float)(0.02 * low);
}

/* Draws from 256 equally likely quantiles of a normal distribution. */
static void fill_halves(synth_random *r, uint8_t *out, size_t count, uint16_t (*convert)(float)) {
    uint16_t values[256];
    for (int i = 0; i < 256; i++) values[i] = convert(normal_quantile((i + 0.5) / 256));
    for (size_t i = 0; i < count; i += 4) {
        uint64_t     word = random_next(r);
        const size_t n = min_size(4, count - i);
        for (size_t j = 0; j < n; j++, word >>= 16) memcpy(out + 2 * (i + j), &values[word & 255], 2);
    }
}

static void fill_f16(synth_random *r, uint8_t *out, size_t count) { fill_halves(r, out, count, f32_to_f16); }
static void fill_bf16(synth_random *r, uint8_t *out, size_t count) { fill_halves(r, out, count, f32_to_bf16); }

static void fill_matrix(synth_random *r, quant_type type, uint8_t *out, size_t blocks) {
    static const struct {
        quant_type type;
        void (*fill)(synth_random *r, uint8_t *out, size_t blocks);
    } table[] = {
        { TYPE_F16, fill_f16 },   { TYPE_BF16, fill_bf16 }, { TYPE_Q4_0, fill_q4_0 }, { TYPE_Q5_0, fill_q5_0 },
        { TYPE_Q8_0, fill_q8_0 }, { TYPE_Q4_K, fill_q4_k }, { TYPE_Q6_K, fill_q6_k },
    };
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].type == type) table[i].fill(r, out, blocks);
}

/* ---- f32 tensors ---- */

/* Trained models damp the errors of rounding. Random ones do so only with the right norms and scales.
 *
 * - Queries and keys: scores have a deviation of 0.3² · √256 = 1.4, or 2 in full layers, so attention is a mean over many keys. With
 *   norms of 1 it is 16: attention picks single keys, small errors pick others, and ten layers later the result is another one.
 * - Branches: each adds half as much as an embedding has (0.02 · √width: 0.8 to 1.5), so neither drowns the other. The experts add
 *   half as much as the dense feed-forward beside them. Attention adds less: a mean over keys keeps what all tokens have in common,
 *   and if it added as much as the others, all tokens would be alike after ten layers and go to the same experts.
 * - Layer scales: of the residual's variance, about a twentieth is each layer's own, at any depth.
 * - Output norm: random signs, because the head is the table of embeddings. Without them, the residual's share of the token's own
 *   embedding would make that token the likeliest next one, and an answer would repeat it.
 * - Router: logits have a deviation of 2, alike for all experts. Every expert is used, and the busiest has two to three times the mean
 *   load. Of a token's eight experts, the first has a weight of about 0.4 and the last of 0.05: where rounding swaps the eighth for
 *   the ninth, little changes. Skewed: every tenth expert has logits with 3.6 times the deviation of the others, so that of 8 experts of 128, 4 are
 *   among these 13 on average.
 *
 * Full layers rotate only the first quarter of the pairs: the others get an infinite period. */
static float small_value(synth_random *r, synth_fill fill, uint64_t index) {
    switch (fill) {
    case FILL_ROPE: return index < 64 ? 1.0f : 1e30f;
    case FILL_QUERY_KEY_NORM: return (float)(0.27 + 0.06 * random_uniform(r));
    case FILL_ATTENTION_NORM: return (float)(0.135 + 0.03 * random_uniform(r));
    case FILL_BRANCH_NORM: return (float)(0.45 + 0.1 * random_uniform(r));
    case FILL_OUTPUT_NORM: return (float)((0.9 + 0.2 * random_uniform(r)) * (random_next(r) >> 63 ? -1 : 1));
    case FILL_LAYER_SCALE: return (float)(0.95 + 0.05 * random_uniform(r));
    case FILL_ROUTER:
    case FILL_SKEWED_ROUTER:
        return (float)((random_uniform(r) + random_uniform(r) + random_uniform(r) + random_uniform(r) - 2) * 3.4641016);
    case FILL_TABLE: return (float)(0.04 * random_uniform(r) - 0.02);
    case FILL_LEAST: return -64;
    case FILL_MOST: return 64;
    default: return (float)(0.9 + 0.2 * random_uniform(r));
    }
}

void synth_fill_data(synth_random *random, const synth_tensor *tensor, void *out, uint64_t first, uint64_t count) {
    if (tensor->fill == FILL_MATRIX) {
        fill_matrix(random, tensor->info.type, out, count / tensor->info.format->block);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        float value = small_value(random, tensor->fill, first + i);
        if (tensor->fill == FILL_SKEWED_ROUTER) value *= (first + i) / tensor->info.ne[0] % 10 ? 0.5f : 1.8f;
        memcpy((uint8_t *)out + 4 * i, &value, 4);
    }
}
