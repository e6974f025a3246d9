/* The tensors of a PEFT adapter: base_model.model.PATH.lora_A.weight (rank, in) and .lora_B.weight (out, rank); of the embedding
 * .lora_embedding_A (rank, vocabulary) and .lora_embedding_B (width, rank). */

#include "adapter/parts.h"

#include <string.h>

static bool str_contains(str text, const char *part) {
    return text.length && memmem(text.data, text.length, part, strlen(part)) != NULL;
}

static gm_status refuse_tensor(const safetensors_tensor *t, error *e) {
    static const struct {
        const char *part, *what;
    } rows[] = {
        { ".lora_magnitude_vector", "DoRA (magnitudes of the weights) is not supported" },
        { ".trainable_tokens", "single trained rows of the embedding are not supported" },
        { ".base_layer.", "adapters of fused parameters, such as all experts in one, are not supported" },
        { ".bias", "biases are not supported" },
        { ".weight", "weights of the base model (modules_to_save) are not supported" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (str_contains(t->name, rows[i].part))
            return fail(e, GM_UNSUPPORTED, "tensor '%.*s': %s", STR_ARGS(t->name), rows[i].what);
    }
    return fail(e, GM_UNSUPPORTED, "tensor '%.*s' does not belong to a LoRA adapter", STR_ARGS(t->name));
}

static bool half_type(str name, quant_type *out) {
    static const struct {
        const char *name;
        quant_type  type;
    } rows[] = { { "F32", TYPE_F32 }, { "F16", TYPE_F16 }, { "BF16", TYPE_BF16 } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (str_is(name, rows[i].name)) return *out = rows[i].type, true;
    }
    return false;
}

/* The path, and which half; false: the tensor is neither. */
static bool half_name(str name, str *path, bool *second, bool *embedding) {
    static const struct {
        const char *end;
        bool        second, embedding;
    } rows[] = {
        { ".lora_A.weight", false, false },
        { ".lora_B.weight", true, false },
        { ".lora_embedding_A", false, true },
        { ".lora_embedding_B", true, true },
    };
    if (!str_starts_with(name, PEFT_PREFIX)) return false;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const size_t around = strlen(PEFT_PREFIX) + strlen(rows[i].end);
        if (!str_ends_with(name, rows[i].end) || name.length <= around) continue;
        *path = (str){ name.data + strlen(PEFT_PREFIX), name.length - around };
        *second = rows[i].second;
        *embedding = rows[i].embedding;
        return true;
    }
    return false;
}

static gm_status half_module(const safetensors_tensor *t, adapter_half *half, bool embedding, str *prefix, error *e) {
    if (!module_of_path(half->name, &half->module, prefix)) {
        if (str_ends_with(half->name, ".experts"))
            return fail(e, GM_UNSUPPORTED, "tensor '%.*s': adapters of all experts in one are not supported",
                        STR_ARGS(t->name));
        return fail(e, GM_UNSUPPORTED, "tensor '%.*s': Gemma 4 has no module '%.*s' that adapters can correct",
                    STR_ARGS(t->name), STR_ARGS(half->name));
    }
    if (embedding != module_is_embedding(half->module))
        return fail(e, GM_UNSUPPORTED, "tensor '%.*s' is the adapter of %s, but '%.*s' is %s", STR_ARGS(t->name),
                    embedding ? "an embedding" : "a linear", STR_ARGS(half->name), embedding ? "none" : "an embedding");
    return GM_OK;
}

static gm_status peft_half(const safetensors_tensor *t, adapter_half *half, str *prefix, error *e) {
    bool embedding = false;
    *half = (adapter_half){ .experts = 1, .offset = t->offset, .bytes = t->bytes };
    if (str_contains(t->name, ".base_layer.") || !half_name(t->name, &half->name, &half->second, &embedding))
        return refuse_tensor(t, e);
    TRY(half_module(t, half, embedding, prefix, e));
    if (!half_type(t->type, &half->type))
        return fail(e, GM_UNSUPPORTED, "tensor '%.*s' has the type %.*s; F32, F16 and BF16 are read", STR_ARGS(t->name),
                    STR_ARGS(t->type));
    if (t->dims != 2)
        return fail(e, GM_BAD_FILE, "tensor '%.*s' has %u dimensions; 2 were expected", STR_ARGS(t->name), t->dims);
    half->rank = t->shape[half->second ? 1 : 0];
    half->length = t->shape[half->second ? 0 : 1];
    half->transposed = embedding && !half->second;
    return GM_OK;
}

gm_status peft_list_halves(const safetensors *s, arena *a, adapter_halves *out, error *e) {
    *out = (adapter_halves){ .items = arena_array(a, s->count + 1, sizeof *out->items) };
    if (!out->items) return fail_memory(e, "the tensors of an adapter", s->count * sizeof *out->items);
    for (size_t i = 0; i < s->count; i++) {
        const safetensors_tensor *t = &s->tensors[i];
        str                       prefix = { NULL, 0 };
        /* PEFT stores the table beside an embedding's adapter. */
        if (str_contains(t->name, ".base_layer.") && !str_contains(t->name, ".lora_")) continue;
        TRY(peft_half(t, &out->items[out->count], &prefix, e));
        if (prefix.data && !out->has_prefix) out->prefix = prefix;
        out->has_prefix = out->has_prefix || prefix.data;
        out->count++;
    }
    return GM_OK;
}
