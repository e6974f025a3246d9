/* For JavaScript: sessions, snapshots and replies. */

#include "session/canvas_json.h"
#include "session/serving.h"
#include "wasm/wasm.h"

#include <stdlib.h>
#include <string.h>

/* ---- a session ---------------------------------------------------------------------------------------------------------- */

/* `kv` as gm_kv_type. */
EXPORT(gmw_session_new)
gm_status gmw_session_new(wasm_context *c, gm_engine *engine, uint32_t context, int32_t kv, gm_session **out) {
    error           e = { 0 };
    char            why[sizeof e.why];
    const gm_status status =
        gm_session_new(engine, &(gm_session_options){ .context = context, .kv = (gm_kv_type)kv }, out, why, sizeof why);
    if (status) fail(&e, status, "%s", why);
    return wasm_end(c, &e);
}

EXPORT(gmw_session_free) void gmw_session_free(gm_session *s) { gm_session_free(s); }

EXPORT(gmw_session_context) size_t gmw_session_context(const gm_session *s) { return gm_session_context(s); }

EXPORT(gmw_session_count) size_t gmw_session_count(const gm_session *s) { return s->tokens.count; }

EXPORT(gmw_session_ids) const int32_t *gmw_session_ids(const gm_session *s) { return s->tokens.ids; }

EXPORT(gmw_session_vocabulary) size_t gmw_session_vocabulary(const gm_session *s) {
    return s->engine->weights.config.vocabulary;
}

EXPORT(gmw_session_logits) const float *gmw_session_logits(const gm_session *s) { return gm_session_logits(s); }

EXPORT(gmw_session_dispatches) size_t gmw_session_dispatches(const gm_session *s) { return session_dispatches(s); }

EXPORT(gmw_session_set) gm_status gmw_session_set(wasm_context *c, gm_session *s, const int32_t *ids, size_t n) {
    error           e = { 0 };
    const gm_status status = session_set(s, ids, n, &e);
    return wasm_end_step(c, status, &e);
}

EXPORT(gmw_session_append) gm_status gmw_session_append(wasm_context *c, gm_session *s, const int32_t *ids, size_t n) {
    error           e = { 0 };
    const gm_status status = session_append(s, ids, n, &e);
    return wasm_end_step(c, status, &e);
}

/* Stops a set or an append, and keeps the tokens that are computed. (Freeing a reply stops the reply.) */
EXPORT(gmw_session_stop) void gmw_session_stop(gm_session *s) {
    if (s->pending) session_forget_uncomputed(s);
    else session_abandon(s);
}

EXPORT(gmw_session_rollback)
gm_status gmw_session_rollback(wasm_context *c, gm_session *s, size_t keep, size_t *recompute) {
    error e = { 0 };
    session_rollback(s, keep, recompute, &e);
    return wasm_end(c, &e);
}

EXPORT(gmw_session_fork) gm_status gmw_session_fork(wasm_context *c, gm_session *s, gm_session **out) {
    error           e = { 0 };
    char            why[sizeof e.why];
    const gm_status status = gm_session_fork(s, out, why, sizeof why);
    if (status) fail(&e, status, "%s", why);
    return wasm_end(c, &e);
}

/* ---- snapshots ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    buffer           bytes;
    snapshot_saving *job;
} saving;

EXPORT(gmw_save_free) void gmw_save_free(saving *s) {
    snapshot_save_free(s->job);
    buffer_free(&s->bytes);
    free(s);
}

EXPORT(gmw_save_new) gm_status gmw_save_new(wasm_context *c, gm_session *session, saving **out) {
    error   e = { 0 };
    saving *s = *out = calloc(1, sizeof *s);
    if (!s) fail_memory(&e, "the snapshot", sizeof *s);
    else if (snapshot_save(session, buffer_sink, &s->bytes, &s->job, &e)) {
        gmw_save_free(s);
        *out = NULL;
    }
    return wasm_end(c, &e);
}

EXPORT(gmw_save_step) gm_status gmw_save_step(wasm_context *c, saving *s) {
    error           e = { 0 };
    const gm_status status = snapshot_save_step(s->job, &e);
    return wasm_end_step(c, status, &e);
}

EXPORT(gmw_save_bytes) const char *gmw_save_bytes(const saving *s) { return s->bytes.data; }

EXPORT(gmw_save_length) size_t gmw_save_length(const saving *s) { return s->bytes.length; }

/* The bytes must live until gmw_restore_free. */
EXPORT(gmw_restore_new)
gm_status gmw_restore_new(wasm_context *c, gm_session *session, const void *data, size_t length,
                          snapshot_restoring **out) {
    error e = { 0 };
    gguf *g = NULL;
    *out = NULL;
    if (!gguf_open_memory(data, length, &g, &e)) snapshot_restore(session, g, out, &e);
    return wasm_end(c, &e);
}

EXPORT(gmw_restore_step) gm_status gmw_restore_step(wasm_context *c, snapshot_restoring *r) {
    error           e = { 0 };
    const gm_status status = snapshot_restore_step(r, &e);
    return wasm_end_step(c, status, &e);
}

EXPORT(gmw_restore_free) void gmw_restore_free(snapshot_restoring *r) { snapshot_restore_free(r); }

/* ---- replies ------------------------------------------------------------------------------------------------------------ */

/* A parsed request; its strings live in the arena. */
typedef struct {
    arena            memory;
    gm_message      *messages;
    size_t           count;
    gm_sampling      sampling;
    gm_reply_options options;
} request;

/* NULL if there is no such field. */
static gm_status wire_text(request *r, const json *object, const char *key, const char **out, error *e) {
    const json *value = json_get(object, key);
    *out = NULL;
    if (!value || value->kind == JSON_NULL) return GM_OK;
    buffer list = { 0 };
    if (value->kind == JSON_STRING) {
        if (memchr(value->text.data, 0, value->text.length))
            return fail(e, GM_BAD_ARGUMENT, "%s contains a NUL character", key);
        *out = arena_copy(&r->memory, value->text);
    } else {
        json_write(&list, value); /* tools and calls stay JSON */
        *out = list.failed ? NULL : arena_copy(&r->memory, buffer_view(&list));
        buffer_free(&list);
    }
    return *out ? GM_OK : fail_memory(e, "a message", value->text.length);
}

/* 0 if there is no such field. */
static gm_status wire_count(const json *object, const char *key, uint32_t *out, error *e) {
    const json *value = json_get(object, key);
    int64_t     n = 0;
    if (value && (!json_integer(value, &n) || n < 0 || n > UINT32_MAX))
        return fail(e, GM_BAD_ARGUMENT, "%s must be a whole number of at least 0", key);
    *out = (uint32_t)n;
    return GM_OK;
}

/* {"data": address, "size": …, "width": …, "height": …}: JavaScript keeps the data in our memory during the call. */
static gm_status wire_bytes(const json *from, const void **data, size_t *size, uint32_t *width, uint32_t *height,
                            error *e) {
    uint32_t address = 0, bytes = 0;
    TRY(wire_count(from, "data", &address, e));
    TRY(wire_count(from, "size", &bytes, e));
    TRY(wire_count(from, "width", width, e));
    TRY(wire_count(from, "height", height, e));
    *data = (const void *)(uintptr_t)address;
    *size = bytes;
    return GM_OK;
}

/* [{"time": …, "data": …, …}] */
static gm_status wire_frames(request *r, const json *list, gm_part *out, error *e) {
    if (!json_is(list, JSON_ARRAY)) return fail(e, GM_BAD_ARGUMENT, "the frames of a video must be a list");
    gm_frame *frames = arena_array(&r->memory, max_size(list->count, 1), sizeof *frames);
    if (!frames) return fail_memory(e, "a video", list->count * sizeof *frames);
    out->frames = frames;
    for (const json *from = list->first; from; from = from->next) {
        gm_frame   *frame = &frames[out->frame_count++];
        const json *time = json_get(from, "time");
        *frame = (gm_frame){ .time = json_is(time, JSON_NUMBER) ? time->number : -1 };
        TRY(wire_bytes(from, &frame->data, &frame->size, &frame->width, &frame->height, e));
    }
    return GM_OK;
}

/* {"type": "text", "text": …}, {"type": "image", "data": address, "size": …, "width": …, "height": …, "budget": …},
 * {"type": "audio", "data": address, "size": …, "rate": …} or {"type": "video", "frames": […], "budget": …}. */
static gm_status wire_part(request *r, const json *from, gm_part *out, error *e) {
    static const char *const kinds[] = { "text", "image", "audio", "video" };
    const char              *type = NULL;
    size_t                   kind = 0;
    TRY(wire_text(r, from, "type", &type, e));
    while (kind < COUNT_OF(kinds) && (!type || strcmp(type, kinds[kind]))) kind++;
    if (kind == COUNT_OF(kinds))
        return fail(e, GM_BAD_ARGUMENT, "a part must have the type text, image, audio or video, found '%s'",
                    type ? type : "");
    out->kind = (gm_part_kind)kind;
    TRY(wire_text(r, from, "text", &out->text, e));
    TRY(wire_bytes(from, &out->data, &out->size, &out->width, &out->height, e));
    TRY(wire_count(from, "rate", &out->rate, e));
    TRY(wire_count(from, "budget", &out->budget, e));
    return out->kind == GM_PART_VIDEO ? wire_frames(r, json_get(from, "frames"), out, e) : GM_OK;
}

static gm_status wire_content(request *r, const json *from, gm_message *out, error *e) {
    const json *content = json_get(from, "content");
    if (!json_is(content, JSON_ARRAY)) return wire_text(r, from, "content", &out->content, e);
    gm_part *parts = arena_array(&r->memory, max_size(content->count, 1), sizeof *parts);
    if (!parts) return fail_memory(e, "a message", content->count * sizeof *parts);
    out->parts = parts;
    for (const json *part = content->first; part; part = part->next) {
        parts[out->part_count] = (gm_part){ 0 };
        TRY(wire_part(r, part, &parts[out->part_count++], e));
    }
    if (!out->part_count) out->content = "";
    return GM_OK;
}

static gm_status wire_message(request *r, const json *from, gm_message *out, error *e) {
    TRY(wire_text(r, from, "role", &out->role, e));
    TRY(wire_content(r, from, out, e));
    TRY(wire_text(r, from, "thinking", &out->thinking, e));
    TRY(wire_text(r, from, "tool_calls", &out->tool_calls, e));
    TRY(wire_text(r, from, "tool_name", &out->tool_name, e));
    return wire_text(r, from, "tool_call_id", &out->tool_call_id, e);
}

static gm_status wire_messages(request *r, const json *list, error *e) {
    if (!json_is(list, JSON_ARRAY)) return fail(e, GM_BAD_ARGUMENT, "messages must be a list");
    r->messages = arena_array(&r->memory, max_size(list->count, 1), sizeof *r->messages);
    if (!r->messages) return fail_memory(e, "the messages", list->count * sizeof *r->messages);
    for (const json *m = list->first; m; m = m->next) {
        gm_message *out = &r->messages[r->count++];
        *out = (gm_message){ 0 };
        TRY(wire_message(r, m, out, e));
    }
    return GM_OK;
}

static gm_status wire_resume(request *r, const json *list, error *e) {
    int32_t *ids = arena_array(&r->memory, max_size(list->count, 1), sizeof *ids);
    if (!ids) return fail_memory(e, "the tokens of a reply", list->count * sizeof *ids);
    r->options.resume = ids;
    for (const json *id = list->first; id; id = id->next) {
        int64_t value = 0;
        if (!json_integer(id, &value) || value < 0 || value > INT32_MAX)
            return fail(e, GM_BAD_ARGUMENT, "resume must be a list of token ids");
        ids[r->options.resume_count++] = (int32_t)value;
    }
    return GM_OK;
}

static gm_status wire_options(request *r, const gm_engine *engine, const json *o, error *e) {
    const json *stops = json_get(o, "stop");
    r->sampling = engine->sampling;
    TRY(wasm_read_sampling(json_get(o, "sampling"), &r->sampling, &r->memory, e));
    r->options = (gm_reply_options){ .sampling = &r->sampling,
                                     .think = json_is(json_get(o, "think"), JSON_TRUE),
                                     .want_logprobs = json_get(o, "logprobs") != NULL,
                                     .want_canvas = json_is(json_get(o, "wantCanvas"), JSON_TRUE) };
    TRY(wire_text(r, o, "canvas", &r->options.canvas, e));
    TRY(wire_count(o, "steps", &r->options.steps, e));
    TRY(wire_text(r, o, "tools", &r->options.tools, e));
    TRY(wire_count(o, "maxTokens", &r->options.max_tokens, e));
    TRY(wire_count(o, "logprobs", &r->options.logprobs, e));
    if (json_is(json_get(o, "resume"), JSON_ARRAY)) TRY(wire_resume(r, json_get(o, "resume"), e));
    if (!json_is(stops, JSON_ARRAY)) return GM_OK;
    const char **stop = arena_array(&r->memory, max_size(stops->count, 1), sizeof *stop);
    if (!stop) return fail_memory(e, "the stop strings", stops->count * sizeof *stop);
    for (const json *s = stops->first; s; s = s->next) {
        stop[r->options.stop_count] = s->kind == JSON_STRING ? arena_copy(&r->memory, s->text) : NULL;
        if (!stop[r->options.stop_count++]) return fail(e, GM_BAD_ARGUMENT, "stop must be a list of strings");
    }
    r->options.stop = stop;
    return GM_OK;
}

/* {"messages": [...], "options": {...}} */
static gm_status wire_request(request *r, const gm_engine *engine, str text, bool messages, error *e) {
    json *all = NULL;
    TRY(json_parse(text, &r->memory, &all, e));
    TRY(wire_options(r, engine, json_get(all, "options"), e));
    return messages ? wire_messages(r, json_get(all, "messages"), e) : GM_OK;
}

EXPORT(gmw_render) gm_status gmw_render(wasm_context *c, const gm_engine *engine, const char *text, size_t length) {
    error   e = { 0 };
    request r = { 0 };
    char    why[sizeof e.why], *prompt = NULL;
    buffer_clear(&c->result);
    if (!wire_request(&r, engine, (str){ text, length }, true, &e)) {
        const gm_status status = gm_render(engine, r.messages, r.count, &r.options, &prompt, why, sizeof why);
        if (status) fail(&e, status, "%s", why);
    }
    if (prompt) buffer_text(&c->result, prompt);
    gm_free(prompt);
    arena_free(&r.memory);
    return wasm_end(c, &e);
}

/* Answers the request's messages or, if `ids` is not NULL, continues from these tokens. */
EXPORT(gmw_reply_new)
gm_status gmw_reply_new(wasm_context *c, gm_session *s, const char *text, size_t length, const int32_t *ids, size_t n,
                        gm_reply **out) {
    error   e = { 0 };
    request r = { 0 };
    char    why[sizeof e.why];
    *out = NULL;
    if (!wire_request(&r, s->engine, (str){ text, length }, !ids, &e)) {
        const gm_status status = ids ? gm_reply_start_tokens(s, ids, n, &r.options, out, why, sizeof why)
                                     : gm_reply_start(s, r.messages, r.count, &r.options, out, why, sizeof why);
        if (status) fail(&e, status, "%s", why);
    }
    arena_free(&r.memory);
    return wasm_end(c, &e);
}

EXPORT(gmw_reply_free) void gmw_reply_free(gm_reply *r) { gm_reply_free(r); }

static void wire_logprobs(buffer *out, const gm_piece *piece, size_t row) {
    wasm_key(out, "logprobs");
    for (size_t i = 0; i < piece->logprob_tokens; i++) {
        buffer_char(out, i ? ',' : '[');
        for (size_t j = 0; j < row; j++) {
            const gm_token_logprob *p = &piece->logprobs[i * row + j];
            buffer_text(out, j ? ",{\"token\":" : "[{\"token\":");
            json_write_number(out, p->token);
            wasm_number(out, "logprob", p->logprob);
            buffer_char(out, '}');
        }
        buffer_char(out, ']');
    }
    buffer_char(out, ']');
}

/* GM_OK: the result is a piece as JSON. `row` is 1 + the number of alternatives, or 0 without log-probabilities. The text of a tool
 * call is JSON itself. */
EXPORT(gmw_reply_next) gm_status gmw_reply_next(wasm_context *c, gm_reply *r, size_t row) {
    static const char *const kinds[] = { "content", "thinking", "tool_call", "progress", "canvas" };
    error                    e = { 0 };
    char                     why[sizeof e.why];
    gm_piece                 piece = { 0 };
    buffer                  *out = &c->result;
    const gm_status          status = gm_reply_next(r, &piece, why, sizeof why);
    buffer_clear(out);
    if (status == GM_AGAIN || status == GM_DONE) return status;
    if (status) {
        fail(&e, status, "%s", status == GM_CANCELLED ? "cancelled" : why);
        return wasm_end(c, &e);
    }
    buffer_char(out, '{');
    wasm_text(out, "kind", kinds[piece.kind]);
    if (piece.kind == GM_PIECE_PROGRESS) {
        wasm_number(out, "done", (double)piece.prompt_done);
        wasm_number(out, "total", (double)piece.prompt_total);
        if (piece.media_total) {
            wasm_key(out, "media");
            buffer_char(out, '{');
            wasm_number(out, "done", (double)piece.media_done);
            wasm_number(out, "total", (double)piece.media_total);
            buffer_char(out, '}');
        }
    } else {
        wasm_key(out, "text");
        json_write_string(out, (str){ piece.text, piece.length });
    }
    if (piece.canvas) {
        wasm_key(out, "canvas");
        canvas_json(reply_engine(r), piece.canvas, out);
    }
    if (row && piece.logprob_tokens) wire_logprobs(out, &piece, row);
    buffer_char(out, '}');
    return wasm_end(c, &e);
}

/* Fills [finish, prompt tokens, cached, reply tokens, prompt seconds, reply seconds, media, those encoded, their seconds, blocks, steps]. */
EXPORT(gmw_reply_stats) void gmw_reply_stats(const gm_reply *r, double out[11]) {
    gm_reply_stats stats;
    gm_reply_get_stats(r, &stats);
    out[0] = stats.finish;
    out[1] = (double)stats.prompt_tokens;
    out[2] = (double)stats.cached_tokens;
    out[3] = (double)stats.reply_tokens;
    out[4] = stats.prompt_seconds;
    out[5] = stats.reply_seconds;
    out[6] = (double)stats.media;
    out[7] = (double)stats.media_encoded;
    out[8] = stats.media_seconds;
    out[9] = (double)stats.blocks;
    out[10] = (double)stats.steps;
}
