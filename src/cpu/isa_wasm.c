/* The kernels for wasm with SIMD128. */

#include "cpu/vec_wasm.h"

#define KERNELS cpu_kernels_wasm
#define KERNELS_NAME "wasm"
#define SHARE_KERNELS /* smaller code: the module is downloaded */
#include "cpu/simd_table.h"
