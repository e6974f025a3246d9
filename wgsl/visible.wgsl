// Which positions attention sees: those up to its own and, where there is a window, only the last `window` of them.

// Whether a query at `position` sees the key of position j.
fn visible(j: u32, position: u32) -> bool { return j <= position && (window == 0u || position - j < window); }

// The first position that it sees.
fn first_visible(position: u32) -> u32 { return select(0u, position + 1u - window, window > 0u && position >= window); }
