/* Rows of a table that stays in its source: fetched by id for each run, as they lie in the file. */

#ifndef GM_ROWS_H
#define GM_ROWS_H

#include "gguf/reads.h"

typedef struct {
    reads   *reads;
    source  *from;
    uint64_t offset, row; /* of the table, and the bytes of a row */
    uint8_t *memory;      /* [capacity, row] */
    size_t   capacity;
    uint32_t tickets[READS_MOST];
    size_t   asked, arrived; /* of the fetch that is under way: rows */
} table_rows;                /* memory, capacity and the rest: zero at first */

/* GM_AGAIN until memory holds the rows of the `n` ids, which must be those of the table (row 0 where one is below 0): call again
 * with the same ids. After a GM_OK or an error the next call is another fetch. */
gm_status table_rows_fetch(table_rows *t, const int32_t *ids, size_t n, error *e);
void      table_rows_restart(table_rows *t); /* forgets a fetch that was not finished */
void      table_rows_free(table_rows *t);

#endif
