/* An example as the model sees it, with what counts marked. */

#include "train/data_parts.h"

#include "base/utf8.h"

/* Control characters of a file must not control a terminal. Bytes that are not UTF-8 become U+FFFD. */
static void preview_text(str text, buffer *out) {
    for (size_t at = 0; at < text.length;) {
        const int      n = utf8_length((str){ text.data + at, text.length - at });
        const uint32_t code = n > 0 ? utf8_decode(text.data + at, n) : 0xfffd;
        const bool     control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
        if (n > 0 && !control) buffer_append(out, text.data + at, (size_t)n);
        else buffer_text(out, "\xef\xbf\xbd");
        at += n > 0 ? (size_t)n : 1;
    }
}

/* The soft tokens of a picture are one token many times. */
static size_t preview_repeats(const data_sequence *s, size_t at) {
    for (size_t i = 0; i < s->media_count; i++) {
        if (s->media[i].at == at) return min_size(s->media[i].count, s->count - at);
    }
    return 1;
}

void data_preview(const tokenizer *words, const data_sequence *s, const char *on, const char *off, buffer *out) {
    buffer run = { 0 };
    for (size_t at = 0, n; at < s->count;) {
        const bool counts = s->weights[at] != 0;
        buffer_clear(&run);
        for (; at < s->count && (s->weights[at] != 0) == counts; at += n) {
            buffer_str(&run, tokenizer_text(words, s->ids[at]));
            n = preview_repeats(s, at);
            if (n > 1) buffer_printf(&run, "\xc3\x97%zu", n);
        }
        if (counts) buffer_text(out, on);
        preview_text(buffer_view(&run), out);
        if (counts) buffer_text(out, off);
    }
    if (run.failed) out->failed = true;
    buffer_free(&run);
}
