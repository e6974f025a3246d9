/* Answers of a diffusion model: blocks in a row, the end of a turn inside one, pins, stop, cancel, and several canvases in one run.
 *
 *     test_canvas [gpu] */

#include "gpu/pipeline.h"
#include "session/denoiser.h"
#include "session/reply_parts.h"
#include "sessions.h"

#include <math.h>
#include <stdlib.h>

enum { LENGTH = 32, STEPS = 3 }; /* of the model's canvas, and of these tests: a software GPU takes its time */

static gm_engine *engine;

typedef struct {
    char           text[4096];
    size_t         length, canvases, pieces; /* pieces: of content */
    int32_t        last[LENGTH];             /* of the last canvas that was shown */
    gm_reply_stats stats;
    gm_status      status;
} written;

/* Takes pieces until the reply ends. */
static void canvas_write_on(gm_reply *reply, written *w) {
    gm_piece piece;
    while ((w->status = gm_reply_next(reply, &piece, why, sizeof why)) == GM_OK || w->status == GM_AGAIN) {
        if (w->status == GM_AGAIN) continue;
        if (piece.kind == GM_PIECE_CONTENT && w->length + piece.length < sizeof w->text) {
            memcpy(w->text + w->length, piece.text, piece.length);
            w->length += piece.length;
            w->pieces++;
        }
        if (piece.kind != GM_PIECE_CANVAS) continue;
        w->canvases++;
        memcpy(w->last, piece.canvas->ids, sizeof w->last);
    }
    gm_reply_get_stats(reply, &w->stats);
}

static gm_reply *start(gm_session *s, uint32_t prompt_seed, const gm_reply_options *options) {
    int32_t   prompt[20];
    gm_reply *reply = NULL;
    make_tokens(prompt, 20, prompt_seed);
    CHECK_MESSAGE(!gm_reply_start_tokens(s, prompt, 20, options, &reply, why, sizeof why), "%s", why);
    return reply;
}

static written answer(uint32_t prompt_seed, const gm_reply_options *options) {
    written     w = { .status = GM_BAD_ARGUMENT };
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_reply   *reply = s ? start(s, prompt_seed, options) : NULL;
    if (reply) canvas_write_on(reply, &w);
    gm_reply_free(reply);
    gm_session_free(s);
    return w;
}

static void test_blocks(void) {
    TEST("several blocks in a row");
    gm_sampling sampling;
    gm_sampling_default(engine, &sampling);
    sampling.seed = 5;
    const gm_reply_options options = { .sampling = &sampling, .max_tokens = 2 * LENGTH + 5, .want_canvas = true };
    const written          a = answer(1, &options), b = answer(1, &options);
    CHECK_MESSAGE(a.status == GM_DONE, "%s", why);
    CHECK_MESSAGE(a.stats.blocks == 3 && a.stats.reply_tokens == 2 * LENGTH + 5, "%zu blocks, %zu tokens",
                  a.stats.blocks, a.stats.reply_tokens);
    CHECK(a.stats.finish == GM_FINISH_LENGTH && a.stats.steps == a.canvases && a.stats.steps <= 3 * STEPS);
    CHECK(a.length == b.length && !memcmp(a.text, b.text, a.length));
    sampling.seed = 6;
    const written c = answer(1, &options);
    CHECK(c.length != a.length || memcmp(a.text, c.text, a.length));
}

/* The tokens that a session holds behind the prompt. */
static size_t held_answer(const gm_session *s, const int32_t **tokens) {
    const size_t count = gm_session_tokens(s, tokens);
    *tokens += 20;
    return count > 20 ? count - 20 : 0;
}

/* The end of the turn is pinned, so it is where we want it. */
static void test_end_of_turn(void) {
    TEST("the end of a turn inside a block");
    gm_session     *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_reply       *reply = s ? start(s, 2, NULL) : NULL;
    session_canvas *c = NULL;
    const int32_t  *tokens, end = tokenizer_special(engine->words, SPECIAL_TURN_END);
    written         w = { 0 };
    if (!reply) return;
    reply->canvas.starts = calloc(LENGTH + 10, sizeof *reply->canvas.starts);
    reply->canvas.count = LENGTH + 10;
    for (size_t i = 0; i < LENGTH + 10; i++)
        reply->canvas.starts[i] = (canvas_start){ i == LENGTH + 9 ? end : 400 + (int32_t)i, true };
    canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE, "%s", why);
    CHECK(w.stats.finish == GM_FINISH_STOP && w.stats.blocks == 2);
    CHECK_MESSAGE(held_answer(s, &tokens) == LENGTH + 9, "%zu tokens", held_answer(s, &tokens));
    for (size_t i = 0; i < held_answer(s, &tokens); i++) CHECK(tokens[i] == 400 + (int32_t)i);
    CHECK(!session_canvas_get(s, &c, &(error){ 0 }));
    gm_reply_free(reply);
    gm_session_free(s);
}

/* Text at the first and at the last position of a canvas and across the border to the next, holes between. */
static void test_pins(void) {
    static const char text[] = "ab[[28]]cd[[3]]e[[=fgh]]";
    canvas_start     *starts = NULL;
    size_t            count = 0;
    error             e = { 0 };
    TEST("pins at the edges");
    CHECK_MESSAGE(!canvas_text_read(engine->words, str_of(text), 100, &starts, &count, &e), "%s", e.why);
    gm_session            *s = open_session(engine, GM_KV_DEFAULT, 0);
    const gm_reply_options options = { .canvas = text, .max_tokens = 2 * LENGTH };
    gm_reply              *reply = s ? start(s, 3, &options) : NULL;
    const int32_t         *tokens;
    written                w = { 0 };
    if (reply) canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE, "%s", why);
    CHECK(held_answer(s, &tokens) >= 2 + 28 + 2 + 3 + 1);
    for (size_t i = 0; i < count && i < held_answer(s, &tokens); i++)
        CHECK_MESSAGE(!starts[i].pinned || tokens[i] == starts[i].id, "position %zu has changed", i);
    free(starts);
    gm_reply_free(reply);
    gm_session_free(s);
}

static void test_stop_and_cancel(void) {
    TEST("stop and cancel between steps, and go on");
    gm_session            *s = open_session(engine, GM_KV_DEFAULT, 0);
    const gm_reply_options options = { .max_tokens = LENGTH, .want_canvas = true };
    gm_reply              *reply = s ? start(s, 4, &options) : NULL;
    gm_piece               piece = { 0 };
    written                w = { 0 };
    gm_status              status = GM_AGAIN;
    while (reply && (status == GM_AGAIN || (status == GM_OK && piece.kind != GM_PIECE_CANVAS)))
        status = gm_reply_next(reply, &piece, why, sizeof why);
    CHECK(status == GM_OK && piece.canvas && piece.canvas->step == 1 && piece.canvas->count == LENGTH);
    gm_reply_stop(reply);
    canvas_write_on(reply, &w);
    CHECK(w.status == GM_DONE && w.stats.finish == GM_FINISH_CANCELLED && gm_session_tokens(s, NULL) == 20);
    gm_reply_free(reply);
    reply = start(s, 4, &options);
    for (status = GM_AGAIN; status == GM_AGAIN || (status == GM_OK && piece.kind != GM_PIECE_CANVAS);)
        status = gm_reply_next(reply, &piece, why, sizeof why);
    gm_session_cancel(s);
    while ((status = gm_reply_next(reply, &piece, why, sizeof why)) == GM_AGAIN || status == GM_OK) {}
    CHECK_MESSAGE(status == GM_CANCELLED, "%s", gm_status_name(status));
    gm_reply_free(reply);
    reply = start(s, 4, &options);
    w = (written){ 0 };
    canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE && w.stats.reply_tokens == LENGTH, "%s", why);
    gm_reply_free(reply);
    gm_session_free(s);
}

/* A cancelled step is left at once, and leaves nothing behind. */
static void test_cancel_within_step(void) {
    TEST("cancel within a step");
    const double           turn = engine->turn_seconds;
    const gm_reply_options options = { .max_tokens = LENGTH, .want_canvas = true };
    const written          want = answer(4, &options);
    gm_session            *s = open_session(engine, GM_KV_DEFAULT, 0);
    written                w = { 0 };
    for (size_t canvases = 0; s && canvases < 3; canvases++) {
        gm_piece  piece;
        gm_status status = GM_OK;
        size_t    seen = 0;
        gm_reply *reply = start(s, 4, &options);
        engine->turn_seconds = 0; /* a call returns before its step is done */
        while (reply && (status == GM_OK || (status == GM_AGAIN && seen < canvases))) {
            status = gm_reply_next(reply, &piece, why, sizeof why);
            seen += status == GM_OK && piece.kind == GM_PIECE_CANVAS;
        }
        CHECK_MESSAGE(status == GM_AGAIN, "%s", gm_status_name(status));
        gm_session_cancel(s);
        CHECK(gm_reply_next(reply, &piece, why, sizeof why) == GM_CANCELLED);
        engine->turn_seconds = turn;
        gm_reply_free(reply);
    }
    gm_reply *reply = s ? start(s, 4, &options) : NULL;
    if (reply) canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE && w.length == want.length && !memcmp(w.text, want.text, w.length), "%s", why);
    gm_reply_free(reply);
    gm_session_free(s);
}

/* The tokens that complete a stop string are the last of the answer, whatever the block has behind them. */
static void test_canvas_stop_strings(void) {
    static const char *const stop = "fox";
    const gm_reply_options   options = { .canvas = "The red fox is here, and says so to all of you",
                                         .stop = &stop,
                                         .stop_count = 1,
                                         .max_tokens = LENGTH,
                                         .steps = 1 };
    gm_session              *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_reply                *reply = s ? start(s, 6, &options) : NULL;
    const int32_t           *tokens;
    written                  w = { 0 };
    size_t                   whole = 0;
    TEST("a stop string in a block");
    if (reply) canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE && w.length == 8 && !memcmp(w.text, "The red ", 8), "'%.*s'", (int)w.length,
                  w.text);
    CHECK(w.stats.finish == GM_FINISH_STOP && w.stats.reply_tokens == held_answer(s, &tokens));
    CHECK(!gm_tokenize(engine, "The red fox", 11, false, NULL, 0, &whole, why, sizeof why));
    CHECK_MESSAGE(w.stats.reply_tokens <= whole, "%zu tokens for %zu", w.stats.reply_tokens, whole);
    gm_reply_free(reply);
    gm_session_free(s);

    TEST("a stop string that the last token completes");
    w = answer(6, &(gm_reply_options){ .canvas = options.canvas, .stop = &stop, .stop_count = 1, .max_tokens = whole });
    CHECK(w.status == GM_DONE && w.stats.finish == GM_FINISH_STOP);
}

/* Answers that are written together take turns: a block that came token by token would wait for a step of the others with each. */
static void test_block_pieces(void) {
    static const char *const stop = "no such text";
    gm_sampling              sampling;
    TEST("a block comes in one piece, with and without stop strings");
    gm_sampling_default(engine, &sampling);
    for (size_t stops = 0; stops < 2; stops++) {
        const written w = answer(
            1,
            &(gm_reply_options){ .sampling = &sampling, .stop = &stop, .stop_count = stops, .max_tokens = 2 * LENGTH });
        CHECK_MESSAGE(w.status == GM_DONE && w.stats.blocks == 2 && w.pieces == 2, "%zu pieces of %zu blocks", w.pieces,
                      w.stats.blocks);
    }
}

/* Content, a thought and content in one block: a piece of each, in order. The tokens of a thought count, those behind a stop string do not. */
static void test_block_thoughts(void) {
    static const char *const stops[] = { "no such text", "x" };
    static const char *const expected[] = { "(ab)[hm](cdxe)", "(ab)[hm](cd)" };
    for (size_t row = 0; row < COUNT_OF(stops); row++) {
        const gm_reply_options options = { .think = true,
                                           .canvas = "ab[[1]]thought\nhm[[1]]cdxe[[1]]",
                                           .stop = &stops[row],
                                           .stop_count = 1,
                                           .steps = 1 };
        const special_token    specials[] = { SPECIAL_CHANNEL, SPECIAL_CHANNEL_END, SPECIAL_TURN_END };
        gm_session            *s = open_session(engine, GM_KV_DEFAULT, 0);
        gm_reply              *reply = NULL;
        gm_piece               piece;
        gm_reply_stats         stats;
        gm_status              status;
        char                   got[64] = "";
        size_t                 hole = 0;
        TEST("a thought in a block; stop string '%s'", stops[row]);
        CHECK(
            !gm_reply_start(s, &(gm_message){ .role = "user", .content = "Hi" }, 1, &options, &reply, why, sizeof why));
        for (size_t i = 0; i < reply->canvas.count; i++) {
            canvas_start *at = &reply->canvas.starts[i];
            if (at->id == CANVAS_HOLE) *at = (canvas_start){ tokenizer_special(engine->words, specials[hole++]), true };
        }
        while ((status = gm_reply_next(reply, &piece, why, sizeof why)) == GM_OK || status == GM_AGAIN) {
            const char *brackets = piece.kind == GM_PIECE_THINKING ? "[]" : "()";
            if (status == GM_AGAIN || piece.kind == GM_PIECE_PROGRESS) continue;
            snprintf(got + strlen(got), sizeof got - strlen(got), "%c%.*s%c", brackets[0], (int)piece.length,
                     piece.text, brackets[1]);
        }
        gm_reply_get_stats(reply, &stats);
        CHECK_MESSAGE(status == GM_DONE && !strcmp(got, expected[row]), "%s %s", gm_status_name(status), got);
        CHECK_MESSAGE(stats.finish == GM_FINISH_STOP && stats.reply_tokens <= reply->canvas.count - 1 - row,
                      "%zu tokens", stats.reply_tokens);
        gm_reply_free(reply);
        gm_session_free(s);
    }
}

/* A block that is pinned whole needs no step. */
static void test_pinned_blocks(void) {
    static const char text[] = "ab[[=x]]";
    char              canvas[2 * LENGTH + 40] = "";
    TEST("blocks that are pinned are not denoised");
    for (size_t i = 0; i < 2 * LENGTH; i++) canvas[i] = "\n "[i % 2]; /* tokens of one letter */
    strcpy(canvas + 2 * LENGTH, text);
    const gm_reply_options options = { .canvas = canvas, .max_tokens = 2 * LENGTH + 4, .steps = 2 };
    const written          w = answer(7, &options);
    CHECK_MESSAGE(w.status == GM_DONE && w.stats.blocks == 3, "%zu blocks", w.stats.blocks);
    CHECK_MESSAGE(w.stats.steps <= 2, "%zu steps", w.stats.steps);
    CHECK(w.length >= 2 * LENGTH && !memcmp(w.text, canvas, 2 * LENGTH));
}

/* An answer that goes on after its first block, or in the middle of its second, is what it would have been. */
static void test_resumed(void) {
    static const char *const canvases[] = { NULL, "ab[[50]]cd[[3]]e" };
    for (size_t pinned = 0; pinned < COUNT_OF(canvases); pinned++) {
        for (size_t blocks = 1; blocks < 3; blocks++) {
            gm_sampling      sampling;
            gm_reply_options options = { .sampling = &sampling, .canvas = canvases[pinned], .max_tokens = 3 * LENGTH };
            const int32_t   *tokens;
            written          whole = { 0 }, rest = { 0 };
            TEST("an answer %s goes on after %s", pinned ? "with pins" : "without pins",
                 blocks == 1 ? "a block" : "half a block");
            gm_sampling_default(engine, &sampling);
            sampling.seed = 11;
            gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
            gm_reply   *reply = s ? start(s, 8, &options) : NULL;
            if (reply) canvas_write_on(reply, &whole);
            gm_reply_free(reply);
            const size_t held = s ? gm_session_tokens(s, &tokens) : 0;
            options.resume_count = blocks == 1 ? 20 + LENGTH : 20 + LENGTH + LENGTH / 2;
            CHECK_MESSAGE(held > options.resume_count, "%zu tokens", held);
            int32_t before[20 + 2 * LENGTH];
            if (held > options.resume_count) memcpy(before, tokens, options.resume_count * sizeof *before);
            options.resume = before;
            gm_session_free(s);
            rest = answer(8, &options);
            CHECK(whole.status == rest.status && whole.length == rest.length &&
                  !memcmp(whole.text, rest.text, rest.length));
            CHECK(whole.stats.reply_tokens == rest.stats.reply_tokens && whole.stats.finish == rest.stats.finish);
            CHECK(whole.stats.steps > rest.stats.steps);
        }
    }
}

static void test_no_room(void) {
    static const struct {
        size_t      context;
        const char *canvas, *complaint;
    } rows[] = { { 20 + LENGTH - 1, NULL, "no room for a canvas of 32" },
                 { 20 + 2 * LENGTH, "a[[70]]", "has 71 tokens and takes 96 in whole blocks" } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("a context of %zu tokens", rows[i].context);
        gm_session *s = open_session(engine, GM_KV_DEFAULT, rows[i].context);
        gm_reply   *reply = s ? start(s, 5, &(gm_reply_options){ .canvas = rows[i].canvas }) : NULL;
        written     w = { 0 };
        if (reply) canvas_write_on(reply, &w);
        CHECK_MESSAGE(w.status == GM_CONTEXT_FULL && !w.stats.blocks && strstr(why, rows[i].complaint), "%s", why);
        CHECK(w.stats.finish != GM_FINISH_LENGTH); /* it is no answer that was cut short */
        gm_reply_free(reply);
        gm_session_free(s);
    }
}

static void test_full_context(void) {
    TEST("a context without room for another block");
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 20 + LENGTH + LENGTH / 2);
    gm_reply   *reply = s ? start(s, 5, NULL) : NULL;
    written     w = { 0 };
    if (reply) canvas_write_on(reply, &w);
    CHECK(w.status == GM_CONTEXT_FULL && w.stats.blocks == 1 && w.stats.finish == GM_FINISH_LENGTH);
    gm_reply_free(reply);
    gm_session_free(s);
}

/* Answers that are polled in turn are computed in the same runs, and are those of each alone. */
static void test_canvases_together(void) {
    enum { MANY = 3 };
    gm_session  *s[MANY];
    gm_reply    *replies[MANY];
    written      alone[MANY], together[MANY] = { 0 };
    size_t       most = 0;
    bool         open = true;
    const double turn = engine->turn_seconds;
    TEST("several canvases in one run");
    engine->turn_seconds = 0; /* calls return early, so that all of them begin */
    gm_sampling sampling;
    gm_sampling_default(engine, &sampling);
    const gm_reply_options options = { .sampling = &sampling, .max_tokens = 2 * LENGTH };
    for (uint32_t i = 0; i < MANY; i++) {
        sampling.seed = i;
        alone[i] = answer(10 + i, &options);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        sampling.seed = i;
        s[i] = open_session(engine, GM_KV_DEFAULT, 0);
        replies[i] = start(s[i], 10 + i, &options);
        together[i].status = GM_AGAIN;
    }
    while (open) {
        open = false;
        for (size_t i = 0; i < MANY; i++) {
            gm_piece piece;
            written *w = &together[i];
            if (w->status != GM_AGAIN && w->status != GM_OK) continue;
            w->status = gm_reply_next(replies[i], &piece, why, sizeof why);
            open = true;
            most = max_size(most, denoiser_last_canvases(engine->denoiser));
            if (w->status != GM_OK || piece.kind != GM_PIECE_CONTENT) continue;
            memcpy(w->text + w->length, piece.text, piece.length);
            w->length += piece.length;
        }
    }
    engine->turn_seconds = turn;
    CHECK_MESSAGE(most == MANY, "at most %zu at once", most);
    for (size_t i = 0; i < MANY; i++) {
        CHECK(together[i].status == GM_DONE && together[i].length == alone[i].length);
        CHECK(!memcmp(together[i].text, alone[i].text, alone[i].length));
        gm_reply_free(replies[i]);
        gm_session_free(s[i]);
    }
}

/* The chat format, a parser and a system message; the pinned text comes out whole. */
static void test_canvas_chat(void) {
    static const gm_message messages[] = { { .role = "system", .content = "Be brief." },
                                           { .role = "user", .content = "Hi" } };
    static const char       text[] = "The red fox is here, and says so to all of you";
    const gm_reply_options  options = { .canvas = text, .max_tokens = 20, .steps = 1 };
    gm_session             *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_reply               *reply = NULL;
    written                 w = { 0 };
    size_t                  count = 0;
    TEST("a message is answered with pinned text");
    CHECK(!gm_tokenize(engine, text, strlen(text), false, NULL, 0, &count, why, sizeof why) && count >= 20);
    CHECK_MESSAGE(!gm_reply_start(s, messages, 2, &options, &reply, why, sizeof why), "%s", why);
    if (reply) canvas_write_on(reply, &w);
    CHECK_MESSAGE(w.status == GM_DONE && w.length > 10 && !memcmp(w.text, text, w.length - 1), "'%.*s'", (int)w.length,
                  w.text);
    CHECK(w.stats.steps == 1);
    gm_reply_free(reply);
    gm_session_free(s);
}

static void test_canvas_refusals(void) {
    gm_session            *s = open_session(engine, GM_KV_DEFAULT, 0);
    const gm_reply_options logprobs = { .want_logprobs = true };
    const int32_t          token = 5;
    gm_reply              *reply = NULL;
    gm_token_logprob       chosen;
    gm_sampling            sampling;
    gm_sampling_default(engine, &sampling);
    TEST("what a diffusion model does not do");
    CHECK(gm_reply_start_tokens(s, &token, 1, &logprobs, &reply, why, sizeof why) == GM_UNSUPPORTED);
    const uint32_t mask[64] = { 1 };
    sampling.mask = mask;
    const gm_reply_options masked = { .sampling = &sampling };
    CHECK(gm_reply_start_tokens(s, &token, 1, &masked, &reply, why, sizeof why) == GM_UNSUPPORTED &&
          strstr(why, "mask"));
    sampling.mask = NULL;
    CHECK(gm_session_sample(s, &sampling, &chosen, NULL, 0, why, sizeof why) == GM_UNSUPPORTED);
    gm_session_free(s);
}

static void test_acceptance(void) {
    static const uint32_t entropies[] = { 50, 3000, 20, 50, 20, 0 };
    static const bool     expected[] = { true, false, true, true, true, true };
    bool                  accepted[COUNT_OF(entropies)];
    TEST("positions are accepted up to the bound");
    canvas_accept(entropies, COUNT_OF(entropies), 100,
                  accepted); /* in order: 0, 20, 20, 50, 50; before 3000 there is 140 */
    for (size_t i = 0; i < COUNT_OF(entropies); i++) CHECK(accepted[i] == expected[i]);
}

/* ---- steps that a GPU takes without the host ---- */

static void watch_nothing(void *user, const gpu_submission *s) { (void)user, (void)s; }

/* A canvas with text and holes behind a prompt. */
static session_canvas *canvas_behind_prompt(gm_session *s, size_t prompt_seed) {
    canvas_start    starts[LENGTH];
    int32_t         prompt[20];
    session_canvas *c = NULL;
    gm_status       status = GM_AGAIN;
    error           e = { 0 };
    make_tokens(prompt, 20, (uint32_t)prompt_seed);
    while (status == GM_AGAIN) status = gm_session_set(s, prompt, 20, why, sizeof why);
    for (size_t i = 0; i < LENGTH; i++) starts[i] = (canvas_start){ i % 7 == 3 ? 400 : CANVAS_HOLE, true };
    engine_enter(engine);
    if (!status) status = session_canvas_get(s, &c, &e);
    if (!status) status = session_canvas_begin(c, 9, 2, starts, LENGTH, &e);
    engine_leave(engine);
    CHECK_MESSAGE(!status, "%s%s", why, e.why);
    return status ? NULL : c;
}

static bool canvas_step(session_canvas *c) {
    error     e = { 0 };
    gm_status status = GM_AGAIN;
    while (status == GM_AGAIN) {
        engine_enter(engine);
        status = session_canvas_step(c, engine_deadline(engine), &e);
        engine_leave(engine);
    }
    CHECK_MESSAGE(!status, "%s", e.why);
    return !status;
}

/* The states on the GPU. */
static void canvas_read_states(const session_canvas *c, canvas_state *states) {
    gpu_host      *h = engine->gpu.host;
    const uint64_t place = LENGTH * (engine->weights.config.width + CANVAS_FINDINGS) * sizeof(float);
    const uint32_t ticket = gpu_ticket_new(h);
    uint64_t       bytes = 0;
    const void    *data = NULL;
    gpu_words      words = { 0 };
    error          e = { 0 };
    gpu_words_begin(&words);
    words.data[gpu_words_read(&words, c->buffer, place, LENGTH * sizeof *states)] = ticket;
    CHECK_MESSAGE(!gpu_submit(h, words.data, words.count, &e), "%s", e.why);
    while (!e.status && !(data = gpu_ticket_data(h, ticket, &bytes)) && !gpu_host_problem(h, &e)) gpu_host_wait(h, 100);
    CHECK_MESSAGE(data && bytes >= LENGTH * sizeof *states, "%s", e.why);
    if (data) memcpy(states, data, LENGTH * sizeof *states);
    gpu_ticket_done(h, ticket);
    free(words.data);
}

/* One step at a time, and with the next one under way: what the GPU makes of each step's findings is what we make of them. */
static void test_ahead(void) {
    int32_t last[LENGTH];
    for (size_t ahead = 0; ahead < 2; ahead++) {
        TEST(ahead ? "a step is submitted while another runs" : "the GPU decides as we do");
        gm_session     *s = open_session(engine, GM_KV_DEFAULT, 0);
        session_canvas *c = s ? canvas_behind_prompt(s, 40) : NULL;
        engine->gpu.watch = ahead ? NULL : watch_nothing;
        for (uint32_t step = 0; c && step < STEPS; step++) {
            canvas_state ours[LENGTH], theirs[LENGTH];
            memcpy(ours, c->numbers.states, sizeof ours);
            if (!canvas_step(c)) break;
            CHECK(c->numbers.step == step + 1 && c->numbers.done == (step + 1 == STEPS));
            CHECK_MESSAGE(c->flying + c->arrived == (ahead && step + 1 < STEPS), "%zu steps are under way", c->flying);
            if (ahead) continue;
            canvas_read_states(c, theirs);
            CHECK_MESSAGE(!memcmp(ours, theirs, sizeof ours), "step %u denoises another canvas", step);
        }
        engine->gpu.watch = NULL;
        if (c && ahead) CHECK(!memcmp(last, c->numbers.likeliest, sizeof last));
        if (c) memcpy(last, c->numbers.likeliest, sizeof last);
        gm_session_free(s);
    }
}

/* A canvas that others leave, or that ends, while a step of all is under way. */
static void test_leaving(void) {
    TEST("a canvas leaves while others are denoised");
    gm_session     *s[2] = { open_session(engine, GM_KV_DEFAULT, 0), open_session(engine, GM_KV_DEFAULT, 0) };
    session_canvas *c[2] = { canvas_behind_prompt(s[0], 41), canvas_behind_prompt(s[1], 42) };
    int32_t         last[LENGTH];
    for (size_t left = 0; left < 2 && c[0] && c[1]; left++) {
        for (uint32_t step = 0; step < STEPS; step++) {
            if (!canvas_step(c[0])) break;
            if (left && !step) session_canvas_leave(c[1]);
        }
        CHECK(c[0]->numbers.done && !c[0]->flying && c[1]->arrived == (left ? 0 : 2));
        if (left) CHECK(!memcmp(last, c[0]->numbers.likeliest, sizeof last));
        memcpy(last, c[0]->numbers.likeliest, sizeof last);
        for (size_t i = 0; i < 2 && !left; i++) canvas_behind_prompt(s[i], 41 + i);
    }
    for (size_t i = 0; i < 2; i++) gm_session_free(s[i]);
}

static gm_engine *open_diffusion(bool gpu) {
    gm_engine *opened = open_engine(&(gm_engine_options){ .model = "tests/fixtures/tiny-diffusion.gguf",
                                                          .backend = gpu ? GM_BACKEND_GPU : GM_BACKEND_CPU,
                                                          .precise = true });
    if (opened) opened->weights.config.canvas.steps = STEPS;
    return opened;
}

/* ---- a model that settles ---- */

static void scale_tensor(uint8_t *bytes, size_t count, float factor) {
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, bytes + i * sizeof value, sizeof value);
        value *= factor;
        memcpy(bytes + i * sizeof value, &value, sizeof value);
    }
}

/* tiny-diffusion, changed so that its denoising settles as that of a trained model does. Its layers change a token less, so a token that fits is
 * sure of itself; every other embedding is 0, so those are noise. More positions are accepted in every step. */
static uint8_t *settling_model(size_t *length) {
    uint8_t *data = NULL;
    gguf    *g = NULL;
    error    e = { 0 };
    FILE    *file = fopen("tests/fixtures/tiny-diffusion.gguf", "rb");
    CHECK(file && !fseek(file, 0, SEEK_END));
    if (!file) return NULL;
    *length = (size_t)ftell(file);
    rewind(file);
    data = malloc(*length);
    CHECK(data && fread(data, 1, *length, file) == *length);
    fclose(file);
    CHECK_MESSAGE(!gguf_open_memory(data, *length, &g, &e), "%s", e.why);
    for (size_t i = 0; g && i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        uint8_t           *bytes = data + ((const uint8_t *)gguf_tensor_data(g, t) - data);
        char               name[80];
        snprintf(name, sizeof name, "%.*s", STR_ARGS(t->name));
        if (strstr(name, "post_attention_norm") || strstr(name, "post_ffw_norm")) scale_tensor(bytes, t->count, 0.25f);
        if (!strcmp(name, "output_norm.weight")) scale_tensor(bytes, t->count, 2);
        const size_t row = (size_t)(t->bytes / t->ne[1]);
        for (size_t id = 1; id < t->ne[1] && !strcmp(name, "token_embd.weight"); id += 2)
            memset(bytes + id * row, 0, row);
    }
    gguf_free(g);
    return data;
}

/* Whole answers of several blocks. With random weights a difference grows six-fold from step to step: after 48 steps one bit would be enough to
 * change the text. */
static void answer_everywhere(const gm_engine_options *options, uint32_t seeds, bool settles) {
    enum { BLOCKS = 2 };
    gm_engine *engines[2], *first = engine;
    for (size_t i = 0; i < 2; i++) {
        gm_engine_options o = *options;
        o.backend = i ? GM_BACKEND_GPU : GM_BACKEND_CPU;
        o.precise = true;
        engines[i] = open_engine(&o);
    }
    for (uint32_t seed = 1; seed <= seeds && engines[0] && engines[1]; seed++) {
        written     w[2];
        gm_sampling sampling;
        gm_sampling_default(engines[0], &sampling);
        sampling.seed = seed;
        const gm_reply_options o = { .sampling = &sampling, .max_tokens = BLOCKS * LENGTH, .want_canvas = true };
        for (size_t i = 0; i < 2; i++) {
            engine = engines[i];
            w[i] = answer(50 + seed, &o);
        }
        CHECK(w[0].status == GM_DONE && w[1].status == GM_DONE && w[0].length > 0);
        CHECK_MESSAGE(w[0].stats.steps == w[1].stats.steps && w[0].stats.blocks == w[1].stats.blocks,
                      "seed %u: %zu and %zu steps", seed, w[0].stats.steps, w[1].stats.steps);
        CHECK_MESSAGE(w[0].length == w[1].length && !memcmp(w[0].text, w[1].text, w[0].length),
                      "seed %u: '%.*s' and '%.*s'", seed, (int)w[0].length, w[0].text, (int)w[1].length, w[1].text);
        CHECK(w[0].canvases == w[1].canvases && !memcmp(w[0].last, w[1].last, sizeof w[0].last));
        const size_t each = w[0].stats.steps / w[0].stats.blocks;
        CHECK_MESSAGE(settles ? each > 2 && each < 24 : each == 48, "seed %u: %zu steps of a block", seed, each);
    }
    engine = first;
    for (size_t i = 0; i < 2; i++) gm_engine_close(engines[i]);
}

static void test_same_everywhere(void) {
    size_t   length = 0;
    uint8_t *settling = settling_model(&length);
    TEST("a seed gives the same text on the CPU and on the GPU");
    answer_everywhere(&(gm_engine_options){ .model = "tests/fixtures/tiny-diffusion.gguf" }, 3, false);
    TEST("the same of a model that settles");
    answer_everywhere(&(gm_engine_options){ .data = settling, .data_size = length }, 2, true);
    free(settling);
}

int main(int argc, char **argv) {
    const bool gpu = argc > 1 && !strcmp(argv[1], "gpu");
    engine = open_diffusion(gpu);
    if (!engine) return test_end();
    test_blocks();
    if (gpu) test_same_everywhere();
    if (gpu) test_ahead();
    if (gpu) test_leaving();
    test_canvases_together();
    test_pins();
    test_end_of_turn();
    test_stop_and_cancel();
    test_cancel_within_step();
    if (!gpu) {
        test_canvas_stop_strings();
        test_block_pieces();
        test_block_thoughts();
        test_pinned_blocks();
        test_resumed();
        test_no_room();
        test_full_context();
        test_canvas_refusals();
        test_canvas_chat();
        test_acceptance();
    }
    gm_engine_close(engine);
    return test_end();
}
