/* Compares the tokenizer with llama.cpp's on a small vocabulary and, given a vocabulary of real size (made by
 * node tests/vocabulary.mjs build/vocabulary.gguf), with published vectors; prints its speed.
 *
 *     test_tokenizer [build/vocabulary.gguf] */

#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer_tools.h"

#include <stdlib.h>

/* ---- helpers ---- */

static void decode(const tokenizer *t, const int32_t *ids, size_t count, buffer *out) {
    detokenizer d = { 0 };
    for (size_t i = 0; i < count; i++) {
        str piece;
        CHECK(!detokenizer_add(&d, t, ids[i], &piece, NULL) && utf8_valid(piece));
        buffer_str(out, piece);
    }
    str rest;
    CHECK(!detokenizer_end(&d, &rest, NULL));
    buffer_str(out, rest);
    detokenizer_free(&d);
}

static void check_round_trip(const tokenizer *t, str text) {
    token_list ids = { 0 };
    buffer     back = { 0 };
    error      e = { 0 };
    CHECK(!tokenizer_encode_plain(t, text, &ids, &e));
    decode(t, ids.ids, ids.count, &back);
    CHECK_MESSAGE(str_equal(buffer_view(&back), text), "\"%.*s\" came back as \"%.*s\"", STR_ARGS(text),
                  STR_ARGS(buffer_view(&back)));
    token_list_free(&ids);
    buffer_free(&back);
}

/* ---- the fixtures: what llama.cpp's tokenizer says ---- */

static void test_expected_cases(const tokenizer *t) {
    source *file = NULL;
    arena   a = { 0 };
    error   e = { 0 };
    json   *cases = NULL;
    TEST("tokenizer.expect.json");
    if (!source_file("tests/fixtures/tokenizer.expect.json", &file, &e)) {
        str text = { (const char *)source_bytes(file, 0, source_length(file)), (size_t)source_length(file) };
        json_parse(text, &a, &cases, &e);
    }
    CHECK_MESSAGE(cases, "%s", e.why);
    CHECK(cases && cases->count == 162);
    for (const json *row = cases ? cases->first : NULL; row; row = row->next) {
        str     input = json_string(json_get(row, "text"), "");
        bool    special = json_is(json_get(row, "parse_special"), JSON_TRUE);
        int32_t want[512];
        size_t  count = 0;
        TEST("expected %s%.60s", special ? "with specials: " : "", input.data);
        for (const json *id = json_get(row, "ids")->first; id && count < COUNT_OF(want); id = id->next)
            want[count++] = (int32_t)id->number;
        check_encode(t, input, special, want, count);
        check_round_trip(t, input);
    }
    arena_free(&a);
    source_free(file);
}

static void test_tokenizer_prompts(const char *name) {
    char  path[200];
    error e = { 0 };
    gguf *expect = NULL;
    TEST("prompts of %s", name);
    snprintf(path, sizeof path, "tests/fixtures/%s.gguf", name);
    loaded l = load(path);
    snprintf(path, sizeof path, "tests/fixtures/%s.expect.gguf", name);
    CHECK_MESSAGE(!gguf_open_file(path, &expect, &e), "%s", e.why);
    int prompts = 0;
    for (; l.t && expect; prompts++) {
        char       key[40];
        str        prompt;
        bool       found = false;
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
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        int32_t id = tokenizer_special(t, (special_token)i);
        CHECK_MESSAGE(str_is(tokenizer_text(t, id), special_token_text[i]), "%s", special_token_text[i]);
    }
    static const special_token stops[] = { SPECIAL_EOS, SPECIAL_TURN_END, SPECIAL_TOOL_RESPONSE };
    static const special_token shown[] = { SPECIAL_CHANNEL,       SPECIAL_CHANNEL_END,   SPECIAL_TOOL_CALL,
                                           SPECIAL_TOOL_CALL_END, SPECIAL_TOOL_RESPONSE, SPECIAL_TOOL_RESPONSE_END,
                                           SPECIAL_QUOTE };
    size_t                     stop_count = 0, hidden_count = 0;
    for (int32_t id = 0; id < 640; id++)
        stop_count += tokenizer_is_stop(t, id), hidden_count += !tokenizer_is_visible(t, id);
    for (size_t i = 0; i < COUNT_OF(stops); i++) CHECK(tokenizer_is_stop(t, tokenizer_special(t, stops[i])));
    for (size_t i = 0; i < COUNT_OF(shown); i++) CHECK(tokenizer_is_visible(t, tokenizer_special(t, shown[i])));
    CHECK(stop_count == COUNT_OF(stops));
    CHECK(hidden_count == SPECIAL_COUNT - COUNT_OF(shown));
    CHECK(str_is(tokenizer_text(t, 392), " "));    /* ▁ */
    CHECK(str_is(tokenizer_text(t, 414), "the ")); /* the▁ */
    CHECK(str_equal(tokenizer_text(t, 24), (str){ "\0", 1 }));
    CHECK(str_is(tokenizer_text(t, 24 + 0xf0), "\xf0"));
    CHECK(!tokenizer_text(t, -1).length && !tokenizer_text(t, 640).length);
    CHECK(!tokenizer_is_visible(t, -1) && !tokenizer_is_stop(t, 640) && !tokenizer_is_suppressed(t, 1 << 30));
}

static void test_kinds_of_encoding(const tokenizer *t) {
    static const char text[] = "<|turn>a<|channel>b";
    token_list        got = { 0 };
    error             e = { 0 };
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
        size_t      n = 0;
        TEST("detokenizer: %s", cases[c].name);
        for (; cases[c].bytes[n] >= 0; n++) {
            int32_t id = cases[c].bytes[n] >= 1000 ? cases[c].bytes[n] - 1000 : cases[c].bytes[n] + 24;
            str     piece;
            CHECK(!detokenizer_add(&d, t, id, &piece, NULL));
            CHECK_MESSAGE(str_is(piece, cases[c].want[n]), "piece %zu is \"%.*s\"", n, STR_ARGS(piece));
        }
        str rest;
        CHECK(!detokenizer_end(&d, &rest, NULL));
        CHECK_MESSAGE(str_is(rest, cases[c].want[n]), "the end is \"%.*s\"", STR_ARGS(rest));
        detokenizer_free(&d);
    }
}

static void test_any_bytes(const tokenizer *t) {
    TEST("any bytes can be encoded, and their tokens stand for the same bytes");
    for (int round = 0; round < 400; round++) {
        static const unsigned char favourites[] = { 0xe2, 0x96, 0x80, 0xf0, 0xff, 0xc3, 0xa9, ' ', '\n', 'e', 0 };
        unsigned char              bytes[40];
        size_t                     n = random_below(sizeof bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = random_below(2) ? favourites[random_below(sizeof favourites)] : (unsigned char)random_below(256);
        token_list ids = { 0 };
        buffer     back = { 0 };
        error      e = { 0 };
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
          { 9259,   236764, 570,   236789, 712,    236888, 2088,   659,    611,    170124, 2360,   62133,
            237075, 17641,  11700, 236770, 236800, 236770, 236812, 236770, 236810, 236770, 237471, 238352 } },
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
    for (int32_t id = 238; id < 494; id++)
        CHECK(str_equal(tokenizer_text(t, id), (str){ &(char){ (char)(id - 238) }, 1 }));
}

/* Words of many lengths, punctuation, lines: English to a tokenizer. */
static void write_english(buffer *out, size_t length) {
    static const char *const words[] = { "the",
                                         "quick",
                                         "representation",
                                         "of",
                                         "a",
                                         "model",
                                         "is",
                                         "understanding",
                                         "language",
                                         "and",
                                         "its",
                                         "weights",
                                         "are",
                                         "stored",
                                         "in",
                                         "blocks",
                                         "however",
                                         "we",
                                         "measured",
                                         "international",
                                         "I",
                                         "don't",
                                         "New",
                                         "York",
                                         "2026",
                                         "tokenizers",
                                         "unbelievably",
                                         "to",
                                         "be",
                                         "or",
                                         "not" };
    static const char *const ends[] = { " ",   " ",  " ",  " ",     " ",   ", ", ". ",
                                        ".\n", "! ", "; ", "?\n\n", " - ", " (", ") " };
    while (out->length < length) {
        buffer_text(out, words[random_below(COUNT_OF(words))]);
        buffer_text(out, ends[random_below(COUNT_OF(ends))]);
    }
}

static void test_speed(const tokenizer *t) {
    static const struct {
        const char *name, *unit;
    } cases[] = { { "English", NULL },
                  { "one letter", "a" },
                  { "newlines", "\n" },
                  { "brackets", "<" },
                  { "unfinished specials", "<unused12" },
                  { "special tokens", "<|turn>" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buffer     text = { 0 }, back = { 0 };
        token_list ids = { 0 };
        error      e = { 0 };
        TEST("1 MB of %s", cases[i].name);
        if (!cases[i].unit) write_english(&text, 1000000);
        while (text.length < 1000000) buffer_text(&text, cases[i].unit);
        double start = clock_seconds();
        CHECK(!tokenizer_encode(t, buffer_view(&text), true, &ids, &e));
        double middle = clock_seconds();
        if (i == 5)
            for (size_t k = 0; k < ids.count; k++) buffer_str(&back, tokenizer_text(t, ids.ids[k]));
        else decode(t, ids.ids, ids.count, &back);
        printf("1 MB of %s: %zu tokens in %.0f ms, back in %.0f ms\n", cases[i].name, ids.count, (middle - start) * 1e3,
               (clock_seconds() - middle) * 1e3);
        CHECK(str_equal(buffer_view(&back), buffer_view(&text)));
        buffer_free(&text);
        buffer_free(&back);
        token_list_free(&ids);
    }
}

static void test_large_text(const char *path) {
    loaded l = { 0 };
    error  e = { 0 };
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
    test_tokenizer_prompts("tiny-dense");
    test_tokenizer_prompts("tiny-moe");
    if (argc > 1) test_large_text(argv[1]);
    return test_end();
}
