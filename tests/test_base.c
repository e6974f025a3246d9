/* The base: strings, errors, memory, numbers, JSON, UTF-8, hashes, random numbers, tables, threads. */

#include "base/arena.h"
#include "base/base64.h"
#include "base/beside.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/decimal.h"
#include "base/half.h"
#include "base/json.h"
#include "base/pool.h"
#include "base/turns.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/table.h"
#include "base/utf8.h"
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static void test_base_errors(void) {
    TEST("the first error stays");
    error e = { 0 };
    CHECK(fail(&e, GM_BAD_FILE, "first %d", 1) == GM_BAD_FILE);
    CHECK(fail(&e, GM_IO, "second") == GM_BAD_FILE);
    CHECK(!strcmp(e.why, "first 1"));
    CHECK(fail(NULL, GM_IO, "nobody listens") == GM_IO);
    char why[4];
    CHECK(error_report(&e, why, sizeof why) == GM_BAD_FILE && !strcmp(why, "fir"));
    CHECK(error_report(&e, NULL, 0) == GM_BAD_FILE);

    TEST("a message cannot steer a terminal and is UTF-8");
    error odd = { 0 };
    fail(&odd, GM_BAD_FILE,
         "a\x1b[2Jb\nc\xff"
         "d\xc2\x9b"
         "e\xc3\xa4");
    CHECK_MESSAGE(!strcmp(odd.why, "a?[2Jb c?d??e\xc3\xa4"), "%s", odd.why);
    error cut = { 0 };
    char  umlauts[900];
    for (int i = 0; i < 899; i++) umlauts[i] = i % 2 ? '\xa4' : '\xc3';
    umlauts[899] = 0;
    fail(&cut, GM_BAD_FILE, "%s", umlauts);
    CHECK(utf8_valid(str_of(cut.why)) && strlen(cut.why) == sizeof cut.why - 1);
    char small[4];
    fail(memset(&cut, 0, sizeof cut), GM_BAD_FILE, "\xc3\xa4\xc3\xa4");
    error_report(&cut, small, sizeof small);
    CHECK(!strcmp(small, "\xc3\xa4"));

    TEST("status names");
    CHECK(!strcmp(gm_status_name(GM_OK), "GM_OK") && !strcmp(gm_status_name(GM_BUSY), "GM_BUSY"));
    CHECK(!strcmp(gm_status_name((gm_status)999), "unknown status"));
}

static void test_strings(void) {
    TEST("strings with a length");
    CHECK(str_is(str_of("abc"), "abc") && !str_is(str_of("abc"), "abd") && str_is(str_of(NULL), ""));
    CHECK(str_starts_with(str_of("abc"), "ab") && !str_starts_with(str_of("a"), "ab") &&
          str_starts_with(str_of(""), ""));
    CHECK(str_ends_with(str_of("abc"), "bc") && !str_ends_with(str_of("c"), "bc") &&
          str_ends_with((str){ NULL, 0 }, ""));
    CHECK(str_compare(str_of("a"), str_of("b")) < 0 && str_compare(str_of("ab"), str_of("a")) > 0);
    CHECK(str_compare(str_of("\xff"), str_of("a")) > 0 && !str_compare((str){ NULL, 0 }, str_of("")));

    TEST("checked arithmetic");
    uint64_t n = 7;
    CHECK(!mul_u64(1ull << 32, 1ull << 32, &n) && n == 7);
    CHECK(mul_u64(1ull << 32, (1ull << 32) - 1, &n) && n == 0xffffffff00000000);
    CHECK(mul_u64(0, UINT64_MAX, &n) && n == 0);
    CHECK(!add_u64(UINT64_MAX, 1, &n) && add_u64(UINT64_MAX - 1, 1, &n) && n == UINT64_MAX);
}

static void test_memory(void) {
    TEST("arena");
    arena a = { 0 };
    for (size_t i = 0; i < 3000; i++) {
        size_t         bytes = i % 100 == 99 ? 100000 : i % 50;
        unsigned char *at = arena_alloc(&a, bytes);
        CHECK(at && (uintptr_t)at % 16 == 0);
        if (!at) break;
        for (size_t k = 0; k < bytes; k++) CHECK(!at[k]);
        memset(at, 0xaa, bytes); /* a later block that overlaps is not zero */
    }
    CHECK(!arena_array(&a, SIZE_MAX / 2, 3) && !arena_alloc(&a, SIZE_MAX));
    CHECK(!strcmp(arena_copy(&a, (str){ "abcdef", 3 }), "abc"));
    arena_free(&a);
    arena_free(&a);

    TEST("buffer");
    buffer b = { 0 };
    for (int i = 0; i < 1000; i++) buffer_printf(&b, "%03d,", i);
    CHECK(b.length == 4000 && !b.data[4000] && !memcmp(b.data + 3996, "999,", 4));
    buffer_consume(&b, 3990);
    CHECK(!strcmp(b.data, "7,998,999,"));
    buffer_consume(&b, 99);
    CHECK(b.length == 0);
    buffer_text(&b, "x"), buffer_char(&b, 0), buffer_str(&b, str_of("y"));
    CHECK(b.length == 3 && !memcmp(b.data, "x\0y", 4));
    buffer_clear(&b);
    CHECK(!b.length && !b.failed);
    buffer_append(&b, "z", SIZE_MAX);
    CHECK(b.failed);
    buffer_text(&b, "nothing more");
    CHECK(b.length == 0);
    buffer_free(&b);
}

static void test_decimal(void) {
    static const struct {
        const char *text;
        double      value;
    } rows[] = {
        { "0", 0 },
        { "-0", -0.0 },
        { "1", 1 },
        { "+1.5", 1.5 },
        { ".5", .5 },
        { "5.", 5 },
        { "1e3", 1e3 },
        { "1E-3", 1e-3 },
        { "0.1", 0.1 },
        { "123456789012345678901234567890", 123456789012345678901234567890.0 },
        { "9007199254740993", 9007199254740992.0 },
        { "9007199254740993.000000000000000000001", 9007199254740994.0 },
        { "1.7976931348623157e308", 1.7976931348623157e308 },
        { "1.7976931348623159e308", HUGE_VAL },
        { "1e999999999999999999", HUGE_VAL },
        { "4.9406564584124654e-324", 0x1p-1074 },
        { "2.4703282292062327e-324", 0 },
        { "2.4703282292062328e-324", 0x1p-1074 },
        { "2.2250738585072011e-308", 2.2250738585072011e-308 },
        { "1e-999999999999999999999", 0 },
        { "1e23", 1e23 },
        { "8.5e22", 8.5e22 },
        { "0.000000000000000000000000000000000000001e39", 1 },
        { "7.2057594037927933e16", 7.2057594037927933e16 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double value = 99;
        TEST("decimal %s", rows[i].text);
        CHECK(decimal_parse(str_of(rows[i].text), &value));
        CHECK_MESSAGE(value == rows[i].value && !signbit(value) == !signbit(rows[i].value), "%a", value);
    }
    static const char *const wrong[] = { "",   "-",  ".",    "e5",  "1e",  "1e+", "1x",
                                         " 1", "1 ", "0x10", "inf", "nan", "1,5", "--1" };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        double value;
        TEST("no decimal: '%s'", wrong[i]);
        CHECK(!decimal_parse(str_of(wrong[i]), &value));
    }

    TEST("the C library reads and prints the same, 20000 random numbers");
    for (uint32_t i = 0; i < 20000 && !test_bad; i++) {
        uint32_t words[4];
        philox((uint32_t[4]){ i }, (uint32_t[2]){ 1, 2 }, words);
        double value;
        char   text[64], shortest[32];
        memcpy(&value, words, sizeof value);
        if (!isfinite(value)) continue;
        snprintf(text, sizeof text, "%.*e", (int)(words[2] % 20), value);
        double mine = 0;
        CHECK_MESSAGE(decimal_parse(str_of(text), &mine) && mine == strtod(text, NULL), "%s: %a", text, mine);
        size_t length = decimal_print(value, shortest);
        CHECK(length == strlen(shortest) && length < sizeof shortest);
        CHECK_MESSAGE(strtod(shortest, NULL) == value, "%s %a", shortest, value);
        value = (double)(int32_t)words[3] / 1024;
        decimal_print(value, shortest);
        CHECK_MESSAGE(strtod(shortest, NULL) == value, "%s %a", shortest, value);
    }

    TEST("a halfway case with 700 digits");
    char  *text = NULL;
    size_t size = 0;
    double half = ldexp(1, -1074) * 1.0, mine = 0;
    FILE  *stream = open_memstream(&text, &size);
    fprintf(stream, "%.760e", half); /* exact */
    fclose(stream);
    CHECK(decimal_parse((str){ text, size }, &mine) && mine == half);
    free(text);

    static const struct {
        double      value;
        const char *text;
    } printed[] = {
        { 0, "0" },
        { -0.0, "-0" },
        { 1, "1" },
        { -1.5, "-1.5" },
        { 0.1, "0.1" },
        { 1e20, "100000000000000000000" },
        { 1e21, "1e21" },
        { 1.25e-6, "0.00000125" },
        { 1.25e-9, "1.25e-9" },
        { 5e-324, "5e-324" },
        { 1.7976931348623157e308, "1.7976931348623157e308" },
        { 9007199254740993.0, "9007199254740992" },
        { 123456.789, "123456.789" },
        { 1.0 / 3, "0.3333333333333333" },
    };
    for (size_t i = 0; i < COUNT_OF(printed); i++) {
        char out[32];
        TEST("print %s", printed[i].text);
        decimal_print(printed[i].value, out);
        CHECK_MESSAGE(!strcmp(out, printed[i].text), "%s", out);
    }
}

static void test_json_good(void) {
    /* text → what it is written as */
    static const char *const rows[][2] = {
        { "null", "null" },
        { " [ ] ", "[]" },
        { "{\n}", "{}" },
        { "[1,2 , 3]", "[1,2,3]" },
        { "{\"a\":{\"b\":[true,false,null]}}", "{\"a\":{\"b\":[true,false,null]}}" },
        { "\"\\u00e4\\n\\t\\\"\\\\\\/\\b\\f\\r\"", "\"\xc3\xa4\\n\\t\\\"\\\\/\\b\\f\\r\"" },
        { "\"\\ud83e\\udd99\"", "\"\xf0\x9f\xa6\x99\"" },
        { "\"\\ud83e\"", "\"\xef\xbf\xbd\"" },
        { "\"\\udd99\\ud83e\\u0041\"", "\"\xef\xbf\xbd\xef\xbf\xbd"
                                       "A\"" },
        { "\"a\\u0000b\\u001f\\u007f\"", "\"a\\u0000b\\u001f\x7f\"" },
        { "12345678901234567890123", "12345678901234567890123" },
        { "-0.5e-3", "-0.5e-3" },
        { "{\"\":1,\"\":2}", "{\"\":1,\"\":2}" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        arena  a = { 0 };
        buffer b = { 0 };
        error  e = { 0 };
        json  *value = NULL;
        TEST("json %s", rows[i][0]);
        CHECK_MESSAGE(json_parse(str_of(rows[i][0]), &a, &value, &e) == GM_OK, "%s", e.why);
        if (value) json_write(&b, value);
        CHECK_MESSAGE(value && str_is(buffer_view(&b), rows[i][1]), "%.*s", (int)b.length, b.data);
        TEST("json in place: %s", rows[i][0]);
        char *own = arena_copy(&a, str_of(rows[i][0]));
        CHECK(json_parse_in_place(own, strlen(own), &a, &value, &e) == GM_OK);
        buffer_clear(&b);
        json_write(&b, value);
        CHECK_MESSAGE(str_is(buffer_view(&b), rows[i][1]), "%.*s", (int)b.length, b.data);
        buffer_free(&b);
        arena_free(&a);
    }
}

static void test_json_bad(void) {
    static const char *const rows[][2] = {
        { "", "line 1 column 1: the text ends" },
        { "  ", "column 3" },
        { "[1,", "column 4: the text ends" },
        { "[1", "expected ',' or ']'" },
        { "[1,]", "expected a value" },
        { "{\"a\" 1}", "expected ':'" },
        { "{a:1}", "key in quotes" },
        { "{\"a\":1,}", "key in quotes" },
        { "\"abc", "ends inside a string" },
        { "\"a\\\"", "ends inside a string" },
        { "\"a\\", "ends inside a string" },
        { "\"\\x\"", "unknown escape" },
        { "\"\\u12g4\"", "four hexadecimal" },
        { "\"\\u12\"", "four hexadecimal" },
        { "\"a\nb\"", "control character" },
        { "\"\xff\"", "not UTF-8" },
        { "\"\xc3\"", "not UTF-8" },
        { "\"\xed\xa0\x80\"", "not UTF-8" },
        { "01", "start with 0" },
        { "-", "expected a value" },
        { "1.", "decimal point" },
        { "1e", "exponent" },
        { "1e+", "exponent" },
        { "+1", "expected a value" },
        { "1 2", "column 3: something follows" },
        { "nul", "expected a value" },
        { "NaN", "expected a value" },
        { "[\n\n  x]", "line 3 column 3" },
        { "{\"\xc3\xa4\xc3\xa4\": x}", "line 1 column 8" },
        { "\"\\ud800\\u\"", "four hexadecimal" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        arena a = { 0 };
        error e = { 0 };
        json *value = NULL;
        TEST("bad json %s", rows[i][0]);
        CHECK(json_parse(str_of(rows[i][0]), &a, &value, &e) == GM_BAD_FILE && !value);
        CHECK_MESSAGE(strstr(e.why, rows[i][1]), "%s", e.why);
        error again = { 0 };
        char *own = arena_copy(&a, str_of(rows[i][0]));
        CHECK(json_parse_in_place(own, strlen(own), &a, &value, &again) == GM_BAD_FILE && !value);
        CHECK_MESSAGE(!strcmp(e.why, again.why), "in place: %s", again.why);
        arena_free(&a);
    }

    TEST("the place of an error behind strings that stay where they are");
    char  written[] = "{\"a\":\"b\",\n \"c\\n\":\"\\u00e4\", x}";
    arena memory = { 0 };
    error where = { 0 };
    json *none = NULL;
    CHECK(json_parse_in_place(written, strlen(written), &memory, &none, &where) == GM_BAD_FILE && !none);
    CHECK_MESSAGE(strstr(where.why, "line 2 column 18: expected a key"), "%s", where.why);
    arena_free(&memory);

    TEST("100 levels, not 101");
    for (int levels = 100; levels <= 101; levels++) {
        char  text[210];
        arena a = { 0 };
        error e = { 0 };
        json *value;
        memset(text, '[', (size_t)levels), memset(text + levels, ']', (size_t)levels);
        gm_status status = json_parse((str){ text, (size_t)levels * 2 }, &a, &value, &e);
        CHECK(status == (levels == 100 ? GM_OK : GM_BAD_FILE));
        arena_free(&a);
    }
}

static void test_json_in_place(void) {
    TEST("json in place: strings without escapes are in the text itself");
    arena a = { 0 };
    json *value = NULL;
    char  text[] = "{\"key\":\"plain\",\"b\":\"es\\/caped\"}", *end = text + sizeof text;
    CHECK(json_parse_in_place(text, strlen(text), &a, &value, NULL) == GM_OK && value->count == 2);
    const json *plain = json_get(value, "key"), *escaped = json_get(value, "b");
    CHECK(str_is(json_string(plain, ""), "plain") && plain->text.data > text && plain->text.data < end);
    CHECK(!plain->text.data[plain->text.length] && !plain->key.data[plain->key.length]);
    CHECK(str_is(json_string(escaped, ""), "es/caped") && (escaped->text.data < text || escaped->text.data > end));
    arena_free(&a);
}

static void test_json_access(void) {
    TEST("json access");
    arena       a = { 0 };
    json       *value = NULL;
    int64_t     n = 0;
    const char *text = "{\"a\":1,\"a\":9007199254740993,\"s\":\"x\",\"l\":[0,-9223372036854775808,9223372036854775808,"
                       "1.5,1e3,-0,2.0,1e400]}";
    CHECK(json_parse(str_of(text), &a, &value, NULL) == GM_OK && value->count == 4);
    CHECK(json_integer(json_get(value, "a"), &n) && n == 9007199254740993);
    CHECK(str_is(json_string(json_get(value, "s"), "y"), "x") && str_is(json_string(json_get(value, "t"), "y"), "y"));
    CHECK(!json_get(value, "b") && !json_get(json_get(value, "s"), "b") && !json_get(NULL, "b"));
    static const struct {
        bool    whole;
        int64_t value;
    } items[] = { { true, 0 },    { true, INT64_MIN }, { false, 0 }, { false, 0 },
                  { true, 1000 }, { true, 0 },         { true, 2 },  { false, 0 } };
    size_t i = 0;
    for (const json *item = json_get(value, "l")->first; item; item = item->next, i++) {
        CHECK_MESSAGE(json_integer(item, &n) == items[i].whole && (!items[i].whole || n == items[i].value), "item %zu",
                      i);
    }
    CHECK(i == COUNT_OF(items));
    arena_free(&a);

    TEST("json write");
    buffer b = { 0 };
    json_write_string(&b, (str){ "a\xff\xc3\xa4\0z", 6 });
    json_write_number(&b, 0.1), json_write_number(&b, NAN), json_write_number(&b, -HUGE_VAL);
    CHECK_MESSAGE(str_is(buffer_view(&b), "\"a\xef\xbf\xbd\xc3\xa4\\u0000z\"0.1nullnull"), "%s", b.data);
    buffer_free(&b);
}

static void test_utf8(void) {
    static const struct {
        const char *text;
        int         length;
    } rows[] = {
        { "", -1 },
        { "a", 1 },
        { "\x7f", 1 },
        { "\x80", 0 },
        { "\xc1\x80", 0 },
        { "\xc2\x80", 2 },
        { "\xc2", -1 },
        { "\xc2z", 0 },
        { "\xe0\x9f\x80", 0 },
        { "\xe0\x9f", 0 },
        { "\xe0\xa0\x80", 3 },
        { "\xe0\xa0", -1 },
        { "\xed\x9f\xbf", 3 },
        { "\xed\xa0\x80", 0 },
        { "\xef\xbf\xbf", 3 },
        { "\xf0\x8f\xbf\xbf", 0 },
        { "\xf0\x90\x80\x80", 4 },
        { "\xf0\x90\x80", -1 },
        { "\xf0\x90z", 0 },
        { "\xf4\x8f\xbf\xbf", 4 },
        { "\xf4\x90\x80\x80", 0 },
        { "\xf5", 0 },
        { "\xff", 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("utf8 row %zu", i);
        CHECK(utf8_length(str_of(rows[i].text)) == rows[i].length);
        CHECK(utf8_valid(str_of(rows[i].text)) == (rows[i].length > 0 || !rows[i].text[0]));
    }
    TEST("every code point there and back");
    for (uint32_t code = 0; code < 0x110000 && !test_bad; code++) {
        char out[4];
        int  n = utf8_encode(code, out);
        if (code >= 0xd800 && code < 0xe000) continue;
        CHECK(utf8_length((str){ out, (size_t)n }) == n && utf8_decode(out, n) == code &&
              utf8_lead_length((unsigned char)out[0]) == n);
    }
    char out[4];
    CHECK(utf8_encode(0xd800, out) == 3 && !memcmp(out, "\xef\xbf\xbd", 3));
}

static void test_sha256(void) {
    static const struct {
        size_t      repeat;
        const char *text, *hex;
    } rows[] = {
        { 1, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { 1, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { 1, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { 1000000, "a", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        sha256  s;
        uint8_t digest[32];
        char    hex[65];
        TEST("sha256 row %zu", i);
        sha256_start(&s);
        for (size_t n = 0; n < rows[i].repeat; n++) sha256_add(&s, rows[i].text, strlen(rows[i].text));
        sha256_end(&s, digest);
        sha256_hex(digest, hex);
        CHECK_MESSAGE(!strcmp(hex, rows[i].hex), "%s", hex);
    }
    TEST("sha256 in pieces of every size");
    uint8_t data[300], whole[32], pieces[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    sha256 s;
    sha256_start(&s), sha256_add(&s, data, sizeof data), sha256_end(&s, whole);
    for (size_t piece = 1; piece <= sizeof data; piece++) {
        sha256_start(&s);
        for (size_t at = 0; at < sizeof data; at += piece) sha256_add(&s, data + at, min_size(piece, sizeof data - at));
        sha256_end(&s, pieces);
        CHECK(!memcmp(whole, pieces, 32));
    }
}

static void test_base64(void) {
    static const struct {
        const char *text, *bytes; /* bytes NULL: refused */
        size_t      size;         /* of the bytes, or the place of the mistake */
    } rows[] = {
        { "", "", 0 },      { "TQ==", "M", 1 },   { "TWE=", "Ma", 2 },           { "TWFu", "Man", 3 },
        { "TQ", "M", 1 },   { "TWE", "Ma", 2 },   { "+/-_", "\xfb\xff\xbf", 3 }, { "TW\nFu TWFu\r\n", "ManMan", 6 },
        { "T", NULL, 1 },   { "TWFuT", NULL, 5 }, { "TW*u", NULL, 2 },           { "TQ==TQ==", NULL, 4 },
        { "TQ=", NULL, 3 }, { "====", NULL, 2 },  { "TWFu=", NULL, 5 },          { "data:x", NULL, 4 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char   memory[32];
        size_t size = 99;
        TEST("base64 \"%s\"", rows[i].text);
        snprintf(memory, sizeof memory, "%s", rows[i].text); /* in place */
        const bool fine = base64_decode((str){ memory, strlen(rows[i].text) }, memory, &size);
        CHECK(fine == (rows[i].bytes != NULL));
        CHECK_MESSAGE(size == rows[i].size, "%zu", size);
        if (fine && rows[i].bytes) CHECK(!memcmp(memory, rows[i].bytes, size));
        CHECK(size <= base64_most(strlen(rows[i].text)));
    }
}

static void test_philox(void) {
    static const uint32_t rows[][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
          0x24126ea1 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t out[4];
        TEST("philox row %zu", i);
        philox(rows[i], rows[i] + 4, out);
        CHECK(!memcmp(out, rows[i] + 6, sizeof out));
    }
}

/* The value of an f16 by its definition. */
static double half_value(uint16_t bits) {
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent == 31 ? HUGE_VAL
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void test_half(void) {
    TEST("every f16 to f32 and back");
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = f16_to_f32((uint16_t)bits);
        bool  nan = (bits & 0x7c00) == 0x7c00 && (bits & 1023);
        if (nan) CHECK(isnan(value) && isnan(f16_to_f32(f32_to_f16(value))));
        else
            CHECK(value == half_value((uint16_t)bits) && f32_to_f16(value) == bits &&
                  !signbit(value) == !(bits & 0x8000));
    }
    TEST("f32 to f16 rounds to nearest even");
    for (uint32_t bits = 0; bits < 0x7bff; bits++) { /* between each pair of neighbours */
        double low = half_value((uint16_t)bits), high = half_value((uint16_t)(bits + 1)), middle = (low + high) / 2;
        CHECK(f32_to_f16((float)middle) == bits + (bits & 1));
        CHECK(f32_to_f16(nextafterf((float)middle, 0)) == bits);
        CHECK(f32_to_f16(nextafterf((float)middle, HUGE_VALF)) == bits + 1);
        CHECK(f32_to_f16(-(float)middle) == (0x8000 | (bits + (bits & 1))));
    }
    CHECK(f32_to_f16(65519.996f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00 && f32_to_f16(HUGE_VALF) == 0x7c00);
    CHECK(f32_to_f16(1e-30f) == 0 && f32_to_f16(-1e-30f) == 0x8000);

    TEST("bf16");
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = bf16_to_f32((uint16_t)bits);
        if (isnan(value)) CHECK(isnan(bf16_to_f32(f32_to_bf16(value))));
        else CHECK(f32_to_bf16(value) == bits);
    }
    CHECK(f32_to_bf16(1.00390625f) == 0x3f80 && f32_to_bf16(1.01171875f) == 0x3f82 && f32_to_bf16(3.4e38f) == 0x7f80);
    uint32_t thin = 0x7f800001; /* a NaN whose set bits are all cut off */
    float    nan;
    memcpy(&nan, &thin, 4);
    CHECK(isnan(bf16_to_f32(f32_to_bf16(nan))));
}

static void test_hash_table(void) {
    TEST("table");
    enum { N = 50000 };
    static char names[N][12];
    table       t = { 0 };
    bool        failed = true;
    uint32_t    value = 0;
    CHECK(!table_find(&t, str_of("0"), &value));
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%u", i * 7);
        CHECK(table_add(&t, str_of(names[i]), i, &failed) && !failed);
    }
    CHECK(!table_add(&t, str_of("70"), 1, &failed) && !failed && t.count == N);
    for (uint32_t i = 0; i < N; i++) CHECK(table_find(&t, str_of(names[i]), &value) && value == i);
    CHECK(!table_find(&t, str_of("71"), &value) && !table_find(&t, str_of(""), &value));
    CHECK(table_add(&t, (str){ NULL, 0 }, 5, &failed) && table_find(&t, str_of(""), &value) && value == 5);
    CHECK(table_add(&t, (str){ "a\0b", 3 }, 6, &failed) && !table_find(&t, str_of("a"), &value));
    table_free(&t);
    CHECK(!table_reserve(&t, SIZE_MAX) && table_reserve(&t, 100));
    table_free(&t);
}

enum { TASKS = 97 };

typedef struct {
    pool         *p;
    atomic_size_t calls;
    atomic_uchar  done[TASKS];
    size_t        threads_seen;
} pool_job;

static void work_on(void *context, size_t thread, size_t threads) {
    pool_job *job = context;
    atomic_fetch_add(&job->calls, 1);
    if (thread == 0) job->threads_seen = threads;
    for (size_t task; (task = pool_take(job->p)) < TASKS;) atomic_fetch_add(&job->done[task], 1);
}

static bool run_once(pool *p) {
    pool_job job = { .p = p };
    pool_run(p, work_on, &job);
    bool right = job.calls >= 1 && job.calls <= pool_threads(p) && job.threads_seen == pool_threads(p);
    for (size_t i = 0; i < TASKS; i++) right &= job.done[i] == 1;
    return right;
}

typedef struct {
    pool *p;
    turns turns;
} shared_pool;

static void *run_often(void *shared) {
    shared_pool *s = shared;
    bool         right = true;
    for (int i = 0; i < 500; i++) {
        turns_enter(&s->turns, TURN_LONG);
        right &= run_once(s->p);
        turns_leave(&s->turns);
    }
    return right ? NULL : shared;
}

static void test_pool(void) {
    static const size_t threads[] = { 1, 2, 3, 7 };
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        TEST("a pool of %zu threads", threads[i]);
        pool *p = NULL;
        CHECK(pool_new(threads[i], &p, NULL) == GM_OK && pool_threads(p) == threads[i]);
        for (int n = 0; n < 1000; n++) CHECK(run_once(p));
        const uint8_t *const streams[POOL_STREAMS] = { (const uint8_t *)p, NULL, (const uint8_t *)UINTPTR_MAX };
        for (size_t n = 0; n < 100; n++) { /* addresses that may be anything, for threads that are there or not */
            pool_will_read(p, n % threads[i], streams, n * 997);
            CHECK(run_once(p));
        }
        for (int n = 0; n < 5; n++) { /* long enough for the workers to fall asleep */
            for (double start = clock_seconds(); clock_seconds() - start < 0.0005;) {}
            CHECK(run_once(p));
        }
        pthread_t   callers[3];
        void       *wrong = NULL;
        shared_pool shared = { .p = p };
        turns_open(&shared.turns);
        for (int n = 0; n < 3; n++) CHECK(!pthread_create(&callers[n], NULL, run_often, &shared));
        for (int n = 0; n < 3; n++) CHECK(!pthread_join(callers[n], &wrong) && !wrong);
        turns_close(&shared.turns);
        pool_free(p);
    }
    TEST("pool arguments");
    pool *p = NULL;
    error e = { 0 };
    CHECK(pool_new(0, &p, &e) == GM_BAD_ARGUMENT && !p && pool_new(100000, &p, NULL) == GM_BAD_ARGUMENT && !p);
    pool_free(NULL);
    CHECK(physical_cores() >= 1 && physical_cores() <= usable_processors());
}

/* Threads that ask for a turn while one is taken get theirs in the order in which they asked; after a long turn the short ones that
 * wait come first. */
enum { WAITING = 4 };

typedef struct {
    turns     turns;
    size_t    order[WAITING], count;
    pthread_t threads[WAITING];
} queue;

typedef struct {
    queue    *q;
    size_t    number;
    turn_kind kind;
} waiting;

static void *pool_turn(void *argument) {
    const waiting *w = argument;
    turns_enter(&w->q->turns, w->kind);
    w->q->order[w->q->count++] = w->number;
    turns_leave(&w->q->turns);
    return NULL;
}

static uint64_t numbers_drawn(turns *t) {
    pthread_mutex_lock(&t->lock);
    const uint64_t drawn = t->next[TURN_LONG] + t->next[TURN_SHORT];
    pthread_mutex_unlock(&t->lock);
    return drawn;
}

static void test_turns(const char *what, turn_kind first, const turn_kind kinds[WAITING], const size_t order[WAITING]) {
    TEST("%s", what);
    queue   q = { .count = 0 };
    waiting all[WAITING];
    turns_open(&q.turns);
    turns_enter(&q.turns, first);
    for (size_t i = 0; i < WAITING; i++) {
        all[i] = (waiting){ &q, i, kinds[i] };
        CHECK(!pthread_create(&q.threads[i], NULL, pool_turn, &all[i]));
        while (numbers_drawn(&q.turns) < i + 2) sched_yield();
    }
    CHECK(q.count == 0);
    turns_leave(&q.turns);
    turns_enter(&q.turns, TURN_LONG); /* behind all that wait */
    CHECK(q.count == WAITING);
    for (size_t i = 0; i < q.count; i++) CHECK(q.order[i] == order[i]);
    turns_leave(&q.turns);
    for (size_t i = 0; i < WAITING; i++) pthread_join(q.threads[i], NULL);
    turns_close(&q.turns);
}

/* In a copy of this program: removes itself, as an update does, and tells whether it still knows its folder. */
static int forget_program(const char *own) {
    arena       a = { 0 };
    const char *folder = NULL;
    error       none = { 0 };
    if (!remove(own)) beside_program(&a, &folder, &none);
    const size_t length = (size_t)(strrchr(own, '/') - own);
    const bool   found = folder && strlen(folder) == length && !strncmp(folder, own, length);
    arena_free(&a);
    return found ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void test_beside(const char *own) {
    TEST("a program that is replaced while it runs still finds what is beside it");
    char folder[] = "/tmp/gemmule-beside-XXXXXX", command[600];
    CHECK(mkdtemp(folder));
    snprintf(command, sizeof command, "cp '%s' '%s/copy' && '%s/copy' beside", own, folder, folder);
    CHECK(system(command) == 0);
    CHECK(!rmdir(folder));
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "beside")) return forget_program(argv[0]);
    test_beside(argv[0]);
    test_base_errors();
    test_strings();
    test_memory();
    test_decimal();
    test_json_good();
    test_json_bad();
    test_json_in_place();
    test_json_access();
    test_utf8();
    test_sha256();
    test_base64();
    test_philox();
    test_half();
    test_hash_table();
    test_pool();
    test_turns("turns are taken in the order in which they were asked for", TURN_LONG,
               (turn_kind[]){ TURN_LONG, TURN_LONG, TURN_LONG, TURN_LONG }, (size_t[]){ 0, 1, 2, 3 });
    test_turns("after a long turn, short ones come first", TURN_LONG,
               (turn_kind[]){ TURN_LONG, TURN_SHORT, TURN_LONG, TURN_SHORT }, (size_t[]){ 1, 3, 0, 2 });
    test_turns("after a short turn, a long one comes first", TURN_SHORT,
               (turn_kind[]){ TURN_LONG, TURN_SHORT, TURN_LONG, TURN_SHORT }, (size_t[]){ 0, 1, 3, 2 });
    return test_end();
}
