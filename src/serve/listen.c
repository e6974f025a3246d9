#include "serve/listen.h"

#include "base/arena.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the socket ---- */

typedef union {
    struct sockaddr     any;
    struct sockaddr_in  v4;
    struct sockaddr_in6 v6;
} socket_address;

static bool parse_address(const char *text, uint16_t port, socket_address *out, socklen_t *size, listener *l) {
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(port);
        *size = sizeof out->v4;
        l->loopback = ntohl(out->v4.sin_addr.s_addr) >> 24 == 127;
        l->anywhere = out->v4.sin_addr.s_addr == htonl(INADDR_ANY);
        return true;
    }
    if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) != 1) return false;
    out->v6.sin6_family = AF_INET6;
    out->v6.sin6_port = htons(port);
    *size = sizeof out->v6;
    l->ipv6 = true;
    l->loopback = IN6_IS_ADDR_LOOPBACK(&out->v6.sin6_addr);
    l->anywhere = IN6_IS_ADDR_UNSPECIFIED(&out->v6.sin6_addr);
    return true;
}

static gm_status cannot_listen(const char *address, uint16_t port, int problem, error *e) {
    if (problem == EADDRINUSE) {
        return fail(
            e, GM_IO,
            "port %u on %s is taken, perhaps by another gemmule serve; choose a different one with --port N (the "
            "app's conversations and models belong to one address)",
            port, address);
    }
    return fail(e, GM_IO, "cannot listen on port %u on %s: %s", port, address, strerror(problem));
}

gm_status listen_on(const char *address, uint16_t port, listener *out, error *e) {
    socket_address at;
    socklen_t      size;
    const int      yes = 1;
    *out = (listener){ .socket = -1 };
    if (!parse_address(address, port, &at, &size, out)) {
        return fail(e, GM_BAD_ARGUMENT, "'%s' is not an IP address such as 192.168.1.5 or ::1", address);
    }
    const int s = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) return cannot_listen(address, port, errno, e);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes,
               sizeof yes); /* restart without waiting for old connections to time out */
    if (out->ipv6) setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (bind(s, &at.any, size) || listen(s, 64) || getsockname(s, &at.any, &size)) {
        const int problem = errno;
        close(s);
        return cannot_listen(address, port, problem, e);
    }
    out->socket = s;
    out->port = ntohs(out->ipv6 ? at.v6.sin6_port : at.v4.sin_port);
    return GM_OK;
}

/* ---- small files ---- */

gm_status read_small_file(const char *path, arena *a, str *out, error *e) {
    enum { LARGEST = 1 << 20 };
    FILE *file = fopen(path, "rbe");
    if (!file)
        return fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    char        *text = arena_alloc(a, LARGEST + 1);
    const size_t length = text ? fread(text, 1, LARGEST, file) : 0;
    const bool   broken = text && (ferror(file) || length == LARGEST);
    fclose(file);
    if (!text) return fail_memory(e, path, LARGEST);
    if (broken) return fail(e, GM_BAD_FILE, "%s: cannot be read, or is larger than 1 MiB", path);
    *out = (str){ text, length };
    return GM_OK;
}

/* ---- names and the key ---- */

static bool is_host_name(const char *text) {
    return *text && strlen(text) < 254 && text[0] != '.' && text[0] != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == strlen(text);
}

/* Adds NAME:PORT, and NAME alone for the default port, which browsers omit. */
static bool add_host(const char *name, const listener *at, bool tls, arena *a, const char **hosts, size_t *count) {
    const bool ipv6 = strchr(name, ':') != NULL, usual = at->port == (tls ? 443 : 80);
    char       text[300];
    for (int with_port = !usual; with_port < 2; with_port++) {
        snprintf(text, sizeof text, ipv6 ? "[%s]" : "%s", name);
        if (with_port) snprintf(text + strlen(text), sizeof text - strlen(text), ":%u", at->port);
        if (!(hosts[*count] = arena_copy(a, str_of(text)))) return false;
        ++*count;
    }
    return true;
}

static gm_status open_hosts(const serve_options *o, const listener *at, arena *a, guards *g, error *e) {
    const bool   tls = o->tls_cert != NULL;
    const char **hosts = arena_array(a, 2 * (o->host_count + 1), sizeof *hosts);
    bool         fine = hosts != NULL;
    for (size_t i = 0; i < o->host_count; i++) {
        if (!is_host_name(o->hosts[i]))
            return fail(e, GM_BAD_ARGUMENT, "--host '%s': expected a name such as gemmule.example.org, without a port",
                        o->hosts[i]);
    }
    if (at->anywhere && !o->host_count) {
        return fail(e, GM_BAD_ARGUMENT,
                    "%s means every address of this machine; --host NAME must say which name clients use", o->address);
    }
    if (fine && !at->anywhere) fine = add_host(o->address, at, tls, a, hosts, &g->host_count);
    for (size_t i = 0; fine && i < o->host_count; i++) fine = add_host(o->hosts[i], at, tls, a, hosts, &g->host_count);
    g->hosts = hosts;
    if (fine && at->loopback) {
        const char *local[2] = { NULL, NULL };
        size_t      count = 0;
        fine = add_host("localhost", at, tls, a, local, &count);
        g->redirected = local[0];
    }
    return fine ? GM_OK : fail_memory(e, "the names of the server", 300);
}

static gm_status open_origins(const serve_options *o, guards *g, error *e) {
    for (size_t i = 0; i < o->origin_count; i++) {
        if (is_origin(o->origins[i])) continue;
        return fail(e, GM_BAD_ARGUMENT,
                    "--allow-origin '%s': expected an origin such as https://example.org or http://127.0.0.1:5173, "
                    "without a path",
                    o->origins[i]);
    }
    g->origins = o->origins;
    g->origin_count = o->origin_count;
    return GM_OK;
}

static gm_status open_key(const serve_options *o, arena *a, guards *g, error *e) {
    enum { SHORTEST = 16, LONGEST = 512 };
    str text = { NULL, 0 };
    if (!o->api_key_file) return GM_OK;
    TRY(read_small_file(o->api_key_file, a, &text, e));
    while (text.length && strchr(" \t\r\n", text.data[text.length - 1])) text.length--;
    bool plain = true;
    for (size_t i = 0; i < text.length; i++) plain &= text.data[i] > ' ' && text.data[i] < 127;
    if (!plain || text.length < SHORTEST || text.length > LONGEST) {
        return fail(e, GM_BAD_FILE, "%s: an API key is a single line of %d to %d visible ASCII characters",
                    o->api_key_file, SHORTEST, LONGEST);
    }
    guards_set_key(g, text);
    return GM_OK;
}

gm_status guards_open(const serve_options *o, const listener *at, arena *a, guards *out, error *e) {
    *out = (guards){ .scheme = o->tls_cert ? "https" : "http" };
    if (!o->tls_cert != !o->tls_key)
        return fail(e, GM_BAD_ARGUMENT, "--tls-cert and --tls-key go together; one of them is missing");
    if (!at->loopback && (!o->tls_cert || !o->api_key_file)) {
        return fail(e, GM_BAD_ARGUMENT,
                    "other machines can reach %s, which requires TLS (--tls-cert, --tls-key) and an API key "
                    "(--api-key-file)",
                    o->address);
    }
    TRY(open_hosts(o, at, a, out, e));
    TRY(open_origins(o, out, e));
    return open_key(o, a, out, e);
}
