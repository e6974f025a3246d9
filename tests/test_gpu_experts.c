/* The cache of experts: whatever number of experts the GPU holds, logits and answers must be those of a GPU that holds them all; also with
 * steps decoded ahead, with several sessions, and with a source that fails in the middle.
 *
 *     test_gpu_experts [part of a model's name] */

#include "distance.h"
#include "gpu/experts.h"
#include "load_host.h"
#include "read_file.h"
#include "session/denoiser.h"
#include "quick_gpu.h"
#include "session/gpu_memory.h"
#include "session/session.h"
#include "sessions.h"

#include <stdlib.h>
#include <unistd.h>

enum { BATCHES = 5, REPLY = 40 };

static bool open_with_experts(conversation *c, const char *path, uint32_t experts, bool precise) {
    const gm_engine_options options = {
        .model = path, .backend = GM_BACKEND_GPU, .precise = precise, .gpu_experts = experts
    };
    return open_conversation(c, &options);
}

/* Logits behind a prompt, and behind each of some more batches. */
static float *batches_of_logits(conversation *c, size_t *count) {
    static const size_t batches[BATCHES] = { 40, 1, 1, 11, 1 };
    const size_t        vocabulary = c->engine->weights.config.vocabulary;
    int32_t             tokens[40];
    float              *logits = calloc(BATCHES * vocabulary, sizeof *logits);
    *count = BATCHES * vocabulary;
    for (size_t i = 0; i < BATCHES; i++) {
        make_tokens(tokens, batches[i], (uint32_t)i);
        const gm_status status = append_tokens(c->session, tokens, batches[i]);
        CHECK_MESSAGE(!status, "batch %zu: %s", i, why);
        if (status) break;
        memcpy(logits + i * vocabulary, gm_session_logits(c->session), vocabulary * sizeof *logits);
    }
    return logits;
}

static gm_reply *begin_reply(gm_session *s, uint32_t seed, size_t most) {
    gm_sampling   sampling;
    gm_reply     *r = NULL;
    const int32_t prompt[] = { 301, 305, 330, (int32_t)(350 + seed) };
    gm_sampling_default(s->engine, &sampling);
    sampling.temperature = 1;
    sampling.seed = seed;
    CHECK_MESSAGE(
        !gm_reply_start_tokens(
            s, prompt, COUNT_OF(prompt),
            &(gm_reply_options){ .sampling = &sampling, .max_tokens = most, .steps = s->engine->denoiser ? 4 : 0 }, &r,
            why, sizeof why),
        "%s", why);
    return r;
}

/* Drawn with a seed: the tokens must not depend on where the experts are. */
static size_t reply_tokens(gm_session *s, uint32_t seed, int32_t *out) {
    gm_reply      *r = begin_reply(s, seed, REPLY);
    gm_piece       piece;
    gm_status      status = r ? GM_AGAIN : GM_DONE;
    const int32_t *tokens;
    while (status == GM_AGAIN || status == GM_OK) status = gm_reply_next(r, &piece, why, sizeof why);
    CHECK_MESSAGE(status == GM_DONE, "%d %s", status, why);
    gm_reply_free(r);
    const size_t count = gm_session_tokens(s, &tokens);
    for (size_t i = 0; i < REPLY + 4; i++) out[i] = i < count ? tokens[i] : -1;
    return count;
}

static void test_slots(const char *path, bool precise) {
    static const uint32_t slots[] = { 1, 2, 3, 7, 8 };
    conversation          all;
    size_t                count = 0, same = 0;
    int32_t               said[REPLY + 4], again[REPLY + 4];
    TEST("%s%s with all experts", path, precise ? ", precise" : "");
    if (!open_with_experts(&all, path, 0, precise)) return;
    float *want = batches_of_logits(&all, &count);
    CHECK(reply_tokens(all.session, 5, said) > 20 && !all.engine->gpu.experts);
    close_conversation(&all);
    for (size_t i = 0; i < COUNT_OF(slots); i++) {
        conversation c;
        TEST("%s%s with %u experts", path, precise ? ", precise" : "", slots[i]);
        if (!open_with_experts(&c, path, slots[i], precise)) continue;
        if (slots[i] == 3) c.engine->gpu.experts->kept_most = 2; /* copies give way to others */
        float       *got = batches_of_logits(&c, &same);
        const double off = distance(got, want, count);
        CHECK_MESSAGE(off == 0, "the logits are off by %g", off);
        reply_tokens(c.session, 5, again);
        CHECK(!memcmp(said, again, sizeof said));
        const expert_cache *cache = c.engine->gpu.experts;
        const uint32_t      experts = c.engine->weights.config.experts;
        CHECK(cache);
        if (cache && slots[i] >= experts) {
            CHECK(cache->slots == experts && cache->statistics.missed && !cache->statistics.restored);
            CHECK_MESSAGE(cache->statistics.loaded <= experts * cache->layer_count, "%llu loaded: some more than once",
                          (unsigned long long)cache->statistics.loaded);
        } else if (cache) {
            const expert_statistics *n = &cache->statistics;
            const uint64_t           each = (uint64_t)c.engine->weights.config.experts_used * cache->layer_count;
            CHECK(cache->slots == slots[i] && n->loaded && n->bytes && n->missed && n->missed <= n->picks);
            CHECK_MESSAGE(n->tokens >= 54 + 4 + REPLY - 1 && n->picks == n->tokens * each, "%llu tokens, %llu picks",
                          (unsigned long long)n->tokens, (unsigned long long)n->picks);
            CHECK_MESSAGE(n->restored && n->restored + 1 < n->loaded, "%llu of %llu came from copies",
                          (unsigned long long)n->restored, (unsigned long long)n->loaded);
            CHECK_MESSAGE(n->ahead && n->ahead < n->loaded, "%llu of %llu were loaded ahead of need",
                          (unsigned long long)n->ahead, (unsigned long long)n->loaded);
            if (slots[i] == 1) CHECK(n->missed > n->picks / 2);
            if (slots[i] == 7 && experts == 8)
                CHECK_MESSAGE(n->loaded < n->picks / 4, "%llu loaded", (unsigned long long)n->loaded);
        }
        free(got);
        close_conversation(&c);
    }
    free(want);
}

/* The logits and findings of two steps of a canvas behind a prompt: both graphs of a diffusion model use the same slots. */
static float *canvas_of_logits(conversation *c, size_t *count) {
    enum { PROMPT = 20, STEPS = 2 };
    const size_t    length = c->engine->weights.config.canvas.length, vocabulary = c->engine->weights.config.vocabulary;
    const size_t    each = length * (vocabulary + CANVAS_FINDINGS);
    int32_t         prompt[PROMPT], *ids = calloc(length, sizeof *ids);
    float          *out = calloc(STEPS * each, sizeof *out);
    session_canvas *canvas = NULL;
    error           e = { 0 };
    *count = STEPS * each;
    make_tokens(prompt, PROMPT, 3);
    CHECK_MESSAGE(!append_tokens(c->session, prompt, PROMPT), "%s", why);
    engine_enter(c->engine);
    gm_status status = session_canvas_get(c->session, &canvas, &e);
    for (size_t i = 0; i < STEPS && !status; i++) {
        float *logits = out + i * each;
        make_tokens(ids, length, (uint32_t)i);
        status = session_canvas_check(canvas, ids, 0.8f, logits, logits + length * vocabulary, &e);
    }
    engine_leave(c->engine);
    CHECK_MESSAGE(!status, "%s", e.why);
    free(ids);
    return out;
}

/* Bytes of GPU memory in which 3 experts of each layer fit, and no more. */
static uint64_t bytes_for_three(const gm_engine *engine) {
    const model_config *m = &engine->weights.config;
    gpu_budget          budget = { 0 };
    error               e = { 0 };
    CHECK_MESSAGE(!gpu_memory_plan(&engine->text, denoiser_graph(engine->denoiser), m, TYPE_F16, m->context, 0, 0, 3,
                                   gpu_host_info(engine->gpu.host), &budget, &e),
                  "%s", e.why);
    const uint64_t total = budget.total;
    gpu_budget_free(&budget);
    return total;
}

/* A canvas is written within the limit, also by kernels that divide their work as on a GPU in hardware. */
static void test_canvas_memory(const char *path, bool hardware) {
    gm_engine_options options = { .model = path, .backend = GM_BACKEND_GPU };
    conversation      c;
    int32_t           said[REPLY + 4];
    TEST("%s with little memory%s", path, hardware ? ", as on a GPU in hardware" : "");
    quick_gpu_hardware = hardware;
    if (!open_conversation(&c, &options)) return;
    options.gpu_memory = bytes_for_three(c.engine);
    close_conversation(&c);
    if (!open_conversation(&c, &options)) return;
    CHECK(c.engine->gpu.experts && c.engine->gpu.experts->slots == 3);
    CHECK(reply_tokens(c.session, 5, said) > 20);
    CHECK(gpu_host_bytes(c.engine->gpu.host) <= options.gpu_memory);
    close_conversation(&c);
}

static void test_canvas_slots(const char *path) {
    static const uint32_t slots[] = { 2, 3, 8 };
    conversation          c;
    size_t                count = 0, same = 0;
    TEST("%s with all experts", path);
    if (!open_with_experts(&c, path, 0, false)) return;
    float *want = canvas_of_logits(&c, &count);
    close_conversation(&c);
    test_canvas_memory(path, false);
    test_canvas_memory(path, true);
    quick_gpu_hardware = false;
    for (size_t i = 0; i < COUNT_OF(slots); i++) {
        TEST("%s with %u experts", path, slots[i]);
        if (!open_with_experts(&c, path, slots[i], false)) continue;
        float       *got = canvas_of_logits(&c, &same);
        const double off = distance(got, want, count);
        CHECK_MESSAGE(off == 0, "the logits are off by %g", off);
        const expert_cache *cache = c.engine->gpu.experts;
        CHECK(cache && cache->statistics.loaded >= slots[i]);
        free(got);
        close_conversation(&c);
    }
    free(want);
}

/* Answers that are polled in turn, and prompts between them: each is what it would be alone. */
static void test_several_sessions(const char *path, uint32_t slots) {
    enum { SESSIONS = 3 };
    conversation   c;
    int32_t        alone[SESSIONS][REPLY + 4], tokens[90];
    gm_session    *s[SESSIONS];
    gm_reply      *replies[SESSIONS];
    bool           over[SESSIONS] = { false };
    const int32_t *got;
    TEST("%s with %u experts: %d sessions at once", path, slots, SESSIONS);
    if (!open_with_experts(&c, path, slots, false)) return;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        s[i] = open_session(c.engine, GM_KV_DEFAULT, 0);
        reply_tokens(s[i], i + 1, alone[i]);
        gm_session_free(s[i]);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        s[i] = open_session(c.engine, GM_KV_DEFAULT, 0);
        replies[i] = begin_reply(s[i], i + 1, REPLY);
    }
    make_tokens(tokens, COUNT_OF(tokens), 7);
    size_t left = SESSIONS;
    for (size_t round = 0; left && round < 1000000; round++) {
        if (round == 40)
            gm_session_set(c.session, tokens, COUNT_OF(tokens), why,
                           sizeof why); /* and is not asked again for a while */
        if (round > 300) gm_session_set(c.session, tokens, COUNT_OF(tokens), why, sizeof why);
        for (size_t i = 0; i < SESSIONS; i++) {
            gm_piece piece;
            if (over[i]) continue;
            const gm_status status = gm_reply_next(replies[i], &piece, why, sizeof why);
            if (status == GM_AGAIN || status == GM_OK) continue;
            CHECK_MESSAGE(status == GM_DONE, "%d %s", status, why);
            over[i] = true;
            left--;
        }
    }
    CHECK_MESSAGE(!left, "%zu do not end", left);
    for (size_t i = 0; i < SESSIONS; i++) {
        const size_t count = gm_session_tokens(s[i], &got);
        for (size_t t = 0; t < REPLY + 4; t++)
            CHECK_MESSAGE(t >= count || alone[i][t] == got[t], "session %zu, token %zu: %d, not %d", i, t, got[t],
                          alone[i][t]);
        gm_reply_free(replies[i]);
        gm_session_free(s[i]);
    }
    close_conversation(&c);
}

/* What another session might do: fills the slots of every layer with other experts. */
static void load_others(gpu_backend *b, uint32_t first) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < c->layer_count; i++) {
        expert_wants       wants = { .layer = &c->layers[i] };
        const expert_wants none = { 0 };
        gm_status          status = GM_AGAIN;
        error              e = { 0 };
        for (uint32_t slot = 0; slot < c->slots; slot++) wants.wanted[(first + i + slot) % c->layers[i].experts] = 1;
        for (int tries = 0; status == GM_AGAIN && tries < 100; tries++) { /* a run that waits for its own comes first */
            status = expert_cache_load(b, b, &wants, &none, &e);
            if (status == GM_AGAIN) gpu_host_wait(b->host, 1);
        }
        CHECK_MESSAGE(!status || status == GM_AGAIN, "%s", e.why);
        expert_cache_release(b, b);
    }
}

/* Slots get other experts between a lookup and the products that read it. */
static void test_slots_change(const char *path, uint32_t slots) {
    conversation c;
    int32_t      tokens[3];
    TEST("%s with %u experts: slots change while a run waits", path, slots);
    if (!open_with_experts(&c, path, slots, true)) return;
    const size_t vocabulary = c.engine->weights.config.vocabulary;
    float       *want = calloc(vocabulary, sizeof *want);
    for (uint32_t round = 0; round < 4; round++) {
        gm_session *alone = open_session(c.engine, GM_KV_DEFAULT, 0), *s = open_session(c.engine, GM_KV_DEFAULT, 0);
        gm_status   status = GM_AGAIN;
        error       e = { 0 };
        make_tokens(tokens, COUNT_OF(tokens), round);
        CHECK_MESSAGE(!append_tokens(alone, tokens, COUNT_OF(tokens)), "%s", why);
        memcpy(want, gm_session_logits(alone), vocabulary * sizeof *want);
        gm_session_free(alone);
        engine_enter(c.engine);
        s->shares = false;
        for (size_t t = 0; t < COUNT_OF(tokens); t++) CHECK(!session_hold(s, tokens[t], &e));
        for (uint32_t turn = 0; status == GM_AGAIN && turn < 10000; turn++) {
            status = session_compute(s, 0, &e);
            if (!status) status = session_want_logits(s, 0, &e);
            if (status == GM_AGAIN && turn < 40) load_others(&c.engine->gpu, turn);
            gpu_host_wait(c.engine->gpu.host, 1);
        }
        engine_leave(c.engine);
        CHECK_MESSAGE(!status, "%s", e.why);
        const double off = status ? 1 : distance(gm_session_logits(s), want, vocabulary);
        CHECK_MESSAGE(off == 0, "round %u: the logits are off by %g", round, off);
        gm_session_free(s);
    }
    free(want);
    close_conversation(&c);
}

static uint32_t experts_in_slots(const expert_cache *c) {
    uint32_t count = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        for (uint32_t slot = 0; slot < c->slots; slot++) count += c->layers[i].expert_in[slot] != EXPERT_NOWHERE;
    }
    return count;
}

/* What an engine learns about its experts, the next one begins with. A file that is damaged is as good as none. */
static void test_hot_experts(const char *path) {
    enum { SLOTS = 3 };
    char                    folder[] = "/tmp/gemmule-experts-XXXXXX", file[200];
    const gm_engine_options options = {
        .model = path, .backend = GM_BACKEND_GPU, .precise = true, .gpu_experts = SLOTS, .cache = folder
    };
    conversation c;
    int32_t      first[REPLY + 4], again[REPLY + 4];
    uint32_t     order[64] = { 0 };
    TEST("%s: a profile of its experts", path);
    CHECK(mkdtemp(folder));
    rmdir(folder); /* the engine makes it */
    if (!open_conversation(&c, &options)) return;
    expert_cache *cache = c.engine->gpu.experts;
    CHECK(!experts_in_slots(cache));
    reply_tokens(c.session, 5, first);
    const uint32_t experts = cache->layers[0].experts, layers = (uint32_t)cache->layer_count;
    memcpy(order, cache->layers[0].seen, experts * sizeof *order);
    snprintf(file, sizeof file, "%s/experts-%.32s", folder, c.engine->digest);
    close_conversation(&c);

    TEST("%s: an engine that begins with it", path);
    if (!open_conversation(&c, &options)) return;
    cache = c.engine->gpu.experts;
    CHECK_MESSAGE(experts_in_slots(cache) == SLOTS * layers, "%u", experts_in_slots(cache));
    for (uint32_t x = 0; x < experts; x++) { /* those in slots were used at least as often as all others */
        for (uint32_t y = 0; y < experts; y++) {
            const bool in = cache->layers[0].slot_of[x] != EXPERT_NOWHERE,
                       out = cache->layers[0].slot_of[y] == EXPERT_NOWHERE;
            CHECK(!in || !out || order[x] >= order[y]);
        }
    }
    reply_tokens(c.session, 5, again);
    CHECK(!memcmp(first, again, sizeof first));
    close_conversation(&c);

    TEST("%s: a profile that is damaged", path);
    CHECK(!truncate(file, 50));
    if (!open_conversation(&c, &options)) return;
    CHECK(!experts_in_slots(c.engine->gpu.experts));
    close_conversation(&c);
    remove(file);
    rmdir(folder);
}

/* An engine whose file arrives in pieces, with two experts of each layer on the GPU and no copies: every miss is a read. */
static gm_engine *experts_open_in_pieces(load_host *h, buffer *file, const char *path) {
    const gm_engine_options gpu = { .backend = GM_BACKEND_GPU, .gpu_experts = 2 };
    const load_options      options = { .engine = &gpu };
    engine_load            *load = NULL;
    gm_engine              *engine = NULL;
    error                   e = { 0 };
    *file = file_read(path);
    *h = (load_host){ .parts = 1, .backwards = true };
    h->bytes[0] = (const uint8_t *)file->data;
    h->sizes[0] = file->length;
    gm_status status = load_host_start(h, &options, 0, &load, &e);
    if (!status) status = load_host_run(h, load, &engine, &e);
    CHECK_MESSAGE(!status && engine && engine->gpu.experts, "%s", e.why);
    if (!engine || !engine->gpu.experts) return engine;
    engine->gpu.experts->kept_most = 0;
    engine->turn_seconds = 0; /* it need not wait for what only we can bring */
    return engine;
}

/* A read that fails in the middle of a prompt is an error, and afterwards the conversation goes on. */
static void test_failing_source(const char *path) {
    load_host h;
    buffer    file;
    error     e = { 0 };
    int32_t   tokens[20];
    TEST("%s: a source that fails in the middle of a prompt", path);
    gm_engine  *engine = experts_open_in_pieces(&h, &file, path);
    gm_session *s = engine ? open_session(engine, GM_KV_DEFAULT, 0) : NULL;
    make_tokens(tokens, COUNT_OF(tokens), 3);
    if (s) {
        const size_t bytes = engine->weights.config.vocabulary * sizeof(float);
        gm_status    status = load_host_set(&h, s, tokens, 12, &e);
        CHECK_MESSAGE(!status, "%s", e.why);
        for (size_t i = 1; i <= 3; i++) { /* in the first, second and third read */
            e = (error){ 0 };
            h.fail_at = h.answered + i;
            status = load_host_set(&h, s, tokens, 12 + 2 * i, &e);
            CHECK_MESSAGE(status == GM_IO && strstr(e.why, "the cable was pulled"), "%d %s", status, e.why);
            h.fail_at = 0;
            e = (error){ 0 };
            status = load_host_set(&h, s, tokens, 12 + 2 * i, &e);
            CHECK_MESSAGE(!status, "%s", e.why);
        }
        float *want = malloc(bytes);
        memcpy(want, gm_session_logits(s), bytes);
        gm_session_free(s);
        s = open_session(engine, GM_KV_DEFAULT, 0);
        load_host_set(&h, s, tokens, 12, &e);
        for (size_t i = 1; i <= 3; i++) load_host_set(&h, s, tokens, 12 + 2 * i, &e);
        CHECK(!memcmp(want, gm_session_logits(s), bytes));
        free(want);
    }
    gm_session_free(s);
    gm_engine_close(engine);
    buffer_free(&file);
}

/* An answer whose reads the host answers: its status, and the session's tokens. */
static gm_status host_reply(load_host *h, gm_session *s, int32_t *out) {
    const gm_engine *engine = s->engine;
    gm_reply        *r = begin_reply(s, 5, REPLY);
    gm_piece         piece;
    const int32_t   *tokens;
    gm_status        status = r ? GM_AGAIN : GM_DONE;
    while (status == GM_AGAIN || status == GM_OK) {
        status = gm_reply_next(r, &piece, why, sizeof why);
        if (status == GM_AGAIN && !load_host_answer(h, engine->reads, engine->file, engine->gpu.host))
            gpu_host_wait(engine->gpu.host, 10);
    }
    gm_reply_free(r);
    const size_t count = gm_session_tokens(s, &tokens);
    for (size_t i = 0; i < REPLY + 4; i++) out[i] = i < count ? tokens[i] : -1;
    return status;
}

/* The same in the middle of an answer: afterwards the session writes what it would have written. */
static void test_failing_answer(const char *path) {
    load_host h;
    buffer    file;
    int32_t   want[REPLY + 4], said[REPLY + 4];
    TEST("%s: a source that fails in the middle of an answer", path);
    gm_engine  *engine = experts_open_in_pieces(&h, &file, path);
    gm_session *s = engine ? open_session(engine, GM_KV_DEFAULT, 0) : NULL;
    if (s) {
        const size_t before = h.answered;
        CHECK_MESSAGE(host_reply(&h, s, want) == GM_DONE, "%s", why);
        const size_t many = h.answered - before;
        CHECK_MESSAGE(many > 20, "%zu reads", many);
        for (size_t i = 0; i < 2; i++) { /* the first read, and one in the middle: the second time there are fewer */
            h.fail_at = h.answered + 1 + i * many / 3;
            const gm_status status = host_reply(&h, s, said);
            CHECK_MESSAGE(status == GM_IO && strstr(why, "the cable was pulled"), "%d %s", status, why);
            h.fail_at = 0;
            CHECK_MESSAGE(host_reply(&h, s, said) == GM_DONE, "%s", why);
            CHECK(!memcmp(said, want, sizeof want));
        }
    }
    gm_session_free(s);
    gm_engine_close(engine);
    buffer_free(&file);
}

/* Once all experts are there, the host waits for one report of each batch, and for one of each step of a canvas. */
static void test_reports(const char *path, size_t most) {
    conversation c;
    uint64_t     reports = 0;
    TEST("%s: reports when all experts are found", path);
    if (!open_with_experts(&c, path, 8, false)) return;
    for (size_t i = 0; i < 6; i++) {
        int32_t                 tokens[40], said[REPLY + 4];
        const expert_statistics before = c.engine->gpu.experts->statistics;
        gm_session             *s = open_session(c.engine, GM_KV_DEFAULT, 0);
        s->shares = false; /* every round computes everything */
        make_tokens(tokens, COUNT_OF(tokens), 3);
        CHECK_MESSAGE(!append_tokens(s, tokens, COUNT_OF(tokens)), "%s", why);
        if (c.engine->denoiser) reply_tokens(s, 5, said);
        reports = expert_statistics_since(&c.engine->gpu, &before).reports;
        gm_session_free(s);
    }
    CHECK_MESSAGE(reports && reports <= most, "%llu reports", (unsigned long long)reports);
    close_conversation(&c);
}

int main(int argc, char **argv) {
    static const struct {
        const char *path;
        bool        precise;
    } rows[] = { { "tests/fixtures/tiny-moe.gguf", true }, { "tests/fixtures/small-moe-Q4_K_M.gguf", false } };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (argc > 1 && !strstr(rows[i].path, argv[1])) continue;
        test_slots(rows[i].path, rows[i].precise);
        if (i) continue;
        test_several_sessions(rows[i].path, 2);
        test_several_sessions(rows[i].path, 6);
        test_slots_change(rows[i].path, 6);
        test_failing_source(rows[i].path);
        test_failing_answer(rows[i].path);
        test_reports(rows[i].path, 1);
        test_hot_experts(rows[i].path);
    }
    const char *diffusion = "tests/fixtures/tiny-diffusion.gguf";
    if (argc < 2 || strstr(diffusion, argv[1])) {
        test_canvas_slots(diffusion);
        test_failing_answer(diffusion);
        test_reports(diffusion, 12); /* of two prompts, two blocks of four steps, and the reading of these blocks */
    }
    return test_end();
}
