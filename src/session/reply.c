/* A reply: computes the prompt, then writes tokens. Each passes the detokenizer, the output parser and the stop strings. */

#include "session/decoder.h"
#include "session/prompt.h"
#include "session/reply_parts.h"
#include "session/serving.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LOGPROBS = SAMPLER_MOST_ALTERNATIVES };

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static gm_status reply_copy_options(gm_reply *r, const gm_reply_options *options, error *e) {
    const gm_reply_options none = { 0 }, *o = options ? options : &none;
    const gm_engine       *engine = r->session->engine;
    const size_t           stop_count = o->stop_count ? o->stop_count : engine->stop_count;
    const char *const     *stops = o->stop_count ? o->stop : engine->stops;
    r->sampling = o->sampling ? *o->sampling : engine->sampling;
    r->max_tokens = o->max_tokens ? o->max_tokens : engine->most_tokens ? engine->most_tokens : SIZE_MAX;
    r->alternatives = o->logprobs;
    if (o->resume_count && !o->resume)
        return fail(e, GM_BAD_ARGUMENT, "resume_count is %zu, but resume is NULL", o->resume_count);
    r->want_logprobs = o->want_logprobs || o->logprobs;
    if (o->logprobs > MOST_LOGPROBS)
        return fail(e, GM_BAD_ARGUMENT, "at most %d log-probabilities per token are available, not %u", MOST_LOGPROBS,
                    o->logprobs);
    if (stop_count > MOST_STOPS)
        return fail(e, GM_BAD_ARGUMENT, "at most %d stop strings are allowed, not %zu", MOST_STOPS, stop_count);
    if (stop_count && !stops) return fail(e, GM_BAD_ARGUMENT, "stop_count is %zu, but stop is NULL", stop_count);
    TRY(sampling_check(&r->sampling, engine->weights.config.vocabulary, e));
    if (r->sampling.bias_count) {
        gm_logit_bias *bias = arena_array(&r->memory, r->sampling.bias_count, sizeof *bias);
        if (!bias) return fail_memory(e, "the logit bias", r->sampling.bias_count * sizeof *bias);
        memcpy(bias, r->sampling.bias, r->sampling.bias_count * sizeof *bias);
        r->sampling.bias = bias;
    }
    if (r->sampling.mask) {
        const size_t words = (engine->weights.config.vocabulary + 31) / 32;
        uint32_t    *mask = arena_array(&r->memory, words, sizeof *mask);
        if (!mask) return fail_memory(e, "the mask of tokens", words * sizeof *mask);
        memcpy(mask, r->sampling.mask, words * sizeof *mask);
        r->sampling.mask = mask;
    }
    r->stops = arena_array(&r->memory, stop_count, sizeof *r->stops);
    if (!r->stops && stop_count) return fail_memory(e, "the stop strings", stop_count * sizeof *r->stops);
    TRY(reply_canvas_options(r, o, e));
    for (size_t i = 0; i < stop_count; i++) {
        if (!stops[i] || !*stops[i]) return fail(e, GM_BAD_ARGUMENT, "stop string %zu is empty", i);
        char *copy = arena_copy(&r->memory, str_of(stops[i]));
        if (!copy) return fail_memory(e, "a stop string", strlen(stops[i]));
        r->stops[r->stop_count++] = str_of(copy);
    }
    return GM_OK;
}

static gm_status reply_new(gm_session *session, const gm_reply_options *options, gm_reply **out, error *e) {
    gm_reply *r = *out = calloc(1, sizeof *r);
    if (!r) return fail_memory(e, "a reply", sizeof *r);
    r->session = session;
    r->next = session->replies;
    session->replies = r;
    return reply_copy_options(r, options, e);
}

/* Takes over the answer that an earlier run of this reply began, if it had the same prompt. */
static void take_up(gm_reply *r, const gm_reply_options *o) {
    const size_t n = r->prompt.count;
    if (!o || o->resume_count <= n || !n || memcmp(o->resume, r->prompt.ids, n * sizeof *o->resume)) return;
    r->resumed = o->resume_count - n;
    if (r->session->engine->denoiser) { /* a block that was taken in part is denoised again */
        r->canvas.block = (uint32_t)(r->resumed / r->session->engine->weights.config.canvas.length);
        r->resumed = r->canvas.block * r->session->engine->weights.config.canvas.length;
    }
    for (size_t i = 0; i < r->resumed; i++) token_list_add(&r->prompt, o->resume[n + i]);
}

/* Stops computing for this reply. What is in the cache stays usable. A cancel that came too late for the reply must not hit the
 * next one. */
static void abandon_work(gm_reply *r) {
    gm_session *s = r->session;
    if (!s || s->writer != r) return;
    atomic_store(&s->cancelled, false);
    if (r->phase >= REPLY_ENDING) return;
    if (s->pending) session_forget_uncomputed(s); /* in the middle of the prompt */
    else session_abandon(s);                      /* the GPU may be ahead */
}

static void reply_free(gm_reply *r) {
    if (!r) return;
    if (r->session) {
        abandon_work(r);
        if (r->session->writer == r) r->session->writer = NULL;
        gm_reply **at = &r->session->replies;
        while (*at != r) at = &(*at)->next;
        *at = r->next;
    }
    output_parser_free(r->parser);
    detokenizer_free(&r->letters);
    media_free(&r->media);
    token_list_free(&r->prompt);
    buffer_free(&r->content);
    buffer_free(&r->piece);
    free(r->logprobs);
    free(r->canvas.starts);
    arena_free(&r->memory);
    free(r);
}

void reply_lose_session(gm_reply *first) {
    for (gm_reply *r = first; r; r = r->next) {
        media_stop(&r->media);
        r->session = NULL;
    }
}

static gm_status reply_check_prompt(gm_reply *r, const gm_reply_options *options, error *e) {
    if (!r->prompt.failed) take_up(r, options);
    if (r->prompt.failed) return fail_memory(e, "the prompt", r->prompt.count * sizeof(int32_t));
    engine_enter(r->session->engine);
    const gm_status status = session_check_free(r->session, e);
    engine_leave(r->session->engine);
    return status;
}

/* `status`: of making the reply and its prompt. Frees the reply if anything failed. */
static gm_status finish_start(gm_reply **out, gm_status status, const gm_reply_options *options, error *e, char *why,
                              size_t why_size) {
    if (!status) status = reply_check_prompt(*out, options, e);
    if (status) {
        gm_reply_free(*out);
        *out = NULL;
    }
    return error_report(e, why, why_size);
}

static gm_status write_prompt(gm_reply *r, const gm_message *messages, size_t count, const gm_reply_options *options,
                              error *e) {
    const gm_engine *engine = r->session->engine;
    chat             c;
    chat_piece      *pieces;
    size_t           piece_count;
    TRY(prompt_chat(engine, messages, count, options, &r->memory, &c, e));
    TRY(chat_render(&c, &r->memory, &pieces, &piece_count, e));
    TRY(media_prepare(&r->media, r->session, pieces, piece_count, &r->memory, e));
    TRY(chat_pieces_tokens(engine->words, pieces, piece_count, &r->prompt, e));
    TRY(media_expand(&r->media, engine, &r->prompt, e));
    return output_parser_new(c.tools, c.think, chat_starts_thinking(pieces, piece_count), &r->parser, e);
}

gm_status gm_reply_start(gm_session *session, const gm_message *messages, size_t count, const gm_reply_options *options,
                         gm_reply **out, char *why, size_t why_size) {
    error     e = { 0 };
    gm_status status = reply_new(session, options, out, &e);
    if (!status) status = write_prompt(*out, messages, count, options, &e);
    return finish_start(out, status, options, &e, why, why_size);
}

gm_status gm_reply_start_tokens(gm_session *session, const int32_t *tokens, size_t n, const gm_reply_options *options,
                                gm_reply **out, char *why, size_t why_size) {
    error     e = { 0 };
    gm_status status = reply_new(session, options, out, &e);
    if (!status && n && !tokens) status = fail(&e, GM_BAD_ARGUMENT, "n is %zu, but tokens is NULL", n);
    for (size_t i = 0; i < n && !status; i++) token_list_add(&(*out)->prompt, tokens[i]);
    return finish_start(out, status, options, &e, why, why_size);
}

void gm_reply_free(gm_reply *r) {
    gm_engine *engine = r && r->session ? r->session->engine : NULL;
    if (engine) engine_enter(engine);
    reply_free(r);
    if (engine) engine_leave(engine);
}

void gm_reply_get_stats(const gm_reply *r, gm_reply_stats *out) { *out = r->stats; }

/* ---- pieces ------------------------------------------------------------------------------------------------------------- */

/* Whether the stop string is at `at`: 1 yes, 0 no, -1 the text ends before we know. */
static int stop_at(const gm_reply *r, str stop, size_t at) {
    const size_t n = min_size(r->content.length - at, stop.length);
    if (memcmp(r->content.data + at, stop.data, n)) return 0;
    return n == stop.length ? 1 : -1;
}

/* The answer ends here by a stop string, even if the token that completes it is also the last that was allowed. */
static void reply_found_stop(gm_reply *r) {
    r->stopped = true;
    if (r->phase >= REPLY_ENDING && r->stats.finish == GM_FINISH_LENGTH) {
        r->stats.finish = GM_FINISH_STOP;
        r->problem = (error){ 0 };
    }
}

/* How much of the content can be given out: up to a stop string, or up to an end that may begin one. */
static size_t safe_length(gm_reply *r, bool over) {
    for (size_t at = 0; at < r->content.length; at++) {
        for (size_t i = 0; i < r->stop_count; i++) {
            const int found = stop_at(r, r->stops[i], at);
            if (found == 1) reply_found_stop(r);
            if (found == 1 || (found == -1 && !over)) return at;
        }
    }
    return r->content.length;
}

static bool give(gm_reply *r, gm_piece *piece, gm_piece_kind kind) {
    *piece = (gm_piece){ .kind = kind,
                         .text = r->piece.data,
                         .length = r->piece.length,
                         .logprobs = r->logprobs,
                         .logprob_tokens = r->logprob_rows };
    r->logprobs_given = true;
    return true;
}

/* Whether tokens of a block are left that need no more computing. Its text comes as one piece: answers that are written together take
 * turns, and would wait for each other's steps with every piece. */
static bool reply_gathers(const gm_reply *r) { return r->phase == REPLY_WRITING && r->canvas.taken; }

static bool give_content(gm_reply *r, gm_piece *piece, bool over, bool more) {
    const size_t safe = safe_length(r, over);
    if (!safe || (more && !r->stopped)) return false;
    buffer_clear(&r->piece);
    buffer_append(&r->piece, r->content.data, safe);
    buffer_consume(&r->content, safe);
    return give(r, piece, GM_PIECE_CONTENT);
}

/* The next piece that is ready, if any. */
static bool take_piece(gm_reply *r, gm_piece *piece) {
    output_event event;
    const bool   over = r->phase == REPLY_OVER, more = reply_gathers(r);
    while (!r->stopped && r->parser && output_parser_next(r->parser, &event)) {
        if (event.kind == OUTPUT_CONTENT) {
            buffer_str(&r->content, event.text);
            if (give_content(r, piece, false, more)) return true;
            continue;
        }
        /* A thought that may go on with the next token waits in the parser, and content that was gathered comes before it. */
        const bool waits = more && event.kind == OUTPUT_THINKING && event.last;
        if (waits || give_content(r, piece, false, false)) {
            output_parser_put_back(r->parser);
            return !waits;
        }
        buffer_clear(&r->piece);
        if (event.kind == OUTPUT_THINKING) {
            buffer_str(&r->piece, event.text);
            return give(r, piece, GM_PIECE_THINKING);
        }
        r->called = true;
        buffer_text(&r->piece, "{\"name\":");
        json_write_string(&r->piece, event.name);
        buffer_text(&r->piece, ",\"arguments\":");
        buffer_str(&r->piece, event.arguments);
        buffer_text(&r->piece, "}");
        return give(r, piece, GM_PIECE_TOOL_CALL);
    }
    if (r->stopped) return false;
    return give_content(r, piece, over, more);
}

static gm_status reply_feed(gm_reply *r, str text, error *e) {
    if (r->parser) return output_parser_feed(r->parser, text, e);
    buffer_str(&r->content, text);
    return GM_OK;
}

/* A stop token in pinned text has no text. */
static gm_status reply_feed_token(gm_reply *r, int32_t token, error *e) {
    const tokenizer *words = r->session->engine->words;
    str              text;
    if (tokenizer_is_stop(words, token)) return GM_OK;
    TRY(detokenizer_add(&r->letters, words, token, &text, e));
    return reply_feed(r, text, e);
}

/* ---- writing ------------------------------------------------------------------------------------------------------------- */

/* Where to put the log-probabilities of the next token; NULL if they are not wanted. */
static gm_status logprob_row(gm_reply *r, gm_token_logprob **out, error *e) {
    const size_t row = 1 + r->alternatives;
    *out = NULL;
    if (!r->want_logprobs) return GM_OK;
    if (r->logprob_rows == r->logprob_capacity) {
        const size_t      capacity = r->logprob_capacity ? 2 * r->logprob_capacity : 16;
        gm_token_logprob *grown = realloc(r->logprobs, capacity * row * sizeof *grown);
        if (!grown) return fail_memory(e, "log-probabilities", capacity * row * sizeof *grown);
        r->logprobs = grown;
        r->logprob_capacity = capacity;
    }
    *out = r->logprobs + r->logprob_rows * row;
    return GM_OK;
}

void reply_end_with(gm_reply *r, gm_finish finish) {
    session_abandon(r->session); /* the GPU may be ahead */
    r->stats.finish = finish;
    r->phase = REPLY_ENDING;
}

static gm_status draw_token(gm_reply *r, int32_t *token, double deadline, error *e) {
    draw_wish wish = { .sampling = &r->sampling,
                       .most = r->max_tokens - r->stats.reply_tokens,
                       .alternatives = r->alternatives };
    TRY(logprob_row(r, &wish.logprobs, e));
    return session_next(r->session, &wish, token, deadline, e);
}

gm_status reply_hold_token(gm_reply *r, int32_t token, error *e) {
    /* The context is full: what was written so far is still given out. */
    if (session_hold(r->session, token, &r->problem)) {
        reply_end_with(r, GM_FINISH_LENGTH);
        return GM_OK;
    }
    r->stats.reply_tokens++;
    TRY(reply_feed_token(r, token, e));
    if (r->stats.reply_tokens >= r->max_tokens) reply_end_with(r, GM_FINISH_LENGTH);
    return GM_OK;
}

/* Draws a token and feeds its text on. The token is computed when the next one is drawn. */
static gm_status write_token(gm_reply *r, double deadline, error *e) {
    gm_session      *s = r->session;
    const tokenizer *words = s->engine->words;
    int32_t          token;
    const gm_status  status = draw_token(r, &token, deadline, e);
    if (status) return status;
    r->computed += s->step_seconds;
    if (tokenizer_is_stop(words, token)) {
        reply_end_with(r, r->called || token == tokenizer_special(words, SPECIAL_TOOL_RESPONSE) ? GM_FINISH_TOOL_CALLS
                                                                                                : GM_FINISH_STOP);
        return GM_OK;
    }
    if (r->want_logprobs) r->logprob_rows++;
    return reply_hold_token(r, token, e);
}

static gm_status end_text(gm_reply *r, error *e) {
    str rest;
    TRY(detokenizer_end(&r->letters, &rest, e));
    TRY(reply_feed(r, rest, e));
    if (r->parser) TRY(output_parser_end(r->parser, e));
    r->phase = REPLY_OVER;
    return GM_OK;
}

/* Repeats the text of the next resumed token. */
static gm_status write_resumed(gm_reply *r, error *e) {
    const int32_t token = r->prompt.ids[r->stats.prompt_tokens + r->stats.reply_tokens++];
    TRY(reply_feed_token(r, token, e));
    if (r->stats.reply_tokens >= r->max_tokens) reply_end_with(r, GM_FINISH_LENGTH);
    return GM_OK;
}

static session_prompt reply_prompt(const gm_reply *r) {
    return (session_prompt){ .tokens = r->prompt.ids,
                             .count = r->prompt.count,
                             .soft = &r->media.spans,
                             .rows = r->media.rows,
                             .foreign = r->media.foreign };
}

/* Before the first step: what the session holds already, and whether the rest fits. */
static gm_status prompt_begin(gm_reply *r, error *e) {
    gm_session          *s = r->session;
    const session_prompt p = reply_prompt(r);
    r->stats.prompt_tokens = r->prompt.count - r->resumed;
    r->stats.cached_tokens = min_size(min_size(session_common(s, &p), s->computed), r->stats.prompt_tokens);
    r->stats.media = r->media.count;
    TRY(reply_canvas_check(r, e));
    return r->media.count ? session_check_prompt(s, &p, e) : GM_OK; /* before a tower works for nothing */
}

size_t reply_common(const gm_reply *r, const gm_session *s, size_t *count) {
    const session_prompt p = reply_prompt(r);
    *count = p.count;
    return session_common(s, &p);
}

/* GM_OK with a piece that tells the progress, or when all is encoded; else GM_AGAIN. */
static gm_status encode_media(gm_reply *r, gm_piece *piece, bool *told, error *e) {
    gm_session          *s = r->session;
    const session_prompt p = reply_prompt(r);
    const size_t         before = media_encoded(&r->media);
    const bool           begun = r->media.begun;
    if (atomic_exchange(&s->cancelled, false)) return fail(e, GM_CANCELLED, "cancelled while a picture was encoded");
    const gm_status status = media_encode(&r->media, s, &p, &r->memory, e);
    r->stats.media_encoded = r->media.encoding;
    r->stats.media_seconds = r->media.seconds;
    *told = status == GM_AGAIN && (!begun || media_encoded(&r->media) != before);
    if (!*told) return status;
    *piece = (gm_piece){ .kind = GM_PIECE_PROGRESS,
                         .text = "",
                         .prompt_total = r->prompt.count,
                         .media_done = media_encoded(&r->media),
                         .media_total = r->media.encoding };
    return GM_OK;
}

static gm_status compute_prompt(gm_reply *r, gm_piece *piece, error *e) {
    gm_session *s = r->session;
    if (!s->pending && !r->media.begun) TRY(prompt_begin(r, e));
    if (r->media.count && !r->media.done) {
        bool            told = false;
        const gm_status status = encode_media(r, piece, &told, e);
        if (status || told) return status;
    }
    const session_prompt p = reply_prompt(r);
    const gm_status      status = session_set_prompt(s, &p, e);
    if (status == GM_OK) {
        r->phase = REPLY_WRITING;
        r->prompt_end = clock_seconds();
    }
    if (status != GM_AGAIN || s->computed == r->progress) return status;
    r->progress = s->computed;
    *piece = (gm_piece){
        .kind = GM_PIECE_PROGRESS, .text = "", .prompt_done = s->computed, .prompt_total = r->prompt.count
    };
    return GM_OK;
}

/* GM_OK with a piece, GM_AGAIN, GM_DONE, or an error. */
static gm_status advance(gm_reply *r, double deadline, gm_piece *piece, error *e) {
    gm_status status;
    if (r->logprobs_given) r->logprob_rows = 0;
    r->logprobs_given = false;
    for (size_t tokens = 0;; tokens++) {
        if (r->phase != REPLY_PROMPT && take_piece(r, piece)) break;
        if (r->content.failed || r->piece.failed)
            return fail_memory(e, "the answer", r->content.length + r->piece.length);
        if (r->stopped && r->phase == REPLY_WRITING) reply_end_with(r, GM_FINISH_STOP);
        /* Many tokens may pass without a piece: the arguments of a call, or tokens without text. Answers that are written together
         * take turns after each token, so that none gets too far ahead to be in the next step. */
        if (tokens && r->phase == REPLY_WRITING && !reply_gathers(r) &&
            (decoder_is_shared(r->session) || denoiser_is_shared(r->session) || clock_seconds() > deadline))
            return GM_AGAIN;
        switch (r->phase) {
        case REPLY_PROMPT:
            status = compute_prompt(r, piece, e);
            if (status || r->phase == REPLY_PROMPT) return status;
            break;
        case REPLY_WRITING:
            if (r->session->engine->denoiser && r->stats.reply_tokens >= r->resumed) {
                bool told = false;
                TRY(reply_canvas_write(r, deadline, piece, &told, e));
                if (told) return GM_OK;
                break;
            }
            status = r->stats.reply_tokens < r->resumed ? write_resumed(r, e) : write_token(r, deadline, e);
            if (status) return status;
            break;
        case REPLY_ENDING: TRY(end_text(r, e)); break;
        case REPLY_OVER:
            if (r->problem.status) return fail(e, r->problem.status, "%s", r->problem.why);
            return GM_DONE;
        }
    }
    return r->piece.failed ? fail_memory(e, "a piece of the answer", r->piece.length) : GM_OK;
}

/* Whether the session is still there, and as this reply left it. */
static gm_status check_session(const gm_reply *r, error *e) {
    if (r->phase >= REPLY_ENDING) return GM_OK; /* what is left needs no session */
    if (!r->session) return fail(e, GM_BAD_ARGUMENT, "the session of this reply was freed");
    if (r->begun && r->session->writer != r)
        return fail(e, GM_BAD_ARGUMENT,
                    "this reply cannot go on: its session was changed by another reply, or by a set, append, rollback "
                    "or restore");
    return GM_OK;
}

/* The session is about to be this reply's: those that have begun cannot go on, and nobody may poll them again. */
static void replies_end(const gm_reply *r) {
    for (gm_reply *other = r->session->replies; other; other = other->next) {
        if (other != r && other->begun) media_stop(&other->media);
    }
}

/* One step, inside the engine's lock. */
static gm_status take_turn(gm_reply *r, gm_piece *piece, error *e) {
    const bool prompt = r->phase == REPLY_PROMPT;
    TRY(check_session(r, e));
    const double    deadline = r->session ? engine_deadline(r->session->engine) : 0;
    const gm_status status = advance(r, deadline, piece, e);
    /* A prompt that was refused changed nothing: the session stays with the reply that wrote its tokens. */
    if (prompt && status != GM_BUSY && (!status_failed(status) || !r->session->writer)) {
        r->begun = true;
        if (r->session->writer != r) replies_end(r);
        r->session->writer = r;
    }
    return status;
}

/* How long the tokens of a call took to write, of which `call` was in the call. Steps may have run in calls of other replies. */
static double writing_seconds(gm_reply *r, double call, bool again) {
    const double elsewhere = r->computed - r->waited - call;
    r->waited = again ? r->waited + call : 0;
    return elsewhere > 0 ? call + elsewhere : call;
}

gm_status gm_reply_next(gm_reply *r, gm_piece *piece, char *why, size_t why_size) {
    error        e = { 0 };
    gm_engine   *engine = r->session ? r->session->engine : NULL;
    const bool   prompt = r->phase == REPLY_PROMPT;
    const double start = r->again_since > 0 ? r->again_since : clock_seconds();
    r->computed = 0;
    if (engine && prompt) engine_enter(engine);
    else if (engine) engine_enter_writing(engine);
    const gm_status status = take_turn(r, piece, &e);
    if (engine) engine_leave(engine);
    const double end = clock_seconds();
    const double turn = !prompt ? start : r->phase == REPLY_PROMPT ? end : r->prompt_end;
    r->stats.prompt_seconds += turn - start;
    r->stats.reply_seconds += writing_seconds(r, end - turn, status == GM_AGAIN);
    r->again_since = status == GM_AGAIN ? end : 0;
    if (status == GM_CANCELLED) r->stats.finish = GM_FINISH_CANCELLED;
    if (r->called && r->stats.finish == GM_FINISH_STOP) r->stats.finish = GM_FINISH_TOOL_CALLS;
    return e.status ? error_report(&e, why, why_size) : status;
}

void gm_reply_stop(gm_reply *r) {
    if (r->phase >= REPLY_ENDING) return;
    gm_engine *engine = r->session ? r->session->engine : NULL;
    if (engine) engine_enter(engine);
    abandon_work(r);
    media_stop(&r->media); /* with limited memory, another tower waits for these jobs */
    if (engine) engine_leave(engine);
    r->stats.finish = GM_FINISH_CANCELLED;
    r->phase = REPLY_ENDING;
}
