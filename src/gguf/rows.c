#include "gguf/rows.h"

#include <stdlib.h>

void table_rows_restart(table_rows *t) {
    for (; t->arrived < t->asked; t->arrived++) reads_drop(t->reads, t->tickets[t->arrived % READS_MOST]);
    t->asked = t->arrived = 0;
}

void table_rows_free(table_rows *t) {
    table_rows_restart(t);
    free(t->memory);
    t->memory = NULL;
    t->capacity = 0;
}

static gm_status rows_make_room(table_rows *t, size_t n, error *e) {
    if (n <= t->capacity) return GM_OK;
    uint64_t bytes;
    uint8_t *memory = mul_u64(n, t->row, &bytes) && bytes <= SIZE_MAX ? realloc(t->memory, (size_t)bytes) : NULL;
    if (!memory) return fail_memory(e, "a batch's rows of a table", n * t->row);
    t->memory = memory;
    t->capacity = n;
    return GM_OK;
}

gm_status table_rows_fetch(table_rows *t, const int32_t *ids, size_t stride, size_t n, error *e) {
    gm_status status = GM_OK;
    if (!t->asked) TRY(rows_make_room(t, n, e));
    while (!status && t->arrived < n) {
        for (; t->asked < n && t->asked - t->arrived < READS_MOST; t->asked++) {
            const int32_t    id = ids[t->asked * stride];
            const read_order order = { .from = t->from,
                                       .offset = t->offset + (uint64_t)(id < 0 ? 0 : id) * t->row,
                                       .length = t->row,
                                       .memory = t->memory + t->asked * t->row };
            const uint32_t   ticket = reads_ask(t->reads, &order);
            if (!ticket) break;
            t->tickets[t->asked % READS_MOST] = ticket;
        }
        if (t->asked == t->arrived) return GM_AGAIN; /* other readers hold all tickets */
        status = reads_take(t->reads, t->tickets[t->arrived % READS_MOST], e);
        if (status == GM_AGAIN) return status;
        t->arrived++;
    }
    table_rows_restart(t);
    return status;
}
