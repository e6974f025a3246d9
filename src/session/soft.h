/* The soft tokens of a session, which a tower made from an image or a sound. Each is a row of the model's width that takes the
 * place of an embedding, unscaled.
 *
 * A span is one image or sound. If a span is a block, its tokens see each other: all of their keys and values must be stored
 * before any of them looks. So a block is computed in one batch, and is kept as a whole or not at all. */

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
    float     *rows; /* [row_count, width]: span after span */
    size_t     row_count, row_capacity, width;
    int32_t   *ids; /* for a batch with soft tokens: as in cpu_inputs */
    uint32_t  *last_seen;
    size_t     batch_capacity;
} soft_tokens; /* zero-initialise */

/* Adds a span behind all others. Afterwards soft_fill works for up to `batch` tokens, and for this span. */
gm_status soft_add(soft_tokens *s, size_t begin, const float *rows, size_t count, size_t width, bool block,
                   size_t batch, error *e);
/* Forgets all from position `keep` on. */
void      soft_truncate(soft_tokens *s, size_t keep);
gm_status soft_copy(soft_tokens *out, const soft_tokens *s, error *e);
void      soft_free(soft_tokens *s);

/* The position of the first soft token (`otherwise` if there is none), and one past the last. */
size_t soft_first(const soft_tokens *s, size_t otherwise);
size_t soft_end(const soft_tokens *s);
/* The block that `position` cuts in two, or NULL. */
const soft_span *soft_block_around(const soft_tokens *s, size_t position);

/* The inputs of a batch; NULL where plain ids suffice. */
typedef struct {
    const int32_t  *ids;
    const float    *given;
    const uint32_t *last_seen;
} soft_batch;

/* `ids` are the ids of the tokens [begin, begin + count). The result is valid until the next call. */
soft_batch soft_fill(soft_tokens *s, const int32_t *ids, size_t begin, size_t count);

#endif
