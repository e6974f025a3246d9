/* Writes an answer in OpenAI's form: as server-sent events while it comes, or as one object at the end. */

#ifndef GM_SERVE_CHAT_ANSWER_H
#define GM_SERVE_CHAT_ANSWER_H

#include "serve/chat_request.h"

typedef struct {
    const chat_request *request;
    const gm_engine    *engine; /* for the text of tokens */
    const char         *model;
    char                id[32];
    int64_t             created;
    size_t              call_count;
    buffer content, thinking, calls, logprobs; /* of an answer that is not streamed; lists are JSON without brackets */
} chat_answer;

void chat_answer_start(chat_answer *a, const chat_request *request, const gm_engine *engine, const char *model);
void chat_answer_free(chat_answer *a);

/* Each appends what can be sent now: events when streaming, otherwise nothing before the end. */
void chat_answer_begin(chat_answer *a, buffer *out);
void chat_answer_piece(chat_answer *a, const gm_piece *piece, buffer *out);
void chat_answer_end(chat_answer *a, const gm_reply_stats *stats, buffer *out);
bool chat_answer_failed(const chat_answer *a); /* out of memory */

/* {"error": {"message", "type", "param", "code"}}; param and code may be NULL. */
void write_error(buffer *out, unsigned http_status, const char *code, const char *param, const char *message);
/* The HTTP status and error code for a failed reply. */
unsigned http_status_of(gm_status status, const char **code);

#endif
