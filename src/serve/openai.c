/* OpenAI's endpoints: /v1/models; /v1/chat/completions and /v1/audio/transcriptions, which hand their requests to the engine's
 * thread; and errors for all the others. */

#include "serve/http.h"

#include "base/json.h"
#include "serve/chat_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- models ---- */

static void write_engine_model(const worker_options *o, const char *name, buffer *out) {
    struct stat   about;
    const int64_t created = stat(o->file, &about) ? 0 : (int64_t)about.st_mtim.tv_sec;
    buffer_text(out, "{\"id\":");
    json_write_string(out, str_of(name));
    buffer_printf(out, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"gemmule\"}", created);
}

enum MHD_Result answer_engine_models(request *r) {
    const worker_options *o = &r->server->options.worker;
    buffer                out = { 0 };
    buffer_text(&out, "{\"object\":\"list\",\"data\":[");
    if (o->engine.model) write_engine_model(o, o->name, &out);
    for (size_t i = 0; i < o->adapter_count && o->engine.model; i++) {
        buffer name = { 0 };
        buffer_printf(&name, "%s+%s", o->name, o->adapters[i].name);
        buffer_char(&out, ',');
        write_engine_model(o, name.failed ? "" : name.data, &out);
        out.failed |= name.failed;
        buffer_free(&name);
    }
    buffer_text(&out, "]}\n");
    return respond_json(r, 200, &out, NULL, 0);
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Undoes URL encoding: names have colons and slashes, which clients may encode or not. */
static void url_decode(const char *text, char *out, size_t size) {
    size_t n = 0;
    for (; *text && n + 1 < size; text++) {
        const int high = *text == '%' ? hex_digit(text[1]) : -1, low = high >= 0 ? hex_digit(text[2]) : -1;
        const int byte = low >= 0 ? high << 4 | low : 0; /* %00 stays: it would end the name */
        out[n++] = byte ? (char)byte : *text;
        if (byte) text += 2;
    }
    out[n] = 0;
}

static enum MHD_Result refuse_model(request *r, const char *wanted) {
    const worker_options *o = &r->server->options.worker;
    if (!o->engine.model) return respond_error(r, 404, "model_not_found", "model", NULL, "this server has no model");
    return respond_error(r, 404, "model_not_found", "model", NULL,
                         "this server does not have the model '%.200s', only '%.200s'%s", wanted, o->name,
                         o->adapter_count ? " and its adapters (/v1/models)" : "");
}

enum MHD_Result answer_engine_model(request *r) {
    const worker_options *o = &r->server->options.worker;
    buffer                out = { 0 };
    char                  name[1024];
    uint32_t              adapters;
    url_decode(r->path + strlen(r->route->path), name, sizeof name);
    if (!o->engine.model || !*name || !worker_find_model(o, name, &adapters)) return refuse_model(r, name);
    write_engine_model(o, name, &out);
    buffer_char(&out, '\n');
    return respond_json(r, 200, &out, NULL, 0);
}

/* ---- endpoints that are not there ---- */

/* What OpenAI has and this server lacks, by the first name below /v1. */
static const char *const missing_endpoints[] = {
    "assistants",    "audio",   "batches",     "chat/completions", "chatkit",  "completions", "containers",
    "conversations", "edits",   "embeddings",  "engines",          "evals",    "files",       "fine-tunes",
    "fine_tuning",   "images",  "moderations", "organization",     "projects", "realtime",    "responses",
    "skills",        "threads", "uploads",     "vector_stores",    "videos",
};

static bool is_missing_endpoint(const char *path) {
    const str rest = str_of(path);
    for (size_t i = 0; i < COUNT_OF(missing_endpoints); i++) {
        const size_t length = strlen(missing_endpoints[i]);
        if (str_starts_with(rest, missing_endpoints[i]) && (!path[length] || path[length] == '/')) return true;
    }
    return false;
}

enum MHD_Result answer_unknown_endpoint(request *r) {
    static const char here[] = "this server has /v1/chat/completions, /v1/audio/transcriptions and /v1/models";
    const char       *name = r->path + strlen("/v1");
    if (*name == '/' && is_missing_endpoint(name + 1)) {
        const header final = { "X-Should-Retry", "false" }; /* OpenAI's clients try again after any other 5xx */
        return respond_error(r, 501, "not_implemented", NULL, &final, "%.200s is not implemented; %s", r->path, here);
    }
    return respond_error(r, 404, "unknown_url", NULL, NULL, "unknown URL: %.40s %.200s; %s", r->method, r->path, here);
}

/* ---- waiting ---- */

static void suspend_connection(void *connection) { MHD_suspend_connection(connection); }
static void resume_connection(void *connection) { MHD_resume_connection(connection); }

/* ---- starting ---- */

static enum MHD_Result respond_failure(request *r, const error *e, const char *param) {
    const char *code = NULL;
    unsigned    status = http_status_of(e->status, &code);
    if (e->status == GM_BUSY) {
        return respond_error(r, 429, "queue_full", NULL, &(header){ "Retry-After", "2" },
                             "%s; this server writes %zu answers at once, and %zu more requests may wait", e->why,
                             r->server->options.worker.parallel, r->server->options.worker.waiting);
    }
    if (e->status == GM_BAD_FILE) status = 400, code = r->route->form ? "invalid_form" : "invalid_json";
    return respond_error(r, status, code, param, NULL, "%s", e->why);
}

static gm_status parse_request(request *r, job_request *out, char param[CHAT_PARAM_SIZE], error *e) {
    *out = (job_request){ .kind = r->route->form ? JOB_TRANSCRIPTION : JOB_CHAT };
    if (out->kind == JOB_CHAT) return chat_request_parse(&r->body, &out->chat, param, e);
    return transcription_request_parse(&r->body, r->head.content_type, &out->transcription, param, e);
}

static enum MHD_Result submit_job(request *r) {
    error            e = { 0 };
    char             param[CHAT_PARAM_SIZE];
    job_request      wanted;
    enum MHD_Result  result = MHD_YES;
    uint32_t         adapters;
    const job_client who = { .sleep = suspend_connection,
                             .wake = resume_connection,
                             .who = r->connection,
                             .socket = r->client ? r->client->socket : -1 };
    if (parse_request(r, &wanted, param, &e)) result = respond_failure(r, &e, param);
    else if (!worker_find_model(&r->server->options.worker, job_request_model(&wanted), &adapters))
        result = refuse_model(r, job_request_model(&wanted));
    else if (job_submit(r->server->worker, &wanted, &who, &r->job, &e)) result = respond_failure(r, &e, NULL);
    job_request_free(&wanted);
    return result;
}

/* ---- answering ---- */

static ssize_t stream_read(void *context, uint64_t position, char *to, size_t most) {
    (void)position;
    request   *r = context;
    const long n = job_read(r->job, to, most);
    return n < 0 ? MHD_CONTENT_READER_END_OF_STREAM : n;
}

static enum MHD_Result answer_stream(request *r) {
    const header headers[] = { { "Content-Type", "text/event-stream; charset=utf-8" },
                               { "Cache-Control", "no-store" },
                               { "Content-Security-Policy", bare_policy } };
    return respond(r, 200, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, stream_read, r, NULL), headers,
                   COUNT_OF(headers));
}

static enum MHD_Result answer_whole(request *r, unsigned status) {
    buffer out = { 0 };
    char   piece[4096];
    long   n;
    while ((n = job_read(r->job, piece, sizeof piece)) > 0) buffer_append(&out, piece, (size_t)n);
    buffer_text(&out, ""); /* a transcript of silence may be empty */
    return respond_text(r, status, status == 200 ? job_type(r->job) : "application/json", &out, NULL, 0);
}

/* Called once the request is complete, and again each time the connection wakes up before the answer has begun. */
enum MHD_Result answer_generated(request *r) {
    if (!r->job) {
        const enum MHD_Result result = submit_job(r);
        if (!r->job) return result;
    }
    const unsigned status = job_status(r->job);
    if (!status) return MHD_YES; /* asleep */
    return status == 200 && job_streams(r->job) ? answer_stream(r) : answer_whole(r, status);
}
