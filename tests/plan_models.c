/* Plans the text graphs of model files on the GPU in every way that a session does, without running them, for tests that look at the
 * plans (tests/test_shaders.mjs).
 *
 *     plan_models FILE… */

#include "gguf/gguf.h"
#include "gpu/backend.h"
#include "gpu/kernels.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEEP = 4096, SLACK = 256 };

/* Caches like a session's: rings for the sliding layers, `depth` positions for the others. */
static gm_status plan_make_caches(const model_config *c, quant_type type, uint32_t depth, gpu_host *h, gpu_kv_layer *kv,
                                  error *e) {
    for (uint32_t i = 0; i < c->layers && !e->status; i++) {
        const layer_config *layer = &c->layer[i];
        const uint32_t      slots = layer->sliding ? c->window + SLACK : depth;
        const gpu_kv        shape = { .type = type, .kv_heads = layer->kv_heads, .head = layer->head };
        const uint64_t      bytes = round_up(gpu_kv_bytes(&shape, slots), 16);
        kv[i] = (gpu_kv_layer){
            gpu_buffer_new(h, bytes, e), gpu_buffer_new(h, bytes, e), type, shape.kv_heads, shape.head, bytes
        };
    }
    return e->status;
}

static void plan_free_caches(const model_config *c, gpu_host *h, gpu_kv_layer *kv) {
    for (uint32_t i = 0; i < c->layers; i++) {
        gpu_buffer_free(h, kv[i].k);
        gpu_buffer_free(h, kv[i].v);
    }
}

static size_t plan_sizes(const model *m, const graph *g, bool precise, error *e) {
    static const quant_type types[] = { TYPE_F16, TYPE_F32, TYPE_Q8_0 };
    static const uint32_t   depths[] = { SLACK, DEEP };
    gpu_backend             b;
    gm_status               status;
    size_t                  plans = 0;
    gpu_kv_layer           *kv = calloc(m->config.layers, sizeof *kv);
    if (!kv) return fail_memory(e, "caches", m->config.layers * sizeof *kv), 0;
    if (!gpu_backend_open(&b, &(gpu_options){ .adapter = -1 }, precise, e)) {
        while ((status = gpu_backend_upload(&b, g, e)) == GM_AGAIN) gpu_host_wait(b.host, 100);
        for (size_t i = 0; i < COUNT_OF(types) * COUNT_OF(depths) && !e->status; i++) {
            plan_make_caches(&m->config, types[i % COUNT_OF(types)], depths[i / COUNT_OF(types)], b.host, kv, e);
            for (size_t tokens = 1; tokens <= 256 && !e->status; tokens *= 4) {
                for (size_t outputs = 1; outputs <= tokens && !e->status; outputs += tokens > 1 ? tokens - 1 : 1) {
                    gpu_plan *plan = NULL;
                    if (!gpu_plan_new(&b, g, tokens, outputs, kv, &plan, e)) plans++;
                    gpu_plan_free(plan);
                }
            }
            plan_free_caches(&m->config, b.host, kv);
        }
    }
    gpu_backend_close(&b);
    free(kv);
    return plans;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        error  e = { 0 };
        gguf  *file = NULL;
        model  m = { 0 };
        graph  g = { 0 };
        size_t plans = 0;
        if (!gguf_open_file(argv[i], &file, &e) && !model_load(file, &m, &e) && !model_text_graph(&m, NULL, &g, &e)) {
            plans += plan_sizes(&m, &g, false, &e);
            if (!e.status) plans += plan_sizes(&m, &g, true, &e);
        }
        graph_free(&g);
        model_free(&m);
        gguf_free(file);
        if (e.status) {
            fprintf(stderr, "plan_models: %s: %s\n", argv[i], e.why);
            return 1;
        }
        printf("%s: %zu plans\n", argv[i], plans);
    }
    return argc < 2;
}
