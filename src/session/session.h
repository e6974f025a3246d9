/* A session: the tokens of one conversation, their keys and values, and the logits of the last token. */

#ifndef GM_SESSION_H
#define GM_SESSION_H

#include "session/denoiser.h"
#include "session/engine.h"
#include "session/kv.h"
#include "session/runner.h"
#include "session/soft.h"

#include <stdatomic.h>

struct gm_session {
    gm_engine  *engine;
    gm_session *next;     /* in one of the engine's lists */
    bool        shares;   /* others may begin with what it holds, and it with theirs: sharing.c */
    uint32_t    adapters; /* the set that all that it computes belongs to: adapters.h */
    size_t      restored; /* tokens whose keys and values came from a snapshot: nobody else may begin with them */
    bool foreign; /* a snapshot brought soft tokens, which may go on to other places: nor with anything made of these */
    kv_cache      kv;
    token_list    tokens;   /* held */
    soft_tokens   soft;     /* which of them are rows of an image or a sound */
    size_t        computed; /* how many of them are in the cache; fewer after a long rollback */
    size_t        branch;   /* another sequence was the same up to here: a mark is due when this is computed. 0: none */
    float        *logits;   /* [vocabulary] */
    bool          has_logits;
    sampler      *chooser;
    runner        run;
    token_record *records; /* of a batch; room for record_capacity tokens */
    size_t        record_capacity;
    size_t        running;    /* tokens in the batch being computed; 0: none */
    struct {                  /* tokens that the GPU draws ahead of us: drawing.c */
        bool        possible; /* false if the host takes part in every token */
        gm_sampling sampling;
        bool        logprobs;
        size_t      alternatives;
        int32_t     token; /* the last one that arrived; the steps continue only if the session holds it */
        size_t      end;   /* steps were submitted for the positions [computed, end) */
        uint32_t    moves; /* of the store, when drawing began */
    } ahead;
    session_canvas *canvas;       /* of a diffusion model; NULL: none was needed yet */
    double          step_seconds; /* that the decoder's step with the last draw took; 0: it was drawn without one */
    bool            pending; /* a set or append returned GM_AGAIN: the tokens held are those that it will compute */
    size_t          pending_from; /* where the tokens that it was given begin */
    atomic_bool     cancelled;
    gm_reply       *replies; /* all of them, linked by gm_reply.next */
    gm_reply       *writer;  /* the reply that the tokens held belong to; NULL: somebody else changed them */
};

/* Where its tokens' keys and values go, and the adapters that they are computed with. */
record_sequence session_sequence(const gm_session *s);

/* Forgets the first soft token and all that follows: towers compute other ones now. */
void session_forget_soft(gm_session *s);

/* Computes the held tokens that are not in the cache yet, until `deadline`. */
gm_status session_compute(gm_session *s, double deadline, error *e);

/* Tokens to compute, some of which may be soft. */
typedef struct {
    const int32_t      *tokens;
    size_t              count;
    const soft_tokens  *soft;    /* declared spans; NULL: none */
    const float *const *rows;    /* of each span; NULL for one that the session holds at its place */
    bool                foreign; /* some rows may be a snapshot's */
} session_prompt;

/* How many tokens of the prompt the session holds already, from the beginning on. A picture or a sound counts as a whole. */
size_t session_common(const gm_session *s, const session_prompt *p);
/* Whether the session could be set to the prompt: GM_CONTEXT_FULL if it has too many tokens. */
gm_status session_check_prompt(const gm_session *s, const session_prompt *p, error *e);
/* session_set for a prompt with soft tokens. */
gm_status session_set_prompt(gm_session *s, const session_prompt *p, error *e);

/* These do what their namesakes in gemmule.h do, with an error to pass on. */
gm_status session_set(gm_session *s, const int32_t *tokens, size_t n, error *e);
gm_status session_append(gm_session *s, const int32_t *tokens, size_t n, error *e);
/* Forgets what was computed beyond `keep` tokens, or more, if the rings do not reach back that far. The tokens stay. */
void session_go_back(gm_session *s, size_t keep);
/* `keep` must not lie inside an image whose tokens see each other. */
gm_status session_rollback(gm_session *s, size_t keep, size_t *recompute, error *e);
/* GM_BUSY while another call waits to be repeated. If that call was cancelled, ends it instead. */
gm_status session_check_free(gm_session *s, error *e);
/* Draws the next token from the logits, which must be there. The session does not hold it yet. */
gm_status session_sample(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e);
/* Makes sure that the last token's logits are there; does nothing if there is no token. GM_AGAIN at the deadline. */
gm_status session_want_logits(gm_session *s, double deadline, error *e);
/* How to draw a token. `most` tells how many such draws may follow, including this one. `logprobs`, if not NULL, receives the
 * log-probabilities of the token drawn and of `alternatives` others. */
typedef struct {
    const gm_sampling *sampling;
    size_t             most;
    gm_token_logprob  *logprobs;
    size_t             alternatives;
} draw_wish;

/* Computes the held tokens and draws the next one, which the session does not hold yet. Gives the same token as session_compute
 * followed by session_sample, but on the GPU the logits need not come back. If the caller holds that token next and repeats the
 * call with the same wish, the GPU works ahead. GM_AGAIN at the deadline. */
gm_status session_next(gm_session *s, const draw_wish *wish, int32_t *token, double deadline, error *e);
/* Dispatches in one step of session_next on the GPU; 0 if none has run. */
size_t session_dispatches(const gm_session *s);
/* Adds a token to those held, without computing it. */
gm_status session_hold(gm_session *s, int32_t token, error *e);
/* Adds n soft tokens, which a tower made from an image or a sound, without computing them: rows [n, width], not scaled. `id`
 * stands for each of them in the list of tokens. If `image` is set and the model wants it (config.image_blocks), they see each
 * other and are computed in one batch. Sounds, and images of other models, are causal. */
gm_status session_hold_soft(gm_session *s, int32_t id, const float *rows, size_t n, bool image, error *e);

/* Computes all held tokens again and gives the logits of each: out [held, vocabulary]. For checks: it cannot be interrupted. */
gm_status session_logits_held(gm_session *s, float *out, error *e);
/* The same for these tokens, which replace those held. */
gm_status session_logits_all(gm_session *s, const int32_t *tokens, size_t n, float *out, error *e);

/* Drops the batch being computed and whatever the GPU drew ahead. The tokens held stay. */
void session_abandon(gm_session *s);
/* Called before the tokens held change: also ends the claim of the reply that wrote them, which cannot go on. A call that is
 * refused must not come this far. */
void session_release(gm_session *s);
/* The largest image whose tokens see each other, in tokens: the models were made for no more. */
enum { SESSION_MOST_IMAGE = 1120 };
/* Where a batch must begin to compute the token at `position`: an image is never cut in two. */
size_t session_batch_begin(const gm_session *s, size_t position);
/* Drops the batch being computed and all tokens that are not in the cache: after an error or a cancel. */
void session_forget_uncomputed(gm_session *s);
bool session_is_finite(const gm_session *s, const float *logits);
/* Explains logits that are not finite: names the broken weight, if there is one. */
gm_status session_not_finite(const gm_session *s, error *e);

/* ---- sequences that begin alike: sharing.c ---- */

/* Closes the session, but keeps what it holds for others to begin with. False: there is nothing worth it. */
bool session_park(gm_session *s);
/* Looks for a sequence that begins with the same tokens and has more of them computed, and goes on from there. */
void session_find_prefix(gm_session *s);

/* Everything but the cache, which the caller opens: for fork and restore. */
gm_status session_new(gm_engine *engine, gm_session **out, error *e);
void      session_free(gm_session *s);
/* Frees everything but the tokens and their keys and values. */
void session_strip(gm_session *s);
/* Called before a session is freed: its replies may outlive it. */
void reply_lose_session(gm_reply *first);

/* ---- snapshots as jobs, because rows travel to and from the GPU piece by piece ---- */

typedef struct snapshot_saving    snapshot_saving;
typedef struct snapshot_restoring snapshot_restoring;

/* The session must not change until the job is freed. A step returns GM_AGAIN until everything is written. */
gm_status snapshot_save(gm_session *s, gguf_sink sink, void *user, snapshot_saving **out, error *e);
gm_status snapshot_save_step(snapshot_saving *job, error *e);
void      snapshot_save_free(snapshot_saving *job);

/* Takes ownership of the file, even on failure. The session changes in the step that returns GM_OK. */
gm_status snapshot_restore(gm_session *s, gguf *g, snapshot_restoring **out, error *e);
gm_status snapshot_restore_step(snapshot_restoring *job, error *e);
void      snapshot_restore_free(snapshot_restoring *job);

#endif
