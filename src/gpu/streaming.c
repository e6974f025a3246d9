#include "gpu/streaming.h"

#include "gguf/rows.h"
#include "gpu/experts.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const tensor *table;
    float         factor;
    uint32_t      value;   /* the value that gets the rows */
    table_rows    fetched; /* rows of a table that is not in memory */
    bool          written; /* in the current run */
} gather;

/* A part of the plan's words. Runs submit parts, or several at once, in lists of their own. */
typedef struct {
    size_t            begin, end;
    const gpu_weight *weight; /* the tile that must be in the slot when the part runs; NULL: none */
    uint32_t          tile;
    /* Its last dispatch, which begins at slots_at, looks up the slots of a layer's experts. The layer's products end at section_end. */
    bool     asks;
    uint32_t layer;
    size_t   slots_at, section_end;
    size_t   ahead_begin, ahead_end; /* in the plan's words that ask the next layer's router early */
} plan_part;

struct plan_streaming {
    gather    *gathers;
    plan_part *parts;
    size_t     gather_count, part_count, part_capacity;
    size_t     asks;           /* parts that do */
    size_t     ahead_recorded; /* while recording: the words that ask early, as far as they belong to a part */
    size_t     section;        /* while recording: 1 + the part whose layer's products are being recorded; 0: none */
    float     *rows;           /* for the largest table, and all tokens of a run */
    gpu_words  list;           /* what is submitted */

    /* the current run */
    bool         running, finished; /* finished: somebody else took it to its end */
    size_t       next, at;          /* the next part, and where in the words to go on */
    size_t       last;              /* the last part of the submitted ones whose report is awaited */
    size_t       end;               /* of the list, with the reads that the run wants */
    uint32_t     changes;           /* of the slots that the last part looks up, when it was submitted */
    uint32_t     tokens, kv_moves;
    uint32_t     chunk;        /* how far the current tile has been uploaded */
    uint32_t     ticket;       /* of the report */
    expert_wants wants, ahead; /* experts of the next part, which asked for them, and of the layer after it */
    bool         passes;       /* it wants more than there are slots, and gets them one after another */
    bool         loaded;       /* what the next part asks for is there, until it has been submitted, */
    bool         foreseen;     /* and so is what the part after it will probably ask for */
    bool         begun;        /* the first lists of the rest are submitted (streaming_submit_first) */

    size_t stride; /* parts that ask which are submitted before a report is awaited; kept from run to run */
};

/* ---- recording ---- */

static gm_status begin_part(gpu_plan *p, const plan_part *what, error *e) {
    plan_streaming *s = p->streaming;
    if (s->part_count == s->part_capacity) {
        const size_t capacity = s->part_capacity ? 2 * s->part_capacity : 64;
        plan_part   *parts = realloc(s->parts, capacity * sizeof *parts);
        if (!parts) return fail_memory(e, "a plan's parts", capacity * sizeof *parts);
        s->parts = parts;
        s->part_capacity = capacity;
    }
    plan_part begun = *what;
    if (s->part_count) s->parts[s->part_count - 1].end = begun.begin = p->words.count;
    s->parts[s->part_count++] = begun;
    return GM_OK;
}

static gm_status streaming_start(gpu_plan *p, error *e) {
    if (p->streaming) return GM_OK;
    p->streaming = calloc(1, sizeof *p->streaming);
    if (!p->streaming) return fail_memory(e, "a plan's parts", sizeof *p->streaming);
    p->streaming->stride = 1;
    return begin_part(p, &(plan_part){ 0 }, e);
}

gm_status streaming_gather(gpu_plan *p, const op *embed, error *e) {
    TRY(streaming_start(p, e));
    plan_streaming *s = p->streaming;
    const tensor   *table = embed->in[0];
    gather         *more = realloc(s->gathers, (s->gather_count + 1) * sizeof *more);
    if (!more) return fail_memory(e, "a plan's tables", (s->gather_count + 1) * sizeof *more);
    s->gathers = more;
    s->gathers[s->gather_count++] =
        (gather){ .table = table,
                  .factor = embed->factor,
                  .value = embed->out->index,
                  .fetched = { .reads = p->backend->reads,
                               .from = table->from,
                               .offset = table->place,
                               .row = quant_row_bytes(quant_format_of(table->type), table->ne[0]) } };
    if (!table->data && (!table->from || !p->backend->reads))
        return fail(e, GM_IO, "tensor '%s' is not in memory", table->name);
    float *rows = realloc(s->rows, p->tokens * (size_t)table->ne[0] * sizeof *rows);
    if (!rows) return fail_memory(e, "a batch's rows of a table", p->tokens * table->ne[0] * sizeof *rows);
    s->rows = rows;
    return GM_OK;
}

gm_status streaming_cut(gpu_plan *p, const gpu_weight *w, uint32_t tile, error *e) {
    TRY(streaming_start(p, e));
    if (p->streaming->section)
        return fail(e, GM_UNSUPPORTED, "'%s' stays in main memory, but lies between the products of a layer's experts",
                    w->parts[0].weight.name);
    return begin_part(p, &(plan_part){ .weight = w, .tile = tile }, e);
}

gm_status streaming_resume(gpu_plan *p, error *e) { return begin_part(p, &(plan_part){ 0 }, e); }

gm_status streaming_ask(gpu_plan *p, uint32_t layer, size_t at, error *e) {
    TRY(streaming_start(p, e));
    plan_streaming *s = p->streaming;
    plan_part      *part = &s->parts[s->part_count - 1];
    part->asks = true;
    part->layer = layer;
    part->slots_at = at;
    part->ahead_begin = s->ahead_recorded;
    part->ahead_end = s->ahead_recorded = p->ahead_words.count;
    s->asks++;
    s->section = s->part_count;
    return begin_part(p, &(plan_part){ 0 }, e);
}

void streaming_section_ends(gpu_plan *p, size_t index) {
    plan_streaming *s = p->streaming;
    if (!s || !s->section || p->visit || p->ops[index].slotted < 0) return;
    s->parts[s->section - 1].section_end = p->words.count;
    for (size_t i = index + 1; i < p->g.op_count; i++) {
        if (p->ops[i].slotted == p->ops[index].slotted) return; /* there is another product */
    }
    s->section = 0;
}

void streaming_free(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    if (!s) return;
    streaming_restart(p);
    for (size_t i = 0; i < s->gather_count; i++) table_rows_free(&s->gathers[i].fetched);
    free(s->gathers);
    free(s->parts);
    free(s->rows);
    free(s->list.data);
    free(s);
    p->streaming = NULL;
}

/* ---- running ---- */

static void release_slot(gpu_plan *p) {
    if (p->backend->slot_for != p) return;
    gpu_backend_stream_restart(p->backend);
    p->backend->slot_for = NULL;
}

void streaming_restart(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    if (!s) return;
    if (s->ticket) gpu_ticket_done(p->backend->host, s->ticket);
    release_slot(p);
    expert_cache_release(p->backend, p);
    for (size_t i = 0; i < s->gather_count; i++) {
        table_rows_restart(&s->gathers[i].fetched);
        s->gathers[i].written = false;
    }
    s->running = s->passes = s->loaded = s->foreseen = s->begun = false;
    s->ticket = 0;
    s->next = s->at = 0;
    s->chunk = 0;
    s->wants.layer = s->ahead.layer = NULL;
}

/* y[t] = factor · row ids[t]. A token without an id gets row 0, which gpu_plan_write_given overwrites. */
static gm_status gather_write(const gpu_plan *p, gather *g, const run_inputs *in, error *e) {
    const quant_format *format = quant_format_of(g->table->type);
    const uint64_t      n = g->table->ne[0], row_bytes = quant_row_bytes(format, n);
    float              *rows = p->streaming->rows;
    for (size_t t = 0; t < in->tokens; t++) {
        const int32_t  id = in->records[t].id < 0 ? 0 : in->records[t].id;
        float         *row = rows + t * n, poison = 0;
        const uint8_t *from = g->table->data ? (const uint8_t *)g->table->data + (uint64_t)id * row_bytes
                                             : g->fetched.memory + t * row_bytes;
        format->dequantise(row, from, n / format->block);
        for (uint64_t i = 0; i < n; i++) {
            poison += row[i] * 0; /* 0 unless a value is NaN or infinite */
            row[i] *= g->factor;
        }
        if (poison != 0)
            return fail(e, GM_BAD_FILE, "tensor '%s' (%s) holds NaN or an infinity in row %d: the file is damaged",
                        g->table->name, format->name, id);
    }
    const uint64_t  at = p->items[g->value].offset;
    const gm_status status =
        gpu_buffer_write(p->backend->host, plan_memory(p, at), at % p->segment, rows, in->tokens * n * sizeof *rows, e);
    g->written = status == GM_OK;
    return status;
}

/* The same for a table that may have to be read first. Ids are checked before they are used. */
static gm_status gather_rows(const gpu_plan *p, gather *g, const run_inputs *in, error *e) {
    if (g->written) return GM_OK;
    for (size_t t = 0; t < in->tokens; t++) {
        if (in->records[t].id >= 0 && (uint64_t)in->records[t].id >= g->table->ne[1])
            return fail(e, GM_BAD_ARGUMENT, "token %zu is %d, but '%s' has %llu rows", t, in->records[t].id,
                        g->table->name, (unsigned long long)g->table->ne[1]);
    }
    const gm_status status =
        g->table->data ? GM_OK : table_rows_fetch(&g->fetched, &in->records->id, RECORD_WORDS, in->tokens, e);
    return status ? status : gather_write(p, g, in, e);
}

/* ---- submitting parts ---- */

static size_t part_end(const gpu_plan *p, size_t index) {
    const plan_streaming *s = p->streaming;
    return index + 1 < s->part_count ? s->parts[index].end : p->end_dispatch;
}

/* The run's number of tokens, which a miss sets to 0, and the report are set before anything runs. */
static void words_begin_run(const gpu_plan *p, bool quiet, gpu_words *list) {
    const uint32_t header[EXPERT_HEADER] = { [EXPERT_REPORT_QUIET] = quiet };
    gpu_words_begin(list);
    gpu_words_write(list, p->run, 0, &p->streaming->tokens, 1);
    if (p->report) gpu_words_write(list, p->report, 0, header, EXPERT_HEADER);
}

static void words_append_range(const gpu_plan *p, size_t begin, size_t end, gpu_words *list) {
    if (begin == 0) begin = 1; /* the version */
    if (begin < end) gpu_words_append(list, p->words.data + begin, end - begin);
}

static gm_status words_submit(gpu_plan *p, gpu_words *list, error *e) {
    if (list->failed) return fail_memory(e, "a command list", list->count * sizeof(uint32_t));
    return gpu_submit(p->backend->host, list->data, list->count, e);
}

/* Submits words [begin, end). */
static gm_status submit_words(gpu_plan *p, size_t begin, size_t end, bool quiet, error *e) {
    gpu_words *list = &p->streaming->list;
    list->count = 0;
    words_begin_run(p, quiet, list);
    words_append_range(p, begin, end, list);
    return words_submit(p, list, e);
}

/* Submits words from `begin` to the end of a part that asks, and asks for the report. The router of the layer after it is asked early. If the
 * run returns to this very lookup, it was asked before. */
static gm_status submit_asking(gpu_plan *p, size_t begin, const plan_part *part, size_t end, error *e) {
    plan_streaming *s = p->streaming;
    gpu_words      *list = &s->list;
    const uint32_t  ticket = gpu_ticket_new(p->backend->host);
    if (!ticket) return fail_memory(e, "a ticket", sizeof ticket);
    list->count = 0;
    words_begin_run(p, false, list);
    if (part->ahead_begin < part->ahead_end && begin < part->slots_at) {
        words_append_range(p, begin, part->slots_at, list);
        gpu_words_append(list, p->ahead_words.data + part->ahead_begin, part->ahead_end - part->ahead_begin);
        begin = part->slots_at;
    }
    words_append_range(p, begin, end, list);
    const size_t at = gpu_words_read(list, p->report, 0, EXPERT_REPORT_WORDS * sizeof(uint32_t));
    if (!list->failed) list->data[at] = ticket;
    const gm_status status = words_submit(p, list, e);
    if (status) gpu_ticket_done(p->backend->host, ticket);
    else s->ticket = ticket;
    if (part->asks) s->changes = p->backend->experts->layers[part->layer].changes;
    return status;
}

/* Uploads the tile of the next part, whose slot this plan owns, and submits the part. */
static gm_status run_tile(gpu_plan *p, error *e) {
    plan_streaming   *s = p->streaming;
    const plan_part  *part = &s->parts[s->next];
    const weight_tile tile = weight_tile_of(&part->weight->layout, part->tile);
    const uint32_t    end = tile.rows * part->weight->layout.chunks;
    while (s->chunk < end) {
        const gm_status status = gpu_backend_stream(p->backend, part->weight, part->tile, &s->chunk, end, e);
        if (status) return status;
    }
    const gm_status status = submit_words(p, s->at, part_end(p, s->next), false, e);
    if (status) return status;
    release_slot(p);
    s->chunk = 0;
    s->at = part_end(p, s->next++);
    return GM_OK;
}

/* Makes the plan the slot's owner. The previous owner may have stopped halfway through a tile, and may never continue.
 * So we finish its part; if it continues, it does so from there. Taking the slot away instead could make two plans undo
 * each other's uploads forever. An error concerns only the owner: its run restarts, and gets the error again. */
static gm_status take_slot(gpu_plan *p) {
    gpu_plan *owner = p->backend->slot_for;
    if (owner && owner != p) {
        error           its = { 0 };
        const bool      moved = owner->streaming->kv_moves != p->backend->kv_moves;
        const gm_status status = moved ? GM_BUSY : run_tile(owner, &its);
        if (status == GM_AGAIN) return GM_AGAIN;
        if (status) streaming_restart(owner);
    }
    p->backend->slot_for = p;
    return GM_OK;
}

/* ---- experts ---- */

/* From so many layers on, steps of a generator are submitted whole, and from so many more on as many of them as there can be. A miss ends
 * that: until several steps have missed nothing, only one step is submitted ahead of another, since each runs in vain after a miss. */
static size_t stride_whole(const plan_streaming *s) { return s->asks; }
static size_t stride_most(const plan_streaming *s) { return 32 * s->asks; }

void streaming_found_all(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    s->stride = min_size(2 * s->stride, stride_most(s));
}

/* Goes to the part that the report says. */
static gm_status streaming_read_report(gpu_plan *p, const uint32_t *report, error *e) {
    plan_streaming *s = p->streaming;
    expert_cache_report(p->backend->experts, report, &s->wants, &s->ahead);
    if (!s->wants.layer) {
        const plan_part *last = &s->parts[s->last];
        /* If somebody else's experts have got slots since the last lookup, it is done again: its products have not run yet. */
        const bool again = last->asks && s->changes != p->backend->experts->layers[last->layer].changes;
        s->at = again ? last->slots_at : part_end(p, s->last);
        s->next = s->last + !again;
        streaming_found_all(p);
        return GM_OK;
    }
    const uint32_t layer = (uint32_t)(s->wants.layer - p->backend->experts->layers);
    for (s->next = 0; !s->parts[s->next].asks || s->parts[s->next].layer != layer;) {
        if (++s->next == s->part_count)
            return fail(e, GM_IO, "the GPU misses experts of layer %u, which the run has not", layer);
    }
    s->at = s->parts[s->next].slots_at;
    s->stride = max_size(min_size(s->stride - (s->stride + 3) / 4, 2 * stride_whole(s)), 1);
    s->passes = false;
    return GM_OK;
}

/* Looks at the report of the parts that were submitted last. */
static gm_status streaming_take_report(gpu_plan *p, error *e) {
    plan_streaming *s = p->streaming;
    uint64_t        bytes = 0;
    const uint32_t *report = gpu_ticket_data(p->backend->host, s->ticket, &bytes);
    TRY(gpu_host_problem(p->backend->host, e));
    if (!report) return GM_AGAIN;
    const gm_status status =
        bytes < EXPERT_REPORT_WORDS * sizeof *report
            ? fail(e, GM_IO, "the GPU returned %llu bytes about experts", (unsigned long long)bytes)
            : streaming_read_report(p, report, e);
    gpu_ticket_done(p->backend->host, s->ticket);
    s->ticket = 0;
    return status;
}

/* Loads what the next part wants, and with it what the part after that will probably want. If a layer wants more than there are slots, its
 * products run for some of it at a time. */
static gm_status streaming_load_experts(gpu_plan *p, error *e) {
    plan_streaming    *s = p->streaming;
    const plan_part   *part = &s->parts[s->next];
    const expert_wants none = { 0 };
    const gm_status    loaded = expert_cache_load(p->backend, p, &s->wants, s->passes ? &none : &s->ahead, e);
    if (loaded) return loaded;
    s->foreseen = s->ahead.layer && !s->passes && !expert_cache_lacks(&s->ahead);
    s->ahead.layer = NULL;
    if (!s->wants.layer) return GM_OK;
    if (!s->passes && !expert_cache_lacks(&s->wants)) {
        s->loaded = true; /* the run goes on from the slots; the experts are kept until then */
        s->wants.layer = NULL;
        return GM_OK;
    }
    const gm_status status = submit_words(p, part->slots_at, part->section_end, true, e);
    if (status) return status;
    s->passes = true;
    expert_cache_release(p->backend, p);
    if (expert_cache_strike(&s->wants)) return GM_OK;
    s->wants.layer = NULL;
    s->passes = false;
    s->at = part->section_end;
    s->next++;
    return GM_OK;
}

/* The last of the parts that are submitted next: before one that needs a tile, or that with the last of `stride` questions. Layers whose
 * experts have just been loaded do not count. */
static size_t stretch_last(const plan_streaming *s, size_t *asked) {
    const size_t most = s->stride + s->foreseen;
    size_t       last = s->next;
    *asked = s->parts[last].asks && !s->loaded;
    while (*asked < most && last + 1 < s->part_count && !s->parts[last + 1].weight) *asked += s->parts[++last].asks;
    return last;
}

/* What was loaded for the parts that have just been submitted may be replaced. */
static void stretch_submitted(gpu_plan *p) {
    p->streaming->loaded = p->streaming->foreseen = false;
    expert_cache_release(p->backend, p);
}

static gm_status run_parts(gpu_plan *p, error *e) {
    plan_streaming *s = p->streaming;
    size_t          asked;
    const size_t    last = stretch_last(s, &asked), end = part_end(p, last);
    const gm_status status =
        asked ? submit_asking(p, s->at, &s->parts[last], end, e) : submit_words(p, s->at, end, false, e);
    if (status) return status;
    stretch_submitted(p);
    s->last = last;
    if (asked) return GM_OK;
    s->at = end;
    s->next = last + 1;
    return GM_OK;
}

/* Runs parts; `leave_last`: not the last ones, which the caller submits. */
static gm_status streaming_run_parts(gpu_plan *p, bool leave_last, error *e) {
    plan_streaming *s = p->streaming;
    while (s->next < s->part_count || s->ticket) {
        gm_status status = GM_OK;
        size_t    asked;
        if (s->ticket) status = streaming_take_report(p, e);
        else if (s->wants.layer || s->ahead.layer) status = streaming_load_experts(p, e);
        else if (s->parts[s->next].weight) {
            status = take_slot(p);
            if (!status) status = run_tile(p, e);
        } else if (leave_last && stretch_last(s, &asked) + 1 == s->part_count) return GM_OK;
        else status = run_parts(p, e);
        if (status) return status;
    }
    return GM_OK;
}

gm_status streaming_advance(gpu_plan *p, error *e) { return streaming_run_parts(p, true, e); }

/* Begins a list of the rest. Only the first one sets the number of tokens: later ones must not, since a 0 there says that the run was halted. */
static void rest_begin(const gpu_plan *p, gpu_words *list) {
    if (p->streaming->begun) gpu_words_begin(list);
    else words_begin_run(p, false, list);
}

gm_status streaming_submit_first(gpu_plan *p, error *e) {
    enum { FIRST = 2, GROWTH = 4 };
    plan_streaming *s = p->streaming;
    for (size_t parts = FIRST; s->next + parts < s->part_count; parts *= GROWTH) {
        const size_t next = s->next + parts;
        if (!s->parts[next].asks) break;
        s->list.count = 0;
        rest_begin(p, &s->list);
        words_append_range(p, s->at, s->parts[next].slots_at, &s->list);
        const gm_status status = words_submit(p, &s->list, e);
        if (status) return status;
        s->begun = true;
        s->next = next;
        s->at = s->parts[next].slots_at;
    }
    return GM_OK;
}

void streaming_append_rest(gpu_plan *p, gpu_words *list) {
    rest_begin(p, list);
    words_append_range(p, p->streaming->at, p->end_dispatch, list);
}

void streaming_rest_submitted(gpu_plan *p) {
    stretch_submitted(p);
    streaming_restart(p);
}

void streaming_rewind(gpu_plan *p, size_t tokens) {
    plan_streaming *s = p->streaming;
    streaming_restart(p);
    s->tokens = (uint32_t)tokens;
    s->at = p->first_dispatch;
}

gm_status streaming_return(gpu_plan *p, size_t tokens, const uint32_t *report, error *e) {
    streaming_rewind(p, tokens);
    p->streaming->last = p->streaming->part_count - 1;
    return streaming_read_report(p, report, e);
}

size_t streaming_steps_ahead(const gpu_plan *p) {
    const plan_streaming *s = p->streaming;
    return s->stride == stride_most(s) ? SIZE_MAX : s->stride >= stride_whole(s) ? 2 : 0;
}

/* ---- runs ---- */

/* Takes the run to its end, and submits the reads of its results. */
static gm_status streaming_run(gpu_plan *p, error *e) {
    plan_streaming *s = p->streaming;
    const gm_status status = streaming_run_parts(p, false, e);
    if (status) return status;
    s->next = s->part_count;
    if (p->backend->slot && p->backend->flags) TRY(gpu_backend_ask_damage(p->backend, e));
    if (s->end > p->end_dispatch) {
        const gm_status read = submit_words(p, p->end_dispatch, s->end, false, e);
        if (read) return read;
    }
    if (p->backend->experts) expert_cache_count(p->backend->experts, s->tokens);
    streaming_restart(p);
    return GM_OK;
}

gm_status streaming_finish(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    error           its = { 0 };
    if (!s || !s->running) return GM_OK;
    const gm_status status = s->kv_moves == p->backend->kv_moves ? streaming_run(p, &its) : GM_BUSY;
    if (status == GM_AGAIN) return status;
    if (status) streaming_restart(p);
    s->finished = !status;
    return GM_OK;
}

void streaming_abandon(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    if (!s) return;
    s->finished = false;
    if (s->running) streaming_restart(p);
}

gm_status streaming_submit(gpu_plan *p, const run_inputs *in, size_t end, error *e) {
    plan_streaming *s = p->streaming;
    if (s->finished) {
        s->finished = false;
        return GM_OK;
    }
    if (!s->running && gpu_pipelines_pending(p->backend->host))
        return GM_AGAIN; /* a part that waited would upload twice */
    for (size_t i = 0; i < s->gather_count && !s->running; i++) {
        const gm_status status = gather_rows(p, &s->gathers[i], in, e);
        if (status) return status;
    }
    if (!s->running) {
        const gm_status status = gpu_plan_write_given(p, in, e);
        if (status) return status;
    }
    if (!s->running) s->kv_moves = p->backend->kv_moves;
    s->running = true;
    s->tokens = (uint32_t)in->tokens;
    s->end = end;
    return streaming_run(p, e);
}
