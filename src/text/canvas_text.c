#include "text/canvas_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const tokenizer *words; /* NULL: only the form is checked */
    str              text;
    size_t           at; /* of the text that was read */
    size_t           most;
    canvas_start    *starts;
    size_t           count, capacity;
    buffer           run; /* text of one kind that is not encoded yet */
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

/* Encodes the run of text. */
static gm_status canvas_flush(canvas_reader *r, bool pinned) {
    token_list list = { 0 };
    if (r->run.failed) return fail_memory(r->e, "the canvas", r->run.length);
    gm_status status = GM_OK;
    if (r->words && r->run.length) status = tokenizer_encode_plain(r->words, buffer_view(&r->run), &list, r->e);
    if (!status && list.failed) status = fail_memory(r->e, "the canvas", r->run.length);
    for (size_t i = 0; i < list.count && !status; i++) status = canvas_add(r, (canvas_start){ list.ids[i], pinned });
    token_list_free(&list);
    buffer_clear(&r->run);
    return status;
}

static gm_status canvas_add_hole(canvas_reader *r, str inside) {
    size_t n = 0;
    bool   digits = true;
    for (size_t i = 0; i < inside.length; i++) {
        const char c = inside.data[i];
        digits = digits && c >= '0' && c <= '9';
        if (digits && n <= r->most) n = 10 * n + (size_t)(c - '0');
    }
    if (!digits || !n)
        return fail(r->e, GM_BAD_ARGUMENT,
                    "[[%.*s]] in the canvas is neither a hole of 1 or more tokens, as in [[12]], nor text to start "
                    "from, as in [[=text]]",
                    (int)min_size(inside.length, 40), inside.data);
    for (size_t i = 0; i < n && r->words; i++) TRY(canvas_add(r, (canvas_start){ CANVAS_HOLE, false }));
    return GM_OK;
}

static gm_status canvas_no_end(const canvas_reader *r, size_t begin) {
    return fail(r->e, GM_BAD_ARGUMENT,
                "[[ at byte %zu of the canvas has no ]]; write [[[[]] for the characters themselves", begin);
}

/* From "[[=" on. */
static gm_status canvas_read_start(canvas_reader *r) {
    const size_t begin = r->at;
    for (r->at += 3; !canvas_begins(r, r->at, "]]"); r->at++) {
        if (canvas_begins(r, r->at, "\\]") || canvas_begins(r, r->at, "\\\\")) r->at++;
        if (r->at == r->text.length) return canvas_no_end(r, begin);
        buffer_append(&r->run, r->text.data + r->at, 1);
    }
    r->at += 2;
    return canvas_flush(r, false);
}

/* From "[[" on. */
static gm_status canvas_read_hole(canvas_reader *r) {
    const size_t begin = r->at;
    for (r->at += 2; !canvas_begins(r, r->at, "]]"); r->at++) {
        if (r->at == r->text.length) return canvas_no_end(r, begin);
    }
    r->at += 2;
    return canvas_add_hole(r, (str){ r->text.data + begin + 2, r->at - begin - 4 });
}

static gm_status canvas_read_bracket(canvas_reader *r) {
    if (canvas_begins(r, r->at, "[[[[]]")) {
        buffer_text(&r->run, "[[");
        r->at += 6;
        return GM_OK;
    }
    TRY(canvas_flush(r, true));
    return canvas_begins(r, r->at, "[[=") ? canvas_read_start(r) : canvas_read_hole(r);
}

static gm_status canvas_read_all(canvas_reader *r) {
    gm_status status = GM_OK;
    while (r->at < r->text.length && !status) {
        /* Of three brackets that are no [[[[]], the first is text: "[[[12]]" is "[" and a hole. */
        const bool text_first = canvas_begins(r, r->at, "[[[") && !canvas_begins(r, r->at, "[[[[]]");
        if (!text_first && canvas_begins(r, r->at, "[[")) status = canvas_read_bracket(r);
        else buffer_append(&r->run, r->text.data + r->at++, 1);
    }
    if (!status) status = canvas_flush(r, true);
    buffer_free(&r->run);
    return status;
}

gm_status canvas_text_read(const tokenizer *t, str text, size_t most, canvas_start **out, size_t *count, error *e) {
    canvas_reader   r = { .words = t, .text = text, .most = most, .e = e };
    const gm_status status = canvas_read_all(&r);
    if (status) free(r.starts);
    *out = status ? NULL : r.starts;
    *count = status ? 0 : r.count;
    return status;
}

gm_status canvas_text_check(str text, error *e) { return canvas_read_all(&(canvas_reader){ .text = text, .e = e }); }
