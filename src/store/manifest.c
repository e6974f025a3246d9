/* Parsing Ollama's manifests, config blobs and model names. */

#include "store/manifest.h"
#include "base/buffer.h"
#include "base/json.h"

#include <string.h>

static const char media_prefix[] = "application/vnd.ollama.image.";

/* ---- layers ---- */

/* "sha256:<64 hex>" → "sha256-<64 hex>". A digest becomes a file name, so nothing else is accepted. */
static bool blob_name(str digest, char out[72]) {
    if (digest.length != 71 || !(str_starts_with(digest, "sha256:") || str_starts_with(digest, "sha256-")))
        return false;
    for (size_t i = 7; i < digest.length; i++) {
        const char c = digest.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    }
    memcpy(out, digest.data, digest.length);
    out[6] = '-';
    out[71] = 0;
    return true;
}

static gm_status parse_layer(const json *value, const char *where, size_t index, arena *a, manifest_layer *out,
                             error *e) {
    if (!json_is(value, JSON_OBJECT)) return fail(e, GM_BAD_FILE, "%s %zu: expected an object", where, index);
    int64_t size = 0;
    str     media = json_string(json_get(value, "mediaType"), "");
    str     digest = json_string(json_get(value, "digest"), "");
    if (!blob_name(digest, out->blob)) {
        return fail(e, GM_BAD_FILE, "%s %zu: digest '%.*s' is not sha256: and 64 hexadecimal digits", where, index,
                    STR_ARGS(digest));
    }
    if (!json_integer(json_get(value, "size"), &size) || size < 0) {
        return fail(e, GM_BAD_FILE, "%s %zu: size must be a whole number of bytes", where, index);
    }
    out->size = (uint64_t)size;
    if (str_starts_with(media, media_prefix)) {
        media.data += sizeof media_prefix - 1;
        media.length -= sizeof media_prefix - 1;
    }
    out->kind = arena_copy(a, media);
    return out->kind ? GM_OK : fail_memory(e, "a manifest", media.length);
}

gm_status manifest_parse(str text, arena *a, manifest *out, error *e) {
    *out = (manifest){ 0 };
    json     *root = NULL;
    gm_status status = json_parse(text, a, &root, e);
    if (status) return status;
    const json *config = json_get(root, "config"), *layers = json_get(root, "layers");
    if (!json_is(layers, JSON_ARRAY)) return fail(e, GM_BAD_FILE, "layers: expected an array");
    out->layers = arena_array(a, layers->count, sizeof *out->layers);
    if (!out->layers) return fail_memory(e, "a manifest", layers->count * sizeof *out->layers);
    if (config && config->kind != JSON_NULL && (status = parse_layer(config, "config", 0, a, &out->config, e)))
        return status;
    for (const json *layer = layers->first; layer; layer = layer->next) {
        manifest_layer *parsed = &out->layers[out->count];
        if ((status = parse_layer(layer, "layer", ++out->count, a, parsed, e))) return status;
        if (!add_u64(out->bytes, parsed->size, &out->bytes))
            return fail(e, GM_BAD_FILE, "the layers' sizes add up to more than 64 bits hold");
    }
    return GM_OK;
}

/* ---- config ---- */

static const char *manifest_text(const json *object, const char *key, arena *a, bool *failed) {
    const json *value = json_get(object, key);
    if (!json_is(value, JSON_STRING) || !value->text.length) return NULL;
    const char *copy = arena_copy(a, value->text);
    if (!copy) *failed = true;
    return copy;
}

gm_status manifest_config_parse(str text, arena *a, manifest_config *out, error *e) {
    *out = (manifest_config){ 0 };
    json     *root = NULL;
    bool      failed = false;
    gm_status status = json_parse(text, a, &root, e);
    if (status) return status;
    if (!json_is(root, JSON_OBJECT)) return fail(e, GM_BAD_FILE, "expected a JSON object");
    out->renderer = manifest_text(root, "renderer", a, &failed);
    out->family = manifest_text(root, "model_family", a, &failed);
    out->size_label = manifest_text(root, "model_type", a, &failed);
    out->quantisation = manifest_text(root, "file_type", a, &failed);
    return failed ? fail_memory(e, "a model's config", text.length) : GM_OK;
}

/* ---- names ---- */

enum { MOST_COMPONENTS = 8, LONGEST_COMPONENT = 255 };

static const str default_host = { "registry.ollama.ai", 18 }, default_namespace = { "library", 7 };

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Letters, digits and _ anywhere, - and . after the first character: this rules out "..", hidden files and separators. A
 * host may have a port. */
static bool valid_component(str text, bool host) {
    if (!text.length || text.length > LONGEST_COMPONENT || !is_word(text.data[0])) return false;
    for (size_t i = 1; i < text.length; i++) {
        const char c = text.data[i];
        if (!is_word(c) && c != '-' && c != '.' && !(host && c == ':')) return false;
    }
    return true;
}

static gm_status bad_name(str name, error *e) {
    return fail(
        e, GM_BAD_ARGUMENT,
        "'%.*s' is not a model name: expected model:tag, namespace/model:tag or host/namespace/model:tag, made of "
        "letters, digits, '_', '-' and '.'",
        STR_ARGS(name));
}

/* Components are host, namespace (one or more), model, tag. */
static gm_status build_name(const str *parts, size_t count, arena *a, manifest_name *out, error *e) {
    buffer     path = { 0 }, shown = { 0 };
    const bool hide_host = count == 4 && str_equal(parts[0], default_host);
    const bool hide_namespace = hide_host && str_equal(parts[1], default_namespace);
    for (size_t i = 0; i < count; i++) {
        if (i) buffer_char(&path, '/');
        buffer_str(&path, parts[i]);
        if ((i == 0 && hide_host) || (i == 1 && hide_namespace)) continue;
        if (shown.length) buffer_char(&shown, i + 1 == count ? ':' : '/');
        buffer_str(&shown, parts[i]);
    }
    *out = (manifest_name){ 0 };
    if (!path.failed && !shown.failed) {
        out->path = arena_copy(a, buffer_view(&path));
        out->shown = arena_copy(a, buffer_view(&shown));
    }
    gm_status status = out->path && out->shown ? GM_OK : fail_memory(e, "a model's name", path.length);
    buffer_free(&path);
    buffer_free(&shown);
    return status;
}

/* Splits at slashes; 0 when there are too many components or one is not valid. */
static size_t split_components(str text, str parts[MOST_COMPONENTS]) {
    size_t count = 0;
    for (const char *at = text.data, *end = text.data + text.length;;) {
        const char *slash = at < end ? memchr(at, '/', (size_t)(end - at)) : NULL, *stop = slash ? slash : end;
        if (count == MOST_COMPONENTS) return 0;
        parts[count++] = (str){ at, (size_t)(stop - at) };
        if (!slash) break;
        at = slash + 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (!valid_component(parts[i], i == 0 && count > 2)) return 0;
    }
    return count;
}

gm_status manifest_name_parse(const char *name, arena *a, manifest_name *out, error *e) {
    str         text = str_of(name), whole = text, tag = { "latest", 6 };
    const char *slash = strrchr(text.data, '/'), *colon = strrchr(text.data, ':');
    if (colon && (!slash || colon > slash)) {
        tag = str_of(colon + 1);
        text.length = (size_t)(colon - text.data);
    }
    str          given[MOST_COMPONENTS], parts[MOST_COMPONENTS + 3] = { default_host, default_namespace };
    const size_t count = split_components(text, given), defaults = count < 3 ? 3 - count : 0;
    if (!count || count == MOST_COMPONENTS || !valid_component(tag, false))
        return bad_name(whole, e); /* the tag is one, too */
    memcpy(parts + defaults, given, count * sizeof *given);
    parts[defaults + count] = tag;
    return build_name(parts, defaults + count + 1, a, out, e);
}

gm_status manifest_name_of_path(const char *path, arena *a, manifest_name *out, error *e) {
    str          parts[MOST_COMPONENTS];
    const size_t count = split_components(str_of(path), parts);
    return count < 4 ? bad_name(str_of(path), e) : build_name(parts, count, a, out, e);
}
