/* The engine's plans: one per class, lent to one run at a time. */

#include "test.h"

#include "session/plans.h"

enum { WIDTH = 32, ROWS = 8 };

static float table[ROWS * WIDTH];

static void make_graph(graph *g) {
    g->result = graph_select_rows(
        g, graph_scale(g, graph_embed(g, graph_weight(g, "table", TYPE_F32, (uint64_t[]){ WIDTH, ROWS, 1 }, table), 1),
                       2));
    CHECK_MESSAGE(!g->problem.status, "%s", g->problem.why);
}

/* Computes the tokens 0, 1, …; the last one's result is twice its row. */
static void run(shared_plan *p, size_t tokens) {
    token_record     records[64] = { 0 };
    const int32_t    last = (int32_t)tokens - 1;
    const cpu_inputs in = {
        .run = { .records = records, .tokens = tokens, .output_rows = &last, .outputs = 1 },
    };
    for (size_t i = 0; i < tokens; i++) records[i].id = (int32_t)i % ROWS;
    CHECK(cpu_plan_step(p->cpu, &in, 1e30) == GM_OK);
    for (size_t i = 0; i < WIDTH; i++) CHECK(cpu_plan_result(p->cpu)[i] == 2 * table[(tokens - 1) % ROWS * WIDTH + i]);
}

int main(void) {
    error       e = { 0 };
    cpu_backend backend;
    graph       g = { 0 }, other = { 0 };
    for (size_t i = 0; i < ROWS * WIDTH; i++) table[i] = (float)i;
    CHECK(!cpu_backend_open(&backend, "scalar", 1, true, &e));
    make_graph(&g);
    make_graph(&other);
    plan_set plans = { .cpu = &backend };

    TEST("runs that end share a plan");
    shared_plan *first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 1, .outputs = 1 }, &e);
    run(first, 1);
    plans_return(first);
    shared_plan *second = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 1, .outputs = 1 }, &e);
    CHECK(first && second == first && plans_count(&plans) == 1);

    TEST("a run that is not over keeps its plan");
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 1, .outputs = 1 }, &e);
    CHECK(first && first != second && plans_count(&plans) == 2);
    run(first, 1);
    plans_return(first);
    plans_return(second);
    plans_return(plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 1, .outputs = 1 }, &e));
    CHECK(plans_count(&plans) == 2);

    TEST("a larger plan takes the place of a smaller one");
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 5, .outputs = 1 }, &e);
    run(first, 5);
    plans_return(first);
    second = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 50, .outputs = 1 }, &e);
    run(second, 50);
    plans_return(second);
    CHECK(plans_count(&plans) == 3 && cpu_plan_tokens(second->cpu) == 64);
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 5, .outputs = 1 }, &e);
    CHECK(first == second);
    run(first, 5);
    plans_return(first);

    TEST("rows have plans of their own");
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 3, .outputs = 3, .rows = true }, &e);
    CHECK(first && first != second && plans_count(&plans) == 4 && cpu_plan_tokens(first->cpu) == 4 &&
          cpu_plan_outputs(first->cpu) == 4);
    run(first, 3);
    plans_return(first);
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 32, .outputs = 32, .rows = true }, &e);
    CHECK(first && plans_count(&plans) == 4 && cpu_plan_outputs(first->cpu) == 32);
    plans_return(first);
    CHECK(first == plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 2, .outputs = 2, .rows = true }, &e));
    plans_return(first);
    first = plans_borrow(&plans, &(plan_wish){ .g = &g, .tokens = 1, .outputs = 1, .rows = true }, &e);
    CHECK(first && plans_count(&plans) == 4 && cpu_plan_tokens(first->cpu) == 1); /* one row is no different */
    plans_return(first);

    TEST("another graph has plans of its own");
    first = plans_borrow(&plans, &(plan_wish){ .g = &other, .tokens = 5, .outputs = 1 }, &e);
    CHECK(first && first != second && plans_count(&plans) == 5);
    run(first, 5);
    plans_return(first);
    plans_return(NULL);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    plans_close(&plans);
    CHECK(plans_count(&plans) == 0);
    graph_free(&g);
    graph_free(&other);
    cpu_backend_close(&backend);
    return test_end();
}
