/* Internal to synth*.c: the plan made from the options, its tensors, its vocabulary and its random blocks. */

#ifndef GM_SYNTH_PARTS_H
#define GM_SYNTH_PARTS_H

#include "model/synth.h"

/* A released model. Heads have 256 values on sliding layers and 512 on full ones; every period-th layer is full. */
typedef struct {
    const char *name, *label;
    uint32_t    width, layers, period, heads, kv_heads_sliding, kv_heads_full, window, context;
    uint32_t    feed_forward, feed_forward_sharing; /* in layers with their own K/V, and in those that share */
    uint32_t    sharing;                            /* how many of the last layers use an earlier layer's K/V */
    uint32_t    per_layer;                          /* width of the per-layer embedding; 0: none */
    uint32_t    experts, experts_used, expert_feed_forward;
    bool        keys_are_values; /* full layers have no attn_v */
    bool        suppresses;      /* the file lists tokens that must not be sampled */
    uint32_t    canvas;          /* tokens of a diffusion model's canvas; 0: it is none */
} synth_size;

/* The types of a file's matrices. */
typedef struct {
    const char *name;
    uint32_t    file_type;         /* general.file_type */
    quant_type  matrix, important; /* important: attn_v and ffn_down of some layers */
    quant_type  embedding;         /* token_embd, and per_layer_token_embd in llama.cpp's files */
} synth_quant;

typedef struct {
    const synth_size  *size;
    const synth_quant *quant;
    uint32_t           layers, sharing; /* after cutting */
    uint32_t           vocabulary, window;
    bool               ollama, towers;
    uint64_t           seed;
    bool               skewed;
} synth_plan;

typedef enum {
    FILL_MATRIX,
    FILL_NORM,
    FILL_QUERY_KEY_NORM,
    FILL_ATTENTION_NORM, /* of what attention adds to the residual */
    FILL_BRANCH_NORM,    /* of what another branch adds */
    FILL_OUTPUT_NORM,
    FILL_LAYER_SCALE,
    FILL_ROPE,
    FILL_ROUTER,
    FILL_SKEWED_ROUTER,
    FILL_TABLE, /* like a matrix, in f32 */
    FILL_LEAST, /* bounds of clipped linears: wide */
    FILL_MOST,
} synth_fill;

typedef struct {
    gguf_tensor info;
    synth_fill  fill;
} synth_tensor;

enum { SYNTH_VOCABULARY = 262144 };

gm_status synth_plan_make(const synth_options *options, synth_plan *plan, error *e);
bool      synth_layer_is_full(const synth_plan *plan, uint32_t layer);
uint32_t  synth_feed_forward(const synth_plan *plan, uint32_t layer);
/* A list that is being made. */
typedef struct {
    const synth_plan *plan;
    arena            *memory;
    synth_tensor     *items;
    size_t            count, capacity;
    bool              failed;
} synth_list;

gm_status synth_list_new(const synth_plan *plan, size_t capacity, arena *a, synth_list *out, error *e);
/* A dimension of 0 is left out. */
void synth_list_add(synth_list *list, synth_fill fill, quant_type type, const uint64_t ne[4], const char *name);

/* synth_towers.c: tensors, and metadata in the model's file or in the projector's. */
void synth_add_towers(synth_list *list);
void synth_write_tower_keys(const synth_plan *plan, gguf_writer *w);
void synth_write_projector_keys(const synth_plan *plan, gguf_writer *w);

/* The text model's, and with Ollama's flavour those of its towers. */
gm_status synth_list_tensors(const synth_plan *plan, arena *a, synth_tensor **tensors, size_t *count, error *e);

/* The projector's. */
gm_status synth_list_projector(const synth_plan *plan, arena *a, synth_tensor **tensors, size_t *count, error *e);

/* Metadata under tokenizer.ggml. */
gm_status synth_write_vocabulary(const synth_plan *plan, gguf_writer *w, error *e);

/* xoshiro256++ (Blackman, Vigna). */
typedef struct {
    uint64_t state[4];
} synth_random;

void synth_random_start(synth_random *random, uint64_t seed, uint64_t stream);
/* Fills in `count` elements, a whole number of blocks. */
void synth_fill_data(synth_random *random, const synth_tensor *tensor, void *out, uint64_t first, uint64_t count);

#endif
