/* A graph prepared for the GPU: pipelines, bind groups and memory, recorded as a command list that every run submits.
 *
 * Each value is a range of one large buffer. What changes between runs (ids, wanted rows, the run record, the ticket of
 * the result) is part of the list, and a run overwrites it there. */

#include "gpu/plan.h"

#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "gpu/streaming.h"

#include <stdlib.h>
#include <string.h>

/* The scratch items that belong to a value, by the value's index; -1: none. */
typedef struct {
    int32_t quantised, groups;
} value_notes;

static const tensor *storage(const tensor *t) { return t->base ? t->base : t; }

static gpu_place place_of(const tensor *t) {
    return (gpu_place){ (uint32_t)t->offset, (uint32_t)t->token_stride, (uint32_t)t->row_stride };
}

static uint32_t count_of(const gpu_plan *p, const tensor *t) { return t->axis == AXIS_TOKENS ? p->tokens : p->outputs; }

static bool has_cache(const op *o) {
    return o->kind == OP_KV_STORE || o->kind == OP_ATTENTION || o->kind == OP_HEADS || o->kind == OP_ATTEND;
}

static gpu_kv kv_of(const gpu_kv_layer *l) {
    return (gpu_kv){ .type = l->type, .kv_heads = l->kv_heads, .head = l->head, .slots = l->slots };
}

/* ---- memory: items and their lifetimes ---- */

static bool wants_q8(const gpu_plan *p, const op *o) {
    return o->kind == OP_PRODUCTS && !p->backend->precise &&
           gpu_matmul_takes_q8(gpu_host_info(p->backend->host), o->in[FUSED_W0]->type, count_of(p, o->in[FUSED_A]));
}

static bool wants_groups(const gpu_plan *p, const op *o) {
    return o->kind == OP_PRODUCTS && o->in[FUSED_ROUTES] && gpu_matmul_takes_groups(p->tokens);
}

/* The second input of a gate lies at another offset in each layer. Bindings must be aligned to 256 bytes, so we bind at
 * the aligned offset below it and pass the remainder (first_unit): all layers share one pipeline. */
static uint64_t first_unit(const tensor *t) { return t->offset % (PLAN_ALIGNMENT / sizeof(float)); }

static gpu_place place_or_start(const tensor *t, bool there) { return there ? place_of(t) : (gpu_place){ 0 }; }

/* ---- single columns in 8 bits ---- */

static bool takes_column_q8(const gpu_plan *p, const op *o) {
    return !p->backend->precise && gpu_matvec_takes_q8(gpu_host_info(p->backend->host), o->in[FUSED_W0]->type);
}

/* The op that produces this value; NULL for a view. */
static const op *maker_of(const gpu_plan *p, const tensor *t) {
    for (size_t i = 0; i < p->g.op_count && !t->base; i++) {
        if (p->g.ops[i].out == t) return &p->g.ops[i];
    }
    return NULL;
}

/* Whether a product passes its gated result in 8 bits to its only reader, which must be a product, too. That way it is
 * quantised once, not by every workgroup of the reader. */
static bool gives_q8(const gpu_plan *p, const op *o) {
    if (!o || o->kind != OP_PRODUCTS || o->gate != GATE_PAIR || o->out->ne[0] % 32 || p->tokens > 1) return false;
    const op *reader = NULL;
    for (size_t i = 0; i < p->g.op_count; i++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *t = p->g.ops[i].in[j];
            if (!t || t->kind != TENSOR_VALUE || storage(t) != o->out) continue;
            if (reader || t != o->out || p->g.ops[i].kind != OP_PRODUCTS || j != FUSED_A) return false;
            reader = &p->g.ops[i];
        }
    }
    return reader && !reader->normed && !reader->in[FUSED_B] && takes_column_q8(p, reader);
}

/* Places of 8-bit columns count whole columns: one, or one per expert used. */
static gpu_place whole_columns(const tensor *t) { return (gpu_place){ 0, (uint32_t)t->ne[1], t->ne[1] > 1 }; }

static gpu_matmul_job product_job(const gpu_plan *p, const op *o, const gpu_weight *w, uint32_t tile) {
    const tensor *x = o->in[FUSED_A], *routes = o->in[FUSED_ROUTES];
    return (gpu_matmul_job){
        .weights = &w->layout,
        .like = &w->like,
        .tile = tile,
        .tokens = count_of(p, x),
        .outputs = x->axis == AXIS_OUTPUTS,
        .q8 = wants_q8(p, o),
        .used = routes ? o->used : 0,
        .x_slots = x->ne[1] > 1,
        .x = gives_q8(p, maker_of(p, x)) ? whole_columns(x) : place_or_start(x, !wants_q8(p, o)),
        .y = gives_q8(p, o) ? whole_columns(o->out) : place_of(o->out),
        .routes = place_or_start(routes, routes && !wants_groups(p, o)),
        .split = true,
        .residual = o->in[FUSED_B] != NULL,
        .normed = o->normed,
        .sum = o->sum && tile == 0,
        .gate = o->gate,
        .eps = o->eps,
        .factor = o->factor,
        .weight_factor = o->weight_factor,
        .cap = o->cap,
        .other_offset = o->in[FUSED_OTHER] ? (uint32_t)first_unit(o->in[FUSED_OTHER]) : 0,
        .column = gives_q8(p, maker_of(p, x)) ? COLUMN_GIVEN
                  : takes_column_q8(p, o)     ? COLUMN_Q8
                                              : COLUMN_F32,
        .y_q8 = gives_q8(p, o),
    };
}

/* Scratch bytes for split-K partial sums. Tiles run one after another, so the largest tile decides. */
static uint64_t product_partial_bytes(const gpu_plan *p, const op *o) {
    const gpu_weight *w = gpu_backend_weight(p->backend, o->in[FUSED_W0]);
    uint64_t          most = 0;
    for (uint32_t tile = 0; w && tile < w->layout.tiles; tile++) {
        const gpu_matmul_job job = product_job(p, o, w, tile);
        const uint64_t       bytes = gpu_matmul_partial_bytes(gpu_host_info(p->backend->host), &job);
        if (bytes > most) most = bytes;
    }
    return most;
}

static uint32_t splits_of(const gpu_plan *p, const op *o) {
    const gpu_kv kv = kv_of(&p->kv[o->layer]);
    return gpu_attention_splits(gpu_host_info(p->backend->host), o, &kv, p->tokens,
                                p->kv[o->layer].bytes / gpu_kv_row_bytes(kv.type, kv.kv_heads, kv.head));
}

static int32_t new_item(gpu_plan *p, uint64_t bytes, uint32_t now) {
    p->items[p->item_count] = (layout_item){ .bytes = round_up(bytes, PLAN_ALIGNMENT), .first = now, .last = now };
    return (int32_t)p->item_count++;
}

static void item_live_at(layout_item *item, uint32_t now) {
    if (now < item->first) item->first = now;
    if (now > item->last) item->last = now;
}

static void value_live_at(gpu_plan *p, const tensor *t, uint32_t now) {
    if (t && t->kind == TENSOR_VALUE) item_live_at(&p->items[storage(t)->index], now);
}

static void lay_out_value(gpu_plan *p, const tensor *t, uint32_t now) {
    if (!t) return;
    const tensor *whole = storage(t);
    p->items[whole->index].bytes = round_up(count_of(p, whole) * whole->token_stride * sizeof(float), PLAN_ALIGNMENT);
    item_live_at(&p->items[whole->index], now);
}

/* Scratch memory of an op: partial sums, its input in 8 bits, the pairs grouped by expert. */
static void lay_out_extras(gpu_plan *p, const op *o, uint32_t now, value_notes *notes, int32_t *partial) {
    *partial = -1;
    if (o->kind == OP_ATTENTION || o->kind == OP_ATTEND) {
        const uint64_t bytes = gpu_attention_partial_bytes(o, p->tokens, splits_of(p, o));
        if (bytes) *partial = new_item(p, bytes, now);
    }
    if (o->kind == OP_PRODUCTS) {
        const uint64_t bytes = product_partial_bytes(p, o);
        if (bytes) *partial = new_item(p, bytes, now);
    }
    if (wants_q8(p, o)) {
        const tensor  *x = o->in[FUSED_A];
        value_notes   *note = &notes[storage(x)->index];
        const uint64_t rows = (uint64_t)count_of(p, x) * x->ne[1];
        if (note->quantised < 0) note->quantised = new_item(p, gpu_quantised_bytes((uint32_t)x->ne[0], rows), now);
        item_live_at(&p->items[note->quantised], now);
    }
    if (wants_groups(p, o)) {
        value_notes *note = &notes[storage(o->in[FUSED_ROUTES])->index];
        if (note->groups < 0)
            note->groups = new_item(p, gpu_groups_bytes((uint32_t)o->in[FUSED_W0]->ne[2], p->tokens, o->used), now);
        item_live_at(&p->items[note->groups], now);
    }
}

/* Whether the host looks up the rows of this table. It writes them before the first dispatch. */
static bool gathered(const gpu_plan *p, const op *o) {
    return o->kind == OP_EMBED && gpu_backend_weight(p->backend, o->in[0])->gathered;
}

static gm_status lay_out(gpu_plan *p, value_notes *notes, int32_t *partials, error *e) {
    const graph *g = &p->g;
    for (size_t i = 0; i < g->value_count; i++) {
        notes[i] = (value_notes){ -1, -1 };
        new_item(p, 0, UINT32_MAX);
        p->items[i].last = 0;
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        const op *o = &g->ops[i];
        lay_out_value(p, o->out, gathered(p, o) || o->given ? 0 : i); /* the host writes before the first dispatch */
        lay_out_value(p, o->sum, i);
        for (size_t j = 0; j < OP_INPUTS; j++) value_live_at(p, o->in[j], i);
        lay_out_extras(p, o, i, notes, &partials[i]);
    }
    item_live_at(&p->items[storage(g->result)->index], (uint32_t)g->op_count);
    return layout_assign(p->items, p->item_count, PLAN_ALIGNMENT, &p->bytes, e);
}

/* ---- recording ---- */

/* What a kernel's binding names stand for in the current op. */
typedef struct {
    const op *op;
    gpu_id    weights; /* the tile */
    uint64_t  weight_bytes;
    int32_t   quantised, groups, partial;
    bool      x_is_quantised;
    bool      numbered;
    uint64_t  numbers; /* where the kernel's numbers are */
} binding_names;

static gpu_binding item_binding(const gpu_plan *p, int32_t item) {
    return (gpu_binding){ 0, p->memory, p->items[item].offset, p->items[item].bytes };
}

static gpu_binding tensor_binding(const gpu_plan *p, const tensor *t) {
    if (t->kind == TENSOR_VALUE) return item_binding(p, (int32_t)storage(t)->index);
    const gpu_weight *w = gpu_backend_weight(p->backend, t);
    return (gpu_binding){ 0, w->tiles[0], 0, round_up((uint64_t)w->layout.k * sizeof(float), 16) };
}

/* Which input of an op each binding name stands for. */
typedef struct {
    const char *name;
    op_kind     kind; /* OP_COUNT_FUSED: all others */
    uint32_t    input;
} input_name;

static const input_name input_names[] = {
    { "x", OP_PRODUCTS, FUSED_A },
    { "b", OP_PRODUCTS, FUSED_B },
    { "b_weight", OP_PRODUCTS, FUSED_B_WEIGHT },
    { "weight", OP_PRODUCTS, FUSED_WEIGHT },
    { "other", OP_PRODUCTS, FUSED_OTHER },
    { "routes", OP_PRODUCTS, FUSED_ROUTES },
    { "a", OP_NORMS, FUSED_A },
    { "b", OP_NORMS, FUSED_B },
    { "b_weight", OP_NORMS, FUSED_B_WEIGHT },
    { "weight", OP_NORMS, FUSED_WEIGHT },
    { "rows", OP_HEADS, HEADS_Q },
    { "table", OP_HEADS, HEADS_TABLE },
    { "q_weight", OP_HEADS, HEADS_Q_WEIGHT },
    { "k_weight", OP_HEADS, HEADS_K_WEIGHT },
    { "a", OP_ATTEND, HEADS_Q },
    { "table", OP_ATTEND, HEADS_TABLE },
    { "q_weight", OP_ATTEND, HEADS_Q_WEIGHT },
    { "k_weight", OP_ATTEND, HEADS_K_WEIGHT },
    { "a", OP_MIX, MIX_A },
    { "experts", OP_MIX, MIX_EXPERTS },
    { "routes", OP_MIX, MIX_ROUTES },
    { "a_weight", OP_MIX, MIX_A_WEIGHT },
    { "weight", OP_MIX, MIX_WEIGHT },
    { "a", OP_COUNT_FUSED, 0 },
    { "b", OP_COUNT_FUSED, 1 },
};

static const tensor *named_input(const op *o, const char *name) {
    const bool fused = o->kind >= OP_COUNT;
    for (size_t i = 0; i < COUNT_OF(input_names); i++) {
        const input_name *n = &input_names[i];
        if (n->kind == (fused ? o->kind : OP_COUNT_FUSED) && !strcmp(n->name, name)) return o->in[n->input];
    }
    return NULL;
}

static bool is_gates_second(const op *o, const tensor *t) {
    const bool shared = o->kind == OP_GEGLU && storage(o->in[0]) == storage(o->in[1]);
    return (o->kind == OP_PRODUCTS && t == o->in[FUSED_OTHER]) || (o->kind == OP_GEGLU && t == o->in[1] && !shared);
}

static gpu_binding whole_units(gpu_binding binding, const op *o, const tensor *t) {
    const uint64_t skipped = is_gates_second(o, t) ? (t->offset - first_unit(t)) * sizeof(float) : 0;
    binding.offset += skipped;
    binding.bytes -= skipped;
    return binding;
}

static gm_status plan_bind(const gpu_plan *p, const binding_names *n, const char *name, gpu_binding *out, error *e) {
    const op           *o = n->op;
    const bool          cached = has_cache(o);
    const gpu_kv_layer *kv = cached ? &p->kv[o->layer] : NULL;
    const tensor       *input = named_input(o, name);
    if (!strcmp(name, "x") && n->x_is_quantised) *out = item_binding(p, n->quantised);
    else if (input) *out = whole_units(tensor_binding(p, input), o, input);
    else if (!strcmp(name, "run")) *out = (gpu_binding){ 0, p->run, 0, RUN_WORDS * 4 };
    else if (!strcmp(name, "numbers")) *out = (gpu_binding){ 0, p->numbers, n->numbers, KERNEL_NUMBERS * 4 };
    else if (!strcmp(name, "ids")) *out = (gpu_binding){ 0, p->ids, 0, round_up(p->tokens * 4, 16) };
    else if (!strcmp(name, "rows")) *out = (gpu_binding){ 0, p->rows, 0, round_up(p->outputs * 4, 16) };
    else if (!strcmp(name, "last_seen")) *out = (gpu_binding){ 0, p->last_seen, 0, round_up(p->tokens * 4, 16) };
    else if (!strcmp(name, "keys") && kv) *out = (gpu_binding){ 0, kv->k, 0, kv->bytes };
    else if (!strcmp(name, "values") && kv) *out = (gpu_binding){ 0, kv->v, 0, kv->bytes };
    else if (!strcmp(name, "weights")) *out = (gpu_binding){ 0, n->weights, 0, n->weight_bytes };
    else if (!strcmp(name, "partial") && n->partial >= 0) *out = item_binding(p, n->partial);
    else if (!strcmp(name, "groups") && n->groups >= 0) *out = item_binding(p, n->groups);
    else if (!strcmp(name, "out") && n->quantised >= 0) *out = item_binding(p, n->quantised);
    else if (!strcmp(name, "sum") && o->sum) *out = tensor_binding(p, o->sum);
    else if (!strcmp(name, "y") || !strcmp(name, "out")) *out = tensor_binding(p, o->out);
    else
        return fail(e, GM_BAD_ARGUMENT, "the kernel of %s binds '%s', which this plan does not know", op_name(o->kind),
                    name);
    return GM_OK;
}

/* A kernel's strings are constants of the program, so comparing pointers and numbers is enough. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

static uint64_t hash_kernel(const gpu_kernel *k) {
    uint64_t hash = hash_words(0xcbf29ce484222325, &k->file, sizeof k->file);
    for (size_t i = 0; i < k->define_count; i++) {
        hash = hash_words(hash, &k->defines[i].name, sizeof k->defines[i].name);
        hash = hash_words(hash, k->defines[i].value, strlen(k->defines[i].value) + 1);
    }
    for (size_t i = 0; i < k->constant_count; i++) {
        hash = hash_words(hash, &k->constants[i].name, sizeof k->constants[i].name);
        hash = hash_words(hash, &k->constants[i].value, sizeof k->constants[i].value);
    }
    return hash;
}

static gpu_id pipeline_of(gpu_plan *p, const gpu_kernel *k, error *e) {
    const uint64_t hash = hash_kernel(k);
    for (size_t i = 0; i < p->pipeline_count; i++) {
        if (p->pipelines[i].hash == hash) return p->pipelines[i].id;
    }
    if (p->pipeline_count == p->pipeline_capacity) {
        const size_t          capacity = p->pipeline_capacity ? 2 * p->pipeline_capacity : 64;
        struct plan_pipeline *grown = realloc(p->pipelines, capacity * sizeof *grown);
        if (!grown) {
            fail_memory(e, "pipelines", capacity * sizeof *grown);
            return 0;
        }
        p->pipelines = grown;
        p->pipeline_capacity = capacity;
    }
    const gpu_id id = gpu_kernel_pipeline(p->backend->host, k, e);
    if (id) p->pipelines[p->pipeline_count++] = (struct plan_pipeline){ hash, id };
    return id;
}

gm_status gpu_plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *bindings, error *e) {
    if (p->group_count == p->group_capacity) {
        const size_t capacity = p->group_capacity ? 2 * p->group_capacity : 256;
        gpu_id      *groups = realloc(p->groups, capacity * sizeof *groups);
        if (!groups) return fail_memory(e, "bind groups", capacity * sizeof *groups);
        p->groups = groups;
        p->group_capacity = capacity;
    }
    const gpu_id pipeline = pipeline_of(p, k, e);
    const gpu_id group = pipeline ? gpu_group_new(p->backend->host, pipeline, bindings, k->bind_count, e) : 0;
    if (!group) return e->status;
    p->groups[p->group_count++] = group;
    gpu_words_dispatch(words, pipeline, group, k->x, k->y, k->z);
    return GM_OK;
}

static gm_status plan_emit(gpu_plan *p, const gpu_kernel *k, binding_names *names, error *e) {
    gpu_binding bindings[KERNEL_BINDS];
    if (p->visit) return p->visit(p->visit_user, &p->g, names->op, k), GM_OK;
    if (k->number_count && !names->numbered) { /* all tiles of an op share them */
        uint32_t words[KERNEL_NUMBERS];
        memcpy(words, k->numbers, sizeof words);
        names->numbers = p->number_count++ * PLAN_ALIGNMENT;
        names->numbered = true;
        gpu_words_write(&p->number_words, p->numbers, names->numbers, words, KERNEL_NUMBERS);
    }
    for (uint32_t i = 0; i < k->bind_count; i++) {
        if (plan_bind(p, names, k->binds[i], &bindings[i], e)) return e->status;
        bindings[i].binding = i;
    }
    if (!gpu_plan_dispatch(p, &p->words, k, bindings, e)) p->dispatches++;
    return e->status;
}

static gm_status emit_embed(gpu_plan *p, const op *o, binding_names names, error *e) {
    const gpu_weight *w = gpu_backend_weight(p->backend, o->in[0]);
    if (w->gathered) return streaming_gather(p, o, e);
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel          k = { 0 };
        const gpu_embed_job job = { .table = &w->layout,
                                    .tile = tile,
                                    .tokens = p->tokens,
                                    .factor = o->factor,
                                    .given = o->given,
                                    .y = place_of(o->out) };
        gpu_embed_kernel(&k, gpu_host_info(p->backend->host), &job);
        names.weights = w->tiles[tile];
        names.weight_bytes = weight_tile_of(&w->layout, tile).bytes;
        plan_emit(p, &k, &names, e);
    }
    return e->status;
}

static gm_status emit_product(gpu_plan *p, const op *o, binding_names names, error *e) {
    const gpu_weight *w = gpu_backend_weight(p->backend, o->in[FUSED_W0]);
    if (!w) return fail(e, GM_BAD_ARGUMENT, "'%s' was not brought to the GPU", o->in[FUSED_W0]->name);
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel           k[2] = { { 0 }, { 0 } };
        const gpu_matmul_job job = product_job(p, o, w, tile);
        const size_t         count = gpu_matmul_kernels(k, gpu_host_info(p->backend->host), &job);
        names.weights = w->streamed ? p->backend->slot : w->tiles[tile];
        names.weight_bytes = weight_tile_of(&w->layout, tile).bytes;
        if (w->streamed && streaming_cut(p, o, w, tile, e)) return e->status;
        for (size_t i = 0; i < count && !e->status; i++) plan_emit(p, &k[i], &names, e);
    }
    return w->streamed && !e->status ? streaming_resume(p, e) : e->status;
}

/* Dispatches what a product needs first: its input in 8 bits, and the pairs grouped by expert. Products with the same
 * input share these. */
static gm_status prepare_product(gpu_plan *p, const op *o, binding_names *names, value_notes *notes, bool *made,
                                 error *e) {
    const tensor *x = o->in[FUSED_A];
    gpu_kernel    k = { 0 };
    if (wants_q8(p, o)) {
        names->quantised = notes[storage(x)->index].quantised;
        if (!made[names->quantised]) {
            const gpu_quantise_job job = { .k = (uint32_t)x->ne[0],
                                           .rows = (uint32_t)x->ne[1],
                                           .tokens = count_of(p, x),
                                           .outputs = x->axis == AXIS_OUTPUTS,
                                           .x = place_of(x) };
            gpu_quantise_kernel(&k, gpu_host_info(p->backend->host), &job);
            if (plan_emit(p, &k, names, e)) return e->status;
            made[names->quantised] = true;
        }
        names->x_is_quantised = true;
    }
    if (wants_groups(p, o)) {
        names->groups = notes[storage(o->in[FUSED_ROUTES])->index].groups;
        if (!made[names->groups]) {
            k = (gpu_kernel){ 0 };
            if (gpu_group_kernel((uint32_t)o->in[FUSED_W0]->ne[2], o->used, &k, e) || plan_emit(p, &k, names, e))
                return e->status;
            made[names->groups] = true;
        }
    }
    return GM_OK;
}

static gm_status emit_op(gpu_plan *p, const op *o, int32_t partial, value_notes *notes, bool *made, error *e) {
    binding_names names = { .op = o, .quantised = -1, .groups = -1, .partial = partial };
    const bool    cached = has_cache(o);
    const gpu_kv  kv = cached ? kv_of(&p->kv[o->layer]) : (gpu_kv){ 0 };
    gpu_kernel    k[2] = { { 0 }, { 0 } };
    size_t        count = 1;
    switch ((int)o->kind) {
    case OP_EMBED: return emit_embed(p, o, names, e);
    case OP_PRODUCTS:
        if (prepare_product(p, o, &names, notes, made, e)) return e->status;
        return emit_product(p, o, names, e);
    case OP_KV_STORE: gpu_kv_store_kernel(o, &kv, p->tokens, k, e); break;
    case OP_ATTENTION:
    case OP_ATTEND:
        gpu_attention_kernels(gpu_host_info(p->backend->host), o, &kv, p->tokens, splits_of(p, o), k, &count, e);
        break;
    case OP_NORMS:
    case OP_HEADS:
    case OP_MIX: gpu_fused_kernel(o, &kv, p->tokens, p->outputs, k, e); break;
    case OP_GEGLU: {
        op     nearer = *o;
        tensor second = *o->in[1];
        second.offset = first_unit(&second);
        if (is_gates_second(o, o->in[1])) nearer.in[1] = &second;
        gpu_op_kernel(&nearer, p->tokens, p->outputs, k, e);
        break;
    }
    default: gpu_op_kernel(o, p->tokens, p->outputs, k, e); break;
    }
    for (size_t i = 0; i < count && !e->status; i++) plan_emit(p, &k[i], &names, e);
    return e->status;
}

static bool has_blocks(const gpu_plan *p) {
    for (size_t i = 0; i < p->g.op_count; i++) {
        if (p->g.ops[i].kind == OP_ATTENTION && p->g.ops[i].blocks) return p->tokens > GPU_DECODE_TOKENS;
    }
    return false;
}

static gm_status plan_record(gpu_plan *p, value_notes *notes, const int32_t *partials, error *e) {
    gpu_host *h = p->backend->host;
    bool     *made = calloc(p->item_count, sizeof *made);
    uint32_t *zeros = calloc(max_size(max_size(p->tokens, p->outputs), RUN_WORDS), sizeof *zeros);
    if (!made || !zeros) fail_memory(e, "a plan", p->item_count);
    if (!e->status) p->memory = gpu_buffer_new(h, p->bytes ? p->bytes : PLAN_ALIGNMENT, e);
    if (!e->status) p->run = gpu_buffer_new(h, RUN_WORDS * 4, e);
    if (!e->status) p->ids = gpu_buffer_new(h, round_up(p->tokens * 4, 16), e);
    if (!e->status) p->rows = gpu_buffer_new(h, round_up(p->outputs * 4, 16), e);
    if (!e->status && has_blocks(p)) p->last_seen = gpu_buffer_new(h, round_up(p->tokens * 4, 16), e);
    if (!e->status) p->numbers = gpu_buffer_new(h, (p->g.op_count + 1) * PLAN_ALIGNMENT, e);
    if (!e->status) {
        gpu_words_begin(&p->number_words);
        gpu_words_begin(&p->words);
        p->at_run = gpu_words_write(&p->words, p->run, 0, zeros, RUN_WORDS);
        p->at_ids = gpu_words_write(&p->words, p->ids, 0, zeros, p->tokens);
        p->at_rows = gpu_words_write(&p->words, p->rows, 0, zeros, p->outputs);
        if (p->last_seen) p->at_seen = gpu_words_write(&p->words, p->last_seen, 0, zeros, p->tokens);
    }
    p->first_dispatch = p->words.count;
    for (size_t i = 0; i < p->g.op_count && !e->status; i++) emit_op(p, &p->g.ops[i], partials[i], notes, made, e);
    if (!e->status) {
        const tensor *result = p->g.result;
        p->end_dispatch = p->words.count;
        p->at_ticket = gpu_words_read(&p->words, p->memory, gpu_plan_result_offset(p),
                                      count_of(p, result) * result->token_stride * sizeof(float));
        if (p->words.failed || p->number_words.failed) fail_memory(e, "a command list", p->words.count * 4);
        else gpu_submit(h, p->number_words.data, p->number_words.count, e);
    }
    free(made);
    free(zeros);
    return e->status;
}

static gm_status tell_kernels(gpu_plan *p, value_notes *notes, const int32_t *partials, error *e) {
    bool *made = calloc(p->item_count, sizeof *made);
    if (!made) return fail_memory(e, "a plan", p->item_count);
    for (size_t i = 0; i < p->g.op_count && !e->status; i++) emit_op(p, &p->g.ops[i], partials[i], notes, made, e);
    free(made);
    return e->status;
}

static gm_status plan_make(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                           gpu_kernel_visit *visit, void *user, gpu_plan **out, error *e) {
    *out = NULL;
    if (!g->result) return fail(e, GM_BAD_ARGUMENT, "a graph without a result cannot be planned");
    gpu_plan *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "a plan", sizeof *p);
    *p = (gpu_plan){ .backend = b,
                     .kv = kv,
                     .tokens = (uint32_t)tokens,
                     .outputs = (uint32_t)max_size(outputs, 1),
                     .visit = visit,
                     .visit_user = user };
    const fuse_options fusion = gpu_backend_fusion(b, p->tokens, p->outputs);
    if (graph_fuse(g, &fusion, &p->g, e)) {
        free(p);
        return e->status;
    }
    g = &p->g;
    p->items = calloc(g->value_count + 3 * g->op_count, sizeof *p->items);
    value_notes *notes = calloc(max_size(g->value_count, 1), sizeof *notes);
    int32_t     *partials = calloc(max_size(g->op_count, 1), sizeof *partials);
    if (!p->items || !notes || !partials) fail_memory(e, "a plan's items", g->value_count * sizeof *p->items);
    if (!e->status && !lay_out(p, notes, partials, e)) {
        if (visit) tell_kernels(p, notes, partials, e);
        else plan_record(p, notes, partials, e);
    }
    free(notes);
    free(partials);
    if (e->status) gpu_plan_free(p);
    else *out = p;
    return e->status;
}

gm_status gpu_plan_new(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                       gpu_plan **out, error *e) {
    return plan_make(b, g, tokens, outputs, kv, NULL, NULL, out, e);
}

gm_status gpu_plan_visit(gpu_backend *b, const graph *g, size_t tokens, size_t outputs, const gpu_kv_layer *kv,
                         gpu_kernel_visit *visit, void *user, error *e) {
    gpu_plan *p = NULL;
    plan_make(b, g, tokens, outputs, kv, visit, user, &p, e);
    gpu_plan_free(p);
    return e->status;
}

void gpu_plan_free(gpu_plan *p) {
    if (!p) return;
    gpu_host    *h = p->backend->host;
    const gpu_id buffers[] = { p->memory, p->run, p->ids, p->rows, p->last_seen, p->numbers };
    streaming_free(p);
    for (size_t i = 0; i < p->group_count; i++) gpu_group_free(h, p->groups[i]);
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        if (buffers[i]) gpu_buffer_free(h, buffers[i]);
    }
    graph_free(&p->g);
    free(p->pipelines);
    free(p->groups);
    free(p->items);
    free(p->words.data);
    free(p->number_words.data);
    free(p);
}

size_t gpu_plan_tokens(const gpu_plan *p) { return p->tokens; }
size_t gpu_plan_dispatches(const gpu_plan *p) { return p->dispatches; }

uint64_t gpu_plan_result_offset(const gpu_plan *p) { return p->items[storage(p->g.result)->index].offset; }

void gpu_plan_restart(gpu_plan *p) { streaming_restart(p); }

/* The number of tokens from `first` on whose given rows are consecutive. */
static size_t given_together(const run_inputs *in, size_t first) {
    size_t n = 1;
    while (first + n < in->tokens && in->records[first + n].id == in->records[first].id - (int32_t)n) n++;
    return n;
}

gm_status gpu_plan_write_given(const gpu_plan *p, const run_inputs *in, error *e) {
    for (size_t i = 0; i < p->g.op_count && in->given; i++) {
        const op      *o = &p->g.ops[i];
        const uint64_t row = o->out ? o->out->token_stride * sizeof(float) : 0;
        for (size_t t = 0, n; o->kind == OP_EMBED && o->given && t < in->tokens; t += n) {
            n = 1;
            if (in->records[t].id >= 0) continue;
            n = given_together(in, t);
            const float    *from = in->given + (size_t)(-1 - in->records[t].id) * o->out->token_stride;
            const gm_status status = gpu_buffer_write(p->backend->host, p->memory,
                                                      p->items[o->out->index].offset + t * row, from, n * row, e);
            if (status) return status;
        }
    }
    return GM_OK;
}

gm_status gpu_plan_submit(gpu_plan *p, const run_inputs *in, uint32_t ticket, error *e) {
    if (in->tokens > p->tokens || in->outputs > p->outputs)
        return fail(e, GM_BAD_ARGUMENT, "the plan is too small for this run");
    uint32_t *words = p->words.data;
    words[p->at_run] = (uint32_t)in->tokens;
    words[p->at_run + 1] = (uint32_t)in->outputs;
    words[p->at_run + 2] = in->records[0].at;
    for (size_t i = 0; i < in->tokens; i++) words[p->at_ids + i] = (uint32_t)in->records[i].id;
    for (size_t i = 0; i < in->outputs; i++) words[p->at_rows + i] = (uint32_t)in->output_rows[i];
    for (size_t i = 0; i < in->tokens && p->last_seen; i++) {
        const token_record *r = &in->records[i];
        words[p->at_seen + i] = (r->sliding_last > r->full_last ? r->sliding_last : r->full_last) - in->records[0].at;
    }
    words[p->at_ticket] = ticket;
    if (p->streaming) return streaming_submit(p, in, ticket, e);
    const gm_status status = gpu_plan_write_given(p, in, e);
    if (status) return status;
    return gpu_submit(p->backend->host, words, ticket ? p->words.count : p->end_dispatch, e);
}
