/* A session: the tokens of one conversation, their keys and values, and the logits behind the last one. */

#ifndef GM_SESSION_H
#define GM_SESSION_H

#include "session/engine.h"
#include "session/kv.h"
#include "session/runner.h"

#include <stdatomic.h>

struct gm_session {
    gm_engine *engine;
    kv_cache   kv;
    token_list tokens;   /* held */
    size_t     computed; /* of these, how many are in the cache: fewer after a long way back */
    float     *logits;   /* [vocabulary] */
    bool       has_logits;
    sampler   *chooser;
    runner     run;
    size_t     running; /* tokens of the batch that is being computed; 0: none */
    struct {            /* tokens that the GPU draws before we have seen those before: drawing.c */
        gm_sampling sampling;
        int32_t     token; /* the newest that was seen: only if it is held do the steps go on */
        size_t      end;   /* steps were submitted for the positions [computed, end) */
    } ahead;
    bool        pending;       /* a set or append returned GM_AGAIN */
    size_t      pending_count; /* its token count, to recognise it */
    atomic_bool cancelled;
};

/* Computes what is held and not yet in the cache, until `deadline`. */
gm_status session_compute(gm_session *s, double deadline, error *e);

/* The same as the functions of gemmule.h, with an error to hand on. */
gm_status session_set(gm_session *s, const int32_t *tokens, size_t n, error *e);
gm_status session_append(gm_session *s, const int32_t *tokens, size_t n, error *e);
gm_status session_rollback(gm_session *s, size_t keep, size_t *recompute, error *e);
/* Draws the next token from the logits, which must be there. It is not held yet. */
gm_status session_sample(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e);
/* Computes what it takes for logits of the last token held; does nothing where there is no token. GM_AGAIN at the deadline. */
gm_status session_want_logits(gm_session *s, double deadline, error *e);
/* Computes what is held and draws the next token, which is not held yet: the same one as session_compute and session_sample
 * give, but without logits that come back where the GPU can do without. If it is held next, and the call repeated with the same
 * sampling, the GPU goes ahead: `most` says how many draws may still be wanted, this one included. GM_AGAIN at the deadline. */
gm_status session_next(gm_session *s, const gm_sampling *sampling, size_t most, int32_t *token, double deadline,
                       error *e);
/* Dispatches of one step of session_next on the GPU; 0 if there was none. */
size_t session_dispatches(const gm_session *s);
/* Holds one more token without computing it yet. */
gm_status session_hold(gm_session *s, int32_t token, error *e);

/* Starts anew with these tokens and gives the logits behind every one of them: out [n, vocabulary]. Not interruptible: for
 * checking. */
gm_status session_logits_all(gm_session *s, const int32_t *tokens, size_t n, float *out, error *e);

/* Forgets what is being computed, and what the GPU drew ahead: what is held stays. */
void session_abandon(gm_session *s);
/* The same, and holds only what is in the cache: after an error or a cancel. */
void session_forget_uncomputed(gm_session *s);
/* Explains logits that are not finite: which weight is broken, if any. */
gm_status session_not_finite(const gm_session *s, error *e);

/* Everything but the cache, which the caller opens: for fork and restore. */
gm_status session_new(gm_engine *engine, gm_session **out, error *e);

#endif
