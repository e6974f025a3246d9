/* One store of keys and values for all sessions: what they share, what they copy, what goes when there is no room; and random walks
 * of several sessions against sessions that share nothing.
 *
 *     test_store [cpu|gpu] [steps of the walk] */

#include "dense_model.h"
#include "distance.h"
#include "session/kv_marks.h"
#include "session/session.h"
#include "test.h"

#include <stdlib.h>

enum { VOCABULARY = 640, LONG = 900 };

static char       why[400];
static gm_backend device = GM_BACKEND_CPU;

static gm_engine *open_engine(const char *path) {
    gm_engine *engine = NULL;
    CHECK_MESSAGE(
        !gm_engine_open(&(gm_engine_options){ .model = path, .precise = true, .threads = 1, .backend = device },
                        &engine, why, sizeof why),
        "%s", why);
    if (engine) engine->share_step = 1; /* most tests are about where sessions part, not about the size of a batch */
    return engine;
}

static gm_session *new_session(gm_engine *engine, gm_kv_type kv, uint32_t context) {
    gm_session *s = NULL;
    CHECK_MESSAGE(!gm_session_new(engine, &(gm_session_options){ .kv = kv, .context = context }, &s, why, sizeof why),
                  "%s", why);
    return s;
}

static void set(gm_session *s, const int32_t *tokens, size_t n) {
    gm_status status;
    while ((status = gm_session_set(s, tokens, n, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", why);
}

static void append(gm_session *s, const int32_t *tokens, size_t n) {
    gm_status status;
    while ((status = gm_session_append(s, tokens, n, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", why);
}

static void rollback(gm_session *s, size_t keep) {
    CHECK_MESSAGE(!gm_session_rollback(s, keep, NULL, why, sizeof why), "%s", why);
}

static uint32_t seed;

static uint32_t below(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static void make_tokens(int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) tokens[i] = 300 + (int32_t)below(300);
}

static quant_type type_of(const gm_session *s) { return s->kv.store->type; }

/* Sums of another order may round a key to the f16 next to it, and a GPU has other kernels for other batches. */
static double close_enough(const gm_session *s) {
    if (type_of(s) == TYPE_F32) return device == GM_BACKEND_GPU ? 1e-4 : 1e-5;
    return 1e-3;
}

static gm_session *alone[2]; /* share nothing: F32, F16 */

/* The logits are those of a session that shares nothing. */
static bool is_right(gm_session *s) {
    const int32_t *tokens;
    const size_t   n = gm_session_tokens(s, &tokens);
    const bool     f32 = type_of(s) == TYPE_F32;
    gm_session   **fresh = &alone[!f32];
    if (!n || !gm_session_logits(s)) return true;
    if (!*fresh) *fresh = new_session(s->engine, f32 ? GM_KV_F32 : GM_KV_F16, 0);
    if (!*fresh) return false;
    (*fresh)->shares = false;
    rollback(*fresh, 0);
    set(*fresh, tokens, n);
    const double d = distance(gm_session_logits(s), gm_session_logits(*fresh), VOCABULARY);
    CHECK_MESSAGE(d < close_enough(s), "the logits of %zu tokens differ by %g", n, d);
    return d < close_enough(s);
}

/* Before their engine is closed. */
static void forget_alone(void) {
    for (size_t i = 0; i < 2; i++) {
        gm_session_free(alone[i]);
        alone[i] = NULL;
    }
}

/* ---- what is shared ---- */

static void test_same_prompt(gm_engine *engine) {
    TEST("a session with the same prompt computes its last token");
    int32_t tokens[200];
    make_tokens(tokens, 200);
    gm_session *a = new_session(engine, GM_KV_F32, 0), *b = new_session(engine, GM_KV_F32, 0);
    set(a, tokens, 200);
    tokens[150] ^= 1;
    set(b, tokens, 180);
    CHECK(b->kv.shared == 150 && b->kv.prefix == a->kv.own && a->kv.own->users == 2);
    CHECK(is_right(b));
    set(a, tokens, 100);
    append(a, tokens + 120, 30); /* writes where b reads */
    CHECK(a->kv.shared == 99 && a->kv.prefix == b->kv.prefix && a->kv.own != b->kv.own);
    append(b, tokens, 20);
    CHECK(is_right(a) && is_right(b));

    TEST("what a closed session held is there for the next one");
    const kv_extent *own = b->kv.own;
    gm_session_free(b);
    CHECK(engine->parked == b);
    gm_session *c = new_session(engine, GM_KV_F32, 0);
    set(c, tokens, 180);
    CHECK(c->kv.own == own && is_right(c));
    gm_session_free(a);
    gm_session_free(c);
}

static void test_whole_batches(gm_engine *engine) {
    TEST("sessions share whole batches: their logits are those of a session alone, to the last bit");
    int32_t tokens[600];
    make_tokens(tokens, 600);
    engine->share_step = KV_BATCH;
    gm_session *s[3]; /* the second one begins with what the first one holds, the third one is alone */
    for (size_t i = 0; i < 3; i++) {
        s[i] = new_session(engine, GM_KV_F16, 0);
        s[i]->shares = i < 2;
        tokens[590] ^= i < 2;
        set(s[i], tokens, 600);
    }
    CHECK(s[1]->kv.shared == 512 && s[1]->kv.prefix == s[0]->kv.own && s[2]->kv.shared == 0);
    CHECK(!memcmp(gm_session_logits(s[1]), gm_session_logits(s[2]), VOCABULARY * sizeof(float)));
    for (size_t i = 0; i < 3; i++) gm_session_free(s[i]);
    engine->share_step = 1;
}

static void test_fork(gm_engine *engine) {
    TEST("a fork shares the keys of its parent, and the fork's fork, too");
    int32_t tokens[400];
    make_tokens(tokens, 400);
    gm_session *s = new_session(engine, GM_KV_F32, 0), *twin = NULL, *third = NULL;
    set(s, tokens, 300);
    CHECK(!gm_session_fork(s, &twin, why, sizeof why));
    CHECK(twin->kv.prefix == s->kv.own && twin->kv.shared == 300 && !twin->kv.own);
    append(twin, tokens + 300, 30);
    CHECK(!gm_session_fork(twin, &third, why, sizeof why));
    CHECK(third->kv.prefix == s->kv.own && third->kv.shared == 300 && third->kv.own->used == 30);
    gm_session_free(s);
    append(third, tokens + 330, 10);
    rollback(twin, 200);
    append(twin, tokens + 350, 50);
    CHECK(twin->kv.shared == 200 && is_right(twin) && is_right(third));
    gm_session_free(twin);
    gm_session_free(third);
}

/* Beyond the reach of a ring, the second session computes what the first one has and leaves a mark where they part. */
static void test_branch(gm_engine *engine) {
    TEST("where two long prompts part, a third one goes on");
    int32_t tokens[LONG];
    make_tokens(tokens, LONG);
    gm_session *s[3];
    for (size_t i = 0; i < 3; i++) {
        s[i] = new_session(engine, GM_KV_F32, 0);
        tokens[500] = 310 + (int32_t)i;
        set(s[i], tokens, LONG - 100 * i);
    }
    CHECK(s[1]->kv.shared == 0 && s[2]->kv.shared == 500 && s[2]->kv.prefix == s[1]->kv.own);
    CHECK(is_right(s[1]) && is_right(s[2]));
    for (size_t i = 0; i < 3; i++) gm_session_free(s[i]);
}

static void hold_image(gm_session *s, float value) {
    enum { COUNT = 12 };
    error        e = { 0 };
    const size_t width = s->engine->weights.config.width;
    float       *rows = malloc(COUNT * width * sizeof *rows);
    for (size_t i = 0; i < COUNT * width; i++) rows[i] = (float)below(1000) / 500 - 1;
    rows[0] = value;
    CHECK_MESSAGE(!session_hold_soft(s, 5, rows, COUNT, true, &e), "%s", e.why);
    free(rows);
}

static void test_images(void) {
    TEST("the same image is shared, another is not");
    gm_engine *engine = open_engine("tests/fixtures/tiny-mm-bidir.gguf");
    int32_t    tokens[80];
    if (!engine) return;
    make_tokens(tokens, 80);
    gm_session *s[3];
    for (size_t i = 0; i < 3; i++) {
        const uint32_t before = seed;
        s[i] = new_session(engine, GM_KV_F32, 0);
        set(s[i], tokens, 40);
        hold_image(s[i], i == 2 ? 0.5f : 0.25f);
        append(s[i], tokens + 40, 40);
        if (i < 2) seed = before;
    }
    CHECK(s[1]->kv.prefix == s[0]->kv.own && s[1]->kv.shared > 52 && s[2]->kv.shared <= 40);
    for (size_t i = 0; i < 3; i++) gm_session_free(s[i]);
    gm_engine_close(engine);
}

/* ---- when there is no room ---- */

static void test_room(void) {
    TEST("parked sessions go when there is no room, those closed longest ago first");
    gm_engine  *engine = open_engine("tests/fixtures/tiny-dense.gguf");
    kv_store   *store = NULL;
    error       e = { 0 };
    int32_t     tokens[300];
    gm_session *s[3];
    if (!engine) return;
    CHECK(!engine_store(engine, TYPE_F32, &store, &e));
    const size_t most = store->most[KV_FULL];
    store->most[KV_FULL] = 900;
    for (size_t i = 0; i < 3; i++) {
        make_tokens(tokens, 300);
        s[i] = new_session(engine, GM_KV_F32, 400);
        set(s[i], tokens, 300);
        if (i < 2) gm_session_free(s[i]);
        CHECK(kv_slots_taken(&store->spaces[KV_FULL]) <= 900);
    }
    CHECK(engine->parked == s[1] && !engine->parked->next); /* the first is gone */
    TEST("if all are in use, the error says what is limited");
    gm_session *more = new_session(engine, GM_KV_F32, 400), *last = new_session(engine, GM_KV_F32, 400);
    gm_status   status;
    set(more, tokens, 1);
    make_tokens(tokens, 300);
    while ((status = gm_session_set(last, tokens, 300, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(status == GM_NO_MEMORY && strstr(why, "all sessions together"), "%d: %s", (int)status, why);
    store->most[KV_FULL] = most;
    set(last, tokens, 300);
    CHECK(is_right(last) && is_right(s[2]) && is_right(more));
    gm_session_free(s[2]);
    gm_session_free(more);
    gm_session_free(last);
    forget_alone();
    gm_engine_close(engine);
}

/* ---- random walks ---- */

enum { SESSIONS = 6, CONTEXT = 700 };

typedef struct {
    gm_engine  *engine;
    gm_session *s[SESSIONS];
    int32_t     scratch[CONTEXT];
} walk;

static gm_kv_type walk_type(size_t i) { return i < 4 ? GM_KV_F32 : GM_KV_F16; }

/* Tokens that begin as a session's do, often, and then go their own way. */
static size_t walk_tokens(walk *w) {
    const int32_t    *tokens;
    const gm_session *like = w->s[below(SESSIONS)];
    const size_t      held = like && below(4) ? gm_session_tokens(like, &tokens) : 0;
    const size_t      same = held ? below((uint32_t)held) + 1 : 0;
    size_t            more = below(8) ? 1 + below(30) : 1 + below(400);
    if (device == GM_BACKEND_GPU) more = below(40) ? 1 + more % 16 : 300;
    if (same) memcpy(w->scratch, tokens, same * sizeof *tokens);
    const size_t n = min_size(same + more, CONTEXT);
    make_tokens(w->scratch + same, n - same);
    return n;
}

static void walk_save(walk *w, size_t i) {
    const size_t to = walk_type(i) == GM_KV_F16 ? 4 + below(2) : below(4);
    void        *data = NULL;
    size_t       size = 0;
    if (!w->s[to]) return;
    CHECK_MESSAGE(!gm_session_save_buffer(w->s[i], &data, &size, why, sizeof why), "%s", why);
    CHECK_MESSAGE(!gm_session_restore_buffer(w->s[to], data, size, why, sizeof why), "%s", why);
    gm_free(data);
}

static void walk_fork(walk *w, size_t i) {
    const size_t to = walk_type(i) == GM_KV_F16 ? 4 + below(2) : below(4);
    if (to == i) return;
    gm_session_free(w->s[to]);
    w->s[to] = NULL;
    CHECK_MESSAGE(!gm_session_fork(w->s[i], &w->s[to], why, sizeof why), "%s", why);
}

static void walk_step(walk *w) {
    const size_t   i = below(SESSIONS);
    gm_session    *s = w->s[i];
    const size_t   held = s ? gm_session_tokens(s, NULL) : 0;
    const uint32_t what = below(16);
    if (!s) {
        w->s[i] = new_session(w->engine, walk_type(i), CONTEXT);
    } else if (what < 6) {
        set(s, w->scratch, walk_tokens(w));
    } else if (what < 10) {
        const size_t n = 1 + below(what < 8 ? 3 : 40);
        make_tokens(w->scratch, n);
        if (held + n <= CONTEXT) append(s, w->scratch, n);
    } else if (what < 13) {
        rollback(s, below(2) ? below((uint32_t)held + 1) : held - below((uint32_t)min_size(held + 1, 20)));
    } else if (what == 13) {
        walk_fork(w, i);
    } else if (what == 14) {
        walk_save(w, i);
    } else {
        gm_session_free(s);
        w->s[i] = NULL;
    }
}

/* Every extent in use has its place, and nobody else's. */
static bool store_is_whole(const kv_store *store) {
    for (kv_space space = 0; space < KV_SPACES; space++) {
        size_t at = 0;
        for (const kv_extent *x = store->spaces[space].extents; x; x = x->next) {
            if (x->first < at || !x->count || !x->users || x->used > x->count || x->kept > x->count) return false;
            at = x->first + x->count;
        }
        if (at > store->spaces[space].capacity) return false;
    }
    return true;
}

static void test_walk(gm_engine *engine, size_t steps) {
    TEST("%zu random steps", steps);
    walk         w = { .engine = engine };
    const size_t often = device == GM_BACKEND_GPU ? 20 : 4;
    bool         good = true;
    size_t       shared = 0;
    seed = 4;
    for (size_t step = 0; step < steps && good; step++) {
        walk_step(&w);
        good = !test_bad;
        for (size_t i = 0; i < 2; i++) good &= !engine->stores[i].rows || store_is_whole(&engine->stores[i]);
        for (size_t i = 0; i < SESSIONS; i++) shared += w.s[i] && w.s[i]->kv.shared;
        const size_t i = below(SESSIONS);
        if (step % often == 0 && w.s[i]) good &= is_right(w.s[i]);
        CHECK_MESSAGE(good, "wrong after step %zu", step);
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        if (w.s[i] && good) is_right(w.s[i]);
        gm_session_free(w.s[i]);
    }
    CHECK_MESSAGE(shared > steps / 2 && engine->stores[1].moves > 0, "%zu shared, %u moves", shared,
                  engine->stores[1].moves);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    const size_t steps = argc > 2 ? (size_t)atol(argv[2]) : device == GM_BACKEND_GPU ? 300 : 5000;
    TEST("opening");
    gm_engine *engine = open_engine(dense_model(device));
    if (device == GM_BACKEND_CPU) { /* what a GPU does not do differently */
        test_images();
        test_room();
        if (engine) test_branch(engine);
    }
    if (engine) {
        test_same_prompt(engine);
        test_whole_batches(engine);
        test_fork(engine);
        test_walk(engine, steps);
    }
    forget_alone();
    gm_engine_close(engine);
    return test_end();
}
