/* What the engine's thread and the kinds of its answers share. */

#ifndef GM_SERVE_WORKER_PARTS_H
#define GM_SERVE_WORKER_PARTS_H

#include "serve/chat_answer.h"
#include "serve/transcription_answer.h"
#include "serve/worker.h"

#include <pthread.h>

/* A session for answers, one at a time. */
typedef struct {
    gm_session *session;  /* NULL: not opened yet */
    uint32_t    adapters; /* that it uses: a bit for each of the options' */
    bool        taken;
    uint64_t    used; /* counts requests: when it was last taken */
} place;

/* A sound of a request that was decoded before its reply starts. */
typedef struct heard_sound heard_sound;
struct heard_sound {
    sound        sound;
    heard_sound *next;
};

struct job {
    worker     *owner;
    job_request request;
    bool        stream;
    double      asked; /* when the request came */

    /* Used only by the thread, while it answers. */
    struct {
        place               *at;       /* NULL: sounds are decoded first */
        uint32_t             adapters; /* as in a place */
        gm_reply            *reply;    /* of a chat */
        sound_decoder       *decoder;  /* of the sound of a chat that is being decoded */
        gm_part             *part;     /* its part in the request */
        heard_sound         *sounds;
        chat_answer          chat;
        transcript           heard; /* of a transcription */
        transcription_answer transcription;
        buffer               out;
        bool                 begun;  /* a step of the reply was made */
        bool                 writes; /* a token was written */
        size_t               tokens;
        double               last; /* when the last one was */
    } work;

    /* The worker's lock protects everything below. */
    job_client client; /* socket -1: disconnected */
    job       *next;
    bool       asleep, gone, over;
    unsigned   status; /* HTTP status; 0: not known yet */
    buffer     out;
    size_t     sent;
    int        holders; /* references: the client's, and that of the queue or the thread */
};

struct worker {
    worker_options  options;
    pthread_t       thread;
    bool            started, stopping;
    gm_status       ready; /* result of preloading */
    error           problem;
    pthread_mutex_t lock;
    pthread_cond_t  news;
    job            *first;
    size_t          waiting;
    job            *running[SERVE_MOST_PARALLEL]; /* NULL: a free place; only the thread changes them */
    size_t          count;                        /* of those that run */

    /* Used only by the thread. */
    gm_engine *engine;
    struct {
        gm_adapter *loaded; /* NULL: it could not be loaded */
        error       problem;
    } adapters[SERVE_MOST_ADAPTERS];
    place    places[SERVE_MOST_PARALLEL];
    uint64_t requests;
    size_t   turn;    /* which of those with a prompt to compute had the last turn */
    bool     lost;    /* the GPU was lost: the engine is opened anew when nobody uses it */
    double   watched; /* when the sockets were last polled */
};

/* Opens the engine and the session of the first place, unless they are open. */
gm_status worker_open_engine(worker *w, error *e);

/* A free place with its session, which uses these adapters: if `fresh`, one without a session yet, which is opened, or else the one
 * used longest ago; otherwise the one used last with these adapters, if there is one. NULL on failure: a free place may have lost its
 * session then. */
place *worker_take_place(worker *w, bool fresh, uint32_t adapters, error *e);

/* Until the job ends, nobody else takes it. */
void place_occupy(worker *w, place *p);

/* For each kind: start finds a place and begins, with the engine open; a chat whose sounds another program decodes begins in a later
 * step. A step returns GM_AGAIN until all is written to work.out, and then GM_DONE. The end comes after both, also if they failed. */
gm_status worker_chat_start(worker *w, job *j, error *e);
gm_status worker_chat_step(worker *w, job *j, error *e);
void      worker_chat_end(worker *w, job *j);
gm_status worker_transcribe_start(worker *w, job *j, error *e);
gm_status worker_transcribe_step(worker *w, job *j, error *e);
void      worker_transcribe_end(worker *w, job *j);

#endif
