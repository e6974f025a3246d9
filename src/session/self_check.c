/* Running the checks of check_list.c, on the GPU and here, and comparing what comes out. */

#include "session/self_check_parts.h"

#include "base/clock.h"
#include "gpu/kernels.h"
#include "session/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_SECONDS 0.02 /* that a step may spend on handing kernels to the compiler */

/* In a batch, these tokens see each other in sliding layers, as those of an image do. */
enum { BLOCK_FIRST = 3, BLOCK_COUNT = 6 };

/* ---- life ---------------------------------------------------------------------------------------------------------------- */

gm_status self_check_new(gpu_host *host, const graph *g, const model_config *config, const self_check_options *options,
                         self_check **out, error *e) {
    *out = NULL;
    self_check *c = calloc(1, sizeof *c);
    if (!c) return fail_memory(e, "the self-check", sizeof *c);
    c->host = host;
    c->gpu = (gpu_backend){ .host = host, .precise = options->precise };
    c->kv_type = options->kv;
    c->eps = (options->tower ? options->tower->config : config)->eps;
    c->tower = options->tower ? options->tower->name : NULL;
    gm_status status = cpu_backend_open(&c->cpu, "scalar", 1, true, e);
    if (!status) status = check_list_make(c, g, config, options, e);
    if (!status && !options->checked && !options->tower) status = check_draws_new(config, options->quick, &c->draws, e);
    if (status) self_check_free(c);
    else *out = c;
    return status;
}

static void close_check(self_check *c) {
    if (c->ticket) gpu_ticket_done(c->host, c->ticket);
    reads_drop(c->reads, c->blocks_ticket);
    for (size_t i = 0; i < COUNT_OF(c->blocks); i++) {
        free(c->blocks[i]);
        c->blocks[i] = NULL;
    }
    c->blocks_ticket = 0;
    c->blocks_read = 0;
    check_draws_close(c->draws);
    gpu_plan_free(c->plan);
    if (c->gpu_kv.k) gpu_buffer_free(c->host, c->gpu_kv.k);
    if (c->gpu_kv.v) gpu_buffer_free(c->host, c->gpu_kv.v);
    gpu_backend_clear(&c->gpu);
    gpu_backend_keep_to(&c->gpu, NULL);
    gpu_budget_free(&c->budget);
    c->budget = (gpu_budget){ 0 };
    cpu_plan_free(c->reference);
    graph_free(&c->g); /* the CPU's cache lies in its arena */
    c->g = (graph){ 0 };
    c->plan = NULL;
    c->reference = NULL;
    c->gpu_kv = (gpu_kv_layer){ 0 };
    c->ticket = 0;
    c->run = 0;
    c->open = c->uploaded = c->submitted = false;
}

void self_check_free(self_check *c) {
    if (!c) return;
    close_check(c);
    check_draws_free(c->draws);
    cpu_backend_close(&c->cpu);
    gpu_kernel_list_free(&c->kernels);
    free(c->checks);
    free(c->missed);
    free(c);
}

void self_check_read_by(self_check *c, reads *r) { c->reads = r; }

void self_check_spoil_by(self_check *c, self_check_spoil *spoil, void *user) {
    c->spoil = spoil;
    c->spoil_user = user;
}

bool self_check_inexact(const self_check *c) { return c && c->inexact; }

const char *self_check_name(const self_check *c, size_t index) {
    return index < c->count ? c->checks[index].what : check_draws_name(c->draws, index - c->count);
}

const char *self_check_missed(const self_check *c, size_t index) {
    return index < c->missed_count ? c->missed[index] : NULL;
}

/* ---- running ------------------------------------------------------------------------------------------------------------- */

static gm_status make_caches(self_check *c, const check *k, error *e) {
    gpu_kv_layer   kv = check_cache(c->kv_type, k);
    const uint64_t slots = check_slots(k);
    const uint64_t row = quant_row_bytes(quant_format_of(c->kv_type), (uint64_t)k->kv_heads * k->head);
    uint8_t       *rows = arena_array(&c->g.memory, 2 * slots, (size_t)row);
    if (!rows) return fail_memory(e, "the self-check's keys and values", 2 * slots * row);
    c->cpu_kv =
        (kv_layer){ .k = rows, .v = rows + slots * row, .type = c->kv_type, .kv_heads = k->kv_heads, .head = k->head };
    kv.k = gpu_buffer_new(c->host, kv.bytes, e);
    kv.v = kv.k ? gpu_buffer_new(c->host, kv.bytes, e) : 0;
    c->gpu_kv = kv;
    if (!kv.v) return e->status;
    return GM_OK;
}

static uint64_t matrix_bytes(const check_matrix *w) {
    return quant_row_bytes(quant_format_of(w->type), w->k) * w->rows * w->experts;
}

/* Where the bytes of a matrix are. They are copied if they must be repeated, and if the two matrices of a check are one weight:
 * the graph would take them for one. */
static gm_status find_blocks(self_check *c, const check *k, size_t which, const void *data[2], error *e) {
    const check_matrix *w = &k->products[which].w;
    const uint64_t      bytes = matrix_bytes(w), here = min_size(bytes, w->bytes);
    const void         *from = w->data ? w->data : c->blocks[which];
    data[which] = from;
    if (bytes <= w->bytes && (!which || from != data[0])) return GM_OK;
    if (!c->blocks[which]) c->blocks[which] = malloc((size_t)bytes);
    if (!c->blocks[which]) return fail_memory(e, "the self-check's blocks", bytes);
    if (w->data) memcpy(c->blocks[which], w->data, (size_t)here);
    for (uint64_t at = here; at < bytes; at++) c->blocks[which][at] = c->blocks[which][at - here];
    data[which] = c->blocks[which];
    return GM_OK;
}

static gm_status open_check(self_check *c, const check *k, error *e) {
    const void *data[2] = { NULL, NULL };
    uint32_t    most = 1;
    c->open = true;
    c->position = k->start;
    for (size_t i = 0; i < k->product_count; i++) { TRY(find_blocks(c, k, i, data, e)); }
    for (size_t i = 0; i < k->run_count; i++) most = (uint32_t)max_size(most, k->runs[i].tokens);
    most = (uint32_t)min_size(most, DISTINCT_TOKENS);
    TRY(check_build(c, k, data, false, &c->g, e));
    if (is_attention(k->o.kind)) TRY(make_caches(c, k, e));
    if (k->cached) {
        const budget_options slots = { .slots = (uint32_t)k->products[0].w.experts - 1 };
        TRY(gpu_budget_make(&c->budget, &c->g, &slots, e));
        gpu_backend_keep_to(&c->gpu, &c->budget);
    }
    TRY(gpu_backend_find_weights(&c->gpu, &c->g, e));
    check_choose_kernels(&c->gpu, k, data);
    return cpu_plan_new(&c->cpu, &c->g, most, most, &c->reference, e);
}

static size_t rows_of_table(const check *k) {
    return k->o.kind == OP_EMBED ? (size_t)k->products[0].w.rows : TABLE_ROWS;
}

/* Outputs of a run: of its last token, or of all. */
static size_t outputs_of(const check_run *run) { return run->outputs > 1 ? run->tokens : 1; }

/* Makes each token a sequence of its own. Such a token does not see what the others store: only the first one stores, and sees it. */
static void make_lone_rows(token_record *records, uint32_t tokens) {
    for (uint32_t t = 0; t < tokens; t++) {
        token_record *r = &records[t];
        r->span_first = t;
        r->span_count = 1;
        if (!t) continue;
        r->full_last = r->sliding_last = r->at - 2 * t;
        r->sliding_first -= (uint32_t)min_size(r->sliding_first, 2 * t);
        r->at = RUN_NOWHERE;
    }
}

static void make_records(self_check *c, const check *k) {
    const check_run      *run = &k->runs[c->run];
    const record_sequence sequence = { .window = k->window, .ring_slots = k->window + KV_SLACK };
    int32_t               ids[MOST_TOKENS];
    for (uint32_t t = 0; t < run->tokens; t++) {
        ids[t] = (int32_t)((t % DISTINCT_TOKENS * 7 + c->run * 3 + 1) % rows_of_table(k));
        c->rows[t] = (int32_t)(run->outputs > 1 ? t : run->tokens - 1);
    }
    records_of_text(c->records, 0, &sequence, ids, (size_t)c->position, run->tokens);
    for (uint32_t t = 0; t < run->tokens && k->o.by_position; t++) c->records[t].position = (uint32_t)ids[t];
    if (run->rows) make_lone_rows(c->records, run->tokens);
    if (run->class > GPU_DECODE_TOKENS && !run->rows) records_join_block(c->records + BLOCK_FIRST, BLOCK_COUNT, false);
}

static gm_status submit_run(self_check *c, const check *k, error *e) {
    const check_run *run = &k->runs[c->run];
    make_records(c, k);
    if (!c->plan && run->rows) TRY(gpu_plan_new_rows(&c->gpu, &c->g, run->class, &c->gpu_kv, &c->plan, e));
    if (!c->plan) TRY(gpu_plan_new(&c->gpu, &c->g, run->class, run->outputs, &c->gpu_kv, &c->plan, e));
    if (!c->ticket) c->ticket = gpu_ticket_new(c->host);
    const run_inputs in = {
        .records = c->records, .tokens = run->tokens, .output_rows = c->rows, .outputs = outputs_of(run)
    };
    const gm_status status = gpu_plan_submit(c->plan, &in, c->ticket, e);
    c->submitted = !status;
    return status;
}

/* ---- comparing ----------------------------------------------------------------------------------------------------------- */

/* How far a value may be off, as a part of the root mean square of all: 8-bit activations round each input to 1/127 of its
 * group's largest; f16 sums, and keys that fall to the other side of a rounding, are far closer. */
static double tolerance_of(const self_check *c, const check *k) {
    if (c->gpu.precise) return 2e-3;
    return k->o.kind == OP_PRODUCTS || k->o.kind == OP_CANVAS_HEAD ? 0.12 : 2e-2;
}

/* The optional features that are in use, as --gpu-disable takes them. */
static const char *features_in_use(const gpu_info *info, char out[80]) {
    snprintf(out, 80, "%s%s%s%s", info->subgroups ? ",subgroups" : "", info->f16 ? ",f16" : "",
             info->dot4 ? ",dot4" : "", info->subgroup_matrix ? ",subgroup_matrix" : "");
    return *out ? out + 1 : out;
}

gm_status check_refuse(const self_check *c, const char *what, float expected, float found, error *e) {
    const gpu_info *info = gpu_host_info(c->host);
    char            list[80];
    const char     *features = features_in_use(info, list);
    return fail(e, GM_NO_DEVICE,
                "the GPU '%.60s' (driver %.60s) computes %s%s%s%s wrongly: expected %g, found %g%s%s%s", info->name,
                *info->driver ? info->driver : "unknown", c->tower ? "the " : "", c->tower ? c->tower : "",
                c->tower ? " tower's " : "", what, (double)expected, (double)found, *features ? "; --gpu-disable " : "",
                features, *features ? " may help" : "");
}

/* Row `i` of what was found must be row `i` of the distinct tokens. */
static gm_status compare(self_check *c, const check *k, const float *expected, size_t distinct, const float *found,
                         size_t rows, error *e) {
    const size_t n = (size_t)c->g.result->token_stride;
    double       squares = 0;
    for (size_t i = 0; i < distinct * n; i++) squares += (double)expected[i] * expected[i];
    const double most = tolerance_of(c, k) * sqrt(squares / (double)(distinct * n));
    for (size_t i = 0; i < rows * n; i++) {
        const float wanted = expected[i / n % distinct * n + i % n];
        if (found[i] != wanted && gpu_host_info(c->host)->exact) c->inexact = true;
        if (!(fabs((double)found[i] - wanted) <= most))
            return check_refuse(c, k->what, wanted, found[i], e); /* or NaN */
    }
    return GM_OK;
}

/* The run's results are here: the same on the CPU, and compared. */
static gm_status finish_run(self_check *c, const check *k, const void *data, uint64_t bytes, error *e) {
    const check_run *run = &k->runs[c->run];
    const bool       outputs = c->g.result->axis == AXIS_OUTPUTS;
    const size_t     tokens = min_size(run->tokens, DISTINCT_TOKENS), rows = outputs ? outputs_of(run) : run->tokens;
    const size_t     n = rows * (size_t)c->g.result->token_stride;
    const int32_t    last = (int32_t)((run->tokens - 1) % DISTINCT_TOKENS);
    const cpu_inputs in = { .run = { .records = c->records,
                                     .tokens = tokens,
                                     .output_rows = run->outputs > 1 ? c->rows : &last,
                                     .outputs = run->outputs > 1 ? tokens : 1 },
                            .kv = &c->cpu_kv };
    if (bytes < n * sizeof(float))
        return fail(e, GM_IO, "the GPU returned %llu bytes in the self-check, expected %zu", (unsigned long long)bytes,
                    n * sizeof(float));
    float *found = malloc(n * sizeof *found);
    if (!found) return fail_memory(e, "the self-check's results", n * sizeof *found);
    memcpy(found, data, n * sizeof *found);
    while (cpu_plan_step(c->reference, &in, INFINITY) == GM_AGAIN) {}
    const float *expected = cpu_plan_result(c->reference);
    const size_t distinct = outputs ? in.run.outputs : tokens;
    if (c->spoil) c->spoil(c->spoil_user, k->what, found, n, expected, distinct * (size_t)c->g.result->token_stride);
    const gm_status status = compare(c, k, expected, distinct, found, rows, e);
    free(found);
    gpu_ticket_done(c->host, c->ticket);
    c->ticket = 0;
    c->submitted = false;
    gpu_plan_free(c->plan);
    c->plan = NULL;
    c->position += run->tokens;
    return status;
}

/* Blocks that are in the source only come into memory. */
static gm_status read_blocks(self_check *c, const check *k, size_t which, error *e) {
    const check_matrix *w = &k->products[which].w;
    const uint64_t      bytes = min_size(matrix_bytes(w), w->bytes);
    if (!c->reads || bytes > READ_BYTES_MOST) return fail(e, GM_IO, "tensor '%s' is not in memory", w->name);
    if (!c->blocks[which]) {
        c->blocks[which] = malloc((size_t)matrix_bytes(w));
        if (!c->blocks[which]) return fail_memory(e, "the self-check's blocks", matrix_bytes(w));
        c->blocks_ticket = 0;
    }
    if (!c->blocks_ticket)
        c->blocks_ticket = reads_ask(
            c->reads,
            &(read_order){ .from = w->from, .offset = w->place, .length = bytes, .memory = c->blocks[which] });
    if (!c->blocks_ticket) return GM_AGAIN;
    const gm_status status = reads_take(c->reads, c->blocks_ticket, e);
    if (status == GM_AGAIN) return status;
    c->blocks_ticket = 0;
    if (!status) c->blocks_read = which + 1;
    return status;
}

/* The runs of one check. */
static gm_status step_check(self_check *c, const check *k, error *e) {
    for (size_t i = c->blocks_read; i < k->product_count && !c->open; i++) {
        if (k->products[i].w.data || !k->products[i].w.from) continue;
        const gm_status status = read_blocks(c, k, i, e);
        if (status) return status;
    }
    if (!c->open) TRY(open_check(c, k, e));
    if (!c->uploaded) {
        const gm_status status = gpu_backend_upload(&c->gpu, &c->g, e);
        if (status) return status;
        c->uploaded = true;
    }
    for (; c->run < k->run_count; c->run++) {
        uint64_t        bytes = 0;
        const gm_status status = c->submitted ? GM_OK : submit_run(c, k, e);
        if (status) return status;
        const void *data = gpu_ticket_data(c->host, c->ticket, &bytes);
        TRY(gpu_host_problem(c->host, e));
        if (!data) return GM_AGAIN;
        TRY(finish_run(c, k, data, bytes, e));
    }
    return GM_OK;
}

size_t self_check_kernels_left(const self_check *c) { return c->kernels.count - c->kernels.started; }

gm_status self_check_step(self_check *c, error *e) {
    const gm_status started = gpu_kernel_list_compile(&c->kernels, c->host, clock_seconds() + START_SECONDS, e);
    if (started) return started;
    for (; c->next < c->count; c->next++) {
        const gm_status status = step_check(c, &c->checks[c->next], e);
        if (status) return status;
        close_check(c);
    }
    return check_draws_step(c, e);
}
