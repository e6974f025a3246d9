/* Decodes a picture, and reads every pixel of it. */

#ifndef GM_FUZZ_PICTURE_H
#define GM_FUZZ_PICTURE_H

#include "fuzz.h"
#include "media/picture.h"

static volatile uint32_t fuzz_picture_sum; /* keeps the compiler from leaving the reads out */

static inline void fuzz_picture(const uint8_t *data, size_t size) {
    picture         p = { 0 };
    error           e = { 0 };
    uint32_t        width = 0, height = 0;
    const bool      measured = picture_measure(data, size, &width, &height);
    const gm_status status = picture_decode(data, size, &p, &e);
    REQUIRE(!measured || (width && height));
    REQUIRE(status == GM_OK ? p.pixels && p.width && p.height : !p.pixels && e.why[0]);
    uint32_t sum = 0;
    for (size_t i = 0; i < (size_t)p.width * p.height * 3; i++) sum += p.pixels[i];
    fuzz_picture_sum = sum;
    picture_free(&p);
}

#endif
