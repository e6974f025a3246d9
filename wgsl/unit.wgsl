// What a thread of a row-wise kernel works on: four values if every length, offset and stride is a multiple of four (WIDE),
// otherwise one. The overrides of such kernels are in units.

#if WIDE
alias unit = vec4<f32>;
const unit_values = 4u;
fn square(x: unit) -> f32 { return dot(x, x); }
fn total(x: unit) -> f32 { return dot(x, unit(1.0)); }
#else
alias unit = f32;
const unit_values = 1u;
fn square(x: unit) -> f32 { return x * x; }
fn total(x: unit) -> f32 { return x; }
#endif
