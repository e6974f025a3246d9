/* Fuzzes the tokenizer in one of two ways, chosen by the first byte:
 *  - The rest is a text for the small vocabulary of the fixtures. In every mode, its tokens must be valid and decode to the same
 *    bytes (except that ▁ decodes to a space).
 *  - The rest edits the tokenizer's metadata of that file. The tokenizer must refuse it with a reason, or load and encode.
 *
 * Runs with the repository's root as working directory. */

#include "fuzz.h"

#include "text/tokenizer.h"

#include <string.h>

static const char model_path[] = "tests/fixtures/tiny-dense.gguf";

static gguf      *file;
static tokenizer *vocabulary;
static buffer     head; /* the file's metadata alone, as a GGUF without tensors */

/* A file with only the tokenizer's metadata, so that random edits hit it. */
static void fuzz_write_head(void) {
    static const char *const lists[] = { "tokenizer.ggml.tokens", "tokenizer.ggml.merges" };
    gguf_writer             *w = NULL;
    error                    e = { 0 };
    REQUIRE(!gguf_writer_new(&w, &e));
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const gguf_value *value = gguf_find(file, lists[i]);
        str              *items = value ? calloc((size_t)value->count, sizeof *items) : NULL;
        REQUIRE(items);
        const uint8_t *cursor = value->data;
        for (uint64_t k = 0; k < value->count; k++) items[k] = gguf_next_string(&cursor);
        gguf_write_strings(w, lists[i], items, value->count);
        free(items);
    }
    const gguf_value *types = gguf_find(file, "tokenizer.ggml.token_type");
    REQUIRE(types);
    gguf_write_array(w, "tokenizer.ggml.token_type", types->type, types->data, types->count);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 2);
    gguf_write_array(w, "tokenizer.ggml.suppress_tokens", GGUF_I32, (int32_t[]){ 18, 21 }, 2);
    REQUIRE(!gguf_writer_head(w, buffer_sink, &head, &e) && !gguf_writer_end(w, &e));
    gguf_writer_free(w);
}

static void load_tokenizer(void) {
    error e = { 0 };
    if (gguf_open_file(model_path, &file, &e) || tokenizer_new(file, &vocabulary, &e)) {
        fprintf(stderr, "%s\n", e.why);
        exit(1);
    }
    fuzz_write_head();
}

static void check_encoding(const tokenizer *t, str text, int mode, token_list *out) {
    error     e = { 0 };
    gm_status status =
        mode == 0 ? tokenizer_encode_plain(t, text, out, &e) : tokenizer_encode(t, text, mode == 1, out, &e);
    REQUIRE(!status && !out->failed);
    for (size_t i = 0; i < out->count; i++) REQUIRE(out->ids[i] >= 0 && (size_t)out->ids[i] < tokenizer_size(t));
}

static void fuzz_text(str text, int mode) {
    token_list  ids = { 0 };
    buffer      back = { 0 }, want = { 0 };
    detokenizer d = { 0 };
    check_encoding(vocabulary, text, mode, &ids);
    for (size_t i = 0; i < ids.count; i++) {
        buffer_str(&back, tokenizer_text(vocabulary, ids.ids[i]));
        str piece;
        detokenizer_add(&d, vocabulary, ids.ids[i], &piece, NULL);
    }
    str rest;
    detokenizer_end(&d, &rest, NULL);
    for (size_t i = 0; i < text.length;) {
        bool block = text.length - i >= 3 && !memcmp(text.data + i, "\xe2\x96\x81", 3);
        buffer_char(&want, block ? ' ' : text.data[i]);
        i += block ? 3 : 1;
    }
    REQUIRE(str_equal(buffer_view(&back), buffer_view(&want)));
    token_list_free(&ids);
    buffer_free(&back);
    buffer_free(&want);
    detokenizer_free(&d);
}

/* Edits: an offset (two bytes), a length, and that many bytes to write there. */
static void fuzz_metadata(const uint8_t *data, size_t size) {
    buffer     edited = { 0 };
    gguf      *g = NULL;
    tokenizer *t = NULL;
    error      e = { 0 };
    buffer_str(&edited, buffer_view(&head));
    while (size > 3 && edited.length) {
        size_t at = ((size_t)data[0] << 8 | data[1]) % edited.length, n = min_size(data[2] % 16, size - 3);
        n = min_size(n, edited.length - at);
        memcpy(edited.data + at, data + 3, n);
        data += 3 + n;
        size -= 3 + n;
    }
    if (!gguf_open_memory(edited.data, edited.length, &g, &e)) {
        gm_status status = tokenizer_new(g, &t, &e);
        REQUIRE(!status == !!t && (t || e.why[0]));
    }
    if (t) {
        token_list ids = { 0 };
        check_encoding(t, str_of("<|turn>user\nthe weights of the <|channel> é東 \xff model<turn|>"), 1, &ids);
        for (size_t i = 0; i < ids.count; i++) tokenizer_text(t, ids.ids[i]);
        token_list_free(&ids);
    }
    tokenizer_free(t);
    gguf_free(g);
    buffer_free(&edited);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!vocabulary) load_tokenizer();
    if (!size) return 0;
    if (data[0] % 4 < 3) fuzz_text((str){ (const char *)data + 1, size - 1 }, data[0] % 4);
    else fuzz_metadata(data + 1, size - 1);
    return 0;
}
