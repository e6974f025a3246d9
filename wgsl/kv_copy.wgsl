// Moves rows within a buffer of keys or of values, which WebGPU's own copies cannot do. The two ranges may overlap.
//
//   rows  u32 words, whatever the type of the keys
//   job   the first row to move, where it goes, the number of rows, and the words of a row
//   dispatch (words of a row / 64 rounded up, min(distance, rows) or fewer, 1)
//
// With overlap, row r lands where row r ± distance was. So one invocation moves rows r, r + distance, r + 2 · distance …, in the order
// in which each is read before it is overwritten. No other invocation touches these words.

struct Move {
    first: u32,
    to:    u32,
    count: u32,
    words: u32,
}

@group(0) @binding(0) var<storage, read_write> rows: array<u32>;
@group(0) @binding(1) var<storage, read>       job:  Move;

fn move_word(row: u32, word: u32) {
    rows[(job.to + row) * job.words + word] = rows[(job.first + row) * job.words + word];
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let word     = at.x;
    let down     = job.to < job.first;
    let distance = select(job.to - job.first, job.first - job.to, down);
    if (word >= job.words) { return; }
    for (var chain = at.y; chain < min(distance, job.count); chain += groups.y) {
        let links = (job.count - 1u - chain) / distance + 1u;
        for (var i = 0u; i < links; i++) { move_word(chain + distance * select(links - 1u - i, i, down), word); }
    }
}
