#include "text/canvas_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const tokenizer *words;
    str              text;
    size_t           at; /* of the text that was read */
    size_t           most;
    canvas_start    *starts;
    size_t           count, capacity;
    buffer           pinned; /* text that is pinned and not encoded yet */
    error           *e;
} canvas_reader;

static bool canvas_begins(const canvas_reader *r, size_t at, const char *what) {
    const size_t n = strlen(what);
    return r->text.length - at >= n && !memcmp(r->text.data + at, what, n);
}

static gm_status canvas_add(canvas_reader *r, canvas_start start) {
    if (r->count == r->most)
        return fail(r->e, GM_BAD_ARGUMENT, "the canvas has more than %zu tokens, which is all there is room for",
                    r->most);
    if (r->count == r->capacity) {
        const size_t  capacity = r->capacity ? 2 * r->capacity : 64;
        canvas_start *more = realloc(r->starts, capacity * sizeof *more);
        if (!more) return fail_memory(r->e, "the canvas", capacity * sizeof *more);
        r->starts = more;
        r->capacity = capacity;
    }
    r->starts[r->count++] = start;
    return GM_OK;
}

static gm_status canvas_add_text(canvas_reader *r, str text, bool pinned) {
    token_list list = { 0 };
    gm_status  status = tokenizer_encode_plain(r->words, text, &list, r->e);
    if (!status && list.failed) status = fail_memory(r->e, "the canvas", text.length);
    for (size_t i = 0; i < list.count && !status; i++) status = canvas_add(r, (canvas_start){ list.ids[i], pinned });
    token_list_free(&list);
    return status;
}

static gm_status canvas_flush(canvas_reader *r) {
    if (r->pinned.failed) return fail_memory(r->e, "the canvas", r->pinned.length);
    if (!r->pinned.length) return GM_OK;
    const gm_status status = canvas_add_text(r, (str){ r->pinned.data, r->pinned.length }, true);
    buffer_clear(&r->pinned);
    return status;
}

static gm_status canvas_add_hole(canvas_reader *r, str inside) {
    size_t n = 0;
    for (size_t i = 0; i < inside.length; i++) {
        const char c = inside.data[i];
        n = c < '0' || c > '9' || n > r->most ? SIZE_MAX / 16 : 10 * n + (size_t)(c - '0');
    }
    if (!inside.length || !n || n > r->most)
        return fail(r->e, GM_BAD_ARGUMENT,
                    "[[%.*s]] in the canvas is neither a hole of 1 to %zu tokens, as in [[12]], nor text to start "
                    "from, as in [[=text]]",
                    (int)min_size(inside.length, 40), inside.data, r->most);
    for (size_t i = 0; i < n; i++) TRY(canvas_add(r, (canvas_start){ CANVAS_HOLE, false }));
    return GM_OK;
}

/* What follows "[[". */
static gm_status canvas_read_bracket(canvas_reader *r) {
    const size_t begin = r->at + 2;
    if (canvas_begins(r, begin, "[[]]")) {
        buffer_text(&r->pinned, "[[");
        r->at = begin + 4;
        return GM_OK;
    }
    size_t end = begin;
    while (end < r->text.length && !canvas_begins(r, end, "]]")) end++;
    if (end == r->text.length)
        return fail(r->e, GM_BAD_ARGUMENT,
                    "[[ at byte %zu of the canvas has no ]]; write [[[[]] for the characters themselves", r->at);
    const str inside = { r->text.data + begin, end - begin };
    r->at = end + 2;
    TRY(canvas_flush(r));
    if (inside.length && inside.data[0] == '=')
        return canvas_add_text(r, (str){ inside.data + 1, inside.length - 1 }, false);
    return canvas_add_hole(r, inside);
}

gm_status canvas_text_read(const tokenizer *t, str text, size_t most, canvas_start **out, size_t *count, error *e) {
    canvas_reader r = { .words = t, .text = text, .most = most, .e = e };
    gm_status     status = GM_OK;
    while (r.at < text.length && !status) {
        /* Of three brackets that are no [[[[]], the first is text: "[[[12]]" is "[" and a hole. */
        const bool text_first = canvas_begins(&r, r.at, "[[[") && !canvas_begins(&r, r.at, "[[[[]]");
        if (!text_first && canvas_begins(&r, r.at, "[[")) status = canvas_read_bracket(&r);
        else buffer_append(&r.pinned, text.data + r.at++, 1);
    }
    if (!status) status = canvas_flush(&r);
    buffer_free(&r.pinned);
    if (status) free(r.starts);
    *out = status ? NULL : r.starts;
    *count = status ? 0 : r.count;
    return status;
}
