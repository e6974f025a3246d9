// The first position that a query at `position` sees: 0, or with a window the first of the last `window` positions up to its own.
// Blocks, whose tokens see each other, change only the last visible position (attention_prefill.wgsl).
fn first_visible(position: u32) -> u32 { return select(0u, position + 1u - window, window > 0u && position >= window); }
