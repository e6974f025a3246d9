#include "gpu/sampler_kernels.h"

#include "gpu/kernel_build.h"

enum { BLOCK = 256, CANDIDATES = 8192 }; /* as in the shader */

typedef struct {
    const char *stage;
    const char *part;      /* a define that switches on what several stages share */
    bool        per_block; /* one workgroup to 256 tokens of the vocabulary, otherwise a single one */
    const char *binds[KERNEL_BINDS];
} stage;

typedef enum { CONVERT, EDIT, BLOCKS, GREEDY, THRESHOLD, GATHER, CHOOSE } stage_name;

static const stage stages[] = {
    [CONVERT] = { "convert", "BLOCKS", true, { "logits", "settings", "fixed", "blocks" } },
    [EDIT] = { "edit", NULL, false, { "settings", "fixed", "counts", "state" } },
    [BLOCKS] = { "blocks", "BLOCKS", true, { "fixed", "blocks" } },
    [GREEDY] = { "greedy", "FINISH", false, { "settings", "fixed", "blocks", "state", "ids", "run" } },
    [THRESHOLD] = { "threshold", NULL, false, { "settings", "blocks", "header" } },
    [GATHER] = { "gather", NULL, true, { "settings", "fixed", "header", "candidates" } },
    [CHOOSE] = { "choose", "FINISH", false, { "settings", "header", "candidates", "fixed", "state", "ids", "run" } },
};

sampler_bytes sampler_bytes_of(const sampler_shape *s) {
    const uint64_t n = s->vocabulary, blocks = (n + BLOCK - 1) / BLOCK, word = sizeof(uint32_t);
    return (sampler_bytes){
        .fixed = n * word,
        .counts = n * word,
        .blocks = blocks * 2 * word,
        .candidates = (n < CANDIDATES ? n : CANDIDATES) * 2 * word,
        .header = 10 * word,
        .state = (SAMPLER_STATE_RESULTS + 2ull * s->results + s->history) * word,
    };
}

static gpu_kernel kernel_of(const sampler_shape *s, stage_name name) {
    const stage *from = &stages[name];
    gpu_kernel   k = {
          .file = "sampler.wgsl", .x = from->per_block ? (s->vocabulary + BLOCK - 1) / BLOCK : 1, .y = 1, .z = 1
    };
    kernel_define(&k, "STAGE", from->stage);
    if (from->part) kernel_define(&k, from->part, "1");
    if (name == THRESHOLD || name == CHOOSE) kernel_define(&k, "BORDER", "1");
    kernel_constant(&k, "n", s->vocabulary);
    kernel_constant(&k, "results", s->results);
    kernel_constant(&k, "history", s->history);
    for (size_t i = 0; i < KERNEL_BINDS && from->binds[i]; i++) kernel_bind(&k, from->binds[i]);
    return k;
}

size_t sampler_kernels(const sampler_shape *s, gpu_kernel out[SAMPLER_KERNELS]) {
    size_t count = 0;
    out[count++] = kernel_of(s, CONVERT);
    if (s->edits) {
        out[count++] = kernel_of(s, EDIT);
        out[count++] = kernel_of(s, BLOCKS);
    }
    if (s->greedy) {
        out[count++] = kernel_of(s, GREEDY);
        return count;
    }
    out[count++] = kernel_of(s, THRESHOLD);
    out[count++] = kernel_of(s, GATHER);
    out[count++] = kernel_of(s, CHOOSE);
    return count;
}
