/* Measures how fast this machine reads memory: the limit for decoding, which reads every weight once per token.
 *
 *     bandwidth [--threads N] [--mib N] [--passes N] [--file PATH] [--json]
 *
 * Every thread sums its own part of a buffer, or of a mapped file like a model's. A pass ends when the last thread is done. A size
 * that is not a power of two keeps the threads on different memory banks. Prints the best and the median pass in GB/s (10^9
 * bytes), and the sustained speed (all bytes divided by all seconds) of the access pattern that is fastest on this machine. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 256, MOST_PASSES = 1000, LINE = 64, WALKS = 3 };

typedef struct {
    size_t            threads, bytes, passes;
    const char       *file;
    bool              json;
    const uint64_t   *data;
    pthread_barrier_t start, end;
} measurement;

typedef struct {
    measurement *m;
    size_t       index;
    uint64_t     sum;          /* so that the reads are not optimised away */
    double       began, ended; /* of the pass, taken by the worker, because the waiting thread may wake up late */
} worker;

static double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Reads `streams` parts in parallel. The sums are independent, so compilers use wide loads. */
static inline uint64_t sum_streams(const uint64_t *at, size_t words, size_t streams) {
    enum { LANES = 8, MOST_STREAMS = 4 };
    uint64_t     sums[MOST_STREAMS][LANES] = { { 0 } }, total = 0;
    const size_t part = words / streams / LANES * LANES;
    for (size_t i = 0; i < part; i += LANES)
        for (size_t stream = 0; stream < streams; stream++)
            for (size_t j = 0; j < LANES; j++) sums[stream][j] += at[stream * part + i + j];
    for (size_t i = part * streams; i < words; i++) total += at[i];
    for (size_t stream = 0; stream < streams; stream++)
        for (size_t j = 0; j < LANES; j++) total += sums[stream][j];
    return total;
}

/* The best pattern for the prefetchers depends on the machine: passes alternate between them. */
static uint64_t sum_words(const uint64_t *at, size_t words, size_t pass) {
    if (pass % WALKS == 0) return sum_streams(at, words, 4);
    return pass % WALKS == 1 ? sum_streams(at, words, 2) : sum_streams(at, words, 1);
}

static void *worker_run(void *argument) {
    worker      *w = argument;
    measurement *m = w->m;
    const size_t lines = m->bytes / LINE, first = lines * w->index / m->threads,
                 end = lines * (w->index + 1) / m->threads;
    for (size_t pass = 0; pass <= m->passes; pass++) { /* the first is a warm-up */
        pthread_barrier_wait(&m->start);
        w->began = clock_now();
        w->sum += sum_words(m->data + first * (LINE / 8), (end - first) * (LINE / 8), pass);
        w->ended = clock_now();
        pthread_barrier_wait(&m->end);
    }
    return NULL;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int print_failure(const char *what, const char *why) {
    fprintf(stderr, "bandwidth: %s: %s\n", what, why);
    return 2;
}

/* From the first worker's start to the last worker's end. */
static double pass_seconds(const worker *workers, size_t count) {
    double began = workers[0].began, ended = workers[0].ended;
    for (size_t i = 1; i < count; i++) {
        if (workers[i].began < began) began = workers[i].began;
        if (workers[i].ended > ended) ended = workers[i].ended;
    }
    return ended - began;
}

static int measure_passes(measurement *m) {
    static worker    workers[MOST_THREADS];
    static pthread_t threads[MOST_THREADS];
    static double    speeds[MOST_PASSES];
    double           bytes[WALKS] = { 0 }, time[WALKS] = { 0 }, sustained = 0;
    pthread_barrier_init(&m->start, NULL, (unsigned)m->threads + 1);
    pthread_barrier_init(&m->end, NULL, (unsigned)m->threads + 1);
    for (size_t i = 0; i < m->threads; i++) {
        workers[i] = (worker){ .m = m, .index = i };
        const int problem = pthread_create(&threads[i], NULL, worker_run, &workers[i]);
        if (problem) return print_failure("a thread cannot be started", strerror(problem));
    }
    for (size_t pass = 0; pass <= m->passes; pass++) {
        pthread_barrier_wait(&m->start);
        pthread_barrier_wait(&m->end); /* workers start the next pass only when this thread says so */
        if (!pass) continue;
        const double taken = pass_seconds(workers, m->threads);
        speeds[pass - 1] = (double)m->bytes / taken / 1e9;
        bytes[pass % WALKS] += (double)m->bytes;
        time[pass % WALKS] += taken;
    }
    for (size_t walk = 0; walk < WALKS; walk++)
        if (bytes[walk] > sustained * time[walk] * 1e9) sustained = bytes[walk] / time[walk] / 1e9;
    uint64_t sum = 0;
    for (size_t i = 0; i < m->threads; i++) {
        pthread_join(threads[i], NULL);
        sum += workers[i].sum;
    }
    qsort(speeds, m->passes, sizeof *speeds, by_size);
    const double best = speeds[m->passes - 1], median = speeds[m->passes / 2];
    if (m->json)
        printf("{\"gigabytes_per_second\":%.2f,\"median\":%.2f,\"sustained\":%.2f,\"threads\":%zu,\"bytes\":%zu,"
               "\"passes\":%zu,\"sum\":\"%"
               "016llx\"}\n",
               best, median, sustained, m->threads, m->bytes, m->passes, (unsigned long long)sum);
    else
        printf("%.2f GB/s read by %zu threads (best of %zu; median %.2f, sustained %.2f)\n", best, m->threads,
               m->passes, median, sustained);
    return 0;
}

static bool parse_arguments(measurement *m, int count, char **arguments) {
    size_t mib = 0;
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (strcmp(name, "--json") == 0) {
            m->json = true;
            continue;
        }
        if (!value) return false;
        i++;
        if (strcmp(name, "--threads") == 0) m->threads = strtoul(value, NULL, 10);
        else if (strcmp(name, "--mib") == 0) mib = strtoul(value, NULL, 10);
        else if (strcmp(name, "--passes") == 0) m->passes = strtoul(value, NULL, 10);
        else if (strcmp(name, "--file") == 0) m->file = value;
        else return false;
    }
    if (mib) m->bytes = mib << 20;
    return m->threads >= 1 && m->threads <= MOST_THREADS && m->passes >= 1 && m->passes <= MOST_PASSES &&
           m->bytes >= 1 << 20;
}

static const void *map_file(measurement *m) {
    struct stat info;
    const int   file = open(m->file, O_RDONLY);
    if (file < 0) return MAP_FAILED;
    const void *data = MAP_FAILED;
    if (fstat(file, &info) == 0 && info.st_size >= 1 << 20) {
        m->bytes = (size_t)info.st_size;
        data = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, file, 0);
    } else errno = EINVAL;
    close(file);
    return data;
}

int main(int count, char **arguments) {
    const long  online = sysconf(_SC_NPROCESSORS_ONLN);
    measurement m = { .threads = online > 0 ? (size_t)online : 1, .bytes = (size_t)1200 << 20, .passes = 12 };
    if (!parse_arguments(&m, count, arguments)) {
        fprintf(stderr, "usage: bandwidth [--threads 1-%d] [--mib N] [--passes 1-%d] [--file PATH] [--json]\n",
                MOST_THREADS, MOST_PASSES);
        return 3;
    }
    const void *data;
    if (m.file) {
        data = map_file(&m);
        if (data == MAP_FAILED) return print_failure(m.file, strerror(errno));
    } else {
        void *memory = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return print_failure("the buffer", strerror(errno));
#if defined(MADV_HUGEPAGE)
        madvise(memory, m.bytes,
                MADV_HUGEPAGE); /* like the weights; with small pages the TLB would be the limit, not memory */
#endif
        memset(memory, 1, m.bytes); /* all pages that were never written share one zero page */
        data = memory;
    }
    m.data = data;
    const int result = measure_passes(&m);
    munmap((void *)(uintptr_t)data, m.bytes);
    return result;
}
