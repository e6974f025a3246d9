/* What the parts of the server share: a request and how it is answered. Only libmicrohttpd's thread uses any of this, except
 * for what the lock protects. */

#ifndef GM_SERVE_HTTP_H
#define GM_SERVE_HTTP_H

#include "serve/clients.h"
#include "serve/guards.h"
#include "serve/serve.h"
#include "store/ollama.h"

#include <microhttpd.h>
#include <pthread.h>

enum {
    LARGEST_BODY = 64 << 20,    /* of a POST: pictures and sounds in base64 */
    LARGEST_HEADERS = 32 << 10, /* libmicrohttpd's memory for a connection */
};

/* A recent view of Ollama's store. */
typedef struct {
    arena        memory;
    ollama_store store;
    double       at; /* 0: never looked */
    error        problem;
} store_view;

struct server {
    serve_options      options;
    guards             guards;
    arena              memory; /* holds the strings of the guards, and the address */
    const char        *address;
    int                app; /* the folder; -1: none */
    store_view         store;
    worker            *worker;
    metrics            numbers;
    struct MHD_Daemon *daemon;
    char               complaint[200]; /* libmicrohttpd's last message, for when it does not start */

    pthread_mutex_t lock; /* protects the fields below */
    clients         clients;
    size_t          requests; /* being answered */
};

typedef struct request request;

typedef struct {
    const char *path;
    bool        below;      /* the path and whatever is below it */
    bool        post;       /* POST, else GET and HEAD */
    bool        form;       /* the body is a form, else JSON */
    bool        any_method; /* all methods; the body is ignored */
    bool        public_;    /* needs no API key */
    enum MHD_Result (*answer)(request *r);
} route;

struct request {
    server                *server;
    struct MHD_Connection *connection; /* NULL until the headers are there */
    const char            *target;     /* path and query, unchanged */
    const char            *method, *path;
    request_head           head;
    const route           *route;
    buffer                 body;
    bool                   too_large;
    bool                   sending; /* the client sends its body, and reads no answer before the end of it */
    struct MHD_Response   *kept;    /* an answer that waits until then */
    unsigned               kept_status;
    job                   *job;
    unsigned               status; /* of the answer; 0: none yet */
    client                *client;
};

/* Content-Security-Policy for the app's files (a worker obeys the policy of its own script), and for everything else. */
extern const char app_policy[], bare_policy[];

/* A header of an answer; a NULL value leaves it out. */
typedef struct {
    const char *name, *value;
} header;

/* Adds the common headers and sends the response, which is consumed; while the client is sending, keeps it for respond_kept. NULL means
 * that there was no memory for it. */
enum MHD_Result respond(request *r, unsigned status, struct MHD_Response *response, const header *headers,
                        size_t count);
enum MHD_Result respond_kept(request *r);
/* Takes over the text. */
enum MHD_Result respond_text(request *r, unsigned status, const char *type, buffer *text, const header *headers,
                             size_t count);
enum MHD_Result respond_json(request *r, unsigned status, buffer *text, const header *headers, size_t count);
enum MHD_Result respond_error(request *r, unsigned status, const char *code, const char *param, const header *extra,
                              const char *format, ...) PRINTF_LIKE(6, 7);
enum MHD_Result respond_empty(request *r, unsigned status, const header *headers, size_t count);

/* Sends a file, whole or in part, as the request's conditions say. Closes the file. */
typedef struct {
    int         file;
    const char *etag; /* with its quotes; NULL: from size and time */
    const char *type, *policy, *cache;
} file_answer;
enum MHD_Result respond_file(request *r, const file_answer *f);

/* One function per route. */
enum MHD_Result answer_app(request *r);
enum MHD_Result answer_models(request *r);
enum MHD_Result answer_box(request *r);
enum MHD_Result answer_blob(request *r);
enum MHD_Result answer_engine_models(request *r);
enum MHD_Result answer_engine_model(request *r);
enum MHD_Result answer_unknown_endpoint(request *r);
enum MHD_Result
answer_generated(request *r); /* by the engine: a completion, or a transcription if the body is a form */

enum MHD_Result answer_health(request *r);
enum MHD_Result answer_metrics(request *r);

void store_free(store_view *v);

#endif
