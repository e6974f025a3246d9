/* The plans of an engine. There is one per graph and shape class, and all sessions share it: a session borrows a plan for as long as
 * a run needs it. A run that is interrupted keeps its plan, so that another session's run does not disturb it; only then is there a
 * second plan of a class. Plans live as long as their engine, except those for adapters, which
 * are dropped when the adapters' sites change. */

#ifndef GM_PLANS_H
#define GM_PLANS_H

#include "cpu/backend.h"
#include "gpu/generator.h"

/* GPU plans exist for 1, 4, 16, 64 and 256 tokens, and for prompts also for BATCH_MOST as soon as there are batches beyond KV_BATCH.
 * Larger ones are made as the largest run needs them. Plans with rows exist for 2, 4, 8, 16 and 32. */
enum { PLANS_LARGEST_CLASS = 256, PLANS_MOST_ROWS = 32 };

typedef struct shared_plan shared_plan;
struct shared_plan {
    shared_plan *next;
    const graph *g;
    cpu_plan    *cpu; /* one of the two */
    gpu_plan    *gpu;
    bool         rows, borrowed;
};

typedef struct {
    cpu_backend *cpu; /* one of the two */
    gpu_backend *gpu;
    shared_plan *first;
    size_t       largest_batch; /* GPU: the largest class of graphs with batches; 0: PLANS_LARGEST_CLASS */
    double       seconds;       /* that making plans has taken so far */
} plan_set;

/* What a run needs. */
typedef struct {
    const graph        *g;
    size_t              tokens, outputs;
    size_t              most_outputs; /* that plans for several outputs have room for */
    const gpu_kv_layer *kv;           /* GPU: the caches to bind */
    /* Each token continues another sequence and is computed as if alone. At most PLANS_MOST_ROWS, all with outputs. */
    bool rows;
} plan_wish;

/* Returns a plan that nobody else uses until plans_return. Call plans_return also if a run fails. NULL on failure. */
shared_plan *plans_borrow(plan_set *plans, const plan_wish *wish, error *e);
void         plans_return(shared_plan *plan); /* may be NULL */
/* Frees the plans of a graph whose weights are about to be released. Nobody may use one. */
void plans_drop(plan_set *plans, const graph *g);
/* Whether somebody has borrowed the generator's plan. */
bool plans_lent(const plan_set *plans, const gpu_generator *g);
/* How many there are. */
size_t plans_count(const plan_set *plans);
void   plans_close(plan_set *plans);

#endif
