/* Takes states of a trainer out and in. Each of these jobs goes over pieces, a state of a part at a time; a GPU answers later. */

#include "train/trainer_parts.h"

#include <stdlib.h>
#include <string.h>

/* All that steps change, and the gradients. */
static const train_state all_states[] = { TRAIN_VALUES, TRAIN_MOMENT_1, TRAIN_MOMENT_2 };

typedef struct mover mover;
struct mover {
    trainer           *t;
    train_move         kind;
    const train_state *states; /* of every part */
    size_t             count;
    gm_status (*step)(mover *m, const train_part *part, train_state what, error *e);
    double       deadline;
    float       *out; /* READ */
    const float *in;  /* WRITE */
    adapter     *into;
    train_reduce reduce;
    void        *user;
};

static gm_status move_all(mover *m, error *e) {
    trainer *t = m->t;
    if (t->phase != TRAIN_IDLE) return fail(e, GM_BAD_ARGUMENT, "a run is not finished");
    if (t->move.kind != m->kind) {
        t->move.kind = m->kind;
        t->move.count = m->count;
        memcpy(t->move.states, m->states, m->count * sizeof *m->states);
        t->move.at = t->move.done = 0;
        t->move.reduced = false;
        if (t->backend->restart) t->backend->restart(t);
    }
    for (; t->move.at < m->count * t->parameters.count; t->move.at++) {
        const train_part *part = &t->parameters.parts[t->move.at / m->count];
        if (!part->pair) continue;
        const gm_status status = m->step(m, part, m->states[t->move.at % m->count], e);
        if (status && status != GM_AGAIN) t->move.kind = MOVE_NONE;
        if (status) return status;
        t->move.done += (size_t)part->size;
    }
    t->move.kind = MOVE_NONE;
    return GM_OK;
}

size_t trainer_state_size(const trainer *t) {
    size_t size = 0;
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        size += part->pair ? COUNT_OF(all_states) * (size_t)part->size : 0;
    }
    return size;
}

static gm_status move_out(mover *m, const train_part *part, train_state what, error *e) {
    const float    *values;
    const gm_status status = m->t->backend->fetch(m->t, part, what, &values, m->deadline, e);
    if (!status) memcpy(m->out + m->t->move.done, values, (size_t)part->size * sizeof *values);
    return status;
}

gm_status trainer_read_state(trainer *t, float *out, double deadline, error *e) {
    mover m = { t, MOVE_READ, all_states, COUNT_OF(all_states), move_out, deadline, .out = out };
    return move_all(&m, e);
}

static gm_status move_in(mover *m, const train_part *part, train_state what, error *e) {
    return m->t->backend->put(m->t, part, what, m->in + m->t->move.done, m->deadline, e);
}

gm_status trainer_write_state(trainer *t, const float *state, double deadline, error *e) {
    mover m = { t, MOVE_WRITE, all_states, COUNT_OF(all_states), move_in, deadline, .in = state };
    return move_all(&m, e);
}

void trainer_state_adapter(const trainer *t, const float *state, adapter *into) {
    for (size_t i = 0; i < t->parameters.count; i++) {
        const train_part *part = &t->parameters.parts[i];
        if (!part->pair) continue;
        const adapter_pair *pair = adapter_find(into, part->pair->base);
        if (pair) train_part_store(&t->parameters, part, TRAIN_VALUES, state, pair);
        state += COUNT_OF(all_states) * (size_t)part->size;
    }
    adapter_hash(into);
}

static gm_status move_into_pair(mover *m, const train_part *part, train_state what, error *e) {
    const adapter_pair *pair = adapter_find(m->into, part->pair->base);
    const float        *values;
    if (!pair) return GM_OK;
    const gm_status status = m->t->backend->fetch(m->t, part, what, &values, m->deadline, e);
    if (!status) train_part_store(&m->t->parameters, part, what, values, pair);
    return status;
}

gm_status trainer_store(trainer *t, train_state what, adapter *into, double deadline, error *e) {
    mover           m = { t, MOVE_STORE, &what, 1, move_into_pair, deadline, .into = into };
    const gm_status status = move_all(&m, e);
    if (!status) adapter_hash(into);
    return status;
}

float *trainer_scratch(trainer *t, error *e) {
    size_t most = 1;
    for (size_t i = 0; i < t->parameters.count; i++) most = max_size(most, (size_t)t->parameters.parts[i].size);
    if (!t->move.scratch) t->move.scratch = trainer_alloc(t, most, sizeof *t->move.scratch, e);
    return t->move.scratch;
}

static gm_status move_reduced(mover *m, const train_part *part, train_state what, error *e) {
    trainer     *t = m->t;
    const size_t size = (size_t)part->size;
    if (!t->move.reduced) {
        const float    *values;
        const gm_status status = t->backend->fetch(t, part, what, &values, m->deadline, e);
        if (status) return status;
        memcpy(t->move.scratch, values, size * sizeof *values);
        TRY(m->reduce(m->user, t->move.scratch, size, e));
        t->move.reduced = true;
    }
    const gm_status status = t->backend->put(t, part, what, t->move.scratch, m->deadline, e);
    if (!status) t->move.reduced = false;
    return status;
}

gm_status trainer_reduce(trainer *t, train_reduce reduce, void *user, double deadline, error *e) {
    static const train_state gradients[] = { TRAIN_GRADIENT };
    mover m = { t, MOVE_REDUCE, gradients, 1, move_reduced, deadline, .reduce = reduce, .user = user };
    return trainer_scratch(t, e) ? move_all(&m, e) : e->status;
}
