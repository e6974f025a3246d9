/* The kernels for AVX-512 (F, BW, VL, DQ, VNNI). */

#include "cpu/vec_avx512.h"

#include "cpu/avx512_q4_k.h"
#include "cpu/avx512_q6_k.h"

#define SPECIAL_FEW_COLUMNS [TYPE_Q4_K] = q4_k_few_columns, [TYPE_Q6_K] = q6_k_few_columns

#define KERNELS cpu_kernels_avx512
#define KERNELS_NAME "avx512"
#include "cpu/simd_table.h"
