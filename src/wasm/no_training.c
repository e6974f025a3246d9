/* In modules that only answer, in the place of the ops of training (cpu/steps_back.c, gpu/back_kernels.c and gpu/gradient_kernels.c): no graph
 * of theirs has one. */

#include "cpu/steps_parts.h"
#include "gpu/gradient_kernels.h"

bool cpu_back_has(op_kind kind) { return (void)kind, false; }

size_t cpu_back_tasks(const cpu_step *s, const cpu_context *c) { return (void)s, (void)c, 0; }

void cpu_back_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    (void)s, (void)c, (void)task, (void)scratch;
}

static gm_status no_training(const op *o, error *e) {
    return fail(e, GM_UNSUPPORTED, "this module cannot train: it has no kernel for %s", op_name(o->kind));
}

gm_status gpu_gradient_kernel(const op *o, uint32_t count, gpu_kernel *out, error *e) {
    (void)count, (void)out;
    return no_training(o, e);
}

bool gpu_attention_back_by_matrices(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    return (void)info, (void)o, (void)kv, (void)tokens, false;
}

uint32_t gpu_attention_back_splits(const gpu_info *info, const op *o, const gpu_attention_back_job *job) {
    return (void)info, (void)o, (void)job, 1;
}

uint64_t gpu_attention_back_partial_bytes(const gpu_attention_back_job *job) { return (void)job, 0; }

gm_status gpu_attention_back_kernels(const gpu_info *info, const op *o, const gpu_attention_back_job *job,
                                     gpu_kernel out[2], size_t *count, error *e) {
    (void)info, (void)job, (void)out, (void)count;
    return no_training(o, e);
}

bool gpu_back_by_matrices(const gpu_info *info, const weight_layout *weights, uint32_t columns) {
    return (void)info, (void)weights, (void)columns, false;
}

uint64_t gpu_back_partial_bytes(const gpu_info *info, const gpu_back_job *job) { return (void)info, (void)job, 0; }

uint32_t gpu_back_kernel(gpu_kernel *out, const gpu_info *info, const gpu_back_job *job, uint32_t tile,
                         uint32_t before) {
    return (void)out, (void)info, (void)job, (void)tile, (void)before, 0;
}
