/* A session: the tokens of one conversation, their keys and values, and the logits behind the last one. */

#ifndef GM_SESSION_H
#define GM_SESSION_H

#include "session/engine.h"
#include "session/kv.h"
#include "session/runner.h"
#include "session/soft.h"

#include <stdatomic.h>

struct gm_session {
    gm_engine  *engine;
    kv_cache    kv;
    token_list  tokens;   /* held */
    soft_tokens soft;     /* those of them that are no tokens of the vocabulary */
    size_t      computed; /* of these, how many are in the cache: fewer after a long way back */
    float      *logits;   /* [vocabulary] */
    bool        has_logits;
    sampler    *chooser;
    runner      run;
    size_t      running;      /* tokens of the batch that is being computed; 0: none */
    struct {                  /* tokens that the GPU draws before we have seen those before: drawing.c */
        bool        possible; /* not where the host has a part in every token */
        gm_sampling sampling;
        bool        logprobs;
        size_t      alternatives;
        int32_t     token; /* the newest that was seen: only if it is held do the steps go on */
        size_t      end;   /* steps were submitted for the positions [computed, end) */
    } ahead;
    bool        pending;      /* a set or append returned GM_AGAIN: the tokens held are those that it will compute */
    size_t      pending_from; /* where the tokens that it was given begin */
    atomic_bool cancelled;
    gm_reply   *replies; /* that live, linked by gm_reply.next */
    gm_reply   *writer;  /* the reply that the tokens held belong to; NULL: somebody else changed them */
};

/* Computes what is held and not yet in the cache, until `deadline`. */
gm_status session_compute(gm_session *s, double deadline, error *e);

/* The same as the functions of gemmule.h, with an error to hand on. */
gm_status session_set(gm_session *s, const int32_t *tokens, size_t n, error *e);
gm_status session_append(gm_session *s, const int32_t *tokens, size_t n, error *e);
/* What is kept must not end inside an image whose tokens see each other. */
gm_status session_rollback(gm_session *s, size_t keep, size_t *recompute, error *e);
/* GM_BUSY while another call is to be repeated; if that one was cancelled, it ends here. */
gm_status session_check_free(gm_session *s, error *e);
/* Draws the next token from the logits, which must be there. It is not held yet. */
gm_status session_sample(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e);
/* Computes what it takes for logits of the last token held; does nothing where there is no token. GM_AGAIN at the deadline. */
gm_status session_want_logits(gm_session *s, double deadline, error *e);
/* A draw, and how many more of the kind may be wanted, this one included. `logprobs`, if not NULL: the log-probabilities of the
 * token drawn and of so many alternatives go there. */
typedef struct {
    const gm_sampling *sampling;
    size_t             most;
    gm_token_logprob  *logprobs;
    size_t             alternatives;
} draw_wish;

/* Computes what is held and draws the next token, which is not held yet: the same one as session_compute and session_sample
 * give, but without logits that come back where the GPU can do without. If it is held next, and the call repeated with the same
 * wish, the GPU goes ahead. GM_AGAIN at the deadline. */
gm_status session_next(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e);
/* Dispatches of one step of session_next on the GPU; 0 if there was none. */
size_t session_dispatches(const gm_session *s);
/* Holds one more token without computing it yet. */
gm_status session_hold(gm_session *s, int32_t token, error *e);
/* Holds n soft tokens, which is what a tower made of an image or a sound: rows [n, width], not scaled. `id` stands for each of
 * them among the tokens held. With `image` they see each other where the model has it so (config.image_blocks), and are computed
 * in one batch; sounds, and images of other models, are causal. Not computed yet. */
gm_status session_hold_soft(gm_session *s, int32_t id, const float *rows, size_t n, bool image, error *e);

/* Computes what is held anew and gives the logits behind every token: out [held, vocabulary]. Not interruptible: for checking. */
gm_status session_logits_held(gm_session *s, float *out, error *e);
/* The same of these tokens, which are held instead of what was. */
gm_status session_logits_all(gm_session *s, const int32_t *tokens, size_t n, float *out, error *e);

/* Forgets what is being computed, and what the GPU drew ahead: what is held stays. */
void session_abandon(gm_session *s);
/* The most tokens that an image may have whose tokens see each other: the models were made for no more. */
enum { SESSION_MOST_IMAGE = 1120 };
/* Where computing must begin so that the token at `position` is computed. */
size_t session_batch_begin(const gm_session *s, size_t position);
/* The same, and holds only what is in the cache: after an error or a cancel. */
void session_forget_uncomputed(gm_session *s);
/* Explains logits that are not finite: which weight is broken, if any. */
gm_status session_not_finite(const gm_session *s, error *e);

/* Everything but the cache, which the caller opens: for fork and restore. */
gm_status session_new(gm_engine *engine, gm_session **out, error *e);
void      session_free(gm_session *s);
/* Parts a session that is about to be freed from its replies, which may live on. */
void reply_lose_session(gm_reply *first);

/* ---- snapshots as jobs: what is on the GPU comes and goes by and by ---- */

typedef struct snapshot_saving    snapshot_saving;
typedef struct snapshot_restoring snapshot_restoring;

/* The session must stay as it is until the job is freed. A step gives GM_AGAIN while rows are on their way, GM_OK at the end. */
gm_status snapshot_save(gm_session *s, gguf_sink sink, void *user, snapshot_saving **out, error *e);
gm_status snapshot_save_step(snapshot_saving *job, error *e);
void      snapshot_save_free(snapshot_saving *job);

/* Takes the snapshot's file over, on failure too. The session changes with the step that gives GM_OK. */
gm_status snapshot_restore(gm_session *s, gguf *g, snapshot_restoring **out, error *e);
gm_status snapshot_restore_step(snapshot_restoring *job, error *e);
void      snapshot_restore_free(snapshot_restoring *job);

#endif
