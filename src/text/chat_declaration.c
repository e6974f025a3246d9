/* Writes a function's JSON schema in the notation that Gemma 4 was trained on. */

#include "text/chat_writer.h"

#include <string.h>

static void write_properties(chat_writer *w, const json *properties, bool own_keys);

static bool is_truthy(const json *value) {
    if (!value || value->kind == JSON_NULL || value->kind == JSON_FALSE) return false;
    if (value->kind == JSON_NUMBER) return value->number != 0;
    if (value->kind == JSON_STRING) return value->text.length > 0;
    return value->kind == JSON_TRUE || value->count > 0;
}

/* Writes a comma before every part but the first. */
static void declaration_begin_part(chat_writer *w, bool *first, const char *name) {
    if (!*first) chat_write_template(w, ",");
    *first = false;
    chat_write_template(w, name);
}

static void write_required(chat_writer *w, const json *required) {
    bool first = true;
    chat_write_template(w, "required:[");
    for (const json *item = required->first; item; item = item->next) {
        if (item->kind != JSON_STRING && item->kind != JSON_NUMBER) continue;
        declaration_begin_part(w, &first, "");
        chat_write_quoted(w, item->text);
    }
    chat_write_template(w, "]");
}

/* ---- types ---- */

static str upper_text(chat_writer *w, str text) {
    char *copy = arena_copy(w->memory, text);
    if (!copy) w->failed = true;
    for (size_t i = 0; copy && i < text.length; i++) {
        if (copy[i] >= 'a' && copy[i] <= 'z') copy[i] = (char)(copy[i] - 'a' + 'A');
    }
    return (str){ copy, copy ? text.length : 0 };
}

/* A union is written as Python prints a list: ['STRING', 'NULL']. */
static str type_text(chat_writer *w, const json *type) {
    if (json_is(type, JSON_STRING)) return upper_text(w, type->text);
    if (!json_is(type, JSON_ARRAY)) return (str){ "", 0 };
    buffer list = { 0 };
    buffer_char(&list, '[');
    for (const json *item = type->first; item; item = item->next) {
        if (item != type->first) buffer_text(&list, ", ");
        buffer_char(&list, '\'');
        buffer_str(&list, json_string(item, ""));
        buffer_char(&list, '\'');
    }
    buffer_char(&list, ']');
    str text = list.failed ? (w->failed = true, (str){ "", 0 }) : upper_text(w, buffer_view(&list));
    buffer_free(&list);
    return text;
}

/* Inside items a union is a list of quoted types. */
static void write_items_type(chat_writer *w, const json *type) {
    if (!json_is(type, JSON_ARRAY)) {
        chat_write_quoted(w, type_text(w, type));
        return;
    }
    chat_write_template(w, "[");
    for (const json *item = type->first; item; item = item->next) {
        if (item != type->first) chat_write_template(w, ",");
        chat_write_quoted(w, upper_text(w, json_string(item, "")));
    }
    chat_write_template(w, "]");
}

/* ---- properties ---- */

static void write_items(chat_writer *w, const json *items) {
    size_t       count;
    const json **fields = chat_sorted_children(w, items, &count);
    bool         first = true;
    for (size_t i = 0; i < count; i++) {
        const json *field = fields[i];
        if (field->kind == JSON_NULL) continue;
        declaration_begin_part(w, &first, "");
        if (str_is(field->key, "properties")) {
            chat_write_template(w, "properties:{");
            write_properties(w, field, false);
            chat_write_template(w, "}");
        } else if (str_is(field->key, "required") && field->kind == JSON_ARRAY) {
            write_required(w, field);
        } else if (str_is(field->key, "type")) {
            chat_write_template(w, "type:");
            write_items_type(w, field);
        } else {
            chat_write_content(w, field->key);
            chat_write_template(w, ":");
            chat_write_value(w, field, true);
        }
    }
}

static void write_property(chat_writer *w, const json *property) {
    const json *description = json_get(property, "description"), *choices = json_get(property, "enum");
    const json *items = json_get(property, "items"), *inner = json_get(property, "properties"),
               *required = json_get(property, "required");
    const str type = type_text(w, json_get(property, "type"));
    bool      first = true;
    if (json_is(description, JSON_STRING) && description->text.length) {
        declaration_begin_part(w, &first, "description:");
        chat_write_quoted(w, description->text);
    }
    if (str_is(type, "STRING") && json_is(choices, JSON_ARRAY) && choices->count) {
        declaration_begin_part(w, &first, "enum:");
        chat_write_value(w, choices, true);
    }
    if (str_is(type, "ARRAY") && json_is(items, JSON_OBJECT) && items->count) {
        declaration_begin_part(w, &first, "items:{");
        write_items(w, items);
        chat_write_template(w, "}");
    }
    if (is_truthy(json_get(property, "nullable"))) declaration_begin_part(w, &first, "nullable:true");
    if (str_is(type, "OBJECT")) {
        declaration_begin_part(w, &first, "properties:{");
        if (json_is(inner, JSON_OBJECT)) write_properties(w, inner, false);
        else write_properties(w, property, true);
        chat_write_template(w, "}");
        if (json_is(required, JSON_ARRAY) && required->count) {
            declaration_begin_part(w, &first, "");
            write_required(w, required);
        }
    }
    declaration_begin_part(w, &first, "type:");
    chat_write_quoted(w, type);
}

/* `own_keys`: an object schema without "properties". Its own keys are the properties, except for the keywords of schemas. */
static void write_properties(chat_writer *w, const json *properties, bool own_keys) {
    static const char *const meaningful[] = { "description", "type", "properties", "required", "nullable" };
    size_t                   count;
    const json             **fields = chat_sorted_children(w, properties, &count);
    bool                     first = true;
    for (size_t i = 0; i < count; i++) {
        bool skip = false;
        for (size_t k = 0; own_keys && k < COUNT_OF(meaningful); k++) skip |= str_is(fields[i]->key, meaningful[k]);
        if (skip) continue;
        declaration_begin_part(w, &first, "");
        chat_write_content(w, fields[i]->key);
        chat_write_template(w, ":{");
        write_property(w, fields[i]);
        chat_write_template(w, "}");
    }
}

/* ---- the function ---- */

static void write_parameters(chat_writer *w, const json *parameters) {
    const json *properties = json_get(parameters, "properties"), *required = json_get(parameters, "required"),
               *type = json_get(parameters, "type");
    bool first = true;
    chat_write_template(w, ",parameters:{");
    if (json_is(properties, JSON_OBJECT) && properties->count) {
        declaration_begin_part(w, &first, "properties:{");
        write_properties(w, properties, false);
        chat_write_template(w, "}");
    }
    if (json_is(required, JSON_ARRAY) && required->count) {
        declaration_begin_part(w, &first, "");
        write_required(w, required);
    }
    if (is_truthy(type)) {
        declaration_begin_part(w, &first, "type:");
        chat_write_quoted(w, type_text(w, type));
    }
    chat_write_template(w, "}");
}

static void declaration_write_response(chat_writer *w, const json *response) {
    const json *description = json_get(response, "description"), *type = json_get(response, "type");
    bool        first = true;
    chat_write_template(w, ",response:{");
    if (json_is(description, JSON_STRING) && description->text.length) {
        declaration_begin_part(w, &first, "description:");
        chat_write_quoted(w, description->text);
    }
    if (is_truthy(type)) {
        declaration_begin_part(w, &first, "type:");
        chat_write_quoted(w, type_text(w, type));
    }
    chat_write_template(w, "}");
}

void chat_write_declaration(chat_writer *w, const json *function) {
    const json *parameters = json_get(function, "parameters"), *response = json_get(function, "response");
    chat_write_template(w, "declaration:");
    chat_write_content(w, json_string(json_get(function, "name"), ""));
    chat_write_template(w, "{description:");
    chat_write_quoted(w, json_string(json_get(function, "description"), ""));
    if (json_is(parameters, JSON_OBJECT) && parameters->count) write_parameters(w, parameters);
    if (json_is(response, JSON_OBJECT)) declaration_write_response(w, response);
    chat_write_template(w, "}");
}
