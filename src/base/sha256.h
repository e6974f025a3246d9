/* SHA-256 (FIPS 180-4). */

#ifndef GM_SHA256_H
#define GM_SHA256_H

#include "base/base.h"

typedef struct {
    uint32_t state[8];
    uint64_t length;
    uint8_t  block[64];
} sha256;

void sha256_start(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t length);
void sha256_end(sha256 *s, uint8_t digest[32]);
void sha256_hex(const uint8_t digest[32], char hex[65]);

#endif
