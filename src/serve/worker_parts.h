/* What the engine's thread and the kinds of its answers share. */

#ifndef GM_SERVE_WORKER_PARTS_H
#define GM_SERVE_WORKER_PARTS_H

#include "serve/worker.h"

#include <pthread.h>

/* The worker's lock protects everything from `client` on. */
struct job {
    worker     *owner;
    job_request request;
    bool        stream;
    job_client  client; /* socket -1: disconnected */
    job        *next;
    bool        asleep, gone, over;
    unsigned    status; /* HTTP status; 0: not known yet */
    buffer      out;
    size_t      sent;
    int         holders; /* references: the client's, and that of the queue or the thread */
};

struct worker {
    worker_options  options;
    pthread_t       thread;
    bool            started, stopping;
    gm_status       ready; /* result of preloading */
    error           problem;
    pthread_mutex_t lock;
    pthread_cond_t  news;
    job            *first, *running;
    size_t          waiting;

    /* Used only by the thread. */
    gm_engine  *engine;
    gm_session *session;
    double      watched; /* when the sockets were last polled */
};

/* Whether the client is still there and the server is not stopping. Ask between two steps. */
bool job_is_wanted(worker *w, const job *j);

/* Moves what was written to the client. The first call sets the status, which sends a stream's headers: until then, a
 * problem with the prompt can still be reported by the status. False: no memory. */
bool job_hand_over(worker *w, job *j, buffer *written);

/* Both run with the engine open, in its thread. */
gm_status worker_chat(worker *w, job *j, error *e);
gm_status worker_transcribe(worker *w, job *j, error *e);

#endif
