/* Plans and runs each op as a graph on every backend and compares it with the formula in double: on the CPU with every instruction
 * set, with one thread and three; on the GPU with and without its optional features; with and without 8-bit activations. Inputs enter
 * through an embedding table, as in a model.
 *
 * A GPU that is exact must also give the same bits as the CPU's scalar kernels, for all ops of a diffusion model.
 *
 *     test_ops [cpu|gpu] [disabled GPU features, after a + in a second pass only] [only cases with this in their name] [deep]
 *
 * deep: attentions over as many tokens and keys as a long prompt has, instead of everything else; for a GPU that is one
 * (bench/node/ops.sh). */

#include "gpu/features.h"
#include "op_attention.h"
#include "op_canvas.h"
#include "op_gradients.h"
#include "op_graphs.h"
#include "op_products.h"
#include "op_rows.h"

static void test_backend(const backend *b) {
    static const size_t     tokens[] = { 1, 2, 5, 33, 64 };
    static const quant_type embeds[] = { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_Q6_K, TYPE_Q4_K };
    static const quant_type kv[] = { TYPE_F32, TYPE_F16, TYPE_Q8_0 };
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        const size_t n = tokens[i];
        test_norm(b, n, 96, 1, true);
        test_norm(b, n, 33, 3, false);
        test_norm(b, n, 1, 1, true);
        test_layer_norm(b, n, 96, 1, true);
        test_layer_norm(b, n, 33, 3, false);
        test_op_vectors(b, n, 40, 3);
        test_op_vectors(b, n, 7, 1);
        test_elementwise(b, n, 1 + 16 * n);
        test_gate(b, n, 1 + 16 * n);
        test_conv_grid(b, n, 9, 1, 5, 3);
        test_conv_grid(b, n, 8, 12, 8, 1);
        test_conv_tokens(b, n, 40, 5);
        test_conv_tokens(b, n, 33, 3);
        test_local_attention(b, n, 16, 3, 12, 50);
        test_local_attention(b, n, 72, 2, 16, 2);
        test_rope(b, n, 32, 3);
        test_rope(b, n, 6, 1);
        test_rope_of_patches(b, n, 72, 3);
        test_rope_of_patches(b, n, 32, 2);
        test_embed_position(b, n, 36);
        for (size_t t = 0; t < COUNT_OF(embeds); t++) test_embed(b, embeds[t], n, 512);
        test_given(b, TYPE_F16, n, 64);
        for (uint32_t type = 0; type < TYPE_COUNT; type++) {
            const quant_format *f = quant_format_of(type);
            if (f && f->dequantise) test_matmul(b, (quant_type)type, n, 512, 37);
        }
        test_matmul(b, TYPE_F16, n, 33, 5);
        test_matmul(b, TYPE_Q4_0, n, 96, 65);
        for (size_t t = 0; t < COUNT_OF(kv); t++) {
            test_op_attention(b, kv[t], n, 5, 64, 4, 2, 0);
            test_op_attention(b, kv[t], n, 5, 32, 3, 1, 16);
        }
        test_op_attention(b, TYPE_F16, n, 5, 256, 8, 1, 40);
        test_experts(b, TYPE_F32, n, 40, 24, 8, 2);
        test_experts(b, TYPE_Q8_0, n, 64, 32, 16, 3);
        test_experts(b, TYPE_Q4_K, n, 256, 256, 4, 2);
    }
    test_lora(b, LORA_PLAIN, 1, 33, 35, 1, 1);
    test_lora(b, LORA_PLAIN, 2, 36, 68, 3, 2);
    test_lora(b, LORA_PLAIN, 5, 33, 35, 256, 3);
    test_lora(b, LORA_PLAIN, 33, 36, 68, 17, 2);
    test_lora(b, LORA_PLAIN, 64, 36, 35, 8, 1);
    test_lora(b, LORA_PLAIN, 1, 700, 1100, 16, 4);
    test_lora(b, LORA_PLAIN, 35, 700, 1100, 16, 4);
    test_lora(b, LORA_PLAIN, 1, 4100, 36, 3, 2);
    test_lora(b, LORA_PLAIN, 3, 4608, 68, 8, 3);
    test_lora(b, LORA_OUTPUTS, 5, 64, 129, 8, 3);
    test_lora(b, LORA_OUTPUTS, 33, 64, 129, 8, 3);
    test_lora(b, LORA_EMBEDDING, 33, 1, 52, 12, 3);
    test_lora(b, LORA_ROUTED, 1, 40, 24, 8, 3);
    test_lora(b, LORA_ROUTED, 33, 33, 7, 5, 1);
    test_experts_with(b, TYPE_Q8_0, 37, 32, 32, 9, 2, true, 0); /* experts without tokens, and two with all */
    if (b->gpu) {
        test_experts_with(b, TYPE_Q8_0, 1, 64, 32, 16, 3, false, 4); /* fewer on the GPU than there are */
        test_experts_with(b, TYPE_Q8_0, 37, 64, 32, 16, 3, false, 3);
        test_experts_with(b, TYPE_Q4_0, 5, 32, 32, 4, 2, false, 1);
    }
    test_experts(b, TYPE_Q4_0, 67, 32, 32, 4, 2); /* tiles of 32 pairs, of 64, and many experts */
    test_experts(b, TYPE_Q4_0, 97, 32, 32, 2, 1);
    test_experts(b, TYPE_F32, 33, 8, 4, 61, 5);
    test_matmul(b, TYPE_Q6_K, 7, 256,
                4101); /* a few columns: four rows to a thread, a whole block of columns, and two */
    test_matmul(b, TYPE_Q4_K, 16, 256, 37);
    test_matmul(b, TYPE_Q4_0, 29, 96, 65);
    test_matmul(b, TYPE_F16, 32, 33, 5);
    test_experts(b, TYPE_Q4_K, 11, 256, 256, 4, 2);
    test_matmul(b, TYPE_F16, 130, 160, 150); /* several tiles of rows and of columns */
    test_matmul(b, TYPE_Q4_K, 130, 256, 150);
    test_matmul(b, TYPE_Q6_K, 34, 512, 129);
    test_matmul(b, TYPE_BF16, 70, 96, 129);
    test_matmul(b, TYPE_F32, 65, 33, 130);
    test_clipped(b, TYPE_F16, 1, 64, 96); /* with separate clamps on the GPU */
    test_clipped(b, TYPE_F16, 2, 64, 96); /* by each kind of kernel, with k split and not */
    test_clipped(b, TYPE_F16, 5, 33, 48);
    test_clipped(b, TYPE_F16, 70, 512, 160);
    test_clipped(b, TYPE_BF16, 130, 96, 130);
    test_clipped(b, TYPE_Q8_0, 33, 512, 64);
    test_op_attention(b, TYPE_F16, 4, 40, 64, 4, 2, 0); /* so deep that the GPU shares out the keys */
    test_op_attention(b, TYPE_F16, 1, 90, 32, 2, 1, 72);
    test_op_attention(b, TYPE_F16, 3, 12, 32, 3, 1, 16); /* the window's edge lies between the tokens of a batch */
    test_op_attention(b, TYPE_F16, 1, 18, 512, 8, 1, 0); /* the largest heads */
    /* several tiles of 32 keys to a workgroup, with splits and without */
    test_op_attention(b, TYPE_F16, 4, 20, 8, 8, 8, 70);
    if (!b->gpu || b->precise) { /* the same with columns of 8 bits */
        /* A software GPU has no splits with 4 heads either: more of them only take longer. */
        const bool software = b->gpu && gpu_host_info(b->gpu->host)->software;
        test_op_attention(b, TYPE_F16, 4, 20, 8, software ? 4 : 64, software ? 4 : 64, 70);
        test_op_attention(b, TYPE_F32, 2, 20, 2, software ? 4 : 192, software ? 4 : 192, 0);
    }
    test_op_attention(b, TYPE_F16, 70, 2, 72, 2, 2, 0); /* heads of a picture's tower */
    test_op_attention(b, TYPE_F16, 70, 2, 128, 2, 1, 0);
    test_op_attention(b, TYPE_F16, 20, 4, 512, 2, 1, 40);
    test_attention_with(b, TYPE_F16, 32, 4, 64, 2, 1, 0, (block[2]){ { 0, 0 } }, STEEP);
    test_attention_logs(b, 1, 5, 32, 2, 1, 0);
    test_attention_logs(b, 33, 4, 64, 2, 1, 0);
    test_attention_logs(b, 64, 2, 6, 5, 5, 40);
    test_image_blocks(b);
    test_attention_with(b, TYPE_F16, 70, 1, 72, 3, 3, 0, (block[2]){ { 0, 70 } }, PLAIN);
    test_layer_norm(b, 2, 1601, 1, true);
    test_op_vectors(b, 2, 20000, 1);
    test_elementwise(b, 1, 40000); /* one long row is shared between threads */
    for (size_t n = 1; n <= 20; n += 19) {
        test_results(b, n, 64);
        test_leaves(b, n, 30 + 2 * n);
    }
    for (size_t n = 1; n <= 9 && b->gpu; n += n) { /* a kernel for one column, for a few, for many */
        test_weight_sets(b, TYPE_Q4_K, n, 256, 24);
        test_weight_sets(b, TYPE_F16, n, 96, 40);
    }
    test_canvas_heads(b);
    test_select(b);
    test_select_means(b, 7, 9, 32, 1);
    test_select_means(b, 3, 4, 11, 3);
}

/* Products of 8-bit columns with as many rows to a thread as on a GPU in hardware: scales for 32 values and for 16, and experts. */
static void test_tall_tiles(const backend *b) {
    gpu_info  *info = (gpu_info *)gpu_host_info(b->gpu->host);
    const bool software = info->software;
    info->software = false;
    test_matmul(b, TYPE_Q4_0, 131, 96, 70);
    test_matmul(b, TYPE_Q6_K, 66, 256, 129);
    test_experts(b, TYPE_Q4_K, 41, 256, 256, 4, 2);
    info->software = software;
}

static void test_ops_on_cpu(void) {
    const cpu_kernels *const *tables;
    const size_t              count = cpu_kernels_available(&tables);
    for (size_t i = 0; i < count; i++) {
        for (int mode = 0; mode < 2; mode++) {
            error   e = { 0 };
            backend b = { .precise = mode };
            snprintf(b.name, sizeof b.name, "%s", tables[i]->name);
            TEST("%s opens", b.name);
            CHECK_MESSAGE(!cpu_backend_open(&b.cpu, tables[i]->name, mode ? 3 : 1, mode, &e), "%s", e.why);
            if (e.status) continue;
            test_backend(&b);
            if (mode) test_gradients(&b);
            cpu_backend_close(&b.cpu);
        }
    }
}

/* With 8-bit and with f32 columns. */
static void test_ops_with(gpu_backend *gpu, const char *without, bool deep) {
    for (int mode = 0; mode < 2; mode++) {
        backend b = { .precise = mode, .gpu = gpu };
        gpu->precise = mode;
        snprintf(b.name, sizeof b.name, "gpu%s%s", *without ? " without " : "", without);
        (deep ? test_deep : test_backend)(&b);
        if (!mode && !deep) test_tall_tiles(&b);
        if (mode && !deep) test_gradients(&b);
        if (!mode && !deep && halves(&b, TYPE_F16)) test_gradients_in_halves(&b);
    }
}

/* The ops of a diffusion model with pictures on a GPU that must give the same bits as the CPU. */
static void test_exact(const backend *b) {
    static const size_t     tokens[] = { 1, 3, 33 };
    static const quant_type types[] = { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q4_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K };
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        const size_t n = tokens[i];
        test_norm(b, n, 96, 1, true);
        test_norm(b, n, 33, 3, false);
        test_norm(b, n, 1600, 1, true);
        test_layer_norm(b, n, 96, 1, true);
        test_layer_norm(b, n, 33, 3, false);
        test_layer_norm(b, n, 1601, 1, true);
        test_op_vectors(b, n, 40, 3);
        test_elementwise(b, n, 1 + 16 * n);
        test_elementwise(b, n, 256);
        test_rope(b, n, 32, 3);
        test_rope(b, n, 6, 1);
        test_rope_of_patches(b, n, 72, 3);
        test_embed(b, TYPE_Q4_K, n, 512);
        test_embed(b, TYPE_F16, n, 33);
        for (size_t t = 0; t < COUNT_OF(types); t++) test_matmul(b, types[t], n, 512, 37);
        test_matmul(b, TYPE_F16, n, 33, 5);
        test_op_attention(b, TYPE_F32, n, 5, 64, 4, 2, 0);
        test_op_attention(b, TYPE_F16, n, 5, 33, 4, 2, 0);
        test_op_attention(b, TYPE_F32, n, 5, 256, 3, 1, 16);
        test_experts(b, TYPE_F32, n, 40, 24, 8, 2);
        test_experts(b, TYPE_Q4_K, n, 256, 256, 4, 2);
    }
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        const quant_format *f = quant_format_of(type);
        if (f && f->dequantise) test_matmul(b, (quant_type)type, 2, 512, 5);
    }
    test_op_attention(b, TYPE_F32, 70, 2, 512, 2, 1, 40);
    test_op_attention(b, TYPE_Q8_0, 5, 5, 64, 4, 2, 0);
    test_image_blocks(b);
    test_experts(b, TYPE_Q8_0, 67, 64, 32, 16, 3);
    test_experts_with(b, TYPE_Q8_0, 37, 64, 32, 16, 3, false, 3);
    test_matmul(b, TYPE_Q6_K, 130, 256, 150);
    test_clipped(b, TYPE_BF16, 70, 96, 130);
    test_select_means(b, 7, 9, 32, 1);
    test_canvas_heads(b);
    test_canvas_head(b, TYPE_F16, 5, 64, 2 * CANVAS_CHUNK + 300, 30); /* several chunks */
    test_canvas_head_in(b, TYPE_F16, 7, 64, 2 * CANVAS_CHUNK + 300, 30,
                        3 * CANVAS_CHUNK / 2 * 64 * sizeof(uint16_t)); /* in tiles of one chunk */
}

static void test_exact_ops(gpu_backend *gpu) {
    error   e = { 0 };
    backend b = { .name = "exact gpu", .precise = true, .gpu = gpu, .exact = true };
    TEST("the scalar kernels open");
    CHECK_MESSAGE(!cpu_backend_open(&b.cpu, "scalar", 2, true, &e), "%s", e.why);
    if (e.status) return;
    gpu->precise = true;
    gpu_features_be_exact((gpu_info *)gpu_host_info(gpu->host));
    test_exact(&b);
    cpu_backend_close(&b.cpu);
}

/* One device for all: many kernels are the same in both modes, and without features. `disable` begins with a `+` if the features are to
 * be hidden only after everything has been tested with them. */
static void test_ops_on_gpu(const char *disable, bool deep) {
    error             e = { 0 };
    gpu_backend       gpu;
    const bool        both = *disable == '+';
    const gpu_options options = { .adapter = -1, .disable = both ? NULL : disable };
    TEST("the GPU opens");
    CHECK_MESSAGE(!gpu_backend_open(&gpu, &options, false, &e), "%s", e.why);
    if (e.status) return;
    test_ops_with(&gpu, both ? "" : disable, deep);
    if (both) {
        bool hidden[GPU_FEATURES];
        TEST("features are hidden");
        CHECK_MESSAGE(!gpu_features_read(disable + 1, hidden, &e), "%s", e.why);
        for (size_t i = 0; i < GPU_FEATURES; i++) {
            if (hidden[i]) *gpu_feature_field((gpu_info *)gpu_host_info(gpu.host), (gpu_feature)i) = false;
        }
        test_ops_with(&gpu, disable + 1, deep);
    }
    if (!deep) test_exact_ops(&gpu);
    gpu_backend_close(&gpu);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "cpu";
    if (argc > 3) only = argv[3];
    if (!strcmp(which, "gpu")) test_ops_on_gpu(argc > 2 ? argv[2] : "", argc > 4 && !strcmp(argv[4], "deep"));
    else {
        test_ops_on_cpu();
        test_op_shapes();
    }
    return test_end();
}
