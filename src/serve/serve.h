/* `gemmule serve`: the app, models by Range, and OpenAI's API on the native engine, for this machine.
 *
 * libmicrohttpd's one thread answers; the engine has a thread of its own (worker.h); the caller's thread waits for a signal
 * and looks now and then after slow clients. */

#ifndef GM_SERVE_H
#define GM_SERVE_H

#include "serve/worker.h"

/* Ours: G, E, M, M on a telephone's keys behind a 1; free of IANA's list, below the ports of outgoing connections. */
enum { SERVE_PORT = 14366 };

typedef struct {
    const char        *address; /* numeric */
    uint16_t           port;    /* 0: any that is free */
    const char *const *hosts;   /* further names under which it is reached, without port */
    size_t             host_count;
    const char *const *origins; /* whose pages may use it, besides its own */
    size_t             origin_count;
    const char        *app, *box; /* the app's folder, the file of the model in the box; each may be NULL */
    const char        *no_box;    /* where the box was looked for, when there is none; may be NULL */
    const char        *tls_cert, *tls_key, *api_key_file; /* paths; each may be NULL */
    uint32_t           seconds; /* that a client may take for a request, or without reading on */
    FILE              *log;     /* NULL: none */
    worker_options     worker;
} serve_options;

typedef struct server server;

/* What the options point to must outlive the server. Beyond loopback it needs TLS and a key: GM_BAD_ARGUMENT says so. */
gm_status   server_start(const serve_options *options, server **out, error *e);
const char *server_address(const server *s); /* "http://127.0.0.1:14366/" */
/* GM_AGAIN while a model that was to be opened at once is not; then GM_OK, or why it cannot be. */
gm_status server_ready(server *s, error *e);
/* Closes the connections of clients that are too slow with their request. To be called about once a second. */
void server_sweep(server *s);
void server_stop(server *s); /* ends answers, closes, frees; NULL is fine */

#endif
