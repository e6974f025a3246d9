/* Answers a chat completion. */

#include "serve/worker_parts.h"

#include "base/clock.h"
#include "session/serving.h"

#include <sys/random.h>

/* In the session of the job's place. */
static gm_status chat_start_reply(worker *w, job *j, error *e) {
    const chat_request *r = &j->request.chat;
    gm_sampling         sampling;
    char                why[sizeof e->why] = "";
    gm_sampling_default(w->engine, &sampling);
    const gm_reply_options options = chat_request_options(r, &sampling);
    if (!r->has_seed && getrandom(&sampling.seed, sizeof sampling.seed, 0) != sizeof sampling.seed)
        return fail(e, GM_IO, "cannot draw a random seed");
    const gm_status status =
        gm_reply_start(j->work.at->session, r->messages, r->message_count, &options, &j->work.reply, why, sizeof why);
    /* A bad file is here a picture or a sound of the client's, not ours. */
    return status ? fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", why) : GM_OK;
}

/* The free place whose session has the most tokens in common with the prompt, if that is half of what the prompt has, or of what the
 * session holds; else one that has no session yet, or was used longest ago. NULL on failure. */
static place *chat_best_place(worker *w, const job *j, error *e) {
    place *best = NULL;
    size_t most = 0, prompt = 0;
    for (size_t i = 0; i < w->options.parallel; i++) {
        place *p = &w->places[i];
        if (!p->session || p->taken || p->adapters != j->work.adapters) continue;
        const size_t common = reply_common(j->work.reply, p->session, &prompt);
        if (common <= most) continue;
        best = p;
        most = common;
    }
    const size_t held = best ? gm_session_tokens(best->session, NULL) : 0;
    return best && 2 * most >= min_size(prompt, held) ? best : worker_take_place(w, true, j->work.adapters, e);
}

/* The prompt's tokens are known once a reply has begun, in any session. If another session suits it better, it begins there again. */
gm_status worker_chat_start(worker *w, job *j, error *e) {
    j->work.at = worker_take_place(w, false, j->work.adapters, e);
    if (!j->work.at) return e->status;
    TRY(chat_start_reply(w, j, e));
    place *best = chat_best_place(w, j, e);
    if (!best) return e->status;
    if (best != j->work.at) {
        gm_reply_free(j->work.reply);
        j->work.reply = NULL;
        j->work.at = best;
        TRY(chat_start_reply(w, j, e));
    }
    const char *model = j->work.adapters ? j->request.chat.model : w->options.name;
    chat_answer_start(&j->work.chat, &j->request.chat, w->engine, model);
    return GM_OK;
}

/* Tells the metrics of tokens that were written. */
static void chat_note_tokens(worker *w, job *j, size_t tokens) {
    const double now = clock_seconds();
    const size_t fresh = tokens - j->work.tokens;
    for (size_t i = 0; i < fresh; i++) {
        const bool first = !j->work.writes;
        metrics_token(w->options.numbers, first, first ? now - j->asked : (now - j->work.last) / (double)fresh);
        j->work.writes = true;
    }
    if (!fresh) return;
    j->work.tokens = tokens;
    j->work.last = now;
}

gm_status worker_chat_step(worker *w, job *j, error *e) {
    gm_piece        piece = { 0 };
    char            why[sizeof e->why] = "";
    chat_answer    *a = &j->work.chat;
    buffer         *out = &j->work.out;
    const gm_status status = gm_reply_next(j->work.reply, &piece, why, sizeof why);
    gm_reply_stats  stats;
    gm_reply_get_stats(j->work.reply, &stats);
    chat_note_tokens(w, j, stats.reply_tokens);
    const bool full = status == GM_CONTEXT_FULL && stats.finish == GM_FINISH_LENGTH; /* truncated, but an answer */
    if (status != GM_OK && status != GM_AGAIN && status != GM_DONE && !full) return fail(e, status, "%s", why);
    if (!j->work.begun) chat_answer_begin(a, out);
    if (status == GM_OK) chat_answer_piece(a, &piece, out);
    if (status == GM_DONE || full) chat_answer_end(a, &stats, out);
    if (out->failed || chat_answer_failed(a)) return fail_memory(e, "the answer", out->length);
    return status == GM_DONE || full ? GM_DONE : GM_AGAIN;
}

void worker_chat_end(worker *w, job *j) {
    gm_reply_stats stats = { 0 };
    if (j->work.reply) gm_reply_get_stats(j->work.reply, &stats);
    metrics_answer(w->options.numbers, stats.prompt_tokens, stats.cached_tokens, stats.reply_tokens);
    chat_answer_free(&j->work.chat);
    gm_reply_free(j->work.reply); /* ends the work for it, if it is not over */
}
