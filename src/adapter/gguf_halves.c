/* The tensors of a GGUF adapter: NAME.lora_a [in, rank] and NAME.lora_b [rank, out]; of the embedding lora_a is [rank, vocabulary].
 * Expert tensors have the experts as their last dimension. */

#include "adapter/parts.h"

#include <string.h>

static gm_status adapter_key_is(const gguf *g, const char *key, const char *expected, const char *problem, error *e) {
    str  value = { "", 0 };
    bool found = false;
    TRY(gguf_get_str(g, key, &value, &found, e));
    if (found && str_is(value, expected)) return GM_OK;
    if (!found)
        return fail(e, GM_UNSUPPORTED, "%s: the file has no metadata key '%s'; expected '%s'", problem, key, expected);
    return fail(e, GM_UNSUPPORTED, "%s: metadata key '%s' is '%.*s', expected '%s'", problem, key, STR_ARGS(value),
                expected);
}

/* Where the text model is in the original model: it becomes part of paths when the adapter is written as a PEFT folder. */
static gm_status check_prefix(str prefix, error *e) {
    buffer    path = { 0 };
    module_id module;
    str       there = { NULL, 0 };
    buffer_str(&path, prefix);
    buffer_text(&path, "embed_tokens");
    const bool known = !path.failed && module_of_path(buffer_view(&path), &module, &there);
    buffer_free(&path);
    if (known && there.length == prefix.length) return GM_OK;
    return fail(e, GM_BAD_FILE,
                "metadata key '" GGUF_PREFIX_KEY
                "' is '%.*s'; expected the part before 'layers.' in PEFT's paths, such "
                "as 'model.' or 'model.language_model.'",
                STR_ARGS(prefix));
}

static gm_status check_keys(const gguf *g, adapter_halves *out, error *e) {
    static const char *const names[] = { "general.base_model.0.repo_url", "general.base_model.0.name" };
    bool                     found = false;
    float                    alpha = 0;
    TRY(adapter_key_is(g, "general.type", "adapter", "not an adapter", e));
    TRY(adapter_key_is(g, "general.architecture", "gemma4", "an adapter for another kind of model", e));
    TRY(adapter_key_is(g, "adapter.type", "lora", "not a LoRA adapter", e));
    const gguf_value *tokens = gguf_find(g, "adapter.alora.invocation_tokens");
    if (tokens && tokens->count)
        return fail(e, GM_UNSUPPORTED,
                    "metadata key 'adapter.alora.invocation_tokens': an activated LoRA (aLoRA) is not supported");
    TRY(gguf_get_f32(g, "adapter.lora.alpha", &alpha, &found, e));
    if (alpha - alpha != 0) return fail(e, GM_BAD_FILE, "metadata key 'adapter.lora.alpha' is not a finite number");
    out->alpha = alpha;
    out->has_alpha = found && alpha != 0;
    TRY(gguf_get_str(g, GGUF_PREFIX_KEY, &out->prefix, &found, e));
    if (found) TRY(check_prefix(out->prefix, e));
    out->has_prefix = found;
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(gguf_get_str(g, names[i], &out->base_model, &found, e));
    return GM_OK;
}

static gm_status gguf_half(const gguf_tensor *t, adapter_half *half, error *e) {
    const bool first = str_ends_with(t->name, ".lora_a"), second = str_ends_with(t->name, ".lora_b");
    if (!first && !second)
        return fail(e, GM_UNSUPPORTED,
                    "tensor '%.*s' does not belong to a LoRA adapter: its name ends with neither .lora_a nor .lora_b",
                    STR_ARGS(t->name));
    *half = (adapter_half){ .second = second,
                            .name = { t->name.data, t->name.length - strlen(".lora_a") },
                            .experts = t->ne[2],
                            .type = t->type,
                            .offset = t->offset,
                            .bytes = t->bytes };
    if (!module_of_tensor(half->name, &half->module))
        return fail(e, GM_UNSUPPORTED, "tensor '%.*s': Gemma 4 has no tensor '%.*s' that adapters can correct",
                    STR_ARGS(t->name), STR_ARGS(half->name));
    if (!t->format->dequantise)
        return fail(e, GM_UNSUPPORTED, "tensor '%.*s' has the type %s, which weights cannot have", STR_ARGS(t->name),
                    t->format->name);
    if (t->ne[3] != 1 || (t->ne[2] != 1 && !module_has_experts(half->module)))
        return fail(e, GM_BAD_FILE, "tensor '%.*s' has %u dimensions; %d were expected", STR_ARGS(t->name), t->dims,
                    module_has_experts(half->module) ? 3 : 2);
    const bool rank_first = second || module_is_embedding(half->module);
    half->rank = t->ne[rank_first ? 0 : 1];
    half->length = t->ne[rank_first ? 1 : 0];
    return GM_OK;
}

gm_status gguf_list_halves(const gguf *g, arena *a, adapter_halves *out, error *e) {
    const size_t count = gguf_tensor_count(g);
    *out = (adapter_halves){ .items = arena_array(a, count + 1, sizeof *out->items) };
    if (!out->items) return fail_memory(e, "the tensors of an adapter", count * sizeof *out->items);
    TRY(check_keys(g, out, e));
    for (size_t i = 0; i < count; i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (str_ends_with(t->name, "_norm.weight")) continue; /* llama.cpp writes and ignores these */
        TRY(gguf_half(t, &out->items[out->count], e));
        out->count++;
    }
    return GM_OK;
}
