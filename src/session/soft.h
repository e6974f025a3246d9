/* The soft tokens of a session, which a tower made from an image or a sound. Each is a row of the model's width that takes the
 * place of an embedding, unscaled.
 *
 * A span is one image or sound. If a span is a block, its tokens see each other: all of their keys and values must be stored
 * before any of them looks. So a block is computed in one batch, and is kept as a whole or not at all. */

#ifndef GM_SOFT_H
#define GM_SOFT_H

#include "session/records.h"

typedef struct {
    size_t  begin, count; /* positions */
    size_t  first_row;
    bool    block;
    size_t  added;      /* how many it had before the end was forgotten */
    uint8_t digest[32]; /* of what it shows and the tower that encoded it, or of all rows that it had */
} soft_span;

typedef struct {
    soft_span *spans; /* ascending */
    size_t     span_count, span_capacity;
    float     *rows; /* [row_count, width]: span after span */
    size_t     row_count, row_capacity, width;
} soft_tokens; /* zero-initialise */

/* Adds a span behind all others. `digest` identifies it; NULL: the rows do. */
gm_status soft_add(soft_tokens *s, size_t begin, const float *rows, size_t count, size_t width, bool block,
                   const uint8_t digest[32], error *e);
/* Adds a span without rows, which can only be compared. */
gm_status soft_declare(soft_tokens *s, size_t begin, size_t count, bool block, const uint8_t digest[32], error *e);
/* The rows of a span with this digest that is complete; NULL: there is none. */
const float *soft_find(const soft_tokens *s, const uint8_t digest[32], size_t *count);
/* Forgets all from position `keep` on. */
void      soft_truncate(soft_tokens *s, size_t keep);
gm_status soft_copy(soft_tokens *out, const soft_tokens *s, error *e);
void      soft_free(soft_tokens *s);

/* Frees the rows. What is left can only be compared. */
void soft_forget_rows(soft_tokens *s);
/* How many of the first `most` positions are alike, as far as soft tokens decide. */
size_t soft_common(const soft_tokens *a, const soft_tokens *b, size_t most);

/* The position of the first soft token (`otherwise` if there is none), and one past the last. */
size_t soft_first(const soft_tokens *s, size_t otherwise);
size_t soft_end(const soft_tokens *s);
/* The block that `position` cuts in two, or NULL. */
const soft_span *soft_block_around(const soft_tokens *s, size_t position);

/* Marks the soft tokens among the positions [begin, begin + count) in their records, which were made as those of text. `whole`: blocks are
 * joined in all layers. Returns the rows that the run must be given; NULL: there is no soft token among them. */
const float *soft_mark(const soft_tokens *s, token_record *records, size_t begin, size_t count, bool whole);

#endif
