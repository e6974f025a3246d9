/* Answers a transcription. */

#include "serve/worker_parts.h"

gm_status worker_transcribe_start(worker *w, job *j, error *e) {
    const transcription_request *r = &j->request.transcription;
    const transcript_options options = { .language = r->language, .hint = r->prompt, .temperature = r->temperature };
    error                    inner = { 0 };
    j->work.transcription.request = r;
    j->work.at = worker_take_place(w, true, j->work.adapters, e);
    if (!j->work.at) return e->status;
    const gm_status status = transcript_start(&j->work.heard, w->engine, j->work.at->session, &options, r->file.data,
                                              r->file.length, &inner);
    /* A bad file is here the client's sound, not our model. */
    if (status) return fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", inner.why);
    place_occupy(w, j->work.at);
    return GM_OK;
}

gm_status worker_transcribe_step(worker *w, job *j, error *e) {
    transcript           *t = &j->work.heard;
    transcription_answer *a = &j->work.transcription;
    buffer               *out = &j->work.out;
    const gm_status       status = transcript_next(t, e);
    gm_reply_stats        stats = { 0 };
    (void)w;
    if (status == GM_BAD_FILE && !t->reply) e->status = GM_BAD_ARGUMENT; /* the sound, as above */
    if (t->reply) gm_reply_get_stats(t->reply, &stats);
    j->work.writes = stats.reply_tokens > 0; /* between two pieces it is a prompt again */
    if (status != GM_OK && status != GM_AGAIN && status != GM_DONE) return e->status;
    if (status == GM_DONE) transcription_answer_end(a, t, out);
    else transcription_answer_step(a, t, status == GM_OK, out);
    if (out->failed || transcription_answer_failed(a)) return fail_memory(e, "the transcript", out->length);
    return status == GM_DONE ? GM_DONE : GM_AGAIN;
}

void worker_transcribe_end(worker *w, job *j) {
    const gm_reply_stats *sums = &j->work.heard.sums;
    metrics_answer(w->options.numbers, sums->prompt_tokens, sums->cached_tokens, sums->reply_tokens);
    transcription_answer_free(&j->work.transcription);
    transcript_free(&j->work.heard);
}
