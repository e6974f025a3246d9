/* A model file: adding its parts in order, and lookup. */

#include "gguf/parts.h"

#include <stdlib.h>

gm_status gguf_step(gguf *g, error *e) {
    if (g->failed) return fail(e, g->failed, "the file was already refused");
    while (g->parts_read < g->part_count) {
        part     *p = &g->parts[g->parts_read];
        gm_status status = part_read(p, e);
        if (status == GM_AGAIN) return status;
        if (!status) status = part_finish(g, p, e);
        if (status) return g->failed = status;
        g->parts_read++;
    }
    return GM_OK;
}

/* ---- creation ---- */

static gm_status part_append(gguf *g, source *from, error *e) {
    part *parts = realloc(g->parts, ((size_t)g->part_count + 1) * sizeof *parts);
    if (!parts) return fail_memory(e, "a part of the model", sizeof *parts);
    g->parts = parts;
    part *p = &g->parts[g->part_count];
    *p = (part){ .from = from, .number = g->part_count++ };
    p->head = source_whole(from);
    p->head_length = p->head ? source_length(from) : 0;
    return GM_OK;
}

gm_status gguf_new(source *first, gguf **out, error *e) {
    *out = NULL;
    gguf     *g = calloc(1, sizeof *g);
    gm_status status = g ? part_append(g, first, e) : fail_memory(e, "a model file", sizeof *g);
    if (!g || status) {
        source_free(first);
        free(g);
        return status;
    }
    g->part_total = 1;
    *out = g;
    return GM_OK;
}

gm_status gguf_add_part(gguf *g, source *next, error *e) {
    gm_status status = GM_OK;
    if (g->failed || g->parts_read < g->part_count)
        status = fail(e, GM_BAD_ARGUMENT, "the previous part is not read yet");
    else if (g->part_count == g->part_total)
        status = fail(e, GM_BAD_ARGUMENT, "the model has %u parts, and all are added", g->part_total);
    else status = part_append(g, next, e);
    if (status) source_free(next);
    return status;
}

void gguf_free(gguf *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->part_count; i++) {
        part *p = &g->parts[i];
        table_free(&p->value_table);
        free(p->values);
        free(p->value_places);
        free(p->tensors);
        free(p->tensor_places);
        free(p->collected);
        source_free(p->from);
    }
    table_free(&g->tensor_table);
    free(g->tensors);
    free(g->parts);
    free(g);
}

/* ---- lookup ---- */

source *gguf_waiting_source(gguf *g) { return g->parts_read < g->part_count ? g->parts[g->parts_read].from : NULL; }

uint32_t gguf_parts(const gguf *g) { return g->part_total; }

uint32_t gguf_version(const gguf *g) { return g->parts[0].version; }

size_t gguf_value_count(const gguf *g) { return g->parts[0].value_count; }

const gguf_value *gguf_value_at(const gguf *g, size_t i) {
    return i < g->parts[0].value_count ? &g->parts[0].values[i] : NULL;
}

const gguf_value *gguf_find(const gguf *g, const char *key) { return part_find(&g->parts[0], key); }

size_t gguf_tensor_count(const gguf *g) { return g->tensor_count; }

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i) { return i < g->tensor_count ? &g->tensors[i] : NULL; }

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name) {
    uint32_t i = 0;
    return table_find(&g->tensor_table, str_of(name), &i) ? &g->tensors[i] : NULL;
}

source *gguf_source(const gguf *g, uint32_t number) { return number < g->part_count ? g->parts[number].from : NULL; }

uint64_t gguf_file_bytes(const gguf *g) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->part_count; i++) bytes += source_length(g->parts[i].from);
    return bytes;
}

uint64_t gguf_head_bytes(const gguf *g) {
    const uint64_t length = source_length(g->parts[0].from);
    return g->parts[0].data_start < length ? g->parts[0].data_start : length;
}

str gguf_head(const gguf *g) { return (str){ (const char *)g->parts[0].head, (size_t)g->parts[0].at }; }

const uint8_t *gguf_tensor_data(const gguf *g, const gguf_tensor *t) {
    const uint8_t *whole = source_whole(g->parts[t->part].from);
    return whole ? whole + t->offset : NULL;
}
