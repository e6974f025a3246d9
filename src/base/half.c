/* Conversions on the bits: the same on every machine, whatever its floating-point modes. */

#include "base/half.h"

#include <string.h>

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* f16 is 1 sign, 5 exponent (bias 15), 10 fraction bits; f32 has 8 (bias 127) and 23. */
float f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* zero or subnormal: exact */
    return sign ? -magnitude : magnitude;
}

/* Drops `shift` low bits, to nearest, ties to even. */
static uint32_t round_shift(uint32_t value, uint32_t shift) {
    uint32_t kept = value >> shift, rest = value & ((1u << shift) - 1), half = 1u << (shift - 1);
    return kept + (rest > half || (rest == half && (kept & 1)));
}

uint16_t f32_to_f16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff)); /* NaN, made quiet */
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);                            /* 2^16 and more */
    if (magnitude >= 0x38800000) { /* normal from 2^-14; rounding up may carry into the exponent, up to infinity */
        return (uint16_t)(sign | round_shift(magnitude - (112u << 23), 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below 2^-25: zero */
    return (uint16_t)(sign | round_shift((magnitude & 0x7fffff) | 0x800000, 126 - exponent));
}

float bf16_to_f32(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t f32_to_bf16(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)round_shift(bits, 16);
}
