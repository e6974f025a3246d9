/* A run with rows computes several sequences at once, each bitwise as alone: its logits, and the keys and values that it leaves. The
 * sequences are of different lengths, up to beyond the end of a ring. */

#include "session/plans.h"
#include "sessions.h"

#include <stdlib.h>

enum { SEQUENCES = 16, LONGEST = 290, SPAN = 3 };

static const size_t counts[] = { 2, 3, 4, 7, 16, 2 }; /* rows of the steps */

/* Ids that the smallest vocabulary has, too. */
static void some_tokens(int32_t *tokens, size_t n, uint32_t seed) {
    make_tokens(tokens, n, seed);
    for (size_t i = 0; i < n; i++) tokens[i] = 300 + tokens[i] % 200;
}

/* A sequence twice: `alone` computes one token at a time, `row` has its keys and values and takes part in the runs. */
typedef struct {
    gm_session *alone, *row;
    size_t      length;
} twin;

static bool twin_open(twin *t, gm_engine *engine, gm_kv_type kv, size_t i) {
    int32_t tokens[LONGEST];
    t->length = 1 + i * (LONGEST - 1) / (SEQUENCES - 1);
    some_tokens(tokens, t->length, (uint32_t)i);
    t->alone = open_session(engine, kv, 512);
    if (!t->alone) return false;
    const gm_status status = append_tokens(t->alone, tokens, t->length);
    CHECK_MESSAGE(!status && !gm_session_fork(t->alone, &t->row, why, sizeof why), "%s", why);
    return t->row;
}

/* Adds the records of a sequence's next tokens, in rows of their own. */
static void twin_join(twin *t, token_record *records, size_t row, const int32_t *tokens, size_t count) {
    error     e = { 0 };
    kv_cache *kv = &t->row->kv;
    CHECK_MESSAGE(!kv_reserve(kv, t->length, count, &e), "%s", e.why);
    const record_sequence sequence = kv_sequence(kv);
    records_of_text(records, row, &sequence, tokens, t->length, count);
    kv_written(kv, t->length + count);
}

/* The logits of all rows; NULL if there is no plan. The plan is returned at once: nobody else runs. */
static const float *run_rows_of(gm_engine *engine, const kv_cache *kv, const token_record *records, size_t rows) {
    error           e = { 0 };
    int32_t         outputs[SEQUENCES];
    const plan_wish wish = { .g = &engine->text, .tokens = rows, .outputs = rows, .rows = true };
    shared_plan    *plan = plans_borrow(&engine->plans, &wish, &e);
    CHECK_MESSAGE(plan, "%s", e.why);
    if (!plan) return NULL;
    for (size_t i = 0; i < rows; i++) outputs[i] = (int32_t)i;
    const cpu_inputs in = {
        .run = { .records = records, .tokens = rows, .output_rows = outputs, .outputs = rows },
        .kv = kv->store->cpu_layers,
    };
    while (cpu_plan_step(plan->cpu, &in, 0) == GM_AGAIN) {}
    plans_return(plan);
    return cpu_plan_result(plan->cpu);
}

/* Computes the token alone and compares. */
static void twin_compare(twin *t, int32_t token, const float *logits, const char *where) {
    const size_t bytes = t->alone->engine->weights.config.vocabulary * sizeof *logits;
    CHECK_MESSAGE(!append_tokens(t->alone, &token, 1), "%s", why);
    CHECK_MESSAGE(!memcmp(gm_session_logits(t->alone), logits, bytes), "%s: the logits at position %zu differ", where,
                  t->length);
    t->length++;
}

/* Each step takes other sequences. The first one comes once more with several tokens at once, as drafts will. */
static void test_rows_of_engine(gm_engine *engine, gm_kv_type kv) {
    twin         twins[SEQUENCES] = { 0 };
    token_record records[SEQUENCES];
    int32_t      tokens[SEQUENCES];
    const size_t vocabulary = engine->weights.config.vocabulary;
    bool         open = true;
    for (size_t i = 0; i < SEQUENCES; i++) open &= twin_open(&twins[i], engine, kv, i);
    for (size_t step = 0; open && step < COUNT_OF(counts); step++) {
        const size_t rows = counts[step];
        char         where[40];
        snprintf(where, sizeof where, "%zu rows", rows);
        some_tokens(tokens, rows, (uint32_t)(100 + step));
        for (size_t i = 0; i < rows; i++) twin_join(&twins[(5 * step + i) % SEQUENCES], records, i, &tokens[i], 1);
        const float *logits = run_rows_of(engine, &twins[0].row->kv, records, rows);
        for (size_t i = 0; logits && i < rows; i++)
            twin_compare(&twins[(5 * step + i) % SEQUENCES], tokens[i], logits + i * vocabulary, where);
    }
    for (size_t i = 0; open && i < SEQUENCES; i += SEQUENCES - 1) {
        some_tokens(tokens, SPAN, 200);
        twin_join(&twins[i], records, 0, tokens, SPAN);
        const float *logits = run_rows_of(engine, &twins[0].row->kv, records, SPAN);
        for (size_t j = 0; logits && j < SPAN; j++)
            twin_compare(&twins[i], tokens[j], logits + j * vocabulary, "several tokens of one sequence");
    }
    for (size_t i = 0; i < SEQUENCES; i++) {
        gm_session_free(twins[i].alone);
        gm_session_free(twins[i].row);
    }
}

static void test_rows_of_file(const char *path, const char *table, bool precise, gm_kv_type kv) {
    TEST("%s: %s%s%s", table, path, precise ? ", precise" : "", kv == GM_KV_Q8_0 ? ", q8_0" : "");
    gm_engine *engine = open_engine(&(gm_engine_options){
        .model = path, .backend = GM_BACKEND_CPU, .cpu = table, .threads = 2, .precise = precise });
    if (engine) test_rows_of_engine(engine, kv);
    gm_engine_close(engine);
}

int main(void) {
    static const char *const  larger[] = { "tests/fixtures/small-dense-Q4_K_M.gguf",
                                           "tests/fixtures/small-moe-Q4_K_M.gguf", "models/box.gguf" };
    const cpu_kernels *const *tables;
    const size_t              count = cpu_kernels_available(&tables);
    for (size_t i = 0; i < count; i++) {
        const char *table = tables[i]->name;
        test_rows_of_file("tests/fixtures/tiny-dense.gguf", table, false, GM_KV_DEFAULT);
        test_rows_of_file("tests/fixtures/tiny-moe.gguf", table, false, GM_KV_Q8_0);
        test_rows_of_file("tests/fixtures/odd-moe.gguf", table, true, GM_KV_DEFAULT);
    }
    test_rows_of_file("tests/fixtures/tiny-dense.gguf", tables[0]->name, true, GM_KV_DEFAULT);
    test_rows_of_file("tests/fixtures/tiny-moe.gguf", tables[0]->name, true, GM_KV_DEFAULT);
    for (size_t i = 0; i < COUNT_OF(larger); i++) test_rows_of_file(larger[i], tables[0]->name, false, GM_KV_DEFAULT);
    return test_end();
}
