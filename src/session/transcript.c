/* See transcript.h. */

#include "session/transcript.h"

#include "session/serving.h"
#include "session/session.h"

#include <string.h>

/* ---- the question ---- */

static void transcript_write_prompt(const transcript_options *o, buffer *out) {
    if (o->question) {
        buffer_text(out, o->question);
    } else {
        buffer_text(out, "Transcribe the speech ");
        if (o->language) buffer_printf(out, "in its original language, which is \"%s\".", o->language);
        else buffer_text(out, "in its original language.");
        buffer_text(out, " Answer with the transcript only.");
    }
    if (o->hint && *o->hint) buffer_printf(out, "\n%s", o->hint);
}

void transcript_free(transcript *t) {
    gm_reply_free(t->reply);
    sound_decoder_free(t->decoder);
    sound_free(&t->heard);
    buffer_free(&t->prompt);
    buffer_free(&t->text);
    *t = (transcript){ 0 };
}

/* ---- pieces ---- */

static gm_status transcript_begin_piece(transcript *t, error *e) {
    const float *samples = t->heard.samples + t->to;
    const size_t count = sound_piece(samples, t->heard.count - t->to);
    t->from = t->to;
    t->to += count;
    buffer_clear(&t->text);
    t->gap = false;
    const gm_part parts[] = {
        { .kind = GM_PART_AUDIO, .data = samples, .size = count * sizeof *samples, .rate = SOUND_RATE },
        { .text = t->prompt.data },
    };
    const gm_message       message = { .role = "user", .parts = parts, .part_count = COUNT_OF(parts) };
    const gm_reply_options options = { .sampling = &t->sampling, .max_tokens = t->most };
    char                   why[sizeof e->why] = "";
    const gm_status        status = gm_reply_start(t->session, &message, 1, &options, &t->reply, why, sizeof why);
    return status ? fail(e, status, "%s", why) : GM_OK;
}

gm_status transcript_start(transcript *t, gm_engine *engine, gm_session *session, const transcript_options *options,
                           const void *bytes, size_t size, error *e) {
    t->session = session;
    t->most = options->most ? options->most : TRANSCRIPT_PIECE_TOKENS;
    gm_sampling_default(engine, &t->sampling);
    t->sampling.temperature = options->temperature;
    transcript_write_prompt(options, &t->prompt);
    if (t->prompt.failed) return fail_memory(e, "the question about a sound", t->prompt.length);
    return session_open_sound(session, bytes, size, &t->decoder, e);
}

/* Hours of sound take seconds. */
static gm_status transcript_decode(transcript *t, error *e) {
    const gm_status status = sound_decoder_step(t->decoder, engine_deadline(t->session->engine), &t->heard, e);
    if (status) return status;
    sound_decoder_free(t->decoder);
    t->decoder = NULL;
    return GM_OK;
}

/* A piece's text becomes one line: a blank line would end a subtitle. */
static void transcript_add_text(transcript *t, str text) {
    for (size_t i = 0; i < text.length; i++) {
        const char c = text.data[i];
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            t->gap = t->text.length != 0;
            continue;
        }
        if (t->gap) buffer_char(&t->text, ' ');
        t->gap = false;
        buffer_char(&t->text, c);
    }
}

static void transcript_end_piece(transcript *t) {
    gm_reply_stats stats;
    gm_reply_get_stats(t->reply, &stats);
    t->sums.prompt_tokens += stats.prompt_tokens;
    t->sums.cached_tokens += stats.cached_tokens;
    t->sums.reply_tokens += stats.reply_tokens;
    t->sums.prompt_seconds += stats.prompt_seconds;
    t->sums.reply_seconds += stats.reply_seconds;
    t->pieces++;
    gm_reply_free(t->reply);
    t->reply = NULL;
}

gm_status transcript_next(transcript *t, error *e) {
    gm_piece piece = { 0 };
    char     why[sizeof e->why] = "";
    if (t->decoder) {
        const gm_status decoded = transcript_decode(t, e);
        return decoded ? decoded : GM_AGAIN;
    }
    if (!t->reply && t->to == t->heard.count) return GM_DONE;
    if (!t->reply) TRY(transcript_begin_piece(t, e));
    const gm_status status = gm_reply_next(t->reply, &piece, why, sizeof why);
    if (status == GM_AGAIN) return status;
    gm_reply_stats stats;
    gm_reply_get_stats(t->reply, &stats);
    const bool full = status == GM_CONTEXT_FULL && stats.finish == GM_FINISH_LENGTH; /* truncated, but an answer */
    if (status && status != GM_DONE && !full) return fail(e, status, "%s", why);
    if (!status && piece.kind == GM_PIECE_CONTENT) transcript_add_text(t, (str){ piece.text, piece.length });
    if (t->text.failed) return fail_memory(e, "the transcript", t->text.length);
    if (!status) return GM_AGAIN;
    transcript_end_piece(t);
    return GM_OK;
}

/* ---- formats ---- */

static void transcript_write_time(size_t samples, char point, buffer *out) {
    const uint64_t ms = (uint64_t)samples * 1000 / SOUND_RATE;
    buffer_printf(out, "%02u:%02u:%02u%c%03u", (unsigned)(ms / 3600000), (unsigned)(ms / 60000 % 60),
                  (unsigned)(ms / 1000 % 60), point, (unsigned)(ms % 1000));
}

const char *transcript_head(transcript_format format) { return format == TRANSCRIPT_VTT ? "WEBVTT\n\n" : ""; }

/* WebVTT has tags and entities. */
static void transcript_write_escaped(str text, buffer *out) {
    for (size_t i = 0; i < text.length; i++) {
        const char c = text.data[i];
        if (c == '&') buffer_text(out, "&amp;");
        else if (c == '<') buffer_text(out, "&lt;");
        else if (c == '>') buffer_text(out, "&gt;");
        else buffer_char(out, c);
    }
}

void transcript_write_piece(transcript_format format, size_t number, size_t from, size_t to, str text, buffer *out) {
    if (format != TRANSCRIPT_TEXT) {
        const char point = format == TRANSCRIPT_SRT ? ',' : '.';
        if (format == TRANSCRIPT_SRT) buffer_printf(out, "%zu\n", number);
        transcript_write_time(from, point, out);
        buffer_text(out, " --> ");
        transcript_write_time(to, point, out);
        buffer_char(out, '\n');
    }
    if (format == TRANSCRIPT_VTT) transcript_write_escaped(text, out);
    else buffer_str(out, text);
    buffer_text(out, format == TRANSCRIPT_TEXT ? "\n" : "\n\n");
}
