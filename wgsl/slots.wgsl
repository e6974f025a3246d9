// What the records say about the layers of this kernel's kind: sliding ones (SLIDING) or full ones. Include after run.wgsl; the run
// record is bound as `run`. A row is a token of the run.

#if SLIDING
fn first_seen(row: u32) -> u32 { return run.records[row].sliding_first; }
fn last_seen(row: u32) -> u32 { return run.records[row].sliding_last; }

struct Slots { ring: u32, count: u32 }
fn slots_of(row: u32) -> Slots { return Slots(run.records[row].ring, run.records[row].ring_slots); }

// A division takes time, so loops over the indices from `index` on take it out: slot_after(s, slot_place(s, index), i) is the slot of
// index + i. The difference is less than the number of slots.
fn slot_place(s: Slots, index: u32) -> u32 { return index % s.count; }
fn slot_after(s: Slots, place: u32, i: u32) -> u32 {
    let at = place + i;
    return s.ring + min(at, at - s.count); // if at < count, the difference wraps to a large number
}
#else
fn first_seen(row: u32) -> u32 { return run.records[row].full_first; }
fn last_seen(row: u32) -> u32 { return run.records[row].full_last; }

struct Slots { prefix_end: u32, prefix: u32, own: u32 }
fn slots_of(row: u32) -> Slots { return Slots(run.records[row].prefix_end, run.records[row].prefix, run.records[row].own); }

fn slot_place(s: Slots, index: u32) -> u32 { return index; }
fn slot_after(s: Slots, place: u32, i: u32) -> u32 {
    let index = place + i;
    return index + select(s.own, s.prefix, index < s.prefix_end);
}
#endif

// Where a token's own keys and values go.
fn own_slot(row: u32) -> u32 {
    let s = slots_of(row);
    return slot_after(s, slot_place(s, run.records[row].at), 0u);
}
