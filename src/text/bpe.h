/* Byte pair encoding by rank: repeatedly joins the pair of neighbours whose merge has the lowest rank, the leftmost on ties, until
 * no merge applies. */

#ifndef GM_BPE_H
#define GM_BPE_H

#include "text/symbols.h"
#include "text/tokenizer.h"

typedef struct {
    uint32_t left, right; /* symbols */
    uint32_t rank, result;
} bpe_merge;

typedef struct {
    bpe_merge *slots; /* free where left is SYMBOL_NONE */
    uint32_t   slot_count;
    unsigned   shift;
    uint64_t  *joints; /* bit set over pairs of characters: some merge has the first at the end of its left part and the
                          second at the start of its right part. A text can be split at any other pair. */
} bpe_merges;

/* From tokenizer.ggml.merges. Texts of parts and results that are not tokens get numbers in `s`. */
gm_status bpe_merges_init(bpe_merges *m, symbols *s, const gguf_value *merges, error *e);
void      bpe_merges_free(bpe_merges *m);

typedef struct {
    uint32_t symbol, start; /* start: in the run */
    uint32_t previous, next;
    uint32_t rank, result; /* of the merge with the next one; rank SYMBOL_NONE: there is none */
} bpe_part;

/* Working memory of the encoder, reused from run to run. */
typedef struct {
    bpe_part *parts;
    size_t    part_capacity;
    uint64_t *heap; /* rank << 32 | part */
    size_t    heap_count, heap_capacity;
} bpe_work; /* zero-initialise */

void bpe_work_free(bpe_work *w);

typedef struct {
    const symbols    *symbols;
    const bpe_merges *merges;
    const uint32_t   *ascii; /* [128] the symbol of each character, ▁ for the space */
    const int32_t    *bytes; /* [256] the token of each byte */
} bpe;

/* Appends the tokens of a run, with ▁ for each space. Parts that are not tokens are encoded byte by byte. */
gm_status bpe_encode(const bpe *b, bpe_work *w, str run, token_list *out, error *e);

#endif
