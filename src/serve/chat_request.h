/* Parses OpenAI's chat completion request into what a reply needs. Unsupported fields are refused by name; none is ignored
 * silently. */

#ifndef GM_SERVE_CHAT_REQUEST_H
#define GM_SERVE_CHAT_REQUEST_H

#include "base/json.h"

typedef struct {
    float value;
    bool  given;
} wished_number;

typedef struct {
    buffer      body;   /* what the client sent, if pictures or sounds are in it */
    arena       memory; /* owns everything below, except for their bytes */
    const char *model;  /* NULL: any */
    gm_message *messages;
    size_t      message_count;
    const char *tools; /* JSON; NULL: none */
    bool        think, stream, include_usage;
    const char *canvas;      /* of a diffusion model: how it begins; NULL: as noise */
    bool        want_canvas; /* an event for every step */
    uint32_t    steps;       /* the most for a block; 0: as many as the model says */

    wished_number  temperature, top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    wished_number  penalty_window;
    bool           has_seed;
    uint64_t       seed;
    gm_logit_bias *bias;
    size_t         bias_count;

    uint32_t     max_tokens; /* 0: the model's own limit, or else as many as fit */
    const char **stops;
    size_t       stop_count;
    bool         logprobs;
    uint32_t     top_logprobs;
} chat_request; /* zero-initialise */

enum {
    CHAT_PARAM_SIZE = 64,
    CHAT_MOST_STRUCTURE = 4 << 20, /* bytes of a body outside of strings; the JSON tree takes up to 40 times as much */
};

/* Takes over the body, which is up to 64 MiB: media are decoded in it, not copied. GM_BAD_FILE: not JSON; GM_BAD_ARGUMENT: a wrong
 * value; GM_UNSUPPORTED: a missing feature. `param` gets the name of the field at fault, or "". Free the request even after a failure. */
gm_status chat_request_parse(buffer *body, chat_request *out, char param[CHAT_PARAM_SIZE], error *e);
void      chat_request_free(chat_request *r);
/* How to answer it: changes `sampling`, which has the defaults, as the request wishes. The options point to both. */
gm_reply_options chat_request_options(const chat_request *r, gm_sampling *sampling);

#endif
