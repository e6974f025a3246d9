/* What sessions of one engine have in common: the stores, and tokens that are the same from the beginning on.
 *
 * A session that computes a prompt first looks at the others. If one of them has the same tokens up to some position, and its ring
 * there (its own, or a mark), the session goes on from that position. A closed session stays parked for this purpose until the store
 * needs its slots. If two sessions are the same beyond the last ring, the second one leaves a mark where they part, because a third
 * one is likely to part there, too.
 *
 * Sessions share multiples of KV_BATCH tokens only. A prompt may be cut there anyway, and its results are the same wherever it is. So a
 * session that begins with what another one computed from the same prompt has the same logits to the last bit as if it were alone. */

#include "session/decoder.h"
#include "session/decoder_gpu.h"
#include "session/serving.h"

enum {
    LEAST_SHARED = 16,  /* tokens that must be saved: less is computed as fast as it is found */
    LEAST_BRANCH = 128, /* tokens behind the last ring that are worth a mark */
};

/* ---- stores ---- */

/* Frees the slots of the session that was closed longest ago. */
static bool give_up_parked(void *user, kv_store *store, kv_space space) {
    gm_engine  *engine = user;
    gm_session *last = NULL;
    for (gm_session *s = engine->parked; s; s = s->next) {
        if (s->kv.store == store && s != engine->pinned && (space == KV_FULL || s->kv.ring)) last = s;
    }
    if (!last) return false;
    if (space == KV_FULL || !kv_give_up_ring(&last->kv, last->computed)) session_free(last);
    return true;
}

/* Towers are loaded again when they are needed; a conversation cannot go on without its keys and values. */
static bool give_up_towers(void *user) { return engine_release_towers(user); }

gm_status engine_store(gm_engine *engine, quant_type type, kv_store **out, error *e) {
    kv_store *store = &engine->stores[type == TYPE_F16 ? 0 : type == TYPE_F32 ? 1 : 2];
    *out = store;
    if (store->rows) return GM_OK;
    TRY(kv_store_open(store, &engine->weights.config, engine->gpu.host, type, e));
    store->gpu_moves = &engine->gpu.kv_moves;
    store->idle = engine->context;
    store->give_up = give_up_parked;
    store->free_memory = give_up_towers;
    store->user = engine;
    const size_t    which = (size_t)(store - engine->stores);
    const gm_status status = engine->on_gpu ? gpu_decoder_new(engine, store, &engine->gpu_decoders[which], e)
                                            : decoder_new(engine, store, &engine->decoders[which], e);
    if (status) kv_store_close(store);
    return status;
}

void engine_close_stores(gm_engine *engine) {
    while (engine->parked) session_free(engine->parked);
    for (size_t i = 0; i < COUNT_OF(engine->stores); i++) {
        decoder_free(engine->decoders[i]);
        gpu_decoder_free(engine->gpu_decoders[i]);
        kv_store_close(&engine->stores[i]);
    }
}

void engine_cache_use(gm_engine *engine, size_t *held, size_t *capacity) {
    *held = *capacity = 0;
    engine_enter(engine);
    for (size_t i = 0; i < COUNT_OF(engine->stores); i++) {
        *held += kv_slots_taken(&engine->stores[i].spaces[KV_FULL]);
        *capacity += engine->stores[i].spaces[KV_FULL].capacity;
    }
    engine_leave(engine);
}

/* ---- parking ---- */

/* A snapshot may come from anywhere: no other conversation may depend on it. */
static bool session_lends(const gm_session *s) { return s->shares && !s->restored && !s->foreign; }

bool session_park(gm_session *s) {
    gm_engine *engine = s->engine;
    if (!session_lends(s) || s->computed < max_size(engine->share_step, LEAST_SHARED)) return false;
    if (!engine_adapters_set_lasts(engine, s->adapters)) return false;
    for (gm_session **link = &engine->sessions; *link; link = &(*link)->next) {
        if (*link != s) continue;
        *link = s->next;
        break;
    }
    session_abandon(s);
    session_strip(s);
    soft_forget_rows(&s->soft);
    kv_park(&s->kv);
    s->next = engine->parked;
    engine->parked = s;
    return true;
}

/* ---- finding ---- */

/* How many tokens `s` can take over from `other`: multiples of share_step in common, without the last token, whose logits are always wanted. */
static size_t common_tokens(const gm_session *s, const gm_session *other) {
    const size_t most = min_size(s->tokens.count - 1, other->computed);
    size_t       n = 0;
    while (n < most && s->tokens.ids[n] == other->tokens.ids[n]) n++;
    n = soft_common(&s->soft, &other->soft, n);
    return session_batch_begin(s, n - n % s->engine->share_step);
}

typedef struct {
    gm_session *from;
    bool        parked;
    size_t      position; /* where to go on */
    size_t      common;   /* the most tokens in common with any */
} prefix_search;

static void search_list(const gm_session *s, gm_session *list, bool parked, prefix_search *found) {
    for (gm_session *other = list; other; other = other->next) {
        if (other == s || !session_lends(other) || other->kv.store != s->kv.store || other->adapters != s->adapters)
            continue;
        const size_t common = common_tokens(s, other);
        if (common < found->position + LEAST_SHARED) continue;
        const size_t position = kv_meeting_point(&other->kv, common);
        found->common = max_size(found->common, common);
        if (position < found->position + LEAST_SHARED) continue;
        *found = (prefix_search){ other, parked, position, found->common };
    }
}

/* A parked session whose own ring is needed is used up: copying the ring would need room for another one. */
static void go_on_from(gm_session *s, const prefix_search *found) {
    gm_engine *engine = s->engine;
    error      e = { 0 };
    session_abandon(s);
    s->restored = 0;
    if (found->parked && kv_ring_reaches(&found->from->kv, found->position)) {
        kv_adopt(&s->kv, &found->from->kv);
        session_free(found->from);
        session_go_back(s, found->position);
        return;
    }
    engine->pinned = found->from;
    s->computed = kv_share(&s->kv, &found->from->kv, found->position, &e) ? 0 : found->position;
    engine->pinned = NULL;
}

void session_find_prefix(gm_session *s) {
    prefix_search found = { .position = s->computed };
    s->branch = 0;
    if (!s->shares || s->tokens.count < s->computed + LEAST_SHARED + 1) return;
    search_list(s, s->engine->sessions, false, &found);
    search_list(s, s->engine->parked, true, &found);
    if (found.from) go_on_from(s, &found);
    if (found.common >= s->computed + LEAST_BRANCH) s->branch = found.common;
}
