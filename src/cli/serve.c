/* gemmule serve: serves the app, models and OpenAI's API. */

#include "serve/serve.h"

#include "adapter/adapter.h"
#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "base/beside.h"
#include "store/box.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    engine_values engine;
    count_value   port, parallel, queue, seconds, context;
    const char   *listen, *app, *tls_cert, *tls_key, *api_key_file;
    texts_value   hosts, origins;
    bool          preload, verbose;
} serve_values;

static const option address_options[] = {
    COUNT_OPTION(serve_values, port, "port", 0, "N", 0, 65535,
                 "port, 0: any free one; default 14366. The app's conversations belong to one port"),
    TEXT_OPTION(
        serve_values, listen, "listen", 0, "ADDRESS",
        "IP address to listen on; default 127.0.0.1. If other machines can reach it, TLS and an API key are required"),
    TEXTS_OPTION(serve_values, hosts, "host", 0, "NAME", "another host name of this server; can be repeated"),
    TEXTS_OPTION(serve_values, origins, "allow-origin", 0, "ORIGIN",
                 "let pages from ORIGIN, such as https://example.org, use the server; can be repeated"),
    TEXT_OPTION(serve_values, tls_cert, "tls-cert", 0, "FILE", "certificate chain, PEM"),
    TEXT_OPTION(serve_values, tls_key, "tls-key", 0, "FILE", "private key of the certificate, PEM"),
    TEXT_OPTION(serve_values, api_key_file, "api-key-file", 0, "FILE",
                "require the key in FILE (Authorization: Bearer) for everything but the app's own files"),
};
static const option serving_options[] = {
    TEXT_OPTION(serve_values, app, "app", 0, "FOLDER",
                "folder of the app; default: the one that comes with the program"),
    FLAG_OPTION(serve_values, preload, "preload", 0,
                "open the model before printing the address instead of with the first request"),
    COUNT_OPTION(serve_values, context, "ctx", 0, "N", 1, UINT32_MAX,
                 "context size in tokens, for prompt and answer; default: the Ollama model's num_ctx, or 8192, or the "
                 "model's limit if that is smaller"),
    COUNT_OPTION(serve_values, parallel, "parallel", 0, "N", 1, SERVE_MOST_PARALLEL,
                 "how many requests are answered at once; default 4"),
    COUNT_OPTION(serve_values, queue, "queue", 0, "N", 0, 60, "how many others may wait; default 8"),
    COUNT_OPTION(serve_values, seconds, "timeout", 0, "N", 1, 86400,
                 "seconds for a client to send a request, and to read as many KiB of an answer; default 30. Headers "
                 "must arrive within 5"),
    FLAG_OPTION(serve_values, verbose, "verbose", 0, "print a line on stderr for each request"),
};
static const option_group groups[] = {
    OPTION_GROUP("address", address_options, 0),
    OPTION_GROUP("serving", serving_options, 0),
    ADAPTER_GROUP(offsetof(serve_values, engine)),
    ENGINE_GROUP(offsetof(serve_values, engine)),
};

/* ---- what is served ---- */

/* The model's name in requests: its own, or that of its file. */
static const char *request_name(const char *given, arena *a) {
    const char *slash = strrchr(given, '/');
    str         name = str_of(slash && str_ends_with(str_of(given), ".gguf") ? slash + 1 : given);
    if (str_ends_with(name, ".gguf")) name.length -= strlen(".gguf");
    return arena_copy(a, name);
}

/* It is fine to have no model, since the app brings its own. A model that was named must exist. */
static gm_status serve_choose_model(const serve_values *v, const arguments *args, arena *a, worker_options *out,
                                    error *e) {
    error          none = { 0 };
    const char    *name = NULL;
    model_argument found;
    model_choice   how;
    *out = (worker_options){ .parallel = v->parallel.given ? (size_t)v->parallel.value : 4,
                             .waiting = v->queue.given ? (size_t)v->queue.value : 8,
                             .preload = v->preload };
    const gm_status chosen = model_argument_choose(args->count ? args->positional[0] : NULL, a, &name, &how, &none);
    if (chosen && chosen != GM_NOT_FOUND) return fail(e, chosen, "%s", none.why);
    if (!chosen) TRY(model_argument_resolve(name, a, &found, e));
    out->engine = engine_choose(&v->engine, chosen ? NULL : found.engine);
    out->session = (gm_session_options){ .context = (uint32_t)v->context.value, .kv = (gm_kv_type)v->engine.kv };
    out->name = chosen ? "" : request_name(name, a);
    out->file = chosen ? "" : found.path;
    return out->name ? GM_OK : fail_memory(e, "the model's name", strlen(name));
}

/* Requests name adapters, so names must differ, and must not have the sign that separates them. */
static gm_status check_adapter_name(const worker_options *w, size_t at, error *e) {
    const char *name = w->adapters[at].name;
    if (strchr(name, '+'))
        return fail(e, GM_BAD_ARGUMENT, "the adapter's name '%s' must not have a '+': requests name MODEL+ADAPTER",
                    name);
    for (size_t i = 0; i < at; i++) {
        if (!strcmp(w->adapters[i].name, name))
            return fail(e, GM_BAD_ARGUMENT, "two adapters have the name '%s'", name);
    }
    return GM_OK;
}

/* A file that cannot be read is a mistake in the arguments. Whether it fits is known when the model is open. */
static gm_status serve_choose_adapters(const texts_value *given, arena *a, worker_options *out, error *e) {
    served_adapter *list = arena_array(a, given->count + 1, sizeof *list);
    out->adapters = list;
    if (!list) return fail_memory(e, "the adapters", given->count * sizeof *list);
    if (given->count > SERVE_MOST_ADAPTERS)
        return fail(e, GM_BAD_ARGUMENT, "%zu adapters were given; at most %d are served", given->count,
                    SERVE_MOST_ADAPTERS);
    for (; out->adapter_count < given->count; out->adapter_count++) {
        served_adapter *one = &list[out->adapter_count];
        size_t          length;
        adapter        *content = NULL;
        TRY(adapter_argument(given->items[out->adapter_count], &length, &one->scale, e));
        one->path = arena_copy(a, (str){ given->items[out->adapter_count], length });
        one->name = one->path ? adapter_name_of(one->path, a) : NULL;
        if (!one->name) return fail_memory(e, "an adapter's name", length);
        TRY(check_adapter_name(out, out->adapter_count, e));
        TRY(adapter_open(one->path, &content, e));
        adapter_free(content);
    }
    return GM_OK;
}

/* The app beside the program; NULL if there is none. */
static gm_status find_app(arena *a, const char **app, error *e) {
    static const char *const places[] = { "web/index.html", "../share/gemmule/app/index.html" };
    const char              *folder, *page;
    *app = NULL;
    TRY(beside_program(a, &folder, e));
    TRY(beside_find(folder, places, COUNT_OF(places), a, &page, e));
    if (page) *app = arena_copy(a, (str){ page, strlen(page) - strlen("/index.html") });
    return *app || !page ? GM_OK : fail_memory(e, "the app's path", strlen(page));
}

/* A missing box is reported when somebody asks for it. */
static gm_status find_box(arena *a, serve_options *out, error *e) {
    error           none = { 0 };
    const gm_status status = box_find(a, &out->box, &none);
    if (!status) return GM_OK;
    if (status != GM_NOT_FOUND) return fail(e, status, "%s", none.why);
    out->box = NULL;
    out->no_box = arena_copy(a, str_of(none.why));
    return out->no_box ? GM_OK : fail_memory(e, "a message", strlen(none.why));
}

static gm_status choose_options(const serve_values *v, const arguments *args, arena *a, serve_options *out, error *e) {
    *out = (serve_options){
        .address = v->listen ? v->listen : "127.0.0.1",
        .port = v->port.given ? (uint16_t)v->port.value : SERVE_PORT,
        .hosts = v->hosts.items,
        .host_count = v->hosts.count,
        .origins = v->origins.items,
        .origin_count = v->origins.count,
        .app = v->app,
        .tls_cert = v->tls_cert,
        .tls_key = v->tls_key,
        .api_key_file = v->api_key_file,
        .seconds = v->seconds.given ? (uint32_t)v->seconds.value : 30,
        .log = v->verbose ? stderr : NULL,
    };
    if (!out->app) TRY(find_app(a, &out->app, e));
    TRY(find_box(a, out, e));
    gm_status status = serve_choose_model(v, args, a, &out->worker, e);
    if (!status) status = serve_choose_adapters(&v->engine.adapters, a, &out->worker, e);
    out->worker.log = out->log;
    out->worker.notices = stderr;
    return status;
}

/* ---- until a signal ---- */

/* Signals that are ignored (nohup, background jobs of a shell) stay ignored. */
static void block_signals(sigset_t *out) {
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    sigemptyset(out);
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        struct sigaction old;
        if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN) sigaddset(out, signals[i]);
    }
    pthread_sigmask(SIG_BLOCK, out, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client may disconnect at any time */
}

static bool signal_came(const sigset_t *signals, long milliseconds) {
    const struct timespec moment = { .tv_sec = 0, .tv_nsec = milliseconds * 1000000 };
    return sigtimedwait(signals, NULL, &moment) > 0;
}

/* Prints the address once the server answers and, with --preload, the model is open. */
static gm_status run_until_signal(server *s, const sigset_t *signals, error *e) {
    gm_status status;
    while ((status = server_ready(s, e)) == GM_AGAIN) {
        if (signal_came(signals, 50)) return GM_OK;
    }
    if (status) return status;
    printf("%s\n", server_address(s));
    TRY(flush_output(e));
    while (!signal_came(signals, 500)) server_sweep(s);
    return GM_OK;
}

static int serve_run(void *values, const arguments *args) {
    const serve_values *v = values;
    arena               memory = { 0 };
    error               e = { 0 };
    serve_options       options;
    server             *s = NULL;
    sigset_t            signals;
    int                 code = EXIT_OK;
    block_signals(&signals);
    gm_status status = choose_options(v, args, &memory, &options, &e);
    if (!status) status = server_start(&options, &s, &e);
    if (!status) {
        status = run_until_signal(s, &signals, &e);
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* a second signal ends the program at once */
        server_stop(s);
    }
    if (status) code = complain_error(&e);
    arena_free(&memory);
    return code;
}

const command command_serve = {
    .name = "serve",
    .arguments = "[MODEL]",
    .summary = "serve the app and OpenAI's API",
    .description =
        "Listens on 127.0.0.1 and prints its address. A browser gets the app there; below /v1 is OpenAI's API "
        "(/v1/chat/completions, /v1/audio/transcriptions, /v1/models), answered by MODEL on this machine. /health and "
        "/metrics are for monitoring. The model is opened with the first "
        "request. /models lists what the app can load. Without MODEL, uses $GEMMULE_MODEL, or the first usable Gemma 4 "
        "in Ollama's store, or the model in the box. The server writes up to N answers at once (--parallel) while "
        "other requests wait; "
        "with --adapter, the models NAME+ADAPTER are NAME with an adapter, or several (NAME+A+B); a client that "
        "disconnects cancels its answer. Web pages from other sites have no access. Log-probabilities "
        "vary slightly (by up to 0.002) with how much of the prompt is cached. Ctrl-C stops the server.",
    .examples = "  gemmule serve\n"
                "  gemmule serve gemma4:e2b --backend gpu --preload\n"
                "  gemmule serve --allow-origin https://example.org\n"
                "  gemmule serve --listen 192.168.1.5 --tls-cert cert.pem --tls-key key.pem --api-key-file key\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 0,
    .most = 1,
    .values_size = sizeof(serve_values),
    .run = serve_run,
};
