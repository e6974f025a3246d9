/* Where the bytes of a file come from: memory, a mapped file, or pieces that the host hands in on request.
 *
 * Nothing here calls out for bytes. A source that has everything (memory, mapped) answers source_bytes at once. A source in
 * pieces answers NULL and notes what is wanted; whoever drives the job reads that range from wherever it is, hands it in
 * with source_give, and lets the job go on. */

#ifndef GM_SOURCE_H
#define GM_SOURCE_H

#include "base/base.h"

enum { SOURCE_PIECE = 1 << 20 }; /* the most that is wanted at a time */

typedef struct source source;

/* The bytes must outlive the source. */
gm_status source_memory(const void *data, uint64_t length, source **out, error *e);
/* Maps the file for reading. The error names the path. Directories and devices are refused. */
gm_status source_file(const char *path, source **out, error *e);
/* A file of `length` bytes that arrives in pieces. */
gm_status source_pieces(uint64_t length, source **out, error *e);
void      source_free(source *s);

uint64_t source_length(const source *s);

/* All of the file where it lies in memory; NULL for a source in pieces. */
const uint8_t *source_whole(const source *s);
/* The most that is wanted at a time: SOURCE_PIECE unless set otherwise (a host with its own buffer size, tests). */
uint64_t source_piece(const source *s);
void     source_set_piece(source *s, uint64_t bytes);

/* `length` bytes at `offset`, valid while the source lives (memory, mapped) or until source_drop (pieces). NULL when they
 * are not there yet: then source_wanted says what to hand in. The range must lie inside the file. */
const uint8_t *source_bytes(source *s, uint64_t offset, uint64_t length);
/* What the last source_bytes that returned NULL lacks: a range of at most SOURCE_PIECE bytes. false: nothing. */
bool source_wanted(const source *s, uint64_t *offset, uint64_t *length);
/* Answers the range wanted, exactly; anything else is GM_BAD_ARGUMENT. The bytes are copied. */
gm_status source_give(source *s, uint64_t offset, const void *data, uint64_t length, error *e);
/* The same as source_bytes, but nothing is wanted when they are not there. */
const uint8_t *source_held(const source *s, uint64_t offset, uint64_t length);
/* Memory for this range of a source in pieces, which counts as held from now on: whoever asked fills it (reads.h) before anyone
 * looks. Kept until source_drop. NULL: no memory. */
uint8_t *source_room(source *s, uint64_t offset, uint64_t length, error *e);
/* Forgets pieces that lie wholly before `offset`. */
void source_drop(source *s, uint64_t offset);

/* Tells the system that the whole of a mapped file will be read soon. */
void source_will_need(source *s);

#endif
