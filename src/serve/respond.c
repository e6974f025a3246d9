/* Responses: common headers, JSON, errors. */

#include "serve/http.h"

#include "serve/chat_answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char app_policy[] =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; "
    "media-src blob:; connect-src 'self' https:; worker-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";
const char bare_policy[] = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static bool add_headers(struct MHD_Response *response, const header *headers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (headers[i].value && MHD_add_response_header(response, headers[i].name, headers[i].value) != MHD_YES)
            return false;
    }
    return true;
}

enum MHD_Result respond(request *r, unsigned status, struct MHD_Response *response, const header *headers,
                        size_t count) {
    const char  *foreign = guards_foreign(&r->server->guards, &r->head) ? r->head.origin : NULL;
    const header common[] = {
        { "X-Content-Type-Options", "nosniff" },
        { "Cross-Origin-Resource-Policy", "same-origin" },
        { "Referrer-Policy", "no-referrer" },
        { "Vary", "Origin" },
        { "Access-Control-Allow-Origin", foreign },
        { "Access-Control-Expose-Headers", foreign ? "Content-Range, ETag, Accept-Ranges, Retry-After" : NULL },
    };
    if (!response) return MHD_NO;
    const bool complete = add_headers(response, common, COUNT_OF(common)) && add_headers(response, headers, count);
    if (complete && r->sending) {
        r->kept = response;
        r->kept_status = status;
        return MHD_YES;
    }
    r->status = status;
    const enum MHD_Result result = complete ? MHD_queue_response(r->connection, status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result respond_kept(request *r) {
    struct MHD_Response *response = r->kept;
    r->kept = NULL;
    r->status = r->kept_status;
    const enum MHD_Result result = MHD_queue_response(r->connection, r->status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result respond_empty(request *r, unsigned status, const header *headers, size_t count) {
    return respond(r, status, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT), headers, count);
}

enum MHD_Result respond_json(request *r, unsigned status, buffer *text, const header *headers, size_t count) {
    return respond_text(r, status, "application/json", text, headers, count);
}

enum MHD_Result respond_text(request *r, unsigned status, const char *type, buffer *text, const header *headers,
                             size_t count) {
    const header fixed[] = { { "Content-Type", type },
                             { "Cache-Control", "no-store" },
                             { "Content-Security-Policy", bare_policy } };
    if (text->failed || !text->data) {
        buffer_free(text);
        return MHD_NO;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(text->length, text->data, MHD_RESPMEM_MUST_FREE);
    if (!response) buffer_free(text);
    *text = (buffer){ 0 };
    if (!response) return MHD_NO;
    if (!add_headers(response, fixed, COUNT_OF(fixed))) {
        MHD_destroy_response(response);
        return MHD_NO;
    }
    return respond(r, status, response, headers, count);
}

enum MHD_Result respond_error(request *r, unsigned status, const char *code, const char *param, const header *extra,
                              const char *format, ...) {
    char    message[600];
    buffer  text = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_error(&text, status, code, param, message);
    return respond_json(r, status, &text, extra, extra ? 1 : 0);
}
