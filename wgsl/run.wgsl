// What a run is about: how many tokens, how many outputs, the first token's position. Kernels are dispatched for a shape
// class and return early beyond these.

struct Run {
    tokens:  u32,
    outputs: u32,
    start:   u32,
    spare:   u32,
}
