/* The CPU as a backend: threads, their scratch memory, and plans that run a graph on them. */

#ifndef GM_CPU_BACKEND_H
#define GM_CPU_BACKEND_H

#include "base/pool.h"
#include "cpu/kernels.h"
#include "graph/graph.h"
#include "graph/run.h"

typedef struct {
    const cpu_kernels *kernels;
    pool              *threads;
    uint8_t           *scratch; /* for each thread, as much as the largest kernel needs */
    bool               precise; /* f32 activations in every matmul */
} cpu_backend;

/* `instructions` names a kernel table (NULL: the best), `threads` 0: the physical cores. */
gm_status cpu_backend_open(cpu_backend *b, const char *instructions, size_t threads, bool precise, error *e);
void      cpu_backend_close(cpu_backend *b);

/* A layer's writable cache: a row of kv_heads · head values in each slot. The records say which slot is whose. */
typedef struct {
    uint8_t   *k, *v;
    quant_type type;
    size_t     kv_heads, head;
} kv_layer;

/* The inputs of one run. */
typedef struct {
    run_inputs      run;
    const kv_layer *kv; /* by layer */
    /* If a table is not in memory: its row for each token, in the format of the file. */
    const uint8_t *rows;
} cpu_inputs;

typedef struct cpu_plan cpu_plan;

/* Plans the graph for up to `tokens` tokens and `outputs` outputs. Graph and backend must outlive the plan. Allocates everything:
 * a run allocates nothing. */
gm_status cpu_plan_new(const cpu_backend *b, const graph *g, size_t tokens, size_t outputs, cpu_plan **out, error *e);
/* A plan for up to `rows` tokens, each with an output, that computes every token as if alone: bitwise what a plan for one token
 * computes. The products still read their weights once for all tokens. */
gm_status cpu_plan_new_rows(const cpu_backend *b, const graph *g, size_t rows, cpu_plan **out, error *e);
/* What such a plan would need for its values. */
gm_status cpu_plan_measure(const cpu_backend *b, const graph *g, size_t tokens, size_t outputs, uint64_t *bytes,
                           error *e);
void      cpu_plan_free(cpu_plan *p);
size_t    cpu_plan_tokens(const cpu_plan *p);
size_t    cpu_plan_outputs(const cpu_plan *p);
uint64_t  cpu_plan_bytes(const cpu_plan *p); /* of its values */

/* Runs to the end (GM_OK) or until the clock passes `deadline` (GM_AGAIN: call again with the same inputs). */
gm_status cpu_plan_step(cpu_plan *p, const cpu_inputs *in, double deadline);
/* The same for the first (0) or the second (1) part of a graph that is split. */
gm_status    cpu_plan_step_part(cpu_plan *p, const cpu_inputs *in, size_t part, double deadline);
void         cpu_plan_restart(cpu_plan *p);                  /* abandons an unfinished run */
const float *cpu_plan_result(const cpu_plan *p);             /* [outputs, n] after a run */
const float *cpu_plan_results(const cpu_plan *p, size_t i);  /* the i-th result of the graph */
float       *cpu_plan_leaf(cpu_plan *p, const tensor *leaf); /* to write between runs; keeps its contents */

#endif
