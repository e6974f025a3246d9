/* Reads texts with holes, as a canvas begins, and refuses those that are none. */

#include "test.h"

#include "text/canvas_text.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 100 };

static tokenizer *words;

/* A hole is _ for each token, and text to start from is {text}. */
static void describe(const canvas_start *starts, size_t count, buffer *out) {
    for (size_t i = 0; i < count; i++) {
        const bool start = starts[i].id != CANVAS_HOLE && !starts[i].pinned;
        if (starts[i].id == CANVAS_HOLE) {
            buffer_char(out, '_');
            continue;
        }
        detokenizer d = { 0 };
        str         text = { 0 };
        const bool  first = start && (!i || starts[i - 1].pinned || starts[i - 1].id == CANVAS_HOLE);
        const bool  last = start && (i + 1 == count || starts[i + 1].pinned || starts[i + 1].id == CANVAS_HOLE);
        CHECK(!detokenizer_add(&d, words, starts[i].id, &text, NULL));
        if (first) buffer_char(out, '{');
        buffer_str(out, text);
        if (last) buffer_char(out, '}');
        detokenizer_free(&d);
    }
    buffer_text(out, "");
}

static const struct {
    const char *text, *means;
} good[] = {
    { "", "" },
    { "ab c", "ab c" },
    { "The [[3]] is", "The ___ is" },
    { "a[[=red]]b", "a{red}b" },
    { "[[=]]", "" },
    { "[[[[]]", "[[" },
    { "[[[[]][[[2]]]", "[[[__]" },
    { "x[[[=i]]]", "x[{i}]" },
    { "a]] b", "a]] b" },
    { "[[=a[0] b]]", "{a[0] b}" },
    { "[[=a[[b]]", "{a[[b}" },
    { "[[=a[b[0\\]\\]]]", "{a[b[0]]}" },
    { "[[=a]\\] = 1]]", "{a]] = 1}" },
    { "[[=a\\n\\\\]]", "{a\\n\\}" },
    { "[[=\\\\\\]]]", "{\\]}" },
    { "a\\]\\\\", "a\\]\\\\" },
};

static void test_texts_with_holes(void) {
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        canvas_start *starts = NULL;
        size_t        count = 0;
        error         e = { 0 };
        buffer        means = { 0 };
        TEST("the canvas %s", good[i].text);
        CHECK_MESSAGE(!canvas_text_read(words, str_of(good[i].text), MOST, &starts, &count, &e), "%s", e.why);
        CHECK_MESSAGE(!canvas_text_check(str_of(good[i].text), &e), "%s", e.why);
        describe(starts, count, &means);
        CHECK_MESSAGE(!strcmp(means.data, good[i].means), "%s, expected %s", means.data, good[i].means);
        buffer_free(&means);
        free(starts);
    }
}

static const struct {
    const char *text, *complaint;
    bool        form; /* wrong for every model */
} bad[] = {
    { "a [[12", "byte 2 of the canvas has no ]]", true },
    { "a [[=12", "byte 2 of the canvas has no ]]", true },
    { "[[=a\\]]", "has no ]]", true },
    { "a [[x]]", "neither a hole", true },
    { "a [[]]", "neither a hole", true },
    { "[[0]]", "neither a hole", true },
    { "[[1\\]]]", "neither a hole", true },
    { "[[999999999999999999999999]]", "more than 100 tokens", false },
    { "[[90]][[90]]", "more than 100 tokens", false },
};

static void test_refused_texts(void) {
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        canvas_start *starts = NULL;
        size_t        count = 0;
        error         e = { 0 }, form = { 0 };
        TEST("the canvas %s", bad[i].text);
        CHECK(canvas_text_read(words, str_of(bad[i].text), MOST, &starts, &count, &e) == GM_BAD_ARGUMENT);
        CHECK_MESSAGE(strstr(e.why, bad[i].complaint), "%s", e.why);
        CHECK(!starts);
        CHECK(canvas_text_check(str_of(bad[i].text), &form) == (bad[i].form ? GM_BAD_ARGUMENT : GM_OK));
        CHECK_MESSAGE(!strcmp(form.why, bad[i].form ? e.why : ""), "%s", form.why);
    }
}

int main(void) {
    gguf *file = NULL;
    error e = { 0 };
    TEST("the vocabulary");
    CHECK_MESSAGE(!gguf_open_file("tests/fixtures/tiny-diffusion.gguf", &file, &e), "%s", e.why);
    CHECK_MESSAGE(file && !tokenizer_new(file, &words, &e), "%s", e.why);
    if (words) {
        test_texts_with_holes();
        test_refused_texts();
    }
    tokenizer_free(words);
    gguf_free(file);
    return test_end();
}
