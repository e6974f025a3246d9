/* Values as blocks of a format: for weights that were changed. Every type that weights can have. */

#ifndef GM_CPU_QUANTISE_H
#define GM_CPU_QUANTISE_H

#include "gguf/quant.h"

bool quantise_known(quant_type type);

/* Writes `blocks` blocks. `old` has blocks of the same type whose values were near: their scales are kept where the new values
 * lie within their range, so that values that did not change keep their bits, and others are rounded on the same grid. NULL: the
 * scales are chosen anew. */
void quantise_blocks(quant_type type, uint8_t *out, const float *values, const uint8_t *old, size_t blocks);

#endif
