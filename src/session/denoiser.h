/* The denoiser of a diffusion model's engine: computes steps of canvases.
 *
 * Every session that writes has a canvas here. A step is a run in which each canvas is a span: its tokens see the tokens that the session
 * holds, or the last of them on sliding layers, and all of the canvas. Their keys and values go behind the end of the sequence and are
 * not counted. When a session asks for a step, the canvases of other sessions that wait for one are computed in the same run, up to
 * DENOISER_CANVASES.
 *
 * What a step expects of each position, a row of the model's width, conditions the next one. These rows stay on the device, in a buffer
 * of the canvas; a run copies them into its plan and back. All functions are called between engine_enter and engine_leave. */

#ifndef GM_DENOISER_H
#define GM_DENOISER_H

#include "model/model.h"
#include "session/canvas.h"

enum { DENOISER_CANVASES = 4 };

typedef struct gm_engine      gm_engine;
typedef struct gm_session     gm_session;
typedef struct denoiser       denoiser;
typedef struct session_canvas session_canvas;

struct session_canvas {
    canvas_numbers  numbers;
    gm_session     *session;
    session_canvas *next;   /* of the denoiser */
    float          *soft;   /* [length, width] on the CPU; NULL: */
    uint32_t        buffer; /* the same on the GPU */
    bool            begun;  /* `soft` is what a step expected; otherwise it counts as zeros */
    enum { CANVAS_IDLE, CANVAS_WAITS, CANVAS_RUNS, CANVAS_FOUND } state;
    double seconds; /* that its last step took */
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
