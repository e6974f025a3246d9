/* Finding special tokens in a text.
 *
 * The rule: take the special tokens by decreasing length (of equal length, the lower id first); each one takes its leftmost
 * matches, one after the other, out of what the ones before it have left over. */

#ifndef GM_SPECIALS_H
#define GM_SPECIALS_H

#include "text/tokenizer.h"

typedef struct specials_node specials_node;

typedef struct {
    specials_node *nodes; /* a trie; node 0 is no node */
    uint32_t       count, capacity;
    uint32_t       roots[256];
} specials; /* zero-initialise */

/* `control`: recognised only where the caller asks for control tokens. Of equal texts the first one counts. false: no
 * memory. After the last one, specials_finish. */
bool specials_add(specials *s, str text, int32_t id, bool control);
void specials_finish(specials *s);
void specials_free(specials *s);

typedef struct {
    size_t  start, end;
    int32_t id;
} special_match;

/* The matches that lie inside the ranges (in order, apart from one another), from left to right. To be freed. */
gm_status specials_find(const specials *s, str text, const text_range *ranges, size_t range_count, bool control,
                        special_match **matches, size_t *count, error *e);

#endif
