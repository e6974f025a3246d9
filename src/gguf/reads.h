/* Read requests for sources that are not in memory. The engine asks for a range and gets a ticket. Whoever drives the engine
 * takes the orders, reads the bytes from wherever they are, and answers each ticket, in any order. Nothing here calls out.
 *
 * The bytes go into memory, or into a GPU buffer that the host fills itself, so that weights need not pass through our memory.
 * A dropped ticket is forgotten: its generation tells a late answer from a current one, and late answers are ignored. */

#ifndef GM_READS_H
#define GM_READS_H

#include "gguf/source.h"

enum { READS_MOST = 64, READ_BYTES_MOST = 16 << 20 };

typedef struct {
    source  *from;
    uint64_t offset, length; /* at most READ_BYTES_MOST */
    void    *memory;         /* where the bytes go; NULL: into the GPU buffer, padded with zeros to a multiple of 4 */
    uint32_t buffer;
    uint64_t at; /* in the buffer */
} read_order;

typedef struct reads reads;

gm_status reads_new(reads **out, error *e);
void      reads_free(reads *r);

/* ---- for the engine ---- */

/* Returns a ticket, or 0 if READS_MOST reads are under way: ask again later. */
uint32_t reads_ask(reads *r, const read_order *order);
/* GM_AGAIN until the bytes have arrived. GM_OK and errors use the ticket up. */
gm_status reads_take(reads *r, uint32_t ticket, error *e);
void      reads_drop(reads *r, uint32_t ticket); /* 0 is fine */

/* ---- for the host ---- */

/* The oldest order not handed out yet; 0: none. */
uint32_t reads_next(reads *r, read_order *out);
/* The order of a ticket that still waits; NULL: it was dropped or never handed out. */
const read_order *reads_order(const reads *r, uint32_t ticket);
/* GM_OK: the bytes are in place. Otherwise `why` says what went wrong. Unknown tickets are ignored. */
void reads_answer(reads *r, uint32_t ticket, gm_status status, const char *why);

#endif
