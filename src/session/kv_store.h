/* The keys and values of all sessions of one engine, in one type: per layer one buffer of keys and one of values.
 *
 * There are two kinds of slots. A slot of the full layers holds one position in each of them; a sequence has an extent of these, and
 * may share the extent of another as its prefix. A slot of the sliding layers likewise; a sequence has one extent of these, its
 * ring. kv.h has the sequences. */

#ifndef GM_KV_STORE_H
#define GM_KV_STORE_H

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "model/config.h"
#include "session/kv_memory.h"
#include "session/kv_slots.h"

typedef enum { KV_FULL, KV_RINGS, KV_SPACES } kv_space;

typedef struct kv_mark  kv_mark;
typedef struct kv_store kv_store;

/* A layer's rows. Layers that share another layer's have none. */
typedef struct {
    kv_memory k, v;
    size_t    row;   /* bytes of a position's keys; 0: the layer has none */
    size_t    slots; /* at least the capacity of its space */
    kv_space  space;
} kv_rows;

struct kv_store {
    const model_config *config;
    gpu_host           *gpu;       /* NULL: main memory */
    uint32_t           *gpu_moves; /* counts its moves, too, for whoever has runs under way on the GPU; or NULL */
    quant_type          type;
    kv_rows            *rows;       /* [layers] */
    kv_layer           *cpu_layers; /* the same in the backend's form; one of the two */
    gpu_kv_layer       *gpu_layers;
    kv_slots            spaces[KV_SPACES];
    size_t              most[KV_SPACES]; /* slots: a GPU binds all keys of a layer at once, and all values */
    kv_mover            mover;
    uint32_t            moves;     /* counts how often they moved to other slots */
    uint32_t            numbers;   /* the number of the sequence opened last */
    size_t              sequences; /* open ones */
    size_t              contexts;  /* of these together */
    size_t              idle;      /* slots of the full layers that the store may have for sequences that nobody uses */
    kv_mark            *marks;     /* of all sequences; the one used last comes first */
    uint64_t            mark_bytes, mark_budget;
    /* Gives up slots of a sequence that nobody uses. False: there are none. NULL: there never are. */
    bool (*give_up)(void *user, kv_store *store, kv_space space);
    bool (*free_memory)(
        void *user); /* frees memory of others, if there is none to grow; false: they have none to spare */
    void *user;
};

/* The most positions of full layers that a binding of this many bytes holds, which is the most for all sessions together. */
size_t kv_binding_positions(const model_config *config, uint64_t binding, quant_type type);
/* The same for this GPU; unlimited without one. */
size_t kv_most_context(const model_config *config, gpu_host *gpu, quant_type type);

gm_status kv_store_open(kv_store *store, const model_config *config, gpu_host *gpu, quant_type type, error *e);
void      kv_store_close(kv_store *store); /* there must be no sequences left */

/* Gives an extent `count` slots, wherever there is room, and moves its rows along. One that has no slots yet has count 0. On failure
 * the extent is as before. */
gm_status kv_store_fit(kv_store *store, kv_space space, kv_extent *x, size_t count, error *e);
/* A new extent with one user; NULL on failure. */
kv_extent *kv_store_take(kv_store *store, kv_space space, size_t count, error *e);
/* One user less; the last one frees the slots. NULL is fine. */
void kv_store_release(kv_store *store, kv_space space, kv_extent *x);
/* Copies rows of all layers of a space from one slot to another. */
gm_status kv_store_move(kv_store *store, kv_space space, size_t from, size_t to, size_t count, error *e);

#endif
