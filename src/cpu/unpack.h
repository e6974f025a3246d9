/* Quantised weights as small integers, for products with 8-bit activations.
 *
 * Every format is w = scale · q + offset, with one scale and offset for each 16 values at most. */

#ifndef GM_CPU_UNPACK_H
#define GM_CPU_UNPACK_H

#include "gguf/quant.h"

enum { UNPACK_MOST = 256 }; /* the longest block */

typedef struct {
    int16_t q[UNPACK_MOST];
    float   scale[UNPACK_MOST / 16];
    float   offset[UNPACK_MOST / 16];
} unpacked_block;

typedef void (*unpack_function)(unpacked_block *out, const uint8_t *block);

/* Unpacks one block; NULL for types that are not quantised. */
unpack_function unpack_of(quant_type type);

#endif
