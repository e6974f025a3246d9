// 64-bit integers as vec2<u32>(low, high), because WGSL has only 32 bits. Everything wraps around as in C.

fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_subtract(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn wide_less(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }

// a · b in 16-bit halves, so that no partial sum reaches 2^32.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let cross = a0 * b1 + (middle & 0xffffu);
    return vec2<u32>(a * b, a1 * b1 + (middle >> 16u) + (cross >> 16u));
}

// `shift` must be below 64.
fn wide_shift_right(a: vec2<u32>, shift: u32) -> vec2<u32> {
    if (shift >= 32u) { return vec2<u32>(a.y >> (shift - 32u), 0u); }
    if (shift == 0u) { return a; }
    return vec2<u32>((a.x >> shift) | (a.y << (32u - shift)), a.y >> shift);
}
