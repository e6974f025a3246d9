/* Training on the CPU: a step's loss and gradients, however its tokens are divided and whatever stays in memory; gradients of every target
 * along random directions; steps that learn. That loss, gradients and AdamW agree with PyTorch is test_cli.sh's part (`gemmule check`). */

#include "sessions.h"
#include "train/fresh.h"
#include "train/schedule.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 41, LEAST_MEMORY = 1000 << 10 };
static const char tiny_dense[] = "tests/fixtures/tiny-dense.gguf", tiny_moe[] = "tests/fixtures/tiny-moe.gguf";

static gm_engine *open_tiny(const char *path) {
    return open_engine(&(gm_engine_options){ .model = path, .backend = GM_BACKEND_CPU, .threads = 2 });
}

static uint32_t noise_seed = 7;

static float train_noise(void) {
    noise_seed = noise_seed * 1664525u + 1013904223u;
    return (float)(noise_seed >> 8) / (1 << 23) - 1;
}

/* A fresh adapter whose B is not 0. */
static adapter *noisy_adapter(const gm_engine *engine, const char *targets, const char *layers, uint64_t seed) {
    const fresh_options o = { .rank = 3, .alpha = 6, .targets = targets, .layers = layers, .seed = seed };
    adapter            *a = NULL;
    error               e = { 0 };
    CHECK_MESSAGE(!adapter_fresh(&engine->weights, &o, "noisy", &a, &e), "%s", e.why);
    for (size_t i = 0; a && i < a->count; i++) {
        const size_t n = (size_t)a->pairs[i].experts * a->pairs[i].rank * a->pairs[i].out;
        const bool   table = adapter_is_embedding(&a->pairs[i]); /* of this one A is 0 at first, of others B */
        for (size_t j = 0; j < n; j++) CHECK((a->pairs[i].b[j] != 0) == table);
        for (size_t j = 0; j < n; j++) a->pairs[i].b[j] = 0.1f * train_noise();
        const size_t ids = table ? (size_t)a->pairs[i].rank * a->pairs[i].in : 0;
        for (size_t j = 0; j < ids; j++) CHECK(a->pairs[i].a[j] == 0);
        for (size_t j = 0; j < ids; j++) a->pairs[i].a[j] = train_noise();
    }
    return a;
}

static trainer *open_trainer(gm_engine *engine, trainer_options o) {
    trainer *t = NULL;
    error    e = { 0 };
    if (!o.tokens) o.tokens = 2 * TOKENS;
    if (!o.adapter) return NULL;
    CHECK_MESSAGE(!trainer_new(engine, &o, &t, &e), "%s", e.why);
    return t;
}

/* Two sequences, of which a first part and some others do not count. */
typedef struct {
    int32_t    ids[2 * TOKENS];
    float      weights[2 * TOKENS];
    train_span spans[2];
} two_sequences;

static two_sequences make_sequences(void) {
    two_sequences s = { .spans = { { 0, TOKENS }, { TOKENS, TOKENS - 7 } } };
    make_tokens(s.ids, 2 * TOKENS, 11); /* with these, no token is about to change its experts */
    for (size_t i = 0; i < 2 * TOKENS; i++) s.weights[i] = i % TOKENS > 4 && i % 7 ? 1 : 0;
    return s;
}

static double tokens_counted(const two_sequences *s) {
    double sum = 0;
    for (size_t i = 0; i < 2 * TOKENS - 7; i++) sum += i % TOKENS ? (double)s->weights[i] : 0;
    return sum;
}

static void train_draw(trainer *t, const two_sequences *s, size_t first, size_t count, double share, uint64_t draw) {
    error            e = { 0 };
    gm_status        status;
    const size_t     at = s->spans[first].first;
    const train_span spans[2] = { { 0, s->spans[first].count }, { s->spans[first].count, s->spans[1].count } };
    const train_run  run = { .ids = s->ids + at,
                             .weights = s->weights + at,
                             .count = s->spans[first].count + (count > 1 ? s->spans[1].count : 0),
                             .spans = spans,
                             .span_count = count,
                             .draw = draw };
    CHECK_MESSAGE(!trainer_begin(t, &run, share, &e), "%s", e.why);
    while ((status = trainer_work(t, 0, &e)) == GM_AGAIN) {} /* returns as often as it can */
    CHECK_MESSAGE(!status, "%s", e.why);
}

static void train_on(trainer *t, const two_sequences *s, size_t first, size_t count, double share) {
    train_draw(t, s, first, count, share, 0);
}

/* A state of a trainer, in the pairs of an adapter. */
static adapter *state_of(trainer *t, train_state what) {
    adapter  *out = NULL;
    error     e = { 0 };
    gm_status status = adapter_like(trainer_parameters(t)->adapters[0], "state", &out, &e);
    if (!status) {
        while ((status = trainer_store(t, what, out, 0, &e)) == GM_AGAIN) {}
    }
    CHECK_MESSAGE(!status, "%s", e.why);
    return out;
}

static double update(trainer *t, const adamw_settings *settings, uint64_t step) {
    error     e = { 0 };
    double    norm = -1;
    gm_status status;
    while ((status = trainer_update(t, settings, step, &norm, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", e.why);
    return norm;
}

static void add_differences(const float *x, const float *y, size_t n, double sums[2]) {
    for (size_t i = 0; i < n; i++) {
        sums[0] += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        sums[1] += (double)y[i] * y[i];
    }
}

/* How far the gradients of two trainers are apart, all together. */
static double gradients_apart(trainer *a, trainer *b) {
    adapter *x = state_of(a, TRAIN_GRADIENT), *y = state_of(b, TRAIN_GRADIENT);
    double   sums[2] = { 0, 1e-30 };
    for (size_t i = 0; x && y && i < x->count; i++) {
        const adapter_pair *p = &x->pairs[i];
        const size_t        rows = (size_t)p->experts * p->rank;
        add_differences(p->a, y->pairs[i].a, rows * p->in, sums);
        add_differences(p->b, y->pairs[i].b, rows * p->out, sums);
    }
    adapter_free(x);
    adapter_free(y);
    return sqrt(sums[0] / sums[1]);
}

/* The same step in several ways. */
static void test_train_ways(const char *path) {
    TEST("%s: a step in one run or two, with layers kept or computed again, a token or all at a time", path);
    gm_engine          *engine = open_tiny(path);
    adapter            *a = engine ? noisy_adapter(engine, NULL, NULL, 1) : NULL;
    const two_sequences s = make_sequences();
    trainer            *first = open_trainer(engine, (trainer_options){ .adapter = a });
    const uint64_t      most_memory = first ? trainer_bytes(first) : 0;
    const struct {
        trainer_options options;
        size_t          runs;
        double          most;
    } ways[] = {
        { { .adapter = a, .memory = LEAST_MEMORY }, 2, 0 }, /* the same bits */
        { { .adapter = a, .memory = LEAST_MEMORY * 3 / 2 }, 2, 0 },
        { { .adapter = a }, 1, 1e-5 },
        { { .adapter = a, .memory = LEAST_MEMORY, .logits_bytes = 1 }, 1, 1e-5 },
    };
    for (size_t i = 0; first && i <= COUNT_OF(ways); i++) {
        trainer     *t = i ? open_trainer(engine, ways[i - 1].options) : first;
        const size_t runs = i ? ways[i - 1].runs : 2;
        for (size_t run = 0; t && run < runs; run++) train_on(t, &s, run, runs == 1 ? 2 : 1, 1 / tokens_counted(&s));
        if (!i || !t) continue;
        const double most = ways[i - 1].most, apart = gradients_apart(t, first);
        CHECK_MESSAGE(apart <= most, "way %zu: gradients are %g apart", i, apart);
        CHECK_MESSAGE(fabs(trainer_loss(t) - trainer_loss(first)) <= 1e-6 + most, "way %zu: loss %.9g, first %.9g", i,
                      trainer_loss(t), trainer_loss(first));
        if (ways[i - 1].options.memory) CHECK(trainer_bytes(t) < most_memory);
        CHECK(ways[i - 1].options.memory ? trainer_kept(t) < engine->weights.config.layers
                                         : trainer_kept(t) == engine->weights.config.layers);
        trainer_free(t);
    }
    trainer_free(first);
    adapter_free(a);
    gm_engine_close(engine);
}

static double loss_of(gm_engine *engine, const adapter *a, const two_sequences *s) {
    trainer *t = open_trainer(engine, (trainer_options){ .adapter = a });
    if (!t) return NAN;
    train_on(t, s, 0, 2, 1 / tokens_counted(s));
    const double loss = trainer_loss(t);
    trainer_free(t);
    return loss;
}

static double loss_moved(gm_engine *engine, const adapter *a, const two_sequences *s, float *at, const float *v,
                         size_t n, double h) {
    for (size_t i = 0; i < n; i++) at[i] += (float)h * v[i];
    const double loss = loss_of(engine, a, s);
    for (size_t i = 0; i < n; i++) at[i] -= (float)h * v[i];
    return loss;
}

/* The slope of the loss along a random direction in A and in B of each pair. */
static void test_train_targets(const char *path, const char *targets, const char *layers) {
    TEST("%s: gradients of %s", path, targets);
    gm_engine          *engine = open_tiny(path);
    adapter            *a = engine ? noisy_adapter(engine, targets, layers, 3) : NULL;
    const two_sequences s = make_sequences();
    trainer            *t = open_trainer(engine, (trainer_options){ .adapter = a });
    if (t) train_on(t, &s, 0, 2, 1 / tokens_counted(&s));
    adapter *gradients = t ? state_of(t, TRAIN_GRADIENT) : NULL;
    for (size_t i = 0; gradients && i < 2 * a->count; i++) {
        adapter_pair *pair = &a->pairs[i / 2];
        const size_t  n = (size_t)pair->experts * pair->rank * (i % 2 ? pair->out : pair->in);
        float        *at = i % 2 ? pair->b : pair->a, *v = malloc(n * sizeof *v);
        const float  *gradient = i % 2 ? gradients->pairs[i / 2].b : gradients->pairs[i / 2].a;
        double        want = 0, norm = 0, near[2];
        CHECK_MESSAGE(train_part_find(trainer_parameters(t), pair->base, i % 2), "%s is not trained", pair->base);
        for (size_t j = 0; j < n; j++) {
            v[j] = train_noise() > 0 ? 1 : -1;
            want += (double)gradient[j] * v[j];
            norm += (double)gradient[j] * gradient[j];
        }
        const double h = 3e-4 / (1 + sqrt(norm) / 4); /* so small that no token changes its experts */
        for (int step = 0; step < 2; step++)
            near[step] = loss_moved(engine, a, &s, at, v, n, h * (1 + step)) -
                         loss_moved(engine, a, &s, at, v, n, -h * (1 + step));
        const double slope = (8 * near[0] - near[1]) / (12 * h);
        CHECK_MESSAGE(norm > 0 && fabs(slope - want) <= 0.02 * sqrt(norm) + 2e-4,
                      "%s %c: slope %g, gradient gives %g of about %g", pair->base, i % 2 ? 'B' : 'A', slope, want,
                      sqrt(norm));
        free(v);
    }
    adapter_free(gradients);
    trainer_free(t);
    adapter_free(a);
    gm_engine_close(engine);
}

/* An adapter that is part of the model counts, but gets no gradient. */
static void test_train_frozen(void) {
    TEST("an adapter on top of another");
    gm_engine          *engine = open_tiny(tiny_dense);
    adapter            *a = engine ? noisy_adapter(engine, "q,down", NULL, 1) : NULL;
    adapter            *b = engine ? noisy_adapter(engine, "q,up,head", "1-4", 2) : NULL;
    const two_sequences s = make_sequences();
    const float         one = 1;
    trainer            *first = open_trainer(
        engine,
        (trainer_options){ .adapter = a, .frozen = (const adapter *[]){ b }, .scales = &one, .frozen_count = 1 });
    trainer *second = open_trainer(
        engine,
        (trainer_options){ .adapter = b, .frozen = (const adapter *[]){ a }, .scales = &one, .frozen_count = 1 });
    if (first && second) {
        train_on(first, &s, 0, 2, 1 / tokens_counted(&s));
        train_on(second, &s, 0, 2, 1 / tokens_counted(&s));
        CHECK_MESSAGE(fabs(trainer_loss(first) - trainer_loss(second)) < 1e-5, "losses %.9g and %.9g",
                      trainer_loss(first), trainer_loss(second));
        CHECK(fabs(trainer_loss(first) - loss_of(engine, a, &s)) > 1e-4);
        CHECK(!train_part_find(trainer_parameters(first), "output.weight", false));
        CHECK(train_part_find(trainer_parameters(second), "output.weight", false));
    }
    trainer_free(first);
    trainer_free(second);
    adapter_free(a);
    adapter_free(b);
    gm_engine_close(engine);
}

static gm_status break_first(void *user, float *values, size_t count, error *e) {
    (void)user, (void)count, (void)e;
    values[0] = NAN;
    return GM_OK;
}

/* What was learned is in the adapter, and a step whose gradients are not finite changes nothing. */
static void test_train_steps(void) {
    TEST("steps that learn");
    gm_engine           *engine = open_tiny(tiny_dense);
    const fresh_options  o = { .rank = 4, .alpha = 8, .seed = 9 };
    const adamw_settings settings = {
        .rate = 1e-2, .beta = { 0.9, 0.999 }, .eps = 1e-8, .decay = 0.01, .most_norm = 1
    };
    const two_sequences s = make_sequences();
    adapter            *a = NULL;
    error               e = { 0 };
    double              loss[12] = { 0 };
    if (engine) CHECK_MESSAGE(!adapter_fresh(&engine->weights, &o, "new", &a, &e), "%s", e.why);
    trainer *t = open_trainer(engine, (trainer_options){ .adapter = a, .rate_of_b = 2 });
    for (size_t i = 0; t && i < COUNT_OF(loss); i++) {
        train_on(t, &s, 0, 2, 1 / tokens_counted(&s));
        loss[i] = trainer_loss(t);
        CHECK(update(t, &settings, i + 1) > 0);
        CHECK(trainer_loss(t) == 0);
    }
    CHECK_MESSAGE(loss[11] < 0.7 * loss[0], "the loss went from %g to %g", loss[0], loss[11]);
    if (t) {
        train_on(t, &s, 0, 2, 1 / tokens_counted(&s));
        const double last = trainer_loss(t);
        CHECK(!trainer_store(t, TRAIN_VALUES, a, INFINITY, &e));
        const double stored = loss_of(engine, a, &s);
        CHECK_MESSAGE(fabs(last - stored) < 1e-5, "loss %.9g, of what was stored %.9g", last, stored);
        while (trainer_reduce(t, break_first, NULL, 0, &e) == GM_AGAIN) {}
        CHECK(!isfinite(update(t, &settings, 13)));
        trainer_forget(t);
        train_on(t, &s, 0, 2, 1 / tokens_counted(&s));
        CHECK(trainer_loss(t) == last);
    }
    trainer_free(t);
    adapter_free(a);
    gm_engine_close(engine);
}

/* Some inputs of the adapter are left out: others in each run, the same by the same seed, and those in the gradient. */
static void test_train_dropout(void) {
    TEST("dropout");
    gm_engine          *engine = open_tiny(tiny_dense);
    adapter            *a = engine ? noisy_adapter(engine, NULL, NULL, 1) : NULL;
    const two_sequences s = make_sequences();
    trainer            *t[3];
    for (size_t i = 0; i < 3; i++)
        t[i] = open_trainer(engine, (trainer_options){ .adapter = a,
                                                       .dropout = 0.3f,
                                                       .seed = 4 + i / 2,
                                                       .memory = i == 1 ? LEAST_MEMORY * 3 / 2 : 0 });
    for (size_t i = 0; i < 3 && t[i]; i++) train_draw(t[i], &s, 0, 2, 1 / tokens_counted(&s), 1);
    if (t[0] && t[1] && t[2]) {
        const double first = trainer_loss(t[0]), all = loss_of(engine, a, &s);
        CHECK(first == trainer_loss(t[1]) &&
              gradients_apart(t[0], t[1]) == 0); /* where layers are computed again, too */
        CHECK(first != trainer_loss(t[2]) && first != all);
        trainer_forget(t[0]);
        train_draw(t[0], &s, 0, 2, 1 / tokens_counted(&s), 2);
        CHECK(trainer_loss(t[0]) != first);
        trainer_forget(t[0]);
        train_on(t[0], &s, 0, 2, 1 / tokens_counted(&s)); /* draws nothing */
        CHECK(trainer_loss(t[0]) == all);
    }
    for (size_t i = 0; i < 3; i++) trainer_free(t[i]);
    adapter_free(a);
    gm_engine_close(engine);
}

/* Measuring gives the losses of the sequences and changes nothing; without the trained adapter the model is what it was. A state that is
 * written to another trainer gives the same steps, bit by bit. */
static void test_train_measured(void) {
    TEST("runs that are measured, and states");
    gm_engine           *engine = open_tiny(tiny_dense);
    adapter             *a = engine ? noisy_adapter(engine, "q,down,head", NULL, 1) : NULL;
    adapter             *none = engine ? noisy_adapter(engine, "q,down,head", NULL, 1) : NULL;
    const two_sequences  s = make_sequences();
    trainer             *t = open_trainer(engine, (trainer_options){ .adapter = a });
    trainer             *other = open_trainer(engine, (trainer_options){ .adapter = none });
    error                e = { 0 };
    const size_t         size = t ? trainer_state_size(t) : 0;
    float               *state = malloc(size * sizeof *state);
    const adamw_settings settings = { .rate = 1e-2, .beta = { 0.9, 0.999 }, .eps = 1e-8 };
    for (size_t i = 0; none && i < none->count; i++)
        memset(none->pairs[i].b, 0, (size_t)none->pairs[i].rank * none->pairs[i].out * sizeof(float));
    const double plain = none ? loss_of(engine, none, &s) * tokens_counted(&s) : 0;
    if (t && other && state) {
        train_on(t, &s, 0, 2, 1);
        const double with = trainer_loss(t);
        const double spans = trainer_span_loss(t, 0) + trainer_span_loss(t, 1);
        CHECK(fabs(with - spans) < 1e-9 * with);
        for (size_t without = 0; without < 2; without++) {
            const train_run run = { .ids = s.ids,
                                    .weights = s.weights,
                                    .count = 2 * TOKENS - 7,
                                    .spans = s.spans,
                                    .span_count = 2,
                                    .measured = true,
                                    .without = without };
            CHECK(!trainer_begin(t, &run, 1, &e));
            while (trainer_work(t, 0, &e) == GM_AGAIN) {}
            const double got = trainer_span_loss(t, 0) + trainer_span_loss(t, 1), want = without ? plain : with;
            CHECK_MESSAGE(fabs(got - want) < 1e-6 * want, "measured %.9g, expected %.9g", got, want);
        }
        CHECK(trainer_loss(t) == with);
        CHECK(update(t, &settings, 1) > 0);
        CHECK(!trainer_read_state(t, state, INFINITY, &e) && !trainer_write_state(other, state, INFINITY, &e));
        for (size_t step = 2; step < 4; step++) {
            train_on(t, &s, 0, 2, 1);
            train_on(other, &s, 0, 2, 1);
            CHECK(trainer_loss(t) == trainer_loss(other) && trainer_loss(t) < with);
            CHECK(update(t, &settings, step) == update(other, &settings, step));
        }
        CHECK(!trainer_store(t, TRAIN_VALUES, a, INFINITY, &e));
        CHECK(!trainer_read_state(other, state, INFINITY, &e));
        trainer_state_adapter(other, state, none);
        CHECK(!memcmp(a->digest, none->digest, sizeof a->digest));
    }
    free(state);
    trainer_free(t);
    trainer_free(other);
    adapter_free(a);
    adapter_free(none);
    gm_engine_close(engine);
}

static void test_schedules(void) {
    TEST("schedules");
    const schedule kinds[] = { { SCHEDULE_CONSTANT, 2, 4, 12 },
                               { SCHEDULE_LINEAR, 2, 4, 12 },
                               { SCHEDULE_COSINE, 2, 4, 12 } };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        CHECK(schedule_rate(&kinds[i], 1) == 0.5 && schedule_rate(&kinds[i], 4) == 2 &&
              schedule_rate(&kinds[i], 5) == 2);
        CHECK(fabs(schedule_rate(&kinds[i], 9) - (i ? 1 : 2)) < 1e-12);
        CHECK(schedule_rate(&kinds[i], 13) == (i ? 0 : 2));
    }
    CHECK(schedule_rate(&(schedule){ SCHEDULE_LINEAR, 1, 0, 4 }, 1) == 1 &&
          schedule_rate(&(schedule){ SCHEDULE_LINEAR, 1, 0, 4 }, 4) == 0.25);
}

static void test_train_refusals(void) {
    gm_engine *engine = open_tiny(tiny_dense);
    const struct {
        fresh_options options;
        const char   *why;
    } fresh[] = {
        { { .rank = 0, .alpha = 8 }, "rank 0: expected 1 to" },
        { { .rank = 4, .alpha = 0 }, "alpha 0: expected more than 0" },
        { { .rank = 4, .alpha = 8, .targets = "q,nose" }, "'nose' cannot be trained; expected one of q, k" },
        { { .rank = 4, .alpha = 8, .targets = "experts" }, "the model has none of the targets 'experts'" },
        { { .rank = 4, .alpha = 8, .layers = "2,99" }, "layers '2,99': expected numbers and ranges below 6" },
        { { .rank = 4, .alpha = 8, .layers = "4-2" }, "layers '4-2': expected" },
    };
    for (size_t i = 0; engine && i < COUNT_OF(fresh); i++) {
        adapter *a = NULL;
        error    e = { 0 };
        TEST("refused: %s", fresh[i].why);
        CHECK(adapter_fresh(&engine->weights, &fresh[i].options, "x", &a, &e) && strstr(e.why, fresh[i].why));
        CHECK_MESSAGE(strstr(e.why, fresh[i].why), "%s", e.why);
    }
    TEST("too little memory");
    adapter *small = engine ? noisy_adapter(engine, "q", "0", 1) : NULL;
    trainer *none = NULL;
    error    refused = { 0 };
    CHECK(small && trainer_new(engine, &(trainer_options){ .adapter = small, .tokens = 8, .memory = 1000 }, &none,
                               &refused) == GM_NO_MEMORY);
    CHECK_MESSAGE(strstr(refused.why, "training on 8 tokens at a time needs 0."), "%s", refused.why);
    adapter_free(small);
    TEST("runs that do not fit");
    adapter      *a = engine ? noisy_adapter(engine, "q", "0", 1) : NULL;
    trainer      *t = open_trainer(engine, (trainer_options){ .adapter = a, .tokens = 8 });
    two_sequences s = make_sequences();
    for (int i = 0; t && i < 3; i++) {
        error            e = { 0 };
        const train_span span = { i == 1, i ? 8 : 9 };
        train_run run = { .ids = s.ids, .weights = s.weights, .count = i ? 8 : 9, .spans = &span, .span_count = 1 };
        if (i == 2) s.ids[3] = 1 << 20;
        CHECK(trainer_begin(t, &run, 1, &e) == GM_BAD_ARGUMENT);
    }
    trainer_free(t);
    adapter_free(a);
    gm_engine_close(engine);
}

int main(void) {
    test_train_ways(tiny_dense);
    test_train_ways(tiny_moe);
    test_train_targets(tiny_dense, "embedding,head,per_layer_gate,per_layer_projection,per_layer_model_projection",
                       "0,5");
    test_train_targets(tiny_moe, "router,experts", "1");
    test_train_targets("tests/fixtures/tiny-moe-split.gguf", "experts", "0");
    test_train_frozen();
    test_train_steps();
    test_train_dropout();
    test_train_measured();
    test_schedules();
    test_train_refusals();
    return test_end();
}
