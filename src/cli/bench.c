/* gemmule bench: measures how fast a model runs.
 *
 * Prefill: a fresh session computes N random tokens. Decode: a session of D tokens computes N more, one at a time, and picks
 * a greedy token after each, as in real use. On the GPU the model continues with that token, which never leaves the GPU. On
 * the CPU we feed random tokens instead: a model of random weights would repeat one token, whose experts and rows stay in
 * the cache. */

#include "cli/bench_canvas.h"
#include "cli/bench_media.h"
#include "cli/bench_parallel.h"
#include "cli/bench_profile.h"
#include "cli/bench_switch.h"
#include "cli/bench_train.h"
#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/interrupt.h"
#include "cli/median.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/pool.h"
#include "base/random.h"
#include "gpu/experts_kept.h"
#include "model/config.h"
#include "session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    engine_values engine;
    count_value   prefill, decode, depth, repeats, image, audio, steps;
    const char   *parallel, *train, *profile;
    bool          json, quiet;
} bench_values;

static const option bench_options[] = {
    COUNT_OPTION(bench_values, prefill, "prefill", 'p', "N", 0, 1 << 20,
                 "length of the prompt in tokens, 0: skip; default 512"),
    COUNT_OPTION(bench_values, decode, "decode", 'n', "N", 0, 1 << 20, "tokens to decode, 0: skip; default 32"),
    COUNT_OPTION(bench_values, depth, "depth", 'd', "DEPTH", 0, 1 << 20,
                 "tokens already in the session when decoding starts; default 0"),
    COUNT_OPTION(bench_values, repeats, "repeats", 'r', "R", 1, 1000, "measure R times and report the best; default 3"),
    TEXT_OPTION(bench_values, parallel, "parallel", 0, "LIST",
                "also decode several sequences at once, such as 1,2,4,8: as many for each number"),
    TEXT_OPTION(bench_values, train, "train", 0, "LIST",
                "also train on random tokens, such as 512,2048: steps of so many for each number"),
    COUNT_OPTION(bench_values, steps, "steps", 0, "N", 1, CANVAS_MOST_STEPS,
                 "diffusion models: at most N steps for a block; default: the model's, 48"),
    COUNT_OPTION(bench_values, image, "image", 0, "N", 1, 1120,
                 "also encode pictures of N tokens, one and four at a time"),
    COUNT_OPTION(bench_values, audio, "audio", 0, "SECONDS", 1, 30,
                 "also encode sounds of this length, one and four at a time"),
    TEXT_OPTION(bench_values, profile, "profile", 0, "FILE",
                "also show which kernels the GPU's time goes to, and draw that as an SVG"),
    FLAG_OPTION(bench_values, json, "json", 0, "print one JSON object"),
    FLAG_OPTION(bench_values, quiet, "quiet", 0, "no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("measurement", bench_options, 0),
    ADAPTER_GROUP(offsetof(bench_values, engine)),
    ENGINE_GROUP(offsetof(bench_values, engine)),
};

typedef struct {
    const bench_values *values;
    size_t              prefill, decode, depth, repeats;
    gm_engine          *engine;
    gm_engine_info      info;
    int32_t            *tokens; /* max(prefill, depth + decode) + 1 tokens */
    double              load_seconds, prefill_seconds, decode_seconds;
    uint64_t            peak_memory, private_memory;
    size_t              dispatches; /* per decoded token; 0 on the CPU */
    expert_statistics   experts;    /* while decoding, or in the last block; zeros without a cache */
    double median_seconds; /* of a decoded token on the GPU: with a cache of experts, of one that misses none, or few */
    double copy_rate;      /* of experts from main memory to the GPU, bytes per second; 0: there are no copies */
    gpu_profile   *timed;  /* NULL: dispatches are not timed */
    bench_profile  profile;
    bench_parallel parallel;
    bench_train    train;
    bench_switch   switching; /* between adapters */
    bench_medium   media[2];  /* a picture, a sound */
    bench_canvas   canvas;    /* of a diffusion model, in the place of decoding */
    progress       bar;
    size_t         steps_done, steps;
} bench;

static gm_status bench_make_tokens(bench *b, error *e) {
    const size_t count = max_size(b->prefill, b->depth + b->decode) + 1;
    b->tokens = calloc(count, sizeof *b->tokens);
    if (!b->tokens) return fail_memory(e, "the tokens", count * sizeof *b->tokens);
    const uint32_t key[2] = { 1, 0 };
    for (size_t i = 0; i < count; i++) {
        const uint32_t counter[4] = { (uint32_t)i, 0, 0, 0 };
        uint32_t       words[4];
        philox(counter, key, words);
        b->tokens[i] = (int32_t)(words[0] % b->info.vocabulary);
    }
    return GM_OK;
}

static gm_status append_tokens(gm_session *session, const int32_t *tokens, size_t count, error *e) {
    char      why[sizeof e->why] = "";
    gm_status status = GM_OK;
    if (!count) return GM_OK;
    while ((status = gm_session_append(session, tokens, count, why, sizeof why)) == GM_AGAIN) {}
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

typedef gm_status bench_work(bench *b, gm_session *session, double *seconds, error *e);

/* Runs `work` on a fresh session of `context` tokens and keeps the best time. */
static gm_status with_session(bench *b, size_t context, bench_work *work, double *best, error *e) {
    gm_session *session = NULL;
    double      seconds = 0;
    gm_status   status = session_open(&b->values->engine, b->engine, context, &session, e);
    if (status != GM_OK) return status;
    session->shares = false; /* every round computes everything */
    interrupt_watch(session);
    status = interrupted() ? fail(e, GM_CANCELLED, "interrupted") : work(b, session, &seconds, e);
    interrupt_watch(NULL);
    gm_session_free(session);
    if (status == GM_OK && (*best == 0 || seconds < *best)) *best = seconds;
    return status;
}

/* Whether the GPU may become faster soon: it is slow to raise its clocks, and kernels for larger batches compile in the background. */
static bool bench_is_cold(const bench *b, double start) {
    return b->engine->on_gpu && (clock_seconds() - start < 1 || gpu_pipelines_pending(b->engine->gpu.host));
}

/* The first runs warm up file pages and clocks. */
static gm_status measure_best(bench *b, size_t context, bench_work *work, bool warm, double *best, error *e) {
    const double start = clock_seconds();
    double       ignored = 0;
    gm_status    status = GM_OK;
    for (bool cold = !warm; status == GM_OK && cold; cold = bench_is_cold(b, start)) {
        status = with_session(b, context, work, &ignored, e);
    }
    if (!warm) progress_update(&b->bar, ++b->steps_done, b->steps);
    for (size_t i = 0; status == GM_OK && i < b->repeats; i++) {
        status = with_session(b, context, work, best, e);
        progress_update(&b->bar, ++b->steps_done, b->steps);
    }
    return status;
}

static gm_status timing_start(bench *b, error *e) {
    return b->timed ? gpu_profile_start(b->timed, &b->engine->gpu, e) : GM_OK;
}

/* `status` is that of the timed work. */
static gm_status timing_end(bench *b, gm_status status, error *e) {
    error           ignored = { 0 };
    const gm_status ended = b->timed ? gpu_profile_end(b->timed, status ? &ignored : e) : GM_OK;
    return status ? status : ended;
}

static gm_status prefill_once(bench *b, gm_session *session, double *seconds, error *e) {
    TRY(timing_start(b, e));
    const double    start = clock_seconds();
    const gm_status status = append_tokens(session, b->tokens, b->prefill, e);
    *seconds = clock_seconds() - start;
    return timing_end(b, status, e);
}

/* The value of a field of /proc/self/status in bytes; 0 if there is none. */
static uint64_t process_memory(const char *field) {
    char     line[200];
    uint64_t kilobytes = 0;
    FILE    *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, field, strlen(field))) kilobytes = strtoull(line + strlen(field) + 1, NULL, 10);
    }
    if (file) fclose(file);
    return kilobytes * 1024;
}

/* N times: picks a token, then computes a random one. */
static gm_status feed_tokens(bench *b, gm_session *session, const gm_sampling *greedy, error *e) {
    gm_status status = GM_OK;
    for (size_t i = 0; status == GM_OK && i < b->decode; i++) {
        int32_t chosen;
        status = session_sample(session, greedy, &chosen, e);
        if (status == GM_OK) status = append_tokens(session, b->tokens + b->depth + i, 1, e);
    }
    return status;
}

static gm_status next_token(gm_session *session, const gm_sampling *greedy, size_t most, int32_t *token, error *e) {
    gm_status       status;
    const draw_wish wish = { .sampling = greedy, .most = most };
    while ((status = session_next(session, &wish, token, clock_seconds() + 0.05, e)) == GM_AGAIN) {}
    return status;
}

/* N times: computes the token picked last and picks the next. Tokens that end an answer do not stop it. */
static gm_status follow_choices(bench *b, gm_session *session, const gm_sampling *greedy, error *e) {
    gm_status status = GM_OK;
    double   *seconds = calloc(b->decode + 1, sizeof *seconds), last = clock_seconds();
    if (!seconds) return fail_memory(e, "the times of tokens", b->decode * sizeof *seconds);
    for (size_t i = 0; status == GM_OK && i < b->decode; i++) {
        int32_t chosen;
        status = next_token(session, greedy, b->decode - i, &chosen, e);
        if (status == GM_OK && i + 1 < b->decode) status = session_hold(session, chosen, e);
        seconds[i] = clock_seconds() - last;
        last += seconds[i];
    }
    b->median_seconds = median_of(seconds, b->decode ? b->decode : 1);
    free(seconds);
    return status;
}

/* The first step builds the plan. Its token is not kept, so the timed run starts at the same position. */
static gm_status warm_up_choices(gm_session *session, const gm_sampling *greedy, error *e) {
    int32_t   token;
    gm_status status = next_token(session, greedy, 1, &token, e);
    if (status == GM_OK) status = session_hold(session, token, e);
    return status == GM_OK ? next_token(session, greedy, 1, &token, e) : status;
}

/* How fast copies of experts reach the GPU. */
static gm_status measure_copies(bench *b, error *e) {
    gpu_backend *gpu = &b->engine->gpu;
    uint64_t     bytes = 0;
    b->copy_rate = 0;
    if (!b->engine->on_gpu || !gpu->experts) return GM_OK;
    while (!gpu_idle(gpu->host)) gpu_host_wait(gpu->host, 10);
    const double start = clock_seconds();
    TRY(expert_kept_rewrite(gpu, &bytes, e));
    while (!gpu_idle(gpu->host)) gpu_host_wait(gpu->host, 10);
    b->copy_rate = (double)bytes / (clock_seconds() - start);
    return gpu_host_problem(gpu->host, e);
}

/* All of this engine's; without a cache zeros. */
static expert_statistics bench_experts(const bench *b) {
    return expert_statistics_since(&b->engine->gpu, &(expert_statistics){ 0 });
}

static gm_status decode_once(bench *b, gm_session *session, double *seconds, error *e) {
    /* At least one token comes first, so that the timed steps are those of a running answer. */
    const size_t before = max_size(b->depth, 1);
    gm_sampling  greedy;
    gm_sampling_default(b->engine, &greedy);
    greedy.temperature = 0;
    gm_status status = append_tokens(session, b->tokens, before, e);
    if (status == GM_OK && b->engine->on_gpu) status = warm_up_choices(session, &greedy, e);
    if (status == GM_OK) status = timing_start(b, e);
    if (status != GM_OK) return status;
    const expert_statistics seen = bench_experts(b);
    const double            start = clock_seconds();
    status = (b->engine->on_gpu ? follow_choices : feed_tokens)(b, session, &greedy, e);
    *seconds = clock_seconds() - start;
    status = timing_end(b, status, e);
    b->dispatches = session_dispatches(session);
    b->experts = expert_statistics_since(&b->engine->gpu, &seen);
    if (!status) status = measure_copies(b, e);
    b->private_memory = process_memory("RssAnon"); /* while the session exists */
    return status;
}

/* Of a block of a diffusion model. */
static size_t bench_most_steps(const bench *b) {
    return b->values->steps.value ? (size_t)b->values->steps.value : SIZE_MAX;
}

/* Once more, with every dispatch timed, which takes longer. */
static gm_status bench_time_dispatches(bench *b, error *e) {
    double ignored = 0;
    TRY(gpu_limits_measure(b->engine->gpu.host, &b->profile.limits, e));
    b->timed = &b->profile.prefill;
    if (b->prefill) TRY(with_session(b, b->prefill, prefill_once, &ignored, e));
    b->timed = &b->profile.decode;
    if (b->decode && !b->engine->denoiser)
        TRY(with_session(b, max_size(b->depth, 1) + b->decode, decode_once, &ignored, e));
    b->timed = NULL;
    if (b->decode && b->engine->denoiser) {
        bench_canvas timed = { .depth = b->canvas.depth };
        TRY(bench_canvas_measure(&timed, &b->values->engine, b->engine, b->tokens, bench_most_steps(b),
                                 &b->profile.canvas, e));
    }
    if (!b->parallel.count) return GM_OK;
    return bench_parallel_measure(&b->parallel, b->parallel.count - 1, &b->values->engine, b->engine, b->tokens,
                                  &b->profile.parallel, e);
}

/* Says early that a profile is impossible. */
static gm_status bench_check_profile(const bench *b, error *e) {
    if (!b->values->profile) return GM_OK;
    if (!b->engine->on_gpu)
        return fail(e, GM_BAD_ARGUMENT,
                    "--profile times the GPU's work, but the model runs on the CPU (see --backend)");
    gpu_profile     probe = { 0 };
    const gm_status status = gpu_profile_start(&probe, &b->engine->gpu, e);
    if (status == GM_OK) gpu_profile_end(&probe, e);
    return status;
}

static gm_status bench_measure(bench *b, error *e) {
    gm_status status = bench_make_tokens(b, e);
    b->steps = (b->prefill ? b->repeats + 1 : 0) + (b->decode ? b->repeats + !b->prefill : 0) +
               b->parallel.count * b->repeats + b->train.count;
    if (status == GM_OK && b->prefill)
        status = measure_best(b, b->prefill, prefill_once, false, &b->prefill_seconds, e);
    const size_t context = max_size(b->depth, 1) + b->decode;
    for (size_t i = 0; status == GM_OK && b->engine->denoiser && b->decode && i <= b->repeats;
         i++) { /* the first warms up */
        if (i == 1) b->canvas = (bench_canvas){ 0 };
        b->canvas.depth = max_size(b->depth, 1);
        status =
            bench_canvas_measure(&b->canvas, &b->values->engine, b->engine, b->tokens, bench_most_steps(b), NULL, e);
        b->experts = b->canvas.experts;
        if (!status && i == b->repeats) status = measure_copies(b, e);
        progress_update(&b->bar, ++b->steps_done, b->steps);
    }
    if (status == GM_OK && b->decode && !b->engine->denoiser)
        status = measure_best(b, context, decode_once, b->prefill > 0, &b->decode_seconds, e);
    for (size_t i = 0; i < b->parallel.count; i++) {
        for (size_t k = 0; status == GM_OK && k < b->repeats; k++) {
            status = bench_parallel_measure(&b->parallel, i, &b->values->engine, b->engine, b->tokens, NULL, e);
            progress_update(&b->bar, ++b->steps_done, b->steps);
        }
    }
    if (status == GM_OK && b->decode && !b->engine->denoiser)
        status = bench_switch_measure(&b->switching, &b->values->engine, b->engine, b->tokens, e);
    for (size_t i = 0; i < COUNT_OF(b->media) && status == GM_OK; i++) {
        gpu_profile *profile = !b->values->profile ? NULL : i ? &b->profile.audio : &b->profile.image;
        if (b->media[i].size) status = bench_medium_measure(&b->media[i], b->engine, i == 1, b->repeats, profile, e);
    }
    for (size_t i = 0; i < b->train.count && status == GM_OK; i++) {
        const bool last = i + 1 == b->train.count;
        status = bench_train_measure(&b->train, i, b->engine, b->repeats,
                                     b->values->profile && last ? &b->profile.train : NULL, e);
        progress_update(&b->bar, ++b->steps_done, b->steps);
    }
    b->peak_memory = process_memory("VmHWM");
    if (!b->private_memory) b->private_memory = process_memory("RssAnon");
    if (status == GM_OK && b->values->profile) status = bench_time_dispatches(b, e);
    return status;
}

static double tokens_per_second(size_t tokens, double seconds) { return seconds > 0 ? (double)tokens / seconds : 0; }

static void report_phase(report *r, const char *key, size_t tokens, double seconds, const size_t *depth) {
    report_open(r, key, '{');
    report_count(r, "tokens", tokens);
    if (depth) report_count(r, "depth", *depth);
    report_number(r, "seconds", seconds);
    report_number(r, "tokens_per_second", tokens_per_second(tokens, seconds));
    report_close(r, '}');
}

static double gigabytes_per_second(const bench *b) {
    return tokens_per_second(b->decode, b->decode_seconds) * (double)b->info.bytes_per_token / 1e9;
}

/* When the engine opened: experts that are cached came later. */
static uint64_t bench_uploaded(const bench *b) { return b->engine->gpu.uploaded - bench_experts(b).bytes; }

static double upload_rate(const bench *b) {
    return b->engine->seconds.upload > 0 ? (double)bench_uploaded(b) / b->engine->seconds.upload / 1e9 : 0;
}

/* The GPU's share of loading, and of the time before the first token. */
static void report_gpu_phases(report *r, const bench *b) {
    report_open(r, "gpu", '{');
    report_number(r, "self_check_seconds", b->engine->seconds.check);
    report_number(r, "upload_seconds", b->engine->seconds.upload);
    report_count(r, "upload_bytes", bench_uploaded(b));
    report_number(r, "upload_gigabytes_per_second", upload_rate(b));
    report_count(r, "shaders", gpu_pipelines(b->engine->gpu.host));
    report_number(r, "shader_seconds", b->engine->seconds.shaders);
    report_number(r, "plan_seconds", b->engine->plans.seconds);
    report_count(r, "batch_tokens", b->engine->batches.now);
    report_count(r, "memory_bytes", gpu_host_bytes(b->engine->gpu.host));
    report_close(r, '}');
}

static void report_experts(report *r, const bench *b) {
    if (!b->experts.picks) return;
    report_open(r, "experts", '{');
    report_count(r, "slots", b->engine->gpu.experts->slots);
    report_number(r, "hit_rate", 1 - (double)b->experts.missed / (double)b->experts.picks);
    report_number(r, "bytes_per_token", (double)b->experts.bytes / (double)b->experts.tokens);
    report_count(r, "loaded", b->experts.loaded);
    report_count(r, "from_copies", b->experts.restored);
    report_count(r, "ahead", b->experts.ahead);
    if (!b->engine->denoiser) report_number(r, "median_token_seconds", b->median_seconds);
    report_number(r, "copy_gigabytes_per_second", b->copy_rate / 1e9);
    report_close(r, '}');
}

static int bench_print_json(const bench *b, const char *name) {
    const count_value threads = b->values->engine.threads;
    report            r = { 0 };
    report_open(&r, NULL, '{');
    report_text(&r, "model", name);
    report_text(&r, "device", b->info.device);
    report_count(&r, "threads", threads.given ? threads.value : physical_cores());
    report_phase(&r, "prefill", b->prefill, b->prefill_seconds, NULL);
    if (b->engine->denoiser) bench_canvas_report(&r, &b->canvas);
    else report_phase(&r, "decode", b->decode, b->decode_seconds, &b->depth);
    if (b->parallel.count) bench_parallel_report(&r, &b->parallel);
    bench_switch_report(&r, &b->switching);
    if (b->train.count) bench_train_report(&r, &b->train);
    for (size_t i = 0; i < COUNT_OF(b->media); i++) bench_medium_report(&r, &b->media[i], i == 1);
    report_count(&r, "bytes_per_token", b->info.bytes_per_token);
    report_number(&r, "gigabytes_per_second", gigabytes_per_second(b));
    if (b->dispatches) report_count(&r, "dispatches_per_token", b->dispatches);
    report_experts(&r, b);
    report_number(&r, "load_seconds", b->load_seconds);
    if (b->engine->on_gpu) report_gpu_phases(&r, b);
    report_count(&r, "peak_memory_bytes", b->peak_memory);
    report_count(&r, "private_memory_bytes", b->private_memory);
    if (b->values->profile) bench_profile_report(&r, &b->profile);
    report_close(&r, '}');
    return report_print(&r);
}

static void bench_print_experts(const bench *b) {
    char read[32];
    if (!b->experts.picks) return;
    format_bytes(b->experts.bytes / b->experts.tokens, read);
    printf("experts   %u of %u in each layer; %.1f %% hits, %s per token over the bus; of %llu loads %llu were "
           "from copies (%.2f GB/s), %llu ahead of need\n",
           b->engine->gpu.experts->slots, b->info.experts,
           100 - 100 * (double)b->experts.missed / (double)b->experts.picks, read,
           (unsigned long long)b->experts.loaded, (unsigned long long)b->experts.restored, b->copy_rate / 1e9,
           (unsigned long long)b->experts.ahead);
}

static void bench_print_text(const bench *b, const char *name) {
    char bytes[32], peak[32], private[32];
    format_bytes(b->info.bytes_per_token, bytes);
    format_bytes(b->peak_memory, peak);
    format_bytes(b->private_memory, private);
    printf("model     %s\ndevice    %s\n", name, b->info.device);
    printf("load      %.3f s", b->load_seconds);
    if (b->engine->on_gpu)
        printf(", including self-check %.3f s beside upload %.3f s (%.2f GB/s), then %.3f s for shaders (%zu in all); "
               "plans built in %.3f s",
               b->engine->seconds.check, b->engine->seconds.upload, upload_rate(b), b->engine->seconds.shaders,
               gpu_pipelines(b->engine->gpu.host), b->engine->plans.seconds);
    printf("\n");
    if (b->prefill)
        printf("prefill   %.2f tokens per second (%zu tokens)\n", tokens_per_second(b->prefill, b->prefill_seconds),
               b->prefill);
    bench_canvas_print(&b->canvas);
    if (b->decode && !b->engine->denoiser) {
        printf("decode    %.2f tokens per second (%zu tokens at depth %zu)\n",
               tokens_per_second(b->decode, b->decode_seconds), b->decode, b->depth);
        printf("weights   %s per token, read at %.2f GB/s\n", bytes, gigabytes_per_second(b));
        if (b->dispatches) printf("work      %zu dispatches per token\n", b->dispatches);
    }
    bench_print_experts(b);
    bench_parallel_print(&b->parallel);
    bench_switch_print(&b->switching);
    bench_train_print(&b->train);
    for (size_t i = 0; i < COUNT_OF(b->media); i++) bench_medium_print(&b->media[i], i == 1);
    printf("memory    %s peak, including the mapped file; %s private\n", peak, private);
    if (b->values->profile) bench_profile_print(&b->profile);
}

static gm_status bench_model(bench *b, const char *given, arena *memory, error *e) {
    model_argument chosen;
    gm_status      status = model_argument_resolve(given, memory, &chosen, e);
    if (status != GM_OK) return status;
    const double start = clock_seconds();
    status = engine_open(&b->values->engine, chosen.engine, !b->values->quiet && !b->values->json, &b->engine, e);
    b->load_seconds = clock_seconds() - start;
    if (status != GM_OK) return status;
    gm_engine_get_info(b->engine, &b->info);
    if (b->engine->denoiser && b->parallel.count)
        return fail(e, GM_BAD_ARGUMENT, "--parallel decodes token by token, which a diffusion model does not");
    TRY(bench_check_profile(b, e));
    progress_start(&b->bar, "measuring", PROGRESS_STEPS, !b->values->json && !b->values->quiet);
    status = bench_measure(b, e);
    progress_end(&b->bar);
    if (status != GM_OK || !b->values->profile) return status;
    char title[300];
    snprintf(title, sizeof title, "%s on %s", given, b->info.device);
    return bench_profile_draw(&b->profile, title, b->values->profile, e);
}

static int bench_run(void *values, const arguments *args) {
    const bench_values *v = values;
    bench               b = {
                      .values = v,
                      .prefill = v->prefill.given ? (size_t)v->prefill.value : 512,
                      .decode = v->decode.given ? (size_t)v->decode.value : 32,
                      .depth = (size_t)v->depth.value,
                      .repeats = v->repeats.given ? (size_t)v->repeats.value : 3,
                      .media = { { .size = (size_t)v->image.value }, { .size = (size_t)v->audio.value } },
    };
    arena memory = { 0 };
    error e = { 0 };
    int   code = EXIT_OK;
    if (!b.prefill && !b.decode && !b.media[0].size && !b.media[1].size && !v->train)
        return complain_usage("bench", "bench: with -p 0 and -n 0 there is nothing to measure");
    b.parallel.tokens = b.decode;
    b.parallel.depth = max_size(b.depth, 1);
    if (v->parallel && !b.decode) return complain_usage("bench", "bench: --parallel decodes tokens, and -n is 0");
    if (v->parallel && bench_parallel_read(v->parallel, &b.parallel, &e))
        return complain_usage("bench", "bench: %s", e.why);
    if (v->train && bench_train_read(v->train, &b.train, &e)) return complain_usage("bench", "bench: %s", e.why);
    interrupt_catch();
    const gm_status status = bench_model(&b, args->positional[0], &memory, &e);
    if (status != GM_OK) code = complain_error(&e);
    else if (v->json) code = bench_print_json(&b, args->positional[0]);
    else bench_print_text(&b, args->positional[0]);
    free(b.tokens);
    bench_profile_free(&b.profile);
    gm_engine_close(b.engine);
    arena_free(&memory);
    return code;
}

const command command_bench = {
    .name = "bench",
    .arguments = "MODEL",
    .summary = "measure speed and memory",
    .description =
        "Prints the speed of prefill (the prompt, computed in batches) and of decode (the answer, token by token) in "
        "tokens per second, with --image and --audio the time that the towers take, the weights read per decoded "
        "token and the resulting bandwidth, the time to open the model, and peak and private memory (without the "
        "mapped file). Speeds are the best of R runs after a warm-up. Of a diffusion model it measures a block of "
        "its canvas behind D tokens instead of decode: tokens per second, steps of the block and the time of a step; "
        "with random weights a block takes all of its steps. With --parallel, decodes several sequences at once, as "
        "a server does, and prints tokens per second in total and per sequence; if there are several adapters, the "
        "sequences take turns with them. With several adapters, also measures how long a session takes to change "
        "from one to the next. With --profile, one more run times every dispatch by the GPU's own clock, and prints "
        "a table of the kinds of dispatches with their share of the time, of bandwidth and of arithmetic, and draws "
        "the same as bars in an SVG file; with --parallel, it runs the last number of sequences. With --train, "
        "trains an adapter of rank 16 on all seven projections with random tokens, in sequences of up to 512, and "
        "prints tokens per second, memory, and how long the GPU was busy at most with what it was given at once.",
    .examples = "  gemmule bench gemma4:e2b\n"
                "  gemmule bench e2b.gguf -p 64 -n 64 --threads 2 --json\n"
                "  gemmule bench e2b.gguf -p 0 -n 32 -d 4096\n"
                "  gemmule bench e2b.gguf -p 0 -n 128 -d 128 --parallel 1,2,4,8\n"
                "  gemmule bench e2b.gguf -p 0 -n 0 --train 512,2048\n"
                "  gemmule bench diffusion.gguf -p 0 -d 1000 --steps 16\n"
                "  gemmule bench e2b.gguf --backend gpu -d 4096 --profile e2b.svg\n"
                "  gemmule bench e2b.gguf --mmproj e2b.mmproj.gguf -p 0 -n 0 --image 280 --audio 30\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 1,
    .most = 1,
    .values_size = sizeof(bench_values),
    .run = bench_run,
};
