/* The server's table of connections: deadlines, and who is closed when it is full. Clients are pairs of sockets; those
 * that read slowly are connections over TCP. */

#include "serve/clients.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    int     ours, theirs;
    client *entry;
} peer;

static peer connect_from(clients *all, const char *address, double now) {
    struct sockaddr_storage from = { 0 };
    struct sockaddr_in     *v4 = (void *)&from;
    struct sockaddr_in6    *v6 = (void *)&from;
    int                     pair[2] = { -1, -1 };
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) from.ss_family = AF_INET;
    else CHECK(inet_pton(AF_INET6, address, &v6->sin6_addr) == 1 && (from.ss_family = AF_INET6));
    return (peer){ pair[0], pair[1], clients_add(all, pair[0], (const void *)&from, now) };
}

/* Whether the server has hung up. */
static bool is_closed(const peer *p) {
    struct pollfd theirs = { .fd = p->theirs, .events = POLLIN };
    return poll(&theirs, 1, 0) == 1;
}

static size_t count_closed(const peer *peers, size_t count) {
    size_t closed = 0;
    for (size_t i = 0; i < count; i++) closed += is_closed(&peers[i]);
    return closed;
}

static void disconnect(peer *p) {
    clients_remove(p->entry);
    close(p->ours);
    close(p->theirs);
}

static void disconnect_all(clients *all, peer *peers, size_t count) {
    for (size_t i = 0; i < count; i++) disconnect(&peers[i]);
    CHECK(!all->first);
}

static void test_deadlines(void) {
    clients all = { .seconds = 30 };
    peer    p = connect_from(&all, "127.0.0.1", 100);
    TEST("headers have 5 seconds, from the connection on");
    clients_sweep(&all, 104.9);
    CHECK(!is_closed(&p));
    client_starts_headers(&all, p.entry, 104.9); /* the first line is there; the rest has no more time for it */
    clients_sweep(&all, 105.1);
    CHECK(is_closed(&p));
    disconnect(&p);

    TEST("a body has 30 seconds, an answer all the time it needs");
    p = connect_from(&all, "127.0.0.1", 100);
    client_starts_body(&all, p.entry, 101);
    clients_sweep(&all, 130.9);
    CHECK(!is_closed(&p));
    client_is_answered(&all, p.entry, 131);
    clients_sweep(&all, 10000);
    CHECK(!is_closed(&p));

    TEST("between two requests 30 seconds pass, then 5 for the headers");
    client_is_idle(&all, p.entry, 10000);
    clients_sweep(&all, 10029);
    CHECK(!is_closed(&p));
    client_starts_headers(&all, p.entry, 10010);
    clients_sweep(&all, 10015.1);
    CHECK(is_closed(&p));
    disconnect(&p);

    TEST("a shorter --timeout is one for headers, too");
    all.seconds = 1;
    p = connect_from(&all, "127.0.0.1", 100);
    clients_sweep(&all, 101.1);
    CHECK(is_closed(&p));
    disconnect(&p);
    CHECK(!all.first);
}

static void test_full(void) {
    enum { EXTRA = 10 };
    clients all = { .seconds = 30 };
    peer    peers[MOST_CONNECTIONS + EXTRA];
    TEST("a full table closes who has been longest without a complete request");
    for (size_t i = 0; i < MOST_CONNECTIONS; i++) peers[i] = connect_from(&all, "127.0.0.1", 100 + (double)i);
    client_is_answered(&all, peers[0].entry, 399);     /* not this one */
    client_is_idle(&all, peers[1].entry, 300);         /* nor this one: it has just had an answer */
    client_starts_body(&all, peers[2].entry, 200);     /* half a request is none */
    CHECK(count_closed(peers, MOST_CONNECTIONS) == 0); /* 64 fit */
    for (size_t i = 0; i < EXTRA; i++) {
        peers[MOST_CONNECTIONS + i] = connect_from(&all, "127.0.0.1", 400 + (double)i);
        CHECK_MESSAGE(is_closed(&peers[2 + i]) && count_closed(peers, MOST_CONNECTIONS + i + 1) == i + 1,
                      "after %zu more", i + 1);
    }
    disconnect_all(&all, peers, COUNT_OF(peers));

    TEST("who is being answered is not closed for a newcomer");
    for (size_t i = 0; i < COUNT_OF(peers); i++) {
        peers[i] = connect_from(&all, "127.0.0.1", 100);
        client_is_answered(&all, peers[i].entry, 100);
    }
    CHECK(count_closed(peers, COUNT_OF(peers)) == 0);
    disconnect_all(&all, peers, COUNT_OF(peers));
}

static void test_addresses(void) {
    static const struct {
        const char *first, *second;
        bool        limited;
    } rows[] = {
        { "192.0.2.7", "192.0.2.7", true },
        { "127.0.0.1", "127.0.0.1", false },
        { "::1", "::1", false },
        { "2001:db8::1", "2001:db8::2", true },
        { "2001:db8::1", "2001:db8:1::1", false },
        { "192.0.2.7", "192.0.2.8", false },
    };
    for (size_t row = 0; row < COUNT_OF(rows); row++) {
        clients all = { .seconds = 30 };
        peer    peers[MOST_PER_ADDRESS + 2];
        TEST("%s and %s %s", rows[row].first, rows[row].second, rows[row].limited ? "share a limit" : "do not");
        for (size_t i = 0; i < MOST_PER_ADDRESS; i++) {
            peers[i] = connect_from(&all, rows[row].first, 100 + (double)i);
            if (i < 3) client_is_answered(&all, peers[i].entry, 198);
        }
        CHECK(count_closed(peers, MOST_PER_ADDRESS) == 0);
        peers[MOST_PER_ADDRESS] = connect_from(&all, rows[row].second, 200);
        CHECK(is_closed(&peers[3]) == rows[row].limited &&
              count_closed(peers, MOST_PER_ADDRESS + 1) == rows[row].limited);
        for (size_t i = 0; i <= MOST_PER_ADDRESS; i++) client_is_answered(&all, peers[i].entry, 200);
        peers[MOST_PER_ADDRESS + 1] = connect_from(&all, rows[row].second, 201); /* only itself is left to close */
        CHECK(is_closed(&peers[MOST_PER_ADDRESS + 1]) == rows[row].limited);
        disconnect_all(&all, peers, COUNT_OF(peers));
    }
}

/* ---- reading ---- */

/* A connection over TCP, whose peer's kernel holds little. */
static peer connect_by_tcp(clients *all, double now) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t          size = sizeof at;
    const int          little = 4096;
    const int          listener = socket(AF_INET, SOCK_STREAM, 0), theirs = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(theirs, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    CHECK(!bind(listener, (void *)&at, size) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &size));
    CHECK(!connect(theirs, (void *)&at, size));
    const int ours = accept(listener, NULL, NULL);
    close(listener);
    return (peer){ ours, theirs, clients_add(all, ours, (const void *)&at, now) };
}

/* Sends until the kernel takes no more. */
static void send_all_that_fits(const peer *p) {
    static const char zeros[4096];
    while (send(p->ours, zeros, sizeof zeros, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
}

/* Reads `count` bytes; waits for them as long as it takes. */
static void read_bytes(const peer *p, size_t count) {
    char bytes[4096];
    while (count) {
        const ssize_t got = recv(p->theirs, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
        CHECK(got > 0);
        if (got <= 0) return;
        count -= (size_t)got;
    }
}

static void test_reading(void) {
    clients all = { .seconds = 30 };
    peer    p = connect_by_tcp(&all, 100);
    TEST("a byte now and then is not reading");
    client_is_answered(&all, p.entry, 100);
    send_all_that_fits(&p);
    clients_sweep(&all, 100.5); /* the first bytes are in the peer's kernel */
    for (double now = 101; now < 130; now++) {
        read_bytes(&p, 1);
        clients_sweep(&all, now);
    }
    CHECK(!p.entry->closing);
    clients_sweep(&all, 131);
    CHECK(p.entry->closing && send(p.ours, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EPIPE);
    disconnect(&p);

    TEST("a slow reader has all the time it needs");
    p = connect_by_tcp(&all, 100);
    client_is_answered(&all, p.entry, 100);
    for (double now = 101; now < 400; now += 25) {
        send_all_that_fits(&p);
        read_bytes(&p, (size_t)2 * SLOWEST_READER * all.seconds);
        clients_sweep(&all, now);
        CHECK_MESSAGE(!p.entry->closing, "after %g s", now - 100);
    }

    TEST("a reader that has everything waits for us, not we for it");
    int queued = 1;
    while (queued) {
        char bytes[4096];
        CHECK(recv(p.theirs, bytes, sizeof bytes, MSG_DONTWAIT) != 0);
        CHECK(!ioctl(p.ours, SIOCOUTQ, &queued));
    }
    clients_sweep(&all, 10000);
    CHECK(!p.entry->closing);

    TEST("a full table closes a reader that has stopped");
    send_all_that_fits(&p);
    peer peers[MOST_CONNECTIONS];
    for (size_t i = 0; i < COUNT_OF(peers); i++) {
        peers[i] = connect_from(&all, "127.0.0.1", 10003);
        client_is_answered(&all, peers[i].entry, 10003);
    }
    CHECK(!p.entry->closing); /* it may pause */
    peer newcomer = connect_from(&all, "127.0.0.1", 10006);
    CHECK(p.entry->closing && !count_closed(peers, COUNT_OF(peers)) && !is_closed(&newcomer));
    disconnect(&newcomer);
    disconnect(&p);
    disconnect_all(&all, peers, COUNT_OF(peers));
}

int main(void) {
    test_deadlines();
    test_reading();
    test_full();
    test_addresses();
    return test_end();
}
