/* MODEL on the command line: a path, a name in Ollama's store, or `box`. */

#ifndef GM_MODEL_ARGUMENT_H
#define GM_MODEL_ARGUMENT_H

#include "gguf/gguf.h"

typedef struct {
    const char *path;   /* of the GGUF file */
    const char *engine; /* what gm_engine_open is to be given: Ollama's names bring their parameters along */
} model_argument;

gm_status model_argument_resolve(const char *given, arena *a, model_argument *out, error *e);

/* What is meant when no model is named. */
typedef enum { CHOICE_NAMED, CHOICE_STORE, CHOICE_BOX } model_choice;

/* `named` (may be NULL), else $GEMMULE_MODEL, else the first usable Gemma 4 in Ollama's store, else the model in the box.
 * GM_NOT_FOUND says how to get one. */
gm_status model_argument_choose(const char *named, arena *a, const char **out, model_choice *how, error *e);

/* Resolves and opens the file alone, without an engine. */
gm_status model_argument_open(const char *given, arena *a, gguf **out, error *e);

#endif
