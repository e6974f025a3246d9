/* Makes variants of a model file in memory: copies it and applies a list of edits. */

#ifndef GM_MODEL_FILE_H
#define GM_MODEL_FILE_H

#include "base/buffer.h"
#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    EDIT_NONE,
    DROP_TENSOR,
    RENAME_TENSOR, /* to `text` */
    NARROW_TENSOR, /* ne[0] halved */
    RETYPE_TENSOR, /* to the integer type I8: as many elements */
    POISON_TENSOR, /* the two bytes at byte `number` become 0x7E00, NaN in f16 */
    DROP_KEY,
    SET_U32,       /* the key, to `number` */
    SET_TEXT,      /* the key, to `text` */
    SET_ARRAY,     /* the key, `count` numbers as an i32 array, all `number` */
    SPLIT_EXPERTS, /* gate_up tensors become gate and up; the expert scale gets its old name */
} edit_kind;

typedef struct {
    edit_kind   kind;
    const char *name;
    uint32_t    number;
    const char *text;
    uint32_t    count;
} edit;

static const edit *find_edit(const edit *edits, size_t count, str name, edit_kind from, edit_kind to) {
    for (size_t i = 0; i < count; i++) {
        if (edits[i].kind >= from && edits[i].kind <= to && str_is(name, edits[i].name)) return &edits[i];
    }
    return NULL;
}

static inline void copy_value(gguf_writer *w, const gguf_value *v) {
    char key[200];
    snprintf(key, sizeof key, "%.*s", STR_ARGS(v->key));
    const uint8_t *cursor = v->data;
    if (v->type == GGUF_STRING && v->array) {
        str *items = malloc(v->count * sizeof *items);
        for (uint64_t i = 0; i < v->count; i++) items[i] = gguf_next_string(&cursor);
        gguf_write_strings(w, key, items, v->count);
        free(items);
    } else if (v->array) {
        gguf_write_array(w, key, v->type, v->data, v->count);
    } else if (v->type == GGUF_STRING) {
        gguf_write_str(w, key, gguf_next_string(&cursor));
    } else {
        uint64_t number = 0;
        memcpy(&number, v->data, (size_t)v->bytes < sizeof number ? (size_t)v->bytes : sizeof number);
        float real;
        memcpy(&real, v->data, sizeof real);
        if (v->type == GGUF_F32) gguf_write_f32(w, key, real);
        else if (v->type == GGUF_BOOL) gguf_write_bool(w, key, number != 0);
        else if (v->type == GGUF_U64) gguf_write_u64(w, key, number);
        else gguf_write_u32(w, key, (uint32_t)number);
    }
}

static inline void write_edit(gguf_writer *w, const edit *e) {
    int32_t items[64];
    for (size_t i = 0; i < 64; i++) items[i] = (int32_t)e->number;
    if (e->kind == SET_U32) gguf_write_u32(w, e->name, e->number);
    if (e->kind == SET_TEXT) gguf_write_str(w, e->name, str_of(e->text));
    if (e->kind == SET_ARRAY) gguf_write_array(w, e->name, GGUF_I32, items, e->count);
}

/* One tensor's info (data false) or its bytes (data true), under the edits. */
static inline void copy_tensor(gguf_writer *w, const gguf *g, const gguf_tensor *t, const edit *edits, size_t count,
                               bool data, error *e) {
    char           name[200], other[200];
    const edit    *change = find_edit(edits, count, t->name, DROP_TENSOR, POISON_TENSOR);
    const uint8_t *bytes = gguf_tensor_data(g, t);
    uint64_t       ne[4], size = t->bytes;
    memcpy(ne, t->ne, sizeof ne);
    snprintf(name, sizeof name, "%.*s", STR_ARGS(t->name));
    bool split = false;
    for (size_t i = 0; i < count; i++) split |= edits[i].kind == SPLIT_EXPERTS;
    char *gate_up = strstr(name, "ffn_gate_up_exps"), *scale = strstr(name, "ffn_down_exps.scale");
    if (split && scale) strcpy(scale, "ffn_gate_inp.per_expert_scale");
    if (split && gate_up) {
        ne[1] /= 2;
        const uint64_t half = size / 2 / ne[2];
        memcpy(other, name, sizeof other);
        strcpy(gate_up, "ffn_gate_exps.weight");
        strcpy(other + (gate_up - name), "ffn_up_exps.weight");
        for (int up = 0; up < 2; up++) {
            if (!data) gguf_write_tensor(w, up ? other : name, t->type, t->dims, ne);
            for (uint64_t x = 0; data && x < ne[2]; x++)
                gguf_writer_data(w, bytes + (2 * x + (uint64_t)up) * half, half, e);
        }
        return;
    }
    quant_type type = t->type;
    if (change && change->kind == DROP_TENSOR) return;
    if (change && change->kind == RENAME_TENSOR) snprintf(name, sizeof name, "%s", change->text);
    if (change && change->kind == NARROW_TENSOR) {
        ne[0] /= 2;
        size /= 2;
    }
    if (change && change->kind == RETYPE_TENSOR) {
        type = TYPE_I8;
        size = t->count;
    }
    if (!data) {
        gguf_write_tensor(w, name, type, t->dims, ne);
        return;
    }
    uint8_t *copy = malloc(size);
    memcpy(copy, bytes, size);
    if (change && change->kind == POISON_TENSOR) memcpy(copy + change->number, "\x00\x7e", 2);
    gguf_writer_data(w, copy, size, e);
    free(copy);
}

/* The edited file; empty if it fails. */
static inline buffer model_file_edit(const char *path, const edit *edits, size_t count) {
    error        e = { 0 };
    gguf        *g = NULL;
    gguf_writer *w = NULL;
    buffer       out = { 0 };
    if (gguf_open_file(path, &g, &e) || gguf_writer_new(&w, &e)) return out;
    for (size_t i = 0; i < gguf_value_count(g); i++) {
        const gguf_value *v = gguf_value_at(g, i);
        if (!find_edit(edits, count, v->key, DROP_KEY, SET_ARRAY)) copy_value(w, v);
    }
    for (size_t i = 0; i < count; i++) write_edit(w, &edits[i]);
    for (size_t i = 0; i < gguf_tensor_count(g); i++) copy_tensor(w, g, gguf_tensor_at(g, i), edits, count, false, &e);
    gguf_writer_head(w, buffer_sink, &out, &e);
    for (size_t i = 0; i < gguf_tensor_count(g) && !e.status; i++)
        copy_tensor(w, g, gguf_tensor_at(g, i), edits, count, true, &e);
    if (!e.status) gguf_writer_end(w, &e);
    if (e.status) buffer_free(&out);
    gguf_writer_free(w);
    gguf_free(g);
    return out;
}

#endif
