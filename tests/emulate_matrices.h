/* Subgroup matrices for a GPU that has none, so that their kernels can be tested on one in software. */

#ifndef GM_EMULATE_MATRICES_H
#define GM_EMULATE_MATRICES_H

#include "base/buffer.h"

/* Whether $EMULATE_MATRICES (8 or 16, their size) asks for them: the host then claims to have them, and subgroups of 32 threads. */
bool emulate_matrices(void);

/* Appends a shader's text with functions in the place of the built-in ones. Every thread of a subgroup computes whole matrices. */
void emulate_matrices_in(const char *wgsl, buffer *out);

#endif
