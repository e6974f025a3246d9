/* The steps of a CPU plan: each op on the kernels, cut into tasks that can run side by side. */

#ifndef GM_CPU_STEPS_H
#define GM_CPU_STEPS_H

#include "base/arena.h"
#include "cpu/backend.h"
#include "graph/layout.h"

typedef enum {
    STEP_OP,
    STEP_QUANTISE, /* the op's input in 8 bits, for all matmuls that read it */
    STEP_GROUP,    /* the tokens by expert, for all expert matmuls of a layer */
} cpu_step_kind;

typedef struct {
    cpu_step_kind kind;
    const op     *op;
    int32_t       quantised, groups; /* items, or -1 */
    uint32_t      region;
    /* Matmuls: the first rows of the tasks into which the matrix, or that of each expert, is cut, and behind them its end. */
    size_t          tasks;
    const uint32_t *cuts;
} cpu_step;

typedef struct {
    const cpu_kernels *kernels;
    const cpu_inputs  *in;
    uint8_t           *memory;
    const layout_item *items;
    size_t             threads;
} cpu_context;

/* Cuts the matrices of steps that run side by side. Tasks begin large, so that each thread reads one long stream, which memory
 * likes best, and end small, so that all threads finish together: each takes its share of half of what is left of all the
 * matrices, down to a size that is still worth a call. False: there is no memory. */
bool cpu_steps_cut(cpu_step *steps, size_t count, size_t multiple, size_t threads, arena *a);

uint64_t q8_bytes(uint64_t rows, uint64_t k);
uint64_t groups_bytes(uint64_t experts, uint64_t tokens, uint64_t used);

/* Into how many tasks the step falls in this run: 0 if there is nothing to do, 1 if sharing it would not pay. */
size_t cpu_step_tasks(const cpu_step *s, const cpu_context *c);
void   cpu_step_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch);
/* Has threads that wait bring near what they will read first of the weights of this step, a matmul of one token. */
void cpu_step_announce(const cpu_step *s, const cpu_context *c, pool *threads);

#endif
