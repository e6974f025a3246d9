/* One dispatch as the plan sees it: which shader, made how, bound to what, over how many workgroups.
 *
 * What a job's C side (matmul.h and its like) hands out. `binds` names, in the order of the shader's binding numbers, what goes
 * there: words such as "x", "y" or "quants" that the job's header explains. The strings are constants of the program. */

#ifndef GM_GPU_KERNEL_H
#define GM_GPU_KERNEL_H

#include "gpu/host.h"
#include "gpu/shader.h"

enum { KERNEL_DEFINES = 32, KERNEL_CONSTANTS = 32, KERNEL_BINDS = 8, KERNEL_NUMBERS = 4 };

typedef struct {
    const char   *file;                    /* of wgsl/ */
    shader_define defines[KERNEL_DEFINES]; /* besides those of features, which every shader gets */
    size_t        define_count;
    gpu_constant  constants[KERNEL_CONSTANTS];
    size_t        constant_count;
    const char   *binds[KERNEL_BINDS];
    size_t        bind_count;
    uint32_t      x, y, z; /* workgroups */
    /* What differs from layer to layer, so that it must not be a constant of the pipeline: bound as "numbers", f32. */
    float  numbers[KERNEL_NUMBERS];
    size_t number_count;
} gpu_kernel;

#endif
