/* The inside of a plan, for the files of this folder that go on from one: generator.c repeats its dispatches without the host. */

#ifndef GM_GPU_PLAN_H
#define GM_GPU_PLAN_H

#include "gpu/backend.h"
#include "gpu/pipeline.h"
#include "graph/layout.h"

enum { PLAN_ALIGNMENT = 256 }; /* of a binding */
typedef struct plan_streaming plan_streaming;

enum { RUN_WORDS = 4 }; /* tokens, outputs, start, spare: wgsl/run.wgsl */

struct gpu_plan {
    gpu_backend        *backend;
    graph               g; /* fused */
    const gpu_kv_layer *kv;
    uint32_t            tokens, outputs;
    layout_item        *items; /* values by index, then what the plan adds */
    size_t              item_count;
    gpu_id              memory, run, ids, rows; /* buffers: values, run record, u32 [tokens], u32 [outputs] */
    gpu_id              last_seen;              /* u32 [tokens]; 0: no kernel reads it */
    gpu_id              numbers;                /* what kernels read as "numbers", PLAN_ALIGNMENT apart */
    gpu_words           number_words;           /* writes them, once */
    size_t              number_count;
    uint64_t            bytes;
    struct plan_pipeline {
        uint64_t hash;
        gpu_id   id;
    }      *pipelines; /* of the kernels so far: layers repeat them, and finding one by its text takes long */
    size_t  pipeline_count, pipeline_capacity;
    gpu_id *groups;
    size_t  group_count, group_capacity;
    /* The list: writes of the run record, ids, rows and last_seen; the dispatches, words[first_dispatch .. end_dispatch); a read
     * of the result. */
    gpu_words words;
    size_t    at_run, at_ids, at_rows, at_seen, first_dispatch, end_dispatch, at_ticket;
    size_t    dispatches;

    plan_streaming *streaming; /* NULL: every weight is on the GPU */

    gpu_kernel_visit *visit; /* not NULL: kernels are told, and nothing is made */
    void             *visit_user;
};

/* Where the result lies in the plan's memory: [outputs, n]. */
uint64_t gpu_plan_result_offset(const gpu_plan *p);

/* Writes the rows that were given to where the list looks for them. GM_AGAIN: nothing else may be submitted first. */
gm_status gpu_plan_write_given(const gpu_plan *p, const gpu_inputs *in, error *e);

/* A pipeline and a bind group for a kernel, recorded as a dispatch at the end of `words`; the group is the plan's. */
gm_status gpu_plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *bindings, error *e);

#endif
