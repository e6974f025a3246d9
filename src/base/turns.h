/* A lock that threads get in the order in which they asked for it.
 *
 * A thread that calls in a loop asks again right after it has released the lock. With a plain mutex it would usually win
 * against threads that sleep; here it queues behind them. In WebAssembly an engine has one thread, so the lock does nothing. */

#ifndef GM_TURNS_H
#define GM_TURNS_H

#ifdef __wasm__

typedef struct {
    char unused;
} turns;

static inline void turns_open(turns *t) { (void)t; }
static inline void turns_close(turns *t) { (void)t; }
static inline void turns_enter(turns *t) { (void)t; }
static inline void turns_leave(turns *t) { (void)t; }

#else

#include <pthread.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t lock; /* guards the two numbers, and is held for no longer than that */
    pthread_cond_t  moved;
    uint64_t        next, now; /* the number that the next thread draws, and the one whose turn it is */
} turns;

void turns_open(turns *t);
void turns_close(turns *t);
void turns_enter(turns *t); /* not twice by one thread */
void turns_leave(turns *t);

#endif
#endif
