#include "emulate_matrices.h"

#include "gpu/host.h"

#include <stdlib.h>
#include <string.h>

const gpu_info *__real_gpu_host_info(const gpu_host *h);
const gpu_info *__wrap_gpu_host_info(const gpu_host *h);

static uint32_t size(void) {
    const char *text = getenv("EMULATE_MATRICES");
    return !text ? 0 : !strcmp(text, "16") ? 16 : 8;
}

bool emulate_matrices(void) { return size() > 0; }

/* Linked with -Wl,--wrap=gpu_host_info. */
const gpu_info *__wrap_gpu_host_info(const gpu_host *h) {
    static gpu_info        info; /* a copy, which tests may change */
    static const gpu_host *of;
    if (of == h) return &info;
    of = h;
    info = *__real_gpu_host_info(h);
    if (getenv("EMULATE_LITTLE_MEMORY")) info.max_workgroup_bytes = 16384;
    if (!emulate_matrices()) return &info;
    info.subgroup_matrix = true;
    info.subgroup_min = info.subgroup_max = 32;
    info.matrix_rows = info.matrix_columns = info.matrix_depth = size();
    if (getenv("EMULATE_STEP")) info.attention_step = (uint32_t)atoi(getenv("EMULATE_STEP"));
    return &info;
}

/* As on hardware, the 32 lanes of a subgroup share a matrix. A lane has `emulated_c` neighbours of one row of a result, and for a product
 * what these need: a row on the left, and columns on the right. In workgroup memory, `tile`, a row or column begins at a unit of 16 bytes:
 * eight f16 or four f32. */
static const char functions[] =
    "alias EmulatedLeft = array<f32, emulated_m>;\n"
    "alias EmulatedRight = array<f32, emulated_m * emulated_c>;\n"
    "alias EmulatedResult = array<f32, emulated_c>;\n"
    "const emulated_parts = emulated_m / emulated_c;\n"
    "var<private> emulated_lane: u32;\n"
    "fn emulated_row() -> u32 { return emulated_lane / emulated_parts % emulated_m; }\n"
    "fn emulated_column() -> u32 { return emulated_lane % emulated_parts * emulated_c; }\n"
    "fn emulated_half(at: u32, i: u32) -> f32 { return unpack2x16float(tile[at + i / 8u][i % 8u / 2u])[i % 2u]; }\n"
    "fn emulated_left(at: u32, stride: u32) -> EmulatedLeft {\n"
    "    var x: EmulatedLeft;\n"
    "    for (var k = 0u; k < emulated_m; k++) { x[k] = emulated_half(at + emulated_row() * stride, k); }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_left_by_columns(at: u32, stride: u32) -> EmulatedLeft {\n"
    "    var x: EmulatedLeft;\n"
    "    for (var k = 0u; k < emulated_m; k++) { x[k] = emulated_half(at + k * stride, emulated_row()); }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_right_by_rows(at: u32, stride: u32) -> EmulatedRight {\n"
    "    var x: EmulatedRight;\n"
    "    for (var i = 0u; i < emulated_m * emulated_c; i++) {\n"
    "        x[i] = emulated_half(at + i / emulated_c * stride, emulated_column() + i % emulated_c);\n"
    "    }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_right_by_columns(at: u32, stride: u32) -> EmulatedRight {\n"
    "    var x: EmulatedRight;\n"
    "    for (var i = 0u; i < emulated_m * emulated_c; i++) {\n"
    "        x[i] = emulated_half(at + (emulated_column() + i % emulated_c) * stride, i / emulated_c);\n"
    "    }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_sums(at: u32, stride: u32) -> EmulatedResult {\n"
    "    var x: EmulatedResult;\n"
    "    for (var j = 0u; j < emulated_c; j++) {\n"
    "        x[j] = bitcast<f32>(tile[at + emulated_row() * stride + (emulated_column() + j) / 4u][j % 4u]);\n"
    "    }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_store(at: u32, x: EmulatedResult, stride: u32) {\n"
    "    var y = x;\n"
    "    for (var j = 0u; j < emulated_c; j += 4u) {\n"
    "        let four = vec4<f32>(y[j], y[j + 1u], y[j + 2u], y[j + 3u]);\n"
    "        tile[at + emulated_row() * stride + (emulated_column() + j) / 4u] = bitcast<vec4<u32>>(four);\n"
    "    }\n"
    "}\n"
    "fn emulated_store_columns(at: u32, x: EmulatedResult, stride: u32) {\n"
    "    var y = x;\n"
    "    let row = emulated_row();\n"
    "    for (var j = 0u; j < emulated_c; j++) {\n"
    "        tile[at + (emulated_column() + j) * stride + row / 4u][row % 4u] = bitcast<u32>(y[j]);\n"
    "    }\n"
    "}\n"
    "var<workgroup> emulated_number: array<f32, threads>;\n"
    "fn emulated_shuffle(thread: u32, x: f32, step: u32) -> f32 {\n"
    "    emulated_number[thread] = x;\n"
    "    workgroupBarrier();\n"
    "    let other = emulated_number[thread ^ step];\n"
    "    workgroupBarrier();\n"
    "    return other;\n"
    "}\n"
    "fn emulated_product(a: EmulatedLeft, b: EmulatedRight, c: EmulatedResult) -> EmulatedResult {\n"
    "    var left = a;\n"
    "    var right = b;\n"
    "    var sum = c;\n"
    "    for (var j = 0u; j < emulated_c; j++) {\n"
    "        for (var k = 0u; k < emulated_m; k++) { sum[j] += left[k] * right[k * emulated_c + j]; }\n"
    "    }\n"
    "    return sum;\n"
    "}\n";

static const struct {
    const char *from, *to;
} replaced[] = {
    { "enable f16;\n", "" },
    { "enable subgroups;\n", "" },
    { "enable chromium_experimental_subgroup_matrix;\n", "" },
    { "diagnostic(off, chromium.subgroup_matrix_uniformity);\n", "" },
    { "subgroup_matrix_left<f16, 8, 8>", "EmulatedLeft" },
    { "subgroup_matrix_left<f16, 16, 16>", "EmulatedLeft" },
    { "subgroup_matrix_right<f16, 8, 8>", "EmulatedRight" },
    { "subgroup_matrix_right<f16, 16, 16>", "EmulatedRight" },
    { "subgroup_matrix_result<f32, 8, 8>", "EmulatedResult" },
    { "subgroup_matrix_result<f32, 16, 16>", "EmulatedResult" },
    { "subgroupMatrixLoad<Left, row_major>(&tile, ", "emulated_left(" },
    { "subgroupMatrixLoad<Left, col_major>(&tile, ", "emulated_left_by_columns(" },
    { "subgroupMatrixLoad<Right, row_major>(&tile, ", "emulated_right_by_rows(" },
    { "subgroupMatrixLoad<Right, col_major>(&tile, ", "emulated_right_by_columns(" },
    { "subgroupMatrixLoad<Result, row_major>(&tile, ", "emulated_sums(" },
    { "subgroupMatrixStore<row_major>(&tile, ", "emulated_store(" },
    { "subgroupMatrixStore<col_major>(&tile, ", "emulated_store_columns(" },
    { "bitcast<vec2<f16>>(", "unpack2x16float(" }, /* arithmetic with f16: f32, rounded when it is packed */
    { "bitcast<u32>(q", "pack2x16float(q" },
    { "vec2<f16>", "vec2<f32>" },
    { "vec4<f16>", "vec4<f32>" },
    { ".0h", ".0" },
    { "subgroupMatrixMultiplyAccumulate(", "emulated_product(" },
    { "subgroupShuffleXor(", "emulated_shuffle(thread, " },
    { "@builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {",
      ") { let subgroup = thread / 32u; let lane = thread % 32u; emulated_lane = lane;" },
};

void emulate_matrices_in(const char *wgsl, buffer *out) {
    while (*wgsl) {
        size_t i = 0;
        while (i < COUNT_OF(replaced) && strncmp(wgsl, replaced[i].from, strlen(replaced[i].from))) i++;
        if (i == COUNT_OF(replaced)) buffer_char(out, *wgsl++);
        else {
            buffer_text(out, replaced[i].to);
            wgsl += strlen(replaced[i].from);
        }
    }
    buffer_text(out, size() == 16 ? "const emulated_m = 16u; const emulated_c = 8u;\n"
                                  : "const emulated_m = 8u; const emulated_c = 4u;\n");
    buffer_text(out, functions);
}
