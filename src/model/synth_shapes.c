/* The tensors of the released models, with their shapes and types. */

#include "model/synth_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
static const synth_size sizes[] = {
    { .name = "e2b", .label = "E2B", .width = 1536, .layers = 35, .period = 5, .heads = 8, .kv_heads_sliding = 1,
      .kv_heads_full = 1, .window = 512, .context = 131072, .feed_forward = 6144, .feed_forward_sharing = 12288, .sharing = 20,
      .per_layer = 256 },
    { .name = "e4b", .label = "E4B", .width = 2560, .layers = 42, .period = 6, .heads = 8, .kv_heads_sliding = 2,
      .kv_heads_full = 2, .window = 512, .context = 131072, .feed_forward = 10240, .feed_forward_sharing = 10240, .sharing = 18,
      .per_layer = 256 },
    { .name = "12b", .label = "12B", .width = 3840, .layers = 48, .period = 6, .heads = 16, .kv_heads_sliding = 8,
      .kv_heads_full = 1, .window = 1024, .context = 262144, .feed_forward = 15360, .feed_forward_sharing = 15360,
      .keys_are_values = true, .suppresses = true },
    { .name = "26b", .label = "26B-A4B", .width = 2816, .layers = 30, .period = 6, .heads = 16, .kv_heads_sliding = 8,
      .kv_heads_full = 2, .window = 1024, .context = 262144, .feed_forward = 2112, .feed_forward_sharing = 2112, .experts = 128,
      .experts_used = 8, .expert_feed_forward = 704, .keys_are_values = true },
    { .name = "31b", .label = "31B", .width = 5376, .layers = 60, .period = 6, .heads = 32, .kv_heads_sliding = 16,
      .kv_heads_full = 4, .window = 1024, .context = 262144, .feed_forward = 21504, .feed_forward_sharing = 21504,
      .keys_are_values = true },
    { .name = "diffusion", .label = "diffusion-26B-A4B", .width = 2816, .layers = 30, .period = 6, .heads = 16, .kv_heads_sliding = 8,
      .kv_heads_full = 2, .window = 1024, .context = 262144, .feed_forward = 2112, .feed_forward_sharing = 2112, .experts = 128,
      .experts_used = 8, .expert_feed_forward = 704, .keys_are_values = true, .canvas = 256 },
};
/* clang-format on */

static const synth_quant quants[] = {
    { "q4_k_m", 15, TYPE_Q4_K, TYPE_Q6_K, TYPE_Q6_K },
    { "q4_0", 2, TYPE_Q4_0, TYPE_Q4_0, TYPE_Q6_K },
    { "q8_0", 7, TYPE_Q8_0, TYPE_Q8_0, TYPE_Q8_0 },
    { "f16", 1, TYPE_F16, TYPE_F16, TYPE_F16 },
};

/* ---- from options to a plan ---- */

enum { LEAST_VOCABULARY = 512 }; /* the special tokens and the bytes, rounded up */

static const synth_size *find_size(const char *name) {
    for (size_t i = 0; name && i < COUNT_OF(sizes); i++)
        if (strcmp(sizes[i].name, name) == 0) return &sizes[i];
    return NULL;
}

static const synth_quant *find_quant(const char *name) {
    for (size_t i = 0; i < COUNT_OF(quants); i++)
        if (strcmp(quants[i].name, name) == 0) return &quants[i];
    return NULL;
}

/* How many of the remaining layers share K/V. A sharing layer uses the last owner of its own kind, and loaders expect the owners to
 * end with a sliding layer and then a full one. So the owners are whole periods: about the same fraction of the layers as in the
 * full model, and at least one period. If that leaves no layer over, none shares. */
static uint32_t scaled_sharing(const synth_size *size, uint32_t layers) {
    if (size->sharing == 0 || layers == size->layers) return size->sharing;
    const uint32_t owners = size->layers - size->sharing, unit = size->period * size->layers;
    const uint32_t periods = (layers * owners + unit / 2) / unit, kept = (periods ? periods : 1) * size->period;
    return kept < layers ? layers - kept : 0;
}

gm_status synth_plan_make(const synth_options *options, synth_plan *plan, error *e) {
    const char *quant = options->quant ? options->quant : "q4_k_m",
               *flavour = options->flavour ? options->flavour : "llama.cpp";
    *plan = (synth_plan){
        .size = find_size(options->size), .quant = find_quant(quant), .towers = options->towers, .seed = options->seed
    };
    if (!plan->size) {
        fail(e, GM_BAD_ARGUMENT, "unknown size '%s': choose e2b, e4b, 12b, 26b, 31b or diffusion",
             options->size ? options->size : "");
        return GM_BAD_ARGUMENT;
    }
    if (!plan->quant)
        return fail(e, GM_BAD_ARGUMENT, "unknown quantisation '%s': choose q4_k_m, q4_0, q8_0 or f16", quant);
    plan->ollama = strcmp(flavour, "ollama") == 0;
    if (!plan->ollama && strcmp(flavour, "llama.cpp") != 0)
        return fail(e, GM_BAD_ARGUMENT, "unknown flavour '%s': choose llama.cpp or ollama", flavour);
    if (plan->ollama && plan->size->canvas)
        return fail(e, GM_BAD_ARGUMENT, "Ollama has no diffusion models: choose the flavour llama.cpp");
    if (options->layers != 0 && (options->layers < 2 || options->layers > (int)plan->size->layers))
        return fail(e, GM_BAD_ARGUMENT, "%s can have 2 to %u layers, not %d", plan->size->name, plan->size->layers,
                    options->layers);
    if (options->vocabulary != 0 && (options->vocabulary < LEAST_VOCABULARY || options->vocabulary > SYNTH_VOCABULARY))
        return fail(e, GM_BAD_ARGUMENT, "the vocabulary can have %d to %d tokens, not %d", LEAST_VOCABULARY,
                    SYNTH_VOCABULARY, options->vocabulary);
    if (options->window < 0 || options->window > (int)plan->size->window)
        return fail(e, GM_BAD_ARGUMENT, "the window of %s can have 1 to %u positions, not %d", plan->size->name,
                    plan->size->window, options->window);
    plan->vocabulary = options->vocabulary ? (uint32_t)options->vocabulary : SYNTH_VOCABULARY;
    plan->window = options->window ? (uint32_t)options->window : plan->size->window;
    plan->skewed = options->skewed;
    plan->layers = options->layers ? (uint32_t)options->layers : plan->size->layers;
    plan->sharing = scaled_sharing(plan->size, plan->layers);
    return GM_OK;
}

bool synth_layer_is_full(const synth_plan *plan, uint32_t layer) {
    return layer % plan->size->period == plan->size->period - 1 || layer == plan->layers - 1;
}

uint32_t synth_feed_forward(const synth_plan *plan, uint32_t layer) {
    return layer < plan->layers - plan->sharing ? plan->size->feed_forward : plan->size->feed_forward_sharing;
}

/* ---- types ---- */

/* Falls back to blocks of 32 where rows are not a multiple of 256. */
static quant_type fitting_type(quant_type type, uint64_t row) {
    const quant_format *format = quant_format_of(type);
    if (!format || row % format->block == 0) return type;
    return type == TYPE_Q4_K ? TYPE_Q5_0 : type == TYPE_Q6_K ? TYPE_Q8_0 : TYPE_F16;
}

/* Whether tensor n of `count` of its kind gets the better type: the first and last eighth, and every third in between. */
static bool is_important(uint32_t n, uint32_t count) {
    return n < count / 8 || n >= 7 * count / 8 || (n - count / 8) % 3 == 2;
}

/* ---- the list ---- */

enum { TOWER_TENSORS = 2048 }; /* more than any tower has */

gm_status synth_list_new(const synth_plan *plan, size_t capacity, arena *a, synth_list *out, error *e) {
    *out = (synth_list){ .plan = plan, .memory = a, .capacity = capacity };
    out->items = arena_array(a, capacity, sizeof *out->items);
    return out->items ? GM_OK : fail_memory(e, "the list of tensors", capacity * sizeof *out->items);
}

void synth_list_add(synth_list *list, synth_fill fill, quant_type type, const uint64_t ne[4], const char *name) {
    const quant_format *of = quant_format_of(type);
    char               *copy = arena_copy(list->memory, str_of(name));
    if (!copy || !of || list->count == list->capacity) {
        list->failed = true;
        return;
    }
    gguf_tensor t = { .name = str_of(copy), .type = type, .format = of, .count = 1 };
    for (size_t i = 0; i < 4; i++) {
        if (ne[i]) t.dims = (uint32_t)i + 1;
        t.ne[i] = ne[i] ? ne[i] : 1;
        t.count *= t.ne[i];
    }
    t.bytes = quant_row_bytes(of, t.count);
    list->items[list->count++] = (synth_tensor){ t, fill };
}

static void add_tensor(synth_list *list, synth_fill fill, quant_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                       const char *format, ...) PRINTF_LIKE(7, 8);

static void add_tensor(synth_list *list, synth_fill fill, quant_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                       const char *format, ...) {
    char    name[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    synth_list_add(list, fill, type, (const uint64_t[]){ ne0, ne1, ne2, 0 }, name);
}

#define ADD_VECTOR(list, fill, n, ...) add_tensor(list, fill, TYPE_F32, n, 0, 0, __VA_ARGS__)
#define ADD_MATRIX(list, in, out, ...)                                                                                 \
    add_tensor(list, FILL_MATRIX, fitting_type((list)->plan->quant->matrix, in), in, out, 0, __VA_ARGS__)

static quant_type graded_type(const synth_plan *plan, uint32_t n, uint32_t count, uint64_t row) {
    return fitting_type(is_important(n, count) ? plan->quant->important : plan->quant->matrix, row);
}

static void add_attention(synth_list *list, uint32_t i, uint32_t *values, uint32_t value_count) {
    const synth_size *size = list->plan->size;
    const bool        full = synth_layer_is_full(list->plan, i);
    const uint64_t    head = full ? 512 : 256, queries = size->heads * head;
    const uint64_t    keys = (full ? size->kv_heads_full : size->kv_heads_sliding) * head;
    ADD_VECTOR(list, FILL_NORM, size->width, "blk.%u.attn_norm.weight", i);
    ADD_MATRIX(list, size->width, queries, "blk.%u.attn_q.weight", i);
    ADD_MATRIX(list, size->width, keys, "blk.%u.attn_k.weight", i);
    if (!full || !size->keys_are_values)
        add_tensor(list, FILL_MATRIX, graded_type(list->plan, (*values)++, value_count, size->width), size->width, keys,
                   0, "blk.%u.attn_v.weight", i);
    ADD_MATRIX(list, queries, size->width, "blk.%u.attn_output.weight", i);
    ADD_VECTOR(list, FILL_QUERY_KEY_NORM, head, "blk.%u.attn_q_norm.weight", i);
    ADD_VECTOR(list, FILL_QUERY_KEY_NORM, head, "blk.%u.attn_k_norm.weight", i);
    ADD_VECTOR(list, FILL_ATTENTION_NORM, size->width, "blk.%u.post_attention_norm.weight", i);
}

/* Early Ollama files have separate tensors for the experts' gate and up. (They also name the experts' scale differently, which
 * llama.cpp does not know.) */
static void add_experts(synth_list *list, uint32_t i) {
    const synth_plan *plan = list->plan;
    const uint64_t    d = plan->size->width, n = plan->size->experts, ff = plan->size->expert_feed_forward;
    const quant_type  matrix = fitting_type(plan->quant->matrix, d);
    add_tensor(list, plan->skewed ? FILL_SKEWED_ROUTER : FILL_ROUTER, TYPE_F32, d, n, 0, "blk.%u.ffn_gate_inp.weight",
               i);
    ADD_VECTOR(list, FILL_NORM, d, "blk.%u.ffn_gate_inp.scale", i);
    if (plan->ollama) {
        add_tensor(list, FILL_MATRIX, matrix, d, ff, n, "blk.%u.ffn_gate_exps.weight", i);
        add_tensor(list, FILL_MATRIX, matrix, d, ff, n, "blk.%u.ffn_up_exps.weight", i);
    } else {
        add_tensor(list, FILL_MATRIX, matrix, d, 2 * ff, n, "blk.%u.ffn_gate_up_exps.weight", i);
    }
    ADD_VECTOR(list, FILL_NORM, n, "blk.%u.ffn_down_exps.scale", i);
    add_tensor(list, FILL_MATRIX, graded_type(plan, i, plan->layers, ff), ff, d, n, "blk.%u.ffn_down_exps.weight", i);
    ADD_VECTOR(list, FILL_NORM, d, "blk.%u.pre_ffw_norm_2.weight", i);
    ADD_VECTOR(list, FILL_NORM, d, "blk.%u.post_ffw_norm_1.weight", i);
    ADD_VECTOR(list, FILL_BRANCH_NORM, d, "blk.%u.post_ffw_norm_2.weight", i);
}

static void add_feed_forward(synth_list *list, uint32_t i) {
    const synth_plan *plan = list->plan;
    const uint64_t    d = plan->size->width, ff = synth_feed_forward(plan, i);
    ADD_VECTOR(list, FILL_NORM, d, "blk.%u.ffn_norm.weight", i);
    ADD_MATRIX(list, d, ff, "blk.%u.ffn_gate.weight", i);
    ADD_MATRIX(list, d, ff, "blk.%u.ffn_up.weight", i);
    add_tensor(list, FILL_MATRIX, graded_type(plan, i, plan->layers, ff), ff, d, 0, "blk.%u.ffn_down.weight", i);
    if (plan->size->experts) add_experts(list, i);
    ADD_VECTOR(list, FILL_BRANCH_NORM, d, "blk.%u.post_ffw_norm.weight", i);
}

static void add_layers(synth_list *list) {
    const synth_plan *plan = list->plan;
    const uint64_t    d = plan->size->width, p = plan->size->per_layer;
    uint32_t          values = 0, value_count = 0;
    for (uint32_t i = 0; i < plan->layers; i++)
        value_count += !plan->size->keys_are_values || !synth_layer_is_full(plan, i);
    for (uint32_t i = 0; i < plan->layers; i++) {
        add_attention(list, i, &values, value_count);
        add_feed_forward(list, i);
        if (p) {
            ADD_MATRIX(list, d, p, "blk.%u.inp_gate.weight", i);
            ADD_MATRIX(list, p, d, "blk.%u.proj.weight", i);
            ADD_VECTOR(list, FILL_BRANCH_NORM, d, "blk.%u.post_norm.weight", i);
        }
        ADD_VECTOR(list, FILL_LAYER_SCALE, 1, "blk.%u.layer_output_scale.weight", i);
        if (plan->size->canvas) ADD_VECTOR(list, FILL_LAYER_SCALE, 1, "blk.%u.enc_layer_output_scale.weight", i);
    }
}

gm_status synth_list_tensors(const synth_plan *plan, arena *a, synth_tensor **tensors, size_t *count, error *e) {
    const uint64_t d = plan->size->width, p = (uint64_t)plan->size->per_layer * plan->layers;
    const bool     towers = plan->towers && plan->ollama;
    synth_list     list;
    TRY(synth_list_new(plan, 10 + (size_t)plan->layers * 25 + (towers ? TOWER_TENSORS : 0), a, &list, e));

    add_tensor(&list, FILL_MATRIX, plan->quant->embedding, d, plan->vocabulary, 0, "token_embd.weight");
    ADD_VECTOR(&list, FILL_ROPE, 256, "rope_freqs.weight");
    if (p) {
        add_tensor(&list, FILL_MATRIX, plan->ollama ? TYPE_BF16 : plan->quant->embedding, p, plan->vocabulary, 0,
                   "per_layer_token_embd.weight");
        add_tensor(&list, FILL_MATRIX, plan->ollama ? plan->quant->matrix : TYPE_BF16, d, p, 0,
                   "per_layer_model_proj.weight");
        ADD_VECTOR(&list, FILL_NORM, plan->size->per_layer, "per_layer_proj_norm.weight");
    }
    add_layers(&list);
    if (plan->size->canvas) {
        const uint64_t ff = plan->size->feed_forward;
        ADD_VECTOR(&list, FILL_NORM, d, "self_cond_pre_norm.weight");
        ADD_MATRIX(&list, d, ff, "self_cond_gate.weight");
        ADD_MATRIX(&list, d, ff, "self_cond_up.weight");
        ADD_MATRIX(&list, ff, d, "self_cond_down.weight");
    }
    ADD_VECTOR(&list, FILL_OUTPUT_NORM, d, "output_norm.weight");
    if (towers) synth_add_towers(&list);
    if (list.failed) return fail_memory(e, "the list of tensors", list.capacity * sizeof *list.items);
    *tensors = list.items;
    *count = list.count;
    return GM_OK;
}

gm_status synth_list_projector(const synth_plan *plan, arena *a, synth_tensor **tensors, size_t *count, error *e) {
    synth_list list;
    TRY(synth_list_new(plan, TOWER_TENSORS, a, &list, e));
    synth_add_towers(&list);
    if (list.failed) return fail_memory(e, "the list of tensors", list.capacity * sizeof *list.items);
    *tensors = list.items;
    *count = list.count;
    return GM_OK;
}

gm_status synth_tensors(const synth_options *options, arena *a, gguf_tensor **tensors, size_t *count, error *e) {
    synth_plan    plan;
    synth_tensor *list = NULL;
    size_t        n = 0;
    gm_status     status = synth_plan_make(options, &plan, e);
    if (status == GM_OK) status = synth_list_tensors(&plan, a, &list, &n, e);
    if (status != GM_OK) return status;
    gguf_tensor *out = arena_array(a, n, sizeof *out);
    if (!out) return fail_memory(e, "the list of tensors", n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = list[i].info;
    *tensors = out;
    *count = n;
    return GM_OK;
}
