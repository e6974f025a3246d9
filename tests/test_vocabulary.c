/* Tokenizers from vocabularies that the test writes: both forms of metadata, refused ones, and random ones, on which special tokens
 * and merges must give the same result as the rules applied step by step. */

#include "base/utf8.h"
#include "tokenizer_tools.h"

#include <stdlib.h>

enum { MOST_TOKENS = 700, MOST_MERGES = 64 };

typedef struct {
    str         tokens[MOST_TOKENS];
    int32_t     types[MOST_TOKENS];
    size_t      count;
    str         merges[MOST_MERGES];
    size_t      merge_count;
    bool        no_types;
    size_t      types_less; /* how many items token_type lacks */
    const char *model, *pre, *architecture;
    int64_t     eos, eot, bos; /* -1: absent */
    int32_t     eos_ids[4];
    size_t      eos_id_count;
    arena       memory;
} made_vocabulary;

static int32_t vocabulary_add_token(made_vocabulary *v, const char *text, int32_t type) {
    v->tokens[v->count] = (str){ arena_copy(&v->memory, str_of(text)), strlen(text) };
    v->types[v->count] = type;
    return (int32_t)v->count++;
}

static void vocabulary_add_merge(made_vocabulary *v, const char *text) {
    v->merges[v->merge_count++] = (str){ arena_copy(&v->memory, str_of(text)), strlen(text) };
}

static void start_vocabulary(made_vocabulary *v) {
    *v = (made_vocabulary){ .model = "gemma4", .architecture = "gemma4", .eos = -1, .eot = -1, .bos = -1 };
    vocabulary_add_token(v, "<bos>", 3);
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        vocabulary_add_token(v, text, 6);
    }
}

static void write_vocabulary(const made_vocabulary *v, buffer *out) {
    gguf_writer *w = NULL;
    error        e = { 0 };
    CHECK(!gguf_writer_new(&w, &e));
    if (v->architecture) gguf_write_str(w, "general.architecture", str_of(v->architecture));
    if (v->model) gguf_write_str(w, "tokenizer.ggml.model", str_of(v->model));
    if (v->pre) gguf_write_str(w, "tokenizer.ggml.pre", str_of(v->pre));
    if (v->count) gguf_write_strings(w, "tokenizer.ggml.tokens", v->tokens, v->count);
    if (!v->no_types) gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, v->types, v->count - v->types_less);
    if (v->merge_count) gguf_write_strings(w, "tokenizer.ggml.merges", v->merges, v->merge_count);
    if (v->eos >= 0) gguf_write_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos);
    if (v->eot >= 0) gguf_write_u32(w, "tokenizer.ggml.eot_token_id", (uint32_t)v->eot);
    if (v->bos >= 0) gguf_write_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)v->bos);
    if (v->eos_id_count) gguf_write_array(w, "tokenizer.ggml.eos_token_ids", GGUF_I32, v->eos_ids, v->eos_id_count);
    CHECK_MESSAGE(!gguf_writer_head(w, buffer_sink, out, &e) && !gguf_writer_end(w, &e), "%s", e.why);
    gguf_writer_free(w);
}

/* The tokenizer points into `bytes`. */
static loaded make(const made_vocabulary *v, buffer *bytes, error *e) {
    loaded l = { 0 };
    write_vocabulary(v, bytes);
    if (!gguf_open_memory(bytes->data, bytes->length, &l.file, e)) tokenizer_new(l.file, &l.t, e);
    return l;
}

static void spoil_architecture(made_vocabulary *v) { v->model = "llama", v->architecture = "qwen3"; }
static void spoil_tokens(made_vocabulary *v) { v->count = 0, v->no_types = true; }
static void spoil_merges(made_vocabulary *v) { v->merge_count = 0; }
static void spoil_type(made_vocabulary *v) { v->types[100] = 77; }
static void spoil_type_sign(made_vocabulary *v) { v->types[0] = -1; }
static void spoil_type_count(made_vocabulary *v) { v->types_less = 1; }
static void spoil_byte(made_vocabulary *v) { v->tokens[1 + 0xa7] = str_of("?"); }
static void spoil_bos(made_vocabulary *v) { v->tokens[0] = str_of("start"); }
static void spoil_bos_id(made_vocabulary *v) { v->tokens[0] = str_of("start"), v->bos = 5000; }
static void spoil_eos_id(made_vocabulary *v) { v->eos = 4000000000; }
static void spoil_eos_ids(made_vocabulary *v) { v->eos_ids[0] = -3, v->eos_id_count = 1; }
static void spoil_no_space(made_vocabulary *v) { vocabulary_add_merge(v, "ab"); }
static void spoil_no_right(made_vocabulary *v) { vocabulary_add_merge(v, "a "); }
static void spoil_no_left(made_vocabulary *v) { vocabulary_add_merge(v, " a"); }
static void spoil_empty_merge(made_vocabulary *v) { vocabulary_add_merge(v, ""); }

static void test_vocabulary_refusals(void) {
    static const struct {
        const char *name;
        void (*spoil)(made_vocabulary *);
        gm_status   status;
        const char *says;
    } cases[] = {
        { "another tokenizer", spoil_architecture, GM_UNSUPPORTED, "not Gemma 4's" },
        { "no tokens", spoil_tokens, GM_UNSUPPORTED, "tokenizer.ggml.tokens is missing" },
        { "no merges", spoil_merges, GM_UNSUPPORTED, "tokenizer.ggml.merges is missing" },
        { "an unknown type", spoil_type, GM_BAD_FILE, "tokenizer.ggml.token_type[100] must be 1 to 6, found 77" },
        { "a negative type", spoil_type_sign, GM_BAD_FILE, "tokenizer.ggml.token_type[0] must be 1 to 6, found -1" },
        { "fewer types than tokens", spoil_type_count, GM_BAD_FILE,
          "tokenizer.ggml.token_type must have as many items as tokenizer.ggml.tokens, 257; found 256" },
        { "a missing byte", spoil_byte, GM_BAD_FILE, "no byte token <0xA7>" },
        { "no start", spoil_bos, GM_BAD_FILE, "no <bos>, and tokenizer.ggml.bos_token_id is missing" },
        { "a start out of range", spoil_bos_id, GM_BAD_FILE, "tokenizer.ggml.bos_token_id has token 5000" },
        { "an end out of range", spoil_eos_id, GM_BAD_FILE, "tokenizer.ggml.eos_token_id has token 4000000000" },
        { "a negative end", spoil_eos_ids, GM_BAD_FILE, "tokenizer.ggml.eos_token_ids has token -3" },
        { "a merge without space", spoil_no_space, GM_BAD_FILE, "tokenizer.ggml.merges[1]" },
        { "a merge without right part", spoil_no_right, GM_BAD_FILE, "tokenizer.ggml.merges[1]" },
        { "a merge without left part", spoil_no_left, GM_BAD_FILE, "tokenizer.ggml.merges[1]" },
        { "an empty merge", spoil_empty_merge, GM_BAD_FILE, "tokenizer.ggml.merges[1]" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        made_vocabulary *v = malloc(sizeof *v);
        buffer           bytes = { 0 };
        error            e = { 0 };
        TEST("refused: %s", cases[i].name);
        start_vocabulary(v);
        vocabulary_add_merge(v, "a b");
        cases[i].spoil(v);
        loaded l = make(v, &bytes, &e);
        CHECK(!l.t);
        CHECK_MESSAGE(e.status == cases[i].status && strstr(e.why, cases[i].says), "said %d \"%s\"", e.status, e.why);
        unload(&l);
        buffer_free(&bytes);
        arena_free(&v->memory);
        free(v);
    }
}

/* The same vocabulary as both kinds of converters write it. */
static void test_vocabulary_flavours(void) {
    static const char text[] = "<|turn>a b<|channel><0x41></s>\xff<|\"|>";
    token_list        first = { 0 };
    for (int flavour = 0; flavour < 3; flavour++) {
        static const char *const names[] = { "llama.cpp's", "Ollama's", "no token types" };
        made_vocabulary         *v = malloc(sizeof *v);
        buffer                   bytes = { 0 };
        token_list               got = { 0 };
        error                    e = { 0 };
        TEST("flavour: %s", names[flavour]);
        start_vocabulary(v);
        int32_t end = vocabulary_add_token(v, "<turn|>", 3), eos = vocabulary_add_token(v, "<eos>", 3),
                html = vocabulary_add_token(v, "</s>", 1);
        int32_t other = vocabulary_add_token(v, "over", 1), response = vocabulary_add_token(v, "<|tool_response>", 4);
        vocabulary_add_token(v, "<|turn>", 3), vocabulary_add_token(v, "<|channel>", 4),
            vocabulary_add_token(v, "<|\"|>", 4), vocabulary_add_token(v, "\xe2\x96\x81", 1);
        for (char c[2] = "a"; c[0] <= 'z'; c[0]++) vocabulary_add_token(v, c, 1);
        vocabulary_add_merge(v, "a b");
        v->eos_ids[0] = html, v->eos_ids[1] = eos, v->eos_id_count = 2;
        v->eot = other;
        if (flavour == 1) {
            v->model = "llama", v->pre = "gemma4", v->architecture = NULL;
            for (size_t i = 0; i < v->count; i++)
                v->types[i] = v->types[i] == 6 ? 1 : v->types[i] == 4 ? 3 : v->types[i];
        }
        v->no_types = flavour == 2;
        loaded l = make(v, &bytes, &e);
        CHECK_MESSAGE(l.t, "%s", e.why);
        if (l.t) {
            CHECK(tokenizer_is_stop(l.t, end) && tokenizer_is_stop(l.t, eos) && tokenizer_is_stop(l.t, other));
            CHECK(tokenizer_is_stop(l.t, response) && !tokenizer_is_stop(l.t, html));
            CHECK(tokenizer_is_visible(l.t, html) && tokenizer_is_visible(l.t, response) &&
                  !tokenizer_is_visible(l.t, end));
            CHECK(tokenizer_is_visible(l.t, 1 + 0x41) && str_is(tokenizer_text(l.t, 1 + 0x41), "A"));
            CHECK(tokenizer_special(l.t, SPECIAL_TOOL) == -1);
            CHECK(!tokenizer_encode(l.t, str_of(text), true, flavour ? &got : &first, &e));
            CHECK(first.count > 10);
            if (flavour) check_ids(&got, first.ids, first.count, str_of(text));
        }
        unload(&l);
        token_list_free(&got);
        buffer_free(&bytes);
        arena_free(&v->memory);
        free(v);
    }
    token_list_free(&first);
}

/* ---- special tokens: the rule, word for word, on random texts ---- */

typedef struct {
    int32_t id; /* -1: raw text */
    size_t  start, end;
} fragment;

static size_t split_slowly(const made_vocabulary *v, const int32_t *order, size_t order_count, str text, bool control,
                           fragment *out) {
    size_t count = 0;
    if (text.length) out[count++] = (fragment){ -1, 0, text.length };
    for (size_t k = 0; k < order_count; k++) {
        str special = v->tokens[order[k]];
        if (v->types[order[k]] == 3 && !control) continue;
        for (size_t i = 0; i < count; i++) {
            if (out[i].id >= 0) continue;
            size_t at = out[i].start;
            while (at + special.length <= out[i].end && memcmp(text.data + at, special.data, special.length) != 0) at++;
            if (at + special.length > out[i].end) continue;
            fragment pieces[3] = { { -1, out[i].start, at },
                                   { order[k], at, at + special.length },
                                   { -1, at + special.length, out[i].end } };
            memmove(out + i + 3, out + i + 1, (count - i - 1) * sizeof *out);
            memcpy(out + i, pieces, sizeof pieces);
            count += 2;
            i += 1; /* goes on with the right-hand rest */
        }
    }
    return count;
}

static void test_specials_against_rule(void) {
    static const char *const specials[] = { "a",  "ab",   "ba", "aab", "aba", "bab",   "abab",
                                            "bb", "caab", "ca", "bc",  "cab", "abcab", "cc" };
    made_vocabulary         *v = malloc(sizeof *v);
    fragment                *fragments = malloc(4000 * sizeof *fragments);
    int32_t                  order[COUNT_OF(specials)];
    size_t                   n = COUNT_OF(specials);
    buffer                   bytes = { 0 };
    error                    e = { 0 };
    TEST("overlapping special tokens split like the rule applied one by one");
    start_vocabulary(v);
    for (size_t i = 0; i < n; i++) order[i] = vocabulary_add_token(v, specials[i], i % 3 ? 4 : 3);
    for (char c[2] = "d"; c[0] <= 'f'; c[0]++) vocabulary_add_token(v, c, 1);
    vocabulary_add_merge(v, "d e");
    for (size_t i = 0; i < n; i++) { /* by decreasing length, then by id */
        for (size_t j = i + 1; j < n; j++) {
            str a = v->tokens[order[i]], b = v->tokens[order[j]];
            if (b.length < a.length || (b.length == a.length && order[j] > order[i])) continue;
            int32_t swap = order[i];
            order[i] = order[j], order[j] = swap;
        }
    }
    loaded l = make(v, &bytes, &e);
    CHECK_MESSAGE(l.t, "%s", e.why);
    for (int round = 0; l.t && round < 4000 && !test_bad; round++) {
        char   text[200];
        size_t length = random_below(round < 2000 ? 20 : sizeof text), letters = 2 + random_below(3);
        for (size_t i = 0; i < length; i++) text[i] = "abcd"[random_below((uint32_t)letters)];
        bool    control = random_below(2);
        size_t  count = split_slowly(v, order, n, (str){ text, length }, control, fragments);
        int32_t want[200];
        size_t  wanted = 0;
        for (size_t i = 0; i < count; i++) {
            if (fragments[i].id >= 0) want[wanted++] = fragments[i].id;
            for (size_t at = fragments[i].start; fragments[i].id < 0 && at < fragments[i].end; at++) {
                const char one[2] = { text[at], 0 }; /* no merge applies: one token a character */
                for (size_t k = v->count; k--;) {
                    if (str_is(v->tokens[k], one)) want[wanted] = (int32_t)k;
                }
                if (text[at] == 'b' || text[at] == 'c') want[wanted] = 1 + text[at]; /* no token: its byte */
                wanted++;
            }
        }
        check_encode(l.t, (str){ text, length }, control, want, wanted);
    }
    unload(&l);
    buffer_free(&bytes);
    arena_free(&v->memory);
    free(v);
    free(fragments);
}

/* ---- merges: smallest rank first, leftmost on ties, on random texts ---- */

static size_t merge_slowly(const made_vocabulary *v, str text, str *parts) {
    size_t count = 0;
    for (size_t at = 0; at < text.length; count++) {
        int n = utf8_length((str){ text.data + at, text.length - at });
        parts[count] = (str){ text.data + at, (size_t)(n < 1 ? 1 : n) };
        at += parts[count].length;
    }
    for (;;) {
        size_t best = SIZE_MAX, where = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t rank = 0; rank < v->merge_count && rank < best; rank++) {
                str merge = v->merges[rank], left = parts[i], right = parts[i + 1];
                if (merge.length != left.length + 1 + right.length || merge.data[left.length] != ' ') continue;
                if (memcmp(merge.data, left.data, left.length) != 0 ||
                    memcmp(merge.data + left.length + 1, right.data, right.length) != 0)
                    continue;
                best = rank, where = i;
            }
        }
        if (best == SIZE_MAX) return count;
        parts[where].length += parts[where + 1].length;
        memmove(parts + where + 1, parts + where + 2, (count - where - 2) * sizeof *parts);
        count--;
    }
}

static void test_merges_against_rule(void) {
    static const char *const letters[] = { "a", "b", "c", "é", "東" };
    TEST("merges in random vocabularies: like the rule applied step by step");
    for (int round = 0; round < 150 && !test_bad; round++) {
        made_vocabulary *v = malloc(sizeof *v);
        str              parts[120];
        buffer           bytes = { 0 };
        error            e = { 0 };
        start_vocabulary(v);
        /* a, b and 東 are tokens, c and é are known to merges only; half of the results are tokens */
        vocabulary_add_token(v, "a", 1), vocabulary_add_token(v, "b", 1), vocabulary_add_token(v, "東", 1);
        char   made[40][64];
        size_t made_count = 0;
        for (; made_count < COUNT_OF(letters); made_count++)
            snprintf(made[made_count], sizeof made[0], "%s", letters[made_count]);
        for (int i = 0; i < 30; i++) {
            const char *left = made[random_below((uint32_t)made_count)],
                       *right = made[random_below((uint32_t)made_count)];
            char merge[130], result[130] = "";
            snprintf(merge, sizeof merge, "%s %s", left, right);
            snprintf(result, sizeof result, "%s%s", left, right);
            if (strlen(result) >= 60) continue;
            vocabulary_add_merge(v, merge);
            if (random_below(2)) vocabulary_add_token(v, result, 1);
            if (made_count < COUNT_OF(made)) memcpy(made[made_count++], result, sizeof made[0]);
        }
        loaded l = make(v, &bytes, &e);
        CHECK_MESSAGE(l.t, "%s", e.why);
        for (int k = 0; l.t && k < 40; k++) {
            char    text[400];
            size_t  length = 0;
            int32_t want[400];
            size_t  wanted = 0;
            for (uint32_t n = random_below(80); n; n--) {
                const char *letter = letters[random_below(COUNT_OF(letters))];
                for (; *letter; letter++) text[length++] = *letter;
            }
            size_t count = merge_slowly(v, (str){ text, length }, parts);
            for (size_t i = 0; i < count; i++) {
                size_t id = 0;
                while (id < v->count && !str_equal(v->tokens[id], parts[i])) id++;
                if (id < v->count) want[wanted++] = (int32_t)id;
                for (size_t j = 0; id == v->count && j < parts[i].length; j++)
                    want[wanted++] = 1 + (unsigned char)parts[i].data[j];
            }
            check_encode(l.t, (str){ text, length }, true, want, wanted);
        }
        unload(&l);
        buffer_free(&bytes);
        arena_free(&v->memory);
        free(v);
    }
}

int main(void) {
    test_vocabulary_refusals();
    test_vocabulary_flavours();
    test_specials_against_rule();
    test_merges_against_rule();
    return test_end();
}
