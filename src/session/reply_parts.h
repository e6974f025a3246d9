/* A reply's insides, for reply.c and reply_canvas.c. */

#ifndef GM_REPLY_PARTS_H
#define GM_REPLY_PARTS_H

#include "session/media.h"
#include "session/session.h"

typedef enum { REPLY_PROMPT, REPLY_WRITING, REPLY_ENDING, REPLY_OVER } reply_phase;

struct gm_reply {
    gm_session       *session; /* NULL: it was freed */
    gm_reply         *next;    /* of the session's replies */
    arena             memory;  /* copies of what the caller gave */
    token_list        prompt;  /* followed by the resumed part of the answer */
    prompt_media      media;   /* pictures and sounds in it */
    size_t            resumed;
    gm_sampling       sampling;
    output_parser    *parser; /* NULL: the text is not parsed */
    detokenizer       letters;
    str              *stops;
    size_t            stop_count;
    buffer            content; /* not given out yet: its end may begin a stop string */
    buffer            piece;   /* what the caller is looking at */
    size_t            max_tokens, alternatives;
    bool              want_logprobs, called, stopped;
    bool              begun;    /* the first call was made, so the session is ours */
    gm_token_logprob *logprobs; /* rows of 1 + alternatives */
    size_t            logprob_rows, logprob_capacity;
    bool              logprobs_given;
    reply_phase       phase;
    error             problem; /* the error that ends the reply, after the remaining pieces */
    size_t            progress;
    gm_reply_stats    stats;
    double            again_since; /* when the call ended that returned GM_AGAIN: what is waited for takes time, too */
    double            waited;      /* in calls that returned GM_AGAIN, since the last token */
    double            computed;    /* what steps took whose draws were taken in this call */
    double            prompt_end;  /* when the prompt was computed; the same call may go on to write tokens */
    struct {                       /* of a diffusion model */
        canvas_start *starts;      /* how the positions of the first blocks begin */
        size_t        count;       /* of starts */
        size_t        fixed; /* one past the last pinned position; a stop token before it does not end the answer */
        bool          wanted, begun;
        uint32_t      steps; /* the most for a block */
        uint32_t      block;
        size_t        taken; /* tokens of the block that are in the answer */
        gm_canvas     shown;
    } canvas;
};

/* What is written ends here. */
void reply_end_with(gm_reply *r, gm_finish finish);
/* Holds a token of the answer, and feeds its text on. Ends the answer if it is the last for which there is room. */
gm_status reply_hold_token(gm_reply *r, int32_t token, error *e);

/* reply_canvas.c: answers of diffusion models. */
gm_status reply_canvas_options(gm_reply *r, const gm_reply_options *options, error *e);
/* Whether a canvas, and all of a given one, fits behind the prompt. */
gm_status reply_canvas_check(const gm_reply *r, error *e);
/* A step of the canvas, or the end of a block. `*told`: there is a piece that shows it. */
gm_status reply_canvas_write(gm_reply *r, double deadline, gm_piece *piece, bool *told, error *e);

#endif
