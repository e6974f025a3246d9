/* Fuzzes the GGUF reader, whole and in pieces, which must agree. Reads every byte of a file that opens. */

#include "fuzz.h"
#include "../tests/read_gguf.h"

#include <string.h>

/* Asks for each metadata key as every type; most must be refused, none may crash. */
static void get_all(const gguf *g) {
    for (size_t i = 0; i < gguf_value_count(g) && i < 8; i++) {
        str  key = gguf_value_at(g, i)->key;
        char name[64] = { 0 };
        memcpy(name, key.data, min_size(key.length, sizeof name - 1));
        uint32_t u32, u32s[3];
        uint64_t u64;
        float    f32;
        bool     flag, found, flags[3];
        str      text;
        error    e = { 0 };
        gguf_get_u32(g, name, &u32, &found, &e);
        gguf_get_u64(g, name, &u64, NULL, &e);
        gguf_get_f32(g, name, &f32, &found, &e);
        gguf_get_bool(g, name, &flag, &found, &e);
        gguf_get_str(g, name, &text, &found, &e);
        gguf_get_u32s(g, name, u32s, 3, &found, &e);
        gguf_get_bools(g, name, flags, 3, &found, &e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    source *s = NULL;
    gguf   *g = NULL;
    error   e = { 0 };
    if (source_memory(data, size, &s, &e) || gguf_new(s, &g, &e)) return 0;
    const gm_status status = gguf_step(g, &e);
    if (status == GM_OK) {
        read_gguf(g);
        get_all(g);
    } else {
        REQUIRE(e.why[0]);
    }
    gguf_free(g);
    REQUIRE(read_gguf_in_pieces(data, size, 1 + size % 61, NULL) == status);
    return 0;
}
