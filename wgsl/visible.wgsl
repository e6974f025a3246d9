// Where what attention sees begins: a query at `position` sees all up to its own and, where there is a window, only the last
// `window` of them. Blocks, whose tokens see each other, move the end and not the beginning (attention_prefill.wgsl).
fn first_visible(position: u32) -> u32 { return select(0u, position + 1u - window, window > 0u && position >= window); }
