/* Linked into a test program with -Wl,--wrap=gpu_pipeline_new, this changes shaders before they are compiled:
 *
 *     BREAK_FROM=text BREAK_TO=text    the one becomes the other. tests/test_broken_kernels.mjs checks that the test then fails
 *     EMULATE_MATRICES=8               the GPU seems to have subgroup matrices (tests/emulate_matrices.c)
 *     EMULATE_LITTLE_MEMORY=1          the GPU seems to have 16 KiB of workgroup memory, the least that WebGPU allows */

#include "emulate_matrices.h"

#include "gpu/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_id __real_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e);
gpu_id __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e);

static void break_text(const char *label, const char *wgsl, buffer *out) {
    const char *from = getenv("BREAK_FROM"), *to = getenv("BREAK_TO"), *rest = wgsl, *found;
    if (from && *from && to && strstr(wgsl, from)) {
        printf("broken: %s\n", label);
        for (; (found = strstr(rest, from)); rest = found + strlen(from)) {
            buffer_append(out, rest, (size_t)(found - rest));
            buffer_text(out, to);
        }
    }
    buffer_text(out, rest);
}

gpu_id __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e) {
    buffer text = { 0 }, emulated = { 0 };
    break_text(label, wgsl, &text);
    const bool matrices = !text.failed && emulate_matrices() && strstr(text.data, "subgroupMatrixLoad");
    if (matrices) emulate_matrices_in(text.data, &emulated);
    const gpu_id id =
        text.failed || emulated.failed
            ? (fail_memory(e, "a shader's text", text.length), 0)
            : __real_gpu_pipeline_new(h, label, matrices ? emulated.data : text.data, constants, count, e);
    buffer_free(&text);
    buffer_free(&emulated);
    return id;
}
