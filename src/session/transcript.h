/* Writes down what is said in a sound of any length. The model hears it in pieces of up to 30 s, one after the other. */

#ifndef GM_SESSION_TRANSCRIPT_H
#define GM_SESSION_TRANSCRIPT_H

#include "base/buffer.h"
#include "media/sound.h"

enum { TRANSCRIPT_PIECE_TOKENS = 512 };

/* Everything is read by transcript_start. */
typedef struct {
    const char *question; /* about each piece, instead of the request for a transcript; NULL: none */
    const char *language; /* of the speech: its name or its code; NULL: unknown */
    const char *hint;     /* names, spellings, or what was said before; NULL: none */
    float       temperature;
    uint32_t    most; /* tokens for each piece; 0: TRANSCRIPT_PIECE_TOKENS */
} transcript_options;

typedef struct {
    gm_session    *session;
    gm_sampling    sampling;
    uint32_t       most;
    buffer         prompt;
    sound_decoder *decoder; /* NULL: the sound is decoded */
    sound          heard;
    size_t         from, to; /* the piece, in samples at SOUND_RATE */
    gm_reply      *reply;    /* about it; NULL: the next one has not begun */
    buffer         text;     /* of the piece so far: one line, without white space around it */
    bool           gap;      /* white space came after the text */
    size_t         pieces;   /* that are complete */
    gm_reply_stats sums;     /* over all pieces: tokens and seconds */
} transcript;                /* zero-initialise */

/* The bytes must stay until the sound is decoded. GM_BAD_FILE: they are not a sound; GM_UNSUPPORTED: the model cannot hear. */
gm_status transcript_start(transcript *t, gm_engine *engine, gm_session *session, const transcript_options *options,
                           const void *bytes, size_t size, error *e);

/* Decodes the sound first, then has the model hear it. GM_AGAIN after about 50 ms of work; GM_OK when a piece is complete: `text` is what was said from `from` to `to`, and is
 * empty if nothing was; GM_DONE after the last one; GM_BAD_FILE: the sound is damaged. */
gm_status transcript_next(transcript *t, error *e);

void transcript_free(transcript *t);

static inline double transcript_seconds(size_t samples) { return (double)samples / SOUND_RATE; }

/* ---- formats ---- */

typedef enum { TRANSCRIPT_TEXT, TRANSCRIPT_SRT, TRANSCRIPT_VTT } transcript_format;

/* What comes before the first piece. */
const char *transcript_head(transcript_format format);
/* A line of text, or a subtitle, whose number in the file is `number`, from 1. */
void transcript_write_piece(transcript_format format, size_t number, size_t from, size_t to, str text, buffer *out);

#endif
