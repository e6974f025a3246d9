/* One dispatch: a shader with its defines and constants, what it binds, and the number of workgroups.
 *
 * The functions that choose kernels (matmul.h and others) fill this in. `binds` says what each of the shader's bindings
 * is, as an index into a table of ranges that whoever dispatches fills in: a plan (plan_binds.h) or the sampler
 * (sampler_kernels.h). All strings are constants of the program. */

#ifndef GM_GPU_KERNEL_H
#define GM_GPU_KERNEL_H

#include "gpu/host.h"
#include "gpu/shader.h"

enum { KERNEL_DEFINES = 40, KERNEL_CONSTANTS = 40, KERNEL_BINDS = 11, KERNEL_NUMBERS = 8 };

typedef struct {
    const char   *file;                    /* in wgsl/ */
    shader_define defines[KERNEL_DEFINES]; /* besides those of features, which every shader gets */
    size_t        define_count;
    gpu_constant  constants[KERNEL_CONSTANTS];
    size_t        constant_count;
    uint8_t       binds[KERNEL_BINDS]; /* at most 8 of them storage, the others uniform */
    size_t        bind_count;
    uint32_t      x, y, z; /* workgroups */
    /* Attention: a workgroup in y handles a tile of queries, which never crosses the end of a span, so each run counts
     * anew how many there are. A token has token_queries of them. 0: y is the same for every run. */
    uint32_t tile_queries, token_queries;
    /* Values that differ between layers, so they must not be constants of the pipeline: bound as BIND_NUMBERS, f32. */
    float  numbers[KERNEL_NUMBERS];
    size_t number_count;
    /* Its last binding is the header of a run, as a uniform: with 0 tokens, the kernel does nothing. */
    bool guarded;
} gpu_kernel;

#endif
