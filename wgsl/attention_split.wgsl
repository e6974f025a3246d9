// How attention_decode.wgsl and attention_blocks.wgsl divide the keys; attention_reduce.wgsl needs to know, too. Include together with slots.wgsl and
// declarations of heads, kv_heads, splits and the run.
//
// All splits take the same number of keys, which is a multiple of `least`. While there are few keys, only the first splits have any.

override least: u32;
const batch = ${QUERIES}u; // queries of a workgroup

#include "attention_tile.wgsl"

struct Keys {
    first: u32, // index
    count: u32, // indices that any query of the workgroup sees
    share: u32, // indices per split
}

fn keys_of(q: Queries) -> Keys {
    let first = first_seen(query_row(q, 0u));
    let count = last_seen(query_row(q, batch - 1u)) + 1u - first;
    let share = (count + splits - 1u) / splits;
    return Keys(first, count, (share + least - 1u) / least * least);
}
