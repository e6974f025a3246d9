#include "gpu/generator.h"

#include "gpu/plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    GPU_ALIGNMENT = 256,
    LISTS = 8,
    RESULTS = 1
}; /* each list reads its own result before the next list overwrites it */

/* The dispatches of the plan and of the sampler, and a read of the result. */
typedef struct {
    gpu_words     words;
    sampler_shape shape;
    gpu_id        groups[SAMPLER_KERNELS];
    size_t        group_count, end_dispatch, at_ticket, dispatches;
    uint32_t      rebinds; /* the state of the plan's bind groups that it has copied */
} step_list;

struct gpu_generator {
    gpu_plan     *plan;
    sampler_shape shape;            /* greedy, edits and logprobs are set for each list */
    gpu_id        memory, settings; /* what the sampler writes; read-only data needs its own buffer */
    gpu_binding   ranges[DRAW_BINDS];
    step_list     lists[LISTS]; /* the kinds of draws seen last; in the order of their places */
    size_t        next_list;    /* the place of the next one */
    step_list    *list;         /* NULL: not begun yet */
    bool          begun;
    uint64_t      aside;     /* where in `memory` the next step's token is kept while others use the plan */
    bool          set_aside; /* it is there, not in the plan's buffers */
    token_record  token;     /* the token with which it began, */
    uint32_t      steps;     /* and the steps submitted since */
    uint32_t      tickets[GENERATOR_STEPS]; /* a ring */
    size_t        oldest, flying;
};

/* ---- creating and freeing ---- */

static gm_status generator_lay_out(gpu_generator *g, error *e) {
    const gpu_plan     *p = g->plan;
    const sampler_bytes bytes = sampler_bytes_of(&g->shape);
    const gpu_binding   ranges[DRAW_BINDS] = {
        [DRAW_LOGITS] = { 0, p->memory, gpu_plan_result_offset(p), g->shape.vocabulary * sizeof(float) },
        [DRAW_FIXED] = { .bytes = bytes.fixed },
        [DRAW_COUNTS] = { .bytes = bytes.counts },
        [DRAW_BLOCKS] = { .bytes = bytes.blocks },
        [DRAW_CANDIDATES] = { .bytes = bytes.candidates },
        [DRAW_HEADER] = { .bytes = bytes.header },
        [DRAW_CUTS] = { .bytes = bytes.cuts },
        [DRAW_PARTS] = { .bytes = bytes.parts },
        [DRAW_RECORD] = { .bytes = bytes.record },
        [DRAW_STATE] = { .bytes = bytes.state },
        [DRAW_RUN] = { 0, p->run, 0, plan_run_bytes(1) },
    };
    uint64_t end = 0;
    memcpy(g->ranges, ranges, sizeof ranges);
    for (size_t i = DRAW_FIXED; i <= DRAW_STATE; i++) {
        g->ranges[i].offset = end;
        end = round_up(end + g->ranges[i].bytes, GPU_ALIGNMENT);
    }
    g->aside = end;
    end += plan_run_bytes(1);
    g->memory = gpu_buffer_new(p->backend->host, end, e);
    for (size_t i = DRAW_FIXED; i <= DRAW_STATE; i++) g->ranges[i].buffer = g->memory;
    return g->memory ? GM_OK : e->status;
}

sampler_shape gpu_generator_shape(size_t vocabulary, size_t context) {
    sampler_shape shape = { .vocabulary = (uint32_t)vocabulary, .results = RESULTS, .history = 1 };
    while (shape.history < context && shape.history < 1u << 31)
        shape.history *= 2; /* a power of two, so that sessions of similar size share pipelines */
    return shape;
}

gm_status gpu_generator_new(gpu_plan *p, size_t vocabulary, size_t context, gpu_generator **out, error *e) {
    *out = NULL;
    if (p->tokens != 1 || p->outputs != 1)
        return fail(e, GM_BAD_ARGUMENT, "a generator needs a plan for one token, not for %u", p->tokens);
    gpu_generator *g = calloc(1, sizeof *g);
    if (!g) return fail_memory(e, "a generator", sizeof *g);
    g->plan = p;
    g->shape = gpu_generator_shape(vocabulary, context);
    const gm_status status = generator_lay_out(g, e);
    if (status) gpu_generator_free(g);
    else *out = g;
    return status;
}

static void step_list_free(gpu_generator *g, step_list *list) {
    for (size_t i = 0; i < list->group_count; i++) gpu_group_free(g->plan->backend->host, list->groups[i]);
    free(list->words.data);
    *list = (step_list){ 0 };
}

static void generator_free_lists(gpu_generator *g) {
    for (size_t i = 0; i < LISTS; i++) step_list_free(g, &g->lists[i]);
    g->list = NULL;
}

void gpu_generator_free(gpu_generator *g) {
    if (!g) return;
    gpu_host *h = g->plan->backend->host;
    gpu_generator_drop(g);
    generator_free_lists(g);
    if (g->memory) gpu_buffer_free(h, g->memory);
    if (g->settings) gpu_buffer_free(h, g->settings);
    free(g);
}

/* ---- lists ---- */

/* The settings include the biases, so they may be longer than the last time. */
static gm_status generator_reserve_settings(gpu_generator *g, uint64_t bytes, error *e) {
    gpu_host *h = g->plan->backend->host;
    if (bytes <= g->ranges[DRAW_SETTINGS].bytes) return GM_OK;
    const gpu_id larger = gpu_buffer_new(h, 2 * bytes, e);
    if (!larger) return e->status;
    if (g->settings) gpu_buffer_free(h, g->settings);
    generator_free_lists(g); /* they bind the old buffer */
    g->settings = larger;
    g->ranges[DRAW_SETTINGS] = (gpu_binding){ 0, larger, 0, 2 * bytes };
    return GM_OK;
}

static gm_status generator_record(gpu_generator *g, step_list *list, const generator_start *start, error *e) {
    gpu_plan     *p = g->plan;
    gpu_kernel    kernels[SAMPLER_KERNELS];
    sampler_shape shape = g->shape;
    shape.greedy = start->greedy;
    shape.edits = start->edits;
    shape.steps = start->steps;
    shape.logprobs = start->logprobs;
    const size_t count = sampler_kernels(&shape, kernels);
    *list = (step_list){ .shape = shape, .dispatches = p->dispatches + count, .rebinds = p->rebinds };
    gpu_words_begin(&list->words);
    gpu_words_append(&list->words, p->words.data + p->first_dispatch, p->end_dispatch - p->first_dispatch);
    gm_status status = GM_OK;
    for (size_t i = 0; i < count && !status; i++) {
        const gpu_id group = plan_dispatch(p, &list->words, &kernels[i], g->ranges, e);
        if (group) list->groups[list->group_count++] = group;
        else status = e->status;
    }
    list->end_dispatch = list->words.count;
    const uint64_t results = g->ranges[DRAW_STATE].offset + SAMPLER_STATE_RESULTS * sizeof(uint32_t);
    list->at_ticket =
        shape.logprobs ? gpu_words_read(&list->words, g->memory, g->ranges[DRAW_RECORD].offset, sizeof(sampler_record))
                       : gpu_words_read(&list->words, g->memory, results, 2 * sizeof(uint32_t));
    if (list->words.failed) status = fail_memory(e, "a command list", list->words.count * sizeof(uint32_t));
    if (status) step_list_free(g, list);
    return status;
}

static step_list *generator_find_list(gpu_generator *g, const generator_start *start) {
    for (size_t i = 0; i < LISTS; i++) {
        const sampler_shape *shape = &g->lists[i].shape;
        if (g->lists[i].words.data && shape->greedy == start->greedy && shape->edits == start->edits &&
            shape->steps == start->steps && shape->logprobs == start->logprobs)
            return &g->lists[i];
    }
    return NULL;
}

/* ---- sharing the plan ---- */

/* Copies the record of the next step's token from the plan's run to where it is kept, or back. */
static gm_status generator_move_token(gpu_generator *g, bool back, error *e) {
    const gpu_plan *p = g->plan;
    gpu_words       words = { 0 };
    gpu_words_begin(&words);
    if (back) gpu_words_copy(&words, g->memory, g->aside, p->run, 0, plan_run_bytes(1));
    else gpu_words_copy(&words, p->run, 0, g->memory, g->aside, plan_run_bytes(1));
    const gm_status status = words.failed ? fail_memory(e, "a command list", words.count * sizeof(uint32_t))
                                          : gpu_submit(p->backend->host, words.data, words.count, e);
    free(words.data);
    return status;
}

bool gpu_generator_uses(const gpu_generator *g, const gpu_plan *p) { return g->plan == p; }

gm_status gpu_generator_set_aside(gpu_generator *g, error *e) {
    TRY(generator_move_token(g, false, e));
    g->set_aside = true;
    g->plan->drawing = NULL;
    return GM_OK;
}

/* Makes the plan compute this generator's token next. */
static gm_status generator_take_plan(gpu_generator *g, error *e) {
    gpu_plan *p = g->plan;
    if (p->drawing == g) return GM_OK;
    if (p->drawing) TRY(gpu_generator_set_aside(p->drawing, e));
    if (g->set_aside) TRY(generator_move_token(g, true, e));
    g->set_aside = false;
    p->drawing = g;
    return GM_OK;
}

/* Other caches have other bind groups. */
static void step_list_rebind(step_list *list, const gpu_plan *p) {
    if (list->rebinds == p->rebinds) return;
    memcpy(list->words.data + 1, p->words.data + p->first_dispatch,
           (p->end_dispatch - p->first_dispatch) * sizeof *list->words.data);
    list->rebinds = p->rebinds;
}

/* ---- steps ---- */

gm_status gpu_generator_begin(gpu_generator *g, const generator_start *start, error *e) {
    const size_t next = (size_t)start->token->at + 1;
    if (start->history_count > next || next > g->shape.history)
        return fail(e, GM_BAD_ARGUMENT, "a generator for %u positions cannot begin at %zu with %zu tokens of history",
                    g->shape.history, next - 1, start->history_count);
    gpu_generator_drop(g);
    TRY(generator_reserve_settings(g, start->setting_words * sizeof(uint32_t), e));
    step_list *list = generator_find_list(g, start);
    if (!list) {
        list = &g->lists[g->next_list++ % LISTS];
        step_list_free(g, list);
        TRY(generator_record(g, list, start, e));
    }

    /* Both the random numbers' counter and the history are indexed by position, and the history is at least as long as
     * the context, so the ring never wraps. */
    const uint64_t state = g->ranges[DRAW_STATE].offset,
                   history = state + (SAMPLER_STATE_RESULTS + 2 * RESULTS + next - start->history_count) * 4;
    const uint32_t counters[SAMPLER_STATE_RESULTS] = {
        [SAMPLER_STATE_DRAWS] = (uint32_t)next, [SAMPLER_STATE_APPENDED] = (uint32_t)next
    };
    const uint32_t header[RUN_HEADER_WORDS] = { 1, 1, start->window, 0 };
    const struct {
        gpu_id      buffer;
        uint64_t    offset;
        const void *data;
        uint64_t    bytes;
    } writes[] = {
        { g->settings, 0, start->settings, start->setting_words * sizeof(uint32_t) },
        { g->memory, state, counters, sizeof counters },
        { g->memory, history, start->history, start->history_count * sizeof(int32_t) },
        { g->plan->run, 0, header, sizeof header },
        { g->plan->run, sizeof header, start->token, sizeof *start->token },
    };
    TRY(generator_take_plan(g, e));
    for (size_t i = 0; i < COUNT_OF(writes); i++) {
        const gm_status status = gpu_buffer_write(g->plan->backend->host, writes[i].buffer, writes[i].offset,
                                                  writes[i].data, writes[i].bytes, e);
        if (status) return status;
    }
    g->list = list;
    g->token = *start->token;
    g->steps = 0;
    g->begun = true;
    return GM_OK;
}

bool gpu_generator_begun(const gpu_generator *g) { return g->begun; }

/* Reports a step to whoever times it. The GPU makes the tokens' records itself; all that counts here is what they see. */
static void generator_report_step(const gpu_generator *g) {
    static const int32_t row = 0;
    const gpu_backend   *b = g->plan->backend;
    gpu_kernel           kernels[SAMPLER_KERNELS];
    token_record         token = g->token;
    if (!b->watch) return;
    token.full_last += g->steps;
    token.sliding_first += g->steps;
    token.sliding_last += g->steps;
    const gpu_submission done = {
        .plan = g->plan,
        .in = { .records = &token, .tokens = 1, .output_rows = &row, .outputs = 1 },
        .words = g->list->words.data + 1,
        .count = g->list->end_dispatch - 1,
        .more = kernels,
        .more_count = sampler_kernels(&g->list->shape, kernels),
    };
    b->watch(b->watch_user, &done);
}

gm_status gpu_generator_submit(gpu_generator *g, error *e) {
    gpu_host *h = g->plan->backend->host;
    if (!g->begun || g->flying == GENERATOR_STEPS)
        return fail(e, GM_BAD_ARGUMENT, "a generator with %zu steps under way cannot take one more", g->flying);
    TRY(generator_take_plan(g, e));
    const uint32_t ticket = gpu_ticket_new(h);
    if (!ticket) return fail_memory(e, "a ticket", sizeof ticket);
    step_list_rebind(g->list, g->plan);
    g->list->words.data[g->list->at_ticket] = ticket;
    const gm_status status = gpu_submit(h, g->list->words.data, g->list->words.count, e);
    if (status) {
        gpu_ticket_done(h, ticket);
        return status;
    }
    g->tickets[(g->oldest + g->flying++) % GENERATOR_STEPS] = ticket;
    generator_report_step(g);
    g->steps++;
    return GM_OK;
}

gm_status gpu_generator_take(gpu_generator *g, sampler_record *out, error *e) {
    gpu_host *h = g->plan->backend->host;
    if (!g->flying) return fail(e, GM_BAD_ARGUMENT, "a generator with no step under way has nothing to give");
    uint64_t        bytes = 0;
    const uint32_t  ticket = g->tickets[g->oldest];
    const uint32_t *result = gpu_ticket_data(h, ticket, &bytes);
    TRY(gpu_host_problem(h, e));
    if (!result) return GM_AGAIN;
    if (bytes < 2 * sizeof *result || result[0] >= g->shape.vocabulary)
        return fail(e, GM_IO, "the GPU drew token %u of %u", bytes ? result[0] : 0, g->shape.vocabulary);
    *out = (sampler_record){ 0 }; /* a record starts with the same fields as a result */
    memcpy(out, result, bytes < sizeof *out ? (size_t)bytes : sizeof *out);
    gpu_ticket_done(h, ticket);
    g->oldest = (g->oldest + 1) % GENERATOR_STEPS;
    g->flying--;
    return GM_OK;
}

void gpu_generator_drop(gpu_generator *g) {
    for (; g->flying; g->flying--) {
        gpu_ticket_done(g->plan->backend->host, g->tickets[g->oldest]);
        g->oldest = (g->oldest + 1) % GENERATOR_STEPS;
    }
    g->begun = false;
    g->set_aside = false;
    if (g->plan->drawing == g) g->plan->drawing = NULL;
}

size_t gpu_generator_dispatches(const gpu_generator *g) { return g->list ? g->list->dispatches : 0; }
