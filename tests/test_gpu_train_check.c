/* The check of training: a GPU that is right passes, with dense layers, experts and quantised weights; one that gets any part wrong is refused, with
 * its name. Weights that are not in memory are read. Needs a WebGPU library and a Vulkan driver, like test_gpu_host.
 *
 *     test_gpu_train_check [part of a model's name]      without: all but the quantised model, whose kernels take long to compile */

#include "gguf/gguf.h"
#include "test.h"
#include "train/train_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define USUAL "q,k,v,o,gate,up,down"

/* An engine as far as the check needs it. */
typedef struct {
    gm_engine engine;
    gguf     *file;
} subject;

static bool check_open_subject(subject *s, gpu_host *h, const char *name) {
    error e = { 0 };
    char  path[100];
    *s = (subject){ .engine = { .on_gpu = true, .gpu = { .host = h } } };
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    gm_status status = gguf_open_file(path, &s->file, &e);
    if (!status) status = model_load(s->file, &s->engine.weights, &e);
    if (!status) status = model_text_graph(&s->engine.weights, NULL, &s->engine.text, &e);
    if (!status) status = gpu_backend_list_weights(&s->engine.gpu, &s->engine.text, &e);
    CHECK_MESSAGE(!status, "%s", e.why);
    return !status;
}

static void check_close_subject(subject *s) {
    gpu_backend_clear(&s->engine.gpu);
    graph_free(&s->engine.text);
    model_free(&s->engine.weights);
    gguf_free(s->file);
}

/* ---- a GPU that is wrong ---- */

typedef struct {
    const char *what; /* a part of its name */
    bool        nan;
    size_t      seen;
} fault;

static void make_wrong(void *user, const char *what, float *found, size_t count, const float *expected) {
    fault *f = user;
    (void)expected;
    if (!strstr(what, f->what)) return;
    f->seen++;
    if (f->nan) found[count / 2] = NAN;
    else
        for (size_t i = 0; i < count; i++) found[i] *= 1.2f;
}

static gm_status run_train_check(gm_engine *engine, const train_check_options *o, fault *f, error *e) {
    train_check *c = NULL;
    gm_status    status = train_check_new(engine, o, &c, e);
    if (c && f) train_check_spoil_by(c, make_wrong, f);
    while (c && (status = train_check_step(c, clock_seconds() + 0.05, e)) == GM_AGAIN)
        gpu_host_wait(engine->gpu.host, 20);
    train_check_free(c);
    return status;
}

static void check_wrong(gm_engine *engine, const train_check_options *o) {
    static const fault faults[] = { { "the loss", false, 0 },
                                    { "the gradient of blk.0.attn_k.weight, A", false, 0 },
                                    { "the gradient of blk.1.ffn_down.weight, B", true, 0 },
                                    { "the update of token_embd.weight, A", false, 0 },
                                    { "the update of blk.1.attn_q.weight, B", false, 0 } };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TEST("%s is wrong", faults[i].what);
        fault           f = faults[i];
        error           e = { 0 };
        const gm_status status = run_train_check(engine, o, &f, &e);
        CHECK(f.seen == 1);
        CHECK_MESSAGE(status == GM_NO_DEVICE && strstr(e.why, faults[i].what), "status %d: %s", (int)status, e.why);
    }
}

/* Weights that are in a source only. */
static void check_reading(gm_engine *engine, const train_check_options *o) {
    TEST("weights that are read");
    train_check *c = NULL;
    error        e = { 0 };
    read_order   order;
    gm_status    status;
    weight      *table = &engine->weights.token_embd;
    const weight before = *table;
    const float  nothing[4] = { 0 };
    size_t       asked = 0;
    CHECK(!reads_new(&engine->reads, &e));
    table->data = NULL;
    status = train_check_new(engine, o, &c, &e);
    while (c && (status = train_check_step(c, clock_seconds() + 0.05, &e)) == GM_AGAIN) {
        const uint32_t ticket = reads_next(engine->reads, &order);
        gpu_host_wait(engine->gpu.host, 5);
        if (!ticket) continue;
        asked++;
        CHECK(order.from == before.from && order.offset == before.place && order.length <= before.bytes);
        memcpy(order.memory, before.data ? before.data : nothing, (size_t)order.length);
        reads_answer(engine->reads, ticket, GM_OK, NULL);
    }
    CHECK_MESSAGE(!status && asked == 1, "status %d, %zu reads: %s", (int)status, asked, e.why);
    train_check_free(c);
    *table = before;
    reads_free(engine->reads);
    engine->reads = NULL;
}

int main(int argc, char **argv) {
    static const struct {
        const char         *model;
        train_check_options o;
    } rows[] = {
        { "two-layers", { USUAL ",embedding,head", 3, true, 40 } },
        { "tiny-dense", { USUAL ",per_layer_gate,per_layer_projection,per_layer_model_projection", 4, false, 70 } },
        { "tiny-moe", { USUAL ",experts,router", 2, false, 40 } },
        { "small-dense-Q4_K_M", { USUAL, 16, false, 300 } },
    };
    error     e = { 0 };
    gpu_host *h = NULL;
    TEST("the GPU opens");
    CHECK_MESSAGE(!gpu_host_open(&(gpu_options){ .adapter = -1 }, &h, &e), "%s", e.why);
    for (size_t i = 0; h && i < COUNT_OF(rows); i++) {
        subject s;
        if (argc > 1 ? !strstr(rows[i].model, argv[1]) : !strncmp(rows[i].model, "small", 5)) continue;
        TEST("%s", rows[i].model);
        if (!check_open_subject(&s, h, rows[i].model)) continue;
        const gm_status status = run_train_check(&s.engine, &rows[i].o, NULL, &e);
        CHECK_MESSAGE(!status, "status %d: %s", (int)status, e.why);
        if (!i && !status) {
            check_wrong(&s.engine, &rows[i].o);
            check_reading(&s.engine, &rows[i].o);
        }
        check_close_subject(&s);
    }
    if (h) gpu_host_close(h);
    return test_end();
}
