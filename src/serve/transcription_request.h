/* Parses OpenAI's transcription request, a form. Unsupported fields are refused by name; none is ignored silently. */

#ifndef GM_SERVE_TRANSCRIPTION_REQUEST_H
#define GM_SERVE_TRANSCRIPTION_REQUEST_H

#include "base/arena.h"
#include "base/buffer.h"

typedef enum {
    TRANSCRIPTION_JSON,
    TRANSCRIPTION_TEXT,
    TRANSCRIPTION_SRT,
    TRANSCRIPTION_VTT,
    TRANSCRIPTION_VERBOSE,
} transcription_format;

typedef struct {
    buffer               body;   /* what the client sent; the file is in it */
    arena                memory; /* owns the texts */
    const char          *model;  /* NULL: any */
    str                  file;
    const char          *prompt, *language; /* NULL: none */
    transcription_format format;
    float                temperature;
    bool                 stream;
} transcription_request; /* zero-initialise */

enum { TRANSCRIPTION_PARAM_SIZE = 64, TRANSCRIPTION_MOST_PROMPT = 8192 /* bytes */ };

/* Takes over the body. GM_BAD_FILE: not a form; GM_BAD_ARGUMENT: a wrong or missing value; GM_UNSUPPORTED: a missing feature. `param`
 * gets the name of the field at fault, or "". Free the request even after a failure. */
gm_status transcription_request_parse(buffer *body, const char *content_type, transcription_request *out,
                                      char param[TRANSCRIPTION_PARAM_SIZE], error *e);
void      transcription_request_free(transcription_request *r);

#endif
