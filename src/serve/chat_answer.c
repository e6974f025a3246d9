#include "serve/chat_answer.h"

#include "session/canvas_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* A unique id. If the random generator fails, the time has to do. */
static void random_id(const char *prefix, char out[32]) {
    uint64_t bits[2] = { (uint64_t)time(NULL), 0 };
    if (getrandom(bits, sizeof bits, 0) != sizeof bits) bits[1] = bits[0];
    snprintf(out, 32, "%s%016" PRIx64 "%06" PRIx64, prefix, bits[0], bits[1] & 0xffffff);
}

void chat_answer_start(chat_answer *a, const chat_request *request, const gm_engine *engine, const char *model) {
    *a = (chat_answer){ .request = request, .engine = engine, .model = model, .created = (int64_t)time(NULL) };
    random_id("chatcmpl-", a->id);
}

void chat_answer_free(chat_answer *a) {
    buffer_free(&a->content);
    buffer_free(&a->thinking);
    buffer_free(&a->calls);
    buffer_free(&a->logprobs);
}

bool chat_answer_failed(const chat_answer *a) {
    return a->content.failed || a->thinking.failed || a->calls.failed || a->logprobs.failed;
}

/* ---- parts ---- */

/* "id", "object", "created" and "model", and the opening of "choices". */
static void answer_write_head(const chat_answer *a, const char *object, buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", a->id, object,
                  a->created);
    json_write_string(out, str_of(a->model));
    buffer_text(out, ",\"system_fingerprint\":\"gemmule-" GM_VERSION "\",\"choices\":[");
}

static void write_usage(const gm_reply_stats *s, buffer *out) {
    buffer_printf(out,
                  "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%zu}}",
                  s->prompt_tokens, s->reply_tokens, s->prompt_tokens + s->reply_tokens, s->cached_tokens);
}

static const char *finish_reason(gm_finish finish) {
    static const char *const names[] = {
        [GM_FINISH_STOP] = "stop", [GM_FINISH_LENGTH] = "length", [GM_FINISH_TOOL_CALLS] = "tool_calls"
    };
    return (size_t)finish < COUNT_OF(names) && names[finish] ? names[finish] : "stop";
}

static void answer_write_token(const chat_answer *a, const gm_token_logprob *token, buffer *out) {
    const char *text = "";
    size_t      length = 0;
    gm_token_text(a->engine, token->token, &text, &length);
    buffer_text(out, "{\"token\":");
    json_write_string(out, (str){ text, length });
    buffer_text(out, ",\"logprob\":");
    json_write_number(out, (double)token->logprob);
    buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++) buffer_printf(out, "%s%u", i ? "," : "", (unsigned char)text[i]);
    buffer_char(out, ']');
}

/* The items of a list; a comma comes first unless `first` is set. */
static void answer_write_logprobs(const chat_answer *a, const gm_piece *piece, bool first, buffer *out) {
    const gm_token_logprob *row = piece->logprobs;
    const size_t            alternatives = a->request->top_logprobs;
    for (size_t i = 0; row && i < piece->logprob_tokens; i++, row += 1 + alternatives) {
        if (!first) buffer_char(out, ',');
        first = false;
        answer_write_token(a, row, out);
        buffer_text(out, ",\"top_logprobs\":[");
        for (size_t k = 1; k <= alternatives; k++) {
            if (k > 1) buffer_char(out, ',');
            answer_write_token(a, row + k, out);
            buffer_char(out, '}');
        }
        buffer_text(out, "]}");
    }
}

/* Turns the library's {"name": …, "arguments": {…}} into OpenAI's form, in which the arguments are a string. */
static void write_call(const chat_answer *a, const gm_piece *piece, buffer *out) {
    arena  scratch = { 0 };
    json  *call = NULL;
    error  ignored = { 0 };
    buffer arguments = { 0 };
    char   id[32];
    random_id("call_", id);
    buffer_char(out, '{');
    if (a->request->stream) buffer_printf(out, "\"index\":%zu,", a->call_count);
    buffer_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    if (json_parse((str){ piece->text, piece->length }, &scratch, &call, &ignored) == GM_OK) {
        json_write(&arguments, json_get(call, "arguments"));
    } else {
        out->failed = true; /* the library wrote this JSON: only memory can have run out */
    }
    json_write_string(out, json_string(json_get(call, "name"), ""));
    buffer_text(out, ",\"arguments\":");
    json_write_string(out, buffer_view(&arguments));
    buffer_text(out, "}}");
    out->failed |= arguments.failed;
    buffer_free(&arguments);
    arena_free(&scratch);
}

/* ---- events ---- */

static void open_event(const chat_answer *a, buffer *out) {
    buffer_text(out, "data: ");
    answer_write_head(a, "chat.completion.chunk", out);
    buffer_text(out, "{\"index\":0,\"delta\":");
}

/* With include_usage, every event but the last has a null usage. */
static void answer_close_event(const chat_answer *a, const char *reason, buffer *out) {
    buffer_text(out, ",\"finish_reason\":");
    if (reason) json_write_string(out, str_of(reason));
    else buffer_text(out, "null");
    buffer_printf(out, "}]%s}\n\n", a->request->include_usage ? ",\"usage\":null" : "");
}

static void text_event(const chat_answer *a, const char *key, const gm_piece *piece, buffer *out) {
    open_event(a, out);
    buffer_printf(out, "{\"%s\":", key);
    json_write_string(out, (str){ piece->text, piece->length });
    if (a->request->logprobs && piece->kind == GM_PIECE_CONTENT) {
        buffer_text(out, "},\"logprobs\":{\"content\":[");
        answer_write_logprobs(a, piece, true, out);
        buffer_text(out, "],\"refusal\":null}");
    } else {
        buffer_text(out, "},\"logprobs\":null");
    }
    answer_close_event(a, NULL, out);
}

static void call_event(const chat_answer *a, const gm_piece *piece, buffer *out) {
    open_event(a, out);
    buffer_text(out, "{\"tool_calls\":[");
    write_call(a, piece, out);
    buffer_text(out, "]},\"logprobs\":null");
    answer_close_event(a, NULL, out);
}

/* A chunk without text. What OpenAI's form has no name for is in a field of our own. */
static void canvas_event(const chat_answer *a, const gm_piece *piece, buffer *out) {
    buffer_text(out, "data: ");
    answer_write_head(a, "chat.completion.chunk", out);
    buffer_text(out, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":null}],\"gemmule\":{\"canvas\":");
    canvas_json(a->engine, piece->canvas, out);
    buffer_printf(out, "}%s}\n\n", a->request->include_usage ? ",\"usage\":null" : "");
}

static void end_events(const chat_answer *a, const gm_reply_stats *stats, buffer *out) {
    open_event(a, out);
    buffer_text(out, "{},\"logprobs\":null");
    answer_close_event(a, finish_reason(stats->finish), out);
    if (a->request->include_usage) {
        buffer_text(out, "data: ");
        answer_write_head(a, "chat.completion.chunk", out);
        buffer_text(out, "],\"usage\":");
        write_usage(stats, out);
        buffer_text(out, "}\n\n");
    }
    buffer_text(out, "data: [DONE]\n\n");
}

/* ---- a whole answer ---- */

static void collect(chat_answer *a, const gm_piece *piece) {
    const str text = { piece->text, piece->length };
    switch (piece->kind) {
    case GM_PIECE_CONTENT:
        buffer_str(&a->content, text);
        if (a->request->logprobs) answer_write_logprobs(a, piece, !a->logprobs.length, &a->logprobs);
        break;
    case GM_PIECE_THINKING: buffer_str(&a->thinking, text); break;
    case GM_PIECE_TOOL_CALL:
        if (a->call_count) buffer_char(&a->calls, ',');
        write_call(a, piece, &a->calls);
        break;
    case GM_PIECE_CANVAS:
    case GM_PIECE_PROGRESS: break;
    }
}

static void write_whole(const chat_answer *a, const gm_reply_stats *stats, buffer *out) {
    answer_write_head(a, "chat.completion", out);
    buffer_text(out, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if (a->content.length || !a->call_count) json_write_string(out, buffer_view(&a->content));
    else buffer_text(out, "null");
    buffer_text(out, ",\"refusal\":null");
    if (a->thinking.length) {
        buffer_text(out, ",\"reasoning_content\":");
        json_write_string(out, buffer_view(&a->thinking));
    }
    if (a->call_count) {
        buffer_text(out, ",\"tool_calls\":[");
        buffer_str(out, buffer_view(&a->calls));
        buffer_char(out, ']');
    }
    buffer_text(out, "},\"logprobs\":");
    if (a->request->logprobs) {
        buffer_text(out, "{\"content\":[");
        buffer_str(out, buffer_view(&a->logprobs));
        buffer_text(out, "],\"refusal\":null}");
    } else {
        buffer_text(out, "null");
    }
    buffer_printf(out, ",\"finish_reason\":\"%s\"}],\"usage\":", finish_reason(stats->finish));
    write_usage(stats, out);
    buffer_text(out, "}\n");
}

/* ---- API ---- */

void chat_answer_begin(chat_answer *a, buffer *out) {
    if (!a->request->stream) return;
    open_event(a, out);
    buffer_text(out, "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null");
    answer_close_event(a, NULL, out);
}

void chat_answer_piece(chat_answer *a, const gm_piece *piece, buffer *out) {
    if (piece->kind == GM_PIECE_PROGRESS) return;
    if (piece->kind == GM_PIECE_THINKING && !a->request->think) return; /* not requested */
    if (!a->request->stream) collect(a, piece);
    else if (piece->kind == GM_PIECE_TOOL_CALL) call_event(a, piece, out);
    else if (piece->kind == GM_PIECE_CANVAS) canvas_event(a, piece, out);
    else text_event(a, piece->kind == GM_PIECE_THINKING ? "reasoning_content" : "content", piece, out);
    if (piece->kind == GM_PIECE_TOOL_CALL) a->call_count++;
}

void chat_answer_end(chat_answer *a, const gm_reply_stats *stats, buffer *out) {
    if (a->request->stream) end_events(a, stats, out);
    else write_whole(a, stats, out);
}

/* ---- errors ---- */

void write_error(buffer *out, unsigned http_status, const char *code, const char *param, const char *message) {
    const char *type = http_status == 401   ? "authentication_error"
                       : http_status == 429 ? "rate_limit_error"
                       : http_status >= 500 ? "server_error"
                                            : "invalid_request_error";
    buffer_text(out, "{\"error\":{\"message\":");
    json_write_string(out, str_of(message));
    buffer_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (param && *param) json_write_string(out, str_of(param));
    else buffer_text(out, "null");
    buffer_text(out, ",\"code\":");
    if (code) json_write_string(out, str_of(code));
    else buffer_text(out, "null");
    buffer_text(out, "}}\n");
}

unsigned http_status_of(gm_status status, const char **code) {
    static const struct {
        gm_status   status;
        unsigned    http;
        const char *code;
    } rows[] = {
        { GM_BAD_ARGUMENT, 400, "invalid_value" },
        { GM_UNSUPPORTED, 400, "unsupported" },
        { GM_CONTEXT_FULL, 400, "context_length_exceeded" },
        { GM_NOT_FOUND, 503, "model_unavailable" }, /* an adapter that the server was given, but cannot load */
        { GM_NO_MEMORY, 503, "out_of_memory" },
        { GM_DEVICE_LOST, 503, "device_lost" },
        { GM_CANCELLED, 503, "cancelled" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].status != status) continue;
        *code = rows[i].code;
        return rows[i].http;
    }
    *code = "internal_error";
    return 500;
}
