/* The tables of the instruction sets; each is compiled only for its processor family. */

#ifndef GM_CPU_ISA_H
#define GM_CPU_ISA_H

#include "cpu/kernels.h"

extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_neon, cpu_kernels_wasm;

#endif
