/* How a canvas begins (session/canvas.h), as text with holes:
 *
 *   text          stays as it is
 *   [[12]]        a hole of 12 tokens, which the model fills
 *   [[=text]]     text to start from, which the model may change; in it, \] is a ] and \\ is a \
 *   [[[[]]        the two characters [[; a single [ stands for itself, also right before a hole
 *
 * A hole is filled with exactly as many tokens as it says. Behind the last of all this the model writes on. */

#ifndef GM_CANVAS_TEXT_H
#define GM_CANVAS_TEXT_H

#include "text/tokenizer.h"

enum { CANVAS_HOLE = -1 }; /* the id of a position that begins as noise */

/* How a position begins. */
typedef struct {
    int32_t id;     /* or CANVAS_HOLE */
    bool    pinned; /* it keeps its id */
} canvas_start;

/* At most `most` positions. Free *out. GM_BAD_ARGUMENT says what is wrong where. */
gm_status canvas_text_read(const tokenizer *t, str text, size_t most, canvas_start **out, size_t *count, error *e);
/* Only whether its form is right, which needs no model. */
gm_status canvas_text_check(str text, error *e);

#endif
