/* Memory that runs out, and memory that must not be asked for. The linker puts these wrappers between the engine and the
 * allocator (-Wl,--wrap), so that the n-th request can be made to fail, and requests can be counted. */

#include "session/session.h"

#include "load_host.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

static long requests, fail_at = -1;

static bool refuse_allocation(void) { return requests++ == fail_at; }

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);

void *__wrap_malloc(size_t n) { return refuse_allocation() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return refuse_allocation() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return refuse_allocation() ? NULL : __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t alignment, size_t n) {
    return refuse_allocation() ? NULL : __real_aligned_alloc(alignment, n);
}

static char why[400];
static char saved[] = "/tmp/gemmule-faults-XXXXXX";

/* What the replies said. */
static char   said[4000];
static size_t said_length;

/* Reads a reply to its end and frees it. */
static gm_status finish_reply(gm_reply *reply) {
    gm_piece  piece;
    gm_status status;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {
        if (status == GM_AGAIN || piece.kind == GM_PIECE_PROGRESS || said_length + piece.length >= sizeof said)
            continue;
        memcpy(said + said_length, piece.text, piece.length);
        said_length += piece.length;
    }
    gm_reply_free(reply);
    return status == GM_DONE ? GM_OK : status;
}

/* Everything that a program does with the library, once; the first failure ends it. */
static gm_status use_everything(const char *path) {
    gm_engine             *engine = NULL;
    gm_session            *s = NULL, *twin = NULL;
    gm_reply              *reply = NULL;
    void                  *snapshot = NULL;
    char                  *text = NULL;
    size_t                 size = 0, count;
    int32_t                ids[600];
    const gm_message       hello[] = { { .role = "user", .content = "Hello" } };
    const char *const      stop[] = { "zzz" };
    const gm_reply_options options = { .max_tokens = 5,
                                       .stop = stop,
                                       .stop_count = 1,
                                       .logprobs = 2,
                                       .think = true,
                                       .tools =
                                           "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                           "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]" };
    said_length = 0;
    for (size_t i = 0; i < 600; i++) ids[i] = 300 + (int32_t)(i % 100);
    gm_status status = gm_engine_open(&(gm_engine_options){ .model = path, .backend = GM_BACKEND_CPU, .threads = 2 },
                                      &engine, why, sizeof why);
    if (!status) status = gm_tokenize(engine, "some text", 9, false, ids, 600, &count, why, sizeof why);
    if (!status) status = gm_session_new(engine, NULL, &s, why, sizeof why);
    while (!status && (status = gm_session_set(s, ids, 600, why, sizeof why)) == GM_AGAIN) status = GM_OK;
    if (!status) status = gm_session_fork(s, &twin, why, sizeof why);
    if (!status) status = gm_session_save_buffer(s, &snapshot, &size, why, sizeof why);
    if (!status) status = gm_session_restore_buffer(twin, snapshot, size, why, sizeof why);
    if (!status) status = gm_session_save(s, saved, why, sizeof why);
    if (!status) status = gm_session_restore(twin, saved, why, sizeof why);
    if (!status) status = gm_render(engine, hello, 1, &options, &text, why, sizeof why);
    if (!status) status = gm_reply_start(s, hello, 1, &options, &reply, why, sizeof why);
    if (!status) status = finish_reply(reply);
    if (!status) status = gm_reply_start_tokens(twin, ids, 20, &options, &reply, why, sizeof why);
    if (!status) status = finish_reply(reply);
    gm_free(snapshot);
    gm_free(text);
    gm_session_free(twin);
    gm_session_free(s);
    gm_engine_close(engine);
    return status;
}

/* The same file in pieces, and a session that reads rows of the per-layer table as it goes. */
static gm_status open_by_pieces(const uint8_t *bytes, size_t size) {
    error             e = { 0 };
    load_host         h = { .bytes = { bytes }, .sizes = { size }, .parts = 1 };
    gm_engine_options options = { .backend = GM_BACKEND_CPU, .threads = 1 };
    engine_load      *load = NULL;
    gm_engine        *engine = NULL;
    gm_session       *s = NULL;
    int32_t           ids[20];
    for (int32_t i = 0; i < 20; i++) ids[i] = 300 + i;
    gm_status status = load_host_start(&h, &(load_options){ .engine = &options, .memory = 900000 }, 50000, &load, &e);
    if (!status) status = load_host_run(&h, load, &engine, &e);
    if (!status) status = gm_session_new(engine, NULL, &s, e.why, sizeof e.why);
    if (!status) status = load_host_set(&h, s, ids, 20, &e);
    gm_session_free(s);
    gm_engine_close(engine);
    snprintf(why, sizeof why, "%s", e.why);
    return status;
}

static void test_faults_in_pieces(const char *path) {
    TEST("each request for memory may fail while %s comes in pieces", path);
    static uint8_t bytes[2 << 20];
    FILE          *file = fopen(path, "rb");
    const size_t   size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    CHECK(size && size < sizeof bytes);
    if (file) fclose(file);
    fail_at = -1;
    requests = 0;
    CHECK_MESSAGE(open_by_pieces(bytes, size) == GM_OK, "%s", why);
    const long all = requests;
    CHECK(all > 50);
    for (fail_at = 0; fail_at < all; fail_at++) {
        requests = 0;
        *why = 0;
        const gm_status status = open_by_pieces(bytes, size);
        CHECK_MESSAGE(status == GM_OK || (status == GM_NO_MEMORY && strstr(why, "memory")), "request %ld: %d '%s'",
                      fail_at, status, why); /* a mark is done without */
    }
    fail_at = -1;
}

static void test_running_out(const char *path) {
    TEST("each request for memory may fail: %s", path);
    fail_at = -1;
    requests = 0;
    CHECK_MESSAGE(use_everything(path) == GM_OK, "%s", why);
    const long   all = requests;
    char         want[sizeof said];
    const size_t want_length = said_length;
    memcpy(want, said, want_length);
    CHECK(all > 50 && want_length > 5);
    for (fail_at = 0; fail_at < all; fail_at++) {
        requests = 0;
        *why = 0;
        const gm_status status = use_everything(path);
        /* A mark that finds no memory is done without; everything else says so. */
        CHECK_MESSAGE(status == GM_NO_MEMORY || status == GM_OK, "request %ld: %s: %s", fail_at, gm_status_name(status),
                      why);
        CHECK_MESSAGE(status == GM_OK || strstr(why, "memory"), "request %ld: %s", fail_at, why);
        CHECK_MESSAGE(status || (said_length == want_length && !memcmp(said, want, want_length)),
                      "request %ld: success, but it says '%.*s' instead of '%.*s'", fail_at, (int)said_length, said,
                      (int)want_length, want);
    }
    fail_at = -1;
}

static void test_decode_loop(const char *path) {
    TEST("decoding asks for no memory: %s", path);
    gm_engine  *engine = NULL;
    gm_session *s = NULL;
    int32_t     ids[20];
    gm_sampling sampling;
    for (size_t i = 0; i < 20; i++) ids[i] = 300 + (int32_t)i;
    CHECK(!gm_engine_open(&(gm_engine_options){ .model = path, .backend = GM_BACKEND_CPU, .threads = 2 }, &engine, why,
                          sizeof why));
    CHECK(!gm_session_new(engine, NULL, &s, why, sizeof why));
    while (gm_session_set(s, ids, 20, why, sizeof why) == GM_AGAIN) {}
    gm_sampling_default(engine, &sampling);
    sampling.repetition_penalty = 1.1f;
    token_list_add(&s->tokens, 0); /* the list of tokens grows by doubling: let it have its room first */
    while (s->tokens.capacity < 256) token_list_add(&s->tokens, 0);
    s->tokens.count = 20;
    const long before = requests;
    for (int i = 0; i < 100; i++) {
        gm_token_logprob chosen;
        CHECK(!gm_session_sample(s, &sampling, &chosen, NULL, 0, why, sizeof why));
        while (gm_session_append(s, &chosen.token, 1, why, sizeof why) == GM_AGAIN) {}
    }
    CHECK(gm_session_tokens(s, NULL) == 120);
    CHECK_MESSAGE(requests == before, "%ld requests", requests - before);
    gm_session_free(s);
    gm_engine_close(engine);
}

int main(void) {
    static const char *const files[] = { "tests/fixtures/tiny-dense.gguf", "tests/fixtures/tiny-moe.gguf" };
    close(mkstemp(saved));
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        test_running_out(files[i]);
        if (!i) test_faults_in_pieces(files[i]);
        test_decode_loop(files[i]);
    }
    remove(saved);
    return test_end();
}
