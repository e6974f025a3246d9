/* The internals of a plan, for other files of this folder: generator.c repeats its dispatches without the host. */

#ifndef GM_GPU_PLAN_H
#define GM_GPU_PLAN_H

#include "gpu/backend.h"
#include "gpu/pipeline.h"
#include "graph/layout.h"

enum { PLAN_ALIGNMENT = 256 }; /* of bindings */
typedef struct plan_streaming plan_streaming;

enum { RUN_WORDS = 4 }; /* tokens, outputs, start, spare: wgsl/run.wgsl */

struct gpu_plan {
    gpu_backend        *backend;
    graph               g; /* after fusion */
    const gpu_kv_layer *kv;
    uint32_t            tokens, outputs;
    layout_item        *items; /* values by index, then the plan's scratch items */
    size_t              item_count;
    gpu_id              memory, run, ids, rows; /* buffers: values, run record, u32 [tokens], u32 [outputs] */
    gpu_id              last_seen;              /* u32 [tokens]; 0: no kernel reads it */
    gpu_id              numbers;                /* the kernels' "numbers", PLAN_ALIGNMENT apart */
    gpu_words           number_words;           /* a list that writes them, once */
    size_t              number_count;
    uint64_t            bytes;
    struct plan_pipeline {
        uint64_t hash;
        gpu_id   id;
    }      *pipelines; /* by hash of the kernel: layers repeat kernels, and a lookup by shader text is slow */
    size_t  pipeline_count, pipeline_capacity;
    gpu_id *groups;
    size_t  group_count, group_capacity;
    /* The list: writes of the run record, ids, rows and last_seen; then the dispatches, words[first_dispatch ..
     * end_dispatch); then a read of the result. */
    gpu_words words;
    size_t    at_run, at_ids, at_rows, at_seen, first_dispatch, end_dispatch, at_ticket;
    size_t    dispatches;

    plan_streaming *streaming; /* NULL: every weight is on the GPU */

    gpu_kernel_visit *visit; /* not NULL: only visits the kernels, and creates nothing */
    void             *visit_user;
};

/* The offset of the result [outputs, n] in the plan's memory. */
uint64_t gpu_plan_result_offset(const gpu_plan *p);

/* Writes the given rows to where the plan reads them. GM_AGAIN: call again before submitting anything else. */
gm_status gpu_plan_write_given(const gpu_plan *p, const run_inputs *in, error *e);

/* Creates a pipeline and a bind group for a kernel and records a dispatch at the end of `words`. The plan owns the
 * group. */
gm_status gpu_plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *bindings, error *e);

#endif
