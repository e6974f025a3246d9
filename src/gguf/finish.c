/* Runs once the head of a part is read: turns names into pointers, finds each tensor's place in the file, and makes the checks
 * that need the whole head: duplicate names, data past the end, overlaps, parts that disagree. */

#include "gguf/parts.h"

#include <stdlib.h>

enum { DEFAULT_ALIGNMENT = 32, LEAST_ALIGNMENT = 8 };

static void resolve_places(part *p) {
    for (size_t i = 0; i < p->value_count; i++) {
        p->values[i].key.data = (const char *)p->head + p->value_places[i].name;
        p->values[i].data = p->head + p->value_places[i].data;
    }
    for (size_t i = 0; i < p->tensor_count; i++)
        p->tensors[i].name.data = (const char *)p->head + p->tensor_places[i].name;
}

static gm_status index_values(part *p, error *e) {
    bool no_memory = false;
    for (size_t i = 0; i < p->value_count; i++) {
        if (table_add(&p->value_table, p->values[i].key, (uint32_t)i, &no_memory)) continue;
        if (no_memory) return fail_memory(e, "the table of metadata keys", p->value_count * sizeof(str));
        return fail(e, GM_BAD_FILE, "metadata key '%.*s' appears twice", STR_ARGS(p->values[i].key));
    }
    return GM_OK;
}

const gguf_value *part_find(const part *p, const char *key) {
    uint32_t i = 0;
    return table_find(&p->value_table, str_of(key), &i) ? &p->values[i] : NULL;
}

/* Reads a whole number from 0 to `most`. Leaves *out alone if the key is absent. */
static gm_status part_integer(const part *p, const char *key, int64_t most, uint64_t *out, error *e) {
    const gguf_value *value = part_find(p, key);
    int64_t           n = 0;
    if (!value) return GM_OK;
    if (value->array || value->type == GGUF_BOOL || !gguf_item_integer(value, 0, &n)) {
        return fail(e, GM_BAD_FILE, "metadata key '%s' must be a whole number", key);
    }
    if (n < 0 || n > most)
        return fail(e, GM_BAD_FILE, "metadata key '%s' is %lld, expected 0 to %lld", key, (long long)n,
                    (long long)most);
    *out = (uint64_t)n;
    return GM_OK;
}

static gm_status find_data(part *p, error *e, uint64_t *alignment) {
    *alignment = DEFAULT_ALIGNMENT;
    gm_status status = part_integer(p, "general.alignment", UINT32_MAX, alignment, e);
    if (status) return status;
    const uint64_t a = *alignment;
    if (a < LEAST_ALIGNMENT || (a & (a - 1))) {
        return fail(e, GM_BAD_FILE, "metadata key 'general.alignment' is %llu, expected a power of two of at least %d",
                    (unsigned long long)a, LEAST_ALIGNMENT);
    }
    if (!add_u64(p->at, a - 1, &p->data_start)) p->data_start = UINT64_MAX;
    p->data_start = p->data_start / a * a;
    return GM_OK;
}

static gm_status place_tensors(part *p, uint64_t alignment, error *e) {
    const uint64_t length = source_length(p->from);
    for (size_t i = 0; i < p->tensor_count; i++) {
        gguf_tensor *t = &p->tensors[i];
        uint64_t     end = 0;
        if (t->offset % alignment) {
            return fail(e, GM_BAD_FILE, "tensor '%.*s': its offset %llu is not a multiple of the alignment %llu",
                        STR_ARGS(t->name), (unsigned long long)t->offset, (unsigned long long)alignment);
        }
        if (!add_u64(t->offset, p->data_start, &t->offset) || !add_u64(t->offset, t->bytes, &end)) {
            return fail(e, GM_BAD_FILE, "tensor '%.*s': its offset does not fit in 64 bits", STR_ARGS(t->name));
        }
        if (end > length) {
            return fail(e, GM_BAD_FILE, "the file is cut off: tensor '%.*s' ends at byte %llu, the file has %llu",
                        STR_ARGS(t->name), (unsigned long long)end, (unsigned long long)length);
        }
    }
    return GM_OK;
}

static int by_offset(const void *a, const void *b) {
    const gguf_tensor *const *x = a, *const *y = b;
    return (*x)->offset<(*y)->offset ? -1 : (*x)->offset>(*y)->offset;
}

static gm_status check_overlap(const part *p, error *e) {
    if (p->tensor_count < 2) return GM_OK;
    const gguf_tensor **sorted = malloc(p->tensor_count * sizeof *sorted);
    if (!sorted) return fail_memory(e, "the table of tensors", p->tensor_count * sizeof *sorted);
    for (size_t i = 0; i < p->tensor_count; i++) sorted[i] = &p->tensors[i];
    qsort(sorted, p->tensor_count, sizeof *sorted, by_offset);
    gm_status status = GM_OK;
    for (size_t i = 1; i < p->tensor_count && !status; i++) {
        const gguf_tensor *a = sorted[i - 1], *b = sorted[i];
        const uint64_t     end = a->offset + a->bytes;
        if (end <= b->offset) continue;
        str first = { a->name.data, min_size(a->name.length, 100) },
            second = { b->name.data, min_size(b->name.length, 100) };
        status = fail(e, GM_BAD_FILE, "tensor '%.*s' ends at byte %llu, inside tensor '%.*s', which starts at %llu",
                      STR_ARGS(first), (unsigned long long)end, STR_ARGS(second), (unsigned long long)b->offset);
    }
    free(sorted);
    return status;
}

/* Appends the part's tensors to those of the parts before it. */
static gm_status join_tensors(gguf *g, const part *p, error *e) {
    const size_t count = g->tensor_count + p->tensor_count;
    if (count > MOST_TENSORS)
        return fail(e, GM_UNSUPPORTED, "the parts have %zu tensors, at most %d are read", count, MOST_TENSORS);
    gguf_tensor *all = realloc(g->tensors, (count ? count : 1) * sizeof *all);
    if (!all) return fail_memory(e, "the table of tensors", count * sizeof *all);
    g->tensors = all;
    for (size_t i = 0; i < p->tensor_count; i++) {
        bool no_memory = false;
        if (!table_add(&g->tensor_table, p->tensors[i].name, (uint32_t)g->tensor_count, &no_memory)) {
            if (no_memory) return fail_memory(e, "the table of tensor names", count * sizeof(str));
            return fail(e, GM_BAD_FILE, "tensor '%.*s' appears twice", STR_ARGS(p->tensors[i].name));
        }
        all[g->tensor_count++] = p->tensors[i];
    }
    return GM_OK;
}

/* All parts must agree on split.count and split.tensors.count, be in the order of split.no, and have that many tensors. */
static gm_status check_split(gguf *g, const part *p, error *e) {
    uint64_t  number = 0, count = 1, tensors = UINT64_MAX;
    gm_status status = part_integer(p, "split.no", MOST_PARTS, &number, e);
    if (!status) status = part_integer(p, "split.count", MOST_PARTS, &count, e);
    if (!status) status = part_integer(p, "split.tensors.count", MOST_TENSORS, &tensors, e);
    if (status) return status;
    if (!p->number) {
        g->part_total = count ? (uint32_t)count : 1;
        g->split_tensors = tensors;
        if (number) {
            return fail(e, GM_BAD_ARGUMENT,
                        "this is part %llu of a model split into %u (split.no is %llu): open the first part",
                        (unsigned long long)number + 1, g->part_total, (unsigned long long)number);
        }
    } else if (!part_find(p, "split.no") || number != p->number) {
        return fail(e, GM_BAD_FILE, "part %u: split.no says %llu, expected %u", p->number + 1,
                    (unsigned long long)number, p->number);
    } else if (count != g->part_total) {
        return fail(e, GM_BAD_FILE, "part %u: split.count says %llu, the first part says %u", p->number + 1,
                    (unsigned long long)count, g->part_total);
    } else if (tensors != g->split_tensors) {
        return fail(e, GM_BAD_FILE, "part %u: split.tensors.count differs from the first part's", p->number + 1);
    }
    if (p->number + 1 == g->part_total && g->split_tensors != UINT64_MAX && g->split_tensors != g->tensor_count) {
        return fail(e, GM_BAD_FILE, "split.tensors.count says %llu, the %u parts have %zu tensors",
                    (unsigned long long)g->split_tensors, g->part_total, g->tensor_count);
    }
    return GM_OK;
}

gm_status part_finish(gguf *g, part *p, error *e) {
    uint64_t alignment = 0;
    resolve_places(p);
    gm_status status = index_values(p, e);
    if (!status) status = find_data(p, e, &alignment);
    if (!status) status = place_tensors(p, alignment, e);
    if (!status) status = check_overlap(p, e);
    if (!status) status = join_tensors(g, p, e);
    if (!status) status = check_split(g, p, e);
    return status;
}
