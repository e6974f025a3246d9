/* What the server asks beyond gemmule.h: to choose sessions, to show canvases, to tell how full the cache is, and to decode sounds in steps. */

#ifndef GM_SESSION_SERVING_H
#define GM_SESSION_SERVING_H

#include "media/sound.h"

/* NULL: its session was freed. */
const gm_engine *reply_engine(const gm_reply *r);
/* How many tokens of the reply's prompt the session holds already; `*count` is how many the prompt has. */
size_t reply_common(const gm_reply *r, const gm_session *s, size_t *count);
/* Positions of keys and values: those that sessions hold, or keep for others, and those that there is memory for. */
void engine_cache_use(gm_engine *engine, size_t *held, size_t *capacity);

/* A decoder of a sound for this session, unless its model does not hear. */
gm_status session_open_sound(gm_session *s, const void *bytes, size_t size, sound_decoder **out, error *e);
/* A step of a sound for this session, as sound_decoder_step; GM_CONTEXT_FULL as soon as the sound is known to be too long. */
gm_status session_decode_sound(const gm_session *s, sound_decoder *d, double deadline, sound *out, error *e);

#endif
