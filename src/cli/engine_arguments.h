/* Options shared by the commands that compute: the engine and the sampling. */

#ifndef GM_ENGINE_ARGUMENTS_H
#define GM_ENGINE_ARGUMENTS_H

#include "cli/model_argument.h"
#include "base/buffer.h"
#include "cli/options.h"

typedef struct {
    const char *mmproj;
    int         backend; /* gm_backend */
    int         kv;      /* gm_kv_type */
    count_value threads;
    bool        precise;
    const char *cpu;
    count_value gpu;
    const char *gpu_disable;
    count_value gpu_memory, gpu_experts;
    texts_value adapters; /* DIR or DIR=scale */
} engine_values;

typedef struct {
    number_value temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    count_value  top_k, penalty_window, seed;
} sampling_values;

enum { ENGINE_OPTIONS = 10, ADAPTER_OPTIONS = 1, SAMPLING_OPTIONS = 10 };
extern const option engine_options[ENGINE_OPTIONS];
extern const option
    adapter_options[ADAPTER_OPTIONS]; /* of engine_values, too, for commands that open sessions themselves */
extern const option sampling_options[SAMPLING_OPTIONS];
#define ENGINE_GROUP(offset) { "engine", engine_options, ENGINE_OPTIONS, offset }
#define ADAPTER_GROUP(offset) { "adapters", adapter_options, ADAPTER_OPTIONS, offset }
#define SAMPLING_GROUP(offset) { "sampling", sampling_options, SAMPLING_OPTIONS, offset }

extern const option_choice kv_choices[]; /* of --kv: gm_kv_type */

/* Strings are not copied. */
gm_engine_options engine_choose(const engine_values *values, const char *model);
/* Says on stderr what does not fit into GPU memory, and loads the adapters. `progress`: shows a bar while it lasts. */
gm_status engine_open(const engine_values *values, const char *model, bool progress, gm_engine **out, error *e);
/* With the adapters of the options. `context` 0: the default. */
gm_status session_open(const engine_values *values, gm_engine *engine, uint64_t context, gm_session **out, error *e);

/* Splits "DIR=0.5" into the length of DIR and the scale. What exists is a path as a whole, whatever its name. */
gm_status adapter_argument(const char *text, size_t *length, float *scale, error *e);
/* Loads the adapters of the options into a new engine. */
gm_status adapters_open(const engine_values *values, gm_engine *engine, error *e);
/* Makes the session use those of the options' adapters whose names are listed, each with its own scale times factors[i]; `names` NULL:
 * all of them. GM_BAD_ARGUMENT: the options have no adapter of such a name. */
gm_status session_use_adapters(const engine_values *values, gm_session *session, const char *const *names,
                               const float *factors, size_t count, error *e);

/* Makes the session use the adapters in `text`, DIR[=SCALE] or NAME[=SCALE] of one that is loaded, with spaces between them; "none": no
 * adapters. Loads those that are not loaded yet. Nothing changes if it fails. */
gm_status adapters_switch(gm_session *session, const char *text, error *e);
/* "name=0.5 other": what the session uses, besides the model's own. */
void adapters_show(const gm_session *session, buffer *out);

/* The model's defaults, overridden by the options. Without --seed, `out` gets a random one. */
gm_status sampling_choose(const sampling_values *values, const gm_engine *engine, gm_sampling *out, error *e);

#endif
