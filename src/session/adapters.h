/* The adapters of an engine: slots that hold them, and the weighted sets that tokens' records name.
 *
 * The engine has a second text graph, with corrections for every weight that one of its adapters has a pair for (a site), and so has each
 * tower as soon as something is encoded with adapters that correct it (tower.c). A site has
 * room for a pair in each slot, of a rank class: ranks are padded with zeros to a power of two. Loading an adapter that fits only fills a
 * slot. One that needs a new site, a higher class or a further slot makes sites and graph anew, and with them the plans.
 *
 * A set gives slots weights. Sessions with the same adapters and scales have the same set, and only then can they share keys and values.
 * Set 0 is empty: runs in which all tokens have it use the plain graph and its plans, as if there were no adapters.
 *
 * On the GPU, slots and sets are written before the next run that needs them: engine_adapters_ready. All functions are called between
 * engine_enter and engine_leave. */

#ifndef GM_SESSION_ADAPTERS_H
#define GM_SESSION_ADAPTERS_H

#include "session/adapter_sites.h"

struct gm_adapter {
    gm_engine *engine;
    adapter   *content;
    uint32_t   slot;
    size_t     users;                /* its owner, and each set that it is part of */
    bool       owned;                /* its owner has not freed it */
    bool       written[MODEL_PARTS]; /* its slot has its matrices for this part of the model */
};

typedef struct {
    adapter_sites sites;
    gm_adapter  **slots; /* [sites.model.slots]; NULL: free */
    size_t        count; /* of adapters */
    size_t        own;   /* the first so many are part of the model, and of every set but 0 */
    size_t        users[ADAPTER_SETS];
    uint64_t      places;        /* numbers that were given to vectors on the GPU */
    bool          table_written; /* on the GPU */
    struct {                     /* what is written there next */
        model_part of;           /* the part of the model whose matrices these are */
        size_t     part;         /* 2 · site: A; 2 · site + 1: B, among the sites of `of` */
        uint64_t   row;          /* of all experts' matrices */
        float     *scratch;
    } next;
} engine_adapters;

/* Whether the engine's model and towers can use it. */
gm_status engine_adapters_check(const gm_engine *engine, const adapter *content, error *e);
/* Takes ownership of `content`, even on failure. Nothing changes if it does not fit. */
gm_status engine_adapters_add(gm_engine *engine, adapter *content, gm_adapter **out, error *e);
/* One user less. The last one frees the adapter and its slot. */
void engine_adapters_drop(gm_adapter *a);
void engine_adapters_close(gm_engine *engine);

/* Before a run or a plan of this part of the model that uses them: writes what the GPU does not have yet. A tower's graph must have its
 * buffers. GM_AGAIN: let gpu_host_wait run, and call again. */
gm_status engine_adapters_ready(gm_engine *engine, model_part part, error *e);
/* The GPU no longer has, or never had, the matrices for this part of the model: they are written again. */
void engine_adapters_lost(gm_engine *engine, model_part part);
/* The graph of a run: `adapted` if some of its tokens has a set other than 0. */
const graph *engine_adapters_graph(const gm_engine *engine, bool adapted);

/* The set of these adapters, with one user more. Leave it when it is no longer used. */
gm_status engine_adapters_take_set(gm_engine *engine, gm_adapter *const *adapters, const float *scales, size_t count,
                                   uint32_t *set, error *e);
void      engine_adapters_keep_set(gm_engine *engine, uint32_t set); /* one user more */
void      engine_adapters_leave_set(gm_engine *engine, uint32_t set);
/* Whether the owners of all its adapters still have them. Otherwise only open sessions use the set. */
bool engine_adapters_set_lasts(const gm_engine *engine, uint32_t set);
/* Identifies a set by the contents and scales of its adapters, on any engine; not for set 0. */
void engine_adapters_digest(const gm_engine *engine, uint32_t set, char hex[65]);
/* The same of those that correct this part of the model; "": none does, or the set is 0. */
void engine_adapters_part_digest(const gm_engine *engine, uint32_t set, model_part part, char hex[65]);
/* Whether the towers compute the same with both sets. */
bool engine_adapters_see_alike(const gm_engine *engine, uint32_t set, uint32_t other);

/* gm_session_adapters with an error to pass on. */
gm_status session_set_adapters(gm_session *s, gm_adapter *const *adapters, const float *scales, size_t count, error *e);

#endif
