/* The hyper-parameters of a Gemma 4 text model, read from the metadata of llama.cpp's or Ollama's files and checked. */

#ifndef GM_CONFIG_H
#define GM_CONFIG_H

#include "gguf/gguf.h"

typedef struct {
    bool     sliding;               /* sees `window` positions; otherwise all */
    bool     owns_kv;               /* otherwise it reads the cache of layer `donor` */
    uint32_t donor;                 /* the layer itself if it owns a cache */
    uint32_t heads, kv_heads, head; /* query heads, K/V heads, their size */
    uint32_t feed_forward;
} layer_config;

typedef struct {
    uint32_t layers, width, vocabulary, context, window;
    uint32_t per_layer_width;                            /* 0: no per-layer embeddings */
    uint32_t experts, experts_used, expert_feed_forward; /* 0: no mixture of experts */
    bool     image_blocks; /* on sliding layers an image's tokens see the whole image, also the tokens after them */
    float    eps, softcap; /* softcap 0: none */
    float    rope_base_full, rope_base_sliding;
    layer_config *layer;
} model_config;

/* Allocates the layer table in `a`. The vocabulary size is the number of rows of token_embd.weight. */
gm_status model_config_read(const gguf *g, arena *a, model_config *out, error *e);

#endif
