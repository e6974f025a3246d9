// What adapters add to a product's rows: Σ_s Σ_i B_s[i, row] · u_s[i] over the slots s of the column's set, where u is what shrinks.wgsl
// wrote. Up to three weights have rows in the product; EXPAND_0, EXPAND_1 and EXPAND_2 say which of them adapters correct. The `lanes` threads
// that share rows take turns with the ranks, and with the parts that u is the sum of, so the results are added up with the rows' sums. A
// thread reads BUNDLE rows of B at once (1, 2 or 4: they belong to the same weight), and multiplies them with the u of COLUMNS columns. The
// including file declares `lanes`, `rows`, `first_row` and `row_values`.

override slots:         u32;
override shrunk_stride: u32;
override shrunk_parts:  u32 = 1u; // u is the sum of so many parts, shrunk_part apart
override shrunk_part:   u32 = 0u;
override end_0:         u32; // row after the first weight's, and after the second one's
override end_1:         u32;
@group(0) @binding(${SHRUNK_AT}) var<storage, read_write> shrunk: array<f32>;
const bundle_rows = ${BUNDLE}u;
#if BUNDLE == 4
alias bundle = vec4<f32>;
#elif BUNDLE == 2
alias bundle = vec2<f32>;
#else
alias bundle = f32;
#endif
#if EXPAND_0
override rank_0:   u32;
override shrunk_0: u32;
@group(0) @binding(${EXPAND_0_AT}) var<storage, read> expand_0: array<bundle>;
#endif
#if EXPAND_1
override rank_1:   u32;
override shrunk_1: u32;
@group(0) @binding(${EXPAND_1_AT}) var<storage, read> expand_1: array<bundle>;
#endif
#if EXPAND_2
override rank_2:   u32;
override shrunk_2: u32;
override rows_2:   u32;
@group(0) @binding(${EXPAND_2_AT}) var<storage, read> expand_2: array<bundle>;
#endif

// Bit s: one of the columns from c on has slot s (shrinks.wgsl).
fn slots_of_columns(c: u32) -> u32 {
    if (slots == 1u) { return 1u; }
    var mask = u32(shrunk[corrected_column(c) * shrunk_stride]);
#if COLUMNS == 1
#else
    mask |= u32(shrunk[corrected_column(c + 1u) * shrunk_stride]);
#endif
#if COLUMNS == 4
    mask |= u32(shrunk[corrected_column(c + 2u) * shrunk_stride]) | u32(shrunk[corrected_column(c + 3u) * shrunk_stride]);
#endif
    return mask;
}

struct Bundles { c0: bundle, c1: bundle, c2: bundle, c3: bundle } // for each column
struct Fixes { c0: vec4<f32>, c1: vec4<f32>, c2: vec4<f32>, c3: vec4<f32> }

fn add_bundle(sums: Bundles, b: bundle, c: u32, at: u32) -> Bundles {
    var next = sums;
    next.c0 += b * shrunk[corrected_column(c) * shrunk_stride + at];
#if COLUMNS == 1
#else
    next.c1 += b * shrunk[corrected_column(c + 1u) * shrunk_stride + at];
#endif
#if COLUMNS == 4
    next.c2 += b * shrunk[corrected_column(c + 2u) * shrunk_stride + at];
    next.c3 += b * shrunk[corrected_column(c + 3u) * shrunk_stride + at];
#endif
    return next;
}

#if COLUMNS == 1
// With one column, a thread requests its first values of B and u before the product's sums: mostly, these are all.
struct Early { b: bundle, u: f32 }

fn first_slot(mask: u32) -> u32 { return min(firstTrailingBit(mask), slots - 1u); }

fn early_bundle(mask: u32, c: u32, row: u32, lane: u32) -> Early {
    var e: Early;
    if (mask == 0u) { return e; }
    let slot = first_slot(mask);
    let u_at = corrected_column(c) * shrunk_stride;
    if (row < end_0) {
#if EXPAND_0
        if (lane < rank_0 * shrunk_parts) {
            let r = slot * rank_0 + lane % rank_0;
            e = Early(expand_0[(r * end_0 + row) / bundle_rows], shrunk[u_at + shrunk_0 + r + lane / rank_0 * shrunk_part]);
        }
#endif
    } else if (row < end_1) {
#if EXPAND_1
        if (lane < rank_1 * shrunk_parts) {
            let r = slot * rank_1 + lane % rank_1;
            e = Early(expand_1[(r * (end_1 - end_0) + row - end_0) / bundle_rows], shrunk[u_at + shrunk_1 + r + lane / rank_1 * shrunk_part]);
        }
#endif
    } else {
#if EXPAND_2
        if (lane < rank_2 * shrunk_parts) {
            let r = slot * rank_2 + lane % rank_2;
            e = Early(expand_2[(r * rows_2 + row - end_1) / bundle_rows], shrunk[u_at + shrunk_2 + r + lane / rank_2 * shrunk_part]);
        }
#endif
    }
    return e;
}
#else
struct Early { none: u32 }
#endif

// A thread's share for one bundle of rows: what was requested early, and the rest.
fn correct_bundle(mask: u32, early: Early, c: u32, row: u32, lane_of_rows: u32) -> Bundles {
    var sums = Bundles();
#if COLUMNS == 1
    sums.c0 = early.b * early.u;
#endif
    for (var slot = 0u; slot < slots; slot++) {
        if ((mask & (1u << (slot % 24u))) == 0u) { continue; }
        var lane = lane_of_rows;
#if COLUMNS == 1
        if (slot == first_slot(mask)) { lane += lanes; }
#endif
        if (row < end_0) {
#if EXPAND_0
            for (var j = lane; j < rank_0 * shrunk_parts; j += lanes) {
                let r = slot * rank_0 + j % rank_0;
                sums = add_bundle(sums, expand_0[(r * end_0 + row) / bundle_rows], c, shrunk_0 + r + j / rank_0 * shrunk_part);
            }
#endif
        } else if (row < end_1) {
#if EXPAND_1
            for (var j = lane; j < rank_1 * shrunk_parts; j += lanes) {
                let r = slot * rank_1 + j % rank_1;
                let at = r * (end_1 - end_0) + row - end_0;
                sums = add_bundle(sums, expand_1[at / bundle_rows], c, shrunk_1 + r + j / rank_1 * shrunk_part);
            }
#endif
        } else {
#if EXPAND_2
            for (var j = lane; j < rank_2 * shrunk_parts; j += lanes) {
                let r = slot * rank_2 + j % rank_2;
                sums = add_bundle(sums, expand_2[(r * rows_2 + row - end_1) / bundle_rows], c, shrunk_2 + r + j / rank_2 * shrunk_part);
            }
#endif
        }
    }
    return sums;
}

#if GATE == pair
const corrected_rows = 2u * row_values;
fn corrected_row(first: u32, i: u32) -> u32 { return i / row_values * rows + min(first + i % row_values, rows - bundle_rows); }
#else
const corrected_rows = row_values;
fn corrected_row(first: u32, i: u32) -> u32 { return first_row + min(first + i, rows - bundle_rows); }
#endif

// What a thread requests before the product's sums.
struct EarlyRows { mask: u32, e0: Early, e1: Early, e2: Early, e3: Early }

fn early_corrections(mask: u32, c: u32, first: u32, lane: u32) -> EarlyRows {
    var e: EarlyRows;
    e.mask = mask;
#if COLUMNS == 1
    e.e0 = early_bundle(mask, c, corrected_row(first, 0u), lane);
#if BUNDLE == 2
    if (corrected_rows > 2u) { e.e2 = early_bundle(mask, c, corrected_row(first, 2u), lane); }
#elif BUNDLE == 1
    e.e1 = early_bundle(mask, c, corrected_row(first, 1u), lane);
    if (corrected_rows > 2u) {
        e.e2 = early_bundle(mask, c, corrected_row(first, 2u), lane);
        e.e3 = early_bundle(mask, c, corrected_row(first, 3u), lane);
    }
#endif
#endif
    return e;
}

// A thread's share of the corrections of its rows, which begin with `first`, in the columns from c on.
fn corrections(early: EarlyRows, c: u32, first: u32, lane: u32) -> Fixes {
    let mask = early.mask;
    let f0 = correct_bundle(mask, early.e0, c, corrected_row(first, 0u), lane);
#if BUNDLE == 4
    return Fixes(f0.c0, f0.c1, f0.c2, f0.c3);
#elif BUNDLE == 2
    var f2 = Bundles();
    if (corrected_rows > 2u) { f2 = correct_bundle(mask, early.e2, c, corrected_row(first, 2u), lane); }
    return Fixes(vec4<f32>(f0.c0, f2.c0), vec4<f32>(f0.c1, f2.c1), vec4<f32>(f0.c2, f2.c2), vec4<f32>(f0.c3, f2.c3));
#else
    let f1 = correct_bundle(mask, early.e1, c, corrected_row(first, 1u), lane);
    var f2 = Bundles();
    var f3 = Bundles();
    if (corrected_rows > 2u) {
        f2 = correct_bundle(mask, early.e2, c, corrected_row(first, 2u), lane);
        f3 = correct_bundle(mask, early.e3, c, corrected_row(first, 3u), lane);
    }
    return Fixes(vec4<f32>(f0.c0, f1.c0, f2.c0, f3.c0), vec4<f32>(f0.c1, f1.c1, f2.c1, f3.c1), vec4<f32>(f0.c2, f1.c2, f2.c2, f3.c2),
                 vec4<f32>(f0.c3, f1.c3, f2.c3, f3.c3));
#endif
}
