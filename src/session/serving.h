/* What the server asks beyond gemmule.h, to choose sessions and to tell how full the cache is. */

#ifndef GM_SESSION_SERVING_H
#define GM_SESSION_SERVING_H

#include "base/base.h"

/* How many tokens of the reply's prompt the session holds already; `*count` is how many the prompt has. */
size_t reply_common(const gm_reply *r, const gm_session *s, size_t *count);
/* Positions of keys and values: those that sessions hold, or keep for others, and those that there is memory for. */
void engine_cache_use(gm_engine *engine, size_t *held, size_t *capacity);

#endif
