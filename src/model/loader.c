#include "model/loader.h"

#include <math.h>

/* A tensor's bytes; NULL if they are not in memory. */
static const uint8_t *tensor_bytes_held(const gguf *file, const gguf_tensor *t) {
    return source_held(gguf_source(file, t->part), t->offset, t->bytes);
}

weight loader_any(weight_loader *l, const char *name, uint64_t ne[4], bool required) {
    if (l->status) return (weight){ 0 };
    const gguf_tensor *t = gguf_find_tensor(l->file, name);
    if (!t) {
        if (required) l->status = fail(l->e, GM_BAD_FILE, "tensor '%s' is missing", name);
        return (weight){ 0 };
    }
    if (!t->format->dequantise) {
        l->status =
            fail(l->e, GM_BAD_FILE, "tensor '%s' has the type %s, which weights cannot have", name, t->format->name);
        return (weight){ 0 };
    }
    for (size_t i = 0; i < 4; i++) ne[i] = t->ne[i];
    weight w = { .name = arena_copy(l->memory, t->name),
                 .type = t->type,
                 .ne = { t->ne[0], t->ne[1], t->ne[2] },
                 .bytes = t->bytes,
                 .data = l->shapes ? NULL : tensor_bytes_held(l->file, t),
                 .from = gguf_source(l->file, t->part),
                 .place = t->offset };
    if (!w.name) l->status = fail_memory(l->e, "a tensor's name", t->name.length);
    return w;
}

weight loader_matrix(weight_loader *l, const char *name, uint64_t n0, uint64_t n1, uint64_t n2, bool required) {
    uint64_t     ne[4];
    const weight w = loader_any(l, name, ne, required);
    if (!w.name || (ne[0] == n0 && ne[1] == n1 && ne[2] == n2 && ne[3] == 1)) return w;
    l->status = fail(l->e, GM_BAD_FILE,
                     "tensor '%s' has the shape [%llu, %llu, %llu, %llu]; the metadata requires [%llu, %llu, %llu]",
                     name, (unsigned long long)ne[0], (unsigned long long)ne[1], (unsigned long long)ne[2],
                     (unsigned long long)ne[3], (unsigned long long)n0, (unsigned long long)n1, (unsigned long long)n2);
    return (weight){ 0 };
}

float *loader_new_vector(weight_loader *l, const char *name, uint64_t n, weight *out) {
    const bool wanted = !l->status && !l->shapes;
    float     *values = wanted ? arena_array(l->memory, n, sizeof *values) : NULL;
    *out = (weight){ 0 };
    if (wanted && !values) l->status = fail_memory(l->e, name, n * sizeof *values);
    if (l->status) return NULL;
    *out = (weight){ .name = name, .type = TYPE_F32, .ne = { n, 1, 1 }, .bytes = n * sizeof *values, .data = values };
    return values;
}

weight loader_vector(weight_loader *l, const char *name, uint64_t n, bool required) {
    weight w = loader_matrix(l, name, n, 1, 1, required), converted;
    if (l->shapes) w.data = NULL;
    if (!w.name || l->shapes) return w;
    if (!w.data) {
        l->status = fail(l->e, GM_IO, "tensor '%s' is not in memory", name);
        return (weight){ 0 };
    }
    float *values = loader_new_vector(l, w.name, n, &converted);
    if (!values) return (weight){ 0 };
    const quant_format *format = quant_format_of(w.type);
    format->dequantise(values, w.data, n / format->block);
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) {
            l->status = fail(l->e, GM_BAD_FILE, "tensor '%s' has %s at element %llu", name,
                             isnan(values[i]) ? "NaN" : "an infinity", (unsigned long long)i);
            return (weight){ 0 };
        }
    }
    converted.place = w.place;
    return converted;
}
