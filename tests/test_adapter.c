/* Adapters: both forms of files, what is refused, and whether they fit a model. */

#include "adapter/adapter.h"
#include "adapter/expression.h"
#include "adapter_files.h"
#include "read_gguf.h"
#include "test.h"

#include <math.h>

/* ---- the files of PEFT ---- */

static void test_adapter_folders(void) {
    TEST("a PEFT folder: names, order, ranks, scales, values");
    adapter *a = open_adapter(DENSE);
    if (!a) return;
    CHECK(a->count == 36 && !strcmp(a->name, "tiny-dense-lora") && !strcmp(a->prefix, "model."));
    CHECK(!strcmp(a->pairs[0].base, "blk.0.attn_q.weight") && !strcmp(a->pairs[1].base, "blk.0.attn_k.weight"));
    CHECK(!strcmp(a->pairs[6].base, "blk.0.ffn_down.weight") && !strcmp(a->pairs[7].base, "blk.1.attn_q.weight"));
    const adapter_pair *down = adapter_find(a, "blk.0.ffn_down.weight");
    CHECK(down && down->rank == 4 && down->in == 128 && down->out == 64 && down->experts == 1 && down->scale == 2);
    source *file = NULL;
    error   e = { 0 };
    CHECK(source_file(DENSE "/adapter_model.safetensors", &file, &e) == GM_OK);
    uint64_t header;
    memcpy(&header, source_whole(file), sizeof header);
    CHECK(down && !memcmp(down->a, source_whole(file) + 8 + header, 4 * 128 * 4)); /* the first tensor of the file */
    CHECK(down && !memcmp(down->b, source_whole(file) + 8 + header + 2048, 4 * 64 * 4));
    source_free(file);
    adapter_free(a);

    TEST("rank_pattern and alpha_pattern");
    a = open_adapter(MOE);
    const adapter_pair *own = a ? adapter_find(a, "blk.1.ffn_down.weight") : NULL;
    const adapter_pair *other = a ? adapter_find(a, "blk.0.ffn_down.weight") : NULL;
    CHECK(own && own->rank == 7 && own->scale == (float)(3.0 / 7) && own->alpha == 3);
    CHECK(other && other->rank == 4 && other->scale == 2 && other->alpha == 8);
    adapter_free(a);

    TEST("a configuration of five keys; the weights' own path");
    a = open_adapter(PART "/adapter_model.safetensors");
    CHECK(a && a->count == 8 && a->pairs[0].rank == 3 && !strcmp(a->name, "part"));
    adapter_free(a);
}

/* ---- bytes in pieces ---- */

static gm_status feed(source *to, str bytes, error *e) {
    uint64_t offset = 0, length = 0;
    if (!source_wanted(to, &offset, &length)) return fail(e, GM_BAD_ARGUMENT, "nothing is wanted");
    return source_give(to, offset, bytes.data + offset, length, e);
}

static adapter *read_pieces(str weights, str config, uint64_t piece) {
    source         *from = NULL, *beside = NULL;
    adapter_reader *r = NULL;
    adapter        *a = NULL;
    error           e = { 0 };
    gm_status       status = source_pieces(weights.length, &from, &e);
    if (!status && config.data) status = source_pieces(config.length, &beside, &e);
    if (!status) source_set_piece(from, piece);
    if (!status) status = adapter_reader_new(from, beside, "pieces", &r, &e);
    while (!status && (status = adapter_reader_step(r, &a, &e)) == GM_AGAIN) {
        source *waiting = adapter_reader_waiting(r);
        status = waiting ? feed(waiting, waiting == beside ? config : weights, &e) : GM_BAD_ARGUMENT;
    }
    CHECK_MESSAGE(status == GM_OK, "%s", e.why);
    adapter_reader_free(r);
    return a;
}

static str file_view(source *s) { return (str){ (const char *)source_whole(s), (size_t)source_length(s) }; }

static void test_adapter_pieces(void) {
    TEST("bytes that arrive in pieces give the same adapter");
    source *weights = NULL, *config = NULL;
    error   e = { 0 };
    CHECK(source_file(MOE "/adapter_model.safetensors", &weights, &e) == GM_OK);
    CHECK(source_file(MOE "/adapter_config.json", &config, &e) == GM_OK);
    adapter *whole = open_adapter(MOE), *pieces = read_pieces(file_view(weights), file_view(config), 1000);
    CHECK(whole && pieces && !memcmp(whole->digest, pieces->digest, 32) && whole->bytes == pieces->bytes);
    adapter_free(whole);
    adapter_free(pieces);
    source_free(weights);
    source_free(config);
}

/* ---- files made here ---- */

static void test_types(void) {
    static const made_tensor tensors[] = { { LAYER "self_attn.q_proj.lora_A.weight", "F32", 2, 5 },
                                           { LAYER "self_attn.q_proj.lora_B.weight", "F16", 3, 2 },
                                           { LAYER "mlp.up_proj.lora_A.weight", "BF16", 2, 5 },
                                           { LAYER "mlp.up_proj.lora_B.weight", "F32", 4, 2 },
                                           { 0 } };
    TEST("F32, F16 and BF16; use_rslora; any key may be missing");
    adapter *a = open_made(tensors, "{\"use_rslora\": true, \"lora_alpha\": 3}");
    CHECK(a && a->count == 2 && a->pairs[0].scale == (float)(3 * sqrt(2) / 2));
    for (size_t i = 0; a && i < 10; i++)
        CHECK(a->pairs[0].a[i] == made_value(0, i) && a->pairs[1].a[i] == made_value(2, i));
    for (size_t i = 0; a && i < 6; i++) CHECK(a->pairs[0].b[i] == made_value(1, i));
    adapter_free(a);
    a = open_made(tensors, "{}");
    CHECK(a && a->pairs[0].scale == 4); /* lora_alpha is 8 if nobody says otherwise */
    adapter_free(a);
}

static void test_embedding(void) {
    static const made_tensor tensors[] = { { BASE "embed_tokens.base_layer.weight", "I8", 2, 4 },
                                           { BASE "embed_tokens.lora_embedding_A", "F32", 2, 4 },
                                           { BASE "embed_tokens.lora_embedding_B", "F32", 3, 2 },
                                           { "base_model.model.lm_head.lora_A.weight", "F32", 2, 3 },
                                           { "base_model.model.lm_head.lora_B.weight", "F32", 4, 2 },
                                           { 0 } };
    TEST("embedding and head; the copy of the table is not read");
    buffer file = made_safetensors(tensors);
    for (char *at = file.data; (at = memmem(at, file.length - (size_t)(at - file.data), "I8", 2)); at += 2)
        memcpy(at, "??", 2); /* of a type that nobody knows */
    adapter *a = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_open_memory(buffer_view(&file), str_of("{\"r\":2}"), "e", &a, &e) == GM_OK, "%s", e.why);
    CHECK(a && a->count == 2 && adapter_is_embedding(&a->pairs[0]) && !strcmp(a->pairs[1].base, "output.weight"));
    CHECK(a && a->pairs[0].in == 4 && a->pairs[0].out == 3 && a->pairs[1].in == 3 && a->pairs[1].out == 4);
    for (size_t token = 0; a && token < 4; token++)
        for (size_t i = 0; i < 2; i++) CHECK(a->pairs[0].a[token * 2 + i] == made_value(1, i * 4 + token));
    adapter_free(a);
    buffer_free(&file);
}

static void test_paths(void) {
    static const struct {
        const char *path, *tensor;
    } rows[] = {
        { "model.language_model.layers.12.self_attn.o_proj", "blk.12.attn_output.weight" },
        { "language_model.model.layers.3.mlp.gate_proj", "blk.3.ffn_gate.weight" },
        { "model.layers.0.per_layer_input_gate", "blk.0.inp_gate.weight" },
        { "model.layers.0.per_layer_projection", "blk.0.proj.weight" },
        { "model.language_model.layers.29.router.proj", "blk.29.ffn_gate_inp.weight" },
        { "model.language_model.per_layer_model_projection", "per_layer_model_proj.weight" },
        { "lm_head", "output.weight" },
        { "model.vision_tower.encoder.layers.5.self_attn.q_proj.linear", "v.blk.5.attn_q.weight" },
        { "model.vision_tower.encoder.layers.5.mlp.down_proj", "v.blk.5.ffn_down.weight" },
        { "model.embed_vision.embedding_projection", "mm.input_projection.weight" },
        { "model.audio_tower.layers.1.feed_forward2.ffw_layer_1.linear", "a.blk.1.ffn_up_1.weight" },
        { "model.audio_tower.layers.1.lconv1d.linear_end.linear", "a.blk.1.conv_pw2.weight" },
        { "model.audio_tower.layers.1.self_attn.relative_k_proj", "a.blk.1.attn_k_rel.weight" },
        { "model.audio_tower.output_proj", "a.pre_encode.out.weight" },
        { "model.embed_audio.embedding_projection", "mm.a.input_projection.weight" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char names[2][160];
        TEST("module %s", rows[i].path);
        snprintf(names[0], sizeof names[0], "base_model.model.%s.lora_A.weight", rows[i].path);
        snprintf(names[1], sizeof names[1], "base_model.model.%s.lora_B.weight", rows[i].path);
        adapter *a = open_made((made_tensor[]){ { names[0], "F32", 1, 2 }, { names[1], "F32", 2, 1 }, { 0 } }, "{}");
        CHECK_MESSAGE(a && !strcmp(a->pairs[0].base, rows[i].tensor), "%s", a ? a->pairs[0].base : "");
        adapter_free(a);
    }
}

static void test_expressions(void) {
    static const struct {
        const char *expression, *text;
        bool        match;
    } rows[] = {
        { "abc", "abc", true },
        { "abc", "abcd", false },
        { "a.c", "axc", true },
        { "a\\.c", "axc", false },
        { "", "", true },
        { "a|bc|", "bc", true },
        { "a|bc|", "b", false },
        { "(ab)*c", "ababc", true },
        { "(ab)+c", "c", false },
        { "(a*)*b", "aaab", true },
        { "x{2,3}", "x", false },
        { "x{2,3}", "xxx", true },
        { "x{2,3}", "xxxx", false },
        { "x{,2}y", "y", true },
        { "x{0}y", "y", true },
        { "(a|bc){2}", "bca", true },
        { "[a-c_]+", "ab_c", true },
        { "[^a-c]+", "dea", false },
        { "[]x]+", "x]", true },
        { "[\\d.]{1,}", "1.2", true },
        { "\\bfoo\\b.*", "foo.bar", true },
        { "\\bfoo\\b.*", "foobar", false },
        { "^a$", "a", true },
        { "(?!.*vision).*q_proj", "model.vision.q_proj", false },
        { "(?!.*vision).*q_proj", "model.layers.q_proj", true },
        { ".*(?=q_proj)q.*", "layers.q_proj", true },
        { "(?:.*?layers\\.(?:0|1)\\.(?:self_attn|mlp).*?)", "model.layers.1.mlp.up_proj", true },
        { "(?:.*?layers\\.(?:0|1)\\.(?:self_attn|mlp).*?)", "model.layers.11.mlp.up_proj", false },
        { "(.*a){20}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true },
        { "((((a?)*)*)*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false },
    };
    static const char *const bad[] = { "(",    ")",     "a**",    "*a",       "[a",      "(?<=a)b", "\\1",
                                       "a\\q", "[b-a]", "x{5,2}", "(?P<n>a)", "x{1000}", "\\" };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool  match = !rows[i].match;
        error e = { 0 };
        TEST("expression %s on %s", rows[i].expression, rows[i].text);
        CHECK_MESSAGE(!expression_match(str_of(rows[i].expression), str_of(rows[i].text), &match, &e), "%s", e.why);
        CHECK(match == rows[i].match);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        bool  match;
        error e = { 0 };
        TEST("expression %s is refused", bad[i]);
        CHECK(expression_match(str_of(bad[i]), str_of("a"), &match, &e) == GM_UNSUPPORTED && e.why[0]);
    }
}

/* ---- configurations ---- */

static void test_configs(void) {
    static const struct {
        const char *config, *problem; /* NULL: accepted */
    } rows[] = {
        { "{}", NULL },
        { "{\"rank_pattern\":{\"up_proj\":3},\"r\":2}", NULL },
        { "{\"rank_pattern\":{\"layers.1\\\\d.mlp.up_proj\":3},\"r\":2}", NULL },
        { "{\"rank_pattern\":{\"proj\":3},\"r\":2}",
          "gives 'model.layers.11.mlp.up_proj' rank 2, but its matrices have rank 3" },
        { "{\"rank_pattern\":{\".*_proj\":2,\"up_proj\":3}}",
          "rank 2, but its matrices have rank 3" }, /* the first counts */
        { "{\"r\":4}", "rank 4, but its matrices have rank 2" },
        { "{\"r\":0}", "a rank is at least 1" },
        { "{\"r\":-1}", "a rank is at least 1" },
        { "{\"r\":\"4\"}", "r must be a whole number, found a string" },
        { "{\"r\":2.5}", "r must be a whole number" },
        { "{\"lora_alpha\":\"x\"}", "lora_alpha must be a number" },
        { "{\"target_modules\":[\"q_proj\",\"up_proj\"]}", NULL },
        { "{\"target_modules\":[\"q_proj\",\"p_proj\"]}",
          "'model.layers.11.mlp.up_proj', which target_modules does not name" },
        { "{\"target_modules\":\"all-linear\"}", NULL },
        { "{\"target_modules\":\".*\\\\.(q|up)_proj\"}", NULL },
        { "{\"target_modules\":\".*q_proj\"}", "target_modules does not name" },
        { "{\"target_modules\":\"(?<=x)y\"}", "a kind of group that is not known" },
        { "{\"target_modules\":3}", "target_modules must be a list or an expression" },
        { "{\"exclude_modules\":[\"up_proj\"]}", "exclude_modules names" },
        { "{\"layers_to_transform\":[1,11]}", NULL },
        { "{\"layers_to_transform\":1}", "whose layer layers_to_transform does not name" },
        { "{\"peft_type\":\"LOHA\"}", "peft_type is 'LOHA'" },
        { "{\"use_dora\":true}", "DoRA" },
        { "{\"alora_invocation_tokens\":[1,2]}", "aLoRA" },
        { "{\"bias\":\"all\"}", "biases" },
        { "{\"lora_bias\":true}", "bias" },
        { "{\"modules_to_save\":[\"lm_head\"]}", "modules_to_save" },
        { "{\"target_parameters\":[\"experts.gate_up_proj\"]}", "fused parameters" },
        { "{\"trainable_token_indices\":[5]}", "rows of the embedding" },
        { "{\"layer_replication\":[[0,2]]}", "replicated layers" },
        { "{\"init_lora_weights\":\"pissa_niter_4\"}", "changes the base model" },
        { "{\"init_lora_weights\":\"gaussian\",\"bias\":\"none\",\"modules_to_save\":null}", NULL },
        { "{\"r\":2,\"r\":3}", "'r' appears twice" },
        { "{\"rank_pattern\":{\"a\":2,\"a\":3}}", "'a' appears twice" },
        { "{\"rank_pattern\":[]}", "rank_pattern must be an object" },
        { "{\"use_rslora\":1}", "use_rslora must be true or false" },
        { "[]", "expected an object" },
        { "{\"r\":", "JSON line 1" },
        { "", "JSON line 1" },
    };
    buffer file = made_safetensors(two_layers);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        adapter *a = NULL;
        error    e = { 0 };
        TEST("config %s", rows[i].config);
        const gm_status status = adapter_open_memory(buffer_view(&file), str_of(rows[i].config), "c", &a, &e);
        if (rows[i].problem) CHECK_MESSAGE(status && !a && strstr(e.why, rows[i].problem), "%s", e.why);
        else CHECK_MESSAGE(status == GM_OK && a && a->count == 2, "%s", e.why);
        adapter_free(a);
    }
    TEST("safetensors without a configuration");
    adapter *a = NULL;
    error    e = { 0 };
    CHECK(adapter_open_memory(buffer_view(&file), (str){ 0 }, "c", &a, &e) == GM_NOT_FOUND);
    CHECK(strstr(e.why, "adapter_config.json is missing"));
    buffer_free(&file);
}

/* ---- bad weights ---- */

static void test_bad_tensors(void) {
#define Q LAYER "self_attn.q_proj."
#define GOOD_A { Q "lora_A.weight", "F32", 2, 5 }
#define GOOD_B { Q "lora_B.weight", "F32", 3, 2 }
    static const struct {
        const char *what, *problem;
        made_tensor tensors[4];
    } rows[] = {
        { "no tensors", "has no weights", { { 0 } } },
        { "half a pair", "has a matrix A but no matrix B", { GOOD_A } },
        { "the other half", "has a matrix B but no matrix A", { GOOD_B } },
        { "ranks that differ", "A has rank 2 but B has rank 3", { GOOD_A, { Q "lora_B.weight", "F32", 3, 3 } } },
        { "rank 0",
          "A is 0 x 5 and B 3 x 0; neither may be empty",
          { { Q "lora_A.weight", "F32", 0, 5 }, { Q "lora_B.weight", "F32", 3, 0 } } },
        { "no outputs", "neither may be empty", { GOOD_A, { Q "lora_B.weight", "F32", 0, 2 } } },
        { "a huge rank",
          "has rank 5000; the highest that is supported is 4096",
          { { Q "lora_A.weight", "F32", 5000, 1 }, { Q "lora_B.weight", "F32", 1, 5000 } } },
        { "another type", "has the type I16", { { Q "lora_A.weight", "I16", 2, 5 }, GOOD_B } },
        { "DoRA", "DoRA", { GOOD_A, GOOD_B, { Q "lora_magnitude_vector", "F32", 1, 3 } } },
        { "a bias", "biases", { GOOD_A, GOOD_B, { Q "lora_B.bias", "F32", 1, 3 } } },
        { "a saved module", "modules_to_save", { GOOD_A, GOOD_B, { "base_model.model.lm_head.weight", "F32", 3, 3 } } },
        { "fused experts", "all experts in one", { { LAYER "experts.lora_A.weight", "F32", 2, 5 } } },
        { "nested fused experts", "fused parameters", { { LAYER "experts.base_layer.lora_A.weight", "F32", 2, 5 } } },
        { "an unknown module", "Gemma 4 has no module", { { LAYER "mlp.fc1.lora_A.weight", "F32", 2, 5 } } },
        { "a layer with a leading zero",
          "Gemma 4 has no module",
          { { BASE "layers.01.mlp.up_proj.lora_A.weight", "F32", 2, 5 } } },
        { "a name without the prefix", "modules_to_save", { { "layers.0.mlp.up_proj.weight", "F32", 2, 5 } } },
        { "no LoRA at all", "does not belong to a LoRA adapter", { { "something", "F32", 2, 5 } } },
        { "an embedding's halves on a linear", "adapter of an embedding", { { Q "lora_embedding_A", "F32", 2, 5 } } },
        { "a linear's halves on the embedding",
          "adapter of a linear",
          { { BASE "embed_tokens.lora_A.weight", "F32", 2, 5 } } },
        { "two paths of one module",
          "two matrices A for the same module, as 'model.l",
          { GOOD_A,
            GOOD_B,
            { "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight", "F32", 2, 5 } } },
        { "two paths of one module, and B",
          "two matrices B for the same module",
          { GOOD_A,
            GOOD_B,
            { "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight", "F32", 3, 2 } } },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        made_tensor tensors[5] = { 0 };
        adapter    *a = NULL;
        error       e = { 0 };
        TEST("bad weights: %s", rows[i].what);
        memcpy(tensors, rows[i].tensors, sizeof rows[i].tensors);
        buffer          file = made_safetensors(tensors);
        const gm_status status = adapter_open_memory(buffer_view(&file), str_of("{}"), "c", &a, &e);
        CHECK_MESSAGE(status && !a && strstr(e.why, rows[i].problem), "%s", e.why);
        adapter_free(a);
        buffer_free(&file);
    }
#undef Q
}

static void test_bad_values(void) {
    static const struct {
        const char *what;
        float       value;
    } rows[] = { { "NaN", NAN }, { "an infinity", INFINITY } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        adapter *a = NULL;
        error    e = { 0 };
        TEST("%s", rows[i].what);
        buffer file = made_safetensors(two_layers);
        memcpy(file.data + file.length - 8, &rows[i].value, 4);
        CHECK(adapter_open_memory(buffer_view(&file), str_of("{}"), "c", &a, &e) == GM_BAD_FILE);
        CHECK_MESSAGE(strstr(e.why, rows[i].what) && strstr(e.why, "B has") && strstr(e.why, "at element 10"), "%s",
                      e.why);
        buffer_free(&file);
    }
    TEST("cut off anywhere");
    buffer file = made_safetensors(two_layers);
    size_t accepted = 0;
    for (size_t length = 0; length < file.length; length++) {
        adapter *a = NULL;
        error    e = { 0 };
        accepted += !adapter_open_memory((str){ file.data, length }, str_of("{}"), "c", &a, &e) || !e.why[0];
        adapter_free(a);
    }
    CHECK(accepted == 0);
    buffer_free(&file);
}

static void test_bad_headers(void) {
#define T(shape, offsets) "{\"x\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *header, *problem;
    } rows[] = {
        { "[]", "the header is a list, expected an object" },
        { "{", "JSON" },
        { "{\"x\":3}", "expected an object with dtype" },
        { "{\"x\":{}}", "dtype is missing" },
        { T("3", "[0,4]"), "shape is a number" },
        { T("[1,-1]", "[0,4]"), "not a whole number" },
        { T("[1,0.5]", "[0,4]"), "not a whole number" },
        { T("[1,1,1,1,1,1,1,1,1]", "[0,4]"), "9 dimensions" },
        { T("[4294967296,4294967296]", "[0,4]"), "more elements than 64 bits count" },
        { T("[4611686018427387904]", "[0,4]"), "need" },
        { T("[1]", "[0]"), "two whole numbers" },
        { T("[1]", "[4,0]"), "two whole numbers" },
        { T("[1]", "[-4,0]"), "two whole numbers" },
        { T("[1]", "[0,9223372036854775807]"), "it is cut off" },
        { T("[2]", "[0,4]"), "2 elements of F32 need 8 bytes" },
        { T("[0]", "[4,4]"), "starts at byte 4" },
        { T("[0]", "[0,0]"), "the tensors end at byte" },
        { "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          "'x' appears twice" },
        { "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          "the tensor before it ends at 4" },
    };
#undef T
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        buffer   file = { 0 };
        adapter *a = NULL;
        error    e = { 0 };
        TEST("header %s", rows[i].header);
        safetensors_frame(&file, str_of(rows[i].header), (str){ "\0\0\0\0", 4 });
        const gm_status status = adapter_open_memory(buffer_view(&file), str_of("{}"), "c", &a, &e);
        CHECK_MESSAGE(status && strstr(e.why, rows[i].problem), "%s", e.why);
        buffer_free(&file);
    }
    static const struct {
        const char *bytes;
        size_t      length;
        const char *problem;
    } files[] = {
        { "", 0, "it has only 0 bytes" },
        { "\0\0\0\0\0\0\0\x10{}", 10,
          "the header should have 1152921504606846976 bytes, but the file has only 10" }, /* 2^60 */
        { "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "the header should have 18446744073709551615 bytes" },
        { "PK\3\4\0\0\0\0\0\0", 10, "a PyTorch file" },
        { "\x80\x02}q\x00\x00\x00\x01\x00\x00", 10, "a PyTorch file" },
        { "GGUF\3\0\0\0", 8, "" },
    };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        adapter *a = NULL;
        error    e = { 0 };
        TEST("bad file %zu", i);
        CHECK(adapter_open_memory((str){ files[i].bytes, files[i].length }, str_of("{}"), "c", &a, &e) != GM_OK);
        CHECK_MESSAGE(e.why[0] && strstr(e.why, files[i].problem), "%s", e.why);
    }
}

/* ---- folders ---- */

static void put_file(const char *folder, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    if (f) fputs(text, f), fclose(f);
}

static void folder_problem(const char *folder, const char *problem) {
    adapter *a = NULL;
    error    e = { 0 };
    CHECK(adapter_open(folder, &a, &e) != GM_OK);
    CHECK_MESSAGE(strstr(e.why, problem), "%s", e.why);
}

static void test_folders(void) {
    char folder[] = "/tmp/test_adapter_XXXXXX", command[200];
    TEST("folders that lack something say what");
    CHECK(mkdtemp(folder) != NULL);
    folder_problem(folder, "a PEFT folder has adapter_config.json and adapter_model.safetensors");
    put_file(folder, "adapter_config.json", "{}");
    folder_problem(folder, "adapter_model.safetensors is missing beside adapter_config.json");
    put_file(folder, "adapter_model.bin", "PK");
    folder_problem(folder, "adapter_model.bin is a PyTorch file");
    folder_problem("tests/fixtures/no-such-adapter", "cannot be opened");
    folder_problem("tests/fixtures/tiny-dense.gguf", "not an adapter");
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK(system(command) == 0);
}

/* ---- GGUF ---- */

static void test_gguf(void) {
    static const gguf_spec good[] = {
        { "blk.2.ffn_down_exps.weight.lora_b", TYPE_F32, 3, { 2, 3, 4 } },
        { "blk.2.ffn_down_exps.weight.lora_a", TYPE_F16, 3, { 5, 2, 4 } },
        { "token_embd.weight.lora_a", TYPE_F32, 2, { 2, 6 } },
        { "token_embd.weight.lora_b", TYPE_F32, 2, { 2, 3 } },
        { "blk.0.attn_norm.weight", TYPE_F32, 2, { 4, 1 } },
        { 0 },
    };
    TEST("a GGUF: experts, the embedding, one alpha; norms are ignored");
    buffer   file = made_gguf("adapter", "gemma4", 3, false, good);
    adapter *a = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_open_memory(buffer_view(&file), (str){ 0 }, "dir/x.gguf", &a, &e) == GM_OK, "%s", e.why);
    CHECK(a && a->count == 2 && !strcmp(a->name, "x") && adapter_is_embedding(&a->pairs[0]));
    CHECK(a && a->pairs[0].rank == 2 && a->pairs[0].in == 6 && a->pairs[0].out == 3 && a->pairs[0].scale == 1.5f);
    CHECK(a && a->pairs[1].experts == 4 && a->pairs[1].in == 5 && a->pairs[1].out == 3 && a->pairs[1].rank == 2);
    for (size_t i = 0; a && i < 12; i++) CHECK(a->pairs[0].a[i] == made_value(2, i));
    for (size_t i = 0; a && i < 40; i++) CHECK(a->pairs[1].a[i] == made_value(1, i));
    for (size_t i = 0; a && i < 24; i++) CHECK(a->pairs[1].b[i] == made_value(0, i));
    adapter *pieces = read_pieces(buffer_view(&file), (str){ 0 }, 100);
    CHECK(a && pieces && !memcmp(a->digest, pieces->digest, 32));
    adapter_free(pieces);
    adapter_free(a);
    buffer_free(&file);

    TEST("an alpha of 0 means a scale of 1");
    file = made_gguf("adapter", "gemma4", 0, false, good);
    CHECK(adapter_open_memory(buffer_view(&file), (str){ 0 }, "x", &a, &e) == GM_OK && a->pairs[0].scale == 1);
    adapter_free(a);
    buffer_free(&file);
}

static void test_bad_gguf(void) {
    static const struct {
        const char *what, *problem, *type, *architecture;
        float       alpha;
        bool        alora;
        gguf_spec   tensors[3];
    } rows[] = {
        { "a model", "not an adapter: metadata key 'general.type' is 'model'", "model", "gemma4", 1, false, { { 0 } } },
        { "no type", "no metadata key 'general.type'; expected 'adapter'", NULL, "gemma4", 1, false, { { 0 } } },
        { "B times the scale is infinite",
          "times the scale 3e+38 is beyond",
          "adapter",
          "gemma4",
          3e38f,
          false,
          { { "blk.0.attn_q.weight.lora_a", TYPE_F32, 2, { 4, 1 } },
            { "blk.0.attn_q.weight.lora_b", TYPE_F32, 2, { 1, 400 } } } },
        { "for another architecture", "an adapter for another kind of model", "adapter", "llama", 1, false, { { 0 } } },
        { "aLoRA", "aLoRA", "adapter", "gemma4", 1, true, { { 0 } } },
        { "an infinite alpha", "not a finite number", "adapter", "gemma4", INFINITY, false, { { 0 } } },
        { "no weights", "no weights", "adapter", "gemma4", 1, false, { { 0 } } },
        { "another end",
          "neither .lora_a nor .lora_b",
          "adapter",
          "gemma4",
          1,
          false,
          { { "blk.0.attn_q.weight.lora_m", TYPE_F32, 2, { 4, 2 } } } },
        { "an unknown tensor",
          "Gemma 4 has no tensor",
          "adapter",
          "gemma4",
          1,
          false,
          { { "blk.0.attn_qkv.weight.lora_a", TYPE_F32, 2, { 4, 2 } } } },
        { "half a pair",
          "has a matrix A but no matrix B",
          "adapter",
          "gemma4",
          1,
          false,
          { { "blk.0.attn_q.weight.lora_a", TYPE_F32, 2, { 4, 2 } } } },
        { "experts of a plain tensor",
          "2 were expected",
          "adapter",
          "gemma4",
          1,
          false,
          { { "blk.0.attn_q.weight.lora_a", TYPE_F32, 3, { 4, 2, 3 } } } },
        { "other experts",
          "A has 3 experts but B has 4",
          "adapter",
          "gemma4",
          1,
          false,
          { { "blk.0.ffn_up_exps.weight.lora_a", TYPE_F32, 3, { 4, 2, 3 } },
            { "blk.0.ffn_up_exps.weight.lora_b", TYPE_F32, 3, { 2, 4, 4 } } } },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        gguf_spec tensors[4] = { 0 };
        adapter  *a = NULL;
        error     e = { 0 };
        TEST("bad GGUF: %s", rows[i].what);
        memcpy(tensors, rows[i].tensors, sizeof rows[i].tensors);
        buffer file = made_gguf(rows[i].type, rows[i].architecture, rows[i].alpha, rows[i].alora, tensors);
        CHECK(adapter_open_memory(buffer_view(&file), (str){ 0 }, "x", &a, &e) != GM_OK && !a);
        CHECK_MESSAGE(strstr(e.why, rows[i].problem), "%s", e.why);
        buffer_free(&file);
    }
}

/* ---- models ---- */

static void test_fits(void) {
    static const struct {
        const char *adapter, *model, *problem;
    } files[] = {
        { DENSE, "tests/fixtures/tiny-dense.gguf", NULL },
        { DENSE, "tests/fixtures/tiny-dense-ollama.gguf", NULL },
        { PART, "tests/fixtures/tiny-dense.gguf", NULL },
        { HEAD, "tests/fixtures/tiny-dense.gguf", NULL },
        { MOE, "tests/fixtures/tiny-moe.gguf", NULL },
        { DENSE, "tests/fixtures/tiny-moe.gguf", "made for another model" },
        { MOE, "tests/fixtures/tiny-dense.gguf", "made for another model" },
        { HEAD, "tests/fixtures/small-dense-Q4_K_M.gguf", "adapter of 'output.weight': it maps 64 values to 640" },
    };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        TEST("%s fits %s: %s", files[i].adapter, files[i].model, files[i].problem ? "no" : "yes");
        adapter *a = open_adapter(files[i].adapter);
        if (a) fits(files[i].model, a, files[i].problem);
        adapter_free(a);
    }
    static const struct {
        const char  *base, *model, *problem;
        adapter_pair shape; /* rank, in, out, experts */
    } pairs[] = {
        { "blk.6.attn_q.weight", "tiny-dense", "the model has only 6 layers", { .in = 64, .out = 64, .experts = 1 } },
        { "blk.5.attn_k.weight", "tiny-dense", NULL, { .in = 64, .out = 64, .experts = 1 } }, /* shared: unused */
        { "blk.5.attn_k.weight", "tiny-dense", "maps 64 values to 65", { .in = 64, .out = 65, .experts = 1 } },
        { "blk.0.ffn_up_exps.weight", "tiny-moe", "gate and up in one tensor", { .in = 64, .out = 32, .experts = 8 } },
        { "blk.0.ffn_gate_up_exps.weight", "tiny-moe-split", "in two tensors", { .in = 64, .out = 64, .experts = 8 } },
        { "blk.0.ffn_down_exps.weight", "tiny-moe", "it has 7 experts", { .in = 32, .out = 64, .experts = 7 } },
        { "blk.0.ffn_gate_inp.weight", "tiny-dense", "no such tensor", { .in = 64, .out = 8, .experts = 1 } },
        { "v.blk.0.attn_q.weight", "tiny-dense", "the model has none", { .in = 64, .out = 64, .experts = 1 } },
        { "v.blk.9.attn_q.weight",
          "tiny-mm-ollama",
          "tower has no such tensor",
          { .in = 64, .out = 64, .experts = 1 } },
        { "a.blk.0.attn_k_rel.weight", "tiny-mm-ollama", "maps 1 values to 2", { .in = 1, .out = 2, .experts = 1 } },
        { "blk.0.attn_norm.weight", "tiny-dense", "cannot correct this tensor", { .in = 64, .out = 1, .experts = 1 } },
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        char         path[200];
        adapter_pair pair = pairs[i].shape;
        TEST("an adapter of %s for %s", pairs[i].base, pairs[i].model);
        pair.rank = 1;
        snprintf(pair.base, sizeof pair.base, "%s", pairs[i].base);
        snprintf(path, sizeof path, "tests/fixtures/%s.gguf", pairs[i].model);
        fits(path, &(adapter){ .pairs = &pair, .count = 1 }, pairs[i].problem);
    }
}

int main(void) {
    test_adapter_folders();
    test_adapter_pieces();
    test_types();
    test_embedding();
    test_paths();
    test_expressions();
    test_configs();
    test_bad_tensors();
    test_bad_values();
    test_bad_headers();
    test_folders();
    test_gguf();
    test_bad_gguf();
    test_fits();
    return test_end();
}
