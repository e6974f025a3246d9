/* A tool call's arguments: {a:1,b:<|"|>text<|"|>} → {"a":1,"b":"text"}.
 *
 * Malformed text is repaired in this order: values in single quotes become strings; an open string is closed; missing closing
 * brackets are added; values of string properties get missing quotes. After each step the text is tried again. */

#include "text/tool_arguments.h"
#include "text/white_space.h"

#include <string.h>

static const str quote = { "<|\"|>", 5 };

static bool at_quote(str text, size_t at) {
    return text.length - at >= quote.length && !memcmp(text.data + at, quote.data, quote.length);
}

static size_t find_quote(str text, size_t from) {
    for (; from + quote.length <= text.length; from++) {
        const char *next = memchr(text.data + from, '<', text.length - from);
        if (!next) break;
        from = (size_t)(next - text.data);
        if (at_quote(text, from)) return from;
    }
    return text.length;
}

static size_t arguments_skip_space(str text, size_t at) {
    while (at < text.length && strchr(" \t\r\n", text.data[at]) && text.data[at]) at++;
    return at;
}

/* The end of the string that starts at `at`, in <|"|> tokens or JSON quotes. If it is not closed: the end of the text. */
static size_t skip_string(str text, size_t at) {
    if (text.data[at] != '"') {
        size_t close = find_quote(text, at + quote.length);
        return close < text.length ? close + quote.length : text.length;
    }
    for (at++; at < text.length && text.data[at] != '"'; at++) at += text.data[at] == '\\';
    return min_size(at + 1, text.length);
}

static bool at_string(str text, size_t at) { return text.data[at] == '"' || at_quote(text, at); }

/* The length of a key without quotes: everything that is not part of the notation. */
static size_t bare_key_length(str text, size_t at) {
    size_t end = at;
    while (end < text.length && !strchr("{}[]:,\"'<> \t\r\n", text.data[end])) end++;
    return end - at;
}

/* ---- the notation as JSON text ---- */

/* After '{' or ',': quotes a bare key, if there is one. Returns where to continue. */
static size_t convert_key(str text, size_t at, buffer *out) {
    size_t start = arguments_skip_space(text, at), length = bare_key_length(text, start),
           end = arguments_skip_space(text, start + length);
    if (!length || end >= text.length || text.data[end] != ':') return at;
    json_write_string(out, (str){ text.data + start, length });
    return end;
}

static void convert_notation(str text, buffer *out) {
    for (size_t at = 0; at < text.length;) {
        if (at_quote(text, at)) {
            size_t start = at + quote.length, close = find_quote(text, start);
            json_write_string(out, (str){ text.data + start, close - start });
            if (close == text.length) return; /* not closed, so the final brace is inside: not a JSON object */
            at = close + quote.length;
        } else if (text.data[at] == '"') {
            size_t end = skip_string(text, at);
            buffer_append(out, text.data + at, end - at);
            at = end;
        } else {
            char c = text.data[at++];
            buffer_char(out, c);
            if (c == '{' || c == ',') at = convert_key(text, at, out);
        }
    }
}

static gm_status try_convert(str text, buffer *out) {
    buffer converted = { 0 };
    arena  memory = { 0 };
    error  e = { 0 };
    json  *value = NULL;
    convert_notation(text, &converted);
    gm_status status = converted.failed ? GM_NO_MEMORY : json_parse(buffer_view(&converted), &memory, &value, &e);
    if (!status && value->kind != JSON_OBJECT) status = GM_BAD_FILE;
    if (!status) json_write(out, value);
    if (!status && out->failed) status = GM_NO_MEMORY;
    buffer_free(&converted);
    arena_free(&memory);
    return status;
}

/* ---- repairs: each writes the repaired text, or nothing if it does not apply ---- */

/* The end of a value in single quotes that starts at `at`: a quote before ',' '}' ']' or the end. 0: none. */
static size_t single_quoted_end(str text, size_t at) {
    for (size_t end = at + 1; end < text.length; end++) {
        if (text.data[end] == '\\') {
            end++;
            continue;
        }
        if (text.data[end] != '\'') continue;
        size_t next = arguments_skip_space(text, end + 1);
        if (next == text.length || strchr(",}]", text.data[next])) return end;
    }
    return 0;
}

static void mend_single_quotes(str text, buffer *out) {
    bool value_next = false, any = false, hopeless = false;
    for (size_t at = 0; at < text.length;) {
        char c = text.data[at];
        if (at_string(text, at)) {
            size_t end = skip_string(text, at);
            buffer_append(out, text.data + at, end - at);
            at = end;
            value_next = false;
            continue;
        }
        size_t end = c == '\'' && value_next && !hopeless ? single_quoted_end(text, at) : 0;
        if (end) {
            buffer_str(out, quote);
            for (size_t i = at + 1; i < end; i++) {
                if (text.data[i] == '\\' && i + 1 < end && strchr("'\\", text.data[i + 1])) i++;
                buffer_char(out, text.data[i]);
            }
            buffer_str(out, quote);
            at = end + 1;
            any = true;
            value_next = false;
            continue;
        }
        if (c == '\'' && value_next) hopeless = true; /* no later one can end either */
        if (!strchr(" \t\r\n", c)) value_next = c == ':' || c == '[' || c == ',';
        buffer_char(out, c);
        at++;
    }
    if (!any) buffer_clear(out);
}

/* Counts the closing brackets at the end of the text, up to a few: more are not worth guessing. */
static size_t count_closers(str text, size_t *start_of_last) {
    enum { MOST = 8 };
    size_t count = 0, end = trim_right(text).length;
    for (; count < MOST && end && (text.data[end - 1] == '}' || text.data[end - 1] == ']'); count++) {
        start_of_last[count] = --end;
        while (end && strchr(" \t\r\n", text.data[end - 1])) end--;
    }
    return count;
}

static bool has_open_string(str text) {
    size_t count = 0;
    for (size_t at = find_quote(text, 0); at < text.length; at = find_quote(text, at + quote.length)) count++;
    return count % 2;
}

static void close_string(str text, size_t at, buffer *out) {
    buffer_append(out, text.data, at);
    buffer_str(out, quote);
    buffer_append(out, text.data + at, text.length - at);
}

static void mend_brackets(str text, buffer *out) {
    buffer open = { 0 };
    for (size_t at = 0; at < text.length; at++) {
        if (at_string(text, at)) {
            at = skip_string(text, at) - 1;
            continue;
        }
        char c = text.data[at];
        if (c == '{' || c == '[') buffer_char(&open, c == '{' ? '}' : ']');
        else if ((c == '}' || c == ']') && open.length && open.data[open.length - 1] == c) open.length--;
    }
    if (open.length) buffer_str(out, text);
    while (open.length) buffer_char(out, open.data[--open.length]);
    out->failed |= open.failed;
    buffer_free(&open);
}

static bool is_string_property(const json *properties, str key) {
    const json *type = json_get(json_get_str(properties, key), "type");
    if (json_is(type, JSON_ARRAY)) {
        for (type = type->first; type && !str_is(json_string(type, ""), "string"); type = type->next) continue;
    }
    str name = json_string(type, "");
    return str_is(name, "string") || str_is(name, "STRING");
}

/* The end of a known key at `at` that is followed by ':', or 0. */
static size_t known_key_end(str text, size_t at, const json *properties, str *key) {
    size_t start = arguments_skip_space(text, at), length = bare_key_length(text, start),
           end = arguments_skip_space(text, start + length);
    *key = (str){ text.data + start, length };
    return length && end < text.length && text.data[end] == ':' && json_get_str(properties, *key) ? end + 1 : 0;
}

/* The end of a raw value: before the next ",knownkey:", or before the final brace. */
static size_t raw_value_end(str text, size_t at, const json *properties) {
    size_t last = trim_right(text).length;
    str    key;
    for (; at < text.length; at++) {
        if (text.data[at] == ',' && known_key_end(text, at + 1, properties, &key)) return at;
    }
    return last && text.data[last - 1] == '}' ? last - 1 : last;
}

static bool is_literal(str value) {
    json *parsed = NULL;
    arena memory = { 0 };
    error e = { 0 };
    bool  literal = !json_parse(value, &memory, &parsed, &e) && parsed->kind < JSON_STRING;
    arena_free(&memory);
    return literal;
}

static void mend_raw_strings(str text, const json *properties, buffer *out) {
    bool any = false;
    for (size_t at = 0; at < text.length && properties;) {
        if (at_string(text, at)) {
            size_t end = skip_string(text, at);
            buffer_append(out, text.data + at, end - at);
            at = end;
            continue;
        }
        char c = text.data[at++];
        str  key;
        buffer_char(out, c);
        size_t start = c == '{' || c == ',' ? known_key_end(text, at, properties, &key) : 0;
        if (!start) continue;
        buffer_append(out, text.data + at, start - at);
        at = start;
        const size_t from = arguments_skip_space(text, start);
        if (!is_string_property(properties, key) || (from < text.length && at_string(text, from))) continue;
        const size_t end = max_size(from, raw_value_end(text, from, properties));
        str          value = trim_right((str){ text.data + from, end - from });
        if (is_literal(value)) continue;
        buffer_str(out, quote);
        buffer_str(out, value);
        buffer_str(out, quote);
        at = end;
        any = true;
    }
    if (!any) buffer_clear(out);
}

/* ---- conversion with repairs ---- */

static void swap_buffers(buffer *a, buffer *b) {
    buffer swap = *a;
    *a = *b;
    *b = swap;
}

static gm_status try_mended(const buffer *mended, buffer *out) {
    if (mended->failed) return GM_NO_MEMORY;
    return mended->length ? try_convert(buffer_view(mended), out) : GM_BAD_FILE;
}

/* The missing <|"|> belongs before the final bracket, or before several if the string is inside lists and objects. */
static gm_status try_closing_string(buffer *text, buffer *mended, buffer *out) {
    size_t    ends[8], count = count_closers(buffer_view(text), ends);
    gm_status status = GM_BAD_FILE;
    if (!has_open_string(buffer_view(text))) return status;
    for (size_t i = 0; i < count && status == GM_BAD_FILE; i++) {
        buffer_clear(mended);
        close_string(buffer_view(text), ends[i], mended);
        status = try_mended(mended, out);
    }
    if (status != GM_BAD_FILE) return status;
    buffer_clear(mended);
    close_string(buffer_view(text), count ? ends[0] : text->length, mended);
    if (mended->failed) return GM_NO_MEMORY;
    swap_buffers(text, mended); /* for the repairs that follow */
    return count ? status : try_mended(text, out);
}

static gm_status mend_and_try(buffer *text, const json *properties, buffer *mended, buffer *out) {
    mend_single_quotes(buffer_view(text), mended);
    gm_status status = try_mended(mended, out);
    if (mended->length) swap_buffers(text, mended);
    if (status == GM_BAD_FILE) status = try_closing_string(text, mended, out);
    if (status != GM_BAD_FILE) return status;
    buffer_clear(mended);
    mend_brackets(buffer_view(text), mended);
    status = try_mended(mended, out);
    /* If the text ends with a brace, raw text may have confused the count: then the next repair starts from the original. */
    if (mended->length && !str_ends_with(trim_right(buffer_view(text)), "}")) swap_buffers(text, mended);
    if (status != GM_BAD_FILE) return status;
    buffer_clear(mended);
    mend_raw_strings(buffer_view(text), properties, mended);
    return try_mended(mended, out);
}

gm_status tool_arguments_to_json(str text, const json *properties, buffer *out, bool *repaired) {
    gm_status status = try_convert(text, out);
    *repaired = false;
    if (status != GM_BAD_FILE) return status;
    buffer work = { 0 }, mended = { 0 };
    buffer_str(&work, text);
    status = work.failed ? GM_NO_MEMORY : mend_and_try(&work, properties, &mended, out);
    *repaired = !status;
    buffer_free(&work);
    buffer_free(&mended);
    return status;
}
