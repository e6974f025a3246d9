/* An engine: one model on one device. */

#ifndef GM_ENGINE_H
#define GM_ENGINE_H

#include "base/clock.h"
#include "base/turns.h"
#include "cpu/backend.h"
#include "gpu/backend.h"
#include "model/model.h"
#include "session/adapters.h"
#include "session/batches.h"
#include "session/kv_store.h"
#include "session/plans.h"
#include "session/tower.h"
#include "text/chat.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

enum { MOST_STOPS = 64 }; /* strings that end a reply */

/* The self-check of a K/V type other than the usual one: engine_check_kv. */
typedef struct {
    struct self_check *running;
    bool               passed;
    error              refused; /* status 0: it was not */
} engine_kv_check;

/* What the check of training has found (train/train_check.h), for the kind of training that it was for; key 0: none was. */
typedef struct {
    uint64_t key;
    error    refused; /* status 0: it was not */
} engine_train_check;

struct gm_engine {
    turns               turns;        /* who may use the backend: engine_enter */
    double              turn_seconds; /* how long a call may work before it returns GM_AGAIN */
    gguf               *file;
    gguf               *projector; /* a second file with towers; NULL: none */
    model               weights;
    graph               text;
    engine_adapters     adapters; /* adapters.h: with a second graph */
    bool                on_gpu, precise, exact;
    cpu_backend         cpu; /* one of the two is open */
    gpu_backend         gpu;
    plan_set            plans;
    gpu_budget          budget;       /* which weights the GPU holds; used if there is a limit */
    engine_kv_check     kv_checks[3]; /* f16, f32, q8_0 */
    engine_train_check  train_check;
    kv_store            stores[3];       /* the same; opened when a session wants one */
    struct decoder     *decoders[3];     /* of the stores, on the CPU */
    struct gpu_decoder *gpu_decoders[3]; /* and on a GPU */
    struct denoiser    *denoiser;        /* of a diffusion model; else NULL */
    engine_tower        towers[TOWER_KINDS];
    size_t              share_step; /* sessions share whole multiples of this: sharing.c */
    batch_sizes         batches;    /* of prompts on the GPU */
    gm_session         *sessions;   /* open ones, linked by gm_session.next */
    gm_session         *parked;     /* closed ones whose keys and values are still there; the latest first */
    gm_session         *pinned;     /* the one of these that must stay */
    reads              *reads;      /* orders for bytes that are not in memory */
    tokenizer          *words;
    uint32_t           *suppressed; /* a bit per id that is never drawn; NULL: none */
    chat_variant        variant;
    gm_sampling         sampling; /* the model's own defaults */
    uint32_t            context;  /* of sessions that do not ask for another */
    arena               memory;   /* the strings below */
    const char         *name, *device, *system;
    const char        **stops; /* with most_tokens what ends a reply for which nothing else is asked; 0: nothing */
    size_t              stop_count;
    uint32_t            most_tokens;
    char                note[512]; /* what does not fit into GPU memory, or is not exact */
    char                why_device[400];
    char                digest[65]; /* identifies model and weights */
    const char         *cache;      /* a folder for the profile of experts; NULL: it is not stored */
    uint8_t             projector_digest[32];
    /* What opening took: the GPU's self-check and the upload of the weights, which overlap, and the wait for the shaders that were
     * not compiled by then. */
    struct {
        double check, upload, shaders;
    } seconds;
};

/* Sessions may run in several threads, but the backend (scratch memory, GPU queue, reads) serves one at a time. Each public
 * function that uses it does so between these two, for one step: never while it waits to be called again. Inside, functions
 * call each other by their internal names; a gm_… function would wait for its own thread. */
static inline void engine_enter(gm_engine *engine) { turns_enter(&engine->turns, TURN_LONG); }
/* For the next token of an answer: comes before prompts that wait, but only one of each answer. */
static inline void engine_enter_writing(gm_engine *engine) { turns_enter(&engine->turns, TURN_SHORT); }
static inline void engine_leave(gm_engine *engine) { turns_leave(&engine->turns); }

static inline double engine_deadline(const gm_engine *engine) { return clock_seconds() + engine->turn_seconds; }

/* What is known of a model beside its file: `name` is what the user called it, `renderer`, `params` and `system` come from Ollama's
 * store; each may be NULL. */
typedef struct {
    const char        *name, *renderer, *params, *system;
    const char *const *adapters; /* paths of adapters that are part of the model */
    size_t             adapter_count;
} engine_origin;

/* The two variants of the chat format differ when thinking is off. */
chat_variant engine_chat_variant(const model_config *config, const engine_origin *origin);
/* Finds a model by path, Ollama name or "box". The strings live in the arena. */
gm_status engine_find_model(const char *model, arena *a, const char **path, engine_origin *origin, error *e);

/* Whether the GPU computes attention right with keys and values of this type; the first call for a type that is not the usual one
 * begins to check. GM_AGAIN: let gpu_host_wait run, and call again. GM_NO_DEVICE: it does not, and never will. */
gm_status engine_check_kv(gm_engine *engine, quant_type kv, error *e);
void      engine_check_end(gm_engine *engine); /* drops checks that are under way */

/* sharing.c: the store for keys and values of this type, and the end of all stores. */
gm_status engine_store(gm_engine *engine, quant_type type, kv_store **out, error *e);
void      engine_close_stores(gm_engine *engine);

/* The end of opening (load.h): what the model says about itself, once weights and backend are there. */
gm_status engine_describe(gm_engine *engine, const engine_origin *origin, error *e);

#endif
