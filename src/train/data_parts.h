/* Inside of src/train/data*.c and examples.c: bytes → records → conversations → sequences. */

#ifndef GM_TRAIN_DATA_PARTS_H
#define GM_TRAIN_DATA_PARTS_H

#include "base/sha256.h"
#include "train/data.h"

enum {
    DATA_MOST_RECORD = 64 << 20, /* bytes of a line or row */
    DATA_MOST_MESSAGES = 4096,
    DATA_MOST_MEDIA = 64 << 20, /* bytes of a picture or sound */
};

/* ---- data_reader.c: a window that moves over the bytes ---- */

typedef struct {
    const data_source *source;
    const char        *name; /* for messages */
    int                file, folder;
    uint64_t           length;
    int64_t            modified[2]; /* seconds and nanoseconds */
    buffer             window;
    uint64_t           window_at;
} data_reader;

gm_status data_reader_open(data_reader *r, const data_source *from, error *e);
void      data_reader_close(data_reader *r);
/* At least `want` bytes at `at`, or all that are left; valid until the next call. */
gm_status data_reader_peek(data_reader *r, uint64_t at, size_t want, str *out, error *e);
/* Fails if the file is not what it was when it was opened. */
gm_status data_reader_check(const data_reader *r, error *e);
gm_status data_changed(const data_reader *r, error *e);
/* A file that an example names: relative to the data, and never outside their folder. */
gm_status data_reader_media(const data_reader *r, str path, buffer *out, error *e);

/* ---- data_records.c: lines, items of a JSON list, rows ---- */

typedef struct {
    uint64_t at, line;                        /* of the next record; lines count from 1 */
    bool     list_open, list_over, list_item; /* of a JSON list: '[' was read, ']' was, an item was */
    str     *columns;                         /* of a CSV file */
    size_t   column_count;
    arena    memory; /* of the columns */
} data_cursor;

typedef struct {
    uint64_t offset, line;
    size_t   length;
} data_place;

/* Whether the bytes are JSON lines, a list, CSV or text: by the name's ending, or by what they begin with. Moves the cursor past a byte-order
 * mark, and past the header of a CSV file. */
gm_status data_records_start(data_reader *r, data_cursor *c, data_container *out, error *e);
/* The next record's place. GM_DONE: there is none. Not for plain text. */
gm_status data_records_next(data_reader *r, data_cursor *c, data_container container, data_place *out, error *e);
/* A record's bytes as a JSON object; a CSV row's fields are strings. */
gm_status data_record_parse(const data_cursor *c, data_container container, str text, uint64_t line, arena *a,
                            json **out, error *e);

/* ---- data_form.c: what a record says ---- */

typedef struct {
    chat  chat;
    bool *learned; /* for each message: an answer that counts */
} data_talk;

typedef struct {
    data_form form;
    data_talk talk[2]; /* of a pair: chosen, rejected */
    size_t    talks;   /* 0: text */
    str       text;
} data_record;

extern const char *const data_form_names[]; /* "messages", "prompt and completion" … */

gm_status data_form_of(const json *object, data_form *out, error *e);
/* Reads a record in whatever form it has. Strings point into the arena or into `object`. */
gm_status data_record_read(const json *object, const data_options *o, arena *a, data_record *out, error *e);

/* Refuses text with the template's tokens in it. */
gm_status data_check_text(str text, error *e);

/* ---- data_media.c ---- */

/* Reads the pictures and sounds of a conversation: sets chat_part.media. */
gm_status data_media_load(const data_reader *r, const data_options *o, chat *c, arena *a, error *e);
/* Replaces the token of each media piece by all of its tokens. */
gm_status data_media_expand(const data_options *o, const chat_piece *pieces, size_t count, arena *a, token_list *ids,
                            data_media **media, size_t *media_count, error *e);

/* ---- examples.c: what a record says → sequences ---- */

/* Of a long conversation there may be many, so tokens are kept only of those in [first, end). A pair is two items that follow each other,
 * or neither. */
typedef struct {
    size_t         first, end;
    data_sequence *items;
    size_t         count, capacity;
    size_t         truncated, left_out; /* examples; left_out: not in the list */
    sha256         content;             /* of all items: what the model sees, and what counts */
} data_sequences;

gm_status data_sequences_make(const data_reader *r, const data_options *o, data_record *record, arena *a,
                              data_sequences *out, error *e);

/* ---- data.c ---- */

typedef struct {
    uint64_t offset, line, digest; /* digest: of its bytes */
    uint32_t length;
    bool     eval;
    uint8_t  content[16]; /* what the model sees: equal for duplicates */
} data_entry;

typedef struct {
    uint32_t entry, part; /* the record, and which of its examples */
    uint32_t tokens;
} data_index;

struct dataset {
    data_source    source;
    data_options   options;
    char          *path, *system; /* copies */
    data_reader    reader;
    data_cursor    cursor;
    data_container container;
    data_form      form;
    uint64_t       form_line; /* where the form was seen first; 0: not yet */
    data_entry    *entries;
    size_t         entry_count, entry_capacity;
    data_index    *examples;
    size_t         example_count, example_capacity;
    data_stats     stats;
    bool           scanned;
    char           problems[DATA_PROBLEMS][440];
    size_t         problem_count;
};

/* data_order.c: duplicates, and which records are kept for evaluation. */
gm_status dataset_split(dataset *d, error *e);

#endif
