#include "session/tower.h"
#include "session/load_parts.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "gpu/experts_profile.h"
#include "gpu/features.h"
#include "session/denoiser.h"
#include "session/expert_profile.h"
#include "session/gpu_memory.h"
#include "session/runner.h"
#include "session/self_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life -------------------------------------------------------------------------------------------------------------- */

/* NULL stays NULL. */
static gm_status copy_text(engine_load *l, const char *text, const char **out, error *e) {
    *out = text ? arena_copy(&l->memory, str_of(text)) : NULL;
    return text && !*out ? fail_memory(e, "the options", strlen(text)) : GM_OK;
}

static gm_status copy_options(engine_load *l, const load_options *options, error *e) {
    l->options = *options->engine;
    l->options.model = l->options.mmproj = NULL;
    TRY(copy_text(l, options->engine->cpu, &l->options.cpu, e));
    TRY(copy_text(l, options->engine->gpu_disable, &l->options.gpu_disable, e));
    TRY(copy_text(l, options->engine->cache, &l->options.cache, e));
    if (options->origin) {
        TRY(copy_text(l, options->origin->name, &l->origin.name, e));
        TRY(copy_text(l, options->origin->renderer, &l->origin.renderer, e));
        TRY(copy_text(l, options->origin->params, &l->origin.params, e));
        TRY(copy_text(l, options->origin->system, &l->origin.system, e));
    }
    bool disabled[GPU_FEATURES];
    l->most_memory = options->memory ? options->memory : UINT64_C(3) << 30;
    return gpu_features_read(l->options.gpu_disable, disabled, e);
}

gm_status engine_load_new(gguf *file, source **others, size_t count, const load_options *options, engine_load **out,
                          error *e) {
    engine_load *l = calloc(1, sizeof *l);
    *out = NULL;
    if (l) l->engine = calloc(1, sizeof *l->engine);
    if (l && l->engine) {
        turns_open(&l->engine->turns);
        l->engine->turn_seconds = 0.05;
        l->engine->share_step = KV_BATCH;
        l->engine->batches = batch_sizes_begin(false);
    }
    if (l) l->others = calloc(max_size(count, 1), sizeof *l->others);
    if (!l || !l->engine || !l->others) {
        for (size_t i = 0; i < count; i++) source_free(others[i]);
        gguf_free(file);
        gguf_free(options->projector);
        engine_load_free(l);
        return fail_memory(e, "the engine", sizeof *l + sizeof(gm_engine));
    }
    l->engine->file = file;
    l->engine->projector = options->projector;
    l->other_count = count;
    for (size_t i = 0; i < count; i++) l->others[i] = others[i];
    const gm_engine_options *o = options->engine;
    l->automatic = o->backend == GM_BACKEND_AUTO && !o->cpu && !o->gpu;
    l->engine->on_gpu = o->backend == GM_BACKEND_GPU || (o->backend == GM_BACKEND_AUTO && o->gpu && !o->cpu);
    l->engine->precise = o->precise;
    gm_status status = copy_options(l, options, e);
    if (!status) status = reads_new(&l->engine->reads, e);
    if (status) engine_load_free(l);
    else *out = l;
    return status;
}

void engine_load_free(engine_load *l) {
    if (!l) return;
    if (l->engine) { /* it was not taken */
        reads_drop(l->engine->reads, l->piece_ticket);
        model_fetch_drop(&l->fetch);
        model_hash_drop(&l->hash);
        model_hash_drop(&l->projector_hash);
        self_check_free(l->check);
        gm_engine_close(l->engine);
    }
    for (size_t i = l->others_given; i < l->other_count; i++) source_free(l->others[i]);
    free(l->others);
    free(l->piece);
    arena_free(&l->memory);
    free(l);
}

reads *engine_load_reads(const engine_load *l) { return l->engine->reads; }

const gguf *engine_load_file(const engine_load *l) { return l->engine->file; }

void engine_load_wait(const engine_load *l) {
    if (l->engine->gpu.host) gpu_host_wait(l->engine->gpu.host, l->busy ? 0 : 100);
}

gm_engine *engine_load_take(engine_load *l) {
    gm_engine *engine = l->engine;
    l->engine = NULL;
    return engine;
}

/* ---- the header --------------------------------------------------------------------------------------------------------- */

/* Hands the source what it wants, piece by piece. */
static gm_status feed_header(engine_load *l, source *from, error *e) {
    uint64_t offset = 0, length = 0;
    if (!source_wanted(from, &offset, &length)) return fail(e, GM_IO, "the header cannot be read");
    if (!l->piece_ticket) {
        uint8_t *grown = realloc(l->piece, (size_t)length);
        if (!grown) return fail_memory(e, "a piece of the header", length);
        l->piece = grown;
        l->piece_ticket = reads_ask(
            l->engine->reads, &(read_order){ .from = from, .offset = offset, .length = length, .memory = l->piece });
        if (!l->piece_ticket) return GM_AGAIN;
    }
    const gm_status status = reads_take(l->engine->reads, l->piece_ticket, e);
    if (status == GM_AGAIN) return status;
    l->piece_ticket = 0;
    if (status) return status;
    l->header_done = offset + length;
    return source_give(from, offset, l->piece, length, e);
}

static gm_status add_next_part(engine_load *l, error *e) {
    if (l->others_given == l->other_count)
        return fail(e, GM_BAD_ARGUMENT, "the model is split into %u parts (split.count), but %zu were given",
                    gguf_parts(l->engine->file), l->other_count + 1);
    source *part = l->others[l->others_given++];
    return gguf_add_part(l->engine->file, part, e);
}

/* Reads what there is of a file's header. */
static gm_status step_header(engine_load *l, gguf *file, error *e) {
    gm_status status;
    while ((status = gguf_step(file, e)) == GM_AGAIN) {
        status = feed_header(l, gguf_waiting_source(file), e);
        if (status) return status;
    }
    return status;
}

static gm_status read_header(engine_load *l, error *e) {
    gguf *file = l->engine->file;
    for (;;) {
        const gm_status status = step_header(l, file, e);
        if (status) return status;
        if (gguf_parts(file) == 1 + l->others_given) break;
        if (gguf_source(file, gguf_parts(file) - 1)) break; /* it came with all its parts */
        TRY(add_next_part(l, e));
    }
    if (l->others_given < l->other_count)
        return fail(e, GM_BAD_ARGUMENT, "%zu parts were given, but the model has %u (split.count)", l->other_count + 1,
                    gguf_parts(file));
    const gm_status status = l->engine->projector ? step_header(l, l->engine->projector, e) : GM_OK;
    if (status) return status;
    free(l->piece);
    l->piece = NULL;
    return GM_OK;
}

/* ---- weights into memory, and the model ----------------------------------------------------------------------------------- */

/* What cannot work is refused before anything is read: a model that makes no sense, or that does not fit. */
static gm_status plan_fetch(engine_load *l, error *e) {
    gm_engine *engine = l->engine;
    model      shapes;
    TRY(model_shapes(engine->file, &shapes, e));
    /* The steps of a denoiser multiply differences in rounding, so with --precise all backends compute the same bits. */
    engine->exact = engine->precise && shapes.config.canvas.length;
    model_free(&shapes);
    l->expected = model_fetch_bytes(&(model_fetch){ .file = engine->file, .matrices = true });
    l->fetch = (model_fetch){ .file = engine->file, .reads = engine->reads, .matrices = !engine->on_gpu };
    return engine->on_gpu ? GM_OK : load_check_memory(engine->file, l->most_memory, &l->fetch.rows, NULL, e);
}

static gm_status open_gpu(engine_load *l, error *e) {
    const gm_engine_options *o = &l->options;
    const gpu_options        gpu = {
               .adapter = (int32_t)o->gpu - 1, .hardware = l->automatic, .disable = o->gpu_disable, .memory = o->gpu_memory
    };
    return gpu_backend_open(&l->engine->gpu, &gpu, o->precise, e);
}

static gm_status open_backend(engine_load *l, error *e) {
    gm_engine               *engine = l->engine;
    const gm_engine_options *o = &l->options;
    engine->plans =
        (plan_set){ .cpu = engine->on_gpu ? NULL : &engine->cpu, .gpu = engine->on_gpu ? &engine->gpu : NULL };
    if (!engine->on_gpu) {
        const char *instructions = engine->exact && !o->cpu ? "scalar" : o->cpu;
        return cpu_backend_open(&engine->cpu, instructions, o->threads, o->precise, e);
    }
    if (!engine->gpu.host) TRY(open_gpu(l, e));
    if (engine->exact) gpu_host_be_exact(engine->gpu.host);
    const gpu_info *info = gpu_host_info(engine->gpu.host);
    engine->batches = batch_sizes_begin(info->large_batches && !info->software && !o->gpu_memory && !o->gpu_experts);
    return GM_OK;
}

/* Opening a GPU, compiling its shaders and checking it takes about a second, and several if the driver has not seen the shaders
 * before. A CPU reads at least 10 GB of weights in a second: below this size it has written a hundred tokens by then. */
#define SMALL_MODEL (UINT64_C(128) << 20)

/* Where the backend is left to us: a GPU in hardware, if there is one and the model is worth it. What it cannot do is seen later
 * (fall_back). */
static gm_status choose_backend(engine_load *l, error *e) {
    const uint64_t bytes = gguf_file_bytes(l->engine->file);
    error          problem = { 0 };
    if (!l->automatic) return GM_OK;
    if (bytes < SMALL_MODEL) {
        snprintf(l->engine->why_device, sizeof l->engine->why_device,
                 "the model is small (%.1f MB), so the CPU answers before a GPU would be ready", (double)bytes / 1e6);
        return GM_OK;
    }
    l->engine->on_gpu = !open_gpu(l, &problem);
    if (problem.status == GM_BAD_ARGUMENT) return fail(e, problem.status, "%s", problem.why); /* in gpu_disable */
    snprintf(l->engine->why_device, sizeof l->engine->why_device, "%s",
             l->engine->on_gpu ? "chosen because it is a hardware GPU" : problem.why);
    return GM_OK;
}

static gm_status fetch_weights(engine_load *l, error *e) {
    const gm_status status = model_fetch_step(&l->fetch, e);
    if (!status) l->engine->seconds.upload = clock_seconds() - l->stage_started;
    return status;
}

static gm_status build_model(engine_load *l, error *e) {
    gm_engine *engine = l->engine;
    TRY(model_load(engine->file, &engine->weights, e));
    TRY(tokenizer_new(engine->file, &engine->words, e));
    if (tokenizer_size(engine->words) != engine->weights.config.vocabulary) {
        return fail(e, GM_BAD_FILE, "tokenizer.ggml.tokens has %zu entries, but token_embd.weight has %u rows",
                    tokenizer_size(engine->words), engine->weights.config.vocabulary);
    }
    if (engine->projector) TRY(engine_check_projector(engine->projector, engine->weights.config.width, e));
    TRY(model_text_graph(&engine->weights, NULL, &engine->text, e));
    return engine->weights.config.canvas.length ? denoiser_new(engine, &engine->denoiser, e) : GM_OK;
}

/* ---- the GPU -------------------------------------------------------------------------------------------------------------- */

/* A CPU reads its memory about three times as fast as weights go over the bus: if more than a third of what a token reads would
 * have to, the CPU is faster. */
enum { SLOWER_BUS = 3 };

static gm_status plan_memory(engine_load *l, error *e) {
    gm_engine          *engine = l->engine;
    const model_config *c = &engine->weights.config;
    const uint64_t      limit = l->options.gpu_memory;
    if (!engine->on_gpu || (!limit && !l->options.gpu_experts)) return GM_OK;
    TRY(gpu_memory_plan(&engine->text, engine->denoiser ? denoiser_graph(engine->denoiser) : NULL, c,
                        engine->precise ? TYPE_F32 : TYPE_F16, min_size(c->context, GPU_MEMORY_CONTEXT),
                        towers_bytes(engine->file, engine->projector, c->width), limit, l->options.gpu_experts,
                        gpu_host_info(engine->gpu.host), &engine->budget, e));
    if (l->automatic && gpu_budget_expected(&engine->budget) * SLOWER_BUS > engine->weights.bytes_per_token)
        return fail(e, GM_NO_MEMORY,
                    "%.1f of the %.1f GB of weights that a token reads do not fit into the %.1f GB of GPU "
                    "memory that may be used",
                    (double)gpu_budget_expected(&engine->budget) / 1e9, (double)engine->weights.bytes_per_token / 1e9,
                    (double)limit / 1e9);
    gpu_budget_explain(&engine->budget, load_in_pieces(engine->file), engine->note, sizeof engine->note);
    gpu_backend_keep_to(&engine->gpu, &engine->budget);
    return GM_OK;
}

static gm_status check_gpu(engine_load *l, error *e) {
    if (l->checked) return GM_OK;
    if (!l->check) TRY(engine_check_new(l->engine, &l->check, e));
    const gm_status status = self_check_step(l->check, e);
    if (status) return status;
    l->engine->seconds.check = clock_seconds() - l->stage_started;
    if (self_check_inexact(l->check)) {
        char *note = l->engine->note;
        snprintf(note + strlen(note), sizeof l->engine->note - strlen(note),
                 "%sthis GPU rounds differently from the CPU: despite --precise, a seed may give another text than "
                 "elsewhere",
                 *note ? "; " : "");
    }
    self_check_free(l->check);
    l->check = NULL;
    l->checked = true;
    return GM_OK;
}

bool load_in_pieces(const gguf *file) {
    for (uint32_t i = 0; i < gguf_parts(file); i++) {
        if (!source_whole(gguf_source(file, i))) return true;
    }
    return false;
}

static gm_status upload_weights(engine_load *l, error *e) {
    gm_engine *engine = l->engine;
    if (l->uploaded) return GM_OK;
    if (load_in_pieces(engine->file)) gpu_backend_read_by(&engine->gpu, engine->reads);
    gm_status status = gpu_backend_upload(&engine->gpu, &engine->text, e);
    if (!status && engine->denoiser) status = gpu_backend_upload(&engine->gpu, denoiser_graph(engine->denoiser), e);
    if (status) return status;
    engine->seconds.upload += clock_seconds() - l->stage_started;
    l->uploaded = true;
    return GM_OK;
}

/* The self-check waits for the compiler most of the time, so the weights go to the GPU meanwhile. The upload starts first, because
 * its own kernel must not wait for all the others. A memory limit leaves no room for both: then the check comes first. */
static gm_status check_and_upload(engine_load *l, error *e) {
    if (!l->engine->on_gpu) return GM_OK;
    const gm_status sent = l->options.gpu_memory ? GM_OK : upload_weights(l, e);
    if (sent && sent != GM_AGAIN) return sent;
    const gm_status checked = check_gpu(l, e);
    l->busy = l->check && self_check_kernels_left(l->check);
    if (checked) return checked;
    return l->options.gpu_memory ? upload_weights(l, e) : sent;
}

/* What the first answer needs is compiled before the engine counts as open: the user sees how far it is. */
static gm_status finish_shaders(engine_load *l, error *e) {
    gpu_host *h = l->engine->gpu.host;
    if (!l->engine->on_gpu) return GM_OK;
    TRY(gpu_host_problem(h, e));
    if (gpu_pipelines_pending(h)) return GM_AGAIN;
    l->engine->seconds.shaders = clock_seconds() - l->stage_started;
    return GM_OK;
}

/* Whether there is room behind the weights for a conversation's keys and values and for the plans: nobody tells how much memory
 * a GPU has left, so we take it, and give it back. */
static gm_status try_memory(engine_load *l, error *e) {
    gm_engine          *engine = l->engine;
    const model_config *c = &engine->weights.config;
    gpu_id              taken[64];
    size_t              count = 0;
    uint64_t            wanted = 0;
    if (!engine->on_gpu || !l->automatic || l->options.gpu_memory) return GM_OK;
    TRY(budget_plans(&engine->text, &wanted, e));
    wanted += gpu_memory_kv(c, engine->precise ? TYPE_F32 : TYPE_F16, min_size(c->context, GPU_MEMORY_CONTEXT));
    gm_status status = GM_OK;
    while (wanted && count < COUNT_OF(taken) && !status) {
        const uint64_t bytes = min_size(wanted, gpu_host_info(engine->gpu.host)->max_buffer) / 4 * 4;
        taken[count] = gpu_buffer_new(engine->gpu.host, max_size(bytes, 4), e);
        if (taken[count]) count++;
        else status = e->status;
        wanted -= min_size(wanted, max_size(bytes, 4));
    }
    while (count) gpu_buffer_free(engine->gpu.host, taken[--count]);
    return status ? status : gpu_host_problem(engine->gpu.host, e);
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

static gm_status identify_model(engine_load *l, error *e) {
    uint8_t digest[32];
    l->hash.file = l->engine->file;
    l->hash.reads = l->engine->reads;
    l->projector_hash.file = l->engine->projector;
    l->projector_hash.reads = l->engine->reads;
    gm_status status = model_hash_step(&l->hash, digest, e);
    if (status) return status;
    sha256_hex(digest, l->engine->digest);
    return l->engine->projector ? model_hash_step(&l->projector_hash, l->engine->projector_digest, e) : GM_OK;
}

/* The experts that were used most when the model was last open. */
static gm_status warm_experts(engine_load *l, error *e) {
    gm_engine *engine = l->engine;
    if (!engine->on_gpu || !engine->gpu.experts) return GM_OK;
#ifndef __wasm__
    if (l->options.cache && !engine->cache) {
        engine->cache = arena_copy(&engine->memory, str_of(l->options.cache));
        if (!engine->cache) return fail_memory(e, "the name of a folder", strlen(l->options.cache));
        engine_profile_open(engine);
    }
#endif
    return expert_cache_warm(&engine->gpu, e);
}

static gm_status describe_engine(engine_load *l, error *e) { return engine_describe(l->engine, &l->origin, e); }

typedef gm_status stage(engine_load *l, error *e);

enum { FIRST_OF_BACKEND = 2 }; /* the stage from which another backend begins */

static const struct {
    stage     *run;
    load_phase phase;
    bool       gpu; /* what fails here is the GPU, or the bytes that go there */
} stages[] = {
    { read_header, LOAD_HEADER, false },    { choose_backend, LOAD_CHECK, false },
    { plan_fetch, LOAD_HEADER, false },     { open_backend, LOAD_CHECK, false },
    { fetch_weights, LOAD_WEIGHTS, false }, { build_model, LOAD_WEIGHTS, false },
    { plan_memory, LOAD_CHECK, true },      { check_and_upload, LOAD_SHADERS, true },
    { try_memory, LOAD_SHADERS, true },     { finish_shaders, LOAD_SHADERS, true },
    { identify_model, LOAD_PLANS, false },  { warm_experts, LOAD_PLANS, true },
    { describe_engine, LOAD_PLANS, false },
};

/* The GPU that we took by ourselves has failed: closes it, remembers why, and begins again on the CPU. */
static void fall_back(engine_load *l, error *e) {
    gm_engine *engine = l->engine;
    snprintf(engine->why_device, sizeof engine->why_device, "%s", e->why);
    *e = (error){ 0 };
    self_check_free(l->check);
    l->check = NULL;
    graph_free(&engine->text);
    engine->text = (graph){ 0 };
    denoiser_free(engine->denoiser);
    engine->denoiser = NULL;
    gpu_backend_close(&engine->gpu);
    gpu_budget_free(&engine->budget);
    engine->budget = (gpu_budget){ 0 };
    tokenizer_free(engine->words);
    engine->words = NULL;
    model_free(&engine->weights);
    model_fetch_drop(&l->fetch);
    *engine->note = 0;
    l->checked = l->uploaded = l->busy = false;
    engine->on_gpu = false;
    l->stage = FIRST_OF_BACKEND;
}

gm_status engine_load_step(engine_load *l, error *e) {
    const double deadline = engine_deadline(l->engine);
    while (l->stage < COUNT_OF(stages)) {
        if (!l->stage_started) l->stage_started = clock_seconds();
        const gm_status status = stages[l->stage].run(l, e);
        const bool      no_gpu = status_failed(status) && status != GM_BAD_FILE;
        if (no_gpu && l->automatic && l->engine->on_gpu && stages[l->stage].gpu) {
            fall_back(l, e);
            l->stage_started = 0;
            continue;
        }
        if (status) return status;
        const double now = clock_seconds();
        l->stage_started = 0;
        l->stage++;
        if (now > deadline && l->stage < COUNT_OF(stages)) return GM_AGAIN;
    }
    return GM_OK;
}

gm_status engine_load_header(engine_load *l, error *e) {
    const gm_status status = l->stage ? GM_OK : read_header(l, e);
    if (!status && !l->stage) l->stage = 1;
    return status;
}

load_progress engine_load_progress(const engine_load *l) {
    const gm_engine *engine = l->engine;
    load_progress    p = { .phase = LOAD_PLANS };
    if (!engine || l->stage >= COUNT_OF(stages)) return p;
    p.phase = stages[l->stage].phase;
    if (p.phase == LOAD_SHADERS && !l->uploaded)
        p.phase = l->checked || !l->options.gpu_memory ? LOAD_WEIGHTS : LOAD_CHECK;
    if (p.phase == LOAD_HEADER) p.done = p.total = l->header_done;
    if (p.phase == LOAD_SHADERS && engine->gpu.host) {
        p.total = gpu_pipelines(engine->gpu.host);
        p.done = p.total - gpu_pipelines_pending(engine->gpu.host);
        if (l->check) p.total += self_check_kernels_left(l->check);
    }
    if (p.phase == LOAD_WEIGHTS) {
        p.done = l->fetch.done + engine->gpu.uploaded;
        p.total = engine->on_gpu && !engine->gpu.total ? l->expected : l->fetch.total + engine->gpu.total;
    }
    return p;
}
