#include "gguf/reads.h"

#include <stdlib.h>

typedef enum { SLOT_FREE, SLOT_ASKED, SLOT_GIVEN, SLOT_ANSWERED } slot_state;

typedef struct {
    slot_state state;
    uint32_t   ticket, turn; /* turn: counts requests, oldest first */
    read_order order;
    error      problem;
} slot;

struct reads {
    slot     slots[READS_MOST];
    uint32_t turns;
};

gm_status reads_new(reads **out, error *e) {
    *out = calloc(1, sizeof **out);
    return *out ? GM_OK : fail_memory(e, "the table of reads", sizeof **out);
}

void reads_free(reads *r) { free(r); }

/* A ticket encodes its slot and the slot's generation. */
static slot *reads_slot(const reads *r, uint32_t ticket) {
    const slot *s = &r->slots[ticket % READS_MOST];
    return ticket && s->state != SLOT_FREE && s->ticket == ticket ? (slot *)s : NULL;
}

uint32_t reads_ask(reads *r, const read_order *order) {
    for (uint32_t i = 0; i < READS_MOST; i++) {
        slot *s = &r->slots[i];
        if (s->state != SLOT_FREE) continue;
        const uint32_t generation = s->ticket / READS_MOST + 1;
        *s = (slot){ .state = SLOT_ASKED, .turn = r->turns++, .order = *order };
        s->ticket = generation * READS_MOST + i;
        if (!s->ticket) s->ticket = READS_MOST + i; /* the generation wrapped around; 0 is not a ticket */
        return s->ticket;
    }
    return 0;
}

gm_status reads_take(reads *r, uint32_t ticket, error *e) {
    slot *s = reads_slot(r, ticket);
    if (!s) return fail(e, GM_BAD_ARGUMENT, "there is no read with this ticket");
    if (s->state != SLOT_ANSWERED) return GM_AGAIN;
    s->state = SLOT_FREE;
    return s->problem.status ? fail(e, s->problem.status, "%s", s->problem.why) : GM_OK;
}

void reads_drop(reads *r, uint32_t ticket) {
    slot *s = r ? reads_slot(r, ticket) : NULL;
    if (s) s->state = SLOT_FREE;
}

uint32_t reads_next(reads *r, read_order *out) {
    slot *first = NULL;
    for (uint32_t i = 0; i < READS_MOST; i++) {
        slot *s = &r->slots[i];
        if (s->state == SLOT_ASKED && (!first || (int32_t)(s->turn - first->turn) < 0)) first = s;
    }
    if (!first) return 0;
    first->state = SLOT_GIVEN;
    *out = first->order;
    return first->ticket;
}

const read_order *reads_order(const reads *r, uint32_t ticket) {
    const slot *s = reads_slot(r, ticket);
    return s && s->state == SLOT_GIVEN ? &s->order : NULL;
}

void reads_answer(reads *r, uint32_t ticket, gm_status status, const char *why) {
    slot *s = reads_slot(r, ticket);
    if (!s || s->state != SLOT_GIVEN) return;
    s->state = SLOT_ANSWERED;
    if (status) fail(&s->problem, status, "%s", why && *why ? why : "the bytes cannot be read");
}
