/* Memory, results and messages, shared by all calls. */

#include "wasm/wasm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

EXPORT(gmw_alloc) void *gmw_alloc(size_t bytes) { return malloc(bytes ? bytes : 1); }

EXPORT(gmw_free) void gmw_free(void *data) { free(data); }

EXPORT(gmw_context_new) wasm_context *gmw_context_new(void) { return calloc(1, sizeof(wasm_context)); }

EXPORT(gmw_result) const char *gmw_result(const wasm_context *c) { return c->result.data ? c->result.data : ""; }

EXPORT(gmw_result_length) size_t gmw_result_length(const wasm_context *c) { return c->result.length; }

/* Frees the memory of a large result. Other results stay until the next call. */
EXPORT(gmw_result_drop) void gmw_result_drop(wasm_context *c) { buffer_free(&c->result); }

gm_status wasm_end(wasm_context *c, const error *e) {
    if (!e->status && !c->result.failed) return GM_OK;
    const gm_status status = e->status ? e->status : GM_NO_MEMORY;
    if (c->result.failed) buffer_free(&c->result); /* zeroed: it can be used again */
    buffer_clear(&c->result);
    buffer_text(&c->result, e->status ? e->why : "out of memory for a result");
    return status;
}

gm_status wasm_end_step(wasm_context *c, gm_status status, const error *e) {
    return e->status || c->result.failed ? wasm_end(c, e) : status;
}

/* ---- writing JSON ---- */

void wasm_key(buffer *out, const char *key) {
    if (out->length && out->data[out->length - 1] != '{') buffer_char(out, ',');
    json_write_string(out, str_of(key));
    buffer_char(out, ':');
}

void wasm_text(buffer *out, const char *key, const char *value) {
    wasm_key(out, key);
    json_write_string(out, str_of(value));
}

void wasm_number(buffer *out, const char *key, double value) {
    wasm_key(out, key);
    json_write_number(out, value);
}

void wasm_bool(buffer *out, const char *key, bool value) {
    wasm_key(out, key);
    buffer_text(out, value ? "true" : "false");
}

/* ---- sampling ---- */

static const struct {
    const char *name;
    size_t      offset;
    enum { IS_FLOAT, IS_INT, IS_UINT } kind;
} settings[] = {
    { "temperature", offsetof(gm_sampling, temperature), IS_FLOAT },
    { "top_k", offsetof(gm_sampling, top_k), IS_INT },
    { "top_p", offsetof(gm_sampling, top_p), IS_FLOAT },
    { "min_p", offsetof(gm_sampling, min_p), IS_FLOAT },
    { "typical_p", offsetof(gm_sampling, typical_p), IS_FLOAT },
    { "repetition_penalty", offsetof(gm_sampling, repetition_penalty), IS_FLOAT },
    { "presence_penalty", offsetof(gm_sampling, presence_penalty), IS_FLOAT },
    { "frequency_penalty", offsetof(gm_sampling, frequency_penalty), IS_FLOAT },
    { "penalty_window", offsetof(gm_sampling, penalty_window), IS_UINT },
};

static gm_status wire_setting(size_t i, const json *value, gm_sampling *out, error *e) {
    const double number = value->number, least = settings[i].kind == IS_UINT ? 0 : -2147483648.0;
    char        *at = (char *)out + settings[i].offset;
    if (value->kind != JSON_NUMBER) return fail(e, GM_BAD_ARGUMENT, "sampling.%s must be a number", settings[i].name);
    if (settings[i].kind == IS_FLOAT) {
        memcpy(at, &(float){ (float)number }, sizeof(float));
        return GM_OK;
    }
    if (number != floor(number) || number < least || number > 2147483647.0)
        return fail(e, GM_BAD_ARGUMENT, "sampling.%s must be a whole number, found %g", settings[i].name, number);
    memcpy(at, &(int32_t){ (int32_t)number }, sizeof(int32_t));
    return GM_OK;
}

static gm_status wire_bias(const json *list, gm_sampling *out, arena *a, error *e) {
    gm_logit_bias *bias = arena_array(a, max_size(list->count, 1), sizeof *bias);
    if (!bias) return fail_memory(e, "the logit bias", list->count * sizeof *bias);
    out->bias = bias;
    out->bias_count = 0;
    for (const json *pair = list->first; pair; pair = pair->next) {
        int64_t token;
        if (pair->kind != JSON_ARRAY || pair->count != 2 || !json_integer(pair->first, &token) || token < INT32_MIN ||
            token > INT32_MAX || pair->first->next->kind != JSON_NUMBER)
            return fail(e, GM_BAD_ARGUMENT, "sampling.logit_bias must have a number for each token id");
        bias[out->bias_count++] = (gm_logit_bias){ (int32_t)token, (float)pair->first->next->number };
    }
    return GM_OK;
}

/* A seed has 64 bits, more than a number in JavaScript, so it is a string of digits. */
static gm_status wire_seed(str digits, uint64_t *out, error *e) {
    uint64_t seed = 0;
    bool     good = digits.length > 0;
    for (size_t i = 0; i < digits.length && good; i++) {
        const char digit = digits.data[i];
        good =
            digit >= '0' && digit <= '9' && mul_u64(seed, 10, &seed) && add_u64(seed, (uint64_t)(digit - '0'), &seed);
    }
    if (!good)
        return fail(e, GM_BAD_ARGUMENT, "sampling.seed must be a whole number from 0 to 2^64 - 1, found '%.*s'",
                    STR_ARGS(digits));
    *out = seed;
    return GM_OK;
}

gm_status wasm_read_sampling(const json *from, gm_sampling *out, arena *a, error *e) {
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const json *value = json_get(from, settings[i].name);
        if (value) TRY(wire_setting(i, value, out, e));
    }
    const json *seed = json_get(from, "seed"), *bias = json_get(from, "logit_bias");
    if (json_is(seed, JSON_STRING)) TRY(wire_seed(seed->text, &out->seed, e));
    return json_is(bias, JSON_ARRAY) ? wire_bias(bias, out, a, e) : GM_OK;
}

void wasm_write_sampling(buffer *out, const gm_sampling *s) {
    buffer_char(out, '{');
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const char *at = (const char *)s + settings[i].offset;
        float       number;
        int32_t     whole;
        memcpy(&number, at, sizeof number);
        memcpy(&whole, at, sizeof whole);
        if (settings[i].kind != IS_FLOAT) {
            wasm_number(out, settings[i].name, whole);
            continue;
        }
        wasm_key(out, settings[i].name);
        buffer_printf(out, "%.7g", (double)number); /* 0.95 as people write it; all values are finite */
    }
    buffer_char(out, '}');
}
