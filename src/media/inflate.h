/* Inflate (RFC 1951) inside a zlib stream (RFC 1950), read piece by piece: memory is a window of fixed size, whatever the stream
 * claims to contain. */

#ifndef GM_INFLATE_H
#define GM_INFLATE_H

#include "base/base.h"

enum { INFLATE_WINDOW = 32768, INFLATE_PRIMARY_BITS = 10, INFLATE_LONGEST_CODE = 15 };

/* A Huffman code. Codes of up to INFLATE_PRIMARY_BITS bits are in a table; longer ones are found by counting (RFC 1951, 3.2.2). */
typedef struct {
    uint16_t primary[1 << INFLATE_PRIMARY_BITS]; /* symbol · 16 + length; 0: a longer code, or none */
    uint16_t counts[INFLATE_LONGEST_CODE + 1];   /* codes of each length */
    uint16_t symbols[288];                       /* in the order of their codes */
} inflate_code;

/* Gives the next piece of the compressed stream: false at its end. */
typedef bool (*inflate_next)(void *user, const uint8_t **data, size_t *size);

typedef struct {
    const uint8_t *data, *end; /* the current piece */
    inflate_next   next;
    void          *user;
    uint64_t       bits;
    uint32_t       bit_count;
    enum { INFLATE_HEADER, INFLATE_STORED, INFLATE_CODED, INFLATE_BETWEEN, INFLATE_ENDED } state;
    bool         last; /* no block follows the current one */
    uint32_t     stored_left;
    uint32_t     adler_a, adler_b;
    size_t       made, taken; /* bytes in `window`: decoded, and already read */
    inflate_code literals, distances;
    uint8_t      window[3 * INFLATE_WINDOW]; /* the last 32 KiB, and what was decoded since */
} inflate;

void inflate_start(inflate *s, inflate_next next, void *user);

/* Reads exactly n bytes; fewer are an error. */
gm_status inflate_read(inflate *s, uint8_t *out, size_t n, error *e);

/* Expects the end of the stream, and checks its checksum. What follows the n bytes that were wanted is skipped, as Pillow does,
 * at most 1 MiB of it. */
gm_status inflate_end(inflate *s, error *e);

#endif
