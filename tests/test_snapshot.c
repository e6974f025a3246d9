/* Snapshots that are damaged, crafted, torn, or written by two at once. */

#include "session/session.h"
#include "sessions.h"

#include "base/sha256.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { HELD = 60 };

static gm_engine *engine;

/* A session of the engine that holds n tokens. `shares`: it may begin with what others hold, and they with what it holds. */
static gm_session *session_with(size_t n, uint32_t seed, bool shares) {
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    s->shares = shares;
    int32_t *tokens = malloc(n * sizeof *tokens);
    make_tokens(tokens, n, seed);
    CHECK(!set_tokens(s, tokens, n) && gm_session_tokens(s, NULL) == n && gm_session_logits(s));
    free(tokens);
    return s;
}

static gm_session *session_of(size_t n, uint32_t seed) { return session_with(n, seed, false); }

static uint8_t *saved(gm_session *s, size_t *size) {
    void *data = NULL;
    CHECK_MESSAGE(!gm_session_save_buffer(s, &data, size, why, sizeof why), "%s", why);
    return data;
}

static gm_status restore_bytes(gm_session *s, const void *data, size_t size) {
    return gm_session_restore_buffer(s, data, size, why, sizeof why);
}

/* What somebody does who changes a snapshot and knows about its digest. */
static void seal(uint8_t *data, size_t size) {
    sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, data, size - GGUF_SEAL_BYTES);
    sha256_end(&hash, data + size - GGUF_SEAL_BYTES);
}

/* The value of a key: behind its name and type. */
static uint8_t *find_value_bytes(uint8_t *data, size_t size, const char *key) {
    uint8_t *at = memmem(data, size, key, strlen(key));
    CHECK(at != NULL);
    return at ? at + strlen(key) + sizeof(uint32_t) : data;
}

static void test_seal(void) {
    TEST("every damaged byte is noticed");
    size_t      size = 0;
    gm_session *s = session_of(HELD, 1), *target = session_of(7, 2);
    uint8_t    *data = saved(s, &size);
    for (size_t at = 0; at < size; at += at < 1000 || size - at < 100 ? 1 : 61) {
        data[at] ^= 1;
        CHECK_MESSAGE(restore_bytes(target, data, size), "byte %zu of %zu", at, size);
        data[at] ^= 1;
    }
    CHECK(gm_session_tokens(target, NULL) == 7);
    CHECK_MESSAGE(!restore_bytes(target, data, size) && gm_session_tokens(target, NULL) == HELD, "%s", why);

    TEST("two snapshots that were mixed up are noticed");
    gm_session *other = session_of(HELD, 3);
    size_t      other_size = 0;
    uint8_t    *mixed = saved(other, &other_size);
    CHECK(other_size == size && memcmp(mixed, data, size));
    memcpy(mixed, data, size / 2);
    CHECK(restore_bytes(target, mixed, size) == GM_BAD_FILE && strstr(why, "damaged"));
    gm_free(mixed);
    gm_free(data);
    gm_session_free(s);
    gm_session_free(other);
    gm_session_free(target);
}

static void test_crafted(void) {
    TEST("rings that lack what the window needs are refused");
    size_t         size = 0;
    gm_session    *s = session_of(HELD, 1), *target = session_of(7, 2);
    uint8_t       *data = saved(s, &size);
    const uint64_t window = engine->weights.config.window;
    for (uint64_t first = HELD + 1 - window + 1; first <= HELD + 1; first++) {
        memcpy(find_value_bytes(data, size, "session.ring_first"), &first, sizeof first);
        seal(data, size);
        CHECK_MESSAGE(restore_bytes(target, data, size) == GM_BAD_FILE && strstr(why, "contradicts itself"), "%llu: %s",
                      (unsigned long long)first, why);
    }
    gm_free(data);

    TEST("logits that are no numbers are refused");
    data = saved(s, &size);
    uint8_t    *at = memmem(data, size, gm_session_logits(s), 64);
    const float bad[] = { -INFINITY, NAN };
    for (size_t i = 0; i < COUNT_OF(bad) && at; i++) {
        memcpy(at + 40, &bad[i], sizeof bad[i]);
        seal(data, size);
        CHECK(restore_bytes(target, data, size) == GM_BAD_FILE && strstr(why, "token 10"));
    }
    CHECK(at && gm_session_tokens(target, NULL) == 7);
    gm_free(data);
    gm_session_free(s);
    gm_session_free(target);
}

static void test_apart(void) {
    TEST("keys and values of a snapshot stay in the session that restored it, and in its forks");
    size_t       size = 0;
    gm_session  *s = session_of(HELD, 4), *target = session_with(7, 2, true), *fork = NULL;
    uint8_t     *data = saved(s, &size);
    const size_t bytes = engine->weights.config.vocabulary * sizeof(float);
    float       *want = malloc(bytes);
    memcpy(want, gm_session_logits(s), bytes);
    memset(data + size - GGUF_SEAL_BYTES - 4096, 0x3c, 4096); /* values of the last layers: ones */
    seal(data, size);
    CHECK_MESSAGE(!restore_bytes(target, data, size), "%s", why);
    CHECK(!gm_session_fork(target, &fork, why, sizeof why));
    gm_session_free(s);
    gm_session_free(fork);
    gm_session *fresh = session_with(HELD, 4, true); /* the same tokens */
    double      most = 0;
    for (size_t i = 0; i < bytes / sizeof *want; i++) most = fmax(most, fabs(gm_session_logits(fresh)[i] - want[i]));
    CHECK_MESSAGE(most < 1e-4, "they differ by %g", most);
    free(want);
    gm_free(data);
    gm_session_free(target);
    gm_session_free(fresh);
}

static uint64_t state = 7;

static uint32_t dice(uint32_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

static void test_mutated(void) {
    TEST("a crafted snapshot gives an error or a session that can be used");
    static const uint8_t odd[] = { 0, 1, 255, 127, 128, 64, 40, 39, 41 };
    size_t               size = 0, used = 0;
    gm_session          *s = session_of(HELD, 1), *target = open_session(engine, GM_KV_DEFAULT, 0);
    uint8_t             *data = saved(s, &size), *changed = malloc(size);
    const int32_t        more[] = { 305, 306, 307 };
    for (int round = 0; round < 1500; round++) {
        memcpy(changed, data, size);
        for (uint32_t i = dice(4); i < 4; i++) {
            const size_t at = dice(10) < 8 ? dice(1200) : dice((uint32_t)size);
            if (dice(2)) changed[at] = odd[dice(COUNT_OF(odd))];
            else changed[at] ^= (uint8_t)(1 << dice(8));
        }
        const uint64_t number = dice(2) ? dice(HELD + 5) : (uint64_t)dice(1u << 31) << dice(33);
        if (!dice(3))
            memcpy(find_value_bytes(data, size, dice(2) ? "session.computed" : "session.ring_first") - data + changed,
                   &number, sizeof number);
        seal(changed, size);
        if (restore_bytes(target, changed, size)) continue;
        used++;
        while (gm_session_append(target, more, 3, why, sizeof why) == GM_AGAIN) {}
        gm_session_rollback(target, dice(3), NULL, why, sizeof why);
        while (gm_session_set(target, more, 3, why, sizeof why) == GM_AGAIN) {}
    }
    CHECK_MESSAGE(used > 50 && used < 1450, "%zu could be used", used);
    free(changed);
    gm_free(data);
    gm_session_free(s);
    gm_session_free(target);
}

/* ---- two that save to one path ---- */

static char folder[] = "/tmp/gemmule-snapshots-XXXXXX", path[60];

static void *save_often(void *session) {
    void *failed = NULL;
    for (int i = 0; i < 60; i++) {
        char reason[400];
        if (gm_session_save(session, path, reason, sizeof reason)) failed = session;
    }
    return failed;
}

static size_t files_in_folder(void) {
    size_t count = 0;
    DIR   *all = opendir(folder);
    while (all && readdir(all)) count++;
    if (all) closedir(all);
    return count - 2; /* itself, and the one above */
}

static bool is_one_of(gm_session *const sessions[2]) {
    static uint8_t bytes[1 << 21];
    bool           found = false;
    FILE          *file = fopen(path, "rb");
    const size_t   n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file) fclose(file);
    for (int i = 0; i < 2; i++) {
        size_t   size = 0;
        uint8_t *want = saved(sessions[i], &size);
        found = found || (n == size && !memcmp(bytes, want, n));
        gm_free(want);
    }
    return found;
}

static void test_one_path(void) {
    TEST("of two that save to one path, one is there as a whole");
    gm_session *sessions[2] = { session_of(100, 1), session_of(700, 2) };
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/same.gguf", folder);
    for (int round = 0; round < 8; round++) {
        pthread_t threads[2];
        void     *failed = NULL;
        for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, save_often, sessions[i]));
        for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], &failed) && !failed);
        CHECK(is_one_of(sessions));
    }
    CHECK_MESSAGE(files_in_folder() == 1, "%zu files", files_in_folder());
    remove(path);
    rmdir(folder);
    gm_session_free(sessions[0]);
    gm_session_free(sessions[1]);
}

int main(void) {
    TEST("opening");
    CHECK_MESSAGE(
        !gm_engine_open(
            &(gm_engine_options){ .model = "tests/fixtures/tiny-dense.gguf", .backend = GM_BACKEND_CPU, .threads = 1 },
            &engine, why, sizeof why),
        "%s", why);
    if (!engine) return test_end();
    test_seal();
    test_crafted();
    test_apart();
    test_mutated();
    test_one_path();
    gm_engine_close(engine);
    return test_end();
}
