/* Soft tokens of a session: what a tower made of an image or a sound. Each is a row of the model's width that enters as it is,
 * where a token would bring its embedding.
 *
 * A span is what was held at once. Where a span is a block, its tokens see each other: keys and values of all of them must be
 * there before any of them looks, so a block is computed in one batch, and what is kept of it is all or nothing. */

#ifndef GM_SOFT_H
#define GM_SOFT_H

#include "base/base.h"

typedef struct {
    size_t begin, count; /* positions */
    size_t first_row;
    bool   block;
} soft_span;

typedef struct {
    soft_span *spans; /* ascending */
    size_t     span_count, span_capacity;
    float     *rows; /* [row_count, width]: of all spans, one behind the other */
    size_t     row_count, row_capacity, width;
    int32_t   *ids; /* what a batch with soft tokens is run with, by token: as cpu_inputs has it */
    uint32_t  *last_seen;
    size_t     batch_capacity;
} soft_tokens; /* zero-initialise */

/* `begin` is behind all spans. Batches of up to `batch` tokens, and such a span, can be filled then. */
gm_status soft_add(soft_tokens *s, size_t begin, const float *rows, size_t count, size_t width, bool block,
                   size_t batch, error *e);
/* Forgets all from position `keep` on. */
void      soft_truncate(soft_tokens *s, size_t keep);
gm_status soft_copy(soft_tokens *out, const soft_tokens *s, error *e);
void      soft_free(soft_tokens *s);

/* The first position of a soft token, `otherwise` if there is none; one past the last. */
size_t soft_first(const soft_tokens *s, size_t otherwise);
size_t soft_end(const soft_tokens *s);
/* The block that `position` cuts in two, or NULL. */
const soft_span *soft_block_around(const soft_tokens *s, size_t position);

/* What the tokens [begin, begin + count) are run with; NULL where plain ids will do. */
typedef struct {
    const int32_t  *ids;
    const float    *given;
    const uint32_t *last_seen;
} soft_batch;

/* `ids` are those of the batch's tokens. What comes back is valid until the next call. */
soft_batch soft_fill(soft_tokens *s, const int32_t *ids, size_t begin, size_t count);

#endif
