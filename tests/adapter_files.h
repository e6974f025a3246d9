/* Adapters made by hand: safetensors files from a list of tensors. */

#ifndef GM_TEST_ADAPTER_FILES_H
#define GM_TEST_ADAPTER_FILES_H

#include "adapter/adapter.h"
#include "base/buffer.h"
#include "base/half.h"

#include <string.h>

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

#endif
