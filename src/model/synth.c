/* Writes a model with random weights: metadata, then tensors. */

#include "model/synth.h"

#include "base/new_file.h"
#include "model/synth_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* bytes generated at a time */

/* ---- metadata ---- */

static uint64_t parameter_count(const synth_tensor *tensors, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += tensors[i].fill == FILL_ROPE ? 0 : tensors[i].info.count;
    return sum;
}

static const char *synth_architecture(const synth_plan *plan) {
    return plan->size->canvas ? "diffusion-gemma" : "gemma4";
}

/* A key of the architecture. */
typedef struct {
    char text[80];
} synth_key;

static const char *key_of_shape(synth_key *k, const synth_plan *plan, const char *name) {
    snprintf(k->text, sizeof k->text, "%s.%s", synth_architecture(plan), name);
    return k->text;
}

static void write_general(const synth_plan *plan, uint64_t parameters, gguf_writer *w) {
    char      name[64];
    const int length = snprintf(name, sizeof name, "Gemma 4 %s, random weights", plan->size->label);
    gguf_write_str(w, "general.architecture", str_of(synth_architecture(plan)));
    gguf_write_str(w, "general.type", str_of("model"));
    gguf_write_str(w, "general.name", (str){ name, (size_t)length });
    gguf_write_str(w, "general.size_label", str_of(plan->size->label));
    gguf_write_u32(w, "general.file_type", plan->quant->file_type);
    gguf_write_u32(w, "general.quantization_version", 2);
    if (plan->ollama) {
        gguf_write_u64(w, "general.parameter_count", parameters);
    } else {
        gguf_write_i32(w, "general.sampling.top_k", 64);
        gguf_write_f32(w, "general.sampling.top_p", 0.95f);
        gguf_write_f32(w, "general.sampling.temp", 1.0f);
    }
}

/* Writes one number if all layers agree, otherwise one per layer. */
static void write_per_layer(gguf_writer *w, const char *key, const int32_t *values, uint32_t layers) {
    uint32_t equal = 1;
    while (equal < layers && values[equal] == values[0]) equal++;
    if (equal == layers) gguf_write_u32(w, key, (uint32_t)values[0]);
    else gguf_write_array(w, key, GGUF_I32, values, layers);
}

/* Keys of diffusion have no prefix. */
static void write_canvas(const synth_plan *plan, gguf_writer *w) {
    gguf_write_bool(w, "diffusion-gemma.attention.causal", false);
    gguf_write_u32(w, "diffusion.canvas_length", plan->size->canvas);
    gguf_write_u32(w, "diffusion.eb_max_steps", 48);
    gguf_write_f32(w, "diffusion.eb_t_min", 0.4f);
    gguf_write_f32(w, "diffusion.eb_t_max", 0.8f);
    gguf_write_f32(w, "diffusion.eb_entropy_bound", 0.1f);
    gguf_write_u32(w, "diffusion.eb_stability_threshold", 1);
    gguf_write_f32(w, "diffusion.eb_confidence_threshold", 0.005f);
}

static void write_layers(const synth_plan *plan, gguf_writer *w) {
    enum { MOST = 64 };
    int32_t   feed_forward[MOST], kv_heads[MOST];
    uint8_t   sliding[MOST];
    synth_key k;
    for (uint32_t i = 0; i < plan->layers && i < MOST; i++) {
        const bool full = synth_layer_is_full(plan, i);
        feed_forward[i] = (int32_t)synth_feed_forward(plan, i);
        kv_heads[i] = (int32_t)(full ? plan->size->kv_heads_full : plan->size->kv_heads_sliding);
        sliding[i] = !full;
    }
    write_per_layer(w, key_of_shape(&k, plan, "feed_forward_length"), feed_forward, plan->layers);
    write_per_layer(w, key_of_shape(&k, plan, "attention.head_count_kv"), kv_heads, plan->layers);
    gguf_write_array(w, key_of_shape(&k, plan, "attention.sliding_window_pattern"), GGUF_BOOL, sliding, plan->layers);
}

static void write_shape(const synth_plan *plan, gguf_writer *w) {
    const synth_size *size = plan->size;
    synth_key         k;
    const struct {
        const char *key;
        uint32_t    value;
    } numbers[] = {
        { "block_count", plan->layers },
        { "context_length", size->context },
        { "embedding_length", size->width },
        { "attention.head_count", size->heads },
        { "attention.key_length", 512 },
        { "attention.value_length", 512 },
        { "attention.key_length_swa", 256 },
        { "attention.value_length_swa", 256 },
        { "attention.sliding_window", plan->window },
        { "attention.shared_kv_layers", plan->sharing },
        { "rope.dimension_count", 512 },
        { "rope.dimension_count_swa", 256 },
        { "embedding_length_per_layer_input", size->per_layer },
    };
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        gguf_write_u32(w, key_of_shape(&k, plan, numbers[i].key), numbers[i].value);
    write_layers(plan, w);
    gguf_write_f32(w, key_of_shape(&k, plan, "attention.layer_norm_rms_epsilon"), 1e-6f);
    gguf_write_f32(w, key_of_shape(&k, plan, "rope.freq_base"), 1e6f);
    gguf_write_f32(w, key_of_shape(&k, plan, "rope.freq_base_swa"), 1e4f);
    gguf_write_f32(w, key_of_shape(&k, plan, "final_logit_softcapping"), 30);
    if (size->canvas) write_canvas(plan, w);
    if (!size->experts) return;
    gguf_write_u32(w, key_of_shape(&k, plan, "expert_count"), size->experts);
    gguf_write_u32(w, key_of_shape(&k, plan, "expert_used_count"), size->experts_used);
    gguf_write_u32(w, key_of_shape(&k, plan, "expert_feed_forward_length"), size->expert_feed_forward);
}

/* ---- the file ---- */

typedef struct {
    new_file      *file;
    uint64_t       done, total;
    bool           stopped; /* by `progress` */
    synth_progress progress;
    void          *user;
} output;

static bool output_write(void *user, const void *data, size_t length) {
    output *o = user;
    if (!new_file_write(o->file, data, length)) return false;
    o->done += length;
    if (o->progress && o->total && !o->progress(o->user, o->done, o->total)) o->stopped = true;
    return !o->stopped;
}

static gm_status write_data(const synth_plan *plan, const synth_tensor *tensor, uint64_t index, uint8_t *chunk,
                            gguf_writer *w, error *e) {
    const quant_format *format = tensor->info.format;
    const uint64_t      most = CHUNK / format->bytes * format->block;
    synth_random        random;
    synth_random_start(&random, plan->seed, index + 1);
    for (uint64_t first = 0; first < tensor->info.count;) {
        const uint64_t count = tensor->info.count - first < most ? tensor->info.count - first : most;
        synth_fill_data(&random, tensor, chunk, first, count);
        const gm_status status = gguf_writer_data(w, chunk, quant_row_bytes(format, count), e);
        if (status != GM_OK) return status;
        first += count;
    }
    return GM_OK;
}

typedef struct {
    const synth_plan   *plan;
    const synth_tensor *tensors;
    size_t              count;
    bool                projector;
} synth_content;

static gm_status write_keys(const synth_content *c, gguf_writer *w, error *e) {
    if (c->projector) {
        synth_write_projector_keys(c->plan, w);
        return GM_OK;
    }
    write_general(c->plan, parameter_count(c->tensors, c->count), w);
    write_shape(c->plan, w);
    if (c->plan->towers && c->plan->ollama) synth_write_tower_keys(c->plan, w);
    return synth_write_vocabulary(c->plan, w, e);
}

static gm_status synth_write_content(const synth_content *c, gguf_writer *w, output *o, error *e) {
    TRY(write_keys(c, w, e));
    for (size_t i = 0; i < c->count; i++) {
        char      name[64];
        const str from = c->tensors[i].info.name;
        snprintf(name, sizeof name, "%.*s", STR_ARGS(from));
        gguf_write_tensor(w, name, c->tensors[i].info.type, c->tensors[i].info.dims, c->tensors[i].info.ne);
    }
    uint8_t *chunk = malloc(CHUNK);
    if (!chunk) return fail_memory(e, "a chunk of the file", CHUNK);
    gm_status status = gguf_writer_head(w, output_write, o, e);
    o->total = gguf_writer_size(w);
    for (size_t i = 0; i < c->count && status == GM_OK; i++)
        status = write_data(c->plan, &c->tensors[i], i, chunk, w, e);
    if (status == GM_OK) status = gguf_writer_end(w, e);
    free(chunk);
    return status;
}

static gm_status synth_write_file(const synth_content *c, const char *path, synth_progress progress, void *user,
                                  error *e) {
    output       o = { .progress = progress, .user = user };
    gguf_writer *w = NULL;
    error        problem = { 0 };
    TRY(gguf_writer_new(&w, e));
    gm_status status = new_file_open(path, NEW_FILE_BULK, &o.file, e);
    if (!status) {
        synth_write_content(c, w, &o, &problem);
        if (o.stopped) { /* the writer only knows that its sink failed */
            problem = (error){ 0 };
            fail(&problem, GM_CANCELLED, "stopped after %llu bytes", (unsigned long long)o.done);
        }
        status = new_file_end(o.file, &problem, e);
    }
    gguf_writer_free(w);
    return status;
}

const char *synth_projector_path(const char *path, arena *a) {
    static const char end[] = ".gguf", middle[] = ".mmproj";
    const size_t      length = strlen(path), cut = str_ends_with(str_of(path), end) ? length - strlen(end) : length;
    char             *out = arena_alloc(a, length + sizeof middle + sizeof end);
    if (out) snprintf(out, length + sizeof middle + sizeof end, "%.*s%s%s", (int)cut, path, middle, end);
    return out;
}

static gm_status synth_write_projector(const synth_plan *plan, const char *path, synth_progress progress, void *user,
                                       arena *a, error *e) {
    const char   *beside = synth_projector_path(path, a);
    synth_tensor *tensors = NULL;
    size_t        count = 0;
    if (!beside) return fail_memory(e, "a path", strlen(path));
    TRY(synth_list_projector(plan, a, &tensors, &count, e));
    return synth_write_file(&(synth_content){ plan, tensors, count, true }, beside, progress, user, e);
}

gm_status synth_write(const synth_options *options, const char *path, synth_progress progress, void *user, error *e) {
    arena         memory = { 0 };
    synth_plan    plan;
    synth_tensor *tensors = NULL;
    size_t        count = 0;
    gm_status     status = synth_plan_make(options, &plan, e);
    if (status == GM_OK) status = synth_list_tensors(&plan, &memory, &tensors, &count, e);
    if (status == GM_OK)
        status = synth_write_file(&(synth_content){ &plan, tensors, count, false }, path, progress, user, e);
    if (status == GM_OK && plan.towers && !plan.ollama)
        status = synth_write_projector(&plan, path, progress, user, &memory, e);
    arena_free(&memory);
    return status;
}
