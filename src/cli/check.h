/* `gemmule check`: compares an expectation file with what this engine computes. */

#ifndef GM_CHECK_H
#define GM_CHECK_H

#include "cli/engine_arguments.h"
#include "text/tokenizer.h"

/* One line of the result. */
typedef struct {
    char   name[80];
    double error;        /* ‖got − want‖ / ‖want‖ */
    bool   exact;        /* must have an error of 0, whatever the tolerance */
    char   problem[420]; /* why it could not be computed, or "" */
} check_result;

typedef struct {
    const engine_values *values;
    const char          *model_path, *engine_name, *expect_path;
    const gguf          *model, *expect;
    const char          *adapter; /* not supported yet */
    gm_engine           *engine;  /* opened on first use */
    error                engine_problem;
    tokenizer           *words;
    error                words_problem;
} check_state;

/* Each sets result->error or fails. GM_UNSUPPORTED and GM_BAD_ARGUMENT fail this line; other statuses (no memory, no device,
 * Ctrl-C) end the check. `number` is the N of "logits.N", or "" for "logits". */
gm_status check_logits(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e);
/* The same with an image or audio clip in the prompt, whose soft tokens the expectation contains. `kind` is "image" or
 * "audio". */
gm_status check_soft_logits(check_state *c, const gguf_tensor *want, const char *kind, check_result *result, error *e);
gm_status check_greedy(check_state *c, const gguf_tensor *want, const char *number, check_result *result, error *e);
gm_status check_prompt(check_state *c, str text, const char *number, check_result *result, error *e);
gm_status check_blocks(check_state *c, const gguf_tensor *want, const char *type, check_result *result, error *e);

/* ‖got − want‖ / ‖want‖ in double; infinite if one of a pair is NaN. */
double relative_error(const float *got, const float *want, uint64_t count);

#endif
