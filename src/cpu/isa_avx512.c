/* The kernels for AVX-512 (F, BW, VL, DQ, VNNI). */

#include "cpu/vec_avx512.h"

#define KERNELS      cpu_kernels_avx512
#define KERNELS_NAME "avx512"
#include "cpu/simd_table.h"
