/* Reads adapter_config.json. */

#include "adapter/peft_config.h"
#include "adapter/expression.h"

#include <math.h>

/* ---- what is refused ---- */

/* null, false, 0, "", "none", [] and {} all mean that something is not used. */
static bool is_used(const json *value) {
    if (!value) return false;
    switch (value->kind) {
    case JSON_NULL:
    case JSON_FALSE: return false;
    case JSON_NUMBER: return value->number != 0;
    case JSON_STRING: return value->text.length && !str_is(value->text, "none");
    case JSON_ARRAY:
    case JSON_OBJECT: return value->count != 0;
    default: return true;
    }
}

static gm_status refuse_extras(const json *root, error *e) {
    static const struct {
        const char *key, *what;
    } rows[] = {
        { "use_dora", "DoRA (magnitudes of the weights) is not supported" },
        { "alora_invocation_tokens", "an activated LoRA (aLoRA) is not supported" },
        { "bias", "adapters that train biases are not supported" },
        { "lora_bias", "adapters with a bias are not supported" },
        { "modules_to_save", "copies of whole modules (modules_to_save) are not supported" },
        { "target_parameters", "adapters of fused parameters, such as all experts in one, are not supported" },
        { "trainable_token_indices", "single trained rows of the embedding are not supported" },
        { "layer_replication", "replicated layers are not supported" },
        { "use_qalora", "QALoRA is not supported" },
        { "use_bdlora", "block-diagonal LoRA (BD-LoRA) is not supported" },
        { "velora_config", "VeLoRA is not supported" },
        { "kasa_config", "KaSA is not supported" },
        { "monteclora_config", "MonteCLoRA is not supported" },
        { "arrow_config", "Arrow's routing of adapters is not supported" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const json *value = json_get(root, rows[i].key);
        if (is_used(value)) return fail(e, GM_UNSUPPORTED, "adapter_config.json: %s: %s", rows[i].key, rows[i].what);
    }
    return GM_OK;
}

/* These change the base model's weights when training begins, so the pairs alone are not the difference. */
static gm_status refuse_changed_base(const json *root, error *e) {
    static const char *const names[] = { "pissa", "olora", "corda", "loftq" };
    const str                init = json_string(json_get(root, "init_lora_weights"), "");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!str_starts_with(init, names[i])) continue;
        return fail(e, GM_UNSUPPORTED,
                    "adapter_config.json: init_lora_weights is '%.*s', which changes the base model, too; convert the "
                    "adapter to a plain LoRA when you save it",
                    STR_ARGS(init));
    }
    return GM_OK;
}

/* ---- fields ---- */

static gm_status config_rank(const json *value, const char *key, uint32_t *out, error *e) {
    int64_t n = 0;
    if (!value || value->kind == JSON_NULL) return GM_OK;
    if (!json_integer(value, &n)) {
        return fail(e, GM_BAD_FILE, "adapter_config.json: %s must be a whole number, found %s", key,
                    json_describe(value));
    }
    if (n < 1 || n > UINT32_MAX)
        return fail(e, GM_BAD_FILE, "adapter_config.json: %s is %lld; a rank is at least 1", key, (long long)n);
    *out = (uint32_t)n;
    return GM_OK;
}

static gm_status config_number(const json *value, const char *key, double *out, error *e) {
    if (!value || value->kind == JSON_NULL) return GM_OK;
    if (!json_is(value, JSON_NUMBER) || !isfinite(value->number) || fabs(value->number) > 1e30)
        return fail(e, GM_BAD_FILE, "adapter_config.json: %s must be a number, found %s", key, json_describe(value));
    *out = value->number;
    return GM_OK;
}

static gm_status check_kinds(const json *root, error *e) {
    static const char *const patterns[] = { "rank_pattern", "alpha_pattern" };
    const json              *type = json_get(root, "peft_type");
    const json              *targets = json_get(root, "target_modules"), *rslora = json_get(root, "use_rslora");
    if (type && type->kind != JSON_NULL && !str_is(json_string(type, ""), "LORA"))
        return fail(e, GM_UNSUPPORTED, "adapter_config.json: peft_type is '%.*s'; only LORA is supported",
                    STR_ARGS(json_string(type, "?")));
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        const json *value = json_get(root, patterns[i]);
        if (json_is(value, JSON_OBJECT)) TRY(json_check_keys(value, e));
        else if (value && value->kind != JSON_NULL)
            return fail(e, GM_BAD_FILE, "adapter_config.json: %s must be an object, found %s", patterns[i],
                        json_describe(value));
    }
    if (targets && targets->kind != JSON_NULL && targets->kind != JSON_STRING && targets->kind != JSON_ARRAY)
        return fail(e, GM_BAD_FILE, "adapter_config.json: target_modules must be a list or an expression, found %s",
                    json_describe(targets));
    if (rslora && rslora->kind != JSON_NULL && rslora->kind != JSON_TRUE && rslora->kind != JSON_FALSE)
        return fail(e, GM_BAD_FILE, "adapter_config.json: use_rslora must be true or false, found %s",
                    json_describe(rslora));
    return GM_OK;
}

gm_status peft_config_parse(str text, arena *a, peft_config *out, error *e) {
    error inner = { 0 };
    json *root = NULL;
    *out = (peft_config){ .alpha = 8 }; /* PEFT's default */
    if (json_parse(text, a, &root, &inner)) return fail(e, inner.status, "adapter_config.json: %s", inner.why);
    if (!json_is(root, JSON_OBJECT))
        return fail(e, GM_BAD_FILE, "adapter_config.json: expected an object, found %s", json_describe(root));
    out->root = root;
    TRY(json_check_keys(root, e));
    TRY(check_kinds(root, e));
    TRY(refuse_extras(root, e));
    TRY(refuse_changed_base(root, e));
    TRY(config_rank(json_get(root, "r"), "r", &out->rank, e));
    TRY(config_number(json_get(root, "lora_alpha"), "lora_alpha", &out->alpha, e));
    out->root_of_rank = json_is(json_get(root, "use_rslora"), JSON_TRUE);
    out->base_model = json_string(json_get(root, "base_model_name_or_path"), "");
    return GM_OK;
}

/* ---- modules ---- */

/* A name in a list is the whole path, or its end from a dot on. */
static bool path_ends(str path, str name) {
    if (str_equal(path, name)) return true;
    if (path.length <= name.length) return false;
    const str end = { path.data + path.length - name.length, name.length };
    return end.data[-1] == '.' && str_equal(end, name);
}

/* A list of names, or an expression for the whole path. */
static gm_status names_match(const json *names, str path, bool *out, error *e) {
    *out = false;
    if (names->kind == JSON_STRING) {
        *out = str_is(names->text, "all-linear");
        return *out ? GM_OK : expression_match(names->text, path, out, e);
    }
    for (const json *name = names->first; name && !*out; name = name->next)
        *out = name->kind == JSON_STRING && path_ends(path, name->text);
    return GM_OK;
}

/* The number between the last two dots that enclose one: "model.layers.12.mlp.up_proj" → 12. */
static bool layer_of_path(str path, int64_t *out) {
    for (size_t i = path.length; i-- > 1;) {
        if (path.data[i] != '.') continue;
        size_t  first = i;
        int64_t number = 0, place = 1;
        while (first && path.data[first - 1] >= '0' && path.data[first - 1] <= '9' && i - first < 9) {
            number += place * (path.data[--first] - '0');
            place *= 10;
        }
        if (first == i || !first || path.data[first - 1] != '.') continue;
        *out = number;
        return true;
    }
    return false;
}

static bool layers_have(const json *layers, str path) {
    int64_t layer = 0, item = 0;
    if (!layers || layers->kind == JSON_NULL) return true;
    if (layers->kind == JSON_ARRAY && !layers->count) return true;
    if (!layer_of_path(path, &layer)) return false;
    if (json_integer(layers, &item)) return item == layer;
    for (const json *one = layers->first; one; one = one->next) {
        if (json_integer(one, &item) && item == layer) return true;
    }
    return false;
}

static gm_status config_check_target(const peft_config *c, str path, error *e) {
    const json *targets = json_get(c->root, "target_modules"), *excluded = json_get(c->root, "exclude_modules");
    bool        match = false;
    if (is_used(targets)) {
        TRY(names_match(targets, path, &match, e));
        if (!match)
            return fail(e, GM_BAD_FILE,
                        "adapter_config.json contradicts the weights: they have an adapter of '%.*s', which "
                        "target_modules does not name",
                        STR_ARGS(path));
    }
    if (is_used(excluded) && (excluded->kind == JSON_STRING || excluded->kind == JSON_ARRAY)) {
        TRY(names_match(excluded, path, &match, e));
        if (match)
            return fail(e, GM_BAD_FILE,
                        "adapter_config.json contradicts the weights: they have an adapter of '%.*s', which "
                        "exclude_modules names",
                        STR_ARGS(path));
    }
    if (!layers_have(json_get(c->root, "layers_to_transform"), path))
        return fail(e, GM_BAD_FILE,
                    "adapter_config.json contradicts the weights: they have an adapter of '%.*s', whose layer "
                    "layers_to_transform does not name",
                    STR_ARGS(path));
    return GM_OK;
}

/* The value of the first key that matches the end of the path, from a dot on; NULL: none. */
static gm_status pattern_find(const json *pattern, str path, const json **out, error *e) {
    *out = NULL;
    if (!json_is(pattern, JSON_OBJECT)) return GM_OK;
    for (const json *item = pattern->first; item && !*out; item = item->next) {
        buffer expression = { 0 };
        bool   match = false;
        buffer_text(&expression, "(.*\\.)?(");
        buffer_str(&expression, item->key);
        buffer_char(&expression, ')');
        gm_status status = expression.failed ? fail_memory(e, "an expression", item->key.length)
                                             : expression_match(buffer_view(&expression), path, &match, e);
        buffer_free(&expression);
        TRY(status);
        if (match) *out = item;
    }
    return GM_OK;
}

gm_status peft_config_module(const peft_config *c, str path, uint32_t *rank, double *alpha, error *e) {
    const json *own = NULL;
    *rank = c->rank;
    *alpha = c->alpha;
    TRY(config_check_target(c, path, e));
    TRY(pattern_find(json_get(c->root, "rank_pattern"), path, &own, e));
    if (own) TRY(config_rank(own, "rank_pattern", rank, e));
    TRY(pattern_find(json_get(c->root, "alpha_pattern"), path, &own, e));
    if (own) TRY(config_number(own, "alpha_pattern", alpha, e));
    return GM_OK;
}
