#include "serve/clients.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- making room ---- */

static void client_close(client *c) {
    c->closing = true;
    shutdown(c->socket, SHUT_RDWR);
}

static bool is_earlier(const client *c, const client *than) { return !than || c->since < than->since; }

/* One address may not have more than its share; else the newcomer pushes out whoever kept us waiting longest. If all the
 * others are being answered, it may stay: the HTTP library has room for that. */
static void make_room(const clients *all, client *newcomer) {
    size_t  count = 0, of_address = 0;
    client *slowest = NULL, *slowest_of_address = NULL;
    for (client *c = all->first; c; c = c->next) {
        if (c->closing) continue;
        const bool same = same_address(c, newcomer), waiting = c->since >= 0;
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
    make_room(all, c);
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

void client_is_answered(client *c) { c->since = -1; }

void client_is_idle(const clients *all, client *c, double now) {
    c->since = now;
    c->deadline = now + all->seconds;
}

void clients_sweep(const clients *all, double now) {
    for (client *c = all->first; c; c = c->next) {
        if (c->since >= 0 && !c->closing && now > c->deadline) client_close(c);
    }
}
