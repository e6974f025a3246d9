// How attention_decode.wgsl divides the keys; attention_reduce.wgsl needs to know, too. Include together with visible.wgsl and
// declarations of heads, kv_heads, window, splits and the run record.
//
// All splits take the same number of keys, which is a multiple of `least`. While there are few keys, only the first splits have any.

override least: u32;
const batch = ${QUERIES}u; // queries of a workgroup: pairs (token, head) of one K/V head, tokens outermost

struct Span {
    first: u32, // position
    count: u32, // positions that any query of the workgroup sees
    share: u32, // positions per split
}

fn span_of(first_query: u32) -> Span {
    let group = heads / kv_heads;
    let last_token = min((first_query + batch - 1u) / group, run.tokens - 1u);
    let first = first_visible(run.start + first_query / group);
    let count = run.start + last_token + 1u - first;
    let share = (count + splits - 1u) / splits;
    return Span(first, count, (share + least - 1u) / least * least);
}
