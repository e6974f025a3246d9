/* Fuzzes how a canvas begins: a text with holes is refused with a reason, or every position is a hole, or a token of the vocabulary; and
 * text without brackets is pinned as it is.
 *
 * Runs with the repository's root as working directory. */

#include "fuzz.h"

#include "text/canvas_text.h"

#include <string.h>

enum { CANVAS_MOST = 300 };

static tokenizer *canvas_words;

static void canvas_load_words(void) {
    static gguf *file;
    error        e = { 0 };
    if (!gguf_open_file("tests/fixtures/tiny-diffusion.gguf", &file, &e) && !tokenizer_new(file, &canvas_words, &e))
        return;
    fprintf(stderr, "%s\n", e.why);
    exit(1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const str     text = { (const char *)data, size };
    canvas_start *starts = NULL;
    size_t        count = 0;
    bool          plain = true;
    error         e = { 0 };
    if (!canvas_words) canvas_load_words();
    const gm_status status = canvas_text_read(canvas_words, text, CANVAS_MOST, &starts, &count, &e);
    REQUIRE(status == GM_OK || (status == GM_BAD_ARGUMENT && e.why[0] && !starts && !count));
    REQUIRE(count <= CANVAS_MOST);
    REQUIRE(status || !canvas_text_check(text, &e));
    for (size_t i = 0; i + 1 < size; i++) plain = plain && !(data[i] == '[' && data[i + 1] == '[');
    for (size_t i = 0; i < count; i++) {
        REQUIRE(starts[i].id == CANVAS_HOLE || (size_t)starts[i].id < tokenizer_size(canvas_words));
        REQUIRE(starts[i].id != CANVAS_HOLE || !starts[i].pinned);
        REQUIRE(!plain || starts[i].pinned);
    }
    free(starts);
    return 0;
}
