/* Internal to src/gguf: a model file while it is being read. */

#ifndef GM_GGUF_PARTS_H
#define GM_GGUF_PARTS_H

#include "base/table.h"
#include "gguf/gguf.h"

/* No sane file comes near these limits. They bound the time and memory that a hostile file can cost. */
enum { MOST_VALUES = 1 << 20, MOST_TENSORS = 1 << 20, MOST_PARTS = 65535 };

typedef enum { AT_HEADER, AT_VALUE, AT_STRINGS, AT_INFO, AT_END } stage;

/* Offsets of an entry's name and data. */
typedef struct {
    uint64_t name, data;
} place;

typedef struct {
    source        *from;
    uint32_t       number;    /* 0 for the first */
    const uint8_t *head;      /* the whole source, or the beginning of it that has arrived */
    uint8_t       *collected; /* our own copy, for a source in pieces */
    uint64_t       head_length, capacity;
    stage          stage;
    uint64_t       at, values_left, tensors_left, strings_left;
    uint32_t       version;
    gguf_value    *values;
    place         *value_places;
    size_t         value_count, value_capacity;
    gguf_tensor   *tensors;
    place         *tensor_places;
    size_t         tensor_count, tensor_capacity;
    table          value_table;
    uint64_t       data_start;
} part;

struct gguf {
    part        *parts;
    uint32_t     part_count; /* added so far */
    uint32_t     parts_read, part_total;
    uint64_t     split_tensors; /* as the first part says; UINT64_MAX if it does not */
    gguf_tensor *tensors;       /* of all parts read */
    size_t       tensor_count;
    table        tensor_table;
    gm_status    failed;
};

/* Reads the remaining items of a part. GM_OK: its head is complete. GM_AGAIN: bytes are missing. */
gm_status part_read(part *p, error *e);

/* Makes the first `end` bytes of the part available. GM_AGAIN: they have not arrived yet. */
gm_status part_need(part *p, uint64_t end, error *e);

/* Turns offsets into pointers, makes the checks that need the whole head, and adds the tensors to the model's. */
gm_status part_finish(gguf *g, part *p, error *e);

const gguf_value *part_find(const part *p, const char *key);

#endif
