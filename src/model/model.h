/* A Gemma 4 text model: its hyper-parameters and its weights, found by name, checked against the shapes that the
 * hyper-parameters ask for, and used where they lie in the mapped file. */

#ifndef GM_MODEL_H
#define GM_MODEL_H

#include "graph/graph.h"
#include "model/config.h"

typedef struct {
    const char *name;
    quant_type  type;
    uint64_t    ne[3];
    uint64_t    bytes;
    const void *data;
} weight; /* data NULL: the model has none */

typedef struct {
    weight attn_norm, attn_q, attn_k, attn_v, attn_output, attn_q_norm, attn_k_norm, post_attention_norm;
    weight ffn_norm, ffn_gate, ffn_up, ffn_down, post_ffw_norm;
    weight inp_gate, proj, post_norm;                                                       /* per-layer embeddings */
    weight router, router_scale, gate_up_exps, gate_exps, up_exps, down_exps, expert_scale; /* experts */
    weight pre_ffw_norm_2, post_ffw_norm_1, post_ffw_norm_2;
    float  output_scale;
} layer_weights;

typedef struct {
    arena          memory; /* norms and other vectors as f32, names, the layer table */
    const gguf    *file;
    model_config   config;
    weight         token_embd, output, output_norm;
    weight         per_layer_token_embd, per_layer_model_proj, per_layer_proj_norm;
    weight         frequencies_full, frequencies_sliding; /* RoPE: the angle that one position adds to pair j */
    layer_weights *layer;
    uint64_t       parameters;      /* of all tensors of the file */
    uint64_t       bytes_per_token; /* weight bytes read to decode one token */
} model;

/* Brings every tensor of a file that comes in pieces into memory: GM_AGAIN while one is missing (its source says what it
 * wants), GM_OK when all are there; `*next` starts at 0. For files in memory there is nothing to do. Towers are left out. */
gm_status model_fetch(const gguf *file, size_t *next, source **waiting, error *e);

/* The file must outlive the model, and its tensors be in memory. */
gm_status model_load(const gguf *file, model *out, error *e);
void      model_free(model *m);

/* Tokens in, logits of the wanted outputs out. */
gm_status model_text_graph(const model *m, graph *out, error *e);

/* Looks for NaN and infinities in the weights, which takes long: for explaining why logits came out as NaN. The error names
 * tensor and block; GM_OK when every weight is finite. */
gm_status model_find_nan(const model *m, error *e);

/* Identifies model and weights: SHA-256 over the head of the file, its length and samples of its data. */
void model_hash(const model *m, uint8_t digest[32]);

#endif
