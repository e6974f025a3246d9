/* A session: the tokens of one conversation, their keys and values, and the logits behind the last one. */

#ifndef GM_SESSION_H
#define GM_SESSION_H

#include "session/engine.h"
#include "session/kv.h"
#include "session/runner.h"

#include <stdatomic.h>

struct gm_session {
    gm_engine  *engine;
    kv_cache    kv;
    token_list  tokens;   /* held */
    size_t      computed; /* of these, how many are in the cache: fewer after a long way back */
    float      *logits;   /* [vocabulary] */
    bool        has_logits;
    sampler    *chooser;
    runner      run;
    size_t      running;       /* tokens of the batch that is being computed; 0: none */
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
/* Draws the next token, which is not held yet. */
gm_status session_sample(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e);
/* Holds one more token without computing it yet. */
gm_status session_hold(gm_session *s, int32_t token, error *e);

/* Starts anew with these tokens and gives the logits behind every one of them: out [n, vocabulary]. Not interruptible: for
 * checking. */
gm_status session_logits_all(gm_session *s, const int32_t *tokens, size_t n, float *out, error *e);

/* Everything but the cache, which the caller opens: for fork and restore. */
gm_status session_new(gm_engine *engine, gm_session **out, error *e);

#endif
