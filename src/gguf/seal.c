/* Checking the seal of a file: see gguf.h. */

#include "gguf/gguf.h"

#include <string.h>

gm_status gguf_seal_check(const gguf *g, gguf_seal *s, uint64_t most, error *e) {
    const source      *from = gguf_source(g, 0);
    const uint8_t     *bytes = source_whole(from), *said;
    const gguf_tensor *t = gguf_find_tensor(g, GGUF_SEAL);
    uint8_t            digest[GGUF_SEAL_BYTES];
    if (!bytes || !t || t->type != TYPE_I8 || t->bytes != sizeof digest || t->offset + t->bytes != source_length(from))
        return fail(e, GM_BAD_FILE, "the file is damaged: it does not end with a tensor '%s' of %zu bytes", GGUF_SEAL,
                    sizeof digest);
    if (!s->done) sha256_start(&s->hash);
    const uint64_t n = most < t->offset - s->done ? most : t->offset - s->done;
    sha256_add(&s->hash, bytes + s->done, (size_t)n);
    s->done += n;
    if (s->done < t->offset) return GM_AGAIN;
    said = bytes + t->offset;
    sha256_end(&s->hash, digest);
    if (!memcmp(digest, said, sizeof digest)) return GM_OK;
    return fail(e, GM_BAD_FILE, "the file is damaged: its contents do not match the digest at its end");
}
