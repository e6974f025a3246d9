#include "session/records.h"

void records_of_text(token_record *records, size_t row, const record_sequence *s, const int32_t *ids, size_t begin,
                     size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t index = (uint32_t)(begin + i);
        records[row + i] = (token_record){
            .id = ids[i],
            .position = index,
            .sequence = s->sequence,
            .adapter = s->adapter,
            .at = index,
            .span_first = (uint32_t)row,
            .span_count = (uint32_t)count,
            .full_last = index,
            .sliding_first = s->window && index >= s->window ? index + 1 - s->window : 0,
            .sliding_last = index,
            .shared = s->shared,
            .prefix = s->prefix,
            .own = s->own,
            .ring = s->ring,
            .ring_slots = s->ring_slots,
        };
    }
}

void records_of_canvas(token_record *records, size_t row, const record_sequence *s, const int32_t *ids, size_t begin,
                       size_t count) {
    records_of_text(records, row, s, ids, begin, count);
    for (size_t i = 0; i < count; i++) {
        token_record *r = &records[row + i];
        r->full_last = r->sliding_last = (uint32_t)(begin + count - 1);
        r->sliding_first = s->window && begin >= s->window ? (uint32_t)begin + 1 - s->window : 0;
    }
}

void records_join_block(token_record *first, size_t count, bool whole) {
    for (size_t i = 0; i < count; i++) {
        token_record *r = &first[i];
        r->sliding_last = first[count - 1].at;
        if (!whole) continue;
        r->full_last = first[count - 1].at;
        if (r->sliding_first > first->at) r->sliding_first = first->at;
    }
}
