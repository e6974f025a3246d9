/* The hyper-parameters of a Gemma 4 text model or of a DiffusionGemma, read from the metadata of llama.cpp's or Ollama's files and checked. */

#ifndef GM_CONFIG_H
#define GM_CONFIG_H

#include "gguf/gguf.h"

/* That a file or a caller may ask for. The number of a step, and of the end of the last, has 10 bits of a draw (graph.h). */
enum { CANVAS_MOST_STEPS = 1023 };

typedef struct {
    bool     sliding;               /* sees `window` positions; otherwise all */
    bool     owns_kv;               /* otherwise it reads the cache of layer `donor` */
    uint32_t donor;                 /* the layer itself if it owns a cache */
    uint32_t heads, kv_heads, head; /* query heads, K/V heads, their size */
    uint32_t feed_forward;
} layer_config;

/* A model that writes by diffusion: it denoises a canvas of tokens in steps (session/canvas.h). */
typedef struct {
    uint32_t length;           /* tokens of a canvas; 0: the model writes one token after another */
    uint32_t steps;            /* the most for one canvas */
    float    coolest, warmest; /* temperature: it falls from `warmest` to nearly `coolest` */
    float    entropy_bound;    /* tokens are accepted as long as the entropies of those before add up to no more */
    uint32_t stability;        /* the likeliest tokens must be the same for so many further steps, */
    float    confidence;       /* and their mean entropy below this, to stop early */
} canvas_config;

typedef struct {
    uint32_t layers, width, vocabulary, context, window;
    uint32_t per_layer_width;                            /* 0: no per-layer embeddings */
    uint32_t experts, experts_used, expert_feed_forward; /* 0: no mixture of experts */
    bool     image_blocks; /* on sliding layers an image's tokens see the whole image, also the tokens after them */
    bool     whole_blocks; /* they do on full layers, too, and no window cuts an image */
    float    eps, softcap; /* softcap 0: none */
    float    rope_base_full, rope_base_sliding;
    canvas_config canvas;
    layer_config *layer;
} model_config;

/* Allocates the layer table in `a`. The vocabulary size is the number of rows of token_embd.weight. */
gm_status model_config_read(const gguf *g, arena *a, model_config *out, error *e);

#endif
