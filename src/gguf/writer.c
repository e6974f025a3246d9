/* The GGUF writer. Collects metadata and tensor infos in memory; streams the tensors' data to the sink. */

#include "base/buffer.h"
#include "base/table.h"
#include "gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { WRITER_ALIGNMENT = 32 };

struct gguf_writer {
    arena     memory; /* the names in the tables */
    table     keys, names;
    buffer    values, infos;
    uint64_t  value_count, tensor_count, tensor_capacity, data_bytes;
    uint64_t *sizes; /* bytes of each tensor, without padding */
    uint32_t  alignment;
    gguf_sink sink;
    void     *user;
    uint64_t  head_bytes, current, written; /* current: the tensor being written; written: its bytes so far */
    bool      sealed;
    sha256    hash;    /* of what went to the sink, if sealed */
    error     failure; /* the first failure; it sticks */
};

gm_status gguf_writer_new(gguf_writer **out, error *e) {
    gguf_writer *w = *out = calloc(1, sizeof *w);
    if (!w) return fail_memory(e, "a GGUF writer", sizeof *w);
    w->alignment = WRITER_ALIGNMENT;
    return GM_OK;
}

void gguf_writer_free(gguf_writer *w) {
    if (!w) return;
    arena_free(&w->memory);
    table_free(&w->keys);
    table_free(&w->names);
    buffer_free(&w->values);
    buffer_free(&w->infos);
    free(w->sizes);
    free(w);
}

static gm_status report_failure(const gguf_writer *w, error *e) {
    if (!w->failure.status) return GM_OK;
    return fail(e, w->failure.status, "%s", w->failure.why);
}

/* ---- metadata and infos ---- */

static void writer_put_u32(buffer *b, uint32_t value) { buffer_append(b, &value, sizeof value); }

static void writer_put_u64(buffer *b, uint64_t value) { buffer_append(b, &value, sizeof value); }

static void put_str(buffer *b, str text) {
    writer_put_u64(b, text.length);
    buffer_str(b, text);
}

/* Adds a name. False if it is not acceptable, or something failed before. */
static bool add_name(gguf_writer *w, table *names, const char *what, const char *name, size_t longest) {
    str text = str_of(name);
    if (w->failure.status) return false;
    if (w->sink)
        return fail(&w->failure, GM_BAD_ARGUMENT, "%s '%s' was added after the head was written", what, text.data),
               false;
    if (!text.length || text.length > longest) {
        return fail(&w->failure, GM_BAD_ARGUMENT, "%s '%s': a name has 1 to %zu bytes", what, text.data, longest),
               false;
    }
    const char *copy = arena_copy(&w->memory, text);
    bool        no_memory = false;
    if (copy && table_add(names, (str){ copy, text.length }, 0, &no_memory)) return true;
    if (!copy || no_memory) fail_memory(&w->failure, "names", text.length);
    else fail(&w->failure, GM_BAD_ARGUMENT, "%s '%s' appears twice", what, text.data);
    return false;
}

static bool start_value(gguf_writer *w, const char *key, uint32_t type) {
    if (!add_name(w, &w->keys, "metadata key", key, 65535)) return false;
    put_str(&w->values, str_of(key));
    writer_put_u32(&w->values, type);
    w->value_count++;
    return true;
}

static void write_scalar(gguf_writer *w, const char *key, gguf_value_type type, const void *value, size_t bytes) {
    if (start_value(w, key, type)) buffer_append(&w->values, value, bytes);
}

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t value) {
    if (str_is(str_of(key), "general.alignment")) {
        if (value < 8 || (value & (value - 1))) {
            fail(&w->failure, GM_BAD_ARGUMENT, "general.alignment is %u, expected a power of two of at least 8", value);
            return;
        }
        w->alignment = value;
    }
    write_scalar(w, key, GGUF_U32, &value, sizeof value);
}

void gguf_write_i32(gguf_writer *w, const char *key, int32_t value) {
    write_scalar(w, key, GGUF_I32, &value, sizeof value);
}

void gguf_write_u64(gguf_writer *w, const char *key, uint64_t value) {
    write_scalar(w, key, GGUF_U64, &value, sizeof value);
}

void gguf_write_f32(gguf_writer *w, const char *key, float value) {
    write_scalar(w, key, GGUF_F32, &value, sizeof value);
}

void gguf_write_bool(gguf_writer *w, const char *key, bool value) {
    const uint8_t byte = value;
    write_scalar(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_write_str(gguf_writer *w, const char *key, str value) {
    if (start_value(w, key, GGUF_STRING)) put_str(&w->values, value);
}

void gguf_write_array(gguf_writer *w, const char *key, gguf_value_type item, const void *items, uint64_t count) {
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8
    };
    if ((size_t)item >= COUNT_OF(bytes) || !bytes[item] || count > SIZE_MAX / bytes[item]) {
        fail(&w->failure, GM_BAD_ARGUMENT, "metadata key '%s': items of type %d are not of a fixed size, or too many",
             key, (int)item);
        return;
    }
    if (!start_value(w, key, GGUF_ARRAY)) return;
    writer_put_u32(&w->values, item);
    writer_put_u64(&w->values, count);
    buffer_append(&w->values, items, (size_t)count * bytes[item]);
}

void gguf_write_strings(gguf_writer *w, const char *key, const str *items, uint64_t count) {
    if (!start_value(w, key, GGUF_ARRAY)) return;
    writer_put_u32(&w->values, GGUF_STRING);
    writer_put_u64(&w->values, count);
    for (uint64_t i = 0; i < count; i++) put_str(&w->values, items[i]);
}

void gguf_write_value(gguf_writer *w, const gguf_value *value) {
    const char *key = arena_copy(&w->memory, value->key);
    int64_t     alignment = 0;
    if (!key) {
        fail_memory(&w->failure, "names", value->key.length);
    } else if (str_is(value->key, "general.alignment") && gguf_item_integer(value, 0, &alignment)) {
        gguf_write_u32(w, key, (uint32_t)alignment);
    } else if (start_value(w, key, value->array ? GGUF_ARRAY : value->type)) {
        if (value->array) {
            writer_put_u32(&w->values, value->type);
            writer_put_u64(&w->values, value->count);
        }
        buffer_append(&w->values, value->data, (size_t)value->bytes);
    }
}

/* Computes the tensor's bytes. False if its shape does not fit its type. */
static bool writer_tensor_bytes(const quant_format *format, uint32_t dims, const uint64_t *ne, uint64_t *bytes) {
    if (!format || dims < 1 || dims > 4 || !ne[0] || ne[0] % format->block) return false;
    if (!mul_u64(ne[0] / format->block, format->bytes, bytes)) return false;
    for (uint32_t i = 1; i < dims; i++) {
        if (!ne[i] || !mul_u64(*bytes, ne[i], bytes)) return false;
    }
    return true;
}

static uint64_t padding_after(const gguf_writer *w, uint64_t bytes) {
    return (w->alignment - bytes % w->alignment) % w->alignment;
}

static bool remember_size(gguf_writer *w, uint64_t bytes) {
    if (w->tensor_count == w->tensor_capacity) {
        const uint64_t capacity = w->tensor_capacity ? w->tensor_capacity * 2 : 64;
        uint64_t      *sizes = realloc(w->sizes, (size_t)capacity * sizeof *sizes);
        if (!sizes) return fail_memory(&w->failure, "tensor infos", capacity * sizeof *sizes), false;
        w->sizes = sizes;
        w->tensor_capacity = capacity;
    }
    w->sizes[w->tensor_count++] = bytes;
    return true;
}

void gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, uint32_t dims, const uint64_t *ne) {
    uint64_t bytes = 0;
    if (!add_name(w, &w->names, "tensor", name, 255)) return;
    if (!writer_tensor_bytes(quant_format_of((uint32_t)type), dims, ne, &bytes)) {
        fail(&w->failure, GM_BAD_ARGUMENT, "tensor '%s': its shape does not fit its type %d", name, (int)type);
        return;
    }
    if (!remember_size(w, bytes)) return;
    put_str(&w->infos, str_of(name));
    writer_put_u32(&w->infos, dims);
    for (uint32_t i = 0; i < dims; i++) writer_put_u64(&w->infos, ne[i]);
    writer_put_u32(&w->infos, type);
    writer_put_u64(&w->infos, 0); /* the offset, filled in when the alignment is known */
}

void gguf_write_seal(gguf_writer *w) {
    gguf_write_tensor(w, GGUF_SEAL, TYPE_I8, 1, &(uint64_t){ GGUF_SEAL_BYTES });
    w->sealed = true;
    sha256_start(&w->hash);
}

/* Fills in the offsets, which are the last 8 bytes of each info, from the sizes. */
static gm_status set_offsets(gguf_writer *w) {
    uint64_t offset = 0;
    char    *at = w->infos.data;
    for (uint64_t i = 0; i < w->tensor_count; i++) {
        uint64_t name = 0, after = 0;
        uint32_t dims = 0;
        memcpy(&name, at, sizeof name);
        memcpy(&dims, at + 8 + name, sizeof dims);
        at += 8 + name + 4 + 8 * (size_t)dims + 4;
        memcpy(at, &offset, sizeof offset);
        at += 8;
        if (!add_u64(offset, w->sizes[i], &after) || !add_u64(after, padding_after(w, after), &offset)) {
            return fail(&w->failure, GM_BAD_ARGUMENT, "the size of all tensors does not fit in 64 bits");
        }
    }
    w->data_bytes = offset;
    return GM_OK;
}

/* ---- output ---- */

static gm_status writer_write(gguf_writer *w, const void *data, size_t length) {
    if (w->failure.status) return w->failure.status;
    if (w->sealed) sha256_add(&w->hash, data, length);
    if (length && !w->sink(w->user, data, length)) return fail(&w->failure, GM_IO, "writing the file failed");
    return GM_OK;
}

static void write_padding(gguf_writer *w, uint64_t behind) {
    static const uint8_t zeros[256];
    for (uint64_t left = padding_after(w, behind); left;) {
        const uint64_t n = left < sizeof zeros ? left : sizeof zeros;
        if (writer_write(w, zeros, (size_t)n)) return;
        left -= n;
    }
}

gm_status gguf_writer_head(gguf_writer *w, gguf_sink sink, void *user, error *e) {
    if (w->sink) fail(&w->failure, GM_BAD_ARGUMENT, "the head was written already");
    if (w->values.failed || w->infos.failed) fail_memory(&w->failure, "metadata", w->values.length + w->infos.length);
    if (w->failure.status || set_offsets(w)) return report_failure(w, e);
    w->sink = sink;
    w->user = user;
    buffer start = { 0 };
    buffer_text(&start, "GGUF");
    writer_put_u32(&start, 3);
    writer_put_u64(&start, w->tensor_count);
    writer_put_u64(&start, w->value_count);
    if (start.failed) fail_memory(&w->failure, "the header", 24);
    w->head_bytes = start.length + w->values.length + w->infos.length;
    writer_write(w, start.data, start.length);
    writer_write(w, w->values.data, w->values.length);
    writer_write(w, w->infos.data, w->infos.length);
    write_padding(w, w->head_bytes);
    w->head_bytes += padding_after(w, w->head_bytes);
    buffer_free(&start);
    return report_failure(w, e);
}

gm_status gguf_writer_data(gguf_writer *w, const void *data, uint64_t length, error *e) {
    const uint8_t *at = data;
    if (!w->sink) fail(&w->failure, GM_BAD_ARGUMENT, "tensor data came before the head");
    while (length && !w->failure.status) {
        if (w->current == w->tensor_count) {
            fail(&w->failure, GM_BAD_ARGUMENT, "%llu bytes more than the tensors have", (unsigned long long)length);
            break;
        }
        const uint64_t left = w->sizes[w->current] - w->written, n = length < left ? length : left;
        writer_write(w, at, (size_t)n);
        at += n;
        length -= n;
        w->written += n;
        if (w->written == w->sizes[w->current]) {
            write_padding(w, w->written); /* every tensor starts aligned, so the padding depends on its size alone */
            w->current++;
            w->written = 0;
        }
    }
    return report_failure(w, e);
}

gm_status gguf_writer_end(gguf_writer *w, error *e) {
    if (!w->sink) fail(&w->failure, GM_BAD_ARGUMENT, "the file ended before its head was written");
    if (w->sealed && w->current + 1 == w->tensor_count && !w->written) {
        uint8_t digest[GGUF_SEAL_BYTES];
        sha256_end(&w->hash, digest);
        gguf_writer_data(w, digest, sizeof digest, e);
    }
    if (w->current < w->tensor_count) {
        fail(&w->failure, GM_BAD_ARGUMENT, "the data of %llu of %llu tensors is missing",
             (unsigned long long)(w->tensor_count - w->current), (unsigned long long)w->tensor_count);
    }
    return report_failure(w, e);
}

uint64_t gguf_writer_size(const gguf_writer *w) { return w->head_bytes + w->data_bytes; }
