#include "gpu/generator.h"

#include "gpu/experts.h"
#include "gpu/plan.h"
#include "gpu/streaming.h"

#include <stdlib.h>
#include <string.h>

enum {
    GPU_ALIGNMENT = 256,
    LISTS = 8,
    RESULTS = 1
}; /* each list reads its own result before the next list overwrites it */

#define REPORT_BYTES (EXPERT_REPORT_WORDS * sizeof(uint32_t)) /* before the draws of a plan with cached experts */

/* The dispatches of the plan and of the sampler, and a read of the result. */
typedef struct {
    gpu_words     words;
    sampler_shape shape;
    gpu_id        groups[SAMPLER_KERNELS];
    size_t        group_count, end_dispatch, at_ticket, dispatches;
    uint32_t      rebinds; /* the state of the plan's bind groups that it has copied */
} step_list;

/* A sequence that takes part. */
typedef struct {
    bool          live;
    sampler_shape needs; /* greedy, candidates, steps, edits and logprobs */
    token_record  token; /* the token with which it joined, */
    uint32_t      steps; /* and the steps submitted since */
} generator_row;

typedef struct {
    uint32_t ticket; /* of its draws; 0: it has not been submitted whole, because experts may be missing */
    uint32_t rows;   /* a bit for each row that takes part */
    bool     seen;   /* its draws have arrived, and it lacked no experts */
} generator_step;

struct gpu_generator {
    gpu_plan      *plan;
    sampler_shape  shape;            /* what rows need is set for each list */
    gpu_id         memory, settings; /* what the sampler writes; read-only data needs its own buffer */
    uint32_t       rest_words;       /* room of each row in DRAW_REST */
    gpu_binding    ranges[DRAW_BINDS];
    step_list      lists[LISTS]; /* the kinds of draws seen last; in the order of their places */
    size_t         next_list;    /* the place of the next one */
    step_list     *list;         /* of the last step; NULL: not submitted yet, or a row has joined or left since */
    generator_row *rows;         /* [shape.rows] */
    bool           begun;        /* the plan's run has a record for every row */
    uint64_t       aside;        /* where in `memory` the next step's run is kept while others use the plan */
    bool           set_aside;    /* it is there, not in the plan's buffers */
    generator_step steps[GENERATOR_STEPS]; /* a ring */
    size_t         oldest, flying;
    uint32_t       kv_moves;   /* of the backend, when the last row joined: records name places of keys and values */
    bool           advancing;  /* the first step without a ticket runs, from report to report (streaming.h) */
    size_t         dispatches; /* of a step, as chosen last */
};

/* ---- creating and freeing ---- */

static gm_status generator_lay_out(gpu_generator *g, error *e) {
    const gpu_plan     *p = g->plan;
    const sampler_bytes bytes = sampler_bytes_of(&g->shape);
    const gpu_binding   ranges[DRAW_BINDS] = {
        [DRAW_LOGITS] = gpu_plan_result_range(p, (uint64_t)g->shape.rows * g->shape.vocabulary * sizeof(float)),
        [DRAW_FIXED] = { .bytes = bytes.fixed },
        [DRAW_COUNTS] = { .bytes = bytes.counts },
        [DRAW_BLOCKS] = { .bytes = bytes.blocks },
        [DRAW_CANDIDATES] = { .bytes = bytes.candidates },
        [DRAW_HEADER] = { .bytes = bytes.header },
        [DRAW_CUTS] = { .bytes = bytes.cuts },
        [DRAW_PARTS] = { .bytes = bytes.parts },
        [DRAW_RECORD] = { .bytes = bytes.record },
        [DRAW_STATE] = { .bytes = bytes.state },
        [DRAW_RUN] = { 0, p->run, 0, plan_run_bytes(g->shape.rows) },
    };
    uint64_t end = 0;
    memcpy(g->ranges, ranges, sizeof ranges);
    for (size_t i = DRAW_FIXED; i <= DRAW_STATE; i++) {
        g->ranges[i].offset = end;
        end = round_up(end + g->ranges[i].bytes, GPU_ALIGNMENT);
    }
    g->aside = end;
    end += plan_run_bytes(g->shape.rows);
    g->memory = gpu_buffer_new(p->backend->host, end, e);
    for (size_t i = DRAW_FIXED; i <= DRAW_STATE; i++) g->ranges[i].buffer = g->memory;
    return g->memory ? GM_OK : e->status;
}

sampler_shape gpu_generator_shape(size_t vocabulary, size_t context) {
    sampler_shape shape = { .rows = 1, .vocabulary = (uint32_t)vocabulary, .results = RESULTS, .history = 1 };
    while (shape.history < context && shape.history < 1u << 31)
        shape.history *= 2; /* a power of two, so that sessions of similar size share pipelines */
    return shape;
}

gm_status gpu_generator_new(gpu_plan *p, size_t vocabulary, size_t context, gpu_generator **out, error *e) {
    *out = NULL;
    if (p->tokens != p->outputs || p->tokens > GENERATOR_ROWS)
        return fail(e, GM_BAD_ARGUMENT,
                    "a generator needs a plan with as many outputs as tokens, at most %u, not %u and %u",
                    GENERATOR_ROWS, p->outputs, p->tokens);
    gpu_generator *g = calloc(1, sizeof *g);
    if (!g) return fail_memory(e, "a generator", sizeof *g);
    g->plan = p;
    g->shape = gpu_generator_shape(vocabulary, context);
    g->shape.rows = p->tokens;
    g->rows = calloc(p->tokens, sizeof *g->rows);
    const gm_status status =
        g->rows ? generator_lay_out(g, e) : fail_memory(e, "a generator's rows", p->tokens * sizeof *g->rows);
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
    free(g->rows);
    free(g);
}

/* ---- settings ---- */

static size_t bits_in(uint32_t rows) {
    size_t count = 0;
    for (; rows; rows &= rows - 1) count++;
    return count;
}

static gm_status generator_submit_words(gpu_generator *g, gpu_words *words, error *e) {
    const gm_status status = words->failed ? fail_memory(e, "a command list", words->count * sizeof(uint32_t))
                                           : gpu_submit(g->plan->backend->host, words->data, words->count, e);
    free(words->data);
    return status;
}

/* Moves the rows' settings to a larger buffer. What a list writes, it writes first, so the writes follow in a second one. */
static gm_status generator_move_settings(gpu_generator *g, gpu_id to, uint64_t rest, uint32_t rest_words, error *e) {
    const uint64_t word = sizeof(uint32_t), fixed = SAMPLER_REST * word, old = g->rest_words * word;
    gpu_words      copies = { 0 }, writes = { 0 };
    gpu_words_begin(&copies);
    gpu_words_begin(&writes);
    for (uint32_t row = 0; row < g->shape.rows; row++) {
        const uint32_t at = row * rest_words;
        gpu_words_copy(&copies, g->settings, row * fixed, to, row * fixed, fixed);
        gpu_words_copy(&copies, g->settings, g->ranges[DRAW_REST].offset + row * old, to, rest + at * word, old);
        gpu_words_write(&writes, to, row * fixed + SAMPLER_REST_AT * word, &at, 1);
    }
    const gm_status status = generator_submit_words(g, &copies, e), second = generator_submit_words(g, &writes, e);
    return status ? status : second;
}

/* The rest of a row's settings has the biases, so it may be longer than any before. The other rows keep theirs. */
static gm_status generator_reserve_rest(gpu_generator *g, uint32_t needed, error *e) {
    gpu_host *h = g->plan->backend->host;
    if (g->settings && needed <= g->rest_words) return GM_OK;
    const uint32_t rows = g->shape.rows, rest_words = needed + needed / 2;
    const uint64_t fixed = rows * SAMPLER_REST * sizeof(uint32_t), rest = round_up(fixed, GPU_ALIGNMENT);
    const uint64_t bytes = (uint64_t)rows * rest_words * sizeof(uint32_t);
    const gpu_id   larger = gpu_buffer_new(h, rest + bytes, e);
    if (!larger) return e->status;
    const gm_status status = g->settings ? generator_move_settings(g, larger, rest, rest_words, e) : GM_OK;
    if (status) {
        gpu_buffer_free(h, larger);
        return status;
    }
    if (g->settings) gpu_buffer_free(h, g->settings);
    generator_free_lists(g); /* they bind the old buffer */
    g->settings = larger;
    g->rest_words = rest_words;
    g->ranges[DRAW_SETTINGS] = (gpu_binding){ 0, larger, 0, fixed };
    g->ranges[DRAW_REST] = (gpu_binding){ 0, larger, rest, bytes };
    return GM_OK;
}

/* ---- lists ---- */

/* What the rows need together. */
static sampler_shape generator_needs(const gpu_generator *g) {
    sampler_shape shape = g->shape;
    for (uint32_t i = 0; i < g->shape.rows; i++) {
        const sampler_shape *row = &g->rows[i].needs;
        if (!g->rows[i].live) continue;
        shape.greedy |= row->greedy;
        shape.candidates |= row->candidates;
        shape.edits |= row->edits;
        shape.logprobs |= row->logprobs;
        if (row->steps > shape.steps) shape.steps = row->steps;
    }
    return shape;
}

/* Copies the plan's dispatches. Those of its attention that depend on spans are for one token of each row. */
static void step_list_take_plan(step_list *list, const gpu_plan *p) {
    uint32_t *words = list->words.data + 1;
    memcpy(words, p->words.data + p->first_dispatch, (p->end_dispatch - p->first_dispatch) * sizeof *words);
    for (size_t i = 0; i < p->tiles_count; i++) {
        const plan_tiles *t = &p->tiles[i];
        words[t->at - p->first_dispatch] = p->tokens * ((t->token_queries + t->tile_queries - 1) / t->tile_queries);
    }
    list->rebinds = p->rebinds;
}

/* Reads the draws, behind the report of experts if they are cached. Returns where the ticket is. */
static size_t step_list_read(const gpu_generator *g, step_list *list) {
    const gpu_id   report = g->plan->report;
    const uint32_t rows = list->shape.rows;
    const uint64_t results = g->ranges[DRAW_STATE].offset + rows * SAMPLER_STATE_RESULTS * sizeof(uint32_t);
    const uint64_t at = list->shape.logprobs ? g->ranges[DRAW_RECORD].offset : results;
    const uint64_t bytes = rows * (list->shape.logprobs ? sizeof(sampler_record) : 2 * RESULTS * sizeof(uint32_t));
    if (!report) return gpu_words_read(&list->words, g->memory, at, bytes);
    gpu_words_copy(&list->words, g->memory, at, report, REPORT_BYTES, bytes);
    return gpu_words_read(&list->words, report, 0, REPORT_BYTES + bytes);
}

static gm_status generator_record(gpu_generator *g, step_list *list, const sampler_shape *shape, error *e) {
    gpu_plan    *p = g->plan;
    gpu_kernel   kernels[SAMPLER_KERNELS];
    const size_t count = sampler_kernels(shape, kernels);
    *list = (step_list){ .shape = *shape, .dispatches = p->dispatches + count };
    gpu_words_begin(&list->words);
    gpu_words_append(&list->words, p->words.data + p->first_dispatch, p->end_dispatch - p->first_dispatch);
    gm_status status = GM_OK;
    for (size_t i = 0; i < count && !status; i++) {
        const gpu_id group = plan_dispatch(p, &list->words, &kernels[i], g->ranges, e);
        if (group) list->groups[list->group_count++] = group;
        else status = e->status;
    }
    list->end_dispatch = list->words.count;
    list->at_ticket = step_list_read(g, list);
    if (list->words.failed) status = fail_memory(e, "a command list", list->words.count * sizeof(uint32_t));
    if (status) step_list_free(g, list);
    else step_list_take_plan(list, p);
    return status;
}

static step_list *generator_find_list(gpu_generator *g, const sampler_shape *needs) {
    for (size_t i = 0; i < LISTS; i++) {
        const sampler_shape *shape = &g->lists[i].shape;
        if (g->lists[i].words.data && sampler_how(shape) == sampler_how(needs) && shape->steps == needs->steps)
            return &g->lists[i];
    }
    return NULL;
}

/* The list for what the rows need now. */
static gm_status generator_choose_list(gpu_generator *g, error *e) {
    if (g->list) return GM_OK;
    const sampler_shape needs = generator_needs(g);
    step_list          *list = generator_find_list(g, &needs);
    if (!list) {
        list = &g->lists[g->next_list++ % LISTS];
        step_list_free(g, list);
        TRY(generator_record(g, list, &needs, e));
    }
    g->list = list;
    g->dispatches = list->dispatches;
    return GM_OK;
}

static uint32_t generator_live_rows(const gpu_generator *g) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < g->shape.rows; i++) rows |= (uint32_t)g->rows[i].live << i;
    return rows;
}

static gm_status generator_take_plan(gpu_generator *g, error *e);

/* ---- experts that are missing ----
 *
 * While misses are rare, steps are submitted whole and ahead. If one turns out to lack experts, it and all after it have drawn nothing and
 * changed nothing: it goes on from the layer that lacked them, and the others begin after it. */

static generator_step *generator_step_at(gpu_generator *g, size_t i) {
    return &g->steps[(g->oldest + i) % GENERATOR_STEPS];
}

/* The draws of a step, and the bytes of each row's; NULL: they have not arrived. */
static const uint8_t *generator_draws(const gpu_generator *g, const generator_step *step, size_t *each) {
    const uint64_t before = g->plan->report ? REPORT_BYTES : 0;
    uint64_t       bytes = 0;
    const uint8_t *data = gpu_ticket_data(g->plan->backend->host, step->ticket, &bytes);
    *each = data && bytes > before ? (size_t)(bytes - before) / g->shape.rows : 0;
    return data ? data + before : NULL;
}

/* Submits what is left of the plan's dispatches, and the sampler's. */
static gm_status generator_draw(gpu_generator *g, generator_step *step, error *e) {
    gpu_host *h = g->plan->backend->host;
    TRY(generator_choose_list(g, e));
    TRY(streaming_submit_first(g->plan, e));
    const size_t   from = 1 + g->plan->end_dispatch - g->plan->first_dispatch;
    const uint32_t ticket = gpu_ticket_new(h);
    gpu_words      words = { 0 };
    if (!ticket) return fail_memory(e, "a ticket", sizeof ticket);
    g->list->words.data[g->list->at_ticket] = ticket;
    streaming_append_rest(g->plan, &words);
    gpu_words_append(&words, g->list->words.data + from, g->list->words.count - from);
    const gm_status status = generator_submit_words(g, &words, e);
    if (status) {
        gpu_ticket_done(h, ticket);
        return status;
    }
    step->ticket = ticket;
    streaming_rest_submitted(g->plan);
    return GM_OK;
}

/* Step i has drawn nothing, and no step after it has. */
static gm_status generator_return_to(gpu_generator *g, size_t i, const uint32_t *report, error *e) {
    gpu_plan       *p = g->plan;
    const gm_status status = streaming_return(p, g->shape.rows, report, e);
    for (size_t j = i; j < g->flying; j++) {
        generator_step *step = generator_step_at(g, j);
        if (step->ticket) gpu_ticket_done(p->backend->host, step->ticket);
        step->ticket = 0;
    }
    g->advancing = status == GM_OK;
    return status;
}

/* Goes on with step i, which has no ticket. */
static gm_status generator_advance(gpu_generator *g, generator_step *step, error *e) {
    TRY(generator_take_plan(g, e));
    if (!g->advancing) streaming_rewind(g->plan, g->shape.rows);
    g->advancing = true;
    gm_status status = streaming_advance(g->plan, e);
    if (!status) status = generator_draw(g, step, e);
    if (status == GM_AGAIN) return status;
    if (status) streaming_restart(g->plan);
    g->advancing = false;
    return status;
}

/* Submits a whole step. The watch sees only steps that are submitted for the first time. */
static gm_status generator_submit_whole(gpu_generator *g, generator_step *step, error *e) {
    gpu_host      *h = g->plan->backend->host;
    const uint32_t ticket = gpu_ticket_new(h);
    if (!ticket) return fail_memory(e, "a ticket", sizeof ticket);
    if (g->list->rebinds != g->plan->rebinds)
        step_list_take_plan(g->list, g->plan); /* other caches, other bind groups */
    g->list->words.data[g->list->at_ticket] = ticket;
    const gm_status status = gpu_submit(h, g->list->words.data, g->list->words.count, e);
    if (status) gpu_ticket_done(h, ticket);
    else step->ticket = ticket;
    return status;
}

/* The rest of step i has just been submitted again, after a miss: so are the steps after it, if they may be ahead. Otherwise the GPU would
 * wait for the host between them. */
static gm_status generator_submit_followers(gpu_generator *g, size_t i, error *e) {
    while (++i < g->flying && i < streaming_steps_ahead(g->plan)) {
        generator_step *step = generator_step_at(g, i);
        step->rows &= generator_live_rows(g);
        if (step->ticket || !step->rows) return GM_OK;
        const gm_status status = generator_submit_whole(g, step, e);
        if (status) return status;
    }
    return GM_OK;
}

/* Waits until the draws of the first `count` steps have arrived. */
static gm_status generator_settle(gpu_generator *g, size_t count, error *e) {
    const gpu_plan *p = g->plan;
    for (size_t i = 0; i < count && p->report;) {
        generator_step *step = generator_step_at(g, i);
        gm_status       status = GM_OK;
        size_t          each;
        if (!step->ticket) step->rows &= generator_live_rows(g); /* some may have left since */
        if (!step->rows) {
            i++;
            continue;
        }
        if (!step->ticket) {
            status = generator_advance(g, step, e);
            if (!status) status = generator_submit_followers(g, i, e);
        }
        if (status) return status;
        const uint8_t *draws = generator_draws(g, step, &each);
        TRY(gpu_host_problem(p->backend->host, e));
        if (!draws) return GM_AGAIN;
        uint32_t row = 0, result[2] = { 0 };
        while (row + 1 < g->shape.rows && !(step->rows >> row & 1)) row++;
        if (each >= sizeof result) memcpy(result, draws + row * each, sizeof result);
        if (result[1] == SAMPLER_HALTED) {
            TRY(generator_return_to(g, i, (const uint32_t *)(const void *)(draws - REPORT_BYTES), e));
            continue;
        }
        if (!step->seen) streaming_found_all(g->plan);
        step->seen = true;
        i++;
    }
    return GM_OK;
}

/* ---- sharing the plan ---- */

/* Copies the run of the next step from the plan to where it is kept, or back. */
static gm_status generator_move_run(gpu_generator *g, bool back, error *e) {
    const gpu_plan *p = g->plan;
    const uint64_t  bytes = plan_run_bytes(g->shape.rows);
    gpu_words       words = { 0 };
    gpu_words_begin(&words);
    if (back) gpu_words_copy(&words, g->memory, g->aside, p->run, 0, bytes);
    else gpu_words_copy(&words, p->run, 0, g->memory, g->aside, bytes);
    return generator_submit_words(g, &words, e);
}

gm_status gpu_generator_bind(gpu_generator *g, const gpu_kv_layer *kv, error *e) {
    return gpu_plan_bind(g->plan, kv, e);
}

bool gpu_generator_uses(const gpu_generator *g, const gpu_plan *p) { return g->plan == p; }

gm_status gpu_generator_set_aside(gpu_generator *g, error *e) {
    const bool      moved = g->kv_moves != g->plan->backend->kv_moves; /* then its rows will begin again */
    const gm_status settled = moved ? GM_OK : generator_settle(g, g->flying, e);
    if (settled == GM_AGAIN) return settled;
    if (g->advancing) streaming_restart(g->plan);
    g->advancing = false;
    TRY(generator_move_run(g, false, e));
    g->set_aside = true;
    g->plan->drawing = NULL;
    return GM_OK;
}

/* Every row is an output. */
static gm_status generator_write_outputs(gpu_generator *g, error *e) {
    uint32_t  numbers[GENERATOR_ROWS];
    gpu_words words = { 0 };
    for (uint32_t i = 0; i < g->shape.rows; i++) numbers[i] = i;
    gpu_words_begin(&words);
    gpu_words_write(&words, g->plan->rows, 0, numbers, g->shape.rows);
    return generator_submit_words(g, &words, e);
}

/* Makes the plan compute this generator's tokens next. */
static gm_status generator_take_plan(gpu_generator *g, error *e) {
    gpu_plan *p = g->plan;
    if (p->drawing == g) return GM_OK;
    if (p->drawing) TRY(gpu_generator_set_aside(p->drawing, e));
    TRY(streaming_finish(p));
    if (g->set_aside) TRY(generator_move_run(g, true, e));
    if (g->shape.rows > 1) TRY(generator_write_outputs(g, e));
    g->set_aside = false;
    p->drawing = g;
    return GM_OK;
}

/* ---- rows ---- */

/* The record of a row in which nobody is: nothing is stored, and what it sees is ignored with everything else. */
static token_record vacant_record(uint32_t row) {
    return (token_record){ .at = RUN_NOWHERE, .span_first = row, .span_count = 1, .ring_slots = 1 };
}

static uint64_t record_offset(uint32_t row) {
    return (RUN_HEADER_WORDS + (uint64_t)RECORD_WORDS * row) * sizeof(uint32_t);
}

/* The run as it is before the first row joins: none takes part, neither in the run nor in the draws. */
static gm_status generator_write_run(gpu_generator *g, uint32_t window, error *e) {
    const uint32_t rows = g->shape.rows, none = 0, header[RUN_HEADER_WORDS] = { rows, rows, window, 0 };
    const uint32_t no_report[EXPERT_HEADER] = { 0 };
    gpu_words      words = { 0 };
    gpu_words_begin(&words);
    gpu_words_write(&words, g->plan->run, 0, header, RUN_HEADER_WORDS);
    if (g->plan->report) gpu_words_write(&words, g->plan->report, 0, no_report, EXPERT_HEADER);
    for (uint32_t row = 0; row < rows; row++) {
        const token_record record = vacant_record(row);
        uint32_t           data[RECORD_WORDS];
        memcpy(data, &record, sizeof data);
        gpu_words_write(&words, g->plan->run, record_offset(row), data, RECORD_WORDS);
        gpu_words_write(&words, g->settings, (row * SAMPLER_REST + SAMPLER_HOW) * sizeof none, &none, 1);
    }
    return generator_submit_words(g, &words, e);
}

/* The record and the settings, which let the row take part, go last and in one list: a record alone would store keys and values. */
static gm_status generator_write_row(gpu_generator *g, uint32_t row, const generator_start *start, error *e) {
    const uint32_t rows = g->shape.rows, next = start->token->at + 1;
    token_record   token = *start->token;
    uint32_t       settings[SAMPLER_REST];
    token.span_first = row;
    token.span_count = 1;
    memcpy(settings, start->settings, sizeof settings);
    settings[SAMPLER_ROW] = row;
    settings[SAMPLER_HOW] = sampler_how(&g->rows[row].needs);
    settings[SAMPLER_REST_AT] = row * g->rest_words;
    /* Both the random numbers' counter and the history are indexed by position, and the history is at least as long as
     * the context, so the ring never wraps. */
    const uint64_t state = g->ranges[DRAW_STATE].offset,
                   history = state + (rows * (SAMPLER_STATE_RESULTS + 2ull * RESULTS) +
                                      row * (uint64_t)g->shape.history + next - start->history_count) *
                                         sizeof(uint32_t);
    const uint32_t counters[SAMPLER_STATE_RESULTS] = { [SAMPLER_STATE_DRAWS] = next, [SAMPLER_STATE_APPENDED] = next };
    const struct {
        gpu_id      buffer;
        uint64_t    offset;
        const void *data;
        uint64_t    bytes;
    } writes[] = {
        { g->memory, state + row * sizeof counters, counters, sizeof counters },
        { g->memory, history, start->history, start->history_count * sizeof(int32_t) },
        { g->settings, g->ranges[DRAW_REST].offset + row * (uint64_t)g->rest_words * sizeof(uint32_t),
          start->settings + SAMPLER_REST, (start->setting_words - SAMPLER_REST) * sizeof(uint32_t) },
    };
    for (size_t i = 0; i < COUNT_OF(writes); i++) {
        const gm_status status = gpu_buffer_write(g->plan->backend->host, writes[i].buffer, writes[i].offset,
                                                  writes[i].data, writes[i].bytes, e);
        if (status) return status;
    }
    uint32_t  record[RECORD_WORDS];
    gpu_words words = { 0 };
    memcpy(record, &token, sizeof record);
    gpu_words_begin(&words);
    gpu_words_write(&words, g->plan->run, record_offset(row), record, RECORD_WORDS);
    gpu_words_write(&words, g->settings, row * sizeof settings, settings, SAMPLER_REST);
    return generator_submit_words(g, &words, e);
}

gm_status gpu_generator_join(gpu_generator *g, size_t row, const generator_start *start, error *e) {
    const size_t next = (size_t)start->token->at + 1;
    if (row >= g->shape.rows)
        return fail(e, GM_BAD_ARGUMENT, "row %zu of a generator with %u rows", row, g->shape.rows);
    if (start->history_count > next || next > g->shape.history || start->setting_words < SAMPLER_REST)
        return fail(e, GM_BAD_ARGUMENT, "a generator for %u positions cannot begin at %zu with %zu tokens of history",
                    g->shape.history, next - 1, start->history_count);
    const gm_status settled = generator_settle(g, g->flying, e); /* a step that runs again must not have a row more */
    if (settled) return settled;
    TRY(generator_reserve_rest(g, (uint32_t)(start->setting_words - SAMPLER_REST), e));
    TRY(generator_take_plan(g, e));
    if (!g->begun) TRY(generator_write_run(g, start->window, e));
    g->begun = true;
    g->list = NULL;
    g->rows[row] = (generator_row){ .needs = { .greedy = start->greedy,
                                               .candidates = !start->greedy && !start->steps,
                                               .steps = start->greedy ? 0 : start->steps,
                                               .edits = start->edits,
                                               .logprobs = start->logprobs },
                                    .token = *start->token };
    const gm_status status = generator_write_row(g, (uint32_t)row, start, e);
    g->rows[row].live = status == GM_OK;
    g->kv_moves = g->plan->backend->kv_moves;
    return status;
}

gm_status gpu_generator_leave(gpu_generator *g, size_t row, error *e) {
    if (row >= g->shape.rows || !g->rows[row].live) return GM_OK;
    const token_record record = vacant_record((uint32_t)row);
    const uint32_t     none = 0;
    uint32_t           data[RECORD_WORDS];
    gpu_words          words = { 0 };
    memcpy(data, &record, sizeof data);
    g->list = NULL;
    gpu_words_begin(&words);
    gpu_words_write(&words, g->settings, (row * SAMPLER_REST + SAMPLER_HOW) * sizeof none, &none, 1);
    if (g->set_aside) gpu_words_write(&words, g->memory, g->aside + record_offset((uint32_t)row), data, RECORD_WORDS);
    else gpu_words_write(&words, g->plan->run, record_offset((uint32_t)row), data, RECORD_WORDS);
    const gm_status status = generator_submit_words(g, &words, e);
    g->rows[row].live = status != GM_OK;
    return status;
}

/* ---- steps ---- */

gm_status gpu_generator_begin(gpu_generator *g, const generator_start *start, error *e) {
    gpu_generator_drop(g);
    const gm_status status = gpu_generator_join(g, 0, start, e);
    return status ? status : generator_choose_list(g, e);
}

bool gpu_generator_begun(const gpu_generator *g) { return g->begun; }

/* Reports a step to whoever times it. The GPU makes the tokens' records itself; all that counts here is what they see. */
static void generator_report_step(const gpu_generator *g) {
    const gpu_backend *b = g->plan->backend;
    gpu_kernel         kernels[SAMPLER_KERNELS];
    token_record       tokens[GENERATOR_ROWS];
    int32_t            outputs[GENERATOR_ROWS];
    if (!b->watch) return;
    for (uint32_t i = 0; i < g->shape.rows; i++) {
        const generator_row *row = &g->rows[i];
        tokens[i] = row->live ? row->token : vacant_record(i);
        tokens[i].full_last += row->steps;
        tokens[i].sliding_first += row->steps;
        tokens[i].sliding_last += row->steps;
        outputs[i] = (int32_t)i;
    }
    const gpu_submission done = {
        .plan = g->plan,
        .in = { .records = tokens, .tokens = g->shape.rows, .output_rows = outputs, .outputs = g->shape.rows },
        .words = g->list->words.data + 1,
        .count = g->list->end_dispatch - 1,
        .more = kernels,
        .more_count = sampler_kernels(&g->list->shape, kernels),
    };
    b->watch(b->watch_user, &done);
}

gm_status gpu_generator_submit(gpu_generator *g, error *e) {
    const uint32_t live = generator_live_rows(g);
    if (!live || g->flying == GENERATOR_STEPS)
        return fail(e, GM_BAD_ARGUMENT, "a generator with %zu steps under way cannot take one more", g->flying);
    TRY(generator_choose_list(g, e));
    TRY(generator_take_plan(g, e));
    generator_step *next = generator_step_at(g, g->flying);
    *next = (generator_step){ .rows = live };
    if (g->plan->report) {
        const size_t most = streaming_steps_ahead(g->plan);
        if (g->flying && (g->flying >= most || !generator_step_at(g, g->flying - 1)->ticket)) return GM_AGAIN;
        if (!most) return g->flying++, GM_OK;
    }
    const gm_status status = generator_submit_whole(g, next, e);
    if (status) return status;
    g->flying++;
    generator_report_step(g);
    for (uint32_t i = 0; i < g->shape.rows; i++) g->rows[i].steps += g->rows[i].live;
    return GM_OK;
}

gm_status gpu_generator_take(gpu_generator *g, sampler_record *out, error *e) {
    gpu_host *h = g->plan->backend->host;
    if (!g->flying) return fail(e, GM_BAD_ARGUMENT, "a generator with no step under way has nothing to give");
    const gm_status settled = generator_settle(g, 1, e);
    if (settled) return settled;
    const gm_status damage = g->plan->report ? gpu_backend_damage(g->plan->backend, e) : GM_OK;
    if (damage && damage != GM_AGAIN) return damage;
    size_t               each = 0; /* bytes of a record, which starts with the same fields as a result */
    const generator_step step = g->steps[g->oldest];
    const uint8_t       *results = step.rows ? generator_draws(g, &step, &each) : NULL;
    TRY(gpu_host_problem(h, e));
    if (!results && step.rows) return GM_AGAIN;
    for (uint32_t i = 0; i < g->shape.rows; i++) {
        out[i] = (sampler_record){ .status = SAMPLER_ABSENT };
        if (!(step.rows >> i & 1)) continue;
        memcpy(&out[i], results + i * each, min_size(each, sizeof *out));
        if (each < 2 * sizeof(uint32_t) || out[i].token >= g->shape.vocabulary)
            return fail(e, GM_IO, "the GPU drew token %u of %u", out[i].token, g->shape.vocabulary);
    }
    if (step.ticket) gpu_ticket_done(h, step.ticket);
    g->oldest = (g->oldest + 1) % GENERATOR_STEPS;
    g->flying--;
    if (g->plan->backend->experts) expert_cache_count(g->plan->backend->experts, bits_in(step.rows));
    return GM_OK;
}

void gpu_generator_drop(gpu_generator *g) {
    if (g->advancing) streaming_restart(g->plan);
    g->advancing = false;
    for (; g->flying; g->flying--) {
        if (g->steps[g->oldest].ticket) gpu_ticket_done(g->plan->backend->host, g->steps[g->oldest].ticket);
        g->oldest = (g->oldest + 1) % GENERATOR_STEPS;
    }
    for (uint32_t i = 0; g->rows && i < g->shape.rows; i++) g->rows[i].live = false;
    g->list = NULL;
    g->begun = false;
    g->set_aside = false;
    if (g->plan->drawing == g) g->plan->drawing = NULL;
}

size_t gpu_generator_dispatches(const gpu_generator *g) { return g->dispatches; }
