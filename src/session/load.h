/* Opening an engine, as a job that never waits and never calls out: header; weights, while the GPU's shaders compile and the
 * self-check runs; identity.
 *
 * A file in memory, or a mapped one, is used in place. From a file that arrives in pieces the job asks for what it needs
 * (engine_load_reads). For the GPU, vectors go to memory and matrices go straight from the source into GPU buffers. For the CPU,
 * all weights go to memory except towers and, if it is too large, the per-layer table: its rows are read when they are
 * needed, as long as the engine lives. */

#ifndef GM_LOAD_H
#define GM_LOAD_H

#include "gguf/reads.h"
#include "session/engine.h"
#include "session/self_check.h"

typedef struct engine_load engine_load;

typedef struct {
    const gm_engine_options *engine;    /* the model is not looked for */
    const engine_origin     *origin;    /* NULL: nothing is known */
    gguf                    *projector; /* a second file with towers, owned as the first; NULL: none */
    uint64_t                 memory;    /* the most memory for weights that arrive in pieces, on the CPU; 0: 3 GiB */
} load_options;

/* Takes ownership of the file, whose header may have been read already, and of the sources of its other parts, even on
 * failure. Copies the options. */
gm_status engine_load_new(gguf *file, source **others, size_t count, const load_options *options, engine_load **out,
                          error *e);
void      engine_load_free(engine_load *l);

/* GM_AGAIN: it waits for reads or the GPU, or it is time to let others work. GM_OK: the engine can be taken, once. */
gm_status  engine_load_step(engine_load *l, error *e);
gm_engine *engine_load_take(engine_load *l);
/* Only the first stage: GM_OK once all metadata is there. Reads nothing else. */
gm_status engine_load_header(engine_load *l, error *e);

/* The orders that the host must answer, and the file they refer to. The engine keeps both. */
reads      *engine_load_reads(const engine_load *l);
const gguf *engine_load_file(const engine_load *l);
/* Waits for news from the GPU; native only. */
void engine_load_wait(const engine_load *l);

typedef enum { LOAD_HEADER, LOAD_CHECK, LOAD_WEIGHTS, LOAD_SHADERS, LOAD_PLANS } load_phase;

typedef struct {
    load_phase phase;
    uint64_t   done, total; /* bytes; in LOAD_SHADERS, shaders */
} load_progress;

load_progress engine_load_progress(const engine_load *l);

/* The self-check of the engine's GPU, for this model. */
gm_status engine_check_new(gm_engine *engine, self_check **out, error *e);

/* ---- before loading: fit.c ---- */

typedef struct {
    bool         fits;
    char         why[400]; /* why not */
    char         note[400];
    const char  *name; /* these two live as long as the load */
    const gguf  *file;
    model_config config; /* `layer` is not kept */
    uint64_t     parameters;
    uint64_t     bytes;       /* of the GPU's memory, or of ours */
    uint64_t     table_bytes; /* of the per-layer table; 0: there is none */
    bool         table_kept;  /* kept in that memory; otherwise each token reads its rows */
    uint64_t     kv_bytes_per_token;
    uint64_t tower_bytes; /* of the towers' weights, which are loaded only when a message has a picture or a sound */
} load_fit;

/* After engine_load_header: whether the model fits, judged by its header alone. `max_binding` is the GPU's; 0: unknown. */
gm_status engine_load_fit(const engine_load *l, uint64_t max_binding, load_fit *out, error *e);

/* GM_NO_MEMORY, with the sizes, if weights that arrive in pieces do not fit into memory. `*rows` is set if the per-layer table
 * must stay outside. */
gm_status load_check_memory(const gguf *file, uint64_t limit, bool *rows, uint64_t *bytes, error *e);

#endif
