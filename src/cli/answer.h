/* Shows an answer piece by piece as it arrives, and keeps it. */

#ifndef GM_ANSWER_H
#define GM_ANSWER_H

#include "base/buffer.h"
#include "cli/report.h"

#include <stdio.h>

typedef struct {
    bool stream;        /* print the content to stdout as it arrives */
    bool show_thinking; /* dim on stdout if that is a terminal, else on stderr, so that stdout has only the answer */
    bool progress;      /* show a progress bar while the prompt is computed */
    const gm_engine *logprobs_of;  /* collect log-probabilities; NULL: none */
    uint32_t         alternatives; /* per token, besides the chosen one */
    const gm_engine *canvas_of;    /* show canvases on the terminal; NULL: do not */
} answer_style;

typedef struct {
    buffer         content, thinking;
    buffer         calls; /* the items of a JSON array, with commas: [{"function": {"name": …, "arguments": …}}] */
    size_t         call_count;
    report         logprobs; /* the items of a JSON array */
    gm_reply_stats stats;
} answer; /* zero-initialise */

/* Runs the reply to its end. GM_OK when it is complete; after GM_CANCELLED and errors, what arrived is kept. */
gm_status answer_collect(answer *a, gm_reply *reply, const answer_style *style, error *e);
void      answer_free(answer *a);

/* Model output must not control the terminal: control characters other than tab and newline become U+FFFD. */
void answer_print_harmless(FILE *out, str text);

const char *finish_name(gm_finish finish); /* "stop", "length", "tool_calls", "cancelled" */

#endif
