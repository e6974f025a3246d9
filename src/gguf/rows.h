/* Rows of a table that stays in its source. Each run fetches the rows it needs, in the format of the file. */

#ifndef GM_ROWS_H
#define GM_ROWS_H

#include "gguf/reads.h"

typedef struct {
    reads   *reads;
    source  *from;
    uint64_t offset, row; /* the table's offset in its source, and the bytes of a row */
    uint8_t *memory;      /* [capacity, row] */
    size_t   capacity;
    uint32_t tickets[READS_MOST];
    size_t   asked, arrived; /* rows of the current fetch */
} table_rows;                /* set source, offset and row; zero the rest */

/* Fetches the rows of `n` valid ids into memory (row 0 for an id below 0). The ids are `stride` words apart. GM_AGAIN: call again
 * with the same ids. After GM_OK or an error the next call starts another fetch. */
gm_status table_rows_fetch(table_rows *t, const int32_t *ids, size_t stride, size_t n, error *e);
void      table_rows_restart(table_rows *t); /* abandons an unfinished fetch */
void      table_rows_free(table_rows *t);

#endif
