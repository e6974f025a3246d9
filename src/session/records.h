/* Makes the records of a run's tokens (graph/run.h): the one place that knows what tokens of each kind see. */

#ifndef GM_RECORDS_H
#define GM_RECORDS_H

#include "graph/run.h"

/* A sequence, and where its keys and values are. */
typedef struct {
    uint32_t sequence;
    uint32_t adapter; /* the set of adapters; 0: none */
    uint32_t window;  /* how many indices a token of text sees in sliding layers, itself included */
    uint32_t shared, prefix, own, ring, ring_slots;
} record_sequence;

/* One span of text in the rows [row, row + count) of a run: causal, from index `begin` on. Position and index are the same. */
void records_of_text(token_record *records, size_t row, const record_sequence *s, const int32_t *ids, size_t begin,
                     size_t count);

/* One span of a canvas behind `begin` tokens of text: each of its tokens sees all of them, and the whole canvas. In sliding layers they
 * see the last window − 1 tokens of text. */
void records_of_canvas(token_record *records, size_t row, const record_sequence *s, const int32_t *ids, size_t begin,
                       size_t count);

/* Joins tokens that see each other, such as an image's: in sliding layers they all see up to the last of them. `whole`: in full layers, too,
 * and no window cuts them off from the first. */
void records_join_block(token_record *first, size_t count, bool whole);

#endif
