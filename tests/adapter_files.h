/* Adapters of the fixtures, and adapters made by hand: safetensors and GGUF files from lists of tensors. */

#ifndef GM_TEST_ADAPTER_FILES_H
#define GM_TEST_ADAPTER_FILES_H

#include "adapter/adapter.h"
#include "adapter/merge.h"
#include "base/buffer.h"
#include "base/half.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name, *type;
    uint32_t    rows, columns;
} made_tensor;

/* The value of an element: exact in all float types, never 0. */
static inline float made_value(size_t which, size_t element) {
    return (float)((int)((element * 7 + which * 13) % 31) - 15) / 8 + 0.0625f;
}

static inline void safetensors_frame(buffer *out, str header, str data) {
    const uint64_t length = header.length;
    buffer_append(out, &length, sizeof length);
    buffer_str(out, header);
    buffer_str(out, data);
}

static inline void made_element(buffer *data, const char *type, float value) {
    const uint16_t half = strcmp(type, "F16") ? f32_to_bf16(value) : f32_to_f16(value);
    if (!strcmp(type, "F32")) buffer_append(data, &value, sizeof value);
    else buffer_append(data, &half, sizeof half);
}

/* A list that ends with an empty name. */
static inline buffer made_safetensors(const made_tensor *tensors) {
    buffer out = { 0 }, header = { 0 }, data = { 0 };
    buffer_text(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; tensors[i].name; i++) {
        const made_tensor *t = &tensors[i];
        const size_t       begin = data.length;
        for (size_t j = 0; j < (size_t)t->rows * t->columns; j++) made_element(&data, t->type, made_value(i, j));
        buffer_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}", t->name,
                      t->type, t->rows, t->columns, begin, data.length);
    }
    buffer_char(&header, '}');
    safetensors_frame(&out, buffer_view(&header), buffer_view(&data));
    buffer_free(&header);
    buffer_free(&data);
    return out;
}

#define DENSE "tests/fixtures/tiny-dense-lora"
#define MOE "tests/fixtures/tiny-moe-lora"
#define PART "tests/fixtures/tiny-dense-adapters/part"
#define HEAD "tests/fixtures/tiny-dense-adapters/head"

#define BASE "base_model.model.model."
#define LAYER BASE "layers.0."

static inline adapter *open_adapter(const char *path) {
    adapter *a = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_open(path, &a, &e) == GM_OK, "%s", e.why);
    return a;
}

static inline adapter *open_made(const made_tensor *tensors, const char *config) {
    buffer   file = made_safetensors(tensors);
    adapter *a = NULL;
    error    e = { 0 };
    CHECK_MESSAGE(adapter_open_memory(buffer_view(&file), str_of(config), "made", &a, &e) == GM_OK, "%s", e.why);
    buffer_free(&file);
    return a;
}

typedef struct {
    const char *name;
    quant_type  type;
    uint32_t    dims;
    uint64_t    ne[3];
} gguf_spec;

static inline buffer made_gguf(const char *type, const char *architecture, float alpha, bool alora,
                               const gguf_spec *tensors) {
    gguf_writer *w = NULL;
    buffer       out = { 0 };
    error        e = { 0 };
    CHECK(gguf_writer_new(&w, &e) == GM_OK);
    if (type) gguf_write_str(w, "general.type", str_of(type));
    gguf_write_str(w, "general.architecture", str_of(architecture));
    gguf_write_str(w, "adapter.type", str_of("lora"));
    gguf_write_f32(w, "adapter.lora.alpha", alpha);
    if (alora) gguf_write_array(w, "adapter.alora.invocation_tokens", GGUF_U32, &(uint32_t){ 5 }, 1);
    for (const gguf_spec *t = tensors; t->name; t++) gguf_write_tensor(w, t->name, t->type, t->dims, t->ne);
    gguf_writer_head(w, buffer_sink, &out, &e);
    for (const gguf_spec *t = tensors; t->name; t++) {
        const uint64_t count = t->ne[0] * t->ne[1] * (t->dims > 2 ? t->ne[2] : 1);
        buffer         data = { 0 };
        for (uint64_t i = 0; i < count; i++)
            made_element(&data, t->type == TYPE_F32 ? "F32" : "F16", made_value((size_t)(t - tensors), (size_t)i));
        gguf_writer_data(w, data.data, data.length, &e);
        buffer_free(&data);
    }
    CHECK_MESSAGE(gguf_writer_end(w, &e) == GM_OK, "%s", e.why);
    gguf_writer_free(w);
    return out;
}

static const made_tensor two_layers[] = {
    { BASE "layers.1.self_attn.q_proj.lora_A.weight", "F32", 2, 5 },
    { BASE "layers.1.self_attn.q_proj.lora_B.weight", "F32", 3, 2 },
    { BASE "layers.11.mlp.up_proj.lora_A.weight", "F32", 3, 5 },
    { BASE "layers.11.mlp.up_proj.lora_B.weight", "F32", 4, 3 },
    { 0 },
};

/* Writes the model with the adapter in its weights, as F32; the caller removes the file. */
static inline void merge_made(const gguf *file, const buffer *weights, const char *config, char path[40]) {
    adapter     *a = NULL;
    model        shapes = { 0 };
    arena        memory = { 0 };
    merge_report report;
    error        e = { 0 };
    snprintf(path, 40, "/tmp/test_merged_XXXXXX");
    const int made = mkstemp(path);
    CHECK(made >= 0 && !model_shapes(file, &shapes, &e));
    CHECK_MESSAGE(!adapter_open_memory(buffer_view(weights), config ? str_of(config) : (str){ 0 }, "made", &a, &e),
                  "%s", e.why);
    CHECK_MESSAGE(a && !adapter_merge(file, &shapes, &(merge_part){ a, 1 }, 1, path,
                                      &(merge_options){ .retype = true, .type = TYPE_F32, .threads = 2 }, &memory,
                                      &report, &e),
                  "%s", e.why);
    close(made);
    adapter_free(a);
    model_free(&shapes);
    arena_free(&memory);
}

static inline void fits(const char *model_path, const adapter *a, const char *problem) {
    gguf *file = NULL;
    model m = { 0 };
    error e = { 0 };
    CHECK(gguf_open_file(model_path, &file, &e) == GM_OK && model_shapes(file, &m, &e) == GM_OK);
    const gm_status status = adapter_fits(a, &m, file, file, &e);
    if (problem) CHECK_MESSAGE(status && strstr(e.why, problem), "%s", e.why);
    else CHECK_MESSAGE(status == GM_OK, "%s", e.why);
    model_free(&m);
    gguf_free(file);
}

#endif
