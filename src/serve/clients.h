/* The table of connections: how long a client may take, and who makes room when the table is full. It knows sockets and
 * times, nothing of HTTP. The caller holds a lock around each call. */

#ifndef GM_SERVE_CLIENTS_H
#define GM_SERVE_CLIENTS_H

#include "base/base.h"

#include <sys/socket.h>

enum {
    MOST_CONNECTIONS = 64, /* beyond that, each new connection closes the one longest without a complete request */
    MOST_PER_ADDRESS = 16, /* of one address beyond loopback; for IPv6, of one /64 network */
    HEADER_SECONDS = 5,    /* for the headers of a request */
};

typedef struct client client;
struct client {
    int     socket;
    double  since;    /* the client owes us a complete request since then; negative: we owe it an answer */
    double  deadline; /* when we stop waiting */
    uint8_t address[16];
    bool    limited; /* counts against its address */
    bool    closing; /* already shut down, soon removed */
    client *next, **link;
};

typedef struct {
    client  *first;
    uint32_t seconds; /* for a whole request, and between two of them */
} clients;

/* A new connection; makes room if it must, by shutting sockets down. NULL when there is no memory. */
client *clients_add(clients *all, int socket, const struct sockaddr *from, double now);
void    clients_remove(client *c); /* frees it */

/* The stages of a request. */
void client_starts_headers(const clients *all, client *c, double now);
void client_starts_body(const clients *all, client *c, double now);
void client_is_answered(client *c); /* the request is complete */
void client_is_idle(const clients *all, client *c, double now);

/* Shuts down the sockets of clients past their deadline. */
void clients_sweep(const clients *all, double now);

#endif
