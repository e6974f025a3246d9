/* The functions of the scalar table that other files use too. */

#ifndef GM_CPU_REFERENCE_H
#define GM_CPU_REFERENCE_H

#include "cpu/kernels.h"

void reference_matmul_q8(const matmul_job *job, size_t first, size_t last, void *scratch);
void reference_matmul_f32(const matmul_job *job, size_t first, size_t last, void *scratch);

size_t reference_attention_tasks(const attention_job *job);
void   reference_attention(const attention_job *job, size_t task, void *scratch);

#endif
