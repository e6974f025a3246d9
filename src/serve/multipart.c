/* See multipart.h. */

#include "serve/multipart.h"

#include <string.h>
#include <strings.h>

/* ---- parameters: name=value or name="value", after semicolons ---- */

static str form_trim(str text) {
    while (text.length && (text.data[0] == ' ' || text.data[0] == '\t')) text.data++, text.length--;
    while (text.length && (text.data[text.length - 1] == ' ' || text.data[text.length - 1] == '\t')) text.length--;
    return text;
}

/* Where the parameter at the beginning of `text` ends. A semicolon in quotes does not end it; browsers write a quote inside as %22. */
static size_t form_parameter_end(str text) {
    bool quoted = false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] == '"') quoted = !quoted;
        else if (text.data[i] == ';' && !quoted) return i;
    }
    return text.length;
}

static bool form_parameter(str header, const char *name, str *out) {
    const size_t length = strlen(name);
    for (size_t at = form_parameter_end(header); at < header.length;) {
        at++;
        const str    rest = { header.data + at, header.length - at };
        const size_t end = form_parameter_end(rest);
        str          one = form_trim((str){ rest.data, end });
        at += end;
        if (one.length <= length || strncasecmp(one.data, name, length) != 0 || one.data[length] != '=') continue;
        one = (str){ one.data + length + 1, one.length - length - 1 };
        if (one.length >= 2 && one.data[0] == '"' && one.data[one.length - 1] == '"')
            one = (str){ one.data + 1, one.length - 2 };
        *out = one;
        return true;
    }
    return false;
}

static bool form_starts(str text, const char *with) {
    const size_t length = strlen(with);
    return text.length >= length && !strncasecmp(text.data, with, length);
}

static bool form_boundary(const char *content_type, str *out) {
    static const char type[] = "multipart/form-data";
    const str         whole = str_of(content_type ? content_type : "");
    if (!form_starts(whole, type) ||
        form_trim((str){ whole.data, form_parameter_end(whole) }).length != sizeof type - 1)
        return false;
    return form_parameter(whole, "boundary", out) && out->length && out->length <= FORM_MOST_BOUNDARY;
}

bool is_form_type(const char *content_type) {
    str boundary;
    return form_boundary(content_type, &boundary);
}

/* ---- fields ---- */

/* The place of the next "\r\n--boundary" from `at` on; SIZE_MAX: none. */
static size_t form_find(str body, size_t at, const char *mark, size_t length) {
    const char *found = at <= body.length ? memmem(body.data + at, body.length - at, mark, length) : NULL;
    return found ? (size_t)(found - body.data) : SIZE_MAX;
}

/* Reads a field's headers, of which only Content-Disposition counts. */
static gm_status form_read_headers(str headers, size_t number, form_field *out, error *e) {
    bool named = false;
    for (size_t at = 0; at < headers.length;) {
        const char  *end = memmem(headers.data + at, headers.length - at, "\r\n", 2);
        const size_t length = end ? (size_t)(end - headers.data) - at : headers.length - at;
        const str    line = { headers.data + at, length };
        at += length + 2;
        if (!form_starts(line, "Content-Disposition:")) continue;
        str       file;
        const str value = form_trim((str){ line.data + 20, line.length - 20 });
        if (!form_starts(value, "form-data") || !form_parameter(value, "name", &out->name))
            return fail(e, GM_BAD_FILE, "field %zu of the form has no name", number);
        out->file = form_parameter(value, "filename", &file) || form_parameter(value, "filename*", &file);
        named = true;
    }
    return named ? GM_OK : fail(e, GM_BAD_FILE, "field %zu of the form has no Content-Disposition", number);
}

static gm_status form_read_field(str part, size_t number, form_field *out, error *e) {
    const size_t most = min_size(part.length, FORM_MOST_HEADERS),
                 end = form_find((str){ part.data, most }, 0, "\r\n\r\n", 4);
    if (end == SIZE_MAX)
        return fail(e, GM_BAD_FILE, "the headers of field %zu of the form do not end within %d bytes", number,
                    FORM_MOST_HEADERS);
    TRY(form_read_headers((str){ part.data, end }, number, out, e));
    out->value = (str){ part.data + end + 4, part.length - end - 4 };
    return GM_OK;
}

gm_status form_parse(str body, const char *content_type, form *out, error *e) {
    char   mark[4 + FORM_MOST_BOUNDARY + 1] = "\r\n--";
    str    boundary;
    size_t at = 0;
    out->count = 0;
    if (!form_boundary(content_type, &boundary))
        return fail(e, GM_BAD_FILE, "expected multipart/form-data with a boundary of at most %d characters",
                    FORM_MOST_BOUNDARY);
    memcpy(mark + 4, boundary.data, boundary.length);
    const size_t length = 4 + boundary.length;
    /* The first boundary may stand at the very beginning, without a line before it. */
    if (body.length >= length - 2 && !memcmp(body.data, mark + 2, length - 2)) at = length - 2;
    else if ((at = form_find(body, 0, mark, length)) != SIZE_MAX) at += length;
    else return fail(e, GM_BAD_FILE, "the form does not contain its boundary");
    for (;;) {
        const str rest = { body.data + at, body.length - at };
        if (str_starts_with(rest, "--")) return GM_OK;
        if (!str_starts_with(rest, "\r\n"))
            return fail(e, GM_BAD_FILE, "a line break must follow a boundary of the form");
        if (out->count == FORM_MOST_FIELDS)
            return fail(e, GM_BAD_FILE, "the form has more than %d fields", FORM_MOST_FIELDS);
        const size_t end = form_find(body, at, mark, length);
        if (end == SIZE_MAX) return fail(e, GM_BAD_FILE, "the form is cut off: its last boundary is missing");
        /* `at` is at a line break, and so may be `end`: an empty part. */
        const size_t begin = min_size(at + 2, end);
        TRY(form_read_field((str){ body.data + begin, end - begin }, out->count + 1, &out->fields[out->count], e));
        out->count++;
        at = end + length;
    }
}
