/* MODEL on the command line: a path, a name in Ollama's store, or `box`. */

#ifndef GM_MODEL_ARGUMENT_H
#define GM_MODEL_ARGUMENT_H

#include "gguf/gguf.h"

typedef struct {
    const char *path;   /* of the GGUF file */
    const char *engine; /* for gm_engine_open: an Ollama name brings its parameters along */
} model_argument;

gm_status model_argument_resolve(const char *given, arena *a, model_argument *out, error *e);

/* How the model was chosen. */
typedef enum { CHOICE_NAMED, CHOICE_STORE, CHOICE_BOX } model_choice;

/* `named` (may be NULL), or $GEMMULE_MODEL, or the first usable Gemma 4 in Ollama's store, or the model in the box.
 * GM_NOT_FOUND says how to get one. */
gm_status model_argument_choose(const char *named, arena *a, const char **out, model_choice *how, error *e);

/* Resolves the name and opens only the file, no engine. */
gm_status model_argument_open(const char *given, arena *a, gguf **out, error *e);

#endif
