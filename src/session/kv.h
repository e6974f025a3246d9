/* The keys and values of one session, layer by layer. Layers that share another layer's cache have none.
 *
 * A full layer keeps every position and grows by doubling. A sliding layer is a ring of window + slack slots: position p
 * lives in slot p mod slots. Masks compare positions, so rows beyond the end are never seen, and rolling back up to `slack`
 * tokens (KV_SLACK, or more after a larger batch) costs nothing. For longer jumps we copy the rings now and then (marks):
 * rolling back to a mark, or to a position behind it, starts from that copy. There is room for at least two marks, whatever
 * the model's size. Everything lives either in main memory or on the GPU. */

#ifndef GM_KV_H
#define GM_KV_H

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "model/config.h"
#include "session/kv_memory.h"
#include "session/records.h"

enum { KV_SLACK = 256, KV_BATCH = 256 }; /* a batch must not be larger than the slack: kv_widen */

typedef struct kv_mark kv_mark;

typedef struct {
    kv_memory k, v;
    size_t    row;   /* bytes of a position's keys */
    size_t    slots; /* of a full layer: its capacity */
    bool      ring;
} kv_rows;

typedef struct {
    const model_config *config;
    gpu_host           *gpu;        /* NULL: main memory */
    kv_rows            *rows;       /* [layers] */
    kv_layer           *cpu_layers; /* the same in the backend's form; one of the two */
    gpu_kv_layer       *gpu_layers;
    quant_type          type;
    size_t              context;
    size_t              slack;    /* slots of a ring beyond the window */
    size_t              capacity; /* positions that the full layers have room for */
    uint32_t            changes;  /* counts how often rows moved to other memory */
    uint64_t            high;     /* one past the highest position that the rings were written at */
    uint64_t            low; /* below this they were never filled: a mark or a snapshot holds no more than the window */
    kv_mark            *marks; /* the newest first */
    uint64_t            mark_bytes, mark_budget;
} kv_cache;

/* Bytes of one mark, and of all marks of a session together. `on_gpu`: with the GPU's rows, which differ for q8_0. */
uint64_t kv_mark_bytes(const model_config *config, quant_type type, bool on_gpu);
uint64_t kv_mark_budget(const model_config *config, quant_type type, bool on_gpu);

/* The largest context whose keys this GPU can bind; unlimited without a GPU. */
size_t kv_most_context(const model_config *config, gpu_host *gpu, quant_type type);

gm_status kv_open(kv_cache *kv, const model_config *config, gpu_host *gpu, quant_type type, size_t context, error *e);
void      kv_close(kv_cache *kv);
/* Where the sequence's keys and values are, for its tokens' records. */
record_sequence kv_sequence(const kv_cache *kv);
/* Makes room for `positions` in the full layers. */
gm_status kv_reserve(kv_cache *kv, size_t positions, error *e);
/* Makes the rings wide enough for a batch of `batch` tokens. */
gm_status kv_widen(kv_cache *kv, size_t batch, error *e);
/* Notes that positions up to `end` were written. */
void kv_written(kv_cache *kv, uint64_t end);
/* Forgets the positions from `keep` on. Returns the position from which the rest must be computed again: `keep` itself if
 * nothing was lost. */
size_t kv_rollback(kv_cache *kv, size_t keep);
/* Copies the rings as they are at `position`, which is the end of the tokens held. Marks only save time, so running out of
 * memory is no error. */
void      kv_add_mark(kv_cache *kv, size_t position);
gm_status kv_copy(kv_cache *out, const kv_cache *kv, size_t positions, error *e);

/* The first position that the rings still hold, if the session holds `end` positions. */
size_t kv_ring_first(const kv_cache *kv, size_t end);

#endif
