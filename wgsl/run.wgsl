// One run: how many tokens and outputs it has, and a record for each token. src/graph/run.h says what the fields of a record mean and
// what a span is. Kernels are dispatched for a shape class, and threads beyond the counts return early.

struct TokenRecord {
    id:            u32, // from 2^31 on: a soft token
    position:      u32,
    sequence:      u32,
    adapter:       u32,
    at:            u32,
    span_first:    u32,
    span_count:    u32,
    full_first:    u32,
    full_last:     u32,
    sliding_first: u32,
    sliding_last:  u32,
    prefix_end:    u32, // `shared` there, which is no name here
    prefix:        u32,
    own:           u32,
    ring:          u32,
    ring_slots:    u32,
}

struct Run {
    tokens:  u32,
    outputs: u32,
    window:  u32, // of the sliding layers, for sampler.wgsl, which makes the next token's record
    spare:   u32,
    records: array<TokenRecord>,
}

const nowhere = 0xffffffffu; // `at` of a token whose keys and values are not stored
