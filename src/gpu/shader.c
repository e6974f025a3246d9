#include "gpu/shader.h"

#include <string.h>

enum { MOST_NESTING = 8, MOST_INCLUDES = 4 };

/* The state of an open #if. */
typedef struct {
    bool live;  /* this branch is taken */
    bool taken; /* an earlier branch was taken */
    bool outer; /* the enclosing code is live */
} branch;

typedef struct {
    const char          *file;
    int                  line;
    const shader_define *defines;
    size_t               count;
    branch               open[MOST_NESTING];
    size_t               depth, includes;
    buffer              *out;
    gm_status            status; /* the first failure; after it, nothing more is written */
    error               *e;
} preprocessor;

static void shader_complain(preprocessor *p, const char *what, str about) {
    p->status = fail(p->e, GM_BAD_ARGUMENT, "%s:%d: %s '%.*s'", p->file, p->line, what, STR_ARGS(about));
}

static const char *value_of(const preprocessor *p, str name) {
    for (size_t i = 0; i < p->count; i++) {
        if (str_is(name, p->defines[i].name)) return p->defines[i].value;
    }
    return NULL;
}

static str trim(str s) {
    while (s.length && (s.data[0] == ' ' || s.data[0] == '\t')) s.data++, s.length--;
    while (s.length && (s.data[s.length - 1] == ' ' || s.data[s.length - 1] == '\t' || s.data[s.length - 1] == '\r'))
        s.length--;
    return s;
}

/* NAME, or NAME == VALUE. An undefined name is 0. */
static bool condition(const preprocessor *p, str text) {
    const char *equals = NULL;
    for (size_t i = 0; i + 1 < text.length; i++) {
        if (text.data[i] == '=' && text.data[i + 1] == '=') {
            equals = text.data + i;
            break;
        }
    }
    const str   name = trim(equals ? (str){ text.data, (size_t)(equals - text.data) } : text);
    const char *found = value_of(p, name);
    const str   value = str_of(found ? found : "0");
    if (!equals) return !str_is(value, "0");
    return str_equal(value, trim((str){ equals + 2, text.length - (size_t)(equals + 2 - text.data) }));
}

static bool live(const preprocessor *p) { return !p->depth || p->open[p->depth - 1].live; }

/* Handles #if, #elif, #else, #endif. True if the line is one of them. */
static bool conditional(preprocessor *p, str line) {
    branch *last = p->depth ? &p->open[p->depth - 1] : NULL;
    if (str_starts_with(line, "#if ")) {
        if (p->depth == MOST_NESTING) return shader_complain(p, "too many #if inside each other at", line), true;
        const bool outer = live(p), on = outer && condition(p, (str){ line.data + 4, line.length - 4 });
        p->open[p->depth++] = (branch){ .live = on, .taken = on, .outer = outer };
    } else if (str_starts_with(line, "#elif ") || str_is(line, "#else")) {
        if (!last) return shader_complain(p, "no #if before", line), true;
        const bool on =
            last->outer && !last->taken &&
            (line.data[2] == 'l' && line.data[3] == 's' ? true : condition(p, (str){ line.data + 6, line.length - 6 }));
        last->live = on;
        last->taken |= on;
    } else if (str_is(line, "#endif")) {
        if (!last) return shader_complain(p, "no #if before", line), true;
        p->depth--;
    } else return false;
    return true;
}

/* Copies a line and replaces ${NAME}. */
static void substitute(preprocessor *p, str line) {
    while (line.length && !p->status) {
        const char *start = memchr(line.data, '$', line.length);
        if (!start || start + 1 >= line.data + line.length || start[1] != '{') {
            const size_t n = start ? (size_t)(start - line.data) + 1 : line.length;
            buffer_append(p->out, line.data, n);
            line = (str){ line.data + n, line.length - n };
            continue;
        }
        const char *end = memchr(start, '}', line.length - (size_t)(start - line.data));
        const str   name = { start + 2, end ? (size_t)(end - start) - 2 : 0 };
        const char *value = end ? value_of(p, name) : NULL;
        if (!value) {
            shader_complain(p, "not defined:", end ? name : line);
            return;
        }
        buffer_append(p->out, line.data, (size_t)(start - line.data));
        buffer_text(p->out, value);
        line = (str){ end + 1, line.length - (size_t)(end + 1 - line.data) };
    }
    buffer_char(p->out, '\n');
}

static void process(preprocessor *p, str file);

static void include(preprocessor *p, str line) {
    const str name = trim((str){ line.data + 9, line.length - 9 });
    if (name.length < 3 || name.data[0] != '"' || name.data[name.length - 1] != '"') {
        shader_complain(p, "expected #include \"file.wgsl\", found", line);
        return;
    }
    if (p->includes == MOST_INCLUDES) {
        shader_complain(p, "includes inside each other at", line);
        return;
    }
    const char *file = p->file;
    const int   number = p->line;
    p->includes++;
    process(p, (str){ name.data + 1, name.length - 2 });
    p->includes--;
    p->file = file;
    p->line = number;
}

static void process(preprocessor *p, str file) {
    const shader_file *found = shader_files;
    while (found->name && !str_is(file, found->name)) found++;
    if (!found->name) {
        shader_complain(p, "no such shader:", file);
        return;
    }
    const size_t depth = p->depth;
    p->file = found->name;
    p->line = 0;
    for (const char *at = found->text; *at && !p->status;) {
        const size_t length = strcspn(at, "\n");
        const str    line = trim((str){ at, length });
        p->line++;
        if (!conditional(p, line) && live(p)) {
            if (str_starts_with(line, "#include ")) include(p, line);
            else if (line.length && line.data[0] == '#') shader_complain(p, "unknown directive", line);
            else substitute(p, (str){ at, length });
        }
        at += length + (at[length] == '\n');
    }
    if (p->depth != depth) shader_complain(p, "#endif is missing at the end of", file);
}

gm_status shader_text(const char *file, const shader_define *defines, size_t count, buffer *out, error *e) {
    preprocessor p = { .file = file, .defines = defines, .count = count, .out = out, .e = e };
    process(&p, str_of(file));
    return out->failed ? fail_memory(e, "a shader's text", out->length) : p.status;
}
