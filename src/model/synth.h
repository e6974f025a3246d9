/* Models made of random numbers: a file with the tensors, shapes, type mix, metadata and vocabulary size of a released
 * Gemma 4, for measuring speed and memory without the real weights. It says nothing sensible, but every value is finite
 * and of a normal size, and llama.cpp loads it too. The same options give the same file. */

#ifndef GM_SYNTH_H
#define GM_SYNTH_H

#include "gguf/gguf.h"

typedef struct {
    const char *size;   /* "e2b", "e4b", "12b", "26b", "31b" */
    int         layers; /* 0: all; else the first so many, with the last made a full layer and the K/V sharing scaled */
    const char *quant;  /* "q4_k_m", "q4_0", "q8_0", "f16"; NULL: q4_k_m */
    const char *flavour; /* "llama.cpp" or "ollama": metadata and type mix as either writes them; NULL: llama.cpp */
    uint64_t    seed;
} synth_options;

typedef bool (*synth_progress)(void *user, uint64_t done, uint64_t total); /* bytes; false: stop */

/* Writes the model to `path`: into a file beside it first, which then takes its name, so that a failure leaves nothing and
 * keeps what was there. `progress` (may be NULL) is told now and then how many bytes are written, of how many; when it wants to stop, that is GM_CANCELLED. An
 * unknown name in the options, or a number of layers outside 2 to the model's own, is GM_BAD_ARGUMENT and says what there is. */
gm_status synth_write(const synth_options *options, const char *path, synth_progress progress, void *user, error *e);

/* The tensors that such a file has, in the order of the file, without any data: for estimates and tests. The list lives in
 * the arena. `offset` and `part` are 0. */
gm_status synth_tensors(const synth_options *options, arena *a, gguf_tensor **tensors, size_t *count, error *e);

#endif
