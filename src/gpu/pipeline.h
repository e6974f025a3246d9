/* Turns kernels into pipelines, and writes command lists. */

#ifndef GM_GPU_PIPELINE_H
#define GM_GPU_PIPELINE_H

#include "gpu/kernel.h"

/* Appends the kernel's shader as preprocessed for a GPU with these features, without the guard of a kernel that has one. */
gm_status gpu_kernel_text(const gpu_info *info, const gpu_kernel *k, buffer *out, error *e);

/* Preprocesses the kernel's shader for this device and has it compiled (once: the host remembers it). 0 on failure. */
gpu_id gpu_kernel_pipeline(gpu_host *h, const gpu_kernel *k, error *e);

/* The same for the same shader and constants. */
uint64_t gpu_kernel_hash(const gpu_kernel *k);

/* Kernels that differ, in the order in which they are to be compiled. */
typedef struct {
    struct {
        uint64_t   hash;
        gpu_kernel kernel;
    }     *data;
    size_t count, capacity, started;
} gpu_kernel_list; /* zero-initialise */

gm_status gpu_kernel_list_add(gpu_kernel_list *l, const gpu_kernel *k, error *e);
/* Has them compiled in the background. GM_AGAIN: the deadline has passed, and some are left. */
gm_status gpu_kernel_list_compile(gpu_kernel_list *l, gpu_host *h, double deadline, error *e);
void      gpu_kernel_list_free(gpu_kernel_list *l);

typedef struct {
    uint32_t *data;
    size_t    count, capacity;
    bool      failed; /* no memory; stays set */
} gpu_words;          /* zero-initialise; free(data) */

void gpu_words_begin(gpu_words *w);
void gpu_words_dispatch(gpu_words *w, gpu_id pipeline, gpu_id group, uint32_t x, uint32_t y, uint32_t z);
void gpu_words_append(gpu_words *w, const uint32_t *records, size_t n); /* whole records of another list */
void gpu_words_copy(gpu_words *w, gpu_id source, uint64_t offset, gpu_id target, uint64_t target_offset,
                    uint64_t bytes);
void gpu_words_clear(gpu_words *w, gpu_id target, uint64_t offset, uint64_t bytes);
/* Returns where the data starts, so that a later run can change it. */
size_t gpu_words_write(gpu_words *w, gpu_id target, uint64_t offset, const uint32_t *words, size_t n);
/* Returns where the ticket is. */
size_t gpu_words_read(gpu_words *w, gpu_id source, uint64_t offset, uint64_t bytes);

#endif
