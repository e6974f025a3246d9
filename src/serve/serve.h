/* `gemmule serve`: serves the app, model files by Range, and OpenAI's API on the native engine.
 *
 * One thread of libmicrohttpd answers requests, a second one runs the engine (worker.h), and the caller's thread waits for
 * signals and closes slow connections. */

#ifndef GM_SERVE_H
#define GM_SERVE_H

#include "serve/worker.h"

/* 1 and G, E, M, M on a phone keypad. Not assigned by IANA, and below the range of outgoing ports. */
enum { SERVE_PORT = 14366 };

typedef struct {
    const char        *address; /* numeric */
    uint16_t           port;    /* 0: any that is free */
    const char *const *hosts;   /* further names of this server, without a port */
    size_t             host_count;
    const char *const *origins; /* pages from these may use the server, besides its own */
    size_t             origin_count;
    const char        *app, *box; /* the app's folder, the file of the model in the box; each may be NULL */
    const char        *no_box;    /* why there is no box; may be NULL */
    const char        *tls_cert, *tls_key, *api_key_file; /* paths; each may be NULL */
    uint32_t           seconds; /* for a client to send a request, or to take 1 KiB of the answer for each */
    FILE              *log;     /* NULL: none */
    worker_options     worker;
} serve_options;

typedef struct server server;

/* Whatever the options point to must outlive the server. Beyond loopback, TLS and an API key are required
 * (GM_BAD_ARGUMENT). */
gm_status   server_start(const serve_options *options, server **out, error *e);
const char *server_address(const server *s); /* "http://127.0.0.1:14366/" */
/* With preload: GM_AGAIN until the model is open, then GM_OK or the reason why it cannot be opened. */
gm_status server_ready(server *s, error *e);
/* Closes the connections of clients that take too long over a request. Call it about once a second. */
void server_sweep(server *s);
void server_stop(server *s); /* ends answers, closes connections, frees; NULL is allowed */

#endif
