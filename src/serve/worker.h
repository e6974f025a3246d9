/* The engine's own thread, and the queue before it. One request is answered at a time; the others wait, as many as there is
 * room for. Nobody else touches the engine: HTTP's thread hands jobs in, sleeps, and takes bytes out. */

#ifndef GM_SERVE_WORKER_H
#define GM_SERVE_WORKER_H

#include "serve/chat_request.h"

#include <stdio.h>

typedef struct {
    gm_engine_options  engine; /* its strings must outlive the worker; no model: every request is refused */
    gm_session_options session;
    const char        *name;    /* what the model is called in requests */
    const char        *file;    /* where it lies */
    size_t             waiting; /* most jobs that wait */
    bool               preload; /* open the model at once, not with the first request */
    FILE              *log;     /* NULL: none */
} worker_options;

typedef struct worker worker;
typedef struct job    job;

gm_status worker_start(const worker_options *options, worker **out, error *e);
/* With `preload`: GM_AGAIN until the model is open, or why it cannot be opened. Else GM_OK. */
gm_status worker_ready(worker *w, error *e);
/* Ends what is running within a step, refuses what waits, wakes everybody. */
void worker_stop(worker *w);
void worker_free(worker *w); /* after its jobs; stops first */

/* How a connection waits: both are called with the worker's lock held, so that no waking is lost. */
typedef struct {
    void (*sleep)(void *who);
    void (*wake)(void *who);
    void *who;
    int   socket; /* watched: a client that leaves while it waits, or while its prompt is computed, cancels */
} job_client;

/* The request is taken over. NULL with GM_BUSY when the queue is full, with GM_CANCELLED when the worker was stopped, or
 * with GM_NO_MEMORY. */
gm_status job_submit(worker *w, chat_request *request, const job_client *client, job **out, error *e);
/* The HTTP status of the answer; 0 while it is not known: then the client was put to sleep. */
unsigned job_status(job *j);
/* Copies out what there is, at most `most` bytes: 0 after the client was put to sleep, -1 at the end. */
long job_read(job *j, char *to, size_t most);
bool job_streams(const job *j);
/* The client is gone, or has everything: cancels if the job is not over. */
void job_leave(job *j);

#endif
