/* The decoder: computes the next token of all answers that are being written, in one run.
 *
 * A session whose answer is written has a row. A row keeps a few draws that its session has not taken yet. When a session asks and
 * finds none, a step runs that computes the next token of every row with room for a draw, and draws for each with its own settings.
 * So sessions that are polled in turn, or by several threads, compute together: the first to ask runs the step, and the others find
 * their draws. A session that is alone computes one token when it asks, as if there were no decoder.
 *
 * What a row draws beyond the end of an answer costs time, and nothing else: a position counts as computed when its draw is taken
 * (kv_written has counted it by then, so its slots are not given away). A row does not go on after a token that ends answers, beyond
 * the number of draws that its session may want, or beyond the context.
 *
 * There is one decoder per store, because a run reads the keys and values of one. All functions are called between engine_enter and
 * engine_leave. */

#ifndef GM_DECODER_H
#define GM_DECODER_H

#include "session/session.h"

enum { DECODER_ROWS = 32, DECODER_AHEAD = 4 }; /* sequences in a step; draws of a row that are not taken yet */

typedef struct decoder decoder;

gm_status decoder_new(gm_engine *engine, kv_store *store, decoder **out, error *e);
void      decoder_free(decoder *d);

/* Whether the session can have a row: it can, if all that it holds is computed but the last token, which is text. */
bool decoder_takes(const gm_session *s);
/* session_next by way of a row. GM_BUSY: all rows are taken, or there is no memory for one, and nothing has happened. */
gm_status decoder_next(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e);
/* Whether other sessions write answers, too. */
bool decoder_is_shared(const gm_session *s);
/* Gives up the session's row, if it has one. A step that is under way goes on without it. */
void decoder_leave(gm_session *s);
/* Runs a step if a row other than the session's has no draw left: somebody will soon ask for one. A prompt calls this before it
 * computes, so that the gap between two tokens of an answer is about one turn of one prompt. Returns whether it did; errors are left
 * to who asks. */
bool decoder_keep_up(const gm_session *s, double deadline);

/* The plans for rows with adapters are no longer there. NULL is fine. */
void decoder_forget_adapters(decoder *d);

/* How many steps it has run, and how many tokens they computed. */
typedef struct {
    uint64_t steps, tokens;
} decoder_totals;
decoder_totals decoder_count(const decoder *d);

#endif
