/* A thread pool that runs one job at a time.
 *
 * pool_run calls work(context, thread, threads) on the caller's thread (0) and on every other that is free before the caller
 * is done, once each, and returns when all are back. Inside, threads share the work by pool_take: an atomic counter, so a
 * thread that the system slowed down does not hold up the rest. Results must not depend on which thread does what. With one
 * thread, and on wasm without workers (pool_wasm.c has them), it is a plain call. One caller at a time: an engine sees to that
 * (engine_enter). */

#ifndef GM_POOL_H
#define GM_POOL_H

#include "base/base.h"

typedef struct pool pool;
typedef void (*pool_work)(void *context, size_t thread, size_t threads);

gm_status pool_new(size_t threads, pool **out, error *e);
void      pool_free(pool *p);
size_t    pool_threads(const pool *p);
void      pool_run(pool *p, pool_work work, void *context);
/* The next task number of this run, counted from 0: every number is given to one thread. */
size_t pool_take(pool *p);

/* Tells a thread what it will read in a later run: some streams, each from its beginning. While it waits it prefetches their
 * first bytes, two streams at a time. This is only a hint: the addresses need not be valid by then. */
enum { POOL_STREAMS = 4 };
void pool_will_read(pool *p, size_t thread, const uint8_t *const streams[POOL_STREAMS], size_t bytes);

/* Physical cores that this process may run on; at least 1. */
size_t physical_cores(void);
/* Hardware threads that it may run on; at least 1. */
size_t usable_processors(void);

#endif
