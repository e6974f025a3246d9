/* Fills in a gpu_kernel. If something does not fit, that is a bug of ours: it is dropped, and creating the pipeline
 * fails. */

#ifndef GM_GPU_KERNEL_BUILD_H
#define GM_GPU_KERNEL_BUILD_H

#include "gpu/kernel.h"

/* The value of a define that switches something on or off. */
static inline const char *kernel_flag(bool on) { return on ? "1" : "0"; }

static inline void kernel_define(gpu_kernel *k, const char *name, const char *value) {
    if (k->define_count < KERNEL_DEFINES) k->defines[k->define_count++] = (shader_define){ name, value };
}

static inline void kernel_constant(gpu_kernel *k, const char *name, double value) {
    if (k->constant_count < KERNEL_CONSTANTS) k->constants[k->constant_count++] = (gpu_constant){ name, value };
}

static inline void kernel_bind(gpu_kernel *k, int range) {
    if (k->bind_count < KERNEL_BINDS) k->binds[k->bind_count++] = (uint8_t)range;
}

static inline void kernel_number(gpu_kernel *k, float value) {
    if (k->number_count < KERNEL_NUMBERS) k->numbers[k->number_count++] = value;
}

/* How many pieces of `by` are needed for n. */
static inline uint32_t rounded_up(uint64_t n, uint64_t by) { return (uint32_t)((n + by - 1) / by); }

/* Spreads so many workgroups over x and y (a few more, if one dimension cannot hold them). */
static inline void kernel_spread(gpu_kernel *k, const gpu_info *info, uint32_t groups) {
    const uint32_t most = info->max_workgroups ? info->max_workgroups : 65535;
    k->y = groups > most ? (groups + most - 1) / most : 1;
    k->x = (groups + k->y - 1) / k->y;
    k->z = 1;
}

#endif
