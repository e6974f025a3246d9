/* Ids → text as it comes: the bytes of tokens join into whole UTF-8 characters. */

#include "text/tokenizer.h"
#include "base/utf8.h"

static const str replacement = { "\xef\xbf\xbd", 3 }; /* U+FFFD */

/* Moves what can no longer change from `held` to `out`: whole characters, and U+FFFD for each byte that can belong to none. At
 * most the beginning of one character stays. */
static gm_status move_whole(detokenizer *d, bool end, str *text, error *e) {
    size_t at = 0;
    while (at < d->held.length) {
        int n = utf8_length((str){ d->held.data + at, d->held.length - at });
        if (n < 0 && !end) break;
        if (n > 0) buffer_append(&d->out, d->held.data + at, (size_t)n);
        else buffer_str(&d->out, replacement);
        at += n > 0 ? (size_t)n : 1;
    }
    buffer_consume(&d->held, at);
    *text = buffer_view(&d->out);
    return d->held.failed || d->out.failed ? fail_memory(e, "the text of a token", d->out.length) : GM_OK;
}

gm_status detokenizer_add(detokenizer *d, const tokenizer *t, int32_t id, str *text, error *e) {
    buffer_clear(&d->out);
    if (tokenizer_is_visible(t, id)) buffer_str(&d->held, tokenizer_text(t, id));
    return move_whole(d, false, text, e);
}

gm_status detokenizer_end(detokenizer *d, str *text, error *e) {
    buffer_clear(&d->out);
    return move_whole(d, true, text, e);
}

void detokenizer_free(detokenizer *d) {
    buffer_free(&d->held);
    buffer_free(&d->out);
}
