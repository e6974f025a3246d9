// Gemma 4's nonlinear functions, on `unit`s (unit.wgsl).

#include "exact.wgsl"

#if EXACT
fn gelu_of(x: f32) -> f32 {
    let u = rounded(rounded(0.7978845608 * x) * (1.0 + rounded(rounded(0.044715 * x) * x)));
    return rounded(x * inverse(1.0 + exponential(min(-2.0 * u, 70.0))));
}

fn tanh_of(x: f32) -> f32 {
    let q = rounded(x * x);
    var p = rounded((62.0 / 2835.0) * q) - 17.0 / 315.0;
    p = rounded(p * q) + 2.0 / 15.0;
    p = rounded(p * q) - 1.0 / 3.0;
    p = rounded(p * q) + 1.0;
    let e = exponential(max(-2.0 * abs(x), -70.0));
    let t = (1.0 - e) * inverse(1.0 + e);
    return select(rounded(select(select(t, -t, x < 0.0), x * p, abs(x) < 0.2)), x, is_nan(x));
}

#if WIDE
fn gelu(x: unit) -> unit { return unit(gelu_of(x.x), gelu_of(x.y), gelu_of(x.z), gelu_of(x.w)); }
fn precise_tanh(x: unit) -> unit { return unit(tanh_of(x.x), tanh_of(x.y), tanh_of(x.z), tanh_of(x.w)); }
#else
fn gelu(x: unit) -> unit { return gelu_of(x); }
fn precise_tanh(x: unit) -> unit { return tanh_of(x); }
#endif
#else

// x/2 · (1 + tanh u) = x / (1 + e^(-2u)), which loses no digits and needs no tanh. The exponent is capped at 80: e^80 gives almost 0.
fn gelu(x: unit) -> unit {
    let u = 0.7978845608 * x * (1.0 + 0.044715 * x * x);
    return x / (1.0 + exp(min(-2.0 * u, unit(80.0))));
}

// (1 − e) / (1 + e) with e = e^(-2|y|). Near 0 that loses digits, so the series is used there.
fn precise_tanh(y: unit) -> unit {
    let e = exp(max(-2.0 * abs(y), unit(-80.0)));
    let square = y * y;
    let series = y * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0)))));
    return select(sign(y) * (1.0 - e) / (1.0 + e), series, abs(y) < unit(0.2));
}
#endif
