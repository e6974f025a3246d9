/* Inside of the self-check: self_check.c runs the checks, check_list.c finds out which ones a model needs, check_graphs.c builds
 * their graphs, and check_draws.c checks the sampler. */

#ifndef GM_SELF_CHECK_PARTS_H
#define GM_SELF_CHECK_PARTS_H

#include "cpu/backend.h"
#include "gpu/generator.h"
#include "gpu/pipeline.h"
#include "session/records.h"
#include "session/self_check.h"
#include "text/sampler.h"

enum {
    TABLE_ROWS = 16,      /* inputs are rows of a table, as in a model */
    DISTINCT_TOKENS = 13, /* a run of more tokens repeats these, so that the CPU computes few */
    MOST_TOKENS = 141,
    MOST_RUNS = 4,
    FULL_SLOTS = 512, /* as many as a session begins with, so that its kernels are the same */
};

/* The first blocks of one of the model's weights, read as a matrix of another shape; over again if there are not enough. */
typedef struct {
    quant_type    type;
    const char   *name;
    const void   *data; /* NULL: the bytes are in the source */
    source       *from;
    uint64_t      place;
    uint64_t      bytes; /* that the weight has */
    uint64_t      k, rows, experts;
    weight_layout like; /* the weight as the model has it: decides which kernel is used */
} check_matrix;

typedef struct {
    op           o; /* its attributes; the tensors are gone */
    bool         residual, routed, slots;
    check_matrix w;
} check_product;

/* An input of an op: where it lies in its value, and which of the op's inputs lie in the same one. */
typedef struct {
    bool        value, weight;
    tensor_axis axis;
    uint64_t    n, rows, offset, row_stride, token_stride;
    size_t      same_as; /* the first input in the same value */
} check_view;

typedef struct {
    uint32_t tokens;         /* computed in this run, */
    uint32_t class, outputs; /* by a plan for so many */
    bool rows;               /* each token is a span of its own */
} check_run;

typedef struct {
    char          what[96]; /* for messages */
    op            o;        /* of the model's fused graph: its attributes */
    check_view    in[OP_INPUTS];
    check_product products[2]; /* the op's own last; the one that makes its column first, if that comes in 8 bits */
    size_t        product_count;
    uint32_t      heads, kv_heads, head, window; /* attention */
    uint32_t      axes;                          /* ROPE_TABLE */
    bool          store;
    bool          cached; /* experts have slots, one less than there are experts */
    uint64_t      start;  /* position of the first token */
    check_run     runs[MOST_RUNS];
    size_t        run_count;
} check;

typedef struct check_draws check_draws;

struct self_check {
    gpu_host       *host;
    gpu_backend     gpu; /* on the engine's host, with weights of its own */
    cpu_backend     cpu;
    quant_type      kv_type;
    float           eps;
    const char     *tower; /* whose kernels are checked; NULL: the text model's */
    check          *checks;
    size_t          count, capacity;
    gpu_kernel_list kernels; /* compiled in the background from the first step on */
    char (*missed)[64];      /* kernels that no check reaches */
    size_t            missed_count;
    self_check_spoil *spoil;
    void             *spoil_user;
    reads            *reads;
    check_draws      *draws; /* NULL: the sampler is not checked */
    bool              inexact;

    /* the check that is under way */
    size_t       next, run;
    bool         open, uploaded;
    graph        g;
    gpu_budget   budget; /* of a check with slots */
    gpu_plan    *plan;   /* of the run */
    cpu_plan    *reference;
    gpu_kv_layer gpu_kv;
    kv_layer     cpu_kv;
    uint32_t     ticket;
    bool         submitted; /* the run; its pipelines had to compile first */
    uint8_t     *blocks[2]; /* of the matrices, where they must be read */
    uint32_t     blocks_ticket;
    size_t       blocks_read; /* how many are here */
    uint64_t     position;    /* of the run's first token */
    token_record records[MOST_TOKENS];
    int32_t      rows[MOST_TOKENS];
};

static inline bool is_attention(op_kind kind) {
    return kind == OP_ATTENTION || kind == OP_ATTEND || kind == OP_HEADS || kind == OP_KV_STORE;
}

/* check_list.c: fills in c->checks. */
gm_status check_list_make(self_check *c, const graph *g, const model_config *config, const self_check_options *options,
                          error *e);
/* The keys and values of a check's layer, without buffers, and how many slots it has. */
uint32_t     check_slots(const check *k);
gpu_kv_layer check_cache(quant_type type, const check *k);

/* check_draws.c: draws of the GPU's sampler, which come last. */
size_t      check_draws_context(const model_config *config); /* that its generator is for */
gm_status   check_draws_new(const model_config *config, bool quick, check_draws **out, error *e);
gm_status   check_draws_step(self_check *c, error *e);
void        check_draws_close(check_draws *d); /* gives back what is on the GPU */
void        check_draws_free(check_draws *d);
const char *check_draws_name(const check_draws *d, size_t index); /* NULL behind the last */

/* The error for a value that is wrong. */
gm_status check_refuse(const self_check *c, const char *what, float expected, float found, error *e);

/* check_graphs.c: a graph that a plan turns into the op of the check. `data` are the bytes of its matrices; with `empty` the
 * inputs are left out, where only the kernels of its plan are wanted. */
gm_status check_build(const self_check *c, const check *k, const void *const data[2], bool empty, graph *g, error *e);
/* Has the products' kernels chosen as for the model's own weights; after the backend knows the graph's weights. */
void check_choose_kernels(gpu_backend *b, const check *k, const void *const data[2]);

#endif
