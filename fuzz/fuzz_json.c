/* Fuzzes JSON: a value that parses is written and parsed again, and must be the same. */

#include "base/json.h"
#include "base/utf8.h"

#include <stdlib.h>

static bool json_same(const json *a, const json *b) {
    if (a->kind != b->kind || a->count != b->count || !str_equal(a->key, b->key) || !str_equal(a->text, b->text))
        return false;
    if (a->kind == JSON_NUMBER && a->number != b->number) return false;
    const json *x = a->first, *y = b->first;
    for (; x && y; x = x->next, y = y->next) {
        if (!json_same(x, y)) return false;
    }
    return !x && !y;
}

/* Printing a number by value must preserve it, too. */
static bool numbers_survive(const json *value) {
    if (value->kind == JSON_NUMBER && value->number - value->number == 0) {
        buffer text = { 0 };
        arena  a = { 0 };
        json  *again = NULL;
        json_write_number(&text, value->number);
        bool right = json_parse(buffer_view(&text), &a, &again, NULL) == GM_OK && again->number == value->number;
        arena_free(&a);
        buffer_free(&text);
        if (!right) return false;
    }
    for (const json *child = value->first; child; child = child->next) {
        if (!numbers_survive(child)) return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    arena  a = { 0 };
    buffer text = { 0 };
    error  e = { 0 };
    json  *value = NULL, *again = NULL;
    if (json_parse((str){ (const char *)data, size }, &a, &value, &e) == GM_OK) {
        int64_t integer;
        json_integer(value, &integer);
        json_get(value, "a");
        json_write(&text, value);
        if (text.failed || !utf8_valid(buffer_view(&text))) abort();
        if (json_parse(buffer_view(&text), &a, &again, &e) != GM_OK || !json_same(value, again) ||
            !numbers_survive(value))
            abort();
    } else if (value || !e.why[0]) {
        abort();
    }
    buffer_clear(&text);
    buffer_append(&text, data, size);
    const gm_status in_place = json_parse_in_place(text.data, text.length, &a, &again, NULL);
    if ((in_place == GM_OK) != (value != NULL) || (value && !json_same(value, again))) abort();
    buffer_clear(&text);
    json_write_string(&text, (str){ (const char *)data, size }); /* any bytes give a valid string */
    if (json_parse(buffer_view(&text), &a, &again, NULL) != GM_OK || again->kind != JSON_STRING) abort();
    buffer_free(&text);
    arena_free(&a);
    return 0;
}
