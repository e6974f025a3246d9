/* Answers a chat completion. */

#include "serve/worker_parts.h"

#include "serve/chat_answer.h"

#include <sys/random.h>

static void wish_apply(float *field, wished_number wished) {
    if (wished.given) *field = wished.value;
}

static gm_status choose_sampling(const worker *w, const chat_request *r, gm_sampling *out, error *e) {
    gm_sampling_default(w->engine, out);
    wish_apply(&out->temperature, r->temperature);
    wish_apply(&out->top_p, r->top_p);
    wish_apply(&out->min_p, r->min_p);
    wish_apply(&out->typical_p, r->typical_p);
    wish_apply(&out->repetition_penalty, r->repetition_penalty);
    wish_apply(&out->presence_penalty, r->presence_penalty);
    wish_apply(&out->frequency_penalty, r->frequency_penalty);
    if (r->top_k.given) out->top_k = r->top_k.value < 0x1p31f ? (int32_t)r->top_k.value : INT32_MAX;
    if (r->penalty_window.given) out->penalty_window = (uint32_t)r->penalty_window.value;
    out->bias = r->bias;
    out->bias_count = r->bias_count;
    out->seed = r->seed;
    if (!r->has_seed && getrandom(&out->seed, sizeof out->seed, 0) != sizeof out->seed)
        return fail(e, GM_IO, "cannot draw a random seed");
    return GM_OK;
}

static gm_status worker_start_reply(worker *w, const chat_request *r, gm_reply **out, error *e) {
    gm_sampling sampling;
    char        why[sizeof e->why] = "";
    TRY(choose_sampling(w, r, &sampling, e));
    const gm_reply_options options = {
        .sampling = &sampling,
        .tools = r->tools,
        .think = r->think,
        .max_tokens = r->max_tokens,
        .stop = r->stops,
        .stop_count = r->stop_count,
        .logprobs = r->top_logprobs,
        .want_logprobs = r->logprobs,
    };
    const gm_status status = gm_reply_start(w->session, r->messages, r->message_count, &options, out, why, sizeof why);
    /* A bad file is here a picture or a sound of the client's, not ours. */
    return status ? fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", why) : GM_OK;
}

static gm_status worker_write_reply(worker *w, job *j, gm_reply *reply, chat_answer *a, buffer *out, error *e) {
    bool begun = false;
    while (job_is_wanted(w, j)) {
        gm_piece        piece = { 0 };
        char            why[sizeof e->why] = "";
        const gm_status status = gm_reply_next(reply, &piece, why, sizeof why);
        gm_reply_stats  stats;
        gm_reply_get_stats(reply, &stats);
        const bool full = status == GM_CONTEXT_FULL && stats.finish == GM_FINISH_LENGTH; /* truncated, but an answer */
        if (status != GM_OK && status != GM_AGAIN && status != GM_DONE && !full) return fail(e, status, "%s", why);
        if (!begun) chat_answer_begin(a, out);
        if (status == GM_OK) chat_answer_piece(a, &piece, out);
        if (status == GM_DONE || full) chat_answer_end(a, &stats, out);
        if (out->failed || chat_answer_failed(a)) return fail_memory(e, "the answer", out->length);
        if ((out->length || !begun) && !job_hand_over(w, j, out)) return fail_memory(e, "the answer", out->length);
        begun = true;
        if (status == GM_DONE || full) return GM_OK;
    }
    return fail(e, GM_CANCELLED, "the client disconnected"); /* freeing the reply ends the work for it */
}

gm_status worker_chat(worker *w, job *j, error *e) {
    const chat_request *request = &j->request.chat;
    gm_reply           *reply = NULL;
    chat_answer         a;
    buffer              out = { 0 };
    TRY(worker_start_reply(w, request, &reply, e));
    chat_answer_start(&a, request, w->engine, w->options.name);
    const gm_status status = worker_write_reply(w, j, reply, &a, &out, e);
    chat_answer_free(&a);
    buffer_free(&out);
    gm_reply_free(reply);
    return status;
}
