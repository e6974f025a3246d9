/* The listening socket, and the names that the server answers to. No HTTP. */

#ifndef GM_SERVE_LISTEN_H
#define GM_SERVE_LISTEN_H

#include "serve/guards.h"
#include "serve/serve.h"

typedef struct {
    int      socket;
    uint16_t port; /* the real one */
    bool     loopback, ipv6, anywhere /* 0.0.0.0 or :: */;
} listener;

/* GM_IO if the port is taken, with advice. */
gm_status listen_on(const char *address, uint16_t port, listener *out, error *e);

/* Sets up host names, origins and the key, and demands what a server beyond loopback needs. Strings live in the arena. */
gm_status guards_open(const serve_options *options, const listener *at, arena *a, guards *out, error *e);

/* A whole small text file, in the arena. */
gm_status read_small_file(const char *path, arena *a, str *out, error *e);

#endif
