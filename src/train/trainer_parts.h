/* The internals of a trainer, for other files of this folder:
 *
 *   trainer.c        makes trainers, lays out runs and checks updates
 *   trainer_moves.c  takes states out and in
 *   trainer_cpu.c    what the backends do: a trainer_backend each
 *   trainer_gpu.c
 */

#ifndef GM_TRAINER_PARTS_H
#define GM_TRAINER_PARTS_H

#include "model/train.h"
#include "train/trainer.h"

typedef enum { TRAIN_IDLE, TRAIN_FORWARD, TRAIN_HEAD, TRAIN_HEAD_BACK, TRAIN_BACKWARD } train_phase;

typedef struct {
    gm_status (*measure)(trainer *t, uint64_t *bytes, error *e); /* of the values of the body's plan */
    gm_status (*plan)(trainer *t, error *e);                     /* makes all plans, of graphs that are built */
    void (*close)(trainer *t);
    gm_status (*work)(trainer *t, double deadline, error *e);
    void (*forget)(trainer *t);
    /* Runs the update; `squares`: the sum of all gradients' squares before it. */
    gm_status (*update)(trainer *t, const float rates[ADAMW_RATES], float *squares, double deadline, error *e);
    /* The values of a state, valid until the next call; and the other way round. */
    gm_status (*fetch)(trainer *t, const train_part *part, train_state what, const float **out, double deadline,
                       error *e);
    gm_status (*put)(trainer *t, const train_part *part, train_state what, const float *values, double deadline,
                     error *e);
} trainer_backend;

extern const trainer_backend trainer_on_cpu;

/* Plans of body, head and update. */
typedef struct {
    cpu_backend backend; /* the engine's, with f32 activations */
    cpu_plan   *body, *head, *optimiser;
    kv_layer   *kv; /* by layer, a slot for each token */
} trainer_cpu;

typedef enum { MOVE_NONE, MOVE_READ, MOVE_WRITE, MOVE_STORE, MOVE_REDUCE } train_move;

struct trainer {
    gm_engine             *engine;
    const model           *m;
    const trainer_backend *backend;
    train_parameters       parameters;
    train_graphs           graphs;
    graph                  update;
    tensor                *rates; /* a leaf of it */
    size_t                 tokens, chunk;
    uint32_t               kept;
    float                  dropout;
    uint64_t               seed; /* of dropout */
    uint64_t               bytes;
    token_record          *records; /* [tokens] of the run */
    int32_t               *rows;    /* [tokens]: those whose next token counts, and */
    float                 *goals;   /* [tokens, 2]: what it is and how much it weighs */
    uint32_t              *owners;  /* [tokens]: the sequence of each of these rows */
    double                *losses;  /* [tokens]: of the run's sequences */
    size_t                 outputs;
    train_run              run;
    train_phase            phase;
    size_t                 done; /* outputs */
    double                 loss;
    struct {
        train_move kind;    /* under way */
        size_t     at;      /* the next piece */
        size_t     done;    /* floats */
        float     *scratch; /* [size] of the largest part; NULL: not needed yet */
        bool       reduced; /* `scratch` has what is to be put */
    } move;
    trainer_cpu cpu;
};

/* Zeroed memory that counts. */
void *trainer_alloc(trainer *t, size_t count, size_t size, error *e);
/* The inputs of the body (no outputs), or of the head for some of the outputs. */
run_inputs trainer_inputs(const trainer *t, size_t first, size_t outputs);
/* What dropout leaves out, in the body (0), and in every chunk of the head (from 1 on). */
void trainer_draw(const trainer *t, size_t part, uint32_t key[2]);
/* The outputs of the next chunk of the head, and what their losses add. */
size_t trainer_chunk(const trainer *t);
void   trainer_add_losses(trainer *t, size_t first, size_t count, const float *losses);

#endif
