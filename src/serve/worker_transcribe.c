/* Answers a transcription. */

#include "serve/worker_parts.h"

#include "serve/transcription_answer.h"

static gm_status worker_write_transcript(worker *w, job *j, transcript *t, transcription_answer *a, buffer *out,
                                         error *e) {
    bool begun = false;
    while (job_is_wanted(w, j)) {
        const gm_status status = transcript_next(t, e);
        if (status != GM_OK && status != GM_AGAIN && status != GM_DONE) return status;
        if (status == GM_DONE) transcription_answer_end(a, t, out);
        else transcription_answer_step(a, t, status == GM_OK, out);
        if (out->failed || transcription_answer_failed(a)) return fail_memory(e, "the transcript", out->length);
        if ((out->length || !begun) && !job_hand_over(w, j, out)) return fail_memory(e, "the transcript", out->length);
        begun = true;
        if (status == GM_DONE) return GM_OK;
    }
    return fail(e, GM_CANCELLED, "the client disconnected");
}

gm_status worker_transcribe(worker *w, job *j, error *e) {
    const transcription_request *r = &j->request.transcription;
    const transcript_options options = { .language = r->language, .hint = r->prompt, .temperature = r->temperature };
    transcript               t = { 0 };
    transcription_answer     a = { .request = r };
    buffer                   out = { 0 };
    error                    inner = { 0 };
    gm_status status = transcript_start(&t, w->engine, w->session, &options, r->file.data, r->file.length, &inner);
    /* A bad file is here the client's sound, not our model. */
    if (status) status = fail(e, status == GM_BAD_FILE ? GM_BAD_ARGUMENT : status, "%s", inner.why);
    else status = worker_write_transcript(w, j, &t, &a, &out, e);
    transcription_answer_free(&a);
    buffer_free(&out);
    transcript_free(&t);
    return status;
}
