/* Lines from the user: with editing and history on a terminal, plain otherwise. */

#ifndef GM_LINE_EDITOR_H
#define GM_LINE_EDITOR_H

#include "base/buffer.h"

typedef enum { LINE_READ, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

typedef struct line_editor line_editor;

/* With `edit`, uses libedit with a history in $XDG_STATE_HOME/gemmule/history (by default in ~/.local/state). A history that
 * cannot be read or written is no failure. */
gm_status line_editor_new(bool edit, line_editor **out, error *e);
void      line_editor_free(line_editor *l);

/* Replaces `out` with the next line, without its newline. */
line_result line_editor_read(line_editor *l, const char *prompt, buffer *out, error *e);
/* Adds a line to the history and saves it. */
void line_editor_remember(line_editor *l, const char *text);

#endif
