/* Decides how a plan computes each op (plan_op), and gives every value and scratch item a place in the plan's memory. */

#include "gpu/plan.h"

#include <stdlib.h>

/* ---- decisions ---- */

/* Who writes a value, and who reads it. Views count as reads of their base. */
typedef struct {
    uint32_t readers;
    uint32_t reader; /* the op that reads it last */
    bool     column; /* all readers are products whose input is the whole value */
} value_use;

bool plan_precise(const gpu_plan *p) { return p->backend->precise || p->g.trains; }

/* Products of training take no activations of 8 bits, but f16 with a scale for each row. */
static bool plan_halves(const gpu_plan *p, quant_type type, uint32_t columns) {
    return !p->backend->precise && gpu_matmul_by_matrices(gpu_host_info(p->backend->host), type, columns);
}

gpu_kv plan_kv(const gpu_plan *p, const op *o) {
    if (!op_has_cache(o)) return (gpu_kv){ 0 };
    const gpu_kv_layer *l = &p->kv[o->layer];
    return (gpu_kv){
        .type = l->type, .kv_heads = l->kv_heads, .head = l->head, .precise = plan_precise(p), .rows = p->rows_alone
    };
}

static void plan_count_uses(const gpu_plan *p, value_use *uses) {
    for (size_t i = 0; i < p->g.value_count; i++) uses[i] = (value_use){ .column = true };
    for (uint32_t i = 0; i < p->g.op_count; i++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *t = p->g.ops[i].in[j];
            if (!t || t->kind != TENSOR_VALUE) continue;
            if (p->g.ops[i].kind == OP_SHRINKS && j == FUSED_A) continue; /* reads it as the products do */
            value_use *use = &uses[plan_base(t)->index];
            use->readers++;
            use->reader = i;
            if (t->base || p->g.ops[i].kind != OP_PRODUCTS || j != FUSED_A) use->column = false;
        }
    }
}

static gm_status plan_decide_weight(gpu_plan *p, size_t i, error *e) {
    const op *o = &p->g.ops[i];
    plan_op  *d = &p->ops[i];
    if (o->kind == OP_PRODUCTS && o->in[FUSED_A]->axis == AXIS_RUN)
        return fail(e, GM_UNSUPPORTED, "products on the GPU are for values of tokens or outputs, not of a whole run");
    const gpu_weight_part found = gpu_backend_part(p->backend, o->in[0]);
    const size_t          most = o->kind == OP_PRODUCTS ? GPU_WEIGHT_PARTS : 1;
    size_t                count = 0;
    uint64_t              rows = 0;
    for (; count < most && o->in[count] && found.weight && found.part + count < found.weight->part_count; count++) {
        if (!tensor_same_weight(&found.weight->parts[found.part + count].weight, o->in[count])) break;
        rows += o->in[count]->ne[1];
    }
    if (!count || (count < most && o->in[count] && o->kind == OP_PRODUCTS))
        return fail(e, GM_BAD_ARGUMENT, "'%s' was not uploaded to the GPU, or not together with what it is joined with",
                    o->in[count]->name);
    d->weight = found.weight;
    if (count < found.weight->part_count) {
        d->part_first = found.first_row;
        d->part_rows = (uint32_t)rows;
    }
    d->gathered = o->kind == OP_EMBED && d->weight->gathered;
    const bool canvas = o->kind == OP_CANVAS_HEAD;
    if (canvas && d->part_rows)
        return fail(e, GM_UNSUPPORTED, "'%s' lies joined with other weights, which a canvas does not expect",
                    o->in[0]->name);
    const weight_layout *l = &d->weight->layout;
    if (canvas && gpu_host_info(p->backend->host)->exact && l->tiles > 1 && l->tile_rows % CANVAS_CHUNK)
        return fail(e, GM_UNSUPPORTED, "a binding of this GPU holds %u rows of '%s', and exact results take %u at once",
                    (unsigned)l->tile_rows, o->in[0]->name, (unsigned)CANVAS_CHUNK);
    if ((!op_is_product_back(o) || !(d->weight->streamed || d->weight->cached)) &&
        (!canvas || !(d->weight->streamed || d->weight->gathered)))
        return GM_OK;
    return fail(e, GM_UNSUPPORTED, "'%s' stays in main memory, and %s on the GPU", o->in[0]->name,
                canvas ? "a diffusion model needs its embedding" : "training needs all weights");
}

static void plan_decide_product(gpu_plan *p, size_t i) {
    const op       *o = &p->g.ops[i];
    plan_op        *d = &p->ops[i];
    const gpu_info *info = gpu_host_info(p->backend->host);
    const bool      precise = plan_precise(p);
    const uint32_t  columns = plan_count(p, o->in[FUSED_A]);
    const bool      takes = !precise      ? gpu_matmul_takes_q8(info, o->in[FUSED_W0]->type, columns)
                            : p->g.trains ? plan_halves(p, o->in[FUSED_W0]->type, columns)
                                          : false;
    d->groups = o->in[FUSED_ROUTES] && !gpu_few_columns(info, p->tokens);
    d->q8 = takes && (d->groups || !o->in[FUSED_ROUTES]);
    d->column = !precise && gpu_matvec_takes_q8(info, o->in[FUSED_W0]->type) ? COLUMN_Q8 : COLUMN_F32;
    d->aligned = o->in[FUSED_OTHER] != NULL;
}

/* With few columns, the quantise kernel would write what only products of few columns read. */
static bool plan_canvas_takes_q8(const gpu_plan *p, const op *o) {
    const gpu_info *info = gpu_host_info(p->backend->host);
    const uint32_t  columns = plan_count(p, o->out);
    return !plan_precise(p) && !(info->subgroup_matrix && gpu_few_columns(info, columns)) &&
           gpu_matmul_takes_q8(info, o->in[0]->type, columns);
}

/* A product passes its gated result in 8 bits to its only reader, if that is a product, too. That way it is quantised
 * once, not by every workgroup of the reader. With one token, a gate with another value is too short for that to pay. */
static void plan_decide_column(gpu_plan *p, size_t i, const value_use *uses) {
    const op *o = &p->g.ops[i];
    if (o->kind != OP_PRODUCTS || !o->gate || o->out->ne[0] % 32) return;
    if (o->gate == GATE_VALUE && (plan_count(p, o->out) < 2 || p->ops[i].weight->layout.tiles > 1)) return;
    const gpu_matmul_job job = plan_product_job(p, i, 0);
    if (o->gate == GATE_VALUE && !gpu_product_gives_q8(gpu_host_info(p->backend->host), &job)) return;
    const value_use *use = o->out->base ? NULL : &uses[o->out->index];
    if (!use || use->readers != 1 || !use->column) return;
    const op *reader = &p->g.ops[use->reader];
    if (reader->normed || reader->clips_in || reader->in[FUSED_B] || p->ops[use->reader].column != COLUMN_Q8) return;
    p->ops[i].gives_q8 = true;
    p->ops[use->reader].q8 = false;
    p->ops[use->reader].column = COLUMN_GIVEN;
    for (size_t r = 0; r < p->g.op_count; r++) {
        const tensor *x = p->g.ops[r].kind == OP_SHRINKS ? p->g.ops[r].in[FUSED_A] : NULL;
        if (x && plan_base(x) == o->out) p->ops[r].column = COLUMN_GIVEN;
    }
}

/* Whether the op is a product that reads the value in 8 bits, as it is. */
static bool plan_reads_q8(const gpu_plan *p, size_t i, const tensor *x) {
    const op *o = &p->g.ops[i];
    return o->kind == OP_PRODUCTS && o->in[FUSED_A] == x && p->ops[i].q8 && !o->clips_in;
}

/* With several columns that are quantised, a residual's norm does that for the products that read it. */
static void plan_decide_norms(gpu_plan *p, size_t i) {
    const op     *o = &p->g.ops[i];
    plan_op      *d = &p->ops[i];
    const tensor *x = o->kind != OP_NORMS ? NULL : o->normed ? o->out : o->sum;
    if (!x || x->base || x->ne[1] != 1 || x->ne[0] % 32 ||
        !gpu_few_columns(gpu_host_info(p->backend->host), plan_count(p, x)))
        return;
    bool others = !o->normed; /* the sum is written anyway */
    for (size_t r = 0; r < p->g.op_count; r++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *t = p->g.ops[r].in[j];
            if (!t || t->kind != TENSOR_VALUE || plan_base(t) != x) continue;
            if (j == FUSED_A && p->g.ops[r].kind == OP_SHRINKS) continue; /* below */
            if (j == FUSED_A && plan_reads_q8(p, r, x)) d->quantises = true;
            else others = true;
        }
    }
    for (size_t r = 0; r < GRAPH_RESULTS; r++) others = others || graph_result(&p->g, r) == x;
    if (o->normed && others) d->quantises = false; /* more than 8 bindings */
    for (size_t r = 0; r < p->g.op_count && d->quantises && o->normed; r++) {
        if (p->g.ops[r].kind == OP_SHRINKS && p->g.ops[r].in[FUSED_A] == x) p->ops[r].q8 = true;
    }
}

static uint32_t plan_splits(const gpu_plan *p, const op *o) {
    const gpu_kv kv = plan_kv(p, o);
    return gpu_attention_splits(gpu_host_info(p->backend->host), o, &kv, plan_alike(p, p->tokens));
}

/* ---- SHRINKS of what an attention writes ---- */

uint64_t plan_shrunk_stride(const gpu_plan *p, size_t i) {
    const op *o = &p->g.ops[i];
    if (!p->ops[i].parts) return o->out->token_stride;
    return SHRUNK_HEAD + (uint64_t)p->ops[i].parts * o->slots * o->ranks[0];
}

/* Whether only products that add corrections read this value. */
static bool read_as_shrunk(const gpu_plan *p, const tensor *t) {
    for (size_t i = 0; i < p->g.op_count; i++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *in = p->g.ops[i].in[j];
            if (in && in->kind == TENSOR_VALUE && plan_base(in) == t &&
                (p->g.ops[i].kind != OP_PRODUCTS || j != FUSED_SHRUNK))
                return false;
        }
    }
    return true;
}

/* With few tokens, an attention that combines its splits also computes what the adapters of the next linear see, and saves a
 * dispatch. It gets their A, their result and the table of sets as further inputs. Other long columns are cut into parts. */
static void plan_decide_shrinks(gpu_plan *p, size_t i) {
    enum { MOST_ROWS = 128, PART = 2048 };
    op           *o = &p->g.ops[i], *attention = NULL;
    const tensor *x = o->kind == OP_SHRINKS ? o->in[FUSED_A] : NULL;
    if (!x || o->normed || o->in[FUSED_B] || o->ranks[1] || o->slots * o->ranks[0] > MOST_ROWS ||
        !gpu_few_columns(gpu_host_info(p->backend->host), p->tokens) || !read_as_shrunk(p, o->out))
        return;
    for (size_t j = 0; j < i && !attention; j++) {
        const bool attends = p->g.ops[j].kind == OP_ATTENTION || p->g.ops[j].kind == OP_ATTEND;
        if (attends && p->ops[j].splits > 1 && p->g.ops[j].out == plan_base(x)) attention = &p->g.ops[j];
    }
    const uint64_t head = attention ? attention->out->ne[0] : 0, heads = attention ? attention->out->ne[1] : 0;
    if (!attention || (attention->kind == OP_ATTENTION && attention->sum) ||
        x->offset || /* with logs: other bindings */
        head % 4 || x->ne[0] != head * heads) {
        if (x->ne[0] >= 2 * PART) p->ops[i].parts = (uint32_t)(x->ne[0] / PART);
        return;
    }
    attention->in[FUSED_EXPAND0] = o->in[FUSED_W0];
    attention->in[FUSED_EXPAND0 + 1] = o->out;
    attention->in[FUSED_SETS] = o->in[FUSED_SETS];
    attention->ranks[0] = o->ranks[0];
    attention->slots = o->slots;
    p->ops[i].parts = (uint32_t)(heads * ((head + 127) / 128));
    p->ops[i].by_attention = true;
}

static void plan_decide_attention_back(gpu_plan *p, size_t i) {
    const op       *o = &p->g.ops[i];
    const gpu_info *info = gpu_host_info(p->backend->host);
    const gpu_kv    kv = plan_kv(p, o);
    p->ops[i].q8 = !p->backend->precise && gpu_attention_back_by_matrices(info, o, &kv, p->tokens);
    if (o->kind != OP_ATTENTION_BACK_KV) return;
    const gpu_attention_back_job job = plan_attention_back_job(p, i);
    p->ops[i].splits = gpu_attention_back_splits(info, o, &job);
}

gm_status plan_decide(gpu_plan *p, error *e) {
    const graph *g = &p->g;
    value_use   *uses = calloc(max_size(g->value_count, 1), sizeof *uses);
    p->ops = calloc(max_size(g->op_count, 1), sizeof *p->ops);
    gm_status status = GM_OK;
    if (!uses || !p->ops) status = fail_memory(e, "a plan's decisions", g->op_count * sizeof *p->ops);
    else plan_count_uses(p, uses);
    for (size_t i = 0; i < g->op_count && !status; i++) {
        const op *o = &g->ops[i];
        plan_op  *d = &p->ops[i];
        *d = (plan_op){ .quantised = -1, .grouped = -1, .partial = -1, .slotted = -1 };
        if (o->kind == OP_EMBED || o->kind == OP_PRODUCTS || o->kind == OP_CANVAS_HEAD || op_is_product_back(o))
            status = plan_decide_weight(p, i, e);
        d->groups = o->kind == OP_MATMUL_EXPERTS_BACK;
        if (o->kind == OP_PRODUCTS) plan_decide_product(p, i);
        if (op_is_product_back(o) && !status && !p->backend->precise)
            d->q8 = gpu_back_by_matrices(gpu_host_info(p->backend->host), &d->weight->layout, plan_count(p, o->out));
        if (o->kind == OP_CANVAS_HEAD) d->q8 = plan_canvas_takes_q8(p, o);
        if (o->kind == OP_ATTENTION || o->kind == OP_ATTEND) d->splits = plan_splits(p, o);
        if (op_is_attention_back(o)) plan_decide_attention_back(p, i);
        if (o->kind == OP_GEGLU) d->aligned = plan_base(o->in[0]) != plan_base(o->in[1]);
    }
    for (size_t i = 0; i < g->op_count && !status; i++) plan_decide_column(p, i, uses);
    for (size_t i = 0; i < g->op_count && !status; i++) plan_decide_norms(p, i);
    for (size_t i = 0; i < g->op_count && !status; i++) plan_decide_shrinks(p, i);
    free(uses);
    return status;
}

/* ---- jobs of products ---- */

/* The second input of a gate lies at another offset in each layer. Bindings must be aligned to 256 bytes, so we bind at
 * the aligned offset below it and pass the remainder: all layers share one pipeline. */
uint64_t plan_beyond_alignment(const tensor *t) { return t->offset % (PLAN_ALIGNMENT / sizeof(float)); }

static gpu_place place_or_start(const tensor *t, bool there) { return there ? plan_place(t) : (gpu_place){ 0 }; }

/* Places of 8-bit columns count whole columns: one, or one per expert used. */
static gpu_place place_of_columns(const tensor *t) { return (gpu_place){ 0, (uint32_t)t->ne[1], t->ne[1] > 1 }; }

gpu_clips plan_clips(const op *o) {
    gpu_clips clips = { .in = o->clips_in, .out = o->clips_out, .bounds = { o->least, o->most } };
    uint64_t  end = 0;
    for (size_t i = 0; i < OP_PARTS; i++) {
        clips.bounds[2 + 2 * i] = o->out_least[i];
        clips.bounds[3 + 2 * i] = o->out_most[i];
        if (o->in[FUSED_W0 + i]) end += o->in[FUSED_W0 + i]->ne[1];
        if (i < COUNT_OF(clips.ends)) clips.ends[i] = (uint32_t)end;
    }
    return clips;
}

gpu_corrections plan_corrections(const gpu_plan *p, const op *o) {
    gpu_corrections c = { 0 };
    if (o->kind != OP_PRODUCTS || !o->in[FUSED_SHRUNK]) return c;
    c.slots = o->slots;
    for (size_t i = 0; i < p->g.op_count; i++) {
        const op *shrinks = &p->g.ops[i];
        if (shrinks->kind != OP_SHRINKS || shrinks->out != o->in[FUSED_SHRUNK]) continue;
        c.stride = (uint32_t)plan_shrunk_stride(p, i);
        c.parts = p->ops[i].parts;
        c.part_stride = shrinks->slots * shrinks->ranks[0];
    }
    for (size_t i = 0; i < OP_PARTS && o->in[FUSED_W0 + i]; i++) {
        c.rows[i] = (uint32_t)o->in[FUSED_W0 + i]->ne[1];
        c.ranks[i] = o->ranks[i];
        c.at[i] = o->shrunk_at[i];
    }
    return c;
}

gpu_matmul_job plan_product_job(const gpu_plan *p, size_t i, uint32_t tile) {
    const op      *o = &p->g.ops[i];
    const plan_op *d = &p->ops[i];
    const tensor  *x = o->in[FUSED_A], *routes = o->in[FUSED_ROUTES];
    return (gpu_matmul_job){
        .weights = &d->weight->layout,
        .like = &d->weight->like,
        .tile = tile,
        .part_first = d->part_first,
        .part_rows = d->part_rows,
        .tokens = plan_count(p, x),
        .alike = plan_alike(p, plan_count(p, x)),
        .outputs = x->axis == AXIS_OUTPUTS,
        .q8 = d->q8,
        .used = routes ? o->used : 0,
        .x_slots = x->ne[1] > 1,
        .x = d->column == COLUMN_GIVEN ? place_of_columns(x) : place_or_start(x, !d->q8),
        .y = d->gives_q8 ? place_of_columns(o->out) : plan_place(o->out),
        .routes = place_or_start(routes, routes && !d->groups),
        .split = true,
        .residual = o->in[FUSED_B] != NULL,
        .normed = o->normed,
        .factored = o->factored,
        .sum = o->sum && tile == 0,
        .gate = o->gate,
        .eps = o->eps,
        .factor = o->factor,
        .weight_factor = o->weight_factor,
        .cap = o->cap,
        .other_offset = o->in[FUSED_OTHER] ? (uint32_t)plan_beyond_alignment(o->in[FUSED_OTHER]) : 0,
        .other_token_stride = o->in[FUSED_OTHER] ? (uint32_t)o->in[FUSED_OTHER]->token_stride : 0,
        .column = d->column,
        .y_q8 = d->gives_q8,
        .corrections = plan_corrections(p, o),
        .clips = plan_clips(o),
    };
}

/* Products that share routes have the same experts, so they agree on this, too. */
gpu_groups plan_groups(const gpu_plan *p, size_t i) {
    const op            *o = &p->g.ops[i];
    const weight_layout *like = &p->ops[i].weight->like;
    return (gpu_groups){
        .experts = p->ops[i].weight->cached ? p->ops[i].weight->layout.experts : (uint32_t)o->in[FUSED_W0]->ne[2],
        .tokens = p->tokens,
        .used = o->used,
        .columns = gpu_expert_columns(gpu_host_info(p->backend->host), plan_alike(p, p->tokens), o->used, like->experts)
    };
}

gpu_back_job plan_back_job(const gpu_plan *p, size_t i) {
    const op      *o = &p->g.ops[i];
    const plan_op *d = &p->ops[i];
    const bool     experts = o->kind == OP_MATMUL_EXPERTS_BACK;
    return (gpu_back_job){ .weights = &d->weight->layout,
                           .like = &d->weight->like,
                           .part_first = d->part_first,
                           .part_rows = d->part_rows,
                           .tokens = plan_count(p, o->out),
                           .used = experts ? o->used : 0,
                           .columns = experts ? plan_groups(p, i).columns : 0,
                           .outputs = o->out->axis == AXIS_OUTPUTS,
                           .halves = d->q8,
                           .x = plan_place(o->in[1]),
                           .y = plan_place(o->out) };
}

gpu_attention_back_job plan_attention_back_job(const gpu_plan *p, size_t i) {
    return (gpu_attention_back_job){
        .kv = plan_kv(p, &p->g.ops[i]), .tokens = p->tokens, .splits = p->ops[i].splits, .halves = p->ops[i].q8
    };
}

gpu_canvas_job plan_canvas_job(const gpu_plan *p, size_t i) {
    const op *o = &p->g.ops[i];
    return (gpu_canvas_job){ .weights = &p->ops[i].weight->layout,
                             .like = &p->ops[i].weight->like,
                             .tokens = plan_count(p, o->out),
                             .alike = plan_alike(p, plan_count(p, o->out)),
                             .q8 = p->ops[i].q8,
                             .cap = o->most,
                             .factor = o->factor,
                             .x = plan_place(o->in[1]),
                             .soft = plan_place(o->in[3]) };
}

/* ---- work ---- */

/* What plans are cut by: multiply-adds of products and attention count as two operations, and values that are only read as some. */
double plan_work(const gpu_plan *p, const op *o) {
    enum { READ = 32 };
    double   work = 0;
    uint32_t count = 1; /* of the largest input or result */
    if (o->kind == OP_LEAF) return 0;
    if (o->out && o->out->kind == TENSOR_VALUE) count = plan_count(p, o->out);
    for (size_t j = 0; j < OP_INPUTS; j++) {
        const tensor *t = o->in[j];
        const bool    is_state = o->kind == OP_ADAMW || o->kind == OP_SQUARE_SUM;
        if (t && t->kind == TENSOR_VALUE && plan_count(p, t) > count) count = plan_count(p, t);
        if (t && (t->kind == TENSOR_VALUE || is_state))
            work += READ * (double)(t->ne[0] * t->ne[1]) * (is_state ? 1 : plan_count(p, t));
    }
    for (size_t j = 0; j < OP_PARTS && (o->kind == OP_PRODUCTS || op_is_product_back(o)); j++) {
        const tensor *w = o->kind == OP_PRODUCTS || !j ? o->in[j] : NULL;
        if (w) work += 2 * (double)(w->ne[0] * w->ne[1]) * count * (o->used ? o->used : 1);
    }
    if (o->kind == OP_CANVAS_HEAD) work += 4 * (double)(o->in[0]->ne[0] * o->in[0]->ne[1]) * count;
    for (size_t j = 0; j < 2 && o->rank; j++) {
        if (o->in[j] && o->in[j]->kind == TENSOR_WEIGHT) work += 2 * (double)o->in[j]->ne[0] * count;
    }
    if (o->kind == OP_ATTENTION || op_is_attention_back(o)) {
        const double seen = o->window && o->window < p->tokens ? o->window : p->tokens;
        work += 10 * (double)(o->in[0]->ne[0] * o->in[0]->ne[1]) * p->tokens * seen;
    }
    return work;
}

/* ---- memory: items and their lifetimes ---- */

/* The scratch items that belong to a value, by the value's index; -1: none. */
typedef struct {
    int32_t  quantised, grouped, slotted;
    uint32_t quantised_by; /* the op whose bounds clipped what is in `quantised` */
    int32_t  halved;       /* gradients of an attention, for both of its ops */
    uint32_t halved_by;
} value_notes;

static int32_t item_new(gpu_plan *p, uint64_t bytes, uint32_t now) {
    p->items[p->item_count] = (layout_item){ .bytes = round_up(bytes, PLAN_ALIGNMENT), .first = now, .last = now };
    return (int32_t)p->item_count++;
}

static void item_live_at(layout_item *item, uint32_t now) {
    if (now < item->first) item->first = now;
    if (now > item->last) item->last = now;
}

static void value_read_at(gpu_plan *p, const tensor *t, uint32_t now) {
    if (t && t->kind == TENSOR_VALUE) item_live_at(&p->items[plan_base(t)->index], now);
}

static void value_written_at(gpu_plan *p, const tensor *t, uint32_t now) {
    if (!t || t->kind != TENSOR_VALUE) return;
    const tensor *base = plan_base(t);
    p->items[base->index].bytes = round_up(plan_count(p, base) * base->token_stride * sizeof(float), PLAN_ALIGNMENT);
    item_live_at(&p->items[base->index], now);
}

/* Scratch bytes for split-K partial sums. Tiles run one after another, so the largest tile decides. */
static uint64_t product_partial_bytes(const gpu_plan *p, size_t i) {
    uint64_t most = 0;
    for (uint32_t tile = 0; tile < p->ops[i].weight->layout.tiles; tile++) {
        const gpu_matmul_job job = plan_product_job(p, i, tile);
        const uint64_t       bytes = gpu_matmul_partial_bytes(gpu_host_info(p->backend->host), &job);
        if (bytes > most) most = bytes;
    }
    return most;
}

static uint64_t plan_partial_bytes(const gpu_plan *p, size_t i) {
    const op *o = &p->g.ops[i];
    if (o->kind == OP_ATTENTION_BACK_KV) {
        const gpu_attention_back_job job = plan_attention_back_job(p, i);
        return gpu_attention_back_partial_bytes(&job);
    }
    if (p->ops[i].splits) return gpu_attention_partial_bytes(o, p->tokens, p->ops[i].splits);
    if (o->kind == OP_PRODUCTS) return product_partial_bytes(p, i);
    if (o->kind == OP_CANVAS_HEAD) {
        const gpu_canvas_job canvas = plan_canvas_job(p, i);
        return gpu_canvas_scratch_bytes(gpu_host_info(p->backend->host), &canvas);
    }
    if (!op_is_product_back(o)) return 0;
    const gpu_back_job job = plan_back_job(p, i);
    return gpu_back_partial_bytes(gpu_host_info(p->backend->host), &job);
}

static bool same_clips(const op *a, const op *b) {
    return a->clips_in == b->clips_in && (!a->clips_in || (a->least == b->least && a->most == b->most));
}

/* The gradients of an attention in f16, which both of its ops read. */
static void plan_lay_out_gradients(gpu_plan *p, uint32_t i, value_notes *notes) {
    plan_op      *d = &p->ops[i];
    const tensor *x = p->g.ops[i].in[product_column(&p->g.ops[i])];
    value_notes  *note = &notes[plan_base(x)->index];
    d->makes_quantised = note->halved < 0 || p->g.ops[note->halved_by].in[product_column(&p->g.ops[i])] != x;
    if (d->makes_quantised) {
        note->halved = item_new(p, gpu_quantised_bytes((uint32_t)(x->ne[0] * x->ne[1]), p->tokens), i);
        note->halved_by = i;
    }
    d->quantised = note->halved;
    item_live_at(&p->items[d->quantised], i);
}

/* Scratch memory of an op: partial sums, its input in 8 bits, the pairs grouped by expert. Products with the same input
 * share the last two, unless they clip it differently. */
static void plan_lay_out_scratch(gpu_plan *p, uint32_t i, value_notes *notes) {
    const op      *o = &p->g.ops[i];
    plan_op       *d = &p->ops[i];
    const uint64_t partial = plan_partial_bytes(p, i);
    if (partial) d->partial = item_new(p, partial, i);
    if (d->quantises) {
        const tensor *x = o->normed ? o->out : o->sum;
        value_notes  *note = &notes[x->index];
        note->quantised = d->quantised = item_new(p, gpu_quantised_bytes((uint32_t)x->ne[0], plan_count(p, x)), i);
        note->quantised_by = i;
    }
    if (d->q8 && op_is_attention_back(o)) plan_lay_out_gradients(p, i, notes);
    else if (d->q8) {
        const tensor  *x = o->in[product_column(o)];
        value_notes   *note = &notes[plan_base(x)->index];
        const uint64_t rows = (uint64_t)plan_count(p, x) * x->ne[1];
        const bool     back = op_is_product_back(o); /* its column may be any part of a value: nobody shares it */
        d->makes_quantised = back || note->quantised < 0 || !same_clips(&p->g.ops[note->quantised_by], o);
        d->quantised = note->quantised;
        if (d->makes_quantised) d->quantised = item_new(p, gpu_quantised_bytes((uint32_t)x->ne[0], rows), i);
        if (d->makes_quantised && !back) {
            note->quantised = d->quantised;
            note->quantised_by = i;
        }
        item_live_at(&p->items[d->quantised], i);
    }
    if (o->kind == OP_PRODUCTS && d->weight->cached) {
        const tensor *routes = plan_base(o->in[FUSED_ROUTES]);
        int32_t      *item = &notes[routes->index].slotted;
        d->makes_slotted = *item < 0;
        if (*item < 0) *item = item_new(p, p->tokens * routes->token_stride * sizeof(uint32_t), i);
        d->slotted = *item;
        item_live_at(&p->items[*item], i);
    }
    if (d->groups) {
        int32_t *item = &notes[plan_base(o->in[product_routes(o)])->index].grouped;
        d->makes_grouped = *item < 0;
        const gpu_groups groups = plan_groups(p, i);
        if (*item < 0) *item = item_new(p, gpu_groups_bytes(&groups), i);
        d->grouped = *item;
        item_live_at(&p->items[*item], i);
    }
}

static void plan_choose_segment(gpu_plan *p) {
    const uint64_t most = gpu_host_info(p->backend->host)->max_buffer / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    p->segment = PLAN_SEGMENT < most ? PLAN_SEGMENT : most;
    for (size_t i = 0; i < p->item_count; i++) {
        if (p->items[i].bytes > p->segment) p->segment = p->items[i].bytes;
    }
}

/* The products of a layer's experts may run several times (budget_keep_values). */
static void plan_keep_sections(gpu_plan *p) {
    for (uint32_t i = 0; i < p->g.op_count; i++) {
        plan_op *d = &p->ops[i];
        if (!d->makes_slotted) continue;
        p->guarded = true;
        for (uint32_t j = i; j < p->g.op_count; j++) {
            if (p->ops[j].slotted == d->slotted) d->section_end = j;
        }
        budget_keep_values(p->items, p->item_count, i, d->section_end);
    }
}

gm_status plan_lay_out(gpu_plan *p, error *e) {
    const graph *g = &p->g;
    value_notes *notes = calloc(max_size(g->value_count, 1), sizeof *notes);
    p->items = calloc(g->value_count + 4 * g->op_count + 1, sizeof *p->items);
    if (!notes || !p->items) {
        free(notes);
        return fail_memory(e, "a plan's items", g->value_count * sizeof *p->items);
    }
    for (size_t i = 0; i < g->value_count; i++) {
        notes[i] = (value_notes){ .quantised = -1, .grouped = -1, .slotted = -1, .halved = -1 };
        item_new(p, 0, UINT32_MAX);
        p->items[i].last = 0;
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        const op  *o = &g->ops[i];
        const bool by_host = p->ops[i].gathered || o->given || o->kind == OP_LEAF;
        value_written_at(p, o->out, by_host ? 0 : i);
        if (o->kind == OP_SHRINKS)
            p->items[o->out->index].bytes =
                round_up(p->tokens * plan_shrunk_stride(p, i) * sizeof(float), PLAN_ALIGNMENT);
        if (o->kind == OP_LEAF) value_read_at(p, o->out, (uint32_t)g->op_count); /* nothing else takes its place */
        value_written_at(p, o->sum, i);
        for (size_t j = 0; j < OP_INPUTS; j++) value_read_at(p, o->in[j], i);
        plan_lay_out_scratch(p, i, notes);
    }
    for (size_t i = 0; i < GRAPH_RESULTS; i++) value_read_at(p, graph_result(g, i), (uint32_t)g->op_count);
    free(notes);
    plan_keep_sections(p);
    plan_choose_segment(p);
    return layout_assign(p->items, p->item_count, PLAN_ALIGNMENT, p->segment, &p->bytes, e);
}
