/* Base64 (RFC 4648), standard or URL-safe, with or without padding; white space inside is skipped. */

#ifndef GM_BASE64_H
#define GM_BASE64_H

#include "base/base.h"

/* Room for the bytes of a text of this length. */
static inline size_t base64_most(size_t length) { return length / 4 * 3 + 3; }

/* Decodes into `out`, which may be the text's own memory. Returns false, with *size set to the place of the first wrong character (or
 * the text's length if it ends in the middle of a byte). */
bool base64_decode(str text, void *out, size_t *size);

#endif
