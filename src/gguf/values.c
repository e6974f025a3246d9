/* Typed access to metadata: converts from the stored width to the requested one. */

#include "gguf/gguf.h"

#include <string.h>

/* A number as stored. Whole numbers are exact: sign and magnitude. */
typedef struct {
    bool     whole, negative;
    uint64_t magnitude;
    double   value;
} number;

static number number_of_integer(bool negative, uint64_t magnitude) {
    return (number){ .whole = true,
                     .negative = negative,
                     .magnitude = magnitude,
                     .value = negative ? -(double)magnitude : (double)magnitude };
}

static number signed_number(int64_t n) { return number_of_integer(n < 0, n < 0 ? 0 - (uint64_t)n : (uint64_t)n); }

#define LOAD(type, name)                                                                                               \
    type name;                                                                                                         \
    memcpy(&name, v->data + i * sizeof name, sizeof name)

/* Reads item i. False for strings and past the end. */
static bool number_at(const gguf_value *v, uint64_t i, number *out) {
    if (i >= v->count) return false;
    switch (v->type) {
    case GGUF_BOOL: *out = number_of_integer(false, v->data[i] != 0); return true;
    case GGUF_U8: *out = number_of_integer(false, v->data[i]); return true;
    case GGUF_I8: *out = signed_number((int8_t)v->data[i]); return true;
    case GGUF_U16: {
        LOAD(uint16_t, n);
        *out = number_of_integer(false, n);
        return true;
    }
    case GGUF_I16: {
        LOAD(int16_t, n);
        *out = signed_number(n);
        return true;
    }
    case GGUF_U32: {
        LOAD(uint32_t, n);
        *out = number_of_integer(false, n);
        return true;
    }
    case GGUF_I32: {
        LOAD(int32_t, n);
        *out = signed_number(n);
        return true;
    }
    case GGUF_U64: {
        LOAD(uint64_t, n);
        *out = number_of_integer(false, n);
        return true;
    }
    case GGUF_I64: {
        LOAD(int64_t, n);
        *out = signed_number(n);
        return true;
    }
    case GGUF_F32: {
        LOAD(float, n);
        *out = (number){ .value = n };
        return true;
    }
    case GGUF_F64: {
        LOAD(double, n);
        *out = (number){ .value = n };
        return true;
    }
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
    return false;
}

bool gguf_item_integer(const gguf_value *v, uint64_t i, int64_t *out) {
    number n;
    if (!number_at(v, i, &n) || !n.whole) return false;
    if (n.magnitude > (uint64_t)INT64_MAX + n.negative) return false;
    *out = n.negative ? (int64_t)(0 - n.magnitude) : (int64_t)n.magnitude;
    return true;
}

bool gguf_item_float(const gguf_value *v, uint64_t i, double *out) {
    number n;
    if (v->type == GGUF_BOOL || !number_at(v, i, &n)) return false;
    *out = n.value;
    return true;
}

str gguf_next_string(const uint8_t **cursor) {
    uint64_t length;
    memcpy(&length, *cursor, sizeof length);
    str text = { (const char *)*cursor + sizeof length, (size_t)length };
    *cursor += sizeof length + length;
    return text;
}

static const char *const type_names[] = {
    [GGUF_U8] = "u8",   [GGUF_I8] = "i8",   [GGUF_U16] = "u16",   [GGUF_I16] = "i16",       [GGUF_U32] = "u32",
    [GGUF_I32] = "i32", [GGUF_F32] = "f32", [GGUF_BOOL] = "bool", [GGUF_STRING] = "string", [GGUF_ARRAY] = "array",
    [GGUF_U64] = "u64", [GGUF_I64] = "i64", [GGUF_F64] = "f64",
};

static gm_status value_fail_type(const gguf_value *v, const char *key, const char *expected, error *e) {
    return fail(e, GM_BAD_FILE, "metadata key '%s': expected %s, found %s%s", key, expected,
                v->array ? "an array of " : "", type_names[v->type]);
}

/* The value. If it is NULL, *status says whether that is an error. */
static const gguf_value *find_value(const gguf *g, const char *key, bool *found, gm_status *status, error *e) {
    const gguf_value *v = gguf_find(g, key);
    *status = GM_OK;
    if (found) *found = v != NULL;
    else if (!v) *status = fail(e, GM_BAD_FILE, "metadata key '%s' is missing", key);
    return v;
}

/* Item i as a whole number from 0 to `most`. */
static gm_status whole_at(const gguf_value *v, const char *key, uint64_t i, uint64_t most, uint64_t *out, error *e) {
    number n;
    if (v->type == GGUF_BOOL || !number_at(v, i, &n) || !n.whole) return value_fail_type(v, key, "a whole number", e);
    if (n.negative || n.magnitude > most) {
        return fail(e, GM_BAD_FILE, "metadata key '%s': expected 0 to %llu, found %s%llu", key,
                    (unsigned long long)most, n.negative ? "-" : "", (unsigned long long)n.magnitude);
    }
    *out = n.magnitude;
    return GM_OK;
}

/* Item i as a bool: a bool, or a whole number of 0 or 1. */
static gm_status bool_at(const gguf_value *v, const char *key, uint64_t i, bool *out, error *e) {
    number n;
    if (!number_at(v, i, &n) || !n.whole || n.negative || n.magnitude > 1) return value_fail_type(v, key, "a bool", e);
    *out = n.magnitude == 1;
    return GM_OK;
}

gm_status gguf_get_u64(const gguf *g, const char *key, uint64_t *out, bool *found, error *e) {
    gm_status         status;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    if (v->array) return value_fail_type(v, key, "a whole number", e);
    return whole_at(v, key, 0, UINT64_MAX, out, e);
}

gm_status gguf_get_u32(const gguf *g, const char *key, uint32_t *out, bool *found, error *e) {
    gm_status         status;
    uint64_t          n = 0;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    if (v->array) return value_fail_type(v, key, "a whole number", e);
    status = whole_at(v, key, 0, UINT32_MAX, &n, e);
    if (!status) *out = (uint32_t)n;
    return status;
}

gm_status gguf_get_f32(const gguf *g, const char *key, float *out, bool *found, error *e) {
    gm_status         status;
    double            n = 0;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    if (v->array || !gguf_item_float(v, 0, &n)) return value_fail_type(v, key, "a number", e);
    *out = (float)n;
    return GM_OK;
}

gm_status gguf_get_bool(const gguf *g, const char *key, bool *out, bool *found, error *e) {
    gm_status         status;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    return v->array ? value_fail_type(v, key, "a bool", e) : bool_at(v, key, 0, out, e);
}

gm_status gguf_get_str(const gguf *g, const char *key, str *out, bool *found, error *e) {
    gm_status         status;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    if (v->array || v->type != GGUF_STRING) return value_fail_type(v, key, "a string", e);
    const uint8_t *cursor = v->data;
    *out = gguf_next_string(&cursor);
    return GM_OK;
}

static gm_status check_count(const gguf_value *v, const char *key, size_t n, error *e) {
    if (!v->array || v->count == n) return GM_OK;
    return fail(e, GM_BAD_FILE, "metadata key '%s': expected one value or %zu, found %llu", key, n,
                (unsigned long long)v->count);
}

gm_status gguf_get_u32s(const gguf *g, const char *key, uint32_t *out, size_t n, bool *found, error *e) {
    gm_status         status;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    status = check_count(v, key, n, e);
    for (size_t i = 0; i < n && !status; i++) {
        uint64_t item = 0;
        status = whole_at(v, key, v->array ? i : 0, UINT32_MAX, &item, e);
        if (!status) out[i] = (uint32_t)item;
    }
    return status;
}

gm_status gguf_get_bools(const gguf *g, const char *key, bool *out, size_t n, bool *found, error *e) {
    gm_status         status;
    const gguf_value *v = find_value(g, key, found, &status, e);
    if (!v) return status;
    status = check_count(v, key, n, e);
    for (size_t i = 0; i < n && !status; i++) status = bool_at(v, key, v->array ? i : 0, &out[i], e);
    return status;
}
