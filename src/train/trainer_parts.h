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

typedef enum { TRAIN_IDLE, TRAIN_FORWARD, TRAIN_HEAD, TRAIN_HEAD_BACK, TRAIN_BACKWARD, TRAIN_LOSSES } train_phase;

typedef struct {
    gm_status (*measure)(trainer *t, uint64_t *bytes, error *e); /* of the values of the body's plan */
    uint64_t (*memory)(const trainer *t);                        /* for these, if the user does not say; 0: any */
    gm_status (*plan)(trainer *t, error *e);                     /* makes all plans, of graphs that are built */
    void (*close)(trainer *t);                                   /* frees them; others may be made */
    gm_status (*work)(trainer *t, double deadline, error *e);
    void (*forget)(trainer *t);
    /* Runs the update; `squares`: the sum of all gradients' squares before it. */
    gm_status (*update)(trainer *t, const float rates[ADAMW_RATES], float *squares, double deadline, error *e);
    void (*restart)(trainer *t); /* a move begins; NULL: nothing is to be done */
    /* The values of a state, valid until the next call; and the other way round. */
    gm_status (*fetch)(trainer *t, const train_part *part, train_state what, const float **out, double deadline,
                       error *e);
    gm_status (*put)(trainer *t, const train_part *part, train_state what, const float *values, double deadline,
                     error *e);
} trainer_backend;

extern const trainer_backend trainer_on_cpu, trainer_on_gpu;

/* Plans of body, head and update. */
typedef struct {
    cpu_backend backend; /* the engine's, with f32 activations */
    cpu_plan   *body, *head, *optimiser;
    kv_layer   *kv; /* by layer, a slot for each token */
} trainer_cpu;

enum { TRAIN_FLYING = 2, TRAIN_READS = 8 };

/* The same on the GPU. What is submitted goes in pieces, of which a few are under way at a time. */
typedef struct {
    gpu_plan     *body, *head, *optimiser;
    gpu_kv_layer *kv;
    size_t        listed;  /* graphs whose vectors the backend knows: body, head, update */
    size_t        filled;  /* slots of parts that have their first values; then the table */
    bool          forgets; /* the gradients are set to 0 before anything else */
    uint64_t      put;     /* bytes of a state that were put */
    struct {
        uint64_t mark; /* gpu_submitted after it */
        double   work;
    } flying[TRAIN_FLYING]; /* the oldest first */
    size_t     flying_count;
    double     since;   /* when the GPU began the oldest of these */
    double     speed;   /* operations a second; 0: not known yet */
    double     longest; /* of the pieces, in seconds */
    gpu_pieces pieces;
    bool       running; /* some of `pieces` are to be submitted */
    bool       passed;  /* the leaves of that part are written */
    uint32_t  *tickets; /* [chunks of the run]: of their losses */
    size_t     asked;   /* chunks whose losses are on their way, */
    size_t     taken;   /* and those that have arrived */
    uint32_t   norm;    /* the ticket of an update that is under way; 0: none is */
    struct {
        size_t   piece; /* of the move that is under way */
        uint32_t ticket;
    } reads[TRAIN_READS]; /* a ring of states on their way */
    size_t   first_read, read_count;
    uint32_t held; /* the ticket of what was fetched last */
} trainer_gpu;

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
        train_move  kind; /* under way */
        train_state states[TRAIN_STATES];
        size_t      count;   /* of these, for each part: the pieces */
        size_t      at;      /* the next piece */
        size_t      done;    /* floats */
        float      *scratch; /* [size] of the largest part; NULL: not needed yet */
        bool        reduced; /* `scratch` has what is to be put */
    } move;
    trainer_cpu cpu;
    trainer_gpu gpu;
};

/* Zeroed memory that counts. */
void *trainer_alloc(trainer *t, size_t count, size_t size, error *e);
/* Room for the values of one part. */
float *trainer_scratch(trainer *t, error *e);
/* The inputs of the body (no outputs), or of the head for some of the outputs. */
run_inputs trainer_inputs(const trainer *t, size_t first, size_t outputs);
/* What dropout leaves out, in the body (0), and in every chunk of the head (from 1 on). */
void trainer_draw(const trainer *t, size_t part, uint32_t key[2]);
/* The outputs of the next chunk of the head, and what their losses add. */
size_t trainer_chunk(const trainer *t);
void   trainer_add_losses(trainer *t, size_t first, size_t count, const float *losses);

#endif
