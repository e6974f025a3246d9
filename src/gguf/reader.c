/* The GGUF reader: a state machine that reads the head of a part one item at a time.
 *
 * An item (the header, a metadata entry, a string of an array, a tensor info) is read whole or not at all. If bytes are missing,
 * nothing is committed and the next step reads the item again from its start. For a source in pieces we collect the head in our
 * own memory, which moves as it grows, so names and values are offsets until part_finish turns them into pointers. */

#include "gguf/parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_KEY = 65535, LONGEST_TENSOR_NAME = 255, MOST_COLLECTED_HEAD = 512 << 20, FIRST_PIECE = 256 << 10 };

/* ---- reading one item ---- */

typedef struct {
    part       *p;
    uint64_t    at;
    gm_status   status; /* the first failure sticks; later reads return zeros */
    error      *e;
    const char *kind;  /* "metadata entry": what is being read, for messages */
    const char *named; /* "metadata key": the same, once the name is known */
    uint64_t    index, name_at, name_length;
} cursor;

/* Puts the item before the message: "metadata key 'x': …". */
static gm_status item_fail(cursor *c, gm_status status, const char *format, ...) PRINTF_LIKE(3, 4);
static gm_status item_fail(cursor *c, gm_status status, const char *format, ...) {
    if (c->status) return c->status;
    char    what[300], where[260], part_number[24] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->name_length) {
        str name = { (const char *)c->p->head + c->name_at, (size_t)c->name_length };
        snprintf(where, sizeof where, "%s '%.*s'", c->named, STR_ARGS(name));
    } else if (c->index) {
        snprintf(where, sizeof where, "%s %llu", c->kind, (unsigned long long)c->index);
    } else {
        snprintf(where, sizeof where, "%s", c->kind);
    }
    if (c->p->number) snprintf(part_number, sizeof part_number, "part %u: ", c->p->number + 1);
    return c->status = fail(c->e, status, "%s%s: %s", part_number, where, what);
}

gm_status part_need(part *p, uint64_t end, error *e) {
    while (p->head_length < end) {
        if (end > MOST_COLLECTED_HEAD) {
            return fail(e, GM_UNSUPPORTED,
                        "the metadata extends to byte %llu; the limit for a file that arrives in pieces is %d MiB",
                        (unsigned long long)end, MOST_COLLECTED_HEAD >> 20);
        }
        const uint64_t rest = source_length(p->from) - p->head_length, piece = source_piece(p->from);
        const uint64_t growing = p->head_length > FIRST_PIECE ? p->head_length : FIRST_PIECE; /* most heads are short */
        const uint64_t most = growing < piece ? growing : piece, n = rest < most ? rest : most;
        const uint8_t *bytes = source_bytes(p->from, p->head_length, n);
        if (!bytes) return GM_AGAIN;
        if (p->head_length + n > p->capacity) {
            const uint64_t capacity = p->head_length + n + p->capacity / 2;
            uint8_t       *grown = capacity <= SIZE_MAX ? realloc(p->collected, (size_t)capacity) : NULL;
            if (!grown) return fail_memory(e, "the metadata", capacity);
            p->head = p->collected = grown;
            p->capacity = capacity;
        }
        memcpy(p->collected + p->head_length, bytes, (size_t)n);
        p->head_length += n;
        source_drop(p->from, p->head_length);
    }
    return GM_OK;
}

/* The next n bytes, valid until the next read. NULL if it fails. */
static const uint8_t *take_bytes(cursor *c, uint64_t n, const char *field) {
    if (c->status) return NULL;
    const uint64_t left = source_length(c->p->from) - c->at;
    if (n > left) {
        item_fail(c, GM_BAD_FILE, "the file ends inside %s: %llu bytes needed, %llu left", field, (unsigned long long)n,
                  (unsigned long long)left);
        return NULL;
    }
    c->status = part_need(c->p, c->at + n, c->e);
    if (c->status) return NULL;
    const uint8_t *bytes = c->p->head + c->at;
    c->at += n;
    return bytes;
}

/* GGUF is little-endian, and so are the machines we build for. */
static uint32_t take_u32(cursor *c, const char *field) {
    uint32_t       value = 0;
    const uint8_t *bytes = take_bytes(c, sizeof value, field);
    if (bytes) memcpy(&value, bytes, sizeof value);
    return value;
}

static uint64_t take_u64(cursor *c, const char *field) {
    uint64_t       value = 0;
    const uint8_t *bytes = take_bytes(c, sizeof value, field);
    if (bytes) memcpy(&value, bytes, sizeof value);
    return value;
}

static void take_name(cursor *c, uint64_t longest) {
    const uint64_t length = take_u64(c, "its name's length");
    if (c->status) return;
    if (!length) item_fail(c, GM_BAD_FILE, "its name is empty");
    if (length > longest) {
        item_fail(c, GM_BAD_FILE, "its name has %llu bytes; the limit is %llu", (unsigned long long)length,
                  (unsigned long long)longest);
    }
    const uint8_t *name = take_bytes(c, length, "its name");
    if (!name) return;
    if (memchr(name, 0, (size_t)length)) item_fail(c, GM_BAD_FILE, "its name contains a zero byte");
    c->name_at = c->at - length;
    c->name_length = length;
}

/* ---- header ---- */

/* Files that people open by mistake, by their first bytes. */
static const char *guess_kind(const uint8_t *magic) {
    static const struct {
        const char *magic, *kind;
    } kinds[] = {
        { "lmgg", "a GGML file from before GGUF: convert the model again" },
        { "fmgg", "a GGML file from before GGUF: convert the model again" },
        { "tjgg", "a GGML file from before GGUF: convert the model again" },
        { "vers", "a Git LFS pointer instead of the model? fetch it with git lfs pull" },
        { "PK\3\4", "a zip archive, perhaps a PyTorch model" },
        { "<!DO", "a web page: the download went wrong" },
        { "<!do", "a web page: the download went wrong" },
        { "<htm", "a web page: the download went wrong" },
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (!memcmp(magic, kinds[i].magic, 4)) return kinds[i].kind;
    }
    return "";
}

static gm_status check_version(cursor *c, uint32_t version) {
    if (version == 2 || version == 3) return GM_OK;
    if (version == 1) return item_fail(c, GM_UNSUPPORTED, "GGUF version 1 is not supported: convert the model again");
    if (version && !(version & 0xffff))
        return item_fail(c, GM_UNSUPPORTED, "the file is big-endian; only little-endian GGUF is supported");
    return item_fail(c, GM_UNSUPPORTED, "GGUF version is %u; 2 and 3 are supported", version);
}

/* Reads a count of things of at least `each` bytes. Refuses it, before anything is allocated, if the file is too short for them. */
static uint64_t take_count(cursor *c, const char *field, uint64_t each, uint64_t most) {
    const uint64_t count = take_u64(c, field), left = source_length(c->p->from) - c->at;
    if (c->status) return 0;
    if (count > left / each) {
        item_fail(c, GM_BAD_FILE, "%s says %llu, but only %llu bytes follow", field, (unsigned long long)count,
                  (unsigned long long)left);
    } else if (count > most) {
        item_fail(c, GM_UNSUPPORTED, "%s says %llu; the limit is %llu", field, (unsigned long long)count,
                  (unsigned long long)most);
    }
    return c->status ? 0 : count;
}

static gm_status part_read_header(part *p, error *e) {
    cursor         c = { .p = p, .e = e, .kind = "the header" };
    const uint8_t *magic = take_bytes(&c, 4, "the magic bytes");
    if (!magic) return c.status;
    const char *kind = guess_kind(magic);
    if (memcmp(magic, "GGUF", 4) != 0)
        return item_fail(&c, GM_BAD_FILE, "not a GGUF file%s%s", *kind ? ": " : "", kind);
    const uint32_t version = take_u32(&c, "the version");
    if (c.status || check_version(&c, version)) return c.status;
    const uint64_t tensors = take_count(&c, "the tensor count", 8 + 1 + 4 + 8 + 4 + 8, MOST_TENSORS);
    const uint64_t values = take_count(&c, "the metadata count", 8 + 1 + 4 + 1, MOST_VALUES);
    if (c.status) return c.status;
    p->version = version;
    p->tensors_left = tensors;
    p->values_left = values;
    p->at = c.at;
    p->stage = AT_VALUE;
    return GM_OK;
}

/* ---- metadata ---- */

/* Makes room for one more in the two parallel arrays. */
static gm_status grow_tables(void **items, size_t item, place **places, size_t count, size_t *capacity, error *e) {
    if (count < *capacity) return GM_OK;
    const size_t more = *capacity ? *capacity * 2 : 64;
    void        *grown = realloc(*items, more * item);
    if (!grown) return fail_memory(e, "the table of contents", more * item);
    *items = grown;
    place *grown_places = realloc(*places, more * sizeof(place));
    if (!grown_places) return fail_memory(e, "the table of contents", more * sizeof(place));
    *places = grown_places;
    *capacity = more;
    return GM_OK;
}

static gm_status add_value(part *p, const cursor *c, gguf_value value) {
    void     *items = p->values;
    gm_status status = grow_tables(&items, sizeof value, &p->value_places, p->value_count, &p->value_capacity, c->e);
    p->values = items;
    if (status) return status;
    p->value_places[p->value_count] = (place){ c->name_at, c->at };
    p->values[p->value_count++] = value;
    return GM_OK;
}

/* Bytes of a value of each type; 0: no fixed size. */
static const uint8_t value_bytes[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static gm_status read_value(part *p, error *e) {
    cursor c = {
        .p = p, .at = p->at, .e = e, .kind = "metadata entry", .named = "metadata key", .index = p->value_count + 1
    };
    take_name(&c, LONGEST_KEY);
    uint32_t type = take_u32(&c, "its value type");
    if (!c.status && type >= COUNT_OF(value_bytes)) return item_fail(&c, GM_BAD_FILE, "unknown value type %u", type);
    const bool array = type == GGUF_ARRAY;
    uint64_t   count = 1, bytes = 0;
    if (array) {
        type = take_u32(&c, "its item type");
        count = take_u64(&c, "its item count");
        if (c.status) return c.status;
        if (type == GGUF_ARRAY) return item_fail(&c, GM_UNSUPPORTED, "arrays of arrays are not supported");
        if (type >= COUNT_OF(value_bytes)) return item_fail(&c, GM_BAD_FILE, "unknown item type %u", type);
    }
    if (c.status) return c.status;
    const uint64_t left = source_length(p->from) - c.at, each = type == GGUF_STRING ? 8 : value_bytes[type];
    if (count > left / each) {
        return item_fail(&c, GM_BAD_FILE,
                         "the file ends inside its value: %llu items of at least %llu bytes, %llu bytes left",
                         (unsigned long long)count, (unsigned long long)each, (unsigned long long)left);
    }
    if (type != GGUF_STRING) bytes = count * each;
    if (type == GGUF_BOOL && !array) {
        cursor         peek = c;
        const uint8_t *value = take_bytes(&peek, 1, "its value");
        if (!value) return peek.status;
        if (*value > 1) return item_fail(&c, GM_BAD_FILE, "a bool must be 0 or 1, found %u", *value);
    }
    gguf_value value = { .key = { NULL, (size_t)c.name_length },
                         .type = (gguf_value_type)type,
                         .array = array,
                         .count = count,
                         .bytes = bytes };
    gm_status  status = add_value(p, &c, value);
    if (status) return status;
    p->at = c.at + bytes;
    p->values_left--;
    if (type == GGUF_STRING) {
        p->strings_left = count;
        p->stage = AT_STRINGS;
    }
    return GM_OK;
}

/* Skips the strings of the last value. The loop makes no calls while bytes are available: a vocabulary has half a million
 * strings. */
static gm_status read_strings(part *p, error *e) {
    gguf_value    *value = &p->values[p->value_count - 1];
    const place   *where = &p->value_places[p->value_count - 1];
    const uint64_t end = source_length(p->from);
    while (p->strings_left) {
        cursor   c = { .p = p,
                       .at = p->at,
                       .e = e,
                       .kind = "metadata entry",
                       .named = "metadata key",
                       .name_at = where->name,
                       .name_length = value->key.length };
        uint64_t length = 0;
        if (end - p->at < 8) return item_fail(&c, GM_BAD_FILE, "the file ends inside a string's length");
        if (p->head_length - p->at < 8) {
            gm_status status = part_need(p, p->at + 8, e);
            if (status) return status;
        }
        memcpy(&length, p->head + p->at, sizeof length);
        const uint64_t left = end - p->at - 8, index = value->count - p->strings_left + 1;
        if (length > left) {
            return item_fail(&c, GM_BAD_FILE, "the file ends inside string %llu of %llu: %llu bytes needed, %llu left",
                             (unsigned long long)index, (unsigned long long)value->count, (unsigned long long)length,
                             (unsigned long long)left);
        }
        if (p->head_length - p->at - 8 < length) {
            gm_status status = part_need(p, p->at + 8 + length, e);
            if (status) return status;
        }
        p->at += 8 + length;
        p->strings_left--;
    }
    value->bytes = p->at - where->data;
    p->stage = AT_VALUE;
    return GM_OK;
}

/* ---- tensor infos ---- */

static const char *foreign_type(uint32_t type) {
    static const struct {
        uint32_t    type;
        const char *name;
    } names[] = {
        { 4, "Q4_2" },    { 5, "Q4_3" },     { 9, "Q8_1" },   { 15, "Q8_K" },  { 16, "IQ2_XXS" },
        { 17, "IQ2_XS" }, { 18, "IQ3_XXS" }, { 19, "IQ1_S" }, { 21, "IQ3_S" }, { 22, "IQ2_S" },
        { 29, "IQ1_M" },  { 34, "TQ1_0" },   { 35, "TQ2_0" }, { 40, "NVFP4" },
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (names[i].type == type) return names[i].name;
    }
    return "unknown";
}

/* Computes a tensor's elements and bytes in 64 bits. */
static gm_status size_tensor(cursor *c, gguf_tensor *t) {
    uint64_t rows = 1;
    for (uint32_t i = 0; i < 4; i++) {
        if (!t->ne[i]) return item_fail(c, GM_BAD_FILE, "dimension %u is 0", i);
        if (i && !mul_u64(rows, t->ne[i], &rows))
            return item_fail(c, GM_BAD_FILE, "the product of its dimensions does not fit in 64 bits");
    }
    if (t->ne[0] % t->format->block) {
        return item_fail(c, GM_BAD_FILE,
                         "its rows have %llu elements, which is not a multiple of the %u in a block of %s",
                         (unsigned long long)t->ne[0], t->format->block, t->format->name);
    }
    uint64_t row_bytes = 0;
    if (!mul_u64(t->ne[0], rows, &t->count) || !mul_u64(t->ne[0] / t->format->block, t->format->bytes, &row_bytes) ||
        !mul_u64(row_bytes, rows, &t->bytes)) {
        return item_fail(c, GM_BAD_FILE, "the product of its dimensions does not fit in 64 bits");
    }
    return GM_OK;
}

static gm_status read_info(part *p, error *e) {
    cursor c = { .p = p, .at = p->at, .e = e, .kind = "tensor info", .named = "tensor", .index = p->tensor_count + 1 };
    gguf_tensor t = { .ne = { 1, 1, 1, 1 }, .part = p->number };
    take_name(&c, LONGEST_TENSOR_NAME);
    t.name.length = (size_t)c.name_length;
    t.dims = take_u32(&c, "its number of dimensions");
    if (c.status) return c.status;
    if (t.dims < 1 || t.dims > 4) return item_fail(&c, GM_BAD_FILE, "it has %u dimensions; expected 1 to 4", t.dims);
    for (uint32_t i = 0; i < t.dims; i++) t.ne[i] = take_u64(&c, "its dimensions");
    const uint32_t type = take_u32(&c, "its type");
    t.offset = take_u64(&c, "its offset"); /* from the start of the data, until part_finish */
    if (c.status) return c.status;
    t.format = quant_format_of(type);
    if (!t.format) return item_fail(&c, GM_UNSUPPORTED, "its type %u (%s) is not supported", type, foreign_type(type));
    t.type = (quant_type)type;
    if (size_tensor(&c, &t)) return c.status;
    void     *items = p->tensors;
    gm_status status = grow_tables(&items, sizeof t, &p->tensor_places, p->tensor_count, &p->tensor_capacity, e);
    p->tensors = items;
    if (status) return status;
    p->tensor_places[p->tensor_count] = (place){ c.name_at, 0 };
    p->tensors[p->tensor_count++] = t;
    p->tensors_left--;
    p->at = c.at;
    return GM_OK;
}

gm_status part_read(part *p, error *e) {
    gm_status status = GM_OK;
    while (!status && p->stage != AT_END) {
        switch (p->stage) {
        case AT_HEADER: status = part_read_header(p, e); break;
        case AT_VALUE:
            if (p->values_left) status = read_value(p, e);
            else p->stage = AT_INFO;
            break;
        case AT_STRINGS: status = read_strings(p, e); break;
        case AT_INFO:
            if (p->tensors_left) status = read_info(p, e);
            else p->stage = AT_END;
            break;
        case AT_END: break;
        }
    }
    return status ? status : part_need(p, p->at, e); /* the last value may be an array that we only skipped */
}
