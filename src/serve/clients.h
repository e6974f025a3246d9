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
    SLOWEST_READER = 1024, /* bytes per second: a client must take an answer at this rate, or it is closed */
};

typedef struct client client;
struct client {
    int     socket;
    double  since;     /* the client has kept us waiting since then: for a request, or to take what we sent */
    double  deadline;  /* when we stop waiting */
    bool    answered;  /* we owe it an answer; it owes us only to read */
    int64_t delivered; /* bytes that had reached it at `since`, while answered */
    uint8_t address[16];
    bool    limited; /* counts against its address */
    bool    closing; /* already shut down, soon removed */
    client *next, **link;
};

typedef struct {
    client  *first;
    uint32_t seconds; /* for a whole request, between two of them, and to read SLOWEST_READER * seconds bytes */
} clients;

/* A new connection; makes room if it must, by shutting sockets down. NULL when there is no memory. */
client *clients_add(clients *all, int socket, const struct sockaddr *from, double now);
void    clients_remove(client *c); /* frees it */

/* The stages of a request. */
void client_starts_headers(const clients *all, client *c, double now);
void client_starts_body(const clients *all, client *c, double now);
void client_is_answered(const clients *all, client *c, double now); /* the request is complete */
void client_is_idle(const clients *all, client *c, double now);

/* Notes which clients read their answers, and shuts down the sockets of those past their deadline. */
void clients_sweep(const clients *all, double now);

#endif
