#include "serve/chat_request.h"

#include "model/config.h"
#include "text/canvas_text.h"
#include "text/chat.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    chat_request *out;
    const json   *root;
    char         *param;
    error        *e;
} reader;

/* ---- errors ---- */

static gm_status fail_value(const reader *r, const char *expected, const json *found) {
    if (json_is(found, JSON_NUMBER))
        return fail(r->e, GM_BAD_ARGUMENT, "%s must be %s, not %.*s", r->param, expected, STR_ARGS(found->text));
    if (json_is(found, JSON_STRING))
        return fail(r->e, GM_BAD_ARGUMENT, "%s must be %s, not \"%.*s\"", r->param, expected, STR_ARGS(found->text));
    return fail(r->e, GM_BAD_ARGUMENT, "%s must be %s, not %s", r->param, expected, json_describe(found));
}

static gm_status request_no_memory(const reader *r, size_t bytes) { return fail_memory(r->e, "the request", bytes); }

static void name_param(const reader *r, const char *field) { snprintf(r->param, CHAT_PARAM_SIZE, "%s", field); }

/* The library's strings end at a NUL, so one inside would cut off the rest. */
static gm_status request_copy_text(const reader *r, str text, const char **out) {
    if (text.length && memchr(text.data, 0, text.length))
        return fail(r->e, GM_BAD_ARGUMENT, "%s contains a NUL character", r->param);
    *out = arena_copy(&r->out->memory, text);
    return *out ? GM_OK : request_no_memory(r, text.length);
}

/* ---- single fields ---- */

static gm_status request_read_bool(const reader *r, const json *value, bool *out) {
    if (value->kind != JSON_TRUE && value->kind != JSON_FALSE) return fail_value(r, "true or false", value);
    *out = value->kind == JSON_TRUE;
    return GM_OK;
}

static gm_status request_read_whole(const reader *r, const json *value, int64_t low, int64_t high, int64_t *out) {
    char expected[80];
    if (json_integer(value, out) && *out >= low && *out <= high) return GM_OK;
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low, (long long)high);
    return fail_value(r, expected, value);
}

static gm_status request_read_model(reader *r, const json *value) {
    if (value->kind != JSON_STRING) return fail_value(r, "the name of a model", value);
    return request_copy_text(r, value->text, &r->out->model);
}

static gm_status request_read_stream(reader *r, const json *value) {
    return request_read_bool(r, value, &r->out->stream);
}
static gm_status request_read_logprobs(reader *r, const json *value) {
    return request_read_bool(r, value, &r->out->logprobs);
}

static gm_status request_read_stream_options(reader *r, const json *value) {
    if (value->kind != JSON_OBJECT) return fail_value(r, "an object", value);
    if (!json_is(json_get(r->root, "stream"), JSON_TRUE))
        return fail(r->e, GM_BAD_ARGUMENT, "stream_options requires \"stream\": true");
    for (const json *option = value->first; option; option = option->next) {
        if (option->kind == JSON_NULL || str_is(option->key, "include_obfuscation"))
            continue; /* we never add padding */
        const bool usage = str_is(option->key, "include_usage");
        if (!usage && !str_is(option->key, "canvas"))
            return fail(r->e, GM_UNSUPPORTED, "stream_options.%.*s is not supported", STR_ARGS(option->key));
        name_param(r, usage ? "stream_options.include_usage" : "stream_options.canvas");
        TRY(request_read_bool(r, option, usage ? &r->out->include_usage : &r->out->want_canvas));
    }
    return GM_OK;
}

static gm_status request_read_canvas(reader *r, const json *value) {
    if (value->kind != JSON_STRING) return fail_value(r, "a text with holes, such as \"The [[3]] is\"", value);
    TRY(canvas_text_check(value->text, r->e));
    return request_copy_text(r, value->text, &r->out->canvas);
}

static gm_status request_read_steps(reader *r, const json *value) {
    int64_t steps = 0;
    TRY(request_read_whole(r, value, 1, CANVAS_MOST_STEPS, &steps));
    r->out->steps = (uint32_t)steps;
    return GM_OK;
}

static gm_status request_read_top_logprobs(reader *r, const json *value) {
    int64_t count = 0;
    TRY(request_read_whole(r, value, 0, 20, &count));
    if (!json_is(json_get(r->root, "logprobs"), JSON_TRUE))
        return fail(r->e, GM_BAD_ARGUMENT, "top_logprobs requires \"logprobs\": true");
    r->out->top_logprobs = (uint32_t)count;
    return GM_OK;
}

/* max_tokens and its newer name; the smaller one counts. */
static gm_status request_read_most(reader *r, const json *value) {
    int64_t most = 0;
    TRY(request_read_whole(r, value, 1, UINT32_MAX, &most));
    if (!r->out->max_tokens || most < r->out->max_tokens) r->out->max_tokens = (uint32_t)most;
    return GM_OK;
}

static gm_status request_read_seed(reader *r, const json *value) {
    int64_t seed = 0;
    TRY(request_read_whole(r, value, INT64_MIN, INT64_MAX, &seed));
    r->out->seed = (uint64_t)seed;
    r->out->has_seed = true;
    return GM_OK;
}

static gm_status request_read_count(reader *r, const json *value) {
    int64_t n;
    if (json_integer(value, &n) && n == 1) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "n must be 1");
}

static gm_status request_read_stop(reader *r, const json *value) {
    const bool   one = value->kind == JSON_STRING;
    const size_t count = one ? 1 : value->count;
    if (!one && value->kind != JSON_ARRAY) return fail_value(r, "a non-empty string or a list of them", value);
    r->out->stop_count = 0;
    r->out->stops = arena_array(&r->out->memory, count + 1, sizeof *r->out->stops);
    if (!r->out->stops) return request_no_memory(r, count * sizeof *r->out->stops);
    for (const json *item = one ? value : value->first; item; item = one ? NULL : item->next) {
        if (item->kind != JSON_STRING || !item->text.length)
            return fail_value(r, "a non-empty string or a list of them", item);
        TRY(request_copy_text(r, item->text, &r->out->stops[r->out->stop_count]));
        r->out->stop_count++;
    }
    return GM_OK;
}

/* A token id, which as a key of an object is a string of digits. */
static bool request_read_token(str text, int32_t *out) {
    int64_t id = 0;
    if (!text.length || text.length > 10) return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        id = id * 10 + (text.data[i] - '0');
    }
    *out = (int32_t)id;
    return id <= INT32_MAX;
}

/* {"token id": bias} */
static gm_status request_read_bias(reader *r, const json *value) {
    if (value->kind != JSON_OBJECT) return fail_value(r, "an object from token ids to numbers", value);
    r->out->bias_count = 0;
    r->out->bias = arena_array(&r->out->memory, value->count + 1, sizeof *r->out->bias);
    if (!r->out->bias) return request_no_memory(r, value->count * sizeof *r->out->bias);
    for (const json *item = value->first; item; item = item->next) {
        int32_t token;
        if (!request_read_token(item->key, &token) || item->kind != JSON_NUMBER || !(fabs(item->number) <= 100)) {
            return fail(r->e, GM_BAD_ARGUMENT, "logit_bias must map token ids to numbers from -100 to 100");
        }
        r->out->bias[r->out->bias_count++] = (gm_logit_bias){ token, (float)item->number };
    }
    return GM_OK;
}

static gm_status request_read_tool_choice(reader *r, const json *value) {
    if (json_is(value, JSON_STRING) && (str_is(value->text, "auto") || str_is(value->text, "none"))) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "tool_choice must be \"auto\" or \"none\"; calls cannot be forced");
}

static gm_status request_read_parallel(reader *r, const json *value) {
    bool parallel = true;
    TRY(request_read_bool(r, value, &parallel));
    if (parallel || !json_get(r->root, "tools")) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "parallel_tool_calls must be true; the model decides");
}

static gm_status request_read_format(reader *r, const json *value) {
    const str type = json_string(json_get(value, "type"), "");
    if (str_is(type, "text")) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "response_format of type '%.*s' is not supported, only 'text'", STR_ARGS(type));
}

static gm_status request_read_effort(reader *r, const json *value) {
    static const char *const off[] = { "none", "minimal" }, *const on[] = { "low", "medium", "high", "xhigh" };
    const str effort = json_string(value, "");
    for (size_t i = 0; i < COUNT_OF(off); i++) {
        if (str_is(effort, off[i])) return GM_OK;
    }
    for (size_t i = 0; i < COUNT_OF(on); i++) {
        if (str_is(effort, on[i])) r->out->think = true;
    }
    return r->out->think ? GM_OK : fail_value(r, "none, minimal, low, medium or high", value);
}

static gm_status request_read_modalities(reader *r, const json *value) {
    if (value->kind != JSON_ARRAY) return fail_value(r, "a list", value);
    for (const json *item = value->first; item; item = item->next) {
        const str name = json_string(item, "");
        if (!str_is(name, "text"))
            return fail(r->e, GM_UNSUPPORTED, "modalities: '%.*s' is not supported, only 'text'", STR_ARGS(name));
    }
    return GM_OK;
}

static gm_status request_read_store(reader *r, const json *value) {
    if (value->kind == JSON_FALSE) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "store must be false; this server stores nothing");
}

/* ---- the table ---- */

typedef gm_status (*field_reader)(reader *r, const json *value);

static const struct {
    const char  *name;
    field_reader read; /* NULL: read elsewhere, or without effect */
} fields[] = {
    { "messages", NULL },
    { "tools", NULL },
    { "think", NULL },
    { "model", request_read_model },
    { "stream", request_read_stream },
    { "stream_options", request_read_stream_options },
    { "max_tokens", request_read_most },
    { "max_completion_tokens", request_read_most },
    { "stop", request_read_stop },
    { "canvas", request_read_canvas },
    { "steps", request_read_steps },
    { "seed", request_read_seed },
    { "logprobs", request_read_logprobs },
    { "top_logprobs", request_read_top_logprobs },
    { "logit_bias", request_read_bias },
    { "n", request_read_count },
    { "tool_choice", request_read_tool_choice },
    { "parallel_tool_calls", request_read_parallel },
    { "response_format", request_read_format },
    { "reasoning_effort", request_read_effort },
    { "modalities", request_read_modalities },
    { "store", request_read_store },
    { "user", NULL },
    { "metadata", NULL },
    { "safety_identifier", NULL },
    { "prompt_cache_key", NULL },
    { "service_tier", NULL },
};

#define NUMBER(field, low, high) { #field, offsetof(chat_request, field), low, high, false }
#define WHOLE(field, low, high) { #field, offsetof(chat_request, field), low, high, true }
static const struct {
    const char *name;
    size_t      offset; /* of a wished_number */
    double      low, high;
    bool        whole;
} numbers[] = {
    NUMBER(temperature, 0, 100),
    WHOLE(top_k, 0, INT32_MAX),
    NUMBER(top_p, 0, 1),
    NUMBER(min_p, 0, 1),
    NUMBER(typical_p, 0, 1),
    NUMBER(repetition_penalty, 0.01, 100),
    NUMBER(presence_penalty, -100, 100),
    NUMBER(frequency_penalty, -100, 100),
    WHOLE(penalty_window, 0, 1 << 24), /* a float holds every whole number up to here */
};

static gm_status request_read_number(const reader *r, const json *value, size_t row) {
    wished_number *out = (wished_number *)(void *)((char *)r->out + numbers[row].offset);
    char           expected[80];
    int64_t        whole = 0;
    if (numbers[row].whole) {
        TRY(request_read_whole(r, value, (int64_t)numbers[row].low, (int64_t)numbers[row].high, &whole));
        *out = (wished_number){ (float)whole, true };
        return GM_OK;
    }
    if (value->kind == JSON_NUMBER && value->number >= numbers[row].low && value->number <= numbers[row].high) {
        *out = (wished_number){ (float)value->number, true };
        return GM_OK;
    }
    snprintf(expected, sizeof expected, "a number from %g to %g", numbers[row].low, numbers[row].high);
    return fail_value(r, expected, value);
}

static gm_status request_read_field(reader *r, const json *value) {
    snprintf(r->param, CHAT_PARAM_SIZE, "%.*s", (int)min_size(value->key.length, CHAT_PARAM_SIZE - 1), value->key.data);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        if (!str_is(value->key, fields[i].name)) continue;
        return fields[i].read && value->kind != JSON_NULL ? fields[i].read(r, value) : GM_OK;
    }
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        if (!str_is(value->key, numbers[i].name)) continue;
        return value->kind != JSON_NULL ? request_read_number(r, value, i) : GM_OK;
    }
    if (value->kind == JSON_NULL) return GM_OK;
    return fail(r->e, GM_UNSUPPORTED, "this server does not support '%.*s'", STR_ARGS(value->key));
}

/* ---- messages ---- */

static gm_status join_parts(const reader *r, const chat_message *m, const char **out) {
    buffer text = { 0 };
    if (m->tool_object) json_write(&text, m->tool_object);
    for (size_t i = 0; i < m->part_count; i++) buffer_str(&text, m->parts[i].text);
    const gm_status status =
        text.failed ? request_no_memory(r, text.length) : request_copy_text(r, buffer_view(&text), out);
    buffer_free(&text);
    return status;
}

/* Text and media in the order of the message. */
static gm_status request_convert_parts(const reader *r, const chat_message *m, gm_message *out) {
    gm_part *parts = arena_array(&r->out->memory, m->part_count, sizeof *parts);
    char     place[CHAT_PARAM_SIZE + 40];
    if (!parts) return request_no_memory(r, m->part_count * sizeof *parts);
    for (size_t i = 0; i < m->part_count; i++) {
        snprintf(place, sizeof place, "%s.content[%zu]", r->param, i);
        if (m->parts[i].kind == CHAT_TEXT) TRY(request_copy_text(r, m->parts[i].text, &parts[i].text));
        else TRY(chat_part_media(&m->parts[i], place, buffer_view(&r->out->body), &r->out->memory, &parts[i], r->e));
    }
    out->parts = parts;
    out->part_count = m->part_count;
    return GM_OK;
}

static bool has_media(const chat_message *m) {
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].kind != CHAT_TEXT) return true;
    }
    return false;
}

static gm_status request_write_calls(const reader *r, const chat_message *m, const char **out) {
    buffer text = { 0 };
    buffer_char(&text, '[');
    for (size_t i = 0; i < m->call_count; i++) {
        buffer_text(&text, i ? ",{\"id\":" : "{\"id\":");
        json_write_string(&text, m->calls[i].id);
        buffer_text(&text, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(&text, m->calls[i].name);
        buffer_text(&text, ",\"arguments\":");
        json_write(&text, m->calls[i].arguments);
        buffer_text(&text, "}}");
    }
    buffer_char(&text, ']');
    const gm_status status =
        text.failed ? request_no_memory(r, text.length) : request_copy_text(r, buffer_view(&text), out);
    buffer_free(&text);
    return status;
}

static gm_status request_convert_message(const reader *r, const chat_message *m, gm_message *out) {
    static const char *const roles[] = { [CHAT_SYSTEM] = "system",
                                         [CHAT_DEVELOPER] = "developer",
                                         [CHAT_USER] = "user",
                                         [CHAT_ASSISTANT] = "assistant",
                                         [CHAT_TOOL] = "tool" };
    *out = (gm_message){ .role = roles[m->role] };
    if (has_media(m)) TRY(request_convert_parts(r, m, out));
    else TRY(join_parts(r, m, &out->content));
    if (m->thinking.length) TRY(request_copy_text(r, m->thinking, &out->thinking));
    if (m->tool_name.length) TRY(request_copy_text(r, m->tool_name, &out->tool_name));
    if (m->tool_call_id.length) TRY(request_copy_text(r, m->tool_call_id, &out->tool_call_id));
    return m->call_count ? request_write_calls(r, m, &out->tool_calls) : GM_OK;
}

/* Refuses what chat_from_json does not look at. */
static gm_status refuse_leftovers(const reader *r, const json *message) {
    static const char *const keys[] = { "function_call", "audio" };
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const json *value = json_get(message, keys[i]);
        if (value && value->kind != JSON_NULL)
            return fail(r->e, GM_UNSUPPORTED, "%s: '%s' is not supported", r->param, keys[i]);
    }
    return GM_OK;
}

static gm_status request_convert_messages(reader *r, const chat *talk) {
    chat_request *out = r->out;
    out->message_count = talk->count;
    out->think |= talk->think;
    out->messages = arena_array(&out->memory, talk->count + 1, sizeof *out->messages);
    if (!talk->count) return fail(r->e, GM_BAD_ARGUMENT, "messages must contain at least one message");
    if (!out->messages) return request_no_memory(r, talk->count * sizeof *out->messages);
    const json *message = json_get(r->root, "messages")->first;
    for (size_t i = 0; i < talk->count; i++, message = message->next) {
        snprintf(r->param, CHAT_PARAM_SIZE, "messages[%zu]", i);
        TRY(refuse_leftovers(r, message));
        TRY(request_convert_message(r, &talk->messages[i], &out->messages[i]));
    }
    return GM_OK;
}

static gm_status request_read_messages(reader *r) {
    chat  talk;
    arena scratch = { 0 };
    name_param(r, "messages");
    gm_status status = chat_from_json(r->root, &scratch, &talk, r->e);
    if (!status) status = request_convert_messages(r, &talk);
    else if (str_starts_with(str_of(r->e->why), "tools")) name_param(r, "tools");
    arena_free(&scratch);
    return status;
}

/* Only functions; none at all with tool_choice "none". */
static gm_status request_read_tools(reader *r) {
    const json *tools = json_get(r->root, "tools");
    buffer      text = { 0 };
    name_param(r, "tools");
    if (!tools || tools->kind == JSON_NULL || !tools->count) return GM_OK;
    for (const json *tool = tools->first; tool; tool = tool->next) {
        const str type = json_string(json_get(tool, "type"), "function");
        if (!str_is(type, "function"))
            return fail(r->e, GM_UNSUPPORTED, "tools of type '%.*s' are not supported, only 'function'",
                        STR_ARGS(type));
    }
    if (str_is(json_string(json_get(r->root, "tool_choice"), ""), "none")) return GM_OK;
    json_write(&text, tools);
    const gm_status status =
        text.failed ? request_no_memory(r, text.length) : request_copy_text(r, buffer_view(&text), &r->out->tools);
    buffer_free(&text);
    return status;
}

static gm_status request_read(reader *r) {
    if (r->root->kind != JSON_OBJECT) return fail(r->e, GM_BAD_ARGUMENT, "the request must be a JSON object");
    for (const json *field = r->root->first; field; field = field->next) TRY(request_read_field(r, field));
    TRY(request_read_messages(r));
    return request_read_tools(r);
}

/* A large body is one with pictures or sounds in it, as long strings. The rest makes the tree, which takes far more memory. */
static gm_status request_check_structure(str body, error *e) {
    size_t rest = body.length;
    for (const char *at = body.data, *end = at + body.length; rest > CHAT_MOST_STRUCTURE && at < end;) {
        const char *open = memchr(at, '"', (size_t)(end - at));
        if (!open) break;
        for (at = open + 1; at < end && *at != '"';) at += *at == '\\' ? 2 : 1;
        if (at > end) at = end;
        rest -= (size_t)(at - open) - 1;
        if (at < end) at++;
    }
    if (rest <= CHAT_MOST_STRUCTURE) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "the request has more than %d MiB apart from its texts, pictures and sounds",
                CHAT_MOST_STRUCTURE >> 20);
}

static bool request_has_media(const chat_request *r) {
    for (size_t i = 0; i < r->message_count; i++) {
        if (r->messages[i].part_count) return true;
    }
    return false;
}

gm_status chat_request_parse(buffer *body, chat_request *out, char param[CHAT_PARAM_SIZE], error *e) {
    arena  scratch = { 0 };
    json  *root = NULL;
    reader r = { .out = out, .param = param, .e = e };
    *out = (chat_request){ .body = *body };
    *body = (buffer){ 0 };
    param[0] = 0;
    buffer_text(&out->body, ""); /* there may have been no body */
    if (out->body.failed) return fail_memory(e, "the request", 1);
    gm_status status = request_check_structure(buffer_view(&out->body), e);
    if (!status) status = json_parse_in_place(out->body.data, out->body.length, &scratch, &root, e);
    r.root = root;
    if (!status) status = request_read(&r);
    if (!status) param[0] = 0;
    arena_free(&scratch);
    if (!status && !request_has_media(out)) buffer_free(&out->body);
    return status;
}

static void wish_apply(float *field, wished_number wished) {
    if (wished.given) *field = wished.value;
}

gm_reply_options chat_request_options(const chat_request *r, gm_sampling *sampling) {
    wish_apply(&sampling->temperature, r->temperature);
    wish_apply(&sampling->top_p, r->top_p);
    wish_apply(&sampling->min_p, r->min_p);
    wish_apply(&sampling->typical_p, r->typical_p);
    wish_apply(&sampling->repetition_penalty, r->repetition_penalty);
    wish_apply(&sampling->presence_penalty, r->presence_penalty);
    wish_apply(&sampling->frequency_penalty, r->frequency_penalty);
    if (r->top_k.given) sampling->top_k = r->top_k.value < 0x1p31f ? (int32_t)r->top_k.value : INT32_MAX;
    if (r->penalty_window.given) sampling->penalty_window = (uint32_t)r->penalty_window.value;
    if (r->has_seed) sampling->seed = r->seed;
    sampling->bias = r->bias;
    sampling->bias_count = r->bias_count;
    return (gm_reply_options){
        .sampling = sampling,
        .tools = r->tools,
        .think = r->think,
        .canvas = r->canvas,
        .want_canvas = r->want_canvas,
        .steps = r->steps,
        .max_tokens = r->max_tokens,
        .stop = r->stops,
        .stop_count = r->stop_count,
        .logprobs = r->top_logprobs,
        .want_logprobs = r->logprobs,
    };
}

void chat_request_free(chat_request *r) {
    buffer_free(&r->body);
    arena_free(&r->memory);
    *r = (chat_request){ 0 };
}
