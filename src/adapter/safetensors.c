/* Reads and checks the header of a safetensors file. */

#include "adapter/safetensors.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of an element; 0 if we do not know the type. */
static uint32_t type_bytes(str type) {
    static const struct {
        const char *name;
        uint32_t    bytes;
    } types[] = {
        { "F64", 8 },  { "F32", 4 }, { "F16", 2 },     { "BF16", 2 },    { "I64", 8 },     { "I32", 4 },
        { "I16", 2 },  { "I8", 1 },  { "U64", 8 },     { "U32", 4 },     { "U16", 2 },     { "U8", 1 },
        { "BOOL", 1 }, { "C64", 8 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "F8_E8M0", 1 },
    };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        if (str_is(type, types[i].name)) return types[i].bytes;
    }
    return 0;
}

/* ---- one tensor ---- */

static gm_status tensor_shape(const json *shape, safetensors_tensor *t, uint64_t *elements, error *e) {
    if (!json_is(shape, JSON_ARRAY))
        return fail(e, GM_BAD_FILE, "tensor '%.*s': shape is %s, expected a list", STR_ARGS(t->name),
                    json_describe(shape));
    if (shape->count > SAFETENSORS_DIMS)
        return fail(e, GM_BAD_FILE, "tensor '%.*s' has %zu dimensions; at most %d are read", STR_ARGS(t->name),
                    shape->count, SAFETENSORS_DIMS);
    *elements = 1;
    for (const json *item = shape->first; item; item = item->next) {
        int64_t n = 0;
        if (!json_integer(item, &n) || n < 0)
            return fail(e, GM_BAD_FILE, "tensor '%.*s': a dimension of its shape is not a whole number",
                        STR_ARGS(t->name));
        t->shape[t->dims++] = (uint64_t)n;
        if (!mul_u64(*elements, (uint64_t)n, elements))
            return fail(e, GM_BAD_FILE, "tensor '%.*s' has more elements than 64 bits count", STR_ARGS(t->name));
    }
    return GM_OK;
}

/* [begin, end] from the end of the header. `room` is what the file has there. */
static gm_status tensor_offsets(const json *offsets, uint64_t start, uint64_t room, safetensors_tensor *t, error *e) {
    int64_t begin = -1, end = -1;
    if (!json_is(offsets, JSON_ARRAY) || offsets->count != 2 || !json_integer(offsets->first, &begin) ||
        !json_integer(offsets->first->next, &end) || begin < 0 || end < begin)
        return fail(e, GM_BAD_FILE, "tensor '%.*s': data_offsets must be two whole numbers, begin and end",
                    STR_ARGS(t->name));
    if ((uint64_t)end > room)
        return fail(e, GM_BAD_FILE,
                    "tensor '%.*s' ends at byte %lld of the data, but the file has only %llu: it is cut off",
                    STR_ARGS(t->name), (long long)end, (unsigned long long)room);
    t->offset = start + (uint64_t)begin;
    t->bytes = (uint64_t)(end - begin);
    return GM_OK;
}

static gm_status tensor_parse(const json *entry, uint64_t start, uint64_t room, safetensors_tensor *t, error *e) {
    uint64_t elements = 0, bytes = 0;
    *t = (safetensors_tensor){ .name = entry->key, .type = json_string(json_get(entry, "dtype"), "") };
    if (!json_is(entry, JSON_OBJECT))
        return fail(e, GM_BAD_FILE, "tensor '%.*s': expected an object with dtype, shape and data_offsets, found %s",
                    STR_ARGS(t->name), json_describe(entry));
    if (!t->type.length) return fail(e, GM_BAD_FILE, "tensor '%.*s': dtype is missing", STR_ARGS(t->name));
    TRY(tensor_shape(json_get(entry, "shape"), t, &elements, e));
    TRY(tensor_offsets(json_get(entry, "data_offsets"), start, room, t, e));
    const uint32_t size = type_bytes(t->type);
    if (size && (!mul_u64(elements, size, &bytes) || bytes != t->bytes))
        return fail(e, GM_BAD_FILE,
                    "tensor '%.*s': %llu elements of %.*s need %llu bytes, but data_offsets give it %llu",
                    STR_ARGS(t->name), (unsigned long long)elements, STR_ARGS(t->type),
                    (unsigned long long)(elements > UINT64_MAX / size ? UINT64_MAX : elements * size),
                    (unsigned long long)t->bytes);
    return GM_OK;
}

/* ---- the header ---- */

static int compare_offsets(const void *a, const void *b) {
    const safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return str_compare(x->name, y->name);
}

static gm_status check_layout(const safetensors *s, uint64_t start, uint64_t length, error *e) {
    uint64_t at = start;
    for (size_t i = 0; i < s->count; i++) {
        const safetensors_tensor *t = &s->tensors[i];
        if (t->offset != at)
            return fail(e, GM_BAD_FILE,
                        "tensor '%.*s' starts at byte %llu of the data; the tensor before it ends at %llu",
                        STR_ARGS(t->name), (unsigned long long)(t->offset - start), (unsigned long long)(at - start));
        at += t->bytes;
    }
    if (at == length) return GM_OK;
    return fail(e, GM_BAD_FILE, "the tensors end at byte %llu of the file, which has %llu", (unsigned long long)at,
                (unsigned long long)length);
}

static gm_status header_parse(const json *root, uint64_t start, uint64_t length, safetensors *out, error *e) {
    if (!json_is(root, JSON_OBJECT))
        return fail(e, GM_BAD_FILE, "the header is %s, expected an object", json_describe(root));
    TRY(json_check_keys(root, e));
    out->tensors = arena_array(&out->memory, root->count + 1, sizeof *out->tensors);
    if (!out->tensors) return fail_memory(e, "the tensors of a file", root->count * sizeof *out->tensors);
    for (const json *entry = root->first; entry; entry = entry->next) {
        if (str_is(entry->key, "__metadata__")) continue;
        TRY(tensor_parse(entry, start, length - start, &out->tensors[out->count], e));
        out->count++;
    }
    qsort(out->tensors, out->count, sizeof *out->tensors, compare_offsets);
    return check_layout(out, start, length, e);
}

static gm_status fail_not_safetensors(const uint8_t *first, uint64_t header, uint64_t length, error *e) {
    if (!memcmp(first, "PK", 2) || first[0] == 0x80)
        return fail(
            e, GM_UNSUPPORTED,
            "this is a PyTorch file (adapter_model.bin), not a safetensors file. Reading one can run any program, "
            "so it is refused: save the adapter as safetensors");
    return fail(e, GM_BAD_FILE,
                "not a safetensors file, or cut off: the header should have %llu bytes, but the file has only %llu",
                (unsigned long long)header, (unsigned long long)length);
}

static gm_status safetensors_header(source *from, safetensors *out, error *e) {
    const uint64_t length = source_length(from);
    if (length < 8)
        return fail(e, GM_BAD_FILE, "not a safetensors file: it has only %llu bytes", (unsigned long long)length);
    const uint8_t *first = source_bytes(from, 0, 8);
    if (!first) return GM_AGAIN;
    uint64_t header;
    memcpy(&header, first, sizeof header);
    if (header > length - 8) return fail_not_safetensors(first, header, length, e);
    if (header > SAFETENSORS_MOST_HEADER)
        return fail(e, GM_UNSUPPORTED, "the header has %llu bytes; at most %d are read", (unsigned long long)header,
                    SAFETENSORS_MOST_HEADER);
    const uint8_t *text = source_bytes(from, 8, header);
    if (!text) return GM_AGAIN;
    json *root = NULL;
    TRY(json_parse((str){ (const char *)text, (size_t)header }, &out->memory, &root, e));
    return header_parse(root, 8 + header, length, out, e);
}

gm_status safetensors_read(source *from, safetensors *out, error *e) {
    const gm_status status = safetensors_header(from, out, e);
    if (status) safetensors_free(out);
    return status;
}

void safetensors_free(safetensors *s) {
    arena_free(&s->memory);
    *s = (safetensors){ 0 };
}
