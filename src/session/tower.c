/* The towers of an engine: where their weights are, loading and releasing them. */

#include "session/tower_parts.h"

#include "base/sha256.h"
#include "gpu/kernels.h"
#include "session/self_check.h"

#include <stdlib.h>
#include <string.h>

static const tower_type *const types[TOWER_KINDS] = { [TOWER_VISION] = &tower_vision, [TOWER_AUDIO] = &tower_audio };

/* ---- files ---- */

/* A projector comes before the model's own file. */
const gguf *tower_file(const gguf *file, const gguf *projector, tower_kind kind) {
    if (projector && gguf_find_tensor(projector, types[kind]->tensor)) return projector;
    return gguf_find_tensor(file, types[kind]->tensor) ? file : NULL;
}

const gguf *engine_tower_file(const gm_engine *engine, tower_kind kind) {
    return tower_file(engine->file, engine->projector, kind);
}

gm_status engine_has_tower(gm_engine *engine, tower_kind kind, error *e) {
    const tower_type *type = types[kind];
    const gguf       *file = engine_tower_file(engine, kind);
    if (!file)
        return fail(
            e, GM_UNSUPPORTED,
            "the model has no %s tower: it cannot %s. A GGUF file without towers may come with a second one, its "
            "projector (mmproj)",
            type->name, type->lacking);
    return type->check(file, engine->weights.config.width, e);
}

gm_status engine_check_projector(const gguf *projector, uint32_t soft_width, error *e) {
    size_t found = 0;
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        if (!types[kind] || !gguf_find_tensor(projector, types[kind]->tensor)) continue;
        found++;
        TRY(types[kind]->check(projector, soft_width, e));
    }
    if (found) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "the projector (mmproj) has no tower: it has neither '%s' nor other towers' tensors",
                types[TOWER_VISION]->tensor);
}

gm_status engine_tower_digest(gm_engine *engine, tower_kind kind, uint8_t digest[32], error *e) {
    const gguf *file = engine_tower_file(engine, kind);
    if (!file) return engine_has_tower(engine, kind, e);
    if (file == engine->projector) memcpy(digest, engine->projector_digest, 32);
    else {
        sha256 s;
        sha256_start(&s);
        sha256_add(&s, engine->digest, strlen(engine->digest));
        sha256_end(&s, digest);
    }
    return GM_OK;
}

uint64_t towers_bytes(const gguf *file, const gguf *projector, uint32_t soft_width) {
    uint64_t most = 0;
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        const tower_type *type = types[kind];
        const gguf       *from = projector && gguf_find_tensor(projector, type->tensor) ? projector
                                 : gguf_find_tensor(file, type->tensor)                 ? file
                                                                                        : NULL;
        uint64_t          bytes = from ? type->run_bytes(from, soft_width) : 0, largest = 0;
        for (size_t i = 0; bytes && i < gguf_tensor_count(from); i++) {
            const gguf_tensor *t = gguf_tensor_at(from, i);
            if (model_part_of(t->name) != type->part) continue;
            bytes += round_up(t->bytes, 256);
            largest = max_size(largest, t->bytes);
        }
        most = max_size(most, bytes + bytes / 8 + min_size(largest, 16 << 20)); /* layouts and staging */
    }
    return most;
}

/* ---- loading ---- */

quant_type engine_tower_kv_type(const gm_engine *engine) {
    return engine->on_gpu && !engine->precise ? TYPE_F16 : TYPE_F32;
}

/* Whether this tower must wait for another one on the GPU: the GPU takes the weights of one graph at a time, and limited memory has room
 * for one tower, which stays while jobs use it. */
static bool other_is_first(const gm_engine *engine, const engine_tower *t) {
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        const engine_tower *other = &engine->towers[kind];
        if (other != t && other->built && (!other->ready || (engine->gpu.budget && other->jobs))) return true;
    }
    return false;
}

gm_status engine_tower_step(gm_engine *engine, engine_tower *t, error *e) {
    const gguf *file = engine_tower_file(engine, (tower_kind)(t - engine->towers));
    gm_status   status = GM_OK;
    if (t->ready) return GM_OK;
    if (!t->fetched) {
        if (!t->fetch.file)
            t->fetch = (model_fetch){
                .file = file, .reads = engine->reads, .part = t->type->part, .matrices = !engine->on_gpu
            };
        status = model_fetch_step(&t->fetch, e);
        if (status) return status;
        t->fetched = true;
    }
    if (!t->built) {
        if (engine->on_gpu && other_is_first(engine, t)) return GM_AGAIN;
        if (engine->gpu.budget) engine_release_towers(engine); /* there is room for one */
        TRY(t->type->load(t, file, engine->weights.config.width, e));
        status = t->type->graph(t, NULL, &t->g, &t->leaf, e);
        if (status) t->type->free_weights(t);
        TRY(status);
        t->built = true;
        t->uploaded = engine->gpu.uploaded;
        t->total = engine->gpu.total;
    }
    if (engine->on_gpu) { /* the check's kernels are compiled while weights are uploaded */
        const gm_status checked = engine_check_tower(engine, t, e);
        if (status_failed(checked)) return checked;
        status = gpu_backend_upload(&engine->gpu, &t->g, e);
        if (!status) status = checked;
    }
    t->ready = !status;
    return status;
}

/* ---- adapters ---- */

static void tower_forget_adapted(gm_engine *engine, engine_tower *t) {
    if (!t->adapted) return;
    for (tower_job *job = t->first; job;) job = tower_job_forget_adapters(job);
    plans_drop(&engine->plans, t->adapted);
    if (engine->on_gpu) gpu_backend_release(&engine->gpu, t->adapted);
    graph_free(t->adapted);
    free(t->adapted);
    t->adapted = NULL;
}

void engine_towers_forget_adapters(gm_engine *engine) {
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) tower_forget_adapted(engine, &engine->towers[kind]);
}

static gm_status tower_make_adapted(gm_engine *engine, engine_tower *t, error *e) {
    const model_part part = t->type->part;
    t->adapted = calloc(1, sizeof *t->adapted);
    if (!t->adapted) return fail_memory(e, "a tower's graph", sizeof *t->adapted);
    gm_status status = t->type->graph(t, &engine->adapters.sites.parts[part], t->adapted, &t->adapted_leaf, e);
    if (!status && engine->on_gpu) status = gpu_backend_reserve(&engine->gpu, t->adapted, e);
    if (status) tower_forget_adapted(engine, t);
    engine_adapters_lost(engine, part);
    return status;
}

/* If memory is short, a tower that nobody uses gives up its own. */
gm_status engine_tower_adapt(gm_engine *engine, engine_tower *t, error *e) {
    const model_part part = t->type->part;
    gm_status        status = GM_OK;
    error            problem = { 0 };
    if (!t->adapted) status = tower_make_adapted(engine, t, &problem);
    if (status == GM_NO_MEMORY && engine_release_towers(engine)) {
        problem = (error){ 0 };
        status = tower_make_adapted(engine, t, &problem);
    }
    if (status) return fail(e, status, "%s", problem.why);
    if (engine->on_gpu) status = gpu_backend_upload(&engine->gpu, t->adapted, e);
    return status ? status : engine_adapters_ready(engine, part, e);
}

void engine_tower_free_kv(gm_engine *engine, tower_kv *kv) {
    gpu_host *gpu = engine->on_gpu ? engine->gpu.host : NULL;
    kv_memory_free(gpu, &kv->keys);
    kv_memory_free(gpu, &kv->values);
    *kv = (tower_kv){ 0 };
}

gm_status engine_tower_reserve(gm_engine *engine, const engine_tower *t, size_t tokens, tower_kv *kv, error *e) {
    gpu_host        *gpu = engine->on_gpu ? engine->gpu.host : NULL;
    const quant_type type = engine_tower_kv_type(engine);
    if (!t->head || tokens <= kv->slots) return GM_OK;
    const size_t row = (size_t)gpu_kv_row_bytes(type, t->kv_heads, t->head); /* on the CPU the same */
    engine_tower_free_kv(engine, kv);
    TRY(kv_memory_new(gpu, (uint64_t)tokens * row, &kv->keys, e));
    TRY(kv_memory_new(gpu, (uint64_t)tokens * row, &kv->values, e));
    kv->slots = tokens;
    return GM_OK;
}

/* ---- releasing ---- */

void engine_tower_unload(gm_engine *engine, engine_tower *t) {
    gpu_host *gpu = engine->on_gpu ? engine->gpu.host : NULL;
    if (t->fetch.file && !t->fetched) model_fetch_drop(&t->fetch);
    self_check_free(t->check);
    t->check = NULL;
    tower_forget_adapted(engine, t);
    if (t->built) {
        plans_drop(&engine->plans, &t->g);
        if (gpu) gpu_backend_release(&engine->gpu, &t->g);
        graph_free(&t->g);
        t->type->free_weights(t);
    }
    if (t->fetch.file) model_fetch_forget(&t->fetch);
    t->fetch = (model_fetch){ 0 };
    engine_tower_free_kv(engine, &t->kv);
    t->fetched = t->built = t->ready = false;
}

bool engine_release_towers(gm_engine *engine) {
    bool released = false;
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) {
        engine_tower *t = &engine->towers[kind];
        if (t->jobs || !t->built) continue;
        engine_tower_unload(engine, t);
        released = true;
    }
    return released;
}

void engine_close_towers(gm_engine *engine) {
    for (size_t kind = 0; kind < TOWER_KINDS; kind++) engine_tower_unload(engine, &engine->towers[kind]);
}

/* The engine's tower, marked as used. */
gm_status engine_tower_use(gm_engine *engine, tower_kind kind, engine_tower **out, error *e) {
    TRY(engine_has_tower(engine, kind, e));
    *out = &engine->towers[kind];
    (*out)->type = types[kind];
    (*out)->jobs++;
    return GM_OK;
}
