/* Sessions: prefix reuse, going back, forks, snapshots, cancelling, replies; on the tiny models, against fresh sessions.
 *
 *     test_session [cpu|gpu [batches]]    batches: only the tests of batches */

#include "base/clock.h"
#include "distance.h"
#include "session/session.h"
#include "sessions.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program;
static gm_backend  device = GM_BACKEND_CPU;

static gm_engine *open_model(const char *path, bool precise) {
    return open_engine(&(gm_engine_options){ .model = path, .precise = precise, .threads = 2, .backend = device });
}

/* How many tokens are written: that they are the same shows soon, and a GPU in software takes its time. */
static size_t written(size_t on_a_cpu) { return device == GM_BACKEND_GPU ? on_a_cpu / 3 : on_a_cpu; }

enum { LONG = 2600, VOCABULARY = 640 };

/* After going back by `steps` and on by three other tokens, the logits are those of a session that never saw the rest. */
static void test_session_rollback(gm_engine *engine, gm_kv_type kv, size_t length, size_t steps, bool by_turns) {
    TEST("going back %zu of %zu, K/V type %d%s", steps, length, (int)kv, by_turns ? ", turns" : "");
    int32_t      tokens[LONG];
    const size_t keep = length - steps;
    size_t       recompute = 0;
    make_tokens(tokens, length, 1);
    gm_session *s = open_session(engine, kv, 4096), *fresh = open_session(engine, kv, 4096);
    if (by_turns) {
        for (size_t n = 100; n < length; n += 300) CHECK(!set_tokens(s, tokens, n)); /* each leaves a mark */
    }
    CHECK(!set_tokens(s, tokens, length));
    CHECK(!gm_session_rollback(s, keep, &recompute, why, sizeof why));
    CHECK(gm_session_tokens(s, NULL) == keep);
    CHECK(gm_session_logits(s) == NULL || steps == 0);
    if (steps <= 256) CHECK_MESSAGE(recompute == 0, "%zu tokens to compute again", recompute);
    else if (steps == 257) CHECK(recompute == 0 || recompute == keep || by_turns); /* the window that is left decides */
    else if (by_turns) CHECK_MESSAGE(recompute == (keep - 100) % 300, "%zu tokens to compute again", recompute);
    else CHECK_MESSAGE(recompute == keep, "%zu tokens to compute again", recompute);
    int32_t other[3];
    make_tokens(other, 3, 99);
    CHECK(!append_tokens(s, other, 3));
    memcpy(tokens + keep, other, sizeof other);
    CHECK(!set_tokens(fresh, tokens, keep + 3));
    const float *got = gm_session_logits(s), *want = gm_session_logits(fresh);
    CHECK(got && want);
    if (got && want)
        CHECK_MESSAGE(distance(got, want, VOCABULARY) < batch_tolerance(device), "the logits differ by %g",
                      distance(got, want, VOCABULARY));
    gm_session_free(s);
    gm_session_free(fresh);
}

static void test_prefix_reuse(gm_engine *engine) {
    TEST("what is held as a prefix is not computed again");
    int32_t tokens[400];
    make_tokens(tokens, 400, 2);
    gm_session *s = open_session(engine, GM_KV_F32, 0);
    CHECK(!set_tokens(s, tokens, 300));
    CHECK(!gm_session_rollback(s, 200, NULL, why, sizeof why));
    tokens[250] = 310;
    CHECK(!set_tokens(s, tokens, 400));
    const int32_t *held;
    CHECK(gm_session_tokens(s, &held) == 400 && !memcmp(held, tokens, sizeof tokens));
    CHECK(!set_tokens(s, tokens, 100)); /* a prefix of what is held: its last token's logits */
    gm_session *fresh = open_session(engine, GM_KV_F32, 0);
    CHECK(!set_tokens(fresh, tokens, 100));
    CHECK(distance(gm_session_logits(s), gm_session_logits(fresh), VOCABULARY) < batch_tolerance(device));
    gm_session_free(s);
    gm_session_free(fresh);
}

/* Greedy or drawn tokens, n of them. */
static void write_on(gm_session *s, int32_t *out, size_t n, float temperature) {
    gm_sampling sampling;
    gm_sampling_default(s->engine, &sampling);
    sampling.temperature = temperature;
    sampling.seed = 7;
    for (size_t i = 0; i < n; i++) {
        gm_token_logprob chosen = { 0 };
        CHECK_MESSAGE(!gm_session_sample(s, &sampling, &chosen, NULL, 0, why, sizeof why), "%s", why);
        CHECK(chosen.logprob <= 0);
        out[i] = chosen.token;
        CHECK_MESSAGE(!append_tokens(s, &out[i], 1), "%s", why);
    }
}

static void test_session_fork(gm_engine *engine, gm_kv_type kv) {
    TEST("a fork goes on as the session would have, K/V type %d", (int)kv);
    int32_t     tokens[300], whole[40], forked[40];
    gm_session *s = open_session(engine, kv, 0), *twin = NULL;
    make_tokens(tokens, 300, 3);
    CHECK(!set_tokens(s, tokens, 300));
    CHECK_MESSAGE(!gm_session_fork(s, &twin, why, sizeof why), "%s", why);
    const size_t n = written(40);
    write_on(s, whole, n, 0.8f);
    write_on(twin, forked, n, 0.8f);
    CHECK(!memcmp(whole, forked, n * sizeof *whole));
    gm_session_free(s);
    gm_session_free(twin);
}

/* What the victim does, in a process of its own: computes, writes half of an answer, saves, and is killed. */
static int be_the_victim(const char *path, gm_kv_type kv, size_t length) {
    int32_t     tokens[LONG], half[30];
    gm_engine  *engine = open_model(dense_model(device), false);
    gm_session *s = engine ? open_session(engine, kv, 4096) : NULL;
    if (!s) return 3;
    make_tokens(tokens, length, 4);
    set_tokens(s, tokens, length);
    write_on(s, half, written(30), 0.9f);
    if (gm_session_save(s, path, why, sizeof why)) return 4;
    raise(SIGKILL);
    return 5;
}

/* Save, kill, restore, go on: the same text as without interruption. */
static void test_snapshot(gm_engine *engine, gm_kv_type kv, size_t length) {
    TEST("save, kill, restore: %zu tokens, K/V type %d", length, (int)kv);
    const size_t half = written(30);
    int32_t      tokens[LONG], whole[60], rest[30];
    char         path[] = "/tmp/gemmule-snapshot-XXXXXX", type[8], count[24];
    make_tokens(tokens, length, 4);
    close(mkstemp(path));

    gm_session *s = open_session(engine, kv, 4096);
    CHECK(!set_tokens(s, tokens, length));
    write_on(s, whole, 2 * half, 0.9f);
    gm_session_free(s);

    snprintf(type, sizeof type, "%d", (int)kv);
    snprintf(count, sizeof count, "%zu", length);
    char *const arguments[] = {
        (char *)program, device == GM_BACKEND_GPU ? "gpu" : "cpu", "victim", path, type, count, NULL
    };
    pid_t child;
    int   status = 0;
    CHECK(!posix_spawn(&child, program, NULL, NULL, arguments, environ));
    waitpid(child, &status, 0);
    CHECK_MESSAGE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", (unsigned)status);

    gm_session *restored = open_session(engine, kv, 4096);
    CHECK_MESSAGE(!gm_session_restore(restored, path, why, sizeof why), "%s", why);
    CHECK(gm_session_tokens(restored, NULL) == length + half);
    write_on(restored, rest, half, 0.9f);
    CHECK(!memcmp(rest, whole + half, half * sizeof *rest));
    gm_session_free(restored);
    remove(path);
}

static void test_bad_snapshots(gm_engine *engine, gm_engine *other) {
    TEST("snapshots that do not fit are refused and change nothing");
    int32_t     tokens[50];
    void       *data = NULL;
    size_t      size = 0;
    gm_session *s = open_session(engine, GM_KV_F16, 0), *target = open_session(engine, GM_KV_F16, 0),
               *quantised = open_session(engine, GM_KV_Q8_0, 0), *foreign = open_session(other, GM_KV_F16, 0),
               *small = open_session(engine, GM_KV_F16, 20);
    make_tokens(tokens, 50, 5);
    CHECK(!set_tokens(s, tokens, 50));
    CHECK(!set_tokens(target, tokens, 7));
    CHECK(!gm_session_save_buffer(s, &data, &size, why, sizeof why));

    CHECK(gm_session_restore_buffer(quantised, data, size, why, sizeof why) == GM_BAD_FILE && strstr(why, "F16"));
    CHECK(gm_session_restore_buffer(foreign, data, size, why, sizeof why) == GM_BAD_FILE &&
          strstr(why, "another model"));
    CHECK(gm_session_restore_buffer(small, data, size, why, sizeof why) == GM_CONTEXT_FULL);
    CHECK(gm_session_restore(target, "tests/fixtures/tiny-dense.gguf", why, sizeof why) == GM_BAD_FILE &&
          strstr(why, "not a session snapshot"));
    CHECK(gm_session_restore(target, "tests/fixtures/no such file", why, sizeof why) != GM_OK);
    char *damaged = malloc(size);
    for (size_t cut = 0; cut < size; cut += 1 + size / 97) {
        memcpy(damaged, data, size);
        CHECK(gm_session_restore_buffer(target, damaged, cut, why, sizeof why) != GM_OK);
    }
    for (size_t bit = 0; bit < 3000;
         bit += device == GM_BACKEND_GPU ? 40 : 1) { /* a flipped bit gives an error or a session, never a crash */
        memcpy(damaged, data, size);
        damaged[bit / 8] ^= (char)(1 << bit % 8);
        gm_session *scratch = open_session(engine, GM_KV_F16, 0);
        gm_session_restore_buffer(scratch, damaged, size, why, sizeof why);
        gm_session_free(scratch);
    }
    CHECK(gm_session_tokens(target, NULL) == 7);
    free(damaged);
    gm_free(data);
    gm_session_free(s);
    gm_session_free(target);
    gm_session_free(quantised);
    gm_session_free(foreign);
    gm_session_free(small);
}

static void *cancel_soon(void *session) {
    usleep(20000);
    gm_session_cancel(session);
    return NULL;
}

static void test_session_cancel(gm_engine *engine) {
    TEST("cancelling from another thread leaves a usable session");
    int32_t     tokens[4000];
    pthread_t   thread;
    gm_status   status = GM_OK;
    gm_session *s = open_session(engine, GM_KV_F32, 4096);
    make_tokens(tokens, 4000, 6);
    pthread_create(&thread, NULL, cancel_soon, s);
    const double deadline = clock_seconds() + 300;
    for (int i = 0; status == GM_OK && clock_seconds() < deadline; i++) {
        tokens[0] = 300 + i % 300; /* nothing to reuse */
        status = set_tokens(s, tokens, device == GM_BACKEND_GPU ? 600 : 4000);
    }
    pthread_join(thread, NULL);
    CHECK_MESSAGE(status == GM_CANCELLED, "%s: %s", gm_status_name(status), why);
    CHECK(!set_tokens(s, tokens, 30));
    gm_session *fresh = open_session(engine, GM_KV_F32, 0);
    CHECK(!set_tokens(fresh, tokens, 30));
    CHECK(distance(gm_session_logits(s), gm_session_logits(fresh), VOCABULARY) < batch_tolerance(device));
    gm_session_free(s);
    gm_session_free(fresh);
}

/* While the GPU computes a batch, the next one is submitted. At most two are under way, and a cancel ends them. */
static void test_two_batches(gm_engine *engine) {
    TEST("the next batch of a prompt is submitted before the last has ended");
    int32_t     tokens[600];
    error       e = { 0 };
    gm_status   status;
    gm_session *s = open_session(engine, GM_KV_F16, 0), *fresh = open_session(engine, GM_KV_F16, 0);
    make_tokens(tokens, 600, 17);
    s->shares = fresh->shares = false;
    CHECK(!set_tokens(fresh, tokens, 600)); /* and everything is compiled */
    for (int32_t i = 0; i < 600; i++) CHECK(!session_hold(s, tokens[i], &e));
    /* A deadline that has passed: each call does what it can without waiting. */
    CHECK(session_compute(s, 0, &e) == GM_AGAIN && s->computed == KV_BATCH);
    status = session_compute(s, 0, &e);
    CHECK(status == GM_AGAIN && s->computed <= 2 * KV_BATCH);
    CHECK(s->run.before < s->run.behind && s->run.behind <= gpu_submitted(engine->gpu.host));
    while ((status = session_compute(s, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status && gm_session_logits(s), "%s", e.why);
    CHECK(!memcmp(gm_session_logits(s), gm_session_logits(fresh), VOCABULARY * sizeof(float)));

    CHECK(!session_rollback(s, 0, NULL, &e));
    for (int32_t i = 0; i < 600; i++) CHECK(!session_hold(s, tokens[i], &e));
    CHECK(session_compute(s, 0, &e) == GM_AGAIN);
    gm_session_cancel(s);
    CHECK(session_compute(s, 0, &e) == GM_CANCELLED && s->tokens.count == s->computed);
    CHECK(!set_tokens(s, tokens, 40) && gm_session_logits(s));
    gm_session_free(s);
    gm_session_free(fresh);
}

/* Whatever the size of batches is, and wherever a session begins with what another one computed, the logits are the same. */
static void test_batch_sizes(gm_engine *engine) {
    static const struct {
        size_t batch, shared, slack; /* slack: what the ring needs */
    } rows[] = { { 256, 0, 256 }, { 512, 0, 512 }, { 1024, 0, 577 }, { 1024, 256, 321 } };
    enum { TOKENS = 577 };
    int32_t     tokens[TOKENS];
    gm_session *s[COUNT_OF(rows)], *first = open_session(engine, GM_KV_F16, 0);
    make_tokens(tokens, TOKENS, 18);
    engine->plans.largest_batch = BATCH_MOST;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("577 tokens in batches of %zu, %zu of them computed by another session", rows[i].batch, rows[i].shared);
        engine->batches.now = rows[i].batch;
        s[i] = open_session(engine, GM_KV_F16, 0);
        if (rows[i].shared) CHECK(!set_tokens(first, tokens, rows[i].shared + 1));
        s[i]->shares = first->shares = rows[i].shared != 0;
        CHECK(!set_tokens(s[i], tokens, TOKENS));
        CHECK(s[i]->kv.shared == rows[i].shared);
        CHECK(s[i]->kv.slack >= rows[i].slack && s[i]->kv.slack < rows[i].slack + 64);
        CHECK(!memcmp(gm_session_logits(s[i]), gm_session_logits(s[0]), VOCABULARY * sizeof(float)));
    }
    first->shares = false; /* it is not parked */
    for (size_t i = 0; i < COUNT_OF(rows); i++) s[i]->shares = false, gm_session_free(s[i]);
    gm_session_free(first);
    engine->batches.now = KV_BATCH;
    engine->plans.largest_batch = 0;
}

/* The runner measures batches, makes the plan for larger ones, and goes on as without. */
static void test_batches_grow(gm_engine *engine) {
    TEST("batches grow while they are fast");
    int32_t tokens[600];
    make_tokens(tokens, 600, 19);
    gm_session *s = open_session(engine, GM_KV_F16, 0), *fresh = open_session(engine, GM_KV_F16, 0);
    CHECK(engine->batches.most == KV_BATCH); /* a GPU in software */
    CHECK(!set_tokens(fresh, tokens, 600) && engine->batches.now == KV_BATCH);
    engine->batches = batch_sizes_begin(true);
    engine->batches.seconds = 1e9;
    CHECK(!set_tokens(s, tokens + 1, 513));
    CHECK(engine->batches.now > KV_BATCH && engine->plans.largest_batch == BATCH_MOST);
    CHECK(s->kv.slack == KV_SLACK && !set_tokens(s, tokens, 600) && s->kv.slack >= 512);
    CHECK(!memcmp(gm_session_logits(s), gm_session_logits(fresh), VOCABULARY * sizeof(float)));
    engine->batches = batch_sizes_begin(false);
    gm_session_free(s);
    gm_session_free(fresh);
}

static void test_session_limits(gm_engine *engine) {
    TEST("limits have names");
    int32_t     tokens[64];
    gm_session *s = open_session(engine, GM_KV_F16, 32), *none = NULL;
    make_tokens(tokens, 64, 8);
    CHECK(set_tokens(s, tokens, 64) == GM_CONTEXT_FULL && strstr(why, "32"));
    CHECK(!set_tokens(s, tokens, 32));
    CHECK(append_tokens(s, tokens, 1) == GM_CONTEXT_FULL);
    CHECK(gm_session_tokens(s, NULL) == 32);
    tokens[3] = 640;
    CHECK(set_tokens(s, tokens, 10) == GM_BAD_ARGUMENT && strstr(why, "640"));
    tokens[3] = -1;
    CHECK(set_tokens(s, tokens, 10) == GM_BAD_ARGUMENT);
    CHECK(gm_session_rollback(s, 33, NULL, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK(gm_session_append(s, NULL, 3, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK_MESSAGE(gm_session_save(s, "no/such/folder/x", why, sizeof why) == GM_IO &&
                      strstr(why, "'no/such/folder/x': No such file"),
                  "%s", why);
    size_t none_at_all = 1;
    CHECK(!gm_tokenize(engine, NULL, 0, false, NULL, 0, &none_at_all, why, sizeof why) && !none_at_all);
    gm_engine        *nowhere = NULL;
    gm_engine_options nonsense = { .model = "tests/fixtures/tiny-dense.gguf", .backend = GM_BACKEND_CPU };
    memset(&nonsense.backend, 77, sizeof nonsense.backend);
    CHECK(gm_engine_open(&nonsense, &nowhere, why, sizeof why) == GM_BAD_ARGUMENT && !nowhere);
    CHECK(gm_session_new(engine, &(gm_session_options){ .context = 5000 }, &none, why, sizeof why) == GM_BAD_ARGUMENT &&
          strstr(why, "4096"));
    gm_session_free(s);
}

/* One whole reply; returns its finish, the text in `out`. */
static gm_finish reply_text(gm_session *s, const gm_message *messages, size_t count, const gm_reply_options *options,
                            char *out, size_t size) {
    gm_reply *reply = NULL;
    gm_piece  piece;
    gm_status status;
    size_t    length = 0;
    CHECK_MESSAGE(!gm_reply_start(s, messages, count, options, &reply, why, sizeof why), "%s", why);
    if (!reply) return GM_FINISH_NONE;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {
        if (status == GM_AGAIN || piece.kind != GM_PIECE_CONTENT) continue;
        if (length + piece.length < size) memcpy(out + length, piece.text, piece.length);
        length += piece.length;
        if (options && options->want_logprobs) CHECK(piece.logprob_tokens > 0 && piece.logprobs[0].logprob <= 0);
    }
    CHECK_MESSAGE(status == GM_DONE, "%s", why);
    out[length < size ? length : size - 1] = 0;
    gm_reply_stats stats;
    gm_reply_get_stats(reply, &stats);
    CHECK(stats.prompt_tokens > 0);
    gm_reply_free(reply);
    return stats.finish;
}

static void test_replies(gm_engine *engine) {
    const gm_message hello[] = { { .role = "user", .content = "Hello <turn|> there" } };
    char             first[4000], second[4000], third[4000];
    gm_sampling      sampling;
    const size_t     most = written(60);
    gm_sampling_default(engine, &sampling);
    sampling.seed = 11;
    TEST("replies repeat with the same seed and differ with another");
    gm_session *s = open_session(engine, GM_KV_F16, 0), *t = open_session(engine, GM_KV_F16, 0);
    CHECK(reply_text(s, hello, 1, &(gm_reply_options){ .sampling = &sampling, .max_tokens = most }, first,
                     sizeof first) != GM_FINISH_NONE);
    CHECK(reply_text(
              t, hello, 1,
              &(gm_reply_options){ .sampling = &sampling, .max_tokens = most, .want_logprobs = true, .logprobs = 3 },
              second, sizeof second) != GM_FINISH_NONE);
    CHECK_MESSAGE(!strcmp(first, second), "'%s' and '%s'", first, second);
    sampling.seed = 12;
    reply_text(t, hello, 1, &(gm_reply_options){ .sampling = &sampling, .max_tokens = most }, third, sizeof third);
    CHECK(strcmp(first, third));

    TEST("a stop string ends the answer and is not part of it");
    sampling.seed = 11;
    CHECK(strlen(first) > 12);
    char              stop[4] = { first[8], first[9], first[10], 0 };
    const char *const stops[] = { "never in there", stop };
    const gm_finish   finish = reply_text(
        s, hello, 1, &(gm_reply_options){ .sampling = &sampling, .max_tokens = most, .stop = stops, .stop_count = 2 },
        second, sizeof second);
    const char *at = strstr(first, stop);
    CHECK(finish == GM_FINISH_STOP);
    CHECK_MESSAGE(at && strlen(second) == (size_t)(at - first) && !strncmp(first, second, strlen(second)),
                  "'%s' should be '%s' before '%s'", second, first, stop);

    TEST("a reply that broke off is taken up behind its last token, and says everything again");
    const int32_t *held;
    gm_session    *fresh = open_session(engine, GM_KV_F16, 0);
    reply_text(s, hello, 1, &(gm_reply_options){ .sampling = &sampling, .max_tokens = most }, first, sizeof first);
    const size_t all = gm_session_tokens(s, &held);
    for (size_t less = 0; less <= most; less += most / 2) {
        const gm_reply_options again = {
            .sampling = &sampling, .max_tokens = most, .resume = held, .resume_count = all - less
        };
        CHECK(reply_text(fresh, hello, 1, &again, second, sizeof second) == GM_FINISH_LENGTH);
        CHECK_MESSAGE(!strcmp(first, second), "without %zu tokens: '%s' and '%s'", less, first, second);
    }
    gm_session_free(fresh);

    TEST("the time of a token that comes with the end of the prompt is the answer's");
    gm_reply      *reply = NULL;
    gm_piece       piece = { 0 };
    gm_status      status;
    gm_reply_stats stats;
    CHECK(!gm_reply_start(s, hello, 1, &(gm_reply_options){ .sampling = &sampling }, &reply, why, sizeof why));
    do {
        status = gm_reply_next(reply, &piece, why, sizeof why);
    } while (status == GM_AGAIN || (status == GM_OK && piece.kind == GM_PIECE_PROGRESS));
    gm_reply_get_stats(reply, &stats);
    CHECK_MESSAGE(stats.reply_tokens > 0 && stats.reply_seconds > 0 && stats.prompt_seconds > 0, "%zu tokens in %g s",
                  stats.reply_tokens, stats.reply_seconds);
    gm_reply_free(reply);
    reply = NULL;

    TEST("bad conversations are refused");
    CHECK(gm_reply_start(s, hello, 0, NULL, &reply, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK(gm_reply_start(s, NULL, 1, NULL, &reply, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK(gm_reply_start(s, hello, 1, &(gm_reply_options){ .stop_count = 2 }, &reply, why, sizeof why) ==
          GM_BAD_ARGUMENT);
    CHECK(gm_reply_start(s, &(gm_message){ .role = "wizard", .content = "x" }, 1, NULL, &reply, why, sizeof why) ==
              GM_BAD_ARGUMENT &&
          strstr(why, "wizard"));
    CHECK(gm_reply_start(s, hello, 1, &(gm_reply_options){ .tools = "{" }, &reply, why, sizeof why) ==
              GM_BAD_ARGUMENT &&
          str_starts_with(str_of(why), "tools: JSON line 1"));
    const gm_message calls = { .role = "assistant", .tool_calls = "{" }, nobody = { .content = "Hi" };
    CHECK(gm_reply_start(s, &calls, 1, NULL, &reply, why, sizeof why) == GM_BAD_ARGUMENT &&
          str_starts_with(str_of(why), "messages[0].tool_calls: JSON line 1"));
    CHECK(gm_reply_start(s, &nobody, 1, NULL, &reply, why, sizeof why) == GM_BAD_ARGUMENT &&
          str_ends_with(str_of(why), "found nothing"));
    CHECK(gm_reply_start(s, hello, 1, &(gm_reply_options){ .logprobs = 21 }, &reply, why, sizeof why) ==
          GM_BAD_ARGUMENT);
    CHECK(reply == NULL);

    TEST("a full context ends a reply by name");
    gm_session *small = open_session(engine, GM_KV_F16, 40);
    CHECK_MESSAGE(!gm_reply_start(small, hello, 1, NULL, &reply, why, sizeof why), "%s", why);
    sampling.temperature = 0;
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {}
    CHECK_MESSAGE(status == GM_CONTEXT_FULL || status == GM_DONE, "%s", why);
    gm_reply_free(reply);

    TEST("the prompt as text");
    char            *text = NULL;
    const gm_message nothing[] = { { .role = "system" }, hello[0] };
    char            *without = NULL;
    CHECK(gm_render(engine, nothing, 1, NULL, &without, why, sizeof why) == GM_BAD_ARGUMENT && !without);
    CHECK(!gm_render(engine, nothing, 2, NULL, &without, why, sizeof why) && !strstr(without, "system"));
    gm_free(without);
    CHECK(!gm_render(engine, hello, 1, NULL, &text, why, sizeof why));
    CHECK_MESSAGE(text && !strcmp(text, "<bos><|turn>user\nHello <turn|> there<turn|>\n<|turn>model\n"), "%s",
                  text ? text : "");
    gm_free(text);
    gm_session_free(s);
    gm_session_free(t);
    gm_session_free(small);
}

static void test_session_two(gm_engine *engine) {
    TEST("two sessions take turns on one engine");
    const size_t n = device == GM_BACKEND_GPU ? 300 : 500;
    int32_t      tokens[600], a[20], b[20];
    gm_session  *one = open_session(engine, GM_KV_F32, 0), *two = open_session(engine, GM_KV_F32, 0),
               *alone = open_session(engine, GM_KV_F32, 0);
    make_tokens(tokens, 600, 9);
    CHECK(!set_tokens(alone, tokens, n));
    gm_status first = GM_AGAIN, second = GM_AGAIN;
    while (first == GM_AGAIN || second == GM_AGAIN) {
        if (first == GM_AGAIN) first = gm_session_set(one, tokens, n, why, sizeof why);
        if (second == GM_AGAIN) second = gm_session_set(two, tokens + 50, n + 50, why, sizeof why);
    }
    CHECK(first == GM_OK && second == GM_OK);
    write_on(one, a, written(20), 0);
    write_on(alone, b, written(20), 0);
    CHECK(!memcmp(a, b, written(20) * sizeof *a));
    gm_session_free(one);
    gm_session_free(two);
    gm_session_free(alone);
}

int main(int argc, char **argv) {
    static const size_t     steps[] = { 0, 1, 16, 255, 256, 257, 300, 2000 };
    static const gm_kv_type types[] = { GM_KV_F32, GM_KV_F16, GM_KV_Q8_0 };
    program = argv[0];
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    if (argc == 6) return be_the_victim(argv[3], (gm_kv_type)atoi(argv[4]), (size_t)atoi(argv[5]));
    TEST("opening");
    gm_engine *precise = open_model(dense_model(device), true), *fast = open_model(dense_model(device), false),
              *moe = open_model("tests/fixtures/tiny-moe.gguf", false);
    if (!precise || !fast || !moe) return test_end();
    /* What is kept, and from where it is computed again, is the same code on both. A GPU in software takes its time: there each
     * step is gone back once, from little more than a ring's length, and snapshots are of one type of each kind. */
    const bool gpu = device == GM_BACKEND_GPU;
    if (gpu) {
        test_two_batches(fast);
        test_batch_sizes(moe);
        test_batches_grow(fast);
    }
    if (argc == 3) return test_end();
    const size_t length = gpu ? 420 : 2500;
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        if (steps[i] >= length || (gpu && steps[i] == 16)) continue;
        if (!gpu || i % 2) test_session_rollback(precise, GM_KV_F32, length, steps[i], false);
        if (!gpu || i % 2 == 0) test_session_rollback(precise, GM_KV_F32, length, steps[i], true);
    }
    for (size_t i = 0; i < COUNT_OF(types); i++)
        test_session_rollback(precise, types[i], gpu ? 420 : 700, gpu ? 310 : 500, true);
    test_prefix_reuse(precise);
    for (size_t i = 0; i < COUNT_OF(types); i++) test_session_fork(fast, types[i]);
    for (size_t i = gpu ? 2 : 0; i < COUNT_OF(types); i++) test_snapshot(fast, types[i], gpu ? 300 : 500);
    if (!gpu) test_snapshot(fast, GM_KV_F16, 10);
    test_bad_snapshots(fast, moe);
    test_session_cancel(fast);
    test_session_limits(fast);
    test_replies(fast);
    test_session_two(fast);
    gm_engine_close(precise);
    gm_engine_close(fast);
    gm_engine_close(moe);
    return test_end();
}
