// Gemma 4's nonlinear functions, on `unit`s (unit.wgsl).

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
