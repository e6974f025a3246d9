// Checks that the kernel tests notice a broken kernel. For every file in wgsl/, a row here damages it, and test_ops (or the sampler's
// test, or a check of the GPU) must then fail. tests/break_shader.c damages the text before it is compiled. The text must still compile and only compute a
// wrong number.
//
//     node tests/test_broken_kernels.mjs [folder of the build] [only files with this in their name]
//
// Runs the first row of each file; with GEMMULE_LONG=1 (`make test-long`), or if files are named, all of them.
//
// A row is: file, a piece of its text, the replacement, and the test program with its arguments (features to disable, and words in the
// names of the cases to run). A new file needs a row; if a piece is no longer in its file, choose another.

import {execFile, spawnSync} from "node:child_process";
import {readdirSync, readFileSync} from "node:fs";
import {availableParallelism} from "node:os";
import {join} from "node:path";

const [build = "build/release", only = ""] = process.argv.slice(2);
const all = process.env.GEMMULE_LONG === "1" || only !== "";
const cases = (words, without = "") => ["ops", "gpu", without, words];
const matrices = {EMULATE_MATRICES: "8"}, large = {EMULATE_MATRICES: "16"}, littleMemory = {EMULATE_LITTLE_MEMORY: "1"}; // tests/break_shader.c
const records = ["records", "gpu"];
const layers = (words) => ["gpu_fuse", "", words], draws = (words) => ["gpu_sampler", words], checks = (word) => ["gpu_self_check", word], trains = ["gpu_train_check", "two-layers"];
const rows = [
    ["attention_bands.wgsl", "fall = exp(my_highest - most);", "fall = 1.0;", cases("steep"), large],
    ["attention_bands.wgsl", "| (j > vec4<u32>(my_last))", "| (j > vec4<u32>(my_last + 1u))", cases("2 · 70 × 2/2 heads of 72"), large],
    ["attention_bands.wgsl", "row_major>(&tile, v_at + 8u, stride), r4)", "row_major>(&tile, v_at + 6u, stride), r4)", cases("F16 1 · 70 × 3/3 heads of 72"), large],
    ["attention_back.wgsl", "p * (slopes[i] - delta[query])", "p * slopes[i]", cases("gradient of attention 5 ×")],
    ["attention_back.wgsl", "first_out = workgroup.x * split_stride;", "first_out = 0u;", cases("gradient of attention 16 ×")],
    ["attention_back.wgsl", "v0 += outer(p, ", "v0 += outer(e, ", cases("gradient of attention 70 ×")],
    ["attention_back.wgsl", "quad_of_key(slot, kv_head, quad + 32u, false)", "quad_of_key(slot, kv_head, quad, false)", cases("gradient of attention 18 × 2/1 heads of 256")],
    ["attention_back.wgsl", "v3 += outer(p, quad_of_query(at, quad + 96u, true))", "v3 += outer(p, quad_of_query(at, quad + 64u, true))", cases("gradient of attention 18 × 2/1 heads of 512")],
    ["attention_back.wgsl", "index >= first_seen(row) && index <= last_seen(row)", "index <= last_seen(row)", cases("gradient of attention 67 × 8/4")],
    ["attention_back_matrix.wgsl", "fall = scale / my_scale;", "fall = 1.0;", cases("attention that grows, 150 ×"), large],
    ["attention_back_matrix.wgsl", "score * my_unit - my_delta", "score * my_unit", cases("gradient of attention 16 ×"), large],
    ["attention_back_matrix.wgsl", "out[workgroup.x * split_stride / 4u + at", "out[at", cases("gradient of attention 16 ×"), large],
    ["attention_back_matrix.wgsl", "(j >= my_first) & (j <= my_last)", "j <= my_last", cases("gradient of attention 70 × 4/1"), matrices],
    ["attention_back_matrix.wgsl", "index >= other_seen[other].x && ", "", cases("gradient of attention 67 × 8/4"), matrices],
    ["attention_back_matrix.wgsl", "select(four, four.xzyw, of_value)", "four", cases("gradient of attention 18 × 2/1 heads of 512"), large],
    ["attention_blocks.wgsl", "put_score(qt + 8u, kt + 8u, sums.s5, first);", "put_score(qt + 8u, kt + 8u, sums.s4, first);", cases("F16 4 · 20 × 2/1 heads of 512")],
    ["attention_blocks.wgsl", "(keys_at > vec4<u32>(my_last));", "(keys_at > vec4<u32>(my_last + 1u));", cases("attention F16 5 · 5 × 4/2")],
    ["attention_blocks.wgsl", "my_sum * fall + dot", "my_sum + dot", cases("attention F16 5 · 33 × 3/1")],
    ["attention_blocks.wgsl", "add_values(&b, values_of(four_b), weights_at);", "add_values(&b, values_of(four), weights_at);", cases("attention F16 5 · 33 × 8/1")],
    ["attention_decode.wgsl", "weight[q * groups + keys_at], a, b, c, d)", "weight[q * groups + keys_at], b, a, c, d)", cases("attention F16 5 · 2 × 4/2")],
    ["attention_decode.wgsl", "(j >= vec4<u32>(sight[q].x))", "(j + 1u >= vec4<u32>(sight[q].x))", cases("attention F16 12 · 3 ×")],
    ["attention_heads.wgsl", "x * cosines - partner * sines", "x * cosines + partner * sines", layers("three types")],
    ["attention_matrix.wgsl", "fall = exp(my_highest - most);", "fall = 1.0;", cases("steep"), matrices],
    ["attention_matrix.wgsl", "(j < my_first) | (j > my_last)", "j > my_last", cases("attention F16 5 · 5 × 3/1"), matrices],
    ["attention_matrix.wgsl", "vec4<f32>(shrink[query]", "vec4<f32>(0.5 * shrink[query]", cases("steep"), matrices],
    ["attention_out.wgsl", "+ quad] = four;", "+ quad] = four.yxzw;", cases("attention F16 5 · 64 × 4/2")],
    ["attention_plain.wgsl", "first += rounded_four(weight * value", "first += rounded_four(value", cases("attention F16 5 · 5 × 4/2", "blocks")],
    ["attention_plain.wgsl", "tile + i - begin), kv_head);", "tile + max(i, 1u) - begin), kv_head);", cases("attention F16 5 · 5 × 3/1", "blocks")],
    ["attention_plain.wgsl", "let end = last_seen(query_row(mine, 0u)) + 1u;", "let end = last_seen(query_row(mine, 0u));", cases("block of 9 at 11", "blocks")],
    ["attention_plain.wgsl", "(lanes.x + lanes.z) + (lanes.y + lanes.w)", "(lanes.x + lanes.y) + (lanes.z + lanes.w)", cases("exact gpu: kv_store and attention F32 5 · 33")],
    ["attention_query.wgsl", "/ 4u + quad];", "/ 4u + (quad ^ 1u)];", cases("attention F16 5 · 5 × 4/2")],
    ["attention_reduce.wgsl", "value *= weight[part];", "", cases("attention F16 40 · 4 ×")],
    ["attention_reduce.wgsl", "* heads * quads + a_at]", "* heads * quads]", layers("one adapter of rank 1")],
    ["attention_split.wgsl", "last_seen(query_row(q, batch - 1u))", "last_seen(query_row(q, 0u))", cases("attention F16 40 · 4 ×")],
    ["attention_tile.wgsl", "row += max(tokens, 1u);", "row += max(tokens, 1u) - 1u;", records],
    ["canvas_chunk.wgsl", "return u32(numbers[2]); }", "return u32(numbers[0]) + 1u; }", cases("canvas head F16")],
    ["canvas_head.wgsl", "let lower = read_value(state + state_most) - best.x;", "let lower = 0.0;", cases("canvas head F16")],
    ["canvas_head.wgsl", "noise(words[i])", "noise(words[3u - i])", cases("canvas head F16")],
    ["canvas_head.wgsl", "split * sums_split + column", "column", cases("canvas head F16")],
    ["canvas_next.wgsl", "entropy == mine && i < t", "entropy == mine", cases("canvas next 13")],
    ["canvas_next.wgsl", "select(s.w + 1u, 0u, flags >= changed)", "s.w + 1u", cases("canvas next 13")],
    ["canvas_next.wgsl", "run.tokens = 0u", "run.tokens = tokens", cases("canvas next 13")],
    ["canvas_soft.wgsl", ".xzyw /", " /", cases("canvas head Q6_K"), matrices],
    ["canvas_soft.wgsl", "bitcast<f32>(state[state_scale])", "bitcast<f32>(state[0])", cases("canvas head Q6_K"), large],
    ["matmul_back.wgsl", "rounded(d[to + i + j] * d[column_state(column) + state_scale]) + four[j]", "four[j]", cases("canvas head Q6_K")],
    ["clips.wgsl", "let at = 2u + 2u * (u32(row >= first_end) +", "let at = 2u + 2u * (u32(row > first_end) +", cases("clipped linears F16 5 ×")],
    ["clips.wgsl", "return min(max(x, numbers[0]), numbers[1]); }", "return max(x, numbers[0]); }", cases("clipped linears F16 5 ×")],
    ["clips.wgsl", "vec4<f32>(numbers[1])); }", "vec4<f32>(-numbers[0])); }", cases("clipped linears F16 5 ×"), large],
    ["column_f32.wgsl", "staged[at + (turn ^ 1u)], staged", "staged[at + (turn ^ 3u)], staged", cases("matmul F16 1 × [512")],
    ["column_given.wgsl", "Column(x[2u * at], x[2u * at + 1u],", "Column(x[2u * at + 1u], x[2u * at],", cases("experts Q8_0 1 ×")],
    ["column_q8.wgsl", "half_total(p.x + p.y + p.z + p.w, thread)", "half_total(p.x + p.y + p.z, thread)", cases("matmul Q4_0 1 ×")],
    ["columns.wgsl", "low.x + low.y + low.z + low.w", "low.x + low.y + low.z", cases("matmul Q4_0 2 ×")],
    ["correct.wgsl", "(shrunk_0 + r) / step", "shrunk_0 / step", cases("adapters of a linear 33 ×")],
    ["corrections.wgsl", "c, shrunk_0 + r + j", "c, shrunk_0 + j", cases("adapters of a linear 2 ×")],
    ["corrections.wgsl", "+ row - end_0;", "+ row - end_0 + 1u;", layers("adapters of odd widths")],
    ["conv_grid.wgsl", "let column = 2u * f + tap % 3u;", "let column = 2u * f + 2u - tap % 3u;", cases("conv_grid 2 × [12")],
    ["conv_tokens.wgsl", "min(taps, before + 1u)", "min(taps, token + 1u)", cases("conv_tokens 5 × 40")],
    ["curves.wgsl", "0.044715", "0.044915", cases("geglu, softcap, slices 2 ×")],
    ["elementwise.wgsl", "out[to] = x + y;", "out[to] = x - y;", cases("geglu, softcap, slices 2 ×")],
    ["elementwise.wgsl", "out[to] = x * y;", "out[to] = x + y;", cases("vectors added and multiplied 2 × [40")],
    ["elementwise.wgsl", "exp(min(-y,", "exp(min(y,", cases("gate 2 ×")],
    ["elementwise.wgsl", "unit(numbers[1])", "unit(-numbers[0])", cases("vectors added and multiplied 2 × [40")],
    ["elementwise.wgsl", "* width + first + i;", "* width + i;", cases("gradients of 8 parts")],
    ["elementwise.wgsl", "x *= share;", "x *= 0.5 * share;", cases("means of 9 tokens")],
    ["dropout.wgsl", "words[i] < below", "words[i] <= below / 2u", cases("dropout 0.25 of")],
    ["embed.wgsl", "run.records[token].position", "run.records[token].sequence", cases("embed by position 2 ×")],
    ["embed.wgsl", "{ token_id = 0u; }", "{ token_id = 1u; }", cases("rows given")],
    ["embed.wgsl", "y[at + i] = factor * v[i];", "y[at + i] = v[i];", cases("embed Q8_0 2 ×")],
    ["attention_back_matrix.wgsl", "(j >= my_first) & (j <= my_last)", "j <= my_last", trains, large],
    ["gradient_rows.wgsl", "scale * (w[i] * c[d + i] - a[x + i] * less)", "scale * (w[i] * c[d + i])", cases("gradient of rms_norm 5 ×")],
    ["gradient_rows.wgsl", "0.134145", "0.044715", cases("gradients of elementwise")],
    ["gradient_rows.wgsl", "low = middle + 1u;", "low = middle + 2u;", cases("gradients of 8 parts")],
    ["halve.wgsl", "pack2x16float(a.xz)", "pack2x16float(a.zx)", cases("matmul Q4_K 5 ×"), large],
    ["exact.wgsl", "n * -2.12194440e-4", "n * -2.12190000e-4", cases("exact gpu: add, scale, geglu")],
    ["exact.wgsl", "0.693147181) + log", "0.693147241) + log", cases("exact gpu: canvas head Q6_K")],
    ["exact.wgsl", "i < 4; i++) { y = rounded(y * (2.0", "i < 2; i++) { y = rounded(y * (2.0", cases("exact gpu: route and experts F32 3 ×")],
    ["exact.wgsl", "i < 4; i++) { y = rounded(y * (1.5", "i < 2; i++) { y = rounded(y * (1.5", cases("exact gpu: rms_norm 3 ×")],
    ["halves.wgsl", "eight(q.high.x, q.high.y, s.yw)", "eight(q.high.x, q.high.y, s.xz)", cases("matmul Q6_K 5 ×"), matrices],
    ["heads.wgsl", "x.x * turn.x - x.y * turn.y", "x.x * turn.x + x.y * turn.y", layers("three types")],
    ["loss.wgsl", "slope *= 1.0 - (z / cap) * (z / cap);", "", cases("cross_entropy 5 ×")],
    ["loss.wgsl", "- z[goal % 4u])", "- z.x)", cases("cross_entropy 3 ×")],
    ["loss.wgsl", "- mean / sum)", ")", cases("gradients of 2 of 8 experts")],
    ["lora.wgsl", "+ first_rank % rank) * k;", ") * k;", cases("adapters of a head 5 ×")],
    ["lora.wgsl", "sets[run.records[token].adapter * slots + slot]", "sets[slots + slot]", cases("adapters of a head 33 ×")],
    ["lora.wgsl", "total(a3 * x2)", "total(a3 * x1)", cases("adapters of a head 33 ×")],
    ["lora.wgsl", "s5 += column * u[row + min(first + 5u, last)", "s5 += column * u[row + min(first + 4u, last)", cases("gradients of an adapter of a product, 33")],
    ["lora.wgsl", "routes[entry * 2u * used + row]", "routes[entry * 2u * used]", cases("adapters of experts 1 ×")],
    ["kv.wgsl", "unpack2x16float(words.x), unpack2x16float(words.y)", "unpack2x16float(words.y), unpack2x16float(words.x)", cases("attention F16 5 · 5 × 3/1")],
    ["kv_copy.wgsl", "select(links - 1u - i, i, down)", "i", ["gpu_kv", "overlapping, up"]],
    ["kv_store.wgsl", "store_piece(source, own_slot(token), piece", "store_piece(source, token, piece", cases("attention F16 5 · 5 × 4/2")],
    ["kv_write.wgsl", "let to = row * (n / piece_values) + piece;", "let to = row * (n / piece_values) + (piece ^ 1u);", cases("attention F16 5 · 2 × 4/2")],
    ["lanes.wgsl", "partial[thread] += partial[thread + half];", "", cases("matmul Q4_K 1 ×")],
    ["local_attention.wgsl", "(k[k_at + i] + relative[r_at + i])", "(k[k_at + i] - relative[r_at + i])", cases("local_attention 2 × [16")],
    ["matmul.wgsl", "dot(w, v.a), dot(w, v.b)", "dot(w, v.b), dot(w, v.a)", cases("experts F32 33 × [8")],
    ["matmul_blocks.wgsl", "a5 = weighted(a5, w5, first);", "a5 = weighted(a5, w4, first);", cases("matmul F16 130 ×")],
    ["matmul_blocks.wgsl", "keep(next, 1u - step % 2u, thread);", "keep(next, step % 2u, thread);", cases("matmul Q4_K 130 ×")],
    ["matmul_blocks.wgsl", "q_values(q.z) * scale", "q_values(q.y) * scale", cases("matmul Q4_K 130 ×")],
    ["matmul_blocks.wgsl", "two_numbers(w.z), two_numbers(w.w)", "two_numbers(w.z), two_numbers(w.z)", cases("matmul BF16 70 ×")],
    ["matmul_matrix.wgsl", "(slot & 1u) * 2u + ((slot >> 1u) & 1u)", "(slot & 3u)", cases("matmul_back Q4_K 140"), large],
    ["matmul_matrix.wgsl", "store(place, r + 1u, c, four.z);", "store(place, r + 1u, c, four.y);", cases("matmul_back F16 33"), matrices],
    ["matmul_matrix.wgsl", "+ x_first) + part", ") + part", cases("matmul_back in tiles"), large],
    ["matmul_matrix.wgsl", "(left1, right0, m10)", "(left0, right0, m10)", cases("matmul Q4_K 5 ×"), large],
    ["matmul_q8.wgsl", "sum += s.y * v.sum;", "sum -= s.y * v.sum;", cases("matmul Q4_0 33 × [512")],
    ["matmul_sum.wgsl", "sum += sums[", "sum = sums[", cases("matmul F16 64 × [512")],
    ["matmul_sum.wgsl", "= clip_result(first_row + row, sum);", "= clip_result(first_row, sum) + 0.1;", cases("clipped linears F16 70 ×")],
    ["product_columns.wgsl", "x_row = min(c, columns - 1u);", "x_row = min(c ^ 1u, columns - 1u);", cases("matmul Q4_K 2 ×")],
    ["quads_dot.wgsl", "return both.x + both.y;", "return both.x - both.y;", cases("matmul F16 2 ×")],
    ["mix.wgsl", "out[at] * (scale * weight[i])", "out[at] * (a_scale * weight[i])", layers("experts")],
    ["matmul_back.wgsl", "group.y * y_split_stride", "0u", cases("matmul_back F16 3 × [64")],
    ["matmul_back.wgsl", "(expert - first_expert) * rows, 0u)", "0u, 0u)", cases("gradients of 2 of 8 experts")],
    ["moe.wgsl", "logit[other] == logit[x] && other < x", "logit[other] == logit[x] && other > x", cases("experts F32 33 × [40")],
    ["moe.wgsl", "groups[experts + 1u + tiles + to] = i;", "groups[experts + 1u + tiles + to] = i / 2u;", cases("experts F32 33 × [8")],
    ["moe.wgsl", "slots[at] = table[header + id];", "slots[at] = table[header + id] ^ 1u;", cases("in slots")],
    ["moe.wgsl", "report[header + x] = wanted;", "report[header + x] = 1u - min(wanted, 1u);", cases("in slots")],
    ["moe.wgsl", "x | (first << 16u);", "x;", cases("lopsided")],
    ["norm.wgsl", "+ eps)", "- eps)", cases("rms_norm 1 × [1, 1]")],
    ["norm.wgsl", "square(a[source + i] - mean)", "square(a[source + i])", cases("layer_norm 2 × [33, 3]")],
    ["norms.wgsl", "b[row + i] * (scale * b_weight[i])", "b[row + i] * b_weight[i]", layers("three types")],
    ["product.wgsl", "sums.x += chunk_dot(", "sums.x -= chunk_dot(", cases("matmul Q4_K 1 ×")],
    ["product.wgsl", "gelu(total[r]) * total[row_values + r]", "gelu(total[r]) * total[r]", layers("three types")],
    ["q8_dot.wgsl", "s.x * f32(low + high)", "s.x * f32(low - high)", cases("matmul Q4_0 1 ×")],
    ["quantise.wgsl", "totals[i] + totals[i + 1u]", "totals[i] - totals[i + 1u]", cases("matmul Q4_0 33 × [512")],
    ["reduce.wgsl", "sum += reduce_partial[i];", "sum = reduce_partial[i];", cases("rms_norm 2 × [96, 1]")],
    ["reduce.wgsl", "reduce_partial[thread] += reduce_partial[thread + half];", "", cases("rms_norm 2 × [96, 1]", "subgroups")],
    ["repack.wgsl", "(raw[(at >> 2u) + 1u] << (32u - shift))", "0u", cases("matmul Q8_0 1 ×")],
    ["result_q8.wgsl", "& 255u) << (8u * i); }", "& 255u) << (24u - 8u * i); }", cases("experts Q8_0 1 ×")],
    ["rope.wgsl", "rounded_unit(a[source] * cosine) - rounded_unit", "rounded_unit(a[source] * cosine) + rounded_unit", cases("rope 2 ×")],
    ["rope.wgsl", "along = run.records[at.y].id;", "along = run.records[at.y].position;", cases("two axes 2 ×")],
    ["run.wgsl", "tokens:  u32,\noutputs: u32,", "outputs: u32,\ntokens:  u32,", cases("select_rows")],
    ["shrinks.wgsl", "dot_sum * scale", "dot_sum", cases("adapters of a linear 1 × [700")],
    ["shrinks.wgsl", "return (row - first_1) / rank_1;", "return row / rank_1;", layers("adapters of odd widths")],
    ["shrinks.wgsl", "= set_weight(token, slot) * all;", "= all;", cases("adapters of a linear 35 ×")],
    ["shrinks.wgsl", "let begin  = group.y * part_units;", "let begin  = 0u;", cases("adapters of a linear 3 ×")],
    ["shrinks.wgsl", "return scale * vec4<f32>(", "return 9.0 * scale * vec4<f32>(", layers("adapters of values")],
    ["slots.wgsl", "return index % s.count;", "return min(index, s.count - 1u);", cases("attention F16 5 · 5 × 3/1")],
    ["slots.wgsl", "index < s.prefix_end", "index <= s.prefix_end", records],
    ["states.wgsl", "state[(group.z * rank + first + part) * n + i] += factor", "state[(group.z * rank + first + part) * n + i] = factor * 2.0", cases("gradients of an adapter of a product, 5")],
    ["states.wgsl", "if (run.records[t].id == id) { return; }", "", cases("gradients of an adapter of an embedding")],
    ["states.wgsl", "sqrt(v * rates[6])", "sqrt(v)", cases("adamw of 37")],
    ["states.wgsl", "base += step) {", "base += step / 2u) {", cases("gradients of an adapter of a product, 140")],
    ["states.wgsl", "vec4<f32>(a, b, c, d)", "vec4<f32>(a, b, c, c)", cases("adamw of 20000")],
    ["tile.wgsl", "chunk_first(), y_offset)", "0u, y_offset)", cases("canvas head Q6_K")],
    ["tile.wgsl", "= clip_result(to, sum);", "= clip_result(to, -sum);", cases("experts F32 33 × [8")],
    ["tile_product.wgsl", "sums0 += row_dots(", "sums0 -= row_dots(", cases("experts F32 33 × [8")],
    ["tile_product.wgsl", "sums4 += row_dots(", "sums4 -= row_dots(", cases("matmul Q4_0 131 × [96")], // test_tall_tiles
    ["unit.wgsl", "return x * x;", "return abs(x);", cases("rms_norm 2 × [33, 3]")],
    ["unit.wgsl", "return dot(x, unit(1.0));", "return x.x;", cases("layer_norm 2 × [96, 1]")],
    ["weights.wgsl", "-(d.y * f32(minimum))", "d.y * f32(minimum)", cases("matmul Q4_K 1 ×")],
    ["wide.wgsl", "a1 * b1 + (middle >> 16u)", "a1 * b1", cases("rope 2 ×")],
    ["sampler.wgsl", "{ atomicMin(&lowest_block, i); }", "{ atomicMin(&lowest_block, i + 1u); }", draws("greedy")],
    ["sampler.wgsl", "settings[row].row * n", "row % 2u * n", draws("rows")],
    ["sampler_border.wgsl", "id_found = (id_found << 10u) | found;", "id_found = id_found << 10u;", draws("top-k")],
    ["sampler_choose.wgsl", "return nearest + wide_quotient(moments, masses);", "return nearest;", draws("typical")],
    ["sampler_cuts.wgsl", "now.prefix = (now.prefix << 10u) | find_bucket(counts);", "now.prefix = (now.prefix << 10u) + find_bucket(counts) + 1u;", draws("plain")],
    ["sampler_cuts.wgsl", "now.mean += wide_quotient(sums.xy, sums.zw);", "now.mean += 1u;", draws("typical")],
    ["sampler_cuts.wgsl", "if (digit >> 10u != now.prefix) { return; }", "", draws("above a thousand")],
    ["sampler_cuts.wgsl", "{ now.ties = wide_quotient(", "{ now.ties = 7u + wide_quotient(", draws("equals")],
    ["sampler_cuts.wgsl", "let surviving = now.goal.x - now.before.x;", "let surviving = now.goal.x;", draws("equals")],
    ["sampler_logprobs.wgsl", "a.key == b.key && a.id < b.id", "a.key == b.key && a.id > b.id", draws("greedy")],
    ["sampler_logprobs.wgsl", "parts[to + 3u + 2u * i] = last.id;", "parts[to + 3u + 2u * i] = last.id + 1u;", draws("greedy")],
    ["sampler_math.wgsl", "0u), seed).yx;", "0u), seed).xy;", draws("top-k")],
    // The same faults of a driver, seen by the self-check.
    ["sampler.wgsl", "{ atomicMin(&lowest_block, i); }", "{ atomicMin(&lowest_block, i + 1u); }", checks("draws")],
    ["sampler_border.wgsl", "id_found = (id_found << 10u) | found;", "id_found = id_found << 10u;", checks("draws")],
    ["sampler_choose.wgsl", "return nearest + wide_quotient(moments, masses);", "return nearest;", checks("draws")],
    ["sampler_cuts.wgsl", "found = first + find_bucket(false);", "found = first;", checks("draws")],
    ["sampler_logprobs.wgsl", "parts[to + 3u + 2u * i] = last.id;", "parts[to + 3u + 2u * i] = last.id + 1u;", checks("draws")],
    ["philox.wgsl", "0xbb67ae85u", "0xbb67ae86u", checks("draws")],
    ["kv.wgsl", "vec4<f32>(bytes) * bitcast<f32>(words.y)", "vec4<f32>(bytes) - bitcast<f32>(words.y)", checks("kv")],
    // Those of training, seen by the check before the first step.
    ["attention_back.wgsl", "index >= first_seen(row) && index <= last_seen(row)", "index <= last_seen(row)", trains],
    ["attention_back_matrix.wgsl", "(j >= my_first) & (j <= my_last)", "j <= my_last", trains, large],
    ["gradient_rows.wgsl", "scale * (w[i] * c[d + i] - a[x + i] * less)", "scale * (w[i] * c[d + i])", trains],
    ["states.wgsl", "sqrt(v * rates[6])", "sqrt(v)", trains],
];
const cannotBeBroken = {
    "kv_unit.wgsl": "names types only: another type does not compile",
};

let passed = 0, failed = 0;
function check(good, message) {
    if (good) passed++;
    else {
        failed++;
        console.log(`FAIL ${message}`);
    }
}

// A software GPU, unless another is named.
if (!process.env.VK_ICD_FILENAMES) {
    const files = spawnSync("dpkg", ["-L", "chromium", "chromium-common"], {encoding: "utf8"}).stdout ?? "";
    process.env.VK_ICD_FILENAMES = files.split("\n").find((file) => file.endsWith("vk_swiftshader_icd.json")) ?? "";
}

function run([, from, to, [program, ...args], more = {}]) {
    return new Promise((resolve) => {
        const began = performance.now();
        const env = {...process.env, ...more, BREAK_FROM: from, BREAK_TO: to, TEST_STOPS: "1"}; // one failure is enough
        execFile(join(build, `broken_${program}`), args, {env, timeout: 1_200_000, maxBuffer: 1 << 26}, (problem, stdout, stderr) => {
            if (process.env.TEST_SECONDS) console.log(`${((performance.now() - began) / 1000).toFixed(2)} s ${from.split("\n")[0]}: ${program} ${args.join(" ")}`);
            resolve({output: stderr + stdout, ended: problem ? problem.signal ?? problem.code : 0});
        });
    });
}

async function test(row) {
    const [file, from, , program] = row, what = `${file}, "${from.split("\n")[0].trim()}"`;
    const text = readFileSync(join("wgsl", file), "utf8").replace(/\n +/g, "\n"); // the program has it without indentation
    if (!text.includes(from)) return check(false, `${what}: the file has no such piece any more`);
    if (!all && rows.find((other) => other[0] === file) !== row) return;
    const {output, ended} = await run(row);
    const count = /(\d+) passed, (\d+) failed\n$/.exec(output), mistakes = /shader \S+\.wgsl:\d+[^\n]*/.exec(output);
    if (!count) return check(false, `${what}: the test did not come to its end (${ended}):\n${output.slice(-500)}`);
    if (mistakes) return check(false, `${what}: what takes its place does not compile: ${mistakes[0]}`);
    if (!output.includes("broken: ")) return check(false, `${what}: no case of "${program.join(" ")}" uses it`);
    check(count[2] !== "0" && ended === 1, `${what}: the test passes all the same (${count[0].trim()})`);
}

for (const file of readdirSync("wgsl")) check(rows.some((row) => row[0] === file) || file in cannotBeBroken, `wgsl/${file} has no row in tests/test_broken_kernels.mjs`);

// Undamaged, the same programs pass: so the failures above come from the damage.
// Kernels for other GPUs than the one in software are tested only here.
const right = [
    [cases("rms_norm 2 ×")], [cases("attention F16 5 · 33 ×"), littleMemory], [cases("steep"), matrices], [cases("steep"), large],
    [cases("heads of 72"), large], [cases("heads of 128"), large], [cases("F16 4 · 20 × 2/1 heads of 512"), large],
    [cases("matmul Q4_K 5 ×"), matrices], [cases("clipped linears F16 5 ×"), large], [cases("lopsided"), large],
    [cases("canvas head"), matrices], [cases("canvas head"), large],
    [cases("gradient of attention 67 ×"), large], [cases("gradient of attention 18 ×"), large], [cases("gradient of attention that grows"), large],
    [cases("heads of 72"), matrices],
    [cases("block of 9 at 11"), matrices], [cases("attention Q8_0 5 · 5 ×"), matrices],
];
async function testRight([program, more]) {
    const {output, ended} = await run(["", "", "", program, more]), what = `"${program.join(" ")}" ${JSON.stringify(more ?? {})}`;
    check(ended === 0 && /^[1-9]\d* passed, 0 failed\n$/m.test(output) && !output.includes("broken: "), `unbroken, ${what} fails:\n${output.slice(-500)}`);
}

const left = [...rows.filter(([file]) => file.includes(only)).map((row) => () => test(row)), ...right.map((row) => () => testRight(row))];
await Promise.all(Array.from({length: availableParallelism()}, async () => {
    for (let job; (job = left.shift());) await job();
}));

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
