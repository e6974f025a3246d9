/* The integer arithmetic of the sampler: logits in units of 2^-16, weights in units of 2^-31, sums in 64 bits.
 *
 * Everything here is exact, in 32-bit words, 32 × 32 → 64 bit products and 64-bit sums, so that a language which has only
 * 32-bit integers can repeat it bit for bit. Parameters become integers once per draw, in double, on the host. */

#ifndef GM_SAMPLER_MATH_H
#define GM_SAMPLER_MATH_H

#include "base/base.h"

#include <math.h>
#include <string.h>

#define FIXED_LIMIT (1 << 30) /* logits are clamped to ±16384 */
#define FIXED_NEVER INT32_MIN /* −infinity: cannot be drawn */

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bool is_not_a_number(float value) { return (float_bits(value) & 0x7fffffff) > 0x7f800000; }

/* round(logit · 2^16), ties to even, clamped. Adding and subtracting 2^23 rounds exactly below 2^23 in the default rounding mode;
 * above it a float is whole. There are no branches and no comparisons of floats, which may trap, so compilers can vectorise this.
 * NaN becomes some number: the caller must check for it. */
static inline int32_t fixed_from_logit(float logit) {
    const uint32_t bits = float_bits(logit), absolute = bits & 0x7fffffff;
    const uint32_t clamped = absolute < 0x46800000 ? absolute : 0x46800000; /* 2^14 */
    const float    x = float_from_bits(clamped) * 65536.0f;
    const float rounder = float_from_bits(clamped < 0x43000000 ? 0x4b000000 : 0); /* below 2^7, where x is 2^23: 2^23 */
    const int32_t size = (int32_t)((x + rounder) - rounder);
    const int32_t sign = -(int32_t)(bits >> 31), never = -(int32_t)(bits == 0xff800000);
    return (((size ^ sign) - sign) & ~never) | (FIXED_NEVER & never);
}

/* A finite parameter in the same units; the ranges of sampling_check keep it far inside 32 bits. */
static inline int32_t fixed_from_parameter(float value) { return (int32_t)nearbyint((double)value * 65536); }

static inline int32_t fixed_clamp(int64_t value) {
    return value > FIXED_LIMIT ? FIXED_LIMIT : value < -FIXED_LIMIT ? -FIXED_LIMIT : (int32_t)value;
}

/* value · factor / 2^24, rounded to nearest, halves away from zero. */
static inline int32_t fixed_scale(int32_t value, uint32_t factor) {
    const uint64_t magnitude = ((uint64_t)(uint32_t)(value < 0 ? -value : value) * factor + (1u << 23)) >> 24;
    return fixed_clamp(value < 0 ? -(int64_t)magnitude : (int64_t)magnitude);
}

/* log2(e) / temperature · 2 = factor / 2^shift, with 32 significant bits: turns a distance in units of 2^-16 into an
 * exponent of two in units of 2^-17. */
typedef struct {
    uint32_t factor, shift;
} exponent_scale;

static inline exponent_scale exponent_scale_of(double temperature) {
    int          exponent;
    const double mantissa = frexp(1.4426950408889634 * 2 / temperature, &exponent); /* in [½, 1) */
    if (exponent > 32) return (exponent_scale){ UINT32_MAX, 0 }; /* so cold that every other token has weight 0 */
    const double factor = nearbyint(ldexp(mantissa, 32));
    return (exponent_scale){ factor > 4294967295.0 ? UINT32_MAX : (uint32_t)factor, (uint32_t)(32 - exponent) };
}

/* round(2^31 · 2^(-i/256)) */
static const uint32_t exp2_table[257] = {
    0x80000000u, 0x7fa765adu, 0x7f4f08aeu, 0x7ef6e8dau, 0x7e9f0606u, 0x7e476009u, 0x7deff6b6u, 0x7d98c9e6u, 0x7d41d96eu,
    0x7ceb2523u, 0x7c94acdeu, 0x7c3e7073u, 0x7be86fbau, 0x7b92aa88u, 0x7b3d20b6u, 0x7ae7d21au, 0x7a92be8bu, 0x7a3de5dfu,
    0x79e947efu, 0x7994e492u, 0x7940bb9eu, 0x78ecccecu, 0x78991854u, 0x78459dacu, 0x77f25cceu, 0x779f5590u, 0x774c87ccu,
    0x76f9f359u, 0x76a7980fu, 0x765575c8u, 0x76038c5bu, 0x75b1dba2u, 0x75606374u, 0x750f23abu, 0x74be1c20u, 0x746d4cacu,
    0x741cb528u, 0x73cc556du, 0x737c2d55u, 0x732c3cbau, 0x72dc8374u, 0x728d015du, 0x723db650u, 0x71eea226u, 0x719fc4b9u,
    0x71511de4u, 0x7102ad80u, 0x70b47368u, 0x70666f76u, 0x7018a185u, 0x6fcb096fu, 0x6f7da710u, 0x6f307a41u, 0x6ee382deu,
    0x6e96c0c3u, 0x6e4a33c9u, 0x6dfddbccu, 0x6db1b8a8u, 0x6d65ca38u, 0x6d1a1057u, 0x6cce8ae1u, 0x6c8339b2u, 0x6c381ca6u,
    0x6bed3399u, 0x6ba27e65u, 0x6b57fce9u, 0x6b0daeffu, 0x6ac39485u, 0x6a79ad56u, 0x6a2ff94fu, 0x69e6784du, 0x699d2a2cu,
    0x69540ec9u, 0x690b2601u, 0x68c26fb1u, 0x6879ebb6u, 0x683199edu, 0x67e97a34u, 0x67a18c68u, 0x6759d065u, 0x6712460bu,
    0x66caed35u, 0x6683c5c3u, 0x663ccf92u, 0x65f60a7fu, 0x65af766au, 0x6569132fu, 0x6522e0adu, 0x64dcdec3u, 0x64970d4fu,
    0x64516c2eu, 0x640bfb41u, 0x63c6ba64u, 0x6381a978u, 0x633cc85bu, 0x62f816ebu, 0x62b39509u, 0x626f4292u, 0x622b1f66u,
    0x61e72b65u, 0x61a3666du, 0x615fd05eu, 0x611c6919u, 0x60d9307bu, 0x60962665u, 0x60534ab7u, 0x60109d51u, 0x5fce1e12u,
    0x5f8bccdbu, 0x5f49a98cu, 0x5f07b405u, 0x5ec5ec26u, 0x5e8451d0u, 0x5e42e4e3u, 0x5e01a53fu, 0x5dc092c7u, 0x5d7fad59u,
    0x5d3ef4d7u, 0x5cfe6923u, 0x5cbe0a1cu, 0x5c7dd7a4u, 0x5c3dd19cu, 0x5bfdf7e5u, 0x5bbe4a61u, 0x5b7ec8f2u, 0x5b3f7377u,
    0x5b0049d4u, 0x5ac14beau, 0x5a82799au, 0x5a43d2c6u, 0x5a055751u, 0x59c7071cu, 0x5988e209u, 0x594ae7fbu, 0x590d18d3u,
    0x58cf7474u, 0x5891fac1u, 0x5854ab9bu, 0x581786e6u, 0x57da8c83u, 0x579dbc57u, 0x57611642u, 0x57249a29u, 0x56e847efu,
    0x56ac1f75u, 0x567020a0u, 0x56344b52u, 0x55f89f70u, 0x55bd1cdbu, 0x5581c378u, 0x55469329u, 0x550b8bd4u, 0x54d0ad5au,
    0x5495f7a1u, 0x545b6a8bu, 0x542105fdu, 0x53e6c9dau, 0x53acb607u, 0x5372ca68u, 0x533906e0u, 0x52ff6b55u, 0x52c5f7aau,
    0x528cabc3u, 0x52538786u, 0x521a8ad7u, 0x51e1b59au, 0x51a907b4u, 0x5170810bu, 0x51382182u, 0x50ffe8feu, 0x50c7d765u,
    0x508fec9cu, 0x50582888u, 0x50208b0eu, 0x4fe91413u, 0x4fb1c37cu, 0x4f7a9930u, 0x4f439514u, 0x4f0cb70cu, 0x4ed5ff00u,
    0x4e9f6cd4u, 0x4e69006eu, 0x4e32b9b4u, 0x4dfc988cu, 0x4dc69cddu, 0x4d90c68bu, 0x4d5b157eu, 0x4d25899cu, 0x4cf022cau,
    0x4cbae0efu, 0x4c85c3f1u, 0x4c50cbb8u, 0x4c1bf829u, 0x4be7492bu, 0x4bb2bea5u, 0x4b7e587eu, 0x4b4a169cu, 0x4b15f8e6u,
    0x4ae1ff43u, 0x4aae299bu, 0x4a7a77d4u, 0x4a46e9d6u, 0x4a137f88u, 0x49e038d0u, 0x49ad1598u, 0x497a15c4u, 0x4947393fu,
    0x49147feeu, 0x48e1e9bau, 0x48af768au, 0x487d2646u, 0x484af8d6u, 0x4818ee22u, 0x47e70611u, 0x47b5408cu, 0x47839d7bu,
    0x47521cc6u, 0x4720be55u, 0x46ef8210u, 0x46be67e0u, 0x468d6faeu, 0x465c9961u, 0x462be4e2u, 0x45fb521au, 0x45cae0f2u,
    0x459a9152u, 0x456a6323u, 0x453a564du, 0x450a6abbu, 0x44daa054u, 0x44aaf702u, 0x447b6eadu, 0x444c0740u, 0x441cc0a3u,
    0x43ed9ac0u, 0x43be957fu, 0x438fb0cbu, 0x4360ec8du, 0x433248aeu, 0x4303c518u, 0x42d561b4u, 0x42a71e6cu, 0x4278fb2bu,
    0x424af7dau, 0x421d1462u, 0x41ef50aeu, 0x41c1aca7u, 0x41942839u, 0x4166c34cu, 0x41397dccu, 0x410c57a2u, 0x40df50b8u,
    0x40b268fau, 0x4085a051u, 0x4058f6a8u, 0x402c6be9u, 0x40000000u,
};

/* 2^31 · exp(-distance / temperature): the table for the eight highest bits of the fraction, a straight line between its
 * entries for the other nine, a shift for the whole part. Off by less than 1e-5 of the value, or one unit. 0 below 2^-32. */
static inline uint32_t weight_of(uint32_t distance, exponent_scale scale) {
    const uint64_t exponent = (uint64_t)distance * scale.factor >> scale.shift;
    if (exponent >= 32u << 17) return 0;
    const uint32_t whole = (uint32_t)exponent >> 17, index = (uint32_t)exponent >> 9 & 255,
                   part = (uint32_t)exponent & 511;
    const uint32_t value = exp2_table[index] - (((exp2_table[index] - exp2_table[index + 1]) * part + 256) >> 9);
    return whole ? (value + (1u << (whole - 1))) >> whole : value;
}

/* A probability below 1 in units of 2^-32. */
static inline uint32_t share_from_probability(float p) { return (uint32_t)nearbyint((double)p * 4294967296.0); }

/* The least whole number that is at least share / 2^32 of the sum, and at least 1. */
static inline uint64_t share_of(uint32_t share, uint64_t sum) {
    const uint64_t low = (sum & UINT32_MAX) * share;
    const uint64_t part = (sum >> 32) * share + (low >> 32) + ((low & UINT32_MAX) != 0);
    return part ? part : 1;
}

/* a · b / 2^64, rounded down. */
static inline uint64_t multiply_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = a & UINT32_MAX, a1 = a >> 32, b0 = b & UINT32_MAX, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), cross = a0 * b1 + (middle & UINT32_MAX);
    return a1 * b1 + (middle >> 32) + (cross >> 32);
}

#endif
