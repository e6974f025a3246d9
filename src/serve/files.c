/* Sending files, whole or in part, with conditional requests; and the app's files, found by name in its folder. */

#include "serve/http.h"

#include "serve/byte_range.h"
#include "store/below.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- answering ---- */

/* If-Range: send the part only if the client has the rest of this very file. */
static bool if_range_matches(const char *condition, const char *etag, const char *modified) {
    return !condition || !strcmp(condition, etag) || !strcmp(condition, modified);
}

static bool client_has(const request_head *head, const char *etag, time_t modified) {
    time_t since;
    if (head->if_none_match) return etag_listed(head->if_none_match, etag);
    return head->if_modified_since && http_date_parse(head->if_modified_since, &since) && modified <= since;
}

enum MHD_Result respond_file(request *r, const file_answer *f) {
    struct stat about;
    char        own_etag[80], modified[HTTP_DATE_SIZE], range[80];
    const char *etag = f->etag ? f->etag : own_etag;
    uint64_t    first = 0, last = 0;
    if (fstat(f->file, &about)) {
        close(f->file);
        return respond_error(r, 500, "io", NULL, NULL, "cannot read the file");
    }
    const uint64_t size = (uint64_t)about.st_size;
    snprintf(own_etag, sizeof own_etag, "\"%" PRIx64 "-%" PRIx64 ".%" PRIx64 "\"", size, (uint64_t)about.st_mtim.tv_sec,
             (uint64_t)about.st_mtim.tv_nsec);
    http_date(about.st_mtim.tv_sec, modified);
    const bool       get = !strcmp(r->method, "GET"); /* ranges mean nothing for HEAD */
    const range_kind kind = get && if_range_matches(r->head.if_range, etag, modified)
                                ? byte_range_parse(r->head.range, size, &first, &last)
                                : RANGE_WHOLE;
    const bool       app = f->policy == app_policy; /* cross-origin isolation allows threads with shared memory */
    const header     headers[] = {
        { "ETag", etag },
        { "Last-Modified", modified },
        { "Accept-Ranges", "bytes" },
        { "Cache-Control", f->cache },
        { "Content-Security-Policy", f->policy },
        { "Cross-Origin-Opener-Policy", app ? "same-origin" : NULL },
        { "Cross-Origin-Embedder-Policy", app ? "require-corp" : NULL },
        { "Content-Type", f->type },
        { "Content-Range", kind == RANGE_PART ? range : NULL },
    };
    if (client_has(&r->head, etag, about.st_mtim.tv_sec)) {
        close(f->file);
        return respond_empty(r, 304, headers, 7);
    }
    if (kind == RANGE_OUTSIDE) {
        close(f->file);
        snprintf(range, sizeof range, "bytes */%" PRIu64, size);
        return respond_error(r, 416, "range", NULL, &(header){ "Content-Range", range },
                             "the range is outside the file, which has %" PRIu64 " bytes", size);
    }
    snprintf(range, sizeof range, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, first, last, size);
    const uint64_t       length = kind == RANGE_PART ? last - first + 1 : size;
    struct MHD_Response *response = MHD_create_response_from_fd_at_offset64(length, f->file, first);
    if (!response) close(f->file);
    return respond(r, kind == RANGE_PART ? 206 : 200, response, headers, COUNT_OF(headers));
}

/* ---- the app ---- */

static const char *media_type(const char *path) {
    static const struct {
        const char *ending, *type;
    } types[] = {
        { ".html", "text/html; charset=utf-8" },
        { ".js", "text/javascript; charset=utf-8" },
        { ".mjs", "text/javascript; charset=utf-8" },
        { ".css", "text/css; charset=utf-8" },
        { ".json", "application/json" },
        { ".map", "application/json" },
        { ".webmanifest", "application/manifest+json" },
        { ".wasm", "application/wasm" },
        { ".svg", "image/svg+xml" },
        { ".png", "image/png" },
        { ".webp", "image/webp" },
        { ".ico", "image/x-icon" },
        { ".woff2", "font/woff2" },
        { ".txt", "text/plain; charset=utf-8" },
    };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        if (str_ends_with(str_of(path), types[i].ending)) return types[i].type;
    }
    return "application/octet-stream";
}

/* The app's files have plain names; any other character belongs to an attempt at something else. */
static bool is_plain(const char *path) {
    for (; *path; path++) {
        const char c = *path;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("/._-+@~", c)))
            return false;
    }
    return true;
}

enum MHD_Result answer_app(request *r) {
    char         path[1024];
    const size_t length = strlen(r->path);
    const bool   folder = r->path[length - 1] == '/';
    if (r->server->app < 0) {
        return respond_error(r, 404, "no_app", NULL, NULL,
                             "the app was not found: build it, or name its folder with --app");
    }
    const int  needed = snprintf(path, sizeof path, "%s%s", r->path + 1, folder ? "index.html" : "");
    const bool fits = needed >= 0 && (size_t)needed < sizeof path;
    const int  file = fits && is_plain(path) ? below_open_file(r->server->app, path) : -1;
    if (file < 0) return respond_error(r, 404, "not_found", NULL, NULL, "file not found");
    return respond_file(
        r, &(file_answer){ .file = file, .type = media_type(path), .policy = app_policy, .cache = "no-cache" });
}
