/* The GGUF reader over memory, files and pieces; the writer; typed access; split models. */

#include "base/buffer.h"
#include "base/clock.h"
#include "gguf/gguf.h"
#include "test.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- writer and reader ---- */

static const uint8_t tensor_bytes[3 * 64 * 4 + 100] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };

/* A file with one of everything. */
static void write_sample(buffer *out, uint32_t alignment) {
    gguf_writer         *w = NULL;
    error                e = { 0 };
    static const int32_t layers[] = { 5, -6, 7 };
    static const uint8_t pattern[] = { 1, 1, 0 };
    static const double  doubles[] = { 0.5, -1e300 };
    const str            names[] = { str_of("a"), str_of(""), { "x\0\xff\n", 4 } };
    CHECK(gguf_writer_new(&w, &e) == GM_OK);
    if (alignment) gguf_write_u32(w, "general.alignment", alignment);
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    gguf_write_u32(w, "n.u32", 4000000000u);
    gguf_write_i32(w, "n.i32", -7);
    gguf_write_u64(w, "n.u64", UINT64_MAX);
    gguf_write_f32(w, "n.f32", 0.1f);
    gguf_write_bool(w, "n.true", true);
    gguf_write_bool(w, "n.false", false);
    gguf_write_array(w, "layers", GGUF_I32, layers, 3);
    gguf_write_array(w, "pattern", GGUF_BOOL, pattern, 3);
    gguf_write_array(w, "doubles", GGUF_F64, doubles, 2);
    gguf_write_array(w, "nothing", GGUF_U64, NULL, 0);
    gguf_write_strings(w, "names", names, 3);
    gguf_write_tensor(w, "one", TYPE_F32, 1, (uint64_t[]){ 3 });
    gguf_write_tensor(w, "two", TYPE_Q8_0, 2, (uint64_t[]){ 64, 3 });
    gguf_write_tensor(w, "three", TYPE_I8, 4, (uint64_t[]){ 1, 2, 3, 4 });
    CHECK(gguf_writer_head(w, buffer_sink, out, &e) == GM_OK);
    const uint64_t all = 12 + 204 + 24;
    for (uint64_t done = 0; done < all; done += 7) { /* pieces that straddle the tensors */
        CHECK(gguf_writer_data(w, tensor_bytes + done, done + 7 < all ? 7 : all - done, &e) == GM_OK);
    }
    CHECK_MESSAGE(gguf_writer_end(w, &e) == GM_OK, "%s", e.why);
    CHECK(gguf_writer_size(w) == out->length);
    gguf_writer_free(w);
}

static void check_sample_tensors(const gguf *g, const uint8_t *file, uint32_t alignment) {
    static const struct {
        const char *name;
        uint64_t    ne[4], count, bytes, from;
        uint32_t    dims;
        quant_type  type;
    } rows[] = {
        { "one", { 3, 1, 1, 1 }, 3, 12, 0, 1, TYPE_F32 },
        { "two", { 64, 3, 1, 1 }, 192, 204, 12, 2, TYPE_Q8_0 },
        { "three", { 1, 2, 3, 4 }, 24, 24, 216, 4, TYPE_I8 },
    };
    CHECK(gguf_tensor_count(g) == COUNT_OF(rows) && !gguf_find_tensor(g, "four") && !gguf_tensor_at(g, 3));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const gguf_tensor *t = gguf_find_tensor(g, rows[i].name);
        CHECK(t && t == gguf_tensor_at(g, i));
        if (!t) continue;
        CHECK(!memcmp(t->ne, rows[i].ne, sizeof t->ne) && t->dims == rows[i].dims && t->type == rows[i].type);
        CHECK(t->count == rows[i].count && t->bytes == rows[i].bytes && t->part == 0 && t->offset % alignment == 0);
        CHECK(!memcmp(file + t->offset, tensor_bytes + rows[i].from, t->bytes));
    }
}

static void check_sample_values(const gguf *g) {
    str      text;
    uint32_t u32 = 0, u32s[3] = { 0 };
    uint64_t u64 = 0;
    float    f32 = 0;
    bool     flag = false, found = true, flags[3];
    double   number = 0;
    int64_t  integer = 0;
    CHECK(gguf_version(g) == 3 && gguf_parts(g) == 1);
    CHECK(!gguf_get_str(g, "general.architecture", &text, NULL, NULL) && str_is(text, "gemma4"));
    CHECK(!gguf_get_u32(g, "n.u32", &u32, NULL, NULL) && u32 == 4000000000u);
    CHECK(!gguf_get_u64(g, "n.u32", &u64, NULL, NULL) && u64 == 4000000000u);
    CHECK(!gguf_get_u64(g, "n.u64", &u64, &found, NULL) && u64 == UINT64_MAX && found);
    CHECK(!gguf_get_f32(g, "n.f32", &f32, NULL, NULL) && f32 == 0.1f);
    CHECK(!gguf_get_bool(g, "n.true", &flag, NULL, NULL) && flag && !gguf_get_bool(g, "n.false", &flag, NULL, NULL) &&
          !flag);
    CHECK(!gguf_get_u32s(g, "n.u32", u32s, 3, NULL, NULL) && u32s[2] == 4000000000u);
    CHECK(!gguf_get_bools(g, "pattern", flags, 3, NULL, NULL) && flags[0] && flags[1] && !flags[2]);
    CHECK(!gguf_get_bools(g, "n.true", flags, 3, NULL, NULL) && flags[2]);
    CHECK(!gguf_get_u32(g, "absent", &u32, &found, NULL) && !found && u32 == 4000000000u);
    const gguf_value *v = gguf_find(g, "doubles");
    CHECK(v && v->array && v->count == 2 && gguf_item_float(v, 1, &number) && number == -1e300 &&
          !gguf_item_float(v, 2, &number));
    v = gguf_find(g, "layers");
    CHECK(v && gguf_item_integer(v, 1, &integer) && integer == -6 && gguf_item_float(v, 2, &number) && number == 7);
    CHECK(!gguf_item_integer(gguf_find(g, "n.u64"), 0, &integer) &&
          !gguf_item_integer(gguf_find(g, "n.f32"), 0, &integer));
    v = gguf_find(g, "nothing");
    CHECK(v && v->array && !v->count && !v->bytes);
    v = gguf_find(g, "names");
    CHECK(v && v->array && v->count == 3 && v->type == GGUF_STRING && v->bytes == 3 * 8 + 5);
    if (!v) return;
    const uint8_t *cursor = v->data;
    CHECK(str_is(gguf_next_string(&cursor), "a") && str_is(gguf_next_string(&cursor), ""));
    CHECK(str_equal(gguf_next_string(&cursor), (str){ "x\0\xff\n", 4 }) && cursor == v->data + v->bytes);
}

/* Reads a file in pieces; returns how many it wanted. */
static gm_status open_in_pieces(const uint8_t *data, uint64_t length, uint64_t piece, gguf **out, size_t *wants,
                                error *e) {
    source  *s = NULL;
    uint64_t offset = 0, n = 0;
    CHECK(source_pieces(length, &s, e) == GM_OK && gguf_new(s, out, e) == GM_OK);
    source_set_piece(s, piece);
    gm_status status;
    for (*wants = 0; (status = gguf_step(*out, e)) == GM_AGAIN; ++*wants) {
        CHECK(gguf_waiting_source(*out) == s && source_wanted(s, &offset, &n) && n && n <= piece &&
              offset + n <= length);
        uint8_t *copy = malloc(n + 1); /* the reader must not keep our memory */
        memcpy(copy, data + offset, n);
        CHECK(source_give(s, offset, copy, n, e) == GM_OK);
        free(copy);
    }
    return status;
}

static void test_gguf_round_trip(void) {
    static const uint32_t alignments[] = { 0, 8, 64, 4096 };
    for (size_t i = 0; i < COUNT_OF(alignments); i++) {
        TEST("round trip, alignment %u", alignments[i]);
        const uint32_t alignment = alignments[i] ? alignments[i] : 32;
        buffer         file = { 0 };
        gguf          *g = NULL;
        error          e = { 0 };
        write_sample(&file, alignments[i]);
        CHECK_MESSAGE(gguf_open_memory(file.data, file.length, &g, &e) == GM_OK, "%s", e.why);
        if (g) {
            check_sample_values(g);
            check_sample_tensors(g, (const uint8_t *)file.data, alignment);
            CHECK(gguf_tensor_data(g, gguf_tensor_at(g, 0)) == (const uint8_t *)file.data + gguf_head_bytes(g));
            CHECK(gguf_file_bytes(g) == file.length && gguf_head_bytes(g) % alignment == 0);
        }
        gguf_free(g);
        buffer_free(&file);
    }
    static const uint64_t pieces[] = { 1, 3, 7, 64, 1000, SOURCE_PIECE };
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        TEST("round trip in pieces of %llu", (unsigned long long)pieces[i]);
        buffer file = { 0 };
        gguf  *g = NULL;
        error  e = { 0 };
        size_t wants = 0;
        write_sample(&file, 0);
        CHECK_MESSAGE(open_in_pieces((const uint8_t *)file.data, file.length, pieces[i], &g, &wants, &e) == GM_OK, "%s",
                      e.why);
        check_sample_values(g);
        check_sample_tensors(g, (const uint8_t *)file.data, 32);
        CHECK(!gguf_tensor_data(g, gguf_tensor_at(g, 0)));
        uint64_t head = gguf_head_bytes(g);
        CHECK_MESSAGE(wants <= head / pieces[i] + 1, "%zu wants for %llu bytes", wants, (unsigned long long)head);
        gguf_free(g);
        buffer_free(&file);
    }
}

static void test_getter_errors(void) {
    buffer file = { 0 };
    gguf  *g = NULL;
    TEST("typed access: setting up");
    write_sample(&file, 0);
    CHECK(gguf_open_memory(file.data, file.length, &g, NULL) == GM_OK);
    enum { U32, U64, F32, BOOL, STR, U32S, BOOLS };
    static const struct {
        int         getter;
        const char *key, *message;
    } rows[] = {
        { U32, "n.u64", "'n.u64': expected 0 to 4294967295, found 18446744073709551615" },
        { U32, "n.i32", "'n.i32': expected 0 to 4294967295, found -7" },
        { U32, "n.f32", "'n.f32': expected a whole number, found f32" },
        { U32, "n.true", "found bool" },
        { U32, "layers", "found an array of i32" },
        { U32, "absent", "'absent' is missing" },
        { U64, "names", "found an array of string" },
        { F32, "names", "'names': expected a number" },
        { F32, "n.true", "expected a number, found bool" },
        { BOOL, "n.u32", "expected a bool, found u32" },
        { BOOL, "pattern", "an array of bool" },
        { STR, "n.u32", "'n.u32': expected a string" },
        { STR, "names", "expected a string" },
        { STR, "absent", "'absent' is missing" },
        { U32S, "layers", "found -6" },
        { U32S, "doubles", "expected one value or 3, found 2" },
        { U32S, "general.architecture", "found string" },
        { BOOLS, "layers", "expected a bool" },
        { BOOLS, "nothing", "found 0" },
    };
    for (size_t i = 0; g && i < COUNT_OF(rows); i++) {
        error     e = { 0 };
        uint32_t  u32, u32s[3];
        uint64_t  u64;
        float     f32;
        bool      flag, flags[3];
        str       text;
        gm_status status = GM_OK;
        TEST("typed access to %s, row %zu", rows[i].key, i);
        switch (rows[i].getter) {
        case U32: status = gguf_get_u32(g, rows[i].key, &u32, NULL, &e); break;
        case U64: status = gguf_get_u64(g, rows[i].key, &u64, NULL, &e); break;
        case F32: status = gguf_get_f32(g, rows[i].key, &f32, NULL, &e); break;
        case BOOL: status = gguf_get_bool(g, rows[i].key, &flag, NULL, &e); break;
        case STR: status = gguf_get_str(g, rows[i].key, &text, NULL, &e); break;
        case U32S: status = gguf_get_u32s(g, rows[i].key, u32s, 3, NULL, &e); break;
        case BOOLS: status = gguf_get_bools(g, rows[i].key, flags, 3, NULL, &e); break;
        }
        CHECK(status == GM_BAD_FILE);
        CHECK_MESSAGE(strstr(e.why, rows[i].message), "%s", e.why);
    }
    gguf_free(g);
    buffer_free(&file);
}

static bool broken_sink(void *user, const void *data, size_t length) {
    (void)data, (void)length;
    return --*(int *)user >= 0;
}

static void test_writer_errors(void) {
    static const struct {
        const char *what, *message;
    } rows[] = {
        { "duplicate key", "'a' appears twice" },
        { "duplicate tensor", "tensor 't' appears twice" },
        { "empty key", "1 to 65535" },
        { "shape", "does not fit its type" },
        { "zero", "does not fit its type" },
        { "missing data", "1 of 1 tensors is missing" },
        { "too much data", "1 bytes more" },
        { "sink", "writing the file failed" },
        { "late key", "after the head" },
        { "alignment", "power of two" },
        { "string items", "fixed size" },
        { "no head", "before its head" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        gguf_writer *w = NULL;
        error        e = { 0 };
        buffer       out = { 0 };
        str          what = str_of(rows[i].what);
        int          calls = 2;
        TEST("writer: %s", rows[i].what);
        CHECK(gguf_writer_new(&w, &e) == GM_OK);
        gguf_write_u32(w, str_is(what, "empty key") ? "" : "a", 1);
        if (str_is(what, "duplicate key")) gguf_write_f32(w, "a", 1);
        gguf_write_tensor(w, "t", TYPE_Q4_0, 2,
                          (uint64_t[]){ str_is(what, "shape") ? 33 : 32, str_is(what, "zero") ? 0 : 1 });
        if (str_is(what, "duplicate tensor")) gguf_write_tensor(w, "t", TYPE_F32, 1, (uint64_t[]){ 1 });
        if (str_is(what, "alignment")) gguf_write_u32(w, "general.alignment", 48);
        if (str_is(what, "string items")) gguf_write_array(w, "s", GGUF_STRING, &what, 1);
        if (str_is(what, "sink")) gguf_writer_head(w, broken_sink, &calls, &e);
        else if (!str_is(what, "no head")) gguf_writer_head(w, buffer_sink, &out, &e);
        if (str_is(what, "late key")) gguf_write_u32(w, "b", 1);
        if (!str_is(what, "missing data")) gguf_writer_data(w, tensor_bytes, 18, &e);
        if (str_is(what, "too much data")) gguf_writer_data(w, tensor_bytes, 1, &e);
        CHECK(gguf_writer_end(w, &e) != GM_OK && e.status);
        CHECK_MESSAGE(strstr(e.why, rows[i].message) || (str_is(what, "no head") && strstr(e.why, "before the head")),
                      "%s", e.why);
        gguf_writer_free(w);
        buffer_free(&out);
    }
}

/* ---- real files ---- */

static void test_fixtures(void) {
    static const struct {
        const char *file;
        uint32_t    layers; /* 0: any number */
    } rows[] = {
        { "tests/fixtures/tiny-dense.gguf", 6 },
        { "tests/fixtures/tiny-moe.gguf", 0 },
        { "tests/fixtures/small-dense-Q4_K_M.gguf", 0 },
        { "tests/fixtures/small-moe-Q4_K_M.gguf", 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        gguf    *g = NULL, *pieces = NULL;
        error    e = { 0 };
        str      architecture = { 0 };
        uint32_t layers = 0;
        size_t   wants = 0;
        TEST("fixture %s", rows[i].file);
        CHECK_MESSAGE(gguf_open_file(rows[i].file, &g, &e) == GM_OK, "%s", e.why);
        if (!g) continue;
        CHECK(!gguf_get_str(g, "general.architecture", &architecture, NULL, &e) && str_is(architecture, "gemma4"));
        CHECK(!gguf_get_u32(g, "gemma4.block_count", &layers, NULL, &e) && layers &&
              (!rows[i].layers || layers == rows[i].layers));
        CHECK(gguf_find_tensor(g, "token_embd.weight") &&
              gguf_tensor_data(g, gguf_find_tensor(g, "token_embd.weight")));
        source_will_need(gguf_source(g, 0));
        const uint8_t *file = source_whole(gguf_source(g, 0));
        CHECK(open_in_pieces(file, gguf_file_bytes(g), 4096, &pieces, &wants, &e) == GM_OK);
        CHECK(gguf_value_count(g) == gguf_value_count(pieces) && gguf_tensor_count(g) == gguf_tensor_count(pieces));
        for (size_t k = 0; k < gguf_value_count(g); k++) {
            const gguf_value *a = gguf_value_at(g, k), *b = gguf_value_at(pieces, k);
            CHECK(str_equal(a->key, b->key) && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes));
        }
        gguf_free(g);
        gguf_free(pieces);
    }
    TEST("files that cannot be opened");
    gguf *g = NULL;
    error missing = { 0 }, folder = { 0 }, text = { 0 }, device = { 0 };
    CHECK(gguf_open_file("tests/fixtures/nothing.gguf", &g, &missing) == GM_NOT_FOUND &&
          strstr(missing.why, "nothing.gguf"));
    CHECK(gguf_open_file("tests/fixtures", &g, &folder) == GM_BAD_ARGUMENT && strstr(folder.why, "is a directory"));
    CHECK(gguf_open_file("/dev/null", &g, &device) == GM_BAD_ARGUMENT && strstr(device.why, "not a regular file"));
    CHECK(gguf_open_file("tests/test_gguf.c", &g, &text) == GM_BAD_FILE &&
          strstr(text.why, "tests/test_gguf.c: the header: not a GGUF file"));
}

/* ---- a head of real size ---- */

static void test_large_vocabulary(void) {
    enum { TOKENS = 262144, MERGES = 514906 };
    TEST("a vocabulary of real size opens in linear time, whole and in pieces");
    gguf_writer *w = NULL;
    buffer       file = { 0 };
    error        e = { 0 };
    str         *items = malloc(MERGES * sizeof *items);
    char(*texts)[24] = malloc((size_t)MERGES * 24);
    for (int i = 0; i < MERGES; i++) {
        int n = snprintf(texts[i], 24, "left%d right%d", i % 1000, i);
        items[i] = (str){ texts[i], (size_t)n };
    }
    CHECK(gguf_writer_new(&w, &e) == GM_OK);
    gguf_write_strings(w, "tokenizer.ggml.tokens", items, TOKENS);
    gguf_write_strings(w, "tokenizer.ggml.merges", items, MERGES);
    for (int i = 0; i < 2000; i++) {
        char name[40];
        snprintf(name, sizeof name, "blk.%d.weight", i);
        gguf_write_tensor(w, name, TYPE_F32, 1, (uint64_t[]){ 1 });
    }
    gguf_writer_head(w, buffer_sink, &file, &e);
    for (int i = 0; i < 2000; i++) gguf_writer_data(w, tensor_bytes, 4, &e);
    CHECK_MESSAGE(gguf_writer_end(w, &e) == GM_OK, "%s", e.why);
    gguf_writer_free(w);

    gguf  *g = NULL, *pieces = NULL;
    double start = clock_seconds();
    CHECK(gguf_open_memory(file.data, file.length, &g, &e) == GM_OK);
    double whole = clock_seconds() - start;
    size_t wants = 0;
    start = clock_seconds();
    CHECK(open_in_pieces((const uint8_t *)file.data, file.length, SOURCE_PIECE, &pieces, &wants, &e) == GM_OK);
    double by_pieces = clock_seconds() - start;
    /* 5 and 30 ms. Work that grows with the square of the strings would take hours, on any machine. */
    CHECK_MESSAGE(whole < 60 && by_pieces < 60, "%f s, %f s", whole, by_pieces);
    CHECK(wants > 10 && wants <= file.length / SOURCE_PIECE + 4); /* the first ones are smaller */
    const gguf_value *a = gguf_find(g, "tokenizer.ggml.merges"), *b = gguf_find(pieces, "tokenizer.ggml.merges");
    CHECK(a && b && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes));
    const uint8_t *cursor = b->data;
    bool           same = true;
    for (int i = 0; i < MERGES; i++) same &= str_equal(gguf_next_string(&cursor), items[i]);
    CHECK(same);
    gguf_free(g);
    gguf_free(pieces);
    buffer_free(&file);
    free(items);
    free(texts);
}

/* ---- sources ---- */

static void test_sources(void) {
    TEST("a source in pieces");
    source       *s = NULL;
    error         e = { 0 };
    uint64_t      offset = 0, n = 0;
    const uint8_t bytes[16] = "0123456789abcdef";
    CHECK(source_pieces(16, &s, NULL) == GM_OK && source_length(s) == 16 && !source_wanted(s, &offset, &n) &&
          !source_whole(s));
    source_set_piece(s, 4);
    CHECK(!source_bytes(s, 2, 6) && source_wanted(s, &offset, &n) && offset == 2 && n == 4);
    CHECK(source_give(s, 0, bytes, 4, &e) == GM_BAD_ARGUMENT && strstr(e.why, "4 bytes at 2 were wanted"));
    CHECK(source_give(s, 2, bytes + 2, 3, NULL) == GM_BAD_ARGUMENT);
    CHECK(source_give(s, 2, bytes + 2, 4, NULL) == GM_OK && !source_bytes(s, 2, 6));
    CHECK(source_wanted(s, &offset, &n) && offset == 6 && n == 2 && source_give(s, 6, bytes + 6, 2, NULL) == GM_OK);
    const uint8_t *got = source_bytes(s, 2, 6);
    CHECK(got && !memcmp(got, "234567", 6) && source_bytes(s, 4, 2) == got + 2 && !source_wanted(s, &offset, &n));
    CHECK(!source_bytes(s, 8, 4) && source_give(s, 8, bytes + 8, 4, NULL) == GM_OK && source_bytes(s, 2, 6) == got);
    source_drop(s, 8);
    CHECK(source_bytes(s, 8, 4) && !source_bytes(s, 2, 6) && source_wanted(s, &offset, &n) && offset == 2);
    CHECK(!source_bytes(s, 12, 4) && source_wanted(s, &offset, &n) && offset == 12); /* the last question counts */
    CHECK(!source_bytes(s, 12, 5) && !source_bytes(s, 17, 0) && !source_bytes(s, UINT64_MAX, 2));
    source_free(s);

    TEST("sources in memory and on disk");
    CHECK(source_memory(NULL, 4, &s, NULL) == GM_BAD_ARGUMENT && source_memory(NULL, 0, &s, NULL) == GM_OK);
    source_free(s);
    CHECK(source_memory(bytes, 16, &s, NULL) == GM_OK && source_bytes(s, 15, 1) == bytes + 15 &&
          !source_bytes(s, 15, 2));
    CHECK(source_give(s, 0, bytes, 1, NULL) == GM_BAD_ARGUMENT);
    source_free(s);
    source_free(NULL);
}

/* ---- split models ---- */

typedef struct {
    int         no, count, tensors;
    const char *name; /* of the part's tensor; NULL: none */
} split_part;

static void write_part(buffer *out, split_part p) {
    gguf_writer *w = NULL;
    gguf_writer_new(&w, NULL);
    if (p.no >= 0) gguf_write_array(w, "ignored", GGUF_U16, NULL, 0), gguf_write_u32(w, "split.no", (uint32_t)p.no);
    if (p.count >= 0) gguf_write_u32(w, "split.count", (uint32_t)p.count);
    if (p.tensors >= 0) gguf_write_i32(w, "split.tensors.count", p.tensors);
    if (p.name) gguf_write_tensor(w, p.name, TYPE_F32, 1, (uint64_t[]){ 2 });
    gguf_writer_head(w, buffer_sink, out, NULL);
    if (p.name) gguf_writer_data(w, p.name, 8, NULL);
    CHECK(gguf_writer_end(w, NULL) == GM_OK);
    gguf_writer_free(w);
}

static bool save(const char *path, const buffer *b) {
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    bool written = fwrite(b->data, 1, b->length, file) == b->length;
    return !fclose(file) && written;
}

static void test_split(void) {
    static const struct {
        const char *what, *message;
        split_part  parts[3];
        int         missing, open; /* the part that is not there; the one that is opened */
    } rows[] = {
        { "whole", NULL, { { 0, 3, 2, NULL }, { 1, 3, 2, "tensor.b" }, { 2, 3, 2, "tensor.c" } }, -1, 0 },
        { "no tensor count",
          NULL,
          { { 0, 3, -1, "tensor.a" }, { 1, 3, -1, "tensor.b" }, { 2, 3, -1, "tensor.c" } },
          -1,
          0 },
        { "wrong order",
          "part 2: split.no says 2, expected 1",
          { { 0, 3, 3, "tensor.a" }, { 2, 3, 3, "tensor.b" }, { 1, 3, 3, "tensor.c" } },
          -1,
          0 },
        { "no number",
          "part 3: split.no",
          { { 0, 3, 3, "tensor.a" }, { 1, 3, 3, "tensor.b" }, { -1, 3, 3, "tensor.c" } },
          -1,
          0 },
        { "other count",
          "part 2: split.count says 4, the first part says 3",
          { { 0, 3, 3, "tensor.a" }, { 1, 4, 3, "tensor.b" }, { 2, 3, 3, "tensor.c" } },
          -1,
          0 },
        { "other tensor count",
          "part 3: split.tensors.count differs",
          { { 0, 3, 3, "tensor.a" }, { 1, 3, 3, "tensor.b" }, { 2, 3, 4, "tensor.c" } },
          -1,
          0 },
        { "tensors do not add up",
          "split.tensors.count says 4, the 3 parts have 3",
          { { 0, 3, 4, "tensor.a" }, { 1, 3, 4, "tensor.b" }, { 2, 3, 4, "tensor.c" } },
          -1,
          0 },
        { "the same tensor twice",
          "tensor 'tensor.a' appears twice",
          { { 0, 3, 3, "tensor.a" }, { 1, 3, 3, "tensor.b" }, { 2, 3, 3, "tensor.a" } },
          -1,
          0 },
        { "a part is missing",
          "part-00002-of-00003.gguf: cannot be opened",
          { { 0, 3, 3, "tensor.a" }, { 1, 3, 3, "tensor.b" }, { 2, 3, 3, "tensor.c" } },
          1,
          0 },
        { "a later part opened",
          "this is part 2 of a model split into 3",
          { { 0, 3, 3, "tensor.a" }, { 1, 3, 3, "tensor.b" }, { 2, 3, 3, "tensor.c" } },
          -1,
          1 },
        { "count and name disagree",
          "must end with -00001-of-00005.gguf",
          { { 0, 5, 3, "tensor.a" }, { 1, 5, 3, "tensor.b" }, { 2, 5, 3, "tensor.c" } },
          -1,
          0 },
    };
    char folder[] = "/tmp/gemmule-test-XXXXXX";
    TEST("a folder for split models");
    CHECK(mkdtemp(folder));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char paths[3][100];
        TEST("split model: %s", rows[i].what);
        for (int k = 0; k < 3; k++) {
            buffer b = { 0 };
            snprintf(paths[k], sizeof paths[k], "%s/part-%05d-of-00003.gguf", folder, k + 1);
            write_part(&b, rows[i].parts[k]);
            if (k != rows[i].missing) CHECK(save(paths[k], &b));
            buffer_free(&b);
        }
        gguf     *g = NULL;
        error     e = { 0 };
        gm_status status = gguf_open_file(paths[rows[i].open], &g, &e);
        if (rows[i].message) {
            CHECK(status != GM_OK && !g);
            CHECK_MESSAGE(strstr(e.why, rows[i].message), "%s", e.why);
        } else {
            CHECK_MESSAGE(status == GM_OK && gguf_parts(g) == 3, "%s", e.why);
            const gguf_tensor *t = g ? gguf_find_tensor(g, "tensor.c") : NULL;
            CHECK(t && t->part == 2 && !memcmp(gguf_tensor_data(g, t), "tensor.c", 8));
            gguf_free(g);
        }
        for (int k = 0; k < 3; k++) unlink(paths[k]);
    }
    rmdir(folder);

    TEST("parts handed in one by one");
    buffer b[3] = { 0 };
    for (int k = 0; k < 3; k++) write_part(&b[k], rows[0].parts[k]);
    gguf   *g = NULL, *whole = NULL;
    source *s = NULL;
    error   e = { 0 };
    size_t  wants = 0;
    CHECK(gguf_open_memory(b[0].data, b[0].length, &whole, &e) == GM_UNSUPPORTED &&
          strstr(e.why, "split into 3 parts"));
    CHECK(open_in_pieces((const uint8_t *)b[0].data, b[0].length, 50, &g, &wants, NULL) == GM_OK &&
          gguf_parts(g) == 3 && !gguf_waiting_source(g));
    CHECK(source_memory(b[1].data, b[1].length, &s, NULL) == GM_OK && gguf_add_part(g, s, NULL) == GM_OK);
    source *early = NULL;
    CHECK(source_memory(b[2].data, b[2].length, &early, NULL) == GM_OK &&
          gguf_add_part(g, early, NULL) == GM_BAD_ARGUMENT);
    CHECK(gguf_step(g, NULL) == GM_OK);
    CHECK(source_memory(b[2].data, b[2].length, &s, NULL) == GM_OK && gguf_add_part(g, s, NULL) == GM_OK &&
          gguf_step(g, NULL) == GM_OK);
    CHECK(gguf_tensor_count(g) == 2 && gguf_source(g, 2) == s && !gguf_source(g, 3));
    CHECK(source_memory(b[2].data, b[2].length, &s, NULL) == GM_OK && gguf_add_part(g, s, NULL) == GM_BAD_ARGUMENT);
    gguf_free(g);
    for (int k = 0; k < 3; k++) buffer_free(&b[k]);
}

/* ---- too few addresses ---- */

/* A sparse file that is larger than the process's remaining address space. */
static void test_address_space(void) {
    char          path[] = "/tmp/gemmule-holes-XXXXXX";
    struct rlimit old, tight;
    gguf         *g = NULL;
    error         e = { 0 };
    unsigned long pages = 0;
    TEST("a file that does not fit into the address space is a lack of memory");
    const int file = mkstemp(path);
    FILE     *about = fopen("/proc/self/statm", "r");
    CHECK(file >= 0 && !ftruncate(file, (off_t)4 << 30) && about && fscanf(about, "%lu", &pages) == 1);
    if (about) fclose(about);
    CHECK(!getrlimit(RLIMIT_AS, &old));
    tight = old;
    tight.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)1 << 30);
    CHECK(!setrlimit(RLIMIT_AS, &tight));
    const gm_status status = gguf_open_file(path, &g, &e);
    CHECK(!setrlimit(RLIMIT_AS, &old));
    CHECK_MESSAGE(status == GM_NO_MEMORY && strstr(e.why, path), "%d: %s", status, e.why);
    gguf_free(g);
    close(file);
    unlink(path);
}

int main(void) {
    test_address_space();
    test_gguf_round_trip();
    test_getter_errors();
    test_writer_errors();
    test_fixtures();
    test_large_vocabulary();
    test_sources();
    test_split();
    return test_end();
}
