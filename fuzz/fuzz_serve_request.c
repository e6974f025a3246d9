/* Fuzzes the parser of request bodies in `gemmule serve`: it refuses a body with a reason, or the result is complete. */

#include "serve/chat_request.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static void check_text(const char *text) {
    if (text && !utf8_valid(str_of(text))) abort();
}

static void fuzz_json(const char *text) {
    arena memory = { 0 };
    error e = { 0 };
    json *value = NULL;
    if (text && (json_parse(str_of(text), &memory, &value, &e) || value->kind != JSON_ARRAY)) abort();
    arena_free(&memory);
}

static void check_request(const chat_request *r) {
    if (!r->message_count || r->top_logprobs > 20 || (r->top_logprobs && !r->logprobs)) abort();
    for (size_t i = 0; i < r->message_count; i++) {
        const gm_message *m = &r->messages[i];
        if (!m->role || !m->content == !m->part_count) abort(); /* one of the two */
        for (size_t k = 0; k < m->part_count; k++) check_text(m->parts[k].text);
        check_text(m->content);
        check_text(m->thinking);
        check_text(m->tool_name);
        check_text(m->tool_call_id);
        fuzz_json(m->tool_calls);
    }
    fuzz_json(r->tools);
    for (size_t i = 0; i < r->stop_count; i++) {
        if (!*r->stops[i]) abort();
        check_text(r->stops[i]);
    }
    for (size_t i = 0; i < r->bias_count; i++) {
        if (r->bias[i].token < 0) abort();
    }
    if (r->include_usage && !r->stream) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    chat_request r;
    error        e = { 0 };
    char         param[CHAT_PARAM_SIZE];
    buffer       body = { 0 };
    buffer_append(&body, data, size);
    if (chat_request_parse(&body, &r, param, &e)) {
        if (!e.why[0] || strlen(param) >= sizeof param) abort();
    } else {
        check_request(&r);
    }
    chat_request_free(&r);
    return 0;
}
