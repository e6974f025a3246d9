/* The tokenizer against llama.cpp's on a small vocabulary, against plain slow rules on random ones, and, when a vocabulary of
 * real size is given (node tests/vocabulary.mjs build/vocabulary.gguf), against published vectors and the clock.
 *
 *     test_tokenizer [build/vocabulary.gguf] */

#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "base/utf8.h"
#include "test.h"
#include "text/tokenizer.h"

#include <stdlib.h>

/* ---- helpers ---- */

static bool read_file(const char *path, buffer *out) {
    FILE *file = fopen(path, "rb");
    char chunk[65536];
    if (!file) return false;
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, file)) > 0;) buffer_append(out, chunk, n);
    fclose(file);
    return !out->failed;
}

/* A tokenizer and the file that it lives on. */
typedef struct {
    gguf      *file;
    tokenizer *t;
} loaded;

static loaded load(const char *path) {
    loaded l = { 0 };
    error e = { 0 };
    CHECK_MESSAGE(!gguf_open_file(path, &l.file, &e) && !tokenizer_new(l.file, &l.t, &e), "%s: %s", path, e.why);
    return l;
}

static void unload(loaded *l) {
    tokenizer_free(l->t);
    gguf_free(l->file);
}

static uint32_t random_state;

static uint32_t random_below(uint32_t n) {
    uint32_t out[4];
    philox((uint32_t[4]){ random_state++, 0, 0, 0 }, (uint32_t[2]){ 20, 26 }, out);
    return out[0] % n;
}

static void check_ids(const token_list *got, const int32_t *want, size_t count, str text) {
    bool same = got->count == count && (!count || !memcmp(got->ids, want, count * sizeof *want));
    CHECK_MESSAGE(same, "\"%.*s\" differs", STR_ARGS(text));
    if (same) return;
    printf("    got ");
    for (size_t i = 0; i < got->count && i < 60; i++) printf(" %d", got->ids[i]);
    printf("\n    want");
    for (size_t i = 0; i < count && i < 60; i++) printf(" %d", want[i]);
    printf("\n");
}

static void check_encode(const tokenizer *t, str text, bool parse_special, const int32_t *want, size_t count) {
    token_list got = { 0 };
    error e = { 0 };
    CHECK_MESSAGE(!tokenizer_encode(t, text, parse_special, &got, &e), "%s", e.why);
    check_ids(&got, want, count, text);
    token_list_free(&got);
}

static void decode(const tokenizer *t, const int32_t *ids, size_t count, buffer *out) {
    detokenizer d = { 0 };
    for (size_t i = 0; i < count; i++) {
        str piece = detokenizer_add(&d, t, ids[i]);
        CHECK(utf8_valid(piece));
        buffer_str(out, piece);
    }
    buffer_str(out, detokenizer_end(&d));
    detokenizer_free(&d);
}

static void check_round_trip(const tokenizer *t, str text) {
    token_list ids = { 0 };
    buffer back = { 0 };
    error e = { 0 };
    CHECK(!tokenizer_encode_plain(t, text, &ids, &e));
    decode(t, ids.ids, ids.count, &back);
    CHECK_MESSAGE(str_equal(buffer_view(&back), text), "\"%.*s\" came back as \"%.*s\"", STR_ARGS(text), STR_ARGS(buffer_view(&back)));
    token_list_free(&ids);
    buffer_free(&back);
}

/* ---- the fixtures: what llama.cpp's tokenizer says ---- */

static void test_expected_cases(const tokenizer *t) {
    buffer text = { 0 };
    arena a = { 0 };
    error e = { 0 };
    json *cases = NULL;
    TEST("tokenizer.expect.json");
    CHECK(read_file("tests/fixtures/tokenizer.expect.json", &text));
    CHECK_MESSAGE(!json_parse(buffer_view(&text), &a, &cases, &e), "%s", e.why);
    CHECK(cases && cases->count == 162);
    for (const json *row = cases ? cases->first : NULL; row; row = row->next) {
        str input = json_string(json_get(row, "text"), "");
        bool special = json_is(json_get(row, "parse_special"), JSON_TRUE);
        int32_t want[512];
        size_t count = 0;
        TEST("expected %s%.60s", special ? "with specials: " : "", input.data);
        for (const json *id = json_get(row, "ids")->first; id && count < COUNT_OF(want); id = id->next) want[count++] = (int32_t)id->number;
        check_encode(t, input, special, want, count);
        check_round_trip(t, input);
    }
    arena_free(&a);
    buffer_free(&text);
}

static void test_prompts(const char *name) {
    char path[200];
    error e = { 0 };
    gguf *expect = NULL;
    TEST("prompts of %s", name);
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    loaded l = load(path);
    snprintf(path, sizeof path, "tests/fixtures/%s.expect.gguf", name);
    CHECK_MESSAGE(!gguf_open_file(path, &expect, &e), "%s", e.why);
    int prompts = 0;
    for (; l.t && expect; prompts++) {
        char key[40];
        str prompt;
        bool found = false;
        token_list got = { 0 };
        snprintf(key, sizeof key, "prompt.%d", prompts);
        CHECK(!gguf_get_str(expect, key, &prompt, &found, &e));
        if (!found) break;
        snprintf(key, sizeof key, "ids.%d", prompts);
        const gguf_tensor *ids = gguf_find_tensor(expect, key);
        token_list_add(&got, tokenizer_special(l.t, SPECIAL_BOS));
        CHECK(!tokenizer_encode(l.t, prompt, true, &got, &e));
        int32_t want[4096] = { 0 };
        CHECK(ids && ids->count <= COUNT_OF(want));
        if (ids) memcpy(want, gguf_tensor_data(expect, ids), (size_t)ids->count * sizeof *want);
        check_ids(&got, want, ids ? (size_t)ids->count : 0, prompt);
        token_list_free(&got);
    }
    CHECK(prompts > 0);
    gguf_free(expect);
    unload(&l);
}

static void test_knowledge(const tokenizer *t) {
    TEST("what is known about tokens");
    CHECK(tokenizer_size(t) == 640);
    CHECK(tokenizer_adds_bos(t));
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        int32_t id = tokenizer_special(t, (special_token)i);
        CHECK_MESSAGE(str_is(tokenizer_text(t, id), special_token_text[i]), "%s", special_token_text[i]);
    }
    static const special_token stops[] = { SPECIAL_EOS, SPECIAL_TURN_END, SPECIAL_TOOL_RESPONSE };
    static const special_token shown[] = { SPECIAL_CHANNEL, SPECIAL_CHANNEL_END, SPECIAL_TOOL_CALL, SPECIAL_TOOL_CALL_END,
                                           SPECIAL_TOOL_RESPONSE, SPECIAL_TOOL_RESPONSE_END, SPECIAL_QUOTE };
    size_t stop_count = 0, hidden_count = 0;
    for (int32_t id = 0; id < 640; id++) stop_count += tokenizer_is_stop(t, id), hidden_count += !tokenizer_is_visible(t, id);
    for (size_t i = 0; i < COUNT_OF(stops); i++) CHECK(tokenizer_is_stop(t, tokenizer_special(t, stops[i])));
    for (size_t i = 0; i < COUNT_OF(shown); i++) CHECK(tokenizer_is_visible(t, tokenizer_special(t, shown[i])));
    CHECK(stop_count == COUNT_OF(stops));
    CHECK(hidden_count == SPECIAL_COUNT - COUNT_OF(shown));
    CHECK(str_is(tokenizer_text(t, 392), " "));   /* ▁ */
    CHECK(str_is(tokenizer_text(t, 414), "the ")); /* the▁ */
    CHECK(str_equal(tokenizer_text(t, 24), (str){ "\0", 1 }));
    CHECK(str_is(tokenizer_text(t, 24 + 0xf0), "\xf0"));
    CHECK(!tokenizer_text(t, -1).length && !tokenizer_text(t, 640).length);
    CHECK(!tokenizer_is_visible(t, -1) && !tokenizer_is_stop(t, 640) && !tokenizer_is_suppressed(t, 1 << 30));
}

static void test_kinds_of_encoding(const tokenizer *t) {
    static const char text[] = "<|turn>a<|channel>b";
    token_list got = { 0 };
    error e = { 0 };
    TEST("user-defined tokens are always recognised, control tokens on request, none in plain text");
    check_encode(t, str_of(text), true, (int32_t[]){ 5, 345, 7, 346 }, 4);
    check_encode(t, str_of(text), false, (int32_t[]){ 308, 372, 364, 549, 358, 310, 345, 7, 346 }, 9);
    CHECK(!tokenizer_encode_plain(t, str_of(text), &got, &e));
    for (size_t i = 0; i < got.count; i++) CHECK(got.ids[i] > 23);
    token_list_free(&got);

    TEST("special tokens only inside the ranges, and ranges do not cut the text");
    static const char ranged[] = "<|turn>the <|turn>the ";
    CHECK(!tokenizer_encode_ranges(t, str_of(ranged), &(text_range){ 0, 9 }, 1, &got, &e));
    check_ids(&got, (int32_t[]){ 5, 414, 308, 372, 364, 549, 358, 310, 414 }, 9, str_of(ranged));
    token_list_free(&got);
    CHECK(tokenizer_encode_ranges(t, str_of("abc"), &(text_range){ 1, 4 }, 1, &got, &e) == GM_BAD_ARGUMENT);
    token_list_free(&got);
}

static void test_detokenizer(const tokenizer *t) {
    static const struct {
        const char *name;
        int         bytes[8]; /* as byte tokens; -1 ends; 1000 + id is that token */
        const char *want[9];  /* after each token, then at the end */
    } cases[] = {
        { "a character in pieces", { 0xe6, 0x9d, 0xb1, -1 }, { "", "", "東", "" } },
        { "four bytes", { 0xf0, 0x9f, 0x99, 0x82, -1 }, { "", "", "", "🙂", "" } },
        { "cut off at the end", { 0xf0, 0x9f, -1 }, { "", "", "��" } },
        { "interrupted by text", { 0xe6, 1345, 0xb1, -1 }, { "", "�a", "�", "" } },
        { "never a character", { 0xff, 0xc0, 0x41, -1 }, { "�", "�", "A", "" } },
        { "a surrogate", { 0xed, 0xa0, 0x80, -1 }, { "", "��", "�", "" } },
        { "hidden and visible specials", { 1002, 1007, 0x41, 1006, -1 }, { "", "<|channel>", "A", "", "" } },
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        detokenizer d = { 0 };
        size_t n = 0;
        TEST("detokenizer: %s", cases[c].name);
        for (; cases[c].bytes[n] >= 0; n++) {
            int32_t id = cases[c].bytes[n] >= 1000 ? cases[c].bytes[n] - 1000 : cases[c].bytes[n] + 24;
            str piece = detokenizer_add(&d, t, id);
            CHECK_MESSAGE(str_is(piece, cases[c].want[n]), "piece %zu is \"%.*s\"", n, STR_ARGS(piece));
        }
        str rest = detokenizer_end(&d);
        CHECK_MESSAGE(str_is(rest, cases[c].want[n]), "the end is \"%.*s\"", STR_ARGS(rest));
        detokenizer_free(&d);
    }
}

static void test_any_bytes(const tokenizer *t) {
    TEST("any bytes can be encoded, and their tokens stand for the same bytes");
    for (int round = 0; round < 400; round++) {
        static const unsigned char favourites[] = { 0xe2, 0x96, 0x80, 0xf0, 0xff, 0xc3, 0xa9, ' ', '\n', 'e', 0 };
        unsigned char bytes[40];
        size_t n = random_below(sizeof bytes);
        for (size_t i = 0; i < n; i++) bytes[i] = random_below(2) ? favourites[random_below(sizeof favourites)] : (unsigned char)random_below(256);
        token_list ids = { 0 };
        buffer back = { 0 };
        error e = { 0 };
        CHECK(!tokenizer_encode_plain(t, (str){ (char *)bytes, n }, &ids, &e));
        for (size_t i = 0; i < ids.count; i++) buffer_str(&back, tokenizer_text(t, ids.ids[i]));
        /* ▁ itself reads back as a space: the only thing that is lost */
        size_t length = 0;
        for (size_t i = 0; i < n; length++) {
            bool block = n - i >= 3 && !memcmp(bytes + i, "\xe2\x96\x81", 3);
            bytes[length] = block ? ' ' : bytes[i];
            i += block ? 3 : 1;
        }
        CHECK(str_equal(buffer_view(&back), (str){ (char *)bytes, length }));
        token_list_free(&ids);
        buffer_free(&back);
    }
}

/* ---- made-up vocabularies ---- */

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

static int32_t add_token(made_vocabulary *v, const char *text, int32_t type) {
    v->tokens[v->count] = (str){ arena_copy(&v->memory, str_of(text)), strlen(text) };
    v->types[v->count] = type;
    return (int32_t)v->count++;
}

static void add_merge(made_vocabulary *v, const char *text) {
    v->merges[v->merge_count++] = (str){ arena_copy(&v->memory, str_of(text)), strlen(text) };
}

static void start_vocabulary(made_vocabulary *v) {
    *v = (made_vocabulary){ .model = "gemma4", .architecture = "gemma4", .eos = -1, .eot = -1, .bos = -1 };
    add_token(v, "<bos>", 3);
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        add_token(v, text, 6);
    }
}

static bool append(void *user, const void *data, size_t length) {
    buffer_append(user, data, length);
    return true;
}

static void write_vocabulary(const made_vocabulary *v, buffer *out) {
    gguf_writer *w = NULL;
    error e = { 0 };
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
    CHECK_MESSAGE(!gguf_writer_head(w, append, out, &e) && !gguf_writer_end(w, &e), "%s", e.why);
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
static void spoil_no_space(made_vocabulary *v) { add_merge(v, "ab"); }
static void spoil_no_right(made_vocabulary *v) { add_merge(v, "a "); }
static void spoil_no_left(made_vocabulary *v) { add_merge(v, " a"); }
static void spoil_empty_merge(made_vocabulary *v) { add_merge(v, ""); }

static void test_refusals(void) {
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
        { "fewer types than tokens", spoil_type_count, GM_BAD_FILE, "tokenizer.ggml.token_type must have as many items as tokenizer.ggml.tokens, 257; found 256" },
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
        buffer bytes = { 0 };
        error e = { 0 };
        TEST("refused: %s", cases[i].name);
        start_vocabulary(v);
        add_merge(v, "a b");
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
static void test_flavours(void) {
    static const char text[] = "<|turn>a b<|channel><0x41></s>\xff<|\"|>";
    token_list first = { 0 };
    for (int flavour = 0; flavour < 3; flavour++) {
        static const char *const names[] = { "llama.cpp's", "Ollama's", "no token types" };
        made_vocabulary *v = malloc(sizeof *v);
        buffer bytes = { 0 };
        token_list got = { 0 };
        error e = { 0 };
        TEST("flavour: %s", names[flavour]);
        start_vocabulary(v);
        int32_t end = add_token(v, "<turn|>", 3), eos = add_token(v, "<eos>", 3), html = add_token(v, "</s>", 1);
        int32_t other = add_token(v, "over", 1), response = add_token(v, "<|tool_response>", 4);
        add_token(v, "<|turn>", 3), add_token(v, "<|channel>", 4), add_token(v, "<|\"|>", 4), add_token(v, "\xe2\x96\x81", 1);
        for (char c[2] = "a"; c[0] <= 'z'; c[0]++) add_token(v, c, 1);
        add_merge(v, "a b");
        v->eos_ids[0] = html, v->eos_ids[1] = eos, v->eos_id_count = 2;
        v->eot = other;
        if (flavour == 1) {
            v->model = "llama", v->pre = "gemma4", v->architecture = NULL;
            for (size_t i = 0; i < v->count; i++) v->types[i] = v->types[i] == 6 ? 1 : v->types[i] == 4 ? 3 : v->types[i];
        }
        v->no_types = flavour == 2;
        loaded l = make(v, &bytes, &e);
        CHECK_MESSAGE(l.t, "%s", e.why);
        if (l.t) {
            CHECK(tokenizer_is_stop(l.t, end) && tokenizer_is_stop(l.t, eos) && tokenizer_is_stop(l.t, other));
            CHECK(tokenizer_is_stop(l.t, response) && !tokenizer_is_stop(l.t, html));
            CHECK(tokenizer_is_visible(l.t, html) && tokenizer_is_visible(l.t, response) && !tokenizer_is_visible(l.t, end));
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

static size_t split_slowly(const made_vocabulary *v, const int32_t *order, size_t order_count, str text, bool control, fragment *out) {
    size_t count = 0;
    if (text.length) out[count++] = (fragment){ -1, 0, text.length };
    for (size_t k = 0; k < order_count; k++) {
        str special = v->tokens[order[k]];
        if (v->types[order[k]] == 3 && !control) continue;
        for (size_t i = 0; i < count; i++) {
            if (out[i].id >= 0) continue;
            size_t at = out[i].start;
            while (at + special.length <= out[i].end && memcmp(text.data + at, special.data, special.length)) at++;
            if (at + special.length > out[i].end) continue;
            fragment pieces[3] = { { -1, out[i].start, at }, { order[k], at, at + special.length }, { -1, at + special.length, out[i].end } };
            memmove(out + i + 3, out + i + 1, (count - i - 1) * sizeof *out);
            memcpy(out + i, pieces, sizeof pieces);
            count += 2;
            i += 1; /* goes on with the right-hand rest */
        }
    }
    return count;
}

static void test_specials_against_rule(void) {
    static const char *const specials[] = { "a", "ab", "ba", "aab", "aba", "bab", "abab", "bb", "caab", "ca", "bc", "cab", "abcab", "cc" };
    made_vocabulary *v = malloc(sizeof *v);
    fragment *fragments = malloc(4000 * sizeof *fragments);
    int32_t order[COUNT_OF(specials)];
    size_t n = COUNT_OF(specials);
    buffer bytes = { 0 };
    error e = { 0 };
    TEST("overlapping special tokens split like the rule applied one by one");
    start_vocabulary(v);
    for (size_t i = 0; i < n; i++) order[i] = add_token(v, specials[i], i % 3 ? 4 : 3);
    for (char c[2] = "d"; c[0] <= 'f'; c[0]++) add_token(v, c, 1);
    add_merge(v, "d e");
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
        char text[200];
        size_t length = random_below(round < 2000 ? 20 : sizeof text), letters = 2 + random_below(3);
        for (size_t i = 0; i < length; i++) text[i] = "abcd"[random_below((uint32_t)letters)];
        bool control = random_below(2);
        size_t count = split_slowly(v, order, n, (str){ text, length }, control, fragments);
        int32_t want[200];
        size_t wanted = 0;
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
                if (memcmp(merge.data, left.data, left.length) || memcmp(merge.data + left.length + 1, right.data, right.length)) continue;
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
        str parts[120];
        buffer bytes = { 0 };
        error e = { 0 };
        start_vocabulary(v);
        /* a, b and 東 are tokens, c and é are known to merges only; half of the results are tokens */
        add_token(v, "a", 1), add_token(v, "b", 1), add_token(v, "東", 1);
        char made[40][64];
        size_t made_count = 0;
        for (; made_count < COUNT_OF(letters); made_count++) snprintf(made[made_count], sizeof made[0], "%s", letters[made_count]);
        for (int i = 0; i < 30; i++) {
            const char *left = made[random_below((uint32_t)made_count)], *right = made[random_below((uint32_t)made_count)];
            char merge[130], result[130];
            snprintf(merge, sizeof merge, "%s %s", left, right);
            snprintf(result, sizeof result, "%s%s", left, right);
            if (strlen(result) >= 60) continue;
            add_merge(v, merge);
            if (random_below(2)) add_token(v, result, 1);
            if (made_count < COUNT_OF(made)) strcpy(made[made_count++], result);
        }
        loaded l = make(v, &bytes, &e);
        CHECK_MESSAGE(l.t, "%s", e.why);
        for (int k = 0; l.t && k < 40; k++) {
            char text[400];
            size_t length = 0;
            int32_t want[400];
            size_t wanted = 0;
            for (uint32_t n = random_below(80); n; n--) {
                const char *letter = letters[random_below(COUNT_OF(letters))];
                memcpy(text + length, letter, strlen(letter));
                length += strlen(letter);
            }
            size_t count = merge_slowly(v, (str){ text, length }, parts);
            for (size_t i = 0; i < count; i++) {
                size_t id = 0;
                while (id < v->count && !str_equal(v->tokens[id], parts[i])) id++;
                if (id < v->count) want[wanted++] = (int32_t)id;
                for (size_t j = 0; id == v->count && j < parts[i].length; j++) want[wanted++] = 1 + (unsigned char)parts[i].data[j];
            }
            check_encode(l.t, (str){ text, length }, true, want, wanted);
        }
        unload(&l);
        buffer_free(&bytes);
        arena_free(&v->memory);
        free(v);
    }
}

/* ---- real size ---- */

static void test_vectors(const tokenizer *t) {
    static const struct {
        const char *text;
        int32_t     ids[40]; /* 0 ends */
    } cases[] = {
        { "Hello world", { 9259, 1902 } },
        { " Hello world", { 26352, 1902 } },
        { "Hello World", { 9259, 4109 } },
        { " Hello World!", { 26352, 4109, 236888 } },
        { "Hello, world!", { 9259, 236764, 1902, 236888 } },
        { "ied 4 ½ months", { 1178, 236743, 236812, 47041, 3794 } },
        { "Äpfel", { 239122, 22744, 535 } },
        { "", { 0 } },
        { " ", { 236743 } },
        { "  ", { 138 } },
        { "   ", { 139 } },
        { "\t", { 255968 } },
        { "\n", { 107 } },
        { "\n\n", { 108 } },
        { "\n\n\n", { 109 } },
        { "\t\n", { 255968, 107 } },
        { " this is 🦙.cpp", { 672, 563, 236743, 478, 397, 404, 391, 236761, 12362 } },
        { "w048 7tuijk dsdfhu", { 236765, 236771, 236812, 236828, 236743, 236832, 11372, 12065, 31806, 3405, 9360 } },
        { "нещо на Български", { 1337, 12515, 1333, 4632, 165543, 3830 } },
        { "  Hello", { 138, 9259 } },
        { "    Hello\n    Hello", { 140, 9259, 107, 140, 9259 } },
        { " (", { 568 } },
        { "\n =", { 107, 578 } },
        { "' era", { 236789, 6933 } },
        { "!!!!!!", { 123947 } },
        { "3333", { 236800, 236800, 236800, 236800 } },
        { "Cửa Việt", { 236780, 29719, 33154 } },
        { " discards", { 2243, 2206 } },
        { "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
          { 9259, 236764, 570, 236789, 712, 236888, 2088, 659, 611, 170124, 2360, 62133, 237075, 17641, 11700, 236770, 236800, 236770,
            236812, 236770, 236810, 236770, 237471, 238352 } },
        { "<|turn>user\nHello<turn|>\n", { 105, 2364, 107, 9259, 106, 107 } },
        { "<unused17>", { 23 } },
        { "<unused1", { 236820, 63634, 236770 } },
        { "</s>", { 954, 236751, 236813 } },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t count = 0;
        TEST("vector \"%s\"", cases[i].text);
        while (cases[i].ids[count]) count++;
        check_encode(t, str_of(cases[i].text), true, cases[i].ids, count);
        check_round_trip(t, str_of(cases[i].text));
    }
    TEST("what is known about tokens of the large vocabulary");
    CHECK(tokenizer_size(t) == 262144);
    CHECK(!tokenizer_is_stop(t, 212) && tokenizer_is_visible(t, 212) && str_is(tokenizer_text(t, 212), "</s>"));
    CHECK(tokenizer_is_stop(t, 1) && tokenizer_is_stop(t, 50) && tokenizer_is_stop(t, 106) && !tokenizer_is_stop(t, 0));
    CHECK(str_is(tokenizer_text(t, 1902), " world"));
    for (int32_t id = 238; id < 494; id++) CHECK(str_equal(tokenizer_text(t, id), (str){ &(char){ (char)(id - 238) }, 1 }));
}

/* Words of many lengths, punctuation, lines: English to a tokenizer. */
static void write_english(buffer *out, size_t length) {
    static const char *const words[] = { "the", "quick", "representation", "of", "a", "model", "is", "understanding", "language", "and", "its",
                                         "weights", "are", "stored", "in", "blocks", "however", "we", "measured", "international", "I", "don't",
                                         "New", "York", "2026", "tokenizers", "unbelievably", "to", "be", "or", "not" };
    static const char *const ends[] = { " ", " ", " ", " ", " ", ", ", ". ", ".\n", "! ", "; ", "?\n\n", " - ", " (", ") " };
    while (out->length < length) {
        buffer_text(out, words[random_below(COUNT_OF(words))]);
        buffer_text(out, ends[random_below(COUNT_OF(ends))]);
    }
}

static void test_speed(const tokenizer *t) {
    static const struct {
        const char *name, *unit;
    } cases[] = { { "English", NULL }, { "one letter", "a" }, { "newlines", "\n" }, { "brackets", "<" }, { "unfinished specials", "<unused12" }, { "special tokens", "<|turn>" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buffer text = { 0 }, back = { 0 };
        token_list ids = { 0 };
        error e = { 0 };
        TEST("1 MB of %s", cases[i].name);
        if (!cases[i].unit) write_english(&text, 1000000);
        while (text.length < 1000000) buffer_text(&text, cases[i].unit);
        double start = clock_seconds();
        CHECK(!tokenizer_encode(t, buffer_view(&text), true, &ids, &e));
        double middle = clock_seconds();
        if (i == 5) for (size_t k = 0; k < ids.count; k++) buffer_str(&back, tokenizer_text(t, ids.ids[k]));
        else decode(t, ids.ids, ids.count, &back);
        printf("1 MB of %s: %zu tokens in %.0f ms, back in %.0f ms\n", cases[i].name, ids.count, (middle - start) * 1e3,
               (clock_seconds() - middle) * 1e3);
        CHECK(str_equal(buffer_view(&back), buffer_view(&text)));
        buffer_free(&text);
        buffer_free(&back);
        token_list_free(&ids);
    }
}

static void test_large(const char *path) {
    loaded l = { 0 };
    error e = { 0 };
    TEST("a vocabulary of real size loads");
    CHECK_MESSAGE(!gguf_open_file(path, &l.file, &e), "%s", e.why);
    double start = clock_seconds();
    if (l.file) CHECK_MESSAGE(!tokenizer_new(l.file, &l.t, &e), "%s", e.why);
    printf("vocabulary of real size: ready in %.0f ms\n", (clock_seconds() - start) * 1e3);
    if (l.t) {
        test_vectors(l.t);
        test_speed(l.t);
    }
    unload(&l);
}

int main(int argc, char **argv) {
    TEST("the small vocabulary loads");
    loaded l = load("tests/fixtures/tiny-dense.gguf");
    if (l.t) {
        test_expected_cases(l.t);
        test_knowledge(l.t);
        test_kinds_of_encoding(l.t);
        test_detokenizer(l.t);
        test_any_bytes(l.t);
    }
    unload(&l);
    test_prompts("tiny-dense");
    test_prompts("tiny-moe");
    test_refusals();
    test_flavours();
    test_specials_against_rule();
    test_merges_against_rule();
    if (argc > 1) test_large(argv[1]);
    return test_end();
}
