/* The decoder of a GPU: sessions that write at the same time draw in the rows of one generator (gpu/generator.h).
 *
 * A session that is alone has a generator of its own, with the kernels for one token, and works ahead there (drawing.c). When a
 * second session writes, both draw in a shared generator, which computes their next tokens together and is several steps ahead as
 * well. When the others have left, or no longer ask, the last one goes back to its own.
 *
 * A row keeps the draws that its session has not taken. The session that finds none submits steps, and each takes every row with
 * room for its draw. A row without room leaves the generator; so does one whose keys and values moved or need more room. It joins
 * again, with what it has drawn, when all its draws have arrived. There are generators for 2, 4, 8, 16 and 32 rows; the steps in
 * flight end before another one takes over. There is one decoder per store. All functions are called between engine_enter and
 * engine_leave. */

#ifndef GM_DECODER_GPU_H
#define GM_DECODER_GPU_H

#include "session/session.h"

typedef struct gpu_decoder gpu_decoder;

gm_status gpu_decoder_new(gm_engine *engine, kv_store *store, gpu_decoder **out, error *e);
void      gpu_decoder_free(gpu_decoder *d);

/* The session is about to draw. Returns whether it should do so here: others write, too, or its row has draws. */
bool gpu_decoder_wants(gpu_decoder *d, gm_session *s, const draw_wish *wish);
/* session_next by way of the session's row. GM_BUSY: the session draws alone, because the others have left, there is no memory for so
 * many rows, or their shaders are not compiled yet. */
gm_status gpu_decoder_next(gpu_decoder *d, gm_session *s, const draw_wish *wish, int32_t *token, double deadline,
                           error *e);
bool      gpu_decoder_is_shared(const gpu_decoder *d);
/* The plans for adapters are about to go: frees all generators. NULL is fine. */
void gpu_decoder_forget_adapters(gpu_decoder *d);
void gpu_decoder_leave(gpu_decoder *d, const gm_session *s);
/* Submits steps for sessions other than this one, which is about to compute a prompt, if one of them has none on the way. Does not
 * wait. */
void gpu_decoder_keep_up(gpu_decoder *d, const gm_session *s);

/* How many steps it has submitted, with how many rows in all. */
typedef struct {
    uint64_t steps, tokens;
} gpu_decoder_totals;
gpu_decoder_totals gpu_decoder_count(const gpu_decoder *d);
/* Draws that the session has not taken, and those on their way. */
size_t gpu_decoder_drawn(gpu_decoder *d, const gm_session *s);

#endif
