/* The steps of a CPU plan: cuts each op into tasks that can run in parallel, and runs them on the kernels. */

#ifndef GM_CPU_STEPS_H
#define GM_CPU_STEPS_H

#include "base/arena.h"
#include "cpu/backend.h"
#include "graph/layout.h"

typedef enum {
    STEP_OP,
    STEP_QUANTISE, /* converts the op's input to 8 bits, for all matmuls that read it */
    STEP_GROUP,    /* sorts the tokens by expert, for all expert matmuls of a layer */
} cpu_step_kind;

typedef struct {
    cpu_step_kind kind;
    const op     *op;
    int32_t       quantised, groups; /* items, or -1 */
    uint32_t      region;
    /* Matmuls: the first row of each task of the matrix (or of each expert's matrix), then its end. */
    size_t          tasks;
    const uint32_t *cuts;
} cpu_step;

typedef struct {
    const cpu_kernels *kernels;
    const cpu_inputs  *in;
    uint8_t           *memory;
    const layout_item *items;
    size_t             threads;
    bool               alone; /* compute every token as if it were the only one */
} cpu_context;

/* Cuts the matrices of steps that run in parallel. The first tasks are large, so that each thread reads one long stream, which is
 * the fastest way to read memory; the last are small, so that all threads finish together. Each task takes a thread's share of half
 * of what is left of all matrices, down to a minimum that is worth a call. False: no memory. */
bool cpu_steps_cut(cpu_step *steps, size_t count, size_t multiple, size_t threads, arena *a);

uint64_t q8_bytes(uint64_t rows, uint64_t k);
uint64_t groups_bytes(uint64_t experts, uint64_t tokens, uint64_t used);

/* The number of tasks in this run: 0 if there is nothing to do, 1 if sharing would not pay. */
size_t cpu_step_tasks(const cpu_step *s, const cpu_context *c);
void   cpu_step_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch);
/* Lets waiting threads prefetch the first weights that they will read in this step, a matmul of few tokens. */
void cpu_step_announce(const cpu_step *s, const cpu_context *c, pool *threads);

#endif
