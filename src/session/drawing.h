/* What a session that draws on the GPU tells a generator, and what it does with a draw (drawing.c). */

#ifndef GM_DRAWING_H
#define GM_DRAWING_H

#include "session/session.h"

typedef struct {
    generator_start start;
    token_record    record;
    uint32_t       *words;
} drawing_start;

/* For the token behind which `behind` draws already lie behind those held (0: the last one held). Call drawing_start_free also after
 * a failure. */
gm_status drawing_start_make(gm_session *s, const draw_wish *wish, bool logprobs, size_t behind, drawing_start *out,
                             error *e);
void      drawing_start_free(drawing_start *start);

/* The next draw has arrived: its position counts as computed. */
gm_status drawing_take(gm_session *s, const draw_wish *wish, const sampler_record *draw, int32_t *token, error *e);

#endif
