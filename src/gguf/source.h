/* Where the bytes of a file come from: memory, a mapped file, or pieces that the host hands in on request.
 *
 * Nothing here calls out for bytes. A complete source (memory, mapped file) answers source_bytes at once. A source in pieces
 * returns NULL and notes the range it lacks; whoever drives the job reads that range, hands it in with source_give, and
 * continues the job. */

#ifndef GM_SOURCE_H
#define GM_SOURCE_H

#include "base/base.h"

enum { SOURCE_PIECE = 1 << 20 }; /* the longest range wanted at a time */

typedef struct source source;

/* The bytes must outlive the source. */
gm_status source_memory(const void *data, uint64_t length, source **out, error *e);
/* Maps the file for reading. The error names the path. Directories and devices are refused. */
gm_status source_file(const char *path, source **out, error *e);
/* A file of `length` bytes that arrives in pieces. */
gm_status source_pieces(uint64_t length, source **out, error *e);
void      source_free(source *s);

uint64_t source_length(const source *s);

/* The whole file in memory; NULL for a source in pieces. */
const uint8_t *source_whole(const source *s);
/* The longest range wanted at a time: SOURCE_PIECE, unless a host with its own buffer size, or a test, sets another. */
uint64_t source_piece(const source *s);
void     source_set_piece(source *s, uint64_t bytes);

/* `length` bytes at `offset`, valid as long as the source (memory, mapped) or until source_drop (pieces). NULL if they have not
 * arrived yet: then source_wanted says what to hand in. The range must lie inside the file. */
const uint8_t *source_bytes(source *s, uint64_t offset, uint64_t length);
/* The range that the last source_bytes lacked, at most SOURCE_PIECE bytes. False: none. */
bool source_wanted(const source *s, uint64_t *offset, uint64_t *length);
/* Hands in exactly the range wanted; anything else is GM_BAD_ARGUMENT. Copies the bytes. */
gm_status source_give(source *s, uint64_t offset, const void *data, uint64_t length, error *e);
/* Like source_bytes, but does not ask for missing bytes. */
const uint8_t *source_held(const source *s, uint64_t offset, uint64_t length);
/* Allocates memory for a range of a source in pieces. The range counts as held from now on: the caller must fill it (reads.h)
 * before anyone looks. Kept until source_drop. NULL: no memory. */
uint8_t *source_room(source *s, uint64_t offset, uint64_t length, error *e);
/* Forgets pieces that lie wholly before `offset`. */
void source_drop(source *s, uint64_t offset);
/* Forgets pieces that lie wholly in this range. */
void source_forget(source *s, uint64_t offset, uint64_t length);

/* Tells the system that the whole of a mapped file will be read soon. */
void source_will_need(source *s);
/* Tells it that this range of a mapped file will not be read again soon, so that a file that is read once takes little memory. */
void source_is_read(source *s, uint64_t offset, uint64_t length);

#endif
