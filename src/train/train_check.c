#include "train/train_check.h"

#include "gpu/kernels.h"
#include "model/miniature.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_TOKENS = 40, CHECK_FIRST = 23 }; /* of two sequences */

/* How far a part may be off: of its norm, and of the mean norm of all parts. Subgroup matrices multiply in f16. */
#define CHECK_TOLERANCE 4e-2
#define CHECK_SLACK 4e-3

typedef enum {
    CHECK_MODEL,
    CHECK_WEIGHTS,
    CHECK_RUN,
    CHECK_GRADIENTS,
    CHECK_UPDATE,
    CHECK_VALUES,
    CHECK_OVER
} check_phase;

enum { ON_CPU, ON_GPU, SIDES };

struct train_check {
    gm_engine          *engine;
    train_check_options o;
    check_phase         phase;
    miniature          *small;
    gm_engine           sides[SIDES]; /* as much as a trainer needs of an engine */
    graph               text;         /* its weights are laid out as an engine has them */
    adapter            *trained, *seen[SIDES];
    trainer            *trainers[SIDES];
    size_t              side; /* whose turn it is in this phase */
    int32_t             ids[CHECK_TOKENS];
    float               weights[CHECK_TOKENS];
    train_check_spoil  *spoil;
    void               *spoil_user;
};

static const train_span check_spans[] = { { 0, CHECK_FIRST }, { CHECK_FIRST, CHECK_TOKENS - CHECK_FIRST } };

/* ---- making ---- */

gm_status train_check_new(gm_engine *engine, const train_check_options *o, train_check **out, error *e) {
    train_check *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return fail_memory(e, "the check of training", sizeof *c);
    *c = (train_check){ .engine = engine, .o = *o };
    gm_status status = miniature_new(&engine->weights, engine->reads, &c->small, e);
    if (!status) status = cpu_backend_open(&c->sides[ON_CPU].cpu, NULL, 0, true, e);
    if (status) train_check_free(c);
    else *out = c;
    return status;
}

void train_check_free(train_check *c) {
    if (!c) return;
    for (size_t i = 0; i < SIDES; i++) {
        trainer_free(c->trainers[i]);
        adapter_free(c->seen[i]);
    }
    adapter_free(c->trained);
    if (c->sides[ON_GPU].gpu.host) gpu_backend_clear(&c->sides[ON_GPU].gpu);
    cpu_backend_close(&c->sides[ON_CPU].cpu);
    graph_free(&c->text);
    miniature_free(c->small);
    free(c);
}

void train_check_spoil_by(train_check *c, train_check_spoil *spoil, void *user) {
    c->spoil = spoil;
    c->spoil_user = user;
}

/* Neither half of it is 0, so that no gradient is. */
static gm_status check_adapter(train_check *c, error *e) {
    const fresh_options o = {
        .rank = c->o.rank, .alpha = c->o.rank, .targets = c->o.targets, .seed = 1, .other = 0.1 / sqrt(c->o.rank)
    };
    TRY(adapter_fresh(miniature_model(c->small), &o, "check", &c->trained, e));
    for (size_t i = 0; i < SIDES; i++) TRY(adapter_like(c->trained, "check", &c->seen[i], e));
    return GM_OK;
}

/* Kernels are chosen as for the model's own weights. */
static gm_status check_choose(train_check *c, error *e) {
    graph     g = { 0 };
    gm_status status = GM_OK;
    for (gpu_weight_set *set = c->sides[ON_GPU].gpu.sets; set && !status; set = set->next) {
        for (size_t i = 0; i < set->count && !status; i++) {
            gpu_weight   *w = &set->weights[i];
            const weight *of = miniature_origin(c->small, w->parts[0].weight.data);
            const tensor *t = of && w->matrix ? weight_tensor(&g, of) : NULL;
            if (g.problem.status) status = fail(e, g.problem.status, "%s", g.problem.why);
            const gpu_weight *known = t ? gpu_backend_weight(&c->engine->gpu, t) : NULL;
            if (known) w->like = known->like;
        }
    }
    graph_free(&g);
    return status;
}

static gm_status check_open(train_check *c, error *e) {
    const model *small = miniature_model(c->small);
    gm_engine   *gpu = &c->sides[ON_GPU];
    for (size_t i = 0; i < SIDES; i++) {
        c->sides[i].weights = *small;
        c->sides[i].precise = true;
    }
    gpu->on_gpu = true;
    gpu->gpu = (gpu_backend){ .host = c->engine->gpu.host, .precise = c->engine->gpu.precise };
    TRY(check_adapter(c, e));
    TRY(model_text_graph(small, NULL, &c->text, e));
    TRY(gpu_backend_find_weights(&gpu->gpu, &c->text, e));
    return check_choose(c, e);
}

/* ---- the step ---- */

static gm_status check_begin(train_check *c, size_t side, error *e) {
    const model    *small = miniature_model(c->small);
    const uint64_t  row = (uint64_t)c->engine->weights.config.vocabulary * sizeof(float);
    const uint64_t  outputs = max_size((size_t)(trainer_logits_bytes(c->engine) / row), 1);
    trainer_options o = { .adapter = c->trained, .tokens = CHECK_TOKENS, .dropout = c->o.dropout ? 0.25f : 0 };
    if (side == ON_GPU) {
        o.tokens = max_size(c->o.tokens, CHECK_TOKENS);
        o.logits_bytes = outputs * small->config.vocabulary * sizeof(float);
        o.repeated = small->config.layers / 2;
    }
    for (size_t i = 0; i < CHECK_TOKENS; i++) {
        c->ids[i] = (int32_t)((i * i * 7 + 3 * i + 1) % small->config.vocabulary);
        c->weights[i] = i % 5 ? 1 : 0;
    }
    const train_run run = { .ids = c->ids,
                            .weights = c->weights,
                            .count = CHECK_TOKENS,
                            .spans = check_spans,
                            .span_count = COUNT_OF(check_spans),
                            .draw = 1 };
    TRY(trainer_new(&c->sides[side], &o, &c->trainers[side], e));
    return trainer_begin(c->trainers[side], &run, 1.0 / CHECK_TOKENS, e);
}

static gm_status check_refuse_training(const train_check *c, const char *what, double apart, error *e) {
    const gpu_info *info = gpu_host_info(c->engine->gpu.host);
    return fail(
        e, GM_NO_DEVICE,
        "the GPU '%.60s' (driver %.60s) trains wrongly: %s differs by %.3g %% from what the CPU computes. "
        "Train on the CPU (--backend cpu); fewer features (--gpu-disable subgroups,f16,subgroup_matrix) may help",
        info->name, *info->driver ? info->driver : "unknown", what, 100 * apart);
}

typedef struct {
    const char *of; /* "the gradient" */
    bool        changes;
} check_what;

static float *pair_half(const adapter *a, size_t i, bool is_b) { return is_b ? a->pairs[i].b : a->pairs[i].a; }

static size_t half_count(const adapter_pair *p, bool is_b) {
    return (size_t)p->experts * p->rank * (is_b ? p->out : p->in);
}

/* The square of a part's norm on the CPU, as it is or as it has changed; `*apart`: of how far the GPU's is from it. */
static double check_norm(const train_check *c, size_t i, bool is_b, bool changes, double *apart) {
    const float *want = pair_half(c->seen[ON_CPU], i, is_b), *found = pair_half(c->seen[ON_GPU], i, is_b);
    const float *before = pair_half(c->trained, i, is_b);
    double       norm = 0;
    *apart = 0;
    for (size_t k = 0; k < half_count(&c->trained->pairs[i], is_b); k++) {
        const double value = (double)want[k] - (changes ? (double)before[k] : 0), off = (double)found[k] - want[k];
        norm += value * value;
        *apart += off * off;
    }
    return norm;
}

static gm_status check_compare(const train_check *c, const check_what *what, error *e) {
    const size_t parts = 2 * c->trained->count;
    double       mean = 0, apart;
    char         name[ADAPTER_NAME + 40];
    for (size_t i = 0; i < parts; i++) {
        snprintf(name, sizeof name, "%s of %s, %c", what->of, c->trained->pairs[i / 2].base, i % 2 ? 'B' : 'A');
        if (c->spoil)
            c->spoil(c->spoil_user, name, pair_half(c->seen[ON_GPU], i / 2, i % 2),
                     half_count(&c->trained->pairs[i / 2], i % 2), pair_half(c->seen[ON_CPU], i / 2, i % 2));
        mean += check_norm(c, i / 2, i % 2, what->changes, &apart) / (double)parts;
    }
    for (size_t i = 0; i < parts; i++) {
        const double norm = check_norm(c, i / 2, i % 2, what->changes, &apart);
        snprintf(name, sizeof name, "%s of %s, %c", what->of, c->trained->pairs[i / 2].base, i % 2 ? 'B' : 'A');
        if (!(sqrt(apart) <= CHECK_TOLERANCE * sqrt(norm) + CHECK_SLACK * sqrt(mean))) /* or NaN */
            return check_refuse_training(c, name, sqrt(apart / norm), e);
    }
    return GM_OK;
}

static gm_status check_mean_loss(train_check *c, error *e) {
    float        found = (float)trainer_loss(c->trainers[ON_GPU]);
    const double want = trainer_loss(c->trainers[ON_CPU]);
    if (c->spoil) c->spoil(c->spoil_user, "the loss", &found, 1, &(float){ (float)want });
    const double apart = fabs((double)found - want) / fabs(want);
    return apart <= CHECK_TOLERANCE ? GM_OK : check_refuse_training(c, "the loss", apart, e);
}

/* With AdamW's usual eps, rounding would decide about the signs of small gradients. */
static gm_status check_move(trainer *t, double deadline, error *e) {
    const adamw_settings s = { .rate = 1, .beta = { 0.9, 0.999 }, .eps = 1e-2, .decay = 0.01, .most_norm = 1 };
    double               norm;
    return trainer_update(t, &s, 1, &norm, deadline, e);
}

/* One side's part of a phase. */
static gm_status check_side(train_check *c, double deadline, error *e) {
    trainer *t = c->trainers[c->side];
    switch (c->phase) {
    case CHECK_RUN:
        if (!t) TRY(check_begin(c, c->side, e));
        return trainer_work(c->trainers[c->side], deadline, e);
    case CHECK_UPDATE: return check_move(t, deadline, e);
    default:
        return trainer_store(t, c->phase == CHECK_GRADIENTS ? TRAIN_GRADIENT : TRAIN_VALUES, c->seen[c->side], deadline,
                             e);
    }
}

static gm_status check_end_phase(train_check *c, error *e) {
    switch (c->phase) {
    case CHECK_RUN: return check_mean_loss(c, e);
    case CHECK_GRADIENTS: return check_compare(c, &(check_what){ .of = "the gradient" }, e);
    case CHECK_VALUES: return check_compare(c, &(check_what){ .of = "the update", .changes = true }, e);
    default: return GM_OK;
    }
}

gm_status train_check_step(train_check *c, double deadline, error *e) {
    while (c->phase != CHECK_OVER) {
        gm_status status = GM_OK;
        if (c->phase == CHECK_MODEL) {
            status = miniature_step(c->small, e);
            if (!status) status = check_open(c, e);
        } else if (c->phase == CHECK_WEIGHTS) status = gpu_backend_upload(&c->sides[ON_GPU].gpu, &c->text, e);
        else {
            for (; c->side < SIDES && !status; c->side += !status) status = check_side(c, deadline, e);
            if (!status) status = check_end_phase(c, e);
            if (!status) c->side = 0;
        }
        if (status == GM_AGAIN) TRY(gpu_host_problem(c->engine->gpu.host, e));
        if (status) return status;
        c->phase++;
        if (clock_seconds() > deadline && c->phase != CHECK_OVER) return GM_AGAIN;
    }
    return GM_OK;
}

/* ---- once for an engine ---- */

static uint64_t check_key(const train_check_options *o) {
    uint64_t key = 0xcbf29ce484222325;
    for (const char *at = o->targets; *at; at++) key = (key ^ (uint8_t)*at) * 0x100000001b3;
    return (((key ^ o->rank) * 0x100000001b3 ^ o->tokens) * 0x100000001b3 ^ o->dropout) | 1;
}

gm_status engine_check_training(gm_engine *engine, const train_check_options *o, train_check **running, double deadline,
                                error *e) {
    if (!engine->on_gpu || gpu_host_info(engine->gpu.host)->software) return GM_OK;
    engine_train_check *known = &engine->train_check;
    const uint64_t      key = check_key(o);
    if (known->key == key)
        return known->refused.status ? fail(e, known->refused.status, "%s", known->refused.why) : GM_OK;
    if (!*running) TRY(train_check_new(engine, o, running, e));
    const double    start = clock_seconds();
    const gm_status status = train_check_step(*running, deadline, e);
    engine->seconds.check += clock_seconds() - start;
    if (status == GM_AGAIN) return status;
    train_check_free(*running);
    *running = NULL;
    if (!status || status == GM_NO_DEVICE) {
        known->key = key;
        known->refused = status ? *e : (error){ 0 };
    }
    return status;
}
