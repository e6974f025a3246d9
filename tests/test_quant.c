/* Compares the block formats with exact values: a fixture of random blocks, and blocks with known values. */

#include "cpu/quantise.h"
#include "gguf/gguf.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

static void test_quant_fixture(void) {
    gguf *g = NULL;
    error e = { 0 };
    TEST("quant-blocks.expect.gguf opens");
    CHECK_MESSAGE(gguf_open_file("tests/fixtures/quant-blocks.expect.gguf", &g, &e) == GM_OK, "%s", e.why);
    if (!g) return;
    size_t compared = 0;
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        char               name[64];
        if (str_ends_with(t->name, ".f32")) continue;
        snprintf(name, sizeof name, "%.*s.f32", STR_ARGS(t->name));
        const gguf_tensor *want = gguf_find_tensor(g, name);
        TEST("exact values of %.*s", STR_ARGS(t->name));
        CHECK(str_is(t->name, t->format->name));
        CHECK(want && want->count == t->count && t->format->dequantise);
        if (!want || !t->format->dequantise) continue;
        float *got = malloc(t->count * sizeof *got);
        t->format->dequantise(got, gguf_tensor_data(g, t), t->count / t->format->block);
        CHECK(!memcmp(got, gguf_tensor_data(g, want), want->bytes));
        free(got);
        compared++;
    }
    TEST("15 formats compared");
    CHECK_MESSAGE(compared == 15, "%zu", compared);
    gguf_free(g);
}

enum { MOST = 10 };

static const struct {
    quant_type type;
    int        d_at, dmin_at; /* -1: none */
    float      values[MOST];
    float      sum;
} block_rows[] = {
    { TYPE_Q4_K, 0, 2, { 78.875f, -6.375f, 40.125f, 2, 10, 105.125f, 20.25f, 105.75f, 34.625f, 12.125f }, 13610 },
    { TYPE_Q5_K, 0, 2, { 202.875f, -6.375f, 40.125f, 28, 20, 105.125f, -0.75f, 261.75f, 34.625f, 27.125f }, 29054 },
    { TYPE_Q6_K, 208, -1, { -357.75f, 424, -24, 57.75f, -145, -760, 375, -87.75f, 272.25f, -15 }, 1153 },
    { TYPE_Q2_K, 80, 82, { 8.25f, 0, -0.375f, 1.875f, 1.625f, 2.625f, 10.5f, 1.875f, 2, 1.125f }, 514.75f },
    { TYPE_Q3_K, 108, -1, { 20.25f, -27, 16, -5.5f, 2.5f, 8.5f, 18, 0.5f, 6.25f, 10.5f }, 239.5f },
};

static void fill_block(uint8_t *block, size_t bytes, int d_at, int dmin_at) {
    for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)(37 * i + 11);
    block[d_at] = 0, block[d_at + 1] = 0x34;
    if (dmin_at >= 0) block[dmin_at] = 0, block[dmin_at + 1] = 0x30;
}

static void test_quant_vectors(void) {
    static const int elements[MOST] = { 0, 1, 31, 32, 63, 64, 127, 128, 200, 255 };
    for (size_t row = 0; row < COUNT_OF(block_rows); row++) {
        const quant_format *f = quant_format_of(block_rows[row].type);
        uint8_t             block[300];
        float               out[256], sum = 0;
        TEST("a block of %s", f->name);
        fill_block(block, f->bytes, block_rows[row].d_at, block_rows[row].dmin_at);
        f->dequantise(out, block, 1);
        for (int i = 0; i < MOST; i++)
            CHECK_MESSAGE(out[elements[i]] == block_rows[row].values[i], "%d: %g", elements[i], out[elements[i]]);
        for (int i = 0; i < 256; i++) sum += out[i];
        CHECK(sum == block_rows[row].sum);
    }
    static const struct {
        quant_type type;
        float      values[32];
    } small[] = {
        { TYPE_Q5_0, { 2.25f, -0.5f, 0.75f,  -2,     3.25f, -3.5f, 1.75f, -1,    -3.75f, 1.5f,  -1.25f,
                       0,     1.25f, 2.5f,   3.75f,  -3,    3.5f,  0,     0.75f, 1.25f,  1.75f, -1.5f,
                       -1,    3.5f,  -3.75f, -3.25f, 1.25f, -2,    -1.5f, -1,    3.5f,   0.25f } },
        { TYPE_Q4_0, { -0.75f, 0.5f,   1.75f,  -1,    0.25f, 1.5f,   -1.25f, 0,      1.25f,  -1.5f, -0.25f,
                       1,      -1.75f, -0.5f,  0.75f, -2,    -0.75f, -0.25f, 0.25f,  1,      1.5f,  -2,
                       -1.25f, -0.75f, -0.25f, 0.5f,  1,     1.5f,   -1.75f, -1.25f, -0.75f, 0 } },
    };
    for (size_t row = 0; row < COUNT_OF(small); row++) {
        const quant_format *f = quant_format_of(small[row].type);
        uint8_t             block[40];
        float               out[32];
        TEST("a block of %s", f->name);
        fill_block(block, f->bytes, 0, -1);
        f->dequantise(out, block, 1);
        for (int i = 0; i < 32; i++) CHECK_MESSAGE(out[i] == small[row].values[i], "%d: %g", i, out[i]);
    }
    TEST("MXFP4 scales down to subnormals");
    const quant_format *mxfp4 = quant_format_of(TYPE_MXFP4);
    for (int exponent = 0; exponent < 250; exponent++) {
        uint8_t block[17] = { (uint8_t)exponent, 0xf1 };
        float   out[32];
        mxfp4->dequantise(out, block, 1);
        CHECK(out[0] == (float)ldexp(1, exponent - 128) && out[16] == (float)ldexp(-12, exponent - 128));
    }
}

static void test_quant_table(void) {
    TEST("the table of formats");
    CHECK(!quant_format_of(4) && !quant_format_of(40) && !quant_format_of(UINT32_MAX) && quant_format_of(0));
    CHECK(quant_row_bytes(quant_format_of(TYPE_Q6_K), 512) == 420);
}

/* A block made of zeros, one f16 of which becomes NaN: found if and only if dequantising gives NaN or an infinity. */
static void test_broken(void) {
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        const quant_format *f = quant_format_of(type);
        if (!f || !f->dequantise) continue;
        TEST("damage in %s is found", f->name);
        uint8_t blocks[3 * 300] = { 0 };
        float   values[3 * 256];
        CHECK(quant_first_broken((quant_type)type, blocks, 3) == 3);
        for (uint32_t at = 0; at + 1 < f->bytes; at++) {
            memset(blocks, 1, sizeof blocks);
            blocks[f->bytes + at] = 0;
            blocks[f->bytes + at + 1] = 0x7e;
            if (type == TYPE_F32 || type == TYPE_BF16) blocks[f->bytes + at] = 0xc0, blocks[f->bytes + at + 1] = 0x7f;
            f->dequantise(values, blocks, 3);
            bool broken = false;
            for (uint32_t i = 0; i < 3 * f->block; i++) broken |= !isfinite(values[i]);
            CHECK_MESSAGE(quant_first_broken((quant_type)type, blocks, 3) == (broken ? 1u : 3u), "byte %u", at);
        }
    }
}

/* ---- quantising ---- */

/* Values that did not change keep their values: the scales of the old block are kept. */
static void test_requantise_fixture(void) {
    gguf *g = NULL;
    error e = { 0 };
    TEST("quant-blocks.expect.gguf opens again");
    CHECK_MESSAGE(gguf_open_file("tests/fixtures/quant-blocks.expect.gguf", &g, &e) == GM_OK, "%s", e.why);
    for (size_t i = 0; g && i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (str_ends_with(t->name, ".f32")) continue;
        TEST("requantised values of %.*s", STR_ARGS(t->name));
        CHECK(quantise_known(t->type));
        const uint8_t *old = gguf_tensor_data(g, t);
        const size_t   blocks = t->count / t->format->block;
        float         *values = malloc(t->count * sizeof *values), *again = malloc(t->count * sizeof *again);
        uint8_t       *out = malloc(t->bytes);
        t->format->dequantise(values, old, blocks);
        quantise_blocks(t->type, out, values, old, blocks);
        t->format->dequantise(again, out, blocks);
        size_t differ = 0; /* 0 may change its sign */
        for (size_t j = 0; j < t->count; j++) differ += values[j] != again[j];
        CHECK_MESSAGE(differ == 0, "%zu values", differ);
        free(values);
        free(again);
        free(out);
    }
    gguf_free(g);
}

/* Nearly normal: the sum of twelve uniform values. */
static float bell(uint32_t *state) {
    float sum = -6;
    for (int i = 0; i < 12; i++) {
        *state = *state * 1664525 + 1013904223;
        sum += (float)(*state >> 8) / (float)(1 << 24);
    }
    return sum;
}

static void test_quantise_new(void) {
    static const struct {
        quant_type type;
        double     most; /* relative error */
    } rows[] = {
        { TYPE_F32, 0 },       { TYPE_F16, 3e-4 },   { TYPE_BF16, 2e-3 }, { TYPE_Q8_0, 0.006 },
        { TYPE_Q6_K, 0.02 },   { TYPE_Q5_K, 0.038 }, { TYPE_Q5_1, 0.04 }, { TYPE_Q5_0, 0.045 },
        { TYPE_Q4_K, 0.075 },  { TYPE_Q4_1, 0.08 },  { TYPE_Q4_0, 0.09 }, { TYPE_IQ4_NL, 0.08 },
        { TYPE_IQ4_XS, 0.08 }, { TYPE_MXFP4, 0.13 }, { TYPE_Q3_K, 0.17 }, { TYPE_Q2_K, 0.3 },
    };
    enum { N = 8192 };
    static float   values[N], again[N];
    static uint8_t out[N * 4];
    uint32_t       state = 1;
    for (size_t i = 0; i < N; i++) values[i] = bell(&state) * 0.02f;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const quant_format *format = quant_format_of(rows[i].type);
        double              wrong = 0, all = 0;
        TEST("%s from values", format->name);
        quantise_blocks(rows[i].type, out, values, NULL, N / format->block);
        format->dequantise(again, out, N / format->block);
        for (size_t j = 0; j < N; j++) {
            wrong += (double)(values[j] - again[j]) * (values[j] - again[j]);
            all += (double)values[j] * values[j];
        }
        CHECK_MESSAGE(sqrt(wrong / all) <= rows[i].most, "error %g", sqrt(wrong / all));
    }
    TEST("zeros, and a value beyond the old block's range");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const quant_format *format = quant_format_of(rows[i].type);
        float               x[256] = { 0 }, got[256];
        uint8_t             old[1024] = { 0 };
        quantise_blocks(rows[i].type, old, x, NULL, 256 / format->block);
        format->dequantise(got, old, 256 / format->block);
        for (size_t j = 0; j < 256; j++) CHECK_MESSAGE(got[j] == 0, "%s", format->name);
        x[7] = 0.5f; /* the old scales are 0 */
        quantise_blocks(rows[i].type, out, x, old, 256 / format->block);
        format->dequantise(got, out, 256 / format->block);
        CHECK_MESSAGE(fabsf(got[7] - 0.5f) < 0.02f, "%s %g", format->name, got[7]);
    }
    CHECK(!quantise_known(TYPE_I8) && !quantise_known(TYPE_F64));
}

int main(void) {
    test_quant_fixture();
    test_quant_vectors();
    test_quant_table();
    test_broken();
    test_requantise_fixture();
    test_quantise_new();
    return test_end();
}
