/* The cache of experts: each layer has slots on the GPU for some of its experts, and a table that says in which slot an expert is.
 *
 * Runs do not ask the host where experts are. A kernel (wgsl/moe.wgsl, KIND slots) looks up the slots of a layer's routes in the table. If an
 * expert has none, it halts the run: it sets the run's number of tokens to 0, which makes everything that stores something do nothing, and
 * notes in the plan's report which experts the layer wants. Whoever submitted the run sees the report, has the cache load the missing
 * experts, and continues the run from that layer on (streaming.c; generator.c for steps that are decoded ahead). While experts are often missing,
 * runs also ask the next layer's router early, so that what it will probably want is loaded at the same time (experts_ahead.h).
 *
 * An expert that is loaded takes a free slot, or that of the expert with the lowest score which the layer does not want now. Scores are
 * counts of uses that halve every EXPERT_HALF_LIFE tokens. Experts come from memory or by reads, in the way of all weights (upload.c), or from a
 * copy that was made of them when they lost their slots (experts_kept.h).
 *
 *   table   of each layer, `stride` bytes apart: 1 + its number, 3 spare words; the slot of each expert (EXPERT_NOWHERE: none); its uses so far
 *   report  of each plan: the number of the layer that halted it, as in the table (0: none); whether misses are quiet; the number of the layer
 *           whose router was asked early (0: none); a spare word; then for EXPERT_MOST experts how many tokens of the run want it, then its
 *           uses so far, and then how many tokens will probably want it in the layer that was asked early. Draws follow (generator.c) */

#ifndef GM_GPU_EXPERTS_H
#define GM_GPU_EXPERTS_H

#include "gpu/backend.h"
#include "gpu/pipeline.h"

enum { EXPERT_HEADER = 4, EXPERT_MOST = 512, EXPERT_HALF_LIFE = 64, EXPERT_WEIGHTS = 3 };
enum { EXPERT_REPORT_LAYER, EXPERT_REPORT_QUIET, EXPERT_REPORT_AHEAD }; /* words of a report's header */
enum { EXPERT_REPORT_WORDS = EXPERT_HEADER + 3 * EXPERT_MOST, EXPERT_READ_TOGETHER = 4 };
#define EXPERT_NOWHERE UINT32_MAX

typedef struct {
    const gpu_weight *weights[EXPERT_WEIGHTS];
    size_t            weight_count;
    uint32_t          experts, used;
    uint32_t         *slot_of;   /* [experts]: as in the table */
    uint32_t         *expert_in; /* [slots]: EXPERT_NOWHERE if none */
    uint32_t         *seen;      /* [experts]: uses at the last report */
    float            *score;     /* [experts] */
    uint32_t         *known;     /* [experts]: uses before this engine was opened (experts_profile.h) */
    gpu_id           *kept; /* [experts]: a source with a copy of its planes in all weights; 0: none (experts_kept.h) */
    uint32_t          changes; /* how often slots got other experts */
} expert_layer;

typedef struct {
    uint64_t picks;    /* pairs of a token and one of its experts, in all layers, */
    uint64_t missed;   /* and how many of them had to be loaded first */
    uint64_t loaded;   /* experts, */
    uint64_t bytes;    /* and their bytes in the file; */
    uint64_t restored; /* how many of them came from a copy, */
    uint64_t ahead;    /* and how many before a run wanted them */
    uint64_t tokens;
    uint64_t reports; /* that the host waited for */
} expert_statistics;

/* What was counted since `before`. */
expert_statistics expert_statistics_since(const gpu_backend *b, const expert_statistics *before);

/* What is being loaded: experts and the slots that they get. The first are wanted, the others, of the next layer, probably. */
typedef struct {
    const void   *owner;    /* whose run waits for it; NULL: nothing is being loaded, and nobody holds what was */
    expert_layer *layer[2]; /* of the two kinds; NULL: there are none */
    bool          complete, from_file; /* from_file: not all of them had a copy */
    uint32_t      patience;            /* how often others have waited for the owner to go on */
    uint32_t      expert[EXPERT_MOST], slot[EXPERT_MOST];
    uint32_t      replaced[EXPERT_MOST]; /* which experts were in these slots; EXPERT_NOWHERE: none */
    size_t        count, wanted;         /* experts; how many of them are of layer[0] */
    size_t        staged, weight;        /* which of them is staged next, of which weight, */
    uint32_t      chunk;                 /* and from where on */
} expert_job;

/* Experts that are being read back together. */
typedef struct {
    expert_layer *layer; /* NULL: none */
    uint32_t      expert[EXPERT_READ_TOGETHER], ticket[EXPERT_READ_TOGETHER * EXPERT_WEIGHTS * WEIGHT_PLANES];
    size_t        count, tickets, taken; /* taken: the first of them have their copies */
} expert_reading;

typedef struct expert_cache {
    expert_layer     *layers;
    size_t            layer_count;
    uint32_t          slots;
    uint64_t          stride;
    gpu_id            table; /* 0: not made yet */
    gpu_lanes         lanes;
    expert_job        job;
    size_t            warm;      /* layers whose slots were filled by a profile, or need not be */
    uint32_t          kept_most; /* copies of each layer's experts in main memory */
    expert_reading    reading[8];
    expert_statistics statistics;
    const graph      *listing; /* while weights are listed: the last weight's routes belong to the last layer */
    const tensor     *routes;
} expert_cache;

/* While weights are listed: notes the weight of this product, if it is cached. */
gm_status expert_cache_add(gpu_backend *b, const op *product, error *e);
/* Creates the slots, the tables and the staging buffer, if there is a cache and they are not there yet. */
gm_status expert_cache_make(gpu_backend *b, error *e);
void      expert_cache_free(gpu_backend *b);

/* The experts that a run wants in a layer, from its report. */
typedef struct {
    expert_layer *layer;               /* NULL: none */
    uint32_t      wanted[EXPERT_MOST]; /* tokens that want it, and did not get it yet */
} expert_wants;

/* Reads a report: what the layer wants that halted the run, and what the next one will probably want. Counts the misses, and updates scores. */
void expert_cache_report(expert_cache *c, const uint32_t *report, expert_wants *wants, expert_wants *ahead);

/* Counts a run of so many tokens. */
void expert_cache_count(expert_cache *c, size_t tokens);

/* Whether an expert that is wanted has no slot. */
bool expert_cache_lacks(const expert_wants *wants);
/* Loads missing experts, as many as there are slots that hold none that is wanted, of both layers. GM_AGAIN: let gpu_host_wait run, and call
 * again. Then the table has them, and they stay until expert_cache_release. A failed read is an error; the cache stays usable. */
gm_status expert_cache_load(gpu_backend *b, const void *owner, const expert_wants *wants, const expert_wants *ahead,
                            error *e);
/* Strikes out experts that are there: a run has just used them. Returns whether some are left. */
bool expert_cache_strike(expert_wants *wants);
/* What was loaded for the owner may be replaced. Drops what is still being loaded, and takes copies that have arrived. */
void expert_cache_release(gpu_backend *b, const void *owner);

/* The table of a weight's layer. */
gpu_binding expert_cache_binding(const gpu_backend *b, const gpu_weight *w);
/* The expert in a slot of this weight; 0 if there is none. */
uint32_t expert_cache_in_slot(const gpu_backend *b, const gpu_weight *w, uint32_t slot);

#endif
