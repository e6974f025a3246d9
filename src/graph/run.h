/* The inputs of one run of a graph, the same for every backend: a record for each token, and what else the run needs.
 *
 * A token's record says who it is, where its keys and values go, and what it sees. Causal text, windows, images whose tokens see
 * each other, a canvas that sees a prefix and all of itself, drafts whose position stands still: they differ only in their records.
 * Kernels read what a token sees from its record and know nothing else about it. wgsl/run.wgsl has the same structure. */

#ifndef GM_GRAPH_RUN_H
#define GM_GRAPH_RUN_H

#include "base/base.h"

#define RUN_NOWHERE UINT32_MAX

/* A sequence numbers the tokens whose keys and values it stores from 0 on: these numbers are indices here. Full layers keep all of
 * them: index p is in slot prefix + p if p < shared, otherwise in slot own + p, modulo 2^32. Sliding layers keep the latest in a
 * ring: index p is in slot ring + p mod ring_slots.
 *
 * A span is a stretch of rows of the run that belong to one sequence. Within a span all records have the same sequence and the same
 * slots, and what a token sees never moves back: neither its first index nor its last decreases from row to row. */
typedef struct {
    int32_t  id;       /* below 0: a soft token, row −1−id of the rows that the run passes in */
    uint32_t position; /* for RoPE */
    uint32_t sequence;
    uint32_t adapter;                     /* the row of the table of sets (LORA_SHRINK); 0: none */
    uint32_t at;                          /* the index that its keys and values get; RUN_NOWHERE: they are not stored */
    uint32_t span_first, span_count;      /* the rows of its span */
    uint32_t full_first, full_last;       /* the indices that it sees in full layers, both inclusive */
    uint32_t sliding_first, sliding_last; /* the same in sliding layers; at most ring_slots of them */
    uint32_t shared, prefix, own;         /* slots in full layers */
    uint32_t ring, ring_slots;            /* slots in sliding layers */
} token_record;

enum { RUN_HEADER_WORDS = 4, RECORD_WORDS = 16 }; /* of the buffer that GPU kernels read: wgsl/run.wgsl */
_Static_assert(sizeof(token_record) == RECORD_WORDS * sizeof(uint32_t), "kernels expect a record of 16 words");

typedef struct {
    const token_record *records; /* [tokens] */
    size_t              tokens;
    const int32_t      *output_rows; /* [outputs]: the tokens whose outputs are wanted; ascending */
    size_t              outputs;
    const float        *given; /* [rows, width]: the soft tokens that ids below 0 stand for */
} run_inputs;

/* Whether the spans follow one another and cover all rows. */
static inline bool run_spans_fit(const run_inputs *in) {
    for (size_t row = 0; row < in->tokens; row += in->records[row].span_count) {
        const token_record *r = &in->records[row];
        if (!r->span_count || r->span_first != row || r->span_count > in->tokens - row) return false;
    }
    return true;
}

/* The indices that a token sees in layers of one kind. */
static inline uint32_t record_first(const token_record *r, bool sliding) {
    return sliding ? r->sliding_first : r->full_first;
}

static inline uint32_t record_last(const token_record *r, bool sliding) {
    return sliding ? r->sliding_last : r->full_last;
}

/* The slot of an index. */
static inline uint32_t record_slot(const token_record *r, bool sliding, uint32_t index) {
    if (sliding) return r->ring + index % r->ring_slots;
    return index + (index < r->shared ? r->prefix : r->own);
}

#endif
