/* Where records begin and end: JSON lines, the items of a JSON list, CSV rows (RFC 4180). */

#include "train/data_parts.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- the container ---- */

static bool name_ends(const char *name, const char *const *endings) {
    const size_t length = strlen(name);
    for (; *endings; endings++) {
        const size_t n = strlen(*endings);
        size_t       i = 0;
        while (length >= n && i < n && ascii_lower(name[length - n + i]) == (*endings)[i]) i++;
        if (i == n) return true;
    }
    return false;
}

static size_t count_lines(str text) {
    size_t n = 0;
    for (size_t i = 0; i < text.length; i++) n += text.data[i] == '\n';
    return n;
}

/* Moves past white space, and counts the lines. */
static gm_status skip_blank(data_reader *r, data_cursor *c, str *rest, error *e) {
    for (;;) {
        TRY(data_reader_peek(r, c->at, 1, rest, e));
        size_t n = 0;
        while (n < rest->length && rest->data[n] && strchr(" \t\r\n", rest->data[n])) n++;
        c->line += count_lines((str){ rest->data, n });
        c->at += n;
        if (n == rest->length && n) continue;
        *rest = (str){ rest->data + n, rest->length - n };
        return GM_OK;
    }
}

static gm_status refuse_wide(const data_reader *r, str head, error *e) {
    if (str_starts_with(head, "\xff\xfe") || str_starts_with(head, "\xfe\xff"))
        return fail(e, GM_BAD_FILE, "%s: expected UTF-8, found UTF-16", r->name);
    if (str_starts_with(head, "PK") || str_starts_with(head, "\x1f\x8b") || str_starts_with(head, "PAR1"))
        return fail(e, GM_BAD_FILE, "%s: expected JSONL, JSON, CSV or text, found %s", r->name,
                    head.data[0] == 'P' && head.data[1] == 'A' ? "a Parquet file" : "a compressed file");
    return GM_OK;
}

/* ---- CSV ---- */

typedef struct {
    str    text;
    size_t at;
    char  *room; /* for the values of the fields that are left */
} csv_row;

static gm_status csv_start(csv_row *row, str text, arena *a, error *e) {
    *row = (csv_row){ .text = text, .room = arena_alloc(a, text.length + 1) };
    return row->room ? GM_OK : fail_memory(e, "a CSV row", text.length);
}

/* *more: another field follows. */
static gm_status csv_field(csv_row *row, str *out, bool *more, error *e) {
    size_t     n = 0;
    const bool quoted = row->at < row->text.length && row->text.data[row->at] == '"';
    bool       open = quoted;
    if (quoted) row->at++;
    for (; row->at < row->text.length; row->at++) {
        const char c = row->text.data[row->at];
        if (open && c == '"' && row->at + 1 < row->text.length && row->text.data[row->at + 1] == '"') row->at++;
        else if (open && c == '"') {
            open = false;
            continue;
        } else if (!open && c == ',') break;
        else if (!open && quoted) return fail(e, GM_BAD_FILE, "expected a comma after a quoted field, found '%c'", c);
        else if (!open && c == '"')
            return fail(e, GM_BAD_FILE, "a field with a quotation mark must be quoted, and the mark doubled");
        row->room[n++] = c;
    }
    if (open) return fail(e, GM_BAD_FILE, "a quoted field has no closing quotation mark");
    *more = row->at < row->text.length;
    row->at++;
    *out = (str){ row->room, n };
    row->room += n;
    return GM_OK;
}

static gm_status csv_header(data_cursor *c, str text, error *e) {
    size_t  commas = 0;
    bool    more = true;
    csv_row row;
    TRY(csv_start(&row, text, &c->memory, e));
    for (size_t i = 0; i < text.length; i++) commas += text.data[i] == ',';
    c->columns = arena_array(&c->memory, commas + 1, sizeof *c->columns);
    if (!c->columns) return fail_memory(e, "the columns", commas * sizeof *c->columns);
    while (more) {
        TRY(csv_field(&row, &c->columns[c->column_count], &more, e));
        for (size_t i = 0; i < c->column_count; i++) {
            if (str_equal(c->columns[i], c->columns[c->column_count]))
                return fail(e, GM_BAD_FILE, "the header names the column \"%.*s\" twice", STR_ARGS(c->columns[i]));
        }
        c->column_count++;
    }
    return GM_OK;
}

static gm_status csv_parse(const data_cursor *c, str text, arena *a, json **out, error *e) {
    json   *object = *out = arena_alloc(a, sizeof *object), *fields = arena_array(a, c->column_count, sizeof *fields);
    csv_row row;
    size_t  n = 0;
    TRY(csv_start(&row, text, a, e));
    if (!object || !fields) return fail_memory(e, "a CSV row", text.length);
    object->kind = JSON_OBJECT;
    for (bool more = true; more; n++) {
        str value;
        TRY(csv_field(&row, &value, &more, e));
        if (n >= c->column_count) continue;
        fields[n] = (json){ .kind = JSON_STRING, .key = c->columns[n], .text = value };
        if (n) fields[n - 1].next = &fields[n];
    }
    if (n != c->column_count)
        return fail(e, GM_BAD_FILE, "expected %zu fields as in the header, found %zu", c->column_count, n);
    object->first = fields;
    object->count = n;
    return GM_OK;
}

/* ---- where a record ends ---- */

/* Goes over the bytes once, however often more of them are read. */
typedef struct {
    size_t at;
    size_t depth;          /* of a JSON item */
    bool   quoted, escape; /* inside quotation marks; after a backslash */
} record_scan;

/* Whether the record's end is among the bytes: `at` is then behind it. */
static bool scan_line(record_scan *s, str text) {
    const char *end = memchr(text.data + s->at, '\n', text.length - s->at);
    s->at = end ? (size_t)(end - text.data) : text.length;
    return end;
}

static bool scan_row(record_scan *s, str text) {
    for (; s->at < text.length; s->at++) {
        if (text.data[s->at] == '"') s->quoted = !s->quoted;
        if (text.data[s->at] == '\n' && !s->quoted) return true;
    }
    return false;
}

static bool scan_item(record_scan *s, str text) {
    for (; s->at < text.length; s->at++) {
        const char c = text.data[s->at];
        if (s->escape) s->escape = false;
        else if (s->quoted && c == '\\') s->escape = true;
        else if (c == '"') s->quoted = !s->quoted;
        else if (s->quoted) continue;
        else if (c == '{' || c == '[') s->depth++;
        else if ((c == '}' || c == ']') && s->depth) {
            if (--s->depth) continue;
            s->at++;
            return true;
        } else if (!s->depth && (c == ',' || c == ']')) return true; /* a number or a word, which is refused later */
    }
    return false;
}

static gm_status record_find_end(data_reader *r, uint64_t at, bool (*scan)(record_scan *, str), size_t *length,
                                 error *e) {
    record_scan s = { 0 };
    str         text;
    TRY(data_reader_peek(r, at, 1, &text, e));
    while (!scan(&s, text)) {
        if (at + text.length >= r->length) break;
        if (text.length > DATA_MOST_RECORD) break;
        TRY(data_reader_peek(r, at, 2 * text.length, &text, e));
    }
    *length = s.at;
    if (s.at > DATA_MOST_RECORD)
        return fail(e, GM_BAD_FILE, "expected at most %d MiB, found a record that is longer", DATA_MOST_RECORD >> 20);
    return GM_OK;
}

/* ---- one after the other ---- */

static gm_status next_line(data_reader *r, data_cursor *c, bool rows, data_place *out, error *e) {
    str rest;
    for (;;) {
        size_t length;
        if (c->at >= r->length) return GM_DONE;
        *out = (data_place){ .offset = c->at, .line = c->line };
        TRY(record_find_end(r, c->at, rows ? scan_row : scan_line, &length, e));
        TRY(data_reader_peek(r, c->at, length + 1, &rest, e));
        c->line += count_lines((str){ rest.data, min_size(length + 1, rest.length) });
        c->at += length + 1;
        while (length && strchr(" \t\r", rest.data[length - 1]) && rest.data[length - 1] &&
               (!rows || rest.data[length - 1] == '\r'))
            length--;
        out->length = length;
        if (length) return GM_OK; /* blank lines are passed over */
    }
}

/* Between the items of a list: a comma, or the end. */
static gm_status next_item(data_reader *r, data_cursor *c, data_place *out, error *e) {
    str rest;
    TRY(skip_blank(r, c, &rest, e));
    out->line = c->line;
    if (!c->list_open) {
        c->list_open = true; /* data_records_start has seen the bracket */
        c->at++;
        TRY(skip_blank(r, c, &rest, e));
    } else if (!c->list_over && c->list_item && rest.length && rest.data[0] == ',') {
        c->at++;
        TRY(skip_blank(r, c, &rest, e));
        if (rest.length && rest.data[0] == ']') return fail(e, GM_BAD_FILE, "expected an item after the comma");
    } else if (!c->list_over && rest.length && rest.data[0] != ']') {
        return fail(e, GM_BAD_FILE, "expected a comma or the end of the list, found '%c'", rest.data[0]);
    }
    out->line = c->line;
    if (c->list_over && rest.length) return fail(e, GM_BAD_FILE, "expected nothing after the list");
    if (c->list_over) return GM_DONE;
    if (!rest.length) return fail(e, GM_BAD_FILE, "the list does not end: expected ']'");
    if (rest.data[0] == ']') {
        c->list_over = true;
        c->at++;
        return next_item(r, c, out, e);
    }
    out->offset = c->at;
    TRY(record_find_end(r, c->at, scan_item, &out->length, e));
    TRY(data_reader_peek(r, c->at, out->length, &rest, e));
    c->line += count_lines((str){ rest.data, out->length });
    c->at += out->length;
    c->list_item = true;
    return GM_OK;
}

gm_status data_records_next(data_reader *r, data_cursor *c, data_container container, data_place *out, error *e) {
    *out = (data_place){ .offset = c->at, .line = c->line };
    if (container == DATA_JSON_LIST) return next_item(r, c, out, e);
    return next_line(r, c, container == DATA_CSV, out, e);
}

/* ---- the beginning ---- */

/* A file that says neither by its name nor by its first byte what it is: a header with a name that we know makes it CSV. */
static bool looks_like_header(str line) {
    static const char *const names[] = { "prompt", "instruction", "completion", "chosen", "text", NULL };
    bool                     known = false;
    for (size_t from = 0; from <= line.length;) {
        size_t to = from;
        while (to < line.length && line.data[to] != ',') to++;
        str name = { line.data + from, to - from };
        if (name.length >= 2 && name.data[0] == '"') name = (str){ name.data + 1, name.length - 2 };
        for (size_t i = 0; names[i]; i++) known = known || str_is(name, names[i]);
        from = to + 1;
    }
    return known && memchr(line.data, ',', line.length);
}

static gm_status find_container(data_reader *r, const data_cursor *c, str rest, data_container *out, error *e) {
    static const char *const lines[] = { ".jsonl", ".ndjson", ".json", NULL }, *const csv[] = { ".csv", NULL },
                             *const text[] = { ".txt", ".text", ".md", NULL };
    const char                      first = rest.length ? rest.data[0] : 0;
    size_t                          length;
    *out = DATA_PLAIN_TEXT;
    if (name_ends(r->name, text)) return GM_OK;
    if (name_ends(r->name, csv)) *out = DATA_CSV;
    else if (first == '[') *out = DATA_JSON_LIST;
    else if (first == '{' || name_ends(r->name, lines)) *out = DATA_JSONL;
    else {
        TRY(record_find_end(r, c->at, scan_row, &length, e));
        TRY(data_reader_peek(r, c->at, length, &rest, e));
        while (length && rest.data[length - 1] == '\r') length--;
        if (looks_like_header((str){ rest.data, length })) *out = DATA_CSV;
    }
    return GM_OK;
}

gm_status data_records_start(data_reader *r, data_cursor *c, data_container *out, error *e) {
    str        rest;
    data_place place;
    c->line = 1;
    TRY(data_reader_peek(r, 0, 4, &rest, e));
    TRY(refuse_wide(r, rest, e));
    if (str_starts_with(rest, "\xef\xbb\xbf")) c->at = 3;
    const data_cursor begin = *c;
    TRY(skip_blank(r, c, &rest, e));
    if (!rest.length) return fail(e, GM_BAD_FILE, "%s is empty: expected examples", r->name);
    TRY(find_container(r, c, rest, out, e));
    if (*out == DATA_PLAIN_TEXT) *c = begin;
    if (*out != DATA_CSV) return GM_OK;
    error inner = { 0 };
    if (data_records_next(r, c, DATA_CSV, &place, &inner) ||
        data_reader_peek(r, place.offset, place.length, &rest, &inner) ||
        csv_header(c, (str){ rest.data, place.length }, &inner))
        return fail(e, inner.status, "%s, line %llu: %s", r->name, (unsigned long long)place.line, inner.why);
    return GM_OK;
}

/* ---- a record as an object ---- */

/* "JSON line 1 column 5: …" of a record that begins at `line` → "column 5: …", with the line if it is another one. */
static gm_status record_json_fail(const error *inner, uint64_t line, error *e) {
    unsigned long within, column;
    int           skip = 0;
    if (sscanf(inner->why, "JSON line %lu column %lu: %n", &within, &column, &skip) < 2 || !skip)
        return fail(e, inner->status, "%s", inner->why);
    if (within > 1)
        return fail(e, inner->status, "line %llu, column %lu: %s", (unsigned long long)line + within - 1, column,
                    inner->why + skip);
    return fail(e, inner->status, "column %lu: %s", column, inner->why + skip);
}

gm_status data_record_parse(const data_cursor *c, data_container container, str text, uint64_t line, arena *a,
                            json **out, error *e) {
    error inner = { 0 };
    if (container == DATA_CSV) {
        size_t at = 0;
        for (int n; at < text.length; at += (size_t)n) {
            n = utf8_length((str){ text.data + at, text.length - at });
            if (n <= 0)
                return fail(e, GM_BAD_FILE, "expected UTF-8, found the byte 0x%02x", (unsigned char)text.data[at]);
        }
        return csv_parse(c, text, a, out, e);
    }
    if (json_parse(text, a, out, &inner)) return record_json_fail(&inner, line, e);
    if (!json_is(*out, JSON_OBJECT))
        return fail(e, GM_BAD_FILE, "expected a JSON object, found %s", json_describe(*out));
    return GM_OK;
}
