/* What the kernels of a plan bind: an input of their op, or one of the ranges below. A plan fills in a table of these for
 * each op; a kernel lists, in the order of its shader's bindings, which entries it takes. */

#ifndef GM_GPU_PLAN_BINDS_H
#define GM_GPU_PLAN_BINDS_H

#include "graph/graph.h"

enum {
    BIND_IN = 0,          /* + j: in[j]. The whole base of a value; offset and strides of a view are constants of the
                           * kernel, so two inputs with the same base are bound once. Or all of a weight that is a vector */
    BIND_OUT = OP_INPUTS, /* out: the whole base, as above */
    BIND_SUM,             /* the second result of NORMS, PRODUCTS and ATTENTION */
    BIND_WEIGHTS,         /* the tile of a matrix that the dispatch reads */
    BIND_QUANTISED,       /* a product's input in 8 bits (or f16), gpu_quantised_bytes */
    BIND_GROUPS,          /* u32: [experts + 1] starts, the tiles, [tokens · used] pairs by expert (wgsl/moe.wgsl) */
    BIND_PARTIAL,         /* scratch between two dispatches of an op that is split */
    BIND_NUMBERS,         /* f32 [KERNEL_NUMBERS]: what differs between layers that share a pipeline */
    BIND_RUN,             /* the run: its counts, then the tokens' records (wgsl/run.wgsl) */
    BIND_ROWS,            /* u32 [outputs]: the tokens whose outputs are wanted, ascending */
    BIND_KEYS,            /* the cache of the op's layer, gpu_kv_bytes each */
    BIND_VALUES,
    BIND_SLOTS,       /* u32 [tokens, 2 · used]: the slots of a product's experts (gpu/experts.h) */
    BIND_SLOT_TABLE,  /* of the product's layer */
    BIND_SLOT_REPORT, /* of the plan */
    BIND_GUARD,       /* the run's header, as a uniform (gpu_kernel.guarded) */
    PLAN_BINDS,
};

#endif
