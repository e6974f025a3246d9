/* Records a plan: the kernels of each op, their pipelines and bind groups, and the command list that every run submits. */

#include "gpu/plan.h"
#include "gpu/streaming.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table of bindings of an op ---- */

static gpu_binding item_binding(const gpu_plan *p, int32_t item) {
    if (item < 0) return (gpu_binding){ 0 };
    return (gpu_binding){ 0, p->memory, p->items[item].offset, p->items[item].bytes };
}

static gpu_binding value_binding(const gpu_plan *p, const tensor *t) {
    return t ? item_binding(p, (int32_t)plan_base(t)->index) : (gpu_binding){ 0 };
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
    table[BIND_RUN] = (gpu_binding){ 0, p->run, 0, RUN_WORDS * 4 };
    table[BIND_IDS] = (gpu_binding){ 0, p->ids, 0, round_up(p->tokens * 4, 16) };
    table[BIND_ROWS] = (gpu_binding){ 0, p->rows, 0, round_up(p->outputs * 4, 16) };
    table[BIND_LAST_SEEN] = (gpu_binding){ 0, p->last_seen, 0, round_up(p->tokens * 4, 16) };
    table[BIND_KEYS] = kv ? (gpu_binding){ 0, kv->k, 0, kv->bytes } : (gpu_binding){ 0 };
    table[BIND_VALUES] = kv ? (gpu_binding){ 0, kv->v, 0, kv->bytes } : (gpu_binding){ 0 };
}

/* ---- dispatches ---- */

/* A kernel's strings are constants of the program, so comparing pointers and numbers is enough. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

static uint64_t kernel_hash(const gpu_kernel *k) {
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

static gpu_id plan_pipeline_of(gpu_plan *p, const gpu_kernel *k, error *e) {
    const uint64_t hash = kernel_hash(k);
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

gm_status gpu_plan_dispatch(gpu_plan *p, gpu_words *words, const gpu_kernel *k, const gpu_binding *table, error *e) {
    if (p->group_count == p->group_capacity) {
        const size_t capacity = p->group_capacity ? 2 * p->group_capacity : 256;
        gpu_id      *groups = realloc(p->groups, capacity * sizeof *groups);
        if (!groups) return fail_memory(e, "bind groups", capacity * sizeof *groups);
        p->groups = groups;
        p->group_capacity = capacity;
    }
    gpu_binding bindings[KERNEL_BINDS];
    for (uint32_t i = 0; i < k->bind_count; i++) {
        bindings[i] = table[k->binds[i]];
        bindings[i].binding = i;
    }
    const gpu_id pipeline = plan_pipeline_of(p, k, e);
    const gpu_id group = pipeline ? gpu_group_new(p->backend->host, pipeline, bindings, k->bind_count, e) : 0;
    if (!group) return e->status;
    p->groups[p->group_count++] = group;
    gpu_words_dispatch(words, pipeline, group, k->x, k->y, k->z);
    return GM_OK;
}

/* What an op records: it, and its table. */
typedef struct {
    gpu_plan   *plan;
    size_t      index;
    gpu_binding table[PLAN_BINDS];
} op_recorder;

static gm_status op_dispatch(op_recorder *r, const gpu_kernel *k, error *e) {
    gpu_plan *p = r->plan;
    if (p->visit) return p->visit(p->visit_user, &p->g, &p->g.ops[r->index], k), GM_OK;
    gpu_binding *numbers = &r->table[BIND_NUMBERS];
    if (k->number_count && !numbers->buffer) { /* all tiles of an op share them */
        uint32_t words[KERNEL_NUMBERS];
        memcpy(words, k->numbers, sizeof words);
        *numbers = (gpu_binding){ 0, p->numbers, p->number_count++ * PLAN_ALIGNMENT, sizeof words };
        gpu_words_write(&p->number_words, p->numbers, numbers->offset, words, KERNEL_NUMBERS);
    }
    if (!gpu_plan_dispatch(p, &p->words, k, r->table, e)) p->dispatches++;
    return e->status;
}

/* ---- ops ---- */

static gm_status record_embed(op_recorder *r, error *e) {
    gpu_plan         *p = r->plan;
    const op         *o = &p->g.ops[r->index];
    const gpu_weight *w = p->ops[r->index].weight;
    if (w->gathered) return streaming_gather(p, o, e);
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel          k = { 0 };
        const gpu_embed_job job = { .table = &w->layout,
                                    .tile = tile,
                                    .tokens = p->tokens,
                                    .factor = o->factor,
                                    .given = o->given,
                                    .y = plan_place(o->out) };
        gpu_embed_kernel(&k, gpu_host_info(p->backend->host), &job);
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, w->tiles[tile], 0, weight_tile_of(&w->layout, tile).bytes };
        op_dispatch(r, &k, e);
    }
    return e->status;
}

/* Dispatches what a product needs first: its input in 8 bits, and the pairs grouped by expert. */
static gm_status record_product_inputs(op_recorder *r, error *e) {
    const gpu_plan *p = r->plan;
    const op       *o = &p->g.ops[r->index];
    const plan_op  *d = &p->ops[r->index];
    const tensor   *x = o->in[FUSED_A];
    if (d->makes_quantised) {
        gpu_kernel             k = { 0 };
        const gpu_quantise_job job = { .k = (uint32_t)x->ne[0],
                                       .rows = (uint32_t)x->ne[1],
                                       .tokens = plan_count(p, x),
                                       .outputs = x->axis == AXIS_OUTPUTS,
                                       .x = plan_place(x) };
        gpu_quantise_kernel(&k, gpu_host_info(p->backend->host), &job);
        if (op_dispatch(r, &k, e)) return e->status;
    }
    if (d->makes_grouped) {
        gpu_kernel k = { 0 };
        if (!gpu_group_kernel((uint32_t)o->in[FUSED_W0]->ne[2], o->used, &k, e)) op_dispatch(r, &k, e);
    }
    return e->status;
}

static gm_status record_product(op_recorder *r, error *e) {
    gpu_plan         *p = r->plan;
    const gpu_weight *w = p->ops[r->index].weight;
    if (record_product_inputs(r, e)) return e->status;
    for (uint32_t tile = 0; tile < w->layout.tiles && !e->status; tile++) {
        gpu_kernel           k[2] = { { 0 }, { 0 } };
        const gpu_matmul_job job = plan_product_job(p, r->index, tile);
        const size_t         count = gpu_matmul_kernels(k, gpu_host_info(p->backend->host), &job);
        const gpu_id         buffer = w->streamed ? p->backend->slot : w->tiles[tile];
        r->table[BIND_WEIGHTS] = (gpu_binding){ 0, buffer, 0, weight_tile_of(&w->layout, tile).bytes };
        if (w->streamed && streaming_cut(p, &p->g.ops[r->index], w, tile, e)) return e->status;
        for (size_t i = 0; i < count && !e->status; i++) op_dispatch(r, &k[i], e);
    }
    return w->streamed && !e->status ? streaming_resume(p, e) : e->status;
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

static gm_status record_op(gpu_plan *p, size_t i, error *e) {
    const op    *o = &p->g.ops[i];
    op_recorder  r = { .plan = p, .index = i };
    const gpu_kv kv = plan_kv(p, o);
    gpu_kernel   k[2] = { { 0 }, { 0 } };
    size_t       count = 1;
    if (!p->visit) plan_fill_table(p, i, r.table);
    switch ((int)o->kind) {
    case OP_EMBED: return record_embed(&r, e);
    case OP_PRODUCTS: return record_product(&r, e);
    case OP_KV_STORE: gpu_kv_store_kernel(o, &kv, p->tokens, k, e); break;
    case OP_ATTENTION:
    case OP_ATTEND:
        gpu_attention_kernels(gpu_host_info(p->backend->host), o, &kv, p->tokens, p->ops[i].splits, k, &count, e);
        break;
    case OP_NORMS:
    case OP_HEADS:
    case OP_MIX: gpu_fused_kernel(o, &kv, p->tokens, p->outputs, k, e); break;
    case OP_GEGLU: geglu_kernel(p, i, k, e); break;
    default: gpu_op_kernel(o, p->tokens, p->outputs, k, e); break;
    }
    for (size_t n = 0; n < count && !e->status; n++) op_dispatch(&r, &k[n], e);
    return e->status;
}

/* ---- the list ---- */

static bool plan_has_blocks(const gpu_plan *p) {
    for (size_t i = 0; i < p->g.op_count; i++) {
        if (p->g.ops[i].kind == OP_ATTENTION && p->g.ops[i].blocks) return p->tokens > GPU_DECODE_TOKENS;
    }
    return false;
}

static gm_status plan_create_buffers(gpu_plan *p, error *e) {
    gpu_host *h = p->backend->host;
    if (!e->status) p->memory = gpu_buffer_new(h, p->bytes ? p->bytes : PLAN_ALIGNMENT, e);
    if (!e->status) p->run = gpu_buffer_new(h, RUN_WORDS * 4, e);
    if (!e->status) p->ids = gpu_buffer_new(h, round_up(p->tokens * 4, 16), e);
    if (!e->status) p->rows = gpu_buffer_new(h, round_up(p->outputs * 4, 16), e);
    if (!e->status && plan_has_blocks(p)) p->last_seen = gpu_buffer_new(h, round_up(p->tokens * 4, 16), e);
    if (!e->status) p->numbers = gpu_buffer_new(h, (p->g.op_count + 1) * PLAN_ALIGNMENT, e);
    return e->status;
}

/* The writes that every run fills in. */
static gm_status plan_record_inputs(gpu_plan *p, error *e) {
    uint32_t *zeros = calloc(max_size(max_size(p->tokens, p->outputs), RUN_WORDS), sizeof *zeros);
    if (!zeros) return fail_memory(e, "a plan", p->tokens * sizeof *zeros);
    gpu_words_begin(&p->words);
    p->at_run = gpu_words_write(&p->words, p->run, 0, zeros, RUN_WORDS);
    p->at_ids = gpu_words_write(&p->words, p->ids, 0, zeros, p->tokens);
    p->at_rows = gpu_words_write(&p->words, p->rows, 0, zeros, p->outputs);
    if (p->last_seen) p->at_seen = gpu_words_write(&p->words, p->last_seen, 0, zeros, p->tokens);
    p->first_dispatch = p->words.count;
    free(zeros);
    return GM_OK;
}

static gm_status plan_record_result(gpu_plan *p, error *e) {
    const tensor *result = p->g.result;
    p->end_dispatch = p->words.count;
    p->at_ticket = gpu_words_read(&p->words, p->memory, gpu_plan_result_offset(p),
                                  plan_count(p, result) * result->token_stride * sizeof(float));
    if (p->words.failed || p->number_words.failed) return fail_memory(e, "a command list", p->words.count * 4);
    return gpu_submit(p->backend->host, p->number_words.data, p->number_words.count, e);
}

gm_status plan_record(gpu_plan *p, error *e) {
    if (!p->visit && (plan_create_buffers(p, e) || plan_record_inputs(p, e))) return e->status;
    if (!p->visit) gpu_words_begin(&p->number_words);
    for (size_t i = 0; i < p->g.op_count && !e->status; i++) record_op(p, i, e);
    return p->visit || e->status ? e->status : plan_record_result(p, e);
}
