/* Linked into a test program with -Wl,--wrap=gpu_pipeline_new, this damages shaders before they are compiled: the text in
 * $BREAK_FROM becomes the text in $BREAK_TO. tests/test_broken_kernels.mjs checks that the test then fails. */

#include "gpu/host.h"

#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_id __real_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e);
gpu_id __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e);

gpu_id __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e) {
    const char *from = getenv("BREAK_FROM"), *to = getenv("BREAK_TO"), *rest = wgsl, *found;
    buffer      text = { 0 };
    if (!from || !*from || !to || !strstr(wgsl, from))
        return __real_gpu_pipeline_new(h, label, wgsl, constants, count, e);
    for (; (found = strstr(rest, from)); rest = found + strlen(from)) {
        buffer_append(&text, rest, (size_t)(found - rest));
        buffer_text(&text, to);
    }
    buffer_text(&text, rest);
    printf("broken: %s\n", label);
    const gpu_id id = text.failed ? (fail_memory(e, "a shader's text", text.length), 0)
                                  : __real_gpu_pipeline_new(h, label, text.data, constants, count, e);
    buffer_free(&text);
    return id;
}
