#include "serve/clients.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#endif

/* ---- addresses ---- */

/* Notes where a client comes from. Loopback has no limit per address: every program of this machine shares it. */
static void client_note_address(client *c, const struct sockaddr *from) {
    if (!from) return;
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)from;
        memcpy(c->address, &v4->sin_addr, sizeof v4->sin_addr);
        c->limited = ntohl(v4->sin_addr.s_addr) >> 24 != 127;
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)from;
        memcpy(c->address, &v6->sin6_addr, 8); /* the network: whoever has it has all of its addresses */
        c->limited = !IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    }
}

static bool same_address(const client *a, const client *b) {
    return a->limited && b->limited && !memcmp(a->address, b->address, sizeof a->address);
}

/* ---- reading answers ---- */

/* How many bytes have reached the client, and whether more are on their way. Without TCP's own figures every client counts as
 * one that reads: only libmicrohttpd's timeout closes it then, if not a single byte moves. */
static bool client_delivery(const client *c, int64_t *delivered) {
#ifdef __linux__
    struct tcp_info info = { 0 };
    socklen_t       size = sizeof info;
    int             queued = 0;
    if (getsockopt(c->socket, IPPROTO_TCP, TCP_INFO, &info, &size) || ioctl(c->socket, SIOCOUTQ, &queued)) return false;
    *delivered = (int64_t)info.tcpi_bytes_acked;
    return queued > 0;
#else
    (void)c;
    (void)delivered;
    return false;
#endif
}

/* While nothing is on its way, it is our turn: the client's time starts again. It also does when the client has taken as much
 * as the slowest reader takes in that time. */
static void client_note_reading(const clients *all, client *c, double now) {
    int64_t    delivered = 0;
    const bool behind = client_delivery(c, &delivered);
    if (behind && delivered - c->delivered < (int64_t)SLOWEST_READER * all->seconds) return;
    c->delivered = delivered;
    c->since = now;
    c->deadline = now + all->seconds;
}

/* ---- making room ---- */

static void client_close(client *c) {
    c->closing = true;
    shutdown(c->socket, SHUT_RDWR);
}

static bool is_earlier(const client *c, const client *than) { return !than || c->since < than->since; }

/* Someone who reads an answer may pause as long as someone who writes headers. */
static bool client_is_waited_for(const client *c, double now) {
    return !c->answered || now - c->since > HEADER_SECONDS;
}

/* One address may not have more than its share; else the newcomer pushes out whoever kept us waiting longest. If all the
 * others are being answered and read on, it may stay: the HTTP library has room for that. */
static void clients_make_room(const clients *all, client *newcomer, double now) {
    size_t  count = 0, of_address = 0;
    client *slowest = NULL, *slowest_of_address = NULL;
    for (client *c = all->first; c; c = c->next) {
        if (c->closing) continue;
        const bool same = same_address(c, newcomer), waiting = client_is_waited_for(c, now);
        count++;
        of_address += same;
        if (waiting && c != newcomer && is_earlier(c, slowest)) slowest = c;
        if (waiting && same && is_earlier(c, slowest_of_address)) slowest_of_address = c;
    }
    if (of_address > MOST_PER_ADDRESS) client_close(slowest_of_address);
    else if (count > MOST_CONNECTIONS && slowest) client_close(slowest);
}

/* ---- life ---- */

client *clients_add(clients *all, int socket, const struct sockaddr *from, double now) {
    client *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    *c = (client){ .socket = socket, .since = now, .next = all->first, .link = &all->first };
    client_note_address(c, from);
    client_starts_headers(all, c, now);
    if (c->next) c->next->link = &c->next;
    all->first = c;
    clients_make_room(all, c, now);
    return c;
}

void clients_remove(client *c) {
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    free(c);
}

/* ---- stages ---- */

void client_starts_headers(const clients *all, client *c, double now) {
    const double limit = now + (all->seconds < HEADER_SECONDS ? all->seconds : HEADER_SECONDS);
    if (!c->deadline || limit < c->deadline) c->deadline = limit;
}

void client_starts_body(const clients *all, client *c, double now) { c->deadline = now + all->seconds; }

void client_is_answered(const clients *all, client *c, double now) {
    c->answered = true;
    c->since = now;
    c->deadline = now + all->seconds;
    client_delivery(c, &c->delivered);
}

void client_is_idle(const clients *all, client *c, double now) {
    c->answered = false;
    c->since = now;
    c->deadline = now + all->seconds;
}

void clients_sweep(const clients *all, double now) {
    for (client *c = all->first; c; c = c->next) {
        if (c->closing) continue;
        if (c->answered) client_note_reading(all, c, now);
        if (now > c->deadline) client_close(c);
    }
}
