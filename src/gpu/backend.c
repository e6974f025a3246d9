/* Weights on the GPU: finds the weights of graphs and decides their layout. upload.c uploads them. */

#include "gpu/backend.h"

#include "gpu/experts.h"
#include "gpu/matmul.h"

#include <stdlib.h>
#include <string.h>

gm_status gpu_backend_open(gpu_backend *b, const gpu_options *options, bool precise, error *e) {
    *b = (gpu_backend){ .precise = precise };
    return gpu_host_open(options, &b->host, e);
}

static void weight_free(gpu_backend *b, gpu_weight *w) {
    for (uint32_t tile = 0; w->tiles && tile < w->layout.tiles; tile++) {
        if (w->tiles[tile]) gpu_buffer_free(b->host, w->tiles[tile]);
    }
    free(w->tiles);
    w->tiles = NULL;
}

static void weight_set_free(gpu_backend *b, gpu_weight_set *set) {
    for (size_t i = 0; i < set->count; i++) weight_free(b, &set->weights[i]);
    free(set->weights);
    free(set->slots);
    free(set);
}

void gpu_backend_clear(gpu_backend *b) {
    while (b->sets) {
        gpu_weight_set *set = b->sets;
        b->sets = set->next;
        weight_set_free(b, set);
    }
    const gpu_id buffers[] = { b->lanes.buffer, b->piece, b->flags, b->slot };
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        if (buffers[i]) gpu_buffer_free(b->host, buffers[i]);
    }
    gpu_backend_stream_restart(b);
    expert_cache_free(b);
    if (b->flag_ticket) gpu_ticket_done(b->host, b->flag_ticket);
    *b = (gpu_backend){ .host = b->host, .precise = b->precise, .budget = b->budget, .reads = b->reads };
}

void gpu_backend_close(gpu_backend *b) {
    if (!b->host) return;
    gpu_backend_clear(b);
    gpu_host_close(b->host);
    *b = (gpu_backend){ 0 };
}

void gpu_backend_keep_to(gpu_backend *b, const gpu_budget *budget) { b->budget = budget; }

void gpu_backend_read_by(gpu_backend *b, reads *r) { b->reads = r; }

bool gpu_backend_needs_host(const gpu_backend *b) { return b->budget && b->budget->token_bytes; }

/* ---- the table of weights ---- */

static const tensor *slot_tensor(const gpu_weight_set *set, size_t at) {
    const uint32_t i = set->slots[at] - 1;
    return &set->weights[i / GPU_WEIGHT_PARTS].parts[i % GPU_WEIGHT_PARTS].weight;
}

/* The slot of this tensor, or an empty one. */
static size_t weight_set_slot(const gpu_weight_set *set, const tensor *t) {
    const uint64_t key = t->data ? (uintptr_t)t->data : t->place;
    size_t         at = (size_t)((key >> 5) * 0x9e3779b97f4a7c15u % set->slot_count);
    while (set->slots[at] && !tensor_same_weight(slot_tensor(set, at), t)) at = (at + 1) % set->slot_count;
    return at;
}

gpu_weight_part gpu_backend_part(const gpu_backend *b, const tensor *t) {
    for (const gpu_weight_set *set = b->sets; set; set = set->next) {
        const uint32_t  found = set->slots[weight_set_slot(set, t)];
        gpu_weight_part out = { .weight = found ? &set->weights[(found - 1) / GPU_WEIGHT_PARTS] : NULL,
                                .part = found ? (found - 1) % GPU_WEIGHT_PARTS : 0 };
        if (!out.weight || !out.weight->tiles) continue;
        for (size_t i = 0; i < out.part; i++) out.first_row += (uint32_t)out.weight->parts[i].weight.ne[1];
        return out;
    }
    return (gpu_weight_part){ 0 };
}

const gpu_weight *gpu_backend_weight(const gpu_backend *b, const tensor *t) {
    const gpu_weight_part found = gpu_backend_part(b, t);
    return found.part ? NULL : found.weight;
}

fuse_options gpu_backend_fusion(const gpu_backend *b, size_t tokens, size_t outputs) {
    const uint64_t  padding = 1 << 16; /* planes are a little larger than the tensors that they hold */
    const gpu_info *info = gpu_host_info(b->host);
    if (info->exact) return (fuse_options){ .plain = true, .clips = true, .most_bytes = info->max_binding - padding };
    return (fuse_options){ .one_token = tokens == 1,
                           .one_output = outputs == 1,
                           .clips = tokens > 1,
                           .few_tokens = tokens && gpu_few_columns(info, (uint32_t)tokens),
                           .few_outputs = outputs && gpu_few_columns(info, (uint32_t)outputs),
                           .most_bytes = info->max_binding - padding,
                           .most_column = gpu_matvec_most_column(info) };
}

/* A canvas's table in several tiles: each but the last consists of whole chunks, whose sums then are the CPU's. */
static void lay_out_whole_chunks(weight_layout *l) {
    if (l->experts > 1 || l->tiles < 2 || l->tile_rows <= CANVAS_CHUNK) return;
    l->tile_rows -= l->tile_rows % CANVAS_CHUNK;
    l->tiles = (l->rows + l->tile_rows - 1) / l->tile_rows;
}

/* The budget says which weights stay in main memory. Joined parts are uploaded into the slot as one tile. */
static gm_status lay_out(gpu_backend *b, gpu_weight *w, const tensor *first, const uint64_t ne[3], error *e) {
    const budget_weight *plan = b->budget ? gpu_budget_weight(b->budget, first) : NULL;
    uint64_t             most = gpu_host_info(b->host)->max_binding;
    w->gathered = plan && plan->out && plan->table;
    w->cached = plan && plan->out && plan->kind == BUDGET_EXPERTS;
    w->streamed = plan && plan->out && plan->kind != BUDGET_TABLES && !w->cached;
    if (w->streamed && w->part_count == 1 && plan->slot < most) most = plan->slot;
    TRY(weight_layout_make(&w->like, first->type, ne, most, e));
    const uint64_t slots[3] = { ne[0], ne[1], w->cached ? b->budget->slots : ne[2] };
    TRY(weight_layout_make(&w->layout, first->type, slots, most, e));
    if (!gpu_host_info(b->host)->exact) return GM_OK;
    lay_out_whole_chunks(&w->like);
    lay_out_whole_chunks(&w->layout);
    return GM_OK;
}

static gm_status add_matrix(gpu_backend *b, gpu_weight *w, tensor *const *parts, error *e) {
    uint64_t ne[3] = { parts[0]->ne[0], 0, parts[0]->ne[2] };
    w->matrix = true;
    for (size_t i = 0; i < GPU_WEIGHT_PARTS && parts[i]; i++) {
        const tensor *t = parts[i];
        w->parts[w->part_count].weight = *t;
        w->parts[w->part_count++].bytes =
            quant_row_bytes(quant_format_of((uint32_t)t->type), t->ne[0]) * t->ne[1] * t->ne[2];
        ne[1] += t->ne[1];
    }
    return lay_out(b, w, parts[0], ne, e);
}

/* A vector, or several one after the other. */
static void add_vector(gpu_weight *w, tensor *const *parts) {
    w->layout = (weight_layout){ .type = TYPE_F32, .rows = 1, .experts = 1, .tiles = 1 };
    for (size_t i = 0; i < GPU_WEIGHT_PARTS && parts[i]; i++) {
        w->parts[w->part_count].weight = *parts[i];
        w->parts[w->part_count++].bytes = parts[i]->ne[0] * sizeof(float);
        w->layout.k += (uint32_t)parts[i]->ne[0];
    }
}

/* Whether a weight has these parts one after the other. */
static bool parts_are_there(const gpu_backend *b, tensor *const *parts) {
    const gpu_weight_part first = gpu_backend_part(b, parts[0]);
    bool                  all = first.weight != NULL;
    for (size_t i = 1; i < GPU_WEIGHT_PARTS && parts[i] && all; i++) {
        all = first.part + i < first.weight->part_count &&
              tensor_same_weight(&first.weight->parts[first.part + i].weight, parts[i]);
    }
    return all;
}

/* `parts` are the parts of a matrix or of a vector: up to three, then NULL. */
static gm_status add_weight(gpu_backend *b, tensor *const *parts, bool matrix, error *e) {
    gpu_weight_set *set = b->sets;
    if (parts_are_there(b, parts)) return GM_OK;
    gpu_weight *w = &set->weights[set->count];
    *w = (gpu_weight){ 0 };
    if (!matrix) add_vector(w, parts);
    else TRY(add_matrix(b, w, parts, e));
    w->tiles = calloc(w->layout.tiles, sizeof *w->tiles);
    if (!w->tiles) return fail_memory(e, "a weight's tiles", w->layout.tiles * sizeof *w->tiles);
    for (size_t i = 0; i < w->part_count; i++) {
        uint32_t *slot = &set->slots[weight_set_slot(set, &w->parts[i].weight)];
        if (!*slot) *slot = (uint32_t)(1 + set->count * GPU_WEIGHT_PARTS + i);
    }
    set->count++;
    w->first_flag = b->flag_count;
    if (matrix) {
        b->flag_count += w->layout.tiles;
        b->staging_least = max_size(b->staging_least, weight_staging_least(&w->layout));
    }
    for (size_t i = 0; i < w->part_count; i++) {
        if (!w->gathered && !w->streamed && !w->cached) b->total += w->parts[i].bytes;
        if (matrix) b->lanes.bytes = max_size(b->lanes.bytes, budget_staging(&w->layout, w->parts[i].bytes));
    }
    return GM_OK;
}

static gm_status add_weights_of(gpu_backend *b, const op *o, error *e) {
    const bool back = o->kind == OP_MATMUL_BACK || o->kind == OP_MATMUL_EXPERTS_BACK || o->kind == OP_CANVAS_HEAD;
    if (o->kind == OP_EMBED || o->kind == OP_PRODUCTS || back) {
        tensor *parts[GPU_WEIGHT_PARTS + 1] = { o->in[0] };
        if (o->kind == OP_PRODUCTS) memcpy(parts, o->in, GPU_WEIGHT_PARTS * sizeof *parts);
        TRY(add_weight(b, parts, true, e));
        if (o->kind == OP_PRODUCTS && o->in[FUSED_ROUTES]) TRY(expert_cache_add(b, o, e));
    }
    if (o->kind == OP_SHRINKS) {
        tensor *const parts[GPU_WEIGHT_PARTS + 1] = { o->in[FUSED_W0], o->in[FUSED_W1], o->in[FUSED_W2] };
        TRY(add_weight(b, parts, false, e));
    }
    const bool   joined = o->kind == OP_PRODUCTS || o->kind == OP_SHRINKS;
    const size_t first = joined ? FUSED_A : o->kind == OP_EMBED || back;
    for (size_t j = first; j < OP_INPUTS; j++) {
        tensor *parts[] = { o->in[j], NULL };
        if (o->in[j] && o->in[j]->kind == TENSOR_WEIGHT) TRY(add_weight(b, parts, false, e));
    }
    return GM_OK;
}

static gpu_weight_set *weight_set_new(gpu_backend *b, const graph *g, error *e) {
    const size_t    most = 3 * g->op_count + 1;
    gpu_weight_set *set = calloc(1, sizeof *set);
    if (set) {
        *set = (gpu_weight_set){ .next = b->sets, .g = g, .slot_count = 2 * GPU_WEIGHT_PARTS * most + 1 };
        set->weights = calloc(most, sizeof *set->weights);
        set->slots = calloc(set->slot_count, sizeof *set->slots);
    }
    if (!set || !set->weights || !set->slots) {
        if (set) weight_set_free(b, set);
        fail_memory(e, "the table of weights", most * sizeof *set->weights);
        return NULL;
    }
    return b->sets = set;
}

gm_status gpu_backend_list_weights(gpu_backend *b, const graph *g, error *e) {
    const fuse_options options = gpu_backend_fusion(b, 0, 0);
    graph              fused;
    TRY(graph_fuse(g, &options, &fused, e));
    gpu_weight_set *set = weight_set_new(b, g, e);
    gm_status       status = set ? GM_OK : e->status;
    for (size_t i = 0; i < fused.op_count && !status; i++) status = add_weights_of(b, &fused.ops[i], e);
    for (size_t i = 0; set && i < set->count; i++) {
        if (!set->weights[i].matrix) set->weights[i].like = set->weights[i].layout;
    }
    if (status && set) {
        b->sets = set->next;
        weight_set_free(b, set);
    }
    graph_free(&fused);
    return status;
}

/* ---- releasing ---- */

static bool graph_uses(const graph *g, const gpu_weight *w) {
    for (size_t i = 0; i < g->op_count; i++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *t = g->ops[i].in[j];
            for (size_t part = 0; t && t->kind == TENSOR_WEIGHT && part < w->part_count; part++) {
                if (tensor_same_weight(t, &w->parts[part].weight)) return true;
            }
        }
    }
    return false;
}

static bool weight_is_used(const gpu_backend *b, const gpu_weight *w) {
    for (const gpu_weight_set *set = b->sets; set; set = set->next) {
        if (!set->released && graph_uses(set->g, w)) return true;
    }
    return false;
}

/* Forgets the pieces that are under way, and the answer about damage: the next upload has other flags. */
static void backend_stop_upload(gpu_backend *b) {
    gpu_backend_stream_restart(b);
    if (b->flag_ticket) gpu_ticket_done(b->host, b->flag_ticket);
    b->flag_ticket = 0;
}

void gpu_backend_release(gpu_backend *b, const graph *g) {
    for (gpu_weight_set *set = b->sets; set; set = set->next) {
        if (set->g != g || set->released) continue;
        if (set->begun && !set->complete) backend_stop_upload(b);
        set->released = set->complete = true;
    }
    for (gpu_weight_set **at = &b->sets; *at;) {
        gpu_weight_set *set = *at;
        size_t          left = 0;
        for (size_t i = 0; i < set->count; i++) {
            if (set->released && !weight_is_used(b, &set->weights[i])) weight_free(b, &set->weights[i]);
            left += set->weights[i].tiles != NULL;
        }
        if (set->released && !left) {
            *at = set->next;
            weight_set_free(b, set);
        } else at = &set->next;
    }
}

/* ---- buffers for uploading ---- */

static gm_status backend_create_staging(gpu_backend *b, error *e) {
    const gpu_id   before[] = { b->lanes.buffer, b->piece, b->flags };
    const uint64_t slot = b->budget ? b->budget->slot : 0;
    for (size_t i = 0; i < COUNT_OF(before); i++) {
        if (before[i]) gpu_buffer_free(b->host, before[i]);
    }
    b->piece = b->flags = 0;
    b->next_weight = b->next_tile = b->next_chunk = 0;
    b->lanes.buffer = 0;
    TRY(gpu_lanes_make(b, &b->lanes, GPU_LANES, max_size(b->lanes.bytes, 256), e));
    b->flags_made = (uint32_t)max_size(b->flag_count, 4);
    b->flags = gpu_buffer_new(b->host, b->flags_made * sizeof(uint32_t), e);
    if (!b->flags) return e->status;
    if (slot && !b->slot) b->slot = gpu_buffer_new(b->host, slot, e);
    if (slot && !b->slot) return e->status;
    b->piece = gpu_buffer_new(b->host, WEIGHT_PIECE_WORDS * sizeof(uint32_t), e);
    return b->piece ? expert_cache_make(b, e) : e->status;
}

bool gpu_backend_is_busy(const gpu_backend *b, const graph *g) {
    for (const gpu_weight_set *set = b->sets; set; set = set->next) {
        if (set->begun && !set->complete && set->g != g) return true;
    }
    return false;
}

gpu_weight_set *gpu_backend_set(const gpu_backend *b, const graph *g) {
    gpu_weight_set *set = b->sets;
    while (set && (set->g != g || set->released)) set = set->next;
    return set;
}

gm_status gpu_backend_find_weights(gpu_backend *b, const graph *g, error *e) {
    if (gpu_backend_is_busy(b, g)) return fail(e, GM_BAD_ARGUMENT, "the weights of another graph are being uploaded");
    gpu_backend_stream_restart(b); /* a run that streams begins its piece again */
    if (!gpu_backend_set(b, g)) TRY(gpu_backend_list_weights(b, g, e));
    const gm_status status = backend_create_staging(b, e);
    if (status) gpu_backend_release(b, g);
    else gpu_backend_set(b, g)->begun = true;
    return status;
}

gm_status gpu_weight_create_buffers(gpu_backend *b, gpu_weight *w, error *e) {
    for (uint32_t tile = 0; tile < w->layout.tiles && !w->gathered && !w->streamed; tile++) {
        const uint64_t vector = round_up((uint64_t)w->layout.k * sizeof(float), 16);
        const uint64_t bytes = w->matrix ? weight_tile_of(&w->layout, tile).bytes : vector;
        w->tiles[tile] = gpu_buffer_new(b->host, bytes, e);
        if (!w->tiles[tile]) return e->status;
    }
    return GM_OK;
}

gm_status gpu_backend_reserve(gpu_backend *b, const graph *g, error *e) {
    TRY(gpu_backend_list_weights(b, g, e));
    gpu_weight_set *set = gpu_backend_set(b, g);
    gm_status       status = GM_OK;
    set->complete = true;
    for (size_t i = 0; i < set->count && !status; i++) {
        const gpu_weight *w = &set->weights[i];
        for (size_t part = 0; part < w->part_count; part++) {
            const tensor *t = &w->parts[part].weight;
            set->complete = set->complete && !w->matrix && !t->data && !t->from;
        }
        status = gpu_weight_create_buffers(b, &set->weights[i], e);
    }
    for (size_t i = 0; i < set->count && set->complete && !status; i++)
        b->uploaded += (uint64_t)set->weights[i].layout.k * sizeof(float);
    if (status) gpu_backend_release(b, g);
    return status;
}
