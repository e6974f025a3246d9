/* An engine: one model on one device. */

#ifndef GM_ENGINE_H
#define GM_ENGINE_H

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

struct gm_engine {
    gguf        *file;
    model        weights;
    graph        text;
    bool         on_gpu, precise;
    cpu_backend  cpu; /* one of the two is open */
    gpu_backend  gpu;
    gpu_budget   budget; /* what of the weights the GPU holds; used if there is a limit */
    tokenizer   *words;
    uint32_t    *suppressed; /* a bit per id that is never drawn; NULL: none */
    chat_variant variant;
    gm_sampling  sampling; /* the model's own defaults */
    arena        memory;   /* the strings below */
    const char  *name, *device, *system;
    char         note[400]; /* what does not fit into GPU memory */
    struct {
        double check, upload, plans;
    } seconds; /* that the GPU's self-check, the upload of the weights and the making of plans took so far */
};

/* Opens a model whose file is read already; the engine takes the file over, on failure too. `name` is what the user called
 * it, `renderer`, `params` and `system` come from Ollama's store; each may be NULL. */
typedef struct {
    const char *name, *renderer, *params, *system;
} engine_origin;

gm_status engine_open_file(gguf *file, const gm_engine_options *options, const engine_origin *origin, gm_engine **out,
                           error *e);

/* Finds a model by path, Ollama name or "box". The strings live in the arena. */
gm_status engine_find_model(const char *model, arena *a, const char **path, engine_origin *origin, error *e);

#endif
