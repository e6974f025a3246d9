/* Internal to src/text: the tables of a tokenizer. */

#ifndef GM_VOCABULARY_H
#define GM_VOCABULARY_H

#include "text/bpe.h"
#include "text/specials.h"

enum {
    TOKEN_CONTROL = 1, /* recognised on request only, not shown */
    TOKEN_USER = 2,    /* recognised in any text, shown */
    TOKEN_BYTE = 4,
    TOKEN_STOP = 8,
    TOKEN_SUPPRESSED = 16,
};

struct tokenizer {
    symbols    symbols;
    bpe_merges merges;
    specials   specials;
    uint8_t   *flags;       /* [tokens] */
    char      *texts;       /* what each token stands for, back to back */
    uint32_t  *text_starts; /* [tokens + 1] */
    int32_t    special[SPECIAL_COUNT];
    int32_t    bytes[256];
    uint32_t   ascii[128];
};

/* Reads the metadata into an empty tokenizer. If it fails, call tokenizer_free. */
gm_status vocabulary_load(tokenizer *t, const gguf *g, error *e);

#endif
