/* gemmule adapter: what its parts share. */

#ifndef GM_CLI_ADAPTER_H
#define GM_CLI_ADAPTER_H

#include "adapter/adapter.h"
#include "cli/cli.h"

typedef struct {
    bool        json, quiet, ollama;
    const char *type;
    count_value rank, seed;
} adapter_values;

/* gemmule adapter merge MODEL ADAPTER[=SCALE]… OUT */
int adapter_merge_run(const adapter_values *v, const char *const *given, size_t count);

/* gemmule adapter random MODEL OUT */
int adapter_random_run(const adapter_values *v, const char *const *given, size_t count);

#endif
