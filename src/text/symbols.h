/* Numbers for texts: tokens have their ids, and texts that occur only in merges have the numbers after them. Tokens' texts are not
 * copied: they stay in the file's metadata. */

#ifndef GM_SYMBOLS_H
#define GM_SYMBOLS_H

#include "base/buffer.h"
#include "gguf/gguf.h"

#define SYMBOL_NONE UINT32_MAX

typedef struct {
    uint32_t hash, symbol; /* symbol + 1; 0 is free */
} symbol_slot;

typedef struct {
    const uint8_t *stored;  /* each token: u64 length, bytes */
    uint32_t      *offsets; /* [tokens] into `stored` */
    uint32_t       tokens;
    buffer         extra;     /* texts of the other symbols, back to back */
    size_t        *extra_end; /* [extras] */
    uint32_t       extras, extra_capacity;
    symbol_slot   *slots;
    uint32_t       slot_count; /* a power of two, more than 1.5 times the number of symbols */
} symbols;

/* From tokenizer.ggml.tokens. The first of equal texts gets the number. */
gm_status symbols_init(symbols *s, const gguf_value *tokens, error *e);
void      symbols_free(symbols *s);
/* Any symbol's text. */
str symbols_text(const symbols *s, uint32_t symbol);
/* The symbol of a text given in two halves (a merge's result), or SYMBOL_NONE. */
uint32_t symbols_find(const symbols *s, str left, str right);
/* Like symbols_find, but gives a new text a number. SYMBOL_NONE: no memory. */
uint32_t symbols_intern(symbols *s, str left, str right);

#endif
