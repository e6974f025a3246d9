/* The kernels for AArch64. */

#include "cpu/vec_neon.h"

#define KERNELS cpu_kernels_neon
#define KERNELS_NAME "neon"
#include "cpu/simd_table.h"
