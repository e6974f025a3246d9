/* The table of one instruction set: included by isa_*.c after the vocabulary, with KERNELS and KERNELS_NAME defined. */

#include "cpu/isa.h"
#include "cpu/simd_attention.h"
#include "cpu/simd_matmul_f32.h"
#include "cpu/simd_panels.h"
#include "cpu/simd_rows.h"

const cpu_kernels KERNELS = {
    .name = KERNELS_NAME,
    .rms_norm = simd_rms_norm,
    .rms_norm_back = simd_rms_norm_back,
    .layer_norm = simd_layer_norm,
    .add = simd_add,
    .mul = simd_mul,
    .clamp = simd_clamp,
    .scale = simd_scale,
    .geglu = simd_geglu,
    .geglu_back = simd_geglu_back,
    .gate = simd_gate,
    .softcap = simd_softcap,
    .add_scaled = simd_add_scaled,
    .add_rows = simd_add_rows,
    .rope = simd_rope,
    .quantise = simd_quantise,
    .store = simd_store,
    .load_row = simd_load_row,
    .matmul_q8 = simd_matmul_q8,
    .matmul_f32 = simd_matmul_f32,
    .row_multiple = 32,
    .attention_tasks = simd_attention_tasks,
    .attention = simd_attention,
};
