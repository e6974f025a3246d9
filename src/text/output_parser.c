/* Splits the model's output, as it streams in, into content, thinking and tool calls.
 *
 * Text goes into `pending` and is scanned once: there is no tag before `scanned`. The parser holds back text that may become a tag,
 * and white space that a tag would trim, so the events do not depend on how the text was cut into pieces. */

#include "text/chat.h"
#include "text/tool_arguments.h"
#include "text/white_space.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    STATE_CONTENT,
    STATE_THINKING_NAME,
    STATE_THINKING,
    STATE_CALL,
    STATE_AFTER_CALL,
    STATE_COUNT
} parser_state;

typedef enum { TAG_NONE, TAG_CHANNEL, TAG_CHANNEL_END, TAG_CALL, TAG_CALL_END, TAG_RESPONSE, TAG_COUNT } tag;

static const char *const tag_text[TAG_COUNT] = {
    "", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
};

/* The tags that each state recognises. */
static const tag state_tags[STATE_COUNT][3] = {
    [STATE_CONTENT] = { TAG_CHANNEL, TAG_CALL, TAG_CHANNEL_END }, /* the last one is a stray tag, which is dropped */
    [STATE_THINKING] = { TAG_CHANNEL_END },
    [STATE_CALL] = { TAG_CALL_END },
    [STATE_AFTER_CALL] = { TAG_CALL_END, TAG_RESPONSE },
};

typedef struct {
    output_kind kind;
    bool        repaired;
    size_t      text, text_length; /* in `strings`; a call's arguments */
    size_t      name, name_length;
} stored_event;

struct output_parser {
    const json   *tools;
    bool          think;
    parser_state  state;
    bool          skip_space; /* at the start of content after a thought */
    buffer        pending;
    size_t        at;      /* everything before was handled */
    size_t        scanned; /* at <= scanned: no tag before it */
    size_t        space;   /* at <= space <= scanned: from here to `scanned` is white space */
    stored_event *events;
    size_t        event_count, event_capacity, event_next;
    buffer        strings;
    bool          failed;
};

gm_status output_parser_new(const json *tools, bool think, bool starts_thinking, output_parser **out, error *e) {
    output_parser *p = *out = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "the output parser", sizeof *p);
    p->tools = tools;
    p->think = think;
    p->state = starts_thinking ? STATE_THINKING_NAME : STATE_CONTENT;
    return GM_OK;
}

void output_parser_free(output_parser *p) {
    if (!p) return;
    buffer_free(&p->pending);
    buffer_free(&p->strings);
    free(p->events);
    free(p);
}

/* ---- events ---- */

static stored_event *add_event(output_parser *p, output_kind kind) {
    if (!p->events || p->event_count == p->event_capacity) {
        size_t        capacity = p->event_capacity ? p->event_capacity * 2 : 8;
        stored_event *events =
            capacity <= SIZE_MAX / sizeof *events ? realloc(p->events, capacity * sizeof *events) : NULL;
        if (!events) {
            p->failed = true;
            return NULL;
        }
        p->events = events;
        p->event_capacity = capacity;
    }
    stored_event *event = &p->events[p->event_count++];
    *event = (stored_event){ .kind = kind, .text = p->strings.length };
    return event;
}

static void emit_text(output_parser *p, output_kind kind, str text) {
    if (!text.length || (kind == OUTPUT_THINKING && !p->think)) return;
    stored_event *last = p->event_count ? &p->events[p->event_count - 1] : NULL;
    if (!last || last->kind != kind) last = add_event(p, kind);
    if (!last) return;
    buffer_str(&p->strings, text);
    last->text_length = p->strings.length - last->text;
}

/* Content or thinking in `pending` up to `end`. */
static void emit_pending_to(output_parser *p, size_t end) {
    if (end > p->at)
        emit_text(p, p->state == STATE_CONTENT ? OUTPUT_CONTENT : OUTPUT_THINKING,
                  (str){ p->pending.data + p->at, end - p->at });
    p->at = max_size(p->at, end);
}

bool output_parser_next(output_parser *p, output_event *event) {
    if (p->event_next == p->event_count || !p->strings.data) return false;
    const stored_event *stored = &p->events[p->event_next++];
    str                 text = { p->strings.data + stored->text, stored->text_length };
    *event =
        (output_event){ .kind = stored->kind, .last = p->event_next == p->event_count, .repaired = stored->repaired };
    if (stored->kind == OUTPUT_CALL) {
        event->arguments = text;
        event->name = (str){ p->strings.data + stored->name, stored->name_length };
    } else {
        event->text = text;
    }
    return true;
}

void output_parser_put_back(output_parser *p) { p->event_next--; }

static void forget_taken(output_parser *p) {
    if (p->event_next < p->event_count) return;
    p->event_count = p->event_next = 0;
    buffer_clear(&p->strings);
}

/* ---- calls ---- */

static const json *properties_of(const json *tools, str name) {
    for (const json *tool = tools ? tools->first : NULL; tool; tool = tool->next) {
        const json *function = json_get(tool, "function");
        if (str_equal(json_string(json_get(function, "name"), ""), name))
            return json_get(json_get(function, "parameters"), "properties");
    }
    return NULL;
}

/* "call:NAME{…}". Anything else, and a call whose arguments cannot be repaired, becomes content, so that nothing gets lost. */
static void emit_call(output_parser *p, str raw, bool closed) {
    str         text = trim(raw);
    const char *brace = text.length ? memchr(text.data, '{', text.length) : NULL;
    if (str_starts_with(text, "call:") && brace) {
        str           name = trim((str){ text.data + 5, (size_t)(brace - text.data) - 5 });
        str           arguments = { brace, text.length - (size_t)(brace - text.data) };
        buffer        converted = { 0 };
        bool          repaired = false;
        gm_status     status = name.length
                                   ? tool_arguments_to_json(arguments, properties_of(p->tools, name), &converted, &repaired)
                                   : GM_BAD_FILE;
        stored_event *event = status ? NULL : add_event(p, OUTPUT_CALL);
        if (event) {
            buffer_str(&p->strings, buffer_view(&converted));
            event->text_length = converted.length;
            event->name = p->strings.length;
            event->name_length = name.length;
            event->repaired = repaired;
            buffer_str(&p->strings, name);
        }
        buffer_free(&converted);
        if (status == GM_NO_MEMORY) p->failed = true;
        if (status != GM_BAD_FILE) return;
    }
    emit_text(p, OUTPUT_CONTENT, str_of(tag_text[TAG_CALL]));
    emit_text(p, OUTPUT_CONTENT, raw);
    if (closed) emit_text(p, OUTPUT_CONTENT, str_of(tag_text[TAG_CALL_END]));
}

/* ---- tags ---- */

/* The state's tag at `at`, if any. *maybe: the text ends inside what may become one. */
static tag tag_at(const output_parser *p, size_t at, bool *maybe) {
    const size_t left = p->pending.length - at;
    *maybe = false;
    for (size_t i = 0; i < COUNT_OF(state_tags[0]) && state_tags[p->state][i]; i++) {
        const char  *text = tag_text[state_tags[p->state][i]];
        const size_t length = strlen(text), shared = min_size(length, left);
        if (memcmp(p->pending.data + at, text, shared) != 0) continue;
        if (shared == length) return state_tags[p->state][i];
        *maybe = true;
    }
    return TAG_NONE;
}

/* The next tag from `scanned` on. Moves `scanned` to the tag, to where a tag may begin, or to the end. */
static tag find_tag(output_parser *p) {
    size_t at = p->scanned;
    tag    found = TAG_NONE;
    for (bool maybe = false; at < p->pending.length; at++) {
        const char *next = memchr(p->pending.data + at, '<', p->pending.length - at);
        at = next ? (size_t)(next - p->pending.data) : p->pending.length;
        if (!next || (found = tag_at(p, at, &maybe)) || maybe) break;
    }
    str    fresh = { p->pending.data + p->scanned, at - p->scanned };
    size_t trimmed = fresh.length ? trim_right(fresh).length : 0;
    if (trimmed) p->space = p->scanned + trimmed;
    p->scanned = at;
    return found;
}

/* Continues at `at` in a new state. */
static void enter_state(output_parser *p, parser_state state, size_t at) {
    p->state = state;
    p->at = p->scanned = p->space = at;
}

/* ---- states: each returns whether it made progress ---- */

static void skip_white_space(output_parser *p) {
    str rest = { p->pending.data + p->at, p->pending.length - p->at };
    enter_state(p, p->state, p->pending.length - (rest.length ? trim_left(rest).length : 0));
}

static bool parse_content(output_parser *p) {
    if (p->skip_space) {
        skip_white_space(p);
        if (p->at == p->pending.length) return false;
        p->skip_space = false;
    }
    tag found = find_tag(p);
    emit_pending_to(p, found == TAG_CHANNEL_END ? p->scanned : p->space);
    if (found)
        enter_state(p,
                    found == TAG_CHANNEL ? STATE_THINKING_NAME
                    : found == TAG_CALL  ? STATE_CALL
                                         : STATE_CONTENT,
                    p->scanned + strlen(tag_text[found]));
    return found;
}

/* A channel begins with its name, a line of its own, which is not part of the thought. */
static bool parse_thinking_name(output_parser *p) {
    static const char name[] = "thought\n";
    const size_t      left = p->pending.length - p->at, shared = min_size(left, strlen(name));
    if (shared && memcmp(p->pending.data + p->at, name, shared) != 0) {
        enter_state(p, STATE_THINKING, p->at);
        return true;
    }
    if (shared < strlen(name)) return false;
    enter_state(p, STATE_THINKING, p->at + shared);
    return true;
}

static bool parse_thinking(output_parser *p) {
    tag found = find_tag(p);
    emit_pending_to(p, p->space);
    if (!found) return false;
    enter_state(p, STATE_CONTENT, p->scanned + strlen(tag_text[found]));
    return p->skip_space = true;
}

static bool parse_call(output_parser *p) {
    tag found = find_tag(p);
    if (!found) return false;
    emit_call(p, (str){ p->pending.data + p->at, p->scanned - p->at }, true);
    enter_state(p, STATE_AFTER_CALL, p->scanned + strlen(tag_text[found]));
    return true;
}

static bool parse_after_call(output_parser *p) {
    bool maybe = false;
    skip_white_space(p);
    if (p->at == p->pending.length) return false;
    tag stray = tag_at(p, p->at, &maybe);
    if (!stray && maybe) return false;
    enter_state(p, stray ? STATE_AFTER_CALL : STATE_CONTENT, p->at + strlen(tag_text[stray]));
    return true;
}

static gm_status parse_pending(output_parser *p, error *e) {
    static bool (*const parsers[STATE_COUNT])(output_parser *) = {
        [STATE_CONTENT] = parse_content, [STATE_THINKING_NAME] = parse_thinking_name, [STATE_THINKING] = parse_thinking,
        [STATE_CALL] = parse_call,       [STATE_AFTER_CALL] = parse_after_call,
    };
    while (parsers[p->state](p)) continue;
    buffer_consume(&p->pending, p->at);
    p->scanned -= p->at;
    p->space -= p->at;
    p->at = 0;
    if (p->failed || p->pending.failed || p->strings.failed)
        return fail_memory(e, "the model's output", p->pending.length);
    return GM_OK;
}

gm_status output_parser_feed(output_parser *p, str text, error *e) {
    forget_taken(p);
    if (!text.length) return GM_OK;
    buffer_str(&p->pending, text);
    if (p->pending.failed) return fail_memory(e, "the model's output", text.length);
    return parse_pending(p, e);
}

/* The length without the beginning of a tag that was never completed. */
static size_t without_partial_tag(const output_parser *p) {
    bool maybe = false;
    if (p->scanned < p->pending.length) tag_at(p, p->scanned, &maybe);
    return maybe ? p->scanned : p->pending.length;
}

gm_status output_parser_end(output_parser *p, error *e) {
    forget_taken(p);
    str rest = buffer_view(&p->pending);
    switch (p->state) {
    case STATE_CONTENT:
    case STATE_AFTER_CALL:
        if (!p->skip_space) emit_text(p, OUTPUT_CONTENT, rest);
        break;
    case STATE_THINKING_NAME:
        if (!str_is(rest, "thought")) emit_text(p, OUTPUT_THINKING, rest);
        break;
    case STATE_THINKING: emit_text(p, OUTPUT_THINKING, rest); break;
    case STATE_CALL: emit_call(p, (str){ rest.data, without_partial_tag(p) }, false); break;
    case STATE_COUNT: break;
    }
    buffer_clear(&p->pending);
    enter_state(p, STATE_CONTENT, 0);
    p->skip_space = false;
    return p->failed || p->strings.failed ? fail_memory(e, "the model's output", rest.length) : GM_OK;
}
