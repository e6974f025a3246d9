/* Measures the CPU's matrix products on the shapes of real models, with one thread and with all, and the machine's memory speed in
 * the same run.
 *
 *     kernels_cpu [TABLE] [PATTERN]    TABLE: scalar, avx2, … (default: the best); PATTERN: only rows that contain it
 *
 * One column is limited by memory (compare its GB/s with plain reads), many columns by arithmetic (GMAC/s: multiply-adds). The
 * weights are in a buffer much larger than the caches, one matrix after another. */

#include "base/clock.h"
#include "base/pool.h"
#include "cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BUFFER = 400 << 20, RUNS = 7 };

static const struct {
    quant_type type;
    size_t     k, rows, columns;
    bool       alone; /* every column as if it were the only one */
} cases[] = {
    { TYPE_Q4_K, 1536, 6144, 1, false },    { TYPE_Q4_K, 1536, 12288, 1, false },
    { TYPE_Q4_K, 12288, 1536, 1, false },   { TYPE_Q6_K, 12288, 1536, 1, false },
    { TYPE_Q6_K, 1536, 262144, 1, false },  { TYPE_Q5_K, 1536, 12288, 1, false },
    { TYPE_Q4_0, 1536, 12288, 1, false },   { TYPE_Q5_0, 2112, 2816, 1, false },
    { TYPE_Q8_0, 1536, 12288, 1, false },   { TYPE_Q8_0, 704, 2816, 1, false },
    { TYPE_BF16, 1536, 8960, 1, false },    { TYPE_F16, 1536, 12288, 1, false },
    { TYPE_Q4_K, 1536, 12288, 3, false },   { TYPE_Q4_K, 2816, 704, 4, false },
    { TYPE_Q4_K, 1536, 12288, 8, false },   { TYPE_Q4_K, 1536, 12288, 64, false },
    { TYPE_Q4_K, 12288, 1536, 64, false },  { TYPE_Q6_K, 12288, 1536, 64, false },
    { TYPE_Q8_0, 1536, 12288, 64, false },  { TYPE_Q4_0, 1536, 12288, 64, false },
    { TYPE_Q4_K, 1536, 12288, 256, false }, { TYPE_Q4_K, 12288, 1536, 256, false },
    { TYPE_Q6_K, 12288, 1536, 256, false }, { TYPE_Q4_K, 1536, 12288, 512, false },
    { TYPE_BF16, 1536, 8960, 64, false },   { TYPE_Q4_K, 1536, 12288, 2, true },
    { TYPE_Q4_K, 1536, 12288, 4, true },    { TYPE_Q4_K, 1536, 12288, 8, true },
    { TYPE_Q4_K, 1536, 12288, 32, true },   { TYPE_Q4_K, 12288, 1536, 4, true },
    { TYPE_Q6_K, 12288, 1536, 4, true },    { TYPE_Q6_K, 1536, 262144, 4, true },
    { TYPE_Q5_K, 1536, 12288, 4, true },    { TYPE_Q8_0, 1536, 12288, 4, true },
    { TYPE_Q4_0, 1536, 12288, 4, true },    { TYPE_BF16, 1536, 8960, 4, true },
    { TYPE_F16, 1536, 12288, 4, true },
};

typedef struct {
    const cpu_kernels *kernels;
    matmul_job         job;
    size_t             rows, matrices, chunk;
    bool               eight_bits;
    const uint8_t     *buffer;
    size_t             bytes; /* to read, for the plain reads */
    uint64_t           sums[64];
    void              *scratch[64];
    pool              *threads;
} work;

static void read_plainly(void *context, size_t thread, size_t threads) {
    work           *w = context;
    const uint64_t *p = (const uint64_t *)(const void *)w->buffer + w->bytes / 8 / threads * thread;
    const uint64_t *end = p + w->bytes / 8 / threads / 8 * 8;
    uint64_t        a[8] = { 0 };
    for (; p < end; p += 8)
        for (size_t i = 0; i < 8; i++) a[i] += p[i];
    for (size_t i = 0; i < 8; i++) w->sums[thread] += a[i];
}

static void multiply_share(void *context, size_t thread, size_t threads) {
    work        *w = context;
    const size_t pieces = (w->rows + w->chunk - 1) / w->chunk;
    (void)threads;
    for (;;) {
        const size_t task = pool_take(w->threads);
        if (task >= pieces * w->matrices) return;
        matmul_job   job = w->job;
        const size_t first = task % pieces * w->chunk;
        job.w = w->buffer + task / pieces * w->rows * job.row_bytes;
        (w->eight_bits ? w->kernels->matmul_q8
                       : w->kernels->matmul_f32)(&job, first, min_size(first + w->chunk, w->rows), w->scratch[thread]);
    }
}

static double best_time(work *w, pool_work run) {
    double best = 1e9;
    for (size_t i = 0; i < RUNS; i++) {
        const double start = clock_seconds();
        pool_run(w->threads, run, w);
        const double took = clock_seconds() - start;
        if (took < best) best = took;
    }
    return best;
}

static void *allocate(size_t bytes) {
    void *p = aligned_alloc(64, round_up(bytes, 64));
    if (!p) {
        fprintf(stderr, "kernels_cpu: no memory for %zu bytes\n", bytes);
        exit(4);
    }
    return p;
}

/* Rows per task as the engine chooses them: a few tasks per thread, larger if columns have to be packed. */
static size_t chunk_of(const work *w, size_t threads) {
    const size_t multiple = w->kernels->row_multiple, each = w->rows / (threads * 4) / multiple * multiple;
    return max_size(multiple, min_size(each, w->job.columns >= 4 && !w->job.alone ? 1024 : 256));
}

static void run_case(work *w, size_t i, const char *pattern) {
    const quant_format *format = quant_format_of((uint32_t)cases[i].type);
    char                name[80];
    snprintf(name, sizeof name, "%-5s %6zu -> %-6zu x %-3zu%s", format->name, cases[i].k, cases[i].rows,
             cases[i].columns, cases[i].alone ? " alone" : "      ");
    if (pattern && !strstr(name, pattern)) return;
    const size_t k = cases[i].k, n = cases[i].columns;
    w->rows = cases[i].rows;
    w->eight_bits = cpu_type_has_q8(cases[i].type);
    w->job = (matmul_job){ .k = k, .type = cases[i].type, .columns = n, .y_stride = w->rows, .alone = cases[i].alone };
    w->job.row_bytes = (size_t)quant_row_bytes(format, k);
    const size_t most = BUFFER / (w->rows * w->job.row_bytes), wanted = n > 3 && !cases[i].alone ? 1 + 64 / n : most;
    w->matrices = max_size(1, min_size(most, wanted));
    float *x = allocate(k * n * 4);
    for (size_t j = 0; j < k * n; j++) x[j] = (float)(j * 2654435761u % 1000) / 500 - 1;
    w->job.x = x;
    w->job.x8 = (q8){ allocate(k * n), allocate(k * n / 32 * 4), allocate(k * n / 16 * 4) };
    w->kernels->quantise(w->job.x8, x, n, k);
    w->job.y = allocate(w->rows * n * 4);
    w->chunk = chunk_of(w, pool_threads(w->threads));
    const double took = best_time(w, multiply_share), weights = (double)w->rows * (double)(k * w->matrices);
    printf("%s  %7.2f GB/s %8.1f GMAC/s\n", name, weights / (double)k * (double)w->job.row_bytes / took / 1e9,
           weights * (double)n / took / 1e9);
    fflush(stdout);
    free(x), free(w->job.x8.q), free(w->job.x8.d), free(w->job.x8.s), free(w->job.y);
}

int main(int argc, char **argv) {
    const cpu_kernels *kernels = argc > 1 && *argv[1] ? cpu_kernels_by_name(argv[1]) : cpu_kernels_best();
    if (!kernels) {
        fprintf(stderr, "kernels_cpu: this machine cannot run the table '%s'\n", argv[1]);
        return 3;
    }
    uint8_t *buffer = allocate(BUFFER);
#if defined(MADV_HUGEPAGE)
    madvise((void *)round_up((uintptr_t)buffer, 2 << 20), BUFFER - (4 << 20), MADV_HUGEPAGE); /* as the weights are */
#endif
    /* Arbitrary bits: bytes below 64 keep every half float and every exponent small. */
    for (size_t i = 0; i < BUFFER; i++) buffer[i] = (uint8_t)(i * 2654435761u >> 13 & 0x3b);
    work         w = { .kernels = kernels, .buffer = buffer, .bytes = BUFFER };
    const size_t counts[] = { 1, min_size(physical_cores(), COUNT_OF(w.scratch)) };
    for (size_t run = 0; run < (counts[1] > 1 ? 2 : 1); run++) {
        const size_t threads = counts[run];
        error        e = { 0 };
        if (pool_new(threads, &w.threads, &e) != GM_OK) {
            fprintf(stderr, "kernels_cpu: %s\n", e.why);
            return 4;
        }
        for (size_t i = 0; i < threads; i++)
            if (!w.scratch[i]) w.scratch[i] = allocate(MATMUL_SCRATCH);
        printf("%s, %zu thread%s: plain reads %.2f GB/s\n", kernels->name, threads, threads > 1 ? "s" : "",
               BUFFER / best_time(&w, read_plainly) / 1e9);
        for (size_t i = 0; i < COUNT_OF(cases); i++) run_case(&w, i, argc > 2 ? argv[2] : NULL);
        pool_free(w.threads);
    }
    for (size_t i = 0; i < COUNT_OF(w.scratch); i++) free(w.scratch[i]);
    free(buffer);
    return 0;
}
