#include "base/turns.h"

#ifndef __wasm__

void turns_open(turns *t) {
    *t = (turns){ 0 };
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->moved, NULL);
}

void turns_close(turns *t) {
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->moved);
}

static uint64_t turns_waiting(const turns *t, turn_kind kind) { return t->next[kind] - t->now[kind]; }

/* Whose turn comes next, of those that wait. */
static turn_kind turns_choose(const turns *t) {
    if (!turns_waiting(t, TURN_LONG)) return TURN_SHORT;
    return t->before && turns_waiting(t, TURN_SHORT) ? TURN_SHORT : TURN_LONG;
}

void turns_enter(turns *t, turn_kind kind) {
    pthread_mutex_lock(&t->lock);
    const uint64_t mine = t->next[kind]++;
    while (t->taken || turns_choose(t) != kind || t->now[kind] != mine) pthread_cond_wait(&t->moved, &t->lock);
    t->now[kind]++;
    t->taken = true;
    t->kind = kind;
    if (kind == TURN_SHORT && t->before) t->before--;
    pthread_mutex_unlock(&t->lock);
}

void turns_leave(turns *t) {
    pthread_mutex_lock(&t->lock);
    t->taken = false;
    if (t->kind == TURN_LONG) t->before = turns_waiting(t, TURN_SHORT);
    if (turns_waiting(t, TURN_LONG) || turns_waiting(t, TURN_SHORT)) pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

#endif
