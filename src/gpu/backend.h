/* The GPU as a backend: weights that are on it, and plans that run a graph there. */

#ifndef GM_GPU_BACKEND_H
#define GM_GPU_BACKEND_H

#include "gguf/reads.h"
#include "gpu/budget.h"
#include "gpu/host.h"
#include "gpu/kernel.h"
#include "gpu/weights.h"
#include "graph/fuse.h"
#include "graph/run.h"

enum { GPU_WEIGHT_PARTS = 3 };

/* A weight on the GPU: one tensor, or several that are multiplied together, with their rows joined. Matrices are
 * repacked into tiles; vectors stay f32, and those of joined adapters lie one after the other. */
typedef struct {
    struct {
        tensor   weight;
        uint64_t bytes;
    } parts[GPU_WEIGHT_PARTS];
    size_t part_count;
    bool   matrix;
    bool   gathered; /* not on the GPU: the host looks up its rows */
    bool   streamed; /* not on the GPU: each run uploads its tiles into the slot */
    bool   cached; /* some of its experts are on the GPU (gpu/experts.h); `layout` has slots in the place of experts */
    uint32_t      expert_layer; /* of the cache, if cached */
    weight_layout layout;
    weight_layout
             like; /* the layout for which kernels are chosen; differs from `layout` if cached, and in the self-check */
    gpu_id  *tiles;      /* a vector has one; NULL: its set was released */
    uint32_t first_flag; /* index of the first tile's damage flag; the other tiles' follow */
} gpu_weight;

/* A piece of a tile that is being uploaded: its bytes go to a lane of the staging buffer, and are then repacked. */
typedef struct {
    const gpu_weight *weight;
    uint32_t          tile;
    gpu_id            target;
    weight_piece      piece;
    uint32_t          tickets[GPU_WEIGHT_PARTS]; /* pending reads; 0: none */
} gpu_staged;

/* A staging buffer: a ring of lanes, the oldest at `first`. */
typedef struct {
    gpu_id     buffer;
    uint64_t   bytes, lane_bytes;
    gpu_staged staged[GPU_EXPERT_LANES];
    size_t     count, first, used;
} gpu_lanes;

/* The weights of a graph that no other set has. */
typedef struct gpu_weight_set gpu_weight_set;
struct gpu_weight_set {
    gpu_weight_set *next;
    const graph    *g;
    gpu_weight     *weights;
    size_t          count;
    uint32_t       *slots; /* hash of a part → 1 + index of the weight · GPU_WEIGHT_PARTS + part */
    size_t          slot_count;
    bool            begun;    /* its upload began: there are buffers for it */
    bool            complete; /* uploaded */
    bool            released; /* only weights that other graphs use are left */
};

typedef struct gpu_plan gpu_plan;

/* A run that was submitted, for whoever times its dispatches. */
typedef struct {
    gpu_plan         *plan;
    run_inputs        in;
    const uint32_t   *words; /* the list's dispatches: the plan's, then those of `more` */
    size_t            count;
    size_t            first, end; /* of the plan's dispatches these; end 0: all */
    const gpu_kernel *more;
    size_t            more_count;
} gpu_submission;
typedef void gpu_submission_watch(void *user, const gpu_submission *s);

typedef struct {
    gpu_host            *host;
    bool                 precise;      /* f32 activations in every product */
    const gpu_budget    *budget;       /* NULL: all weights are on the GPU */
    reads               *reads;        /* reads weights that are not in memory; NULL: all are in memory */
    gpu_weight_set      *sets;         /* the latest first; at most one of them is being uploaded */
    gpu_lanes            lanes;        /* for uploading, like */
    gpu_id               piece, flags; /* these; kept as long as there is a slot, or a cache of experts */
    uint64_t             staging_least;
    uint32_t             flag_count, flag_ticket;
    uint32_t             flags_made;  /* flags that the buffer has: weights that were listed later have none in it */
    gpu_id               slot;        /* for the tiles of streamed weights; 0: there are none */
    struct expert_cache *experts;     /* NULL: all experts are on the GPU */
    gpu_plan            *slot_for;    /* whose tile is being uploaded; others finish it before they use the slot */
    size_t               next_weight; /* where the upload continues */
    uint32_t             next_tile, next_chunk;
    uint64_t             uploaded, total; /* bytes of the file; total: of the weights that stay on the GPU */

    uint32_t
        kv_moves; /* counts how often keys and values moved to other slots: runs that began before must not go on */

    gpu_submission_watch *watch; /* NULL: nobody watches. Runs that stream weights are not reported */
    void                 *watch_user;
} gpu_backend;

gm_status gpu_backend_open(gpu_backend *b, const gpu_options *options, bool precise, error *e);
void      gpu_backend_close(gpu_backend *b);

/* Limits which weights are on the GPU. Call this before the upload; the budget must outlive the backend. NULL: no
 * limit. */
void gpu_backend_keep_to(gpu_backend *b, const gpu_budget *budget);
/* Whether the host has to upload weights during every run. If so, no run can be submitted ahead. */
bool gpu_backend_needs_host(const gpu_backend *b);

/* Sets what reads weights that are not in memory; `r` must outlive the backend. */
void gpu_backend_read_by(gpu_backend *b, reads *r);

/* Frees the weights on the GPU, but keeps the device. */
void gpu_backend_clear(gpu_backend *b);

/* Builds the table of the graph's weights, which is enough for gpu_plan_visit. Weights that the tables of other graphs
 * have are not listed again, also if they lie joined with others there. */
gm_status gpu_backend_list_weights(gpu_backend *b, const graph *g, error *e);
/* The same, and creates the buffers for uploading. */
gm_status gpu_backend_find_weights(gpu_backend *b, const graph *g, error *e);

/* Uploads the graph's weights, unless that is done; one graph's at a time. GM_AGAIN while writes or reads are pending, or while another
 * graph's are uploaded: let gpu_host_wait run, then call again. A weight that contains NaN or an infinity is GM_BAD_FILE; the error names the tensor and the block. */
gm_status gpu_backend_upload(gpu_backend *b, const graph *g, error *e);

/* Creates the buffers of the weights that only this graph has: all, or none on failure. Vectors without data need no upload, so a graph
 * that adds only these is complete. May be called while another graph's weights are being uploaded. */
gm_status gpu_backend_reserve(gpu_backend *b, const graph *g, error *e);
/* Whether another graph's weights are being uploaded: this one's have to wait. */
bool gpu_backend_is_busy(const gpu_backend *b, const graph *g);

/* Writes `bytes` of a vector of an uploaded graph, from `offset` on: for vectors without data, which begin as zeros, and for those that
 * change. Runs submitted later read it. GM_AGAIN: let gpu_host_wait run, and call again. */
gm_status gpu_backend_write_vector(gpu_backend *b, const tensor *t, uint64_t offset, const void *data, uint64_t bytes,
                                   error *e);

/* Reads the first `bytes` of such a vector, a multiple of 4, after the runs submitted so far; the ticket gets them. */
gm_status gpu_backend_read_vector(gpu_backend *b, const tensor *t, uint64_t bytes, uint32_t ticket, error *e);
/* Sets such a vector to 0, after the runs submitted so far. */
gm_status gpu_backend_clear_vector(gpu_backend *b, const tensor *t, error *e);

/* Frees the weights that only this graph uses. There must be no plans of it any more. It can be uploaded again. */
void gpu_backend_release(gpu_backend *b, const graph *g);

/* Uploads chunks `*chunk` to `end` of a streamed tile into the slot, as many as it can at once, and advances `*chunk`.
 * Both are multiples of weight_piece_unit, or the end of the tile. GM_AGAIN as above. */
gm_status gpu_backend_stream(gpu_backend *b, const gpu_weight *w, uint32_t tile, uint32_t *chunk, uint32_t end,
                             error *e);
/* Abandons a stream that returned GM_AGAIN. */
void gpu_backend_stream_restart(gpu_backend *b);
/* ask_damage queues a read of the streamed weights' damage flags; damage checks the latest answer that has arrived. */
gm_status gpu_backend_ask_damage(gpu_backend *b, error *e);
gm_status gpu_backend_damage(gpu_backend *b, error *e);

/* Lanes that experts are uploaded through. `make` creates the buffer, for so many lanes if bytes are read; `stage_expert` stages the piece of an expert that begins with its
 * chunk `*chunk`, and advances that (0: it was the last); there must be a free lane. `finish` repacks the oldest piece; `*next` is where the one
 * after it begins. GM_AGAIN as above. `clear` drops pieces that are under way. */
gm_status gpu_lanes_make(gpu_backend *b, gpu_lanes *l, size_t lanes, uint64_t bytes, error *e);
gm_status gpu_lanes_stage_expert(gpu_backend *b, gpu_lanes *l, const gpu_weight *w, uint32_t expert, uint32_t slot,
                                 uint32_t *chunk, error *e);
gm_status gpu_lanes_finish(gpu_backend *b, gpu_lanes *l, uint32_t *next, error *e);
void      gpu_lanes_clear(gpu_backend *b, gpu_lanes *l);
/* Creates the buffers of a weight, if it stays on the GPU: all, or fails. */
gm_status gpu_weight_create_buffers(gpu_backend *b, gpu_weight *w, error *e);

/* The weights that were listed for this graph; NULL: none. */
gpu_weight_set *gpu_backend_set(const gpu_backend *b, const graph *g);

/* Where a tensor is: a part of a weight, whose rows begin with first_row. Weight NULL: nowhere. */
typedef struct {
    const gpu_weight *weight;
    size_t            part;
    uint32_t          first_row;
} gpu_weight_part;

gpu_weight_part gpu_backend_part(const gpu_backend *b, const tensor *t);
/* The weight whose first part is this tensor. */
const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t);

/* How graphs are fused for plans of this backend. */
fuse_options gpu_backend_fusion(const gpu_backend *b, size_t tokens, size_t outputs);

/* A layer's cache: a row in each slot. */
typedef struct {
    gpu_id     k, v;
    quant_type type; /* F32, F16 or Q8_0 */
    uint32_t   kv_heads, head;
    uint64_t   bytes; /* of each buffer */
} gpu_kv_layer;

/* Prepares the graph for up to `tokens` tokens and `outputs` outputs, on these caches, which are copied. All objects are
 * created here; a run only fills in its numbers and submits. */
gm_status gpu_plan_new(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                       gpu_plan **out, error *e);
/* A plan for up to `rows` tokens, each with an output, in which every token continues a sequence of its own. Kernels depend on
 * the number of rows: results are close to those of one row, but not the same to the last bit. */
gm_status gpu_plan_new_rows(gpu_backend *b, const graph *g, size_t rows, const gpu_kv_layer *kv, gpu_plan **out,
                            error *e);
/* What the values of such a plan would take on the GPU. */
gm_status gpu_plan_measure(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                           uint64_t *bytes, error *e);
void      gpu_plan_free(gpu_plan *p);
uint64_t  gpu_plan_bytes(const gpu_plan *p); /* of its values */
size_t    gpu_plan_tokens(const gpu_plan *p);
size_t    gpu_plan_outputs(const gpu_plan *p);
/* Whether gpu_plan_bind can bind the plan to these caches: they have the same types and shapes. */
bool gpu_plan_serves(const gpu_plan *p, const gpu_kv_layer *kv);
/* Binds the plan to the buffers of these caches, if it is not bound to them yet. Only bind groups are created again. */
gm_status gpu_plan_bind(gpu_plan *p, const gpu_kv_layer *kv, error *e);
/* How often that happened. */
uint32_t gpu_plan_rebinds(const gpu_plan *p);
/* Whether the plan uploads weights during a run. Between two submits that return GM_AGAIN it serves no other run. */
bool   gpu_plan_streams(const gpu_plan *p);
size_t gpu_plan_dispatches(const gpu_plan *p);

/* Calls `visit` for each kernel that such a plan would dispatch, without creating anything on the GPU. */
typedef void gpu_kernel_visit(void *user, const graph *fused, const op *o, const gpu_kernel *k);
gm_status    gpu_plan_visit(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                            gpu_kernel_visit *visit, void *user, error *e);
/* The same for a plan of gpu_plan_new_rows. */
gm_status gpu_plan_visit_rows(gpu_backend *b, const graph *g, size_t rows, const gpu_kv_layer *kv,
                              gpu_kernel_visit *visit, void *user, error *e);

/* The same for a plan that exists, in the order of its dispatches. Not for plans that stream weights. */
gm_status gpu_plan_kernels(gpu_plan *p, gpu_kernel_visit *visit, void *user, error *e);

/* Abandons a submit that returned GM_AGAIN. */
void gpu_plan_restart(gpu_plan *p);

/* Submits a run. The result [outputs, n] arrives under `ticket` (see host.h); 0: no result is read back. GM_AGAIN while
 * its pipelines compile, or if not all weights are on the GPU: let gpu_host_wait run, and call again with the same
 * arguments. */
gm_status gpu_plan_submit(gpu_plan *p, const run_inputs *in, uint32_t ticket, error *e);
/* The same with a ticket for each of the graph's first `count` results. */
gm_status gpu_plan_submit_results(gpu_plan *p, const run_inputs *in, const uint32_t *tickets, size_t count, error *e);

/* ---- long runs: plan_pieces.c ----
 *
 * A run can be submitted in pieces, each of some dispatches, so that none of them keeps the GPU busy for long. A graph that is split has two
 * parts, which run one after the other with the same inputs, and other work in between. */

typedef struct {
    size_t first, next, end; /* dispatches */
} gpu_pieces;

gpu_pieces gpu_plan_part(const gpu_plan *p, size_t part);
/* Submits the next piece, of about *work operations, but at least one dispatch, and says in *work how many it had. With the last one, the
 * result is read under `ticket`; 0: it is not. GM_AGAIN: nothing was submitted, because pipelines compile, or writes are pending. */
gm_status gpu_plan_submit_piece(gpu_plan *p, const run_inputs *in, gpu_pieces *pieces, double *work, uint32_t ticket,
                                error *e);
/* Copies `entries` of a plan's result (0: the graph's result, from 1 on the further ones) into a leaf of a plan; `from` NULL: clears them. */
gm_status gpu_plan_pass(gpu_plan *to, const tensor *leaf, const gpu_plan *from, size_t result, size_t entries,
                        error *e);

/* Writes `entries` tokens (or outputs) of a leaf from `first` on; later runs read them. GM_AGAIN: let gpu_host_wait run, and call
 * again. */
gm_status gpu_plan_write_leaf(gpu_plan *p, const tensor *leaf, size_t first, const float *data, size_t entries,
                              error *e);
/* Entries of a leaf or a result of the plan, from `first` on, and where they go in another buffer, or come from. */
typedef struct {
    const tensor *value;
    size_t        first, entries;
    gpu_id        buffer;
    uint64_t      offset;
} gpu_value_copy;

/* Copies them to the plan (`in`) or from it: between the runs that were submitted before and later. */
gm_status gpu_plan_copy_values(gpu_plan *p, const gpu_value_copy *copies, size_t count, bool in, error *e);

#endif
