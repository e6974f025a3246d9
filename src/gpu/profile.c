#include "gpu/profile.h"

#include "gpu/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A dispatch that was submitted: its time arrives later, in the same order. */
typedef struct profile_wait {
    gpu_id   group;
    uint32_t row;
    double   bytes, flops;
} profile_wait;

/* ---- what an op must read, write and compute ---- */

/* What the tokens of a run see in layers of one kind: summed over tokens, and as slots that somebody sees. */
typedef struct {
    double pairs, slots;
} run_view;

static run_view run_view_of(const run_inputs *in, bool sliding) {
    run_view v = { 0 };
    for (size_t i = 0; i < in->tokens; i++) {
        const token_record *r = &in->records[i], *first = &in->records[r->span_first];
        v.pairs += 1.0 + record_last(r, sliding) - record_first(r, sliding);
        if (i + 1 == r->span_first + r->span_count)
            v.slots += 1.0 + record_last(r, sliding) - record_first(first, sliding);
    }
    return v;
}

typedef struct {
    gpu_profile          *profile;
    const gpu_submission *run;
    size_t                at;     /* in the words of its list */
    size_t                number; /* of the plan's next dispatch */
} run_walk;

static double axis_count(const run_inputs *in, tensor_axis axis) {
    return axis == AXIS_TOKENS ? (double)in->tokens : axis == AXIS_OUTPUTS ? (double)in->outputs : 1;
}

static double profile_tensor_bytes(const run_inputs *in, const tensor *t) {
    if (!t || t->kind == TENSOR_CACHE) return 0;
    if (t->kind == TENSOR_WEIGHT) return (double)t->ne[0] * sizeof(float);
    return (double)t->ne[0] * (double)t->ne[1] * sizeof(float) * axis_count(in, t->axis);
}

/* The rows of a product's weights that it multiplies, over all parts. */
static double product_rows(const op *o) {
    double rows = 0;
    for (size_t i = FUSED_W0; i <= FUSED_W2; i++) rows += o->in[i] ? (double)o->in[i]->ne[1] : 0;
    return rows;
}

/* The share of a weight that a run reads: experts that no token uses are not read. */
static double weight_share(const run_inputs *in, const op *o, const plan_op *d) {
    const double all = d->weight->layout.rows, experts = d->weight->layout.experts;
    if (o->kind == OP_EMBED) return axis_count(in, o->out->axis) / (all * experts);
    const double pairs = (double)in->tokens * o->used, used = o->in[FUSED_ROUTES] && pairs < experts ? pairs : experts;
    return product_rows(o) / all * used / experts;
}

static bool kernel_binds(const gpu_kernel *k, uint8_t what) {
    for (size_t i = 0; i < k->bind_count; i++) {
        if (k->binds[i] == what) return true;
    }
    return false;
}

static double profile_scratch_bytes(const gpu_plan *p, const run_inputs *in, int32_t item) {
    return item < 0 ? 0 : (double)p->items[item].bytes * (double)in->tokens / p->tokens;
}

static bool op_attends(const op *o) { return o->kind == OP_ATTENTION || o->kind == OP_ATTEND; }

/* How many parts of its table a CANVAS_HEAD takes in turn. */
static double canvas_chunks_of(const gpu_plan *p, const op *o) {
    const gpu_canvas_job job = plan_canvas_job(p, (size_t)(o - p->g.ops));
    uint32_t             chunks = 0;
    for (uint32_t i = 0; i < job.weights->tiles; i++)
        chunks += gpu_canvas_chunks(gpu_host_info(p->backend->host), &job, i);
    return chunks;
}

/* Bytes that a dispatch moves through one of its bindings. */
static double binding_bytes(const gpu_submission *s, const op *o, uint8_t bind) {
    const gpu_plan *p = s->plan;
    const plan_op  *d = &p->ops[o - p->g.ops];
    if (bind < BIND_IN + OP_INPUTS) return profile_tensor_bytes(&s->in, o->in[bind - BIND_IN]);
    switch (bind) {
    case BIND_OUT: return profile_tensor_bytes(&s->in, o->out);
    case BIND_SUM: return profile_tensor_bytes(&s->in, o->sum);
    case BIND_WEIGHTS:
        if (o->kind == OP_CANVAS_HEAD) return (double)weight_bytes(&d->weight->layout) / canvas_chunks_of(p, o);
        return (double)weight_bytes(&d->weight->layout) / d->weight->layout.tiles * weight_share(&s->in, o, d);
    case BIND_QUANTISED: return profile_scratch_bytes(p, &s->in, d->quantised);
    case BIND_PARTIAL: return profile_scratch_bytes(p, &s->in, d->partial);
    case BIND_KEYS:
    case BIND_VALUES: {
        const gpu_kv kv = plan_kv(p, o);
        const double row = (double)gpu_kv_row_bytes(kv.type, kv.kv_heads, kv.head);
        return row * (op_attends(o) ? run_view_of(&s->in, o->window > 0).slots : (double)s->in.tokens);
    }
    default: return 0; /* records, numbers, groups: small */
    }
}

static double dispatch_flops(const gpu_submission *s, const op *o, const gpu_kernel *k) {
    const plan_op *d = &s->plan->ops[o - s->plan->g.ops];
    if (o->kind == OP_PRODUCTS && kernel_binds(k, BIND_WEIGHTS)) {
        const double columns = axis_count(&s->in, o->out->axis) * (o->in[FUSED_ROUTES] ? o->used : 1);
        return 2.0 * d->weight->layout.k * product_rows(o) * columns / d->weight->layout.tiles;
    }
    if (o->kind == OP_CANVAS_HEAD && kernel_binds(k, BIND_WEIGHTS)) /* of a chunk */
        return 2.0 * d->weight->layout.k * d->weight->layout.rows * (double)s->in.tokens / canvas_chunks_of(s->plan, o);
    if (op_attends(o) && kernel_binds(k, BIND_KEYS))
        return 4.0 * run_view_of(&s->in, o->window > 0).pairs * (double)o->out->ne[0] * (double)o->out->ne[1];
    if (op_is_product_back(o) && kernel_binds(k, BIND_WEIGHTS))
        return 2.0 * (double)(o->in[0]->ne[0] * o->in[0]->ne[1]) * axis_count(&s->in, o->out->axis) *
               (o->used ? o->used : 1) / d->weight->layout.tiles;
    if (op_is_attention_back(o) && kernel_binds(k, BIND_KEYS))
        return (o->kind == OP_ATTENTION_BACK_Q ? 6.0 : 8.0) * run_view_of(&s->in, o->window > 0).pairs *
               (double)o->in[0]->ne[0] * (double)o->in[0]->ne[1];
    return 0;
}

/* ---- names ---- */

/* "ffn_up" of "blk.3.ffn_up.weight". */
static int short_name(const char **name) {
    const char *n = *name ? *name : "";
    if (!strncmp(n, "blk.", 4) && strchr(n + 4, '.')) n = strchr(n + 4, '.') + 1;
    const char *end = strstr(n, ".weight");
    *name = n;
    return (int)(end ? (size_t)(end - n) : strlen(n));
}

static void append_names(char *out, size_t size, const op *o, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        if (!o->in[i] || o->in[i]->kind != TENSOR_WEIGHT) continue;
        const char  *name = o->in[i]->name;
        const int    length = short_name(&name);
        const size_t at = strlen(out);
        snprintf(out + at, size - at, "%s%.*s", i > first ? " + " : "", length, name);
    }
}

static void name_product(profile_row *r, const op *o, const gpu_kernel *k) {
    const tensor *w = o->in[FUSED_W0];
    const bool    main = kernel_binds(k, BIND_WEIGHTS);
    snprintf(r->what, sizeof r->what, "%s ", main ? quant_format_of((uint32_t)w->type)->name : "for");
    append_names(r->what, sizeof r->what, o, FUSED_W0, FUSED_W2 + 1);
    const size_t at = strlen(r->what);
    if (main)
        snprintf(r->what + at, sizeof r->what - at, ", %.0f → %.0f%s", (double)w->ne[0], product_rows(o),
                 o->gate == GATE_PAIR ? ", gated" : "");
    if (main && o->in[FUSED_ROUTES]) {
        const size_t end = strlen(r->what);
        snprintf(r->what + end, sizeof r->what - end, ", %u of %.0f experts", o->used, (double)w->ne[2]);
    }
}

/* The op's name in lower case, with spaces. */
static void name_op(char *out, size_t size, op_kind kind) {
    snprintf(out, size, "%s", op_name(kind));
    for (char *c = out; *c; c++) *c = *c == '_' ? ' ' : *c >= 'A' && *c <= 'Z' ? (char)(*c + 'a' - 'A') : *c;
}

/* Of training: what an op has beside its result tells more. */
static void name_gradient(profile_row *r, const op *o) {
    const size_t at = strlen(r->what);
    if (op_is_product_back(o))
        snprintf(r->what + at, sizeof r->what - at, ", %s %.0f → %.0f", quant_format_of((uint32_t)o->in[0]->type)->name,
                 (double)o->in[0]->ne[1], (double)o->in[0]->ne[0]);
    else if (o->kind == OP_LORA_GRADIENT)
        snprintf(r->what + at, sizeof r->what - at, ", %.0f", (double)o->in[1]->ne[0]);
    else if (o->kind == OP_LORA_SHRINK && o->in[1])
        snprintf(r->what + at, sizeof r->what - at, ", %.0f → %.0f", (double)o->in[1]->ne[0], (double)o->out->ne[0]);
}

static void name_dispatch(profile_row *r, const op *o, const gpu_kernel *k) {
    const tensor *t = o->out ? o->out : o->sum;
    if (o->kind == OP_PRODUCTS) {
        name_product(r, o, k);
        return;
    }
    name_op(r->what, sizeof r->what, o->kind);
    const size_t at = strlen(r->what);
    name_gradient(r, o);
    if (strlen(r->what) > at) return;
    if (op_attends(o) || o->kind == OP_HEADS)
        snprintf(r->what + at, sizeof r->what - at, ", %.0f × %.0f, %s layers", (double)t->ne[1], (double)t->ne[0],
                 o->window ? "sliding" : "full");
    else if (t && t->kind == TENSOR_VALUE)
        snprintf(r->what + at, sizeof r->what - at, ", %.0f × %.0f", (double)t->ne[1], (double)t->ne[0]);
}

static void name_kernel(profile_row *r, const gpu_kernel *k) {
    const char *stage = "";
    for (size_t i = 0; i < k->define_count; i++) {
        if (!strcmp(k->defines[i].name, "STAGE") || !strcmp(k->defines[i].name, "KIND")) stage = k->defines[i].value;
    }
    snprintf(r->kernel, sizeof r->kernel, "%.*s%s%s", (int)strcspn(k->file, "."), k->file, *stage ? ":" : "", stage);
}

/* ---- rows, and dispatches that wait for their times ---- */

static gm_status profile_row_of(gpu_profile *p, const profile_row *like, uint32_t *out, error *e) {
    for (*out = 0; *out < p->count; ++*out) {
        if (!strcmp(p->rows[*out].what, like->what) && !strcmp(p->rows[*out].kernel, like->kernel)) return GM_OK;
    }
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 64;
        profile_row *rows = realloc(p->rows, capacity * sizeof *rows);
        if (!rows) return fail_memory(e, "a profile", capacity * sizeof *rows);
        p->rows = rows;
        p->capacity = capacity;
    }
    p->rows[p->count++] = *like;
    return GM_OK;
}

static gm_status profile_wait_for(gpu_profile *p, const profile_wait *dispatch, error *e) {
    if (p->first_waiting + p->waiting_count == p->waiting_capacity) {
        const size_t  capacity = p->waiting_capacity ? 2 * p->waiting_capacity : 1024;
        profile_wait *grown = realloc(p->waiting, capacity * sizeof *grown);
        if (!grown) return fail_memory(e, "a profile", capacity * sizeof *grown);
        p->waiting = grown;
        p->waiting_capacity = capacity;
    }
    p->waiting[p->first_waiting + p->waiting_count++] = *dispatch;
    return GM_OK;
}

/* The group of the next dispatch in the run's list. */
static gpu_id walk_group(run_walk *w) {
    const gpu_submission *s = w->run;
    while (w->at < s->count) {
        const uint32_t *record = s->words + w->at;
        w->at += 1 + (record[0] >> 16);
        if ((record[0] & 0xffff) == GPU_DISPATCH) return record[2];
    }
    return 0;
}

static void walk_note(run_walk *w, const profile_row *like, double bytes, double flops) {
    gpu_profile *p = w->profile;
    profile_wait dispatch = { .group = walk_group(w), .bytes = bytes, .flops = flops };
    if (!p->problem.status) profile_row_of(p, like, &dispatch.row, &p->problem);
    if (!p->problem.status) profile_wait_for(p, &dispatch, &p->problem);
}

static void walk_kernel(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    (void)fused;
    run_walk    *w = user;
    profile_row  like = { 0 };
    double       bytes = 0;
    const size_t number = w->number++;
    if (w->run->end && (number < w->run->first || number >= w->run->end)) return;
    name_dispatch(&like, o, k);
    name_kernel(&like, k);
    for (size_t i = 0; i < k->bind_count; i++) bytes += binding_bytes(w->run, o, k->binds[i]);
    walk_note(w, &like, bytes, dispatch_flops(w->run, o, k));
}

/* The sampler's kernels go over the logits once, or over something smaller. */
static void walk_sampler(run_walk *w, const gpu_kernel *k) {
    const double logits = profile_tensor_bytes(&w->run->in, w->run->plan->g.result);
    profile_row  like = { .what = "sampler" };
    name_kernel(&like, k);
    walk_note(w, &like, k->x > 1 ? logits : 0, 0);
}

static void profile_watch(void *user, const gpu_submission *s) {
    gpu_profile *p = user;
    run_walk     w = { .profile = p, .run = s };
    if (p->problem.status) return;
    gpu_plan_kernels(s->plan, walk_kernel, &w, &p->problem);
    for (size_t i = 0; i < s->more_count; i++) walk_sampler(&w, &s->more[i]);
    if (!p->problem.status && walk_group(&w))
        fail(&p->problem, GM_UNSUPPORTED, "a list has dispatches that no kernel explains");
    p->runs++;
    if (!s->first) p->tokens += s->in.tokens;
}

/* ---- times ---- */

/* Work that no plan submitted, such as a kernel that repacks weights, has no place in the queue. */
static void profile_add(gpu_profile *p, const gpu_time *time) {
    profile_wait *w = &p->waiting[p->first_waiting];
    if (!p->waiting_count || w->group != time->group) return;
    profile_row *row = &p->rows[w->row];
    row->count++;
    row->seconds += time->seconds;
    row->bytes += w->bytes;
    row->flops += w->flops;
    p->dispatches++;
    p->seconds += time->seconds;
    p->first_waiting++;
    p->waiting_count--;
}

static int longer_first(const void *a, const void *b) {
    const profile_row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

gm_status gpu_profile_start(gpu_profile *p, gpu_backend *b, error *e) {
    if (gpu_backend_needs_host(b) || b->experts)
        return fail(e, GM_UNSUPPORTED,
                    "a profile needs all weights on the GPU; with --gpu-memory, some are in main memory");
    TRY(gpu_clock_start(b->host, e));
    p->backend = b;
    b->watch = profile_watch;
    b->watch_user = p;
    return GM_OK;
}

gm_status gpu_profile_end(gpu_profile *p, error *e) {
    gpu_host *h = p->backend->host;
    gpu_time  times[256];
    gm_status status = p->problem.status ? fail(e, p->problem.status, "%s", p->problem.why) : GM_OK;
    p->backend->watch = NULL;
    while (!status && p->waiting_count) {
        const size_t n = gpu_clock_take(h, times, COUNT_OF(times));
        for (size_t i = 0; i < n; i++) profile_add(p, &times[i]);
        if (!n && gpu_idle(h)) gpu_host_wait(h, 1);
        else if (!n) gpu_host_wait(h, 100);
        status = gpu_host_problem(h, e);
    }
    gpu_clock_stop(h);
    if (p->count) qsort(p->rows, p->count, sizeof *p->rows, longer_first);
    return status;
}

void gpu_profile_free(gpu_profile *p) {
    free(p->rows);
    free(p->waiting);
    *p = (gpu_profile){ 0 };
}
