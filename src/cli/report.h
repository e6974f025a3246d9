/* The --json output of a command: one object on one line. `key` is NULL inside an array. */

#ifndef GM_REPORT_H
#define GM_REPORT_H

#include "base/json.h"

typedef struct {
    buffer text;
    bool   comma; /* the next item needs a comma */
} report;         /* zero-initialise */

void report_open(report *r, const char *key, char bracket); /* '{' or '[' */
void report_close(report *r, char bracket);                 /* '}' or ']' */
void report_str(report *r, const char *key, str value);
void report_text(report *r, const char *key, const char *value); /* NULL becomes null */
void report_count(report *r, const char *key, uint64_t value);
void report_integer(report *r, const char *key, int64_t value);
void report_number(report *r, const char *key, double value); /* six significant digits; null for NaN */
void report_bool(report *r, const char *key, bool value);
void report_null(report *r, const char *key);
void report_json(report *r, const char *key, str written); /* text that already is JSON */

/* Prints the report with a newline and frees it. Returns the exit code: 0, or 4 if memory ran out. */
int report_print(report *r);

#endif
