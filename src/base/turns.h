/* A lock with two queues: long turns and short ones. Within a queue, threads get it in the order in which they asked for it.
 *
 * A thread that calls in a loop asks again right after it has released the lock. With a plain mutex it would usually win
 * against threads that sleep; here it queues behind them. After a long turn, every short one that waits by then comes before the
 * next long one. So a short turn waits for at most one long one, and a long turn for at most the short ones that waited when the
 * long one before it ended: neither kind keeps the other out. In WebAssembly an engine has one thread, so the lock does nothing. */

#ifndef GM_TURNS_H
#define GM_TURNS_H

typedef enum { TURN_LONG, TURN_SHORT } turn_kind;

#ifdef __wasm__

typedef struct {
    char unused;
} turns;

static inline void turns_open(turns *t) { (void)t; }
static inline void turns_close(turns *t) { (void)t; }
static inline void turns_enter(turns *t, turn_kind kind) { (void)t, (void)kind; }
static inline void turns_leave(turns *t) { (void)t; }

#else

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t lock; /* guards the rest, and is held for no longer than that */
    pthread_cond_t  moved;
    uint64_t  next[2], now[2]; /* of each queue: the number that the next thread draws, and the one that is first */
    uint64_t  before;          /* short turns that come before the next long one */
    bool      taken;
    turn_kind kind; /* of the turn that is taken */
} turns;

void turns_open(turns *t);
void turns_close(turns *t);
void turns_enter(turns *t, turn_kind kind); /* not twice by one thread */
void turns_leave(turns *t);

#endif
#endif
