/* What `gemmule run --prompts` does: answers a file of prompts, several at once. */

#ifndef GM_RUN_PROMPTS_H
#define GM_RUN_PROMPTS_H

#include "cli/engine_arguments.h"

typedef struct {
    const char            *prompts, *out; /* paths */
    const char            *model;
    const engine_values   *engine;
    const sampling_values *sampling; /* of lines that do not say otherwise */
    uint64_t               context;
    uint32_t               most; /* tokens, the same; 0: the model's own limit */
    size_t                 parallel;
    bool                   think, quiet;
} prompts_options;

/* Each line of the file is a JSON object with a "prompt" or OpenAI's "messages", and settings as in a request to the server; "id" is
 * repeated in the answer. The answers are lines of JSON in the same order. Those that `out` has already are kept.
 * Returns the exit code. */
int run_prompts(const prompts_options *options);

#endif
