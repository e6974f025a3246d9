/* Text ↔ double without the C library's locale.
 *
 * Reading is exact: the digits are kept as a decimal number which is halved or doubled until it lies in [1/2, 1); the count
 * of steps is the exponent, and 53 more doublings bring the fraction in front of the point, to be rounded once. */

#include "base/decimal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Halfway cases of doubles have at most 767 digits. Digits after the 800th only matter as "not zero". */
enum { DIGITS = 800, MOST_SHIFT = 56 };

/* 0.d0 d1 d2 … · 10^point */
typedef struct {
    uint8_t digits[DIGITS + 20];
    int     count, point;
    bool    more; /* dropped digits were not all 0 */
} decimal;

static void decimal_trim(decimal *d) {
    for (; d->count > DIGITS; d->count--) d->more |= d->digits[d->count - 1] != 0;
    while (d->count && !d->digits[d->count - 1]) d->count--;
    if (!d->count) d->point = 0;
}

/* d · 2^shift */
static void decimal_double(decimal *d, int shift) {
    uint8_t  reversed[DIGITS + 20];
    int      count = 0;
    uint64_t carry = 0;
    for (int i = d->count - 1; i >= 0 || carry; i--) {
        if (i >= 0) carry += (uint64_t)d->digits[i] << shift;
        reversed[count++] = (uint8_t)(carry % 10);
        carry /= 10;
    }
    d->point += count - d->count;
    d->count = count;
    for (int i = 0; i < count; i++) d->digits[i] = reversed[count - 1 - i];
    decimal_trim(d);
}

/* d / 2^shift: long division; leading zeros of the quotient only move the point. */
static void decimal_halve(decimal *d, int shift) {
    uint64_t rest = 0;
    int      count = 0;
    for (int i = 0; i < d->count || rest; i++) {
        rest = rest * 10 + (i < d->count ? d->digits[i] : 0);
        uint8_t digit = (uint8_t)(rest >> shift);
        rest &= ((uint64_t)1 << shift) - 1;
        if (!count && !digit) d->point--;
        else if (count < DIGITS) d->digits[count++] = digit;
        else d->more |= digit != 0;
    }
    d->count = count;
    decimal_trim(d);
}

/* The number before the point, to nearest, ties to even. */
static uint64_t decimal_round(const decimal *d) {
    uint64_t n = 0;
    for (int i = 0; i < d->point; i++) n = n * 10 + (i < d->count ? d->digits[i] : 0);
    if (d->point < 0 || d->point >= d->count) return n;
    bool half = d->digits[d->point] == 5 && d->point + 1 == d->count && !d->more;
    return n + (half ? n & 1 : d->digits[d->point] >= 5);
}

static double decimal_value(decimal *d) {
    if (!d->count || d->point < -330) return 0;
    if (d->point > 310) return HUGE_VAL;
    int exponent = 0;
    while (d->point > 0) {
        int shift = d->point < 18 ? 3 * d->point : MOST_SHIFT; /* 2^(3p) < 10^p, so the value stays above 1/10 */
        decimal_halve(d, shift);
        exponent += shift;
    }
    while (d->point < 0 || d->digits[0] < 5) { /* below 10^p: times 8^-p is still below 1 */
        int shift = d->point <= -18 ? MOST_SHIFT - 3 : d->point < 0 ? -3 * d->point : 1;
        decimal_double(d, shift);
        exponent -= shift;
    }
    /* Subnormals have fewer bits in front of the point: the smallest is 2^-1074. */
    int bits = exponent - 53 < -1074 ? exponent + 1074 : 53;
    if (bits < 0) return 0;
    if (bits) decimal_double(d, bits);
    return ldexp((double)decimal_round(d), exponent - bits);
}

/* Up to 2^53 over a power of ten that is exact itself: one division or multiplication rounds once. */
static bool decimal_fast(const decimal *d, double *out) {
    static const double powers[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    int                 exponent = d->point - d->count;
    if (d->count > 15 || exponent < -22 || exponent > 22) return false;
    uint64_t n = 0;
    for (int i = 0; i < d->count; i++) n = n * 10 + d->digits[i];
    *out = exponent < 0 ? (double)n / powers[-exponent] : (double)n * powers[exponent];
    return true;
}

static bool digit_at(const char *at, const char *end) { return at < end && *at >= '0' && *at <= '9'; }

/* Takes digits into d; leading zeros only move the point. */
static const char *take_digits(decimal *d, const char *at, const char *end, bool fraction, int64_t *point) {
    for (; digit_at(at, end); at++) {
        if (d->count || *at != '0') {
            if (d->count < DIGITS) d->digits[d->count++] = (uint8_t)(*at - '0');
            else d->more |= *at != '0';
            if (!fraction) ++*point;
        } else if (fraction) {
            --*point;
        }
    }
    return at;
}

bool decimal_parse(str text, double *out) {
    const char *at = text.data, *end = text.data + text.length;
    bool        negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    decimal     d = { .count = 0 };
    int64_t     point = 0, exponent = 0;
    const char *start = at;
    at = take_digits(&d, at, end, false, &point);
    size_t seen = (size_t)(at - start);
    if (at < end && *at == '.') {
        start = ++at;
        at = take_digits(&d, at, end, true, &point);
        seen += (size_t)(at - start);
    }
    if (!seen) return false;
    if (at < end && (*at == 'e' || *at == 'E')) {
        bool down = ++at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (!digit_at(at, end)) return false;
        for (; digit_at(at, end); at++) exponent = exponent < 1000000000000 ? exponent * 10 + (*at - '0') : exponent;
        if (down) exponent = -exponent;
    }
    if (at != end) return false;
    point += exponent;
    d.point = point > 100000 ? 100000 : point < -100000 ? -100000 : (int)point;
    decimal_trim(&d);
    double value;
    if (!decimal_fast(&d, &value)) value = decimal_value(&d);
    *out = negative ? -value : value;
    return true;
}

/* "123" and exponent 1 (for 1.23e1) → "12.3"; far from 1 in the way of JavaScript: 1e21, 1e-7. */
static size_t place_point(char *out, const char *digits, int count, int exponent) {
    char *at = out;
    if (exponent < -7 || exponent >= 21) {
        *at++ = digits[0];
        if (count > 1) *at++ = '.';
        for (int i = 1; i < count; i++) *at++ = digits[i];
        return (size_t)(at - out) + (size_t)sprintf(at, "e%d", exponent);
    }
    if (exponent < 0) {
        *at++ = '0';
        *at++ = '.';
        for (int i = exponent + 1; i < 0; i++) *at++ = '0';
    }
    for (int i = 0; i < count || i <= exponent; i++) {
        if (i && i == exponent + 1) *at++ = '.';
        *at++ = i < count ? digits[i] : '0';
    }
    *at = 0;
    return (size_t)(at - out);
}

size_t decimal_print(double value, char out[32]) {
    size_t sign = signbit(value) ? 1 : 0, length = 0;
    double magnitude = fabs(value), back = 0;
    out[0] = '-';
    /* Every number of 15 digits survives a round trip through a normal double. So if 15 digits suffice, they are the shortest. */
    for (int precision = magnitude < 0x1p-1022 ? 1 : 15; precision <= 17; precision++) {
        char text[48], digits[24] = "0";
        int  count = 0, exponent = 0;
        snprintf(text, sizeof text, "%.*e", precision - 1, magnitude);
        const char *at = text;
        for (; *at && *at != 'e'; at++) { /* skips the point, whatever the locale makes it */
            if (*at >= '0' && *at <= '9' && count < 17) digits[count++] = *at;
        }
        bool down = at[0] && at[1] == '-';
        for (at += at[0] ? 2 : 0; *at; at++) exponent = exponent * 10 + (*at - '0');
        if (down) exponent = -exponent;
        while (count > 1 && digits[count - 1] == '0') count--;
        length = place_point(out + sign, digits, count, exponent);
        if (decimal_parse((str){ out + sign, length }, &back) && back == magnitude) break;
    }
    return sign + length;
}
