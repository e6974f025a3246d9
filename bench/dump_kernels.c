/* Prints the matmul kernels as JSON for bench/gpu-node: preprocessed texts, constants, bindings and sizes, for the shapes of E2B
 * and of the experts of 26B-A4B in Q4_K_M, each cut in several ways.
 *
 *     dump_kernels [--tokens N] [--subgroup N] [--matrix ROWSxCOLUMNSxDEPTH] > kernels.json
 *
 * texts   [text]
 * cases   name, type, k, rows, experts, used, tokens; times: how often a batch of the model needs it; weight_bytes, scales (the
 *         word of weights.wgsl) and planes {high, scales, blocks} in 16 bytes; partial_bytes, quantised_bytes; variants
 * variant name, kind (f32, q8 or matrix), chosen (the engine's own choice), columns (of a tile), dispatches: {text, constants, binds, groups}; the dispatch
 *         that prepares the activations, if any, comes first and binds "quantised" */

#include "base/json.h"
#include "gpu/matmul.h"
#include "gpu/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    quant_type  type;
    uint32_t    k, rows, experts, used;
    bool        x_slots;
    uint32_t    times; /* in a batch of E2B; experts: in one of 26B-A4B */
} shape;

/* clang-format off */
static const shape shapes[] = {
    { "q sliding",       TYPE_Q4_K, 1536,  2048, 1, 0, false, 28 },
    { "q full",          TYPE_Q4_K, 1536,  4096, 1, 0, false, 7 },
    { "k sliding",       TYPE_Q4_K, 1536,  256,  1, 0, false, 12 },
    { "k full",          TYPE_Q4_K, 1536,  512,  1, 0, false, 3 },
    { "v sliding",       TYPE_Q6_K, 1536,  256,  1, 0, false, 12 },
    { "v full",          TYPE_Q6_K, 1536,  512,  1, 0, false, 3 },
    { "o sliding",       TYPE_Q4_K, 2048,  1536, 1, 0, false, 28 },
    { "o full",          TYPE_Q4_K, 4096,  1536, 1, 0, false, 7 },
    { "gate, up",        TYPE_Q4_K, 1536,  6144, 1, 0, false, 30 },
    { "gate, up wide",   TYPE_Q4_K, 1536, 12288, 1, 0, false, 40 },
    { "down",            TYPE_Q4_K, 6144,  1536, 1, 0, false, 8 },
    { "down better",     TYPE_Q6_K, 6144,  1536, 1, 0, false, 7 },
    { "down wide",       TYPE_Q4_K, 12288, 1536, 1, 0, false, 10 },
    { "down wide better", TYPE_Q6_K, 12288, 1536, 1, 0, false, 10 },
    { "per-layer gate",  TYPE_Q4_K, 1536,  256,  1, 0, false, 35 },
    { "per-layer out",   TYPE_Q4_K, 256,   1536, 1, 0, false, 35 },
    { "per-layer all",   TYPE_BF16, 1536,  8960, 1, 0, false, 1 },
    { "experts up",      TYPE_Q4_K, 2816,  1408, 128, 8, false, 30 },
    { "experts down",    TYPE_Q5_0, 704,   2816, 128, 8, true, 18 },
    { "experts down better", TYPE_Q8_0, 704, 2816, 128, 8, true, 12 },
};

/* rows and columns of a thread (matrices of a subgroup), threads (subgroups), chunks of a step */
static const gpu_tile by_threads[] = {
    { false, 4, 4, 16, 16, 2, 1 },  /*  64 x  64, 256 threads */
    { false, 8, 4, 8, 16, 1, 1 },   /*  64 x  64, 128 */
    { false, 8, 4, 8, 16, 2, 1 },
    { false, 4, 8, 16, 8, 2, 1 },   /*  64 x  64, 128 */
    { false, 8, 8, 8, 8, 2, 1 },    /*  64 x  64,  64 */
    { false, 8, 4, 8, 8, 2, 1 },    /*  64 x  32,  64 */
    { false, 4, 4, 8, 16, 2, 1 },   /*  32 x  64, 128 */
    { false, 8, 4, 16, 16, 1, 1 },  /* 128 x  64, 256 */
    { false, 8, 8, 16, 8, 1, 1 },   /* 128 x  64, 128 */
    { false, 8, 8, 16, 16, 1, 1 },  /* 128 x 128, 256 */
};
static const gpu_tile by_matrices[] = {
    { true, 2, 2, 2, 2, 2, 1 },     /*  64 x  64, 4 subgroups */
    { true, 2, 2, 2, 4, 2, 1 },     /*  64 x 128, 8 */
    { true, 4, 2, 2, 2, 1, 1 },     /* 128 x  64, 4 */
    { true, 4, 4, 2, 2, 1, 1 },     /* 128 x 128, 4 */
    { true, 4, 4, 2, 2, 2, 1 },
};
static const gpu_tile expert_threads[] = {
    { false, 1, 4, 64, 4, 2, 1 },   /*  64 x 16, 256 threads */
    { false, 4, 4, 16, 4, 2, 1 },   /*  64 x 16,  64 */
    { false, 8, 4, 8, 4, 2, 1 },    /*  64 x 16,  32 */
    { false, 2, 4, 32, 8, 2, 1 },   /*  64 x 32, 256 */
    { false, 4, 4, 16, 8, 2, 1 },   /*  64 x 32, 128 */
    { false, 8, 4, 8, 8, 2, 1 },    /*  64 x 32,  64 */
};
static const gpu_tile expert_matrices[] = {
    { true, 2, 1, 2, 1, 1, 1 },     /*  64 x 16, 2 subgroups */
    { true, 2, 1, 2, 1, 2, 1 },
    { true, 2, 1, 4, 1, 1, 1 },     /* 128 x 16, 4 */
    { true, 2, 1, 2, 2, 1, 1 },     /*  64 x 32, 4 */
    { true, 2, 2, 2, 1, 1, 1 },     /*  64 x 32, 2 */
    { true, 2, 2, 4, 1, 1, 1 },     /* 128 x 32, 4 */
};
/* clang-format on */

typedef struct {
    gpu_info info;
    uint32_t tokens;
    buffer   cases;
    char   **texts;
    size_t   text_count, text_capacity;
    error    e;
} dump;

static size_t text_number(dump *d, const gpu_kernel *k) {
    buffer text = { 0 };
    if (gpu_kernel_text(&d->info, k, &text, &d->e)) {
        buffer_free(&text);
        return 0;
    }
    for (size_t i = 0; i < d->text_count; i++) {
        if (!strcmp(d->texts[i], text.data)) {
            buffer_free(&text);
            return i;
        }
    }
    if (d->text_count == d->text_capacity) {
        const size_t capacity = 2 * d->text_capacity + 64;
        char       **texts = realloc(d->texts, capacity * sizeof *texts);
        if (!texts) {
            fail_memory(&d->e, "texts", capacity * sizeof *texts);
            buffer_free(&text);
            return 0;
        }
        d->texts = texts;
        d->text_capacity = capacity;
    }
    d->texts[d->text_count] = text.data;
    return d->text_count++;
}

static void add_string(buffer *b, const char *text) { json_write_string(b, str_of(text)); }

/* What the kernels of products and activations bind. */
static const char *const bind_names[PLAN_BINDS] = {
    [BIND_IN + FUSED_A] = "x", [BIND_OUT] = "y",           [BIND_WEIGHTS] = "weights", [BIND_QUANTISED] = "quantised",
    [BIND_RUN] = "run",        [BIND_PARTIAL] = "partial", [BIND_GROUPS] = "groups",
};

static void add_dispatch(dump *d, const gpu_kernel *k, bool first) {
    buffer *b = &d->cases;
    buffer_printf(b, "%s{\"text\":%zu,\"file\":\"%s\",\"constants\":{", first ? "" : ",", text_number(d, k), k->file);
    for (size_t i = 0; i < k->constant_count; i++) {
        buffer_printf(b, "%s\"%s\":%.17g", i ? "," : "", k->constants[i].name, k->constants[i].value);
    }
    buffer_text(b, "},\"binds\":[");
    for (size_t i = 0; i < k->bind_count; i++) buffer_printf(b, "%s\"%s\"", i ? "," : "", bind_names[k->binds[i]]);
    buffer_printf(b, "],\"groups\":[%u,%u,%u]}", k->x, k->y, k->z);
}

static const char *define_of(const gpu_kernel *k, const char *name) {
    for (size_t i = 0; i < k->define_count; i++) {
        if (!strcmp(k->defines[i].name, name)) return k->defines[i].value;
    }
    return "";
}

static void add_variant(dump *d, const shape *s, gpu_matmul_job job, const gpu_tile *t, const char *kind, bool chosen,
                        bool first) {
    gpu_kernel kernels[2], prepare;
    gpu_info   info = d->info;
    info.subgroup_matrix = !strcmp(kind, "matrix");
    job.q8 = strcmp(kind, "f32") != 0;
    const gpu_place x = { 0, s->k * (s->x_slots ? s->used : 1), s->k };
    job.x = job.q8 ? (gpu_place){ 0 } : x;
    const gpu_tile own = gpu_matmul_tile(&info, &job), *tile = t ? t : &own;
    const size_t   count = gpu_matmul_tile_kernels(kernels, &info, &job, tile);
    buffer_printf(
        &d->cases, "%s{\"name\":\"%s %ux%u, %ux%u, step %u, splits %u\",\"kind\":\"%s\",\"chosen\":%s,\"columns\":%u,",
        first ? "" : ",", kind, gpu_tile_rows(&info, tile), gpu_tile_columns(&info, tile), tile->rows, tile->columns,
        32 * tile->chunks, tile->splits, kind, chosen ? "true" : "false", gpu_tile_columns(&info, tile));
    buffer_text(&d->cases, "\"dispatches\":[");
    if (job.q8) {
        const gpu_quantise_job q = { .k = s->k, .rows = s->x_slots ? s->used : 1, .tokens = d->tokens, .x = x };
        gpu_quantise_kernel(&prepare, &info, &q);
        add_dispatch(d, &prepare, true);
    }
    for (size_t i = 0; i < count; i++) add_dispatch(d, &kernels[i], i == 0 && !job.q8);
    buffer_text(&d->cases, "]}");
}

/* Every cut with 1, 2, 4 … parts of k while parts are large enough, if that gives neither too few nor too many workgroups. */
static void add_variants(dump *d, const shape *s, gpu_matmul_job job, const char *kind, const gpu_tile *tiles,
                         size_t count) {
    const uint64_t few = 96, many = 600;
    gpu_info       info = d->info;
    info.subgroup_matrix = !strcmp(kind, "matrix");
    add_variant(d, s, job, NULL, kind, true, false);
    for (size_t i = 0; i < count; i++) {
        gpu_tile       t = tiles[i];
        const uint32_t rows = gpu_tile_rows(&info, &t), columns = gpu_tile_columns(&info, &t);
        const uint64_t groups = (uint64_t)((s->rows + rows - 1) / rows) * ((d->tokens + columns - 1) / columns);
        const uint32_t most = s->used ? 1 : s->k / 256 < 8 ? s->k / 256 : 8;
        if (columns > 16 && columns >= 2 * d->tokens) continue;
        for (t.splits = 1; t.splits == 1 || t.splits <= most; t.splits *= 2) {
            if (t.splits > 1 && groups * t.splits > many) break;
            if (groups * t.splits < few && t.splits * 2 <= most) continue;
            add_variant(d, s, job, &t, kind, false, false);
        }
    }
}

static void add_case(dump *d, const shape *s, bool first) {
    weight_layout layout;
    if (weight_layout_make(&layout, s->type, (uint64_t[]){ s->k, s->rows, s->experts }, UINT32_MAX, &d->e)) return;
    const weight_tile tile = weight_tile_of(&layout, 0);
    const uint32_t    slots = s->used ? s->used : 1;
    gpu_matmul_job    job = { .weights = &layout,
                              .like = &layout,
                              .tokens = d->tokens,
                              .used = s->used,
                              .x_slots = s->x_slots,
                              .split = true,
                              .y = { 0, s->rows * slots, s->rows } };
    gpu_kernel        kernels[2];
    gpu_matmul_kernels(kernels, &d->info, &job);
    buffer *b = &d->cases;
    buffer_text(b, first ? "{\"name\":" : ",\n{\"name\":");
    add_string(b, s->name);
    buffer_printf(b,
                  ",\"type\":\"%s\",\"k\":%u,\"rows\":%u,\"experts\":%u,\"used\":%u,\"tokens\":%u,\"times\":%u,"
                  "\"x_rows\":%u,\"weight_bytes\":%llu,\"scales\":\"%s\",\"planes\":{\"high\":%u,\"scales\":%u,"
                  "\"blocks\":%u},\"quantised_bytes\":%llu,\"variants\":[",
                  quant_format_of((uint32_t)s->type)->name, s->k, s->rows, s->experts, s->used, d->tokens, s->times,
                  d->tokens * (s->x_slots ? slots : 1), (unsigned long long)tile.bytes,
                  define_of(&kernels[0], "SCALES"), tile.high, tile.scales, tile.blocks,
                  (unsigned long long)gpu_quantised_bytes(s->k, (uint64_t)d->tokens * slots));
    job.split = false;
    add_variant(d, s, job, NULL, "f32", true, true);
    job.split = true;
    if (s->type != TYPE_BF16)
        add_variants(d, s, job, "q8", s->used ? expert_threads : by_threads,
                     s->used ? COUNT_OF(expert_threads) : COUNT_OF(by_threads));
    add_variants(d, s, job, "matrix", s->used ? expert_matrices : by_matrices,
                 s->used ? COUNT_OF(expert_matrices) : COUNT_OF(by_matrices));
    buffer_text(b, "]}");
}

static bool read_options(dump *d, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--tokens")) d->tokens = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--subgroup")) d->info.subgroup_max = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--matrix") || sscanf(argv[i + 1], "%ux%ux%u", &d->info.matrix_rows,
                                                       &d->info.matrix_columns, &d->info.matrix_depth) != 3)
            return false;
    }
    return argc % 2 && d->tokens > 4 && d->tokens <= 1024;
}

int main(int argc, char **argv) {
    dump d = { .tokens = 256,
               .info = { .subgroups = true,
                         .f16 = true,
                         .dot4 = true,
                         .subgroup_min = 32,
                         .subgroup_max = 32,
                         .max_workgroups = 65535,
                         .max_workgroup_bytes = 49152,
                         .matrix_rows = 16,
                         .matrix_columns = 16,
                         .matrix_depth = 16,
                         .blocks = true,
                         .matrix_attention = true,
                         .bands = true,
                         .deep_splits = true } };
    if (!read_options(&d, argc, argv)) {
        fprintf(stderr, "usage: dump_kernels [--tokens N] [--subgroup N] [--matrix ROWSxCOLUMNSxDEPTH]\n");
        return 2;
    }
    for (size_t i = 0; i < COUNT_OF(shapes) && !d.e.status; i++) add_case(&d, &shapes[i], i == 0);
    buffer texts = { 0 };
    for (size_t i = 0; i < d.text_count; i++) {
        if (i) buffer_text(&texts, ",\n");
        add_string(&texts, d.texts[i]);
    }
    if (!d.e.status && (texts.failed || d.cases.failed)) fail_memory(&d.e, "the dump", d.cases.length);
    if (d.e.status) fprintf(stderr, "%s\n", d.e.why);
    else
        printf("{\"subgroup\":%u,\"matrix\":[%u,%u,%u],\"texts\":[%s],\n\"cases\":[%s]}\n", d.info.subgroup_max,
               d.info.matrix_rows, d.info.matrix_columns, d.info.matrix_depth, texts.data, d.cases.data);
    for (size_t i = 0; i < d.text_count; i++) free(d.texts[i]);
    free(d.texts);
    buffer_free(&texts);
    buffer_free(&d.cases);
    return d.e.status != GM_OK;
}
