/* Model files: llama.cpp's and Ollama's must compute the same; damaged ones are refused with a reason.
 *
 *     test_model [cpu|gpu] */

#include "model_file.h"
#include "session/session.h"
#include "test.h"

static char       why[400];
static gm_backend device = GM_BACKEND_CPU;

static const char dense[] = "tests/fixtures/tiny-dense.gguf", moe[] = "tests/fixtures/tiny-moe.gguf",
                  small[] = "tests/fixtures/small-dense-Q4_K_M.gguf";

/* Opens the file and computes a few tokens. */
static gm_status try_file(const void *data, size_t size, float *logits, size_t vocabulary) {
    static const int32_t tokens[] = { 2,   301, 355, 412, 333, 300, 478, 390, 402, 311,
                                      322, 345, 367, 378, 389, 401, 350, 360, 370, 380 };
    gm_engine           *engine = NULL;
    gm_session          *s = NULL;
    gm_status            status = gm_engine_open(
        &(gm_engine_options){ .data = data, .data_size = size, .threads = 1, .backend = device, .precise = true },
        &engine, why, sizeof why);
    if (!status) status = gm_session_new(engine, NULL, &s, why, sizeof why);
    while (!status && (status = gm_session_set(s, tokens, COUNT_OF(tokens), why, sizeof why)) == GM_AGAIN)
        status = GM_OK;
    if (!status && logits) memcpy(logits, gm_session_logits(s), vocabulary * sizeof *logits);
    gm_session_free(s);
    gm_engine_close(engine);
    return status;
}

static void test_model_refusals(void) {
    static const struct {
        const char *file;
        edit        edit;
        gm_status   status;
        const char *says; /* the message contains this */
    } cases[] = {
        { dense, { DROP_TENSOR, "blk.1.attn_q.weight", 0, 0, 0 }, GM_BAD_FILE, "blk.1.attn_q.weight" },
        { dense, { DROP_TENSOR, "token_embd.weight", 0, 0, 0 }, GM_BAD_FILE, "token_embd.weight" },
        { dense, { DROP_TENSOR, "output_norm.weight", 0, 0, 0 }, GM_BAD_FILE, "output_norm.weight" },
        { dense, { DROP_TENSOR, "blk.2.attn_v.weight", 0, 0, 0 }, GM_BAD_FILE, "blk.2.attn_v.weight" },
        { dense, { DROP_TENSOR, "blk.3.layer_output_scale.weight", 0, 0, 0 }, GM_BAD_FILE, "layer_output_scale" },
        { dense, { DROP_TENSOR, "per_layer_token_embd.weight", 0, 0, 0 }, GM_BAD_FILE, "per_layer_token_embd.weight" },
        { dense, { DROP_TENSOR, "blk.5.proj.weight", 0, 0, 0 }, GM_BAD_FILE, "blk.5.proj.weight" },
        { moe, { DROP_TENSOR, "blk.0.ffn_gate_inp.weight", 0, 0, 0 }, GM_BAD_FILE, "ffn_gate_inp" },
        { moe, { DROP_TENSOR, "blk.0.ffn_gate_up_exps.weight", 0, 0, 0 }, GM_BAD_FILE, "ffn_gate_exps" },
        { moe, { DROP_TENSOR, "blk.1.pre_ffw_norm_2.weight", 0, 0, 0 }, GM_BAD_FILE, "pre_ffw_norm_2" },
        { dense,
          { RENAME_TENSOR, "blk.0.ffn_up.weight", 0, "blk.0.ffn_upp.weight", 0 },
          GM_BAD_FILE,
          "blk.0.ffn_up.weight" },
        { dense, { NARROW_TENSOR, "blk.0.ffn_down.weight", 0, 0, 0 }, GM_BAD_FILE, "[64, 64" },
        { dense, { NARROW_TENSOR, "blk.2.attn_q_norm.weight", 0, 0, 0 }, GM_BAD_FILE, "attn_q_norm" },
        { dense, { NARROW_TENSOR, "rope_freqs.weight", 0, 0, 0 }, GM_BAD_FILE, "rope_freqs" },
        { dense, { RETYPE_TENSOR, "blk.0.attn_output.weight", 0, 0, 0 }, GM_BAD_FILE, "I8" },
        { dense, { POISON_TENSOR, "blk.0.attn_q.weight", 0, 0, 0 }, GM_BAD_FILE, "blk.0.attn_q.weight" },
        { dense, { POISON_TENSOR, "token_embd.weight", 64, 0, 0 }, GM_BAD_FILE, "token_embd.weight" },
        { small, { POISON_TENSOR, "blk.0.ffn_gate.weight", 0, 0, 0 }, GM_BAD_FILE, "block 0" },
        { small, { POISON_TENSOR, "blk.0.ffn_gate.weight", 146, 0, 0 }, GM_BAD_FILE, "block 1" },
        { dense,
          { POISON_TENSOR, "blk.0.attn_norm.weight", 2, 0, 0 },
          GM_OK,
          NULL }, /* half of an f32: a large but finite number */
        { dense, { DROP_KEY, "gemma4.block_count", 0, 0, 0 }, GM_BAD_FILE, "gemma4.block_count" },
        { dense,
          { DROP_KEY, "gemma4.embedding_length_per_layer_input", 0, 0, 0 },
          GM_BAD_FILE,
          "gemma4.embedding_length_per_layer_input" },
        { moe, { SET_U32, "gemma4.expert_count", 0, 0, 0 }, GM_BAD_FILE, "gemma4.expert_count" },
        { dense, { SET_U32, "gemma4.block_count", 0, 0, 0 }, GM_BAD_FILE, "gemma4.block_count" },
        { dense, { SET_U32, "gemma4.block_count", 7, 0, 0 }, GM_BAD_FILE, "" },
        { dense, { SET_U32, "gemma4.block_count", 4000000000u, 0, 0 }, GM_BAD_FILE, "gemma4.block_count" },
        { dense, { SET_TEXT, "gemma4.block_count", 0, "six", 0 }, GM_BAD_FILE, "gemma4.block_count" },
        { dense, { SET_U32, "gemma4.embedding_length", 65, 0, 0 }, GM_BAD_FILE, "metadata requires [65" },
        { dense, { SET_U32, "gemma4.attention.head_count", 3, 0, 0 }, GM_BAD_FILE, "attn_q" },
        { dense, { SET_U32, "gemma4.attention.head_count", 0, 0, 0 }, GM_BAD_FILE, "head_count" },
        { moe, { SET_U32, "gemma4.attention.head_count", 5, 0, 0 }, GM_BAD_FILE, "not a multiple" },
        { dense, { SET_U32, "gemma4.attention.head_count_kv", 2, 0, 0 }, GM_BAD_FILE, "attn_k" },
        { dense, { SET_U32, "gemma4.attention.key_length", 63, 0, 0 }, GM_UNSUPPORTED, "" },
        { dense, { SET_U32, "gemma4.attention.shared_kv_layers", 6, 0, 0 }, GM_BAD_FILE, "shared_kv_layers" },
        { dense, { SET_U32, "gemma4.attention.shared_kv_layers", 5, 0, 0 }, GM_BAD_FILE, "full" },
        { dense, { SET_ARRAY, "gemma4.feed_forward_length", 128, 0, 5 }, GM_BAD_FILE, "feed_forward_length" },
        { dense, { SET_U32, "gemma4.feed_forward_length", 128, 0, 0 }, GM_BAD_FILE, "ffn_gate" },
        { dense,
          { DROP_KEY, "gemma4.attention.sliding_window_pattern", 0, 0, 0 },
          GM_BAD_FILE,
          "sliding_window_pattern" },
        { dense, { SET_U32, "gemma4.attention.sliding_window", 0, 0, 0 }, GM_BAD_FILE, "sliding_window" },
        { moe, { SET_U32, "gemma4.expert_used_count", 9, 0, 0 }, GM_BAD_FILE, "expert_used_count" },
        { moe, { SET_U32, "gemma4.expert_used_count", 0, 0, 0 }, GM_BAD_FILE, "expert_used_count" },
        { dense, { SET_TEXT, "general.architecture", 0, "llama", 0 }, GM_UNSUPPORTED, "llama" },
        { dense, { DROP_KEY, "general.architecture", 0, 0, 0 }, GM_BAD_FILE, "general.architecture" },
        { dense, { DROP_KEY, "tokenizer.ggml.merges", 0, 0, 0 }, GM_UNSUPPORTED, "merges" },
        { dense, { DROP_KEY, "tokenizer.ggml.tokens", 0, 0, 0 }, GM_UNSUPPORTED, "tokens" },
        { dense, { SET_ARRAY, "tokenizer.ggml.token_type", 1, 0, 10 }, GM_BAD_FILE, "token_type" },
        { dense, { SET_ARRAY, "tokenizer.ggml.merges", 1, 0, 10 }, GM_BAD_FILE, "merges" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        /* Most are found before a backend is asked. */
        if (device == GM_BACKEND_GPU && cases[i].edit.kind != POISON_TENSOR) continue;
        TEST("edit %d of %s", (int)cases[i].edit.kind, cases[i].edit.name);
        buffer file = model_file_edit(cases[i].file, &cases[i].edit, 1);
        CHECK(file.length > 0);
        *why = 0;
        const gm_status status = try_file(file.data, file.length, NULL, 0);
        CHECK_MESSAGE(status == cases[i].status && (!cases[i].says || strstr(why, cases[i].says)), "%s: %s",
                      gm_status_name(status), why);
        buffer_free(&file);
    }
}

/* The formats differ in how they write things; that must not change a logit. */
static void test_model_flavours(void) {
    static const struct {
        const char *file;
        edit        edits[2];
        const char *what;
    } cases[] = {
        { dense,
          { { SET_ARRAY, "gemma4.attention.head_count_kv", 1, 0, 6 },
            { SET_ARRAY, "gemma4.attention.head_count", 2, 0, 6 } },
          "head counts as arrays" },
        { moe,
          { { SET_ARRAY, "gemma4.feed_forward_length", 128, 0, 3 }, { EDIT_NONE, "", 0, 0, 0 } },
          "feed forward length as an array" },
        { moe, { { SPLIT_EXPERTS, "", 0, 0, 0 }, { EDIT_NONE, "", 0, 0, 0 } }, "gate and up apart" },
        { dense, { { DROP_TENSOR, "rope_freqs.weight", 0, 0, 0 }, { EDIT_NONE, "", 0, 0, 0 } }, "no rope_freqs" },
        { dense,
          { { SET_U32, "gemma4.attention.sliding_window_pattern", 3, 0, 0 }, { EDIT_NONE, "", 0, 0, 0 } },
          "pattern as a number" },
        { dense,
          { { SET_TEXT, "tokenizer.ggml.model", 0, "llama", 0 }, { SET_TEXT, "tokenizer.ggml.pre", 0, "gemma4", 0 } },
          "the tokenizer called llama" },
    };
    float want[640], got[640];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const edit_kind kind = cases[i].edits[0].kind; /* what metadata says is read before a backend is asked */
        if (device == GM_BACKEND_GPU && kind != SPLIT_EXPERTS && kind != DROP_TENSOR) continue;
        TEST("flavour: %s", cases[i].what);
        buffer plain = model_file_edit(cases[i].file, NULL, 0),
               other = model_file_edit(cases[i].file, cases[i].edits, 2);
        CHECK_MESSAGE(!try_file(plain.data, plain.length, want, 640), "%s", why);
        CHECK_MESSAGE(!try_file(other.data, other.length, got, 640), "%s", why);
        CHECK(!memcmp(want, got, sizeof want));
        buffer_free(&plain);
        buffer_free(&other);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    test_model_refusals();
    test_model_flavours();
    return test_end();
}
