/* The CPU's kernels: compares every function of every table that this machine can run with formulas in double, or with the scalar
 * table where results must be identical. Buffers have exactly the size of the contract, so that a sanitizer notices every access
 * beyond them. */

#include "base/half.h"
#include "cpu/exact.h"
#include "cpu/kernels.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

static uint64_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) ^ (uint32_t)(random_state >> 48);
}

static float random_float(float low, float high) { return low + (high - low) * (float)(random_u32() % 65536) / 65535; }

static void *get(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static float *random_array(size_t n, float most) {
    float *x = get(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(-most, most);
    return x;
}

/* Scratch memory has exactly the size that kernels may use. */
static void *matmul_scratch, *attention_scratch_memory;

/* ---- weights ---- */

typedef struct {
    quant_type  type;
    const char *name;
    int         half[2];  /* where the block's f16 fields are; -1: none */
    int         exponent; /* of MXFP4 */
} weight_type;

static const weight_type weight_types[] = {
    { TYPE_F32, "F32", { -1, -1 }, -1 },      { TYPE_F16, "F16", { -1, -1 }, -1 },
    { TYPE_BF16, "BF16", { -1, -1 }, -1 },    { TYPE_Q4_0, "Q4_0", { 0, -1 }, -1 },
    { TYPE_Q4_1, "Q4_1", { 0, 2 }, -1 },      { TYPE_Q5_0, "Q5_0", { 0, -1 }, -1 },
    { TYPE_Q5_1, "Q5_1", { 0, 2 }, -1 },      { TYPE_Q8_0, "Q8_0", { 0, -1 }, -1 },
    { TYPE_Q2_K, "Q2_K", { 80, 82 }, -1 },    { TYPE_Q3_K, "Q3_K", { 108, -1 }, -1 },
    { TYPE_Q4_K, "Q4_K", { 0, 2 }, -1 },      { TYPE_Q5_K, "Q5_K", { 0, 2 }, -1 },
    { TYPE_Q6_K, "Q6_K", { 208, -1 }, -1 },   { TYPE_IQ4_NL, "IQ4_NL", { 0, -1 }, -1 },
    { TYPE_IQ4_XS, "IQ4_XS", { 0, -1 }, -1 }, { TYPE_MXFP4, "MXFP4", { -1, -1 }, 0 },
};

static void random_row(uint8_t *out, const weight_type *t, size_t k) {
    const quant_format *format = quant_format_of((uint32_t)t->type);
    for (size_t b = 0; b < k / format->block; b++, out += format->bytes) {
        const float    value = random_float(-1, 1);
        const uint16_t half = f32_to_f16(value), brain = f32_to_bf16(value);
        if (t->type == TYPE_F32) memcpy(out, &value, 4);
        else if (t->type == TYPE_F16) memcpy(out, &half, 2);
        else if (t->type == TYPE_BF16) memcpy(out, &brain, 2);
        else
            for (size_t i = 0; i < format->bytes; i++) out[i] = (uint8_t)random_u32();
        for (size_t i = 0; i < 2; i++) {
            const uint16_t scale = f32_to_f16(random_float(-0.05f, 0.1f));
            if (t->half[i] >= 0) memcpy(out + t->half[i], &scale, 2);
        }
        if (t->exponent >= 0) out[t->exponent] = (uint8_t)(120 + random_u32() % 8);
    }
}

/* ---- matrix products ---- */

typedef struct {
    matmul_job job;
    size_t     rows, x_rows, y_rows;
    uint8_t   *w;
    float     *x, *y;
} product;

static product product_new(const weight_type *t, size_t rows, size_t k, size_t columns) {
    const quant_format *format = quant_format_of((uint32_t)t->type);
    product             p = { .rows = rows };
    const size_t        bytes = (size_t)quant_row_bytes(format, k);
    p.w = get(rows * bytes);
    p.x = random_array(columns * k, 2);
    for (size_t row = 0; row < rows; row++) random_row(p.w + row * bytes, t, k);
    if (columns > 1) memset(p.x + k, 0, k * sizeof *p.x); /* a column of zeros has scales of zero */
    p.job = (matmul_job){
        .w = p.w,
        .row_bytes = bytes,
        .k = k,
        .type = t->type,
        .x = p.x,
        .y_stride = rows + 3,
        .columns = columns,
    };
    if (k % 32 == 0) {
        p.job.x8 = (q8){ get(columns * k), get(columns * k / 32 * 4), get(columns * k / 16 * 4) };
        cpu_kernels_scalar.quantise(p.job.x8, p.x, columns, k);
    }
    p.y = get(columns * p.job.y_stride * sizeof *p.y);
    p.job.y = p.y;
    return p;
}

static void product_free(product *p) {
    free(p->w);
    free(p->x);
    free(p->y);
    free(p->job.x8.q);
    free(p->job.x8.d);
    free(p->job.x8.s);
}

/* Largest |y − truth| / Σ |w x| over all rows and columns; the truth in double from dequantised weights, with the values
 * that the kernel is given. */
static double product_error(const product *p, bool eight_bits) {
    const quant_format *format = quant_format_of((uint32_t)p->job.type);
    const size_t        k = p->job.k;
    float              *w = get(k * sizeof *w);
    double              worst = 0;
    for (size_t row = 0; row < p->rows; row++) {
        format->dequantise(w, p->w + row * p->job.row_bytes, k / format->block);
        for (size_t column = 0; column < p->job.columns; column++) {
            double sum = 0, size = 1e-30;
            for (size_t i = 0; i < k; i++) {
                const size_t at = column * k + i;
                const double x = eight_bits ? (double)p->job.x8.d[at / 32] * p->job.x8.q[at] : p->x[at];
                sum += w[i] * x;
                size += fabs(w[i] * x);
            }
            const double off = fabs(p->y[column * p->job.y_stride + row] - sum) / size;
            if (!(off <= worst)) worst = off; /* NaN counts */
        }
    }
    free(w);
    return worst;
}

typedef void (*matmul)(const matmul_job *job, size_t first, size_t last, void *scratch);

static const struct {
    size_t rows, k, columns;
} shapes[] = {
    { 1, 32, 1 },   { 3, 64, 2 },   { 17, 96, 3 },   { 5, 352, 1 },   { 33, 256, 4 }, { 3, 96, 5 },  { 17, 544, 9 },
    { 1, 512, 64 }, { 40, 256, 7 }, { 19, 1536, 1 }, { 6, 1536, 12 }, { 17, 32, 8 },  { 2, 768, 6 }, { 4, 1024, 3 },
    { 2, 1, 1 },    { 3, 5, 4 },    { 5, 33, 2 },    { 4, 1030, 5 },  { 2, 2085, 1 },
};

static void test_products(const cpu_kernels *kernels, const weight_type *t) {
    const quant_format *format = quant_format_of((uint32_t)t->type);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (shapes[i].k % format->block) continue;
        product p = product_new(t, shapes[i].rows, shapes[i].k, shapes[i].columns);
        for (int eight_bits = 0; eight_bits < 1 + cpu_type_has_q8(t->type); eight_bits++) {
            TEST("%s: %s of %s, %zu rows of %zu, %zu columns", kernels->name, eight_bits ? "matmul_q8" : "matmul_f32",
                 t->name, shapes[i].rows, shapes[i].k, shapes[i].columns);
            for (size_t j = 0; j < p.job.columns * p.job.y_stride; j++) p.y[j] = 12345;
            (eight_bits ? kernels->matmul_q8 : kernels->matmul_f32)(&p.job, 0, p.rows, matmul_scratch);
            const double off = product_error(&p, eight_bits);
            CHECK_MESSAGE(off < 3e-6, "relative error %g", off);
            bool kept = true;
            for (size_t j = 0; j < p.job.columns * p.job.y_stride; j++)
                if (j % p.job.y_stride >= p.rows && p.y[j] != 12345) kept = false;
            CHECK(kept);
        }
        product_free(&p);
    }
}

/* Bit for bit: a matrix in pieces, fewer columns on the same path, columns in another order. */
static void test_kernel_pieces(const cpu_kernels *kernels, const weight_type *t, matmul run, const char *name) {
    enum { ROWS = 45, COLUMNS = 9 };
    static const int32_t x_index[COLUMNS] = { 8, 3, 3, 0, 5, 1, 7, 2, 6 },
                         y_index[COLUMNS] = { 2, 0, 1, 8, 7, 6, 5, 4, 3 };
    const size_t columns[] = { 1, 2, 4, 7, 9 };
    TEST("%s: %s of %s in pieces", kernels->name, name, t->name);
    product      p = product_new(t, ROWS, 1280, COLUMNS);
    const size_t bytes = COLUMNS * p.job.y_stride * sizeof(float);
    float       *whole = get(bytes), *few = get(bytes);
    memset(whole, 0, bytes);
    memset(few, 0, bytes);
    p.job.y = few;
    for (size_t c = 0; c < COLUMNS; c++) { /* the path for one column */
        matmul_job one = p.job;
        one.columns = 1;
        one.x_index = one.y_index = (int32_t[]){ (int32_t)c };
        run(&one, 0, ROWS, matmul_scratch);
    }
    p.job.y = whole;
    run(&p.job, 0, ROWS, matmul_scratch);
    p.job.y = p.y;
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        const float *expected = columns[i] < 4 ? few : whole;
        const size_t cuts[] = { 0, 1, 9, 25, 32, ROWS };
        p.job.columns = columns[i];
        memset(p.y, 0, bytes);
        for (size_t cut = 0; cut + 1 < COUNT_OF(cuts); cut++) run(&p.job, cuts[cut], cuts[cut + 1], matmul_scratch);
        CHECK_MESSAGE(memcmp(p.y, expected, columns[i] * p.job.y_stride * sizeof(float)) == 0, "%zu columns",
                      columns[i]);
        p.job.x_index = x_index;
        p.job.y_index = y_index;
        memset(p.y, 0, bytes);
        run(&p.job, 0, ROWS, matmul_scratch);
        for (size_t c = 0; c < columns[i]; c++)
            CHECK(memcmp(p.y + (size_t)y_index[c] * p.job.y_stride, expected + (size_t)x_index[c] * p.job.y_stride,
                         ROWS * sizeof(float)) == 0);
        p.job.x_index = p.job.y_index = NULL;
    }
    free(whole);
    free(few);
    product_free(&p);
}

/* Bit for bit: each of many columns gets what it gets alone. Rows in pieces, columns in another order, and k with a rest after the
 * last whole unit if the type allows it. */
static void test_kernel_alone(const cpu_kernels *kernels, const weight_type *t, matmul run, const char *name) {
    enum { ROWS = 21, COLUMNS = 32 };
    static const size_t counts[] = { 2, 3, 4, 7, 16, 32 }, cuts[] = { 0, 1, 8, ROWS };
    const quant_format *format = quant_format_of((uint32_t)t->type);
    TEST("%s: %s of %s, every column as alone", kernels->name, name, t->name);
    product      p = product_new(t, ROWS, format->block == 256 ? 1280 : 1312, COLUMNS);
    const size_t bytes = COLUMNS * p.job.y_stride * sizeof(float);
    float       *expected = get(bytes);
    int32_t      index[COLUMNS];
    p.job.y = expected;
    for (int32_t c = 0; c < COLUMNS; c++) {
        matmul_job one = p.job;
        one.columns = 1;
        one.x_index = one.y_index = &c;
        run(&one, 0, ROWS, matmul_scratch);
        index[c] = (c * 5 + 3) % COLUMNS;
    }
    p.job.y = p.y;
    p.job.alone = true;
    for (size_t i = 0; i < 2 * COUNT_OF(counts); i++) {
        size_t wrong = 0;
        p.job.columns = counts[i / 2];
        p.job.x_index = p.job.y_index = i % 2 ? index : NULL;
        memset(p.y, 0, bytes);
        for (size_t cut = 0; cut + 1 < COUNT_OF(cuts); cut++) run(&p.job, cuts[cut], cuts[cut + 1], matmul_scratch);
        for (size_t c = 0; c < p.job.columns; c++) {
            const size_t at = (i % 2 ? (size_t)index[c] : c) * p.job.y_stride;
            wrong += memcmp(p.y + at, expected + at, ROWS * sizeof(float)) != 0;
        }
        CHECK_MESSAGE(!wrong, "%zu of %zu columns differ", wrong, p.job.columns);
    }
    free(expected);
    product_free(&p);
}

/* Many columns, and k long enough that columns are packed in several passes. */
static void test_kernel_large(const cpu_kernels *kernels) {
    static const weight_type types[] = { { TYPE_Q4_K, "Q4_K", { 0, 2 }, -1 }, { TYPE_Q6_K, "Q6_K", { 208, -1 }, -1 } };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        TEST("%s: many columns of %s", kernels->name, types[i].name);
        product p = product_new(&types[i], 2, 1536, 600);
        kernels->matmul_q8(&p.job, 0, p.rows, matmul_scratch);
        const double off = product_error(&p, true);
        CHECK_MESSAGE(off < 3e-6, "relative error %g", off);
        product_free(&p);
    }
}

/* ---- rows ---- */

static double double_gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double row_error(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)a[i] - b[i]) / (fabs(b[i]) + 1e-3);
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static void test_rows_of(const cpu_kernels *kernels, size_t n) {
    const cpu_kernels *scalar = &cpu_kernels_scalar;
    float             *a = random_array(n, 3), *b = random_array(n, 3), *y = get(n * 4), *z = get(n * 4);
    TEST("%s: rows of %zu", kernels->name, n);
    for (int with_w = 0; with_w < 2; with_w++) {
        kernels->rms_norm(y, a, with_w ? b : NULL, 1e-6f, n);
        scalar->rms_norm(z, a, with_w ? b : NULL, 1e-6f, n);
        CHECK(row_error(y, z, n) < 1e-6);
    }
    kernels->add(y, a, b, n), scalar->add(z, a, b, n);
    CHECK(row_error(y, z, n) == 0);
    kernels->mul(y, a, b, n), scalar->mul(z, a, b, n);
    CHECK(row_error(y, z, n) == 0);
    kernels->clamp(y, a, -1, 0.5f, n), scalar->clamp(z, a, -1, 0.5f, n);
    CHECK(row_error(y, z, n) == 0);
    kernels->layer_norm(y, a, b, a, 1e-3f, n), scalar->layer_norm(z, a, b, a, 1e-3f, n);
    CHECK(row_error(y, z, n) < 3e-4); /* the mean cancels, and the bias again */
    kernels->scale(y, a, 1.7f, n), scalar->scale(z, a, 1.7f, n);
    CHECK(row_error(y, z, n) == 0);
    kernels->geglu(y, a, b, n), scalar->geglu(z, a, b, n);
    CHECK(row_error(y, z, n) < 2e-5); /* the scalar one cancels where 1 + tanh is small */
    kernels->gate(y, a, b, n), scalar->gate(z, a, b, n);
    CHECK(row_error(y, z, n) < 1e-6);
    kernels->softcap(y, a, 2, n), scalar->softcap(z, a, 2, n);
    CHECK(row_error(y, z, n) < 1e-6);
    memcpy(y, b, n * 4), memcpy(z, b, n * 4);
    kernels->add_scaled(y, a, 0.3f, n), scalar->add_scaled(z, a, 0.3f, n);
    CHECK(row_error(y, z, n) < 1e-4);
    const float  factors[3] = { 0.5f, -2, 0.1f };
    const size_t third = n / 3;
    memcpy(y, b, n * 4), memcpy(z, b, n * 4);
    kernels->add_rows(y, a, third, factors, 3, third), scalar->add_rows(z, a, third, factors, 3, third);
    CHECK(row_error(y, z, n) < 1e-4);
    memcpy(y, a, n * 4), memcpy(z, a, n * 4);
    kernels->rope(y, b, n / 2 * 2), scalar->rope(z, b, n / 2 * 2);
    CHECK(row_error(y, z, n) < 1e-6);
    free(a), free(b), free(y), free(z);
}

/* In place, and against double: relative to |x| for gelu, which is a share of x; absolute parts of 1e-7 of the cap. */
static void test_functions(const cpu_kernels *kernels) {
    enum { COUNT = 40001 };
    float *x = get(COUNT * 4), *y = get(COUNT * 4), *ones = get(COUNT * 4);
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = (float)(i / 1000.0 - 20);
        ones[i] = 1;
    }
    TEST("%s: geglu against double", kernels->name);
    double worst = 0;
    memcpy(y, x, COUNT * 4);
    kernels->geglu(y, y, ones, COUNT);
    for (size_t i = 0; i < COUNT; i++) worst = fmax(worst, fabs(y[i] - double_gelu(x[i])) / (fabs(x[i]) + 1e-6));
    CHECK_MESSAGE(worst < 3e-7, "%g", worst);
    TEST("%s: gate against double", kernels->name);
    worst = 0;
    memcpy(y, x, COUNT * 4);
    kernels->gate(y, y, y, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        worst = fmax(worst, fabs(y[i] - x[i] / (1 + exp(-(double)x[i]))) / (fabs(x[i]) + 1e-6));
    CHECK_MESSAGE(worst < 3e-7, "%g", worst);
    TEST("%s: softcap against double", kernels->name);
    worst = 0;
    memcpy(y, x, COUNT * 4);
    kernels->softcap(y, y, 5, COUNT);
    for (size_t i = 0; i < COUNT; i++) worst = fmax(worst, fabs(y[i] - 5 * tanh(x[i] / 5.0)) / (fabs(x[i]) + 1e-6));
    CHECK_MESSAGE(worst < 4e-7, "%g", worst);
    TEST("%s: extreme values", kernels->name);
    const float extreme[] = { -1e30f, 1e30f, -200, 200, 0, -1e-30f, 1e-40f, 88, -88 };
    kernels->gate(y, ones, extreme, COUNT_OF(extreme));
    for (size_t i = 0; i < COUNT_OF(extreme); i++) CHECK(fabs(y[i] - 1 / (1 + exp(-(double)extreme[i]))) < 1e-6);
    kernels->geglu(y, extreme, ones, COUNT_OF(extreme));
    for (size_t i = 0; i < COUNT_OF(extreme); i++)
        CHECK(fabs(y[i] - double_gelu(extreme[i])) <= 1e-6 * fabs(extreme[i]));
    kernels->softcap(y, extreme, 30, COUNT_OF(extreme));
    for (size_t i = 0; i < COUNT_OF(extreme); i++) CHECK(fabs(y[i] - 30 * tanh(extreme[i] / 30)) <= 1e-5);
    free(x), free(y), free(ones);
}

/* Bit for bit as the scalar one. */
static void test_quantise(const cpu_kernels *kernels) {
    enum { ROWS = 3, K = 96, N = ROWS * K };
    TEST("%s: 8-bit activations", kernels->name);
    float *x = random_array(N, 5);
    memset(x + 32, 0, 32 * sizeof *x);
    for (size_t i = 64; i < 96; i++) x[i] *= 1e-36f; /* 1/d would be infinite: zeros */
    int8_t q[2][N];
    float  d[2][N / 32], s[2][N / 16];
    cpu_kernels_scalar.quantise((q8){ q[0], d[0], s[0] }, x, ROWS, K);
    kernels->quantise((q8){ q[1], d[1], s[1] }, x, ROWS, K);
    CHECK(memcmp(q[0], q[1], sizeof q[0]) == 0 && memcmp(d[0], d[1], sizeof d[0]) == 0);
    CHECK(memcmp(s[0], s[1], sizeof s[0]) == 0);
    double worst = 0;
    for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs(x[i] - d[1][i / 32] * q[1][i]));
    CHECK_MESSAGE(worst <= 5 / 127.0 / 2 * 1.001, "%g", worst);
    for (size_t i = 0; i < N / 16; i++) {
        double sum = 0;
        for (size_t j = 0; j < 16; j++) sum += q[1][16 * i + j];
        CHECK(fabs(s[1][i] - sum * d[1][i / 2]) < 1e-4);
    }
    free(x);
}

static void test_store(const cpu_kernels *kernels) {
    static const quant_type types[] = { TYPE_F32, TYPE_F16, TYPE_Q8_0 };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const quant_format *format = quant_format_of((uint32_t)types[i]);
        const size_t        n = types[i] == TYPE_Q8_0 ? 96 : 75, bytes = (size_t)quant_row_bytes(format, n);
        TEST("%s: store and load %s", kernels->name, format->name);
        float *x = random_array(n, 3), *y = get(n * sizeof *y);
        void  *a = get(bytes), *b = get(bytes);
        kernels->store(a, types[i], x, n);
        cpu_kernels_scalar.store(b, types[i], x, n);
        CHECK(memcmp(a, b, bytes) == 0);
        kernels->load_row(y, types[i], a, 2, n);
        double worst = 0;
        for (size_t j = 0; j < n; j++) worst = fmax(worst, fabs(y[j] - 2.0 * x[j]));
        CHECK_MESSAGE(worst <= (types[i] == TYPE_F32 ? 0 : types[i] == TYPE_F16 ? 3e-3 : 3e-2), "%g", worst);
        free(x), free(y), free(a), free(b);
    }
}

/* ---- attention ---- */

typedef struct {
    size_t     heads, kv_heads, head, tokens, start, window, slots;
    quant_type type;
    uint32_t   shared, prefix, own, ring; /* the sequence is not alone in the cache */
    size_t     ahead;                     /* tokens that see each other: the last ones of the job */
} attention_case;

static const attention_case attention_cases[] = {
    { 8, 1, 256, 1, 0, 0, 8, TYPE_F16, 0, 0, 0, 0, 0 },        { 8, 1, 256, 1, 70, 0, 80, TYPE_F16, 0, 0, 0, 0, 0 },
    { 8, 1, 64, 1, 300, 33, 40, TYPE_F16, 0, 0, 0, 0, 0 },     { 4, 2, 32, 5, 0, 0, 5, TYPE_F32, 0, 0, 0, 0, 0 },
    { 4, 2, 32, 5, 90, 16, 24, TYPE_Q8_0, 0, 0, 0, 0, 0 },     { 2, 2, 72, 40, 3, 0, 64, TYPE_F32, 0, 0, 0, 0, 0 },
    { 8, 1, 512, 3, 60, 0, 64, TYPE_Q8_0, 0, 0, 0, 0, 0 },     { 16, 1, 128, 9, 0, 4, 16, TYPE_F16, 0, 0, 0, 0, 0 },
    { 16, 8, 64, 20, 100, 48, 70, TYPE_F16, 0, 0, 0, 0, 0 },   { 3, 3, 48, 2, 1, 1, 4, TYPE_F16, 0, 0, 0, 0, 0 },
    { 2, 1, 20, 3, 5, 0, 8, TYPE_F16, 0, 0, 0, 0, 0 },         { 8, 1, 64, 70, 10, 24, 96, TYPE_F16, 0, 0, 0, 0, 0 },
    { 1, 1, 256, 1, 1000, 512, 768, TYPE_F16, 0, 0, 0, 0, 0 }, { 8, 1, 64, 6, 90, 0, 140, TYPE_F16, 40, 3, 40, 0, 0 },
    { 4, 2, 32, 1, 50, 0, 80, TYPE_F32, 51, 20, 0, 0, 0 },     { 4, 2, 32, 9, 60, 24, 70, TYPE_F16, 0, 0, 0, 30, 4 },
    { 8, 1, 64, 40, 20, 0, 64, TYPE_F32, 0, 0, 0, 0, 40 },
};

/* The plain formula: all scores, their softmax, the mean. */
static void plain_attention(const attention_job *job, double *out, size_t token, size_t h) {
    const kv_view      *kv = &job->kv;
    const quant_format *format = quant_format_of((uint32_t)kv->type);
    const token_record *r = &job->records[token];
    const size_t first = job->sliding ? r->sliding_first : r->full_first, kv_head = h / (job->heads / kv->kv_heads);
    const size_t last = job->sliding ? r->sliding_last : r->full_last;
    double      *scores = get((last + 1) * sizeof *scores), highest = -1e30, sum = 0;
    float       *row = get(kv->head * sizeof *row);
    for (size_t i = 0; i < kv->head; i++) out[i] = 0;
    for (int values = 0; values < 2; values++)
        for (size_t j = first; j <= last; j++) {
            const size_t slot = job->sliding ? r->ring + j % r->ring_slots : j < r->shared ? r->prefix + j : r->own + j;
            const size_t at = (slot * kv->kv_heads + kv_head) * kv->head;
            format->dequantise(row, (const uint8_t *)(values ? kv->v : kv->k) + quant_row_bytes(format, at),
                               kv->head / format->block);
            if (!values) scores[j] = 0;
            for (size_t i = 0; i < kv->head; i++)
                if (values) out[i] += exp(scores[j] - highest) * row[i];
                else scores[j] += (double)row[i] * job->q[(token * job->heads + h) * kv->head + i];
            if (values) sum += exp(scores[j] - highest);
            else highest = fmax(highest, scores[j]);
        }
    for (size_t i = 0; i < kv->head; i++) out[i] /= sum;
    free(scores);
    free(row);
}

static void test_kernel_attention(const cpu_kernels *kernels, const attention_case *c) {
    const quant_format *format = quant_format_of((uint32_t)c->type);
    const size_t        values = c->slots * c->kv_heads * c->head, n = c->tokens * c->heads * c->head;
    const size_t        bytes = (size_t)quant_row_bytes(format, values);
    TEST("%s: attention, %zu/%zu heads of %zu, %zu tokens from %zu, window %zu, %zu slots of %s, shared %u",
         kernels->name, c->heads, c->kv_heads, c->head, c->tokens, c->start, c->window, c->slots, format->name,
         c->shared);
    float *q = random_array(n, 1), *k = random_array(values, 1), *v = random_array(values, 1), *out = get(n * 4);
    void  *stored_k = get(bytes), *stored_v = get(bytes);
    cpu_kernels_scalar.store(stored_k, c->type, k, values);
    cpu_kernels_scalar.store(stored_v, c->type, v, values);
    token_record *records = get(c->tokens * sizeof *records);
    for (size_t t = 0; t < c->tokens; t++) {
        const uint32_t p = (uint32_t)(c->start + t), window = (uint32_t)c->window;
        const uint32_t last = t + c->ahead >= c->tokens ? (uint32_t)(c->start + c->tokens - 1) : p;
        records[t] = (token_record){ .full_last = last,
                                     .sliding_first = p >= window ? p + 1 - window : 0,
                                     .sliding_last = last,
                                     .shared = c->shared,
                                     .prefix = c->prefix,
                                     .own = c->own,
                                     .ring = c->ring,
                                     .ring_slots = (uint32_t)c->slots - c->ring };
    }
    const attention_job job = {
        .q = q,
        .out = out,
        .heads = c->heads,
        .tokens = c->tokens,
        .records = records,
        .sliding = c->window > 0,
        .kv = { stored_k, stored_v, c->type, c->kv_heads, c->head },
    };
    memset(out, 0xff, n * 4); /* NaN: every value must be written */
    const size_t tasks = kernels->attention_tasks(&job);
    for (size_t task = 0; task < tasks; task++) kernels->attention(&job, task, attention_scratch_memory);
    double *expected = get(c->head * sizeof *expected), worst = 0;
    for (size_t i = 0; i < c->tokens * c->heads; i++) {
        plain_attention(&job, expected, i / c->heads, i % c->heads);
        for (size_t j = 0; j < c->head; j++) {
            const double off = fabs(out[i * c->head + j] - expected[j]);
            if (!(off <= worst)) worst = off;
        }
    }
    CHECK_MESSAGE(worst < 5e-6, "error %g", worst);
    CHECK(c->heads == 1 || tasks > 1);
    free(expected), free(q), free(k), free(v), free(out), free(stored_k), free(stored_v), free(records);
}

/* ---- all ---- */

static void test_kernel_table(const cpu_kernels *kernels) {
    static const size_t lengths[] = { 1, 2, 5, 8, 33, 256, 1536, 2563 };
    for (size_t i = 0; i < COUNT_OF(lengths); i++) test_rows_of(kernels, lengths[i]);
    test_functions(kernels);
    test_quantise(kernels);
    test_store(kernels);
    for (size_t i = 0; i < COUNT_OF(weight_types); i++) {
        test_products(kernels, &weight_types[i]);
        test_kernel_pieces(kernels, &weight_types[i], kernels->matmul_f32, "matmul_f32");
        if (cpu_type_has_q8(weight_types[i].type))
            test_kernel_pieces(kernels, &weight_types[i], kernels->matmul_q8, "matmul_q8");
        test_kernel_alone(kernels, &weight_types[i], kernels->matmul_f32, "matmul_f32");
        if (cpu_type_has_q8(weight_types[i].type))
            test_kernel_alone(kernels, &weight_types[i], kernels->matmul_q8, "matmul_q8");
    }
    test_kernel_large(kernels);
    for (size_t i = 0; i < COUNT_OF(attention_cases); i++) test_kernel_attention(kernels, &attention_cases[i]);
}

/* ---- what gives the same bits everywhere ---- */

static void mix_in(uint64_t *hash, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) *hash = (*hash ^ exact_bits(x[i] + 0.0f)) * UINT64_C(0x100000001b3); /* −0 is 0 */
}

static double exact_error(double got, double want) { return fabs(got - want) / fabs(want); }

/* The functions against the library's in double, and a hash of their results, which is the same for every compiler and processor. */
static void test_exact_functions(void) {
    uint64_t hash = 0;
    double   worst[7] = { 0 };
    TEST("exact functions");
    for (size_t i = 0; i < 100000; i++) {
        const float x = random_float(-70, 70), size = exact_float(0x20000000u + random_u32() % 0x40000000u);
        const float small = random_float(-1, 1), angle = random_float(0, 300000) * (i % 2 ? 1 : 0.00001f);
        float       got[9] = { exact_exp(x),          exact_inverse(size), exact_inverse_root(size),  exact_log(size),
                               exact_tanh(5 * small), exact_gelu(x),       exact_log_ratio(small / 3) };
        exact_cosine_sine(angle, &got[7], &got[8]);
        mix_in(&hash, got, COUNT_OF(got));
        worst[0] = fmax(worst[0], exact_error((double)got[0], exp((double)x)));
        worst[1] = fmax(worst[1], exact_error((double)got[1], 1 / (double)size));
        worst[2] = fmax(worst[2], exact_error((double)got[2], 1 / sqrt((double)size)));
        worst[3] = fmax(worst[3], fabs((double)got[3] - log((double)size)) / fmax(fabs(log((double)size)), 1));
        worst[4] = fmax(worst[4], exact_error((double)got[4], tanh((double)(5 * small))));
        worst[5] = fmax(worst[5], fabs((double)got[7] - cos((double)angle)));
        worst[6] = fmax(worst[6], fabs((double)got[8] - sin((double)angle)));
    }
    for (size_t i = 0; i < COUNT_OF(worst); i++)
        CHECK_MESSAGE(worst[i] < 1e-6, "function %zu is off by %g", i, worst[i]);
    CHECK(exact_exp(-71) == 0 && exact_exp(0) == 1 && isnan(exact_exp(NAN)) && exact_exp(-INFINITY) == 0);
    CHECK(exact_tanh(0) == 0 && fabsf(exact_tanh(100) - 1) < 2e-7f && isnan(exact_tanh(NAN)));
    CHECK(isnan(exact_inverse(NAN)) && isnan(exact_inverse_root(NAN)) && isnan(exact_gelu(NAN)));
    CHECK_MESSAGE(hash == UINT64_C(0x8f620eb334442c0e), "the hash is 0x%llx", (unsigned long long)hash);
}

/* The same of the scalar kernels that a diffusion model runs. */
static void test_exact_kernels(void) {
    enum { N = 300, ROWS = 5, COLUMNS = 70 };
    const cpu_kernels *k = &cpu_kernels_scalar;
    uint64_t           hash = 0;
    float *a = random_array(N * COLUMNS, 3), *b = random_array(N * ROWS, 1), *y = get(COLUMNS * N * sizeof *y);
    TEST("exact kernels");
    k->rms_norm(y, a, b, 1e-6f, N);
    mix_in(&hash, y, N);
    k->geglu(y, a, b, N);
    mix_in(&hash, y, N);
    k->softcap(y, a, 2.5f, N);
    mix_in(&hash, y, N);
    k->rope(a, b, 64);
    mix_in(&hash, a, 64);
    k->add_rows(a, b, N, b + 7, 3, N);
    mix_in(&hash, a, N);
    const matmul_job job = { .w = (const uint8_t *)b,
                             .row_bytes = N * sizeof *b,
                             .k = N,
                             .type = TYPE_F32,
                             .x = a,
                             .y = y,
                             .y_stride = ROWS,
                             .columns = COLUMNS };
    k->matmul_f32(&job, 0, ROWS, matmul_scratch);
    mix_in(&hash, y, ROWS * COLUMNS);
    const token_record  record = { .full_first = 3, .full_last = 40, .span_count = 1 };
    const attention_job attention = { .q = a,
                                      .out = y,
                                      .kv = { .k = a, .v = a + 7, .type = TYPE_F32, .kv_heads = 2, .head = 33 },
                                      .heads = 4,
                                      .tokens = 1,
                                      .records = &record };
    for (size_t i = 0; i < k->attention_tasks(&attention); i++) k->attention(&attention, i, attention_scratch_memory);
    mix_in(&hash, y, 4 * 33);
    CHECK_MESSAGE(hash == UINT64_C(0x0a15cff5365e2592), "the hash is 0x%llx", (unsigned long long)hash);
    free(a);
    free(b);
    free(y);
}

int main(void) {
    const cpu_kernels *const *list;
    const size_t              count = cpu_kernels_available(&list);
    matmul_scratch = aligned_alloc(64, MATMUL_SCRATCH);
    attention_scratch_memory = aligned_alloc(64, ATTENTION_SCRATCH);
    TEST("tables");
    CHECK(matmul_scratch && attention_scratch_memory);
    CHECK(count > 0 && list[count - 1] == &cpu_kernels_scalar && cpu_kernels_best() == list[0]);
    CHECK(cpu_kernels_by_name("scalar") == &cpu_kernels_scalar && cpu_kernels_by_name("abacus") == NULL);
    for (size_t i = 0; i < count; i++) {
        CHECK(cpu_kernels_by_name(list[i]->name) == list[i] && list[i]->row_multiple > 0);
        printf("kernels: %s\n", list[i]->name);
    }
    random_state = 1;
    test_exact_functions();
    test_exact_kernels();
    for (size_t i = 0; i < count; i++) test_kernel_table(list[i]);
    free(matmul_scratch);
    free(attention_scratch_memory);
    return test_end();
}
