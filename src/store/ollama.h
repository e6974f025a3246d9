/* Ollama's folder: names → manifests → blobs. Read only. */

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
    char         problem[300];                                  /* "" or what is missing, partial or not supported */
} ollama_model;

/* The store's root: $OLLAMA_MODELS, else the first that exists of ~/.ollama/models and /usr/share/ollama/.ollama/models.
 * NULL when there is none. */
const char *ollama_root(arena *a);

/* Resolves a name as Ollama does (host, namespace and tag have defaults). GM_NOT_FOUND says where it looked and what is
 * there; a blob that is missing, partial or of another size than the manifest says is an error that names the file. */
gm_status ollama_resolve(const char *name, arena *a, ollama_model *out, error *e);

/* NULL, or what of the model, whose files are all there, is not supported: without it the answers would be another model's. */
const char *ollama_unsupported(const ollama_model *m);

/* Everything in the store, sorted by name; an entry that cannot be run is listed with its `problem`. */
gm_status ollama_list(arena *a, ollama_model **models, size_t *count, error *e);

#endif
