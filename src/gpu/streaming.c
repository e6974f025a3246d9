#include "gpu/streaming.h"

#include "gguf/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const tensor *table;
    float         factor;
    uint32_t      value;   /* the value that gets the rows */
    table_rows    fetched; /* rows of a table that is not in memory */
    bool          written; /* in the current run */
} gather;

/* A part of the plan's words that is submitted as its own list, and the tile that must be in the slot when it runs. */
typedef struct {
    size_t            begin, end;
    const gpu_weight *weight; /* NULL: no tile */
    uint32_t          tile;
    const tensor     *routes;  /* if set, the part runs only if these include one of the tile's experts */
    size_t            at_read; /* where the ticket is, if the last command reads routes back; 0: it does not */
} plan_part;

struct plan_streaming {
    gather       *gathers;
    plan_part    *parts;
    size_t        gather_count, part_count, part_capacity;
    float        *rows;        /* for the largest table, and all tokens of a run */
    const tensor *routes_read; /* while recording: routes whose read-back is already recorded */

    /* the current run */
    size_t        next;          /* the next part; 0: there is no current run */
    size_t        end;           /* of the list, with the reads that the run wants */
    uint32_t      expert, chunk; /* how far the current tile has been uploaded */
    uint32_t      ticket;
    const tensor *routes_known;
    bool         *in_use; /* by expert; from routes_known */
    size_t        experts;
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
    if (s->part_count) { /* the first part starts with the plan's own words */
        s->parts[s->part_count - 1].end = begun.begin = p->words.count;
        gpu_words_begin(&p->words);
    }
    s->parts[s->part_count++] = begun;
    return GM_OK;
}

static gm_status streaming_start(gpu_plan *p, error *e) {
    if (p->streaming) return GM_OK;
    p->streaming = calloc(1, sizeof *p->streaming);
    if (!p->streaming) return fail_memory(e, "a plan's parts", sizeof *p->streaming);
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

/* Records a read of the routes at the end of the current part. */
static gm_status read_routes(gpu_plan *p, const tensor *routes, size_t experts, error *e) {
    plan_streaming *s = p->streaming;
    const uint64_t  offset = p->items[routes->index].offset;
    if (routes == s->routes_read) return GM_OK;
    s->routes_read = routes;
    s->parts[s->part_count - 1].at_read = gpu_words_read(&p->words, plan_memory(p, offset), offset % p->segment,
                                                         p->tokens * routes->token_stride * sizeof(uint32_t));
    if (experts > s->experts) {
        bool *in_use = realloc(s->in_use, experts * sizeof *in_use);
        if (!in_use) return fail_memory(e, "the experts in use", experts * sizeof *in_use);
        s->in_use = in_use;
        s->experts = experts;
    }
    return GM_OK;
}

gm_status streaming_cut(gpu_plan *p, const op *product, const gpu_weight *w, uint32_t tile, error *e) {
    TRY(streaming_start(p, e));
    const tensor *routes = product->in[FUSED_ROUTES];
    if (routes) TRY(read_routes(p, routes, w->layout.experts, e));
    const bool always = product->sum && tile == 0; /* its first dispatch also writes the sum, which others read */
    return begin_part(p, &(plan_part){ .weight = w, .tile = tile, .routes = always ? NULL : routes }, e);
}

gm_status streaming_resume(gpu_plan *p, error *e) { return begin_part(p, &(plan_part){ 0 }, e); }

void streaming_free(gpu_plan *p) {
    plan_streaming *s = p->streaming;
    if (!s) return;
    streaming_restart(p);
    for (size_t i = 0; i < s->gather_count; i++) table_rows_free(&s->gathers[i].fetched);
    free(s->gathers);
    free(s->parts);
    free(s->rows);
    free(s->in_use);
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
    for (size_t i = 0; i < s->gather_count; i++) {
        table_rows_restart(&s->gathers[i].fetched);
        s->gathers[i].written = false;
    }
    s->ticket = 0;
    s->next = 0;
    s->expert = s->chunk = 0;
    s->routes_known = NULL;
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

/* Finds out which experts the run's tokens use. GM_AGAIN until the routes have arrived. */
static gm_status learn_routes(const gpu_plan *p, const tensor *routes, size_t tokens, error *e) {
    plan_streaming *s = p->streaming;
    uint64_t        bytes = 0;
    const uint32_t *ids = gpu_ticket_data(p->backend->host, s->ticket, &bytes);
    TRY(gpu_host_problem(p->backend->host, e));
    if (!ids) return GM_AGAIN;
    memset(s->in_use, 0, s->experts * sizeof *s->in_use);
    for (size_t t = 0; t < tokens; t++) {
        for (uint64_t i = 0; i < routes->ne[0] / 2; i++) { /* ids, then weights */
            const uint32_t id = ids[t * routes->token_stride + i];
            if (id < s->experts) s->in_use[id] = true;
        }
    }
    gpu_ticket_done(p->backend->host, s->ticket);
    s->ticket = 0;
    s->routes_known = routes;
    return GM_OK;
}

static bool tile_in_use(const plan_streaming *s, const plan_part *part) {
    if (!part->routes) return true;
    const weight_tile tile = weight_tile_of(&part->weight->layout, part->tile);
    for (uint32_t i = 0; i < tile.experts; i++) {
        if (s->in_use[tile.first_expert + i]) return true;
    }
    return false;
}

/* Uploads only the routed experts of a tile. If an expert's size is not a multiple of the repack unit, uploads the
 * whole tile. */
static gm_status upload_tile(gpu_plan *p, const plan_part *part, error *e) {
    plan_streaming      *s = p->streaming;
    const weight_layout *layout = &part->weight->layout;
    const weight_tile    tile = weight_tile_of(layout, part->tile);
    const uint64_t       expert = (uint64_t)layout->rows * layout->chunks, all = (uint64_t)tile.rows * layout->chunks;
    const bool           apart = part->routes && expert % weight_piece_unit(layout) == 0;
    const uint32_t       step = (uint32_t)(apart ? expert : all);
    for (; (uint64_t)s->expert * step < all; s->expert++) {
        const uint32_t end = (s->expert + 1) * step;
        if (apart && !s->in_use[tile.first_expert + s->expert]) continue;
        if (s->chunk < end - step) s->chunk = end - step;
        while (s->chunk < end) {
            const gm_status status = gpu_backend_stream(p->backend, part->weight, part->tile, &s->chunk, end, e);
            if (status) return status;
        }
    }
    s->expert = s->chunk = 0;
    return GM_OK;
}

static gm_status submit_part(gpu_plan *p, plan_part *part, size_t end, error *e) {
    plan_streaming *s = p->streaming;
    if (part->at_read) {
        if (s->ticket) gpu_ticket_done(p->backend->host, s->ticket);
        s->ticket = gpu_ticket_new(p->backend->host);
        if (!s->ticket) return fail_memory(e, "a ticket", sizeof s->ticket);
        p->words.data[part->at_read] = s->ticket;
    }
    return gpu_submit(p->backend->host, p->words.data + part->begin, end - part->begin, e);
}

/* Where a part ends. Only the last part reads results back. */
static size_t part_end(const plan_streaming *s, size_t index) {
    return index + 1 < s->part_count ? s->parts[index].end : s->end;
}

/* Runs the next part. Its tile, if it has one, goes into the slot, which this plan owns at this point. */
static gm_status run_part(gpu_plan *p, error *e) {
    plan_streaming *s = p->streaming;
    plan_part      *part = &s->parts[s->next];
    gm_status       status = part->weight ? upload_tile(p, part, e) : GM_OK;
    if (!status && s->next + 1 == s->part_count && p->backend->flags) status = gpu_backend_ask_damage(p->backend, e);
    if (!status) status = submit_part(p, part, part_end(s, s->next), e);
    if (status) return status;
    release_slot(p);
    s->next++;
    return GM_OK;
}

/* Makes the plan the slot's owner. The previous owner may have stopped halfway through a tile, and may never continue.
 * So we finish its part; if it continues, it does so from there. Taking the slot away instead could make two plans undo
 * each other's uploads forever. An error concerns only the owner: its run restarts, and gets the error again. */
static gm_status take_slot(gpu_plan *p) {
    gpu_plan *owner = p->backend->slot_for;
    if (owner && owner != p) {
        error           its = { 0 };
        const gm_status status = run_part(owner, &its);
        if (status == GM_AGAIN) return GM_AGAIN;
        if (status) streaming_restart(owner);
    }
    p->backend->slot_for = p;
    return GM_OK;
}

gm_status streaming_submit(gpu_plan *p, const run_inputs *in, size_t end, error *e) {
    plan_streaming *s = p->streaming;
    if (!s->next && gpu_pipelines_pending(p->backend->host))
        return GM_AGAIN; /* a part that waited would upload twice */
    for (size_t i = 0; i < s->gather_count && !s->next; i++) {
        const gm_status status = gather_rows(p, &s->gathers[i], in, e);
        if (status) return status;
    }
    if (!s->next) {
        const gm_status status = gpu_plan_write_given(p, in, e);
        if (status) return status;
    }
    s->end = end;
    while (s->next < s->part_count) {
        const plan_part *part = &s->parts[s->next];
        gm_status        status = GM_OK;
        if (part->routes && part->routes != s->routes_known) status = learn_routes(p, part->routes, in->tokens, e);
        if (!status && part->weight && !tile_in_use(s, part)) {
            s->next++;
            continue;
        }
        if (!status && part->weight) status = take_slot(p);
        if (!status) status = run_part(p, e);
        if (status) return status;
    }
    streaming_restart(p);
    return GM_OK;
}
