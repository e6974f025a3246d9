/* Messages → prompt: the canonical template as code. */

#include "text/chat_writer.h"
#include "text/white_space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THOUGHT_START "<|channel>thought\n"

static const char *const media_text[] = {
    [CHAT_TEXT] = "", [CHAT_IMAGE] = "<|image|>", [CHAT_AUDIO] = "<|audio|>", [CHAT_VIDEO] = "<|video|>"
};

/* ---- media ---- */

void chat_video_time(double seconds, char out[24]) {
    const unsigned long long whole = seconds > 0 && seconds < 1e12 ? (unsigned long long)seconds : 0;
    snprintf(out, 24, "%02llu:%02llu", whole / 60, whole % 60);
}

/* "mm:ss " before each frame, and a space after each but the last. */
static void chat_render_frames(chat_writer *w, const chat_part *part) {
    for (size_t i = 0; i < part->media->frame_count; i++) {
        char *text = chat_writer_array(w, 32, 1), time[24];
        if (!text) return;
        chat_video_time(part->media->frames[i].time, time);
        snprintf(text, 32, "%s%s ", i ? " " : "", time);
        chat_write_content(w, str_of(text));
        chat_write_media(w, media_text[CHAT_VIDEO], part, i);
    }
}

static void chat_render_media(chat_writer *w, const chat_part *part) {
    if (part->kind == CHAT_VIDEO && part->media) chat_render_frames(w, part);
    else chat_write_media(w, media_text[part->kind], part, 0);
}

/* ---- bodies ---- */

static size_t find_text(str text, size_t from, const char *what) {
    const size_t length = strlen(what);
    for (size_t at = from; at + length <= text.length; at++) {
        const char *next = memchr(text.data + at, what[0], text.length - length - at + 1);
        if (!next) break;
        at = (size_t)(next - text.data);
        if (!memcmp(next, what, length)) return at;
    }
    return SIZE_MAX;
}

/* Removes <|channel>…<channel|> spans. A span that is not closed extends to the end. */
static str strip_thinking(chat_writer *w, str text) {
    size_t at = find_text(text, 0, "<|channel>"), from = 0, length = 0;
    if (at == SIZE_MAX) return text;
    char *kept = chat_writer_array(w, text.length + 1, 1);
    while (kept) {
        const size_t end = at == SIZE_MAX ? text.length : at;
        memcpy(kept + length, text.data + from, end - from);
        length += end - from;
        if (at == SIZE_MAX) break;
        const size_t close = find_text(text, at, "<channel|>");
        if (close == SIZE_MAX) break;
        from = close + strlen("<channel|>");
        at = find_text(text, from, "<|channel>");
    }
    return (str){ kept, length };
}

/* Trims white space: around each part if the content was a list, around the whole if it was a text with media in it. */
static void trim_parts(const chat_message *m, str *texts) {
    if (m->list) {
        for (size_t i = 0; i < m->part_count; i++) texts[i] = trim(texts[i]);
        return;
    }
    for (size_t i = 0; i < m->part_count && m->parts[i].kind == CHAT_TEXT; i++) {
        if ((texts[i] = trim_left(texts[i])).length) break;
    }
    for (size_t i = m->part_count; i-- && m->parts[i].kind == CHAT_TEXT;) {
        if ((texts[i] = trim_right(texts[i])).length) break;
    }
}

/* False: there was nothing to write. */
static bool write_body(chat_writer *w, const chat_message *m) {
    bool any = false;
    if (!m->part_count) return false;
    str *texts = chat_writer_array(w, m->part_count, sizeof *texts);
    if (!texts) return false;
    for (size_t i = 0; i < m->part_count; i++)
        texts[i] = m->role == CHAT_ASSISTANT ? strip_thinking(w, m->parts[i].text) : m->parts[i].text;
    trim_parts(m, texts);
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].kind == CHAT_TEXT) chat_write_content(w, texts[i]);
        else chat_render_media(w, &m->parts[i]);
        any |= m->parts[i].kind != CHAT_TEXT || texts[i].length;
    }
    return any;
}

/* ---- the system turn ---- */

static bool is_system(const chat_message *m) { return m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER; }

static void write_system_text(chat_writer *w, const chat_message *m) {
    if (!m->list) {
        write_body(w, m);
        return;
    }
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].kind != CHAT_TEXT) continue;
        chat_write_content(w, trim(m->parts[i].text));
        chat_write_template(w, " ");
    }
}

static void write_system_turn(chat_writer *w, const chat *c, const chat_message *system) {
    if (!system && !(c->tools && c->tools->count) && !c->think) return;
    chat_write_template(w, "<|turn>system\n");
    if (c->think) chat_write_template(w, "<|think|>\n");
    if (system) write_system_text(w, system);
    for (const json *tool = c->tools ? c->tools->first : NULL; tool; tool = tool->next) {
        chat_write_template(w, "<|tool>");
        chat_write_declaration(w, json_get(tool, "function"));
        chat_write_template(w, "<tool|>");
    }
    chat_write_template(w, "<turn|>\n");
}

/* ---- tools ---- */

static void render_calls(chat_writer *w, const chat_message *m) {
    for (size_t i = 0; i < m->call_count; i++) {
        chat_write_template(w, "<|tool_call>call:");
        chat_write_content(w, m->calls[i].name);
        chat_write_template(w, "{");
        if (m->calls[i].arguments) chat_write_fields(w, m->calls[i].arguments, false);
        chat_write_template(w, "}<tool_call|>");
    }
}

/* The name of the call that it answers, or its own name. */
static str name_of_tool(const chat_message *caller, const chat_message *answer) {
    for (size_t i = 0; answer->tool_call_id.length && i < caller->call_count; i++) {
        if (str_equal(caller->calls[i].id, answer->tool_call_id)) return caller->calls[i].name;
    }
    return answer->tool_name.length ? answer->tool_name : str_of("unknown");
}

static void render_response(chat_writer *w, const chat_message *caller, const chat_message *answer) {
    chat_write_template(w, "<|tool_response>"); /* the model stops at the first one, and so it has written it */
    w->answer = false;
    chat_write_template(w, "response:");
    chat_write_content(w, name_of_tool(caller, answer));
    chat_write_template(w, "{");
    if (answer->tool_object) {
        chat_write_fields(w, answer->tool_object, false);
    } else {
        chat_write_template(w, "value:<|\"|>");
        for (size_t i = 0; i < answer->part_count; i++) chat_write_content(w, answer->parts[i].text);
        chat_write_template(w, "<|\"|>");
    }
    chat_write_template(w, "}<tool_response|>");
    for (size_t i = 0; i < answer->part_count; i++) chat_render_media(w, &answer->parts[i]);
}

/* ---- the conversation ---- */

/* The model stops at <turn|>. */
static void write_turn_end(chat_writer *w) {
    chat_write_template(w, "<turn|>");
    w->answer = false;
    chat_write_template(w, "\n");
}

typedef enum { LAST_NONE, LAST_CALL, LAST_RESPONSE } last_written;

typedef struct {
    const chat_message *messages;
    size_t              count, first; /* first: the number of messages[0] in the chat */
    size_t              last_user;    /* SIZE_MAX if there is none */
} turns;

static const chat_message *next_speaker(const turns *t, size_t i) {
    while (++i < t->count && t->messages[i].role == CHAT_TOOL) continue;
    return i < t->count ? &t->messages[i] : NULL;
}

static last_written write_message(chat_writer *w, const turns *t, size_t i, const chat_message *previous) {
    static const char *const headers[] = {
        [CHAT_SYSTEM] = "<|turn>system\n",
        [CHAT_DEVELOPER] = "<|turn>developer\n",
        [CHAT_USER] = "<|turn>user\n",
        [CHAT_ASSISTANT] = "<|turn>model\n",
    };
    const chat_message *m = &t->messages[i], *next = next_speaker(t, i);
    const bool          model = m->role == CHAT_ASSISTANT;
    last_written        last = LAST_NONE;
    if (!(model && previous && previous->role == CHAT_ASSISTANT)) chat_write_template(w, headers[m->role]);
    w->answer = model;
    w->message = t->first + i;
    if (model && m->thinking.length && (t->last_user == SIZE_MAX || i > t->last_user)) {
        chat_write_template(w, THOUGHT_START);
        chat_write_content(w, m->thinking);
        chat_write_template(w, "\n<channel|>");
    }
    if (m->call_count) {
        render_calls(w, m);
        last = LAST_CALL;
        for (size_t k = i + 1; k < t->count && t->messages[k].role == CHAT_TOOL; k++) {
            render_response(w, m, &t->messages[k]);
            last = LAST_RESPONSE;
        }
    }
    w->answer = model;
    const bool empty = !write_body(w, m);
    const bool joins = model && next && next->role == CHAT_ASSISTANT && last != LAST_CALL;
    if (last == LAST_CALL) chat_write_template(w, "<|tool_response>");
    else if (!joins && !(last == LAST_RESPONSE && empty && !next)) write_turn_end(w);
    w->answer = false;
    return last;
}

gm_status chat_render(const chat *c, arena *a, chat_piece **pieces, size_t *count, error *e) {
    chat_writer         w = { .memory = a };
    const chat_message *system = c->count && is_system(&c->messages[0]) ? &c->messages[0] : NULL, *previous = NULL;
    turns               t = { c->messages, c->count, system ? 1 : 0, SIZE_MAX };
    last_written        last = LAST_NONE;
    if (system) t.messages++, t.count--;
    for (size_t i = 0; i < t.count; i++) {
        if (t.messages[i].role == CHAT_USER) t.last_user = i;
    }
    chat_write_template(&w, "<bos>");
    write_system_turn(&w, c, system);
    for (size_t i = 0; i < t.count; i++) {
        if (t.messages[i].role == CHAT_TOOL) continue;
        last = write_message(&w, &t, i, previous);
        previous = &t.messages[i];
    }
    if (last == LAST_NONE) {
        chat_write_template(&w, "<|turn>model\n");
        if (c->variant == CHAT_LARGE && !c->think) chat_write_template(&w, THOUGHT_START "<channel|>");
    } else if (last == LAST_RESPONSE && c->think) {
        chat_write_template(&w, THOUGHT_START);
    }
    *pieces = w.pieces;
    *count = w.count;
    return w.failed ? fail_memory(e, "the prompt", w.count * sizeof *w.pieces) : GM_OK;
}

bool chat_starts_thinking(const chat_piece *pieces, size_t count) {
    return count && pieces[count - 1].scaffolding && str_ends_with(pieces[count - 1].text, THOUGHT_START);
}

gm_status chat_answer(const chat *c, size_t first, const chat_piece *prompt, size_t prompt_count, arena *a,
                      chat_piece **pieces, size_t *count, error *e) {
    bool        thinks = chat_starts_thinking(prompt, prompt_count);
    chat_piece *all, *kept;
    size_t      all_count;
    *count = 0;
    TRY(chat_render(c, a, &all, &all_count, e));
    *pieces = kept = arena_array(a, all_count + 1, sizeof *kept);
    if (!kept) return fail_memory(e, "an answer", all_count * sizeof *kept);
    for (size_t i = 0; i < all_count; i++) {
        if (!all[i].answer || all[i].message < first) continue;
        const bool opened = thinks && all[i].scaffolding && str_is(all[i].text, THOUGHT_START); /* by the prompt */
        if (thinks && !opened) {
            kept[*count] = (chat_piece){ true, str_of("<channel|>"), .answer = true, .message = first };
            ++*count;
        }
        thinks = false;
        if (!opened) kept[(*count)++] = all[i];
    }
    return GM_OK;
}

/* ---- pieces as text and as tokens ---- */

void chat_pieces_text(const chat_piece *pieces, size_t count, buffer *out) {
    for (size_t i = 0; i < count; i++) buffer_str(out, pieces[i].text);
}

/* A template token that the vocabulary lacks would be spelled out as text, which the model does not understand. */
static gm_status check_specials(const tokenizer *t, const chat_piece *pieces, size_t count, error *e) {
    for (int special = 0; special < SPECIAL_COUNT; special++) {
        if (special == SPECIAL_BOS || tokenizer_special(t, (special_token)special) >= 0) continue;
        for (size_t i = 0; i < count; i++) {
            if (!pieces[i].scaffolding || find_text(pieces[i].text, 0, special_token_text[special]) == SIZE_MAX)
                continue;
            return fail(e, GM_UNSUPPORTED, "this prompt needs the token %s, which is not in the model's vocabulary",
                        special_token_text[special]);
        }
    }
    return GM_OK;
}

gm_status chat_pieces_tokens(const tokenizer *t, const chat_piece *pieces, size_t count, token_list *out, error *e) {
    gm_status status = check_specials(t, pieces, count, e);
    if (status) return status;
    buffer      text = { 0 };
    text_range *ranges = calloc(count + 1, sizeof *ranges);
    size_t      range_count = 0;
    const str   bos = str_of(special_token_text[SPECIAL_BOS]);
    if (!ranges) return fail_memory(e, "the prompt", count * sizeof *ranges);
    for (size_t i = 0; i < count; i++) {
        str piece = pieces[i].text;
        if (!i && pieces[i].scaffolding && str_starts_with(piece, bos.data)) {
            piece = (str){ piece.data + bos.length, piece.length - bos.length };
            token_list_add(out, tokenizer_special(t, SPECIAL_BOS));
        }
        size_t start = text.length;
        buffer_str(&text, piece);
        if (!pieces[i].scaffolding) continue;
        if (range_count && ranges[range_count - 1].end == start) ranges[range_count - 1].end = text.length;
        else ranges[range_count++] = (text_range){ start, text.length };
    }
    if (text.failed) status = fail_memory(e, "the prompt", text.length);
    else status = tokenizer_encode_ranges(t, buffer_view(&text), ranges, range_count, out, e);
    buffer_free(&text);
    free(ranges);
    return status;
}
