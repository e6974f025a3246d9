#include "base/turns.h"

#ifndef __wasm__

void turns_open(turns *t) {
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->moved, NULL);
    t->next = t->now = 0;
}

void turns_close(turns *t) {
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->moved);
}

void turns_enter(turns *t) {
    pthread_mutex_lock(&t->lock);
    const uint64_t mine = t->next++;
    while (t->now != mine) pthread_cond_wait(&t->moved, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void turns_leave(turns *t) {
    pthread_mutex_lock(&t->lock);
    t->now++;
    if (t->now != t->next) pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

#endif
