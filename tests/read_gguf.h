/* Reads everything in a GGUF, so that a sanitizer notices every access beyond it. */

#ifndef GM_READ_GGUF_H
#define GM_READ_GGUF_H

#include "gguf/gguf.h"

#include <stdlib.h>

static volatile uint64_t read_gguf_sum; /* keeps the compiler from leaving the reads out */

static inline uint64_t read_gguf_value(const gguf_value *v) {
    const uint8_t *cursor = v->data;
    uint64_t       sum = 0;
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
    if (v->type == GGUF_STRING && cursor != v->data + v->bytes) abort(); /* strings fill their value exactly */
    return sum;
}

/* Its metadata, its tensors, and one block of each tensor as floats. */
static inline void read_gguf(const gguf *g) {
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_value_count(g); i++) sum += read_gguf_value(gguf_value_at(g, i));
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t     *data = gguf_tensor_data(g, t);
        float              block[256];
        if (!data) continue;
        for (uint64_t k = 0; k < t->bytes; k++) sum += data[k];
        if (t->format->dequantise) t->format->dequantise(block, data, 1);
    }
    read_gguf_sum = sum;
}

/* Opens and reads a file that arrives in pieces. GM_AGAIN: it waits for nothing, or for more than a piece. */
static inline gm_status read_gguf_in_pieces(const void *data, size_t size, uint64_t piece, error *e) {
    source   *s = NULL;
    gguf     *g = NULL;
    uint64_t  offset, length;
    gm_status status = source_pieces(size, &s, e);
    if (status) return status;
    source_set_piece(s, piece);
    if ((status = gguf_new(s, &g, e))) return status;
    while ((status = gguf_step(g, e)) == GM_AGAIN) {
        if (!source_wanted(s, &offset, &length) || length > piece) break;
        if ((status = source_give(s, offset, (const uint8_t *)data + offset, length, e))) break;
    }
    if (status == GM_OK) read_gguf(g);
    gguf_free(g);
    return status;
}

#endif
