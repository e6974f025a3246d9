/* What `gemmule train` shows: the data, progress and results, for people or as JSON lines; and the loss curve as a picture. */

#ifndef GM_TRAIN_REPORT_H
#define GM_TRAIN_REPORT_H

#include "base/base.h"

typedef struct {
    bool        json, quiet;
    bool        shown; /* a line of progress is on the terminal */
    double      drawn;
    const char *device;
} train_report;

void train_report_data(train_report *r, const gm_training *t, const char *path);
/* An event, to be kept in sight. */
void train_report_event(train_report *r, const gm_training_event *event);
/* A line that is drawn again and again. */
void train_report_progress(train_report *r, const gm_training_event *event);
/* Removes it. */
void train_report_clear(train_report *r);

/* The losses of all steps and evaluations as an SVG file. */
gm_status train_curve_save(const gm_training *t, const char *path, error *e);

#endif
