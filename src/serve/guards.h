/* Who may ask: the rules that stand between other people's web pages and a server on this machine.
 *
 * A page of any site can make the browser send requests here. Against DNS rebinding Host must be ours; against foreign pages
 * Origin must be absent, ours or allowed, and what browsers say about a fetch (Sec-Fetch-Site) must agree. Pure functions:
 * header values in, a verdict out. */

#ifndef GM_SERVE_GUARDS_H
#define GM_SERVE_GUARDS_H

#include "base/base.h"

/* The headers that matter; NULL: not there. */
typedef struct {
    const char *host, *origin, *fetch_site, *fetch_mode, *fetch_dest;
    const char *authorization, *content_type, *content_length;
    const char *range, *if_range, *if_none_match, *if_modified_since;
    const char *wanted_method;   /* Access-Control-Request-Method: a preflight */
    const char *private_network; /* Access-Control-Request-Private-Network */
    const char *repeated;        /* the name of one of these that was there twice */
} request_head;

typedef struct {
    const char        *scheme; /* "http" or "https" */
    const char *const *hosts;  /* as Host has them, "127.0.0.1:14366"; the first is the one in our address */
    size_t             host_count;
    const char        *redirected; /* a Host that is sent to the first: "localhost:14366"; NULL: none */
    const char *const *origins;    /* foreign ones that may ask, "https://example.org" */
    size_t             origin_count;
    bool               has_key;
    uint8_t            key[32]; /* SHA-256 of the API key */
} guards;

/* Status 0: go on. `code` is the error's short name. */
typedef struct {
    unsigned    status;
    const char *code, *message;
} verdict;

/* Host, Origin, Sec-Fetch-Site. `page`: GET of a page of the app, to which links on other sites may lead. 308 means: to the
 * same path on the first host. */
verdict guards_check(const guards *g, const request_head *head, bool page);
/* The API key, if there is one: compared in a time that does not depend on it. */
verdict guards_check_key(const guards *g, const request_head *head);
/* Whether the origin is a foreign one that may ask: it gets CORS headers. */
bool guards_foreign(const guards *g, const request_head *head);

/* "application/json", perhaps with parameters. */
bool is_json_type(const char *content_type);
/* "https://example.org:8443": scheme, host, perhaps a port, and nothing else, as browsers write it. */
bool is_origin(const char *text);

void guards_set_key(guards *g, str key);

#endif
