/* The server: from a connection to a route; starting and stopping. */

#include "serve/http.h"

#include "base/clock.h"
#include "serve/listen.h"
#include "serve/multipart.h"
#include "serve/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* The first match counts. */
static const route routes[] = {
    { "/v1/chat/completions", .post = true, .answer = answer_generated },
    { "/v1/audio/transcriptions", .post = true, .form = true, .answer = answer_generated },
    { "/v1/models", .answer = answer_engine_models },
    { "/v1/models/", .below = true, .answer = answer_engine_model },
    { "/v1", .any_method = true, .answer = answer_unknown_endpoint },
    { "/v1/", .below = true, .any_method = true, .answer = answer_unknown_endpoint },
    { "/health", .public_ = true, .answer = answer_health },
    { "/metrics", .answer = answer_metrics },
    { "/models", .answer = answer_models },
    { "/models/box.gguf", .answer = answer_box },
    { "/ollama/blobs/", .below = true, .answer = answer_blob },
    { "/", .below = true, .public_ = true, .answer = answer_app },
};

static const route *find_route(const char *path) {
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        if (routes[i].below ? str_starts_with(str_of(path), routes[i].path) : !strcmp(path, routes[i].path))
            return &routes[i];
    }
    return NULL;
}

/* ---- headers ---- */

#define HEAD(name, field) { name, offsetof(request_head, field) }
static const struct {
    const char *name;
    size_t      offset;
} head_fields[] = {
    HEAD("Host", host),
    HEAD("Origin", origin),
    HEAD("Sec-Fetch-Site", fetch_site),
    HEAD("Sec-Fetch-Mode", fetch_mode),
    HEAD("Sec-Fetch-Dest", fetch_dest),
    HEAD("Authorization", authorization),
    HEAD("Content-Type", content_type),
    HEAD("Content-Length", content_length),
    HEAD("Transfer-Encoding", transfer_encoding),
    HEAD("Expect", expect),
    HEAD("Range", range),
    HEAD("If-Range", if_range),
    HEAD("If-None-Match", if_none_match),
    HEAD("If-Modified-Since", if_modified_since),
    HEAD("Access-Control-Request-Method", wanted_method),
    HEAD("Access-Control-Request-Private-Network", private_network),
};

static enum MHD_Result note_header(void *context, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    request_head *head = context;
    for (size_t i = 0; i < COUNT_OF(head_fields); i++) {
        if (strcasecmp(name, head_fields[i].name) != 0) continue;
        const char **field = (const char **)(void *)((char *)head + head_fields[i].offset);
        if (*field) head->repeated = head_fields[i].name;
        else *field = value ? value : "";
    }
    return MHD_YES;
}

/* ---- a request ---- */

static bool is_reading(const char *method) { return !strcmp(method, "GET") || !strcmp(method, "HEAD"); }

static enum MHD_Result request_refuse(request *r, verdict v) {
    char location[1024];
    if (v.status == 308) {
        const int length = snprintf(location, sizeof location, "%s://%s%s", r->server->guards.scheme,
                                    r->server->guards.hosts[0], r->target);
        if (length < 0 || (size_t)length >= sizeof location)
            return respond_error(r, 414, "too_long", NULL, NULL, "the URL is too long");
        return respond_error(r, 308, v.code, NULL, &(header){ "Location", location }, "%s: %s", v.message, location);
    }
    const header challenge = { "WWW-Authenticate", "Bearer" };
    return respond_error(r, v.status, v.code, NULL, v.status == 401 ? &challenge : NULL, "%s", v.message);
}

static const char *allowed_methods(const route *to) {
    return to->any_method ? "GET, HEAD, POST, OPTIONS" : to->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

static bool is_allowed(const route *to, const char *method) {
    return to->any_method || (to->post ? !strcmp(method, "POST") : is_reading(method));
}

/* The allowed methods; an allowed foreign page also gets the headers of a preflight. */
static enum MHD_Result answer_options(request *r) {
    const char  *methods = allowed_methods(r->route);
    const bool   preflight = r->head.wanted_method && guards_foreign(&r->server->guards, &r->head);
    const header headers[] = {
        { "Allow", methods },
        { "Access-Control-Allow-Methods", preflight ? methods : NULL },
        { "Access-Control-Allow-Headers", preflight ? "Authorization, Content-Type, Range, If-Range" : NULL },
        { "Access-Control-Max-Age", preflight ? "600" : NULL },
        { "Access-Control-Allow-Private-Network", preflight && r->head.private_network ? "true" : NULL },
        { "Content-Security-Policy", bare_policy },
    };
    return respond_empty(r, 204, headers, COUNT_OF(headers));
}

static bool is_too_long(const char *content_length) {
    return content_length && strtoull(content_length, NULL, 10) > LARGEST_BODY;
}

/* Whether a body comes at once. A client that expects "100 Continue" waits for a word from us, and a body that is too long is not
 * read. */
static bool is_sending(const request_head *head) {
    if (head->expect || is_too_long(head->content_length)) return false;
    return head->transfer_encoding || (head->content_length && strcmp(head->content_length, "0") != 0);
}

/* Decides what the headers alone allow to refuse. The body is then thrown away: most clients read no answer while they send, and would
 * report a closed connection. */
static enum MHD_Result check_head(request *r) {
    server *s = r->server;
    if (r->target[0] != '/')
        return respond_error(r, 400, "bad_target", NULL, NULL,
                             "the request target must be a path that starts with a slash");
    r->route = find_route(r->path);
    const size_t length = strlen(r->path);
    const bool   page = r->route && r->route->answer == answer_app && is_reading(r->method) &&
                      (r->path[length - 1] == '/' || str_ends_with(str_of(r->path), ".html"));
    verdict v = guards_check(&s->guards, &r->head, page);
    if (v.status) return request_refuse(r, v);
    if (!r->route) return respond_error(r, 404, "not_found", NULL, NULL, "nothing here");
    if (!strcmp(r->method, "OPTIONS")) return answer_options(r);
    if (!is_allowed(r->route, r->method)) {
        return respond_error(r, 405, "wrong_method", NULL, &(header){ "Allow", allowed_methods(r->route) },
                             "this URL allows %s", allowed_methods(r->route));
    }
    if (!r->route->public_ && (v = guards_check_key(&s->guards, &r->head)).status) return request_refuse(r, v);
    if (r->route->any_method) return r->route->answer(r); /* an error */
    if (!r->route->post) return MHD_YES;
    if (r->route->form ? !is_form_type(r->head.content_type) : !is_json_type(r->head.content_type)) {
        return respond_error(r, 415, "wrong_type", NULL, NULL, "send Content-Type: %s",
                             r->route->form ? "multipart/form-data, with a boundary" : "application/json");
    }
    if (is_too_long(r->head.content_length)) {
        return respond_error(r, 413, "too_large", NULL, NULL, "the body may have at most %d MiB", LARGEST_BODY >> 20);
    }
    return MHD_YES;
}

/* Collects the body. What is too large, or not wanted, is thrown away: a chunked body does not announce its length. */
static void append_body(request *r, const char *data, size_t size) {
    if (r->kept || !r->route || !r->route->post || r->too_large) return;
    if (size > LARGEST_BODY - r->body.length) {
        r->too_large = true;
        buffer_free(&r->body);
        return;
    }
    buffer_append(&r->body, data, size);
}

static client *client_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* The headers are there: the body follows, or the answer. */
static void note_progress(const request *r, bool complete) {
    if (!r->client) return;
    pthread_mutex_lock(&r->server->lock);
    if (complete) client_is_answered(&r->server->clients, r->client, clock_seconds());
    else client_starts_body(&r->server->clients, r->client, clock_seconds());
    pthread_mutex_unlock(&r->server->lock);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *data, size_t *size, void **state) {
    (void)version;
    server  *s = context;
    request *r = *state;
    if (!r) return MHD_NO; /* no memory */
    if (!r->connection) {
        r->connection = connection;
        r->method = method;
        r->path = url;
        r->client = client_of(connection);
        MHD_get_connection_values(connection, MHD_HEADER_KIND, note_header, &r->head);
        pthread_mutex_lock(&s->lock);
        s->requests++;
        pthread_mutex_unlock(&s->lock);
        r->sending = is_sending(&r->head);
        const enum MHD_Result result = check_head(r);
        note_progress(r, r->status != 0);
        return result;
    }
    if (*size) {
        append_body(r, data, *size);
        *size = 0;
        return MHD_YES;
    }
    note_progress(r, true);
    r->sending = false;
    if (r->kept) return respond_kept(r);
    if (r->too_large)
        return respond_error(r, 413, "too_large", NULL, NULL, "the body may have at most %d MiB", LARGEST_BODY >> 20);
    if (r->body.failed) return respond_error(r, 503, "out_of_memory", NULL, NULL, "not enough memory for the body");
    return r->route->answer(r);
}

/* libmicrohttpd's first call for a request, with the target as the client sent it, before anything is unescaped. */
static void *note_target(void *context, const char *target, struct MHD_Connection *connection) {
    server      *s = context;
    client      *c = client_of(connection);
    const size_t length = strlen(target);
    request     *r = calloc(1, sizeof *r + length + 1);
    pthread_mutex_lock(&s->lock);
    if (c) client_starts_headers(&s->clients, c, clock_seconds());
    pthread_mutex_unlock(&s->lock);
    if (!r) return NULL;
    r->server = s;
    r->target = memcpy(r + 1, target, length + 1);
    return r;
}

/* Paths stay escaped: no file and no route has a name that needs it. */
static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text) {
    (void)context;
    (void)connection;
    return strlen(text);
}

static void log_request(const request *r, enum MHD_RequestTerminationCode how) {
    char target[200];
    if (!r->server->options.log) return;
    snprintf(target, sizeof target, "%s", r->target);
    for (char *c = target; *c; c++) {
        if (*c < ' ' || *c > '~') *c = '?'; /* control characters must not reach a terminal */
    }
    fprintf(r->server->options.log, "gemmule: %s %s %u%s\n", r->method ? r->method : "?", target, r->status,
            how == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "" : ", cut off");
}

static void end_request(void *context, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode how) {
    (void)connection;
    server  *s = context;
    request *r = *state;
    if (!r) return;
    *state = NULL;
    if (r->job) job_leave(r->job);
    log_request(r, how);
    metrics_request(&s->numbers, r->route ? r->route->path : "other", r->status,
                    how != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    pthread_mutex_lock(&s->lock);
    if (r->connection) s->requests--;
    if (r->client) client_is_idle(&s->clients, r->client, clock_seconds());
    pthread_mutex_unlock(&s->lock);
    if (r->kept) MHD_destroy_response(r->kept);
    buffer_free(&r->body);
    free(r);
}

/* ---- connections ---- */

static void connection_begins(server *s, struct MHD_Connection *connection, void **state) {
    const union MHD_ConnectionInfo *socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (!socket) return;
    pthread_mutex_lock(&s->lock);
    *state = clients_add(&s->clients, socket->connect_fd, from ? from->client_addr : NULL, clock_seconds());
    pthread_mutex_unlock(&s->lock);
}

static void connection_ends(server *s, client *c) {
    if (!c) return;
    pthread_mutex_lock(&s->lock);
    clients_remove(c);
    pthread_mutex_unlock(&s->lock);
}

static void watch_connection(void *context, struct MHD_Connection *connection, void **state,
                             enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) connection_begins(context, connection, state);
    else connection_ends(context, *state);
}

/* libmicrohttpd's own timeout restarts with every byte: a client that sends one now and then would stay for ever. */
void server_sweep(server *s) {
    pthread_mutex_lock(&s->lock);
    clients_sweep(&s->clients, clock_seconds());
    pthread_mutex_unlock(&s->lock);
}

/* ---- life ---- */

static void note_complaint(void *context, const char *format, va_list args) {
    server *s = context;
    vsnprintf(s->complaint, sizeof s->complaint, format, args);
    s->complaint[strcspn(s->complaint, "\n")] = 0;
    if (s->options.log) fprintf(s->options.log, "gemmule: http: %s\n", s->complaint);
}

static gm_status start_daemon(server *s, listener *at, error *e) {
    const bool tls = s->options.tls_cert != NULL;
    pem_file   certificate = { .path = s->options.tls_cert }, key = { .path = s->options.tls_key };
    if (tls && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return fail(e, GM_UNSUPPORTED, "libmicrohttpd was built without TLS");
    if (tls) {
        TRY(read_small_file(certificate.path, &s->memory, &certificate.text, e));
        TRY(read_small_file(key.path, &s->memory, &key.text, e));
        TRY(tls_check(&certificate, &key, e));
    }
    const struct MHD_OptionItem with_tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)certificate.text.data },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)key.text.data },
        { MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)"SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" },
        { MHD_OPTION_END, 0, NULL },
    };
    const unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                           (tls ? MHD_USE_TLS : 0u) | (at->ipv6 ? MHD_USE_IPv6 : 0u);
    s->daemon = MHD_start_daemon(
        flags, at->port, NULL, NULL, handle, s,                                       /* */
        MHD_OPTION_EXTERNAL_LOGGER, note_complaint, s,                                /* first */
        MHD_OPTION_LISTEN_SOCKET, at->socket,                                         /* */
        MHD_OPTION_CONNECTION_LIMIT, 2u * MOST_CONNECTIONS,                           /* clients.h makes room before */
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LARGEST_HEADERS,                  /* */
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->options.seconds,                  /* */
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, note_target, s, /* */
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, s, MHD_OPTION_NOTIFY_COMPLETED, end_request, s,    /* */
        MHD_OPTION_NOTIFY_CONNECTION, watch_connection, s, MHD_OPTION_ARRAY, with_tls + (tls ? 0 : 3), /* */
        MHD_OPTION_END);
    if (s->daemon) return GM_OK;
    return fail(e, tls ? GM_BAD_FILE : GM_IO, "the server cannot start: %s",
                s->complaint[0] ? s->complaint : "libmicrohttpd gives no reason");
}

static gm_status open_app(server *s, error *e) {
    s->app = -1;
    if (!s->options.app) return GM_OK;
    s->app = open(s->options.app, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->app >= 0) return GM_OK;
    return fail(e, GM_NOT_FOUND, "cannot open the app's folder %s: %s", s->options.app, strerror(errno));
}

static gm_status write_address(server *s, error *e) {
    buffer text = { 0 };
    buffer_printf(&text, "%s://%s/", s->guards.scheme, s->guards.hosts[0]);
    s->address = text.failed ? NULL : arena_copy(&s->memory, buffer_view(&text));
    buffer_free(&text);
    return s->address ? GM_OK : fail_memory(e, "the address", 100);
}

static gm_status server_open(server *s, listener *at, error *e) {
    const serve_options *options = &s->options;
    TRY(open_app(s, e));
    TRY(listen_on(options->address, options->port, at, e));
    TRY(guards_open(options, at, &s->memory, &s->guards, e));
    TRY(write_address(s, e));
    worker_options engine = options->worker;
    engine.numbers = &s->numbers;
    TRY(worker_start(&engine, &s->worker, e));
    return start_daemon(s, at, e);
}

gm_status server_start(const serve_options *options, server **out, error *e) {
    listener at = { .socket = -1 };
    server  *s = calloc(1, sizeof *s);
    if (!s) return fail_memory(e, "the server", sizeof *s);
    s->options = *options;
    s->clients.seconds = options->seconds;
    s->app = -1;
    pthread_mutex_init(&s->lock, NULL);
    metrics_open(&s->numbers);
    const gm_status status = server_open(s, &at, e);
    if (status) {
        if (at.socket >= 0) close(at.socket);
        server_stop(s);
        return status;
    }
    *out = s;
    return GM_OK;
}

const char *server_address(const server *s) { return s->address; }

gm_status server_ready(server *s, error *e) { return worker_ready(s->worker, e); }

static size_t requests_left(server *s) {
    pthread_mutex_lock(&s->lock);
    const size_t count = s->requests;
    pthread_mutex_unlock(&s->lock);
    return count;
}

/* Ends answers first, so that no connection is suspended when libmicrohttpd closes, then waits up to half a second for the
 * last bytes to go out. */
void server_stop(server *s) {
    if (!s) return;
    const int listening = s->daemon ? MHD_quiesce_daemon(s->daemon) : -1;
    if (listening >= 0) close(listening);
    if (s->worker) worker_stop(s->worker);
    if (s->daemon) {
        for (int i = 0; i < 50 && requests_left(s); i++) usleep(10000);
        MHD_stop_daemon(s->daemon);
    }
    worker_free(s->worker);
    if (s->app >= 0) close(s->app);
    store_free(&s->store);
    arena_free(&s->memory);
    pthread_mutex_destroy(&s->lock);
    metrics_close(&s->numbers);
    free(s);
}
