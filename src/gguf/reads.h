/* Bytes that somebody waits for. Who needs some of a source that has them not in memory asks and gets a ticket; whoever drives
 * the engine takes the orders, reads wherever the source is, and answers each ticket, in any order. Nothing here calls out.
 *
 * The bytes go to memory, or into a buffer of the GPU, which the host writes itself: weights need not pass through our memory.
 * A ticket that is dropped is forgotten; its late answer is recognised by its generation and changes nothing. */

#ifndef GM_READS_H
#define GM_READS_H

#include "gguf/source.h"

enum { READS_MOST = 64, READ_BYTES_MOST = 16 << 20 };

typedef struct {
    source  *from;
    uint64_t offset, length; /* at most READ_BYTES_MOST */
    void    *memory; /* where the bytes go; NULL: into the GPU's buffer, filled up with zeros to a multiple of 4 */
    uint32_t buffer;
    uint64_t at; /* in the buffer */
} read_order;

typedef struct reads reads;

gm_status reads_new(reads **out, error *e);
void      reads_free(reads *r);

/* ---- who asks ---- */

/* A ticket; 0: READS_MOST are under way, ask again later. */
uint32_t reads_ask(reads *r, const read_order *order);
/* GM_AGAIN until the bytes are there; then the ticket is used up, as after an error. */
gm_status reads_take(reads *r, uint32_t ticket, error *e);
void      reads_drop(reads *r, uint32_t ticket); /* 0 is fine */

/* ---- who answers ---- */

/* The next order that nobody was given yet; 0: none. */
uint32_t reads_next(reads *r, read_order *out);
/* The order of a ticket while it is waited for; NULL: it was dropped, or never given. */
const read_order *reads_order(const reads *r, uint32_t ticket);
/* `status` GM_OK: the bytes are where they belong. Else `why` says what went wrong. Unknown tickets are ignored. */
void reads_answer(reads *r, uint32_t ticket, gm_status status, const char *why);

#endif
