/* Shared by the tests of tokenizers. */

#ifndef GM_TOKENIZER_TOOLS_H
#define GM_TOKENIZER_TOOLS_H

#include "base/random.h"
#include "test.h"
#include "text/tokenizer.h"

/* A tokenizer and the file that it lives on. */
typedef struct {
    gguf      *file;
    tokenizer *t;
} loaded;

static inline loaded load(const char *path) {
    loaded l = { 0 };
    error  e = { 0 };
    CHECK_MESSAGE(!gguf_open_file(path, &l.file, &e) && !tokenizer_new(l.file, &l.t, &e), "%s: %s", path, e.why);
    return l;
}

static inline void unload(loaded *l) {
    tokenizer_free(l->t);
    gguf_free(l->file);
}

static uint32_t random_state;

static inline uint32_t random_below(uint32_t n) {
    uint32_t out[4];
    philox((uint32_t[4]){ random_state++, 0, 0, 0 }, (uint32_t[2]){ 20, 26 }, out);
    return out[0] % n;
}

static inline void check_ids(const token_list *got, const int32_t *want, size_t count, str text) {
    bool same = got->count == count && (!count || !memcmp(got->ids, want, count * sizeof *want));
    CHECK_MESSAGE(same, "\"%.*s\" differs", STR_ARGS(text));
    if (same) return;
    printf("    got ");
    for (size_t i = 0; i < got->count && i < 60; i++) printf(" %d", got->ids[i]);
    printf("\n    want");
    for (size_t i = 0; i < count && i < 60; i++) printf(" %d", want[i]);
    printf("\n");
}

static inline void check_encode(const tokenizer *t, str text, bool parse_special, const int32_t *want, size_t count) {
    token_list got = { 0 };
    error      e = { 0 };
    CHECK_MESSAGE(!tokenizer_encode(t, text, parse_special, &got, &e), "%s", e.why);
    check_ids(&got, want, count, text);
    token_list_free(&got);
}

#endif
