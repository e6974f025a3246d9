/* The self-check: a GPU that is right passes for every model and every weight type; one that gets a single value of anything
 * wrong is refused, with the name of what it got wrong. */

#include "gpu/features.h"
#include "model/model.h"
#include "model/towers.h"
#include "session/self_check.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

/* A model as far as a check needs it. */
typedef struct {
    gguf        *file;
    model        weights;
    model_config config;
    graph        g;
    /* a tower: its own graph is `g`, the model's `text` */
    graph            text;
    vision_weights   vision;
    audio_weights    audio;
    gguf            *projector;
    self_check_tower tower; /* no name: none */
} subject;

static bool check_open_model(subject *s, const char *path) {
    error e = { 0 };
    *s = (subject){ 0 };
    if (!gguf_open_file(path, &s->file, &e) && !model_load(s->file, &s->weights, &e)) {
        s->config = s->weights.config;
        model_text_graph(&s->weights, NULL, &s->g, &e);
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
    return !e.status;
}

/* A graph with a product, a table and experts of every type: what they hold does not matter to the check. */
static bool open_all_types(subject *s) {
    error e = { 0 };
    *s = (subject){ .config = { .width = 512, .eps = 1e-6f } };
    CHECK_MESSAGE(!gguf_open_file("tests/fixtures/quant-blocks.expect.gguf", &s->file, &e), "%s", e.why);
    for (size_t i = 0; !e.status && i < gguf_tensor_count(s->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(s->file, i);
        const uint64_t     width = t->format->block > 64 ? t->format->block : 64, rows = t->count / width / 8;
        const void        *data = gguf_tensor_data(s->file, t);
        if (str_ends_with(t->name, ".f32")) continue;
        tensor *x = graph_embed(&s->g, graph_weight(&s->g, "e", t->type, (uint64_t[]){ width, 8 * rows, 1 }, data), 1);
        tensor *routes = graph_route(&s->g, x, NULL, 3);
        graph_matmul(&s->g, graph_weight(&s->g, "w", t->type, (uint64_t[]){ width, 8 * rows, 1 }, data), x);
        s->g.result = graph_matmul_experts(
            &s->g, graph_weight(&s->g, "x", t->type, (uint64_t[]){ width, rows, 8 }, data), x, routes, 3);
    }
    CHECK_MESSAGE(!s->g.problem.status, "%s", s->g.problem.why);
    return !e.status;
}

/* The least that has a sampler: an embedding and a head. */
static bool open_sampler(subject *s) {
    static float table[64 * 640];
    *s = (subject){ .config = { .width = 64, .eps = 1e-6f, .vocabulary = 640, .context = 4096 } };
    tensor *weights = graph_weight(&s->g, "e", TYPE_F32, (uint64_t[]){ 64, 640, 1 }, table);
    s->g.result = graph_matmul(&s->g, weights, graph_embed(&s->g, weights, 1));
    CHECK_MESSAGE(!s->g.problem.status, "%s", s->g.problem.why);
    return !s->g.problem.status;
}

static bool open_tower(subject *s, bool sight) {
    error   e = { 0 };
    tensor *leaf;
    if (!check_open_model(s, "tests/fixtures/tiny-mm.gguf")) return false;
    s->text = s->g;
    s->g = (graph){ 0 };
    gm_status status = gguf_open_file("tests/fixtures/tiny-mm.mmproj.gguf", &s->projector, &e);
    if (!status) status = vision_load(s->projector, s->config.width, &s->vision, &e);
    if (!status) status = audio_load(s->projector, s->config.width, &s->audio, &e);
    if (!status)
        status =
            sight ? vision_graph(&s->vision, NULL, &s->g, &leaf, &e) : audio_graph(&s->audio, NULL, &s->g, &leaf, &e);
    CHECK_MESSAGE(!status, "%s", e.why);
    const uint32_t heads = s->vision.config.heads, head = s->vision.config.head;
    if (sight) s->tower = (self_check_tower){ "vision", 9, heads, head, &s->text, &s->config };
    else s->tower = (self_check_tower){ "audio", 1, 0, 0, &s->text, &s->config };
    return !status;
}

static void close_subject(subject *s) {
    graph_free(&s->text);
    vision_free(&s->vision);
    audio_free(&s->audio);
    gguf_free(s->projector);
    graph_free(&s->g);
    model_free(&s->weights);
    gguf_free(s->file);
}

/* Which check is spoiled, and how. */
typedef struct {
    const char *what; /* NULL: none */
    float       add, times;
    size_t      runs; /* how many results came by */
} spoiler;

static void spoil(void *user, const char *what, float *found, size_t count, const float *expected, size_t distinct) {
    (void)expected, (void)distinct;
    spoiler *s = user;
    if (!s->what || strcmp(what, s->what) != 0) return;
    s->runs++;
    found[count - 1] = found[count - 1] * s->times + s->add;
}

static gm_status subject_check_new(gpu_host *h, const subject *s, const self_check_options *options, self_check **out,
                                   error *e) {
    self_check_options o = *options;
    if (s->tower.name) o.tower = &s->tower;
    return self_check_new(h, &s->g, s->tower.name ? NULL : &s->config, &o, out, e);
}

static gm_status run_self_check(gpu_host *h, const subject *s, const self_check_options *options, spoiler *wrong,
                                size_t *count, error *e) {
    self_check *check = NULL;
    gm_status   status = subject_check_new(h, s, options, &check, e);
    if (status) return status;
    self_check_spoil_by(check, spoil, wrong);
    while ((status = self_check_step(check, e)) == GM_AGAIN) gpu_host_wait(h, 100);
    for (*count = 0; self_check_name(check, *count); ++*count) {}
    for (size_t i = 0; self_check_missed(check, i); i++)
        CHECK_MESSAGE(false, "no check reaches %s", self_check_missed(check, i));
    self_check_free(check);
    return status;
}

static const self_check_options quick_check = { .kv = TYPE_F16, .outputs = 16, .quick = true };

/* The name of check `index`, to be freed. */
static char *name_of(gpu_host *h, const subject *s, quant_type kv, size_t index) {
    error       e = { 0 };
    self_check *check = NULL;
    if (subject_check_new(h, s, &(self_check_options){ .kv = kv, .outputs = 16, .quick = true }, &check, &e))
        return NULL;
    const char *name = self_check_name(check, index);
    char       *copy = name ? strdup(name) : NULL;
    self_check_free(check);
    return copy;
}

static const struct {
    const char *path;
    size_t      least; /* checks */
} models[] = { { "tests/fixtures/tiny-dense.gguf", 5 },
               { "tests/fixtures/tiny-moe.gguf", 6 },
               { "tests/fixtures/small-dense-Q4_K_M.gguf", 8 },
               { "tests/fixtures/small-moe-Q4_K_M.gguf", 9 } };

/* Every model if `all_models`, else the first; and all types. */
static void test_right(gpu_host *h, const char *device, bool all_models) {
    static const quant_type kv[] = { TYPE_F16, TYPE_F32 };
    for (size_t i = 0; i <= COUNT_OF(models); i++) {
        if (!all_models && i > 0 && i < COUNT_OF(models)) continue;
        for (int precise = 0; precise < 2; precise++) {
            const bool all = i == COUNT_OF(models);
            TEST("%s passes for %s%s", device, all ? "all types" : models[i].path, precise ? ", precise" : "");
            subject s;
            error   e = { 0 };
            spoiler none = { 0 };
            size_t  count = 0;
            if (!(all ? open_all_types(&s) : check_open_model(&s, models[i].path))) return;
            const self_check_options options = {
                .kv = kv[precise], .precise = precise, .outputs = 16, .quick = all || i > 1 || precise
            };
            CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &count, &e) == GM_OK, "%s", e.why);
            CHECK_MESSAGE(count >= (all ? 15 * 3 : models[i].least), "%zu checks", count);
            close_subject(&s);
        }
    }
    TEST("%s gave everything back", device);
    CHECK_MESSAGE(gpu_host_bytes(h) == 0, "%llu bytes", (unsigned long long)gpu_host_bytes(h));
}

/* One value of one run of each check is spoiled in turn. */
static void test_wrong(gpu_host *h, const char *path) {
    static const struct {
        const char *how;
        float       times, add;
    } ways[] = { { "another value", 1, 1000 }, { "NaN", NAN, 0 }, { "infinity", 1, INFINITY } };
    subject s;
    char   *name, *norms = NULL; /* of several tokens, in 8 bits if the model's products take them so */
    TEST("%s opens", path);
    if (!check_open_model(&s, path)) return;
    for (size_t i = 0; (name = name_of(h, &s, TYPE_F16, i)); i++) {
        TEST("wrong %s: %s", name, ways[i % COUNT_OF(ways)].how);
        error   e = { 0 };
        spoiler wrong = { .what = name, .times = ways[i % COUNT_OF(ways)].times, .add = ways[i % COUNT_OF(ways)].add };
        size_t  count;
        CHECK(run_self_check(h, &s, &quick_check, &wrong, &count, &e) == GM_NO_DEVICE);
        CHECK_MESSAGE(strstr(e.why, name) && strstr(e.why, gpu_host_info(h)->name) && strstr(e.why, "wrongly") &&
                          strstr(e.why, "--gpu-disable subgroups"),
                      "%s", e.why);
        if (norms || strncmp(name, "norms", 5) != 0) free(name);
        else norms = name;
    }
    TEST("an error of rounding is none");
    error   e = { 0 };
    size_t  count;
    spoiler close = { .what = norms, .times = 1.00001f };
    CHECK_MESSAGE(norms && run_self_check(h, &s, &quick_check, &close, &count, &e) == GM_OK && close.runs == 1,
                  "%s: %zu runs, %s", norms ? norms : "no norms", close.runs, e.why);
    free(norms);
    close_subject(&s);
}

/* Each check of a tower is spoiled in turn: the error names the tower and what is wrong. Right, the GPU passes. */
static void test_tower_checks(gpu_host *h, bool sight, size_t least) {
    subject s;
    char   *name;
    size_t  count = 0;
    TEST("the GPU passes for the %s tower", sight ? "vision" : "audio");
    if (!open_tower(&s, sight)) return;
    error   e = { 0 };
    spoiler none = { 0 };
    CHECK_MESSAGE(run_self_check(h, &s, &quick_check, &none, &count, &e) == GM_OK, "%s", e.why);
    CHECK_MESSAGE(count >= least, "%zu checks", count);
    for (size_t i = 0; (name = name_of(h, &s, TYPE_F16, i)); i++) {
        TEST("wrong %s of the %s tower", name, s.tower.name);
        spoiler wrong = { .what = name, .times = 1, .add = 1000 };
        e = (error){ 0 };
        CHECK(run_self_check(h, &s, &quick_check, &wrong, &count, &e) == GM_NO_DEVICE);
        CHECK_MESSAGE(strstr(e.why, name) && strstr(e.why, s.tower.name) && strstr(e.why, "wrongly"), "%s", e.why);
        free(name);
    }
    close_subject(&s);
}

/* A GPU that should be exact has the CPU's bits in every check. One that differs in the last of them passes, and that is known. */
static void test_exact_check(gpu_host *h) {
    const self_check_options options = { .kv = TYPE_F32, .precise = true, .outputs = 16, .quick = true };
    gpu_info                *info = (gpu_info *)gpu_host_info(h);
    const gpu_info           before = *info;
    subject                  s;
    TEST("the self-check notices what is not exact");
    if (!check_open_model(&s, "tests/fixtures/tiny-diffusion.gguf")) return;
    gpu_features_be_exact(info);
    char *name = NULL;
    for (size_t i = 0; i < 2; i++) {
        spoiler     last_bit = { .what = i ? name : NULL, .times = 1 + 0x1p-23f };
        error       e = { 0 };
        self_check *check = NULL;
        gm_status   status = subject_check_new(h, &s, &options, &check, &e);
        if (status) break;
        self_check_spoil_by(check, spoil, &last_bit);
        if (!i) name = strdup(self_check_name(check, 0));
        while ((status = self_check_step(check, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
        CHECK_MESSAGE(!status && self_check_inexact(check) == (i > 0) && last_bit.runs >= i, "%s", e.why);
        self_check_free(check);
    }
    CHECK(name);
    free(name);
    *info = before;
    close_subject(&s);
}

/* What another K/V type adds is attention, and nothing else. */
static void test_check_kv(gpu_host *h, quant_type kv, const char *name) {
    static const quant_type  usual = TYPE_F16;
    const self_check_options options = { .kv = kv, .checked = &usual, .outputs = 16, .quick = true };
    subject                  s;
    error                    e = { 0 };
    spoiler                  none = { 0 };
    size_t                   count = 0;
    self_check              *check = NULL;
    TEST("beside f16 keys and values: %s", name);
    if (!check_open_model(&s, models[0].path)) return;
    CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &count, &e) == GM_OK && count > 0, "%zu checks: %s", count,
                  e.why);
    CHECK_MESSAGE(!self_check_new(h, &s.g, &s.config, &options, &check, &e), "%s", e.why);
    for (size_t i = 0; check && i < count; i++)
        CHECK_MESSAGE(strstr(self_check_name(check, i), "attention"), "%s", self_check_name(check, i));
    self_check_free(check);
    close_subject(&s);
}

/* Experts in slots have a kernel more, and a check for it, which is refused like any other. */
static void test_expert_slots(gpu_host *h) {
    static const char  slots[] = "the slots of experts";
    self_check_options options = quick_check;
    subject            s;
    error              e = { 0 }, refused = { 0 };
    spoiler            none = { 0 }, wrong = { .what = slots, .times = 1, .add = 1000 };
    size_t             without = 0, with = 0, spoiled = 0;
    TEST("%s", slots);
    if (!check_open_model(&s, models[1].path)) return;
    CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &without, &e) == GM_OK, "%s", e.why);
    const size_t pipelines = gpu_pipelines(h);
    options.slots = true;
    CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &with, &e) == GM_OK, "%s", e.why);
    CHECK_MESSAGE(with == without + 1 && gpu_pipelines(h) > pipelines, "%zu checks, %zu without; %zu pipelines", with,
                  without, gpu_pipelines(h) - pipelines);
    CHECK(run_self_check(h, &s, &options, &wrong, &spoiled, &refused) == GM_NO_DEVICE && strstr(refused.why, slots));
    CHECK_MESSAGE(gpu_host_bytes(h) == 0, "%llu bytes are left", (unsigned long long)gpu_host_bytes(h));
    close_subject(&s);
}

/* The sampler's share of a check, for tests/test_broken_kernels.mjs: shaders are broken one at a time. */
static void test_draws(gpu_host *h) {
    subject s;
    error   e = { 0 };
    spoiler none = { 0 };
    size_t  count = 0;
    TEST("draws on a GPU are right");
    if (!open_sampler(&s)) return;
    self_check_options options = quick_check;
    options.quick = false;
    CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &count, &e) == GM_OK, "%s", e.why);
    close_subject(&s);
}

/* The head of a canvas with a quantised table, whose scores are computed in 8 bits. */
static void test_canvas_head_check(gpu_host *h) {
    enum { WIDTH = 512, ROWS = 640, BLOCK = 210, DATA = WIDTH / 256 * ROWS * BLOCK };
    static uint8_t           data[DATA];
    self_check_options       options = quick_check;
    subject                  s;
    graph                    g = { .batched = true };
    error                    e = { 0 };
    static const char *const what[] = { "Q6_K head of a canvas", "Q6_K embeddings" };
    const canvas_rule        rule = { .units = 1, .vocabulary = ROWS };
    spoiler                  none = { 0 };
    size_t                   count = 0;
    for (uint32_t i = 0; i < DATA; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
        if (i % BLOCK >= BLOCK - 2) data[i] = i % BLOCK == BLOCK - 1 ? 0x08 : 0; /* the block's scale */
    }
    TEST("the head of a canvas");
    if (!open_sampler(&s)) return;
    tensor *table = graph_weight(&g, "t", TYPE_Q6_K, (uint64_t[]){ WIDTH, ROWS, 1 }, data);
    tensor *soft = graph_leaf(&g, AXIS_TOKENS, WIDTH, 1), *settings = graph_leaf(&g, AXIS_TOKENS, CANVAS_SETTINGS, 1);
    tensor *before = graph_leaf(&g, AXIS_TOKENS, CANVAS_FINDINGS, 1),
           *state = graph_leaf(&g, AXIS_TOKENS, CANVAS_STATE, 1);
    tensor *ids = graph_canvas_next(&g, before, settings, state, &rule);
    g.result = graph_canvas_head(&g, table, graph_embed_value(&g, table, ids, 1), settings, soft, 30, 1);
    CHECK_MESSAGE(!g.problem.status, "%s", g.problem.why);
    options.canvas = &g;
    options.canvas_length = 64;
    CHECK_MESSAGE(run_self_check(h, &s, &options, &none, &count, &e) == GM_OK, "%s", e.why);
    for (size_t i = 0; i < COUNT_OF(what); i++) {
        spoiler wrong = { .what = what[i], .times = 1, .add = 1000 };
        e = (error){ 0 };
        CHECK_MESSAGE(run_self_check(h, &s, &options, &wrong, &count, &e) == GM_NO_DEVICE, "%s", what[i]);
        CHECK_MESSAGE(strstr(e.why, what[i]), "%s", e.why);
    }
    graph_free(&g);
    close_subject(&s);
}

/* With an argument: only the checks that it names, "draws", "towers", "kv", "slots", "canvas" or "exact". */
int main(int argc, char **argv) {
    static const char *const disabled[] = { NULL, "subgroups,dot4,f16" };
    for (size_t i = 0; i < COUNT_OF(disabled); i++) {
        error     e = { 0 };
        gpu_host *h = NULL;
        TEST("the GPU opens");
        CHECK_MESSAGE(!gpu_host_open(&(gpu_options){ .adapter = -1, .disable = disabled[i] }, &h, &e), "%s", e.why);
        if (!h) return test_end();
        if (argc > 1) {
            if (!strcmp(argv[1], "draws")) test_draws(h);
            else if (!strcmp(argv[1], "slots")) test_expert_slots(h);
            else if (!strcmp(argv[1], "canvas")) test_canvas_head_check(h);
            else if (!strcmp(argv[1], "exact")) test_exact_check(h);
            else if (!strcmp(argv[1], "towers")) test_tower_checks(h, true, 5), test_tower_checks(h, false, 6);
            else test_check_kv(h, TYPE_Q8_0, "q8_0");
            gpu_host_close(h);
            return test_end();
        }
        test_right(h, disabled[i] ? "a GPU without features" : "the GPU", !disabled[i]);
        test_expert_slots(h);
        if (!disabled[i]) {
            test_canvas_head_check(h);
            test_exact_check(h);
            test_check_kv(h, TYPE_Q8_0, "q8_0");
            test_check_kv(h, TYPE_F32, "f32");
            test_tower_checks(h, true, 5);
            test_tower_checks(h, false, 6);
            test_wrong(h, "tests/fixtures/tiny-moe.gguf");
            test_wrong(h, "tests/fixtures/small-dense-Q4_K_M.gguf");
        }
        gpu_host_close(h);
    }
    return test_end();
}
