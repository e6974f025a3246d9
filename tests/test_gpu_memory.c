/* Models with more weights than GPU memory: whatever stays outside (tables, experts, layers, everything), the logits must be those of
 * a GPU that holds all weights, within the memory limit.
 *
 *     test_gpu_memory [part of a model's name] */

#include "distance.h"
#include "session/gpu_memory.h"
#include "session/session.h"
#include "sessions.h"

#include <stdlib.h>

enum { BATCHES = 5, REPLY = 12 };

static bool open_limited(conversation *c, const char *path, uint64_t memory, bool precise) {
    const gm_engine_options options = {
        .model = path, .backend = GM_BACKEND_GPU, .precise = precise, .gpu_memory = memory
    };
    return open_conversation(c, &options);
}

/* Logits behind a prompt, and behind each of some more batches. */
static float *run_batches(conversation *c, size_t *count) {
    static const size_t batches[BATCHES] = { 14, 1, 1, 11, 1 };
    const size_t        vocabulary = c->engine->weights.config.vocabulary;
    int32_t             tokens[16];
    float              *logits = calloc(BATCHES * vocabulary, sizeof *logits);
    *count = BATCHES * vocabulary;
    for (size_t i = 0; i < BATCHES; i++) {
        for (size_t t = 0; t < batches[i]; t++) tokens[t] = (int32_t)(300 + (t * 37 + i * 11) % 300);
        const gm_status status = append_tokens(c->session, tokens, batches[i]);
        CHECK_MESSAGE(!status, "batch %zu: %s", i, why);
        if (status) break;
        memcpy(logits + i * vocabulary, gm_session_logits(c->session), vocabulary * sizeof *logits);
    }
    return logits;
}

/* Greedy, like a user: the tokens must not depend on where the weights are. */
static void write_reply_tokens(conversation *c, int32_t out[REPLY]) {
    gm_sampling   greedy;
    gm_reply     *r = NULL;
    gm_piece      piece;
    gm_status     status;
    const int32_t prompt[] = { 301, 305, 330, 399 }, *tokens;
    gm_sampling_default(c->engine, &greedy);
    greedy.temperature = 0;
    CHECK_MESSAGE(!gm_reply_start_tokens(c->session, prompt, COUNT_OF(prompt),
                                         &(gm_reply_options){ .sampling = &greedy, .max_tokens = REPLY }, &r, why,
                                         sizeof why),
                  "%s", why);
    if (!r) return;
    do status = gm_reply_next(r, &piece, why, sizeof why);
    while (status == GM_AGAIN || status == GM_OK);
    CHECK_MESSAGE(status == GM_DONE, "%d %s", status, why);
    gm_reply_free(r);
    const size_t count = gm_session_tokens(c->session, &tokens);
    for (size_t i = 0; i < REPLY; i++) out[i] = COUNT_OF(prompt) + i < count ? tokens[COUNT_OF(prompt) + i] : -1;
}

/* The budgets worth trying: what is left when one kind after the other is outside. */
typedef struct {
    char     name[32];
    uint64_t bytes;
} wish;

static size_t find_budgets(const conversation *c, wish out[BUDGET_KINDS + 1]) {
    const gm_engine *engine = c->engine;
    const gpu_info  *gpu = gpu_host_info(engine->gpu.host);
    size_t           count = 0;
    uint64_t         limit = 0;
    bool             seen[BUDGET_KINDS] = { false };
    for (;;) {
        gpu_budget  b;
        error       e = { 0 };
        budget_kind kind = BUDGET_KINDS;
        if (gpu_memory_plan(&engine->text, NULL, &engine->weights.config, engine->precise ? TYPE_F32 : TYPE_F16,
                            c->session->kv.context, 0, limit, 0, gpu, &b, &e))
            break;
        for (budget_kind k = BUDGET_TABLES; k < BUDGET_VECTORS; k++) {
            if (b.outside[k]) kind = k;
        }
        if (kind != BUDGET_KINDS && !seen[kind]) {
            snprintf(out[count].name, sizeof out[count].name, "some %s outside", budget_kind_names[kind]);
            out[count++].bytes = b.total;
            seen[kind] = true;
        }
        snprintf(out[count].name, sizeof out[count].name, "everything outside");
        out[count].bytes = b.total; /* the least, once the loop ends */
        limit = b.total - 1;
        gpu_budget_free(&b);
    }
    return count + 1;
}

/* `all_budgets`: every one worth trying, else the largest and the least. */
static void test_model(const char *path, bool precise, bool all_budgets) {
    conversation all;
    size_t       count = 0, wishes = 0;
    wish         budgets[BUDGET_KINDS + 1] = { 0 };
    int32_t      said[REPLY], again[REPLY];
    TEST("%s%s without a limit", path, precise ? ", precise" : "");
    if (!open_limited(&all, path, 0, precise)) return;
    float         *want = run_batches(&all, &count);
    gm_engine_info info;
    gm_engine_get_info(all.engine, &info);
    CHECK(!*info.note);
    wishes = find_budgets(&all, budgets);
    write_reply_tokens(&all, said);
    close_conversation(&all);
    CHECK_MESSAGE(wishes >= 3, "%zu", wishes);
    for (size_t i = 0; i < wishes; i += all_budgets || i == wishes - 1 ? 1 : wishes - 1) {
        TEST("%.60s%s in %llu bytes: %.32s", path, precise ? ", precise" : "", (unsigned long long)budgets[i].bytes,
             budgets[i].name);
        conversation c;
        size_t       same;
        if (!open_limited(&c, path, budgets[i].bytes, precise)) {
            close_conversation(&c);
            continue;
        }
        float       *got = run_batches(&c, &same);
        const double off = distance(got, want, count);
        CHECK_MESSAGE(off <= (precise ? 1e-5 : 1e-2), "the logits are off by %g", off);
        const uint64_t before = c.engine->gpu.uploaded;
        const int32_t  token = 333;
        while (gm_session_append(c.session, &token, 1, why, sizeof why) == GM_AGAIN) {}
        const uint64_t moved = c.engine->gpu.uploaded - before;
        const uint64_t planned =
            c.engine->budget.token_bytes + 2 * c.engine->budget.expert_bytes; /* a layer's guesses may all be wrong */
        CHECK_MESSAGE(moved <= planned, "a token moves %llu bytes, %llu were planned", (unsigned long long)moved,
                      (unsigned long long)planned);
        const uint64_t used = gpu_host_bytes(c.engine->gpu.host);
        CHECK_MESSAGE(used <= budgets[i].bytes, "%llu bytes are in use", (unsigned long long)used);
        gm_engine_get_info(c.engine, &info);
        CHECK_MESSAGE(strstr(info.note, "over the bus"), "'%s'", info.note);
        write_reply_tokens(&c, again);
        if (precise) CHECK(!memcmp(said, again, sizeof said));
        free(got);
        close_conversation(&c);
    }
    TEST("%s%s in less than the least", path, precise ? ", precise" : "");
    const gm_engine_options too_small = {
        .model = path, .backend = GM_BACKEND_GPU, .precise = precise, .gpu_memory = budgets[wishes - 1].bytes - 1
    };
    gm_engine *none = NULL;
    char       number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)too_small.gpu_memory);
    CHECK(gm_engine_open(&too_small, &none, why, sizeof why) == GM_NO_MEMORY && !none);
    CHECK_MESSAGE(strstr(why, number), "%s", why);
    free(want);
}

static void test_large_context(void) {
    TEST("a context whose keys exceed a binding is refused with the largest that fits");
    conversation c;
    if (!open_limited(&c, "tests/fixtures/tiny-dense.gguf", 0, false)) return;
    kv_store     store;
    kv_cache     kv;
    error        e = { 0 };
    model_config config = c.engine->weights.config;
    config.context = UINT32_MAX;
    CHECK(!kv_store_open(&store, &config, c.engine->gpu.host, TYPE_F16, &e));
    CHECK(kv_open(&kv, &store, UINT32_MAX, &e) == GM_NO_MEMORY);
    CHECK_MESSAGE(strstr(e.why, "the largest context is "), "%s", e.why);
    kv_store_close(&store);
    close_conversation(&c);
}

int main(int argc, char **argv) {
    static const struct {
        const char *path;
        bool        precise, all_budgets;
    } rows[] = {
        { "tests/fixtures/tiny-dense.gguf", true, false },
        { "tests/fixtures/tiny-moe.gguf", true, true },
        { "tests/fixtures/small-moe-Q4_K_M.gguf", false, false },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (argc < 2 || strstr(rows[i].path, argv[1])) test_model(rows[i].path, rows[i].precise, rows[i].all_budgets);
    }
    if (argc < 2 || strstr(rows[0].path, argv[1])) test_large_context();
    return test_end();
}
