/* Safetensors: the length of a header (u64), the header (a JSON object of tensors by name), and the tensors' bytes.
 *
 * The reader trusts nothing. It reads only the header; every offset and shape is checked against the file's length, and tensors
 * must lie one after the other, without gaps. */

#ifndef GM_SAFETENSORS_H
#define GM_SAFETENSORS_H

#include "base/arena.h"
#include "gguf/source.h"

enum { SAFETENSORS_DIMS = 8, SAFETENSORS_MOST_HEADER = 16 << 20 };

typedef struct {
    str      name;
    str      type; /* "F32"; may be a type that we do not know */
    uint32_t dims;
    uint64_t shape[SAFETENSORS_DIMS]; /* the last is contiguous */
    uint64_t offset, bytes;           /* in the file */
} safetensors_tensor;

typedef struct {
    arena               memory;
    safetensors_tensor *tensors; /* in the order of their data */
    size_t              count;
} safetensors; /* zero-initialise */

/* GM_AGAIN: bytes of the source are missing. */
gm_status safetensors_read(source *from, safetensors *out, error *e);
void      safetensors_free(safetensors *s);

#endif
