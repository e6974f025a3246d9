/* Opens a model that is complete: a file, with its other parts beside it, or bytes in memory. */

#include "base/buffer.h"
#include "gguf/gguf.h"

#include <stdio.h>
#include <string.h>

/* "-00001-of-00003.gguf" */
enum { SUFFIX = 20 };

/* Writes the path of part `number` (from 0) into `out`. False if `path` does not end like the name of a first part. */
static bool part_path(const char *path, uint32_t number, uint32_t count, buffer *out) {
    char expected[40];
    snprintf(expected, sizeof expected, "-00001-of-%05u.gguf", count);
    str name = str_of(path);
    if (strlen(expected) != SUFFIX || !str_ends_with(name, expected)) return false;
    buffer_clear(out);
    buffer_append(out, path, name.length - SUFFIX);
    buffer_printf(out, "-%05u-of-%05u.gguf", number + 1, count);
    return true;
}

static gm_status open_other_parts(gguf *g, const char *path, buffer *other, error *e) {
    for (uint32_t i = 1; i < gguf_parts(g); i++) {
        if (!part_path(path, i, gguf_parts(g), other)) {
            return fail(e, GM_BAD_FILE,
                        "the model is split into %u parts (split.count), so its name must end with -00001-of-%05u.gguf",
                        gguf_parts(g), gguf_parts(g));
        }
        if (other->failed) return fail_memory(e, "a path", strlen(path));
        source   *part = NULL;
        gm_status status = source_file(other->data, &part, e);
        if (!status) status = gguf_add_part(g, part, e);
        if (!status) status = gguf_step(g, e);
        if (status) return status;
    }
    return GM_OK;
}

gm_status gguf_open_file(const char *path, gguf **out, error *e) {
    *out = NULL;
    source   *first = NULL;
    gguf     *g = NULL;
    error     inner = { 0 };
    gm_status status = source_file(path, &first, e);
    if (status) return status;
    status = gguf_new(first, &g, &inner);
    if (!status) status = gguf_step(g, &inner);
    buffer other = { 0 };
    if (!status) status = open_other_parts(g, path, &other, &inner);
    buffer_free(&other);
    if (status) {
        gguf_free(g);
        return fail(e, status, "%s: %s", path, inner.why);
    }
    *out = g;
    return GM_OK;
}

gm_status gguf_open_memory(const void *data, uint64_t length, gguf **out, error *e) {
    *out = NULL;
    source   *first = NULL;
    gguf     *g = NULL;
    gm_status status = source_memory(data, length, &first, e);
    if (!status) status = gguf_new(first, &g, e);
    if (!status) status = gguf_step(g, e);
    if (!status && gguf_parts(g) > 1) {
        status = fail(e, GM_UNSUPPORTED,
                      "the model is split into %u parts (split.count); bytes in memory must be whole", gguf_parts(g));
    }
    if (status) {
        gguf_free(g);
        return status;
    }
    *out = g;
    return GM_OK;
}
