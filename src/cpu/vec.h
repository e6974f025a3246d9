/* Shared by all vocabularies of the vector kernels. A vocabulary (vec_avx2.h, vec_avx512.h, vec_neon.h, vec_wasm.h) defines the
 * types f32x8 (8 floats), i32x8 (8 integers), b32 (32 bytes), wide_f and wide_i (WIDE floats or integers: one register, the rows of
 * a panel) and small functions on them. The kernels in simd_*.h are written once, with these. */

#ifndef GM_CPU_VEC_H
#define GM_CPU_VEC_H

#include "base/base.h"

#include <string.h>

/* Kernels consist of functions that take constants (a format, a tile size) and must be inlined for them to fold. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline, unused))
#else
#define INLINE static inline
#endif

/* Unrolls loops over registers, except under gcc's sanitizers, where compiling would take minutes. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

/* Prefetches the cache line at any address, valid or not: to be read once and soon, or a little later from the second-level
 * cache. */
#if defined(__GNUC__)
INLINE void prefetch_once(uintptr_t address) { __builtin_prefetch((const void *)address, 0, 0); }
INLINE void prefetch_later(uintptr_t address) { __builtin_prefetch((const void *)address, 0, 2); }
#else
INLINE void prefetch_once(uintptr_t address) { (void)address; }
INLINE void prefetch_later(uintptr_t address) { (void)address; }
#endif

INLINE uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint64_t load_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
