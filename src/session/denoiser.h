/* The denoiser of a diffusion model's engine: computes steps of canvases.
 *
 * Every session that writes has a canvas here. A step is a run in which each canvas is a span: its tokens see the tokens that the session
 * holds, or the last of them on sliding layers, and all of the canvas. Their keys and values go behind the end of the sequence and are
 * not counted. When a session asks for a step, the canvases of other sessions that wait for one are computed in the same run, up to
 * DENOISER_CANVASES.
 *
 * What a step leaves to the next one (canvas_graph) stays on the device, in memory of the canvas; a run copies it into its plan and
 * back. So a GPU goes on without the host: while a step runs, the next one is submitted. If the first one turns out to be the last, the GPU skips
 * the other, and we drop it. All functions are called between engine_enter and engine_leave. */

#ifndef GM_DENOISER_H
#define GM_DENOISER_H

#include "session/canvas.h"

enum { DENOISER_CANVASES = 4, DENOISER_RUNS = 2 };

typedef struct gm_engine      gm_engine;
typedef struct gm_session     gm_session;
typedef struct denoiser       denoiser;
typedef struct session_canvas session_canvas;

struct session_canvas {
    canvas_numbers  numbers;
    gm_session     *session;
    session_canvas *next;    /* of the denoiser */
    float          *memory;  /* on the CPU; NULL: */
    uint32_t        buffer;  /* the same on the GPU: soft [length, width], findings, states */
    bool            active;  /* wants more steps than it has */
    size_t          flying;  /* steps that are under way, */
    size_t          arrived; /* and steps that have been computed, but not taken */
    float          *found;   /* [DENOISER_RUNS, length, CANVAS_FINDINGS] of the latter, first come first */
    double          seconds; /* that the last step took */
};

/* For the engine of a diffusion model, once its weights are known. */
gm_status    denoiser_new(gm_engine *engine, denoiser **out, error *e);
void         denoiser_free(denoiser *d);
const graph *denoiser_graph(const denoiser *d);

/* The session's canvas, which it keeps until session_canvas_free. */
gm_status session_canvas_get(gm_session *s, session_canvas **out, error *e);
void      session_canvas_free(session_canvas *c); /* NULL is fine */
/* Begins a block behind the tokens that the session has computed, which must be all that it holds. GM_CONTEXT_FULL if there is no room for
 * one. */
gm_status session_canvas_begin(session_canvas *c, uint64_t seed, uint32_t block, const canvas_start *start,
                               size_t count, error *e);
/* Computes a step, until `deadline` (GM_AGAIN). */
gm_status session_canvas_step(session_canvas *c, double deadline, error *e);
/* Drops the canvas's step, if one is under way; those of others go on. */
void session_canvas_leave(session_canvas *c); /* NULL is fine */

/* Whether canvases of other sessions are being denoised, too. */
bool denoiser_is_shared(const gm_session *s);
/* How many canvases the last run had. */
size_t denoiser_last_canvases(const denoiser *d);

/* For checks: one step with these ids at these temperatures. Gives the logits [length, vocabulary] and the findings [length,
 * CANVAS_FINDINGS]. Cannot be interrupted. */
gm_status session_canvas_check(session_canvas *c, const int32_t *ids, float temperature, float *logits, float *findings,
                               error *e);

#endif
