/* Numbers for texts: the vocabulary's tokens have their ids, and texts that only merges mention come behind them. The
 * tokens' texts are not copied: they stay in the file's metadata. */

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
    uint32_t       slot_count; /* a power of two, always more than half as many again as symbols */
} symbols;

/* From tokenizer.ggml.tokens. Of equal texts the first one has the number. */
gm_status symbols_init(symbols *s, const gguf_value *tokens, error *e);
void      symbols_free(symbols *s);
/* Any symbol's text. */
str symbols_text(const symbols *s, uint32_t symbol);
/* The symbol of a text given in two halves (a merge's result), or SYMBOL_NONE. */
uint32_t symbols_find(const symbols *s, str left, str right);
/* The same, and numbers a text that has no number yet. SYMBOL_NONE: no memory. */
uint32_t symbols_intern(symbols *s, str left, str right);

#endif
