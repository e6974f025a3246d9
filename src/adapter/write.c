/* Writes adapters in both forms. */

#include "adapter/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static module_id pair_module(const adapter_pair *p) {
    module_id m = { 0 };
    module_of_tensor(str_of(p->base), &m);
    return m;
}

static uint64_t pair_count(const adapter_pair *p, bool second) {
    return (uint64_t)p->rank * (second ? p->out : p->in) * p->experts;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The value that most pairs have; of several, the smallest. */
static gm_status most_common(const adapter *a, double (*of)(const adapter_pair *), double *out, error *e) {
    double *values = malloc((a->count + 1) * sizeof *values);
    size_t  best = 0;
    if (!values) return fail_memory(e, "an adapter's values", a->count * sizeof *values);
    for (size_t i = 0; i < a->count; i++) values[i] = of(&a->pairs[i]);
    qsort(values, a->count, sizeof *values, compare_doubles);
    for (size_t i = 0, run = 0; i < a->count; i++) {
        run = i && values[i] == values[i - 1] ? run + 1 : 1;
        if (run <= best) continue;
        best = run;
        *out = values[i];
    }
    free(values);
    return GM_OK;
}

static double pair_alpha(const adapter_pair *p) { return p->alpha; }
static double pair_rank(const adapter_pair *p) { return p->rank; }

/* ---- GGUF ---- */

static void write_keys_of(const adapter *a, double alpha, gguf_writer *w) {
    gguf_write_str(w, "general.architecture", str_of("gemma4"));
    gguf_write_str(w, "general.type", str_of("adapter"));
    gguf_write_str(w, "general.name", str_of(a->name));
    gguf_write_str(w, "adapter.type", str_of("lora"));
    gguf_write_f32(w, "adapter.lora.alpha", (float)alpha);
    if (a->base_model) {
        gguf_write_u32(w, "general.base_model.count", 1);
        gguf_write_str(w, "general.base_model.0.name", str_of(a->base_model));
    }
    gguf_write_str(w, GGUF_PREFIX_KEY, str_of(a->prefix));
    gguf_write_u32(w, "general.file_type", 0);
    gguf_write_u32(w, "general.quantization_version", 2);
}

static void write_infos(const adapter *a, gguf_writer *w) {
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        const module_id     module = pair_module(p);
        const bool          embedding = module_is_embedding(module);
        const uint32_t      dims = module_has_experts(module) ? 3 : 2;
        const uint64_t      first[] = { embedding ? p->rank : p->in, embedding ? p->in : p->rank, p->experts };
        const uint64_t      second[] = { p->rank, p->out, p->experts };
        char                name[ADAPTER_NAME + 16];
        snprintf(name, sizeof name, "%s.lora_a", p->base);
        gguf_write_tensor(w, name, TYPE_F32, dims, first);
        snprintf(name, sizeof name, "%s.lora_b", p->base);
        gguf_write_tensor(w, name, TYPE_F32, dims, second);
    }
}

/* b, times the factor that makes alpha / rank the pair's scale. */
static gm_status write_scaled(const adapter_pair *p, double alpha, gguf_writer *w, error *e) {
    enum { CHUNK = 4096 };
    const double   factor = p->alpha == alpha ? 1 : p->alpha / alpha;
    const uint64_t count = pair_count(p, true);
    float          chunk[CHUNK];
    for (uint64_t at = 0; at < count; at += CHUNK) {
        const size_t n = (size_t)(count - at < CHUNK ? count - at : CHUNK);
        for (size_t i = 0; i < n; i++) chunk[i] = (float)(p->b[at + i] * factor);
        TRY(gguf_writer_data(w, chunk, n * sizeof *chunk, e));
    }
    return GM_OK;
}

static gm_status write_gguf(const adapter *a, gguf_writer *w, gguf_sink sink, void *user, error *e) {
    double alpha = 1;
    TRY(most_common(a, pair_alpha, &alpha, e));
    if (alpha == 0) alpha = 1; /* an alpha of 0 means a scale of 1 in these files */
    write_keys_of(a, alpha, w);
    write_infos(a, w);
    TRY(gguf_writer_head(w, sink, user, e));
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        TRY(gguf_writer_data(w, p->a, pair_count(p, false) * sizeof *p->a, e));
        TRY(write_scaled(p, alpha, w, e));
    }
    return gguf_writer_end(w, e);
}

gm_status adapter_write_gguf(const adapter *a, gguf_sink sink, void *user, error *e) {
    gguf_writer *w = NULL;
    TRY(gguf_writer_new(&w, e));
    const gm_status status = write_gguf(a, w, sink, user, e);
    gguf_writer_free(w);
    return status;
}

/* ---- PEFT ---- */

static gm_status path_of(const adapter *a, const adapter_pair *p, buffer *out, error *e) {
    buffer_clear(out);
    if (module_path(pair_module(p), str_of(a->prefix), out)) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "'%s': PEFT has no form for adapters of experts; keep this one as a GGUF", p->base);
}

static void header_add(buffer *header, const buffer *path, const char *end, uint64_t rows, uint64_t columns,
                       uint64_t *at) {
    const uint64_t bytes = rows * columns * sizeof(float);
    buffer         name = { 0 };
    buffer_printf(&name, "%s%s%s", PEFT_PREFIX, path->data, end);
    buffer_char(header, ',');
    json_write_string(header, buffer_view(&name));
    buffer_printf(header, ":{\"dtype\":\"F32\",\"shape\":[%llu,%llu],\"data_offsets\":[%llu,%llu]}",
                  (unsigned long long)rows, (unsigned long long)columns, (unsigned long long)*at,
                  (unsigned long long)(*at + bytes));
    header->failed = header->failed || name.failed;
    buffer_free(&name);
    *at += bytes;
}

/* The header is padded with spaces, so that the data is aligned. */
static gm_status safetensors_head(const adapter *a, buffer *header, error *e) {
    buffer    path = { 0 };
    uint64_t  at = 0;
    gm_status status = GM_OK;
    buffer_text(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < a->count && !status; i++) {
        const adapter_pair *p = &a->pairs[i];
        const bool          embedding = adapter_is_embedding(p);
        status = path_of(a, p, &path, e);
        if (status || path.failed) break;
        header_add(header, &path, embedding ? ".lora_embedding_A" : ".lora_A.weight", p->rank, p->in, &at);
        header_add(header, &path, embedding ? ".lora_embedding_B" : ".lora_B.weight", p->out, p->rank, &at);
    }
    buffer_char(header, '}');
    while (header->length % 8 && !header->failed) buffer_char(header, ' ');
    if (!status && (path.failed || header->failed)) status = fail_memory(e, "a safetensors header", header->length);
    buffer_free(&path);
    return status;
}

/* [in][rank] → [rank][in], a row at a time. */
static bool write_transposed(const adapter_pair *p, gguf_sink sink, void *user) {
    float *row = malloc((size_t)p->in * sizeof *row);
    bool   right = row != NULL;
    for (uint32_t i = 0; i < p->rank && right; i++) {
        for (size_t j = 0; j < p->in; j++) row[j] = p->a[j * p->rank + i];
        right = sink(user, row, (size_t)p->in * sizeof *row);
    }
    free(row);
    return right;
}

gm_status adapter_write_safetensors(const adapter *a, gguf_sink sink, void *user, error *e) {
    buffer    header = { 0 };
    gm_status status = safetensors_head(a, &header, e);
    if (!status) {
        const uint64_t length = header.length;
        bool           right = sink(user, &length, sizeof length) && sink(user, header.data, header.length);
        for (size_t i = 0; i < a->count && right; i++) {
            const adapter_pair *p = &a->pairs[i];
            right = adapter_is_embedding(p) ? write_transposed(p, sink, user)
                                            : sink(user, p->a, (size_t)pair_count(p, false) * sizeof *p->a);
            if (right) right = sink(user, p->b, (size_t)pair_count(p, true) * sizeof *p->b);
        }
        if (!right) status = fail(e, GM_IO, "writing the file failed");
    }
    buffer_free(&header);
    return status;
}

/* A pattern's key is an expression: dots, the only special characters of a path, are escaped. */
static void write_key(buffer *out, const char *path) {
    buffer key = { 0 };
    for (; *path; path++) buffer_text(&key, *path == '.' ? "\\." : (const char[]){ *path, 0 });
    json_write_string(out, buffer_view(&key));
    out->failed = out->failed || key.failed;
    buffer_free(&key);
}

/* The modules whose value differs from the one that most have. */
static gm_status write_pattern(const adapter *a, const char *key, double (*of)(const adapter_pair *), double common,
                               buffer *out, error *e) {
    buffer    path = { 0 };
    gm_status status = GM_OK;
    bool      any = false;
    buffer_printf(out, "  \"%s\": {", key);
    for (size_t i = 0; i < a->count && !status; i++) {
        if (of(&a->pairs[i]) == common) continue;
        status = path_of(a, &a->pairs[i], &path, e);
        if (status || path.failed) break;
        buffer_text(out, any ? ",\n    " : "\n    ");
        write_key(out, path.data);
        buffer_text(out, ": ");
        json_write_number(out, of(&a->pairs[i]));
        any = true;
    }
    buffer_text(out, any ? "\n  },\n" : "},\n");
    if (!status && path.failed) status = fail_memory(e, "a path", path.length);
    buffer_free(&path);
    return status;
}

/* Whole paths: PEFT takes a name for all modules whose paths end with it, also for those that have no adapter. */
static gm_status write_targets(const adapter *a, buffer *out, error *e) {
    buffer    path = { 0 };
    gm_status status = GM_OK;
    buffer_text(out, "  \"target_modules\": [");
    for (size_t i = 0; i < a->count && !status; i++) {
        status = path_of(a, &a->pairs[i], &path, e);
        if (status || path.failed) break;
        buffer_text(out, i ? ",\n    " : "\n    ");
        json_write_string(out, buffer_view(&path));
    }
    buffer_text(out, "\n  ],\n");
    if (!status && path.failed) status = fail_memory(e, "a path", path.length);
    buffer_free(&path);
    return status;
}

gm_status adapter_write_config(const adapter *a, buffer *out, error *e) {
    double rank = 1, alpha = 1;
    TRY(most_common(a, pair_rank, &rank, e));
    TRY(most_common(a, pair_alpha, &alpha, e));
    buffer_text(out, "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": ");
    if (a->base_model) json_write_string(out, str_of(a->base_model));
    else buffer_text(out, "null");
    buffer_text(out, ",\n  \"r\": ");
    json_write_number(out, rank);
    buffer_text(out, ",\n  \"lora_alpha\": ");
    json_write_number(out, alpha);
    buffer_text(out, ",\n  \"use_rslora\": false,\n");
    gm_status status = write_pattern(a, "rank_pattern", pair_rank, rank, out, e);
    if (!status) status = write_pattern(a, "alpha_pattern", pair_alpha, alpha, out, e);
    if (!status) status = write_targets(a, out, e);
    buffer_text(out, "  \"bias\": \"none\",\n  \"lora_dropout\": 0.0,\n  \"inference_mode\": true\n}\n");
    return !status && out->failed ? fail_memory(e, "adapter_config.json", out->length) : status;
}
