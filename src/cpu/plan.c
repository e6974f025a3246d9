/* Plans a graph for the CPU.
 *
 * Ops become steps. A matmul with quantised weights gets a step that quantises its input, once for all readers of that input; expert
 * matmuls get a step that sorts the tokens by expert. Independent steps (q, k and v; gate and up) form a region, whose tasks run in
 * parallel on the pool. A region with little work runs on the calling thread alone, because waking the others would cost more. With many
 * tokens (pictures) a region can take seconds: then it runs a few tasks at a time, and a run can stop in between. */

#include "cpu/backend.h"
#include "cpu/steps.h"
#include "base/clock.h"
#include "graph/layout.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_IN_REGION = 4 };
enum { SLICED_TOKENS = 256, SLICE_TASKS = 2 }; /* runs with more tokens; tasks of a slice for each thread */

struct cpu_plan {
    const cpu_backend *backend;
    const graph       *g;
    size_t             tokens, outputs; /* the most that it runs */
    bool               alone;           /* every token is computed as if it were the only one */
    cpu_step          *steps;
    size_t             step_count;
    layout_item       *items; /* values by index, then what the plan adds */
    size_t             item_count, item_capacity;
    uint8_t           *memory;
    uint64_t           bytes;
    size_t             split;     /* the first step of the second part; 0: there is one part */
    size_t             next;      /* the step that a run goes on with */
    size_t             next_task; /* of its region */
    arena              cuts;      /* of the steps */
};

/* ---- planning ------------------------------------------------------------------------------------------------------- */

static uint64_t plan_rows(const cpu_plan *p, const tensor *t) {
    return (t->axis == AXIS_TOKENS ? p->tokens : t->axis == AXIS_OUTPUTS ? p->outputs : 1) * t->ne[1];
}

static uint64_t value_bytes(const cpu_plan *p, const tensor *t) { return plan_rows(p, t) * t->ne[0] * sizeof(float); }

/* Notes on a value while planning. */
typedef struct {
    int32_t quantised; /* the item that holds it in 8 bits, or -1 */
    int32_t groups;    /* routes: the item that holds the tokens by expert, or -1 */
} value_notes;

static const tensor *storage_of(const tensor *t) { return t->base ? t->base : t; }

static int32_t new_item(cpu_plan *p, uint64_t bytes) {
    p->items[p->item_count] = (layout_item){ .bytes = bytes, .first = UINT32_MAX, .last = 0 };
    return (int32_t)p->item_count++;
}

static bool wants_q8(const cpu_plan *p, const op *o) {
    return (o->kind == OP_MATMUL || o->kind == OP_MATMUL_EXPERTS) && !p->backend->precise &&
           cpu_type_has_q8(o->in[0]->type);
}

/* Turns one op into up to two steps: a preparation, and the op itself. */
static void add_steps(cpu_plan *p, const op *o, value_notes *notes) {
    cpu_step step = { .kind = STEP_OP, .op = o, .quantised = -1, .groups = -1 };
    if (wants_q8(p, o)) {
        const tensor *x = o->in[1];
        value_notes  *note = &notes[storage_of(x)->index];
        if (note->quantised < 0) {
            note->quantised = new_item(p, q8_bytes(plan_rows(p, x), x->ne[0]));
            p->steps[p->step_count++] =
                (cpu_step){ .kind = STEP_QUANTISE, .op = o, .quantised = note->quantised, .groups = -1 };
        }
        step.quantised = note->quantised;
    }
    if (o->kind == OP_MATMUL_EXPERTS || o->kind == OP_MATMUL_EXPERTS_BACK) {
        value_notes *note = &notes[storage_of(o->in[2])->index];
        if (note->groups < 0) {
            note->groups = new_item(p, groups_bytes(o->in[0]->ne[2], p->tokens, o->used));
            p->steps[p->step_count++] =
                (cpu_step){ .kind = STEP_GROUP, .op = o, .quantised = -1, .groups = note->groups };
        }
        step.groups = note->groups;
    }
    p->steps[p->step_count++] = step;
}

/* Matmuls may share a region if none reads what another writes. */
static bool may_join_region(const cpu_step *first, size_t count, const cpu_step *next) {
    const op *o = next->op;
    if (count == MOST_IN_REGION || next->kind != STEP_OP || (o->kind != OP_MATMUL && o->kind != OP_MATMUL_EXPERTS))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (first[i].kind != STEP_OP || first[i].op->kind != o->kind) return false;
        for (size_t j = 0; j < COUNT_OF(o->in); j++) {
            if (o->in[j] && o->in[j]->kind == TENSOR_VALUE && storage_of(o->in[j]) == first[i].op->out) return false;
        }
    }
    return true;
}

static void item_live_in(layout_item *item, uint32_t region) {
    if (region < item->first) item->first = region;
    if (region > item->last) item->last = region;
}

/* Assigns steps to regions. A value keeps its memory from the first to the last region that touches it. */
static void find_lifetimes(cpu_plan *p) {
    uint32_t region = 0;
    for (size_t i = 0; i < p->step_count;) {
        size_t count = 1;
        while (i + count < p->step_count && may_join_region(&p->steps[i], count, &p->steps[i + count])) count++;
        for (size_t j = i; j < i + count; j++) {
            cpu_step *s = &p->steps[j];
            s->region = region;
            if (s->quantised >= 0) item_live_in(&p->items[s->quantised], region);
            if (s->groups >= 0) item_live_in(&p->items[s->groups], region);
            if (s->kind == STEP_OP && s->op->out) item_live_in(&p->items[s->op->out->index], region);
            if (s->kind == STEP_OP && s->op->sum) item_live_in(&p->items[s->op->sum->index], region);
            for (size_t k = 0; k < COUNT_OF(s->op->in); k++) {
                const tensor *t = s->op->in[k];
                if (t && t->kind == TENSOR_VALUE) item_live_in(&p->items[storage_of(t)->index], region);
            }
        }
        i += count;
        region++;
    }
    for (size_t i = 0; i < GRAPH_RESULTS; i++) {
        const tensor *result = graph_result(p->g, i);
        if (result) item_live_in(&p->items[storage_of(result)->index], region);
    }
    for (size_t i = 0; i < p->g->op_count; i++) { /* leaves keep their place, also between runs */
        if (p->g->ops[i].kind != OP_LEAF) continue;
        item_live_in(&p->items[p->g->ops[i].out->index], 0);
        item_live_in(&p->items[p->g->ops[i].out->index], region);
    }
}

static bool is_matmul(const cpu_step *s) { return s->kind == STEP_OP && s->op->kind == OP_MATMUL; }

/* Cuts a region's matrices together, but experts' matrices one by one, because a run decides which are used. */
static bool cut_matrices(cpu_plan *p) {
    const size_t multiple = p->backend->kernels->row_multiple, threads = pool_threads(p->backend->threads);
    for (size_t i = 0, count; i < p->step_count; i += count) {
        cpu_step *s = &p->steps[i];
        count = 1;
        if (s->kind != STEP_OP || (s->op->kind != OP_MATMUL && s->op->kind != OP_MATMUL_EXPERTS)) continue;
        while (is_matmul(s) && i + count < p->step_count && s[count].region == s->region) count++;
        if (!cpu_steps_cut(s, count, multiple, threads, &p->cuts)) return false;
    }
    return true;
}

/* Everything but the memory for values. */
static gm_status plan_lay_out_steps(cpu_plan *p, error *e) {
    const graph *g = p->g;
    p->item_capacity = g->value_count + 2 * g->op_count;
    p->steps = calloc(3 * g->op_count, sizeof *p->steps);
    p->items = calloc(p->item_capacity, sizeof *p->items);
    value_notes *notes = calloc(g->value_count, sizeof *notes);
    if (!p->steps || !p->items || !notes) {
        free(notes);
        return fail_memory(e, "a plan's steps", p->item_capacity * sizeof *p->items);
    }
    for (size_t i = 0; i < g->value_count; i++) {
        notes[i] = (value_notes){ -1, -1 };
        new_item(p, 0);
    }
    for (size_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].out) p->items[g->ops[i].out->index].bytes = value_bytes(p, g->ops[i].out);
        if (g->ops[i].sum) p->items[g->ops[i].sum->index].bytes = value_bytes(p, g->ops[i].sum);
        if (i == g->split) p->split = p->step_count;
        add_steps(p, &g->ops[i], notes);
    }
    free(notes);
    find_lifetimes(p);
    if (!cut_matrices(p)) return fail_memory(e, "a plan's tasks", p->step_count * sizeof *p->steps);
    TRY(layout_assign(p->items, p->item_count, 64, 0, &p->bytes, e));
    p->bytes = round_up(p->bytes + 64, 64);
    return GM_OK;
}

static gm_status plan_allocate(cpu_plan *p, error *e) {
    p->memory = p->bytes > SIZE_MAX ? NULL : aligned_alloc(64, (size_t)p->bytes);
    if (!p->memory) return fail_memory(e, "the activations", p->bytes);
    for (size_t i = 0; i < p->g->op_count; i++) {
        const op *o = &p->g->ops[i];
        if (o->kind == OP_LEAF) memset(cpu_plan_leaf(p, o->out), 0, value_bytes(p, o->out));
    }
    return GM_OK;
}

static gm_status cpu_plan_make(const cpu_backend *b, const graph *g, size_t tokens, size_t outputs, bool alone,
                               cpu_plan **out, error *e) {
    if (!g->result) return fail(e, GM_BAD_ARGUMENT, "a graph without a result cannot be planned");
    cpu_plan *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "a plan", sizeof *p);
    *p = (cpu_plan){ .backend = b, .g = g, .tokens = tokens, .outputs = outputs, .alone = alone };
    gm_status status = plan_lay_out_steps(p, e);
    if (!status) status = plan_allocate(p, e);
    if (status) cpu_plan_free(p);
    else *out = p;
    return status;
}

gm_status cpu_plan_measure(const cpu_backend *b, const graph *g, size_t tokens, size_t outputs, uint64_t *bytes,
                           error *e) {
    cpu_plan *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(e, "a plan", sizeof *p);
    *p = (cpu_plan){ .backend = b, .g = g, .tokens = tokens, .outputs = outputs };
    const gm_status status = plan_lay_out_steps(p, e);
    *bytes = p->bytes;
    cpu_plan_free(p);
    return status;
}

gm_status cpu_plan_new(const cpu_backend *b, const graph *g, size_t tokens, size_t outputs, cpu_plan **out, error *e) {
    return cpu_plan_make(b, g, tokens, outputs, false, out, e);
}

gm_status cpu_plan_new_rows(const cpu_backend *b, const graph *g, size_t rows, cpu_plan **out, error *e) {
    return cpu_plan_make(b, g, rows, rows, true, out, e);
}

void cpu_plan_free(cpu_plan *p) {
    if (!p) return;
    free(p->steps);
    free(p->items);
    free(p->memory);
    arena_free(&p->cuts);
    free(p);
}

size_t       cpu_plan_tokens(const cpu_plan *p) { return p->tokens; }
size_t       cpu_plan_outputs(const cpu_plan *p) { return p->outputs; }
uint64_t     cpu_plan_bytes(const cpu_plan *p) { return p->bytes; }
void         cpu_plan_restart(cpu_plan *p) { p->next = p->next_task = 0; }
const float *cpu_plan_result(const cpu_plan *p) { return cpu_plan_results(p, 0); }

const float *cpu_plan_results(const cpu_plan *p, size_t i) {
    const tensor *t = graph_result(p->g, i);
    return (const float *)(p->memory + p->items[storage_of(t)->index].offset) + t->offset;
}

float *cpu_plan_leaf(cpu_plan *p, const tensor *leaf) { return (float *)(p->memory + p->items[leaf->index].offset); }

/* ---- running ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const cpu_plan *plan;
    const cpu_step *steps;
    size_t          count;
    cpu_context     context;
    size_t          end[MOST_IN_REGION];   /* tasks of the steps, added up */
    size_t          first_task, last_task; /* of the slice: [first, last) */
} region_run;

static void run_task(const region_run *run, size_t task, size_t thread) {
    size_t i = 0;
    while (task >= run->end[i]) i++;
    const size_t scratch = thread * THREAD_SCRATCH;
    cpu_step_run(&run->steps[i], &run->context, task - (i ? run->end[i - 1] : 0),
                 run->plan->backend->scratch + scratch);
}

static void region_work(void *context, size_t thread, size_t threads) {
    (void)threads;
    const region_run *run = context;
    for (;;) {
        const size_t task = run->first_task + pool_take(run->plan->backend->threads);
        if (task >= run->last_task) return;
        run_task(run, task, thread);
    }
}

/* Threads that have finished their part of a product prefetch the weights of the next one, also during the steps in between, which
 * leave memory idle. */
static void look_ahead(const cpu_plan *p, const region_run *run) {
    if ((run->context.in->run.tokens != 1 && !p->alone) || !is_matmul(run->steps)) return;
    size_t next = p->next + run->count;
    while (next < p->step_count && !is_matmul(&p->steps[next])) next++;
    if (next < p->step_count) cpu_step_announce(&p->steps[next], &run->context, p->backend->threads);
}

/* Runs the region's tasks from p->next_task on: all of them, or one slice. */
static void run_slice(cpu_plan *p, region_run *run) {
    const size_t tasks = run->end[run->count - 1], slice = SLICE_TASKS * pool_threads(p->backend->threads);
    run->first_task = p->next_task;
    run->last_task = run->context.in->run.tokens > SLICED_TOKENS ? min_size(tasks, run->first_task + slice) : tasks;
    if (run->last_task - run->first_task > 1) pool_run(p->backend->threads, region_work, run);
    else if (run->last_task > run->first_task) run_task(run, run->first_task, 0);
    p->next_task = run->last_task;
    if (p->next_task < tasks) return;
    p->next += run->count;
    p->next_task = 0;
}

/* Runs steps up to `end`. */
static gm_status plan_step_until(cpu_plan *p, const cpu_inputs *in, size_t end, double deadline) {
    region_run run = { .plan = p,
                       .context = { .kernels = p->backend->kernels,
                                    .in = in,
                                    .memory = p->memory,
                                    .items = p->items,
                                    .threads = pool_threads(p->backend->threads),
                                    .alone = p->alone } };
    while (p->next < end) {
        run.steps = &p->steps[p->next];
        run.count = 0;
        size_t tasks = 0;
        while (p->next + run.count < end && run.steps[run.count].region == run.steps[0].region) {
            tasks += cpu_step_tasks(&run.steps[run.count], &run.context);
            run.end[run.count++] = tasks;
        }
        look_ahead(p, &run);
        run_slice(p, &run);
        if (p->next < end && clock_seconds() > deadline) return GM_AGAIN;
    }
    p->next = 0;
    return GM_OK;
}

gm_status cpu_plan_step(cpu_plan *p, const cpu_inputs *in, double deadline) {
    return plan_step_until(p, in, p->step_count, deadline);
}

gm_status cpu_plan_step_part(cpu_plan *p, const cpu_inputs *in, size_t part, double deadline) {
    if (part && !p->next) p->next = p->split;
    return plan_step_until(p, in, part || !p->split ? p->step_count : p->split, deadline);
}
