/* The GPU as a backend: weights that live on it, and plans that run a graph there. */

#ifndef GM_GPU_BACKEND_H
#define GM_GPU_BACKEND_H

#include "gguf/reads.h"
#include "gpu/budget.h"
#include "gpu/host.h"
#include "gpu/kernel.h"
#include "gpu/weights.h"
#include "graph/fuse.h"

enum { GPU_WEIGHT_PARTS = 3, GPU_LANES = 4 };

/* A weight on the GPU: one tensor, or several whose rows follow each other, since they are multiplied together. Matrices are
 * repacked into tiles, vectors are f32 as they are. */
typedef struct {
    struct {
        tensor   weight; /* of the first: the key */
        uint64_t bytes;
    } parts[GPU_WEIGHT_PARTS];
    size_t        part_count;
    bool          matrix;
    bool          gathered; /* not on the GPU: the host looks its rows up */
    bool          streamed; /* not on the GPU: its tiles come into the slot when they are needed */
    weight_layout layout;
    weight_layout like; /* for which its products' kernels are chosen: `layout`, unless the self-check says otherwise */
    gpu_id       *tiles;      /* a vector has one */
    uint32_t      first_flag; /* where the repack kernel notes damage of the first tile; the others follow */
} gpu_weight;

/* A piece of a tile on its way: its bytes come to a lane of the staging buffer, then it is repacked. */
typedef struct {
    const gpu_weight *weight;
    uint32_t          tile;
    gpu_id            target;
    weight_piece      piece;
    uint32_t          tickets[GPU_WEIGHT_PARTS]; /* reads that are under way; 0: none */
} gpu_staged;

typedef struct gpu_plan gpu_plan;

typedef struct {
    gpu_host         *host;
    bool              precise; /* f32 activations in every product */
    const gpu_budget *budget;  /* NULL: all weights are on the GPU */
    reads            *reads;   /* by which weights come that are not in memory; NULL: all are */
    gpu_weight       *weights;
    size_t            count;
    uint32_t         *slots; /* hash of the key → 1 + index */
    size_t            slot_count;
    gpu_id            staging, piece, flags; /* while uploading; as long as there is a slot */
    uint64_t          staging_bytes, staging_least;
    gpu_staged        staged[GPU_LANES]; /* the oldest at first_staged */
    size_t            lanes, first_staged, staged_count;
    uint64_t          lane_bytes;
    uint32_t          flag_count, flag_ticket;
    gpu_id            slot;        /* for tiles of weights that are streamed; 0: none are */
    const gpu_plan   *slot_for;    /* whose tile is on its way there: other plans wait */
    size_t            next_weight; /* where the upload stands */
    uint32_t          next_tile, next_chunk;
    bool              complete;
    uint64_t          uploaded, total; /* bytes of the file; total: of what stays on the GPU */
} gpu_backend;

gm_status gpu_backend_open(gpu_backend *b, const gpu_options *options, bool precise, error *e);
void      gpu_backend_close(gpu_backend *b);

/* What of the weights is to be on the GPU: said before the upload; NULL, or nothing said: all. It must live as long. */
void gpu_backend_keep_to(gpu_backend *b, const gpu_budget *budget);
/* Whether every run needs the host for its weights: nothing can go ahead of it then. */
bool gpu_backend_needs_host(const gpu_backend *b);

/* By whom weights are read that are not in memory; it must live as long. */
void gpu_backend_read_by(gpu_backend *b, reads *r);

/* Takes the weights off the GPU; the device stays. */
void gpu_backend_clear(gpu_backend *b);

/* Makes the table of the graph's weights, which is enough for gpu_plan_visit. */
gm_status gpu_backend_list_weights(gpu_backend *b, const graph *g, error *e);
/* The same, and buffers for bringing them over. */
gm_status gpu_backend_find_weights(gpu_backend *b, const graph *g, error *e);

/* Uploads what the graph needs: GM_AGAIN while writes or reads are under way (let gpu_host_wait run, then call again). A weight
 * with NaN or an infinity in it is GM_BAD_FILE: the error names tensor and block. */
gm_status gpu_backend_upload(gpu_backend *b, const graph *g, error *e);

/* Brings chunks of a streamed tile into the slot, from `*chunk` up to `end`, as many as go at once, and moves `*chunk` behind them.
 * Both are multiples of weight_piece_unit, or the tile's end. GM_AGAIN as above. */
gm_status gpu_backend_stream(gpu_backend *b, const gpu_weight *w, uint32_t tile, uint32_t *chunk, uint32_t end,
                             error *e);
/* Forgets a stream that returned GM_AGAIN. */
void gpu_backend_stream_restart(gpu_backend *b);
/* Asks, behind what was submitted, whether damage was found in what was streamed; and looks at the newest answer that is here. */
gm_status gpu_backend_ask_damage(gpu_backend *b, error *e);
gm_status gpu_backend_damage(gpu_backend *b, error *e);

/* The weight that begins with this tensor. */
const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t);

/* How graphs are fused for plans of this backend. */
fuse_options gpu_backend_fusion(const gpu_backend *b, size_t tokens, size_t outputs);

/* A layer's cache. A layer that never wraps has slots 0xffffffff. */
typedef struct {
    gpu_id     k, v;
    quant_type type; /* F32, F16 or Q8_0 */
    uint32_t   slots, kv_heads, head;
    uint64_t   bytes; /* of each buffer */
} gpu_kv_layer;

typedef struct {
    const int32_t *ids; /* [tokens] */
    size_t         tokens;
    const int32_t *output_rows; /* [outputs] */
    size_t         outputs;
    uint64_t       start;
    const float   *given; /* [rows, width]: what ids below 0 stand for */
    /* [tokens]: up to which of the tokens each sees where blocks count, see cpu/kernels.h; NULL: up to itself. */
    const uint32_t *last_seen;
} gpu_inputs;

/* Lays the graph out for up to `tokens` tokens and `outputs` outputs, on these caches. Everything is made here; a run only fills
 * in its numbers and submits. */
gm_status gpu_plan_new(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                       gpu_plan **out, error *e);
void      gpu_plan_free(gpu_plan *p);
size_t    gpu_plan_tokens(const gpu_plan *p);
size_t    gpu_plan_dispatches(const gpu_plan *p);

/* Calls `visit` for each kernel that such a plan would dispatch, without making anything on the GPU. */
typedef void gpu_kernel_visit(void *user, const graph *fused, const op *o, const gpu_kernel *k);
gm_status    gpu_plan_visit(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                            gpu_kernel_visit *visit, void *user, error *e);

/* Forgets a submit that returned GM_AGAIN. */
void gpu_plan_restart(gpu_plan *p);

/* Submits a run. The result [outputs, n] comes back under `ticket` (see host.h); 0: nothing comes back. GM_AGAIN, where weights
 * are not all on the GPU: let gpu_host_wait run, and call again with the same arguments. */
gm_status gpu_plan_submit(gpu_plan *p, const gpu_inputs *in, uint32_t ticket, error *e);

#endif
