/* Access rules: what keeps other people's web pages away from a server on this machine.
 *
 * A page of any site can make a browser send requests here. Against DNS rebinding, Host must be ours. Against foreign pages,
 * Origin must be absent, ours or allowed, and Sec-Fetch-Site must agree. Pure functions: header values in, a verdict out. */

#ifndef GM_SERVE_GUARDS_H
#define GM_SERVE_GUARDS_H

#include "base/base.h"

/* The headers that matter; NULL: absent. */
typedef struct {
    const char *host, *origin, *fetch_site, *fetch_mode, *fetch_dest;
    const char *authorization, *content_type, *content_length, *transfer_encoding, *expect;
    const char *range, *if_range, *if_none_match, *if_modified_since;
    const char *wanted_method;   /* Access-Control-Request-Method: a preflight */
    const char *private_network; /* Access-Control-Request-Private-Network */
    const char *repeated;        /* the name of a header that came twice */
} request_head;

typedef struct {
    const char        *scheme; /* "http" or "https" */
    const char *const *hosts;  /* as in Host, "127.0.0.1:14366"; the first is part of our address */
    size_t             host_count;
    const char        *redirected; /* a Host that is redirected to the first: "localhost:14366"; NULL: none */
    const char *const *origins;    /* foreign origins with access, "https://example.org" */
    size_t             origin_count;
    bool               has_key;
    uint8_t            key[32]; /* SHA-256 of the API key */
} guards;

/* Status 0: allowed. `code` is the error's short name. */
typedef struct {
    unsigned    status;
    const char *code, *message;
} verdict;

/* Checks Host, Origin and Sec-Fetch-Site. `page`: the request is a GET of one of the app's pages, which other sites may link
 * to. 308 redirects to the same path on the first host. */
verdict guards_check(const guards *g, const request_head *head, bool page);
/* Checks the API key, if there is one, in constant time. */
verdict guards_check_key(const guards *g, const request_head *head);
/* Whether the origin is an allowed foreign one, which gets CORS headers. */
bool guards_foreign(const guards *g, const request_head *head);

/* "application/json", with or without parameters. */
bool is_json_type(const char *content_type);
/* "https://example.org:8443": scheme, host and optionally a port, as browsers write it. */
bool is_origin(const char *text);

void guards_set_key(guards *g, str key);

#endif
