/* Writes a transcript in one of OpenAI's forms: as server-sent events while it comes, or as a whole at the end. */

#ifndef GM_SERVE_TRANSCRIPTION_ANSWER_H
#define GM_SERVE_TRANSCRIPTION_ANSWER_H

#include "serve/transcription_request.h"
#include "session/transcript.h"

typedef struct {
    const transcription_request *request;
    buffer                       text; /* all pieces, with a space between them */
    buffer segments;                   /* the pieces in the wanted form: lines, subtitles, or JSON without brackets */
    size_t count;                      /* of segments */
    size_t taken;                      /* bytes of the current piece that are in `text` */
} transcription_answer;                /* zero-initialise; `request` is set */

void transcription_answer_free(transcription_answer *a);

/* Each appends what can be sent now: events when streaming, otherwise nothing before the end. `complete`: the piece is. */
void transcription_answer_step(transcription_answer *a, const transcript *t, bool complete, buffer *out);
void transcription_answer_end(transcription_answer *a, const transcript *t, buffer *out);
bool transcription_answer_failed(const transcription_answer *a); /* out of memory */

/* The media type of a whole answer. */
const char *transcription_type(transcription_format format);

#endif
