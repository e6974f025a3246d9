// What adapters add to a product's rows: Σ_s Σ_i B_s[i, row] · u_s[i] over the slots s of the column's set, where u is what shrinks.wgsl
// wrote. Up to three weights have rows in the product; EXPAND_0, EXPAND_1 and EXPAND_2 say which of them adapters correct. The `lanes` threads
// that share rows take turns with the ranks, so the results are added up with the rows' sums. The including file declares `lanes`, `rows`,
// `first_row` and `row_values`.

override slots:         u32;
override shrunk_stride: u32;
override shrunk_parts:  u32 = 1u; // u is the sum of so many parts, shrunk_part apart
override shrunk_part:   u32 = 0u;
override end_0:         u32; // row after the first weight's, and after the second one's
override end_1:         u32;
@group(0) @binding(${SHRUNK_AT}) var<storage, read_write> shrunk: array<f32>;
#if EXPAND_0
override rank_0:   u32;
override shrunk_0: u32;
@group(0) @binding(${EXPAND_0_AT}) var<storage, read> expand_0: array<f32>;
#endif
#if EXPAND_1
override rank_1:   u32;
override shrunk_1: u32;
@group(0) @binding(${EXPAND_1_AT}) var<storage, read> expand_1: array<f32>;
#endif
#if EXPAND_2
override rank_2:   u32;
override shrunk_2: u32;
override rows_2:   u32;
@group(0) @binding(${EXPAND_2_AT}) var<storage, read> expand_2: array<f32>;
#endif

fn shrunk_at(at: u32) -> f32 {
    var u = shrunk[at];
    for (var i = 1u; i < shrunk_parts; i++) { u += shrunk[at + i * shrunk_part]; }
    return u;
}

fn correction_by(slot: u32, at: u32, row: u32, lane: u32) -> f32 {
    var sum_of_slot = 0.0;
    if (row < end_0) {
#if EXPAND_0
        for (var r = slot * rank_0 + lane; r < (slot + 1u) * rank_0; r += lanes) {
            sum_of_slot += expand_0[r * end_0 + row] * shrunk_at(at + shrunk_0 + r);
        }
#endif
    } else if (row < end_1) {
#if EXPAND_1
        for (var r = slot * rank_1 + lane; r < (slot + 1u) * rank_1; r += lanes) {
            sum_of_slot += expand_1[r * (end_1 - end_0) + row - end_0] * shrunk_at(at + shrunk_1 + r);
        }
#endif
    } else {
#if EXPAND_2
        for (var r = slot * rank_2 + lane; r < (slot + 1u) * rank_2; r += lanes) {
            sum_of_slot += expand_2[r * rows_2 + row - end_1] * shrunk_at(at + shrunk_2 + r);
        }
#endif
    }
    return sum_of_slot;
}

// Columns past the last have no head: what is read there is kept within bounds, and nobody uses the result.
fn correction(column: u32, row: u32, lane: u32) -> f32 {
    let at = column * shrunk_stride;
    if (slots == 1u) { return correction_by(0u, at, row, lane); }
    let count = min(u32(shrunk[at]), slots);
    var all = 0.0;
    for (var i = 1u; i <= count; i++) { all += correction_by(min(u32(shrunk[at + i]), slots - 1u), at, row, lane); }
    return all;
}

#if GATE == pair
const corrected_rows = 2u * row_values;
fn corrected_row(first: u32, i: u32) -> u32 { return i / row_values * rows + min(first + i % row_values, rows - 1u); }
#else
const corrected_rows = row_values;
fn corrected_row(first: u32, i: u32) -> u32 { return first_row + min(first + i, rows - 1u); }
#endif

// A thread's share of the corrections of its rows, which begin with `first`.
fn corrections(column: u32, first: u32, lane: u32) -> vec4<f32> {
    var fix = vec4<f32>(correction(column, corrected_row(first, 0u), lane), correction(column, corrected_row(first, 1u), lane), 0.0, 0.0);
    if (corrected_rows > 2u) {
        fix.z = correction(column, corrected_row(first, 2u), lane);
        fix.w = correction(column, corrected_row(first, 3u), lane);
    }
    return fix;
}
