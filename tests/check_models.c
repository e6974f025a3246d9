/* The self-check dispatches every shader that the model's plans will, the check of training every one that a training will, and plans for
 * larger batches have those of 256 tokens. Linked with the fake host, which knows what was dispatched: so it is seen also for kernels of GPUs
 * that no test machine has. The CPU's results stand in for the GPU's.
 *
 *     check_models FILE…      and a graph with the sizes of large models */

#include "fake_host.h"

#include "gguf/gguf.h"
#include "gpu/generator.h"
#include "gpu/kernels.h"
#include "model/model.h"
#include "model/towers.h"
#include "session/kv.h"
#include "session/self_check.h"
#include "test.h"
#include "text/sampler_settings.h"
#include "train/train_check.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OUTPUTS = 64, DEPTH = 512 };

static void as_expected(void *user, const char *what, float *found, size_t count, const float *expected,
                        size_t distinct) {
    (void)what;
    ++*(size_t *)user;
    for (size_t i = 0; i < count; i++) found[i] = expected[i % distinct];
}

/* The generator of a session with every set of dispatches that it has. */
static void generate_all(gpu_plan *plan, const model_config *c, error *e) {
    const gm_sampling      sampling = { .top_p = 1, .typical_p = 1, .repetition_penalty = 1 };
    const sampler_settings settings = { .sampling = &sampling, .vocabulary = c->vocabulary, .advance = true };
    const int32_t          token = 1;
    const token_record     record = { .id = token, .span_count = 1 };
    gpu_generator         *generator = NULL;
    uint32_t               words[1024];
    if (gpu_generator_new(plan, c->vocabulary, DEPTH, &generator, e)) return;
    CHECK(sampler_settings_words(&settings) <= COUNT_OF(words));
    sampler_settings_write(&settings, words, e);
    for (size_t i = 0; i < 16 && !e->status; i++) {
        const generator_start start = { .settings = words,
                                        .setting_words = sampler_settings_words(&settings),
                                        .greedy = i & 1,
                                        .edits = i & 2,
                                        .logprobs = i & 4,
                                        .steps = i & 8 ? 5 : 0,
                                        .token = &record,
                                        .history = &token };
        gpu_generator_begin(generator, &start, e);
    }
    gpu_generator_free(generator);
}

/* Caches of a type as a session begins with. */
static gpu_kv_layer *kv_layers(const model_config *c, quant_type type) {
    gpu_kv_layer *kv = calloc(max_size(c->layers, 1), sizeof *kv);
    for (uint32_t i = 0; kv && i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        const uint32_t      slots = layer->sliding ? c->window + KV_SLACK : DEPTH;
        const gpu_kv        shape = { .type = type, .kv_heads = layer->kv_heads, .head = layer->head };
        kv[i] = (gpu_kv_layer){ 1, 1, type, shape.kv_heads, shape.head, round_up(gpu_kv_bytes(&shape, slots), 16) };
    }
    return kv;
}

/* All plans that a session makes. */
static void plan_classes(gpu_backend *b, const graph *g, const model_config *c, quant_type type, error *e) {
    gpu_kv_layer *kv = kv_layers(c, type);
    while (gpu_backend_upload(b, g, e) == GM_AGAIN) {}
    for (size_t tokens = 1; tokens <= BATCH_MOST && kv && !e->status; tokens *= 4) {
        for (size_t many = 0; many < 2 && !e->status; many++) {
            gpu_plan *plan = NULL;
            gpu_plan_new(b, g, tokens, many ? min_size(tokens, OUTPUTS) : 1, kv, &plan, e);
            if (plan && tokens == 1 && !many) generate_all(plan, c, e);
            gpu_plan_free(plan);
        }
    }
    for (size_t rows = 2; rows <= 32 && kv && !e->status; rows *= 2) {
        gpu_plan *plan = NULL;
        gpu_plan_new_rows(b, g, rows, kv, &plan, e);
        gpu_plan_free(plan);
    }
    free(kv);
}

/* ---- plans for larger batches ---- */

/* What a plan dispatches, apart from what follows from its size alone. */
typedef struct {
    uint64_t hash[4096];
    char     file[4096][40];
    size_t   count;
} dispatched;

static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001b3;
    return hash;
}

static void note_dispatch(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    static const char *const sizes[] = {
        "x_scales", "out_scales", "all_rows", "y_split_stride", "groups_pairs", "tiles"
    };
    (void)fused, (void)o;
    dispatched *d = user;
    uint64_t    hash = hash_text(0xcbf29ce484222325, k->file);
    for (size_t i = 0; i < k->define_count; i++)
        hash = hash_text(hash_text(hash, k->defines[i].name), k->defines[i].value);
    for (size_t i = 0; i < k->constant_count; i++) {
        bool size = false;
        for (size_t j = 0; j < COUNT_OF(sizes); j++) size |= !strcmp(k->constants[i].name, sizes[j]);
        char value[40];
        snprintf(value, sizeof value, "%g", size ? 0 : k->constants[i].value);
        hash = hash_text(hash_text(hash, k->constants[i].name), value);
    }
    if (d->count == COUNT_OF(d->hash)) return;
    snprintf(d->file[d->count], sizeof *d->file, "%s", k->file);
    d->hash[d->count++] = hash;
}

/* A plan for a large batch has the kernels, tiles and splits of the one for 256 tokens, so that results do not depend on the batch: on a
 * GPU in software, and on others, which divide the work among more workgroups. */
static void check_alike(gpu_backend *b, const graph *g, const model_config *c, error *e) {
    gpu_kv_layer *kv = kv_layers(c, TYPE_F16);
    gpu_info     *info = (gpu_info *)gpu_host_info(b->host);
    dispatched   *small = calloc(2, sizeof *small), *large = small + 1;
    for (int software = 1; kv && small && software >= 0 && !e->status; software--) {
        info->software = software;
        small->count = large->count = 0;
        gpu_plan_visit(b, g, 256, 1, kv, note_dispatch, small, e);
        if (!e->status) gpu_plan_visit(b, g, BATCH_MOST, 1, kv, note_dispatch, large, e);
        CHECK(small->count > 10 && small->count == large->count && small->count < COUNT_OF(small->hash));
        size_t same = 0;
        while (same < small->count && small->hash[same] == large->hash[same]) same++;
        CHECK_MESSAGE(same == small->count, "dispatch %zu (%s) depends on the batch", same, small->file[same]);
    }
    info->software = true;
    free(small);
    free(kv);
}

/* A GPU that binds less than a large plan needs has no such plan; one for a token fits. */
static void check_bindings(gpu_backend *b, const graph *g, const model_config *c) {
    gpu_kv_layer  *kv = kv_layers(c, TYPE_F16);
    gpu_info      *info = (gpu_info *)gpu_host_info(b->host);
    const uint64_t most = info->max_binding;
    error          small = { 0 }, large = { 0 };
    gpu_plan      *plan = NULL;
    info->max_binding = 512 << 10; /* enough for a tiny model's weights */
    CHECK_MESSAGE(kv && !gpu_plan_new(b, g, 1, 1, kv, &plan, &small), "%s", small.why);
    gpu_plan_free(plan);
    CHECK_MESSAGE(kv && gpu_plan_new(b, g, BATCH_MOST, 1, kv, &plan, &large) == GM_NO_MEMORY && !plan, "%s", large.why);
    info->max_binding = most;
    free(kv);
}

/* One self-check on a host where the CPU's results stand in for the GPU's. */
static void run_check(gpu_host *h, const graph *g, const model_config *config, const self_check_options *options,
                      size_t *runs, error *e) {
    self_check *check = NULL;
    if (self_check_new(h, g, config, options, &check, e)) return;
    self_check_spoil_by(check, as_expected, runs);
    while (self_check_step(check, e) == GM_AGAIN) {}
    for (size_t i = 0; self_check_missed(check, i); i++)
        CHECK_MESSAGE(false, "it knows no way to %s", self_check_missed(check, i));
    self_check_free(check);
}

/* The plans of one canvas, and of several that are denoised together. */
static void plan_canvases(gpu_backend *b, const graph *canvas, const model_config *c, quant_type type, error *e) {
    gpu_kv_layer *kv = kv_layers(c, type);
    while (gpu_backend_upload(b, canvas, e) == GM_AGAIN) {}
    for (size_t count = 1; count <= 4 && kv && !e->status; count *= 2) {
        gpu_plan *plan = NULL;
        size_t    tokens = 1;
        while (tokens < count * c->canvas.length && tokens < BATCH_MOST) tokens *= 4;
        gpu_plan_new(b, canvas, tokens, 1, kv, &plan, e);
        gpu_plan_free(plan);
    }
    free(kv);
}

/* `canvas`: the model's denoiser, or NULL; exact: as with --precise. */
static void check_graph(const char *name, const graph *g, const model_config *config, const graph *canvas, bool exact) {
    /* the first is the usual one */
    const quant_type kv[] = { exact ? TYPE_F32 : TYPE_F16, exact ? TYPE_F16 : TYPE_F32, TYPE_Q8_0 };
    error            e = { 0 };
    gpu_backend      planned = { 0 };
    gpu_host        *checked = NULL;
    size_t           runs = 0, texts = 0;
    bool             ignored;
    TEST("the self-check reaches every kernel of %s%s", name, exact ? ", exact" : "");
    if (!gpu_backend_open(&planned, &(gpu_options){ .adapter = -1 }, exact, &e) &&
        !gpu_host_open(&(gpu_options){ .adapter = -1 }, &checked, &e)) {
        if (exact) gpu_host_be_exact(planned.host);
        if (exact) gpu_host_be_exact(checked);
        for (size_t i = 0; i < COUNT_OF(kv) && !e.status; i++) {
            const self_check_options options = { .kv = kv[i],
                                                 .checked = i ? &kv[0] : NULL,
                                                 .precise = exact,
                                                 .outputs = OUTPUTS,
                                                 .canvas = canvas,
                                                 .canvas_length = config->canvas.length };
            plan_classes(&planned, g, config, kv[i], &e);
            if (canvas && !e.status) plan_canvases(&planned, canvas, config, kv[i], &e);
            if (!e.status) run_check(checked, g, config, &options, &runs, &e);
        }
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
    const char *label;
    for (; !e.status && (label = fake_host_text(planned.host, texts, &ignored)); texts++)
        CHECK_MESSAGE(fake_host_dispatched(checked, planned.host, texts), "%s is planned, and not dispatched", label);
    CHECK_MESSAGE(e.status || (runs > 10 && texts > 10), "%zu runs, %zu shaders", runs, texts);
    TEST("plans of %s for larger batches add in the same order", name);
    if (!e.status) check_alike(&planned, g, config, &e);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    if (!e.status && strstr(name, "tiny")) check_bindings(&planned, g, config);
    gpu_host_close(checked);
    gpu_backend_close(&planned);
}

static void check_training(const char *name, const model *m, const graph *text);

static void check_model_file(const char *path) {
    error e = { 0 };
    gguf *file = NULL;
    model m = { 0 };
    graph g = { 0 };
    TEST("%s opens", path);
    if (!gguf_open_file(path, &file, &e) && !model_load(file, &m, &e)) model_text_graph(&m, NULL, &g, &e);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    if (!e.status && m.config.canvas.length) {
        canvas_graph c = { 0 };
        CHECK_MESSAGE(!model_canvas_graph(&m, false, &c, &e), "%s", e.why);
        for (int exact = 0; exact < 2 && !e.status; exact++) check_graph(path, &g, &m.config, &c.g, exact);
        graph_free(&c.g);
    } else if (!e.status) check_graph(path, &g, &m.config, NULL, false);
    if (!e.status && !m.config.canvas.length) check_training(path, &m, &g);
    graph_free(&g);
    model_free(&m);
    gguf_free(file);
}

/* ---- training ---- */

static void as_computed(void *user, const char *what, float *found, size_t count, const float *expected) {
    (void)what;
    ++*(size_t *)user;
    memcpy(found, expected, count * sizeof *found);
}

/* An engine as far as training needs it. */
static gm_status open_for_training(gm_engine *engine, const model *m, const graph *text, error *e) {
    *engine = (gm_engine){ .weights = *m, .on_gpu = true, .precise = true };
    TRY(gpu_backend_open(&engine->gpu, &(gpu_options){ .adapter = -1 }, false, e));
    gm_status status;
    while ((status = gpu_backend_upload(&engine->gpu, text, e)) == GM_AGAIN) {}
    return status;
}

/* Whatever a training dispatches, its check has dispatched before. */
static void check_training(const char *name, const model *m, const graph *text) {
    static const char         targets[] = "q,k,v,o,gate,up,down";
    const train_check_options options = { .targets = targets, .rank = 16, .tokens = 600 };
    const fresh_options       fresh = { .rank = options.rank, .alpha = 16, .targets = targets };
    gm_engine                 planned = { 0 }, checked = { 0 };
    adapter                  *a = NULL;
    trainer                  *t = NULL;
    train_check              *check = NULL;
    error                     e = { 0 };
    size_t                    parts = 0, texts = 0;
    bool                      ignored;
    TEST("the check of training reaches every kernel of %s", name);
    gm_status status = open_for_training(&planned, m, text, &e);
    if (!status) status = open_for_training(&checked, m, text, &e);
    if (!status) status = adapter_fresh(m, &fresh, "a", &a, &e);
    if (!status)
        status = trainer_new(
            &planned, &(trainer_options){ .adapter = a, .tokens = options.tokens, .repeated = m->config.layers / 2 },
            &t, &e);
    if (!status) status = train_check_new(&checked, &options, &check, &e);
    if (check) train_check_spoil_by(check, as_computed, &parts);
    while (!status && (status = train_check_step(check, clock_seconds() + 1, &e)) == GM_AGAIN) status = GM_OK;
    CHECK_MESSAGE(!status, "%s", e.why);
    const char *label;
    for (; !status && (label = fake_host_text(planned.gpu.host, texts, &ignored)); texts++)
        CHECK_MESSAGE(!strcmp(label, "repack") || fake_host_dispatched(checked.gpu.host, planned.gpu.host, texts),
                      "%s is planned, and not dispatched", label);
    CHECK_MESSAGE(status || (parts > 20 && texts > 20), "%zu parts, %zu shaders", parts, texts);
    train_check_free(check);
    trainer_free(t);
    adapter_free(a);
    gpu_backend_close(&planned.gpu);
    gpu_backend_close(&checked.gpu);
}

/* ---- towers ---- */

/* The plans that towers make: of every class, and for every number of soft tokens that has kernels of its own. */
static void plan_tower(gpu_backend *b, const graph *g, const self_check_tower *tower, quant_type type, error *e) {
    static const size_t sizes[][2] = { { 1, 1 },   { 4, 2 },    { 16, 1 },    { 16, 16 },    { 64, 7 },
                                       { 64, 64 }, { 256, 28 }, { 256, 200 }, { 2560, 280 }, { 10112, 1120 } };
    const uint64_t      row = gpu_kv_row_bytes(type, tower->kv_heads, tower->head);
    const gpu_kv_layer  kv = { 1, 1, type, tower->kv_heads, tower->head, round_up(row * 10112, 16) };
    while (gpu_backend_upload(b, g, e) == GM_AGAIN) {}
    for (size_t i = 0; i < COUNT_OF(sizes) && !e->status; i++) {
        gpu_plan *plan = NULL;
        if (sizes[i][0] >= tower->fewest) gpu_plan_new(b, g, sizes[i][0], sizes[i][1], &kv, &plan, e);
        gpu_plan_free(plan);
    }
}

static void check_tower_graph(const char *path, const graph *g, const self_check_tower *tower) {
    error                    e = { 0 };
    gpu_backend              planned = { 0 };
    gpu_host                *checked = NULL;
    size_t                   runs = 0, texts = 0;
    bool                     ignored;
    const self_check_options options = { .kv = TYPE_F16, .outputs = 1120, .tower = tower };
    const self_check_options before = { .kv = TYPE_F16, .outputs = OUTPUTS };
    TEST("the self-check reaches every kernel of the %s tower of %s", tower->name, path);
    if (!gpu_backend_open(&planned, &(gpu_options){ .adapter = -1 }, false, &e) &&
        !gpu_host_open(&(gpu_options){ .adapter = -1 }, &checked, &e)) {
        plan_tower(&planned, g, tower, options.kv, &e);
        if (!e.status) run_check(checked, tower->text, tower->config, &before, &runs, &e);
        if (!e.status) run_check(checked, g, NULL, &options, &runs, &e);
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
    const char *label;
    for (; !e.status && (label = fake_host_text(planned.host, texts, &ignored)); texts++)
        CHECK_MESSAGE(fake_host_dispatched(checked, planned.host, texts), "%s is planned, and not dispatched", label);
    CHECK_MESSAGE(e.status || (runs > 10 && texts > 3), "%zu runs, %zu shaders", runs, texts);
    gpu_host_close(checked);
    gpu_backend_close(&planned);
}

static void check_towers(const char *path, const char *projector) {
    error          e = { 0 };
    gguf          *files[2] = { NULL, NULL };
    model          m = { 0 };
    graph          text = { 0 }, seen = { 0 }, heard = { 0 };
    vision_weights vision = { 0 };
    audio_weights  audio = { 0 };
    tensor        *leaf;
    TEST("%s opens", projector);
    if (!gguf_open_file(path, &files[0], &e) && !model_load(files[0], &m, &e)) model_text_graph(&m, NULL, &text, &e);
    if (!e.status) gguf_open_file(projector, &files[1], &e);
    if (!e.status && !vision_load(files[1], m.config.width, &vision, &e)) vision_graph(&vision, NULL, &seen, &leaf, &e);
    if (!e.status && !audio_load(files[1], m.config.width, &audio, &e)) audio_graph(&audio, NULL, &heard, &leaf, &e);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    const uint32_t         heads = vision.config.heads, head = vision.config.head;
    const self_check_tower sight = { "vision", vision.config.layers ? 9 : 1, heads, head, &text, &m.config };
    const self_check_tower hearing = { "audio", 1, 0, 0, &text, &m.config };
    if (!e.status) check_tower_graph(path, &seen, &sight);
    if (!e.status) check_tower_graph(path, &heard, &hearing);
    graph_free(&seen);
    graph_free(&heard);
    graph_free(&text);
    vision_free(&vision);
    audio_free(&audio);
    model_free(&m);
    gguf_free(files[0]);
    gguf_free(files[1]);
}

/* Products as large as in models of several GB, whose tiles are other ones than those of the fixtures. Their bytes are zeros that
 * take no memory. */
static void check_large(void) {
    static const quant_type types[] = { TYPE_Q4_K, TYPE_Q6_K, TYPE_Q8_0, TYPE_F16 };
    const size_t            bytes = (size_t)4 << 30;
    uint8_t                *zeros = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    graph                   g = { .batched = true };
    model_config            config = { .width = 2816, .eps = 1e-6f, .vocabulary = 65536, .context = DEPTH };
    size_t                  at = 0;
    TEST("zeros");
    CHECK(zeros != MAP_FAILED);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const uint64_t    shapes[][3] = { { 2816, 2816, 1 }, { 2816, 4096, 1 }, { 4096, 15360, 1 }, { 15360, 512, 1 } };
        static const char name[] = "w";
        tensor           *x =
            graph_embed(&g, graph_weight(&g, "e", TYPE_F32, (uint64_t[]){ 2816, 16, 1 }, zeros + (at += 1 << 20)), 1);
        for (size_t j = 0; j < COUNT_OF(shapes); j++)
            x = graph_matmul(&g, graph_weight(&g, name, types[i], shapes[j], zeros + (at += 1 << 20)), x);
        tensor *routes = graph_route(
            &g,
            graph_embed(&g, graph_weight(&g, "r", TYPE_F32, (uint64_t[]){ 128, 16, 1 }, zeros + (at += 1 << 20)), 1),
            NULL, 8);
        const uint64_t both[3] = { 512, 1408, 128 };
        tensor        *y =
            graph_matmul_experts(&g, graph_weight(&g, name, types[i], both, zeros + (at += 1 << 20)), x, routes, 8);
        graph_geglu(&g, graph_slice(&g, y, 0, 704, 8), graph_slice(&g, y, 704, 704, 8));
        g.result =
            graph_matmul(&g, graph_weight(&g, name, types[i], (uint64_t[]){ 512, 65536, 1 }, zeros + (at += 1 << 20)),
                         graph_rms_norm(&g, graph_select_rows(&g, x), NULL, 1e-6f));
    }
    CHECK_MESSAGE(!g.problem.status, "%s", g.problem.why);
    if (!g.problem.status) check_graph("a large model", &g, &config, NULL, false);
    graph_free(&g);
    munmap(zeros, bytes);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) check_model_file(argv[i]);
    check_large();
    check_towers("tests/fixtures/tiny-mm.gguf", "tests/fixtures/tiny-mm.mmproj.gguf");
    check_towers("tests/fixtures/tiny-unified.gguf", "tests/fixtures/tiny-unified.mmproj.gguf");
    return test_end();
}
