// The run record: the number of tokens, the number of outputs, and the first token's position. Kernels are dispatched for a shape
// class, and threads beyond these counts return early.

struct Run {
    tokens:  u32,
    outputs: u32,
    start:   u32,
    spare:   u32,
}
