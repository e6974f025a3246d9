/* Inside of training*.c and checkpoint.c: examples → runs → steps → an adapter.
 *
 *     training.c           the public functions, and the stages of a training
 *     training_settings.c  what the options mean
 *     training_order.c     which examples a run and a step have
 *     training_run.c       one run: its soft tokens, the model's losses, and what is learned from them
 *     training_known.c     what is known of its examples and losses
 *     training_probe.c     how long it will take
 *     training_memo.c      what is computed once for all epochs
 *     training_keep.c      the state that is kept, adapters and checkpoints made of it */

#ifndef GM_TRAINING_PARTS_H
#define GM_TRAINING_PARTS_H

#include "base/buffer.h"
#include "train/data.h"
#include "train/fresh.h"
#include "train/schedule.h"
#include "train/train_check.h"
#include "train/trainer.h"

#include <stdatomic.h>

enum { TRAINING_RUN_TOKENS = 1024 }; /* a run of several examples has no more, so that long ones come alone */

/* ---- training_settings.c ---- */

typedef struct {
    gm_training_options o;        /* without zeros; strings are copies */
    schedule            schedule; /* its steps are known when the data are */
    double              warmup;
    bool                pairs; /* dpo */
} training_settings;

/* The name of the data must be known; that they fit the loss is checked when they are read. */
gm_status training_settings_read(training_settings *s, const gm_training_options *given, arena *a, error *e);
/* All that a training's losses depend on besides data and model, a line for each: checkpoints compare them. */
void training_settings_text(const training_settings *s, buffer *out);

/* ---- training_order.c ---- */

/* The examples of an epoch, or those for evaluation, in runs; a step has several. */
typedef struct {
    data_epoch order;
    size_t    *first; /* [steps + 1]: the first run of each step; not for evaluation */
    size_t     steps;
} training_order;

gm_status training_order_make(training_order *p, const dataset *d, const training_settings *s, bool eval,
                              uint64_t epoch, error *e);
void      training_order_free(training_order *p);
size_t    training_run_tokens(const dataset *d, const training_settings *s); /* the most of a run */

/* ---- several processes ---- */

typedef struct {
    train_reduce reduce; /* NULL: there is one process */
    void        *user;
    size_t       part, parts; /* runs number part, part + parts, … of each step and evaluation are computed here */
} training_shares;

/* ---- training_memo.c ---- */

typedef struct {
    uint8_t key[32];
    float  *rows;
    size_t  count; /* soft tokens */
} training_rows;

typedef struct {
    training_rows *items;
    size_t         count, capacity;
    uint64_t       bytes;
    double        *references; /* [2 · examples]: losses of pairs without the adapter; NAN: not known yet */
    size_t         reference_count;
    uint64_t       encoded, measured; /* media and runs without the adapter, so far */
} training_memo;

void training_memo_free(training_memo *m);
/* Writes the soft tokens of a picture or a sound, if they are kept. */
bool training_memo_find(const training_memo *m, const data_media *media, size_t width, float *rows);
void training_memo_add(training_memo *m, const data_media *media, size_t width, const float *rows);
/* For preference pairs: all are unknown. */
gm_status training_memo_make_references(training_memo *m, const dataset *d, error *e);
double   *training_memo_reference(const training_memo *m, const data_span *span);
/* Tells all processes what each has measured in its runs among `runs` of an order, from `first` on. A pair is measured once, by one of them:
 * measured again beside other pairs, it would be rounded otherwise, and a checkpoint has only what process 0 knows. */
gm_status training_memo_share(training_memo *m, const data_epoch *order, size_t first, size_t runs,
                              const training_shares *shares, error *e);
double    training_memo_unknown(const training_memo *m, const dataset *d); /* tokens of pairs without one */

/* ---- training_run.c ---- */

typedef enum { RUN_READS, RUN_ENCODES, RUN_REFERENCE, RUN_POLICY, RUN_LEARNS, RUN_OVER } training_run_stage;

typedef struct {
    double loss;    /* the sum over tokens or pairs */
    double counted; /* tokens that count, or pairs */
    double preferred;
    double tokens;
} training_sum;

/* One run while it is computed. */
typedef struct {
    training_run_stage stage;
    bool               begun; /* the trainer, or a tower, has the stage's work */
    data_run          *run;
    bool               learns; /* else it is evaluated */
    double             share;
    uint64_t           draw;
    train_span        *spans, *blocks;
    float             *given;                    /* rows of soft tokens */
    size_t             media, rows, blocks_made; /* encoded so far, their soft tokens, and blocks of these */
    tower_job         *job;                      /* of the next one */
    training_sum      *sum;                      /* to which it adds */
} training_run;

/* ---- the training ---- */

typedef enum {
    STAGE_SCAN,    /* reads the examples */
    STAGE_CHECK,   /* whether the GPU trains right */
    STAGE_OPEN,    /* makes adapter and trainer */
    STAGE_RESTORE, /* writes the checkpoint's state to the trainer */
    STAGE_PROBE,   /* measures the device */
    STAGE_NEXT,    /* decides: a step, an evaluation, or the end */
    STAGE_READ,    /* reads the examples of a step */
    STAGE_RUN,     /* computes them, run by run */
    STAGE_REDUCE,  /* sums gradients over several processes */
    STAGE_KEEP,    /* keeps the state before the update, since its losses are finite */
    STAGE_UPDATE,
    STAGE_EVALUATE,
    STAGE_BEST, /* keeps the state that was evaluated best */
    STAGE_LAST, /* keeps the state at the end */
    STAGE_OVER,
} training_stage;

/* A short run that tells how fast the device is. */
typedef struct {
    int32_t   *ids;
    float     *weights;
    size_t     tokens, runs;
    train_span span;
    bool       begun;
    double     since;
} training_probe;

/* A state of the trainer, and what else belongs to it. */
typedef struct {
    float   *values; /* [trainer_state_size]; NULL: there is none */
    uint64_t step;
    size_t   evaluations; /* so far */
    double   best_loss;   /* of these */
    uint32_t worse;       /* evaluations since the best */
} training_state;

struct gm_training {
    gm_engine        *engine;
    arena             memory;
    training_settings settings;
    dataset          *data;
    adapter          *adapter;
    trainer          *trainer;
    const adapter   **frozen;
    float            *scales;
    buffer            checkpoint; /* to go on from */
    char              settings_text[1200];
    char              data_digest[65];

    training_stage stage;
    train_check   *check; /* under way */
    atomic_bool    stopping;
    error          failed; /* after this nothing goes on */

    uint64_t       step, steps; /* done, and of all epochs or as many as are wanted */
    training_order order;
    uint64_t       epoch; /* of the order */
    training_order eval;
    size_t         runs, at; /* of this step or evaluation, and the next one */
    double         share;    /* of a token or pair of the step */
    data_run      *read;     /* [runs] of the step */
    training_run   run;
    training_sum   sum;
    training_memo  memo;

    training_state kept, best;
    float         *losses; /* [step] */
    size_t         losses_capacity;
    float         *eval_losses;
    uint64_t      *eval_steps;
    size_t         eval_count, eval_capacity;
    double         best_loss;
    uint32_t       worse;

    gm_training_event event;
    bool              news;
    training_probe    probe;
    double            probe_seconds;             /* to learn from a token of completions */
    double            returned;                  /* when the last call did */
    double            step_seconds;              /* spent on this step so far */
    double            work_done, work_seconds;   /* in tokens that are only measured */
    double            train_tokens, eval_tokens; /* of an epoch, and of an evaluation */
    training_shares   shares;
};

/* Several processes: each computes a part of every step's runs, and `reduce` sums counts, losses and gradients over all of them. Before
 * the first step. */
void training_share(gm_training *t, const training_shares *shares);

void      training_run_start(gm_training *t, data_run *run, bool learns, double share, uint64_t draw);
gm_status training_run_work(gm_training *t, double deadline, error *e); /* GM_AGAIN; afterwards t->sum has it */
void      training_run_end(gm_training *t);

/* ---- training_probe.c ---- */

gm_status training_probe_work(gm_training *t, double deadline, error *e); /* sets t->probe_seconds */
void      training_probe_end(training_probe *p);

/* ---- training_keep.c ---- */

/* Reads the trainer's state as it is now, after t->step steps. */
gm_status training_keep(gm_training *t, training_state *into, double deadline, error *e);
/* Reads a checkpoint that belongs to this training: state, losses, position. */
gm_status training_restore(gm_training *t, error *e);
gm_status training_note_loss(gm_training *t, double loss, error *e);
gm_status training_note_evaluation(gm_training *t, double loss, error *e);

#endif
