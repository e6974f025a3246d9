/* How the server is: GET /health and GET /metrics. */

#include "serve/http.h"

#include "base/json.h"

/* Needs no API key, so that whoever restarts or balances servers can ask. 503 while --preload opens the model. */
enum MHD_Result answer_health(request *r) {
    error           e = { 0 };
    buffer          out = { 0 };
    size_t          running = 0, waiting = 0;
    const gm_status ready = worker_ready(r->server->worker, &e);
    worker_load(r->server->worker, &running, &waiting);
    buffer_printf(&out, "{\"status\":\"%s\",\"running\":%zu,\"waiting\":%zu}\n",
                  ready == GM_AGAIN ? "loading"
                  : ready           ? "failed"
                                    : "ok",
                  running, waiting);
    return respond_json(r, ready ? 503 : 200, &out, NULL, 0);
}

enum MHD_Result answer_metrics(request *r) {
    buffer out = { 0 };
    metrics_write(&r->server->numbers, &out);
    return respond_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", &out, NULL, 0);
}
