/* Records a plan: the kernels of each op, their pipelines and bind groups, and the command list that every run submits. */

#include "gpu/experts.h"
#include "gpu/generator.h"
#include "gpu/kernel_build.h"
#include "gpu/plan.h"
#include "gpu/streaming.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table of bindings of an op ---- */

static gpu_binding item_binding(const gpu_plan *p, int32_t item) {
    if (item < 0) return (gpu_binding){ 0 };
    const uint64_t at = p->items[item].offset;
    return (gpu_binding){ 0, plan_memory(p, at), at % p->segment, p->items[item].bytes };
}

static gpu_binding value_binding(const gpu_plan *p, const tensor *t) {
    return t && t->kind == TENSOR_VALUE ? item_binding(p, (int32_t)plan_base(t)->index) : (gpu_binding){ 0 };
}

static gpu_binding vector_binding(const gpu_plan *p, const tensor *t) {
    const gpu_weight *w = gpu_backend_weight(p->backend, t);
    if (!w || w->matrix) return (gpu_binding){ 0 };
    return (gpu_binding){ 0, w->tiles[0], 0, round_up((uint64_t)w->layout.k * sizeof(float), 16) };
}

static gpu_binding input_binding(const gpu_plan *p, size_t i, size_t input) {
    const op     *o = &p->g.ops[i];
    const tensor *t = o->in[input];
    if (!t) return (gpu_binding){ 0 };
    if (t->kind == TENSOR_WEIGHT) return vector_binding(p, t);
    gpu_binding out = value_binding(p, t);
    if (p->ops[i].aligned && input == (o->kind == OP_GEGLU ? 1 : FUSED_OTHER)) {
        const uint64_t skipped = (t->offset - plan_beyond_alignment(t)) * sizeof(float);
        out.offset += skipped;
        out.bytes -= skipped;
    }
    return out;
}

static void plan_fill_table(const gpu_plan *p, size_t i, gpu_binding table[PLAN_BINDS]) {
    const op           *o = &p->g.ops[i];
    const plan_op      *d = &p->ops[i];
    const gpu_kv_layer *kv = plan_kv(p, o).head ? &p->kv[o->layer] : NULL;
    for (size_t j = 0; j < OP_INPUTS; j++) table[BIND_IN + j] = input_binding(p, i, j);
    table[BIND_OUT] = value_binding(p, o->out);
    table[BIND_SUM] = value_binding(p, o->sum);
    table[BIND_WEIGHTS] = table[BIND_NUMBERS] = (gpu_binding){ 0 }; /* filled in for each tile, and when first needed */
    table[BIND_QUANTISED] = item_binding(p, d->quantised);
    table[BIND_GROUPS] = item_binding(p, d->grouped);
    table[BIND_PARTIAL] = item_binding(p, d->partial);
    table[BIND_RUN] = (gpu_binding){ 0, p->run, 0, plan_run_bytes(p->tokens) };
    table[BIND_SLOTS] = item_binding(p, d->slotted);
    table[BIND_SLOT_TABLE] = (gpu_binding){ 0 };
    table[BIND_SLOT_REPORT] = (gpu_binding){ 0, p->report, 0, EXPERT_REPORT_WORDS * sizeof(uint32_t) };
    table[BIND_GUARD] = (gpu_binding){ 0, p->run, 0, RUN_HEADER_WORDS * sizeof(uint32_t) };
    if (d->makes_slotted) table[BIND_SLOT_TABLE] = expert_cache_binding(p->backend, d->weight);
    table[BIND_ROWS] = (gpu_binding){ 0, p->rows, 0, round_up(p->outputs * 4, 16) };
    table[BIND_KEYS] = kv ? (gpu_binding){ 0, kv->k, 0, kv->bytes } : (gpu_binding){ 0 };
    table[BIND_VALUES] = kv ? (gpu_binding){ 0, kv->v, 0, kv->bytes } : (gpu_binding){ 0 };
}

/* ---- dispatches ---- */

static gpu_id plan_pipeline_of(gpu_plan *p, const gpu_kernel *k, error *e) {
    const uint64_t hash = gpu_kernel_hash(k);
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

static void kernel_bindings(const gpu_kernel *k, const gpu_binding *table, gpu_binding bindings[KERNEL_BINDS]) {
    for (uint32_t i = 0; i < k->bind_count; i++) {
        bindings[i] = table[k->binds[i]];
        bindings[i].binding = i;
    }
}

gpu_id plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *table, error *e) {
    gpu_binding bindings[KERNEL_BINDS];
    kernel_bindings(k, table, bindings);
    const gpu_id pipeline = plan_pipeline_of(p, k, e);
    const gpu_id group = pipeline ? gpu_group_new(p->backend->host, pipeline, bindings, k->bind_count, e) : 0;
    if (group) gpu_words_dispatch(words, pipeline, group, k->x, k->y, k->z);
    return group;
}

/* ---- keys and values ---- */

static bool kernel_has_bind(const gpu_kernel *k, uint8_t range) {
    return memchr(k->binds, range, k->bind_count) != NULL;
}

static bool kernel_binds_kv(const gpu_kernel *k) {
    return kernel_has_bind(k, BIND_KEYS) || kernel_has_bind(k, BIND_VALUES);
}

/* Notes the dispatch that was recorded last, so that plan_rebind finds it. */
static gm_status plan_note_kv(gpu_plan *p, uint32_t layer, const gpu_kernel *k, const gpu_binding *table, error *e) {
    if (p->kv_count == p->kv_capacity) {
        const size_t      capacity = p->kv_capacity ? 2 * p->kv_capacity : 64;
        plan_kv_dispatch *more = realloc(p->kv_dispatches, capacity * sizeof *more);
        if (!more) return fail_memory(e, "a plan's attentions", capacity * sizeof *more);
        p->kv_dispatches = more;
        p->kv_capacity = capacity;
    }
    plan_kv_dispatch *d = &p->kv_dispatches[p->kv_count++];
    *d = (plan_kv_dispatch){ .at = p->words.count - 4, /* of pipeline, group, x, y, z */
                             .group = p->group_count - 1,
                             .layer = layer,
                             .count = k->bind_count };
    d->pipeline = p->words.failed ? 0 : p->words.data[p->words.count - 5];
    memcpy(d->binds, k->binds, sizeof d->binds);
    kernel_bindings(k, table, d->bindings);
    return GM_OK;
}

static gm_status kv_dispatch_bind(gpu_plan *p, plan_kv_dispatch *d, const gpu_kv_layer *kv, error *e) {
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->binds[i] == BIND_KEYS) d->bindings[i] = (gpu_binding){ i, kv->k, 0, kv->bytes };
        if (d->binds[i] == BIND_VALUES) d->bindings[i] = (gpu_binding){ i, kv->v, 0, kv->bytes };
    }
    const gpu_id group = gpu_group_new(p->backend->host, d->pipeline, d->bindings, d->count, e);
    if (!group) return e->status;
    gpu_group_free(p->backend->host, p->groups[d->group]);
    p->groups[d->group] = p->words.data[d->at] = group;
    return GM_OK;
}

static bool same_buffers(const gpu_kv_layer *a, const gpu_kv_layer *b) {
    return a->k == b->k && a->v == b->v && a->bytes == b->bytes;
}

gm_status gpu_plan_bind(gpu_plan *p, const gpu_kv_layer *kv, error *e) {
    bool moved = false;
    for (size_t i = 0; i < p->layers; i++) moved |= !same_buffers(&p->kv[i], &kv[i]);
    if (!moved) return GM_OK;
    if (!gpu_plan_serves(p, kv)) return fail(e, GM_BAD_ARGUMENT, "the plan is for keys and values of another shape");
    for (size_t i = 0; i < p->kv_count; i++) {
        plan_kv_dispatch *d = &p->kv_dispatches[i];
        if (same_buffers(&p->kv[d->layer], &kv[d->layer])) continue;
        const gm_status status = kv_dispatch_bind(p, d, &kv[d->layer], e);
        for (size_t j = 0; j < p->layers && status; j++) p->kv[j].k = 0; /* half are bound: the next call binds all */
        if (status) return status;
    }
    memcpy(p->kv, kv, p->layers * sizeof *kv);
    p->rebinds++;
    return GM_OK;
}

/* What an op records: it, and its table. */
typedef struct {
    gpu_plan   *plan;
    size_t      index;
    gpu_binding table[PLAN_BINDS];
} op_recorder;

static gm_status plan_keep_group(gpu_plan *p, gpu_id group, error *e) {
    if (p->group_count == p->group_capacity) {
        const size_t capacity = p->group_capacity ? 2 * p->group_capacity : 256;
        gpu_id      *groups = realloc(p->groups, capacity * sizeof *groups);
        if (!groups) {
            gpu_group_free(p->backend->host, group);
            return fail_memory(e, "bind groups", capacity * sizeof *groups);
        }
        p->groups = groups;
        p->group_capacity = capacity;
    }
    p->groups[p->group_count++] = group;
    return GM_OK;
}

/* Notes that the y of the last dispatch depends on the run's spans. */
static gm_status plan_note_tiles(gpu_plan *p, const gpu_kernel *k, error *e) {
    if (p->tiles_count == p->tiles_capacity) {
        const size_t capacity = p->tiles_capacity ? 2 * p->tiles_capacity : 64;
        plan_tiles  *tiles = realloc(p->tiles, capacity * sizeof *tiles);
        if (!tiles) return fail_memory(e, "a plan's tiles", capacity * sizeof *tiles);
        p->tiles = tiles;
        p->tiles_capacity = capacity;
    }
    p->tiles[p->tiles_count++] = (plan_tiles){ p->words.count - 2, k->tile_queries, k->token_queries };
    return GM_OK;
}

/* Notes the end of the last dispatch. Its op's work is divided among all of its dispatches later. */
static gm_status plan_note_step(gpu_plan *p, error *e) {
    if (p->dispatches == p->step_capacity) {
        const size_t capacity = p->step_capacity ? 2 * p->step_capacity : 256;
        plan_step   *steps = realloc(p->steps, capacity * sizeof *steps);
        if (!steps) return fail_memory(e, "a plan's steps", capacity * sizeof *steps);
        p->steps = steps;
        p->step_capacity = capacity;
    }
    p->steps[p->dispatches++] = (plan_step){ .end = p->words.count };
    return GM_OK;
}

/* Records a dispatch. After a halt nothing may be stored, so kernels are guarded, except for those that halt: they write the run. */
static gm_status op_dispatch(op_recorder *r, const gpu_kernel *kernel, error *e) {
    gpu_plan  *p = r->plan;
    gpu_kernel own = *kernel, *k = &own;
    own.guarded = p->guarded && !kernel_has_bind(kernel, BIND_SLOT_REPORT) && p->g.ops[r->index].kind != OP_CANVAS_NEXT;
    if (own.guarded) kernel_bind(&own, BIND_GUARD);
    if (p->visit && plan_is_ahead(p, r->index)) return GM_OK; /* a wrong prediction costs time only */
    if (p->visit) return p->visit(p->visit_user, &p->g, &p->g.ops[r->index], k), GM_OK;
    gpu_binding *numbers = &r->table[BIND_NUMBERS];
    if (k->number_count && !numbers->buffer) { /* all tiles of an op share them */
        uint32_t words[KERNEL_NUMBERS];
        memcpy(words, k->numbers, sizeof words);
        *numbers = (gpu_binding){ 0, p->numbers, p->number_count++ * PLAN_ALIGNMENT, sizeof words };
        gpu_words_write(&p->number_words, p->numbers, numbers->offset, words, KERNEL_NUMBERS);
    }
    const bool   ahead = plan_is_ahead(p, r->index);
    const gpu_id group = plan_dispatch(p, ahead ? &p->ahead_words : &p->words, k, r->table, e);
    if (!group) return e->status;
    TRY(plan_keep_group(p, group, e));
    if (ahead) return GM_OK;
    TRY(plan_note_step(p, e));
    if (k->tile_queries) TRY(plan_note_tiles(p, k, e));
    return kernel_binds_kv(k) ? plan_note_kv(p, p->g.ops[r->index].layer, k, r->table, e) : GM_OK;
}

/* ---- ops ---- */

static gm_status record_embed(op_recorder *r, error *e) {
    gpu_plan         *p = r->plan;
    const op         *o = &p->g.ops[r->index];
    const gpu_weight *w = p->ops[r->index].weight;
    if (w->gathered) return streaming_gather(p, o, e);
    for (uint32_t tile = 0; tile < w->layout.tiles; tile++) {
        gpu_kernel          k = { 0 };
        const gpu_embed_job job = { .table = &w->layout,
                                    .tile = tile,
                                    .tokens = p->tokens,
                                    .factor = o->factor,
                                    .given = o->given,
                                    .by_position = o->by_position,
                                    .by_value = o->in[1] != NULL,
                                    .y = plan_place(o->out) };
        gpu_embed_kernel(&k, gpu_host_info(p->backend->host), &job);
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, w->tiles[tile], 0, weight_tile_of(&w->layout, tile).bytes };
        TRY(op_dispatch(r, &k, e));
    }
    return GM_OK;
}

/* Dispatches what a product needs first: the slots of its experts, its input in 8 bits, and the pairs grouped by expert. A run that returns to
 * the experts does so from the slots on. */
static gm_status record_product_inputs(op_recorder *r, error *e) {
    gpu_plan      *p = r->plan;
    const op      *o = &p->g.ops[r->index];
    const plan_op *d = &p->ops[r->index];
    const tensor  *x = o->in[product_column(o)];
    const bool     whole = op_is_attention_back(o); /* the heads of a token are one row */
    if (d->makes_slotted) {
        gpu_kernel   k = { 0 };
        const size_t at = p->words.count;
        TRY(gpu_slots_kernel(o, &k, e));
        TRY(op_dispatch(r, &k, e));
        if (!p->visit) TRY(streaming_ask(p, d->weight->expert_layer, at, e));
    }
    if (d->slotted >= 0) r->table[BIND_IN + FUSED_ROUTES] = r->table[BIND_SLOTS];
    if (d->makes_quantised) {
        gpu_kernel             k = { 0 };
        const gpu_quantise_job job = { .input = (uint32_t)product_column(o),
                                       .k = (uint32_t)(whole ? x->ne[0] * x->ne[1] : x->ne[0]),
                                       .rows = whole ? 1 : (uint32_t)x->ne[1],
                                       .tokens = plan_count(p, x),
                                       .outputs = x->axis == AXIS_OUTPUTS,
                                       .factored = o->factored,
                                       .x = plan_place(x),
                                       .clips = plan_clips(o) };
        gpu_quantise_kernel(&k, gpu_host_info(p->backend->host), &job);
        if (o->kind == OP_CANVAS_HEAD) k.binds[0] = BIND_IN + 1;
        TRY(op_dispatch(r, &k, e));
    }
    if (d->makes_grouped) {
        gpu_kernel       k = { 0 };
        const gpu_groups groups = plan_groups(p, r->index);
        TRY(gpu_group_kernel(&groups, product_routes(o), &k, e));
        TRY(op_dispatch(r, &k, e));
    }
    return GM_OK;
}

static gm_status record_product(op_recorder *r, error *e) {
    gpu_plan         *p = r->plan;
    const op         *o = &p->g.ops[r->index];
    const gpu_weight *w = p->ops[r->index].weight;
    TRY(record_product_inputs(r, e));
    for (uint32_t tile = 0; tile < w->layout.tiles; tile++) {
        gpu_kernel           k[2] = { { 0 }, { 0 } };
        const gpu_matmul_job job = plan_product_job(p, r->index, tile);
        const size_t         count = gpu_matmul_kernels(k, gpu_host_info(p->backend->host), &job);
        const gpu_id         weights = w->streamed ? p->backend->slot : w->tiles[tile];
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, weights, 0, weight_tile_of(&w->layout, tile).bytes };
        if (w->streamed && !p->visit) TRY(streaming_cut(p, w, tile, e));
        for (size_t i = 0; i < count; i++) TRY(op_dispatch(r, &k[i], e));
    }
    if (w->streamed && !p->visit) TRY(streaming_resume(p, e));
    const gpu_corrections corrections = plan_corrections(p, o);
    streaming_section_ends(p, r->index);
    if (!corrections.slots || gpu_few_columns(gpu_host_info(p->backend->host), plan_count(p, o->in[FUSED_A])))
        return GM_OK;
    const gpu_kernel correct = gpu_correct_kernel(o, &corrections, plan_count(p, o->out));
    return op_dispatch(r, &correct, e);
}

/* A product with transposed weights: each tile of them has a part of the sums. */
static gm_status record_product_back(op_recorder *r, error *e) {
    gpu_plan          *p = r->plan;
    const gpu_info    *info = gpu_host_info(p->backend->host);
    const gpu_weight  *w = p->ops[r->index].weight;
    const gpu_back_job job = plan_back_job(p, r->index);
    gpu_kernel         k = { 0 };
    uint32_t           parts = 0;
    TRY(record_product_inputs(r, e));
    for (uint32_t tile = 0; tile < w->layout.tiles; tile++) {
        parts += gpu_back_kernel(&k, info, &job, tile, parts);
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, w->tiles[tile], 0, weight_tile_of(&w->layout, tile).bytes };
        TRY(op_dispatch(r, &k, e));
    }
    if (job.used || parts < 2) return GM_OK;
    gpu_matmul_sum_kernel(
        &k, &(gpu_sum_job){
                .rows = job.weights->k, .splits = parts, .tokens = job.tokens, .outputs = job.outputs, .y = job.y });
    return op_dispatch(r, &k, e);
}

static gm_status record_attention_back(op_recorder *r, error *e) {
    gpu_plan                    *p = r->plan;
    const gpu_attention_back_job job = plan_attention_back_job(p, r->index);
    gpu_kernel                   k[2] = { { 0 }, { 0 } };
    size_t                       count;
    TRY(record_product_inputs(r, e));
    TRY(gpu_attention_back_kernels(gpu_host_info(p->backend->host), &p->g.ops[r->index], &job, k, &count, e));
    for (size_t i = 0; i < count; i++) TRY(op_dispatch(r, &k[i], e));
    return GM_OK;
}

/* CANVAS_HEAD: chunk by chunk. Each chunk has numbers of its own. */
static gm_status record_canvas(op_recorder *r, error *e) {
    gpu_plan            *p = r->plan;
    const gpu_info      *info = gpu_host_info(p->backend->host);
    const gpu_weight    *w = p->ops[r->index].weight;
    const gpu_canvas_job job = plan_canvas_job(p, r->index);
    TRY(record_product_inputs(r, e));
    for (uint32_t tile = 0; tile < w->layout.tiles; tile++) {
        const uint32_t chunks = gpu_canvas_chunks(info, &job, tile);
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, w->tiles[tile], 0, weight_tile_of(&w->layout, tile).bytes };
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            gpu_kernel k[CANVAS_KERNELS];
            gpu_canvas_kernels(k, info, &job, tile, chunk);
            r->table[BIND_NUMBERS] = (gpu_binding){ 0 };
            for (size_t i = 0; i < CANVAS_KERNELS; i++) TRY(op_dispatch(r, &k[i], e));
        }
    }
    const gpu_kernel finish = gpu_canvas_finish_kernel(info, &job);
    return op_dispatch(r, &finish, e);
}

/* How many dispatches may have numbers of their own. */
static size_t plan_most_numbers(const gpu_plan *p) {
    size_t count = p->g.op_count + 1;
    for (size_t i = 0; i < p->g.op_count; i++) {
        if (p->g.ops[i].kind != OP_CANVAS_HEAD) continue;
        const gpu_canvas_job job = plan_canvas_job(p, i);
        for (uint32_t tile = 0; tile < job.weights->tiles; tile++)
            count += gpu_canvas_chunks(gpu_host_info(p->backend->host), &job, tile);
    }
    return count;
}

/* A kernel for an aligned second input: its offset counts from where it is bound. */
static gm_status geglu_kernel(const gpu_plan *p, size_t i, gpu_kernel *k, error *e) {
    op     nearer = p->g.ops[i];
    tensor second = *nearer.in[1];
    if (p->ops[i].aligned) {
        second.offset = plan_beyond_alignment(&second);
        nearer.in[1] = &second;
    }
    return gpu_op_kernel(&nearer, p->tokens, p->outputs, k, e);
}

/* The kernel that combines the splits of this attention also computes a SHRINKS. */
static void plan_add_shrinks(const gpu_plan *p, const op *attention, gpu_kernel *k) {
    const tensor *shrunk = attention->in[FUSED_EXPAND0 + 1];
    for (size_t i = 0; i < p->g.op_count && shrunk; i++) {
        if (p->g.ops[i].kind == OP_SHRINKS && p->g.ops[i].out == shrunk)
            gpu_attention_shrinks(k, attention, (uint32_t)plan_shrunk_stride(p, i));
    }
}

static gm_status record_op(gpu_plan *p, size_t i, error *e) {
    const op    *o = &p->g.ops[i];
    op_recorder  r = { .plan = p, .index = i };
    const gpu_kv kv = plan_kv(p, o);
    gpu_kernel   k[OP_INPUTS] = { { 0 } };
    size_t       count = 1;
    if (!p->visit) plan_fill_table(p, i, r.table);
    switch ((int)o->kind) {
    case OP_LEAF: return GM_OK;
    case OP_EMBED: return record_embed(&r, e);
    case OP_CANVAS_HEAD: return record_canvas(&r, e);
    case OP_PRODUCTS: return record_product(&r, e);
    case OP_MATMUL_BACK:
    case OP_MATMUL_EXPERTS_BACK: return record_product_back(&r, e);
    case OP_ATTENTION_BACK_Q:
    case OP_ATTENTION_BACK_KV: return record_attention_back(&r, e);
    case OP_CONCAT: count = gpu_concat_kernels(k, o, plan_count(p, o->out)); break;
    case OP_KV_STORE: TRY(gpu_kv_store_kernel(o, &kv, p->tokens, k, e)); break;
    case OP_ATTENTION:
    case OP_ATTEND:
        TRY(gpu_attention_kernels(gpu_host_info(p->backend->host), o, &kv, plan_alike(p, p->tokens), p->ops[i].splits,
                                  k, &count, e));
        if (count == 2) k[1].y = p->tokens; /* what adds up the splits has a workgroup for each token */
        if (count == 2) plan_add_shrinks(p, o, &k[1]);
        break;
    case OP_SHRINKS:
        if (p->ops[i].by_attention) return GM_OK;
        k[0] = gpu_shrinks_kernel(o, p->tokens, p->ops[i].q8, p->ops[i].column == COLUMN_GIVEN,
                                  (uint32_t)max_size(p->ops[i].parts, 1), (uint32_t)plan_shrunk_stride(p, i));
        break;
    case OP_NORMS: k[0] = gpu_norms_kernel(o, p->tokens, p->outputs, p->ops[i].quantises); break;
    case OP_HEADS:
    case OP_MIX: TRY(gpu_fused_kernel(o, &kv, p->tokens, k, e)); break;
    case OP_GEGLU: TRY(geglu_kernel(p, i, k, e)); break;
    default: TRY(gpu_op_kernel(o, p->tokens, p->outputs, k, e)); break;
    }
    for (size_t n = 0; n < count; n++) TRY(op_dispatch(&r, &k[n], e));
    if (o->kind != OP_ROUTE || !plan_is_ahead(p, i)) return GM_OK;
    TRY(gpu_ahead_kernel(o, k, e));
    r.table[BIND_SLOT_TABLE] = expert_cache_binding(p->backend, p->ahead[i]);
    return op_dispatch(&r, k, e);
}

/* ---- the list ---- */

/* Large batches can exceed what a GPU binds. WebGPU would only say so later, and the session could not go on with smaller ones. */
static gm_status plan_check_bindings(const gpu_plan *p, error *e) {
    const uint64_t most = gpu_host_info(p->backend->host)->max_binding;
    for (size_t i = 0; i < p->item_count; i++) {
        if (p->items[i].bytes > most)
            return fail(e, GM_NO_MEMORY,
                        "a run of %u tokens has a value of %llu bytes, but this GPU binds at most %llu", p->tokens,
                        (unsigned long long)p->items[i].bytes, (unsigned long long)most);
    }
    return GM_OK;
}

static gm_status plan_create_memory(gpu_plan *p, error *e) {
    const uint64_t bytes = p->bytes ? p->bytes : PLAN_ALIGNMENT;
    if (bytes > PLAN_MEMORIES * p->segment)
        return fail(e, GM_NO_MEMORY, "a run of %u tokens takes %llu bytes of GPU memory", p->tokens,
                    (unsigned long long)bytes);
    for (uint64_t at = 0; at < bytes; at += p->segment) {
        const uint64_t left = bytes - at;
        gpu_id        *segment = &p->memory[at / p->segment];
        *segment = gpu_buffer_new(p->backend->host, left < p->segment ? left : p->segment, e);
        if (!*segment) return e->status;
    }
    return GM_OK;
}

static gm_status plan_create_buffers(gpu_plan *p, error *e) {
    gpu_host *h = p->backend->host;
    TRY(plan_check_bindings(p, e));
    TRY(plan_create_memory(p, e));
    p->run = gpu_buffer_new(h, plan_run_bytes(p->tokens), e);
    p->rows = p->run ? gpu_buffer_new(h, round_up(p->outputs * 4, 16), e) : 0;
    for (size_t i = 0; i < p->g.op_count && p->rows && !p->report; i++) {
        if (!p->ops[i].makes_slotted) continue;
        p->report =
            gpu_buffer_new(h, EXPERT_REPORT_WORDS * sizeof(uint32_t) + GENERATOR_ROWS * sizeof(sampler_record), e);
        if (!p->report) return e->status;
    }
    p->numbers = p->rows ? gpu_buffer_new(h, plan_most_numbers(p) * PLAN_ALIGNMENT, e) : 0;
    return p->numbers ? GM_OK : e->status;
}

/* The writes that every run fills in. */
static gm_status plan_record_inputs(gpu_plan *p, error *e) {
    const size_t run_words = (size_t)plan_run_bytes(min_size(p->tokens, PLAN_LISTED_TOKENS)) / sizeof(uint32_t);
    uint32_t    *zeros = calloc(max_size(run_words, p->outputs), sizeof *zeros);
    if (!zeros) return fail_memory(e, "a plan", run_words * sizeof *zeros);
    gpu_words_begin(&p->words);
    p->at_run = gpu_words_write(&p->words, p->run, 0, zeros, run_words);
    p->at_rows = gpu_words_write(&p->words, p->rows, 0, zeros, p->outputs);
    p->first_dispatch = p->words.count;
    free(zeros);
    return GM_OK;
}

static gm_status plan_record_result(gpu_plan *p, error *e) {
    p->end_dispatch = p->words.count;
    for (size_t i = 0; i < GRAPH_RESULTS && graph_result(&p->g, i); i++) {
        const tensor  *whole = plan_base(graph_result(&p->g, i));
        const uint64_t at = p->items[whole->index].offset;
        p->at_ticket[i] = gpu_words_read(&p->words, plan_memory(p, at), at % p->segment,
                                         plan_count(p, whole) * whole->token_stride * sizeof(float));
        p->end_read[i] = p->words.count;
    }
    if (p->words.failed || p->ahead_words.failed || p->number_words.failed)
        return fail_memory(e, "a command list", p->words.count * 4);
    return gpu_submit(p->backend->host, p->number_words.data, p->number_words.count, e);
}

gm_status plan_record(gpu_plan *p, error *e) {
    if (!p->visit) {
        TRY(plan_create_buffers(p, e));
        TRY(plan_record_inputs(p, e));
        gpu_words_begin(&p->number_words);
    }
    for (size_t i = 0; i < p->g.op_count; i++) {
        const size_t first = p->dispatches;
        if (!p->visit && i == p->g.split) p->split = first;
        TRY(record_op(p, i, e));
        for (size_t step = first; step < p->dispatches; step++)
            p->steps[step].work = plan_work(p, &p->g.ops[i]) / (double)(p->dispatches - first);
    }
    return p->visit ? GM_OK : plan_record_result(p, e);
}
