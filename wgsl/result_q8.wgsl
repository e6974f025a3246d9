// Writes the results of product.wgsl or product_columns.wgsl in 8 bits, for the next product: per 32 rows d = max|v| / 127 and
// p = round(v / d), in the layout of quantise.wgsl: p in bytes, rows/4 words for each result (experts have several); then, from y_scales on (in words), for
// each 32 rows d, d·Σp of the first 16, d·Σp of the last 16, 0. A workgroup's block of rows is a multiple of 32.

override y_scales: u32;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override block_most: u32 = threads / lanes * row_values;
var<workgroup> results: array<f32, block_most>;

fn rounded_result(i: u32, inverse: f32) -> i32 { return i32(clamp(round(results[i] * inverse), -127.0, 127.0)); }

// Each thread writes a quad of the block's rows, as long as there are any; the first thread of each chunk also writes d and the sums.
fn write_results(result: u32, first: u32, block_rows: u32, thread: u32) {
    let at = 4u * thread; // row within the block
    if (at >= block_rows || first + at >= rows) { return; }
    let chunk = at & 0xffffffe0u;
    var top = 0.0;
    for (var i = 0u; i < 32u; i++) { top = max(top, abs(results[chunk + i])); }
    let d       = top / 127.0;
    let some    = d > 1e-35;
    let inverse = select(0.0, 1.0 / d, some);
    var word = 0u;
    for (var i = 0u; i < 4u; i++) { word |= (u32(rounded_result(at + i, inverse)) & 255u) << (8u * i); }
    y[result * (rows / 4u) + (first + at) / 4u] = word;
    if (at == chunk) {
        var low  = 0;
        var high = 0;
        for (var i = 0u; i < 16u; i++) {
            low  += rounded_result(chunk + i, inverse);
            high += rounded_result(chunk + 16u + i, inverse);
        }
        let scale = select(0.0, d, some);
        let to    = y_scales + 4u * (result * (rows / 32u) + (first + at) / 32u);
        y[to]      = bitcast<u32>(scale);
        y[to + 1u] = bitcast<u32>(scale * f32(low));
        y[to + 2u] = bitcast<u32>(scale * f32(high));
    }
}
