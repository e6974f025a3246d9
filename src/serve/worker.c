#include "serve/worker.h"

#include "base/clock.h"
#include "serve/chat_answer.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The worker's lock protects everything from `client` on. */
struct job {
    worker      *owner;
    chat_request request;
    bool         stream;
    job_client   client; /* socket -1: disconnected */
    job         *next;
    bool         asleep, gone, over;
    unsigned     status; /* HTTP status; 0: not known yet */
    buffer       out;
    size_t       sent;
    int          holders; /* references: the client's, and that of the queue or the thread */
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

/* ---- jobs; call with the lock held ---- */

static void job_wake(job *j) {
    if (j->asleep) j->client.wake(j->client.who);
    j->asleep = false;
}

static void job_sleep(job *j) {
    if (j->asleep) return;
    j->asleep = true;
    j->client.sleep(j->client.who);
}

static void job_drop(job *j, int holds) {
    j->holders -= holds;
    if (j->holders) return;
    chat_request_free(&j->request);
    buffer_free(&j->out);
    free(j);
}

/* A stream that has begun gets the error as its last event; other answers have not begun, and become the error. */
static void job_fail(job *j, unsigned status, const char *code, const char *message) {
    if (j->over) return;
    if (j->status && j->stream) buffer_text(&j->out, "data: ");
    write_error(&j->out, status, code, NULL, message);
    if (j->status && j->stream) buffer_char(&j->out, '\n');
    if (!j->status) j->status = status;
    j->over = true;
    job_wake(j);
}

/* Removes the job from the queue; true if it was there, and then the caller drops the queue's reference. */
static bool queue_remove(worker *w, const job *j) {
    for (job **at = &w->first; *at; at = &(*at)->next) {
        if (*at != j) continue;
        *at = j->next;
        w->waiting--;
        return true;
    }
    return false;
}

/* ---- disconnected clients; call with the lock held ---- */

enum { MOST_WATCHED = 64 };

/* Polls the sockets of the running and the waiting jobs. libmicrohttpd does not poll suspended connections, so it would not
 * notice. A client that has closed its side counts as gone: nobody is left to read the answer. */
static void queue_drop_disconnected(worker *w) {
    struct pollfd sockets[MOST_WATCHED];
    job          *jobs[MOST_WATCHED];
    nfds_t        count = 0;
    if (w->running) jobs[count++] = w->running;
    for (job *j = w->first; j && count < MOST_WATCHED; j = j->next) jobs[count++] = j;
    for (nfds_t i = 0; i < count; i++)
        sockets[i] = (struct pollfd){ .fd = jobs[i]->client.socket, .events = POLLRDHUP };
    if (poll(sockets, count, 0) <= 0) return;
    for (nfds_t i = 0; i < count; i++) {
        if (!(sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) continue;
        jobs[i]->gone = true;
        if (jobs[i] == w->running) continue;
        job_fail(jobs[i], 503, "cancelled", "the client disconnected");
        if (queue_remove(w, jobs[i])) job_drop(jobs[i], 1);
    }
}

static bool queue_is_full(const worker *w) { return w->waiting >= w->options.waiting + !w->running; }

/* ---- the client's side ---- */

gm_status job_submit(worker *w, chat_request *request, const job_client *client, job **out, error *e) {
    job *j = calloc(1, sizeof *j);
    if (!j) return fail_memory(e, "a request", sizeof *j);
    *j = (job){ .owner = w, .stream = request->stream, .client = *client, .holders = 2 };
    pthread_mutex_lock(&w->lock);
    if (queue_is_full(w)) queue_drop_disconnected(w); /* the thread looks only between two steps */
    const bool full = queue_is_full(w);
    if (!w->stopping && !full) {
        job **last = &w->first;
        while (*last) last = &(*last)->next;
        *last = j;
        w->waiting++;
        j->request = *request;
        *request = (chat_request){ 0 };
        pthread_cond_signal(&w->news);
    }
    const gm_status status = w->stopping ? GM_CANCELLED : full ? GM_BUSY : GM_OK;
    pthread_mutex_unlock(&w->lock);
    if (!status) {
        *out = j;
        return GM_OK;
    }
    free(j);
    return fail(e, status, "%s", status == GM_BUSY ? "too many requests are waiting" : "the server is stopping");
}

bool job_streams(const job *j) { return j->stream; }

unsigned job_status(job *j) {
    worker *w = j->owner;
    pthread_mutex_lock(&w->lock);
    const unsigned status = j->status;
    if (!status) job_sleep(j);
    pthread_mutex_unlock(&w->lock);
    return status;
}

long job_read(job *j, char *to, size_t most) {
    worker *w = j->owner;
    long    got = -1;
    pthread_mutex_lock(&w->lock);
    if (j->sent < j->out.length) {
        const size_t n = min_size(most, j->out.length - j->sent);
        memcpy(to, j->out.data + j->sent, n);
        j->sent += n;
        got = (long)n;
        if (j->sent == j->out.length) {
            buffer_clear(&j->out);
            j->sent = 0;
        }
    } else if (!j->over) {
        job_sleep(j);
        got = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return got;
}

void job_leave(job *j) {
    worker *w = j->owner;
    pthread_mutex_lock(&w->lock);
    j->gone = true;
    j->asleep = false;
    j->client.socket = -1;
    job_drop(j, queue_remove(w, j) ? 2 : 1);
    pthread_mutex_unlock(&w->lock);
}

/* ---- the thread: an answer ---- */

static bool job_is_wanted(worker *w, const job *j) {
    const double now = clock_seconds();
    pthread_mutex_lock(&w->lock);
    if (now - w->watched >= 0.02) {
        queue_drop_disconnected(w);
        w->watched = now;
    }
    const bool wanted = !w->stopping && !j->gone;
    pthread_mutex_unlock(&w->lock);
    return wanted;
}

static void close_engine(worker *w) {
    gm_session_free(w->session);
    gm_engine_close(w->engine);
    w->session = NULL;
    w->engine = NULL;
}

static gm_status worker_open_engine(worker *w, error *e) {
    char           why[sizeof e->why] = "";
    gm_engine_info info;
    gm_status      status = GM_OK;
    if (!w->options.engine.model)
        return fail(e, GM_NOT_FOUND, "this server has no model; name one with `gemmule serve MODEL`");
    if (!w->engine) {
        status = gm_engine_open(&w->options.engine, &w->engine, why, sizeof why);
        if (status) return fail(e, status, "%s", why);
        gm_engine_get_info(w->engine, &info);
        FILE *to = w->options.log ? w->options.log : *info.why_device ? w->options.notices : NULL;
        if (to)
            fprintf(to, "gemmule: opened %s on %s%s%s%s%s\n", w->options.name, info.device,
                    *info.why_device ? ": " : "", info.why_device, *info.note ? "; " : "", info.note);
    }
    if (!w->session) status = gm_session_new(w->engine, &w->options.session, &w->session, why, sizeof why);
    return status ? fail(e, status, "%s", why) : GM_OK;
}

static void wish_apply(float *field, wished_number wished) {
    if (wished.given) *field = wished.value;
}

static gm_status choose_sampling(const worker *w, const chat_request *r, gm_sampling *out, error *e) {
    gm_sampling_default(w->engine, out);
    wish_apply(&out->temperature, r->temperature);
    wish_apply(&out->top_p, r->top_p);
    wish_apply(&out->min_p, r->min_p);
    wish_apply(&out->typical_p, r->typical_p);
    wish_apply(&out->repetition_penalty, r->repetition_penalty);
    wish_apply(&out->presence_penalty, r->presence_penalty);
    wish_apply(&out->frequency_penalty, r->frequency_penalty);
    if (r->top_k.given) out->top_k = r->top_k.value < 0x1p31f ? (int32_t)r->top_k.value : INT32_MAX;
    if (r->penalty_window.given) out->penalty_window = (uint32_t)r->penalty_window.value;
    out->bias = r->bias;
    out->bias_count = r->bias_count;
    out->seed = r->seed;
    if (!r->has_seed && getrandom(&out->seed, sizeof out->seed, 0) != sizeof out->seed)
        return fail(e, GM_IO, "cannot draw a random seed");
    return GM_OK;
}

static gm_status worker_start_reply(worker *w, const chat_request *r, gm_reply **out, error *e) {
    gm_sampling sampling;
    char        why[sizeof e->why] = "";
    TRY(choose_sampling(w, r, &sampling, e));
    const gm_reply_options options = {
        .sampling = &sampling,
        .tools = r->tools,
        .think = r->think,
        .max_tokens = r->max_tokens,
        .stop = r->stops,
        .stop_count = r->stop_count,
        .logprobs = r->top_logprobs,
        .want_logprobs = r->logprobs,
    };
    const gm_status status = gm_reply_start(w->session, r->messages, r->message_count, &options, out, why, sizeof why);
    /* A bad file is here a picture or a sound of the client's, not ours. */
    return status ? fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", why) : GM_OK;
}

/* Moves what was written to the client. The first call sets the status, which sends a stream's headers: until then, a
 * problem with the prompt can still be reported by the status. */
static bool hand_over(worker *w, job *j, buffer *written) {
    pthread_mutex_lock(&w->lock);
    if (!j->status && j->stream) j->status = 200;
    buffer_str(&j->out, buffer_view(written));
    const bool fine = !j->out.failed;
    if (j->stream) job_wake(j);
    pthread_mutex_unlock(&w->lock);
    buffer_clear(written);
    return fine;
}

static gm_status worker_write_reply(worker *w, job *j, gm_reply *reply, chat_answer *a, buffer *out, error *e) {
    bool begun = false;
    while (job_is_wanted(w, j)) {
        gm_piece        piece = { 0 };
        char            why[sizeof e->why] = "";
        const gm_status status = gm_reply_next(reply, &piece, why, sizeof why);
        gm_reply_stats  stats;
        gm_reply_get_stats(reply, &stats);
        const bool full = status == GM_CONTEXT_FULL && stats.finish == GM_FINISH_LENGTH; /* truncated, but an answer */
        if (status != GM_OK && status != GM_AGAIN && status != GM_DONE && !full) return fail(e, status, "%s", why);
        if (!begun) chat_answer_begin(a, out);
        if (status == GM_OK) chat_answer_piece(a, &piece, out);
        if (status == GM_DONE || full) chat_answer_end(a, &stats, out);
        if (out->failed || chat_answer_failed(a)) return fail_memory(e, "the answer", out->length);
        if ((out->length || !begun) && !hand_over(w, j, out)) return fail_memory(e, "the answer", out->length);
        begun = true;
        if (status == GM_DONE || full) return GM_OK;
    }
    return fail(e, GM_CANCELLED, "the client disconnected"); /* freeing the reply ends the work for it */
}

static gm_status answer_job(worker *w, job *j, error *e) {
    gm_reply   *reply = NULL;
    chat_answer a;
    buffer      out = { 0 };
    if (!job_is_wanted(w, j)) return fail(e, GM_CANCELLED, "the client disconnected");
    TRY(worker_open_engine(w, e));
    TRY(worker_start_reply(w, &j->request, &reply, e));
    chat_answer_start(&a, &j->request, w->engine, w->options.name);
    const gm_status status = worker_write_reply(w, j, reply, &a, &out, e);
    chat_answer_free(&a);
    buffer_free(&out);
    gm_reply_free(reply);
    return status;
}

static void run_job(worker *w, job *j) {
    error           e = { 0 };
    const char     *code = NULL;
    const bool      loaded = w->engine && w->session;
    const gm_status status = answer_job(w, j, &e);
    const bool      unloadable = status && !loaded && !(w->engine && w->session);
    unsigned        http = status ? http_status_of(status, &code) : 200;
    if (unloadable && status != GM_CANCELLED) { /* not the request's fault */
        http = 503;
        code = "model_unavailable";
    }
    if (status == GM_DEVICE_LOST) close_engine(w); /* the next request reopens it */
    pthread_mutex_lock(&w->lock);
    if (!j->status && http == 200) j->status = 200;
    if (status == GM_CANCELLED && w->stopping) job_fail(j, 503, "stopping", "the server is stopping");
    else if (status) job_fail(j, http, code, e.why);
    j->over = true;
    job_wake(j);
    w->running = NULL;
    job_drop(j, 1);
    pthread_mutex_unlock(&w->lock);
}

static void *run_jobs(void *context) {
    worker *w = context;
    error   e = { 0 };
    if (w->options.preload) {
        const gm_status status = worker_open_engine(w, &e);
        pthread_mutex_lock(&w->lock);
        w->ready = status;
        w->problem = e;
        pthread_mutex_unlock(&w->lock);
    }
    for (;;) {
        pthread_mutex_lock(&w->lock);
        while (!w->stopping && !w->first) pthread_cond_wait(&w->news, &w->lock);
        job *j = w->stopping ? NULL : w->first;
        if (j) {
            w->first = j->next;
            w->waiting--;
            w->running = j;
        }
        const size_t waiting = w->waiting;
        pthread_mutex_unlock(&w->lock);
        if (!j) break;
        if (w->options.log) fprintf(w->options.log, "gemmule: answering; %zu waiting\n", waiting);
        run_job(w, j);
    }
    close_engine(w);
    return NULL;
}

/* ---- life ---- */

gm_status worker_start(const worker_options *options, worker **out, error *e) {
    worker *w = calloc(1, sizeof *w);
    if (!w) return fail_memory(e, "the engine's thread", sizeof *w);
    w->options = *options;
    w->ready = options->preload ? GM_AGAIN : GM_OK;
    if (w->options.waiting > MOST_WATCHED - 1) w->options.waiting = MOST_WATCHED - 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    const int problem = pthread_create(&w->thread, NULL, run_jobs, w);
    w->started = !problem;
    *out = w;
    return problem ? fail(e, GM_NO_MEMORY, "cannot start the engine's thread: %s", strerror(problem)) : GM_OK;
}

gm_status worker_ready(worker *w, error *e) {
    pthread_mutex_lock(&w->lock);
    const gm_status status = w->ready;
    if (status && status != GM_AGAIN) *e = w->problem;
    pthread_mutex_unlock(&w->lock);
    return status;
}

void worker_stop(worker *w) {
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    while (w->first) {
        job *j = w->first;
        job_fail(j, 503, "stopping", "the server is stopping");
        queue_remove(w, j);
        job_drop(j, 1);
    }
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    w->started = false;
}

void worker_free(worker *w) {
    if (!w) return;
    worker_stop(w);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->news);
    free(w);
}
