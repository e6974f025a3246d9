/* Writes the merged model, a tensor at a time and of each some rows at a time. */

#include "adapter/merge.h"

#include "adapter/modules.h"
#include "base/new_file.h"
#include "base/pool.h"
#include "cpu/quantise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MERGE_CHUNK = 1 << 20 }; /* bytes that are written at a time, or one row */

/* A pair, and the tensor that it changes. */
typedef struct {
    const gguf_tensor  *from;
    bool                head; /* changes the copy of the embedding's table that becomes the head */
    const adapter_pair *pair;
    float               scale;
} correction;

/* A tensor of the new file. */
typedef struct {
    const gguf_tensor *from;
    bool               head;
    quant_type         type;
    bool               changes;
} merge_target;

typedef struct {
    const gguf          *file;
    const model         *m;
    const merge_options *options;
    arena               *memory;
    correction          *corrections;
    size_t               correction_count;
    merge_target        *targets;
    size_t               target_count;
    merge_report        *report;
    pool                *threads;
    /* the file that is being written */
    new_file *out;
    uint64_t  done, total;
    bool      stopped;
} merge;

/* ---- what changes ---- */

static gm_status correction_find(const merge *g, const adapter_pair *p, correction *out, error *e) {
    module_id id;
    if (!module_of_tensor(str_of(p->base), &id)) return fail(e, GM_UNSUPPORTED, "'%s' cannot be merged", p->base);
    out->pair = p;
    out->head = module_is_head(id) && !g->m->output.name;
    if (module_is_tower(id)) out->from = adapter_tower_tensor(g->file, p->base);
    else out->from = gguf_find_tensor(g->file, out->head ? "token_embd.weight" : p->base);
    if (out->from || adapter_pair_is_unused(p, g->m)) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "adapter of '%s': the model has no such tensor", p->base);
}

static gm_status list_corrections(merge *g, const merge_part *parts, size_t count, error *e) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) most += parts[i].adapter->count;
    g->corrections = arena_array(g->memory, most + 1, sizeof *g->corrections);
    if (!g->corrections) return fail_memory(e, "the changes of a model", most * sizeof *g->corrections);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < parts[i].adapter->count; j++) {
            const adapter_pair *p = &parts[i].adapter->pairs[j];
            correction         *c = &g->corrections[g->correction_count];
            TRY(correction_find(g, p, c, e));
            c->scale = (float)(p->scale * parts[i].scale);
            if (c->from) g->correction_count++;
        }
    }
    return GM_OK;
}

static bool correction_is_of(const correction *c, const merge_target *t) {
    return c->from == t->from && c->head == t->head;
}

static gm_status add_target(merge *g, const gguf_tensor *from, bool head, error *e) {
    merge_target *t = &g->targets[g->target_count++];
    *t = (merge_target){ .from = from, .head = head, .type = from->type };
    for (size_t i = 0; i < g->correction_count; i++) t->changes |= correction_is_of(&g->corrections[i], t);
    if (!t->changes) return GM_OK;
    if (g->options->retype && from->ne[0] % quant_format_of((uint32_t)g->options->type)->block == 0)
        t->type = g->options->type;
    if (quantise_known(t->type)) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "tensor '%.*s' has the type %s, which cannot be written", STR_ARGS(from->name),
                from->format->name);
}

/* All tensors of the model, and a head of its own if embedding and head will differ. */
static gm_status list_targets(merge *g, error *e) {
    const size_t       count = gguf_tensor_count(g->file);
    const gguf_tensor *table = gguf_find_tensor(g->file, "token_embd.weight");
    bool               splits = false;
    g->targets = arena_array(g->memory, count + 1, sizeof *g->targets);
    if (!g->targets) return fail_memory(e, "the tensors of a model", count * sizeof *g->targets);
    for (size_t i = 0; i < g->correction_count; i++) splits |= g->corrections[i].from == table;
    for (size_t i = 0; i < count; i++) TRY(add_target(g, gguf_tensor_at(g->file, i), false, e));
    return splits && !g->m->output.name ? add_target(g, table, true, e) : GM_OK;
}

/* ---- rows ---- */

typedef struct {
    const merge_target *target;
    const correction  **corrections;
    size_t              count;
    const quant_format *from, *to;
    const uint8_t      *old;
    uint8_t            *out;
    uint64_t            first, rows; /* counted through all matrices of the tensor */
    double (*sums)[3];               /* of each row */
    float *scratch;                  /* of each thread: three rows */
    pool  *threads;
} row_job;

/* y += scale · B[row] · A, or for the embedding y += scale · B · A[row] */
static void add_correction(const correction *c, size_t n, uint64_t matrix, uint64_t row, float *y) {
    const adapter_pair *p = c->pair;
    const size_t        rank = p->rank;
    if (adapter_is_embedding(p)) {
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (size_t k = 0; k < rank; k++) sum += p->b[i * rank + k] * p->a[row * rank + k];
            y[i] += c->scale * sum;
        }
        return;
    }
    for (size_t k = 0; k < rank; k++) {
        const float  factor = c->scale * p->b[(matrix * p->out + row) * rank + k];
        const float *a = p->a + (matrix * rank + k) * n;
        for (size_t i = 0; i < n; i++) y[i] += factor * a[i];
    }
}

static void merge_row(const row_job *j, uint64_t row, float *scratch) {
    const gguf_tensor *t = j->target->from;
    const size_t       n = (size_t)t->ne[0];
    const uint64_t     at = j->first + row, in = quant_row_bytes(j->from, n), to = quant_row_bytes(j->to, n);
    const uint8_t     *old = j->old + at * in;
    uint8_t           *out = j->out + row * to;
    float             *x = scratch, *y = scratch + n, *z = scratch + 2 * n;
    double            *sums = j->sums[row];
    j->from->dequantise(x, old, n / j->from->block);
    memcpy(y, x, n * sizeof *y);
    for (size_t i = 0; i < j->count; i++) add_correction(j->corrections[i], n, at / t->ne[1], at % t->ne[1], y);
    quantise_blocks(j->target->type, out, y, j->from == j->to ? old : NULL, n / j->to->block);
    j->to->dequantise(z, out, n / j->to->block);
    sums[0] = sums[1] = sums[2] = 0;
    for (size_t i = 0; i < n; i++) {
        sums[0] += (double)x[i] * x[i];
        sums[1] += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        sums[2] += ((double)z[i] - y[i]) * ((double)z[i] - y[i]);
    }
}

static void merge_rows(void *context, size_t thread, size_t threads) {
    const row_job *j = context;
    (void)threads;
    for (size_t row; (row = pool_take(j->threads)) < j->rows;)
        merge_row(j, row, j->scratch + thread * 3 * (size_t)j->target->from->ne[0]);
}

/* ---- the report ---- */

static gm_status report_add(merge *g, const merge_target *t, const double sums[3], error *e) {
    merge_report *r = g->report;
    char          name[ADAPTER_NAME], kind[ADAPTER_NAME];
    merge_kind   *k = NULL;
    if (!isfinite(sums[1]) || !isfinite(sums[2]))
        return fail(e, GM_BAD_ARGUMENT, "tensor '%.*s' gets values that its type cannot hold", STR_ARGS(t->from->name));
    snprintf(name, sizeof name, "%.*s", (int)min_size(t->from->name.length, sizeof name - 1), t->from->name.data);
    adapter_kind(t->head ? "output.weight" : name, kind);
    for (size_t i = 0; i < r->count && !k; i++)
        if (!strcmp(r->kinds[i].kind, kind) && r->kinds[i].type == t->type) k = &r->kinds[i];
    if (!k) {
        k = &r->kinds[r->count++];
        memcpy(k->kind, kind, sizeof kind);
        k->type = t->type;
    }
    merge_kind *const both[] = { k, &r->all };
    for (size_t i = 0; i < 2; i++) {
        both[i]->tensors++;
        both[i]->weights += sums[0];
        both[i]->change += sums[1];
        both[i]->lost += sums[2];
    }
    return GM_OK;
}

/* ---- tensors ---- */

/* The first `bytes` of a tensor are no longer needed: a model that is larger than the memory passes through a little of it. */
static void forget_read(const merge *g, const merge_target *t, uint64_t bytes) {
    source_is_read(gguf_source(g->file, t->from->part), t->from->offset, bytes);
}

static gm_status write_copy(const merge *g, const merge_target *t, const uint8_t *data, gguf_writer *w, error *e) {
    for (uint64_t at = 0; at < t->from->bytes; at += MERGE_CHUNK) {
        const uint64_t left = t->from->bytes - at;
        TRY(gguf_writer_data(w, data + at, left < MERGE_CHUNK ? left : MERGE_CHUNK, e));
        if (at / MERGE_CHUNK % 16 == 15) forget_read(g, t, at);
    }
    forget_read(g, t, t->from->bytes);
    return GM_OK;
}

static gm_status write_merged_rows(merge *g, row_job *j, uint64_t at_a_time, gguf_writer *w, error *e) {
    const gguf_tensor *t = j->target->from;
    const uint64_t     rows = t->ne[1] * t->ne[2] * t->ne[3], row = quant_row_bytes(j->to, t->ne[0]);
    double             sums[3] = { 0 };
    for (j->first = 0; j->first < rows; j->first += at_a_time) {
        j->rows = rows - j->first < at_a_time ? rows - j->first : at_a_time;
        pool_run(g->threads, merge_rows, j);
        for (uint64_t i = 0; i < j->rows; i++)
            for (size_t k = 0; k < 3; k++) sums[k] += j->sums[i][k];
        TRY(gguf_writer_data(w, j->out, j->rows * row, e));
        forget_read(g, j->target, (j->first + j->rows) * quant_row_bytes(j->from, t->ne[0]));
    }
    return report_add(g, j->target, sums, e);
}

static gm_status write_changed(merge *g, const merge_target *t, const uint8_t *data, gguf_writer *w, error *e) {
    row_job        j = { .target = t, .old = data, .threads = g->threads };
    const uint64_t n = t->from->ne[0];
    j.from = t->from->format;
    j.to = quant_format_of((uint32_t)t->type);
    const uint64_t row = quant_row_bytes(j.to, n), rows = row < MERGE_CHUNK ? MERGE_CHUNK / row : 1;
    const size_t   threads = pool_threads(g->threads);
    j.out = malloc((size_t)(rows * row));
    j.sums = malloc((size_t)rows * sizeof *j.sums);
    j.scratch = malloc(threads * 3 * (size_t)n * sizeof *j.scratch);
    j.corrections = malloc((g->correction_count + 1) * sizeof *j.corrections);
    gm_status status = j.out && j.sums && j.scratch && j.corrections ? GM_OK : fail_memory(e, "some rows", rows * row);
    for (size_t i = 0; i < g->correction_count && !status; i++)
        if (correction_is_of(&g->corrections[i], t)) j.corrections[j.count++] = &g->corrections[i];
    if (!status) status = write_merged_rows(g, &j, rows, w, e);
    free(j.out);
    free(j.sums);
    free(j.scratch);
    free(j.corrections);
    return status;
}

/* ---- the file ---- */

static bool merge_sink(void *user, const void *data, size_t length) {
    merge *g = user;
    if (!new_file_write(g->out, data, length)) return false;
    g->done += length;
    if (g->options->progress && g->total && !g->options->progress(g->options->user, g->done, g->total))
        g->stopped = true;
    return !g->stopped;
}

static gm_status write_merged_head(merge *g, gguf_writer *w, error *e) {
    for (size_t i = 0; i < gguf_value_count(g->file); i++) {
        const gguf_value *v = gguf_value_at(g->file, i);
        if (!str_starts_with(v->key, "split.")) gguf_write_value(w, v); /* the new file is whole */
    }
    for (size_t i = 0; i < g->target_count; i++) {
        const merge_target *t = &g->targets[i];
        char                name[256];
        snprintf(name, sizeof name, "%.*s", (int)min_size(t->from->name.length, sizeof name - 1), t->from->name.data);
        gguf_write_tensor(w, t->head ? "output.weight" : name, t->type, t->from->dims, t->from->ne);
    }
    TRY(gguf_writer_head(w, merge_sink, g, e));
    g->total = g->report->bytes = gguf_writer_size(w);
    return GM_OK;
}

static gm_status write_merged(merge *g, gguf_writer *w, error *e) {
    TRY(write_merged_head(g, w, e));
    for (size_t i = 0; i < g->target_count; i++) {
        const merge_target *t = &g->targets[i];
        const uint8_t      *data = gguf_tensor_data(g->file, t->from);
        if (!data) return fail(e, GM_IO, "tensor '%.*s' is not in memory", STR_ARGS(t->from->name));
        TRY(t->changes ? write_changed(g, t, data, w, e) : write_copy(g, t, data, w, e));
    }
    return gguf_writer_end(w, e);
}

static gm_status merge_to_file(merge *g, const char *path, error *e) {
    gguf_writer *w = NULL;
    error        problem = { 0 };
    TRY(gguf_writer_new(&w, e));
    gm_status status = new_file_open(path, NEW_FILE_BULK, &g->out, e);
    if (!status) {
        (void)write_merged(g, w, &problem);
        if (g->stopped) { /* the writer only knows that its sink failed */
            problem = (error){ 0 };
            fail(&problem, GM_CANCELLED, "stopped after %llu bytes", (unsigned long long)g->done);
        }
        status = new_file_end(g->out, &problem, e);
    }
    gguf_writer_free(w);
    return status;
}

gm_status adapter_merge(const gguf *file, const model *m, const merge_part *parts, size_t count, const char *path,
                        const merge_options *options, arena *memory, merge_report *report, error *e) {
    merge g = { .file = file, .m = m, .options = options, .memory = memory, .report = report };
    *report = (merge_report){ .all.kind = "all" };
    TRY(list_corrections(&g, parts, count, e));
    TRY(list_targets(&g, e));
    report->kinds = arena_array(memory, g.target_count + 1, sizeof *report->kinds);
    if (!report->kinds) return fail_memory(e, "the report", g.target_count * sizeof *report->kinds);
    TRY(pool_new(options->threads ? options->threads : physical_cores(), &g.threads, e));
    const gm_status status = merge_to_file(&g, path, e);
    pool_free(g.threads);
    return status;
}
