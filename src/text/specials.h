/* Finds special tokens in a text.
 *
 * The rule: go through the special tokens by decreasing length, lower ids first. Each takes its matches from left to right in the
 * text that earlier ones have left. */

#ifndef GM_SPECIALS_H
#define GM_SPECIALS_H

#include "text/tokenizer.h"

typedef struct specials_node specials_node;

typedef struct {
    specials_node *nodes; /* a trie; node 0 is unused */
    uint32_t       count, capacity;
    uint32_t       roots[256];
} specials; /* zero-initialise */

/* `control`: recognised only if the caller asks for control tokens. The first of equal texts wins. False: no memory. Call
 * specials_finish after the last one. */
bool specials_add(specials *s, str text, int32_t id, bool control);
void specials_finish(specials *s);
void specials_free(specials *s);

typedef struct {
    size_t  start, end;
    int32_t id;
} special_match;

/* The matches inside the ranges (in order, not overlapping), from left to right. The caller frees them. */
gm_status specials_find(const specials *s, str text, const text_range *ranges, size_t range_count, bool control,
                        special_match **matches, size_t *count, error *e);

#endif
