/* Training on the GPU: steps with the CPU's losses, with dropout, from a state of the CPU's and back; the same bits twice; the same losses
 * however the activations lie in memory and whichever layers are computed again. Engines have two layers (dense_model.h): test_gpu_check compares loss, gradients
 * and steps on whole models with PyTorch. Needs a WebGPU library and a Vulkan driver, like test_gpu_host. */

#include "sessions.h"
#include "train/fresh.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 40, STEPS = 5, CHUNK_BYTES = 64 << 10, LEAST_MEMORY = 450 << 10 };

static const adamw_settings settings = {
    .rate = 1e-2, .beta = { 0.9, 0.999 }, .eps = 1e-8, .decay = 0.01, .most_norm = 1
};

static gm_engine *open_two_layers(gm_backend device) {
    return open_engine(&(gm_engine_options){ .model = dense_model(GM_BACKEND_GPU), .backend = device, .threads = 2 });
}

static adapter *fresh_adapter(const gm_engine *engine) {
    const fresh_options o = { .rank = 3, .alpha = 6, .targets = "q,k,v,o,gate,up,down,embedding,head", .seed = 5 };
    adapter            *a = NULL;
    error               e = { 0 };
    CHECK_MESSAGE(!adapter_fresh(&engine->weights, &o, "new", &a, &e), "%s", e.why);
    return a;
}

typedef struct {
    double loss[STEPS], norm[STEPS];
} steps_seen;

/* Two sequences of which some tokens count, in two runs a step. */
static gm_status take_step(trainer *t, uint64_t step, double *loss, double *norm, error *e) {
    int32_t          ids[TOKENS];
    float            weights[TOKENS];
    const train_span spans[] = { { 0, 23 }, { 23, TOKENS - 23 } };
    gm_status        status;
    for (uint64_t run = 0; run < 2; run++) {
        make_tokens(ids, TOKENS, (uint32_t)(2 * (step % 2) + run));
        for (size_t i = 0; i < TOKENS; i++) weights[i] = i % 7 && i % 23 > 4 ? 1 : 0;
        const train_run in = {
            .ids = ids, .weights = weights, .count = TOKENS, .spans = spans, .span_count = 2, .draw = 2 * step + run + 1
        };
        TRY(trainer_begin(t, &in, 0.02, e));
        while ((status = trainer_work(t, 0, e)) == GM_AGAIN) {}
        TRY(status);
    }
    *loss = trainer_loss(t);
    while ((status = trainer_update(t, &settings, step + 1, norm, 0, e)) == GM_AGAIN) {}
    return status;
}

static steps_seen take_steps(trainer *t, size_t first, size_t end) {
    steps_seen seen = { 0 };
    error      e = { 0 };
    for (size_t i = first; t && i < end; i++)
        CHECK_MESSAGE(!take_step(t, i, &seen.loss[i], &seen.norm[i], &e), "step %zu: %s", i, e.why);
    return seen;
}

static void expect_near(const steps_seen *got, const steps_seen *want, size_t first, size_t end, double most) {
    for (size_t i = first; i < end; i++) {
        const double apart = fabs(got->loss[i] - want->loss[i]) / fabs(want->loss[i]);
        const double norms = fabs(got->norm[i] - want->norm[i]) / fabs(want->norm[i]);
        CHECK_MESSAGE(apart <= most && norms <= 10 * most,
                      "step %zu: loss %.9g, expected %.9g; norm %.9g, expected %.9g", i, got->loss[i], want->loss[i],
                      got->norm[i], want->norm[i]);
    }
}

static trainer *trainer_beside(gm_engine *engine, const adapter *a, trainer_options o) {
    trainer *t = NULL;
    error    e = { 0 };
    o.adapter = a;
    o.tokens = TOKENS;
    CHECK_MESSAGE(!trainer_new(engine, &o, &t, &e), "%s", e.why);
    return t;
}

static float *read_state(trainer *t) {
    float    *state = malloc(trainer_state_size(t) * sizeof *state);
    error     e = { 0 };
    gm_status status;
    while ((status = trainer_read_state(t, state, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", e.why);
    return state;
}

static void write_state(trainer *t, const float *state) {
    error     e = { 0 };
    gm_status status;
    while ((status = trainer_write_state(t, state, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", e.why);
}

static gm_status make_infinite(void *user, float *values, size_t count, error *e) {
    (void)user, (void)e;
    values[count - 1] = INFINITY;
    return GM_OK;
}

/* A step whose gradients are not finite changes nothing, and what a step has so far can be forgotten. */
static void test_gpu_train_guard(trainer *t) {
    TEST("gradients that are not finite, and a step that is abandoned");
    float    *before = read_state(t);
    error     e = { 0 };
    double    norm = 0;
    gm_status status;
    while ((status = trainer_reduce(t, make_infinite, NULL, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", e.why);
    while ((status = trainer_update(t, &settings, 9, &norm, 0, &e)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status && !isfinite(norm), "%s, norm %g", e.why, norm);
    float *after = read_state(t);
    CHECK(!memcmp(before, after, trainer_state_size(t) * sizeof *before));
    trainer_forget(t);
    const steps_seen once = take_steps(t, 0, 1);
    write_state(t, before);
    int32_t          ids[TOKENS] = { 300, 301, 302 };
    const float      weights[TOKENS] = { 0, 1, 1 };
    const train_span span = { 0, 3 };
    const train_run  run = { .ids = ids, .weights = weights, .count = 3, .spans = &span, .span_count = 1 };
    CHECK(!trainer_begin(t, &run, 1, &e));
    (void)trainer_work(t, 0, &e); /* its pieces are under way */
    trainer_forget(t);
    const steps_seen again = take_steps(t, 0, 1);
    CHECK_MESSAGE(!memcmp(&once, &again, sizeof once), "losses %.9g and %.9g", once.loss[0], again.loss[0]);
    free(before);
    free(after);
}

/* What is measured is what steps see, and changes nothing. */
static void test_gpu_train_measured(trainer *t, trainer *on_cpu) {
    TEST("runs that are measured");
    int32_t          ids[TOKENS];
    float            weights[TOKENS];
    const train_span spans[] = { { 0, 23 }, { 23, TOKENS - 23 } };
    trainer *const   both[] = { on_cpu, t };
    double           losses[2][2][2];
    error            e = { 0 };
    make_tokens(ids, TOKENS, 77);
    for (size_t i = 0; i < TOKENS; i++) weights[i] = i % 3 ? 1 : 0;
    for (size_t i = 0; i < 4; i++) {
        trainer        *one = both[i / 2];
        const train_run run = { .ids = ids,
                                .weights = weights,
                                .count = TOKENS,
                                .spans = spans,
                                .span_count = 2,
                                .measured = true,
                                .without = i % 2 };
        CHECK(!trainer_begin(one, &run, 1, &e));
        while (trainer_work(one, 0, &e) == GM_AGAIN) {}
        for (size_t span = 0; span < 2; span++) losses[i / 2][i % 2][span] = trainer_span_loss(one, span);
        CHECK(trainer_loss(one) == 0);
    }
    for (size_t i = 0; i < 4; i++) {
        const double got = losses[1][i / 2][i % 2], want = losses[0][i / 2][i % 2];
        CHECK_MESSAGE(fabs(got - want) < 1e-3 * want, "%g, on the CPU %g", got, want);
    }
    CHECK(losses[1][0][0] != losses[1][1][0]);
}

static void test_gpu_train_steps(float dropout) {
    TEST("steps on the CPU and on the GPU, dropout %g", (double)dropout);
    gm_engine            *cpu = open_two_layers(GM_BACKEND_CPU), *gpu = open_two_layers(GM_BACKEND_GPU);
    adapter              *a = cpu && gpu ? fresh_adapter(cpu) : NULL;
    const trainer_options o = { .dropout = dropout, .seed = 3, .rate_of_b = 2, .logits_bytes = CHUNK_BYTES };
    trainer              *t[2] = { a ? trainer_beside(cpu, a, o) : NULL, a ? trainer_beside(gpu, a, o) : NULL };
    if (t[0] && t[1]) {
        const steps_seen want = take_steps(t[0], 0, STEPS), got = take_steps(t[1], 0, STEPS);
        expect_near(&got, &want, 0, STEPS, 1e-3);
        CHECK_MESSAGE(want.loss[STEPS - 1] < 0.9 * want.loss[0], "nothing is learned: %g, %g", want.loss[0],
                      want.loss[STEPS - 1]);
        TEST("from a state of the CPU's and back, dropout %g", (double)dropout);
        float *on_cpu = read_state(t[0]), *on_gpu;
        write_state(t[1], on_cpu);
        on_gpu = read_state(t[1]);
        CHECK(!memcmp(on_cpu, on_gpu, trainer_state_size(t[0]) * sizeof *on_cpu));
        const steps_seen next = take_steps(t[0], 4, STEPS), beside = take_steps(t[1], 4, STEPS);
        expect_near(&beside, &next, 4, STEPS, 1e-3);
        free(on_cpu);
        free(on_gpu);
        if (dropout > 0) test_gpu_train_measured(t[1], t[0]);
        else test_gpu_train_guard(t[1]);
    }
    for (int i = 0; i < 2; i++) trainer_free(t[i]);
    adapter_free(a);
    gm_engine_close(cpu);
    gm_engine_close(gpu);
}

/* Once in one buffer, and once in many of 256 KB, with layers computed again. */
static void test_gpu_train_ways(void) {
    TEST("in many small buffers, and with layers computed again");
    gm_engine *gpu = open_two_layers(GM_BACKEND_GPU);
    adapter   *a = gpu ? fresh_adapter(gpu) : NULL;
    steps_seen seen[2];
    uint32_t   kept[2] = { 0 };
    for (size_t i = 0; a && i < 2; i++) {
        gpu_info      *info = (gpu_info *)gpu_host_info(gpu->gpu.host);
        const uint64_t most = info->max_buffer;
        if (i) info->max_buffer = 256 << 10;
        trainer *t = trainer_beside(gpu, a, (trainer_options){ .dropout = 0.25f, .memory = i ? LEAST_MEMORY : 0 });
        info->max_buffer = most;
        if (t) kept[i] = trainer_kept(t);
        seen[i] = take_steps(t, 0, 2);
        trainer_free(t);
    }
    expect_near(&seen[1], &seen[0], 0, 2, 1e-6); /* what is computed again is fused less */
    CHECK_MESSAGE(kept[0] == 2 && kept[1] < 2, "%u and %u layers are kept", kept[0], kept[1]);
    adapter_free(a);
    gm_engine_close(gpu);
}

static void test_gpu_train_refusals(void) {
    TEST("too little memory");
    gm_engine *gpu = open_two_layers(GM_BACKEND_GPU);
    adapter   *a = gpu ? fresh_adapter(gpu) : NULL;
    trainer   *t = NULL;
    error      e = { 0 };
    CHECK(a && trainer_new(gpu, &(trainer_options){ .adapter = a, .tokens = 512, .memory = 1 << 20 }, &t, &e) ==
                   GM_NO_MEMORY);
    CHECK_MESSAGE(strstr(e.why, "training on 512 tokens at a time needs"), "%s", e.why);
    gm_engine_close(gpu);

    TEST("weights in main memory");
    const gm_engine_options limited = { .model = dense_model(GM_BACKEND_GPU),
                                        .backend = GM_BACKEND_GPU,
                                        .gpu_memory = 2600000 };
    gpu = open_engine(&limited);
    e = (error){ 0 };
    CHECK(a && gpu && trainer_new(gpu, &(trainer_options){ .adapter = a, .tokens = 40 }, &t, &e) == GM_UNSUPPORTED);
    CHECK_MESSAGE(strstr(e.why, "a limit of 2.6 MB leaves 0.") && strstr(e.why, "--backend cpu"), "%s", e.why);
    adapter_free(a);
    gm_engine_close(gpu);
}

/* ---- the job on top ---- */

/* Trains until so many steps are done (0: to the end), and stops there. */
static gm_training *train_job_until(gm_engine *engine, gm_training_options o, uint64_t until, double losses[STEPS]) {
    gm_training      *t = NULL;
    gm_training_event event;
    gm_status         status = engine ? gm_training_new(engine, &o, &t, why, sizeof why) : GM_NO_DEVICE;
    while (t && status != GM_DONE && !status_failed(status)) {
        status = gm_training_next(t, &event, why, sizeof why);
        if (status || event.kind != GM_TRAINING_STEP || event.step > STEPS) continue;
        losses[event.step - 1] = event.loss;
        if (event.step == until) gm_training_stop(t);
    }
    CHECK_MESSAGE(status == GM_DONE, "%s", why);
    return t;
}

static void test_gpu_training(void) {
    TEST("a training that stops and goes on has the same losses, and those of the CPU");
    static const char text[] =
        "{\"prompt\": \"a\", \"completion\": \"b c\"}\n{\"prompt\": \"d\", \"completion\": \"e\"}\n";
    gm_engine          *gpu = open_two_layers(GM_BACKEND_GPU), *cpu = open_two_layers(GM_BACKEND_CPU);
    double              whole[STEPS] = { 0 }, parts[STEPS] = { 0 }, want[STEPS] = { 0 };
    void               *saved = NULL;
    gm_training_options o = { .data = text,
                              .data_size = sizeof text - 1,
                              .data_name = "two.jsonl",
                              .rank = 3,
                              .alpha = 6,
                              .targets = "q,k,v,o,gate,up,down,embedding,head",
                              .dropout = 0.3,
                              .epochs = 3,
                              .rate = 1e-2 };
    gm_training_free(train_job_until(cpu, o, 0, want));
    gm_training_free(train_job_until(gpu, o, 0, whole));
    gm_training *t = train_job_until(gpu, o, 2, parts);
    if (t) CHECK_MESSAGE(!gm_training_save_buffer(t, &saved, &o.checkpoint_size, why, sizeof why), "%s", why);
    gm_training_free(t);
    o.checkpoint = saved;
    gm_training_free(train_job_until(gpu, o, 0, parts));
    for (size_t i = 0; i < 3; i++)
        CHECK_MESSAGE(whole[i] > 0 && parts[i] == whole[i] && fabs(whole[i] - want[i]) < 1e-3 * want[i],
                      "step %zu: %.9g, in two parts %.9g, on the CPU %.9g", i + 1, whole[i], parts[i], want[i]);
    gm_free(saved);
    gm_engine_close(gpu);
    gm_engine_close(cpu);
}

int main(void) {
    test_gpu_train_steps(0);
    test_gpu_train_steps(0.3f);
    test_gpu_train_ways();
    test_gpu_train_refusals();
    test_gpu_training();
    return test_end();
}
