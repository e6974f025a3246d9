/* Adapters of sessions: changed between turns, scaled, mixed, loaded and freed during answers; in snapshots, forks and shared prefixes.
 * Whatever happened before, a session computes what a fresh one with the same adapters computes, bit for bit. On a GPU, answers
 * that are written together differ from those alone by rounding, so the engine is precise there: the tokens are the same.
 *
 *     test_adapters [gpu] */

#include "adapter_files.h"
#include "base/clock.h"
#include "base/sha256.h"
#include "gpu/host_native.h"
#include "session/decoder_gpu.h"
#include "sessions.h"

#include <math.h>
#include <stdlib.h>

enum { PROMPT = 12, ANSWER = 8, VARIANTS = 6 };

static gm_engine *engine;
static gm_backend device = GM_BACKEND_CPU;

/* ---- adapters ---- */

/* One on q, o and down of all layers, the head and the embedding. Variants have other values and ranks; the last one has a rank that
 * needs more room than the others. */
static gm_status adapter_try(size_t variant, gm_adapter **out) {
    const model   *m = &engine->weights;
    const uint32_t rank = variant + 1 == VARIANTS ? 20 : 2 + (uint32_t)variant, layers = m->config.layers;
    made_tensor   *tensors = calloc(6 * layers + 5, sizeof *tensors);
    char(*names)[100] = calloc(6 * layers, sizeof *names), config[200], name[20];
    size_t count = 0;
    for (uint32_t i = 0; i < layers; i++) {
        const layer_weights *w = &m->layer[i];
        const weight        *weights[] = { &w->attn_q, &w->attn_output, &w->ffn_down };
        static const char   *modules[] = { "self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj" };
        for (size_t j = 0; j < 3; j++) {
            for (int half = 0; half < 2; half++) {
                snprintf(names[count], sizeof *names, "base_model.model.model.layers.%u.%s.lora_%c.weight", i,
                         modules[j], half ? 'B' : 'A');
                tensors[count] = (made_tensor){ names[count], "F32", half ? (uint32_t)weights[j]->ne[1] : rank,
                                                half ? rank : (uint32_t)weights[j]->ne[0] };
                count++;
            }
        }
    }
    const uint32_t d = m->config.width, v = m->config.vocabulary;
    tensors[count++] = (made_tensor){ "base_model.model.lm_head.lora_A.weight", "F32", rank, d };
    tensors[count++] = (made_tensor){ "base_model.model.lm_head.lora_B.weight", "F32", v, rank };
    tensors[count++] = (made_tensor){ "base_model.model.model.embed_tokens.lora_embedding_A", "F32", rank, v };
    tensors[count++] = (made_tensor){ "base_model.model.model.embed_tokens.lora_embedding_B", "F32", d, rank };
    snprintf(
        config, sizeof config,
        "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":%g,\"target_modules\":[\"q_proj\",\"o_proj\",\"down_proj\","
        "\"lm_head\",\"embed_tokens\"]}",
        rank, 0.02 * (1 + (double)variant));
    snprintf(name, sizeof name, "variant-%zu", variant);
    buffer          file = made_safetensors(tensors);
    const gm_status status =
        gm_adapter_load_data(engine, name, file.data, file.length, config, strlen(config), out, why, sizeof why);
    buffer_free(&file);
    free(tensors);
    free(names);
    return status;
}

static gm_adapter *adapter_made(size_t variant) {
    gm_adapter *out = NULL;
    CHECK_MESSAGE(!adapter_try(variant, &out), "%s", why);
    return out;
}

/* ---- sessions with adapters ---- */

typedef struct {
    gm_adapter *adapters[2];
    float       scales[2];
    size_t      count;
} mix;

static mix mix_of(gm_adapter *a, float scale) { return (mix){ { a }, { scale }, 1 }; }

static void session_use(gm_session *s, const mix *m) {
    CHECK_MESSAGE(!gm_session_adapters(s, m->adapters, m->scales, m->count, why, sizeof why), "%s", why);
}

static gm_session *session_using(const mix *m, bool shares) {
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    s->shares = shares;
    session_use(s, m);
    return s;
}

static size_t logit_count(void) { return engine->weights.config.vocabulary; }

/* What a fresh session with these adapters computes for the tokens. */
static float *logits_of(const mix *m, const int32_t *tokens, size_t n) {
    gm_session *s = session_using(m, false);
    float      *out = calloc(logit_count(), sizeof *out);
    CHECK_MESSAGE(!set_tokens(s, tokens, n), "%s", why);
    if (gm_session_logits(s)) memcpy(out, gm_session_logits(s), logit_count() * sizeof *out);
    gm_session_free(s);
    return out;
}

static bool has_logits_of(gm_session *s, const mix *m, const int32_t *tokens, size_t n) {
    float     *want = logits_of(m, tokens, n);
    const bool same = gm_session_logits(s) && !memcmp(gm_session_logits(s), want, logit_count() * sizeof *want);
    free(want);
    return same;
}

static bool computes(gm_session *s, const mix *m, const int32_t *tokens, size_t n) {
    CHECK_MESSAGE(!set_tokens(s, tokens, n), "%s", why);
    return has_logits_of(s, m, tokens, n);
}

/* ---- cases ---- */

static void test_switching(gm_adapter *const *a) {
    TEST("adapters change between turns");
    const mix none = { 0 }, first = mix_of(a[0], 1), second = mix_of(a[1], 1), less = mix_of(a[0], 0.5f);
    const mix both = { { a[0], a[1] }, { 0.5f, -1 }, 2 }, nothing = mix_of(a[0], 0);
    const mix changes[] = { none, first, second, less, both, first, nothing };
    int32_t   tokens[PROMPT];
    make_tokens(tokens, PROMPT, 1);
    gm_session *s = session_using(&none, false);
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        session_use(s, &changes[i]);
        CHECK(i == 0 || !gm_session_logits(s) || changes[i].count == 0);
        CHECK_MESSAGE(computes(s, &changes[i], tokens, PROMPT), "turn %zu", i);
    }
    CHECK(s->adapters == 0 && computes(s, &none, tokens, PROMPT)); /* a scale of 0 is none */

    TEST("adapters matter, and their order does not");
    float *plain = logits_of(&none, tokens, PROMPT), *changed = logits_of(&first, tokens, PROMPT);
    float *half = logits_of(&less, tokens, PROMPT);
    CHECK(memcmp(plain, changed, logit_count() * sizeof *plain) && memcmp(half, changed, logit_count() * sizeof *half));
    const mix turned = { { a[1], a[0] }, { -1, 0.5f }, 2 }, twice = { { a[0], a[0] }, { 0.25f, 0.25f }, 2 };
    session_use(s, &both);
    const uint32_t set = s->adapters;
    session_use(s, &turned);
    CHECK(s->adapters == set);
    session_use(s, &twice); /* scales of one adapter add up */
    CHECK(computes(s, &less, tokens, PROMPT));
    gm_session_free(s);
    free(plain);
    free(changed);
    free(half);
}

static void test_snapshots(gm_adapter *const *a) {
    TEST("a snapshot belongs to the adapters that it was computed with");
    const mix none = { 0 }, first = mix_of(a[0], 1), less = mix_of(a[0], 0.5f);
    int32_t   tokens[PROMPT];
    void     *data = NULL, *plain = NULL;
    size_t    size = 0, plain_size = 0;
    make_tokens(tokens, PROMPT, 2);
    gm_session *s = session_using(&first, false), *other = session_using(&first, false);
    CHECK(!set_tokens(s, tokens, PROMPT) && !gm_session_save_buffer(s, &data, &size, why, sizeof why));
    CHECK_MESSAGE(!gm_session_restore_buffer(other, data, size, why, sizeof why), "%s", why);
    CHECK(other->computed == PROMPT && has_logits_of(other, &first, tokens, PROMPT));
    for (size_t i = 0; i < 2; i++) { /* with others the tokens are computed again */
        session_use(other, i ? &none : &less);
        CHECK_MESSAGE(!gm_session_restore_buffer(other, data, size, why, sizeof why), "%s", why);
        CHECK(gm_session_tokens(other, NULL) == PROMPT && other->computed == 0 && !gm_session_logits(other));
        CHECK(computes(other, i ? &none : &less, tokens, PROMPT));
    }
    CHECK(!gm_session_save_buffer(other, &plain, &plain_size, why, sizeof why));
    CHECK(!gm_session_restore_buffer(s, plain, plain_size, why, sizeof why) && s->computed == 0);
    CHECK(computes(s, &first, tokens, PROMPT));
    gm_free(data);
    gm_free(plain);
    gm_session_free(s);
    gm_session_free(other);
}

enum { SOFT = 6, BEHIND = 2 * KV_BATCH };

/* Some soft tokens, and text behind them. */
static gm_session *session_seeing(const mix *m, bool shares, const float *rows) {
    gm_session *s = session_using(m, shares);
    int32_t     tokens[BEHIND];
    error       e = { 0 };
    make_tokens(tokens, BEHIND, 40);
    CHECK_MESSAGE(!session_hold_soft(s, 300, rows, SOFT, false, &e), "%s", e.why);
    for (size_t i = 0; i < BEHIND; i++) session_hold(s, tokens[i], &e);
    CHECK_MESSAGE(!e.status && !session_want_logits(s, INFINITY, &e), "%s", e.why);
    return s;
}

/* The file says what its soft tokens show, and has other values for them. With other adapters, the session computes all from these. */
static void test_foreign_soft_tokens(gm_adapter *const *a) {
    TEST("nobody begins with what was computed from a snapshot's soft tokens");
    const mix    first = mix_of(a[0], 1), second = mix_of(a[1], 1);
    const size_t width = engine->weights.config.width;
    float       *rows = calloc(SOFT * width, sizeof *rows);
    void        *data = NULL;
    size_t       size = 0;
    error        e = { 0 };
    for (size_t i = 0; i < SOFT * width; i++) rows[i] = made_value(5, i);
    gm_session *s = session_seeing(&first, false, rows), *want = session_seeing(&second, false, rows);
    CHECK_MESSAGE(!gm_session_save_buffer(s, &data, &size, why, sizeof why), "%s", why);
    float *at = memmem(data, size, rows, SOFT * width * sizeof *rows);
    CHECK(at != NULL);
    for (size_t i = 0; at && i < SOFT * width; i++) at[i] = -at[i];
    sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, data, size - GGUF_SEAL_BYTES);
    sha256_end(&hash, (uint8_t *)data + size - GGUF_SEAL_BYTES);
    gm_session *target = session_using(&second, true), *fork = NULL;
    CHECK_MESSAGE(!gm_session_restore_buffer(target, data, size, why, sizeof why) && !target->computed, "%s", why);
    CHECK_MESSAGE(!session_want_logits(target, INFINITY, &e), "%s", e.why);
    CHECK(memcmp(gm_session_logits(target), gm_session_logits(want), logit_count() * sizeof(float)));
    CHECK(!gm_session_fork(target, &fork, why, sizeof why));
    gm_session_free(fork);
    CHECK(!gm_session_fork(target, &fork, why, sizeof why) && fork->foreign);
    CHECK(!gm_session_rollback(fork, 0, NULL, why, sizeof why) && !fork->foreign); /* nothing is left of the snapshot */
    gm_session_free(fork);
    gm_session_free(target);
    gm_session *fresh = session_seeing(&second, true, rows);
    CHECK(!memcmp(gm_session_logits(fresh), gm_session_logits(want), logit_count() * sizeof(float)));
    gm_session_free(fresh);
    gm_session_free(want);
    gm_session_free(s);
    gm_free(data);
    free(rows);
}

static void test_forks(gm_adapter *const *a) {
    TEST("a fork has its parent's adapters until it changes them");
    const mix   first = mix_of(a[0], 1), second = mix_of(a[1], 2);
    gm_session *s = session_using(&first, false), *fork = NULL;
    int32_t     tokens[PROMPT];
    make_tokens(tokens, PROMPT, 3);
    CHECK(!set_tokens(s, tokens, PROMPT) && !gm_session_fork(s, &fork, why, sizeof why));
    CHECK(fork->adapters == s->adapters && has_logits_of(fork, &first, tokens, PROMPT));
    session_use(fork, &second);
    CHECK(computes(fork, &second, tokens, PROMPT));
    CHECK(has_logits_of(s, &first, tokens, PROMPT));
    gm_session_free(s);
    gm_session_free(fork);
}

static void test_prefixes(gm_adapter *const *a) {
    TEST("only sessions with the same adapters begin with each other's tokens");
    enum { LONG = 2 * KV_BATCH + 30 };
    const mix   none = { 0 }, first = mix_of(a[0], 1);
    int32_t    *tokens = malloc(LONG * sizeof *tokens);
    gm_session *s = session_using(&first, true), *same = session_using(&first, true),
               *plain = session_using(&none, true);
    make_tokens(tokens, LONG, 4);
    CHECK(computes(s, &first, tokens, LONG));
    CHECK(computes(plain, &none, tokens, LONG) && !plain->kv.shared);
    CHECK(computes(same, &first, tokens, LONG - 1) && same->kv.shared);
    gm_session_free(s); /* parked, with its adapters */
    gm_session_free(same);
    CHECK(engine->parked != NULL);
    session_use(plain, &first);
    CHECK(computes(plain, &first, tokens, LONG));
    gm_session_free(plain);
    free(tokens);
}

/* ---- answers ---- */

typedef struct {
    gm_session *s;
    gm_reply   *reply;
    gm_status   status;
} writer;

static writer writer_of(const mix *m, uint32_t seed) {
    writer                 w = { .s = session_using(m, false), .status = GM_AGAIN };
    int32_t                tokens[PROMPT];
    gm_sampling            greedy;
    const gm_reply_options options = { .sampling = &greedy, .max_tokens = ANSWER };
    gm_sampling_default(engine, &greedy);
    greedy.temperature = 0;
    make_tokens(tokens, PROMPT, seed);
    CHECK_MESSAGE(!gm_reply_start_tokens(w.s, tokens, PROMPT, &options, &w.reply, why, sizeof why), "%s", why);
    return w;
}

static bool writer_step(writer *w) {
    gm_piece piece;
    w->status = gm_reply_next(w->reply, &piece, why, sizeof why);
    if (w->status == GM_OK) w->status = GM_AGAIN;
    CHECK_MESSAGE(w->status == GM_AGAIN || w->status == GM_DONE, "%s", why);
    return w->status == GM_AGAIN;
}

static void writer_end(writer *w) {
    gm_reply_free(w->reply);
    gm_session_free(w->s);
}

/* Whether the answer is the one that is written alone. */
static bool writer_is_right(const writer *w, const mix *m, uint32_t seed) {
    const int32_t *ours = NULL, *theirs = NULL;
    writer         alone = writer_of(m, seed);
    while (writer_step(&alone)) {}
    const size_t n = gm_session_tokens(w->s, &ours), count = gm_session_tokens(alone.s, &theirs);
    const bool   same = n == count && n > PROMPT && !memcmp(ours, theirs, n * sizeof *ours);
    writer_end(&alone);
    return same;
}

/* Whether each token of the answer is the likeliest after those before it, which are computed as a prompt: what is drawn ahead has the
 * adapters, too. Near misses may be rounding. */
static bool writer_draws_likeliest(const writer *w, const mix *m) {
    const int32_t *tokens = NULL;
    const size_t   n = gm_session_tokens(w->s, &tokens);
    gm_session    *s = session_using(m, false);
    bool           right = n > PROMPT;
    for (size_t i = PROMPT; i < n && right; i++) {
        right = !set_tokens(s, tokens, i);
        const float *logits = gm_session_logits(s);
        for (size_t j = 0; right && j < logit_count(); j++) right = logits[j] < logits[tokens[i]] + 1e-3f;
    }
    gm_session_free(s);
    return right;
}

enum { WRITERS = 7 };

static gpu_decoder_totals shared_totals(void) {
    gpu_decoder_totals all = { 0 };
    for (size_t i = 0; device == GM_BACKEND_GPU && i < COUNT_OF(engine->gpu_decoders); i++) {
        if (!engine->gpu_decoders[i]) continue;
        all.steps += gpu_decoder_count(engine->gpu_decoders[i]).steps;
        all.tokens += gpu_decoder_count(engine->gpu_decoders[i]).tokens;
    }
    return all;
}

/* Returns the tokens per step of the generators that sessions share on the GPU. */
static double adapted_round(const mix *mixes, writer *writers, size_t count) {
    bool left = true;
    for (size_t i = 0; i < count; i++) writers[i] = writer_of(&mixes[i], 10 + (uint32_t)i % 5);
    const gpu_decoder_totals before = shared_totals();
    while (left) {
        left = false;
        for (size_t i = 0; i < count; i++) left |= writers[i].status == GM_AGAIN && writer_step(&writers[i]);
    }
    const gpu_decoder_totals after = shared_totals();
    return (double)(after.tokens - before.tokens) / (double)max_size(after.steps - before.steps, 1);
}

static void test_mixed_answers(gm_adapter *const *a) {
    TEST("answers with different adapters are written side by side");
    const mix    mixes[WRITERS] = { mix_of(a[0], 1), mix_of(a[1], 1), { { a[0], a[2] }, { 1, -1 }, 2 },
                                    { .count = 0 },  { .count = 0 },  mix_of(a[3], 1.5f),
                                    mix_of(a[0], 1) };
    const size_t count = device == GM_BACKEND_GPU ? 4 : WRITERS; /* so many share one generator */
    const double end = clock_seconds() + 900;
    writer       writers[WRITERS];
    double       width = adapted_round(mixes, writers, count);
    /* until the shaders of the shared generator are compiled, each draws alone */
    while (device == GM_BACKEND_GPU && width < 1.5 && clock_seconds() < end) {
        for (size_t i = 0; i < count; i++) writer_end(&writers[i]);
        while (gpu_pipelines_pending(engine->gpu.host) && clock_seconds() < end) gpu_host_wait(engine->gpu.host, 100);
        width = adapted_round(mixes, writers, count);
    }
    CHECK_MESSAGE(device == GM_BACKEND_CPU || width >= 1.5, "a step has %.2f tokens", width);
    for (size_t i = 0; i < count; i++) {
        CHECK_MESSAGE(writer_is_right(&writers[i], &mixes[i], 10 + (uint32_t)i % 5), "answer %zu", i);
        CHECK_MESSAGE(writer_draws_likeliest(&writers[i], &mixes[i]), "answer %zu is not what its adapters give", i);
    }
    for (size_t i = 0; i < count; i++) writer_end(&writers[i]);
}

/* The last variant has a higher rank: sites and plans are made anew in the middle of answers. */
static void test_loading(gm_adapter **a) {
    TEST("an adapter is loaded, and one is freed, during answers");
    const mix none = { 0 }, first = mix_of(a[0], 1), second = mix_of(a[1], 1);
    writer    one = writer_of(&first, 20), two = writer_of(&second, 21), plain = writer_of(&none, 22);
    for (int i = 0; i < 4; i++) writer_step(&one), writer_step(&two), writer_step(&plain);
    const uint32_t before = engine->adapters.sites.model.slots;
    a[VARIANTS - 1] = adapter_made(VARIANTS - 1);
    CHECK(engine->adapters.sites.model.slots >= before);
    gm_adapter_free(a[1]); /* its session goes on with it */
    while (one.status == GM_AGAIN || two.status == GM_AGAIN || plain.status == GM_AGAIN) {
        if (one.status == GM_AGAIN) writer_step(&one);
        if (two.status == GM_AGAIN) writer_step(&two);
        if (plain.status == GM_AGAIN) writer_step(&plain);
    }
    CHECK(writer_is_right(&one, &first, 20) && writer_is_right(&plain, &none, 22));
    const size_t count = engine->adapters.count;
    gm_session  *fork = NULL;
    CHECK(!gm_session_fork(two.s, &fork, why, sizeof why));
    writer_end(&two);
    CHECK(engine->adapters.count == count); /* the fork has it, too */
    gm_session_free(fork);
    CHECK(engine->adapters.count == count - 1);
    a[1] = adapter_made(1);
    const mix again = mix_of(a[1], 1), large = mix_of(a[VARIANTS - 1], 1);
    writer    three = writer_of(&again, 21), four = writer_of(&large, 23);
    while (writer_step(&three)) {}
    while (writer_step(&four)) {}
    CHECK(writer_is_right(&three, &again, 21) && writer_is_right(&four, &large, 23));
    writer_end(&one);
    writer_end(&plain);
    writer_end(&three);
    writer_end(&four);
}

/* ---- the GPU's limits ---- */

/* The last variant needs new sites; the others' stay as they are until there is memory for them. */
static void test_gpu_limits(gm_adapter *const *a) {
    TEST("an adapter that the GPU has no room for is refused, and everybody goes on");
    const mix   none = { 0 }, first = mix_of(a[0], 1);
    gpu_host   *gpu = engine->gpu.host;
    gm_session *s = session_using(&first, false), *plain = session_using(&none, false);
    gm_adapter *out = NULL;
    int32_t     tokens[PROMPT + 1];
    make_tokens(tokens, PROMPT + 1, 30);
    CHECK(!set_tokens(s, tokens, PROMPT) && !set_tokens(plain, tokens, PROMPT));
    float       *before = logits_of(&first, tokens, PROMPT), *bare = logits_of(&none, tokens, PROMPT);
    const size_t count = engine->adapters.count;
    gpu->most = gpu_host_bytes(gpu) + 4096;
    CHECK_MESSAGE(adapter_try(VARIANTS - 1, &out) == GM_NO_MEMORY && !out, "%s", why);
    CHECK_MESSAGE(strstr(why, "the adapters take ") && strstr(why, "bytes of GPU memory"), "%s", why);
    CHECK(!append_tokens(s, tokens + PROMPT, 1) && !append_tokens(plain, tokens + PROMPT, 1));
    gpu->most = 0;
    const uint32_t groups = gpu->info.max_workgroups;
    gpu->info.max_workgroups = 100;
    CHECK_MESSAGE(adapter_try(VARIANTS - 1, &out) == GM_UNSUPPORTED && strstr(why, " workgroups in "), "%s", why);
    gpu->info.max_workgroups = groups;
    CHECK(engine->adapters.count == count && gm_session_logits(s) && gm_session_logits(plain));
    gm_session_free(s);
    gm_session_free(plain);
    s = session_using(&first, false);
    CHECK(!set_tokens(s, tokens, PROMPT));
    CHECK(gm_session_logits(s) && !memcmp(gm_session_logits(s), before, logit_count() * sizeof *before));
    session_use(s, &none);
    CHECK(!set_tokens(s, tokens, PROMPT));
    CHECK(gm_session_logits(s) && !memcmp(gm_session_logits(s), bare, logit_count() * sizeof *bare));
    gm_session_free(s);
    free(before);
    free(bare);

    TEST("a slot whose adapter was freed while it was written is written from its beginning");
    gm_adapter *half = adapter_made(3);
    engine->adapters.next.part = 2 * engine->adapters.sites.model.count - 1; /* all but the last matrix */
    const uint32_t freed = half->slot;
    gm_adapter_free(half);
    gm_adapter *whole = adapter_made(2);
    const mix   there = mix_of(whole, 1), elsewhere = mix_of(a[2], 1);
    s = session_using(&there, false);
    CHECK(whole->slot == freed && a[2]->slot != freed);
    CHECK(computes(s, &elsewhere, tokens, PROMPT));
    gm_session_free(s);
    gm_adapter_free(whole);
}

static void test_adapter_refusals(gm_adapter *const *a) {
    TEST("what does not fit is refused, and changes nothing");
    const mix   first = mix_of(a[0], 1), wrong = mix_of(a[0], NAN), endless = { { a[0], a[0] }, { 3e38f, 3e38f }, 2 };
    int32_t     tokens[PROMPT];
    gm_adapter *out = NULL;
    make_tokens(tokens, PROMPT, 5);
    gm_session *s = session_using(&first, false);
    CHECK(!set_tokens(s, tokens, PROMPT));
    CHECK(gm_session_adapters(s, wrong.adapters, wrong.scales, 1, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK(gm_session_adapters(s, endless.adapters, endless.scales, 2, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK_MESSAGE(strstr(why, "'variant-0' add up to more"), "%s", why);
    CHECK(gm_session_adapters(s, (gm_adapter *[]){ NULL }, NULL, 1, why, sizeof why) == GM_BAD_ARGUMENT);
    CHECK(gm_adapter_load(engine, "tests/fixtures/tiny-moe-lora", &out, why, sizeof why) && !out);
    CHECK_MESSAGE(strstr(why, "another model"), "%s", why);
    CHECK(gm_adapter_load(engine, "tests/fixtures", &out, why, sizeof why) && !out);
    CHECK(gm_adapter_load_data(engine, "junk", "GGUF", 4, NULL, 0, &out, why, sizeof why) && !out);
    CHECK(has_logits_of(s, &first, tokens, PROMPT));
    CHECK(!strcmp(gm_adapter_name(a[0]), "variant-0"));
    gm_session_free(s);

    TEST("only so many different sets are in use at once");
    gm_session *many[ADAPTER_SETS];
    size_t      n = 0;
    gm_status   status = GM_OK;
    for (; n < COUNT_OF(many) && !status; n++) {
        const float scale = (float)(n + 1);
        many[n] = open_session(engine, GM_KV_DEFAULT, 64);
        status = gm_session_adapters(many[n], a, &scale, 1, why, sizeof why);
    }
    CHECK(status == GM_BUSY && n == ADAPTER_SETS);
    while (n--) gm_session_free(many[n]);
}

int main(int argc, char **argv) {
    gm_adapter *a[VARIANTS] = { NULL };
    if (argc > 1 && !strcmp(argv[1], "gpu")) device = GM_BACKEND_GPU;
    TEST("the engine opens, and adapters are loaded");
    engine = open_engine(&(gm_engine_options){
        .model = dense_model(device), .backend = device, .threads = 2, .precise = device == GM_BACKEND_GPU });
    if (!engine) return test_end();
    for (size_t i = 0; i + 1 < VARIANTS; i++) a[i] = adapter_made(i); /* more than the first slots */
    if (!a[VARIANTS - 2]) return test_end();
    test_switching(a);
    if (device == GM_BACKEND_CPU) { /* these do not depend on the device, and a GPU in software is slow */
        test_snapshots(a);
        test_foreign_soft_tokens(a);
        test_forks(a);
        test_prefixes(a);
    }
    test_mixed_answers(a);
    if (device == GM_BACKEND_GPU) test_gpu_limits(a);
    test_loading(a);
    if (device == GM_BACKEND_CPU) test_adapter_refusals(a);

    TEST("without adapters, nothing is left of them");
    for (size_t i = 0; i < VARIANTS; i++) gm_adapter_free(a[i]);
    CHECK(!engine->adapters.count && !engine->adapters.sites.g);
    gm_engine_close(engine);
    return test_end();
}
