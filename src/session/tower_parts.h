/* Inside of tower*.c: a tower, and what the kinds of towers do differently. */

#ifndef GM_TOWER_PARTS_H
#define GM_TOWER_PARTS_H

#include "session/engine.h"

/* One picture or sound of a job. */
typedef struct {
    void    *data;            /* a copy of what the caller gave */
    size_t   tokens, outputs; /* of the tower's run, and soft tokens */
    size_t   first_row;       /* of its soft tokens among all of the job's */
    uint32_t width, height;   /* pictures: pixels */
    bool     patches, frame;  /* pictures: `data` are patches; see tower_picture */
    size_t   length;          /* sounds: mel frames, or samples */
} tower_item;

struct tower_type {
    const char *name, *lacking; /* "vision", and what a model without it cannot do */
    const char *tensor;         /* that every file with such a tower has */
    model_part  part;
    uint32_t    fewest; /* tokens of a run: soft tokens, or the patches of one */
    /* Checks the file by its header. */
    gm_status (*check)(const gguf *file, uint32_t soft_width, error *e);
    /* Loads the weights: fills in heads and head, too. */
    gm_status (*load)(engine_tower *t, const gguf *file, uint32_t soft_width, error *e);
    /* Builds a graph of the weights, with adapters or, if NULL, without. */
    gm_status (*graph)(const engine_tower *t, const model_adapters *adapters, graph *out, tensor **leaf, error *e);
    void (*free_weights)(engine_tower *t);
    /* Bytes, about, that a run takes besides the weights; 0: the file does not fit. */
    uint64_t (*run_bytes)(const gguf *file, uint32_t soft_width);
    /* Fills in what this kind uses of the records of an item's tokens (id, position), and the first token of each output,
     * counted from the item's first. */
    void (*mark)(const engine_tower *t, const tower_item *item, token_record *records, int32_t *output_rows);
    /* Writes the leaf's values for the tokens [first, first + count) of an item. */
    void (*fill)(const engine_tower *t, const tower_item *item, size_t first, size_t count, float *out);
};

enum { TOWER_MOST_OUTPUTS = 1120 }; /* soft tokens of the largest picture */

extern const tower_type tower_vision, tower_audio;

/* tower.c: the file that has this tower; NULL: there is none. */
const gguf *engine_tower_file(const gm_engine *engine, tower_kind kind);
/* The engine's tower, counted as used by one more job. */
gm_status engine_tower_use(gm_engine *engine, tower_kind kind, engine_tower **out, error *e);
/* Loads the tower as far as it is not. GM_AGAIN: reads or the GPU are under way. */
gm_status engine_tower_step(gm_engine *engine, engine_tower *t, error *e);
/* The tower's graph with the adapters that the engine has, ready to run. The tower must be ready. GM_AGAIN as above. */
gm_status engine_tower_adapt(gm_engine *engine, engine_tower *t, error *e);
/* Frees these graphs and their plans, because other sites are about to replace the adapters' own. Jobs begin their batches again. */
void engine_towers_forget_adapters(gm_engine *engine);
/* engine_check.c: checks the GPU with the tower's kernels, once. GM_AGAIN: the GPU is at work. GM_NO_DEVICE: it computes wrongly. */
gm_status engine_check_tower(gm_engine *engine, engine_tower *t, error *e);
/* Frees what it holds; nobody may use it. */
void engine_tower_unload(gm_engine *engine, engine_tower *t);
/* Makes room for the keys and values of so many tokens. */
gm_status  engine_tower_reserve(gm_engine *engine, const engine_tower *t, size_t tokens, tower_kv *kv, error *e);
void       engine_tower_free_kv(gm_engine *engine, tower_kv *kv);
quant_type engine_tower_kv_type(const gm_engine *engine);

/* tower_job.c: the job drops its batch, if it runs with adapters. Returns the next one. */
tower_job *tower_job_forget_adapters(tower_job *job);
/* A job without items, which the kinds add. */
gm_status tower_job_new(gm_engine *engine, tower_kind kind, size_t count, tower_job **out, error *e);
/* The next item, with `data` copied; NULL on failure. */
tower_item *tower_job_add(tower_job *job, const void *data, size_t bytes, size_t tokens, size_t outputs, error *e);

#endif
