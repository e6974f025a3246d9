/* Shows a canvas on a terminal as it settles: accepted tokens plain, uncertain ones dim, and a line with step and entropy. */

#ifndef GM_CANVAS_SCREEN_H
#define GM_CANVAS_SCREEN_H

#include "gemmule.h"

typedef struct {
    size_t lines; /* that are on the screen, and will be overwritten */
} canvas_screen;  /* zero-initialise */

/* Whether the model has a canvas, and there is a terminal to show it on. */
bool canvas_screen_wanted(const gm_engine *engine);
void canvas_screen_show(canvas_screen *s, const gm_engine *engine, const gm_canvas *canvas);
/* Removes what is shown: the text of the block follows. */
void canvas_screen_clear(canvas_screen *s);

#endif
