/* Writes a prompt: pieces, and values in Gemma 4's notation. */

#include "text/chat_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *chat_writer_array(chat_writer *w, size_t count, size_t size) {
    void *memory = arena_array(w->memory, count, size);
    if (!memory) w->failed = true;
    return memory;
}

static void add_piece(chat_writer *w, bool scaffolding, str text, const chat_part *media, size_t frame) {
    if (w->failed || !text.length) return;
    if (w->count == w->capacity) {
        size_t      capacity = w->capacity ? w->capacity * 2 : 32;
        chat_piece *pieces = chat_writer_array(w, capacity, sizeof *pieces);
        if (!pieces) return;
        if (w->count) memcpy(pieces, w->pieces, w->count * sizeof *pieces);
        w->pieces = pieces;
        w->capacity = capacity;
    }
    w->pieces[w->count++] = (chat_piece){ scaffolding, text, media, frame, w->answer, w->message };
}

void chat_write_template(chat_writer *w, const char *text) { add_piece(w, true, str_of(text), NULL, 0); }

void chat_write_content(chat_writer *w, str text) { add_piece(w, false, text, NULL, 0); }

void chat_write_media(chat_writer *w, const char *text, const chat_part *part, size_t frame) {
    add_piece(w, true, str_of(text), part, frame);
}

void chat_write_quoted(chat_writer *w, str text) {
    chat_write_template(w, "<|\"|>");
    chat_write_content(w, text);
    chat_write_template(w, "<|\"|>");
}

typedef struct {
    const json *value;
    size_t      order;
} child;

static int compare_children(const void *a, const void *b) {
    const child *x = a, *y = b;
    int          order = str_compare(x->value->key, y->value->key);
    return order ? order : x->order < y->order ? -1 : 1;
}

const json **chat_sorted_children(chat_writer *w, const json *object, size_t *count) {
    *count = 0;
    if (!json_is(object, JSON_OBJECT) || !object->count) return NULL;
    child       *children = chat_writer_array(w, object->count, sizeof *children);
    const json **sorted = chat_writer_array(w, object->count, sizeof *sorted);
    size_t       n = 0;
    if (!children || !sorted) return NULL;
    for (const json *value = object->first; value; value = value->next, n++) children[n] = (child){ value, n };
    qsort(children, n, sizeof *children, compare_children);
    for (size_t i = 0; i < n; i++) {
        if (i + 1 == n || !str_equal(children[i].value->key, children[i + 1].value->key))
            sorted[(*count)++] = children[i].value;
    }
    return sorted;
}

/* Whole numbers lose their fraction (1.0 → 1), as in Ollama. Integers stay as they are. */
static void write_number(chat_writer *w, const json *value) {
    bool plain = value->text.length > 0;
    for (size_t i = 0; i < value->text.length; i++) plain &= !strchr(".eE", value->text.data[i]);
    if (plain) {
        chat_write_content(w, value->text);
        return;
    }
    buffer  text = { 0 };
    int64_t whole;
    if (json_integer(value, &whole)) buffer_printf(&text, "%" PRId64, whole);
    else json_write_number(&text, value->number);
    char *copy = text.failed ? NULL : arena_copy(w->memory, buffer_view(&text));
    if (copy) chat_write_content(w, (str){ copy, text.length });
    else w->failed = true;
    buffer_free(&text);
}

void chat_write_fields(chat_writer *w, const json *object, bool quoted_keys) {
    size_t       count;
    const json **fields = chat_sorted_children(w, object, &count);
    for (size_t i = 0; i < count; i++) {
        if (i) chat_write_template(w, ",");
        if (quoted_keys) chat_write_quoted(w, fields[i]->key);
        else chat_write_content(w, fields[i]->key);
        chat_write_template(w, ":");
        chat_write_value(w, fields[i], quoted_keys);
    }
}

void chat_write_value(chat_writer *w, const json *value, bool quoted_keys) {
    switch (value->kind) {
    case JSON_NULL: chat_write_template(w, "null"); break;
    case JSON_FALSE: chat_write_template(w, "false"); break;
    case JSON_TRUE: chat_write_template(w, "true"); break;
    case JSON_NUMBER: write_number(w, value); break;
    case JSON_STRING: chat_write_quoted(w, value->text); break;
    case JSON_OBJECT:
        chat_write_template(w, "{");
        chat_write_fields(w, value, quoted_keys);
        chat_write_template(w, "}");
        break;
    case JSON_ARRAY:
        chat_write_template(w, "[");
        for (const json *item = value->first; item; item = item->next) {
            if (item != value->first) chat_write_template(w, ",");
            chat_write_value(w, item, quoted_keys);
        }
        chat_write_template(w, "]");
        break;
    }
}
