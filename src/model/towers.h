/* The towers of a model: they turn pictures and sounds into soft tokens, rows of the text model's width. Their weights are in the
 * model's own file (Ollama) or in a second one (llama.cpp's mmproj); names differ between the two. */

#ifndef GM_TOWERS_H
#define GM_TOWERS_H

#include "model/corrections.h"
#include "model/loader.h"

/* A linear layer that clips its input and its output. No bounds: ±FLT_MAX. */
typedef struct {
    weight w;
    float  in_least, in_most, out_least, out_most;
} clipped_linear;

/* The value that was clipped last, and the result. */
typedef struct {
    tensor *from, *clipped;
    float   least, most;
} last_clip; /* zero-initialise */

/* Loads NAME.weight [k, m] with its bounds: NAME.input_min and so on. Those that are missing are `otherwise`'s: the least and the most of
 * input and output; NULL: there are none. */
clipped_linear tower_linear_load(weight_loader *from, const char *name, uint64_t k, uint64_t m,
                                 const float otherwise[4]);

/* clamp(W · clamp(x)); adapters correct the product, before the result is clipped. Linears that read the same value with the same bounds
 * one after the other share the clamp. */
tensor *tower_linear(corrections *added, last_clip *last, const clipped_linear *l, tensor *x);
/* W · x without bounds. */
tensor *tower_product(corrections *added, const weight *w, tensor *x);

/* ---- vision ---- */

typedef struct {
    uint32_t layers; /* 0: no encoder, patches are embedded and that is all */
    uint32_t width, heads, head, feed_forward;
    uint32_t patch;     /* pixels along a side of a patch */
    uint32_t merged;    /* patches along a side of a soft token */
    uint32_t positions; /* columns, and rows, that patches can have */
    uint32_t soft_width;
    float    eps;
} vision_config;

typedef struct {
    clipped_linear q, k, v, out, gate, up, down;
    weight         ln1, ln2, q_norm, k_norm, attention_post_norm, feed_forward_post_norm;
    float          output_scale;
} vision_layer;

typedef struct {
    arena         memory;
    vision_config config;
    weight        patch_embd; /* [patch · patch · 3, width]: columns are channel, row, column of the pixel */
    weight        position_x, position_y; /* [width, positions] */
    weight        frequencies;            /* RoPE, of one axis */
    vision_layer *layer;
    weight        negative_bias, scale; /* standardise: (p + negative_bias) · scale; none: no name */
    weight        projection;
    weight        patch_bias, patch_norm[3], patch_norm_bias[3]; /* without an encoder */
} vision_weights;

/* Finds and checks the weights of the vision tower. `soft_width` is the text model's width. GM_UNSUPPORTED: the file has no such
 * tower. The file must outlive the weights; vectors must be in memory. */
gm_status vision_load(const gguf *file, uint32_t soft_width, vision_weights *out, error *e);
/* The same from the header alone, for planning. */
gm_status vision_shapes(const gguf *file, uint32_t soft_width, vision_weights *out, error *e);
void      vision_free(vision_weights *w);

/* Bytes of memory, about, that encoding a picture of so many soft tokens takes besides the weights: activations, keys and values. */
uint64_t vision_run_bytes(const vision_config *c, uint32_t soft_tokens);

/* Tokens of a run are patches. A record's id is the patch's column, its position the row. The patches of a soft token are
 * consecutive; outputs are the first of them. `*patches` is the leaf that takes them: pixels channel after channel, from 0 to 1, or
 * from −1 to 1 if there is an encoder. With adapters (NULL: none), each patch is corrected by the set that its record names. */
gm_status vision_graph(const vision_weights *w, const model_adapters *adapters, graph *out, tensor **patches, error *e);

/* ---- audio ---- */

enum {
    AUDIO_MEL_BINS = 128,
    AUDIO_WINDOW = 3, /* moments of a window of the convolutions, whose stride is 2 */
    AUDIO_REACH = 12, /* tokens that attention sees */
};

typedef struct {
    uint32_t layers; /* 0: no encoder, frames of samples are projected and that is all */
    uint32_t width, heads, head, feed_forward, output_width;
    uint32_t channels[2]; /* of the two convolutions */
    uint32_t taps;        /* of the convolution over tokens */
    uint32_t frame;       /* without an encoder: samples of a token */
    uint32_t soft_width;
} audio_config;

typedef struct {
    weight         norm, post_norm; /* post_norm: halved */
    clipped_linear up, down;
} audio_feed_forward;

typedef struct {
    audio_feed_forward ff[2]; /* at the beginning and at the end */
    clipped_linear     q, k, v, out;
    weight             attention_norm, attention_post_norm, query_scale, relative; /* relative: [width · AUDIO_REACH] */
    weight             conv_norm, conv_inner_norm, conv_taps; /* conv_taps: [width · taps], tap by tap */
    clipped_linear     conv_in, conv_out;
    weight             output_norm;
} audio_layer;

typedef struct {
    arena        memory;
    audio_config config;
    weight       conv[2], conv_norm[2]; /* conv: in the order of CONV_GRID */
    weight       input_projection, output_projection, output_bias, projection;
    audio_layer *layer;
} audio_weights;

/* As for vision. */
gm_status audio_load(const gguf *file, uint32_t soft_width, audio_weights *out, error *e);
gm_status audio_shapes(const gguf *file, uint32_t soft_width, audio_weights *out, error *e);
void      audio_free(audio_weights *w);

/* As for vision, of 30 s. */
uint64_t audio_run_bytes(const audio_config *c);

/* Tokens of a run are soft tokens; a sound is a span. `*leaf` takes what a token hears: three windows of three mel frames
 * [AUDIO_MEL_BINS, 9], or a frame of samples. */
gm_status audio_graph(const audio_weights *w, const model_adapters *adapters, graph *out, tensor **leaf, error *e);

#endif
