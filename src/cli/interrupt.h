/* Signals. The first Ctrl-C asks the running work to stop; a second one before it has stopped ends the program at once with
 * 130. Commands that do not catch it end at the first. */

#ifndef GM_INTERRUPT_H
#define GM_INTERRUPT_H

#include "base/base.h"

/* From now on, SIGINT sets the flag and cancels the watched session. */
void interrupt_catch(void);
/* The session that SIGINT cancels; NULL: none. */
void interrupt_watch(gm_session *session);
/* Turns file trouble into errors: a model that becomes shorter while it is mapped (SIGBUS), a file too large to write
 * (SIGXFSZ). */
void interrupt_catch_file_trouble(void);
bool interrupted(void);
void interrupt_clear(void);

#endif
