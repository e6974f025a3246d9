#include "base/base64.h"

/* -1: not a digit. */
static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

bool base64_decode(str text, void *out, size_t *size) {
    uint8_t *to = out;
    uint32_t bits = 0, digits = 0, padding = 0;
    size_t   n = 0;
    for (size_t i = 0; i < text.length; i++) {
        const char c = text.data[i];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
        const int digit = base64_digit(c);
        if (c == '=') padding++;
        if ((digit < 0 && c != '=') || (padding && c != '=') || padding > 2) {
            *size = i;
            return false;
        }
        if (c == '=') continue;
        bits = bits << 6 | (uint32_t)digit;
        if (++digits % 4 == 0) {
            to[n++] = (uint8_t)(bits >> 16), to[n++] = (uint8_t)(bits >> 8), to[n++] = (uint8_t)bits;
        }
    }
    const uint32_t rest = digits % 4;
    *size = text.length;
    if (rest == 1 || (padding && (rest + padding) % 4)) return false;
    if (rest >= 2) to[n++] = (uint8_t)(bits >> (rest == 2 ? 4 : 10));
    if (rest == 3) to[n++] = (uint8_t)(bits >> 2);
    *size = n;
    return true;
}
