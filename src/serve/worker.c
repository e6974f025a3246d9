#include "serve/worker_parts.h"

#include "base/clock.h"
#include "session/serving.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static bool job_request_streams(const job_request *r) {
    return r->kind == JOB_CHAT ? r->chat.stream : r->transcription.stream;
}

const char *job_request_model(const job_request *r) {
    return r->kind == JOB_CHAT ? r->chat.model : r->transcription.model;
}

bool worker_find_model(const worker_options *o, const char *wanted, uint32_t *adapters) {
    const size_t length = strlen(o->name);
    *adapters = 0;
    if (!wanted || !*wanted || !o->engine.model) return true;
    if (strncmp(wanted, o->name, length) || (wanted[length] && wanted[length] != '+')) return false;
    for (const char *at = wanted + length; *at;) {
        const size_t n = strcspn(++at, "+");
        size_t       i = 0;
        while (i < o->adapter_count && !str_is((str){ at, n }, o->adapters[i].name)) i++;
        if (i == o->adapter_count) return false;
        *adapters |= UINT32_C(1) << i;
        at += n;
    }
    return true;
}

void job_request_free(job_request *r) {
    chat_request_free(&r->chat);
    transcription_request_free(&r->transcription);
}

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
    job_request_free(&j->request);
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

enum { MOST_WATCHED = 128 };

/* Polls the sockets of the running and the waiting jobs. libmicrohttpd does not poll suspended connections, so it would not
 * notice. A client that has closed its side counts as gone: nobody is left to read the answer. */
static void queue_drop_disconnected(worker *w) {
    struct pollfd sockets[MOST_WATCHED];
    job          *jobs[MOST_WATCHED];
    nfds_t        count = 0;
    for (size_t i = 0; i < w->options.parallel; i++) {
        if (w->running[i]) jobs[count++] = w->running[i];
    }
    const nfds_t running = count;
    for (job *j = w->first; j && count < MOST_WATCHED; j = j->next) jobs[count++] = j;
    for (nfds_t i = 0; i < count; i++)
        sockets[i] = (struct pollfd){ .fd = jobs[i]->client.socket, .events = POLLRDHUP };
    if (poll(sockets, count, 0) <= 0) return;
    for (nfds_t i = 0; i < count; i++) {
        if (!(sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) continue;
        jobs[i]->gone = true;
        if (i < running) continue; /* the thread ends it */
        job_fail(jobs[i], 503, "cancelled", "the client disconnected");
        if (queue_remove(w, jobs[i])) job_drop(jobs[i], 1);
    }
}

static bool queue_is_full(const worker *w) { return w->waiting >= w->options.waiting + w->options.parallel - w->count; }

/* ---- the client's side ---- */

gm_status job_submit(worker *w, job_request *request, const job_client *client, job **out, error *e) {
    job *j = calloc(1, sizeof *j);
    if (!j) return fail_memory(e, "a request", sizeof *j);
    *j = (job){
        .owner = w, .stream = job_request_streams(request), .asked = clock_seconds(), .client = *client, .holders = 2
    };
    pthread_mutex_lock(&w->lock);
    if (queue_is_full(w)) queue_drop_disconnected(w); /* the thread looks only between two steps */
    const bool full = queue_is_full(w);
    if (!w->stopping && !full) {
        job **last = &w->first;
        while (*last) last = &(*last)->next;
        *last = j;
        w->waiting++;
        metrics_load(w->options.numbers, w->count, w->waiting);
        j->request = *request;
        *request = (job_request){ 0 };
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

const char *job_type(const job *j) {
    return j->request.kind == JOB_CHAT ? "application/json" : transcription_type(j->request.transcription.format);
}

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

/* ---- the thread: the engine and its sessions ---- */

static void close_engine(worker *w) {
    for (size_t i = 0; i < SERVE_MOST_PARALLEL; i++) {
        gm_session_free(w->places[i].session);
        w->places[i] = (place){ 0 };
    }
    for (size_t i = 0; i < w->options.adapter_count; i++) {
        gm_adapter_free(w->adapters[i].loaded);
        w->adapters[i].loaded = NULL;
    }
    gm_engine_close(w->engine);
    w->engine = NULL;
    w->lost = false;
}

static gm_status worker_open_session(worker *w, place *p, error *e) {
    char            why[sizeof e->why] = "";
    const gm_status status = gm_session_new(w->engine, &w->options.session, &p->session, why, sizeof why);
    return status ? fail(e, status, "%s", why) : GM_OK;
}

/* The model goes on without an adapter that cannot be loaded. */
static void worker_load_adapters(worker *w) {
    for (size_t i = 0; i < w->options.adapter_count; i++) {
        const served_adapter *a = &w->options.adapters[i];
        char                  why[sizeof w->adapters[i].problem.why] = "";
        w->adapters[i].problem = (error){ 0 };
        const gm_status status = gm_adapter_load(w->engine, a->path, &w->adapters[i].loaded, why, sizeof why);
        if (!status) continue;
        fail(&w->adapters[i].problem, status, "the adapter '%s' cannot be used: %s", a->name, why);
        if (w->options.notices) fprintf(w->options.notices, "gemmule: %s\n", w->adapters[i].problem.why);
    }
}

/* A session that changes its adapters would lose its keys and values. Closed, it keeps them as long as there is room, and a session with
 * the same adapters goes on from there. */
static gm_status place_use_adapters(worker *w, place *p, uint32_t adapters, error *e) {
    gm_adapter *used[SERVE_MOST_ADAPTERS];
    float       scales[SERVE_MOST_ADAPTERS];
    size_t      count = 0;
    char        why[sizeof e->why] = "";
    if (p->adapters == adapters) return GM_OK;
    for (size_t i = 0; i < w->options.adapter_count; i++) {
        if (!(adapters >> i & 1)) continue;
        if (!w->adapters[i].loaded) return fail(e, GM_NOT_FOUND, "%s", w->adapters[i].problem.why);
        used[count] = w->adapters[i].loaded;
        scales[count++] = w->options.adapters[i].scale;
    }
    if (gm_session_tokens(p->session, NULL)) {
        gm_session_free(p->session);
        *p = (place){ .used = p->used };
        TRY(worker_open_session(w, p, e));
    }
    const gm_status status = gm_session_adapters(p->session, used, scales, count, why, sizeof why);
    if (status) return fail(e, status, "%s", why);
    p->adapters = adapters;
    return GM_OK;
}

gm_status worker_open_engine(worker *w, error *e) {
    char           why[sizeof e->why] = "";
    gm_engine_info info;
    if (!w->options.engine.model)
        return fail(e, GM_NOT_FOUND, "this server has no model; name one with `gemmule serve MODEL`");
    if (!w->engine) {
        const gm_status status = gm_engine_open(&w->options.engine, &w->engine, why, sizeof why);
        if (status) return fail(e, status, "%s", why);
        gm_engine_get_info(w->engine, &info);
        FILE *to = w->options.log ? w->options.log : *info.why_device ? w->options.notices : NULL;
        if (to)
            fprintf(to, "gemmule: opened %s on %s%s%s%s%s\n", w->options.name, info.device,
                    *info.why_device ? ": " : "", info.why_device, *info.note ? "; " : "", info.note);
        worker_load_adapters(w);
    }
    return w->places[0].session ? GM_OK : worker_open_session(w, &w->places[0], e);
}

static bool worker_is_open(const worker *w) { return w->engine && w->places[0].session; }

/* How well a free place suits; the highest wins. */
static int place_rank(const worker *w, const place *p, bool fresh, uint32_t adapters) {
    const bool single =
        w->options.engine.gpu_memory != 0; /* the plan has room for the keys and values of one session */
    if (fresh && !single) return p->session ? 0 : 1;
    if (p->session && p->adapters == adapters) return 3;
    return !p->session ? 1 : single ? 2 : 0;
}

place *worker_take_place(worker *w, bool fresh, uint32_t adapters, error *e) {
    place *found = NULL;
    int    best = -1;
    for (size_t i = 0; i < w->options.parallel; i++) {
        place *p = &w->places[i];
        if (p->taken) continue;
        const int  rank = place_rank(w, p, fresh, adapters);
        const bool rather = found && (rank == 3 ? p->used > found->used : p->used < found->used);
        if (rank < best || (rank == best && !rather)) continue;
        best = rank;
        found = p;
    }
    if (!found) { /* there are as many as jobs that run */
        fail(e, GM_BUSY, "all sessions are in use");
        return NULL;
    }
    if (!found->session && worker_open_session(w, found, e)) return NULL;
    return place_use_adapters(w, found, adapters, e) ? NULL : found;
}

void place_occupy(worker *w, place *p) {
    p->taken = true;
    p->used = ++w->requests;
}

/* ---- the thread: answers ---- */

/* Whether the client is still there and the server is not stopping. */
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

/* Moves what was written to the client. The first call sets the status, which sends a stream's headers: until then, a
 * problem with the prompt can still be reported by the status. */
static gm_status job_hand_over(worker *w, job *j, error *e) {
    buffer *written = &j->work.out;
    pthread_mutex_lock(&w->lock);
    if (!j->status && j->stream) j->status = 200;
    buffer_str(&j->out, buffer_view(written));
    const bool fine = !j->out.failed;
    if (j->stream) job_wake(j);
    pthread_mutex_unlock(&w->lock);
    if (!fine) return fail_memory(e, "the answer", written->length);
    buffer_clear(written);
    return GM_OK;
}

static gm_status job_start(worker *w, job *j, error *e) {
    if (!job_is_wanted(w, j)) return fail(e, GM_CANCELLED, "the client disconnected");
    TRY(worker_open_engine(w, e));
    (void)worker_find_model(&w->options, job_request_model(&j->request), &j->work.adapters); /* it was asked before */
    TRY(j->request.kind == JOB_CHAT ? worker_chat_start(w, j, e) : worker_transcribe_start(w, j, e));
    return GM_OK;
}

/* What the next step decodes; NULL: it is a step of a reply. */
static const sound_decoder *job_decoder(const job *j) {
    return j->request.kind == JOB_CHAT ? j->work.decoder : j->work.heard.decoder;
}

/* Whether a step could only wait for another program. */
static bool job_waits(const job *j) {
    const sound_decoder *decoder = job_decoder(j);
    return decoder && sound_decoder_waits(decoder);
}

static bool worker_waits(const worker *w) {
    for (size_t i = 0; i < w->options.parallel; i++) {
        if (w->running[i] && !job_waits(w->running[i])) return false;
    }
    return true;
}

/* GM_AGAIN, GM_DONE, or why it ended. `skips`: only if nobody wants it. */
static gm_status job_advance(worker *w, job *j, bool skips, error *e) {
    if (!job_is_wanted(w, j)) return fail(e, GM_CANCELLED, "the client disconnected");
    if (skips) return GM_AGAIN;
    const bool      decodes = job_decoder(j) != NULL;
    const gm_status status = j->request.kind == JOB_CHAT ? worker_chat_step(w, j, e) : worker_transcribe_step(w, j, e);
    if (status != GM_AGAIN && status != GM_DONE) return status;
    if (decodes) return status; /* not a step of the reply, which may still refuse the prompt */
    if (j->work.out.length || !j->work.begun) TRY(job_hand_over(w, j, e));
    j->work.begun = true;
    return status;
}

static void worker_tell_load(worker *w) {
    metrics_load(w->options.numbers, w->count, w->waiting);
    size_t held = 0, capacity = 0;
    if (w->engine) engine_cache_use(w->engine, &held, &capacity);
    metrics_cache(w->options.numbers, held, capacity);
    gm_engine_info info = { 0 };
    if (w->engine) gm_engine_get_info(w->engine, &info);
    metrics_experts(w->options.numbers, info.expert_uses, info.expert_misses, info.expert_bytes);
}

/* `was_open`: the engine, when the job started. */
static void job_end(worker *w, size_t slot, gm_status status, bool was_open, const error *e) {
    job        *j = w->running[slot];
    const char *code = NULL;
    unsigned    http = status == GM_DONE ? 200 : http_status_of(status, &code);
    if (http != 200 && !was_open && !worker_is_open(w) && status != GM_CANCELLED) { /* not the request's fault */
        http = 503;
        code = "model_unavailable";
    }
    if (j->request.kind == JOB_CHAT) worker_chat_end(w, j);
    else worker_transcribe_end(w, j);
    buffer_free(&j->work.out);
    if (j->work.at) j->work.at->taken = false;
    w->lost = w->lost || status == GM_DEVICE_LOST;
    pthread_mutex_lock(&w->lock);
    w->running[slot] = NULL;
    w->count--;
    worker_tell_load(w);
    if (!j->status && http == 200) j->status = 200;
    if (status == GM_CANCELLED && w->stopping) job_fail(j, 503, "stopping", "the server is stopping");
    else if (http != 200) job_fail(j, http, code, e->why);
    j->over = true;
    job_wake(j);
    job_drop(j, 1);
    pthread_mutex_unlock(&w->lock);
}

static void job_turn(worker *w, size_t slot, bool skips) {
    error           e = { 0 };
    const gm_status status = job_advance(w, w->running[slot], skips, &e);
    if (status != GM_AGAIN) job_end(w, slot, status, true, &e);
}

/* Every answer that is being written gets a token, which one run computes for all; then one of the prompts has a turn. So a prompt
 * delays an answer by one turn, however many prompts there are. One that waits for another program has no turn, unless all do. */
static void worker_round(worker *w) {
    for (size_t i = 0; i < w->options.parallel; i++) {
        if (w->running[i] && w->running[i]->work.writes) job_turn(w, i, false);
    }
    const bool idle = worker_waits(w);
    for (size_t k = 1; k <= w->options.parallel; k++) {
        const size_t i = (w->turn + k) % w->options.parallel;
        if (!w->running[i] || w->running[i]->work.writes) continue;
        const bool skips = !idle && job_waits(w->running[i]);
        job_turn(w, i, skips);
        if (skips) continue;
        w->turn = i;
        return;
    }
}

/* Takes the next job from the queue into a slot, if both are there. Call with the lock held. */
static job *worker_take_job(worker *w, size_t *slot) {
    job *j = w->stopping || w->lost ? NULL : w->first;
    *slot = 0;
    while (*slot < w->options.parallel && w->running[*slot]) ++*slot;
    if (!j || *slot == w->options.parallel) return NULL;
    w->first = j->next;
    w->waiting--;
    w->running[*slot] = j;
    w->count++;
    return j;
}

static void worker_start_jobs(worker *w) {
    for (;;) {
        size_t slot;
        error  e = { 0 };
        pthread_mutex_lock(&w->lock);
        job *j = worker_take_job(w, &slot);
        worker_tell_load(w);
        const size_t waiting = w->waiting;
        pthread_mutex_unlock(&w->lock);
        if (!j) return;
        if (w->options.log) fprintf(w->options.log, "gemmule: answering; %zu waiting\n", waiting);
        const bool      was_open = worker_is_open(w);
        const gm_status status = job_start(w, j, &e);
        if (status) job_end(w, slot, status, was_open, &e);
    }
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
    for (bool over = false; !over;) {
        pthread_mutex_lock(&w->lock);
        while (!w->stopping && !w->first && !w->count) pthread_cond_wait(&w->news, &w->lock);
        over = w->stopping && !w->count;
        pthread_mutex_unlock(&w->lock);
        if (w->lost && !w->count) close_engine(w); /* the next request reopens it */
        worker_start_jobs(w);
        worker_round(w);
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
    w->options.waiting = min_size(w->options.waiting, MOST_WATCHED - SERVE_MOST_PARALLEL);
    w->options.parallel = min_size(max_size(w->options.parallel, 1), SERVE_MOST_PARALLEL);
    options->numbers->places = w->options.parallel;
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

void worker_load(worker *w, size_t *running, size_t *waiting) {
    pthread_mutex_lock(&w->lock);
    *running = w->count;
    *waiting = w->waiting;
    pthread_mutex_unlock(&w->lock);
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
