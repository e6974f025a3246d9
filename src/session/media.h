/* The pictures, sounds and videos of a prompt. They are decoded when a reply starts; a tower encodes them before the prompt is computed.
 *
 * An item is a picture, a frame of a video, or a sound; a long sound is several items, one for each piece. Each item is known by a digest
 * of its content, its budget and the tower. What the session holds already is not encoded again, and a picture not even decoded. */

#ifndef GM_SESSION_MEDIA_H
#define GM_SESSION_MEDIA_H

#include "media/picture.h"
#include "media/sound.h"
#include "session/session.h"
#include "session/tower.h"

typedef struct {
    tower_kind   kind;
    uint8_t      digest[32];
    size_t       tokens;
    bool         frame;   /* of a video */
    picture      seen;    /* what the tower is to see; no pixels: the session had its rows when the reply started */
    const float *samples; /* a sound's: of this piece */
    size_t       sample_count;
    sound        heard; /* all of the sound: the first piece owns it */
    bool         more;  /* the next item is the sound's next piece */
    bool         waits; /* for the tower */
    const float *rows;
} media_item;

typedef struct {
    media_item   *items; /* in the order of the prompt */
    size_t        count, capacity;
    soft_tokens   spans; /* declared: one for each item */
    const float **rows;  /* for session_prompt */
    tower_job    *jobs[TOWER_KINDS];
    char          adapters[TOWER_KINDS][65];      /* identify the session's for each tower, when the reply started */
    bool          begun, done;                    /* encoding */
    bool          foreign;                        /* some rows may be a snapshot's: session.h */
    size_t        encoding, waiting[TOWER_KINDS]; /* items that towers get: all, and each */
    double        started, seconds;               /* when the towers began, and how long they took */
} prompt_media;                                   /* zero-initialise */

/* The most tokens of a picture that does not say how many, for the model in `file`. */
uint32_t media_default_budget(const gguf *file);

/* Decodes the media among the pieces. Memory comes from the arena, except for what media_free frees. */
gm_status media_prepare(prompt_media *m, gm_session *s, const chat_piece *pieces, size_t count, arena *a, error *e);

/* Replaces the token that stands for each item by its begin token, soft tokens and end token, and declares the spans. */
gm_status media_expand(prompt_media *m, const gm_engine *engine, token_list *prompt, error *e);

/* Makes the rows of everything that the session does not hold at its place. GM_AGAIN: call again. The engine's turn is ours. */
gm_status media_encode(prompt_media *m, gm_session *s, const session_prompt *p, arena *a, error *e);

/* How many of m->encoding items are done. */
size_t media_encoded(const prompt_media *m);

/* The engine's turn is ours, unless nothing was encoded. */
void media_free(prompt_media *m);
/* Ends the tower's work: the session is about to be freed. */
void media_stop(prompt_media *m);

#endif
