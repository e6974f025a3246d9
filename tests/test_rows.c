/* A run with rows computes several sequences at once, each as alone: its logits, and the keys and values that it leaves. On the CPU it is
 * bitwise the same. The sequences are of different lengths: on the CPU up to beyond the end of a ring, on a GPU so that attention splits the
 * keys of some.
 *
 *     test_rows [cpu|gpu] */

#include "session/plans.h"
#include "sessions.h"

#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 32, LONGEST = 290, SPAN = 3 };
/* A GPU in software is slow: as many sequences as the largest step has, and prompts in pieces that share a plan. */
enum { SEQUENCES_ON_GPU = 17, LONGEST_ON_GPU = 40, PIECE_ON_GPU = 16 };

/* Rows of the steps, and of those with a larger model, for which shader compilers take longer. */
static const size_t on_cpu[] = { 2, 3, 4, 7, 16, 2 }, on_gpu[] = { 2, 3, 8, 9, 17 }, few_on_gpu[] = { 3, 17 };

typedef struct {
    const size_t *rows;
    size_t        count, sequences;
} rows_steps;

/* How far apart logits may be: |difference| / |alone|. 0: not at all. */
static double near;

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

static bool twin_open(twin *t, gm_engine *engine, gm_kv_type kv, size_t i, size_t sequences) {
    int32_t      tokens[LONGEST];
    const size_t longest = engine->on_gpu ? LONGEST_ON_GPU : LONGEST, piece = engine->on_gpu ? PIECE_ON_GPU : LONGEST;
    t->length = 1 + i * (longest - 1) / (sequences - 1);
    some_tokens(tokens, t->length, (uint32_t)i);
    t->alone = open_session(engine, kv, 512);
    if (!t->alone) return false;
    gm_status status = GM_OK;
    for (size_t at = 0; at < t->length && !status; at += piece)
        status = append_tokens(t->alone, tokens + at, min_size(piece, t->length - at));
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

/* Runs the plan on the GPU and copies the logits. */
static const float *rows_on_gpu(gm_engine *engine, gpu_plan *plan, const run_inputs *run) {
    static float  *logits;
    gpu_host      *h = engine->gpu.host;
    const size_t   bytes = run->outputs * engine->weights.config.vocabulary * sizeof *logits;
    const uint32_t ticket = gpu_ticket_new(h);
    const void    *data = NULL;
    size_t         arrived = 0;
    error          e = { 0 };
    free(logits);
    logits = malloc(bytes);
    while (gpu_plan_submit(plan, run, ticket, &e) == GM_AGAIN) gpu_host_wait(h, 100);
    while (!e.status && !(data = gpu_ticket_data(h, ticket, &arrived)) && !gpu_host_problem(h, &e))
        gpu_host_wait(h, 100);
    CHECK_MESSAGE(logits && data && arrived >= bytes, "%s", e.why);
    if (logits && data && arrived >= bytes) memcpy(logits, data, bytes);
    gpu_ticket_done(h, ticket);
    return data ? logits : NULL;
}

/* The logits of all rows; NULL if there is no plan. The plan is returned at once: nobody else runs. */
static const float *run_rows_of(gm_engine *engine, const kv_cache *kv, const token_record *records, size_t rows) {
    error           e = { 0 };
    int32_t         outputs[SEQUENCES];
    const plan_wish wish = { .g = &engine->text,
                             .tokens = rows,
                             .outputs = rows,
                             .most_outputs = rows,
                             .kv = kv->store->gpu_layers,
                             .rows = true };
    shared_plan    *plan = plans_borrow(&engine->plans, &wish, &e);
    CHECK_MESSAGE(plan, "%s", e.why);
    if (!plan) return NULL;
    for (size_t i = 0; i < rows; i++) outputs[i] = (int32_t)i;
    const run_inputs run = { .records = records, .tokens = rows, .output_rows = outputs, .outputs = rows };
    const float     *logits = engine->on_gpu ? rows_on_gpu(engine, plan->gpu, &run) : NULL;
    const cpu_inputs in = { .run = run, .kv = kv->store->cpu_layers };
    while (!engine->on_gpu && cpu_plan_step(plan->cpu, &in, 0) == GM_AGAIN) {}
    plans_return(plan);
    return engine->on_gpu ? logits : cpu_plan_result(plan->cpu);
}

static double logits_apart(const float *a, const float *alone, size_t n) {
    double apart = 0, size = 0;
    if (near == 0) return memcmp(a, alone, n * sizeof *a) ? INFINITY : 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow((double)a[i] - (double)alone[i], 2);
        size += pow((double)alone[i], 2);
    }
    return sqrt(apart / size);
}

/* Computes the token alone and compares. */
static void twin_compare(twin *t, int32_t token, const float *logits, const char *where) {
    const size_t vocabulary = t->alone->engine->weights.config.vocabulary;
    CHECK_MESSAGE(!append_tokens(t->alone, &token, 1), "%s", why);
    const double apart = logits_apart(logits, gm_session_logits(t->alone), vocabulary);
    CHECK_MESSAGE(apart <= near, "%s: the logits at position %zu are %g apart", where, t->length, apart);
    t->length++;
}

/* Each step takes other sequences. The first one comes once more with several tokens at once, as drafts will. */
static void test_rows_of_engine(gm_engine *engine, gm_kv_type kv, rows_steps steps) {
    twin         twins[SEQUENCES] = { 0 };
    token_record records[SEQUENCES];
    int32_t      tokens[SEQUENCES];
    const size_t vocabulary = engine->weights.config.vocabulary;
    bool         open = true;
    for (size_t i = 0; i < steps.sequences; i++) open &= twin_open(&twins[i], engine, kv, i, steps.sequences);
    for (size_t step = 0; open && step < steps.count; step++) {
        const size_t rows = steps.rows[step];
        char         where[40];
        snprintf(where, sizeof where, "%zu rows", rows);
        some_tokens(tokens, rows, (uint32_t)(100 + step));
        for (size_t i = 0; i < rows; i++)
            twin_join(&twins[(5 * step + i) % steps.sequences], records, i, &tokens[i], 1);
        const float *logits = run_rows_of(engine, &twins[0].row->kv, records, rows);
        for (size_t i = 0; logits && i < rows; i++)
            twin_compare(&twins[(5 * step + i) % steps.sequences], tokens[i], logits + i * vocabulary, where);
    }
    for (size_t i = 0; open && !engine->on_gpu && i < SEQUENCES; i += SEQUENCES - 1) {
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
    if (engine) test_rows_of_engine(engine, kv, (rows_steps){ on_cpu, COUNT_OF(on_cpu), SEQUENCES });
    gm_engine_close(engine);
}

static void test_rows_on_gpu(const char *path, bool precise, const size_t *rows, size_t count) {
    TEST("gpu: %s%s", path, precise ? ", precise" : "");
    gm_engine *engine =
        open_engine(&(gm_engine_options){ .model = path, .backend = GM_BACKEND_GPU, .precise = precise });
    near = precise ? 1e-5 : 5e-3; /* in 8 bits, one value that is rounded the other way changes more than that */
    if (engine) test_rows_of_engine(engine, GM_KV_DEFAULT, (rows_steps){ rows, count, SEQUENCES_ON_GPU });
    gm_engine_close(engine);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "gpu")) {
        test_rows_on_gpu("tests/fixtures/two-layers.gguf", true, on_gpu, COUNT_OF(on_gpu));
        test_rows_on_gpu("tests/fixtures/small-dense-Q4_K_M.gguf", false, few_on_gpu, COUNT_OF(few_on_gpu));
        test_rows_on_gpu("tests/fixtures/tiny-moe.gguf", false, on_gpu, COUNT_OF(on_gpu));
        return test_end();
    }
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
