/* JSON (RFC 8259): a recursive descent that trusts nothing, and a writer. */

#include "base/json.h"
#include "base/decimal.h"
#include "base/table.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

enum { DEEPEST = 100 };

typedef struct {
    str    text;
    char  *own; /* the same text, where strings may stay; NULL: all are copied */
    size_t at;
    arena *memory;
    error *e;
} parser;

static gm_status parse_value(parser *p, size_t depth, json **out);

/* Columns count characters, from 1. */
static gm_status bad(const parser *p, size_t where, const char *what) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < where; i++) {
        if (p->text.data[i] == '\n') line++, column = 1;
        else if (((unsigned char)p->text.data[i] & 0xc0) != 0x80) column++;
    }
    return fail(p->e, GM_BAD_FILE, "JSON line %zu column %zu: %s", line, column, what);
}

static gm_status json_no_memory(const parser *p) {
    fail_memory(p->e, "a JSON document", p->text.length);
    return GM_NO_MEMORY;
}

static int peek(const parser *p) { return p->at < p->text.length ? (unsigned char)p->text.data[p->at] : -1; }

static void json_skip_space(parser *p) {
    for (int c; (c = peek(p)) == ' ' || c == '\t' || c == '\n' || c == '\r';) p->at++;
}

static bool json_take(parser *p, int c) {
    json_skip_space(p);
    if (peek(p) != c) return false;
    p->at++;
    return true;
}

static int hex_value(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The value of four hex digits after "\u"; -1 if they are not hex digits. */
static int32_t parse_hex4(const parser *p, size_t at) {
    int32_t code = 0;
    if (p->text.length - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int digit = hex_value((unsigned char)p->text.data[i]);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* At a backslash. Writes at most 4 bytes. A surrogate without its partner becomes U+FFFD. */
static gm_status parse_escape(parser *p, char *out, size_t *length) {
    static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    size_t            start = p->at++;
    int               c = peek(p);
    const char       *name = c > 0 ? strchr(names, c) : NULL;
    if (name) {
        p->at++;
        *length = 1;
        out[0] = means[name - names];
        return GM_OK;
    }
    if (c != 'u') return bad(p, start, "unknown escape in a string");
    int32_t code = parse_hex4(p, ++p->at);
    if (code < 0) return bad(p, start, "\\u needs four hexadecimal digits");
    p->at += 4;
    if (code >= 0xd800 && code < 0xdc00 && p->text.length - p->at >= 6 && !memcmp(p->text.data + p->at, "\\u", 2)) {
        int32_t low = parse_hex4(p, p->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            p->at += 6;
        }
    }
    *length = (size_t)utf8_encode((uint32_t)code, out);
    return GM_OK;
}

/* The end of the string that starts after a quote, and whether it has escapes. Refuses control characters. */
static gm_status find_end(const parser *p, size_t *end, bool *escapes) {
    *escapes = false;
    for (size_t i = p->at; i < p->text.length; i++) {
        unsigned char c = (unsigned char)p->text.data[i];
        if (c == '"') return *end = i, GM_OK;
        if (c < 0x20) return bad(p, i, "a control character inside a string (write it as \\u00XX)");
        if (c != '\\') continue;
        *escapes = true;
        i++;
    }
    return bad(p, p->text.length, "the text ends inside a string");
}

/* A string without escapes stays where it is; a NUL replaces its closing quote. Lines and columns of errors stay right. */
static bool keep_string(parser *p, size_t end, str *out) {
    const str text = { p->text.data + p->at, end - p->at };
    if (!p->own || !utf8_valid(text)) return false;
    p->own[end] = 0;
    p->at = end + 1;
    *out = text;
    return true;
}

static gm_status parse_string(parser *p, str *out) {
    size_t end = 0, length = 0;
    bool   escapes = false;
    p->at++;
    gm_status status = find_end(p, &end, &escapes);
    if (status) return status;
    if (!escapes && keep_string(p, end, out)) return GM_OK;
    char *text = arena_alloc(p->memory, end - p->at + 1); /* unescaping only shortens */
    if (!text) return json_no_memory(p);
    while (p->at < end) {
        size_t n = 0;
        if (p->text.data[p->at] == '\\') {
            if ((status = parse_escape(p, text + length, &n))) return status;
        } else {
            int bytes = utf8_length((str){ p->text.data + p->at, end - p->at });
            if (bytes < 1) return bad(p, p->at, "a string contains a byte that is not UTF-8");
            n = (size_t)bytes;
            memcpy(text + length, p->text.data + p->at, n);
            p->at += n;
        }
        length += n;
    }
    p->at = end + 1;
    text[length] = 0;
    *out = (str){ text, length };
    return GM_OK;
}

static size_t skip_digits(parser *p) {
    size_t start = p->at;
    for (int c; (c = peek(p)) >= '0' && c <= '9';) p->at++;
    return p->at - start;
}

static gm_status json_parse_number(parser *p, json *value) {
    size_t start = p->at;
    if (peek(p) == '-') p->at++;
    bool   zero = peek(p) == '0';
    size_t digits = skip_digits(p);
    if (!digits) return bad(p, start, "expected a value");
    if (zero && digits > 1) return bad(p, start, "a number must not start with 0");
    if (peek(p) == '.') {
        p->at++;
        if (!skip_digits(p)) return bad(p, p->at, "a digit must follow the decimal point");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (!skip_digits(p)) return bad(p, p->at, "a digit must follow the exponent sign");
    }
    str   text = { p->text.data + start, p->at - start };
    char *copy = arena_copy(p->memory, text);
    if (!copy) return json_no_memory(p);
    value->kind = JSON_NUMBER;
    value->text = (str){ copy, text.length };
    if (!decimal_parse(value->text, &value->number)) return bad(p, start, "expected a number");
    return GM_OK;
}

static gm_status parse_word(parser *p, json *value) {
    static const struct {
        const char *word;
        json_kind   kind;
    } words[] = { { "null", JSON_NULL }, { "false", JSON_FALSE }, { "true", JSON_TRUE } };
    str rest = { p->text.data + p->at, p->text.length - p->at };
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!str_starts_with(rest, words[i].word)) continue;
        p->at += strlen(words[i].word);
        value->kind = words[i].kind;
        return GM_OK;
    }
    return bad(p, p->at, p->at < p->text.length ? "expected a value" : "the text ends where a value is expected");
}

static gm_status parse_key(parser *p, str *key) {
    json_skip_space(p);
    if (peek(p) != '"') return bad(p, p->at, "expected a key in quotes");
    gm_status status = parse_string(p, key);
    if (status) return status;
    return json_take(p, ':') ? GM_OK : bad(p, p->at, "expected ':' after a key");
}

/* Behind the opening bracket. */
static gm_status parse_children(parser *p, size_t depth, json *value, char close) {
    if (depth == DEEPEST) return bad(p, p->at - 1, "more than 100 levels deep");
    if (json_take(p, close)) return GM_OK;
    for (json **link = &value->first;; link = &(*link)->next) {
        str       key = { NULL, 0 };
        gm_status status = close == '}' ? parse_key(p, &key) : GM_OK;
        if (!status) status = parse_value(p, depth + 1, link);
        if (status) return status;
        (*link)->key = key;
        value->count++;
        if (json_take(p, close)) return GM_OK;
        if (!json_take(p, ',')) return bad(p, p->at, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
    }
}

static gm_status parse_value(parser *p, size_t depth, json **out) {
    json_skip_space(p);
    json *value = *out = arena_alloc(p->memory, sizeof *value);
    if (!value) return json_no_memory(p);
    int c = peek(p);
    if (c == '{' || c == '[') {
        p->at++;
        value->kind = c == '{' ? JSON_OBJECT : JSON_ARRAY;
        return parse_children(p, depth, value, c == '{' ? '}' : ']');
    }
    if (c == '"') {
        value->kind = JSON_STRING;
        return parse_string(p, &value->text);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return json_parse_number(p, value);
    return parse_word(p, value);
}

static gm_status parse_all(parser *p, json **out) {
    json *value = NULL;
    *out = NULL;
    TRY(parse_value(p, 0, &value));
    json_skip_space(p);
    if (p->at != p->text.length) return bad(p, p->at, "something follows the end of the value");
    *out = value;
    return GM_OK;
}

gm_status json_parse(str text, arena *a, json **out, error *e) {
    return parse_all(&(parser){ .text = text, .memory = a, .e = e }, out);
}

gm_status json_parse_in_place(char *text, size_t length, arena *a, json **out, error *e) {
    return parse_all(&(parser){ .text = { text, length }, .own = text, .memory = a, .e = e }, out);
}

const json *json_get_str(const json *object, str key) {
    const json *found = NULL;
    if (!json_is(object, JSON_OBJECT)) return NULL;
    for (const json *child = object->first; child; child = child->next) {
        if (str_equal(child->key, key)) found = child;
    }
    return found;
}

const json *json_get(const json *object, const char *key) { return json_get_str(object, str_of(key)); }

gm_status json_check_keys(const json *object, error *e) {
    table     keys = { 0 };
    gm_status status =
        table_reserve(&keys, object->count) ? GM_OK : fail_memory(e, "the keys of an object", object->count);
    for (const json *child = object->first; child && !status; child = child->next) {
        bool no_memory = false;
        if (table_add(&keys, child->key, 0, &no_memory)) continue;
        status = no_memory ? fail_memory(e, "the keys of an object", object->count)
                           : fail(e, GM_BAD_FILE, "the key '%.*s' appears twice", STR_ARGS(child->key));
    }
    table_free(&keys);
    return status;
}

str json_string(const json *value, const char *otherwise) {
    return json_is(value, JSON_STRING) ? value->text : str_of(otherwise);
}

/* Digits only: exact, where the double would round from 2^53 on. */
static bool integer_of_text(str text, int64_t *out) {
    bool     negative = text.length && text.data[0] == '-';
    uint64_t magnitude = 0, limit = negative ? (uint64_t)INT64_MAX + 1 : INT64_MAX;
    if (text.length == negative) return false;
    for (size_t i = negative; i < text.length; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        unsigned digit = (unsigned)(text.data[i] - '0');
        if (magnitude > (limit - digit) / 10) return false;
        magnitude = magnitude * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool json_integer(const json *value, int64_t *out) {
    if (!json_is(value, JSON_NUMBER)) return false;
    bool plain = value->text.length > 0;
    for (size_t i = 0; i < value->text.length; i++) plain &= !strchr(".eE", value->text.data[i]);
    if (plain) return integer_of_text(value->text, out);
    double n = value->number; /* 1.0 and 1e3 are whole numbers too */
    if (!(n >= -0x1p63 && n < 0x1p63) || n != floor(n)) return false;
    *out = (int64_t)n;
    return true;
}

void json_write_string(buffer *out, str text) {
    static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    buffer_char(out, '"');
    for (size_t i = 0; i < text.length;) {
        unsigned char c = (unsigned char)text.data[i];
        size_t        run = 0; /* bytes that need nothing */
        while (i + run < text.length && (c = (unsigned char)text.data[i + run]) >= 0x20 && c < 0x80 && c != '"' &&
               c != '\\')
            run++;
        buffer_append(out, text.data + i, run);
        i += run;
        if (i == text.length) break;
        const char *name = c ? strchr(plain, c) : NULL;
        int         n = utf8_length((str){ text.data + i, text.length - i });
        if (name) buffer_char(out, '\\'), buffer_char(out, names[name - plain]);
        else if (c < 0x20) buffer_printf(out, "\\u%04x", c);
        else if (n < 1) buffer_text(out, "\xef\xbf\xbd");
        else buffer_append(out, text.data + i, (size_t)n);
        i += n < 1 ? 1 : (size_t)n;
    }
    buffer_char(out, '"');
}

void json_write_number(buffer *out, double value) {
    char text[32];
    if (isfinite(value)) buffer_append(out, text, decimal_print(value, text));
    else buffer_text(out, "null");
}

static void write_children(buffer *out, const json *value, bool object) {
    buffer_char(out, object ? '{' : '[');
    for (const json *child = value->first; child; child = child->next) {
        if (child != value->first) buffer_char(out, ',');
        if (object) {
            json_write_string(out, child->key);
            buffer_char(out, ':');
        }
        json_write(out, child);
    }
    buffer_char(out, object ? '}' : ']');
}

void json_write(buffer *out, const json *value) {
    switch (value->kind) {
    case JSON_NULL: buffer_text(out, "null"); break;
    case JSON_FALSE: buffer_text(out, "false"); break;
    case JSON_TRUE: buffer_text(out, "true"); break;
    case JSON_STRING: json_write_string(out, value->text); break;
    case JSON_ARRAY: write_children(out, value, false); break;
    case JSON_OBJECT: write_children(out, value, true); break;
    case JSON_NUMBER: /* as it was written, so that large integers survive */
        if (value->text.length) buffer_str(out, value->text);
        else json_write_number(out, value->number);
        break;
    }
}

const char *json_describe(const json *value) {
    static const char *const names[] = {
        [JSON_NULL] = "null",       [JSON_FALSE] = "false",  [JSON_TRUE] = "true",        [JSON_NUMBER] = "a number",
        [JSON_STRING] = "a string", [JSON_ARRAY] = "a list", [JSON_OBJECT] = "an object",
    };
    return value ? names[value->kind] : "nothing";
}
