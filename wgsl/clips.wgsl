// The bounds at which a tower's linear layer clips its input and its results.
//
//   numbers  f32: least and most of the input, then of the rows of each of up to three joined weights; the second weight's rows begin
//            at first_end, the third's at second_end

#if CLIP_IN
@group(0) @binding(${NUMBERS_AT}) var<storage, read> numbers: array<f32>;
#elif CLIP_OUT
@group(0) @binding(${NUMBERS_AT}) var<storage, read> numbers: array<f32>;
#endif

#if CLIP_IN
fn clip_one(x: f32) -> f32 { return min(max(x, numbers[0]), numbers[1]); }
fn clip_four(x: vec4<f32>) -> vec4<f32> { return min(max(x, vec4<f32>(numbers[0])), vec4<f32>(numbers[1])); }
#else
fn clip_one(x: f32) -> f32 { return x; }
fn clip_four(x: vec4<f32>) -> vec4<f32> { return x; }
#endif

#if CLIP_OUT
override first_end:  u32;
override second_end: u32;

fn clip_result(row: u32, x: f32) -> f32 {
    let at = 2u + 2u * (u32(row >= first_end) + u32(row >= second_end));
    return min(max(x, numbers[at]), numbers[at + 1u]);
}
#else
fn clip_result(row: u32, x: f32) -> f32 { return x; }
#endif
