/* Shared by the tests of data to learn from. */

#ifndef GM_TEST_TRAIN_DATA_H
#define GM_TEST_TRAIN_DATA_H

#include "sessions.h"
#include "tokenizer_tools.h"
#include "train/data_parts.h"

#include <unistd.h>

static loaded box; /* the vocabulary */

/* JSON in C is hard to read: texts here are written with ' for ". */
static inline buffer quoted(const char *text) {
    buffer out = { 0 };
    for (; *text; text++) buffer_char(&out, *text == '\'' ? '"' : *text);
    buffer_text(&out, "");
    return out;
}

static inline data_options plain_options(void) { return (data_options){ .words = box.t, .model = box.file }; }

/* Opens and scans; the reason for a failure is in `why`. */
static inline gm_status scan(const data_source *from, const data_options *o, dataset **out) {
    error     e = { 0 };
    gm_status status = dataset_open(from, o, out, &e);
    while (!status && (status = dataset_scan(*out, 0, &e)) == GM_AGAIN) status = GM_OK; /* a record in each call */
    snprintf(why, sizeof why, "%s", e.why);
    return status;
}

static inline dataset *scan_text(const buffer *text, const char *name, const data_options *o) {
    const data_source from = { .bytes = buffer_view(text), .name = name };
    dataset          *d = NULL;
    CHECK_MESSAGE(!scan(&from, o, &d), "%s: %s", name, why);
    return d;
}

/* ---- files ---- */

static char folder[] = "/tmp/gemmule-data-XXXXXX";

static inline const char *in_folder(const char *name) {
    static char paths[8][120]; /* the last ones stay */
    static int  next;
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof paths[next], "%s/%s", folder, name);
    return paths[next];
}

static inline void data_write_file(const char *path, const char *mode, str text) {
    FILE *file = fopen(path, mode);
    CHECK(file && fwrite(text.data, 1, text.length, file) == text.length);
    if (file) fclose(file);
}

/* A call in a message. */
#define CALL_ADD "'tool_calls':[{'id':'1','function':{'name':'add','arguments':{'b':2,'a':1}}}]"

#endif
