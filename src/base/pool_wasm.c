/* The pool for pages that may share memory. Its threads are workers that the page starts (web/src/core/threads.ts); each has its
 * own instance of this module on the same memory. The module for other pages has pool.c instead, where a run is a plain call.
 *
 * The gate works as in pool.c, but in 32 bits, because that is what WebAssembly can wait on. A thread that comes late, or never,
 * delays nobody. A thread inside a run must come back: if it crashed, or has been silent for half a minute because it was
 * ended, we tell the page, which ends the engine. The C library does not know about threads, so only thread 0 allocates, and it
 * runs everything but tasks. */

#include "base/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT(name) __attribute__((import_module("threads"), import_name(#name))) extern
#define EXPORT(name) __attribute__((export_name(#name)))

/* clang-format off */
IMPORT(start)      int32_t page_start(pool *p, size_t thread, char *stack); /* calls gmw_thread there, soon; 0: it has no such thread */
IMPORT(processors) size_t  page_processors(void);
IMPORT(broken)     _Noreturn void page_broken(void);
/* clang-format on */

enum { MOST_THREADS = 64, LINE = 64, STACK = 128 << 10, LOOKS = 20000, MOST_WAITS = 30 };

static const int64_t forever = -1, second = 1000000000;

struct pool {
    size_t    threads;
    bool      spins;
    char     *stacks; /* of the threads 1, 2, … */
    pool_work work;
    void     *context;

    /* All threads contend for these, so each has a cache line of its own. */
    _Alignas(LINE) atomic_size_t next;
    _Alignas(LINE) atomic_int gate;       /* run number << RUN | CLOSED | threads inside */
    _Alignas(LINE) atomic_int left;       /* counts wake-ups of the caller */
    atomic_int asleep;                    /* threads that wait on `gate` */
    atomic_int caller_asleep, died, stop; /* flags */
};

enum { RUN = 10, CLOSED = 1 << 9, INSIDE = CLOSED - 1 };

static uint32_t run_of(int gate) { return (uint32_t)gate >> RUN; }

static bool has_new_run(pool *p, uint32_t seen) {
    const int gate = atomic_load(&p->gate);
    return (run_of(gate) != seen && !(gate & CLOSED)) || atomic_load(&p->stop);
}

static bool all_left(pool *p, uint32_t unused) {
    (void)unused;
    return (atomic_load(&p->gate) & INSIDE) == 0;
}

/* Enters the open run, unless it closes first or this thread has seen it already. */
static bool enter(pool *p, uint32_t seen, uint32_t *run) {
    int gate = atomic_load(&p->gate);
    while (run_of(gate) != seen && !(gate & CLOSED)) {
        if (!atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) continue;
        *run = run_of(gate);
        return true;
    }
    return false;
}

/* Spins for less than 0.1 ms; false if that was not enough. */
static bool spin_until(pool *p, bool (*ready)(pool *, uint32_t), uint32_t seen) {
    for (int looks = p->spins ? LOOKS : 1; looks > 0; looks--) {
        if (ready(p, seen)) return true;
    }
    return false;
}

/* Sleeps until somebody wakes the word, unless it has changed already; false after a timeout. */
static bool sleep_on(atomic_int *word, int seen, int64_t nanoseconds) {
    return __builtin_wasm_memory_atomic_wait32((int *)word, seen, nanoseconds) != 2;
}

static void wake(atomic_int *word) { __builtin_wasm_memory_atomic_notify((int *)word, MOST_THREADS); }

static void wait_for_run(pool *p, uint32_t seen) {
    if (spin_until(p, has_new_run, seen)) return;
    atomic_fetch_add(&p->asleep, 1);
    for (;;) {
        const int gate = atomic_load(&p->gate);
        if (has_new_run(p, seen)) break;
        sleep_on(&p->gate, gate, forever);
    }
    atomic_fetch_sub(&p->asleep, 1);
}

static void wake_caller(pool *p) {
    atomic_fetch_add(&p->left, 1);
    wake(&p->left);
}

static void wait_for_threads(pool *p) {
    if (spin_until(p, all_left, 0)) return;
    atomic_store(&p->caller_asleep, 1);
    for (int waits = 0;;) {
        const int left = atomic_load(&p->left);
        if (all_left(p, 0)) break;
        if (atomic_load(&p->died) || waits == MOST_WAITS) page_broken();
        if (!sleep_on(&p->left, left, second)) waits++;
    }
    atomic_store(&p->caller_asleep, 0);
}

/* The page runs this in a worker, on its own stack. */
EXPORT(gmw_thread) void gmw_thread(pool *p, size_t thread) {
    for (uint32_t seen = 0; !atomic_load(&p->stop); wait_for_run(p, seen)) {
        if (!enter(p, seen, &seen)) continue;
        p->work(p->context, thread, p->threads);
        const int gate = atomic_fetch_sub(&p->gate, 1);
        if ((gate & INSIDE) == 1 && atomic_load(&p->caller_asleep)) wake_caller(p);
    }
}

/* The page calls this before it ends the workers: a browser takes seconds to end one that sleeps in here. */
EXPORT(gmw_threads_stop) void gmw_threads_stop(pool *p) {
    atomic_store(&p->stop, 1);
    wake(&p->gate);
}

/* The page calls this in a worker whose gmw_thread trapped. */
EXPORT(gmw_thread_died) void gmw_thread_died(pool *p) {
    atomic_store(&p->died, 1);
    wake_caller(p);
}

void pool_run(pool *p, pool_work work, void *context) {
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (p->threads == 1) {
        work(context, 0, 1);
        return;
    }
    p->work = work;
    p->context = context;
    atomic_store(&p->gate, (int)((run_of(atomic_load(&p->gate)) + 1) << RUN));
    if (atomic_load(&p->asleep)) wake(&p->gate);
    work(context, 0, p->threads);
    atomic_fetch_or(&p->gate, CLOSED);
    wait_for_threads(p);
}

size_t pool_take(pool *p) { return atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed); }

void pool_will_read(pool *p, size_t thread, const uint8_t *const streams[POOL_STREAMS], size_t bytes) {
    (void)p, (void)thread, (void)streams, (void)bytes; /* WebAssembly cannot ask for memory without reading it */
}

size_t pool_threads(const pool *p) { return p->threads; }

gm_status pool_new(size_t threads, pool **out, error *e) {
    *out = NULL;
    if (!threads || threads > MOST_THREADS)
        return fail(e, GM_BAD_ARGUMENT, "the number of threads must be 1 to %d, not %zu", MOST_THREADS, threads);
    pool *p = aligned_alloc(LINE, sizeof *p);
    if (!p) return fail_memory(e, "a thread pool", sizeof *p);
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->spins = threads <=
               page_processors(); /* with more threads than processors, spinning would keep the others from working */
    p->stacks = aligned_alloc(LINE, max_size(threads - 1, 1) * STACK);
    atomic_init(&p->gate, CLOSED);
    if (!p->stacks) {
        free(p);
        return fail_memory(e, "the threads' stacks", (threads - 1) * STACK);
    }
    for (size_t thread = 1; thread < threads; thread++) {
        if (page_start(p, thread, p->stacks + thread * STACK)) continue;
        return fail(e, GM_UNSUPPORTED, "thread %zu of %zu cannot be started", thread + 1, threads);
    }
    *out = p;
    return GM_OK;
}

/* Threads may still read the pool, and some have yet to start. So it is freed with the instance, after the page has ended its workers. */
void pool_free(pool *p) {
    if (!p) return;
    gmw_threads_stop(p);
    if (p->threads > 1) return;
    free(p->stacks);
    free(p);
}
