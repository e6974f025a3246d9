/* Several threads on one engine, each with sessions of its own: whole conversations with forks, rollbacks, saves and cancels
 * give the same, bit for bit, as they do alone. The thread sanitizer runs this, too (preset tsan). On a GPU, answers that are written
 * together have other kernels than one alone, so what follows from them is the same only up to rounding.
 *
 *     test_threads [cpu|gpu] */

#include "base/clock.h"
#include "dense_model.h"
#include "session/decoder.h"
#include "session/decoder_gpu.h"
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_THREADS = 4, MOST_NOTES = 160, MOST_TOKENS = 280 };

static char       folder[] = "/tmp/gemmule-threads-XXXXXX";
static gm_engine *engine;
static bool       on_gpu;

/* ---- what a conversation found ---- */

typedef struct {
    uint64_t notes[MOST_NOTES];  /* hashes of what came out, in order */
    double   values[MOST_NOTES]; /* of log-probabilities on a GPU, whose hash is 0 */
    size_t   count;
    char     problem[300]; /* what should not have happened */
} findings;

static void note(findings *f, const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(1099511628211);
    if (f->count < MOST_NOTES) f->notes[f->count++] = hash;
}

/* On a GPU, tokens must be the same, and log-probabilities nearly. */
static void note_logprobs(findings *f, const gm_token_logprob *drawn, size_t count) {
    if (!on_gpu) {
        note(f, drawn, count * sizeof *drawn);
        return;
    }
    for (size_t i = 0; i < count && f->count < MOST_NOTES; i++) {
        note(f, &drawn[i].token, sizeof drawn[i].token);
        if (f->count == MOST_NOTES) return;
        f->values[f->count++] = isfinite(drawn[i].logprob) ? (double)drawn[i].logprob : 0;
    }
}

static void talk_expect(findings *f, bool fine, const char *what, const char *why) {
    if (!fine && !*f->problem) snprintf(f->problem, sizeof f->problem, "%s: %.200s", what, why);
}

/* ---- who cancels ---- */

/* A session that may be cancelled while its thread lets it: one place for each thread. */
static struct {
    pthread_mutex_t lock;
    gm_session     *sessions[MOST_THREADS];
    bool            over;
} targets = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void offer(size_t thread, gm_session *s) {
    pthread_mutex_lock(&targets.lock);
    targets.sessions[thread] = s;
    pthread_mutex_unlock(&targets.lock);
}

static void *cancel_all(void *unused) {
    (void)unused;
    for (bool over = false; !over; usleep(200)) {
        pthread_mutex_lock(&targets.lock);
        for (size_t i = 0; i < MOST_THREADS; i++) {
            if (targets.sessions[i]) gm_session_cancel(targets.sessions[i]);
        }
        over = targets.over;
        pthread_mutex_unlock(&targets.lock);
    }
    return NULL;
}

/* ---- a conversation ---- */

typedef struct {
    findings   *found;
    size_t      thread;
    uint32_t    random;
    gm_session *s;
    char        why[300];
} talk;

static uint32_t talk_dice(talk *t, uint32_t n) {
    t->random = t->random * 1664525u + 1013904223u;
    return (t->random >> 8) % n;
}

static size_t talk_tokens(talk *t, int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) tokens[i] = 300 + (int32_t)talk_dice(t, 300);
    return n;
}

static gm_status finish_set(talk *t, gm_session *s, const int32_t *tokens, size_t n) {
    gm_status status;
    while ((status = gm_session_set(s, tokens, n, t->why, sizeof t->why)) == GM_AGAIN) {}
    return status;
}

static void talk_append(talk *t, gm_session *s, size_t n) {
    int32_t   tokens[MOST_TOKENS];
    gm_status status;
    talk_tokens(t, tokens, n);
    while ((status = gm_session_append(s, tokens, n, t->why, sizeof t->why)) == GM_AGAIN) {}
    talk_expect(t->found, !status, "append", t->why);
    if (!status) note(t->found, gm_session_logits(s), engine->weights.config.vocabulary * sizeof(float));
}

static void talk_reply(talk *t, size_t tokens) {
    static const gm_message hello = { .role = "user", .content = "Hello there, what is this?" };
    gm_sampling             sampling;
    gm_reply               *r = NULL;
    gm_piece                piece;
    gm_status               status;
    gm_sampling_default(engine, &sampling);
    sampling.temperature = talk_dice(t, 2) ? 0.8f : 0;
    sampling.seed = talk_dice(t, 1000);
    const gm_reply_options options = { .sampling = &sampling,
                                       .max_tokens = (uint32_t)tokens,
                                       .logprobs = talk_dice(t, 3) };
    status = gm_reply_start(t->s, &hello, 1, &options, &r, t->why, sizeof t->why);
    while (!status) {
        status = gm_reply_next(r, &piece, t->why, sizeof t->why);
        if (status == GM_OK && piece.kind == GM_PIECE_CONTENT) note(t->found, piece.text, piece.length);
        if (status == GM_OK && piece.logprob_tokens)
            note_logprobs(t->found, piece.logprobs, piece.logprob_tokens * (1 + options.logprobs));
        if (status == GM_AGAIN) status = GM_OK;
    }
    talk_expect(t->found, status == GM_DONE, "reply", t->why);
    gm_reply_free(r);
}

/* A prompt that is given up, by freeing the reply or by another thread's cancel, and then everything from the start. */
static void abandon(talk *t) {
    int32_t      tokens[MOST_TOKENS];
    gm_reply    *r = NULL;
    gm_piece     piece;
    const size_t n = talk_tokens(t, tokens, on_gpu ? 40 : MOST_TOKENS);
    talk_expect(t->found, !gm_reply_start_tokens(t->s, tokens, n, NULL, &r, t->why, sizeof t->why), "start", t->why);
    if (r) gm_reply_next(r, &piece, t->why, sizeof t->why);
    gm_reply_free(r);
    offer(t->thread, t->s);
    gm_status status = finish_set(t, t->s, tokens, n);
    offer(t->thread, NULL);
    talk_expect(t->found, !status || status == GM_CANCELLED, "a set that is cancelled", t->why);
    while ((status = finish_set(t, t->s, tokens, 2)) == GM_CANCELLED) {} /* a cancel that came too late */
    talk_expect(t->found, !status && !gm_session_rollback(t->s, 0, NULL, t->why, sizeof t->why), "rollback", t->why);
}

static void text_functions(talk *t) {
    int32_t         ids[64];
    size_t          count = 0, length = 0;
    char            text[40], *prompt = NULL;
    const char     *first = NULL;
    gm_engine_info  info;
    const uint32_t  number = talk_dice(t, 1000);
    const gm_status status = gm_tokenize(engine, text, (size_t)snprintf(text, sizeof text, "a text %u", number), false,
                                         ids, 64, &count, t->why, sizeof t->why);
    talk_expect(t->found, !status && count && count < 64, "tokenise", t->why);
    if (!status) note(t->found, ids, count * sizeof *ids);
    if (!gm_token_text(engine, ids[0], &first, &length)) note(t->found, first, length);
    gm_engine_get_info(engine, &info);
    note(t->found, info.device, strlen(info.device));
    talk_expect(
        t->found,
        !gm_render(engine, &(gm_message){ .role = "user", .content = text }, 1, NULL, &prompt, t->why, sizeof t->why),
        "render", t->why);
    if (prompt) note(t->found, prompt, strlen(prompt));
    gm_free(prompt);
}

static void check_saves(talk *t, gm_session *twin) {
    void  *data = NULL;
    size_t size = 0;
    char   own[80], shared[80];
    snprintf(own, sizeof own, "%s/%zu.gguf", folder, t->thread);
    snprintf(shared, sizeof shared, "%s/shared-%d.gguf", folder, (int)t->s->kv.store->type);
    talk_expect(t->found, !gm_session_save_buffer(t->s, &data, &size, t->why, sizeof t->why), "save", t->why);
    note(t->found, data, size);
    talk_expect(t->found, !gm_session_restore_buffer(twin, data, size, t->why, sizeof t->why), "restore", t->why);
    gm_free(data);
    talk_append(t, twin, 2);
    talk_expect(t->found, !gm_session_save(t->s, own, t->why, sizeof t->why), "save to a file", t->why);
    talk_expect(t->found, !gm_session_save(t->s, shared, t->why, sizeof t->why), "save to one path", t->why);
    talk_expect(t->found, !gm_session_restore(twin, shared, t->why, sizeof t->why), "restore from one path", t->why);
    talk_expect(t->found, !gm_session_restore(twin, own, t->why, sizeof t->why), "restore from a file", t->why);
    talk_append(t, twin, 1);
}

static void converse(findings *found, size_t thread, uint32_t seed) {
    static const gm_kv_type types[] = { GM_KV_F16, GM_KV_F32, GM_KV_Q8_0 };
    talk                    t = { .found = found, .thread = thread, .random = seed };
    int32_t                 tokens[MOST_TOKENS];
    gm_session             *twin = NULL;
    gm_token_logprob        chosen, top[3];
    gm_status               status;
    *found = (findings){ 0 };
    const gm_session_options options = { .kv = types[talk_dice(&t, on_gpu ? 1 : 3)], .context = 1024 };
    status = gm_session_new(engine, &options, &t.s, t.why, sizeof t.why);
    talk_expect(found, !status, "session", t.why);
    if (status) return;
    abandon(&t);
    const size_t n = talk_tokens(&t, tokens, 10 + talk_dice(&t, on_gpu ? 40 : 120));
    talk_expect(found, !finish_set(&t, t.s, tokens, n), "set", t.why);
    status = gm_session_fork(t.s, &twin, t.why, sizeof t.why);
    talk_expect(found, !status, "fork", t.why);
    if (!status) {
        talk_append(&t, twin, 3);
        talk_append(&t, t.s, 1);
        talk_expect(found, !gm_session_rollback(t.s, talk_dice(&t, (uint32_t)n), NULL, t.why, sizeof t.why), "rollback",
                    t.why);
        talk_append(&t, t.s, 2);
        check_saves(&t, twin);
    }
    talk_reply(&t, on_gpu ? 3 : 8);
    text_functions(&t);
    while ((status = gm_session_sample(t.s, NULL, &chosen, top, 3, t.why, sizeof t.why)) == GM_AGAIN) {}
    talk_expect(found, !status, "sample", t.why);
    note_logprobs(found, top, 3);
    gm_session_free(twin);
    gm_session_free(t.s);
}

/* ---- threads ---- */

typedef struct {
    size_t    thread, rounds;
    findings *found; /* [rounds] */
    bool      together;
} job;

static void *thread_run(void *argument) {
    const job *j = argument;
    for (size_t i = 0; i < j->rounds; i++) converse(&j->found[i], j->thread, (uint32_t)(j->thread * j->rounds + i));
    return NULL;
}

static void compare_findings(const findings *alone, const findings *together, size_t count, size_t least) {
    for (size_t i = 0; i < count; i++) {
        const findings *a = &alone[i], *b = &together[i];
        CHECK_MESSAGE(!*a->problem, "conversation %zu alone: %s", i, a->problem);
        CHECK_MESSAGE(!*b->problem, "conversation %zu: %s", i, b->problem);
        CHECK_MESSAGE(a->count == b->count && a->count >= least && a->count < MOST_NOTES,
                      "conversation %zu: %zu notes, %zu alone", i, b->count, a->count);
        size_t same = 0;
        while (same < a->count && a->notes[same] == b->notes[same] && fabs(a->values[same] - b->values[same]) < 1e-4)
            same++;
        CHECK_MESSAGE(same == a->count, "conversation %zu differs from note %zu of %zu on", i, same, a->count);
    }
}

static void test_conversations(size_t threads, size_t rounds) {
    TEST("%zu threads with %zu conversations each", threads, rounds);
    findings *alone = calloc(threads * rounds, sizeof *alone), *together = calloc(threads * rounds, sizeof *together);
    pthread_t handles[MOST_THREADS], canceller;
    job       jobs[MOST_THREADS];
    for (size_t i = 0; i < threads; i++) {
        jobs[i] = (job){ i, rounds, alone + i * rounds, false };
        thread_run(&jobs[i]);
        jobs[i].found = together + i * rounds;
    }
    CHECK(!pthread_create(&canceller, NULL, cancel_all, NULL));
    for (size_t i = 0; i < threads; i++) CHECK(!pthread_create(&handles[i], NULL, thread_run, &jobs[i]));
    for (size_t i = 0; i < threads; i++) pthread_join(handles[i], NULL);
    offer(0, NULL);
    pthread_mutex_lock(&targets.lock);
    targets.over = true;
    pthread_mutex_unlock(&targets.lock);
    pthread_join(canceller, NULL);
    compare_findings(alone, together, threads * rounds, 10);
    free(alone);
    free(together);
}

/* ---- answers that are written at the same time ---- */

static pthread_barrier_t all_ready;

/* A long answer. In every third round it is stopped early, and every thread has settings of its own. */
static void *thread_write(void *argument) {
    const job *j = argument;
    for (size_t i = 0; i < j->rounds; i++) {
        talk t = { .found = &j->found[i], .thread = j->thread, .random = (uint32_t)(j->thread * j->rounds + i) };
        *t.found = (findings){ 0 };
        talk_expect(t.found, !gm_session_new(engine, NULL, &t.s, t.why, sizeof t.why), "session", t.why);
        if (!t.s) continue;
        if (j->together) pthread_barrier_wait(&all_ready);
        talk_reply(&t, on_gpu ? 8 : i % 3 ? 60 : 3 + 10 * j->thread);
        gm_session_free(t.s);
    }
    return NULL;
}

static decoder_totals totals_now(void) {
    decoder_totals all = { 0 };
    if (!on_gpu) return decoder_count(engine->decoders[0]);
    for (size_t i = 0; i < COUNT_OF(engine->gpu_decoders); i++) {
        if (!engine->gpu_decoders[i]) continue;
        all.steps += gpu_decoder_count(engine->gpu_decoders[i]).steps;
        all.tokens += gpu_decoder_count(engine->gpu_decoders[i]).tokens;
    }
    return all;
}

/* Whether a step computed tokens of several answers. */
static bool answers_run(job jobs[MOST_THREADS]) {
    pthread_t            handles[MOST_THREADS];
    const decoder_totals before = totals_now();
    for (size_t i = 0; i < MOST_THREADS; i++) CHECK(!pthread_create(&handles[i], NULL, thread_write, &jobs[i]));
    for (size_t i = 0; i < MOST_THREADS; i++) pthread_join(handles[i], NULL);
    const decoder_totals after = totals_now();
    return after.tokens - before.tokens > after.steps - before.steps;
}

static void test_answers(void) {
    enum { ROUNDS = 12 };
    const size_t rounds = on_gpu ? 2 : ROUNDS;
    TEST("%d threads with %zu answers each", MOST_THREADS, rounds);
    static findings alone[MOST_THREADS * ROUNDS], together[MOST_THREADS * ROUNDS];
    job             jobs[MOST_THREADS];
    const double    end = clock_seconds() + 600;
    pthread_barrier_init(&all_ready, NULL, MOST_THREADS);
    for (size_t i = 0; i < MOST_THREADS; i++) {
        jobs[i] = (job){ i, rounds, alone + i * rounds, false };
        thread_write(&jobs[i]);
        jobs[i] = (job){ i, rounds, together + i * rounds, true };
    }
    bool shared = answers_run(jobs);
    while (!shared && on_gpu && clock_seconds() < end) { /* until shaders are compiled, each is written alone */
        compare_findings(alone, together, MOST_THREADS * rounds, 3);
        while (gpu_pipelines_pending(engine->gpu.host) && clock_seconds() < end) gpu_host_wait(engine->gpu.host, 100);
        shared = answers_run(jobs);
    }
    CHECK(shared);
    compare_findings(alone, together, MOST_THREADS * rounds, 3);
    pthread_barrier_destroy(&all_ready);
}

/* ---- adapters ---- */

/* Each round loads an adapter, writes with it, and frees it, before the session or after it. So slots and graphs are made anew while
 * others write. */
static void *thread_adapt(void *argument) {
    static const char *const paths[] = { "tests/fixtures/tiny-dense-lora", "tests/fixtures/tiny-dense-adapters/part",
                                         "tests/fixtures/tiny-dense-adapters/head",
                                         "tests/fixtures/tiny-dense-adapters/embedding" };
    const job               *j = argument;
    for (size_t i = 0; i < j->rounds; i++) {
        talk        t = { .found = &j->found[i], .thread = j->thread, .random = (uint32_t)(j->thread * j->rounds + i) };
        gm_adapter *a = NULL;
        const float scale = 0.5f + 0.1f * (float)j->thread;
        *t.found = (findings){ 0 };
        gm_status status = gm_session_new(engine, NULL, &t.s, t.why, sizeof t.why);
        if (!status) t.s->shares = false;
        if (!status) status = gm_adapter_load(engine, paths[(i + j->thread) % 4], &a, t.why, sizeof t.why);
        if (!status) status = gm_session_adapters(t.s, &a, &scale, 1, t.why, sizeof t.why);
        talk_expect(t.found, !status, "an adapter", t.why);
        if (i % 2) gm_adapter_free(a);
        if (!status) {
            talk_append(&t, t.s, 40 + 60 * (i % 3));
            talk_reply(&t, 10);
        }
        gm_session_free(t.s);
        if (i % 2 == 0) gm_adapter_free(a);
    }
    return NULL;
}

static void test_adapters_of_threads(void) {
    enum { ROUNDS = 8 };
    TEST("%d threads load, use and free adapters", MOST_THREADS);
    static findings alone[MOST_THREADS * ROUNDS], together[MOST_THREADS * ROUNDS];
    pthread_t       handles[MOST_THREADS];
    job             jobs[MOST_THREADS];
    for (size_t i = 0; i < MOST_THREADS; i++) {
        jobs[i] = (job){ i, ROUNDS, alone + i * ROUNDS, false };
        thread_adapt(&jobs[i]);
        jobs[i].found = together + i * ROUNDS;
    }
    for (size_t i = 0; i < MOST_THREADS; i++) CHECK(!pthread_create(&handles[i], NULL, thread_adapt, &jobs[i]));
    for (size_t i = 0; i < MOST_THREADS; i++) pthread_join(handles[i], NULL);
    compare_findings(alone, together, COUNT_OF(alone), 2);
    CHECK(!engine->adapters.count);
}

int main(int argc, char **argv) {
    char why[400] = "";
    on_gpu = argc > 1 && !strcmp(argv[1], "gpu");
    TEST("opening");
    CHECK(mkdtemp(folder));
    const gm_backend device = on_gpu ? GM_BACKEND_GPU : GM_BACKEND_CPU;
    CHECK_MESSAGE(
        !gm_engine_open(
            &(gm_engine_options){ .model = dense_model(device), .backend = device, .threads = 2, .precise = on_gpu },
            &engine, why, sizeof why),
        "%s", why);
    if (!engine) return test_end();
    if (!on_gpu) engine->turn_seconds = 0.0003; /* so that threads change in the middle of batches */
    if (on_gpu) test_conversations(2, 5);
    else test_conversations(4, 50);
    test_answers();
    if (!on_gpu) test_adapters_of_threads(); /* on a GPU, test_adapters does the same from one thread */
    gm_engine_close(engine);
    TEST("nothing is left but what was saved");
    static const char *const names[] = { "0", "1", "2", "3", "shared-0", "shared-1", "shared-8" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[80];
        snprintf(path, sizeof path, "%s/%s.gguf", folder, names[i]);
        remove(path);
    }
    CHECK(!rmdir(folder));
    return test_end();
}
