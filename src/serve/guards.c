#include "serve/guards.h"

#include "base/sha256.h"

#include <string.h>
#include <strings.h>

static const verdict fine = { 0, NULL, NULL };

/* ---- host ---- */

static verdict check_host(const guards *g, const request_head *head) {
    for (size_t i = 0; head->host && i < g->host_count; i++) {
        if (!strcasecmp(head->host, g->hosts[i])) return fine;
    }
    if (head->host && g->redirected && !strcasecmp(head->host, g->redirected))
        return (verdict){ 308, "moved", "this server uses its address instead of localhost" };
    return (verdict){ 421, "wrong_host",
                      "the Host header names a different server; use the address that this one printed, or add a name "
                      "with --host" };
}

/* ---- origin ---- */

/* Our own origin is our scheme and the request's Host, which has been checked. */
static bool is_own(const guards *g, const request_head *head) {
    const size_t scheme = strlen(g->scheme);
    return head->host && !strncmp(head->origin, g->scheme, scheme) && !strncmp(head->origin + scheme, "://", 3) &&
           !strcasecmp(head->origin + scheme + 3, head->host);
}

bool guards_foreign(const guards *g, const request_head *head) {
    if (!head->origin || is_own(g, head)) return false;
    for (size_t i = 0; i < g->origin_count; i++) {
        if (!strcmp(head->origin, g->origins[i])) return true;
    }
    return false;
}

static verdict check_origin(const guards *g, const request_head *head) {
    if (!head->origin || is_own(g, head) || guards_foreign(g, head)) return fine;
    return (verdict){ 403, "foreign_origin",
                      "pages from this origin may not use this server; --allow-origin permits it" };
}

/* Browsers say where a fetch comes from even when they send no Origin (images, scripts, links). Links to the app are
 * allowed: it cannot be framed, and opening it changes nothing. */
static verdict check_fetch(const guards *g, const request_head *head, bool page) {
    if (!head->fetch_site || !strcmp(head->fetch_site, "same-origin") || !strcmp(head->fetch_site, "none")) return fine;
    if (guards_foreign(g, head)) return fine;
    if (page && !head->origin && head->fetch_mode && !strcmp(head->fetch_mode, "navigate") && head->fetch_dest &&
        !strcmp(head->fetch_dest, "document"))
        return fine;
    return (verdict){ 403, "cross_site", "pages from other sites may not use this server; --allow-origin permits it" };
}

verdict guards_check(const guards *g, const request_head *head, bool page) {
    if (head->repeated) return (verdict){ 400, "repeated_header", "a header appears twice" };
    verdict v = check_host(g, head);
    if (!v.status) v = check_origin(g, head);
    if (!v.status) v = check_fetch(g, head, page);
    return v;
}

/* ---- key ---- */

static void digest(str text, uint8_t out[32]) {
    sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, text.data, text.length);
    sha256_end(&hash, out);
}

void guards_set_key(guards *g, str key) {
    g->has_key = true;
    digest(key, g->key);
}

/* Compares all bytes of the digests, so that the time it takes reveals neither the key nor its length. */
verdict guards_check_key(const guards *g, const request_head *head) {
    static const char bearer[] = "Bearer ";
    uint8_t           given[32], difference = 0;
    if (!g->has_key) return fine;
    const bool  present = head->authorization && !strncasecmp(head->authorization, bearer, sizeof bearer - 1);
    const char *key = present ? head->authorization + sizeof bearer - 1 : "";
    digest(str_of(key), given);
    for (size_t i = 0; i < sizeof given; i++) difference |= given[i] ^ g->key[i];
    if (present && !difference) return fine;
    return (verdict){ 401, "invalid_api_key",
                      present ? "wrong API key" : "send the API key as Authorization: Bearer KEY" };
}

/* ---- values ---- */

bool is_json_type(const char *content_type) {
    static const char json[] = "application/json";
    if (!content_type || strncasecmp(content_type, json, sizeof json - 1) != 0) return false;
    const char *rest = content_type + sizeof json - 1;
    rest += strspn(rest, " \t");
    return !*rest || *rest == ';';
}

static bool is_host_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("-._~[]:", c) != NULL;
}

bool is_origin(const char *text) {
    const char *host = strstr(text, "://");
    if (!host || host == text) return false;
    for (const char *at = text; at < host; at++) {
        if (!((*at >= 'a' && *at <= 'z') || (at > text && strchr("0123456789+-.", *at)))) return false;
    }
    host += 3;
    if (!*host || *host == ':') return false;
    for (; *host; host++) {
        if (!is_host_character(*host)) return false;
    }
    return true;
}
