/* Decides which weights of a graph fit into a GPU's memory, and how the rest is used from main memory. This is
 * arithmetic only: nothing is uploaded, so the plan can be shown before anything is loaded.
 *
 * If the budget is too small, these leave the GPU, one after another, until the rest fits:
 *   tables    that are only looked up (a per-layer table): the host writes the rows of a batch's ids
 *   experts   of all layers: each layer keeps as many as fit, in slots, and runs upload those that are not there
 *   layers    their other matrices, starting with the last layer: uploaded for each run
 *   head      the matrix of the logits: uploaded for each run; if it is also the input's table, the host looks up rows
 * Whatever still fits after that returns to the GPU. Layers and the head, if they are uploaded for each run, share one
 * area, tile by tile. Experts have slots of their own (gpu/experts.h). */

#ifndef GM_GPU_BUDGET_H
#define GM_GPU_BUDGET_H

#include "gpu/weights.h"
#include "graph/graph.h"
#include "graph/layout.h"

typedef enum { BUDGET_TABLES, BUDGET_EXPERTS, BUDGET_LAYERS, BUDGET_HEAD, BUDGET_VECTORS, BUDGET_KINDS } budget_kind;

extern const char *const budget_kind_names[BUDGET_KINDS];

typedef struct {
    const tensor *weight;
    budget_kind   kind;
    uint32_t      unit;  /* weights that are joined into one matrix share a unit, and stay or leave together */
    bool          table; /* looked up by ids; if kind is HEAD, it is also the head's matrix */
    bool          out;   /* not on the GPU */
    uint32_t      used;  /* experts per token */
    uint64_t      bytes; /* on the GPU */
    uint64_t      file;  /* in the file */
    uint64_t      slot;  /* bytes that it needs in the shared area, if it is uploaded for each run */
    uint64_t      staging;
    uint64_t      expert_staging; /* experts: to upload them into slots */
} budget_weight;

typedef struct {
    uint64_t limit;       /* bytes; 0: none */
    uint64_t kv;          /* reserved for keys and values */
    uint64_t plans;       /* reserved for plans: budget_plans */
    uint64_t tower;       /* reserved for a tower, which is loaded when it is needed */
    uint64_t max_binding; /* the GPU's limit; 0: not known yet */
    uint32_t slots;       /* of each layer for experts; if given, a cache has them even if all fit; 0: as many as fit */
} budget_options;

typedef struct {
    budget_options options;
    budget_weight *weights;
    size_t         count;
    uint64_t       resident[BUDGET_KINDS]; /* bytes on the GPU */
    uint64_t       outside[BUDGET_KINDS];  /* bytes of the file that stay in main memory */
    uint64_t       slot;                   /* bytes shared by weights that are uploaded for each run; 0: none are */
    uint64_t       staging;                /* bytes of the staging buffers */
    uint64_t       total;                  /* all of it: weights, slot, staging, keys and values, plans, tower */
    uint64_t       everything;             /* the total if nothing stayed outside */
    uint64_t       token_bytes;            /* bytes uploaded for each decoded token, without experts */
    uint64_t       expert_bytes; /* the same for experts, if none of a token's is in its slot and guesses are right */
    uint32_t       experts;      /* of a layer; 0: there are none that could leave the GPU */
    uint32_t       slots;        /* of each layer for experts */
    bool cached; /* runs look experts up in slots: there are fewer than experts, or options.slots asks for it */
} gpu_budget;

/* GM_NO_MEMORY, with the numbers, if even the minimum does not fit; `total` then says how much that is. If main memory is
 * short instead, `total` is 0. */
gm_status gpu_budget_make(gpu_budget *out, const graph *g, const budget_options *options, error *e);
void      gpu_budget_free(gpu_budget *b);

/* NULL: the graph has no such weight. */
const budget_weight *gpu_budget_weight(const gpu_budget *b, const tensor *weight);
/* One sentence: what stays in main memory, or in a file that is read as needed, and what that costs. Empty if
 * everything is on the GPU. */
void gpu_budget_explain(const gpu_budget *b, bool in_file, char *out, size_t size);

/* Whether experts of such a weight can have slots: each must be made of whole pieces (weight_piece_unit). */
bool budget_can_cache(const tensor *weight);
/* Bytes that a token is expected to upload if its experts are chosen at random. */
uint64_t gpu_budget_expected(const gpu_budget *b);

/* Ops first … last of a plan are the products of a layer's experts, which may run several times, each time with other experts in the slots:
 * values that they read or write keep their places that long. */
void budget_keep_values(layout_item *items, size_t count, uint32_t first, uint32_t last);

/* Approximate bytes of the plans for 1, 4, 16, 64 and 256 tokens together. */
gm_status budget_plans(const graph *g, uint64_t *out, error *e);

/* Adds those of one plan for so many tokens. */
gm_status budget_plan(const graph *g, uint64_t tokens, uint64_t *out, error *e);

/* Bytes of a staging buffer for uploading so many bytes of such a weight: all of them, up to 16 MiB. */
uint64_t budget_staging(const weight_layout *layout, uint64_t bytes);

#endif
