/* The block formats that weights are stored in, as one table. */

#ifndef GM_QUANT_H
#define GM_QUANT_H

#include "base/base.h"

/* Numbers are those of the file format. */
typedef enum {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ4_NL = 20,
    TYPE_IQ4_XS = 23,
    TYPE_I8 = 24,
    TYPE_I16 = 25,
    TYPE_I32 = 26,
    TYPE_I64 = 27,
    TYPE_F64 = 28,
    TYPE_BF16 = 30,
    TYPE_MXFP4 = 39,
    TYPE_COUNT = 40,
} quant_type;

typedef struct {
    const char *name;
    uint32_t    block; /* elements in a block */
    uint32_t    bytes; /* bytes of a block */
    /* The exact f32 values of `blocks` blocks; NULL for the integer types and F64, which weights cannot have. */
    void (*dequantise)(float *out, const void *in, size_t blocks);
} quant_format;

/* NULL if we do not read this type. */
const quant_format *quant_format_of(uint32_t type);
/* Bytes of a row of n elements; n must be a multiple of the block. */
static inline uint64_t quant_row_bytes(const quant_format *f, uint64_t n) { return n / f->block * f->bytes; }

/* The index of the first block with a NaN or an infinity; `blocks` if all are finite. Looks only at scales (and at every value
 * of the float types), so it is about as fast as reading. */
uint64_t quant_first_broken(quant_type type, const void *data, uint64_t blocks);

/* Value tables of the formats that have one. */
extern const int8_t quant_iq4_values[16];
extern const int8_t quant_mxfp4_values[16]; /* twice the e2m1 value */

#endif
