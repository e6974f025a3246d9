/* The size of a prompt's batches on the GPU, by invented times. tests/test_session.c computes with them. */

#include "session/batches.h"
#include "test.h"

/* A GPU: the seconds that it takes for 256, 512 and 1024 tokens, and the size that batches reach. */
static const struct {
    const char *what;
    double      seconds[BATCH_CLASSES];
    size_t      reached;
} gpus[] = {
    { "a large GPU", { 0.020, 0.035, 0.065 }, 1024 },
    { "a large GPU and a large model", { 0.045, 0.080, 0.150 }, 512 },
    { "a small GPU", { 0.060, 0.110, 0.210 }, 256 },
    { "a GPU on which larger batches are slower", { 0.010, 0.025, 0.045 }, 256 },
    { "a GPU on which only the largest are slower", { 0.020, 0.030, 0.070 }, 512 },
    { "a GPU that gains nothing", { 0.020, 0.040, 0.080 }, 1024 },
};

static size_t class_of(size_t tokens) { return tokens == 256 ? 0 : tokens == 512 ? 1 : 2; }

static void test_reached(void) {
    for (size_t i = 0; i < COUNT_OF(gpus); i++) {
        TEST("%s computes %zu tokens at once", gpus[i].what, gpus[i].reached);
        batch_sizes b = batch_sizes_begin(true);
        size_t      at = 0;
        for (int n = 0; n < 100; n++) {
            batch_sizes_note(&b,
                             gpus[i].seconds[class_of(b.now)] * (n % 7 == 3 ? 1.4 : 1)); /* now and then disturbed */
            if (n >= 50) at += b.now == gpus[i].reached;
        }
        CHECK_MESSAGE(at == 50, "%zu of 50 batches had this size, the last was for %zu", at, b.now);
    }
}

static void test_changes(void) {
    TEST("batches begin with 256 tokens, and stay there if they may not grow");
    batch_sizes b = batch_sizes_begin(false);
    CHECK(b.now == 256);
    batch_sizes_note(&b, 0.001);
    CHECK(b.now == 256);

    TEST("deep in a prompt batches take longer and become smaller, and grow again in the next prompt");
    b = batch_sizes_begin(true);
    for (int i = 0; i < 5; i++) batch_sizes_note(&b, 0.02 * (double)b.now / 256);
    CHECK(b.now == 1024);
    batch_sizes_note(&b, 0.149);
    CHECK(b.now == 1024);
    batch_sizes_note(&b, 0.151);
    CHECK(b.now == 512);
    batch_sizes_note(&b, 0.4);
    CHECK(b.now == 256);
    batch_sizes_note(&b, 0.2);
    CHECK(b.now == 256);
    for (int i = 0; i < 5; i++) batch_sizes_note(&b, 0.02 * (double)b.now / 256);
    CHECK(b.now == 1024);

    TEST("without memory for larger batches they stay small");
    batch_sizes_stay_small(&b);
    batch_sizes_note(&b, 0.001);
    CHECK(b.now == 256);
}

static void test_rests(void) {
    static const size_t rows[][2] = { { 1, 1 },     { 64, 64 },   { 256, 256 }, { 257, 256 }, { 320, 256 },
                                      { 321, 321 }, { 512, 512 }, { 576, 512 }, { 577, 577 }, { 1024, 1024 } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("of %zu tokens a batch has %zu", rows[i][0], rows[i][1]);
        CHECK(batch_without_rest(rows[i][0]) == rows[i][1]);
    }
}

int main(void) {
    test_reached();
    test_changes();
    test_rests();
    return test_end();
}
