// A chunk of CANVAS_HEAD's table, as its kernels see it.
//
//   numbers  f32: the chunk's first row in the weights' tile, its rows, the id of its first row, and whether it is the first or the last
//
// The scratch memory has scores [columns, chunk_stride], from state_offset on the state of each column, from weights_offset on what the
// table's rows count in f16 [columns, chunk_stride], if matrices multiply them, and from sums_offset on the sums of each split so far
// [splits, columns, sums_stride].

override chunk_stride:   u32;
override state_offset:   u32;
override weights_offset: u32;
override sums_offset:    u32;
override sums_stride:    u32; // k, rounded up to 32
override sums_split:     u32; // from split to split

const state_values    = 8u;
const state_most      = 0u; // the largest score so far
const state_sum       = 1u; // of e^(score − most)
const state_weighted  = 2u; // the sum of e^(score − most) · (score − most)
const state_scale     = 3u; // e^(most before this chunk − most); 0 for the first chunk
const state_likeliest = 4u; // an id as a whole number (bits of small ones could be flushed to 0), as the next one
const state_drawn     = 5u;
const state_best      = 6u; // score and noise of what is drawn

const half_factor = 16384.0; // of e^(score − most) in f16, so that small ones count, too

fn chunk_first() -> u32 { return u32(numbers[0]); }
fn chunk_rows() -> u32 { return u32(numbers[1]); }
fn chunk_id() -> u32 { return u32(numbers[2]); }
fn chunk_is_first() -> bool { return numbers[3] != 0.0; }
fn chunk_is_last() -> bool { return numbers[4] != 0.0; }
fn column_state(column: u32) -> u32 { return state_offset + column * state_values; }
