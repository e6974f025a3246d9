/* The terminal: whether there is one, how wide it is, and progress on it. */

#ifndef GM_TERMINAL_H
#define GM_TERMINAL_H

#include "base/base.h"

bool   terminal_input(void);  /* stdin is a terminal */
bool   terminal_output(void); /* stdout is */
bool   terminal_errors(void); /* stderr is */
size_t terminal_width(void);  /* of stderr; 80 if unknown */

/* "3.4 GB", "17.9 kB": powers of 1000. */
void format_bytes(uint64_t bytes, char out[32]);
/* "1:02:03", "4:05", "0:07" */
void format_duration(double seconds, char out[32]);

typedef enum { PROGRESS_BYTES, PROGRESS_TOKENS, PROGRESS_STEPS, PROGRESS_SHADERS } progress_unit;

/* A progress bar on stderr, with rate and remaining time. It appears after a moment, since short work needs none, and leaves
 * no trace. Does nothing if it is not wanted or stderr is not a terminal. */
typedef struct {
    bool          on, shown;
    const char   *what;
    progress_unit unit;
    double        started, drawn;
} progress;

void progress_start(progress *p, const char *what, progress_unit unit, bool wanted);
void progress_update(progress *p, uint64_t done, uint64_t total);
void progress_end(progress *p);

/* Dim text, for everything but the answer; "" if `on` is false. */
const char *dim_on(bool on);
const char *dim_off(bool on);

#endif
