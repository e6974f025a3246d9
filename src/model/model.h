/* A Gemma 4 text model: its hyper-parameters and its weights. Weights are found by name and checked against the shapes that the
 * hyper-parameters require. They are not copied: they stay in the mapped file, in memory, or in a source in pieces. */

#ifndef GM_MODEL_H
#define GM_MODEL_H

#include "gguf/reads.h"
#include "graph/graph.h"
#include "model/config.h"

enum { MODEL_READS = 8, MODEL_SAMPLES = 16, MODEL_SAMPLE_BYTES = 256 };

typedef struct {
    const char *name; /* NULL: the model has none */
    quant_type  type;
    uint64_t    ne[3];
    uint64_t    bytes;
    const void *data; /* NULL: not in memory */
    source     *from; /* where its bytes are in the file; NULL: it was computed here */
    uint64_t    place;
} weight;

/* The weight as an input of ops; NULL if the model has none. */
tensor *weight_tensor(graph *g, const weight *w);

typedef struct {
    weight attn_norm, attn_q, attn_k, attn_v, attn_output, attn_q_norm, attn_k_norm, post_attention_norm;
    weight ffn_norm, ffn_gate, ffn_up, ffn_down, post_ffw_norm;
    weight inp_gate, proj, post_norm;                                                       /* per-layer embeddings */
    weight router, router_scale, gate_up_exps, gate_exps, up_exps, down_exps, expert_scale; /* experts */
    weight pre_ffw_norm_2, post_ffw_norm_1, post_ffw_norm_2;
    float  output_scale;
    float  encoder_scale; /* of a diffusion model: the same where text is read instead of denoised */
} layer_weights;

typedef struct {
    arena          memory; /* norms and other vectors as f32, names, the layer table */
    const gguf    *file;
    model_config   config;
    weight         token_embd, output, output_norm;
    weight         per_layer_token_embd, per_layer_model_proj, per_layer_proj_norm;
    weight         self_norm, self_gate, self_up, self_down; /* self-conditioning of a diffusion model */
    weight         frequencies_full, frequencies_sliding;    /* RoPE: the angle per position of pair j */
    layer_weights *layer;
    uint64_t       parameters;      /* of all tensors of the file */
    uint64_t       bytes_per_token; /* weight bytes read to decode one token */
} model;

typedef enum { PART_TEXT, PART_VISION, PART_AUDIO, MODEL_PARTS } model_part;

/* The part of a model that a tensor belongs to. */
model_part model_part_of(str tensor_name);

/* Reads tensors of a file in pieces into memory, some at a time. Does nothing for files in memory. Zero-initialise, then set the
 * first five fields. */
typedef struct {
    const gguf *file;
    reads      *reads;
    model_part  part;
    bool        matrices; /* all matrices: the CPU computes with them; the GPU reads its own copy from the source */
    bool        rows;     /* without the per-layer table: its rows are read on demand */
    uint64_t    done, total;
    size_t      next; /* the tensor, how much of it was asked for, and where it goes */
    uint64_t    asked;
    uint8_t    *room;
    uint32_t    tickets[MODEL_READS];
    uint64_t    lengths[MODEL_READS];
    size_t      sent, arrived;
} model_fetch;

gm_status model_fetch_step(model_fetch *f, error *e); /* GM_AGAIN: reads are under way */
void      model_fetch_drop(model_fetch *f);
/* Frees what it fetched, after everything that points into it. */
void model_fetch_forget(const model_fetch *f);
/* The bytes that it will hold in memory. */
uint64_t model_fetch_bytes(const model_fetch *f);

/* The file must outlive the model; its vectors must be in memory. */
gm_status model_load(const gguf *file, model *out, error *e);
/* Like model_load, from the header alone: names, types and shapes, but no values. For planning, not for computing. */
gm_status model_shapes(const gguf *file, model *out, error *e);
void      model_free(model *m);

/* Vectors that only the GPU has are known by places, which are so far apart: tables of weights hash them as addresses. */
enum { MODEL_PLACES = 32 };

/* What adapters correct: matrices A and B of each slot for one weight, laid out as LORA_SHRINK and LORA_EXPAND read them (graph.h). */
typedef struct {
    const char *
        base; /* the weight: "blk.3.attn_q.weight"; "token_embd.weight" is the embedding and "output.weight" the head */
    uint32_t     rank;
    uint64_t     in, out, experts;
    const float *a, *b; /* NULL: only the GPU has them, at `place` and the place after it */
    uint64_t     place;
} model_site;

typedef struct {
    const model_site *sites;
    size_t            count;
    uint32_t          slots, sets;
    const float      *table; /* [sets, slots]: the weights of each set; NULL: as above, at `place` */
    uint64_t          place;
} model_adapters;

/* Tokens in, logits of the wanted outputs out. With adapters (NULL: none), each token is corrected by the set that its record names.
 * Of a diffusion model this is the encoder, which reads text into keys and values. */
gm_status model_text_graph(const model *m, const model_adapters *adapters, graph *out, error *e);

/* A step of the denoiser of a diffusion model, for canvases that are spans of one run. What a step leaves to the next one are three values by
 * tokens. With these, the next step needs nothing from the host but settings: CANVAS_NEXT makes its canvas. */
typedef struct {
    graph   g;        /* its result: what CANVAS_HEAD finds at each position (graph.h) */
    tensor *settings; /* leaf [CANVAS_SETTINGS] */
    tensor *soft;     /* leaf [width]: what the step before expected, then what this one does. Begin with zeros there */
    tensor *state;    /* leaf of a canvas_state; the host begins it */
    tensor *before;   /* leaf [CANVAS_FINDINGS]: what the step before found, */
    tensor *found;    /* and this one */
} canvas_graph;

/* How the model's canvases are accepted and end. */
canvas_rule model_canvas_rule(const model_config *c);

/* With `logits`, the first result are the logits of the wanted outputs, and the second what CANVAS_HEAD says: for checks. */
gm_status model_canvas_graph(const model *m, bool logits, canvas_graph *out, error *e);

/* Looks for NaN and infinities in the weights, which takes long: for explaining why logits came out as NaN. The error names
 * tensor and block; GM_OK when every weight is finite. */
gm_status model_find_nan(const model *m, error *e);

/* Identifies the model and its weights: SHA-256 over the head of the file, its length, and samples of its data, which are read
 * first if they are not in memory. Zero-initialise, then set the first two fields. */
typedef struct {
    const gguf *file;
    reads      *reads; /* NULL: the file is in memory */
    uint32_t    tickets[MODEL_SAMPLES];
    size_t      asked, arrived;
    uint8_t     samples[MODEL_SAMPLES][MODEL_SAMPLE_BYTES];
} model_hash;

gm_status model_hash_step(model_hash *h, uint8_t digest[32], error *e); /* GM_AGAIN: reads are under way */
void      model_hash_drop(model_hash *h);

#endif
