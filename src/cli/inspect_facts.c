/* Examines a GGUF file: types, towers, and what a Gemma 4 needs to run. */

#include "cli/inspect.h"

#include "model/towers.h"
#include "session/tower.h"
#include "session/kv.h"

#include <inttypes.h>

/* general.file_type is only a label; the tensors' own types count. */
static const struct {
    uint32_t    number;
    const char *name;
} file_types[] = {
    { 0, "F32" },     { 1, "F16" },     { 2, "Q4_0" },    { 3, "Q4_1" },    { 7, "Q8_0" },
    { 8, "Q5_0" },    { 9, "Q5_1" },    { 10, "Q2_K" },   { 11, "Q3_K_S" }, { 12, "Q3_K_M" },
    { 13, "Q3_K_L" }, { 14, "Q4_K_S" }, { 15, "Q4_K_M" }, { 16, "Q5_K_S" }, { 17, "Q5_K_M" },
    { 18, "Q6_K" },   { 25, "IQ4_NL" }, { 30, "IQ4_XS" }, { 32, "BF16" },   { 38, "MXFP4" },
};

static const char *file_type_name(const gguf *file) {
    uint32_t number = 0;
    bool     found = false;
    error    ignored = { 0 };
    if (gguf_get_u32(file, "general.file_type", &number, &found, &ignored) != GM_OK || !found) return NULL;
    for (size_t i = 0; i < COUNT_OF(file_types); i++) {
        if (file_types[i].number == number) return file_types[i].name;
    }
    return NULL;
}

/* The string under a key; empty if it is absent or not a string. */
static str file_text(const gguf *file, const char *key) {
    str   text = { "", 0 };
    bool  found = false;
    error ignored = { 0 };
    if (gguf_get_str(file, key, &text, &found, &ignored) != GM_OK) return (str){ "", 0 };
    return text;
}

static void count_tensors(inspection *out) {
    for (size_t i = 0; i < gguf_tensor_count(out->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(out->file, i);
        out->types[t->type].tensors++;
        out->types[t->type].bytes += t->bytes;
        out->parameters += t->count;
        if (model_part_of(t->name) == PART_VISION) out->vision_bytes += t->bytes;
        if (model_part_of(t->name) == PART_AUDIO) out->audio_bytes += t->bytes;
    }
}

/* A projector does not say which text model it is for: the tower's own width will do. A tower that cannot be used is a finding. */
static gm_status inspect_towers(inspection *out, error *e) {
    const gguf_tensor *projection = gguf_find_tensor(out->file, "mm.input_projection.weight");
    vision_weights     w;
    error              problem = { 0 };
    out->vision = out->vision_bytes > 0;
    out->audio = out->audio_bytes > 0;
    if (!projection) return GM_OK;
    const gm_status status = vision_shapes(out->file, (uint32_t)projection->ne[1], &w, &problem);
    if (status) return status == GM_NO_MEMORY ? fail(e, status, "%s", problem.why) : GM_OK;
    out->picture_bytes = vision_run_bytes(&w.config, 280);
    vision_free(&w);
    return GM_OK;
}

static kv_size measure_kv(const model_config *config) {
    kv_size kv = { .window = config->window };
    for (uint32_t i = 0; i < config->layers; i++) {
        const layer_config *layer = &config->layer[i];
        const uint64_t      bytes = 2 /* keys and values */ * 2 /* f16 */ * (uint64_t)layer->kv_heads * layer->head;
        if (!layer->owns_kv) continue;
        if (layer->sliding) kv.sliding += bytes;
        else kv.full += bytes;
    }
    kv.binding = kv_binding_positions(config, 128 << 20, TYPE_F16);
    kv.copy = kv_mark_bytes(config, TYPE_F16, true);
    if (kv.copy) kv.copies = kv_mark_budget(config, TYPE_F16, true) / kv.copy;
    return kv;
}

uint64_t kv_bytes_at(const kv_size *kv, uint64_t tokens) {
    return kv->full * tokens + kv->sliding * (tokens < kv->window ? tokens : kv->window);
}

static void plan_gpu(const model *m, const inspect_wishes *wishes, inspection *out) {
    enum { DEFAULT_CONTEXT = 8192 };
    static const quant_type types[] = {
        [GM_KV_DEFAULT] = TYPE_F16, [GM_KV_F16] = TYPE_F16, [GM_KV_F32] = TYPE_F32, [GM_KV_Q8_0] = TYPE_Q8_0
    };
    graph        g;
    canvas_graph canvas = { 0 };
    out->context = wishes->context ? wishes->context : min_size(m->config.context, DEFAULT_CONTEXT);
    out->kv_type = types[wishes->kv];
    if (model_text_graph(m, NULL, &g, &out->gpu_problem)) return;
    const bool writes_canvases = m->config.canvas.length;
    if (!writes_canvases || !model_canvas_graph(m, false, &canvas, &out->gpu_problem))
        gpu_memory_plan(&g, writes_canvases ? &canvas.g : NULL, &m->config, out->kv_type, out->context,
                        towers_bytes(out->file, NULL, m->config.width), wishes->gpu_memory, wishes->gpu_experts, NULL,
                        &out->gpu, &out->gpu_problem);
    graph_free(&canvas.g);
    graph_free(&g);
}

void inspect_free(inspection *f) { gpu_budget_free(&f->gpu); }

static void inspect_model(const inspect_wishes *wishes, arena *a, inspection *out) {
    out->has_config = model_config_read(out->file, a, &out->config, &out->problem) == GM_OK;
    if (!out->has_config) return;
    out->kv = measure_kv(&out->config);
    model m;
    out->runs = model_load(out->file, &m, &out->problem) == GM_OK;
    if (!out->runs) return;
    out->bytes_per_token = m.bytes_per_token;
    plan_gpu(&m, wishes, out);
    model_free(&m);
}

gm_status inspect_file(const char *path, const gguf *file, const inspect_wishes *wishes, arena *a, inspection *out,
                       error *e) {
    *out = (inspection){ .path = path, .file = file };
    out->name = file_text(file, "general.name");
    out->architecture = file_text(file, "general.architecture");
    out->size_label = file_text(file, "general.size_label");
    out->projector_vision = file_text(file, "clip.vision.projector_type");
    out->projector_audio = file_text(file, "clip.audio.projector_type");
    out->file_type = file_type_name(file);
    count_tensors(out);
    TRY(inspect_towers(out, e));
    if (!str_is(out->architecture, "gemma4") && !str_is(out->architecture, "diffusion-gemma")) return GM_OK;
    inspect_model(wishes, a, out);
    if (out->problem.status == GM_NO_MEMORY) return fail(e, GM_NO_MEMORY, "%s", out->problem.why);
    /* A budget that is too small is a finding. Too little main memory is not. */
    if (out->gpu_problem.status == GM_NO_MEMORY && !out->gpu.total)
        return fail(e, GM_NO_MEMORY, "%s", out->gpu_problem.why);
    return GM_OK;
}

/* ---- metadata ---- */

static const char *const type_names[] = { "u8s",   "i8s",     "u16s",   "i16s", "u32s", "i32s", "f32s",
                                          "bools", "strings", "arrays", "u64s", "i64s", "f64s" };

static void write_item(buffer *out, const gguf_value *value, uint64_t i) {
    int64_t integer;
    double  number;
    if (value->type == GGUF_BOOL && gguf_item_integer(value, i, &integer)) buffer_text(out, integer ? "true" : "false");
    else if (value->type == GGUF_F32 && gguf_item_float(value, i, &number)) buffer_printf(out, "%.7g", number);
    else if (value->type == GGUF_F64 && gguf_item_float(value, i, &number)) json_write_number(out, number);
    else if (gguf_item_integer(value, i, &integer)) buffer_printf(out, "%" PRId64, integer);
    else buffer_text(out, "null");
}

void inspect_value(buffer *out, const gguf_value *value, uint64_t most) {
    const uint8_t *cursor = value->data;
    if (value->array && (value->count > most || value->type == GGUF_ARRAY)) {
        const char *what = (size_t)value->type < COUNT_OF(type_names) ? type_names[value->type] : "items";
        buffer_printf(out, "\"[%" PRIu64 " %s]\"", value->count, what);
        return;
    }
    if (value->array) buffer_char(out, '[');
    for (uint64_t i = 0; i < value->count; i++) {
        if (i) buffer_char(out, ',');
        if (value->type == GGUF_STRING) json_write_string(out, gguf_next_string(&cursor));
        else write_item(out, value, i);
    }
    if (value->array) buffer_char(out, ']');
}
