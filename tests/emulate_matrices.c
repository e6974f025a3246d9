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
    static gpu_info info; /* of the only host that a test program has */
    info = *__real_gpu_host_info(h);
    if (getenv("EMULATE_LITTLE_MEMORY")) info.max_workgroup_bytes = 16384;
    if (!emulate_matrices()) return &info;
    info.subgroup_matrix = true;
    info.subgroup_min = info.subgroup_max = 32;
    info.matrix_rows = info.matrix_columns = info.matrix_depth = size();
    if (getenv("EMULATE_STEP")) info.attention_step = (uint32_t)atoi(getenv("EMULATE_STEP"));
    return &info;
}

/* A matrix is an array with its rows one after another. In workgroup memory, `tile`, a row or column begins at a unit of 16 bytes: eight
 * f16 or four f32. */
static const char functions[] =
    "alias Emulated = array<f32, emulated_m * emulated_m>;\n"
    "fn emulated_half(at: u32, i: u32) -> f32 { return unpack2x16float(tile[at + i / 8u][i % 8u / 2u])[i % 2u]; }\n"
    "fn emulated_rows(at: u32, stride: u32) -> Emulated {\n"
    "    var x: Emulated;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i++) { x[i] = emulated_half(at + i / emulated_m * stride, i % "
    "emulated_m); }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_columns(at: u32, stride: u32) -> Emulated {\n"
    "    var x: Emulated;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i++) { x[i] = emulated_half(at + i % emulated_m * stride, i / "
    "emulated_m); }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_sums(at: u32, stride: u32) -> Emulated {\n"
    "    var x: Emulated;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i++) {\n"
    "        x[i] = bitcast<f32>(tile[at + i / emulated_m * stride + i % emulated_m / 4u][i % 4u]);\n"
    "    }\n"
    "    return x;\n"
    "}\n"
    "fn emulated_store(at: u32, x: Emulated, stride: u32) {\n"
    "    var y = x;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i += 4u) {\n"
    "        let four = vec4<f32>(y[i], y[i + 1u], y[i + 2u], y[i + 3u]);\n"
    "        tile[at + i / emulated_m * stride + i % emulated_m / 4u] = bitcast<vec4<u32>>(four);\n"
    "    }\n"
    "}\n"
    "fn emulated_store_columns(at: u32, x: Emulated, stride: u32) {\n"
    "    var turned: Emulated;\n"
    "    var y = x;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i++) { turned[i] = y[i % emulated_m * emulated_m + i / "
    "emulated_m]; }\n"
    "    emulated_store(at, turned, stride);\n"
    "}\n"
    "fn emulated_product(a: Emulated, b: Emulated, c: Emulated) -> Emulated {\n"
    "    var left = a;\n"
    "    var right = b;\n"
    "    var sum = c;\n"
    "    for (var i = 0u; i < emulated_m * emulated_m; i++) {\n"
    "        let row = i / emulated_m * emulated_m;\n"
    "        for (var k = 0u; k < emulated_m; k++) { sum[i] += left[row + k] * right[k * emulated_m + i % emulated_m]; "
    "}\n"
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
    { "subgroup_matrix_left<f16, 8, 8>", "Emulated" },
    { "subgroup_matrix_left<f16, 16, 16>", "Emulated" },
    { "subgroup_matrix_right<f16, 8, 8>", "Emulated" },
    { "subgroup_matrix_right<f16, 16, 16>", "Emulated" },
    { "subgroup_matrix_result<f32, 8, 8>", "Emulated" },
    { "subgroup_matrix_result<f32, 16, 16>", "Emulated" },
    { "subgroupMatrixLoad<Left, row_major>(&tile, ", "emulated_rows(" },
    { "subgroupMatrixLoad<Right, row_major>(&tile, ", "emulated_rows(" },
    { "subgroupMatrixLoad<Right, col_major>(&tile, ", "emulated_columns(" },
    { "subgroupMatrixLoad<Result, row_major>(&tile, ", "emulated_sums(" },
    { "subgroupMatrixStore<row_major>(&tile, ", "emulated_store(" },
    { "subgroupMatrixStore<col_major>(&tile, ", "emulated_store_columns(" },
    { "bitcast<vec2<f16>>(", "unpack2x16float(" }, /* arithmetic with f16: f32, rounded when it is packed */
    { "bitcast<u32>(q", "pack2x16float(q" },
    { "vec2<f16>", "vec2<f32>" },
    { "vec4<f16>", "vec4<f32>" },
    { ".0h", ".0" },
    { "subgroupMatrixMultiplyAccumulate(", "emulated_product(" },
    { "@builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {",
      ") { let subgroup = thread / 32u; let lane = thread % 32u;" },
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
    buffer_text(out, size() == 16 ? "const emulated_m = 16u;\n" : "const emulated_m = 8u;\n");
    buffer_text(out, functions);
}
