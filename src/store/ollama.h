/* Ollama's store: names → manifests → blobs. Read only. Links inside the store are not followed, so that nothing outside
 * it is read; the root itself may be one. */

#ifndef GM_OLLAMA_H
#define GM_OLLAMA_H

#include "base/arena.h"

typedef struct {
    const char  *name;      /* "gemma4:e2b", "hf.co/user/repo:Q4_K_M" */
    const char  *model;     /* path of the GGUF blob; NULL when the manifest names none */
    const char  *projector; /* each NULL when there is none */
    const char  *draft;
    const char **adapters;
    size_t       adapter_count;
    const char  *system;                                        /* the text itself */
    const char  *params;                                        /* JSON text */
    const char  *renderer, *family, *size_label, *quantisation; /* of the config blob; NULL when absent */
    uint64_t     bytes;                                         /* of all layers */
    uint64_t     model_bytes, projector_bytes;
    char         problem[300]; /* "", or what is missing, partial or unsupported */
} ollama_model;

/* Everything in the store, sorted by name. A model that cannot be run is listed with its `problem`. */
typedef struct {
    const char   *root; /* NULL: there is no store */
    ollama_model *models;
    size_t        count;
    const char  **unreadable; /* "PATH: REASON" for each folder and link that was passed over */
    size_t        unreadable_count;
} ollama_store;

/* The store's root: $OLLAMA_MODELS, else the first of ~/.ollama/models and /usr/share/ollama/.ollama/models that exists.
 * NULL when there is none; fails only for lack of memory. */
gm_status ollama_root(arena *a, const char **path, error *e);

/* Resolves a name as Ollama does (host, namespace and tag have defaults). GM_NOT_FOUND says what the store has and how to
 * get the model; a blob that is missing, partial or of a size other than the manifest's is an error that names the file. */
gm_status ollama_resolve(const char *name, arena *a, ollama_model *out, error *e);

/* Fails only for lack of memory. */
gm_status ollama_list(arena *a, ollama_store *out, error *e);

/* Opens a blob ("sha256-<64 hex>") of the store at `root` for reading: a regular file below it, reached without links.
 * Returns -1 where there is none. */
int ollama_open_blob(const char *root, const char *blob);

#endif
