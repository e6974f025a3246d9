/* See transcription_answer.h. */

#include "serve/transcription_answer.h"

#include "base/json.h"

#include <math.h>

void transcription_answer_free(transcription_answer *a) {
    buffer_free(&a->text);
    buffer_free(&a->segments);
}

bool transcription_answer_failed(const transcription_answer *a) { return a->text.failed || a->segments.failed; }

const char *transcription_type(transcription_format format) {
    static const char *const types[] = { [TRANSCRIPTION_JSON] = "application/json",
                                         [TRANSCRIPTION_TEXT] = "text/plain; charset=utf-8",
                                         [TRANSCRIPTION_SRT] = "application/x-subrip; charset=utf-8",
                                         [TRANSCRIPTION_VTT] = "text/vtt; charset=utf-8",
                                         [TRANSCRIPTION_VERBOSE] = "application/json" };
    return types[format];
}

static transcript_format transcription_lines(transcription_format format) {
    return format == TRANSCRIPTION_SRT   ? TRANSCRIPT_SRT
           : format == TRANSCRIPTION_VTT ? TRANSCRIPT_VTT
                                         : TRANSCRIPT_TEXT;
}

/* ---- pieces ---- */

/* The model tells no times within a piece, so a piece is a segment. Whisper's other figures do not exist here. */
static void transcription_add_segment(transcription_answer *a, const transcript *t) {
    const str text = buffer_view(&t->text);
    buffer   *out = &a->segments;
    a->count++;
    if (a->request->format != TRANSCRIPTION_VERBOSE) {
        transcript_write_piece(transcription_lines(a->request->format), a->count, t->from, t->to, text, out);
        return;
    }
    buffer_printf(out, "%s{\"id\":%zu,\"seek\":%zu,\"start\":", a->count > 1 ? "," : "", a->count - 1,
                  t->from * 100 / SOUND_RATE);
    json_write_number(out, transcript_seconds(t->from));
    buffer_text(out, ",\"end\":");
    json_write_number(out, transcript_seconds(t->to));
    buffer_text(out, ",\"text\":");
    json_write_string(out, text);
    buffer_text(out, ",\"temperature\":");
    json_write_number(out, (double)a->request->temperature);
    buffer_char(out, '}');
}

void transcription_answer_step(transcription_answer *a, const transcript *t, bool complete, buffer *out) {
    const size_t before = a->text.length;
    if (a->taken < t->text.length) {
        if (!a->taken && a->text.length) buffer_char(&a->text, ' ');
        buffer_append(&a->text, t->text.data + a->taken, t->text.length - a->taken);
        a->taken = t->text.length;
    }
    if (a->request->stream && a->text.length > before && !a->text.failed) {
        buffer_text(out, "data: {\"type\":\"transcript.text.delta\",\"delta\":");
        json_write_string(out, (str){ a->text.data + before, a->text.length - before });
        buffer_text(out, "}\n\n");
    }
    if (!complete) return;
    if (t->text.length) transcription_add_segment(a, t);
    a->taken = 0;
}

/* ---- the end ---- */

static void transcription_write_usage(const transcript *t, buffer *out) {
    const gm_reply_stats *s = &t->sums;
    buffer_printf(out,
                  "\"usage\":{\"type\":\"tokens\",\"input_tokens\":%zu,\"output_tokens\":%zu,\"total_tokens\":%zu}",
                  s->prompt_tokens, s->reply_tokens, s->prompt_tokens + s->reply_tokens);
}

static void transcription_write_verbose(const transcription_answer *a, const transcript *t, buffer *out) {
    const double seconds = transcript_seconds(t->heard.count);
    buffer_text(out, "{\"task\":\"transcribe\",\"language\":");
    json_write_string(out, str_of(a->request->language ? a->request->language : ""));
    buffer_text(out, ",\"duration\":");
    json_write_number(out, seconds);
    buffer_text(out, ",\"text\":");
    json_write_string(out, buffer_view(&a->text));
    buffer_text(out, ",\"segments\":[");
    buffer_str(out, buffer_view(&a->segments));
    buffer_printf(out, "],\"usage\":{\"type\":\"duration\",\"seconds\":%.0f}}\n", ceil(seconds));
}

void transcription_answer_end(transcription_answer *a, const transcript *t, buffer *out) {
    const transcription_format format = a->request->format;
    if (format == TRANSCRIPTION_VERBOSE) {
        transcription_write_verbose(a, t, out);
    } else if (a->request->stream || format == TRANSCRIPTION_JSON) {
        buffer_text(out, a->request->stream ? "data: {\"type\":\"transcript.text.done\",\"text\":" : "{\"text\":");
        json_write_string(out, buffer_view(&a->text));
        buffer_char(out, ',');
        transcription_write_usage(t, out);
        buffer_text(out, a->request->stream ? "}\n\ndata: [DONE]\n\n" : "}\n");
    } else {
        buffer_text(out, transcript_head(transcription_lines(format)));
        buffer_str(out, buffer_view(&a->segments));
    }
}
