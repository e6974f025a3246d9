/* The forms of examples: which one an object has, and the conversation, pair or text that it stands for. */

#include "train/data_parts.h"

#include "text/white_space.h"

#include <stdio.h>
#include <string.h>

const char *const data_form_names[] = {
    [DATA_MESSAGES] = "messages",
    [DATA_COMPLETION] = "prompt and completion",
    [DATA_ALPACA] = "instruction, input and output",
    [DATA_SHAREGPT] = "conversations",
    [DATA_PAIRS] = "prompt, chosen and rejected",
    [DATA_TEXT] = "text",
};

/* ---- recognition ---- */

/* Fields that tell a form. "prompt" belongs to two. */
static const struct {
    const char *key;
    data_form   form;
} form_keys[] = {
    { "messages", DATA_MESSAGES },      { "completion", DATA_COMPLETION },
    { "instruction", DATA_ALPACA },     { "output", DATA_ALPACA },
    { "conversations", DATA_SHAREGPT }, { "chosen", DATA_PAIRS },
    { "rejected", DATA_PAIRS },         { "text", DATA_TEXT },
};

static void list_keys(const json *object, char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
    for (const json *field = object->first; field && n < size; field = field->next)
        n += (size_t)snprintf(out + n, size - n, "%s%.*s", field == object->first ? "" : ", ",
                              (int)min_size(field->key.length, 40), field->key.data);
}

static bool has_field(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return value && value->kind != JSON_NULL;
}

gm_status data_form_of(const json *object, data_form *out, error *e) {
    const char *first = NULL;
    char        found[160];
    for (size_t i = 0; i < COUNT_OF(form_keys); i++) {
        if (!has_field(object, form_keys[i].key)) continue;
        if (first && form_keys[i].form != *out)
            return fail(e, GM_BAD_FILE, "\"%s\" and \"%s\" contradict each other: expected one form", first,
                        form_keys[i].key);
        first = form_keys[i].key;
        *out = form_keys[i].form;
    }
    if (first && has_field(object, "prompt") && *out != DATA_COMPLETION && *out != DATA_PAIRS)
        return fail(e, GM_BAD_FILE, "\"%s\" and \"prompt\" contradict each other: expected one form", first);
    if (first) return GM_OK;
    list_keys(object, found, sizeof found);
    if (has_field(object, "prompt"))
        return fail(e, GM_BAD_FILE,
                    "expected \"completion\", or \"chosen\" and \"rejected\", beside \"prompt\"; found %s", found);
    return fail(e, GM_BAD_FILE,
                "expected messages, prompt and completion, instruction and output, conversations, prompt, chosen and "
                "rejected, or text; found %s",
                *found ? found : "no fields");
}

/* ---- fields ---- */

static bool is_blank(str text) { return !trim_left(text).length; }

/* A string that is there, and not blank unless it `may_lack`. */
static gm_status form_text(const json *object, const char *key, bool may_lack, str *out, error *e) {
    const json *value = json_get(object, key);
    *out = (str){ "", 0 };
    if (may_lack && !has_field(object, key)) return GM_OK;
    if (!json_is(value, JSON_STRING))
        return fail(e, GM_BAD_FILE, "\"%s\" must be a string, found %s", key, json_describe(value));
    if (!may_lack && is_blank(value->text)) return fail(e, GM_BAD_FILE, "\"%s\" is empty", key);
    *out = value->text;
    return GM_OK;
}

/* ---- conversations ---- */

static gm_status talk_reserve(data_talk *t, size_t most, arena *a, error *e) {
    t->chat.messages = arena_array(a, most, sizeof *t->chat.messages);
    t->learned = arena_array(a, most, sizeof *t->learned);
    return t->chat.messages && t->learned ? GM_OK : fail_memory(e, "an example", most * sizeof *t->chat.messages);
}

/* A message of text at the end; talk_reserve has made room for it. */
static gm_status talk_add_text(data_talk *t, chat_role role, str text, arena *a, error *e) {
    chat_part *part = arena_alloc(a, sizeof *part);
    if (!part) return fail_memory(e, "an example", sizeof *part);
    part->text = text;
    t->learned[t->chat.count] = role == CHAT_ASSISTANT;
    t->chat.messages[t->chat.count++] =
        (chat_message){ .role = role, .parts = part, .part_count = text.length ? 1 : 0 };
    return GM_OK;
}

/* "system" beside the other fields. */
static gm_status talk_add_system(data_talk *t, const json *object, arena *a, error *e) {
    str system;
    TRY(form_text(object, "system", true, &system, e));
    return is_blank(system) ? GM_OK : talk_add_text(t, CHAT_SYSTEM, system, a, e);
}

static gm_status read_alpaca(const json *object, data_talk *t, arena *a, error *e) {
    str instruction, input, output;
    TRY(form_text(object, "instruction", false, &instruction, e));
    TRY(form_text(object, "input", true, &input, e));
    TRY(form_text(object, "output", false, &output, e));
    TRY(talk_reserve(t, 3, a, e));
    TRY(talk_add_system(t, object, a, e));
    if (!is_blank(input)) {
        const size_t n = instruction.length + 2 + input.length;
        char        *both = arena_alloc(a, n + 1);
        if (!both) return fail_memory(e, "an example", n);
        memcpy(both, instruction.data, instruction.length);
        memcpy(both + instruction.length, "\n\n", 2);
        memcpy(both + instruction.length + 2, input.data, input.length);
        instruction = (str){ both, n };
    }
    TRY(talk_add_text(t, CHAT_USER, instruction, a, e));
    return talk_add_text(t, CHAT_ASSISTANT, output, a, e);
}

/* ---- ShareGPT ---- */

static bool sharegpt_role(str name, chat_role *out, bool *calls) {
    static const struct {
        const char *name;
        chat_role   role;
    } names[] = {
        { "human", CHAT_USER },          { "user", CHAT_USER },
        { "gpt", CHAT_ASSISTANT },       { "model", CHAT_ASSISTANT },
        { "assistant", CHAT_ASSISTANT }, { "chatgpt", CHAT_ASSISTANT },
        { "system", CHAT_SYSTEM },       { "tool", CHAT_TOOL },
        { "observation", CHAT_TOOL },    { "function_call", CHAT_ASSISTANT },
    };
    *calls = str_is(name, "function_call");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        *out = names[i].role;
        if (str_is(name, names[i].name)) return true;
    }
    return false;
}

/* {"name": …, "arguments": {…}} as text. */
static gm_status sharegpt_call(chat_message *m, str text, arena *a, error *e) {
    json     *value = NULL;
    error     inner = { 0 };
    gm_status status = json_parse(text, a, &value, &inner);
    if (status == GM_NO_MEMORY) return fail(e, status, "%s", inner.why);
    const json *name = json_get(value, "name"), *arguments = json_get(value, "arguments");
    if (status || !json_is(name, JSON_STRING) || !json_is(arguments, JSON_OBJECT))
        return fail(e, GM_BAD_FILE, ".value of a function_call must be {\"name\": …, \"arguments\": {…}}");
    if (!(m->calls = arena_alloc(a, sizeof *m->calls))) return fail_memory(e, "an example", sizeof *m->calls);
    m->calls[0] = (chat_call){ .name = name->text, .arguments = arguments };
    m->call_count = 1;
    m->part_count = 0;
    return GM_OK;
}

static gm_status read_sharegpt_turn(const json *item, data_talk *t, arena *a, error *e) {
    const json *from = json_get(item, "from"), *value = json_get(item, "value");
    chat_role   role;
    bool        calls;
    if (!json_is(from, JSON_STRING))
        return fail(e, GM_BAD_FILE, ".from must be a string, found %s", json_describe(from));
    if (!sharegpt_role(from->text, &role, &calls))
        return fail(e, GM_BAD_FILE, ".from must be human, gpt, system, function_call or observation, found \"%.*s\"",
                    STR_ARGS(from->text));
    if (!json_is(value, JSON_STRING))
        return fail(e, GM_BAD_FILE, ".value must be a string, found %s", json_describe(value));
    TRY(talk_add_text(t, role, value->text, a, e));
    chat_message *m = &t->chat.messages[t->chat.count - 1], *before = t->chat.count > 1 ? m - 1 : NULL;
    if (role == CHAT_TOOL && before && before->call_count) m->tool_name = before->calls[0].name;
    return calls ? sharegpt_call(m, value->text, a, e) : GM_OK;
}

/* A message's weight: 0 leaves an answer out. */
static gm_status read_weight(const json *message, const char *place, size_t index, bool *learned, error *e) {
    const json *weight = json_get(message, "weight");
    if (!weight || weight->kind == JSON_NULL) return GM_OK;
    if (!json_is(weight, JSON_NUMBER) || (weight->number != 0 && weight->number != 1))
        return fail(e, GM_BAD_FILE, "%s[%zu].weight must be 0 or 1, found %.*s", place, index,
                    json_is(weight, JSON_NUMBER) ? (int)min_size(weight->text.length, 40) : 15,
                    json_is(weight, JSON_NUMBER) ? weight->text.data : "something else");
    if (weight->number == 1 && !*learned)
        return fail(e, GM_BAD_FILE, "%s[%zu].weight is 1, but only an assistant's messages can count", place, index);
    *learned = weight->number == 1;
    return GM_OK;
}

/* A list, or its JSON text. */
static gm_status read_sharegpt_tools(const json *object, data_talk *t, arena *a, error *e) {
    const json *tools = json_get(object, "tools");
    json       *parsed = NULL;
    error       inner = { 0 };
    if (!tools || tools->kind == JSON_NULL || (json_is(tools, JSON_STRING) && is_blank(tools->text))) return GM_OK;
    gm_status status = json_is(tools, JSON_STRING) ? json_parse(tools->text, a, &parsed, &inner) : GM_OK;
    t->chat.tools = parsed ? parsed : tools;
    if (!status) status = chat_check_tools(t->chat.tools, &inner);
    if (!status) return GM_OK;
    return fail(e, status == GM_NO_MEMORY ? status : GM_BAD_FILE, "\"tools\": %s", inner.why);
}

static gm_status read_sharegpt(const json *object, data_talk *t, arena *a, error *e) {
    const json *list = json_get(object, "conversations");
    size_t      i = 0;
    if (!json_is(list, JSON_ARRAY))
        return fail(e, GM_BAD_FILE, "\"conversations\" must be a list, found %s", json_describe(list));
    TRY(talk_reserve(t, list->count + 1, a, e));
    TRY(read_sharegpt_tools(object, t, a, e));
    TRY(talk_add_system(t, object, a, e));
    for (const json *item = list->first; item; item = item->next, i++) {
        error           inner = { 0 };
        const gm_status status = read_sharegpt_turn(item, t, a, &inner);
        if (status == GM_NO_MEMORY) return fail(e, status, "%s", inner.why);
        if (status) return fail(e, status, "conversations[%zu]%s", i, inner.why);
        TRY(read_weight(item, "conversations", i, &t->learned[t->chat.count - 1], e));
    }
    return GM_OK;
}

/* ---- messages ---- */

/* `list` in the place of "messages", which the errors then name. */
static gm_status read_message_list(const json *list, const json *object, const char *place, data_talk *t, arena *a,
                                   error *e) {
    json        messages = *list, tools = { 0 }, think = { 0 }, whole = { .kind = JSON_OBJECT, .first = &messages };
    const json *given_tools = json_get(object, "tools"), *given_think = json_get(object, "think");
    error       inner = { 0 };
    messages.key = str_of("messages");
    messages.next = NULL;
    json *last = &messages;
    if (given_tools) tools = *given_tools, last = last->next = &tools, tools.next = NULL;
    if (given_think) think = *given_think, last->next = &think, think.next = NULL;
    const gm_status status = chat_from_json(&whole, a, &t->chat, &inner);
    if (status) {
        const bool own = strcmp(place, "messages") && !strncmp(inner.why, "messages", 8);
        return fail(e, status == GM_BAD_ARGUMENT ? GM_BAD_FILE : status, "%s%s", own ? place : "",
                    inner.why + (own ? 8 : 0));
    }
    t->chat.tools = given_tools && given_tools->kind == JSON_ARRAY ? given_tools : NULL;
    if (!(t->learned = arena_array(a, t->chat.count + 1, sizeof *t->learned)))
        return fail_memory(e, "an example", t->chat.count);
    size_t i = 0;
    for (const json *item = list->first; item; item = item->next, i++) {
        t->learned[i] = t->chat.messages[i].role == CHAT_ASSISTANT;
        TRY(read_weight(item, place, i, &t->learned[i], e));
    }
    return GM_OK;
}

static gm_status read_messages(const json *object, data_talk *t, arena *a, error *e) {
    const json *list = json_get(object, "messages");
    if (!json_is(list, JSON_ARRAY))
        return fail(e, GM_BAD_FILE, "\"messages\" must be a list, found %s", json_describe(list));
    return read_message_list(list, object, "messages", t, a, e);
}

/* ---- a prompt, and what follows it ---- */

/* Appends the messages of a list, or the one message that a string is. */
static gm_status talk_append_field(data_talk *t, const json *object, const char *key, chat_role role, arena *a,
                                   error *e) {
    const json *value = json_get(object, key);
    data_talk   part = { 0 };
    if (json_is(value, JSON_STRING)) {
        str text;
        TRY(form_text(object, key, false, &text, e));
        TRY(talk_reserve(&part, 1, a, e));
        TRY(talk_add_text(&part, role, text, a, e));
    } else if (json_is(value, JSON_ARRAY)) {
        TRY(read_message_list(value, object, key, &part, a, e));
    } else {
        return fail(e, GM_BAD_FILE, "\"%s\" must be a string or a list of messages, found %s", key,
                    json_describe(value));
    }
    data_talk whole = { .chat = part.chat };
    TRY(talk_reserve(&whole, t->chat.count + part.chat.count + 1, a, e));
    if (t->chat.count) {
        memcpy(whole.chat.messages, t->chat.messages, t->chat.count * sizeof *t->chat.messages);
        memcpy(whole.learned, t->learned, t->chat.count * sizeof *t->learned);
    }
    for (size_t i = 0; i < part.chat.count; i++) {
        whole.chat.messages[t->chat.count + i] = part.chat.messages[i];
        whole.learned[t->chat.count + i] = role == CHAT_ASSISTANT && part.learned[i]; /* a prompt is not learned */
    }
    whole.chat.count = t->chat.count + part.chat.count;
    if (!whole.chat.tools) whole.chat.tools = t->chat.tools;
    whole.chat.think = whole.chat.think || t->chat.think;
    *t = whole;
    return GM_OK;
}

static gm_status read_prompt_and(const json *object, const char *key, data_talk *t, arena *a, error *e) {
    TRY(talk_reserve(t, 1, a, e));
    TRY(talk_add_system(t, object, a, e));
    TRY(talk_append_field(t, object, "prompt", CHAT_USER, a, e));
    const size_t first = t->chat.count;
    TRY(talk_append_field(t, object, key, CHAT_ASSISTANT, a, e));
    if (first == t->chat.count) return fail(e, GM_BAD_FILE, "\"%s\" is empty", key);
    if (t->chat.messages[first].role != CHAT_ASSISTANT)
        return fail(e, GM_BAD_FILE, "\"%s\" must begin with an assistant's message that follows the prompt", key);
    return GM_OK;
}

/* ---- what every conversation must be ---- */

static bool message_is_empty(const chat_message *m) {
    bool text = false;
    for (size_t i = 0; i < m->part_count; i++) text |= m->parts[i].kind != CHAT_TEXT || !is_blank(m->parts[i].text);
    return !text && !m->call_count && is_blank(m->thinking) && !m->tool_object;
}

static gm_status check_parts(const chat_message *m, size_t index, error *e) {
    static const char *const names[] = {
        [CHAT_IMAGE] = "a picture", [CHAT_AUDIO] = "a sound", [CHAT_VIDEO] = "a video"
    };
    for (size_t i = 0; i < m->part_count; i++) {
        const chat_part_kind kind = m->parts[i].kind;
        if (kind == CHAT_TEXT) continue;
        if (kind == CHAT_VIDEO)
            return fail(e, GM_UNSUPPORTED, "message %zu has a video; give its frames as pictures", index + 1);
        if (m->role != CHAT_USER && m->role != CHAT_TOOL)
            return fail(e, GM_BAD_FILE, "message %zu may contain only text, found %s", index + 1, names[kind]);
    }
    return GM_OK;
}

/* Calls and answers must follow each other as at inference: the template passes over what does not. */
static gm_status check_message(const data_talk *t, size_t i, error *e) {
    const chat         *c = &t->chat;
    const chat_message *m = &c->messages[i];
    size_t              caller = i;
    if (m->role != CHAT_TOOL && message_is_empty(m)) return fail(e, GM_BAD_FILE, "message %zu is empty", i + 1);
    TRY(check_parts(m, i, e));
    while (caller && c->messages[caller].role == CHAT_TOOL) caller--;
    if (m->role == CHAT_TOOL && !c->messages[caller].call_count)
        return fail(e, GM_BAD_FILE, "message %zu is a tool's answer, but no call comes before it", i + 1);
    if (i && m->role == CHAT_ASSISTANT && m[-1].role == CHAT_ASSISTANT && t->learned[i] != t->learned[i - 1])
        return fail(e, GM_BAD_FILE, "messages %zu and %zu are one answer, so they must have the same weight", i, i + 1);
    if (m->call_count && i + 1 < c->count && c->messages[i + 1].role != CHAT_TOOL)
        return fail(e, GM_BAD_FILE, "message %zu calls a tool, but message %zu is not its answer", i + 1, i + 2);
    return GM_OK;
}

/* An assistant's text beside calls that are answered comes after the answers, as the template writes it. */
static gm_status talk_split_calls(data_talk *t, arena *a, error *e) {
    data_talk split = { .chat = t->chat };
    size_t    n = 0;
    TRY(talk_reserve(&split, 2 * t->chat.count + 1, a, e));
    for (size_t i = 0; i < t->chat.count; i++) {
        chat_message rest = t->chat.messages[i];
        const bool   learned = t->learned[i], splits = rest.call_count && rest.part_count && i + 1 < t->chat.count;
        split.chat.messages[n] = rest;
        if (splits) split.chat.messages[n].part_count = 0;
        split.learned[n++] = learned;
        if (!splits) continue;
        while (i + 1 < t->chat.count && t->chat.messages[i + 1].role == CHAT_TOOL)
            split.chat.messages[n++] = t->chat.messages[++i];
        rest.call_count = 0;
        rest.thinking = (str){ "", 0 };
        if (message_is_empty(&rest)) continue;
        split.learned[n] = learned;
        split.chat.messages[n++] = rest;
    }
    split.chat.count = n;
    *t = split;
    return GM_OK;
}

static gm_status talk_add_own_system(data_talk *t, const char *system, arena *a, error *e) {
    const bool has = t->chat.count && t->chat.messages[0].role <= CHAT_DEVELOPER;
    data_talk  whole = { .chat = t->chat };
    if (!system || has) return GM_OK;
    TRY(talk_reserve(&whole, t->chat.count + 2, a, e));
    whole.chat.count = 0;
    TRY(talk_add_text(&whole, CHAT_SYSTEM, str_of(system), a, e));
    memcpy(whole.chat.messages + 1, t->chat.messages, t->chat.count * sizeof *t->chat.messages);
    memcpy(whole.learned + 1, t->learned, t->chat.count * sizeof *t->learned);
    whole.chat.count = t->chat.count + 1;
    *t = whole;
    return GM_OK;
}

/* Thinking in an answer means that the model is asked to think, unless the example says otherwise. */
static gm_status talk_check_think(data_talk *t, const json *object, error *e) {
    for (size_t i = 0; i < t->chat.count; i++) {
        if (is_blank(t->chat.messages[i].thinking)) continue;
        if (json_is(json_get(object, "think"), JSON_FALSE))
            return fail(e, GM_BAD_FILE, "message %zu has thinking, but \"think\" is false", i + 1);
        t->chat.think = true;
    }
    return GM_OK;
}

static gm_status talk_finish(data_talk *t, const json *object, const data_options *o, arena *a, error *e) {
    bool learned = false;
    if (t->chat.count > DATA_MOST_MESSAGES)
        return fail(e, GM_BAD_FILE, "expected at most %d messages, found %zu", DATA_MOST_MESSAGES, t->chat.count);
    for (size_t i = 0; i < t->chat.count; i++) {
        TRY(check_message(t, i, e));
        learned |= t->learned[i];
    }
    if (!learned) return fail(e, GM_BAD_FILE, "expected an assistant's message that counts, found none");
    TRY(talk_check_think(t, object, e));
    TRY(talk_split_calls(t, a, e));
    TRY(talk_add_own_system(t, o->system, a, e));
    t->chat.variant = o->variant;
    return GM_OK;
}

/* ---- a record ---- */

/* Other programs write conversations as text that has the template's tokens in it. As text they would be learned letter by letter. */
gm_status data_check_text(str text, error *e) {
    for (size_t i = 0; i + 7 <= text.length; i++) {
        if (!memcmp(text.data + i, "<|turn>", 7))
            return fail(e, GM_BAD_FILE, "the text has the token <|turn> in it; give the conversation as \"messages\"");
    }
    return GM_OK;
}

gm_status data_record_read(const json *object, const data_options *o, arena *a, data_record *out, error *e) {
    *out = (data_record){ 0 };
    TRY(data_form_of(object, &out->form, e));
    switch (out->form) {
    case DATA_MESSAGES: TRY(read_messages(object, &out->talk[0], a, e)); break;
    case DATA_COMPLETION: TRY(read_prompt_and(object, "completion", &out->talk[0], a, e)); break;
    case DATA_ALPACA: TRY(read_alpaca(object, &out->talk[0], a, e)); break;
    case DATA_SHAREGPT: TRY(read_sharegpt(object, &out->talk[0], a, e)); break;
    case DATA_PAIRS:
        TRY(read_prompt_and(object, "chosen", &out->talk[0], a, e));
        TRY(read_prompt_and(object, "rejected", &out->talk[1], a, e));
        break;
    case DATA_TEXT: TRY(form_text(object, "text", false, &out->text, e)); return data_check_text(out->text, e);
    }
    out->talks = out->form == DATA_PAIRS ? 2 : 1;
    for (size_t i = 0; i < out->talks; i++) TRY(talk_finish(&out->talk[i], object, o, a, e));
    return GM_OK;
}
