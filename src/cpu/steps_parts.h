/* What the steps of inference (steps.c) and of training (steps_back.c) share. */

#ifndef GM_CPU_STEPS_PARTS_H
#define GM_CPU_STEPS_PARTS_H

#include "cpu/steps.h"

static inline float *value_at(const cpu_context *c, const tensor *t) {
    return (float *)(c->memory + c->items[(t->base ? t->base : t)->index].offset) + t->offset;
}

static inline size_t step_entries(const cpu_context *c, const tensor *t) {
    return t->axis == AXIS_TOKENS ? c->in->run.tokens : t->axis == AXIS_OUTPUTS ? c->in->run.outputs : 1;
}

static inline size_t step_rows(const cpu_context *c, const tensor *t) { return step_entries(c, t) * t->ne[1]; }

static inline float *row_at(const cpu_context *c, const tensor *t, size_t r) {
    return value_at(c, t) + r / t->ne[1] * t->token_stride + r % t->ne[1] * t->row_stride;
}

static inline size_t matrix_row_bytes(const tensor *w) {
    return (size_t)quant_row_bytes(quant_format_of(w->type), w->ne[0]);
}

/* The expert that row r of a value belongs to; 0 without experts. */
static inline size_t expert_of_row(const op *o, const cpu_context *c, const tensor *routes, size_t r) {
    return routes ? (size_t)((const int32_t *)row_at(c, routes, r / o->used))[r % o->used] : 0;
}

/* The (token, slot) pairs sorted by expert. */
typedef struct {
    int32_t *active; /* how many experts have tokens, then their ids */
    int32_t *begin;  /* [experts + 1] into the next two */
    int32_t *token;  /* [tokens · used]: the token of each pair */
    int32_t *pair;   /* [tokens · used]: token · used + slot */
} expert_groups;

expert_groups cpu_groups_at(const cpu_context *c, const cpu_step *s);

/* How row-wise ops are cut: into whole rows. Elementwise ops on a single long row are cut within it. */
typedef struct {
    size_t tasks, rows_per_task, pieces_per_row, piece;
} row_split;

row_split cpu_split_rows(size_t rows, size_t n, bool may_cut, size_t cost);

/* steps_back.c: the ops of training. */
bool   cpu_back_has(op_kind kind);
size_t cpu_back_tasks(const cpu_step *s, const cpu_context *c);
void   cpu_back_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch);

#endif
