/* Fuzzes the GGUF reader, whole and in pieces, which must agree. Reads every byte of a file that opens. */

#include "gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

static volatile uint64_t seen;

static void read_everything(const gguf *g) {
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_value_count(g); i++) {
        const gguf_value *v = gguf_value_at(g, i);
        const uint8_t    *cursor = v->data;
        for (size_t k = 0; k < v->key.length; k++) sum += (uint8_t)v->key.data[k];
        for (uint64_t k = 0; k < v->count; k++) {
            int64_t integer = 0;
            double  number = 0;
            if (v->type == GGUF_STRING) {
                str s = gguf_next_string(&cursor);
                for (size_t n = 0; n < s.length; n++) sum += (uint8_t)s.data[n];
            } else if (gguf_item_integer(v, k, &integer)) {
                sum += (uint64_t)integer;
            } else if (gguf_item_float(v, k, &number)) {
                sum += number > 0;
            }
        }
        if (v->type == GGUF_STRING && cursor != v->data + v->bytes) abort();
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t     *data = gguf_tensor_data(g, t);
        if (!data) continue;
        for (uint64_t k = 0; k < t->bytes; k++) sum += data[k];
        if (!t->format->dequantise) continue;
        float block[256];
        t->format->dequantise(block, data, 1);
    }
    seen = sum;
}

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

static gm_status read_in_pieces(const uint8_t *data, size_t size, uint64_t piece) {
    source  *s = NULL;
    gguf    *g = NULL;
    uint64_t offset, length;
    if (source_pieces(size, &s, NULL)) return GM_NO_MEMORY;
    source_set_piece(s, piece);
    if (gguf_new(s, &g, NULL)) return GM_NO_MEMORY;
    gm_status status;
    while ((status = gguf_step(g, NULL)) == GM_AGAIN) {
        if (!source_wanted(s, &offset, &length) || length > piece) abort();
        if (source_give(s, offset, data + offset, length, NULL)) abort();
    }
    if (status == GM_OK) read_everything(g);
    gguf_free(g);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    source *s = NULL;
    gguf   *g = NULL;
    error   e = { 0 };
    if (source_memory(data, size, &s, &e) || gguf_new(s, &g, &e)) return 0;
    gm_status status = gguf_step(g, &e);
    if (status == GM_OK) {
        read_everything(g);
        get_all(g);
    } else if (!e.why[0]) {
        abort(); /* an error without a message */
    }
    gguf_free(g);
    if (read_in_pieces(data, size, 1 + size % 61) != status) abort();
    return 0;
}
