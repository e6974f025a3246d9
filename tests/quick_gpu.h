/* For tests that are linked with quick_gpu.c and no_self_check.c, which say more. */

#ifndef GM_QUICK_GPU_H
#define GM_QUICK_GPU_H

#include "gpu/host.h"

extern bool quick_gpu_checks; /* whether an engine checks its GPU when it opens; false unless a test sets it */
extern bool
    quick_gpu_hardware; /* whether hosts claim to be hardware: kernels then divide their work as on a real GPU */
extern void (*quick_gpu_alter)(
    gpu_options *); /* called with the options for a host, before one is looked for or opened */

#endif
