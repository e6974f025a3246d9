#include "cli/eval_rules.h"

#include "cli/input.h"

#include <string.h>

typedef struct {
    const answer       *a;
    str                 content; /* trimmed */
    const eval_context *context;
    arena               memory;
    gm_status           status; /* of reading a rule; an answer that does not pass is no failure */
    error              *e;
} checker;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static str trimmed(str text) {
    while (text.length && is_space(text.data[0])) text = (str){ text.data + 1, text.length - 1 };
    while (text.length && is_space(text.data[text.length - 1])) text.length--;
    return text;
}

/* ---- texts ---- */

static bool starts_alike(str text, str start) {
    if (text.length < start.length) return false;
    for (size_t i = 0; i < start.length; i++) {
        if (ascii_lower(text.data[i]) != ascii_lower(start.data[i])) return false;
    }
    return true;
}

static bool contains(str text, str piece) {
    for (size_t i = 0; i + piece.length <= text.length; i++) {
        if (starts_alike((str){ text.data + i, text.length - i }, piece)) return true;
    }
    return false;
}

static bool check_exact(checker *c, const json *want) {
    for (const json *item = want->first; item; item = item->next) {
        if (str_equal(c->content, json_string(item, ""))) return true;
    }
    return false;
}

static bool check_contains(checker *c, const json *want) {
    for (const json *item = want->first; item; item = item->next) {
        if (!contains(c->content, json_string(item, ""))) return false;
    }
    return true;
}

/* ---- numbers ---- */

static bool is_decimal(char c) { return c >= '0' && c <= '9'; }

/* A number does not start after these: inside a word, or after a decimal point. */
static bool is_inside(char c) {
    return is_decimal(c) || (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') || c == '_' || c == '.' ||
           (unsigned char)c >= 0x80;
}

static bool check_number(checker *c, const json *want) {
    const str text = c->content;
    bool      found = false;
    double    last = 0;
    for (size_t i = 0; i < text.length; i++) {
        const size_t sign = text.data[i] == '-';
        if (i + sign >= text.length || !is_decimal(text.data[i + sign]) || (i && is_inside(text.data[i - 1]))) continue;
        double value = 0;
        for (i += sign; i < text.length && is_decimal(text.data[i]); i++) value = value * 10 + (text.data[i] - '0');
        last = sign ? -value : value;
        found = true;
        i--;
    }
    return found && last == want->number;
}

/* ---- JSON ---- */

static bool json_equals(const json *a, const json *b) {
    if (a->kind != b->kind || a->count != b->count) return false;
    const json *x = a->first, *y = b->first;
    switch (a->kind) {
    case JSON_NUMBER: return a->number == b->number;
    case JSON_STRING: return str_equal(a->text, b->text);
    case JSON_ARRAY:
        for (; x && y; x = x->next, y = y->next) {
            if (!json_equals(x, y)) return false;
        }
        return true;
    case JSON_OBJECT:
        for (; x; x = x->next) {
            const json *other = json_get_str(b, x->key);
            if (!other || !json_equals(x, other)) return false;
        }
        return true;
    default: return true;
    }
}

static json *parse_answer(checker *c, str text) {
    error ignored = { 0 };
    json *value = NULL;
    return json_parse(text, &c->memory, &value, &ignored) == GM_OK ? value : NULL;
}

static bool check_json(checker *c, const json *want) {
    const json *value = parse_answer(c, c->content);
    return value && json_equals(value, want);
}

static bool check_calls(checker *c, const json *want) {
    buffer list = { 0 };
    buffer_char(&list, '[');
    buffer_str(&list, buffer_view(&c->a->calls));
    buffer_char(&list, ']');
    const json *calls = list.failed ? NULL : parse_answer(c, buffer_view(&list));
    bool        same = calls && calls->count == want->count;
    const json *x = calls ? calls->first : NULL, *y = want->first;
    for (; same && x && y; x = x->next, y = y->next) {
        const json *made = json_get(x, "function"), *arguments = json_get(made, "arguments"),
                   *expected = json_get(y, "arguments");
        same = str_equal(json_string(json_get(made, "name"), ""), json_string(json_get(y, "name"), "")) && arguments &&
               expected && json_equals(arguments, expected);
    }
    buffer_free(&list);
    return same;
}

static bool check_thinks(checker *c, const json *want) {
    const str thinking = trimmed(buffer_view(&c->a->thinking));
    return (thinking.length > 0) == (want->kind == JSON_TRUE);
}

/* ---- words ---- */

/* Every byte of a character beyond ASCII counts as a letter. */
static bool is_letter(char c) { return (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') || (unsigned char)c >= 0x80; }

/* Cuts the next word off `text`: letters, with apostrophes between them. Empty: there is none. */
static str next_word(str *text) {
    size_t first = 0;
    while (first < text->length && !is_letter(text->data[first])) first++;
    size_t end = first;
    while (end < text->length && (is_letter(text->data[end]) || (text->data[end] == '\'' && end + 1 < text->length &&
                                                                 is_letter(text->data[end + 1]))))
        end++;
    const str word = { text->data + first, end - first };
    *text = (str){ text->data + end, text->length - end };
    return word;
}

static bool has_word(str text, str word) {
    while (text.length) {
        const str next = next_word(&text);
        if (next.length == word.length && starts_alike(next, word)) return true;
    }
    return false;
}

static gm_status read_beside(const char *set, str name, buffer *text, error *e) {
    buffer      path = { 0 };
    const char *slash = strrchr(set, '/');
    if (slash) buffer_append(&path, set, (size_t)(slash - set) + 1);
    buffer_str(&path, name);
    const gm_status status = path.failed ? fail_memory(e, "a path", path.length) : input_read(path.data, text, e);
    buffer_free(&path);
    return status;
}

static bool check_words(checker *c, const json *want) {
    buffer known = { 0 };
    size_t count = 0;
    bool   good = true;
    c->status = read_beside(c->context->set, want->text, &known, c->e);
    for (str rest = c->content; good && rest.length;) {
        const str word = next_word(&rest);
        count += word.length > 0;
        good = word.length < 2 || has_word(buffer_view(&known), word) || has_word(c->context->said, word);
    }
    for (size_t i = 0; i < c->content.length; i++) count += is_decimal(c->content.data[i]);
    buffer_free(&known);
    return good && count;
}

/* ---- all rules ---- */

enum { ANY_KIND = -1 };

static const struct {
    const char *name;
    int         kind; /* json_kind of the rule's value */
    bool (*check)(checker *c, const json *want);
} rules[] = {
    { "exact", JSON_ARRAY, check_exact },    { "contains", JSON_ARRAY, check_contains },
    { "number", JSON_NUMBER, check_number }, { "json", ANY_KIND, check_json },
    { "calls", JSON_ARRAY, check_calls },    { "thinks", ANY_KIND, check_thinks },
    { "words", JSON_STRING, check_words },
};

gm_status eval_passes(const json *check, const answer *a, const eval_context *context, bool *passed, error *e) {
    checker c = { .a = a, .content = trimmed(buffer_view(&a->content)), .context = context, .e = e };
    *passed = true;
    if (!json_is(check, JSON_OBJECT) || !check->count)
        return fail(e, GM_BAD_ARGUMENT, "\"check\" must be an object with at least one rule");
    for (const json *want = check->first; want && !c.status; want = want->next) {
        size_t i = 0;
        while (i < COUNT_OF(rules) && !str_is(want->key, rules[i].name)) i++;
        if (i == COUNT_OF(rules)) c.status = fail(e, GM_BAD_ARGUMENT, "unknown rule '%.*s'", STR_ARGS(want->key));
        else if (rules[i].kind != ANY_KIND && (int)want->kind != rules[i].kind)
            c.status = fail(e, GM_BAD_ARGUMENT, "the rule '%s' has a value of the wrong type", rules[i].name);
        else *passed &= rules[i].check(&c, want);
    }
    arena_free(&c.memory);
    return c.status;
}
