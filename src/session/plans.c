#include "session/plans.h"

#include "base/clock.h"

#include <stdlib.h>

enum { LARGER_STEP = 64, LEAST_CPU_BATCH = 16 };

/* The largest class of a fixed size. */
static size_t largest_class(const plan_set *plans, const graph *g) {
    return g->batched ? max_size(plans->largest_batch, PLANS_LARGEST_CLASS) : PLANS_LARGEST_CLASS;
}

/* The tokens of the class that a run belongs to. On the CPU a larger plan serves smaller runs just as well. Large runs (pictures)
 * get no more room than they need. */
static size_t class_tokens(const plan_set *plans, const graph *g, size_t count, bool rows) {
    size_t tokens = 1;
    if (rows) {
        while (tokens < count) tokens *= 2;
        return tokens;
    }
    if (plans->gpu) {
        const size_t largest = largest_class(plans, g);
        while (tokens < count && tokens <= largest) tokens *= 4;
        return tokens <= largest ? tokens : (size_t)round_up(count, LARGER_STEP);
    }
    for (tokens = count > 1 ? LEAST_CPU_BATCH : 1; tokens < count && tokens <= PLANS_LARGEST_CLASS;) tokens *= 2;
    return tokens < count ? (size_t)round_up(count, LARGER_STEP) : tokens;
}

static size_t plan_tokens(const shared_plan *p) { return p->gpu ? gpu_plan_tokens(p->gpu) : cpu_plan_tokens(p->cpu); }

static size_t plan_outputs(const shared_plan *p) {
    return p->gpu ? gpu_plan_outputs(p->gpu) : cpu_plan_outputs(p->cpu);
}

/* A row alone is a plan for one token like any other. */
static bool wish_has_rows(const plan_wish *wish) { return wish->rows && wish->tokens > 1; }

/* Whether the plan is of the wish's class, if perhaps too small for it. */
static bool plan_is_alike(const plan_set *plans, const shared_plan *p, const plan_wish *wish, size_t tokens) {
    const size_t has = plan_tokens(p), fixed = p->gpu ? largest_class(plans, wish->g) : 1;
    if (p->g != wish->g || p->rows != wish_has_rows(wish) || (tokens <= fixed ? has != tokens : has <= fixed))
        return false;
    if (p->cpu) return true;
    return (plan_outputs(p) > 1) == (wish->outputs > 1) && gpu_plan_serves(p->gpu, wish->kv);
}

static bool plan_is_enough(const shared_plan *p, const plan_wish *wish) {
    return plan_tokens(p) >= wish->tokens && plan_outputs(p) >= wish->outputs;
}

static void plan_free(shared_plan *p) {
    cpu_plan_free(p->cpu);
    gpu_plan_free(p->gpu);
    free(p);
}

static gm_status plan_make_cpu(plan_set *plans, const plan_wish *wish, size_t tokens, shared_plan *p, error *e) {
    if (p->rows) return cpu_plan_new_rows(plans->cpu, wish->g, tokens, &p->cpu, e);
    return cpu_plan_new(plans->cpu, wish->g, tokens, max_size(wish->outputs, 1), &p->cpu, e);
}

static gm_status plan_make_gpu(plan_set *plans, const plan_wish *wish, size_t tokens, shared_plan *p, error *e) {
    const size_t many = min_size(tokens, wish->most_outputs);
    if (p->rows) return gpu_plan_new_rows(plans->gpu, wish->g, tokens, wish->kv, &p->gpu, e);
    return gpu_plan_new(plans->gpu, wish->g, tokens, wish->outputs > 1 ? many : 1, wish->kv, &p->gpu, e);
}

static shared_plan *plan_new(plan_set *plans, const plan_wish *wish, size_t tokens, error *e) {
    const double start = clock_seconds();
    shared_plan *p = calloc(1, sizeof *p);
    if (!p) {
        fail_memory(e, "a plan", sizeof *p);
        return NULL;
    }
    p->g = wish->g;
    p->rows = wish_has_rows(wish);
    const gm_status status = (plans->gpu ? plan_make_gpu : plan_make_cpu)(plans, wish, tokens, p, e);
    plans->seconds += clock_seconds() - start;
    if (status) {
        plan_free(p);
        return NULL;
    }
    p->next = plans->first;
    plans->first = p;
    return p;
}

/* A plan of the class that nobody uses. One that is too small is freed: a larger one takes its place. */
static shared_plan *plans_find(plan_set *plans, const plan_wish *wish, size_t tokens) {
    for (shared_plan **at = &plans->first; *at;) {
        shared_plan *p = *at;
        if (p->borrowed || !plan_is_alike(plans, p, wish, tokens)) at = &p->next;
        else if (plan_is_enough(p, wish)) return p;
        else {
            *at = p->next;
            plan_free(p);
        }
    }
    return NULL;
}

shared_plan *plans_borrow(plan_set *plans, const plan_wish *wish, error *e) {
    const size_t tokens = class_tokens(plans, wish->g, wish->tokens, wish->rows);
    shared_plan *p = plans_find(plans, wish, tokens);
    if (!p) p = plan_new(plans, wish, tokens, e);
    if (!p || (p->gpu && gpu_plan_bind(p->gpu, wish->kv, e))) return NULL;
    p->borrowed = true;
    return p;
}

void plans_return(shared_plan *p) {
    if (!p) return;
    if (p->cpu) cpu_plan_restart(p->cpu);
    else gpu_plan_restart(p->gpu);
    p->borrowed = false;
}

bool plans_lent(const plan_set *plans, const gpu_generator *g) {
    for (const shared_plan *p = plans->first; p; p = p->next) {
        if (p->gpu && p->borrowed && gpu_generator_uses(g, p->gpu)) return true;
    }
    return false;
}

size_t plans_count(const plan_set *plans) {
    size_t count = 0;
    for (const shared_plan *p = plans->first; p; p = p->next) count++;
    return count;
}

/* g NULL: of all graphs. */
static void plans_remove(plan_set *plans, const graph *g) {
    for (shared_plan **at = &plans->first; *at;) {
        shared_plan *p = *at;
        if (g && p->g != g) at = &p->next;
        else {
            *at = p->next;
            plan_free(p);
        }
    }
}

void plans_drop(plan_set *plans, const graph *g) { plans_remove(plans, g); }

void plans_close(plan_set *plans) { plans_remove(plans, NULL); }
