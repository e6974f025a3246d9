/* Answers of diffusion models: blocks of tokens, each denoised on a canvas, until one has the end of the turn. */

#include "session/reply_parts.h"
#include "session/serving.h"

#include <string.h>

const gm_engine *reply_engine(const gm_reply *r) { return r->session ? r->session->engine : NULL; }

gm_status reply_canvas_options(gm_reply *r, const gm_reply_options *o, error *e) {
    const gm_engine *engine = r->session->engine;
    if (!engine->denoiser) {
        if (!o->canvas && !o->want_canvas && !o->steps) return GM_OK;
        return fail(e, GM_UNSUPPORTED, "this model has no canvas: it writes one token after another");
    }
    if (r->want_logprobs)
        return fail(e, GM_UNSUPPORTED,
                    "a diffusion model has no log-probabilities: the canvas reports entropies instead");
    if (r->sampling.bias_count) return fail(e, GM_UNSUPPORTED, "a diffusion model does not support logit bias");
    if (r->sampling.mask) return fail(e, GM_UNSUPPORTED, "a diffusion model does not support a mask of tokens");
    const uint32_t most = engine->weights.config.canvas.steps;
    r->canvas.wanted = o->want_canvas;
    r->canvas.steps = o->steps && o->steps < most ? o->steps : most;
    if (!o->canvas) return GM_OK;
    TRY(canvas_text_read(engine->words, str_of(o->canvas), r->session->kv.context, &r->canvas.starts, &r->canvas.count,
                         e));
    for (size_t i = 0; i < r->canvas.count; i++) {
        if (r->canvas.starts[i].pinned) r->canvas.fixed = i + 1;
    }
    return GM_OK;
}

gm_status reply_canvas_check(const gm_reply *r, error *e) {
    const gm_session *s = r->session;
    if (!s->engine->denoiser) return GM_OK;
    const size_t length = s->engine->weights.config.canvas.length, prompt = r->stats.prompt_tokens;
    const size_t wanted = max_size(r->canvas.count, 1), room = (size_t)round_up(wanted, length);
    if (prompt <= s->kv.context && room <= s->kv.context - prompt) return GM_OK;
    if (room == length)
        return fail(e, GM_CONTEXT_FULL,
                    "the prompt has %zu tokens, and the context of %zu has no room for a canvas of %zu behind it",
                    prompt, s->kv.context, length);
    return fail(e, GM_CONTEXT_FULL,
                "the given canvas has %zu tokens and takes %zu in whole blocks, but behind the prompt of %zu the "
                "context of %zu has room for %zu",
                wanted, room, prompt, s->kv.context, prompt < s->kv.context ? s->kv.context - prompt : 0);
}

/* The canvas of the next block, once all tokens before it are computed. */
static gm_status reply_begin_block(gm_reply *r, double deadline, error *e) {
    gm_session     *s = r->session;
    session_canvas *c = NULL;
    const size_t    first = (size_t)r->canvas.block * s->engine->weights.config.canvas.length;
    const gm_status computed = session_compute(s, deadline, e);
    if (computed) return computed;
    TRY(session_canvas_get(s, &c, e));
    c->numbers.config.steps = r->canvas.steps;
    c->numbers.warmth = r->sampling.temperature > 0.01f ? r->sampling.temperature : 0.01f;
    error           full = { 0 };
    const gm_status status = session_canvas_begin(c, r->sampling.seed, r->canvas.block,
                                                  first < r->canvas.count ? r->canvas.starts + first : NULL,
                                                  first < r->canvas.count ? r->canvas.count - first : 0, &full);
    if (status == GM_CONTEXT_FULL) { /* what was written so far is still given out */
        r->problem = full;
        reply_end_with(r, GM_FINISH_LENGTH);
        return GM_OK;
    }
    if (status) return fail(e, status, "%s", full.why);
    r->canvas.begun = true;
    return GM_OK;
}

static gm_status reply_show_canvas(gm_reply *r, gm_piece *piece, error *e) {
    const gm_session     *s = r->session;
    const canvas_numbers *n = &s->canvas->numbers;
    detokenizer           letters = { 0 };
    gm_status             status = GM_OK;
    str                   text;
    buffer_clear(&r->piece);
    for (size_t i = 0; i < n->config.length && !status; i++) {
        status = detokenizer_add(&letters, s->engine->words, n->likeliest[i], &text, e);
        if (!status) buffer_str(&r->piece, text);
    }
    if (!status) status = detokenizer_end(&letters, &text, e);
    if (!status) buffer_str(&r->piece, text);
    detokenizer_free(&letters);
    if (!status && r->piece.failed) status = fail_memory(e, "the canvas", r->piece.length);
    r->canvas.shown = (gm_canvas){ .block = r->canvas.block,
                                   .step = n->step,
                                   .most_steps = n->config.steps,
                                   .count = n->config.length,
                                   .ids = n->likeliest,
                                   .entropies = n->entropies,
                                   .accepted = n->accepted,
                                   .pinned = n->pinned,
                                   .mean_entropy = n->mean,
                                   .last = n->done };
    *piece = (gm_piece){
        .kind = GM_PIECE_CANVAS, .text = r->piece.data, .length = r->piece.length, .canvas = &r->canvas.shown
    };
    return status;
}

/* The block is written: its next token, up to the end of the turn. Whether the answer goes on is in r->phase. */
static gm_status reply_take_token(gm_reply *r, error *e) {
    const canvas_numbers *n = &r->session->canvas->numbers;
    const tokenizer      *words = r->session->engine->words;
    const size_t          length = n->config.length, i = r->canvas.taken++;
    const int32_t         token = n->likeliest[i];
    const bool            fixed = r->canvas.block * length + i < r->canvas.fixed;
    if (!i) r->stats.blocks++;
    if (r->canvas.taken == length) {
        r->canvas.begun = false;
        r->canvas.taken = 0;
        r->canvas.block++;
    }
    if (tokenizer_is_stop(words, token) && !fixed) {
        reply_end_with(r, token == tokenizer_special(words, SPECIAL_TOOL_RESPONSE) ? GM_FINISH_TOOL_CALLS
                                                                                   : GM_FINISH_STOP);
        return GM_OK;
    }
    return reply_hold_token(r, token, e);
}

gm_status reply_canvas_write(gm_reply *r, double deadline, gm_piece *piece, bool *told, error *e) {
    session_canvas *c = r->session->canvas;
    if (!r->canvas.begun) return reply_begin_block(r, deadline, e);
    if (c->numbers.done) return reply_take_token(r, e);
    const gm_status status = session_canvas_step(c, deadline, e);
    if (status) return status;
    r->computed += c->seconds;
    r->stats.steps++;
    *told = r->canvas.wanted;
    return *told ? reply_show_canvas(r, piece, e) : GM_OK;
}
