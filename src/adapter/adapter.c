/* Joins the halves of a file to pairs, and reads their values. */

#include "adapter/adapter.h"
#include "adapter/parts.h"
#include "base/sha256.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapter_reader {
    source        *weights, *config; /* weights: NULL once `file` has it */
    gguf          *file;             /* NULL: safetensors */
    arena          memory;           /* names and halves */
    char          *name;
    safetensors    tensors;
    adapter_halves halves; /* sorted: A and B of a pair follow each other */
    bool           listed;
    adapter       *made;
    size_t         next; /* the half to read */
};

bool adapter_is_embedding(const adapter_pair *p) { return str_is(str_of(p->base), "token_embd.weight"); }

const char *adapter_kind(const char *base, char out[ADAPTER_NAME]) {
    const char  *block = strstr(base, "blk."), *after = block ? strchr(block + 4, '.') : NULL;
    const char  *name = after ? after + 1 : base;
    const size_t tower = after ? (size_t)(block - base) : 0, length = strlen(name);
    const size_t kept = str_ends_with(str_of(name), ".weight") ? length - strlen(".weight") : length;
    snprintf(out, ADAPTER_NAME, "%.*s%.*s", (int)tower, base, (int)kept, name);
    return out;
}

char *adapter_name_of(const char *path, arena *a) {
    str text = str_of(path ? path : "");
    while (text.length > 1 && text.data[text.length - 1] == '/') text.length--;
    for (size_t i = text.length; i-- > 0;) {
        if (text.data[i] != '/') continue;
        text = (str){ text.data + i + 1, text.length - i - 1 };
        break;
    }
    if (str_ends_with(text, ".gguf") && text.length > 5) text.length -= 5;
    return arena_copy(a, text.length ? text : str_of("adapter"));
}

const adapter_pair *adapter_find(const adapter *a, const char *base) {
    for (size_t i = 0; i < a->count; i++) {
        if (!strcmp(a->pairs[i].base, base)) return &a->pairs[i];
    }
    return NULL;
}

void adapter_free(adapter *a) {
    if (!a) return;
    arena_free(&a->memory);
    free(a);
}

gm_status adapter_like(const adapter *a, const char *name, adapter **out, error *e) {
    adapter *like = calloc(1, sizeof *like);
    if (!like) return fail_memory(e, "an adapter", sizeof *like);
    like->pairs = arena_array(&like->memory, a->count + 1, sizeof *like->pairs);
    like->name = arena_copy(&like->memory, str_of(name));
    like->prefix = arena_copy(&like->memory, str_of(a->prefix));
    like->base_model = a->base_model ? arena_copy(&like->memory, str_of(a->base_model)) : NULL;
    bool all = like->pairs && like->name && like->prefix && !a->base_model == !like->base_model;
    for (size_t i = 0; all && i < a->count; i++) {
        adapter_pair  *p = &like->pairs[like->count++];
        const uint64_t rows = (uint64_t)a->pairs[i].experts * a->pairs[i].rank;
        *p = a->pairs[i];
        p->a = arena_array(&like->memory, (size_t)(rows * p->in), sizeof *p->a);
        p->b = arena_array(&like->memory, (size_t)(rows * p->out), sizeof *p->b);
        all = p->a && p->b;
    }
    like->bytes = a->bytes;
    *out = like;
    if (all) return adapter_hash(like), GM_OK;
    adapter_free(like);
    *out = NULL;
    return fail_memory(e, "an adapter", a->bytes);
}

/* ---- joining ---- */

static int half_compare(const void *a, const void *b) {
    const adapter_half *x = a, *y = b;
    const int           module = module_compare(x->module, y->module);
    return module ? module : (int)x->second - (int)y->second;
}

static const char *half_letter(const adapter_half *half) { return half->second ? "B" : "A"; }

/* The same module under two names, such as model.layers.0 and model.language_model.layers.0. */
static gm_status check_once(const adapter_halves *halves, error *e) {
    for (size_t i = 1; i < halves->count; i++) {
        const adapter_half *x = &halves->items[i - 1], *y = &halves->items[i];
        if (!half_compare(x, y))
            return fail(e, GM_BAD_FILE, "the adapter has two matrices %s for the same module, as '%.*s' and '%.*s'",
                        half_letter(x), STR_ARGS(x->name), STR_ARGS(y->name));
    }
    return GM_OK;
}

static gm_status check_halves(const adapter_half *a, const adapter_half *b, error *e) {
    if (!b || module_compare(a->module, b->module))
        return fail(e, GM_BAD_FILE, "'%.*s' has a matrix %s but no matrix %s: an adapter needs both", STR_ARGS(a->name),
                    half_letter(a), a->second ? "A" : "B");
    if (!a->rank || !b->rank || !a->length || !b->length)
        return fail(e, GM_BAD_FILE, "'%.*s': A is %llu x %llu and B %llu x %llu; neither may be empty",
                    STR_ARGS(a->name), (unsigned long long)a->rank, (unsigned long long)a->length,
                    (unsigned long long)b->length, (unsigned long long)b->rank);
    if (a->rank != b->rank)
        return fail(e, GM_BAD_FILE, "'%.*s': A has rank %llu but B has rank %llu", STR_ARGS(a->name),
                    (unsigned long long)a->rank, (unsigned long long)b->rank);
    if (a->experts != b->experts)
        return fail(e, GM_BAD_FILE, "'%.*s': A has %llu experts but B has %llu", STR_ARGS(a->name),
                    (unsigned long long)a->experts, (unsigned long long)b->experts);
    if (a->rank > ADAPTER_MOST_RANK)
        return fail(e, GM_UNSUPPORTED, "'%.*s' has rank %llu; the highest that is supported is %d", STR_ARGS(a->name),
                    (unsigned long long)a->rank, ADAPTER_MOST_RANK);
    if (a->length > UINT32_MAX || b->length > UINT32_MAX || a->experts > UINT32_MAX)
        return fail(e, GM_BAD_FILE, "'%.*s' maps %llu values to %llu for %llu experts: no model is that large",
                    STR_ARGS(a->name), (unsigned long long)a->length, (unsigned long long)b->length,
                    (unsigned long long)a->experts);
    return GM_OK;
}

static gm_status pair_scale(const adapter_halves *halves, const peft_config *config, str path, adapter_pair *p,
                            error *e) {
    uint32_t rank = 0;
    p->alpha = halves->has_alpha ? halves->alpha : p->rank;
    if (config) {
        TRY(peft_config_module(config, path, &rank, &p->alpha, e));
        if (rank && rank != p->rank)
            return fail(
                e, GM_BAD_FILE,
                "adapter_config.json contradicts the weights: it gives '%.*s' rank %u, but its matrices have rank %u",
                STR_ARGS(path), rank, p->rank);
        if (config->root_of_rank) p->alpha *= sqrt(p->rank);
    }
    p->scale = (float)(p->alpha / p->rank);
    return GM_OK;
}

/* Values are as many as the file has, so what is allocated is bounded by its length. */
static gm_status pair_new(adapter *out, const adapter_half *a, const adapter_half *b, error *e) {
    adapter_pair *p = &out->pairs[out->count];
    p->rank = (uint32_t)a->rank;
    p->in = (uint32_t)a->length;
    p->out = (uint32_t)b->length;
    p->experts = (uint32_t)a->experts;
    module_tensor(a->module, p->base);
    uint64_t first = 0, second = 0;
    if (!mul_u64(a->rank * a->length, a->experts, &first) || !mul_u64(b->rank * b->length, b->experts, &second) ||
        first > SIZE_MAX / sizeof(float) || second > SIZE_MAX / sizeof(float))
        return fail(e, GM_BAD_FILE, "'%s': its matrices take more bytes than this machine can address", p->base);
    p->a = arena_array(&out->memory, (size_t)first, sizeof *p->a);
    p->b = arena_array(&out->memory, (size_t)second, sizeof *p->b);
    if (!p->a || !p->b) return fail_memory(e, p->base, (first + second) * sizeof(float));
    out->bytes += (first + second) * sizeof(float);
    return GM_OK;
}

static gm_status join_pairs(adapter_reader *r, const peft_config *config, error *e) {
    adapter_halves *halves = &r->halves;
    adapter        *out = r->made;
    if (!halves->count) return fail(e, GM_BAD_FILE, "the adapter has no weights");
    qsort(halves->items, halves->count, sizeof *halves->items, half_compare);
    out->pairs = arena_array(&out->memory, halves->count / 2 + 1, sizeof *out->pairs);
    if (!out->pairs) return fail_memory(e, "an adapter", halves->count * sizeof *out->pairs);
    TRY(check_once(halves, e));
    for (size_t i = 0; i < halves->count; i += 2) {
        const adapter_half *a = &halves->items[i], *b = i + 1 < halves->count ? a + 1 : NULL;
        TRY(check_halves(a, b, e));
        TRY(pair_new(out, a, b, e));
        TRY(pair_scale(halves, config, a->name, &out->pairs[out->count], e));
        out->count++;
    }
    return GM_OK;
}

/* ---- values ---- */

/* `scale` is the pair's: B is multiplied by it when the adapter is used. */
static gm_status half_check_finite(const float *values, uint64_t count, const adapter_half *half, float scale,
                                   error *e) {
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(values[i]))
            return fail(e, GM_BAD_FILE, "'%.*s': %s has %s at element %llu", STR_ARGS(half->name), half_letter(half),
                        isnan(values[i]) ? "NaN" : "an infinity", (unsigned long long)i);
        if (half->second && !isfinite(values[i] * scale))
            return fail(e, GM_BAD_FILE, "'%.*s': element %llu of B, %g, times the scale %g is beyond what f32 holds",
                        STR_ARGS(half->name), (unsigned long long)i, (double)values[i], (double)scale);
    }
    return GM_OK;
}

/* [rank][length] → [length][rank] */
static gm_status half_transpose(const adapter_half *half, float *values, error *e) {
    const size_t rank = (size_t)half->rank, length = (size_t)half->length;
    float       *copy = malloc(rank * length * sizeof *copy);
    if (!copy) return fail_memory(e, "an embedding's adapter", rank * length * sizeof *copy);
    memcpy(copy, values, rank * length * sizeof *copy);
    for (size_t i = 0; i < rank; i++)
        for (size_t j = 0; j < length; j++) values[j * rank + i] = copy[i * length + j];
    free(copy);
    return GM_OK;
}

static source *weights_source(const adapter_reader *r) { return r->file ? gguf_source(r->file, 0) : r->weights; }

static gm_status read_half(adapter_reader *r, const adapter_half *half, float scale, float *out, error *e) {
    const quant_format *format = quant_format_of(half->type);
    const uint64_t      count = half->rank * half->length * half->experts;
    source             *from = weights_source(r);
    const uint8_t      *bytes = source_bytes(from, half->offset, half->bytes);
    if (!bytes) return GM_AGAIN;
    format->dequantise(out, bytes, count / format->block);
    source_forget(from, half->offset, half->bytes);
    TRY(half_check_finite(out, count, half, scale, e));
    return half->transposed ? half_transpose(half, out, e) : GM_OK;
}

void adapter_hash(adapter *a) {
    sha256 hash;
    sha256_start(&hash);
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        const uint32_t      shape[] = { p->rank, p->in, p->out, p->experts };
        const size_t        per_rank = (size_t)p->rank * p->experts * sizeof(float);
        sha256_add(&hash, p->base, sizeof p->base);
        sha256_add(&hash, shape, sizeof shape);
        sha256_add(&hash, &p->scale, sizeof p->scale);
        sha256_add(&hash, p->a, per_rank * p->in);
        sha256_add(&hash, p->b, per_rank * p->out);
    }
    sha256_end(&hash, a->digest);
}

/* ---- the reader ---- */

gm_status adapter_reader_new(source *weights, source *config, const char *name, adapter_reader **out, error *e) {
    adapter_reader *r = *out = calloc(1, sizeof *r);
    if (!r) {
        source_free(weights);
        source_free(config);
        return fail_memory(e, "an adapter", sizeof *r);
    }
    r->weights = weights;
    r->config = config;
    r->made = calloc(1, sizeof *r->made);
    r->name = adapter_name_of(name, &r->memory);
    if (r->made && r->name) return GM_OK;
    adapter_reader_free(r);
    *out = NULL;
    return fail_memory(e, "an adapter", sizeof *r);
}

void adapter_reader_free(adapter_reader *r) {
    if (!r) return;
    gguf_free(r->file);
    source_free(r->weights);
    source_free(r->config);
    safetensors_free(&r->tensors);
    adapter_free(r->made);
    arena_free(&r->memory);
    free(r);
}

source *adapter_reader_waiting(adapter_reader *r) {
    uint64_t offset, length;
    if (r->config && source_wanted(r->config, &offset, &length)) return r->config;
    if (r->file && !r->listed) return gguf_waiting_source(r->file);
    source *from = weights_source(r);
    return source_wanted(from, &offset, &length) ? from : NULL;
}

static gm_status list_peft(adapter_reader *r, error *e) {
    peft_config config;
    if (!r->config)
        return fail(e, GM_NOT_FOUND, PEFT_CONFIG " is missing: a safetensors adapter needs it beside its weights");
    const uint64_t length = source_length(r->config);
    if (length > PEFT_MOST_CONFIG)
        return fail(e, GM_BAD_FILE, PEFT_CONFIG " has %llu bytes; at most %d are read", (unsigned long long)length,
                    PEFT_MOST_CONFIG);
    const uint8_t *text = source_bytes(r->config, 0, length);
    if (!text) return GM_AGAIN;
    TRY(peft_config_parse((str){ (const char *)text, (size_t)length }, &r->memory, &config, e));
    TRY(safetensors_read(r->weights, &r->tensors, e));
    TRY(peft_list_halves(&r->tensors, &r->memory, &r->halves, e));
    r->halves.base_model = config.base_model;
    return join_pairs(r, &config, e);
}

static gm_status list_gguf(adapter_reader *r, error *e) {
    TRY(gguf_step(r->file, e));
    if (gguf_parts(r->file) > 1) return fail(e, GM_UNSUPPORTED, "an adapter in several parts is not supported");
    TRY(gguf_list_halves(r->file, &r->memory, &r->halves, e));
    return join_pairs(r, NULL, e);
}

static gm_status list_all(adapter_reader *r, error *e) {
    if (!r->file && source_length(r->weights) >= 8) {
        const uint8_t *first = source_bytes(r->weights, 0, 8);
        if (!first) return GM_AGAIN;
        if (!memcmp(first, "GGUF", 4)) {
            source *from = r->weights;
            r->weights = NULL; /* the reader of GGUF files frees it */
            source_forget(from, 0, 8);
            TRY(gguf_new(from, &r->file, e));
        }
    }
    TRY(r->file ? list_gguf(r, e) : list_peft(r, e));
    const str prefix = r->halves.has_prefix ? r->halves.prefix : str_of("model.");
    r->made->name = arena_copy(&r->made->memory, str_of(r->name));
    r->made->prefix = arena_copy(&r->made->memory, prefix);
    if (r->halves.base_model.length) r->made->base_model = arena_copy(&r->made->memory, r->halves.base_model);
    return r->made->name && r->made->prefix ? GM_OK : fail_memory(e, "an adapter", sizeof *r->made);
}

static gm_status reader_go_on(adapter_reader *r, error *e) {
    if (!r->listed) {
        TRY(list_all(r, e));
        r->listed = true;
    }
    for (; r->next < r->halves.count; r->next++) {
        const adapter_pair *p = &r->made->pairs[r->next / 2];
        TRY(read_half(r, &r->halves.items[r->next], p->scale, r->next % 2 ? p->b : p->a, e));
    }
    adapter_hash(r->made);
    return GM_OK;
}

gm_status adapter_reader_step(adapter_reader *r, adapter **out, error *e) {
    *out = NULL;
    if (!r->made) return fail(e, GM_BAD_ARGUMENT, "the adapter was already read, or could not be");
    const gm_status status = reader_go_on(r, e);
    if (status == GM_AGAIN) return status;
    if (status) adapter_free(r->made);
    else *out = r->made;
    r->made = NULL;
    return status;
}
