/* Calls that come at an odd time or with odd arguments: what was computed stays usable, and what cannot be done is refused by
 * name. Turns last no time here, so that every call that computes returns GM_AGAIN again and again. */

#include "distance.h"
#include "session/session.h"
#include "sessions.h"

#include <stdlib.h>

enum { LONG = 400, VOCABULARY = 640 };

static gm_engine *engine;

/* The session computes as a fresh one does. */
static void check_usable(gm_session *s) {
    int32_t     tokens[30];
    gm_session *fresh = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(tokens, 30, 5);
    CHECK_MESSAGE(!set_tokens(s, tokens, 30) && !set_tokens(fresh, tokens, 30), "%s", why);
    CHECK(distance(gm_session_logits(s), gm_session_logits(fresh), VOCABULARY) < 1e-5);
    gm_session_free(fresh);
}

static gm_reply *start_greedy_reply(gm_session *s, const int32_t *prompt, size_t n, size_t max_tokens) {
    gm_sampling greedy;
    gm_reply   *reply = NULL;
    gm_sampling_default(engine, &greedy);
    greedy.temperature = 0;
    CHECK_MESSAGE(!gm_reply_start_tokens(s, prompt, n,
                                         &(gm_reply_options){ .sampling = &greedy, .max_tokens = (uint32_t)max_tokens },
                                         &reply, why, sizeof why),
                  "%s", why);
    return reply;
}

/* Goes on until `pieces` pieces of text have come, or to the end. */
static gm_status read_on(gm_reply *reply, size_t pieces, char *text, size_t size) {
    gm_piece  piece;
    gm_status status = GM_OK;
    size_t    length = strlen(text);
    while (pieces && (status = gm_reply_next(reply, &piece, why, sizeof why)) <= GM_AGAIN) {
        if (status == GM_AGAIN || piece.kind == GM_PIECE_PROGRESS) continue;
        length += (size_t)snprintf(text + length, size - length, "%.*s", (int)piece.length, piece.text);
        pieces--;
    }
    return status;
}

/* ---- freeing ---- */

static void test_free_in_prompt(void) {
    TEST("a reply that is freed during its prompt leaves the session usable");
    int32_t     prompt[LONG];
    gm_piece    piece;
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(prompt, LONG, 1);
    gm_reply *reply = start_greedy_reply(s, prompt, LONG, 5);
    CHECK(gm_reply_next(reply, &piece, why, sizeof why) <= GM_AGAIN && s->pending);
    CHECK(gm_session_rollback(s, 0, NULL, why, sizeof why) == GM_BUSY && strstr(why, "cancel"));
    while (!s->computed) CHECK(gm_reply_next(reply, &piece, why, sizeof why) <= GM_AGAIN);
    CHECK(s->pending);
    gm_reply_free(reply);
    const int32_t *held;
    const size_t   n = gm_session_tokens(s, &held);
    CHECK_MESSAGE(n && n < LONG && !memcmp(held, prompt, n * sizeof *held), "%zu tokens", n);
    CHECK(!gm_session_rollback(s, n - 1, NULL, why, sizeof why));
    check_usable(s);
    gm_session_free(s);
}

static void test_free_in_answer(void) {
    TEST("a reply that is freed while it writes leaves prompt and answer in the session");
    int32_t     prompt[20];
    char        text[200] = "";
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(prompt, 20, 2);
    gm_reply *reply = start_greedy_reply(s, prompt, 20, 12);
    CHECK(!read_on(reply, 4, text, sizeof text));
    gm_reply_free(reply);
    CHECK(gm_session_tokens(s, NULL) >= 24 && gm_session_tokens(s, NULL) < 32);
    check_usable(s);

    TEST("a reply that was never advanced, and one whose session is gone, can be freed");
    gm_reply_free(start_greedy_reply(s, prompt, 20, 5));
    gm_reply *orphan = start_greedy_reply(s, prompt, 20, 5), *writing = start_greedy_reply(s, prompt, 20, 5);
    CHECK(!read_on(writing, 1, text, sizeof text));
    gm_session_free(s);
    gm_piece piece;
    CHECK(gm_reply_next(orphan, &piece, why, sizeof why) == GM_BAD_ARGUMENT && strstr(why, "freed"));
    gm_reply_stop(writing);
    CHECK(read_on(writing, SIZE_MAX, text, sizeof text) == GM_DONE);
    gm_reply_free(orphan);
    gm_reply_free(writing);
}

/* ---- stopping ---- */

static void test_stop(void) {
    int32_t        prompt[LONG];
    gm_reply_stats stats;
    char           begin[100] = "", stop[102], whole[400] = "", text[400] = "";
    make_tokens(prompt, LONG, 3);
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_reply   *reply = start_greedy_reply(s, prompt, 20, 12);
    CHECK(!read_on(reply, 1, begin, sizeof begin));
    strcpy(whole, begin);
    CHECK(read_on(reply, SIZE_MAX, whole, sizeof whole) == GM_DONE);
    gm_reply_free(reply);

    TEST("a reply that is stopped gives what is left of its text, and is done");
    reply = start_greedy_reply(s, prompt, 20, 12);
    CHECK(!read_on(reply, 3, text, sizeof text));
    gm_reply_stop(reply);
    CHECK(read_on(reply, SIZE_MAX, text, sizeof text) == GM_DONE);
    CHECK_MESSAGE(*text && strlen(text) < strlen(whole) && !strncmp(text, whole, strlen(text)), "'%s' of '%s'", text,
                  whole);
    gm_reply_get_stats(reply, &stats);
    CHECK(stats.finish == GM_FINISH_CANCELLED && stats.prompt_tokens == 20 && stats.reply_tokens >= 3);
    CHECK(gm_session_tokens(s, NULL) == 20 + stats.reply_tokens);
    gm_reply_stop(reply); /* again: nothing */
    gm_reply_free(reply);
    check_usable(s);

    TEST("text that might have begun a stop string comes when a reply is stopped");
    snprintf(stop, sizeof stop, "%s\1", begin);
    const char *const stops[] = { stop };
    gm_sampling       greedy;
    gm_piece          piece;
    gm_sampling_default(engine, &greedy);
    greedy.temperature = 0;
    CHECK(!gm_reply_start_tokens(
        s, prompt, 20, &(gm_reply_options){ .sampling = &greedy, .max_tokens = 12, .stop = stops, .stop_count = 1 },
        &reply, why, sizeof why));
    do CHECK(gm_reply_next(reply, &piece, why, sizeof why) == GM_AGAIN || piece.kind == GM_PIECE_PROGRESS);
    while (gm_reply_get_stats(reply, &stats), !stats.reply_tokens);
    gm_reply_stop(reply);
    *text = 0;
    CHECK(read_on(reply, SIZE_MAX, text, sizeof text) == GM_DONE);
    CHECK_MESSAGE(!strncmp(text, begin, strlen(begin)), "'%s' should begin with '%s'", text, begin);
    gm_reply_free(reply);

    TEST("a reply that is stopped during its prompt keeps what was computed");
    gm_session *other = open_session(engine, GM_KV_DEFAULT, 0);
    reply = start_greedy_reply(other, prompt, LONG, 5);
    while (!other->computed) CHECK(gm_reply_next(reply, &piece, why, sizeof why) <= GM_AGAIN);
    gm_reply_stop(reply);
    *text = 0;
    CHECK(read_on(reply, SIZE_MAX, text, sizeof text) == GM_DONE && !*text);
    CHECK(gm_session_tokens(other, NULL) > 0 && gm_session_tokens(other, NULL) < LONG);
    check_usable(other); /* with the reply still there */
    gm_reply_free(reply);
    gm_session_free(other);
    gm_session_free(s);
}

/* ---- calls that are not repeated as they should be ---- */

static void test_pending(void) {
    TEST("a set that is repeated with other tokens is refused");
    int32_t     first[LONG], second[LONG];
    size_t      held;
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0), *twin = NULL;
    void       *data = NULL;
    make_tokens(first, LONG, 1);
    make_tokens(second, LONG, 2);
    CHECK(gm_session_set(s, first, LONG, why, sizeof why) == GM_AGAIN);
    CHECK(gm_session_set(s, second, LONG, why, sizeof why) == GM_BUSY && strstr(why, "GM_AGAIN"));
    CHECK(gm_session_set(s, first, LONG - 1, why, sizeof why) == GM_BUSY);
    CHECK(gm_session_append(s, first + LONG - 1, 1, why, sizeof why) == GM_BUSY);
    CHECK(gm_session_append(s, NULL, 3, why, sizeof why) == GM_BUSY);
    CHECK(!set_tokens(s, first, LONG));
    CHECK(gm_session_append(s, second, 30, why, sizeof why) == GM_AGAIN);
    CHECK(gm_session_append(s, first, 30, why, sizeof why) == GM_BUSY);
    CHECK(gm_session_set(s, second, 30, why, sizeof why) == GM_BUSY);

    TEST("cancelling frees a session from a call that nobody repeats");
    CHECK(gm_session_fork(s, &twin, why, sizeof why) == GM_BUSY && !twin);
    gm_session_cancel(s);
    CHECK_MESSAGE(!gm_session_fork(s, &twin, why, sizeof why), "%s", why);
    CHECK(gm_session_tokens(twin, NULL) == LONG && !s->pending);
    CHECK(gm_session_set(s, second, LONG, why, sizeof why) == GM_AGAIN);
    gm_session_cancel(s);
    CHECK_MESSAGE(!gm_session_save_buffer(s, &data, &held, why, sizeof why), "%s", why);
    gm_free(data);
    CHECK(gm_session_set(s, first, LONG, why, sizeof why) == GM_AGAIN);
    gm_session_cancel(s);
    CHECK(gm_session_set(s, first, LONG, why, sizeof why) == GM_CANCELLED);
    CHECK(gm_session_append(s, second, LONG, why, sizeof why) == GM_AGAIN);
    gm_session_cancel(s);
    gm_status status;
    while ((status = gm_session_append(s, first, 30, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", why);
    check_usable(s);
    gm_session_free(twin);
    gm_session_free(s);
}

static void test_late_cancel(void) {
    TEST("a cancel that comes between a reply's last call and its end does not hit the next reply");
    int32_t     prompt[LONG];
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(prompt, LONG, 6);
    for (int way = 0; way < 6; way++) { /* in the prompt, in the answer, after the end; then stopped, or only freed */
        char      text[200] = "", next[200] = "";
        gm_piece  piece;
        gm_reply *reply = start_greedy_reply(s, prompt + way, way % 3 ? 20 : LONG - 6, 5);
        if (way % 3 == 0) CHECK(gm_reply_next(reply, &piece, why, sizeof why) <= GM_AGAIN && s->pending);
        if (way % 3 == 1) CHECK(!read_on(reply, 1, text, sizeof text));
        if (way % 3 == 2) CHECK(read_on(reply, SIZE_MAX, text, sizeof text) == GM_DONE);
        gm_session_cancel(s);
        if (way >= 3) gm_reply_stop(reply);
        gm_reply_free(reply);
        reply = start_greedy_reply(s, prompt + 30, 20, 3);
        const gm_status status = read_on(reply, SIZE_MAX, next, sizeof next);
        CHECK_MESSAGE(status == GM_DONE, "way %d: %s", way, why);
        gm_reply_free(reply);
    }
    gm_session_free(s);
}

static void test_two_replies(void) {
    TEST("a reply whose session was changed says so");
    int32_t     prompt[LONG];
    char        text[200] = "";
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(prompt, LONG, 4);
    gm_reply *first = start_greedy_reply(s, prompt, 20, 10), *second = start_greedy_reply(s, prompt + 5, 30, 10);
    CHECK(!read_on(first, 1, text, sizeof text));
    CHECK(!read_on(second, 1, text, sizeof text));
    CHECK(read_on(first, 1, text, sizeof text) == GM_BAD_ARGUMENT && strstr(why, "another reply"));
    CHECK(!read_on(second, 1, text, sizeof text));
    gm_reply_free(first);
    CHECK(!gm_session_rollback(s, 10, NULL, why, sizeof why));
    CHECK(read_on(second, 1, text, sizeof text) == GM_BAD_ARGUMENT);
    gm_reply_free(second);

    TEST("a prompt that is being computed is not disturbed by another reply");
    gm_piece piece;
    first = start_greedy_reply(s, prompt, LONG, 3);
    second = start_greedy_reply(s, prompt + 5, 30, 3);
    CHECK(gm_reply_next(first, &piece, why, sizeof why) <= GM_AGAIN && s->pending);
    CHECK(gm_reply_next(second, &piece, why, sizeof why) == GM_BUSY);
    gm_reply_free(second);
    CHECK(read_on(first, SIZE_MAX, text, sizeof text) == GM_DONE);
    gm_reply_free(first);
    gm_session_free(s);
}

static void test_refused_calls(void) {
    TEST("a call that is refused does not end the reply");
    int32_t     prompt[20], bad[] = { 300, VOCABULARY };
    char        whole[400] = "", text[400] = "";
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    make_tokens(prompt, 20, 7);
    gm_reply *reply = start_greedy_reply(s, prompt, 20, 12);
    CHECK(read_on(reply, SIZE_MAX, whole, sizeof whole) == GM_DONE);
    gm_reply_free(reply);
    const size_t context = gm_session_context(s);
    int32_t     *too_long = malloc((context + 1) * sizeof *too_long);
    CHECK(too_long != NULL);
    make_tokens(too_long, context + 1, 8);
    reply = start_greedy_reply(s, prompt, 20, 12);
    gm_reply *refused = start_greedy_reply(s, too_long, context + 1, 12);
    for (int way = 0; way < 8; way++) {
        gm_piece  piece;
        gm_status status = GM_OK;
        CHECK_MESSAGE(!read_on(reply, 1, text, sizeof text), "before way %d: %s", way, why);
        switch (way) {
        case 0: status = gm_session_set(s, NULL, 3, why, sizeof why); break;
        case 1: status = gm_session_set(s, prompt, 0, why, sizeof why); break;
        case 2: status = gm_session_set(s, bad, 2, why, sizeof why); break;
        case 3: status = gm_session_set(s, too_long, context + 1, why, sizeof why); break;
        case 4: status = gm_session_append(s, NULL, 3, why, sizeof why); break;
        case 5: status = gm_session_append(s, bad, 2, why, sizeof why); break;
        case 6: status = gm_session_rollback(s, 1000, NULL, why, sizeof why); break;
        case 7: status = gm_reply_next(refused, &piece, why, sizeof why); break;
        }
        CHECK_MESSAGE(status == (way == 3 || way == 7 ? GM_CONTEXT_FULL : GM_BAD_ARGUMENT), "way %d: %d", way, status);
    }
    CHECK_MESSAGE(read_on(reply, SIZE_MAX, text, sizeof text) == GM_DONE, "%s", why);
    CHECK_MESSAGE(!strcmp(text, whole), "'%s', not '%s'", text, whole);
    gm_reply_free(refused);
    gm_reply_free(reply);
    free(too_long);

    TEST("one that changes the tokens does");
    reply = start_greedy_reply(s, prompt, 20, 12);
    CHECK(!read_on(reply, 1, text, sizeof text));
    gm_status status;
    while ((status = gm_session_append(s, prompt, 1, why, sizeof why)) == GM_AGAIN) {}
    CHECK(!status && read_on(reply, 1, text, sizeof text) == GM_BAD_ARGUMENT && strstr(why, "append"));
    gm_reply_free(reply);
    gm_session_free(s);
}

/* ---- arguments ---- */

static void test_arguments(void) {
    gm_engine  *none = NULL;
    gm_reply   *reply = NULL;
    gm_message  hello = { .role = "user", .content = "Hello" };
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    TEST("counts without their lists");
    CHECK(gm_engine_open(NULL, &none, why, sizeof why) == GM_BAD_ARGUMENT && !none && strstr(why, "model"));
    CHECK(gm_reply_start(s, &hello, 1, &(gm_reply_options){ .resume_count = 9999 }, &reply, why, sizeof why) ==
              GM_BAD_ARGUMENT &&
          strstr(why, "resume"));
    CHECK(gm_reply_start_tokens(s, NULL, 3, NULL, &reply, why, sizeof why) == GM_BAD_ARGUMENT && strstr(why, "tokens"));
    CHECK(!reply && !s->replies);
    gm_reply_free(NULL);
    gm_session_free(NULL);
    gm_engine_close(NULL);
    gm_free(NULL);
    gm_session_free(s);
}

int main(void) {
    TEST("opening");
    CHECK_MESSAGE(
        !gm_engine_open(
            &(gm_engine_options){ .model = "tests/fixtures/tiny-dense.gguf", .backend = GM_BACKEND_CPU, .threads = 2 },
            &engine, why, sizeof why),
        "%s", why);
    if (!engine) return test_end();
    engine->turn_seconds = 0;
    test_free_in_prompt();
    test_free_in_answer();
    test_stop();
    test_pending();
    test_late_cancel();
    test_two_replies();
    test_refused_calls();
    test_arguments();
    gm_engine_close(engine);
    return test_end();
}
