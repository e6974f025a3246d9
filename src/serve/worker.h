/* The engine's thread and its queue. It answers several requests at once, which it polls in turn; a limited number of others wait.
 * No other thread touches the engine: the HTTP thread submits jobs, suspends the connection, and reads bytes from the job. */

#ifndef GM_SERVE_WORKER_H
#define GM_SERVE_WORKER_H

#include "serve/chat_request.h"
#include "serve/metrics.h"
#include "serve/transcription_request.h"

#include <stdio.h>

enum { SERVE_MOST_PARALLEL = 32, SERVE_MOST_ADAPTERS = 32 };

/* An adapter that requests can name. Only when the model is open is it known whether it fits; if it does not, requests that name
 * it fail, and others do not. */
typedef struct {
    const char *name, *path;
    float       scale;
} served_adapter;

typedef struct {
    gm_engine_options     engine; /* strings must outlive the worker; without a model, every request is refused */
    gm_session_options    session;
    const char           *name; /* the model's name in requests */
    const char           *file; /* its path */
    const served_adapter *adapters;
    size_t                adapter_count; /* at most SERVE_MOST_ADAPTERS */
    size_t                parallel;      /* how many jobs are answered at once, 1 to SERVE_MOST_PARALLEL */
    size_t                waiting;       /* how many others may wait */
    metrics              *numbers;       /* what is counted */
    bool                  preload;       /* open the model at once instead of with the first request */
    FILE                 *log;           /* NULL: none */
    FILE                 *notices;       /* where it says which device --backend auto took, and why; NULL: nowhere */
} worker_options;

typedef struct worker worker;
typedef struct job    job;

gm_status worker_start(const worker_options *options, worker **out, error *e);
/* With `preload`: GM_AGAIN until the model is open, then GM_OK or the reason why it cannot be opened. Otherwise GM_OK. */
gm_status worker_ready(worker *w, error *e);
/* How many answers are being written, and how many requests wait. */
void worker_load(worker *w, size_t *running, size_t *waiting);
/* Ends the running jobs within one step, refuses the waiting ones, wakes all connections. */
void worker_stop(worker *w);
void worker_free(worker *w); /* stops first; all jobs must have been left */

typedef struct {
    enum { JOB_CHAT, JOB_TRANSCRIPTION } kind;
    chat_request          chat;          /* one of the two */
    transcription_request transcription; /* */
} job_request;                           /* zero-initialise */

const char *job_request_model(const job_request *r); /* NULL: any */
/* The adapters in the name of a model in a request, NAME+ADAPTER+…, a bit for each. False: it is not a model of ours. */
bool worker_find_model(const worker_options *o, const char *wanted, uint32_t *adapters);
void job_request_free(job_request *r);

/* How a connection is suspended and resumed. Both are called with the worker's lock held, so that no wake-up is lost. */
typedef struct {
    void (*sleep)(void *who);
    void (*wake)(void *who);
    void *who;
    int   socket; /* watched: a client that disconnects while waiting, or while its prompt is computed, cancels */
} job_client;

/* Takes over the request. GM_BUSY: the queue is full; GM_CANCELLED: the worker was stopped; or GM_NO_MEMORY. */
gm_status job_submit(worker *w, job_request *request, const job_client *client, job **out, error *e);
/* The HTTP status of the answer; 0: not known yet, and the connection has been suspended. */
unsigned job_status(job *j);
/* Copies up to `most` bytes out. 0: none yet, and the connection has been suspended; -1: the end. */
long job_read(job *j, char *to, size_t most);
bool job_streams(const job *j);
/* The media type of a whole answer that is no error. */
const char *job_type(const job *j);
/* The client has left or has everything. Cancels the job if it is not over. */
void job_leave(job *j);

#endif
