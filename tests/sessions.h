/* Engines and sessions for tests. A call that computes is repeated until it is done; opening must succeed, or the test fails. */

#ifndef GM_SESSIONS_H
#define GM_SESSIONS_H

#include "dense_model.h"
#include "session/session.h"
#include "test.h"

static char why[600]; /* what the last call complained of */

static inline gm_engine *open_engine(const gm_engine_options *options) {
    gm_engine *engine = NULL;
    CHECK_MESSAGE(!gm_engine_open(options, &engine, why, sizeof why), "%s", why);
    return engine;
}

/* NULL if there is no engine; a context of 0 is the default one. Shares no keys and values with other sessions: what a test
 * compares must have been computed twice. */
static inline gm_session *open_session(gm_engine *engine, gm_kv_type kv, uint32_t context) {
    const gm_session_options options = { .kv = kv, .context = context };
    gm_session              *s = NULL;
    if (engine) CHECK_MESSAGE(!gm_session_new(engine, &options, &s, why, sizeof why), "%s", why);
    if (s) s->shares = false;
    return s;
}

static inline gm_status set_tokens(gm_session *s, const int32_t *tokens, size_t n) {
    gm_status status;
    while ((status = gm_session_set(s, tokens, n, why, sizeof why)) == GM_AGAIN) {}
    return status;
}

static inline gm_status append_tokens(gm_session *s, const int32_t *tokens, size_t n) {
    gm_status status;
    while ((status = gm_session_append(s, tokens, n, why, sizeof why)) == GM_AGAIN) {}
    return status;
}

/* Plain tokens of the tiny models' vocabularies. */
static inline void make_tokens(int32_t *tokens, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = 300 + (int32_t)(seed >> 8) % 300;
    }
}

/* How far apart logits may be that were computed in different batches. A GPU has other kernels for other batches, and sums in
 * another order may round a key to the next f16. */
static inline double batch_tolerance(gm_backend device) { return device == GM_BACKEND_GPU ? 1e-4 : 1e-5; }

typedef struct {
    gm_engine  *engine;
    gm_session *session;
} conversation;

static inline bool open_conversation(conversation *c, const gm_engine_options *options) {
    c->engine = open_engine(options);
    c->session = open_session(c->engine, GM_KV_DEFAULT, 0);
    return c->session;
}

static inline void close_conversation(conversation *c) {
    gm_session_free(c->session);
    gm_engine_close(c->engine);
}

#endif
