/* The hyper-parameters of a Gemma 4 text model, read from metadata in either flavour and checked. */

#ifndef GM_CONFIG_H
#define GM_CONFIG_H

#include "gguf/gguf.h"

typedef struct {
    bool     sliding;               /* sees `window` positions, else all */
    bool     owns_kv;               /* else it reads the cache of layer `donor` */
    uint32_t donor;                 /* itself when it owns one */
    uint32_t heads, kv_heads, head; /* query heads, K/V heads, their size */
    uint32_t feed_forward;
} layer_config;

typedef struct {
    uint32_t layers, width, vocabulary, context, window;
    uint32_t per_layer_width;                            /* 0: no per-layer embeddings */
    uint32_t experts, experts_used, expert_feed_forward; /* 0: no mixture of experts */
    bool     image_blocks; /* on sliding layers the tokens of an image see each other, not only those before them */
    float    eps, softcap; /* softcap 0: none */
    float    rope_base_full, rope_base_sliding;
    layer_config *layer;
} model_config;

/* `a` gets the layer table. The vocabulary is that of token_embd.weight. */
gm_status model_config_read(const gguf *g, arena *a, model_config *out, error *e);

#endif
