/* Examples to learn from: a file of conversations, pairs or text → token ids, and which of them count for the loss.
 *
 *     data_source → dataset (scanned once: what is in it, where, how long) → epochs → runs of packed examples
 *
 * A dataset keeps the place of each example, not its tokens, so a file of any size needs little memory. Examples are rendered by the chat
 * template as a session would: the prompt as it is prefilled, then the tokens that the model should write. */

#ifndef GM_TRAIN_DATA_H
#define GM_TRAIN_DATA_H

#include "text/chat.h"

/* ---- where the bytes come from ---- */

typedef struct {
    const char *path;  /* a file; NULL: `bytes` */
    str         bytes; /* must outlive the dataset */
    const char *name;  /* of the bytes, as a file name: "chats.jsonl"; its ending may say what is in them */
    /* Reads a picture or sound that an example names, relative to the data; for `bytes` only. NULL: there are none. Never called with a
     * name that leads outside. */
    gm_status (*read_media)(void *host, const char *path, buffer *out, error *e);
    void *host;
} data_source;

typedef struct {
    const tokenizer *words;
    chat_variant     variant;
    const char      *system;     /* for conversations without a system message; NULL: none */
    size_t           max_tokens; /* of a sequence; 0: no limit */
    double           eval_share; /* of the examples that are kept for evaluation: 0 to less than 1 */
    uint64_t         seed;       /* of the choice of these */
    const gguf      *model;      /* for examples with pictures or sounds; NULL: these are refused */
    const gguf      *projector;  /* the towers of `model`, if they are in a file of their own */
} data_options;

/* ---- what is in it ---- */

typedef enum { DATA_JSONL, DATA_JSON_LIST, DATA_CSV, DATA_PLAIN_TEXT } data_container;

typedef enum {
    DATA_MESSAGES,   /* {"messages": […], "tools": […]} */
    DATA_COMPLETION, /* {"prompt": …, "completion": …} */
    DATA_ALPACA,     /* {"instruction": …, "input": …, "output": …} */
    DATA_SHAREGPT,   /* {"conversations": [{"from": …, "value": …}]} */
    DATA_PAIRS,      /* {"prompt": …, "chosen": …, "rejected": …} */
    DATA_TEXT,       /* {"text": …}, or a file of plain text */
} data_form;

enum {
    DATA_BINS = 14, /* of the histogram: up to 32, 64, 128 … tokens; the last one: more */
    DATA_PROBLEMS = 10,
    DATA_TEXT_TOKENS = 1024, /* pieces of plain text, if there is no limit */
};

typedef struct {
    uint64_t records; /* lines, rows, or pieces of text that were read */
    uint64_t
        examples; /* those that can be learned from. A conversation is several if the model sees it differently for each answer. */
    uint64_t tokens, counted;
    uint64_t shortest, longest;            /* example, in tokens; of a pair, both sequences together */
    uint64_t truncated;                    /* examples */
    uint64_t left_out;                     /* examples of which nothing that counts is left by truncation */
    uint64_t left_out_line;                /* the first of them */
    uint64_t duplicates;                   /* records that are equal to an earlier one, as the model sees them */
    uint64_t duplicate_line, duplicate_of; /* the first of them */
    uint64_t media;
    uint64_t histogram[DATA_BINS];
} data_stats;

typedef struct dataset dataset;

gm_status dataset_open(const data_source *from, const data_options *options, dataset **out, error *e);
/* Reads on until the clock is past `deadline`: GM_AGAIN. GM_OK: all is read and fine. GM_BAD_FILE: lines are bad; dataset_problem lists
 * the first ones. */
gm_status dataset_scan(dataset *d, double deadline, error *e);
void      dataset_free(dataset *d);

/* Bytes read, of how many. */
void dataset_progress(const dataset *d, uint64_t *done, uint64_t *total);
/* "line 7: …", from 0 on; NULL: no more. */
const char *dataset_problem(const dataset *d, size_t index);

/* The following need a scan that was fine. */
const data_stats *dataset_stats(const dataset *d);
data_container    dataset_container(const dataset *d);
data_form         dataset_form(const dataset *d);
/* "JSONL with messages" */
const char *dataset_describe(const dataset *d);
/* Identifies the data and how they are read: two datasets with the same digest have the same examples in the same order. */
void dataset_digest(const dataset *d, uint8_t digest[32]);

/* ---- examples ---- */

/* A picture, or a piece of a sound of up to 30 s. */
typedef struct {
    chat_part_kind kind;
    size_t         at, count; /* its soft tokens */
    gm_part        part;      /* the bytes of its file, and its budget */
    size_t         from, to;  /* of a sound: the samples of this piece */
} data_media;

typedef struct {
    const int32_t    *ids;
    const float      *weights; /* 1: the loss of predicting this token counts; 0: it does not */
    size_t            count, counted;
    bool              truncated;
    const data_media *media;
    size_t            media_count;
} data_sequence;

typedef struct {
    arena         memory;
    uint64_t      line;
    data_sequence sequence[2]; /* of a pair: chosen, rejected */
    size_t        sequences;   /* 1 or 2 */
} data_example;

size_t dataset_count(const dataset *d);
size_t dataset_tokens(const dataset *d, size_t index); /* of an example */
bool   dataset_is_eval(const dataset *d, size_t index);
/* Reads and renders it again. GM_BAD_FILE: the file has changed since the scan. */
gm_status dataset_example(dataset *d, size_t index, data_example *out, error *e);
void      data_example_free(data_example *x);

/* As the model sees it. What counts is between `on` and `off`; control characters are replaced. */
void data_preview(const tokenizer *words, const data_sequence *s, const char *on, const char *off, buffer *out);

/* ---- epochs and runs ---- */

/* The order of an epoch: examples, and where each run of packed examples begins. */
typedef struct {
    uint32_t *examples;
    uint32_t *runs; /* run r: examples[runs[r]] up to examples[runs[r + 1]] */
    size_t    count, run_count;
} data_epoch;

/* The training examples, shuffled by seed and epoch, or those kept for evaluation, in the file's order. Each run has at most `most`
 * tokens; 0: one example. The same arguments give the same runs, so epoch and run are a position to resume at. */
gm_status dataset_epoch(const dataset *d, bool eval, uint64_t seed, uint64_t epoch, size_t most, data_epoch *out,
                        error *e);
void      data_epoch_free(data_epoch *p);

/* One sequence in a run. */
typedef struct {
    size_t first, count;
    size_t example;  /* number in the dataset */
    bool   rejected; /* the second sequence of a pair */
} data_span;

typedef struct {
    arena       memory;
    int32_t    *ids;
    float      *weights;
    size_t      count, counted;
    data_span  *spans;
    size_t      span_count;
    data_media *media; /* `at` counts from the start of the run */
    size_t      media_count;
} data_run;

gm_status dataset_run(dataset *d, const data_epoch *p, size_t run, data_run *out, error *e);
void      data_run_free(data_run *r);

#endif
