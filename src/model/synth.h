/* Models with random weights: a file with the tensors, shapes, type mix, metadata and vocabulary size of a released Gemma 4, for
 * measuring speed and memory without the real weights. Its answers are nonsense, but norms and scales are as in trained models,
 * so rounding changes the logits no more than it does there. llama.cpp loads the file too. The same options produce the same file. */

#ifndef GM_SYNTH_H
#define GM_SYNTH_H

#include "gguf/gguf.h"

typedef struct {
    const char *size;       /* "e2b", "e4b", "12b", "26b", "31b", "diffusion" */
    int         layers;     /* 0: all; otherwise the first n, with a full layer last and K/V sharing scaled down */
    const char *quant;      /* "q4_k_m", "q4_0", "q8_0", "f16"; NULL: q4_k_m */
    const char *flavour;    /* "llama.cpp" or "ollama": whose metadata and type mix; NULL: llama.cpp */
    int         vocabulary; /* 0: 262,144; otherwise the first n tokens, at least 512 */
    int         window;     /* 0: the model's; otherwise how many positions sliding layers see */
    bool
        skewed; /* a tenth of the experts gets about half of the tokens, as in trained models; otherwise all get similar numbers */
    bool     towers; /* vision and audio towers, too: in the same file for Ollama, otherwise in a projector beside it */
    uint64_t seed;
} synth_options;

typedef bool (*synth_progress)(void *user, uint64_t done, uint64_t total); /* bytes; false: stop */

/* Writes the model to `path`. It writes a temporary file beside it and renames that, so a failure leaves nothing behind and keeps
 * an existing file. Calls `progress` (may be NULL) now and then; if that returns false, stops with GM_CANCELLED. An unknown name in
 * the options, or fewer than 2 or too many layers, is GM_BAD_ARGUMENT with a message that lists the choices. */
gm_status synth_write(const synth_options *options, const char *path, synth_progress progress, void *user, error *e);

/* Where the projector of a model goes: "m.gguf" has "m.mmproj.gguf". The text lives in the arena. */
const char *synth_projector_path(const char *path, arena *a);

/* The tensors of such a file, in order and without data, for estimates and tests. The list lives in the arena. `offset` and
 * `part` are 0. */
gm_status synth_tensors(const synth_options *options, arena *a, gguf_tensor **tensors, size_t *count, error *e);

#endif
