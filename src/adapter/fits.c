/* Compares an adapter with a model. */

#include "adapter/adapter.h"
#include "adapter/modules.h"

static gm_status check_shape(const adapter_pair *p, uint64_t in, uint64_t out, uint64_t experts, error *e) {
    if (p->in == in && p->out == out && p->experts == experts) return GM_OK;
    if (p->experts != experts)
        return fail(e, GM_BAD_ARGUMENT, "adapter of '%s': it has %u experts, the model's tensor %llu", p->base,
                    p->experts, (unsigned long long)experts);
    return fail(
        e, GM_BAD_ARGUMENT,
        "adapter of '%s': it maps %u values to %u, the model's tensor %llu to %llu; it was made for another model",
        p->base, p->in, p->out, (unsigned long long)in, (unsigned long long)out);
}

/* K and V of a layer that uses an earlier layer's: some files have the tensors, but nothing reads them. */
static bool is_shared_kv(const adapter_pair *p, const model *m) {
    const str base = str_of(p->base);
    module_id id;
    if (!str_starts_with(base, "blk.") || !module_of_tensor(base, &id)) return false;
    if (!str_ends_with(base, ".attn_k.weight") && !str_ends_with(base, ".attn_v.weight")) return false;
    return id.layer < m->config.layers && !m->config.layer[id.layer].owns_kv;
}

bool adapter_pair_is_unused(const adapter_pair *p, const model *m) { return is_shared_kv(p, m); }

/* The error for a tensor that the model does not have says why, if it can. */
static gm_status fail_no_tensor(const adapter_pair *p, module_id id, const model *m, error *e) {
    const model_config *c = &m->config;
    const str           base = str_of(p->base);
    if (str_starts_with(base, "blk.") && id.layer >= c->layers)
        return fail(e, GM_BAD_ARGUMENT, "adapter of '%s': the model has only %u layers; it was made for another model",
                    p->base, c->layers);
    if (module_has_experts(id) && c->experts)
        return fail(e, GM_BAD_ARGUMENT,
                    "adapter of '%s': this model's file has its experts in another form (%s); convert the adapter for "
                    "that form",
                    p->base,
                    m->layer[0].gate_up_exps.name ? "gate and up in one tensor" : "gate and up in two tensors");
    if (str_ends_with(base, ".attn_v.weight"))
        return fail(e, GM_BAD_ARGUMENT, "adapter of '%s': on this layer the model's values are its keys", p->base);
    return fail(e, GM_BAD_ARGUMENT, "adapter of '%s': the model has no such tensor; it was made for another model",
                p->base);
}

const gguf_tensor *adapter_tower_tensor(const gguf *towers, const char *base) {
    module_id  id;
    char       other[MODULE_NAME];
    const bool ollama = gguf_find_tensor(towers, "mm.a.fc.weight") != NULL;
    if (!module_of_tensor(str_of(base), &id)) return NULL;
    return gguf_find_tensor(towers, ollama && module_inline_tensor(id, other) ? other : base);
}

model_part adapter_pair_part(const adapter_pair *p) { return model_part_of(str_of(p->base)); }

static gm_status tower_fits(const adapter_pair *p, const gguf *file, error *e) {
    const bool         seen = adapter_pair_part(p) == PART_VISION;
    const char        *sign = seen ? "v.patch_embd.weight" : "mm.a.input_projection.weight";
    const gguf_tensor *t = file ? adapter_tower_tensor(file, p->base) : NULL;
    if (t) return check_shape(p, t->ne[0], t->ne[1], t->ne[2], e);
    if (!file || !gguf_find_tensor(file, sign))
        return fail(
            e, GM_BAD_ARGUMENT,
            "adapter of '%s': it corrects the %s tower, but the model has none; a projector (mmproj) brings one",
            p->base, seen ? "vision" : "audio");
    return fail(e, GM_BAD_ARGUMENT,
                "adapter of '%s': the model's %s tower has no such tensor; it was made for another model", p->base,
                seen ? "vision" : "audio");
}

static gm_status pair_fits(const adapter_pair *p, const model *m, const gguf *vision, const gguf *audio, error *e) {
    const model_config *c = &m->config;
    module_id           id;
    if (!module_of_tensor(str_of(p->base), &id))
        return fail(e, GM_UNSUPPORTED, "adapter of '%s': adapters cannot correct this tensor", p->base);
    if (module_is_tower(id)) return tower_fits(p, adapter_pair_part(p) == PART_VISION ? vision : audio, e);
    if (module_is_embedding(id)) return check_shape(p, c->vocabulary, c->width, 1, e);
    if (module_is_head(id)) return check_shape(p, c->width, c->vocabulary, 1, e);
    if (is_shared_kv(p, m)) {
        const layer_config *layer = &c->layer[id.layer];
        return check_shape(p, c->width, (uint64_t)layer->kv_heads * layer->head, 1, e);
    }
    const gguf_tensor *t = gguf_find_tensor(m->file, p->base);
    return t ? check_shape(p, t->ne[0], t->ne[1], t->ne[2], e) : fail_no_tensor(p, id, m, e);
}

gm_status adapter_fits(const adapter *a, const model *m, const gguf *vision, const gguf *audio, error *e) {
    for (size_t i = 0; i < a->count; i++) TRY(pair_fits(&a->pairs[i], m, vision, audio, e));
    return GM_OK;
}
