/* Hostile and damaged GGUF files: each must give a clean error that names the field, without a crash. */

#include "base/buffer.h"
#include "base/random.h"
#include "read_gguf.h"
#include "test.h"

#include <stdlib.h>

/* ---- heads by hand ---- */

static void raw_u8(buffer *b, uint8_t n) { buffer_append(b, &n, sizeof n); }
static void raw_u32(buffer *b, uint32_t n) { buffer_append(b, &n, sizeof n); }
static void raw_u64(buffer *b, uint64_t n) { buffer_append(b, &n, sizeof n); }

static void raw_text(buffer *b, const char *text) {
    raw_u64(b, strlen(text));
    buffer_text(b, text);
}

static void raw_header(buffer *b, uint32_t version, uint64_t tensors, uint64_t values) {
    buffer_text(b, "GGUF");
    raw_u32(b, version);
    raw_u64(b, tensors);
    raw_u64(b, values);
}

static void raw_value_u32(buffer *b, const char *key, uint32_t value) {
    raw_text(b, key);
    raw_u32(b, GGUF_U32);
    raw_u32(b, value);
}

static void raw_tensor(buffer *b, const char *name, uint32_t dims, const uint64_t *ne, uint32_t type, uint64_t offset) {
    raw_text(b, name);
    raw_u32(b, dims);
    for (uint32_t i = 0; i < dims; i++) raw_u64(b, ne[i]);
    raw_u32(b, type);
    raw_u64(b, offset);
}

static void raw_padding(buffer *b, size_t bytes) {
    while (b->length % 32) raw_u8(b, 0);
    for (size_t i = 0; i < bytes; i++) raw_u8(b, (uint8_t)i);
}

#define NE(...) ((const uint64_t[]){ __VA_ARGS__ })

/* ---- the cases: each builds one bad file ---- */

static void empty(buffer *b) { (void)b; }
static void three_bytes(buffer *b) { buffer_text(b, "GGU"); }
static void other_magic(buffer *b) { buffer_text(b, "GGXF"), raw_u32(b, 3), raw_u64(b, 0), raw_u64(b, 0); }
static void lfs_pointer(buffer *b) { buffer_text(b, "version https://git-lfs.github.com/spec/v1\noid sha256:0"); }
static void web_page(buffer *b) { buffer_text(b, "<!DOCTYPE html><html>404</html>"); }
static void version_0(buffer *b) { raw_header(b, 0, 0, 0); }
static void version_1(buffer *b) { raw_header(b, 1, 0, 0); }
static void version_4(buffer *b) { raw_header(b, 4, 0, 0); }
static void big_endian(buffer *b) { raw_header(b, 0x03000000, 0, 0); }
static void tensors_2_60(buffer *b) { raw_header(b, 3, 1ull << 60, 0), raw_padding(b, 100); }
static void values_2_60(buffer *b) { raw_header(b, 3, 0, 1ull << 60), raw_padding(b, 100); }
static void tensors_2_64(buffer *b) { raw_header(b, 3, UINT64_MAX, 0), raw_padding(b, 100); }
static void values_beyond(buffer *b) { raw_header(b, 3, 0, 10), raw_padding(b, 100); }

static void key_2_60(buffer *b) { raw_header(b, 3, 0, 1), raw_u64(b, 1ull << 60), raw_padding(b, 100); }
static void key_2_64(buffer *b) { raw_header(b, 3, 0, 1), raw_u64(b, UINT64_MAX), raw_padding(b, 100); }
static void key_long(buffer *b) { raw_header(b, 3, 0, 1), raw_u64(b, 65536), raw_padding(b, 70000); }
static void key_empty(buffer *b) { raw_header(b, 3, 0, 1), raw_value_u32(b, "", 1), raw_padding(b, 32); }
static void key_zero(buffer *b) {
    raw_header(b, 3, 0, 1), raw_u64(b, 3), buffer_append(b, "a\0b", 3), raw_u32(b, 4), raw_u32(b, 1);
}
static void key_twice(buffer *b) {
    raw_header(b, 3, 0, 2), raw_value_u32(b, "gemma4.block_count", 1), raw_value_u32(b, "gemma4.block_count", 2);
}
static void value_type(buffer *b) { raw_header(b, 3, 0, 1), raw_text(b, "some.key"), raw_u32(b, 13), raw_u64(b, 0); }
static void value_cut(buffer *b) {
    raw_header(b, 3, 0, 1), raw_text(b, "some.key"), raw_u32(b, GGUF_U64), raw_u32(b, 0);
}
static void value_bool(buffer *b) {
    raw_header(b, 3, 0, 1), raw_text(b, "some.key"), raw_u32(b, GGUF_BOOL), raw_u8(b, 2);
}
static void string_2_60(buffer *b) {
    raw_header(b, 3, 0, 1), raw_text(b, "some.key"), raw_u32(b, GGUF_STRING), raw_u64(b, 1ull << 60),
        raw_padding(b, 99);
}
static void string_2_64(buffer *b) {
    raw_header(b, 3, 0, 1), raw_text(b, "some.key"), raw_u32(b, GGUF_STRING), raw_u64(b, UINT64_MAX - 7),
        raw_padding(b, 99);
}

static void raw_array(buffer *b, uint32_t item, uint64_t count) {
    raw_header(b, 3, 0, 1), raw_text(b, "some.array"), raw_u32(b, GGUF_ARRAY), raw_u32(b, item), raw_u64(b, count);
}

static void array_2_60(buffer *b) { raw_array(b, GGUF_U8, 1ull << 60), raw_padding(b, 100); }
static void array_wraps(buffer *b) { raw_array(b, GGUF_U64, (1ull << 61) + 1), raw_padding(b, 100); }
static void array_item(buffer *b) { raw_array(b, 99, 1), raw_padding(b, 100); }
static void array_nested(buffer *b) {
    raw_array(b, GGUF_ARRAY, 1), raw_u32(b, GGUF_U8), raw_u64(b, 1), raw_padding(b, 100);
}
static void strings_2_60(buffer *b) { raw_array(b, GGUF_STRING, 1ull << 60), raw_padding(b, 100); }
static void strings_cut(buffer *b) {
    raw_array(b, GGUF_STRING, 3), raw_text(b, "a"), raw_text(b, "b"), raw_u64(b, 50), raw_u8(b, 0);
}
static void strings_length(buffer *b) {
    raw_array(b, GGUF_STRING, 2), raw_text(b, "nine byte"), buffer_text(b, "123456");
}
static void strings_wrap(buffer *b) { raw_array(b, GGUF_STRING, 2), raw_u64(b, UINT64_MAX - 60), raw_padding(b, 100); }

static void raw_one_tensor(buffer *b, uint32_t dims, const uint64_t *ne, uint32_t type, uint64_t offset, size_t data) {
    raw_header(b, 3, 1, 0);
    raw_tensor(b, "blk.0.weight", dims, ne, type, offset);
    raw_padding(b, data);
}

static void dims_0(buffer *b) { raw_one_tensor(b, 0, NE(0), TYPE_F32, 0, 99); }
static void dims_5(buffer *b) { raw_one_tensor(b, 5, NE(1, 1, 1, 1, 1), TYPE_F32, 0, 99); }
static void dims_2_32(buffer *b) {
    raw_header(b, 3, 1, 0), raw_text(b, "blk.0.weight"), raw_u32(b, UINT32_MAX), raw_padding(b, 99);
}
static void dim_zero(buffer *b) { raw_one_tensor(b, 3, NE(4, 0, 4), TYPE_F32, 0, 99); }
static void product_wraps(buffer *b) { raw_one_tensor(b, 4, NE(1ull << 32, 1ull << 32, 1, 1), TYPE_F32, 0, 99); }
static void product_wraps_rows(buffer *b) { raw_one_tensor(b, 4, NE(1, 1ull << 32, 1ull << 31, 4), TYPE_F32, 0, 99); }
static void bytes_wrap(buffer *b) { raw_one_tensor(b, 2, NE(1ull << 62, 1), TYPE_F32, 0, 99); }
static void past_the_end(buffer *b) { raw_one_tensor(b, 2, NE(1ull << 40, 1), TYPE_F32, 0, 99); }
static void block_multiple(buffer *b) { raw_one_tensor(b, 2, NE(255, 2), TYPE_Q4_K, 0, 999); }
static void type_unknown(buffer *b) { raw_one_tensor(b, 1, NE(4), 77, 0, 99); }
static void type_foreign(buffer *b) { raw_one_tensor(b, 1, NE(256), 16, 0, 99); }
static void type_gap(buffer *b) { raw_one_tensor(b, 1, NE(32), 5, 0, 99); }
static void offset_misaligned(buffer *b) { raw_one_tensor(b, 1, NE(4), TYPE_F32, 8, 99); }
static void offset_past(buffer *b) { raw_one_tensor(b, 1, NE(4), TYPE_F32, 1ull << 40, 99); }
static void offset_wraps(buffer *b) { raw_one_tensor(b, 1, NE(4), TYPE_F32, UINT64_MAX - 31, 99); }
static void data_cut(buffer *b) { raw_one_tensor(b, 1, NE(25), TYPE_F32, 0, 99); }
static void data_missing(buffer *b) { raw_header(b, 3, 1, 0), raw_tensor(b, "blk.0.weight", 1, NE(4), TYPE_F32, 0); }
static void name_long(buffer *b) { raw_header(b, 3, 1, 0), raw_u64(b, 256), raw_padding(b, 999); }
static void name_empty(buffer *b) {
    raw_header(b, 3, 1, 0), raw_tensor(b, "", 1, NE(4), TYPE_F32, 0), raw_padding(b, 99);
}
static void info_cut(buffer *b) {
    raw_header(b, 3, 1, 0), raw_text(b, "blk.0.weight.norm"), raw_u32(b, 4), raw_u64(b, 1);
}

static void raw_two_tensors(buffer *b, const char *second, uint64_t offset) {
    raw_header(b, 3, 2, 0);
    raw_tensor(b, "blk.0.weight", 1, NE(16), TYPE_F32, 0);
    raw_tensor(b, second, 1, NE(16), TYPE_F32, offset);
    raw_padding(b, 256);
}

static void tensor_twice(buffer *b) { raw_two_tensors(b, "blk.0.weight", 64); }
static void overlap(buffer *b) { raw_two_tensors(b, "blk.1.weight", 32); }
static void overlap_whole(buffer *b) { raw_two_tensors(b, "blk.1.weight", 0); }

static void raw_aligned(buffer *b, uint32_t type, uint64_t alignment) {
    raw_header(b, 3, 1, 1);
    raw_text(b, "general.alignment");
    raw_u32(b, type);
    if (type == GGUF_STRING) raw_text(b, "32");
    else if (type == GGUF_I64) raw_u64(b, alignment);
    else raw_u32(b, (uint32_t)alignment);
    raw_tensor(b, "blk.0.weight", 1, NE(4), TYPE_F32, 0);
    raw_padding(b, 256);
}

static void alignment_0(buffer *b) { raw_aligned(b, GGUF_U32, 0); }
static void alignment_4(buffer *b) { raw_aligned(b, GGUF_U32, 4); }
static void alignment_48(buffer *b) { raw_aligned(b, GGUF_U32, 48); }
static void alignment_negative(buffer *b) { raw_aligned(b, GGUF_I64, (uint64_t)-32); }
static void alignment_text(buffer *b) { raw_aligned(b, GGUF_STRING, 0); }
static void alignment_float(buffer *b) { raw_aligned(b, GGUF_F32, 0x42000000); }
static void alignment_huge(buffer *b) { raw_aligned(b, GGUF_U32, 1u << 31); }

static void split_later(buffer *b) {
    raw_header(b, 3, 0, 2), raw_value_u32(b, "split.no", 1), raw_value_u32(b, "split.count", 2);
}
static void split_text(buffer *b) {
    raw_header(b, 3, 0, 1), raw_text(b, "split.count"), raw_u32(b, GGUF_STRING), raw_text(b, "2");
}
static void split_huge(buffer *b) { raw_header(b, 3, 0, 1), raw_value_u32(b, "split.count", UINT32_MAX); }
static void split_tensors(buffer *b) {
    raw_header(b, 3, 0, 2), raw_value_u32(b, "split.count", 1), raw_value_u32(b, "split.tensors.count", 5);
}

static const struct {
    const char *name;
    void (*build)(buffer *);
    gm_status   status;
    const char *message; /* what it must say: the field, and the reason */
} cases[] = {
    { "empty file", empty, GM_BAD_FILE, "the header: the file ends inside the magic bytes" },
    { "three bytes", three_bytes, GM_BAD_FILE, "magic bytes: 4 bytes needed, 3 left" },
    { "other magic", other_magic, GM_BAD_FILE, "not a GGUF file" },
    { "Git LFS pointer", lfs_pointer, GM_BAD_FILE, "Git LFS" },
    { "web page", web_page, GM_BAD_FILE, "web page" },
    { "version 0", version_0, GM_UNSUPPORTED, "version is 0" },
    { "version 1", version_1, GM_UNSUPPORTED, "version 1 is not supported" },
    { "version 4", version_4, GM_UNSUPPORTED, "version is 4; 2 and 3" },
    { "big-endian", big_endian, GM_UNSUPPORTED, "big-endian" },
    { "2^60 tensors", tensors_2_60, GM_BAD_FILE, "the tensor count says 1152921504606846976, but only" },
    { "2^60 values", values_2_60, GM_BAD_FILE, "the metadata count says 1152921504606846976, but only" },
    { "2^64 tensors", tensors_2_64, GM_BAD_FILE, "the tensor count says 18446744073709551615" },
    { "more values than bytes", values_beyond, GM_BAD_FILE, "the metadata count says 10" },
    { "key of 2^60 bytes", key_2_60, GM_BAD_FILE, "metadata entry 1: its name has 1152921504606846976 bytes" },
    { "key of 2^64 bytes", key_2_64, GM_BAD_FILE, "metadata entry 1: its name has" },
    { "key too long", key_long, GM_BAD_FILE, "metadata entry 1: its name has 65536 bytes; the limit is 65535" },
    { "key empty", key_empty, GM_BAD_FILE, "metadata entry 1: its name is empty" },
    { "key with zero byte", key_zero, GM_BAD_FILE, "metadata entry 1: its name contains a zero byte" },
    { "key twice", key_twice, GM_BAD_FILE, "metadata key 'gemma4.block_count' appears twice" },
    { "value type", value_type, GM_BAD_FILE, "metadata key 'some.key': unknown value type 13" },
    { "value cut off", value_cut, GM_BAD_FILE, "metadata key 'some.key': the file ends inside its value" },
    { "bool of 2", value_bool, GM_BAD_FILE, "metadata key 'some.key': a bool must be 0 or 1, found 2" },
    { "string of 2^60 bytes", string_2_60, GM_BAD_FILE, "metadata key 'some.key': the file ends inside string 1 of 1" },
    { "string of nearly 2^64 bytes", string_2_64, GM_BAD_FILE,
      "metadata key 'some.key': the file ends inside string 1 of 1" },
    { "array of 2^60", array_2_60, GM_BAD_FILE, "metadata key 'some.array': the file ends inside its value" },
    { "array whose size wraps", array_wraps, GM_BAD_FILE, "metadata key 'some.array': the file ends inside its value" },
    { "array of an unknown type", array_item, GM_BAD_FILE, "metadata key 'some.array': unknown item type 99" },
    { "array of arrays", array_nested, GM_UNSUPPORTED, "metadata key 'some.array': arrays of arrays" },
    { "2^60 strings", strings_2_60, GM_BAD_FILE, "metadata key 'some.array': the file ends inside its value" },
    { "strings cut off", strings_cut, GM_BAD_FILE,
      "metadata key 'some.array': the file ends inside string 3 of 3: 50 bytes needed, 1 left" },
    { "string length cut off", strings_length, GM_BAD_FILE,
      "metadata key 'some.array': the file ends inside a string's length" },
    { "string whose end wraps", strings_wrap, GM_BAD_FILE,
      "metadata key 'some.array': the file ends inside string 1 of 2" },
    { "no dimensions", dims_0, GM_BAD_FILE, "tensor 'blk.0.weight': it has 0 dimensions" },
    { "5 dimensions", dims_5, GM_BAD_FILE, "tensor 'blk.0.weight': it has 5 dimensions" },
    { "2^32 dimensions", dims_2_32, GM_BAD_FILE, "tensor 'blk.0.weight': it has 4294967295 dimensions" },
    { "dimension of 0", dim_zero, GM_BAD_FILE, "tensor 'blk.0.weight': dimension 1 is 0" },
    { "elements wrap", product_wraps, GM_BAD_FILE, "tensor 'blk.0.weight': the product of its dimensions" },
    { "rows wrap", product_wraps_rows, GM_BAD_FILE, "tensor 'blk.0.weight': the product of its dimensions" },
    { "bytes wrap", bytes_wrap, GM_BAD_FILE, "tensor 'blk.0.weight': the product of its dimensions" },
    { "data past the end", past_the_end, GM_BAD_FILE,
      "the file is cut off: tensor 'blk.0.weight' ends at byte 4398046511200, the file has 195" },
    { "no whole blocks", block_multiple, GM_BAD_FILE,
      "tensor 'blk.0.weight': its rows have 255 elements, which is not a multiple of the 256 in a block of Q4_K" },
    { "unknown tensor type", type_unknown, GM_UNSUPPORTED, "tensor 'blk.0.weight': its type 77 (unknown)" },
    { "tensor type that others read", type_foreign, GM_UNSUPPORTED, "tensor 'blk.0.weight': its type 16 (IQ2_XXS)" },
    { "tensor type of the past", type_gap, GM_UNSUPPORTED, "tensor 'blk.0.weight': its type 5" },
    { "misaligned offset", offset_misaligned, GM_BAD_FILE,
      "tensor 'blk.0.weight': its offset 8 is not a multiple of the alignment 32" },
    { "offset past the end", offset_past, GM_BAD_FILE, "the file is cut off: tensor 'blk.0.weight'" },
    { "offset wraps", offset_wraps, GM_BAD_FILE, "tensor 'blk.0.weight': its offset does not fit" },
    { "data cut off by a byte", data_cut, GM_BAD_FILE,
      "the file is cut off: tensor 'blk.0.weight' ends at byte 196, the file has 195" },
    { "no data", data_missing, GM_BAD_FILE, "the file is cut off: tensor 'blk.0.weight'" },
    { "tensor name too long", name_long, GM_BAD_FILE, "tensor info 1: its name has 256 bytes; the limit is 255" },
    { "tensor name empty", name_empty, GM_BAD_FILE, "tensor info 1: its name is empty" },
    { "info cut off", info_cut, GM_BAD_FILE, "tensor 'blk.0.weight.norm': the file ends inside its dimensions" },
    { "tensor twice", tensor_twice, GM_BAD_FILE, "tensor 'blk.0.weight' appears twice" },
    { "overlap", overlap, GM_BAD_FILE,
      "tensor 'blk.0.weight' ends at byte 192, inside tensor 'blk.1.weight', which starts at 160" },
    { "one tensor on top of another", overlap_whole, GM_BAD_FILE, "' ends at byte 192, inside tensor 'blk." },
    { "alignment 0", alignment_0, GM_BAD_FILE, "metadata key 'general.alignment' is 0" },
    { "alignment 4", alignment_4, GM_BAD_FILE, "metadata key 'general.alignment' is 4" },
    { "alignment 48", alignment_48, GM_BAD_FILE, "metadata key 'general.alignment' is 48, expected a power of two" },
    { "negative alignment", alignment_negative, GM_BAD_FILE, "metadata key 'general.alignment' is -32" },
    { "alignment as text", alignment_text, GM_BAD_FILE, "metadata key 'general.alignment' must be a whole number" },
    { "alignment as float", alignment_float, GM_BAD_FILE, "metadata key 'general.alignment' must be a whole number" },
    { "alignment beyond the file", alignment_huge, GM_BAD_FILE, "the file is cut off: tensor 'blk.0.weight'" },
    { "a later part", split_later, GM_BAD_ARGUMENT, "split.no is 1" },
    { "split.count as text", split_text, GM_BAD_FILE, "metadata key 'split.count' must be a whole number" },
    { "2^32 parts", split_huge, GM_BAD_FILE, "metadata key 'split.count' is 4294967295" },
    { "split tensors", split_tensors, GM_BAD_FILE, "split.tensors.count says 5" },
};

/* ---- ways to read a file ---- */

/* Reads from a copy of exactly that size, so that a sanitizer notices every access beyond it. */
static gm_status read_copy(const void *data, size_t length, error *e) {
    uint8_t *copy = malloc(length ? length : 1);
    if (length) memcpy(copy, data, length);
    gguf     *g = NULL;
    gm_status status = gguf_open_memory(copy, length, &g, e);
    if (status == GM_OK) read_gguf(g);
    gguf_free(g);
    free(copy);
    return status;
}

static void test_bad_files(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buffer b = { 0 };
        error  whole = { 0 }, pieces = { 0 };
        TEST("bad file: %s", cases[i].name);
        cases[i].build(&b);
        gm_status status = read_copy(b.data, b.length, &whole);
        CHECK_MESSAGE(status == cases[i].status, "%s: %s", gm_status_name(status), whole.why);
        CHECK_MESSAGE(strstr(whole.why, cases[i].message), "%s", whole.why);
        status = read_gguf_in_pieces(b.data, b.length, 5, &pieces);
        CHECK_MESSAGE(status == cases[i].status && !strcmp(whole.why, pieces.why), "in pieces: %s", pieces.why);
        buffer_free(&b);
    }
}

/* ---- damage to a good file ---- */

static void write_good(buffer *out, size_t *head) {
    static const uint8_t data[512] = { 1, 2, 3 };
    static const int32_t layers[] = { 1, 2, 3 };
    gguf_writer         *w = NULL;
    gguf_writer_new(&w, NULL);
    gguf_write_u32(w, "general.alignment", 32);
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    gguf_write_array(w, "gemma4.ff", GGUF_I32, layers, 3);
    gguf_write_strings(w, "tokens", (str[]){ str_of("a"), str_of(""), str_of("ccc") }, 3);
    gguf_write_bool(w, "flag", true);
    gguf_write_tensor(w, "one", TYPE_F32, 1, NE(5));
    gguf_write_tensor(w, "two", TYPE_Q4_0, 2, NE(64, 2));
    gguf_writer_head(w, buffer_sink, out, NULL);
    *head = out->length;
    gguf_writer_data(w, data, 20 + 72, NULL);
    CHECK(gguf_writer_end(w, NULL) == GM_OK);
    gguf_writer_free(w);
}

static void test_truncation(void) {
    buffer b = { 0 };
    size_t head = 0;
    TEST("a good file");
    write_good(&b, &head);
    CHECK(read_copy(b.data, b.length, NULL) == GM_OK && read_gguf_in_pieces(b.data, b.length, 11, NULL) == GM_OK);
    TEST("cut off at every byte");
    const size_t needed = head + 32 + 72; /* the padding behind the last tensor may be missing */
    for (size_t length = 0; length < b.length; length++) {
        error     e = { 0 }, pieces = { 0 };
        gm_status status = read_copy(b.data, length, &e);
        CHECK_MESSAGE(status == (length < needed ? GM_BAD_FILE : GM_OK), "%zu bytes: %s", length, e.why);
        CHECK_MESSAGE(length >= needed || strstr(e.why, "the file ends") || strstr(e.why, "the file is cut off") ||
                          strstr(e.why, "bytes follow"),
                      "%s", e.why);
        CHECK(read_gguf_in_pieces(b.data, length, 13, &pieces) == status);
    }
    buffer_free(&b);
}

static bool clean(gm_status status, const error *e) {
    if (status == GM_OK) return !e->why[0];
    return (status == GM_BAD_FILE || status == GM_UNSUPPORTED || status == GM_BAD_ARGUMENT) && e->why[0];
}

static void test_bit_flips(void) {
    buffer b = { 0 };
    size_t head = 0, refused = 0;
    TEST("every bit of the head flipped");
    write_good(&b, &head);
    for (size_t bit = 0; bit < head * 8; bit++) {
        error e = { 0 }, pieces = { 0 };
        b.data[bit / 8] ^= (char)(1 << bit % 8);
        gm_status status = read_copy(b.data, b.length, &e);
        CHECK_MESSAGE(clean(status, &e), "bit %zu: %s %s", bit, gm_status_name(status), e.why);
        CHECK(read_gguf_in_pieces(b.data, b.length, 17, &pieces) == status && !strcmp(e.why, pieces.why));
        refused += status != GM_OK;
        b.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    CHECK_MESSAGE(refused > head, "only %zu of %zu flips refused", refused, head * 8);

    TEST("random bytes over the head");
    char *copy = malloc(b.length);
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t random[4];
        error    e = { 0 };
        memcpy(copy, b.data, b.length);
        for (uint32_t i = 0; i <= round % 4; i++) {
            static const uint64_t nasty[] = { 0,          1,          0x7fffffff, 0xffffffff, 1ull << 31,
                                              1ull << 32, 1ull << 60, 1ull << 63, UINT64_MAX, UINT64_MAX - 7 };
            philox((uint32_t[4]){ round, i }, (uint32_t[2]){ 3, 4 }, random);
            size_t at = random[0] % (head - 8), bytes = random[2] % 3 == 0 ? 8 : random[2] % 3 == 1 ? 4 : 1;
            memcpy(copy + at, &nasty[random[1] % COUNT_OF(nasty)], bytes);
        }
        gm_status status = read_copy(copy, b.length, &e);
        CHECK_MESSAGE(clean(status, &e), "round %u: %s %s", round, gm_status_name(status), e.why);
        if (test_bad) break;
    }
    free(copy);
    buffer_free(&b);
}

static void test_after_failure(void) {
    TEST("a refused file stays refused");
    source *s = NULL;
    gguf   *g = NULL;
    error   first = { 0 }, second = { 0 };
    CHECK(source_memory("GGXF....", 8, &s, NULL) == GM_OK && gguf_new(s, &g, NULL) == GM_OK);
    CHECK(gguf_step(g, &first) == GM_BAD_FILE && gguf_step(g, &second) == GM_BAD_FILE && second.why[0]);
    CHECK(gguf_tensor_count(g) == 0 && !gguf_find(g, "x") && !gguf_find_tensor(g, "x"));
    CHECK(source_memory("GGUF", 4, &s, NULL) == GM_OK && gguf_add_part(g, s, NULL) == GM_BAD_ARGUMENT);
    gguf_free(g);

    TEST("a head that never ends is not collected");
    uint64_t  offset, n;
    error     e = { 0 };
    gm_status status;
    uint8_t  *piece = calloc(1, 64 << 20);
    buffer    b = { 0 };
    raw_array(&b, GGUF_U8, 1ull << 40);
    memcpy(piece, b.data, b.length);
    CHECK(source_pieces(1ull << 41, &s, NULL) == GM_OK && gguf_new(s, &g, NULL) == GM_OK);
    source_set_piece(s, 64 << 20);
    for (int i = 0; (status = gguf_step(g, &e)) == GM_AGAIN && i < 100; i++) {
        CHECK(source_wanted(s, &offset, &n) && source_give(s, offset, piece, n, NULL) == GM_OK);
    }
    CHECK_MESSAGE(status == GM_UNSUPPORTED && strstr(e.why, "limit for a file that arrives in pieces is 512 MiB"), "%s",
                  e.why);
    gguf_free(g);
    buffer_free(&b);
    free(piece);
}

int main(void) {
    test_bad_files();
    test_truncation();
    test_bit_flips();
    test_after_failure();
    return test_end();
}
