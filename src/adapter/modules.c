/* The table of modules, and both ways through it. */

#include "adapter/modules.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *path;    /* NULL: PEFT has none */
    const char *tensor;  /* without ".weight" */
    const char *ollama;  /* the tensor's name in Ollama's files, if it differs */
    bool        clipped; /* the linear is inside a module that clips: its path ends with ".linear" */
} module_row;

static const module_row table_rows[] = {
    { "embed_tokens", "token_embd", NULL, false },
    { "per_layer_model_projection", "per_layer_model_proj", NULL, false },
};
static const module_row layer_rows[] = {
    { "self_attn.q_proj", "attn_q", NULL, false },
    { "self_attn.k_proj", "attn_k", NULL, false },
    { "self_attn.v_proj", "attn_v", NULL, false },
    { "self_attn.o_proj", "attn_output", NULL, false },
    { "mlp.gate_proj", "ffn_gate", NULL, false },
    { "mlp.up_proj", "ffn_up", NULL, false },
    { "mlp.down_proj", "ffn_down", NULL, false },
    { "per_layer_input_gate", "inp_gate", NULL, false },
    { "per_layer_projection", "proj", NULL, false },
    { "router.proj", "ffn_gate_inp", NULL, false },
    { NULL, "ffn_gate_up_exps", NULL, false },
    { NULL, "ffn_gate_exps", NULL, false },
    { NULL, "ffn_up_exps", NULL, false },
    { NULL, "ffn_down_exps", NULL, false },
};
static const module_row head_rows[] = { { "lm_head", "output", NULL, false } };
static const module_row vision_rows[] = {
    { "self_attn.q_proj", "attn_q", NULL, true }, { "self_attn.k_proj", "attn_k", NULL, true },
    { "self_attn.v_proj", "attn_v", NULL, true }, { "self_attn.o_proj", "attn_out", NULL, true },
    { "mlp.gate_proj", "ffn_gate", NULL, true },  { "mlp.up_proj", "ffn_up", NULL, true },
    { "mlp.down_proj", "ffn_down", NULL, true },
};
static const module_row vision_ends[] = { { "embed_vision.embedding_projection", "mm.input_projection", NULL, false } };
static const module_row audio_rows[] = {
    { "feed_forward1.ffw_layer_1", "ffn_up", NULL, true },
    { "feed_forward1.ffw_layer_2", "ffn_down", NULL, true },
    { "self_attn.q_proj", "attn_q", NULL, true },
    { "self_attn.k_proj", "attn_k", NULL, true },
    { "self_attn.v_proj", "attn_v", NULL, true },
    { "self_attn.post", "attn_out", NULL, true },
    { "self_attn.relative_k_proj", "attn_k_rel", "linear_pos", false },
    { "lconv1d.linear_start", "conv_pw1", NULL, true },
    { "lconv1d.linear_end", "conv_pw2", NULL, true },
    { "feed_forward2.ffw_layer_1", "ffn_up_1", NULL, true },
    { "feed_forward2.ffw_layer_2", "ffn_down_1", NULL, true },
};
static const module_row audio_ends[] = {
    { "audio_tower.subsample_conv_projection.input_proj_linear", "a.input_projection", "a.pre_encode.out", false },
    { "audio_tower.output_proj", "a.pre_encode.out", "mm.a.fc", false },
    { "embed_audio.embedding_projection", "mm.a.input_projection", NULL, false },
};

enum { GROUP_TABLES, GROUP_LAYERS, GROUP_HEAD, GROUP_VISION, GROUP_VISION_ENDS, GROUP_AUDIO, GROUP_AUDIO_ENDS, GROUPS };

/* A group with layers has their number behind both prefixes. */
static const struct {
    const char       *path, *tensor;
    const module_row *rows;
    uint8_t           count;
    bool              layers;
} groups[GROUPS] = {
    [GROUP_TABLES] = { "", "", table_rows, COUNT_OF(table_rows), false },
    [GROUP_LAYERS] = { "layers.", "blk.", layer_rows, COUNT_OF(layer_rows), true },
    [GROUP_HEAD] = { "", "", head_rows, COUNT_OF(head_rows), false },
    [GROUP_VISION] = { "vision_tower.encoder.layers.", "v.blk.", vision_rows, COUNT_OF(vision_rows), true },
    [GROUP_VISION_ENDS] = { "", "", vision_ends, COUNT_OF(vision_ends), false },
    [GROUP_AUDIO] = { "audio_tower.layers.", "a.blk.", audio_rows, COUNT_OF(audio_rows), true },
    [GROUP_AUDIO_ENDS] = { "", "", audio_ends, COUNT_OF(audio_ends), false },
};

static const module_row *module_row_of(module_id m) { return &groups[m.group].rows[m.row]; }

static str str_after(str text, size_t n) { return (str){ text.data + n, text.length - n }; }

/* "12." at the start: the number, without leading zeros, and the rest. */
static bool take_layer(str *text, uint32_t *layer) {
    size_t digits = 0;
    *layer = 0;
    while (digits < text->length && digits < 5 && text->data[digits] >= '0' && text->data[digits] <= '9')
        *layer = *layer * 10 + (uint32_t)(text->data[digits++] - '0');
    if (!digits || digits > 4 || (digits > 1 && text->data[0] == '0')) return false;
    if (digits == text->length || text->data[digits] != '.') return false;
    *text = str_after(*text, digits + 1);
    return true;
}

static str without_end(str text, const char *end) {
    if (str_ends_with(text, end)) text.length -= strlen(end);
    return text;
}

static bool module_find(str name, bool path, module_id *out) {
    for (uint8_t g = 0; g < GROUPS; g++) {
        const char *prefix = path ? groups[g].path : groups[g].tensor;
        module_id   m = { .group = g };
        if (!str_starts_with(name, prefix)) continue;
        str rest = str_after(name, strlen(prefix));
        if (groups[g].layers && !take_layer(&rest, &m.layer)) continue;
        for (; m.row < groups[g].count; m.row++) {
            const module_row *row = module_row_of(m);
            const char       *known = path ? row->path : row->tensor;
            if (!known || !str_is(path && row->clipped ? without_end(rest, ".linear") : rest, known)) continue;
            *out = m;
            return true;
        }
    }
    return false;
}

bool module_of_path(str path, module_id *out, str *prefix) {
    static const char *const outer[] = { "model.", "language_model." };
    str                      rest = path;
    for (size_t i = 0; i < COUNT_OF(outer);) {
        if (!str_starts_with(rest, outer[i])) {
            i++;
            continue;
        }
        rest = str_after(rest, strlen(outer[i]));
        i = 0;
    }
    if (!module_find(rest, true, out)) return false;
    if (out->group == GROUP_LAYERS || out->group == GROUP_TABLES)
        *prefix = (str){ path.data, path.length - rest.length };
    return true;
}

bool module_of_tensor(str name, module_id *out) {
    return str_ends_with(name, ".weight") && module_find(without_end(name, ".weight"), false, out);
}

static void module_name(module_id m, const char *name, char out[MODULE_NAME]) {
    if (groups[m.group].layers)
        snprintf(out, MODULE_NAME, "%s%u.%s.weight", groups[m.group].tensor, (unsigned)(m.layer % 10000), name);
    else snprintf(out, MODULE_NAME, "%s.weight", name);
}

void module_tensor(module_id m, char out[MODULE_NAME]) { module_name(m, module_row_of(m)->tensor, out); }

const char *module_inline_tensor(module_id m, char out[MODULE_NAME]) {
    if (!module_row_of(m)->ollama) return NULL;
    module_name(m, module_row_of(m)->ollama, out);
    return out;
}

bool module_path(module_id m, str prefix, buffer *out) {
    const module_row *row = module_row_of(m);
    if (!row->path) return false;
    if (m.group == GROUP_LAYERS || m.group == GROUP_TABLES) buffer_str(out, prefix);
    else if (module_is_tower(m)) buffer_text(out, "model.");
    buffer_text(out, groups[m.group].path);
    if (groups[m.group].layers) buffer_printf(out, "%u.", m.layer);
    buffer_text(out, row->path);
    if (row->clipped) buffer_text(out, ".linear");
    return true;
}

int module_compare(module_id a, module_id b) {
    if (a.group != b.group) return a.group < b.group ? -1 : 1;
    if (a.layer != b.layer) return a.layer < b.layer ? -1 : 1;
    return a.row == b.row ? 0 : a.row < b.row ? -1 : 1;
}

bool module_is_embedding(module_id m) { return m.group == GROUP_TABLES && m.row == 0; }

bool module_is_head(module_id m) { return m.group == GROUP_HEAD; }

bool module_is_tower(module_id m) { return m.group > GROUP_HEAD; }

bool module_has_experts(module_id m) { return str_ends_with(str_of(module_row_of(m)->tensor), "_exps"); }
