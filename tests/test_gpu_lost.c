/* A GPU that is lost at an inconvenient moment: the current call reports it, nothing hangs, everything can be closed, and a new engine
 * in the same process continues from the tokens or a snapshot as if nothing had happened. */

#include "base/clock.h"
#include "gpu/host_native.h"
#include "session/session.h"
#include "sessions.h"

#include <stdlib.h>

enum { PROMPT = 60, REPLY = 24 };

static const char *const path = "tests/fixtures/two-layers.gguf";
static const double      patience = 300; /* seconds until a call that keeps saying GM_AGAIN counts as hanging */
static int32_t           prompt[PROMPT];

static bool open_small(conversation *c) {
    return open_conversation(c, &(gm_engine_options){ .model = path, .backend = GM_BACKEND_GPU });
}

static void lose(conversation *c) { CHECK(host_force_loss(c->engine->gpu.host)); }

static gm_status set_patiently(conversation *c, size_t n) {
    const double end = clock_seconds() + patience;
    gm_status    status;
    do status = gm_session_set(c->session, prompt, n, why, sizeof why);
    while (status == GM_AGAIN && clock_seconds() < end);
    return status;
}

/* Greedy tokens behind the prompt; `most` of them, or up to how the reply ended. */
static gm_reply *start_greedy(conversation *c) {
    gm_sampling greedy;
    gm_reply   *reply = NULL;
    gm_sampling_default(c->engine, &greedy);
    greedy.temperature = 0;
    CHECK_MESSAGE(!gm_reply_start_tokens(c->session, prompt, PROMPT,
                                         &(gm_reply_options){ .sampling = &greedy, .max_tokens = REPLY }, &reply, why,
                                         sizeof why),
                  "%s", why);
    return reply;
}

static gm_status next_patiently(gm_reply *reply) {
    const double end = clock_seconds() + patience;
    gm_piece     piece;
    gm_status    status;
    do status = gm_reply_next(reply, &piece, why, sizeof why);
    while (status == GM_AGAIN && clock_seconds() < end);
    return status;
}

static gm_status finish_patiently(gm_reply *reply) {
    gm_status status;
    do status = next_patiently(reply);
    while (status == GM_OK);
    return status;
}

/* What the session holds behind the prompt after a whole reply; -1 where there is nothing. */
static bool write_greedy_reply(conversation *c, int32_t out[REPLY]) {
    gm_reply       *reply = start_greedy(c);
    const int32_t  *tokens;
    const gm_status status = reply ? finish_patiently(reply) : GM_IO;
    const size_t    count = gm_session_tokens(c->session, &tokens);
    CHECK_MESSAGE(status == GM_DONE, "%d %s", status, why);
    for (size_t i = 0; i < REPLY; i++) out[i] = PROMPT + i < count ? tokens[PROMPT + i] : -1;
    gm_reply_free(reply);
    return status == GM_DONE;
}

/* After a loss everything that needs the GPU says so, and what is in main memory can still be read. */
static void check_lost_session(conversation *c) {
    gm_session    *fork = NULL;
    void          *data = NULL;
    size_t         size;
    const int32_t *tokens;
    const int32_t  token = 300;
    const size_t   count = gm_session_tokens(c->session, &tokens);
    CHECK(count <= PROMPT + REPLY && !memcmp(tokens, prompt, min_size(count, PROMPT) * sizeof *tokens));
    CHECK(gm_session_append(c->session, &token, 1, why, sizeof why) == GM_DEVICE_LOST);
    CHECK_MESSAGE(strstr(why, "lost"), "%s", why);
    CHECK(gm_session_save_buffer(c->session, &data, &size, why, sizeof why) == GM_DEVICE_LOST || !count);
    gm_free(data);
    CHECK(gm_session_fork(c->session, &fork, why, sizeof why) == GM_DEVICE_LOST && !fork);
    gm_session_rollback(c->session, 0, NULL, why, sizeof why);
    CHECK(set_patiently(c, 20) == GM_DEVICE_LOST);
}

/* Keeps a GPU that is a CPU busy for seconds, with almost as many bytes behind it as may be in flight: what comes next cannot be
 * done before the loss, however full the machine is. */
static void fill_queue(gpu_host *h, error *e) {
    enum { BYTES = 60 << 20 };
    static const char *const wgsl = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;\n"
                                    "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {\n"
                                    "    for (var i = 0u; i < 30000u; i++) { x[id.x] = x[id.x] * 3u + i; }\n"
                                    "}\n";
    const gpu_id   busy = gpu_buffer_new(h, BYTES, e), pipeline = gpu_pipeline_new(h, "slow", wgsl, NULL, 0, e);
    const gpu_id   group = gpu_group_new(h, pipeline, &(gpu_binding){ 0, busy, 0, BYTES }, 1, e);
    const uint32_t list[] = { GPU_LIST_VERSION, GPU_DISPATCH | 5 << 16, pipeline, group, 256, 1, 1 };
    void          *bytes = calloc(1, BYTES);
    gm_status      status;
    while ((status = gpu_submit(h, list, COUNT_OF(list), e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK(bytes && !status && gpu_buffer_write(h, busy, 0, bytes, BYTES, e) == GM_OK);
    free(bytes);
}

/* A software GPU compiles for seconds after every opening, so an engine that is to be lost has written a reply before. */
static void test_prefill(int32_t want[REPLY]) {
    conversation c;
    error        e = { 0 };
    TEST("an undisturbed reply");
    if (!open_small(&c) || !write_greedy_reply(&c, want)) return;
    TEST("lost during prefill");
    CHECK_MESSAGE(!gm_session_rollback(c.session, 0, NULL, why, sizeof why), "%s", why);
    fill_queue(c.engine->gpu.host, &e);
    const gm_status first = gm_session_set(c.session, prompt, PROMPT, why, sizeof why);
    CHECK_MESSAGE(first == GM_AGAIN, "%d %s", first, why);
    lose(&c);
    const gm_status status = set_patiently(&c, PROMPT);
    CHECK_MESSAGE(status == GM_DEVICE_LOST && strstr(why, "lost on purpose"), "%d %s", status, why);
    check_lost_session(&c);
    close_conversation(&c);
}

static void test_decode(const int32_t want[REPLY], size_t pieces) {
    conversation c;
    int32_t      got[REPLY];
    TEST("after a loss a new engine goes on from the tokens");
    if (!open_small(&c) || !write_greedy_reply(&c, got)) return;
    CHECK(!memcmp(got, want, sizeof got));
    TEST("lost after %zu pieces of a reply", pieces);
    CHECK(set_patiently(&c, PROMPT) == GM_OK);
    gm_reply *reply = start_greedy(&c);
    gm_status status = GM_OK;
    for (size_t i = 0; reply && i < pieces && status == GM_OK; i++) status = next_patiently(reply);
    CHECK_MESSAGE(status == GM_OK, "%d %s", status, why);
    lose(&c);
    if (reply) status = finish_patiently(reply); /* tokens that were there before may still come out */
    CHECK_MESSAGE(status == GM_DEVICE_LOST, "%d %s", status, why);
    if (reply) CHECK(next_patiently(reply) == GM_DEVICE_LOST);
    gm_reply_free(reply);

    const int32_t *tokens;
    const size_t   count = gm_session_tokens(c.session, &tokens);
    if (count > PROMPT) CHECK(!memcmp(tokens + PROMPT, want, (count - PROMPT) * sizeof *tokens));
    check_lost_session(&c);
    close_conversation(&c);
}

static void test_idle(const int32_t want[REPLY]) {
    TEST("lost while nothing is under way; a snapshot goes on where it was taken");
    conversation c, other = { 0 };
    void        *data = NULL;
    size_t       size = 0;
    int32_t      got[REPLY];
    if (!open_small(&c) || !write_greedy_reply(&c, got)) return;
    CHECK_MESSAGE(!gm_session_rollback(c.session, 0, NULL, why, sizeof why), "%s", why);
    CHECK(set_patiently(&c, PROMPT) == GM_OK);
    CHECK_MESSAGE(!gm_session_save_buffer(c.session, &data, &size, why, sizeof why), "%s", why);
    lose(&c);
    if (open_small(&other)) { /* while the dead one is still there */
        CHECK_MESSAGE(!gm_session_restore_buffer(other.session, data, size, why, sizeof why), "%s", why);
        if (write_greedy_reply(&other, got)) CHECK(!memcmp(got, want, sizeof got));
    }
    check_lost_session(&c);
    close_conversation(&c);
    close_conversation(&other);
    gm_free(data);
}

/* A table of zeros that needs more than one piece. */
static void test_upload(void) {
    enum { WIDTH = 4096, ROWS = 2048 };
    error       e = { 0 };
    gpu_backend b;
    graph       g = { 0 };
    float      *zeros = calloc((size_t)WIDTH * ROWS, sizeof *zeros);
    g.result = graph_embed(&g, graph_weight(&g, "zeros", TYPE_F32, (uint64_t[]){ WIDTH, ROWS, 1 }, zeros), 1);
    for (int late = 0; late < 2; late++) {
        TEST("lost %s an upload", late ? "in the middle of" : "before");
        e = (error){ 0 };
        CHECK_MESSAGE(!gpu_backend_open(&b, &(gpu_options){ .adapter = -1 }, false, &e), "%s", e.why);
        if (e.status) break;
        if (late) fill_queue(b.host, &e);
        if (late) CHECK_MESSAGE(gpu_backend_upload(&b, &g, &e) == GM_AGAIN, "%s", e.why);
        CHECK(host_force_loss(b.host));
        const double end = clock_seconds() + patience;
        gm_status    status;
        while ((status = gpu_backend_upload(&b, &g, &e)) == GM_AGAIN && clock_seconds() < end)
            gpu_host_wait(b.host, 100);
        CHECK_MESSAGE(status == GM_DEVICE_LOST && strstr(e.why, "on purpose"), "%d %s", status, e.why);
        gpu_backend_close(&b);
    }
    free(zeros);
    graph_free(&g);
}

/* SwiftShader refuses a buffer of its own limit; other GPUs have an end as well, but not a cheap one. */
static void test_no_memory(void) {
    TEST("no memory while uploading is told with what was asked for");
    error       e = { 0 };
    gpu_backend b;
    graph       g = { 0 };
    CHECK_MESSAGE(!gpu_backend_open(&b, &(gpu_options){ .adapter = -1 }, false, &e), "%s", e.why);
    if (e.status) return;
    if (gpu_host_info(b.host)->software) {
        const uint64_t width = 16384, rows = gpu_host_info(b.host)->max_binding / width / sizeof(float);
        float         *zeros = calloc(width * rows, sizeof *zeros); /* never touched: nothing of it is really there */
        char           bytes[32];
        CHECK(zeros);
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)(width * rows * sizeof *zeros));
        g.result =
            graph_embed(&g, graph_weight(&g, "large.weight", TYPE_F32, (uint64_t[]){ width, rows, 1 }, zeros), 1);
        gm_status status = zeros ? gpu_backend_upload(&b, &g, &e) : GM_OK;
        CHECK_MESSAGE(status == GM_NO_MEMORY && strstr(e.why, bytes) && strstr(e.why, "large.weight"), "%d %s", status,
                      e.why);
        graph_free(&g);
        free(zeros);
        gpu_backend_clear(&b);
        CHECK(gpu_host_bytes(b.host) == 0);
    }
    gpu_backend_close(&b);
}

int main(void) {
    int32_t want[REPLY] = { 0 };
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(300 + i * 37 % 300);
    test_prefill(want);
    test_decode(want, 5);
    test_idle(want);
    test_upload();
    test_no_memory();
    return test_end();
}
