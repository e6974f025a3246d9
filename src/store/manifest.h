/* Ollama's manifests: JSON that lists a model's layers. Parses text and never touches the disk. */

#ifndef GM_MANIFEST_H
#define GM_MANIFEST_H

#include "base/arena.h"

typedef struct {
    const char *kind;     /* "model", "params" …: the media type without Ollama's prefix, else the whole media type */
    char        blob[72]; /* "sha256-<64 hex>": the file's name in blobs/ */
    uint64_t    size;
} manifest_layer;

typedef struct {
    manifest_layer  config; /* blob is "" if the manifest has no config */
    manifest_layer *layers;
    size_t          count;
    uint64_t        bytes; /* of all layers */
} manifest;

typedef struct {
    const char *renderer, *family, *size_label, *quantisation; /* NULL when absent */
} manifest_config;

gm_status manifest_parse(str text, arena *a, manifest *out, error *e);
gm_status manifest_config_parse(str text, arena *a, manifest_config *out, error *e);

/* A model's name as Ollama reads it: [[host/]namespace/]model[:tag]. */
typedef struct {
    const char *path;  /* "registry.ollama.ai/library/gemma4/e2b": the manifest's place below manifests/ */
    const char *shown; /* "gemma4:e2b": without the defaults */
} manifest_name;

/* GM_BAD_ARGUMENT for anything that cannot be a name, above all paths that lead out of the store. */
gm_status manifest_name_parse(const char *name, arena *a, manifest_name *out, error *e);
/* The reverse, from a path of at least four components; GM_BAD_ARGUMENT as above. */
gm_status manifest_name_of_path(const char *path, arena *a, manifest_name *out, error *e);

#endif
