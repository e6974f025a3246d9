/* A thread pool whose workers spin before they sleep.
 *
 * A token takes hundreds of runs with microseconds in between, so an idle worker watches the gate for a while before it goes
 * to sleep; only then does waking it cost a system call. A worker announces its sleep and then looks at the gate once more (both
 * sequentially consistent), so that no wake-up is lost.
 *
 * While it spins it prefetches what it will read next (pool_will_read), because memory is idle then.
 *
 * The gate is one word: the number of the run, whether it is still open, and how many workers are inside. A worker enters
 * only an open run. The caller closes the run when no task is left, and waits for the workers inside. So a worker that the
 * system does not schedule delays nobody: it finds the gate closed and waits for the next run. */

#include "base/pool.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#ifdef __wasm__

struct pool {
    size_t next;
};

gm_status pool_new(size_t threads, pool **out, error *e) {
    *out = NULL;
    if (!threads) return fail(e, GM_BAD_ARGUMENT, "a pool needs at least one thread");
    *out = calloc(1, sizeof **out);
    return *out ? GM_OK : fail_memory(e, "a thread pool", sizeof **out);
}

void pool_free(pool *p) { free(p); }

size_t pool_threads(const pool *p) {
    (void)p;
    return 1;
}

void pool_run(pool *p, pool_work work, void *context) {
    p->next = 0;
    work(context, 0, 1);
}

size_t pool_take(pool *p) { return p->next++; }

void pool_will_read(pool *p, size_t thread, const uint8_t *const streams[POOL_STREAMS], size_t bytes) {
    (void)p, (void)thread, (void)streams, (void)bytes;
}

#else

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { MOST_THREADS = 1024, LINE = 64 };

static const double spin_seconds = 50e-6;

typedef struct {
    pool     *owner;
    size_t    thread;
    pthread_t handle;

    _Alignas(LINE) atomic_uint wishes; /* counts pool_will_read */
    atomic_uintptr_t streams[POOL_STREAMS];
    atomic_size_t    bytes;
    unsigned         seen; /* the last value of wishes; this and the next are private to the worker */
    size_t           brought;
} worker;

struct pool {
    size_t    threads, started; /* started: workers that exist */
    bool      spins;
    worker   *workers;
    pool_work work;
    void     *context;

    /* All threads contend for these, so each has a cache line of its own. */
    _Alignas(LINE) atomic_size_t next;
    _Alignas(LINE) atomic_uint_fast64_t gate; /* run number << 32 | CLOSED | workers inside */

    _Alignas(LINE) atomic_size_t asleep; /* workers on `wake` */
    atomic_bool     caller_asleep, stop;
    pthread_mutex_t sleep;
    pthread_cond_t  wake, done;
};

static void pause_a_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void prefetch_line(uintptr_t address) {
#if defined(__GNUC__)
    __builtin_prefetch((const void *)address, 0, 2);
#else
    (void)address;
#endif
}

static const uint64_t closed = 1u << 31, inside = (1u << 31) - 1;

static uint32_t run_of(uint64_t gate) { return (uint32_t)(gate >> 32); }

static bool has_new_run(pool *p, uint32_t seen) {
    const uint64_t gate = atomic_load(&p->gate);
    return (run_of(gate) != seen && !(gate & closed)) || atomic_load(&p->stop);
}

static bool all_left(pool *p, uint32_t unused) {
    (void)unused;
    return (atomic_load(&p->gate) & inside) == 0;
}

/* Enters the open run, unless it closes first or this worker has seen it already. */
static bool enter(pool *p, uint32_t seen, uint32_t *run) {
    uint_fast64_t gate = atomic_load(&p->gate);
    while (run_of(gate) != seen && !(gate & closed)) {
        if (!atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) continue;
        *run = run_of(gate);
        return true;
    }
    return false;
}

/* Prefetches the next lines of what the worker will read; false if nothing is left. A wish that is just being written may be
 * half old, half new: then the worker prefetches something useless, and sees the whole wish soon after. */
static bool bring_near(worker *self) {
    enum { AT_ONCE = 4 * LINE };
    const unsigned wishes = atomic_load_explicit(&self->wishes, memory_order_acquire);
    if (wishes != self->seen) self->seen = wishes, self->brought = 0;
    const size_t bytes = atomic_load_explicit(&self->bytes, memory_order_relaxed);
    if (self->brought >= bytes * (POOL_STREAMS / 2)) return false;
    for (size_t i = 0; i < 2; i++) {
        atomic_uintptr_t *stream = &self->streams[self->brought / bytes * 2 + i];
        const uintptr_t   begin = atomic_load_explicit(stream, memory_order_relaxed);
        for (size_t line = 0; begin && line < AT_ONCE; line += LINE)
            prefetch_line(begin + self->brought % bytes + line);
    }
    self->brought += AT_ONCE;
    return true;
}

/* Spins until `ready`, for a while; false if that did not happen. A worker prefetches meanwhile. */
static bool spin_until(pool *p, bool (*ready)(pool *, uint32_t), uint32_t seen, worker *useful) {
    if (ready(p, seen)) return true;
    if (!p->spins) return false;
    const double start = clock_seconds();
    do {
        for (int i = 0; i < 32; i++) {
            if (ready(p, seen)) return true;
            if (!useful || !bring_near(useful)) pause_a_moment();
        }
    } while (clock_seconds() - start < spin_seconds);
    return false;
}

static void wait_for_run(worker *self, uint32_t seen) {
    pool *p = self->owner;
    if (spin_until(p, has_new_run, seen, self)) return;
    pthread_mutex_lock(&p->sleep);
    atomic_fetch_add(&p->asleep, 1);
    while (!has_new_run(p, seen)) pthread_cond_wait(&p->wake, &p->sleep);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->sleep);
}

static void wait_for_workers(pool *p) {
    if (spin_until(p, all_left, 0, NULL)) return;
    pthread_mutex_lock(&p->sleep);
    atomic_store(&p->caller_asleep, true);
    while (!all_left(p, 0)) pthread_cond_wait(&p->done, &p->sleep);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->sleep);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    pool   *p = self->owner;
    for (uint32_t seen = 0;;) {
        wait_for_run(self, seen);
        if (atomic_load(&p->stop)) return NULL;
        if (!enter(p, seen, &seen)) continue;
        p->work(p->context, self->thread, p->threads);
        const uint64_t gate = atomic_fetch_sub(&p->gate, 1);
        if ((gate & inside) == 1 && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->sleep);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->sleep);
        }
    }
}

static void wake_all(pool *p) {
    if (!atomic_load(&p->asleep)) return;
    pthread_mutex_lock(&p->sleep);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->sleep);
}

void pool_run(pool *p, pool_work work, void *context) {
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (p->threads == 1) {
        work(context, 0, 1);
    } else {
        p->work = work;
        p->context = context;
        atomic_store(&p->gate, (uint64_t)(run_of(atomic_load(&p->gate)) + 1) << 32);
        wake_all(p);
        work(context, 0, p->threads);
        atomic_fetch_or(&p->gate, closed);
        wait_for_workers(p);
    }
}

size_t pool_take(pool *p) { return atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed); }

void pool_will_read(pool *p, size_t thread, const uint8_t *const streams[POOL_STREAMS], size_t bytes) {
    if (!thread) return; /* the caller never waits for a run to begin */
    worker *w = &p->workers[thread - 1];
    for (size_t i = 0; i < POOL_STREAMS; i++)
        atomic_store_explicit(&w->streams[i], (uintptr_t)streams[i], memory_order_relaxed);
    atomic_store_explicit(&w->bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->wishes, 1, memory_order_release);
}

size_t pool_threads(const pool *p) { return p->threads; }

/* Workers block all signals, so that Ctrl-C goes to the program's own threads, except those that a worker causes itself, for
 * example by reading from a file that was truncated: the system kills a program that blocks these. */
static int start_workers(pool *p) {
    static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL };
    sigset_t         all, before;
    sigfillset(&all);
    for (size_t i = 0; i < COUNT_OF(own); i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = 0;
    while (!status && p->started + 1 < p->threads) {
        worker *w = &p->workers[p->started];
        *w = (worker){ .owner = p, .thread = p->started + 1 };
        status = pthread_create(&w->handle, NULL, worker_main, w);
        if (!status) p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

gm_status pool_new(size_t threads, pool **out, error *e) {
    *out = NULL;
    if (!threads || threads > MOST_THREADS) {
        return fail(e, GM_BAD_ARGUMENT, "the number of threads must be 1 to %d, not %zu", MOST_THREADS, threads);
    }
    size_t bytes = (size_t)round_up(sizeof(pool), LINE);
    pool  *p = aligned_alloc(LINE, bytes);
    if (!p) return fail_memory(e, "a thread pool", bytes);
    memset(p, 0, bytes);
    p->threads = threads;
    p->workers = aligned_alloc(LINE, threads * sizeof *p->workers);
    if (!p->workers) {
        free(p);
        return fail_memory(e, "a thread pool", threads * sizeof(worker));
    }
    atomic_init(&p->next, 0);
    atomic_init(&p->gate, closed);
    atomic_init(&p->asleep, 0);
    atomic_init(&p->caller_asleep, false);
    atomic_init(&p->stop, false);
    p->spins = threads <=
               usable_processors(); /* with more threads than processors, spinning would keep the others from working */
    pthread_mutex_init(&p->sleep, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    int status = start_workers(p);
    if (status) {
        fail(e, GM_NO_MEMORY, "cannot start thread %zu of %zu: %s", p->started + 2, threads, strerror(status));
        pool_free(p);
        return GM_NO_MEMORY;
    }
    *out = p;
    return GM_OK;
}

void pool_free(pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    pthread_mutex_lock(&p->sleep);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->sleep);
    for (size_t i = 0; i < p->started; i++) pthread_join(p->workers[i].handle, NULL);
    pthread_mutex_destroy(&p->sleep);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->workers);
    free(p);
}

#endif
