/* Converts messages from OpenAI's or Ollama's JSON and back. An error names the place: messages[2].content. */

#include "text/chat.h"

#include "base/base64.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[] = {
    [CHAT_SYSTEM] = "system",       [CHAT_DEVELOPER] = "developer", [CHAT_USER] = "user",
    [CHAT_ASSISTANT] = "assistant", [CHAT_TOOL] = "tool",
};

static const struct {
    const char    *type;
    chat_part_kind kind;
} part_types[] = {
    { "text", CHAT_TEXT }, /* the first name of each kind is the one we write */
    { "image", CHAT_IMAGE },       { "audio", CHAT_AUDIO },       { "video", CHAT_VIDEO },
    { "input_text", CHAT_TEXT },   { "output_text", CHAT_TEXT },  { "image_url", CHAT_IMAGE },
    { "input_image", CHAT_IMAGE }, { "input_audio", CHAT_AUDIO }, { "audio_url", CHAT_AUDIO },
    { "video_url", CHAT_VIDEO },   { "input_video", CHAT_VIDEO },
};

typedef struct {
    arena *memory;
    error *e;
    char   place[200]; /* what is being read: "messages[2]" */
} reader;

static bool is_absent(const json *value) { return !value || value->kind == JSON_NULL; }

static gm_status message_fail_type(const reader *r, const char *field, const char *expected, const json *found) {
    return fail(r->e, GM_BAD_ARGUMENT, "%s%s must be %s, found %s", r->place, field, expected, json_describe(found));
}

static gm_status fail_messages_memory(const reader *r, size_t bytes) {
    return fail_memory(r->e, "the messages", bytes);
}

/* Appends a field or an item to the place; returns the length to restore. */
static size_t enter_place(reader *r, const char *format, ...) PRINTF_LIKE(2, 3);
static size_t enter_place(reader *r, const char *format, ...) {
    size_t  before = strlen(r->place);
    va_list args;
    va_start(args, format);
    vsnprintf(r->place + before, sizeof r->place - before, format, args);
    va_end(args);
    return before;
}

static void leave_place(reader *r, size_t before) { r->place[before] = 0; }

static str message_copy_text(reader *r, str text, gm_status *status) {
    char *copy = arena_copy(r->memory, text);
    if (!copy && !*status) *status = fail_messages_memory(r, text.length);
    return (str){ copy, copy ? text.length : 0 };
}

/* An optional string. */
static gm_status read_string(reader *r, const json *object, const char *key, str *out) {
    const json *value = json_get(object, key);
    char        field[64];
    gm_status   status = GM_OK;
    snprintf(field, sizeof field, ".%s", key);
    if (is_absent(value)) return GM_OK;
    if (value->kind != JSON_STRING) return message_fail_type(r, field, "a string", value);
    *out = message_copy_text(r, value->text, &status);
    return status;
}

static gm_status read_first_string(reader *r, const json *object, const char *const *keys, str *out) {
    gm_status status = GM_OK;
    for (; *keys && !out->length && !status; keys++) status = read_string(r, object, *keys, out);
    return status;
}

/* ---- content ---- */

static bool message_add_part(reader *r, chat_message *m, size_t most, chat_part part) {
    if (!m->parts) m->parts = arena_array(r->memory, most, sizeof *m->parts);
    if (!m->parts) return false;
    m->parts[m->part_count++] = part;
    return true;
}

/* Where a part's picture or sound is: "image_url": {"url": …, "detail": …}, "input_audio": {"data": …}, or a string. */
static gm_status read_source(const reader *r, const json *item, chat_part *out) {
    static const char *const fields[] = { "image_url", "input_audio", "audio_url", "video_url", "input_video",
                                          "image",     "audio",       "video",     "url",       "data" };
    const json              *value = NULL;
    for (size_t i = 0; i < COUNT_OF(fields) && is_absent(value); i++) value = json_get(item, fields[i]);
    const json *detail = json_get(json_is(value, JSON_OBJECT) ? value : item, "detail");
    if (json_is(value, JSON_OBJECT)) {
        const json *url = json_get(value, "url");
        value = is_absent(url) ? json_get(value, "data") : url;
    }
    if (!is_absent(value) && value->kind != JSON_STRING)
        return message_fail_type(r, "", "a part with base64 or a data URL", value);
    out->source = json_string(value, "");
    out->detail = json_string(detail, "");
    return GM_OK;
}

gm_status chat_frame_source(const json *frame, const char *place, chat_part *out, error *e) {
    reader r = { .e = e };
    enter_place(&r, "%s", place);
    *out = (chat_part){ .kind = CHAT_IMAGE };
    if (!json_is(frame, JSON_OBJECT)) return message_fail_type(&r, "", "an object with a time and a picture", frame);
    return read_source(&r, frame, out);
}

static gm_status read_part(reader *r, const json *item, size_t media, chat_part *out) {
    if (!json_is(item, JSON_OBJECT)) return message_fail_type(r, "", "an object with a type", item);
    const json *type = json_get(item, "type"), *text = json_get(item, "text");
    if (is_absent(type) && json_is(text, JSON_STRING)) type = NULL;
    else if (!json_is(type, JSON_STRING)) return message_fail_type(r, ".type", "a string", type);
    size_t i = 0;
    while (type && i < COUNT_OF(part_types) && !str_is(type->text, part_types[i].type)) i++;
    if (i == COUNT_OF(part_types)) {
        return fail(r->e, GM_BAD_ARGUMENT,
                    "%s.type must be text, image_url, input_audio, image, audio or video, found \"%.*s\"", r->place,
                    STR_ARGS(type->text));
    }
    *out = (chat_part){ .kind = part_types[i].kind, .index = media };
    if (out->kind == CHAT_VIDEO) {
        const json *frames = json_get(item, "frames");
        if (!is_absent(frames) && frames->kind != JSON_ARRAY) return message_fail_type(r, ".frames", "a list", frames);
        out->frames = is_absent(frames) ? NULL : frames;
    }
    if (out->kind != CHAT_TEXT) return read_source(r, item, out);
    gm_status status = GM_OK;
    if (!json_is(text, JSON_STRING)) return message_fail_type(r, ".text", "a string", text);
    out->text = message_copy_text(r, text->text, &status);
    return status;
}

static gm_status read_part_list(reader *r, const json *content, chat_message *m) {
    size_t media = 0, i = 0;
    m->list = true;
    for (const json *item = content->first; item; item = item->next, i++) {
        chat_part part;
        size_t    before = enter_place(r, ".content[%zu]", i);
        gm_status status = read_part(r, item, media, &part);
        if (!status && !message_add_part(r, m, content->count, part))
            status = fail_messages_memory(r, content->count * sizeof part);
        if (status) return status;
        media += part.kind != CHAT_TEXT;
        leave_place(r, before);
    }
    return GM_OK;
}

/* Ollama's "images" may be sounds: a WAV file begins with RIFF, four bytes of size, WAVE. */
static bool is_wav(str base64) {
    char   head[15];
    size_t size;
    return base64.length >= 16 && base64_decode((str){ base64.data, 16 }, head, &size) && size == 12 &&
           !memcmp(head, "RIFF", 4) && !memcmp(head + 8, "WAVE", 4);
}

/* The length of "[img]" or "[img-7]" at the start of the text, or 0; and its number (SIZE_MAX: the next image). */
static size_t image_tag(str text, bool numbered, size_t *number) {
    *number = SIZE_MAX;
    if (!numbered) return str_starts_with(text, "[img]") ? 5 : 0;
    size_t at = 5;
    if (!str_starts_with(text, "[img-")) return 0;
    for (*number = 0; at < text.length && at < 12 && text.data[at] >= '0' && text.data[at] <= '9'; at++) {
        *number = *number * 10 + (size_t)(text.data[at] - '0');
    }
    return at > 5 && at < text.length && text.data[at] == ']' ? at + 1 : 0;
}

static bool text_contains(str text, const char *what) {
    for (size_t i = 0; i < text.length; i++) {
        if (str_starts_with((str){ text.data + i, text.length - i }, what)) return true;
    }
    return false;
}

/* Ollama's rule: images replace "[img]" in order, and the others go in front, followed by a space. Numbered tags say which image
 * goes where. */
static gm_status place_images(reader *r, const json *images, str text, chat_message *m) {
    const bool numbered = text_contains(text, "[img-");
    size_t     tags = 0, next = 0, number, length;
    chat_part *media = arena_array(r->memory, images->count, sizeof *media);
    if (!media) return fail_messages_memory(r, images->count);
    for (const json *image = images->first; image; image = image->next) {
        if (image->kind != JSON_STRING) {
            enter_place(r, ".images[%zu]", next);
            return message_fail_type(r, "", "a string in base64", image);
        }
        media[next] =
            (chat_part){ .kind = is_wav(image->text) ? CHAT_AUDIO : CHAT_IMAGE, .index = next, .source = image->text };
        next++;
    }
    for (size_t i = 0; i < text.length; i++)
        tags += image_tag((str){ text.data + i, text.length - i }, numbered, &number) > 0;
    const size_t in_front = numbered || tags >= images->count ? 0 : images->count - tags;
    const size_t most = in_front + 2 * tags + 2;
    bool         fine = true;
    for (next = 0; next < in_front; next++) fine &= message_add_part(r, m, most, media[next]);
    if (in_front && text.length && !strchr(" \t\r\n", text.data[0]))
        fine &= message_add_part(r, m, most, (chat_part){ .text = { " ", 1 } });
    next = in_front;
    size_t start = 0, at = 0;
    for (; at < text.length && fine; at += length ? length : 1) {
        length = image_tag((str){ text.data + at, text.length - at }, numbered, &number);
        if (length && number == SIZE_MAX) number = next++;
        if (!length || number >= images->count) {
            length = 0;
            continue;
        }
        if (at > start) fine &= message_add_part(r, m, most, (chat_part){ .text = { text.data + start, at - start } });
        fine = fine && message_add_part(r, m, most, media[number]);
        start = at + length;
    }
    if (text.length > start)
        fine = fine && message_add_part(r, m, most, (chat_part){ .text = { text.data + start, text.length - start } });
    return fine ? GM_OK : fail_messages_memory(r, most * sizeof(chat_part));
}

static gm_status read_content(reader *r, const json *message, chat_message *m) {
    const json *content = json_get(message, "content"), *images = json_get(message, "images");
    gm_status   status = GM_OK;
    if (!is_absent(images) && images->kind != JSON_ARRAY) return message_fail_type(r, ".images", "a list", images);
    if (m->role == CHAT_TOOL && json_is(content, JSON_OBJECT)) {
        m->tool_object = content;
        return GM_OK;
    }
    if (json_is(content, JSON_ARRAY)) return read_part_list(r, content, m);
    if (!is_absent(content) && content->kind != JSON_STRING)
        return message_fail_type(r, ".content", "a string or a list", content);
    str text = message_copy_text(r, json_string(content, ""), &status);
    if (status) return status;
    if (!is_absent(images) && images->count) return place_images(r, images, text, m);
    if (text.length && !message_add_part(r, m, 1, (chat_part){ .text = text }))
        return fail_messages_memory(r, sizeof(chat_part));
    return GM_OK;
}

/* ---- calls ---- */

/* An object, or JSON text of an object as in OpenAI's API. */
static gm_status read_arguments(reader *r, const json *value, const json **out) {
    json     *parsed = NULL;
    error     why = { 0 };
    const str text = json_is(value, JSON_STRING) ? value->text : (str){ "{}", 2 };
    if (json_is(value, JSON_OBJECT)) {
        *out = value;
        return GM_OK;
    }
    if (!is_absent(value) && value->kind != JSON_STRING)
        return message_fail_type(r, "", "an object or its JSON text", value);
    gm_status status = json_parse(text.length ? text : (str){ "{}", 2 }, r->memory, &parsed, &why);
    if (status == GM_NO_MEMORY) return fail_messages_memory(r, text.length);
    if (status) return fail(r->e, GM_BAD_ARGUMENT, "%s must be an object or its JSON text: %s", r->place, why.why);
    if (parsed->kind != JSON_OBJECT) return message_fail_type(r, "", "an object or its JSON text", parsed);
    *out = parsed;
    return GM_OK;
}

static gm_status read_call(reader *r, const json *value, chat_call *out) {
    const json *function = json_get(value, "function"), *name = json_get(function, "name");
    if (!json_is(value, JSON_OBJECT)) return message_fail_type(r, "", "an object", value);
    if (!json_is(function, JSON_OBJECT)) return message_fail_type(r, ".function", "an object", function);
    if (!json_is(name, JSON_STRING) || !name->text.length)
        return message_fail_type(r, ".function.name", "a name", name);
    gm_status status = read_string(r, value, "id", &out->id);
    out->name = message_copy_text(r, name->text, &status);
    enter_place(r, ".function.arguments");
    return status ? status : read_arguments(r, json_get(function, "arguments"), &out->arguments);
}

static gm_status read_calls(reader *r, const json *list, chat_call **calls, size_t *count) {
    size_t i = 0;
    if (is_absent(list)) return GM_OK;
    size_t outside = enter_place(r, ".tool_calls");
    if (list->kind != JSON_ARRAY) return message_fail_type(r, "", "a list", list);
    if (!(*calls = arena_array(r->memory, list->count + 1, sizeof **calls)))
        return fail_messages_memory(r, list->count * sizeof **calls);
    for (const json *item = list->first; item; item = item->next, i++) {
        size_t    before = enter_place(r, "[%zu]", i);
        gm_status status = read_call(r, item, &(*calls)[i]);
        if (status) return status;
        leave_place(r, before);
    }
    *count = i;
    leave_place(r, outside);
    return GM_OK;
}

gm_status chat_calls_from_json(const json *list, arena *a, chat_call **calls, size_t *count, error *e) {
    reader r = { .memory = a, .e = e };
    *calls = NULL;
    *count = 0;
    return read_calls(&r, list, calls, count);
}

/* ---- messages ---- */

static gm_status read_role(const reader *r, const json *role, chat_role *out) {
    if (!json_is(role, JSON_STRING)) return message_fail_type(r, ".role", "a string", role);
    for (size_t i = 0; i < COUNT_OF(role_names); i++) {
        *out = (chat_role)i;
        if (str_is(role->text, role_names[i])) return GM_OK;
    }
    return fail(r->e, GM_BAD_ARGUMENT, "%s.role must be system, developer, user, assistant or tool, found \"%.*s\"",
                r->place, STR_ARGS(role->text));
}

static gm_status read_message(reader *r, const json *value, chat_message *m) {
    static const char *const thinking[] = { "thinking", "reasoning_content", "reasoning", NULL };
    static const char *const tool_name[] = { "tool_name", "name", NULL };
    static const char *const tool_call_id[] = { "tool_call_id", NULL };
    gm_status                status;
    if (!json_is(value, JSON_OBJECT)) return message_fail_type(r, "", "an object", value);
    if ((status = read_role(r, json_get(value, "role"), &m->role)) || (status = read_content(r, value, m)))
        return status;
    if (m->role == CHAT_ASSISTANT) {
        if ((status = read_first_string(r, value, thinking, &m->thinking))) return status;
        return read_calls(r, json_get(value, "tool_calls"), &m->calls, &m->call_count);
    }
    if (m->role != CHAT_TOOL) return GM_OK;
    if ((status = read_first_string(r, value, tool_name, &m->tool_name))) return status;
    return read_first_string(r, value, tool_call_id, &m->tool_call_id);
}

gm_status chat_check_tools(const json *tools, error *e) {
    reader place = { .e = e }, *r = &place;
    size_t i = 0;
    if (tools->kind != JSON_ARRAY) return message_fail_type(r, "tools", "a list", tools);
    for (const json *tool = tools->first; tool; tool = tool->next, i++) {
        const json *function = json_get(tool, "function"), *name = json_get(function, "name"),
                   *parameters = json_get(function, "parameters");
        enter_place(r, "tools[%zu]", i);
        if (!json_is(tool, JSON_OBJECT)) return message_fail_type(r, "", "an object", tool);
        if (!json_is(function, JSON_OBJECT)) return message_fail_type(r, ".function", "an object", function);
        if (!json_is(name, JSON_STRING) || !name->text.length)
            return message_fail_type(r, ".function.name", "a name", name);
        if (!is_absent(parameters) && parameters->kind != JSON_OBJECT)
            return message_fail_type(r, ".function.parameters", "an object", parameters);
        leave_place(r, 0);
    }
    return GM_OK;
}

/* true or false, or an effort as in Ollama's API. */
static gm_status read_think(reader *r, const json *think, bool *out) {
    *out = json_is(think, JSON_TRUE) || (json_is(think, JSON_STRING) && think->text.length);
    if (is_absent(think) || think->kind == JSON_FALSE || think->kind == JSON_TRUE || think->kind == JSON_STRING)
        return GM_OK;
    return message_fail_type(r, "think", "true or false", think);
}

gm_status chat_from_json(const json *value, arena *a, chat *out, error *e) {
    reader r = { .memory = a, .e = e };
    *out = (chat){ 0 };
    if (!json_is(value, JSON_OBJECT)) return message_fail_type(&r, "the chat", "an object with messages", value);
    const json *messages = json_get(value, "messages"), *tools = json_get(value, "tools");
    if (!json_is(messages, JSON_ARRAY)) return message_fail_type(&r, "messages", "a list", messages);
    if (!(out->messages = arena_array(a, messages->count + 1, sizeof *out->messages))) {
        return fail_messages_memory(&r, messages->count * sizeof *out->messages);
    }
    for (const json *message = messages->first; message; message = message->next) {
        enter_place(&r, "messages[%zu]", out->count);
        gm_status status = read_message(&r, message, &out->messages[out->count]);
        if (status) return status;
        leave_place(&r, 0);
        out->count++;
    }
    if (!is_absent(tools)) {
        gm_status status = chat_check_tools(tools, e);
        if (status) return status;
        out->tools = tools;
    }
    return read_think(&r, json_get(value, "think"), &out->think);
}

/* ---- back to JSON ---- */

static void write_field(buffer *out, const char *key, str text) {
    if (!text.length) return;
    buffer_printf(out, ",\"%s\":", key);
    json_write_string(out, text);
}

static void write_content(buffer *out, const chat_message *m) {
    if (m->tool_object) {
        json_write(out, m->tool_object);
        return;
    }
    if (!m->list && m->part_count <= 1 && (!m->part_count || m->parts[0].kind == CHAT_TEXT)) {
        json_write_string(out, m->part_count ? m->parts[0].text : (str){ "", 0 });
        return;
    }
    buffer_char(out, '[');
    for (size_t i = 0; i < m->part_count; i++) {
        size_t type = 0;
        while (part_types[type].kind != m->parts[i].kind) type++;
        buffer_printf(out, "%s{\"type\":\"%s\"", i ? "," : "", part_types[type].type);
        if (m->parts[i].kind == CHAT_TEXT) {
            buffer_text(out, ",\"text\":");
            json_write_string(out, m->parts[i].text);
        }
        buffer_char(out, '}');
    }
    buffer_char(out, ']');
}

void chat_message_to_json(buffer *out, const chat_message *m) {
    buffer_printf(out, "{\"role\":\"%s\",\"content\":", role_names[m->role]);
    write_content(out, m);
    write_field(out, "thinking", m->thinking);
    for (size_t i = 0; i < m->call_count; i++) {
        buffer_text(out, i ? ",{" : ",\"tool_calls\":[{");
        if (m->calls[i].id.length) {
            buffer_text(out, "\"id\":");
            json_write_string(out, m->calls[i].id);
            buffer_char(out, ',');
        }
        buffer_text(out, "\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(out, m->calls[i].name);
        buffer_text(out, ",\"arguments\":");
        if (m->calls[i].arguments) json_write(out, m->calls[i].arguments);
        else buffer_text(out, "{}");
        buffer_text(out, "}}");
    }
    if (m->call_count) buffer_char(out, ']');
    write_field(out, "tool_name", m->tool_name);
    write_field(out, "tool_call_id", m->tool_call_id);
    buffer_char(out, '}');
}
