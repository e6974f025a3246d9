#include "cli/engine_arguments.h"

#include "cli/interrupt.h"
#include "cli/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const option_choice backends[] = {
    { "auto", GM_BACKEND_AUTO }, { "cpu", GM_BACKEND_CPU }, { "gpu", GM_BACKEND_GPU }, { NULL, 0 }
};
const option_choice kv_choices[] = { { "f16", GM_KV_F16 }, { "f32", GM_KV_F32 }, { "q8_0", GM_KV_Q8_0 }, { NULL, 0 } };

const option engine_options[ENGINE_OPTIONS] = {
    TEXT_OPTION(engine_values, mmproj, "mmproj", 0, "FILE",
                "the model's vision and audio towers, if they are in a file of their own (llama.cpp's mmproj)"),
    CHOICE_OPTION(
        engine_values, backend, "backend", 0, "B", backends,
        "auto, cpu or gpu; default: auto, which uses a hardware GPU if the model is at least 128 MiB and runs "
        "on it, else the CPU"),
    CHOICE_OPTION(engine_values, kv, "kv", 0, "TYPE", kv_choices,
                  "type of stored keys and values: f16, f32 or q8_0; default: f16, or f32 with --precise"),
    COUNT_OPTION(engine_values, threads, "threads", 0, "N", 1, 1024, "CPU threads; default: one per physical core"),
    FLAG_OPTION(
        engine_values, precise, "precise", 0,
        "use f32 for activations, keys, values and sums: slower, but closest to the reference; a diffusion model then "
        "writes the same text on every backend"),
    TEXT_OPTION(engine_values, cpu, "cpu", 0, "ISA",
                "instruction set: scalar, avx2, avx512 or neon; default: the best one here (see gemmule version)"),
    COUNT_OPTION(engine_values, gpu, "gpu", 0, "N", 0, 63,
                 "number of the GPU, see `gemmule devices`; default: the fastest"),
    TEXT_OPTION(engine_values, gpu_disable, "gpu-disable", 0, "LIST",
                "GPU features and kernels not to use, separated by commas: subgroups, dot4, f16, subgroup_matrix, "
                "matrix_attention, bands, deep_splits, blocks, double_buffers, large_batches (tests the "
                "fallbacks)"),
    BYTES_OPTION(engine_values, gpu_memory, "gpu-memory", 0, "N",
                 "limit GPU memory, such as 4G or 900M (powers of 1024); weights that do not fit stay in main memory, "
                 "which is slower (`gemmule inspect` shows the plan); default: no limit"),
    COUNT_OPTION(
        engine_values, gpu_experts, "gpu-experts", 0, "N", 1, 512,
        "experts of each layer that the GPU holds at once; experts are uploaded when they are used; default: all "
        "from the beginning, or as many as fit --gpu-memory"),
};

const option sampling_options[SAMPLING_OPTIONS] = {
    NUMBER_OPTION(sampling_values, temperature, "temp", 0, "T", 0, 100,
                  "temperature, 0: always take the likeliest token; default: the model's, usually 1"),
    COUNT_OPTION(sampling_values, top_k, "top-k", 0, "K", 0, INT32_MAX,
                 "consider only the K likeliest tokens, 0: all; default: the model's, usually 64"),
    NUMBER_OPTION(
        sampling_values, top_p, "top-p", 0, "P", 0, 1,
        "consider the likeliest tokens whose probabilities add up to P, 1: all; default: the model's, usually 0.95"),
    NUMBER_OPTION(sampling_values, min_p, "min-p", 0, "P", 0, 1,
                  "drop tokens less than P times as likely as the likeliest, 0: off; default 0"),
    NUMBER_OPTION(sampling_values, typical_p, "typical", 0, "P", 0, 1,
                  "locally typical sampling with mass P, 1: off; default 1"),
    NUMBER_OPTION(sampling_values, repetition_penalty, "repeat-penalty", 0, "X", 0.01, 100,
                  "make tokens that have appeared X times less likely, 1: off; default 1"),
    NUMBER_OPTION(sampling_values, presence_penalty, "presence-penalty", 0, "X", -100, 100,
                  "subtract X from the logit of every token that has appeared, 0: off; default 0"),
    NUMBER_OPTION(sampling_values, frequency_penalty, "frequency-penalty", 0, "X", -100, 100,
                  "subtract X from a token's logit for each time it has appeared, 0: off; default 0"),
    COUNT_OPTION(sampling_values, penalty_window, "penalty-window", 0, "N", 0, UINT32_MAX,
                 "apply the penalties to the last N tokens; default 64"),
    COUNT_OPTION(
        sampling_values, seed, "seed", 0, "N", 0, (double)UINT64_MAX,
        "random seed; the same seed gives the same text on the same build, backend and threads; default: random"),
};

/* $XDG_CACHE_HOME/gemmule, by default ~/.cache/gemmule; NULL: there is no such place. */
static const char *cache_folder(void) {
    static char folder[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int         length = 0;
    if (cache && *cache == '/') length = snprintf(folder, sizeof folder, "%s/gemmule", cache);
    else if (home && *home == '/') length = snprintf(folder, sizeof folder, "%s/.cache/gemmule", home);
    return length > 0 && (size_t)length < sizeof folder ? folder : NULL;
}

gm_engine_options engine_choose(const engine_values *values, const char *model) {
    return (gm_engine_options){
        .model = model,
        .mmproj = values->mmproj,
        .backend = (gm_backend)values->backend,
        .threads = (uint32_t)values->threads.value,
        .precise = values->precise,
        .cpu = values->cpu,
        .gpu = values->gpu.given ? (uint32_t)values->gpu.value + 1 : 0,
        .gpu_disable = values->gpu_disable,
        .gpu_memory = values->gpu_memory.value,
        .gpu_experts = (uint32_t)values->gpu_experts.value,
        .cache = cache_folder(),
    };
}

/* A bar for each phase of opening. */
typedef struct {
    progress bar;
    bool     wanted;
    int      phase;
} opening_bar;

static bool show_opening(void *user, const gm_opening *now) {
    opening_bar *b = user;
    if (!now->total) return !interrupted();
    if (b->phase != (int)now->phase) {
        const bool shaders = now->phase == GM_OPENING_SHADERS;
        progress_end(&b->bar);
        progress_start(&b->bar, shaders ? "preparing the GPU" : "loading the weights",
                       shaders ? PROGRESS_SHADERS : PROGRESS_BYTES, b->wanted);
        b->phase = (int)now->phase;
    }
    progress_update(&b->bar, now->done, now->total);
    return !interrupted();
}

gm_status engine_open(const engine_values *values, const char *model, bool bar, gm_engine **out, error *e) {
    gm_engine_options options = engine_choose(values, model);
    opening_bar       shown = { .wanted = bar, .phase = -1 };
    char              why[sizeof e->why] = "";
    gm_engine_info    info;
    *out = NULL;
    options.opening = show_opening;
    options.opening_user = &shown;
    const gm_status status = gm_engine_open(&options, out, why, sizeof why);
    progress_end(&shown.bar);
    if (status) return fail(e, status, "%s", why);
    gm_engine_get_info(*out, &info);
    if (*info.why_device) fprintf(stderr, "gemmule: using %s: %s\n", info.device, info.why_device);
    if (*info.note) fprintf(stderr, "gemmule: %s\n", info.note);
    const gm_status loaded = adapters_open(values, *out, e);
    if (loaded) gm_engine_close(*out);
    if (loaded) *out = NULL;
    return loaded;
}

gm_status session_open(const engine_values *values, gm_engine *engine, uint64_t context, gm_session **out, error *e) {
    const gm_session_options options = { .context = (uint32_t)context, .kv = (gm_kv_type)values->kv };
    char                     why[sizeof e->why] = "";
    const gm_status          status = gm_session_new(engine, &options, out, why, sizeof why);
    if (status) return fail(e, status, "%s", why);
    return values->adapters.count ? session_use_adapters(values, *out, NULL, NULL, 0, e) : GM_OK;
}

static void argument_apply(float *field, number_value given) {
    if (given.given) *field = (float)given.value;
}

gm_status sampling_choose(const sampling_values *values, const gm_engine *engine, gm_sampling *out, error *e) {
    gm_sampling_default(engine, out);
    argument_apply(&out->temperature, values->temperature);
    argument_apply(&out->top_p, values->top_p);
    argument_apply(&out->min_p, values->min_p);
    argument_apply(&out->typical_p, values->typical_p);
    argument_apply(&out->repetition_penalty, values->repetition_penalty);
    argument_apply(&out->presence_penalty, values->presence_penalty);
    argument_apply(&out->frequency_penalty, values->frequency_penalty);
    if (values->top_k.given) out->top_k = (int32_t)values->top_k.value;
    if (values->penalty_window.given) out->penalty_window = (uint32_t)values->penalty_window.value;
    else if (!out->penalty_window) out->penalty_window = 64;

    if (values->seed.given) {
        out->seed = values->seed.value;
    } else {
        if (getentropy(&out->seed, sizeof out->seed)) {
            return fail(e, GM_IO, "cannot draw a random seed: %s; give one with --seed", strerror(errno));
        }
        out->seed >>= 11; /* 53 bits: every reader of JSON can hold it */
    }
    return GM_OK;
}
