/* Finds the kernel tables that this machine can run: the build decides which are compiled in (one isa_*.c per instruction set of
 * the processor family), and the processor says which of them it supports. */

#include "cpu/isa.h"

#include <string.h>

#if defined(__x86_64__)

static bool runs_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* Not every compiler can ask for f16c. Every processor with AVX2 and FMA has it. */
static bool runs_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static const cpu_kernels *const with_avx512[] = { &cpu_kernels_avx512, &cpu_kernels_avx2, &cpu_kernels_scalar };

size_t cpu_kernels_available(const cpu_kernels *const **list) {
    const size_t skipped = runs_avx512() ? 0 : runs_avx2() ? 1 : 2;
    *list = with_avx512 + skipped;
    return COUNT_OF(with_avx512) - skipped;
}

#else

static const cpu_kernels *const compiled[] = {
#if defined(__aarch64__)
    &cpu_kernels_neon,
#elif defined(__wasm_simd128__)
    &cpu_kernels_wasm,
#endif
    &cpu_kernels_scalar,
};

size_t cpu_kernels_available(const cpu_kernels *const **list) {
    *list = compiled;
    return COUNT_OF(compiled);
}

#endif

const cpu_kernels *cpu_kernels_best(void) {
    const cpu_kernels *const *list;
    cpu_kernels_available(&list);
    return list[0];
}

const cpu_kernels *cpu_kernels_by_name(const char *name) {
    const cpu_kernels *const *list;
    const size_t              count = cpu_kernels_available(&list);
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}
