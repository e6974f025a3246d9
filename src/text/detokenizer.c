/* Ids → text as it comes: the bytes of tokens join into whole UTF-8 characters. */

#include "text/tokenizer.h"
#include "base/utf8.h"

static const str replacement = { "\xef\xbf\xbd", 3 }; /* U+FFFD */

/* Moves what is settled from `held` to `out`: whole characters, and U+FFFD for each byte that can belong to none. At most
 * the beginning of one character stays. */
static void settle(detokenizer *d, bool end) {
    size_t at = 0;
    while (at < d->held.length) {
        int n = utf8_length((str){ d->held.data + at, d->held.length - at });
        if (n < 0 && !end) break;
        if (n > 0) buffer_append(&d->out, d->held.data + at, (size_t)n);
        else buffer_str(&d->out, replacement);
        at += n > 0 ? (size_t)n : 1;
    }
    buffer_consume(&d->held, at);
}

str detokenizer_add(detokenizer *d, const tokenizer *t, int32_t id) {
    buffer_clear(&d->out);
    if (tokenizer_is_visible(t, id)) buffer_str(&d->held, tokenizer_text(t, id));
    settle(d, false);
    return buffer_view(&d->out);
}

str detokenizer_end(detokenizer *d) {
    buffer_clear(&d->out);
    settle(d, true);
    return buffer_view(&d->out);
}

void detokenizer_free(detokenizer *d) {
    buffer_free(&d->held);
    buffer_free(&d->out);
}
