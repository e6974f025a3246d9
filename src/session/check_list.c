/* Decides what the self-check checks: for each kernel that the model's plans dispatch on this GPU, an op that uses it.
 *
 * A kernel is identified by its text: the preprocessed WGSL for the features of this GPU. We visit the kernels of all
 * plans that a session may create, without creating them. If no check has a kernel's text yet, its op becomes a check,
 * with smaller sizes. Only constants (sizes, offsets) differ between the check and the model; the compiler sees the
 * same text. */

#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "gpu/pipeline.h"
#include "session/kv.h"
#include "session/self_check_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMN_ROWS = 256,       /* rows of a product with one column */
    COLUMN_VALUES = 2 << 20, /* the most values of its matrix */
    GIVEN_COLUMN = 512,      /* length of a column in 8 bits, which another product must compute */
    TILE_ROWS = 165,         /* more than the largest tile has, and not a multiple of its rows */
    EXPERT_ROWS = 69,
    CACHED_ROWS = 64,  /* experts in slots are made of whole pieces */
    CANVAS_ROWS = 300, /* two chunks in software */
    SHORT_K = 768,     /* for products with several columns: 24 chunks, so that k is split */
    ODD_K = 800,       /* the same with 25 chunks, if the block size allows it */
    EXPERTS = 8,
    FULL_START = 150, /* position at which the check of a full attention begins */
    PICTURE = 2560,   /* tokens of the class of runs for which a tower's plans are compiled ahead */
};

/* Numbers of tokens that do not fill their class; the last one reaches the second tile of the largest class. Only towers have runs of
 * more than 256: the patches of a picture of 280 tokens. */
static const struct {
    uint32_t class, tokens;
} classes[] = { { 1, 1 }, { 4, 3 }, { 16, 13 }, { 64, 45 }, { 256, MOST_TOKENS }, { PICTURE, MOST_TOKENS } };

enum { CANVASES = 4, CANVAS_CLASS = 4 }; /* of canvases in one run; those above this class have its kernels */
enum { MOST_ROWS = 32 };                 /* of plans whose tokens are sequences of their own */

typedef struct {
    uint64_t defines, text; /* hashes */
} known_text;

typedef struct {
    check    k;
    uint64_t text;
    char     file[64];
} candidate;

typedef struct {
    self_check         *c;
    const model_config *config;
    const gpu_kv_layer *kv;    /* the caches of its layers */
    gpu_backend         model; /* names and shapes of the model's weights, without data */
    known_text         *texts;
    size_t              text_count, text_capacity;
    uint64_t           *covered;
    size_t              covered_count, covered_capacity;
    candidate          *candidates;
    size_t              candidate_count, candidate_capacity;
    check_run           run;   /* the run that is being visited */
    gpu_kernel_list     plans; /* kernels of the model's own plans, if they are wanted */
    bool                wants_plans;
    bool                tower;
    gm_status           status; /* the first failure; after it, nothing more is noted */
    error              *e;
} lister;

/* Makes room for one more. NULL, with an error, if there is no memory. */
static void *list_grown(void *array, size_t count, size_t *capacity, size_t size, error *e) {
    if (count < *capacity) return array;
    const size_t more = *capacity ? 2 * *capacity : 64;
    void        *larger = realloc(array, more * size);
    if (larger) *capacity = more;
    else fail_memory(e, "the self-check's list", more * size);
    return larger;
}

/* ---- texts ---- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

static uint64_t hash_string(uint64_t hash, const char *text) { return hash_bytes(hash, text, strlen(text) + 1); }

/* The hash of a kernel's text. Preprocessing is slow, so it is done once per set of defines. */
static uint64_t text_of(lister *l, const gpu_kernel *k) {
    uint64_t defines = hash_string(0xcbf29ce484222325, k->file);
    for (size_t i = 0; i < k->define_count; i++)
        defines = hash_string(hash_string(defines, k->defines[i].name), k->defines[i].value);
    for (size_t i = 0; i < l->text_count; i++) {
        if (l->texts[i].defines == defines) return l->texts[i].text;
    }
    buffer      text = { 0 };
    known_text *texts = list_grown(l->texts, l->text_count, &l->text_capacity, sizeof *texts, l->e);
    if (texts) l->texts = texts;
    const gm_status status = texts ? gpu_kernel_text(gpu_host_info(l->c->host), k, &text, l->e) : l->e->status;
    if (status) {
        if (!l->status) l->status = status;
        buffer_free(&text);
        return 0;
    }
    const uint64_t hash = hash_bytes(0xcbf29ce484222325, text.data, text.length);
    buffer_free(&text);
    l->texts[l->text_count++] = (known_text){ defines, hash };
    return hash;
}

static bool is_covered(const lister *l, uint64_t text) {
    for (size_t i = 0; i < l->covered_count; i++) {
        if (l->covered[i] == text) return true;
    }
    return false;
}

static void cover(lister *l, uint64_t text) {
    if (l->status || is_covered(l, text)) return;
    uint64_t *covered = list_grown(l->covered, l->covered_count, &l->covered_capacity, sizeof *covered, l->e);
    if (!covered) {
        l->status = l->e->status;
        return;
    }
    l->covered = covered;
    l->covered[l->covered_count++] = text;
}

static void cover_kernel(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    (void)fused, (void)o;
    cover(user, text_of(user, k));
}

/* The same for a kernel that a check will dispatch. */
static void cover_check_kernel(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    lister *l = user;
    cover_kernel(user, fused, o, k);
    if (!l->status) l->status = gpu_kernel_list_add(&l->c->kernels, k, l->e);
}

/* ---- from an op of the model to a check ---- */

static const tensor *storage(const tensor *t) { return t->base ? t->base : t; }

static void describe_inputs(check *k, const op *o) {
    for (size_t i = 0; i < OP_INPUTS; i++) {
        const tensor *t = o->in[i];
        if (!t) continue;
        k->in[i] = (check_view){ .value = t->kind == TENSOR_VALUE,
                                 .weight = t->kind == TENSOR_WEIGHT,
                                 .axis = t->axis,
                                 .n = t->ne[0],
                                 .rows = t->ne[1],
                                 .offset = t->offset,
                                 .row_stride = t->row_stride,
                                 .token_stride = t->token_stride,
                                 .same_as = i };
        for (size_t j = i; j-- > 0 && t->kind == TENSOR_VALUE;) {
            if (k->in[j].value && storage(o->in[j]) == storage(t)) k->in[i].same_as = k->in[j].same_as;
        }
    }
}

/* Blocks are contiguous, so the first ones of a tensor can be read in any shape that is made of whole blocks. */
static check_matrix shaped(const tensor *weight, uint64_t k, uint64_t rows, uint64_t experts) {
    const quant_format *f = quant_format_of(weight->type);
    check_matrix        w = { .type = weight->type,
                              .name = weight->name,
                              .data = weight->data,
                              .from = weight->from,
                              .place = weight->place,
                              .bytes = quant_row_bytes(f, weight->ne[0]) * weight->ne[1] * weight->ne[2],
                              .k = min_size(k, weight->ne[0]) / f->block * f->block,
                              .rows = rows,
                              .experts = experts };
    return w;
}

/* The length of several columns: short, but with the same remainder modulo 4, because the kernel depends on it. */
static uint64_t short_k(const tensor *weight) {
    const uint64_t k = weight->ne[0], block = quant_format_of(weight->type)->block;
    if (k <= ODD_K) return k;
    return block == 1 ? ODD_K + k % 4 : ODD_K % block ? SHORT_K : ODD_K;
}

static check_product product_of(const lister *l, const op *o, bool given, uint64_t rows) {
    const tensor *w = o->in[FUSED_W0], *x = o->in[FUSED_A];
    const bool    routed = o->in[FUSED_ROUTES] != NULL;
    const bool    single = l->run.class == 1 || (routed && gpu_few_columns(gpu_host_info(l->c->host), l->run.class)) ||
                        (x->axis == AXIS_OUTPUTS && l->run.outputs == 1);
    const uint64_t experts = routed ? max_size(min_size(w->ne[2], EXPERTS), o->used) : 1;
    const uint64_t k = given ? min_size(w->ne[0], GIVEN_COLUMN) : single ? w->ne[0] : short_k(w);
    const uint64_t few = max_size(64, COLUMN_VALUES / k / experts) / 2 * 2;
    check_product  p = {
         .o = *o, .residual = o->in[FUSED_B] != NULL, .routed = routed, .slots = routed && x->ne[1] > 1 && !given
    };
    p.w = shaped(w, k, rows ? rows : single ? min_size(COLUMN_ROWS, few) : routed ? EXPERT_ROWS : TILE_ROWS, experts);
    if (o->gate == GATE_PAIR) p.w.rows -= p.w.rows % 2;
    p.w.like = gpu_backend_weight(&l->model, w)->like;
    memset(p.o.in, 0, sizeof p.o.in);
    p.o.normed = o->normed || o->factored;
    return p;
}

static bool kernel_has(const gpu_kernel *k, const char *name, const char *value) {
    for (size_t i = 0; i < k->define_count; i++) {
        if (!strcmp(k->defines[i].name, name)) return !strcmp(k->defines[i].value, value);
    }
    return false;
}

/* The product whose gated result is this product's 8-bit column; NULL: no product makes the column in 8 bits. */
static const op *maker_of_column(const graph *fused, const op *o, const gpu_kernel *k) {
    for (size_t i = 0; kernel_has(k, "COLUMN", "given") && i < fused->op_count; i++) {
        if (fused->ops[i].out == o->in[FUSED_A] && fused->ops[i].gate) return &fused->ops[i];
    }
    return NULL;
}

/* The product that reads what this one writes in 8 bits; NULL: it writes no 8 bits. */
static const op *reader_of_column(const graph *fused, const op *o, const gpu_kernel *k) {
    for (size_t i = 0; kernel_has(k, "Q8_OUT", "1") && i < fused->op_count; i++) {
        if (fused->ops[i].in[FUSED_A] == o->out) return &fused->ops[i];
    }
    return NULL;
}

static void describe_product(const lister *l, check *k, const graph *fused, const op *o, const gpu_kernel *kernel) {
    const op           *reader = reader_of_column(fused, o, kernel);
    const op           *maker = reader ? o : maker_of_column(fused, o, kernel);
    const check_product own = product_of(l, reader ? reader : o, maker != NULL, 0);
    if (maker)
        k->products[k->product_count++] = product_of(l, maker, false, (maker->gate == GATE_PAIR ? 2 : 1) * own.w.k);
    k->products[k->product_count++] = own;
    snprintf(k->what, sizeof k->what, "%s products%s of %u token%s", quant_format_of(own.w.type)->name,
             own.routed ? " of experts" : "", (unsigned)l->run.class, l->run.class == 1 ? "" : "s");
}

/* NORMS that writes 8 bits or a factor for a product: the check is that product, with the residual and its norm before it. False: it
 * writes neither. */
static bool describe_norms_of_product(const lister *l, check *k, const graph *fused, const op *o,
                                      const gpu_kernel *kernel) {
    const tensor *x = o->normed ? o->out : o->sum;
    for (size_t i = 0; (o->factored || kernel_has(kernel, "Q8_OUT", "1")) && i < fused->op_count; i++) {
        const op *reader = &fused->ops[i];
        if (reader->kind != OP_PRODUCTS || reader->in[FUSED_A] != x) continue;
        check_product *p = &k->products[k->product_count++];
        describe_inputs(k, reader);
        *p = product_of(l, reader, false, 0);
        p->residual = o->in[FUSED_B] != NULL;
        p->o.normed = o->normed;
        k->o.kind = OP_PRODUCTS;
        snprintf(k->what, sizeof k->what, "norms before products of %u tokens", (unsigned)l->run.class);
        return true;
    }
    return false;
}

/* The attention that reads the result of this HEADS, or the cache of this KV_STORE. */
static const op *attention_of(const graph *fused, const op *o) {
    for (size_t i = 0; i < fused->op_count; i++) {
        const op *other = &fused->ops[i];
        if (other->kind != OP_ATTENTION) continue;
        if (o->kind == OP_HEADS ? other->in[0] == o->out : o->kind == OP_KV_STORE && other->layer == o->layer)
            return other;
    }
    return o;
}

/* Starts so that a ring wraps around during the runs, and so that full layers have several tiles of keys. The positions
 * before them are zero on both sides. Two runs have the class at hand (or 16, if it has few tokens), or one, if its tokens are rows. */
static void describe_attention(const lister *l, check *k, const graph *fused, const op *o) {
    const op           *attention = attention_of(fused, o);
    const gpu_kv_layer *layer = &l->kv[o->layer];
    k->o = *attention;
    k->o.kind = OP_ATTENTION;
    k->heads = (uint32_t)(o->kind == OP_KV_STORE ? attention : o)->in[0]->ne[1];
    k->kv_heads = layer->kv_heads;
    k->head = layer->head;
    k->window = attention->window;
    k->store = o->kind == OP_HEADS || o->kind == OP_ATTEND ? o->in[HEADS_K] != NULL : true;
    k->start = k->window ? k->window + KV_SLACK - DISTINCT_TOKENS - 1 : FULL_START;
    k->run_count = 0;
    for (size_t i = 0; i < 2; i++)
        k->runs[k->run_count++] =
            (check_run){ .tokens = DISTINCT_TOKENS, .class = (uint32_t)max_size(l->run.class, 16), .outputs = 1 };
    k->runs[k->run_count++] = (check_run){ .tokens = 3, .class = 4, .outputs = 1 };
    k->runs[k->run_count++] = (check_run){ .tokens = 1, .class = 1, .outputs = 1 };
    if (l->run.rows) {
        k->runs[0].class = 16; /* they see what this run stores */
        k->runs[1] = l->run;
        k->runs[1].tokens = (uint32_t)min_size(l->run.class, DISTINCT_TOKENS);
    }
    snprintf(k->what, sizeof k->what, "%s attention (%u/%u heads of %u, %s keys and values)",
             k->window ? "sliding" : "full", k->heads, k->kv_heads, k->head, quant_format_of(l->c->kv_type)->name);
}

static void describe_canvas(const lister *l, check *k, const op *o) {
    check_product *p = &k->products[k->product_count++];
    p->w = shaped(o->in[0], short_k(o->in[0]), CANVAS_ROWS, 1);
    p->w.like = gpu_backend_weight(&l->model, o->in[0])->like;
    snprintf(k->what, sizeof k->what, "%s head of a canvas", quant_format_of(o->in[0]->type)->name);
}

static void describe_embed(check *k, const op *o) {
    k->products[k->product_count++].w = shaped(o->in[0], o->in[0]->ne[0], TABLE_ROWS, 1);
    snprintf(k->what, sizeof k->what, "%s embeddings", quant_format_of(o->in[0]->type)->name);
}

/* Ops whose result depends on the position or on other tokens: no token may repeat another. */
static bool is_distinct(const op *o) {
    return o->kind == OP_CONV_TOKENS || o->kind == OP_LOCAL_ATTENTION || (o->kind == OP_EMBED && o->in[1]) ||
           (o->kind == OP_ROPE_TABLE && o->out->ne[1] > 1);
}

static void check_describe(const lister *l, check *k, const graph *fused, const op *o, const gpu_kernel *kernel) {
    *k = (check){ .o = *o, .runs = { l->run }, .run_count = 1 };
    if (is_distinct(o)) k->runs[0] = (check_run){ .tokens = DISTINCT_TOKENS, .class = 16, .outputs = 1 };
    if (o->kind == OP_ROPE_TABLE) k->axes = (uint32_t)o->out->ne[1];
    if (o->kind != OP_NORMS || !describe_norms_of_product(l, k, fused, o, kernel)) {
        describe_inputs(k, o);
        if (o->kind == OP_PRODUCTS) describe_product(l, k, fused, o, kernel);
        else if (o->kind == OP_EMBED) describe_embed(k, o);
        else if (o->kind == OP_CANVAS_HEAD) describe_canvas(l, k, o);
        else if (is_attention(o->kind)) describe_attention(l, k, fused, o);
        else snprintf(k->what, sizeof k->what, "%s of %u tokens", op_name(o->kind), (unsigned)l->run.class);
    }
    memset(k->o.in, 0, sizeof k->o.in);
    k->o.out = k->o.sum = NULL;
}

static void note_kernel(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    lister        *l = user;
    const uint64_t text = text_of(l, k);
    const bool     compiled = l->tower ? l->run.class == PICTURE && l->run.outputs > 1 : l->run.outputs == 1;
    if (l->wants_plans && compiled && !l->status) l->status = gpu_kernel_list_add(&l->plans, k, l->e);
    if (l->status || is_covered(l, text)) return;
    for (size_t i = 0; i < l->candidate_count; i++) {
        if (l->candidates[i].text == text) return;
    }
    candidate *all = list_grown(l->candidates, l->candidate_count, &l->candidate_capacity, sizeof *all, l->e);
    if (!all) {
        l->status = l->e->status;
        return;
    }
    l->candidates = all;
    candidate *added = &all[l->candidate_count++];
    added->text = text;
    snprintf(added->file, sizeof added->file, "%.40s, %u tokens", k->file, (unsigned)l->run.class);
    check_describe(l, &added->k, fused, o, k);
}

/* ---- the list of checks ---- */

uint32_t check_slots(const check *k) { return k->window ? k->window + KV_SLACK : FULL_SLOTS; }

gpu_kv_layer check_cache(quant_type type, const check *k) {
    const uint64_t row = gpu_kv_row_bytes(type, k->kv_heads, k->head);
    return (gpu_kv_layer){
        .type = type, .kv_heads = k->kv_heads, .head = k->head, .bytes = round_up(row * check_slots(k), 16)
    };
}

static gm_status visit_run(gpu_backend *b, const graph *g, const check_run *run, const gpu_kv_layer *kv,
                           gpu_kernel_visit *visit, lister *l, error *e) {
    if (run->rows) return gpu_plan_visit_rows(b, g, run->class, kv, visit, l, e);
    return gpu_plan_visit(b, g, run->class, run->outputs, kv, visit, l, e);
}

/* Marks the texts that the runs of a check use as covered. */
static gm_status cover_check(lister *l, const check *k, error *e) {
    static const uint8_t somewhere[2]; /* stands for bytes that are not read */
    const void *const    data[2] = { &somewhere[0], &somewhere[1] };
    const gpu_kv_layer   kv = check_cache(l->c->kv_type, k);
    gpu_backend          b = { .host = l->c->host, .precise = l->c->gpu.precise };
    graph                g = { 0 };
    gm_status            status = check_build(l->c, k, data, true, &g, e);
    if (!status) status = gpu_backend_list_weights(&b, &g, e);
    if (!status) check_choose_kernels(&b, k, data);
    for (size_t i = 0; i < k->run_count && !status; i++) {
        status = visit_run(&b, &g, &k->runs[i], &kv, cover_check_kernel, l, e);
        if (!status) status = l->status;
    }
    gpu_backend_clear(&b);
    graph_free(&g);
    return status;
}

static gm_status add_missed(self_check *c, const char *what, error *e) {
    char(*missed)[64] = realloc(c->missed, (c->missed_count + 1) * sizeof *missed);
    if (!missed) return fail_memory(e, "the self-check's list", sizeof *missed);
    c->missed = missed;
    snprintf(missed[c->missed_count++], sizeof *missed, "%s", what);
    return GM_OK;
}

/* Goes backwards, so that readers come before producers: a product with an 8-bit column includes the one that computes
 * it. */
static gm_status add_checks(lister *l, error *e) {
    self_check *c = l->c;
    while (l->candidate_count && !l->status) {
        const candidate *from = &l->candidates[--l->candidate_count];
        if (is_covered(l, from->text)) continue;
        check *checks = list_grown(c->checks, c->count, &c->capacity, sizeof *checks, e);
        if (!checks) return e->status;
        c->checks = checks;
        c->checks[c->count] = from->k;
        TRY(cover_check(l, &from->k, e));
        c->count++;
        if (!is_covered(l, from->text)) TRY(add_missed(c, from->file, e));
        cover(l, from->text);
    }
    return l->status;
}

/* The caches of the model's layers, or of the tower if there is no config; the caller frees them. */
static gpu_kv_layer *model_caches(const model_config *config, const self_check_tower *tower, quant_type type,
                                  error *e) {
    const model_config none = { .layers = 0 };
    if (!config) config = &none;
    gpu_kv_layer *kv = calloc(max_size(config->layers, 1), sizeof *kv);
    if (!kv) fail_memory(e, "the self-check's list", config->layers * sizeof *kv);
    for (uint32_t i = 0; kv && i < config->layers; i++) {
        const layer_config *layer = &config->layer[i];
        kv[i] = check_cache(type, &(check){ .window = layer->sliding ? config->window : 0,
                                            .kv_heads = layer->kv_heads,
                                            .head = layer->head });
    }
    if (kv && !config->layers && tower)
        kv[0] = check_cache(type, &(check){ .kv_heads = tower->kv_heads, .head = tower->head });
    return kv;
}

/* Behind the checks' kernels, in the order in which they are needed: the sampler's, and those of the model's plans. */
static gm_status add_plan_kernels(lister *l, error *e) {
    gpu_kernel kernels[SAMPLER_KERNELS];
    for (int way = 0; way < 3 && l->wants_plans && l->config; way++) {
        sampler_shape shape = gpu_generator_shape(l->config->vocabulary, check_draws_context(l->config));
        shape.edits = shape.logprobs = true;
        shape.greedy = way == 0;
        shape.candidates = way == 1;
        shape.steps = way == 2; /* all steps have one pipeline */
        const size_t count = sampler_kernels(&shape, kernels);
        for (size_t i = 0; i < count; i++) TRY(gpu_kernel_list_add(&l->c->kernels, &kernels[i], e));
    }
    for (size_t i = 0; i < l->plans.count; i++) TRY(gpu_kernel_list_add(&l->c->kernels, &l->plans.data[i].kernel, e));
    return GM_OK;
}

/* Marks what was checked when the engine opened: the kernels of the model's plans. */
static gm_status cover_text(lister *l, const self_check_options *options, error *e) {
    const self_check_tower *tower = options->tower;
    gpu_backend             model = { .host = l->c->host, .precise = l->c->gpu.precise };
    gpu_kv_layer           *kv = model_caches(tower->config, NULL, l->c->kv_type, e);
    gm_status               status = kv ? gpu_backend_list_weights(&model, tower->text, e) : e->status;
    for (size_t i = 0; i < COUNT_OF(classes) && classes[i].class < PICTURE && !status; i++) {
        const uint32_t class = classes[i].class;
        if (options->quick && class != 1 && class != 16) continue;
        status = gpu_plan_visit(&model, tower->text, class, 1, kv, cover_kernel, l, e);
        if (!status) status = l->status;
    }
    gpu_backend_clear(&model);
    free(kv);
    return status;
}

/* The runs that are visited: for one output (i even) and for several. False: there is no such run. */
static bool lister_choose_run(lister *l, const self_check_options *options, size_t i) {
    const uint32_t class = classes[i / 2].class, most = (uint32_t)min_size(class, options->outputs);
    /* a tower's outputs are as many as its plan needs: 32 have kernels of their own */
    const uint32_t outputs = l->tower && class == 256 ? (uint32_t)min_size(32, most) : most;
    if (i % 2 && most == 1) return false;
    if (l->tower ? class < options->tower->fewest : class == PICTURE) return false;
    if (options->quick && (i % 2 || (class != 16 && (l->tower || class != 1)))) return false;
    l->run = (check_run){ .tokens = classes[i / 2].tokens, .class = class, .outputs = i % 2 ? outputs : 1 };
    if (i % 2 && l->run.tokens > outputs) l->run.tokens = outputs;
    return true;
}

/* Adds checks for the kernels of the run at hand, except for those that the known caches have. */
static gm_status add_run(lister *l, const graph *g, const gpu_kv_layer *kv, const gpu_kv_layer *known, error *e) {
    gm_status status = known ? visit_run(&l->model, g, &l->run, known, cover_kernel, l, e) : GM_OK;
    if (!status) status = visit_run(&l->model, g, &l->run, kv, note_kernel, l, e);
    return status ? status : add_checks(l, e);
}

/* A product of experts once more, with fewer slots than experts, which the cache of experts loads as the run asks for them. */
static gm_status add_slots(lister *l, error *e) {
    self_check *c = l->c;
    for (size_t i = 0; i < c->count; i++) {
        check          copy = c->checks[i];
        check_product *last = &copy.products[copy.product_count ? copy.product_count - 1 : 0];
        if (!copy.product_count || !copy.products[0].routed || !last->routed || last->w.experts < 2) continue;
        copy.cached = true;
        last->w.rows = CACHED_ROWS;
        snprintf(copy.what, sizeof copy.what, "the slots of experts");
        check *checks = list_grown(c->checks, c->count, &c->capacity, sizeof *checks, e);
        if (!checks) return e->status;
        c->checks = checks;
        c->checks[c->count++] = copy;
        return GM_OK;
    }
    return GM_OK;
}

gm_status check_list_make(self_check *c, const graph *g, const model_config *config, const self_check_options *options,
                          error *e) {
    lister        l = { .c = c,
                        .config = config,
                        .model = { .host = c->host, .precise = c->gpu.precise },
                        .wants_plans = options->plans,
                        .tower = options->tower != NULL,
                        .e = e };
    gpu_kv_layer *kv = model_caches(config, options->tower, c->kv_type, e);
    gpu_kv_layer *known = options->checked ? model_caches(config, options->tower, *options->checked, e) : NULL;
    gm_status     status = kv && (known || !options->checked) ? gpu_backend_list_weights(&l.model, g, e) : e->status;
    l.kv = kv;
    if (!status && options->tower) status = cover_text(&l, options, e);
    for (size_t i = 0; i < 2 * COUNT_OF(classes) && !status; i++) {
        if (lister_choose_run(&l, options, i)) status = add_run(&l, g, kv, known, e);
    }
    for (uint32_t rows = 2; rows <= MOST_ROWS && !status && !options->quick && !options->tower; rows *= 2) {
        l.run = (check_run){ .tokens = rows - rows / 8, .class = rows, .outputs = rows, .rows = true };
        status = add_run(&l, g, kv, known, e);
    }
    if (!status && options->canvas) status = gpu_backend_list_weights(&l.model, options->canvas, e);
    for (uint32_t n = 1; n <= CANVASES && !status && options->canvas; n *= 2) {
        uint32_t class = 1;
        while (class < n * options->canvas_length && class < classes[CANVAS_CLASS].class) class *= 4;
        l.run = (check_run){ .tokens = (uint32_t)min_size(class, MOST_TOKENS), .class = class, .outputs = 1 };
        status = add_run(&l, options->canvas, kv, known, e);
    }
    /* a picture or a sound has any number of outputs: those below have texts of their own */
    for (uint32_t outputs = 2; outputs <= 16 && !status && !options->quick && options->tower; outputs *= 2) {
        l.run = (check_run){ .tokens = outputs, .class = 64, .outputs = outputs };
        status = add_run(&l, g, kv, known, e);
    }
    if (!status && options->slots && !options->checked) status = add_slots(&l, e);
    if (!status) status = add_plan_kernels(&l, e);
    gpu_kernel_list_free(&l.plans);
    gpu_backend_clear(&l.model);
    free(kv);
    free(known);
    free(l.texts);
    free(l.covered);
    free(l.candidates);
    return status;
}
