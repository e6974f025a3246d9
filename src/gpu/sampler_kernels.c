#include "gpu/sampler_kernels.h"

#include "gpu/kernel_build.h"

#include <math.h>

enum { BLOCK = 256, SPAN = 4096, PART = 1024, CUTS_BYTES = 36976 + 2048 * 16 }; /* as in the shader */
enum { BY_GREEDY = 1, BY_CANDIDATES = 2, BY_STEPS = 4, BY_EDITS = 8, BY_LOGPROBS = 16 };

typedef struct {
    const char *stage;
    const char *part; /* a define that enables code shared by several stages */
    uint32_t    span; /* tokens of the vocabulary per workgroup; 0: a single workgroup */
    size_t      bind_count;
    uint8_t     binds[KERNEL_BINDS];
} stage;

typedef enum { CONVERT, EDIT, BLOCKS, GREEDY, THRESHOLD, GATHER, CHOOSE, CUT, LAST, LIKELY, LOGPROBS } stage_name;

/* clang-format off */
static const stage stages[] = {
    [CONVERT] = { "convert", "BLOCKS", BLOCK, 5, { DRAW_LOGITS, DRAW_SETTINGS, DRAW_FIXED, DRAW_BLOCKS, DRAW_REST } },
    [EDIT] = { "edit", NULL, 0, 5, { DRAW_SETTINGS, DRAW_FIXED, DRAW_COUNTS, DRAW_STATE, DRAW_REST } },
    [BLOCKS] = { "blocks", "BLOCKS", BLOCK, 3, { DRAW_SETTINGS, DRAW_FIXED, DRAW_BLOCKS } },
    [GREEDY] = { "greedy", "FINISH", 0, 5, { DRAW_SETTINGS, DRAW_FIXED, DRAW_BLOCKS, DRAW_STATE, DRAW_RUN } },
    [THRESHOLD] = { "threshold", NULL, 0, 3, { DRAW_SETTINGS, DRAW_BLOCKS, DRAW_HEADER } },
    [GATHER] = { "gather", NULL, BLOCK, 4, { DRAW_SETTINGS, DRAW_FIXED, DRAW_HEADER, DRAW_CANDIDATES } },
    [CHOOSE] = { "choose", "FINISH", 0, 6, { DRAW_SETTINGS, DRAW_HEADER, DRAW_CANDIDATES, DRAW_FIXED, DRAW_STATE, DRAW_RUN } },
    [CUT] = { "cut", "CUTS", PART, 5, { DRAW_SETTINGS, DRAW_FIXED, DRAW_BLOCKS, DRAW_CUTS, DRAW_STATE } },
    [LAST] = { "last", "CUTS", 0, 6, { DRAW_SETTINGS, DRAW_FIXED, DRAW_BLOCKS, DRAW_CUTS, DRAW_STATE, DRAW_RUN } },
    [LIKELY] = { "likely", "LOGPROBS", SPAN, 3, { DRAW_LOGITS, DRAW_SETTINGS, DRAW_PARTS } },
    [LOGPROBS] = { "logprobs", "LOGPROBS", 0, 5, { DRAW_LOGITS, DRAW_SETTINGS, DRAW_PARTS, DRAW_STATE, DRAW_RECORD } },
};
/* clang-format on */

static uint32_t sampler_rows(const sampler_shape *s) { return s->rows ? s->rows : 1; }

sampler_bytes sampler_bytes_of(const sampler_shape *s) {
    const uint64_t n = s->vocabulary, blocks = (n + BLOCK - 1) / BLOCK, each = sampler_rows(s) * sizeof(uint32_t);
    return (sampler_bytes){
        .fixed = n * each,
        .counts = n * each,
        .blocks = blocks * 2 * each,
        .candidates = (n < SAMPLER_CANDIDATES ? n : SAMPLER_CANDIDATES) * 2 * each,
        .header = 6 * each,
        .cuts = (uint64_t)CUTS_BYTES * sampler_rows(s),
        .parts = (n + SPAN - 1) / SPAN * (2 + 2 * SAMPLER_MOST_ALTERNATIVES) * each,
        .record = sizeof(sampler_record) * sampler_rows(s),
        .state = (SAMPLER_STATE_RESULTS + 2ull * s->results + s->history) * each,
    };
}

uint32_t sampler_how(const sampler_shape *s) {
    return (s->greedy ? BY_GREEDY : 0) | (s->candidates ? BY_CANDIDATES : 0) | (s->steps ? BY_STEPS : 0) |
           (s->edits ? BY_EDITS : 0) | (s->logprobs ? BY_LOGPROBS : 0);
}

static gpu_kernel kernel_of(const sampler_shape *s, stage_name name) {
    const stage *from = &stages[name];
    gpu_kernel   k = { .file = "sampler.wgsl",
                       .x = from->span ? (s->vocabulary + from->span - 1) / from->span : 1,
                       .y = sampler_rows(s),
                       .z = 1 };
    kernel_define(&k, "STAGE", from->stage);
    if (from->part) kernel_define(&k, from->part, "1");
    if (name == THRESHOLD || name == CHOOSE) kernel_define(&k, "BORDER", "1");
    if (name == LAST) kernel_define(&k, "FINISH", "1");
    if (name == GREEDY || name == CHOOSE || name == CUT || name == LAST) kernel_define(&k, "COUNTED", "1");
    kernel_constant(&k, "n", s->vocabulary);
    kernel_constant(&k, "results", s->results);
    kernel_constant(&k, "history", s->history);
    for (size_t i = 0; i < from->bind_count; i++) kernel_bind(&k, from->binds[i]);
    return k;
}

size_t sampler_kernels(const sampler_shape *s, gpu_kernel out[SAMPLER_KERNELS]) {
    size_t count = 0;
    out[count++] = kernel_of(s, CONVERT);
    if (s->edits) {
        out[count++] = kernel_of(s, EDIT);
        out[count++] = kernel_of(s, BLOCKS);
    }
    if (s->greedy) out[count++] = kernel_of(s, GREEDY);
    if (s->candidates) {
        out[count++] = kernel_of(s, THRESHOLD);
        out[count++] = kernel_of(s, GATHER);
        out[count++] = kernel_of(s, CHOOSE);
    }
    if (s->steps) {
        for (uint32_t i = 0; i < s->steps; i++) {
            out[count] = kernel_of(s, CUT);
            out[count++].x += i; /* which tells the kernel its step */
        }
        out[count++] = kernel_of(s, LAST);
    }
    if (s->logprobs) {
        out[count++] = kernel_of(s, LIKELY);
        out[count++] = kernel_of(s, LOGPROBS);
    }
    return count;
}

void sampler_record_logprobs(const sampler_record *r, gm_token_logprob *out, size_t alternatives) {
    const double base = (double)r->largest + (r->sum > 0 ? log((double)r->sum) : 0);
    out[0] = (gm_token_logprob){ (int32_t)r->token, r->known ? (float)((double)r->logit - base) : -INFINITY };
    for (size_t i = 0; i < alternatives; i++) {
        const bool known = i < SAMPLER_MOST_ALTERNATIVES && r->likeliest[i].token != UINT32_MAX;
        out[1 + i] =
            known ? (gm_token_logprob){ (int32_t)r->likeliest[i].token, (float)((double)r->likeliest[i].logit - base) }
                  : (gm_token_logprob){ -1, -INFINITY };
    }
}
