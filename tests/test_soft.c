/* Soft tokens: images and sounds from a tower, inside a conversation. The logits of the fixtures, batches that keep an image whole, and
 * everything that a session does with them.
 *
 *     test_soft [cpu|gpu] */

#include "distance.h"
#include "session/gpu_memory.h"
#include "session/session.h"
#include "sessions.h"

#include <math.h>
#include <stdlib.h>

static gm_backend device = GM_BACKEND_CPU;

static const char causal[] = "tiny-mm",
                  together[] = "tiny-mm-bidir"; /* whether the tokens of an image see each other */

enum { WIDTH = 64, VOCABULARY = 640, IMAGE = 19, MOST = 1400 };

static gm_engine *open_on(const char *name, gm_backend backend, bool precise, uint64_t gpu_memory) {
    char                    path[80];
    const gm_engine_options options = {
        .model = path, .precise = precise, .threads = 2, .backend = backend, .gpu_memory = gpu_memory
    };
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    return open_engine(&options);
}

static gm_session *open_long(gm_engine *engine, gm_kv_type kv) { return open_session(engine, kv, 3000); }

/* ---- what is held ---- */

/* A conversation is made of these: text from a seed on, or an image that has one. */
typedef struct {
    size_t   count;
    uint32_t seed;
    bool     image;
} part;

static void make_rows(float *rows, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count * WIDTH; i++) {
        seed = seed * 1664525u + 1013904223u;
        rows[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
}

static void hold(gm_session *s, const part *p) {
    error        e = { 0 };
    static float rows[MOST * WIDTH];
    if (p->image) {
        make_rows(rows, p->count, p->seed);
        session_hold_soft(s, IMAGE, rows, p->count, true, &e);
    }
    for (size_t i = 0; i < p->count && !p->image; i++)
        session_hold(s, 300 + (int32_t)((p->seed * 37 + i * i * 7 + i * 13) % 300), &e);
    CHECK_MESSAGE(!e.status, "%s", e.why);
}

static void compute_steps(gm_session *s) {
    error e = { 0 };
    while (session_compute(s, 0, &e) == GM_AGAIN) {} /* returns after every step */
    CHECK_MESSAGE(!e.status, "%s", e.why);
}

/* Holds the parts and computes them, at once or one after the other. */
static void hear(gm_session *s, const part *parts, size_t count, bool one_by_one) {
    for (size_t i = 0; i < count; i++) {
        hold(s, &parts[i]);
        if (one_by_one || i + 1 == count) compute_steps(s);
    }
}

/* The logits of `s` are those of a session that heard just this. */
static void expect_fresh(gm_session *s, const part *parts, size_t count) {
    gm_session *fresh = open_long(s->engine, s->kv.store->type == TYPE_Q8_0 ? GM_KV_Q8_0 : GM_KV_F32);
    hear(fresh, parts, count, false);
    CHECK(s->tokens.count == fresh->tokens.count && s->has_logits && fresh->has_logits);
    CHECK_MESSAGE(distance(s->logits, fresh->logits, VOCABULARY) <= batch_tolerance(device), "the logits differ by %g",
                  distance(s->logits, fresh->logits, VOCABULARY));
    gm_session_free(fresh);
}

/* ---- the fixtures ---- */

static const void *tensor_data(const gguf *file, const char *kind, const char *name, size_t *rows) {
    char full[40];
    snprintf(full, sizeof full, "%s.%s", kind, name);
    const gguf_tensor *t = gguf_find_tensor(file, full);
    CHECK_MESSAGE(t, "no tensor %s", full);
    if (t) *rows = (size_t)(t->ne[1] > 1 ? t->ne[1] : t->ne[0]);
    return t ? gguf_tensor_data(file, t) : NULL;
}

/* `as_image`: whether the soft tokens are held as an image's. */
static double fixture_error(gm_engine *engine, const gguf *file, const char *kind, bool as_image) {
    error          e = { 0 };
    size_t         count = 0, soft_count = 0, rows = 0, begin = 0;
    gm_session    *s = open_long(engine, GM_KV_DEFAULT);
    const int32_t *ids = tensor_data(file, kind, "ids", &count);
    const float   *soft = tensor_data(file, kind, "soft_tokens", &soft_count);
    const float   *want = tensor_data(file, kind, "logits", &rows);
    float         *got = calloc(count, VOCABULARY * sizeof *got);
    double         off = INFINITY;
    if (ids && soft && want && got && rows == count) {
        while (ids[begin] != ids[begin + 1]) begin++; /* the first id that repeats stands for the soft tokens */
        for (size_t i = 0; i < begin; i++) session_hold(s, ids[i], &e);
        session_hold_soft(s, ids[begin], soft, soft_count, as_image, &e);
        for (size_t i = begin + soft_count; i < count; i++) session_hold(s, ids[i], &e);
        CHECK_MESSAGE(!e.status && !session_logits_held(s, got, &e), "%s", e.why);
        off = distance(got, want, count * VOCABULARY);
    }
    free(got);
    gm_session_free(s);
    return off;
}

static void test_fixture(const char *name, bool precise) {
    char  path[80];
    error e = { 0 };
    gguf *file = NULL;
    TEST("%s%s: its prompts", name, precise ? ", precise" : "");
    gm_engine *engine = open_on(name, device, precise, 0);
    snprintf(path, sizeof path, "tests/fixtures/%s.expect.gguf", name);
    CHECK_MESSAGE(!gguf_open_file(path, &file, &e), "%s", e.why);
    if (engine && file) {
        const double most = precise ? 1e-4 : 5e-3, image = fixture_error(engine, file, "image", true),
                     audio = fixture_error(engine, file, "audio", false),
                     otherwise = fixture_error(engine, file, "image", false);
        CHECK_MESSAGE(image <= most, "with an image the logits are off by %g", image);
        CHECK_MESSAGE(audio <= most, "with a sound the logits are off by %g", audio);
        if (name == together) CHECK_MESSAGE(otherwise > 2e-2, "the mask makes a difference of %g only", otherwise);
        else CHECK_MESSAGE(otherwise == image, "the mask makes a difference of %g", otherwise);
    }
    gguf_free(file);
    gm_engine_close(engine);
}

/* ---- batches ---- */

/* Text, then images whose ends fall before, on and behind those of batches, then text. */
static void test_batches(gm_engine *engine, size_t before, size_t first, size_t second, size_t after) {
    TEST("%zu tokens, images of %zu and %zu, %zu tokens: at once and one by one", before, first, second, after);
    const part parts[] = {
        { before, 1, false }, { first, 2, true }, { 2, 3, false }, { second, 4, true }, { after, 5, false }
    };
    gm_session *s = open_long(engine, GM_KV_F32);
    hear(s, parts, COUNT_OF(parts), true);
    expect_fresh(s, parts, COUNT_OF(parts));
    gm_session_free(s);
}

/* What the model says behind the first token of an image depends on the last one, or does not. */
static void test_sight(gm_engine *engine, const char *name, size_t count) {
    TEST("%s: the first of %zu tokens of an image and the last", name, count);
    error        e = { 0 };
    const part   text = { 100, 1, false };
    const size_t all = text.count + count;
    float       *rows = malloc(count * WIDTH * sizeof *rows), *logits[2];
    for (int i = 0; i < 2; i++) {
        gm_session *s = open_long(engine, GM_KV_F32);
        logits[i] = calloc(all, VOCABULARY * sizeof *logits[i]);
        make_rows(rows, count, 7);
        if (i) rows[count * WIDTH - 1] += 1;
        hold(s, &text);
        CHECK(!session_hold_soft(s, IMAGE, rows, count, true, &e) && !session_logits_held(s, logits[i], &e));
        gm_session_free(s);
    }
    const size_t first = text.count * VOCABULARY, row = VOCABULARY * sizeof(float);
    CHECK(!memcmp(logits[0] + first - VOCABULARY, logits[1] + first - VOCABULARY, row)); /* text sees nothing of it */
    CHECK(!memcmp(logits[0] + first, logits[1] + first, row) == (name == causal));
    free(rows);
    free(logits[0]);
    free(logits[1]);
}

/* The largest batches take kernels and rings that others do not: the same on a CPU says whether they are right. */
static void test_against_cpu(gm_engine *engine, gm_kv_type kv) {
    TEST("a long image as on the CPU, K/V type %d", (int)kv);
    const part  parts[] = { { 50, 1, false }, { 300, 2, true }, { 9, 3, false } };
    gm_engine  *cpu = open_on(together, GM_BACKEND_CPU, true, 0);
    gm_session *s = open_long(engine, kv), *t = cpu ? open_long(cpu, kv) : NULL;
    if (t) {
        hear(s, parts, COUNT_OF(parts), false);
        hear(t, parts, COUNT_OF(parts), false);
        const double off = distance(s->logits, t->logits, VOCABULARY);
        CHECK_MESSAGE(off <= (kv == GM_KV_F32 ? 1e-5 : 1e-3), "the logits differ by %g", off);
    }
    gm_session_free(s);
    gm_session_free(t);
    gm_engine_close(cpu);
}

/* ---- all that a session does ---- */

static void test_soft_rollback(gm_engine *engine, size_t image, size_t more) {
    TEST("going back behind, before and far before an image of %zu, after %zu tokens", image, more);
    const part   parts[] = { { 40, 1, false }, { image, 2, true }, { more, 3, false } }, other = { 11, 9, false };
    const size_t end = 40 + image;
    size_t       recompute;
    gm_session  *s = open_long(engine, GM_KV_F32);
    hear(s, parts, 3, false);
    for (size_t keep = 41; keep < end; keep += image - 2) {
        CHECK(gm_session_rollback(s, keep, &recompute, why, sizeof why) == GM_BAD_ARGUMENT);
        CHECK_MESSAGE(strstr(why, "tokens 40 to "), "%s", why);
        CHECK(s->tokens.count == end + more && s->has_logits); /* nothing has changed */
    }
    CHECK(!gm_session_rollback(s, end, &recompute, why, sizeof why));
    error e = { 0 };
    while (session_want_logits(s, INFINITY, &e) == GM_AGAIN) {} /* the image is computed once more, as a whole */
    CHECK_MESSAGE(!e.status, "%s", e.why);
    expect_fresh(s, parts, 2);
    hold(s, &other);
    compute_steps(s);
    expect_fresh(s, (part[]){ parts[0], parts[1], other }, 3);
    CHECK(!gm_session_rollback(s, 40, &recompute, why, sizeof why));
    CHECK(!s->soft.span_count && !s->soft.row_count);
    hear(s, &other, 1, false);
    expect_fresh(s, (part[]){ parts[0], other }, 2);
    gm_session_free(s);
}

static void test_set(gm_engine *engine) {
    TEST("tokens that a session holds stand for its own image");
    const part     parts[] = { { 5, 1, false }, { 20, 2, true }, { 4, 3, false } };
    const int32_t *tokens;
    int32_t        same[30];
    gm_session    *s = open_long(engine, GM_KV_F32), *fresh = open_long(engine, GM_KV_F32);
    gm_status      status;
    hear(s, parts, 3, false);
    CHECK(gm_session_tokens(s, &tokens) == 29);
    CHECK(tokens[5] == IMAGE && tokens[24] == IMAGE);
    memcpy(same, tokens, 29 * sizeof *same);
    same[29] = same[28];
    while ((status = gm_session_set(s, same, 30, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status && s->soft.span_count == 1 && s->soft.row_count == 20, "%s", why);
    while ((status = gm_session_set(s, same, 29, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status && s->soft.span_count == 1 && s->soft.row_count == 20, "%s", why);
    expect_fresh(s, parts, 3);

    TEST("tokens of the same id are not taken for an image in another session");
    while ((status = gm_session_set(fresh, same, 29, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status && !fresh->soft.span_count, "%s", why);
    CHECK(distance(s->logits, fresh->logits, VOCABULARY) > 1e-3);
    gm_session_free(s);
    gm_session_free(fresh);
}

static void test_fork_and_snapshot(gm_engine *engine, gm_kv_type kv, size_t text, size_t image) {
    TEST("forks and snapshots of a session with %zu tokens and an image of %zu, K/V type %d", text, image, (int)kv);
    const part parts[] = { { text, 1, false }, { image, 2, true }, { 30, 3, false }, { 33, 4, true } },
               more = { 7, 5, false };
    const size_t end = text + image;
    gm_session  *s = open_long(engine, kv), *forked = NULL, *restored = open_long(engine, kv);
    error        e = { 0 };
    void        *data = NULL;
    size_t       size = 0;
    hear(s, parts, 4, false);
    CHECK_MESSAGE(!gm_session_fork(s, &forked, why, sizeof why), "%s", why);
    CHECK_MESSAGE(!gm_session_save_buffer(s, &data, &size, why, sizeof why), "%s", why);
    CHECK_MESSAGE(!gm_session_restore_buffer(restored, data, size, why, sizeof why), "%s", why);
    gm_free(data);
    gm_session *all[] = { s, forked, restored };
    const part  other[] = { parts[0], parts[1], parts[2], more };
    float       on[VOCABULARY], back[VOCABULARY]; /* of the first, which is as a fresh one would be */
    for (size_t i = 0; i < 3 && all[i]; i++) {    /* each has all that it takes to go back and on by itself */
        CHECK(all[i]->soft.row_count == image + 33 && all[i]->soft.span_count == 2);
        CHECK_MESSAGE(!gm_session_rollback(all[i], end + 30, NULL, why, sizeof why), "%s", why);
        hear(all[i], &more, 1, false);
        if (i == 0) expect_fresh(s, other, 4);
        if (i == 0) memcpy(on, s->logits, sizeof on);
        CHECK(distance(all[i]->logits, on, VOCABULARY) <= batch_tolerance(device));
        CHECK_MESSAGE(!gm_session_rollback(all[i], end, NULL, why, sizeof why), "%s", why);
        CHECK_MESSAGE(session_want_logits(all[i], INFINITY, &e) == GM_OK, "%s", e.why);
        if (i == 0) expect_fresh(s, parts, 2);
        if (i == 0) memcpy(back, s->logits, sizeof back);
        CHECK(distance(all[i]->logits, back, VOCABULARY) <= batch_tolerance(device));
    }
    for (size_t i = 0; i < 3; i++) gm_session_free(all[i]);
}

static void test_soft_refusals(gm_engine *engine, const char *name) {
    static const struct {
        size_t      count;
        int32_t     id;
        gm_status   status;
        const char *says;
    } cases[] = {
        { 0, IMAGE, GM_BAD_ARGUMENT, "at least one token" },
        { 5, -1, GM_BAD_ARGUMENT, "vocabulary" },
        { 5, VOCABULARY, GM_BAD_ARGUMENT, "vocabulary" },
        { 2999, IMAGE, GM_CONTEXT_FULL, "context" },
        { SESSION_MOST_IMAGE + 1, IMAGE, GM_BAD_ARGUMENT, "1121 tokens is too large" },
    };
    const part  text = { 2, 1, false };
    float      *rows = calloc(3000 * WIDTH, sizeof *rows);
    gm_session *s = open_long(engine, GM_KV_F32);
    hear(s, &text, 1, false);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TEST("%s: an image of %zu tokens, id %d", name, cases[i].count, (int)cases[i].id);
        error      e = { 0 };
        const bool fits = name == causal && cases[i].count > SESSION_MOST_IMAGE && cases[i].count < 2000;
        const bool full = cases[i].status == GM_CONTEXT_FULL && name == together; /* too large comes first */
        session_hold_soft(s, cases[i].id, rows, cases[i].count, true, &e);
        if (fits) CHECK_MESSAGE(!e.status, "%s", e.why);
        else if (full) CHECK_MESSAGE(e.status == GM_BAD_ARGUMENT, "%s", e.why);
        else CHECK_MESSAGE(e.status == cases[i].status && strstr(e.why, cases[i].says), "%s", e.why);
        CHECK(s->tokens.count == (fits ? 2 + cases[i].count : 2) && s->soft.span_count == fits);
    }
    free(rows);
    gm_session_free(s);
}

static void test_soft_cancel(gm_engine *engine) {
    TEST("cancelled before an image: it is not held");
    const part  parts[] = { { 60, 1, false }, { 270, 2, true }, { 30, 3, false } };
    error       e = { 0 };
    gm_session *s = open_long(engine, GM_KV_F32);
    for (size_t i = 0; i < 3; i++) hold(s, &parts[i]);
    while (s->computed < 60 && session_compute(s, 0, &e) == GM_AGAIN) {}
    gm_session_cancel(s);
    CHECK(session_compute(s, INFINITY, &e) == GM_CANCELLED);
    CHECK_MESSAGE(s->tokens.count == 60 && !s->soft.span_count, "%zu tokens, %zu spans", s->tokens.count,
                  s->soft.span_count);
    hear(s, parts + 1, 2, false);
    expect_fresh(s, parts, 3);
    gm_session_free(s);
}

/* Drawing on a GPU goes without logits that come back, from the last token's id: which a soft token has not. */
static void test_drawing(gm_engine *engine) {
    TEST("drawing behind an image, and behind a single soft token");
    const part  parts[] = { { 20, 1, false }, { 40, 2, true }, { 1, 3, true } };
    gm_sampling greedy;
    error       e = { 0 };
    gm_session *s = open_long(engine, GM_KV_F32), *t = open_long(engine, GM_KV_F32);
    gm_sampling_default(engine, &greedy);
    greedy.temperature = 0;
    for (size_t i = 0; i < 3; i++) {
        int32_t got = -1, want = -2;
        hold(s, &parts[i]);
        while (session_next(s, &(draw_wish){ .sampling = &greedy, .most = 1 }, &got, INFINITY, &e) == GM_AGAIN) {}
        hear(t, &parts[i], 1, false);
        CHECK(!session_sample(t, &greedy, &want, &e));
        CHECK_MESSAGE(got == want, "%d and %d: %s", (int)got, (int)want, e.why);
    }
    gm_session_free(s);
    gm_session_free(t);
}

/* With no more GPU memory than it takes, the host looks up all tables: it must not do so for soft tokens. */
static void test_little_memory(const char *name) {
    TEST("%s in little GPU memory", name);
    const part parts[] = { { 30, 1, false }, { 50, 2, true }, { 20, 3, false } };
    gm_engine *engine = open_on(name, device, true, 0);
    uint64_t   least = 0;
    if (!engine) return;
    for (;;) {
        gpu_budget b;
        error      e = { 0 };
        if (gpu_memory_plan(&engine->text, NULL, &engine->weights.config, TYPE_F32, engine->weights.config.context, 0,
                            least ? least - 1 : 0, 0, gpu_host_info(engine->gpu.host), &b, &e))
            break;
        least = b.total;
        gpu_budget_free(&b);
    }
    gm_engine  *little = open_on(name, device, true, least);
    gm_session *s = open_long(engine, GM_KV_F32), *t = little ? open_long(little, GM_KV_F32) : NULL;
    if (t) {
        hear(s, parts, 3, false);
        hear(t, parts, 3, false);
        CHECK(little->budget.outside[BUDGET_HEAD]);
        CHECK_MESSAGE(distance(t->logits, s->logits, VOCABULARY) <= 1e-5, "the logits differ by %g",
                      distance(t->logits, s->logits, VOCABULARY));
    }
    gm_session_free(s);
    gm_session_free(t);
    gm_engine_close(little);
    gm_engine_close(engine);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    const bool on_gpu = device == GM_BACKEND_GPU;
    for (int precise = 0; precise < 2; precise++) {
        test_fixture(causal, precise);
        test_fixture(together, precise);
    }
    TEST("opening");
    gm_engine *bidir = open_on(together, device, true, 0), *plain = open_on(causal, device, true, 0);
    if (!bidir || !plain) return test_end();
    test_batches(bidir, 200, 80, 20, 10); /* the first image would lie across the end of a batch */
    test_batches(bidir, 300, 3, 290, 1);  /* the ring has closed, and is made wider then */
    test_sight(bidir, together, on_gpu ? 100 : 280);
    test_soft_rollback(bidir, 60, 30);
    test_set(bidir);
    test_fork_and_snapshot(bidir, GM_KV_F32, on_gpu ? 40 : 300, on_gpu ? 50 : 290);
    test_soft_refusals(bidir, together);
    test_soft_cancel(bidir);
    test_drawing(bidir);
    if (on_gpu) { /* one in software takes its time: only what is its own */
        test_against_cpu(bidir, GM_KV_F32);
        test_against_cpu(bidir, GM_KV_F16);
        test_little_memory(causal);
    } else {
        test_batches(bidir, 256, 256, 254, 3); /* each is a batch */
        test_batches(bidir, 30, 300, 5, 270);  /* longer than a batch of text */
        test_batches(bidir, 300, SESSION_MOST_IMAGE, 301, 300);
        test_batches(plain, 200, 100, 300, 10); /* these may be cut anywhere */
        test_sight(bidir, together, SESSION_MOST_IMAGE);
        test_sight(plain, causal, 280);
        test_soft_rollback(bidir, 300, 700);
        test_fork_and_snapshot(bidir, GM_KV_Q8_0, 300, 290);
        test_soft_refusals(plain, causal);
    }
    gm_engine_close(bidir);
    gm_engine_close(plain);
    return test_end();
}
