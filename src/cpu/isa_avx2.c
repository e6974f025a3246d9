/* The kernels for AVX2, FMA and F16C. */

#include "cpu/vec_avx2.h"

#define KERNELS cpu_kernels_avx2
#define KERNELS_NAME "avx2"
#include "cpu/simd_table.h"
