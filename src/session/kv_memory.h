/* Rows of keys or values, in main memory or on the GPU. Offsets and sizes on the GPU are multiples of 4. */

#ifndef GM_KV_MEMORY_H
#define GM_KV_MEMORY_H

#include "gpu/host.h"

typedef struct {
    uint8_t *host; /* one of the two, or neither */
    gpu_id   device;
} kv_memory;

/* `gpu` NULL means main memory, here and below. */
gm_status kv_memory_new(gpu_host *gpu, uint64_t bytes, kv_memory *out, error *e);
void      kv_memory_free(gpu_host *gpu, kv_memory *m);
bool      kv_memory_there(const kv_memory *m);
gm_status kv_memory_copy(gpu_host *gpu, const kv_memory *to, uint64_t to_offset, const kv_memory *from,
                         uint64_t from_offset, uint64_t bytes, error *e);
/* GM_AGAIN: too much is in flight, and nothing was written. */
gm_status kv_memory_write(gpu_host *gpu, const kv_memory *to, uint64_t offset, const void *data, uint64_t bytes,
                          error *e);
/* GM_AGAIN while the bytes are on their way from the GPU: call again with the same arguments. `*ticket` starts as 0; a caller
 * that gives up returns it with gpu_ticket_done. */
gm_status kv_memory_read(gpu_host *gpu, const kv_memory *from, uint64_t offset, void *data, uint64_t bytes,
                         uint32_t *ticket, error *e);

/* Moves rows within one memory: on a GPU by a kernel, or, while that is being compiled, by way of another buffer. */
typedef struct {
    gpu_host *gpu;
    gpu_id    pipeline, numbers;
} kv_mover; /* zero-initialise for main memory */

gm_status kv_mover_open(kv_mover *m, gpu_host *gpu, error *e);
void      kv_mover_close(kv_mover *m);
/* Rows [from, from + count) of `row` bytes go to [to, to + count). The ranges may overlap. `bytes` is the size of the memory. */
gm_status kv_mover_move(const kv_mover *m, const kv_memory *rows, uint64_t bytes, size_t row, size_t from, size_t to,
                        size_t count, error *e);

#endif
