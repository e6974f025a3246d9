/* GM_BACKEND_AUTO: which device an engine gets when nobody names one, and what gm_engine_info says about it.
 *
 * The only GPU here is software. The functions below come between the engine and its host, so that it pretends to be hardware, and
 * fails in the ways that real ones fail. */

#include "distance.h"
#include "quick_gpu.h"
#include "session/session.h"
#include "session/tower.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    bool     hardware;    /* the GPU says that it is */
    bool     wrong;       /* its products are wrong */
    bool     wrong_kv;    /* its attention is, with q8_0 keys and values */
    bool     wrong_tower; /* the columns of patches are */
    bool     refuses;     /* its compiler refuses a shader */
    uint64_t memory;      /* bytes that it has; 0: any */
} pretended;

static gpu_info shown;

const gpu_info *__real_gpu_host_info(const gpu_host *h);
gpu_id          __real_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                                        size_t count, error *e);
const gpu_info *__wrap_gpu_host_info(const gpu_host *h);
gpu_id          __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                                        size_t count, error *e);

static void pretend(gpu_options *asked) {
    if (pretended.hardware) asked->hardware = false;
    if (pretended.memory) asked->memory = pretended.memory;
}

const gpu_info *__wrap_gpu_host_info(const gpu_host *h) {
    shown = *__real_gpu_host_info(h);
    if (pretended.hardware) shown.software = false;
    return &shown;
}

gpu_id __wrap_gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, error *e) {
    const char *at = pretended.wrong ? strstr(wgsl, "sums.x += chunk_dot(") : NULL;
    const char *kv = pretended.wrong_kv ? strstr(wgsl, "* bitcast<f32>(words.y)") : NULL;
    const char *column = pretended.wrong_tower ? strstr(wgsl, "along = run.records[at.y].id") : NULL;
    char       *text = strdup(wgsl);
    if (!text) return fail_memory(e, "a shader", strlen(wgsl)), 0;
    if (at) text[at - wgsl + strlen("sums.x ")] = '-';
    if (kv) text[kv - wgsl] = '-';
    if (column) memcpy(text + (column - wgsl) + strlen("along = run.records[at.y]."), "at", 2);
    if (pretended.refuses && !strcmp(label, "norm.wgsl")) text[0] = '!';
    const gpu_id id = __real_gpu_pipeline_new(h, label, text, constants, count, e);
    free(text);
    return id;
}

/* With zeros behind it that take no space: AUTO looks for a GPU only for models of at least 128 MiB. */
static char model_file[] = "/tmp/gemmule-auto-XXXXXX";

static bool make_model(off_t bytes) {
    FILE *from = fopen("tests/fixtures/tiny-dense.gguf", "rb"), *to = fopen(model_file, "wb");
    char  piece[65536];
    bool  good = from && to;
    for (size_t n; good && (n = fread(piece, 1, sizeof piece, from));) good = fwrite(piece, 1, n, to) == n;
    if (from) fclose(from);
    if (to && fclose(to)) good = false;
    return good && (!bytes || !truncate(model_file, bytes));
}

/* Opens with these options, has it say something, and compares device and reason. */
static void expect_device(gm_engine_options options, const char *device, const char *why) {
    gm_engine     *engine = NULL;
    gm_session    *session = NULL;
    gm_engine_info info;
    char           problem[600] = "";
    options.model = model_file;
    options.threads = 1;
    const gm_status status = gm_engine_open(&options, &engine, problem, sizeof problem);
    CHECK_MESSAGE(!status, "%s", problem);
    if (status) return;
    gm_engine_get_info(engine, &info);
    CHECK_MESSAGE(!strncmp(info.device, device, strlen(device)), "%s", info.device);
    CHECK_MESSAGE(*why ? strstr(info.why_device, why) != NULL : !*info.why_device, "%s", info.why_device);
    const int32_t tokens[] = { 2, 10, 20, 30 };
    CHECK_MESSAGE(!gm_session_new(engine, NULL, &session, problem, sizeof problem), "%s", problem);
    gm_status run;
    while ((run = gm_session_set(session, tokens, 4, problem, sizeof problem)) == GM_AGAIN) {}
    CHECK_MESSAGE(!run, "%s", problem);
    gm_session_free(session);
    gm_engine_close(engine);
}

enum { VOCABULARY = 640 };

static gm_session *session_with_kv(gm_engine *engine, gm_kv_type kv) {
    gm_session *session = NULL;
    char        why[600] = "";
    CHECK_MESSAGE(!gm_session_new(engine, &(gm_session_options){ .kv = kv }, &session, why, sizeof why), "%s", why);
    return session;
}

static gm_status compute_three(gm_session *session, error *e) {
    static const int32_t tokens[] = { 2, 10, 20 };
    gm_status            status;
    while ((status = gm_session_set(session, tokens, 3, e->why, sizeof e->why)) == GM_AGAIN) {}
    return status;
}

/* The GPU computes one more token and draws the next, as in a reply. */
static gm_status draw(gm_session *session, error *e) {
    gm_sampling     sampling;
    const draw_wish wish = { .sampling = &sampling, .most = 1 };
    int32_t         token;
    gm_sampling_default(session->engine, &sampling);
    engine_enter(session->engine);
    gm_status status = session_hold(session, 30, e);
    if (!status)
        while ((status = session_next(session, &wish, &token, engine_deadline(session->engine), e)) == GM_AGAIN) {}
    engine_leave(session->engine);
    return status;
}

/* A session with q8_0 keys and values computes or draws first; the other call follows. Either both work or both are refused. */
static void expect_q8_0(gm_engine *engine, bool draws_first, bool right) {
    gm_session *session = session_with_kv(engine, GM_KV_Q8_0);
    for (int i = 0; session && i < 2; i++) {
        error           e = { 0 };
        const gm_status status = (i == 0) == draws_first ? draw(session, &e) : compute_three(session, &e);
        CHECK_MESSAGE(status == (right ? GM_OK : GM_NO_DEVICE), "%d: %s", (int)status, e.why);
        CHECK_MESSAGE(right || (strstr(e.why, "Q8_0 keys and values") && strstr(e.why, "wrongly")), "%s", e.why);
    }
    gm_session_free(session);
}

/* A session with f16 keys and values computes these logits, and draws. */
static void expect_usual(gm_session *session, const float *logits) {
    error e = { 0 };
    CHECK_MESSAGE(!compute_three(session, &e), "%s", e.why);
    CHECK(gm_session_logits(session) && distance(gm_session_logits(session), logits, VOCABULARY) < 1e-6);
    CHECK_MESSAGE(!draw(session, &e), "%s", e.why);
}

/* The engine opens, and sessions with f16 compute before and after; those with q8_0 are refused each time if the GPU is wrong.
 * An engine checks q8_0 once, in the first call that needs it, so each kind of first call takes an engine of its own. */
static void test_auto_kv(bool draws_first, bool right) {
    gm_engine *engine = NULL;
    char       why[600] = "";
    float      logits[VOCABULARY];
    pretended.wrong_kv = !right;
    const gm_engine_options options = { .model = model_file, .backend = GM_BACKEND_GPU };
    const gm_status         status = gm_engine_open(&options, &engine, why, sizeof why);
    CHECK_MESSAGE(!status, "%s", why);
    if (status) return;
    gm_session *before = session_with_kv(engine, GM_KV_F16);
    error       e = { 0 };
    CHECK_MESSAGE(!compute_three(before, &e), "%s", e.why);
    memcpy(logits, gm_session_logits(before), sizeof logits);

    expect_q8_0(engine, draws_first, right);
    expect_q8_0(engine, !draws_first, right);

    gm_session *after = session_with_kv(engine, GM_KV_F16);
    expect_usual(after, logits);
    expect_usual(before, logits);
    gm_session_free(after);
    gm_session_free(before);
    gm_engine_close(engine);
    pretended.wrong_kv = false;
}

/* Towers are checked when they are first needed: text does not wait for it. */
static void test_wrong_tower(void) {
    static uint8_t          pixels[48 * 48 * 3];
    const tower_picture     shown_picture = { .width = 48, .height = 48, .pixels = pixels };
    const gm_engine_options options = { .model = "tests/fixtures/tiny-mm.gguf",
                                        .mmproj = "tests/fixtures/tiny-mm.mmproj.gguf",
                                        .backend = GM_BACKEND_GPU };
    gm_engine              *engine = NULL;
    error                   e = { 0 };
    quick_gpu_checks = false;
    CHECK_MESSAGE(!gm_engine_open(&options, &engine, e.why, sizeof e.why), "%s", e.why);
    quick_gpu_checks = true;
    pretended.hardware = pretended.wrong_tower = true;
    for (int i = 0; i < 2 && engine; i++) { /* the second time it is known */
        tower_job *job = NULL;
        e = (error){ 0 };
        engine_enter(engine);
        gm_status status = tower_encode_pictures(engine, &shown_picture, 1, &job, &e);
        if (!status)
            while ((status = tower_job_step(job, &e)) == GM_AGAIN) {}
        CHECK_MESSAGE(status == GM_NO_DEVICE && strstr(e.why, "the vision tower's rope_table"), "%s", e.why);
        tower_job_free(job);
        engine_leave(engine);
    }
    pretended.hardware = pretended.wrong_tower = false;
    gm_session *session = engine ? session_with_kv(engine, GM_KV_F16) : NULL;
    CHECK_MESSAGE(session && !compute_three(session, &e), "%s", e.why);
    gm_session_free(session);
    gm_engine_close(engine);
}

/* What gm_engine_open told about its progress. */
typedef struct {
    size_t   weights, shaders; /* how often */
    uint64_t done;             /* shaders, the last time */
    bool     gives_up;         /* once shaders compile */
} opening_seen;

static bool see_opening(void *user, const gm_opening *now) {
    opening_seen *seen = user;
    CHECK_MESSAGE(now->done <= now->total, "%llu of %llu", (unsigned long long)now->done,
                  (unsigned long long)now->total);
    if (!now->total) return true;
    if (now->phase == GM_OPENING_WEIGHTS) {
        CHECK(!seen->shaders);
        seen->weights++;
        return true;
    }
    CHECK(now->done >= seen->done);
    seen->done = now->done;
    seen->shaders++;
    return !seen->gives_up;
}

/* Opening compiles in the background what the first answers need: afterwards they compile nothing. */
static void test_opening(void) {
    static const int32_t prompt[20] = { 2, 10, 20, 30, 11, 21, 31, 12, 22, 32, 13, 23, 33, 14, 24, 34, 15, 25, 35, 16 };
    opening_seen         seen = { 0 };
    gm_engine           *engine = NULL;
    error                e = { 0 };
    gm_engine_options    options = { .model = model_file, .opening = see_opening, .opening_user = &seen };
    const gm_status      status = gm_engine_open(&options, &engine, e.why, sizeof e.why);
    CHECK_MESSAGE(!status, "%s", e.why);
    if (status) return;
    CHECK_MESSAGE(seen.weights && seen.shaders, "%zu times weights, %zu times shaders", seen.weights, seen.shaders);
    gm_engine_info info;
    gm_engine_get_info(engine, &info);
    CHECK_MESSAGE(strstr(info.device, "gpu (SwiftShader") && strstr(info.why_device, "hardware"), "%s",
                  info.why_device);
    gpu_host    *h = engine->gpu.host;
    const size_t count = gpu_pipelines(h);
    gm_session  *session = session_with_kv(engine, GM_KV_F16);
    CHECK(!gpu_pipelines_pending(h));
    CHECK_MESSAGE(!compute_three(session, &e) && !draw(session, &e), "%s", e.why);
    gm_status set;
    while ((set = gm_session_set(session, prompt, COUNT_OF(prompt), e.why, sizeof e.why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!set, "%s", e.why);
    CHECK_MESSAGE(gpu_pipelines(h) == count, "%zu shaders after opening, then %zu", count, gpu_pipelines(h));
    gm_session_free(session);
    gm_engine_close(engine);
}

/* Before anything else has compiled them. */
static void test_giving_up(void) {
    opening_seen            seen = { .gives_up = true };
    gm_engine              *engine = NULL;
    const gm_engine_options options = { .model = model_file, .opening = see_opening, .opening_user = &seen };
    CHECK(gm_engine_open(&options, &engine, NULL, 0) == GM_CANCELLED && !engine && seen.shaders == 1);
}

int main(void) {
    const gm_engine_options automatic = { .backend = GM_BACKEND_AUTO };
    const int               made = mkstemp(model_file);
    quick_gpu_checks = true;
    quick_gpu_alter = pretend;
    TEST("a model");
    CHECK(made >= 0 && !close(made) && make_model(128 << 20));

    TEST("a GPU in software is not taken, and its name is told");
    expect_device(automatic, "cpu (", "SwiftShader");
    expect_device(automatic, "cpu (", "is software");
    TEST("a GPU in software is taken if it is named");
    expect_device((gm_engine_options){ .backend = GM_BACKEND_GPU }, "gpu (SwiftShader", "");
    TEST("and by its number");
    expect_device((gm_engine_options){ .gpu = 1 }, "gpu (SwiftShader", "");

    TEST("keys and values of another type than the usual one");
    test_auto_kv(false, true);
    TEST("a GPU that computes attention wrongly with them only");
    test_auto_kv(false, false);
    test_auto_kv(true, false);

    TEST("a GPU that computes a tower wrongly sees nothing, and still writes");
    test_wrong_tower();

    pretended.hardware = true;
    TEST("opening is given up while shaders compile");
    test_giving_up();
    TEST("a hardware GPU is taken; opening tells how far it is, and leaves nothing to compile for the first answer");
    test_opening();
    TEST("unless the model is small");
    CHECK(make_model(0));
    expect_device(automatic, "cpu (", "the model is small");
    CHECK(make_model(128 << 20));
    TEST("or the CPU is named");
    expect_device((gm_engine_options){ .backend = GM_BACKEND_CPU }, "cpu (", "");
    TEST("or one of its instruction sets");
    expect_device((gm_engine_options){ .cpu = "scalar" }, "cpu (scalar", "");

    pretended.wrong = true;
    TEST("a GPU that computes wrongly is given up for the CPU");
    expect_device(automatic, "cpu (", "wrongly");
    TEST("but a named one is an error");
    gm_engine *engine = NULL;
    char       why[600] = "";
    CHECK(gm_engine_open(&(gm_engine_options){ .model = model_file, .backend = GM_BACKEND_GPU }, &engine, why,
                         sizeof why) == GM_NO_DEVICE);
    CHECK_MESSAGE(!engine && strstr(why, "wrongly"), "%s", why);
    pretended.wrong = false;

    TEST("a GPU whose compiler refuses a shader");
    pretended.refuses = true;
    expect_device(automatic, "cpu (", "norm.wgsl");
    pretended.refuses = false;

    TEST("a GPU whose memory holds the self-check and not the weights");
    pretended.memory = 900 << 10;
    expect_device(automatic, "cpu (", "memory");
    TEST("a GPU whose memory holds the weights and not a conversation");
    pretended.memory = 3 << 20;
    expect_device(automatic, "cpu (", "memory");
    pretended.memory = 0;

    TEST("a limit that leaves nearly all weights in main memory");
    expect_device((gm_engine_options){ .gpu_memory = 3550 << 10 }, "cpu (", "GPU memory");

    TEST("with the name of a library that is not there");
    pretended.hardware = false;
    setenv("GEMMULE_WEBGPU", "/no/such/library.so", 1);
    expect_device(automatic, "cpu (", "GEMMULE_WEBGPU names a library that cannot be loaded: /no/such/library.so");
    TEST("without a driver");
    unsetenv("VK_ICD_FILENAMES");
    expect_device(automatic, "cpu (", "no GPU was found");
    remove(model_file);
    return test_end();
}
