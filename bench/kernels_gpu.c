/* Measures the GPU's kernels on the shapes of real models: their time, the bytes they move, and the rate.
 *
 *     kernels_gpu [--quick] [--json] [--gpu N] [--disable FEATURES] [--step N] [PATTERN]    only rows that contain PATTERN; --step: of
 *                 the attention by matrices, 1 short, 2 long (attention_kernels.c)
 *
 * A row is a piece of a model's graph, planned as the engine plans it, with the same fusion; its dispatches are counted. A command
 * list repeats the piece many times. Each repetition waits for the one before, as in a model, because all values are in one buffer.
 * We submit some lists, then twice as many, and subtract: this removes the cost of a submit and a wait. Recording overlaps with the
 * lists that run; if the GPU is faster than recording, as for the empty dispatch, recording is what we measure, as it is for a token.
 *
 * Repetitions alternate between weights and caches of 256 MB in total, because a large GPU's cache holds tens of MB. Bytes count the
 * weights as stored on the GPU, the visible keys and values, and the values read and written. --quick is for tests: every kernel
 * once, on small shapes; its times mean nothing. */

#include "kernels_gpu_rows.h"

#include "base/clock.h"
#include "base/json.h"
#include "gpu/experts.h"
#include "gpu/kernel_build.h"
#include "gpu/plan_binds.h"
#include "gpu/kernels.h"
#include "gpu/pipeline.h"
#include "gpu/sampler_kernels.h"
#include "model/synth_parts.h"
#include "session/records.h"
#include "text/sampler_settings.h"

#include <stdlib.h>
#include <string.h>

enum { SPREAD = 256 << 20, MOST_REPEATS = 256, SUBMITS = 6, ROUNDS = 5 };

typedef struct {
    gpu_backend gpu;
    bool        quick, json;
    const char *pattern;
    uint8_t    *matrices;
    float      *numbers;
    size_t      matrix_bytes, number_count;
    buffer      report;
    size_t      reported;
    error       e;
} bench;

/* ---- measuring ---------------------------------------------------------------------------------------------------------- */

/* The work to submit: a plan, or a list built here. */
typedef struct {
    gpu_plan        *plan;
    run_inputs       in;
    const gpu_words *list;
} job;

static gm_status wait_idle(bench *b) {
    gpu_host *h = b->gpu.host;
    while (!gpu_idle(h) && !gpu_host_problem(h, &b->e)) gpu_host_wait(h, 1000);
    return gpu_host_problem(h, &b->e);
}

static double seconds_of(bench *b, const job *j, size_t submits) {
    const double start = clock_seconds();
    for (size_t i = 0; i < submits && !b->e.status; i++) {
        while ((j->plan ? gpu_plan_submit(j->plan, &j->in, 0, &b->e)
                        : gpu_submit(b->gpu.host, j->list->data, j->list->count, &b->e)) == GM_AGAIN)
            gpu_host_wait(b->gpu.host, 100); /* the first time, its pipelines compile */
    }
    if (!b->e.status) wait_idle(b);
    return clock_seconds() - start;
}

/* Of one list. */
static double seconds_per_list(bench *b, const job *j) {
    const double first = seconds_of(b, j, 1); /* with what a first use costs */
    double       once = 1e9, twice = 1e9;
    if (b->quick) return first;
    for (size_t i = 0; i < ROUNDS && !b->e.status; i++) {
        const double a = seconds_of(b, j, SUBMITS), c = seconds_of(b, j, 2 * SUBMITS);
        if (a < once) once = a;
        if (c < twice) twice = c;
    }
    return twice > once ? (twice - once) / SUBMITS : 0;
}

/* Of one piece. */
typedef struct {
    double   seconds, dispatches, products;
    uint64_t bytes;
} figures;

static void print_row(bench *b, const char *name, figures f) {
    const double rate = f.seconds > 0 ? (double)f.bytes / f.seconds / 1e9 : 0;
    const double speed = f.seconds > 0 ? f.products / f.seconds / 1e9 : 0;
    if (!b->json) {
        printf("%-66s %9.2f us %5.1f dispatches %9.3f MB %8.1f GB/s", name, f.seconds * 1e6, f.dispatches,
               (double)f.bytes / 1e6, rate);
        if (f.products > 0) printf(" %9.1f GMAC/s", speed);
        printf("\n");
        fflush(stdout);
        return;
    }
    if (b->reported++) buffer_char(&b->report, ',');
    buffer_text(&b->report, "\n  {\"name\":");
    json_write_string(&b->report, str_of(name));
    buffer_printf(&b->report, ",\"microseconds\":%.3f,\"dispatches\":%.2f,\"bytes\":%llu,\"gigabytes_per_second\":%.2f",
                  f.seconds * 1e6, f.dispatches, (unsigned long long)f.bytes, rate);
    if (f.products > 0) buffer_printf(&b->report, ",\"gigamacs_per_second\":%.2f", speed);
    buffer_char(&b->report, '}');
}

/* ---- one row ------------------------------------------------------------------------------------------------------------ */

static void make_matrices(bench *b, quant_type type) {
    const quant_format *f = quant_format_of((uint32_t)type);
    const synth_tensor  blocks = { .info = { .type = type, .format = f }, .fill = FILL_MATRIX };
    const size_t        first = (size_t)1 << 22, whole = first / f->bytes * f->bytes; /* random; the rest repeats it */
    synth_random        random;
    synth_random_start(&random, 1, (uint64_t)type);
    synth_fill_data(&random, &blocks, b->matrices, 0, whole / f->bytes * f->block);
    for (size_t at = whole; at < b->matrix_bytes; at += whole)
        memcpy(b->matrices + at, b->matrices, min_size(whole, b->matrix_bytes - at));
}

/* Keys and values that a run finds: halves of a normal size. */
static void scene_make_caches(bench *b, scene *s) {
    const row     *r = &s->row;
    const uint64_t slots = r->window ? r->window + 256 : r->depth + r->tokens;
    const gpu_kv   shape = { .type = r->type == TYPE_F32 ? TYPE_F32 : TYPE_F16, .kv_heads = r->kv_heads, .head = r->n };
    const uint64_t bytes = round_up(gpu_kv_bytes(&shape, slots), 16);
    for (size_t i = 0; i < s->copies && !b->e.status; i++) {
        gpu_kv_layer *layer = &s->kv[i];
        *layer = (gpu_kv_layer){ 0, 0, shape.type, shape.kv_heads, shape.head, bytes };
        layer->k = gpu_buffer_new(b->gpu.host, bytes, &b->e);
        layer->v = gpu_buffer_new(b->gpu.host, bytes, &b->e);
        for (size_t which = 0; which < 2; which++) {
            while (!b->e.status &&
                   gpu_buffer_write(b->gpu.host, which ? layer->v : layer->k, 0, b->matrices, bytes, &b->e) == GM_AGAIN)
                gpu_host_wait(b->gpu.host, 1000);
        }
    }
}

static void scene_free_caches(bench *b, scene *s) {
    for (size_t i = 0; i < s->copies; i++) {
        if (s->kv[i].k) gpu_buffer_free(b->gpu.host, s->kv[i].k);
        if (s->kv[i].v) gpu_buffer_free(b->gpu.host, s->kv[i].v);
    }
}

static void scene_build(scene *s, size_t repeats) {
    const uint64_t ne[3] = { s->row.width, s->row.tokens, 1 };
    graph_free(&s->g);
    s->g = (graph){ 0 };
    s->bytes = s->held = 0;
    s->products = 0;
    s->x = s->g.result = graph_embed(&s->g, graph_weight(&s->g, "input", TYPE_F32, ne, s->numbers), 1);
    if (s->row.begin) s->row.begin(s);
    for (size_t i = 0; i < repeats; i++) s->row.piece(s, i);
}

/* So many pieces that a list takes about 3 ms on a large GPU, and so many weights in turn that none stays in its cache. */
static void choose_repeats(const bench *b, scene *s) {
    s->copies = 1;
    scene_build(s, 1);
    const double cost = 2e-6 + (double)s->bytes / 2e12 + s->products / 4e12;
    s->repeats = b->quick ? 1 : max_size(4, min_size(MOST_REPEATS, (size_t)(3e-3 / cost)));
    s->copies = b->quick ? 1 : min_size(min_size(MOST_COPIES, s->repeats), (size_t)(SPREAD / (s->held + 1)) + 1);
}

/* A list with `repeats` pieces: what it takes, of which the dispatches. */
static double plan_and_measure(bench *b, scene *s, size_t repeats, size_t *dispatches) {
    static const int32_t output = 0;
    static token_record  records[PATCHES];
    static int32_t       ids[PATCHES];
    gpu_plan            *plan = NULL;
    double               seconds = 0;
    for (int32_t i = 0; i < PATCHES; i++) ids[i] = i;
    scene_build(s, repeats);
    if (s->g.problem.status) fail(&b->e, s->g.problem.status, "%s", s->g.problem.why);
    if (repeats && !b->e.status) {
        while (gpu_backend_upload(&b->gpu, &s->g, &b->e) == GM_AGAIN) gpu_host_wait(b->gpu.host, 1000);
    }
    if (!b->e.status) gpu_plan_new(&b->gpu, &s->g, s->row.tokens, 1, s->kv, &plan, &b->e);
    if (plan) {
        const record_sequence sequence = { .window = s->row.window, .ring_slots = s->row.window + TOKENS };
        const run_inputs in = { .records = records, .tokens = s->row.tokens, .output_rows = &output, .outputs = 1 };
        records_of_text(records, 0, &sequence, ids, s->row.depth, s->row.tokens);
        *dispatches = gpu_plan_dispatches(plan);
        seconds = seconds_per_list(b, &(job){ .plan = plan, .in = in });
    }
    gpu_plan_free(plan);
    return seconds;
}

static gm_status run_row(bench *b, const row *r, quant_type *filled) {
    scene s = { .row = b->quick ? quick_row(*r) : *r, .gpu = &b->gpu, .matrices = b->matrices, .numbers = b->numbers };
    char  name[160];
    name_row(&s.row, name, sizeof name);
    if (b->pattern && !strstr(name, b->pattern)) return GM_OK;
    if (b->quick && r->tokens > LEARNED) return GM_OK; /* with 16 tokens these are rows that there are */
    if (*filled != s.row.type) make_matrices(b, s.row.type);
    *filled = s.row.type;
    choose_repeats(b, &s);
    if (s.row.kv_heads) scene_make_caches(b, &s);
    size_t       all = 0, before = 0;
    const double whole = b->e.status ? 0 : plan_and_measure(b, &s, s.repeats, &all), repeats = (double)s.repeats;
    figures      f = { .products = s.products, .bytes = s.bytes };
    const double rest = b->e.status ? 0 : plan_and_measure(b, &s, 0, &before); /* the input, and what begins */
    f.seconds = whole > rest ? (whole - rest) / repeats : 0;
    f.dispatches = (double)(all - before) / repeats;
    if (!b->e.status) print_row(b, name, f);
    scene_free_caches(b, &s);
    graph_free(&s.g);
    gpu_backend_clear(&b->gpu);
    return b->e.status;
}

/* ---- the sampler, which is no graph ------------------------------------------------------------------------------------- */

typedef struct {
    gpu_id   buffer;
    uint64_t bytes;
} range;

/* Returns how many dispatches a draw takes. */
static size_t record_sampler(bench *b, const sampler_shape *shape, const range ranges[DRAW_BINDS], size_t draws,
                             gpu_words *list, gpu_id groups[SAMPLER_KERNELS]) {
    gpu_kernel   kernels[SAMPLER_KERNELS];
    gpu_id       pipelines[SAMPLER_KERNELS];
    const size_t stages = sampler_kernels(shape, kernels);
    for (size_t i = 0; i < stages && !b->e.status; i++) {
        gpu_binding bindings[KERNEL_BINDS];
        for (size_t k = 0; k < kernels[i].bind_count; k++) {
            const range *bound = &ranges[kernels[i].binds[k]];
            bindings[k] = (gpu_binding){ (uint32_t)k, bound->buffer, 0, bound->bytes };
        }
        pipelines[i] = gpu_kernel_pipeline(b->gpu.host, &kernels[i], &b->e);
        if (pipelines[i]) groups[i] = gpu_group_new(b->gpu.host, pipelines[i], bindings, kernels[i].bind_count, &b->e);
    }
    gpu_words_begin(list);
    for (size_t n = 0; n < draws && !b->e.status; n++) {
        for (size_t i = 0; i < stages; i++)
            gpu_words_dispatch(list, pipelines[i], groups[i], kernels[i].x, kernels[i].y, kernels[i].z);
    }
    if (list->failed) fail_memory(&b->e, "a command list", list->count);
    return stages;
}

static gm_status run_sampler(bench *b, const char *name, const gm_sampling *sampling, uint32_t alternatives) {
    enum { RESULTS = 8, HISTORY = 512 };
    const uint32_t n = b->quick ? 8192 : SYNTH_VOCABULARY;
    if (b->pattern && !strstr(name, b->pattern)) return GM_OK;
    const sampler_settings settings = { sampling, n, NULL, 0, true };
    const sampler_shape    shape = {
           .vocabulary = n,
           .results = RESULTS,
           .history = HISTORY,
           .greedy = sampler_settings_greedy(&settings),
           .candidates = !sampler_settings_greedy(&settings) && !sampler_settings_steps(&settings),
           .edits = sampler_settings_edits(&settings),
           .steps = sampler_settings_steps(&settings),
           .logprobs = alternatives > 0,
    };
    const sampler_bytes bytes = sampler_bytes_of(&shape);
    const size_t        words = sampler_settings_words(&settings);
    uint32_t           *record = calloc(words, sizeof *record);
    if (!record) return fail_memory(&b->e, "the sampler's settings", words * sizeof *record);
    sampler_settings_write(&settings, record, &b->e);
    record[SAMPLER_ALTERNATIVES] = alternatives;
    range ranges[DRAW_BINDS] = { [DRAW_LOGITS] = { 0, n * sizeof(float) },
                                 [DRAW_SETTINGS] = { 0, SAMPLER_REST * sizeof *record },
                                 [DRAW_REST] = { 0, 16 },
                                 [DRAW_FIXED] = { 0, bytes.fixed },
                                 [DRAW_COUNTS] = { 0, bytes.counts },
                                 [DRAW_BLOCKS] = { 0, bytes.blocks },
                                 [DRAW_CANDIDATES] = { 0, bytes.candidates },
                                 [DRAW_HEADER] = { 0, bytes.header },
                                 [DRAW_CUTS] = { 0, bytes.cuts },
                                 [DRAW_PARTS] = { 0, bytes.parts },
                                 [DRAW_RECORD] = { 0, bytes.record },
                                 [DRAW_STATE] = { 0, bytes.state },
                                 [DRAW_RUN] = { 0, 4 * (RUN_HEADER_WORDS + RECORD_WORDS) } };
    for (size_t i = 0; i < COUNT_OF(ranges) && !b->e.status; i++)
        ranges[i].buffer = gpu_buffer_new(b->gpu.host, round_up(ranges[i].bytes, 16), &b->e);
    if (!b->e.status)
        gpu_buffer_write(b->gpu.host, ranges[DRAW_LOGITS].buffer, 0, b->numbers, ranges[DRAW_LOGITS].bytes, &b->e);
    if (!b->e.status)
        gpu_buffer_write(b->gpu.host, ranges[DRAW_SETTINGS].buffer, 0, record, ranges[DRAW_SETTINGS].bytes, &b->e);
    const size_t draws = b->quick ? 1 : 32;
    gpu_words    list = { 0 };
    gpu_id       groups[SAMPLER_KERNELS] = { 0 };
    size_t       stages = 0;
    if (!b->e.status) stages = record_sampler(b, &shape, ranges, draws, &list, groups);
    if (!b->e.status) {
        const double seconds = seconds_per_list(b, &(job){ .list = &list }) / (double)draws;
        print_row(b, name, (figures){ .seconds = seconds, .dispatches = (double)stages, .bytes = n * sizeof(float) });
    }
    for (size_t i = 0; i < SAMPLER_KERNELS; i++) gpu_group_free(b->gpu.host, groups[i]);
    for (size_t i = 0; i < COUNT_OF(ranges); i++) gpu_buffer_free(b->gpu.host, ranges[i].buffer);
    free(list.data);
    free(record);
    return b->e.status;
}

static gm_status run_samplers(bench *b) {
    const gm_sampling greedy = { .top_p = 1, .typical_p = 1, .repetition_penalty = 1 };
    gm_sampling       open = greedy, usual, penalised, repeated, hot, top_k, top_p, min_p, typical, many, all;
    open.temperature = 1;
    usual = hot = top_k = top_p = min_p = typical = many = open;
    usual.top_k = top_k.top_k = 64;
    usual.top_p = top_p.top_p = many.top_p = 0.95f;
    penalised = usual;
    penalised.repetition_penalty = 1.1f;
    penalised.penalty_window = 64;
    repeated = open;
    repeated.repetition_penalty = 1.1f;
    repeated.frequency_penalty = repeated.presence_penalty = 0.5f;
    repeated.penalty_window = 64;
    hot.temperature = 2;
    min_p.min_p = 0.01f;
    typical.typical_p = 0.9f;
    many.top_k = 5000;
    all = many;
    all.temperature = 2;
    all.min_p = 0.01f;
    all.typical_p = 0.9f;
    const struct {
        const char        *name;
        const gm_sampling *sampling;
        uint32_t           alternatives;
    } samplers[] = { { "sampler, greedy", &greedy, 0 },
                     { "sampler, greedy, 5 alternatives", &greedy, 5 },
                     { "sampler, top 64, top_p 0.95", &usual, 0 },
                     { "sampler, top 64, top_p 0.95, penalties", &penalised, 0 },
                     { "sampler, temperature 1 alone", &open, 0 },
                     { "sampler, temperature 2 alone", &hot, 0 },
                     { "sampler, temperature 1, penalties", &repeated, 0 },
                     { "sampler, top 64", &top_k, 0 },
                     { "sampler, top_p 0.95", &top_p, 0 },
                     { "sampler, min_p 0.01", &min_p, 0 },
                     { "sampler, typical_p 0.9", &typical, 0 },
                     { "sampler, top 5000, top_p 0.95", &many, 0 },
                     { "sampler, all cuts, temperature 2", &all, 0 } };
    for (size_t i = 0; i < COUNT_OF(samplers) && !b->e.status; i++)
        run_sampler(b, samplers[i].name, samplers[i].sampling, samplers[i].alternatives);
    return b->e.status;
}

/* ---- the slots of experts: a dispatch that plans have only if experts are cached ------------------------------------------- */

/* `ahead`: what a router that was asked early chose; this row is guarded, as most kernels of such plans are. */
static gm_status run_slots(bench *b, uint32_t tokens, bool ahead) {
    enum { REPEATS = 64 };
    const uint32_t repeats = b->quick ? 1 : REPEATS, pairs = tokens * USED;
    const tensor   weight = { .ne = { 1, 1, EXPERTS } }, logits = { .ne = { EXPERTS, 1, 1 } };
    op             product = { .used = USED };
    gpu_kernel     kernel;
    gpu_words      list = { 0 };
    char           name[64];
    snprintf(name, sizeof name, "slots of experts%s, %u token%s", ahead ? " ahead" : "", tokens,
             tokens == 1 ? "" : "s");
    if (b->pattern && !strstr(name, b->pattern)) return GM_OK;
    product.in[FUSED_W0] = (tensor *)(ahead ? &logits : &weight);
    TRY((ahead ? gpu_ahead_kernel : gpu_slots_kernel)(&product, &kernel, &b->e));
    kernel.guarded = ahead;
    if (ahead) kernel_bind(&kernel, BIND_GUARD);
    /* routes, slots, run, table, report; and which of these the kernel binds */
    static const uint8_t kinds[2][5] = { { 0, 1, 2, 3, 4 }, { 0, 4, 2, 3, 2 } };
    range                ranges[] = { { 0, 2 * pairs * sizeof(uint32_t) },
                                      { 0, 2 * pairs * sizeof(uint32_t) },
                                      { 0, 4 * (RUN_HEADER_WORDS + RECORD_WORDS * tokens) },
                                      { 0, (EXPERT_HEADER + 2 * EXPERTS) * sizeof(uint32_t) },
                                      { 0, EXPERT_REPORT_WORDS * sizeof(uint32_t) } };
    gpu_binding          bindings[COUNT_OF(ranges)];
    uint32_t            *routes = calloc(2 * pairs, sizeof *routes);
    if (!routes) return fail_memory(&b->e, "routes", ranges[0].bytes);
    for (uint32_t i = 0; i < pairs; i++) routes[i / USED * 2 * USED + i % USED] = i * 29 % EXPERTS;
    for (uint32_t i = 0; i < COUNT_OF(ranges) && !b->e.status; i++) {
        ranges[i].buffer = gpu_buffer_new(b->gpu.host, round_up(ranges[i].bytes, 16), &b->e);
    }
    for (uint32_t i = 0; i < COUNT_OF(ranges); i++) {
        const range *r = &ranges[kinds[ahead][i]];
        bindings[i] = (gpu_binding){ i, r->buffer, 0, r->bytes };
    }
    if (!b->e.status) gpu_buffer_write(b->gpu.host, ranges[0].buffer, 0, routes, ranges[0].bytes, &b->e);
    if (!b->e.status) gpu_buffer_write(b->gpu.host, ranges[2].buffer, 0, &tokens, sizeof tokens, &b->e);
    const gpu_id pipeline = b->e.status ? 0 : gpu_kernel_pipeline(b->gpu.host, &kernel, &b->e);
    const gpu_id group = pipeline ? gpu_group_new(b->gpu.host, pipeline, bindings, COUNT_OF(bindings), &b->e) : 0;
    gpu_words_begin(&list);
    for (uint32_t i = 0; i < repeats && group; i++) gpu_words_dispatch(&list, pipeline, group, 1, 1, 1);
    if (list.failed) fail_memory(&b->e, "a command list", list.count);
    if (!b->e.status) {
        const double seconds = seconds_per_list(b, &(job){ .list = &list }) / repeats;
        print_row(b, name, (figures){ .seconds = seconds, .dispatches = 1, .bytes = 2 * ranges[0].bytes });
    }
    gpu_group_free(b->gpu.host, group);
    for (size_t i = 0; i < COUNT_OF(ranges); i++) gpu_buffer_free(b->gpu.host, ranges[i].buffer);
    free(list.data);
    free(routes);
    return b->e.status;
}

/* ---- the program -------------------------------------------------------------------------------------------------------- */

static void begin_report(bench *b) {
    const gpu_info *info = gpu_host_info(b->gpu.host);
    if (!b->json) {
        printf("%s (%s), driver %s; subgroups %u to %u%s%s\n", info->name, info->backend, info->driver,
               info->subgroup_min, info->subgroup_max, info->dot4 ? ", dot4" : "", info->f16 ? ", f16" : "");
        return;
    }
    buffer_text(&b->report, "{\"device\":");
    json_write_string(&b->report, str_of(info->name));
    buffer_text(&b->report, ",\"driver\":");
    json_write_string(&b->report, str_of(info->driver));
    buffer_printf(&b->report, ",\"subgroups\":%s,\"dot4\":%s,\"f16\":%s,\"quick\":%s,\"rows\":[",
                  info->subgroups ? "true" : "false", info->dot4 ? "true" : "false", info->f16 ? "true" : "false",
                  b->quick ? "true" : "false");
}

static gm_status run_all(bench *b) {
    quant_type filled = TYPE_COUNT;
    b->matrix_bytes = b->quick ? (size_t)64 << 20 : (size_t)400 << 20;
    b->number_count = b->quick ? (size_t)4 << 20 : (size_t)12 << 20; /* the input of a picture is the longest */
    b->matrices = malloc(b->matrix_bytes);
    b->numbers = malloc(b->number_count * sizeof *b->numbers);
    if (!b->matrices || !b->numbers) return fail_memory(&b->e, "random weights", b->matrix_bytes);
    for (size_t i = 0; i < b->number_count; i++) b->numbers[i] = (float)(i * 2654435761u % 65536) / 32768 - 1;
    begin_report(b);
    for (size_t i = 0; i < COUNT_OF(all_rows) && !b->e.status; i++) run_row(b, &all_rows[i], &filled);
    if (!b->e.status) run_samplers(b);
    if (!b->e.status) run_slots(b, 1, false);
    if (!b->e.status) run_slots(b, 256, false);
    if (!b->e.status) run_slots(b, 4, true);
    if (b->json && !b->e.status) printf("%s\n]}\n", b->report.data);
    return b->e.status;
}

int main(int argc, char **argv) {
    bench       b = { .quick = false };
    gpu_options options = { .adapter = -1 };
    uint32_t    step = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) b.quick = true;
        else if (!strcmp(argv[i], "--json")) b.json = true;
        else if (!strcmp(argv[i], "--gpu") && i + 1 < argc) options.adapter = (int32_t)strtol(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--disable") && i + 1 < argc) options.disable = argv[++i];
        else if (!strcmp(argv[i], "--step") && i + 1 < argc) step = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (argv[i][0] != '-' && !b.pattern) b.pattern = argv[i];
        else {
            fprintf(stderr,
                    "usage: kernels_gpu [--quick] [--json] [--gpu N] [--disable FEATURES] [--step N] [PATTERN]\n");
            return 3;
        }
    }
    if (!gpu_backend_open(&b.gpu, &options, false, &b.e)) {
        ((gpu_info *)gpu_host_info(b.gpu.host))->attention_step =
            step; /* the only one who reads it is the choice of kernels */
        run_all(&b);
    }
    if (b.e.status) fprintf(stderr, "kernels_gpu: %s\n", b.e.why);
    gpu_backend_close(&b.gpu);
    free(b.matrices);
    free(b.numbers);
    buffer_free(&b.report);
    return b.e.status ? 1 : 0;
}
