/* The internals of a plan, for other files of this folder.
 *
 *   plan_decide.c  decides for each op which kernels compute it and what they need, and lays out memory
 *   plan_record.c  turns these decisions into pipelines, bind groups and a command list
 *   plan.c         creates plans and submits their runs
 *
 * Each value is a range of one large buffer, or of one of several, if it would be too large. What changes between runs (the tokens' records, wanted rows, the ticket of
 * the result) is part of the list, and a run overwrites it there. */

#ifndef GM_GPU_PLAN_H
#define GM_GPU_PLAN_H

#include "gpu/backend.h"
#include "gpu/canvas_kernels.h"
#include "gpu/gradient_kernels.h"
#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "gpu/pipeline.h"
#include "graph/layout.h"

enum { PLAN_ALIGNMENT = 256 }; /* of bindings */
/* A command of a list has up to 65,535 words, so it writes the records of so many tokens. A run with more, such as the patches of a
 * large picture, writes the others to the buffer before it is submitted. */
enum { PLAN_LISTED_TOKENS = 4095 };
/* Plans of a batched graph for more tokens than this choose kernels, tiles and splits as the plan for this many does, so that they add
 * in the same order. A prompt then has the same results wherever it is cut, as long as the parts are multiples of this. */
enum { PLAN_ALIKE = 256 };
enum { PLAN_MEMORIES = 32 };
#define PLAN_SEGMENT (UINT64_C(1) << 30) /* of the values, unless one of them is larger */
typedef struct plan_streaming plan_streaming;

/* The size of the run buffer of a plan for so many tokens: wgsl/run.wgsl. */
static inline uint64_t plan_run_bytes(size_t tokens) {
    return (RUN_HEADER_WORDS + RECORD_WORDS * tokens) * sizeof(uint32_t);
}

/* A dispatch whose y depends on the run's spans (kernel.h). */
typedef struct {
    size_t   at; /* where y is in the list */
    uint32_t tile_queries, token_queries;
} plan_tiles;

/* What a plan decides about one op. */
typedef struct {
    const gpu_weight *weight;                /* EMBED, PRODUCTS: the matrix */
    uint32_t          part_first, part_rows; /* PRODUCTS: its rows, if others lie joined with them; part_rows 0: all */
    bool              gathered; /* EMBED: the host looks up the rows, and writes them before the first dispatch */
    bool              q8;       /* PRODUCTS, SHRINKS, …_BACK: reads an input in 8 bits or f16, from `quantised` */
    bool              groups;   /* PRODUCTS: reads the pairs grouped by expert, from the item `grouped` */
    gpu_column        column;   /* PRODUCTS with few columns, SHRINKS: how they are read, unless q8 */
    bool              gives_q8; /* PRODUCTS: writes its result in 8 bits; its only reader has COLUMN_GIVEN */
    bool
        quantises; /* NORMS: writes what products read in 8 bits, to the item `quantised`: its result, or also its sum */
    bool     aligned;      /* the second input of a gate is bound at the aligned offset below it */
    uint32_t splits;       /* ATTENTION, ATTEND: among how many workgroups the keys are divided */
    uint32_t parts;        /* SHRINKS with few tokens: its readers add up so many parts; 0: none */
    bool     by_attention; /* SHRINKS that the attention before it computes, which combines its splits */
    /* scratch items; -1: none */
    int32_t quantised, grouped, partial, slotted;
    bool makes_quantised, makes_grouped, makes_slotted; /* the first reader of such an item dispatches what fills it */
    uint32_t section_end;                               /* with makes_slotted: the last product that reads it */
} plan_op;

/* A dispatch that binds keys and values. Its bind group is created again when they move. */
typedef struct {
    size_t      at;    /* where the group is in the list */
    size_t      group; /* and in `groups` */
    gpu_id      pipeline;
    uint32_t    layer;
    size_t      count;
    uint8_t     binds[KERNEL_BINDS];
    gpu_binding bindings[KERNEL_BINDS];
} plan_kv_dispatch;

/* A dispatch: where it ends in the list, and about how much it computes. */
typedef struct {
    size_t end;
    double work;
} plan_step;

struct gpu_generator;

struct gpu_plan {
    gpu_backend *backend;
    graph        g;   /* after fusion */
    plan_op     *ops; /* [g.op_count] */
    /* [g.op_count]: of an op that asks a router early, a weight of that layer's experts (experts_ahead.h); NULL: there are none */
    const gpu_weight **ahead;
    gpu_kv_layer      *kv; /* [layers]: what it is bound to */
    size_t             layers;
    plan_kv_dispatch  *kv_dispatches;
    size_t             kv_count, kv_capacity;
    uint32_t           rebinds;
    uint32_t           tokens, outputs;
    bool               rows_alone; /* each token is a sequence of its own */
    layout_item       *items;      /* values by index, then the plan's scratch items */
    size_t             item_count;
    /* Buffers: values, the run, u32 [outputs]. Places of values count on from each buffer to the next, which begins at a multiple of
     * `segment`. */
    gpu_id   memory[PLAN_MEMORIES], run, rows;
    uint64_t segment;
    gpu_id   report; /* of experts that are missing (gpu/experts.h); 0: all are on the GPU */
    bool guarded; /* its kernels do nothing after a run has halted (gpu_kernel.guarded), because experts were missing */
    gpu_id    numbers;      /* the kernels' numbers, PLAN_ALIGNMENT apart */
    gpu_words number_words; /* a list that writes them, once */
    size_t    number_count;
    uint64_t  bytes;
    struct plan_pipeline {
        uint64_t hash;
        gpu_id   id;
    }      *pipelines; /* by hash of the kernel: layers repeat kernels, and a lookup by shader text is slow */
    size_t  pipeline_count, pipeline_capacity;
    gpu_id *groups;
    size_t  group_count, group_capacity;
    /* The list: writes of the run and of the wanted rows; then the dispatches, words[first_dispatch .. end_dispatch);
     * then a read of each result. */
    gpu_words   words;
    gpu_words   ahead_words; /* records of dispatches that ask routers early; streaming.c knows when they run */
    size_t      at_run, at_rows, first_dispatch, end_dispatch;
    size_t      at_ticket[GRAPH_RESULTS], end_read[GRAPH_RESULTS]; /* of the results: where their reads are, and end */
    size_t      dispatches, split; /* split: the first dispatch of the graph's second part */
    plan_step  *steps;             /* [dispatches] */
    size_t      step_capacity;
    gpu_words   piece;   /* of a run that is submitted in pieces */
    gpu_id      passing; /* a buffer for copies within the plan's memory; 0: not needed yet */
    uint64_t    passing_bytes;
    plan_tiles *tiles;
    size_t      tiles_count, tiles_capacity;

    plan_streaming       *streaming; /* NULL: every weight is on the GPU */
    struct gpu_generator *drawing;   /* the generator whose token is in the run buffer; NULL: a run's */

    gpu_kernel_visit *visit; /* not NULL: only visits the kernels, and creates nothing */
    void             *visit_user;
};

static inline bool op_is_attention_back(const op *o) {
    return o->kind == OP_ATTENTION_BACK_Q || o->kind == OP_ATTENTION_BACK_KV;
}

static inline bool op_has_cache(const op *o) {
    return o->kind == OP_KV_STORE || o->kind == OP_ATTENTION || o->kind == OP_HEADS || o->kind == OP_ATTEND ||
           op_is_attention_back(o);
}

static inline bool op_is_product_back(const op *o) {
    return o->kind == OP_MATMUL_BACK || o->kind == OP_MATMUL_EXPERTS_BACK;
}

/* Which input of a product, or of SHRINKS, has the columns, */
static inline int product_column(const op *o) {
    if (op_is_attention_back(o)) return 2; /* gradients */
    return op_is_product_back(o) || o->kind == OP_CANVAS_HEAD ? 1 : FUSED_A;
}
/* and which one the routes. */
static inline int product_routes(const op *o) { return o->kind == OP_PRODUCTS ? FUSED_ROUTES : 2; }

/* The value that a view is a part of, or the value itself. */
static inline const tensor *plan_base(const tensor *t) { return t->base ? t->base : t; }

/* The most entries that a value can have. */
static inline uint32_t plan_count(const gpu_plan *p, const tensor *t) {
    return t->axis == AXIS_TOKENS ? p->tokens : t->axis == AXIS_OUTPUTS ? p->outputs : 1;
}

/* The number of entries that decides the kernels of an op on so many. */
static inline uint32_t plan_alike(const gpu_plan *p, uint32_t count) {
    return p->g.batched && count > PLAN_ALIKE ? PLAN_ALIKE : count;
}

/* The buffer of a place in the plan's memory; the place there is at % segment. */
static inline gpu_id plan_memory(const gpu_plan *p, uint64_t at) { return p->memory[at / p->segment]; }

static inline gpu_place plan_place(const tensor *t) {
    return (gpu_place){ (uint32_t)t->offset, (uint32_t)t->token_stride, (uint32_t)t->row_stride };
}

static inline bool plan_is_ahead(const gpu_plan *p, size_t i) { return p->ahead && p->ahead[i]; }

/* ---- plan_decide.c ---- */

/* Fills in p->ops, then p->items and p->bytes. */
gm_status plan_decide(gpu_plan *p, error *e);
gm_status plan_lay_out(gpu_plan *p, error *e);

/* Elements that lie between the aligned offset at which a value is bound and its own. */
uint64_t               plan_beyond_alignment(const tensor *t);
bool                   plan_precise(const gpu_plan *p); /* f32 in every product */
gpu_kv                 plan_kv(const gpu_plan *p, const op *o);
double                 plan_work(const gpu_plan *p, const op *o);        /* about how many operations */
gpu_groups             plan_groups(const gpu_plan *p, size_t i);         /* of a product of experts */
gpu_clips              plan_clips(const op *o);                          /* of a product */
gpu_corrections        plan_corrections(const gpu_plan *p, const op *o); /* the same */
uint64_t               plan_shrunk_stride(const gpu_plan *p, size_t i);  /* of the rows of a SHRINKS' result */
gpu_matmul_job         plan_product_job(const gpu_plan *p, size_t i, uint32_t tile);
gpu_back_job           plan_back_job(const gpu_plan *p, size_t i);
gpu_attention_back_job plan_attention_back_job(const gpu_plan *p, size_t i);
gpu_canvas_job         plan_canvas_job(const gpu_plan *p, size_t i);

/* ---- plan_record.c ---- */

/* Creates the plan's buffers, pipelines and bind groups, and records its list. With p->visit set, only visits. */
gm_status plan_record(gpu_plan *p, error *e);

/* Creates a pipeline and a bind group for a kernel, whose bindings are entries of `table`, and records a dispatch at the
 * end of `words`. The caller owns the group; 0 on failure. */
gpu_id plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *table, error *e);

/* ---- plan.c ---- */

/* Where the result [outputs, n] is. */
gpu_binding gpu_plan_result_range(const gpu_plan *p, uint64_t bytes);

/* Writes what changes between runs into the list: records, tiles, wanted rows. */
gm_status plan_write_inputs(gpu_plan *p, const run_inputs *in, error *e);

/* Writes the given rows to where the plan reads them. GM_AGAIN: call again before submitting anything else. */
gm_status gpu_plan_write_given(const gpu_plan *p, const run_inputs *in, error *e);

#endif
