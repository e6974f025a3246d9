// The queries of a workgroup: `batch` pairs (token, head) of one K/V head with the tokens outermost, all of one span. Include after
// declaring batch, heads and kv_heads, with run.wgsl. ONE: the run has a single token.

override lone: u32 = 0u; // 1: every span is a single token, so nobody has to go through them

struct Queries {
    row:    u32, // the first row of the span
    tokens: u32, // of the span; 0: there are no queries for this workgroup
    first:  u32, // the workgroup's first pair, counted from the beginning of the span
}

// Tiles are counted span by span; the host dispatches as many as there are.
fn queries_of(tile: u32) -> Queries {
#if ONE
    return Queries(0u, 1u, tile * batch);
#else
    let group = heads / kv_heads;
    if (lone == 1u) {
        let each = (group + batch - 1u) / batch;
        return Queries(tile / each, select(0u, 1u, tile / each < run.tokens), tile % each * batch);
    }
    var left = tile;
    var row = 0u;
    while (row < run.tokens) {
        let tokens = run.records[row].span_count;
        let tiles = (tokens * group + batch - 1u) / batch;
        if (left < tiles) { return Queries(row, tokens, left * batch); }
        left -= tiles;
        row += max(tokens, 1u);
    }
    return Queries(0u, 0u, 0u);
#endif
}

// The tile that has a head of a token.
fn queries_with(row: u32, head_index: u32) -> Queries {
    let group = heads / kv_heads;
#if ONE
    return Queries(0u, 1u, head_index % group / batch * batch);
#else
    let first = run.records[row].span_first;
    return Queries(first, run.records[row].span_count, ((row - first) * group + head_index % group) / batch * batch);
#endif
}

// The row of the workgroup's i-th query, or the last row if there are fewer.
fn query_row(q: Queries, i: u32) -> u32 {
#if ONE
    return 0u;
#else
    return q.row + min((q.first + i) / (heads / kv_heads), q.tokens - 1u);
#endif
}

fn has_query(q: Queries, i: u32) -> bool { return (q.first + i) / (heads / kv_heads) < q.tokens; }

// Where the i-th query is among the run's: token · heads + head.
fn query_at(q: Queries, i: u32, kv_head: u32) -> u32 {
    let group = heads / kv_heads;
    return query_row(q, i) * heads + kv_head * group + (q.first + i) % group;
}
