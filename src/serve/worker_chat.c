/* Answers a chat completion. */

#include "serve/worker_parts.h"

#include "base/clock.h"
#include "session/serving.h"

#include <string.h>
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
static gm_status chat_begin(worker *w, job *j, error *e) {
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
    const char *model_name = j->work.adapters ? j->request.chat.model : w->options.name;
    chat_answer_start(&j->work.chat, &j->request.chat, w->engine, model_name);
    place_occupy(w, j->work.at);
    return GM_OK;
}

/* ---- sounds that another program decodes: gm_reply_start would wait for it, and all other answers with it ---- */

/* The first one that is left, as a part that may be changed. NULL: there is none, or no memory. */
static gm_part *chat_foreign_sound(chat_request *r) {
    for (size_t i = 0; i < r->message_count; i++) {
        gm_message *m = &r->messages[i];
        for (size_t k = 0; k < m->part_count; k++) {
            const gm_part *part = &m->parts[k];
            if (part->kind != GM_PART_AUDIO || part->rate || !sound_is_foreign(part->data, part->size)) continue;
            gm_part *parts = arena_array(&r->memory, m->part_count, sizeof *parts);
            if (!parts) return NULL;
            m->parts = memcpy(parts, m->parts, m->part_count * sizeof *parts);
            return &parts[k];
        }
    }
    return NULL;
}

static gm_status chat_open_sound(worker *w, job *j, error *e) {
    gm_part *part = j->work.part = chat_foreign_sound(&j->request.chat);
    if (part) TRY(worker_open_engine(w, e)); /* a place that could not change its adapters has no session */
    return part ? session_open_sound(w->places[0].session, part->data, part->size, &j->work.decoder, e) : GM_OK;
}

/* Samples take the place of the file. GM_AGAIN: the program still runs. */
static gm_status chat_decode_sound(worker *w, job *j, error *e) {
    heard_sound *heard = j->work.sounds;
    TRY(worker_open_engine(w, e)); /* as above */
    if (!heard || heard->sound.samples) {
        heard = arena_array(&j->request.chat.memory, 1, sizeof *heard);
        if (!heard) return fail_memory(e, "a sound", sizeof *heard);
        *heard = (heard_sound){ .next = j->work.sounds };
        j->work.sounds = heard;
    }
    const double    deadline = clock_seconds() + 0.005; /* other answers wait for this */
    const gm_status status = session_decode_sound(w->places[0].session, j->work.decoder, deadline, &heard->sound, e);
    if (status) return status;
    sound_decoder_free(j->work.decoder);
    j->work.decoder = NULL;
    j->work.part->data = heard->sound.samples;
    j->work.part->size = heard->sound.count * sizeof *heard->sound.samples;
    j->work.part->rate = SOUND_RATE;
    return GM_OK;
}

/* Opens the next one, or begins if none is left. */
gm_status worker_chat_start(worker *w, job *j, error *e) {
    error           inner = { 0 };
    const gm_status status = chat_open_sound(w, j, &inner);
    if (status) return fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", inner.why);
    return j->work.decoder ? GM_OK : chat_begin(w, j, e);
}

static gm_status chat_step_sound(worker *w, job *j, error *e) {
    error     inner = { 0 };
    gm_status status = chat_decode_sound(w, j, &inner);
    if (status == GM_AGAIN) return status;
    if (status) return fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", inner.why);
    status = worker_chat_start(w, j, e);
    return status ? status : GM_AGAIN;
}

/* ---- steps ---- */

/* Tells the metrics of tokens that were written. Those of a block come at once and share the time since the block before; those that come
 * with the first token have waited for nothing else. */
static void chat_note_tokens(worker *w, job *j, size_t tokens) {
    const double now = clock_seconds();
    const size_t fresh = tokens - j->work.tokens;
    if (!fresh) return;
    const double gap = j->work.writes ? (now - j->work.last) / (double)fresh : 0;
    for (size_t i = 0; i < fresh; i++) {
        const bool first = !j->work.writes;
        metrics_token(w->options.numbers, first, first ? now - j->asked : gap);
        j->work.writes = true;
    }
    j->work.tokens = tokens;
    j->work.last = now;
}

static gm_status chat_step_reply(worker *w, job *j, error *e) {
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

gm_status worker_chat_step(worker *w, job *j, error *e) {
    return j->work.reply ? chat_step_reply(w, j, e) : chat_step_sound(w, j, e);
}

void worker_chat_end(worker *w, job *j) {
    gm_reply_stats stats = { 0 };
    if (j->work.reply) gm_reply_get_stats(j->work.reply, &stats);
    metrics_answer(w->options.numbers, stats.prompt_tokens, stats.cached_tokens, stats.reply_tokens);
    chat_answer_free(&j->work.chat);
    gm_reply_free(j->work.reply); /* ends the work for it, if it is not over */
    sound_decoder_free(j->work.decoder);
    for (heard_sound *each = j->work.sounds; each; each = each->next) sound_free(&each->sound);
}
