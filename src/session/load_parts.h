/* Inside of load.c and fit.c: an engine that is being opened. */

#ifndef GM_LOAD_PARTS_H
#define GM_LOAD_PARTS_H

#include "session/load.h"
#include "session/self_check.h"

struct engine_load {
    gm_engine        *engine; /* as far as it is; NULL once it was taken */
    source          **others; /* parts behind the first */
    size_t            other_count, others_given;
    gm_engine_options options;
    engine_origin     origin;
    arena             memory;    /* their strings */
    bool              automatic; /* the backend was left to us: what the GPU cannot do, the CPU does */
    uint64_t          most_memory;
    size_t            stage;
    double            stage_started;

    uint8_t    *piece; /* of the header, on its way */
    uint32_t    piece_ticket;
    uint64_t    header_done;
    uint64_t    expected; /* bytes of weights, before it is known which ones the GPU gets */
    model_fetch fetch;
    model_hash  hash, projector_hash;
    self_check *check;
    bool        checked, uploaded; /* the GPU, and the weights to it */
    bool        busy;              /* the next step need not wait for anything */
};

/* Not all of it is in memory: what is wanted is read. */
bool load_in_pieces(const gguf *file);

#endif
