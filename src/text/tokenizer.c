/* The public functions of the tokenizer: text → ids, and properties of an id. */

#include "text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

gm_status tokenizer_new(const gguf *g, tokenizer **out, error *e) {
    *out = NULL;
    tokenizer *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "a tokenizer", sizeof *t);
    gm_status status = vocabulary_load(t, g, e);
    if (status) {
        tokenizer_free(t);
        return status;
    }
    *out = t;
    return GM_OK;
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    symbols_free(&t->symbols);
    bpe_merges_free(&t->merges);
    specials_free(&t->specials);
    free(t->flags);
    free(t->texts);
    free(t->text_starts);
    free(t);
}

/* ---- lists ---- */

void token_list_reserve(token_list *l, size_t least) {
    if (l->failed || least <= l->capacity) return;
    const size_t capacity = max_size(least, l->capacity ? l->capacity * 2 : 64);
    int32_t     *ids = capacity <= SIZE_MAX / sizeof *ids ? realloc(l->ids, capacity * sizeof *ids) : NULL;
    if (!ids) {
        l->failed = true;
        return;
    }
    l->ids = ids;
    l->capacity = capacity;
}

void token_list_add(token_list *l, int32_t id) {
    token_list_reserve(l, l->count + 1);
    if (!l->failed) l->ids[l->count++] = id;
}

void token_list_free(token_list *l) {
    free(l->ids);
    *l = (token_list){ 0 };
}

/* ---- encoding ---- */

/* Encodes text without special tokens: runs of newlines, and runs of everything else. No merge joins the two. A run of newlines
 * that is a token becomes that token, whatever the merges say. */
static gm_status tokenizer_encode_text(const tokenizer *t, bpe_work *w, str text, token_list *out, error *e) {
    const bpe b = { &t->symbols, &t->merges, t->ascii, t->bytes };
    for (size_t at = 0, length; at < text.length; at += length) {
        const char *rest = text.data + at, *newline = memchr(rest, '\n', text.length - at);
        length = newline ? (size_t)(newline - rest) : text.length - at;
        if (!length) {
            while (at + length < text.length && rest[length] == '\n') length++;
            uint32_t token = symbols_find(&t->symbols, (str){ rest, length }, (str){ "", 0 });
            if (token < t->symbols.tokens) {
                token_list_add(out, (int32_t)token);
                continue;
            }
        }
        gm_status status = bpe_encode(&b, w, (str){ rest, length }, out, e);
        if (status) return status;
    }
    return GM_OK;
}

static gm_status encode_ranges(const tokenizer *t, str text, const text_range *ranges, size_t range_count, bool control,
                               token_list *out, error *e) {
    special_match *matches = NULL;
    size_t         count = 0, at = 0;
    bpe_work       work = { 0 };
    if (text.length > INT32_MAX) {
        return fail(e, GM_BAD_ARGUMENT, "the text has %zu bytes; at most 2 GiB can be tokenised at once", text.length);
    }
    gm_status status = specials_find(&t->specials, text, ranges, range_count, control, &matches, &count, e);
    for (size_t i = 0; i < count && !status; i++) {
        status = tokenizer_encode_text(t, &work, (str){ text.data + at, matches[i].start - at }, out, e);
        token_list_add(out, matches[i].id);
        at = matches[i].end;
    }
    if (!status) status = tokenizer_encode_text(t, &work, (str){ text.data + at, text.length - at }, out, e);
    if (!status && out->failed) status = fail_memory(e, "the tokens", (uint64_t)out->count * 2 * sizeof *out->ids);
    free(matches);
    bpe_work_free(&work);
    return status;
}

gm_status tokenizer_encode(const tokenizer *t, str text, bool parse_special, token_list *out, error *e) {
    return encode_ranges(t, text, &(text_range){ 0, text.length }, 1, parse_special, out, e);
}

gm_status tokenizer_encode_plain(const tokenizer *t, str text, token_list *out, error *e) {
    return encode_ranges(t, text, NULL, 0, false, out, e);
}

gm_status tokenizer_encode_ranges(const tokenizer *t, str text, const text_range *ranges, size_t count, token_list *out,
                                  error *e) {
    size_t before = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].start < before || ranges[i].end < ranges[i].start || ranges[i].end > text.length) {
            return fail(e, GM_BAD_ARGUMENT, "the ranges of special tokens must be in order and inside the text");
        }
        before = ranges[i].end;
    }
    return encode_ranges(t, text, ranges, count, true, out, e);
}

/* ---- properties of an id ---- */

static bool has_flag(const tokenizer *t, int32_t id, unsigned flag) {
    return id >= 0 && (uint32_t)id < t->symbols.tokens && t->flags[id] & flag;
}

size_t  tokenizer_size(const tokenizer *t) { return t->symbols.tokens; }
int32_t tokenizer_special(const tokenizer *t, special_token which) { return t->special[which]; }
bool    tokenizer_is_stop(const tokenizer *t, int32_t id) { return has_flag(t, id, TOKEN_STOP); }
bool    tokenizer_is_suppressed(const tokenizer *t, int32_t id) { return has_flag(t, id, TOKEN_SUPPRESSED); }

str tokenizer_text(const tokenizer *t, int32_t id) {
    if (id < 0 || (uint32_t)id >= t->symbols.tokens) return (str){ "", 0 };
    const uint32_t start = t->text_starts[id];
    return (str){ t->texts + start, t->flags[id] & TOKEN_BYTE ? 1 : t->text_starts[id + 1] - start };
}

bool tokenizer_is_visible(const tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->symbols.tokens && !(t->flags[id] & TOKEN_CONTROL);
}
