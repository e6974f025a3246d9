/* gemmule inspect: shows what is in a GGUF file and what it takes to run it. */

#include "cli/inspect.h"

#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/terminal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct {
    bool        json, tensors;
    count_value gpu_memory, gpu_experts, context;
    int         kv;
} inspect_values;

static const option options[] = {
    FLAG_OPTION(inspect_values, tensors, "tensors", 0,
                "list every tensor: name, type, shape, bytes, offset in its file"),
    FLAG_OPTION(inspect_values, json, "json", 0, "print one JSON object"),
    BYTES_OPTION(inspect_values, gpu_memory, "gpu-memory", 0, "N",
                 "plan for this much GPU memory, such as 4G or 900M; default: no limit"),
    COUNT_OPTION(inspect_values, gpu_experts, "gpu-experts", 0, "N", 1, 512,
                 "plan for a cache of N experts of each layer; default: all on the GPU, or as many as fit"),
    COUNT_OPTION(inspect_values, context, "ctx", 0, "N", 1, UINT32_MAX, "plan for a context of N tokens; default 8192"),
    CHOICE_OPTION(inspect_values, kv, "kv", 0, "TYPE", kv_choices, "plan for keys and values in f16, f32 or q8_0"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

static const uint64_t contexts[] = { 8192, 32768, 131072 };

/* ---- as text ---- */

void inspect_line(const char *label, const char *format, ...) {
    char    text[1000], clean[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%-21s %s\n", label, printable(str_of(text), clean, sizeof clean));
}

static void print_types(const inspection *f) {
    const char *label = "types";
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        char bytes[32];
        if (!f->types[type].tensors) continue;
        format_bytes(f->types[type].bytes, bytes);
        inspect_line(label, "%-7s %4" PRIu64 " tensors, %s", quant_format_of(type)->name, f->types[type].tensors,
                     bytes);
        label = "";
    }
}

/* Number and size of the heads of one kind of layer. */
static void print_heads(const model_config *c, bool sliding) {
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        if (layer->sliding != sliding) continue;
        inspect_line(sliding ? "sliding layers' heads" : "full layers' heads",
                     "%u for queries, %u for keys and values, %u wide", layer->heads, layer->kv_heads, layer->head);
        return;
    }
}

static void print_config(const model_config *c) {
    uint32_t sliding = 0, shared = 0, least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        sliding += layer->sliding;
        shared += !layer->owns_kv;
        least = layer->feed_forward < least ? layer->feed_forward : least;
        most = layer->feed_forward > most ? layer->feed_forward : most;
    }
    inspect_line("layers", "%u: %u sliding, %u full; %u share keys and values", c->layers, sliding, c->layers - sliding,
                 shared);
    inspect_line("width", "%u", c->width);
    print_heads(c, true);
    print_heads(c, false);
    inspect_line("window", "%u", c->window);
    if (least == most) inspect_line("feed forward", "%u", most);
    else inspect_line("feed forward", "%u to %u", least, most);
    if (c->per_layer_width) inspect_line("per-layer embeddings", "%u wide", c->per_layer_width);
    else inspect_line("per-layer embeddings", "none");
    if (c->experts)
        inspect_line("experts", "%u, %u used per token, %u wide", c->experts, c->experts_used, c->expert_feed_forward);
    else inspect_line("experts", "none");
    inspect_line("context", "%u", c->context);
    inspect_line("vocabulary", "%u", c->vocabulary);
}

static void print_needs(const inspection *f) {
    char a[32], b[32], c[32];
    inspect_line("K/V per token, f16", "%" PRIu64 " bytes, plus %" PRIu64 " for each of the last %" PRIu64, f->kv.full,
                 f->kv.sliding, f->kv.window);
    format_bytes(kv_bytes_at(&f->kv, contexts[0]), a);
    format_bytes(kv_bytes_at(&f->kv, contexts[1]), b);
    format_bytes(kv_bytes_at(&f->kv, contexts[2]), c);
    inspect_line("K/V at 8k, 32k, 128k", "%s, %s, %s", a, b, c);
    inspect_line("  in a GPU's binding", "%" PRIu64 " tokens per 128 MiB, of all sessions together", f->kv.binding);
    if (f->kv.copies) {
        format_bytes(f->kv.copy, a);
        inspect_line("  to go back further", "up to %" PRIu64 " copies of the sliding layers' K/V, %s each",
                     f->kv.copies, a);
    }
    if (!f->runs) return;
    format_bytes(f->bytes_per_token, a);
    inspect_line("read per token", "%s of weights (%" PRIu64 " bytes)", a, f->bytes_per_token);
    inspect_print_gpu(f);
}

static void print_tower(const char *label, uint64_t bytes, str projector, uint64_t more) {
    char weights[32], run[32];
    if (!bytes) {
        inspect_line(label, "no");
        return;
    }
    format_bytes(bytes, weights);
    format_bytes(more, run);
    inspect_line(label, "yes%s%.*s, %s of weights%s%s%s", projector.length ? ", " : "", STR_ARGS(projector), weights,
                 more ? "; a picture of 280 tokens takes about " : "", more ? run : "", more ? " more" : "");
}

static void print_towers(const inspection *f) {
    if (!f->has_config && !f->vision && !f->audio) return;
    print_tower("vision tower", f->vision_bytes, f->projector_vision, f->picture_bytes);
    print_tower("audio tower", f->audio_bytes, f->projector_audio, 0);
}

static int print_metadata(const gguf *file) {
    printf("\nmetadata:\n");
    for (size_t i = 0; i < gguf_value_count(file); i++) {
        const gguf_value *value = gguf_value_at(file, i);
        buffer            text = { 0 };
        inspect_value(&text, value, 64);
        if (text.failed) return complain(EXIT_NO_DEVICE, "not enough memory to show the metadata");
        char key[100], shown[200];
        printf("  %s = %s%s\n", printable(value->key, key, sizeof key),
               printable(buffer_view(&text), shown, sizeof shown), text.length >= sizeof shown ? " …" : "");
        buffer_free(&text);
    }
    return EXIT_OK;
}

static void print_tensors(const gguf *file) {
    printf("\ntensors:\n");
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        char               name[100], shape[100];
        int                used = 0;
        for (uint32_t d = 0; d < t->dims; d++) {
            used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%" PRIu64, d ? ", " : "", t->ne[d]);
        }
        printf("  %-40s %-7s [%s] %" PRIu64 " bytes at %" PRIu64 "\n", printable(t->name, name, sizeof name),
               t->format->name, shape, t->bytes, t->offset);
    }
}

static int inspect_print_text(const inspection *f, bool tensors) {
    char bytes[32];
    format_bytes(gguf_file_bytes(f->file), bytes);
    inspect_line("file", "%s", f->path);
    inspect_line("format", "GGUF v%u, %s, %zu tensors, %zu keys", gguf_version(f->file), bytes,
                 gguf_tensor_count(f->file), gguf_value_count(f->file));
    if (gguf_parts(f->file) > 1) inspect_line("parts", "%u", gguf_parts(f->file));
    if (f->name.length) inspect_line("name", "%.*s", STR_ARGS(f->name));
    inspect_line("architecture", "%.*s", STR_ARGS(f->architecture));
    if (f->size_label.length) inspect_line("size", "%.*s", STR_ARGS(f->size_label));
    inspect_line("parameters", "%" PRIu64, f->parameters);
    if (f->file_type) inspect_line("file type", "%s", f->file_type);
    print_types(f);
    if (f->has_config) {
        print_config(&f->config);
        print_needs(f);
    }
    print_towers(f);
    if (f->problem.status != GM_OK) inspect_line("cannot run", "%s", f->problem.why);
    const int code = print_metadata(f->file);
    if (tensors) print_tensors(f->file);
    return code;
}

/* ---- as JSON ---- */

static void report_config(report *r, const model_config *c) {
    report_count(r, "layers", c->layers);
    report_count(r, "width", c->width);
    report_count(r, "window", c->window);
    report_count(r, "context", c->context);
    report_count(r, "vocabulary", c->vocabulary);
    report_count(r, "per_layer_width", c->per_layer_width);
    report_count(r, "experts", c->experts);
    report_count(r, "experts_used", c->experts_used);
    report_count(r, "expert_feed_forward", c->expert_feed_forward);
    report_number(r, "softcap", (double)c->softcap);
    report_open(r, "layer", '[');
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        report_open(r, NULL, '{');
        report_text(r, "kind", layer->sliding ? "sliding" : "full");
        report_count(r, "heads", layer->heads);
        report_count(r, "kv_heads", layer->kv_heads);
        report_count(r, "head", layer->head);
        report_count(r, "feed_forward", layer->feed_forward);
        report_count(r, "kv_from", layer->owns_kv ? i : layer->donor);
        report_close(r, '}');
    }
    report_close(r, ']');
}

static void report_needs(report *r, const inspection *f) {
    report_open(r, "kv_f16", '{');
    report_count(r, "bytes_per_token_full", f->kv.full);
    report_count(r, "bytes_per_token_sliding", f->kv.sliding);
    for (size_t i = 0; i < COUNT_OF(contexts); i++) {
        char key[32];
        snprintf(key, sizeof key, "bytes_at_%" PRIu64, contexts[i]);
        report_count(r, key, kv_bytes_at(&f->kv, contexts[i]));
    }
    report_count(r, "tokens_in_128_mib_binding", f->kv.binding);
    report_count(r, "ring_copy_bytes", f->kv.copy);
    report_count(r, "ring_copies", f->kv.copies);
    report_close(r, '}');
    if (f->runs) report_count(r, "bytes_per_token", f->bytes_per_token);
    else report_null(r, "bytes_per_token");
    if (f->runs) inspect_report_gpu(r, f);
}

static void report_types(report *r, const inspection *f) {
    report_open(r, "types", '{');
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        if (!f->types[type].tensors) continue;
        report_open(r, quant_format_of(type)->name, '{');
        report_count(r, "tensors", f->types[type].tensors);
        report_count(r, "bytes", f->types[type].bytes);
        report_close(r, '}');
    }
    report_close(r, '}');
}

/* Keys come from the file and may contain any bytes. */
static void report_metadata(report *r, const gguf *file) {
    buffer text = { 0 };
    buffer_char(&text, '{');
    for (size_t i = 0; i < gguf_value_count(file); i++) {
        if (i) buffer_char(&text, ',');
        json_write_string(&text, gguf_value_at(file, i)->key);
        buffer_char(&text, ':');
        inspect_value(&text, gguf_value_at(file, i), 64);
    }
    buffer_char(&text, '}');
    if (text.failed) r->text.failed = true;
    else report_json(r, "metadata", buffer_view(&text));
    buffer_free(&text);
}

static void report_tensors(report *r, const gguf *file) {
    report_open(r, "tensors", '[');
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        report_open(r, NULL, '{');
        report_str(r, "name", t->name);
        report_text(r, "type", t->format->name);
        report_open(r, "shape", '[');
        for (uint32_t d = 0; d < t->dims; d++) report_count(r, NULL, t->ne[d]);
        report_close(r, ']');
        report_count(r, "bytes", t->bytes);
        report_count(r, "offset", t->offset);
        report_count(r, "part", t->part);
        report_close(r, '}');
    }
    report_close(r, ']');
}

static int inspect_print_json(const inspection *f, bool tensors) {
    report r = { 0 };
    report_open(&r, NULL, '{');
    report_text(&r, "path", f->path);
    report_count(&r, "bytes", gguf_file_bytes(f->file));
    report_count(&r, "version", gguf_version(f->file));
    report_count(&r, "parts", gguf_parts(f->file));
    report_str(&r, "name", f->name);
    report_str(&r, "architecture", f->architecture);
    report_str(&r, "size_label", f->size_label);
    report_text(&r, "file_type", f->file_type);
    report_count(&r, "parameters", f->parameters);
    report_types(&r, f);
    report_bool(&r, "vision", f->vision);
    report_bool(&r, "audio", f->audio);
    report_count(&r, "vision_bytes", f->vision_bytes);
    report_count(&r, "audio_bytes", f->audio_bytes);
    report_count(&r, "picture_bytes", f->picture_bytes);
    report_bool(&r, "runs", f->runs);
    report_text(&r, "problem", f->problem.status != GM_OK ? f->problem.why : NULL);
    if (f->has_config) {
        report_open(&r, "config", '{');
        report_config(&r, &f->config);
        report_close(&r, '}');
        report_needs(&r, f);
    }
    report_metadata(&r, f->file);
    report_count(&r, "tensor_count", gguf_tensor_count(f->file));
    if (tensors) report_tensors(&r, f->file);
    report_close(&r, '}');
    return report_print(&r);
}

static int inspect_run(void *values, const arguments *args) {
    const inspect_values *v = values;
    arena                 memory = { 0 };
    error                 e = { 0 };
    model_argument        model;
    gguf                 *file = NULL;
    int                   code;
    const inspect_wishes  wishes = { .gpu_memory = v->gpu_memory.value,
                                     .context = v->context.value,
                                     .gpu_experts = (uint32_t)v->gpu_experts.value,
                                     .kv = (gm_kv_type)v->kv };
    gm_status             status = model_argument_resolve(args->positional[0], &memory, &model, &e);
    if (status == GM_OK) status = gguf_open_file(model.path, &file, &e);
    if (status != GM_OK) {
        code = complain_error(&e);
    } else {
        inspection found;
        if (inspect_file(model.path, file, &wishes, &memory, &found, &e)) code = complain_error(&e);
        else code = v->json ? inspect_print_json(&found, v->tensors) : inspect_print_text(&found, v->tensors);
        inspect_free(&found);
    }
    gguf_free(file);
    arena_free(&memory);
    return code;
}

const command command_inspect = {
    .name = "inspect",
    .arguments = "MODEL",
    .summary = "show what is in a GGUF file",
    .description =
        "Prints the architecture and its sizes, the number of tensors of each type, the memory that keys and values "
        "need per token and for contexts of 8k, 32k and 128k tokens, the weights read per decoded token, what a GPU "
        "would hold and what would stay in main memory, whether there are vision and audio towers, and all metadata "
        "(for long arrays, the length). Works on any GGUF file: models, projectors, adapters, expectations, saved "
        "chats. If a model cannot run, says why.",
    .examples = "  gemmule inspect gemma4:e2b\n"
                "  gemmule inspect model.gguf --tensors\n"
                "  gemmule inspect model.gguf --gpu-memory 4G --ctx 32768 --kv q8_0\n"
                "  gemmule inspect model.gguf --json | jq .kv_f16\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 1,
    .most = 1,
    .values_size = sizeof(inspect_values),
    .run = inspect_run,
};
