/* GGUF: the file format of models, adapters, expected test results and snapshots.
 *
 * The reader trusts nothing. It reads header, metadata and tensor infos in bounded steps over a source; every count and size
 * is checked in 64 bits against the file's length before anything is allocated, and an error names the field, what was
 * expected and what was found. Strings and arrays are not copied: they point into the source. */

#ifndef GM_GGUF_H
#define GM_GGUF_H

#include "base/arena.h"
#include "base/sha256.h"
#include "gguf/quant.h"
#include "gguf/source.h"

typedef enum {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
} gguf_value_type;

typedef struct {
    str             key;
    gguf_value_type type; /* of the value, or of the items of an array */
    bool            array;
    uint64_t        count; /* items of an array; 1 otherwise */
    const uint8_t  *data;  /* as stored; strings each with their u64 length in front */
    uint64_t        bytes;
} gguf_value;

typedef struct {
    str                 name;
    uint32_t            dims;  /* 1 to 4 */
    uint64_t            ne[4]; /* ne[0] is contiguous; missing dimensions are 1 */
    quant_type          type;
    const quant_format *format;
    uint64_t            count; /* elements */
    uint64_t            bytes;
    uint64_t            offset; /* from the start of its file */
    uint32_t            part;   /* which file of a split model */
} gguf_tensor;

typedef struct gguf gguf;

/* Reads a file, or the first part of a split one (`NAME-00001-of-0000N.gguf`, metadata split.count). The reader owns its sources
 * and frees them, also if it fails. */
gm_status gguf_new(source *first, gguf **out, error *e);
/* Continues reading. GM_OK: every part added so far is read. GM_AGAIN: bytes are missing, of gguf_waiting_source. */
gm_status gguf_step(gguf *g, error *e);
source   *gguf_waiting_source(gguf *g);
/* After the first part: how many parts there are (1 for an ordinary file). Add the others in order. */
uint32_t  gguf_parts(const gguf *g);
gm_status gguf_add_part(gguf *g, source *next, error *e);
void      gguf_free(gguf *g);

/* All of the above for a file on disk: maps it, and the other parts beside it. */
gm_status gguf_open_file(const char *path, gguf **out, error *e);
/* The same for bytes in memory. */
gm_status gguf_open_memory(const void *data, uint64_t length, gguf **out, error *e);

uint32_t           gguf_version(const gguf *g);
size_t             gguf_value_count(const gguf *g);
const gguf_value  *gguf_value_at(const gguf *g, size_t i);
const gguf_value  *gguf_find(const gguf *g, const char *key); /* NULL if absent */
size_t             gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name);
source            *gguf_source(const gguf *g, uint32_t part);
uint64_t           gguf_file_bytes(const gguf *g); /* of all parts */
uint64_t           gguf_head_bytes(const gguf *g); /* of the first part: everything before the tensor data */
str                gguf_head(const gguf *g);       /* the same in memory, without the padding at its end */
/* The tensor's bytes, not copied. NULL if the source does not have them in memory. */
const uint8_t *gguf_tensor_data(const gguf *g, const gguf_tensor *t);

/* Typed access. Integers convert between all widths and signs if the value fits, and floats between both widths. A wrong type
 * is an error that names the key. If `found` is NULL the key is required. If the key is absent, *out is left alone. */
gm_status gguf_get_u32(const gguf *g, const char *key, uint32_t *out, bool *found, error *e);
gm_status gguf_get_u64(const gguf *g, const char *key, uint64_t *out, bool *found, error *e);
gm_status gguf_get_f32(const gguf *g, const char *key, float *out, bool *found, error *e);
gm_status gguf_get_bool(const gguf *g, const char *key, bool *out, bool *found, error *e);
gm_status gguf_get_str(const gguf *g, const char *key, str *out, bool *found, error *e);
/* Reads `n` numbers: an array of exactly n, or n copies of a scalar. Files write per-layer values in either way. */
gm_status gguf_get_u32s(const gguf *g, const char *key, uint32_t *out, size_t n, bool *found, error *e);
gm_status gguf_get_bools(const gguf *g, const char *key, bool *out, size_t n, bool *found, error *e);

/* Items of an array. Walk a string array with a cursor that starts at value->data. */
bool gguf_item_integer(const gguf_value *v, uint64_t i, int64_t *out); /* false: not integers or bools */
bool gguf_item_float(const gguf_value *v, uint64_t i, double *out);    /* integers too */
str  gguf_next_string(const uint8_t **cursor);

/* ---- writer: first metadata, then tensor infos, then the tensors' data in the same order ---- */

typedef struct gguf_writer gguf_writer;

/* Receives the bytes; returns false if it cannot store them. */
typedef bool (*gguf_sink)(void *user, const void *data, size_t length);

gm_status gguf_writer_new(gguf_writer **out, error *e);
void      gguf_write_u32(gguf_writer *w, const char *key, uint32_t value);
void      gguf_write_i32(gguf_writer *w, const char *key, int32_t value);
void      gguf_write_u64(gguf_writer *w, const char *key, uint64_t value);
void      gguf_write_f32(gguf_writer *w, const char *key, float value);
void      gguf_write_bool(gguf_writer *w, const char *key, bool value);
void      gguf_write_str(gguf_writer *w, const char *key, str value);
void      gguf_write_array(gguf_writer *w, const char *key, gguf_value_type item, const void *items,
                           uint64_t count); /* fixed-size items */
void      gguf_write_strings(gguf_writer *w, const char *key, const str *items, uint64_t count);
void      gguf_write_value(gguf_writer *w, const gguf_value *value); /* of another file, as it is */
void      gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, uint32_t dims, const uint64_t *ne);
/* Writes the head to the sink. Then pass the tensors' data in order to gguf_writer_data, in any number of calls; the writer pads
 * between tensors. gguf_writer_end checks that nothing is missing. The first failure sticks. */
gm_status gguf_writer_head(gguf_writer *w, gguf_sink sink, void *user, error *e);
gm_status gguf_writer_data(gguf_writer *w, const void *data, uint64_t length, error *e);
gm_status gguf_writer_end(gguf_writer *w, error *e);
uint64_t  gguf_writer_size(const gguf_writer *w); /* of the whole file, after head */
void      gguf_writer_free(gguf_writer *w);

/* ---- seals: the last tensor is the SHA-256 of all bytes before it, so that damaged and mixed-up files are noticed ---- */

#define GGUF_SEAL "digest"
enum { GGUF_SEAL_BYTES = 32 };

/* After all other tensors, before the head. gguf_writer_end writes its data. */
void gguf_write_seal(gguf_writer *w);

/* How far a seal has been checked; zero-initialise. */
typedef struct {
    sha256   hash;
    uint64_t done;
} gguf_seal;

/* Reads up to `most` bytes further of a file that is all in memory. GM_AGAIN until it has seen all, then GM_OK or GM_BAD_FILE. */
gm_status gguf_seal_check(const gguf *g, gguf_seal *s, uint64_t most, error *e);

#endif
