/* Training: the public functions, and the stages from examples to an adapter. */

#include "train/training_parts.h"

#include "session/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

static gm_status training_read_media(void *host, const char *path, buffer *out, error *e) {
    const gm_training *t = host;
    void              *bytes = NULL;
    size_t             size = 0;
    const gm_status    status = t->settings.o.media(t->settings.o.media_user, path, &bytes, &size);
    if (!status) buffer_append(out, bytes, size);
    free(bytes);
    if (status) return fail(e, status, "%s cannot be read", path);
    return out->failed ? fail_memory(e, path, size) : GM_OK;
}

static gm_status training_open_data(gm_training *t, error *e) {
    const gm_training_options *o = &t->settings.o;
    const gm_engine           *engine = t->engine;
    const data_source          from = { .path = o->path,
                                        .bytes = { o->data, o->data_size },
                                        .name = o->data_name,
                                        .read_media = o->media ? training_read_media : NULL,
                                        .host = t };
    const data_options         how = { .words = engine->words,
                                       .variant = engine->variant,
                                       .system = engine->system,
                                       .max_tokens = o->max_tokens,
                                       .eval_share = o->eval_split,
                                       .seed = o->seed,
                                       .model = engine->file,
                                       .projector = engine->projector };
    return dataset_open(&from, &how, &t->data, e);
}

gm_status gm_training_new(gm_engine *engine, const gm_training_options *options, gm_training **out, char *why,
                          size_t why_size) {
    error        e = { 0 };
    gm_training *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        fail_memory(&e, "the training", sizeof *t);
        return error_report(&e, why, why_size);
    }
    t->engine = engine;
    t->best_loss = INFINITY;
    t->run.stage = RUN_OVER;
    t->shares.parts = 1;
    t->event = (gm_training_event){ .loss = NAN, .eval_loss = NAN, .perplexity = NAN, .accuracy = NAN };
    t->event.best_eval_loss = t->event.norm = t->event.tokens_per_second = t->event.seconds_left = NAN;
    atomic_init(&t->stopping, false);
    gm_status status = training_settings_read(&t->settings, options, &t->memory, &e);
    if (!status && options->checkpoint) {
        buffer_append(&t->checkpoint, options->checkpoint, options->checkpoint_size);
        if (t->checkpoint.failed) status = fail_memory(&e, "the checkpoint", options->checkpoint_size);
    }
    if (!status) status = training_open_data(t, &e);
    if (status) gm_training_free(t);
    else *out = t;
    return error_report(&e, why, why_size);
}

static void training_free_runs(gm_training *t) {
    training_run_end(t);
    for (size_t i = 0; t->read && i < t->runs; i++) data_run_free(&t->read[i]);
    free(t->read);
    t->read = NULL;
    t->runs = t->at = 0;
}

void gm_training_free(gm_training *t) {
    if (!t) return;
    engine_enter(t->engine);
    training_free_runs(t);
    train_check_free(t->check);
    training_probe_end(&t->probe);
    trainer_free(t->trainer);
    engine_leave(t->engine);
    adapter_free(t->adapter);
    training_memo_free(&t->memo);
    dataset_free(t->data);
    training_order_free(&t->order);
    training_order_free(&t->eval);
    buffer_free(&t->checkpoint);
    free(t->frozen);
    free(t->scales);
    free(t->kept.values);
    free(t->best.values);
    free(t->losses);
    free(t->eval_losses);
    free(t->eval_steps);
    arena_free(&t->memory);
    free(t);
}

void gm_training_stop(gm_training *t) { atomic_store(&t->stopping, true); }

void training_share(gm_training *t, const training_shares *shares) { t->shares = *shares; }

static void training_tell(gm_training *t, gm_training_kind kind) {
    t->event.kind = kind;
    t->news = true;
}

/* ---- examples ---- */

static gm_status training_check_form(gm_training *t, error *e) {
    const char *loss = t->settings.o.loss;
    t->settings.pairs = dataset_form(t->data) == DATA_PAIRS;
    if (loss && t->settings.pairs != !strcmp(loss, "dpo"))
        return fail(e, GM_BAD_ARGUMENT, "the loss '%s' needs %s, but the examples are %s", loss,
                    t->settings.pairs ? "answers to learn" : "prompts with a chosen and a rejected answer",
                    dataset_describe(t->data));
    return GM_OK;
}

/* How many steps there are, and how much work. */
static gm_status training_count(gm_training *t, error *e) {
    const gm_training_options *o = &t->settings.o;
    TRY(training_order_make(&t->order, t->data, &t->settings, false, 0, e));
    if (!t->order.order.count) return fail(e, GM_BAD_ARGUMENT, "there is no example to learn from");
    TRY(training_order_make(&t->eval, t->data, &t->settings, true, 0, e));
    t->steps = (uint64_t)o->epochs * t->order.steps;
    if (o->max_steps && o->max_steps < t->steps) t->steps = o->max_steps;
    for (size_t i = 0; i < dataset_count(t->data); i++)
        *(dataset_is_eval(t->data, i) ? &t->eval_tokens : &t->train_tokens) += (double)dataset_tokens(t->data, i);
    const double   warmup = t->settings.warmup;
    const uint64_t rise = (uint64_t)(warmup < 1 ? ceil(warmup * (double)t->steps) : warmup);
    t->settings.schedule.warmup = rise < t->steps ? rise : t->steps - 1;
    t->settings.schedule.steps = t->steps;
    t->event.steps = t->steps;
    t->event.epochs = o->epochs;
    return GM_OK;
}

static gm_status stage_scan(gm_training *t, double deadline, error *e) {
    uint8_t   digest[32];
    buffer    text = { 0 };
    gm_status status = dataset_scan(t->data, deadline, e);
    dataset_progress(t->data, &t->event.done, &t->event.total);
    if (status) return status;
    TRY(training_check_form(t, e));
    TRY(training_count(t, e));
    if (t->settings.pairs) TRY(training_memo_make_references(&t->memo, t->data, e));
    dataset_digest(t->data, digest);
    sha256_hex(digest, t->data_digest);
    training_settings_text(&t->settings, &text);
    status = text.failed ? fail_memory(e, "the settings", text.length) : GM_OK;
    if (!status && text.length >= sizeof t->settings_text)
        status = fail(e, GM_BAD_ARGUMENT, "the names of targets and layers are too long");
    if (!status) memcpy(t->settings_text, text.data, text.length + 1);
    buffer_free(&text);
    if (status) return status;
    t->stage = STAGE_CHECK;
    training_tell(t, GM_TRAINING_DATA);
    return GM_OK;
}

/* ---- adapter and trainer ---- */

/* Adapters that are part of the model stay as they are. */
static gm_status training_list_frozen(gm_training *t, error *e) {
    const engine_adapters *a = &t->engine->adapters;
    t->frozen = calloc(a->own + 1, sizeof *t->frozen);
    t->scales = calloc(a->own + 1, sizeof *t->scales);
    if (!t->frozen || !t->scales) return fail_memory(e, "the adapters", a->own * sizeof *t->frozen);
    for (size_t i = 0; i < a->own; i++) {
        t->frozen[i] = a->slots[i]->content;
        t->scales[i] = 1;
    }
    return GM_OK;
}

static gm_status stage_check(gm_training *t, double deadline, error *e) {
    const train_check_options o = { .targets = t->settings.o.targets,
                                    .rank = t->settings.o.rank,
                                    .dropout = t->settings.o.dropout > 0,
                                    .tokens = training_run_tokens(t->data, &t->settings) };
    TRY(engine_check_training(t->engine, &o, &t->check, deadline, e));
    t->stage = STAGE_OPEN;
    return GM_OK;
}

static gm_status stage_open(gm_training *t, error *e) {
    const gm_training_options *o = &t->settings.o;
    const fresh_options        fresh = { .rank = o->rank,
                                         .alpha = o->alpha,
                                         .rslora = o->rslora,
                                         .targets = o->targets,
                                         .layers = o->layers,
                                         .seed = o->seed };
    TRY(adapter_fresh(&t->engine->weights, &fresh, o->name, &t->adapter, e));
    TRY(training_list_frozen(t, e));
    const trainer_options how = { .adapter = t->adapter,
                                  .frozen = t->frozen,
                                  .scales = t->scales,
                                  .frozen_count = t->engine->adapters.own,
                                  .tokens = training_run_tokens(t->data, &t->settings),
                                  .memory = o->memory,
                                  .dropout = (float)o->dropout,
                                  .seed = o->seed,
                                  .rate_of_b = (float)o->lora_plus };
    TRY(trainer_new(t->engine, &how, &t->trainer, e));
    t->event.memory = trainer_bytes(t->trainer);
    t->stage = STAGE_PROBE;
    if (!t->checkpoint.length) return GM_OK;
    TRY(training_restore(t, e));
    buffer_free(&t->checkpoint);
    t->checkpoint = (buffer){ 0 };
    t->stage = STAGE_RESTORE;
    return GM_OK;
}

static gm_status stage_restore(gm_training *t, double deadline, error *e) {
    TRY(trainer_write_state(t->trainer, t->kept.values, deadline, e));
    t->event.step = t->event.kept_step = t->step;
    if (t->step) t->event.loss = (double)t->losses[t->step - 1];
    if (t->eval_count) t->event.eval_loss = (double)t->eval_losses[t->eval_count - 1];
    t->stage = STAGE_PROBE;
    return GM_OK;
}

static gm_status stage_probe(gm_training *t, double deadline, error *e) {
    TRY(training_probe_work(t, deadline, e));
    t->stage = STAGE_NEXT;
    training_tell(t, GM_TRAINING_START);
    return GM_OK;
}

/* ---- steps ---- */

static bool evaluation_is_due(const gm_training *t) {
    const uint64_t every = t->settings.o.eval_every ? t->settings.o.eval_every : t->order.steps;
    if (!t->eval.order.count || (t->eval_count && t->eval_steps[t->eval_count - 1] == t->step)) return false;
    return t->step == t->steps || t->step % every == 0;
}

static void training_finish(gm_training *t, gm_training_end why) {
    t->event.end = why;
    t->stage = STAGE_LAST;
}

static gm_status stage_decide(gm_training *t, error *e) {
    const uint64_t epoch = t->step / t->order.steps;
    training_free_runs(t);
    t->sum = (training_sum){ 0 };
    t->step_seconds = 0;
    if (evaluation_is_due(t)) {
        t->stage = STAGE_EVALUATE;
        return GM_OK;
    }
    if (t->settings.o.patience && t->worse >= t->settings.o.patience) training_finish(t, GM_TRAINING_PATIENCE);
    else if (t->step >= t->steps) training_finish(t, GM_TRAINING_COMPLETE);
    if (t->stage == STAGE_LAST) return GM_OK;
    if (epoch != t->epoch) TRY(training_order_make(&t->order, t->data, &t->settings, false, epoch, e));
    t->epoch = epoch;
    t->event.epoch = (uint32_t)epoch;
    const size_t step = (size_t)(t->step % t->order.steps);
    t->runs = t->order.first[step + 1] - t->order.first[step];
    t->read = calloc(t->runs, sizeof *t->read);
    if (!t->read) return fail_memory(e, "a step", t->runs * sizeof *t->read);
    t->stage = STAGE_READ;
    return GM_OK;
}

/* How much of a run counts: tokens, or pairs. */
static double run_counted(const gm_training *t, const data_run *run) {
    return t->settings.pairs ? (double)(run->span_count / 2) : (double)run->counted;
}

static gm_status training_reduce(const gm_training *t, double *values, size_t count, error *e) {
    float sums[4];
    if (!t->shares.reduce) return GM_OK;
    for (size_t i = 0; i < count; i++) sums[i] = (float)values[i];
    TRY(t->shares.reduce(t->shares.user, sums, count, e));
    for (size_t i = 0; i < count; i++) values[i] = (double)sums[i];
    return GM_OK;
}

/* One run at a time: rendering long examples takes a while, and so do sounds. */
static gm_status stage_read(gm_training *t, error *e) {
    const size_t first = t->order.first[t->step % t->order.steps];
    if (t->at < t->runs) {
        if (t->at % t->shares.parts == t->shares.part)
            TRY(dataset_run(t->data, &t->order.order, first + t->at, &t->read[t->at], e));
        t->at++;
        return GM_OK;
    }
    double counted = 0;
    for (size_t i = 0; i < t->runs; i++) counted += run_counted(t, &t->read[i]);
    TRY(training_reduce(t, &counted, 1, e));
    t->share = 1 / counted;
    t->at = 0;
    t->stage = STAGE_RUN;
    return GM_OK;
}

static double work_of_token(const gm_training *t, bool learns) {
    return learns ? (t->settings.pairs ? 4 : 3) : 1; /* pairs are measured first */
}

/* By the work that is left, and the time that work took so far, or a short run before it. */
static void training_predict(gm_training *t) {
    const double   steps = (double)(t->steps - t->step) / (double)t->order.steps;
    const uint64_t every = t->settings.o.eval_every ? t->settings.o.eval_every : t->order.steps;
    const double   evaluations = t->eval.order.count ? ceil((double)(t->steps - t->step) / (double)every) : 0;
    const double   left = steps * t->train_tokens * work_of_token(t, true) +
                        evaluations * t->eval_tokens * work_of_token(t, false) +
                        training_memo_unknown(&t->memo, t->data);
    const double of_work = t->work_done > 0 ? t->work_seconds / t->work_done : t->probe_seconds / 3;
    if (of_work > 0) t->event.seconds_left = left / (double)t->shares.parts * of_work;
}

static bool keep_is_due(const gm_training *t) {
    return !t->kept.values || t->step >= t->kept.step + t->settings.o.keep_every;
}

static gm_status training_not_finite(gm_training *t, const char *what, error *e) {
    t->event.end = GM_TRAINING_NOT_FINITE;
    if (!t->kept.values)
        return fail(e, GM_BAD_ARGUMENT,
                    "%s is not a finite number before the first step: the model itself computes no loss for these "
                    "examples, so nothing can be learned",
                    what);
    return fail(e, GM_BAD_ARGUMENT,
                "%s after %llu steps is not a finite number. The adapter is kept as it was after step %llu; a lower "
                "learning rate than %g may help",
                what, (unsigned long long)t->step, (unsigned long long)t->kept.step, t->settings.o.rate);
}

/* Of the runs of all processes: the mean loss, and the share of pairs whose chosen answer is preferred. */
static gm_status training_means(gm_training *t, double *loss, double *preferred, error *e) {
    double sums[] = { t->sum.loss, t->sum.counted, t->sum.preferred };
    TRY(training_reduce(t, sums, COUNT_OF(sums), e));
    *loss = sums[0] / sums[1];
    *preferred = sums[2] / sums[1];
    return GM_OK;
}

/* All runs of the step are computed. */
static gm_status step_computed(gm_training *t, error *e) {
    const size_t first = t->order.first[t->step % t->order.steps];
    double       loss, preferred;
    TRY(training_memo_share(&t->memo, &t->order.order, first, t->runs, &t->shares, e));
    TRY(training_means(t, &loss, &preferred, e));
    if (!isfinite(loss)) return training_not_finite(t, "the loss", e);
    t->event.loss = loss;
    t->event.accuracy = t->settings.pairs ? preferred : NAN;
    t->stage = STAGE_REDUCE;
    return GM_OK;
}

static gm_status stage_reduce(gm_training *t, double deadline, error *e) {
    if (t->shares.reduce) TRY(trainer_reduce(t->trainer, t->shares.reduce, t->shares.user, deadline, e));
    t->stage = keep_is_due(t) ? STAGE_KEEP : STAGE_UPDATE;
    return GM_OK;
}

static gm_status stage_run(gm_training *t, double deadline, error *e) {
    if (t->at == t->runs) return step_computed(t, e);
    if (!t->read[t->at].count) { /* another process has it */
        t->at++;
        return GM_OK;
    }
    if (t->run.stage == RUN_OVER) training_run_start(t, &t->read[t->at], true, t->share, (t->step << 20 | t->at) + 1);
    const size_t tokens = t->read[t->at].count;
    TRY(training_run_work(t, deadline, e));
    t->work_done += (double)tokens * work_of_token(t, true);
    t->event.tokens += tokens;
    data_run_free(&t->read[t->at++]);
    return GM_OK;
}

static gm_status stage_keep(gm_training *t, double deadline, error *e) {
    TRY(training_keep(t, &t->kept, deadline, e));
    t->event.kept_step = t->kept.step;
    t->stage = STAGE_UPDATE;
    training_tell(t, GM_TRAINING_KEPT);
    return GM_OK;
}

static gm_status stage_update(gm_training *t, double deadline, error *e) {
    const gm_training_options *o = &t->settings.o;
    const adamw_settings       adamw = { .rate = schedule_rate(&t->settings.schedule, t->step + 1),
                                         .beta = { 0.9, 0.999 },
                                         .eps = 1e-8,
                                         .decay = o->decay,
                                         .most_norm = o->clip > 0 ? o->clip : 0 };
    double                     norm = 0;
    TRY(trainer_update(t->trainer, &adamw, t->step + 1, &norm, deadline, e));
    if (!isfinite(norm)) return training_not_finite(t, "the gradient", e);
    TRY(training_note_loss(t, t->event.loss, e));
    t->event.step = ++t->step;
    t->event.rate = adamw.rate;
    t->event.norm = norm;
    t->stage = STAGE_NEXT;
    training_tell(t, GM_TRAINING_STEP);
    return GM_OK;
}

/* ---- evaluations ---- */

static gm_status evaluation_done(gm_training *t, error *e) {
    double loss, preferred;
    TRY(training_memo_share(&t->memo, &t->eval.order, 0, t->eval.order.run_count, &t->shares, e));
    TRY(training_means(t, &loss, &preferred, e));
    if (!isfinite(loss)) return training_not_finite(t, "the evaluation loss", e);
    TRY(training_note_evaluation(t, loss, e));
    const bool better = loss < t->best_loss;
    t->event.eval_loss = loss;
    t->event.perplexity = t->settings.pairs ? NAN : exp(loss);
    if (t->settings.pairs) t->event.accuracy = preferred;
    t->worse = better ? 0 : t->worse + 1;
    if (better) t->best_loss = loss;
    t->event.best_eval_loss = t->best_loss;
    t->stage = better && t->settings.o.patience ? STAGE_BEST : STAGE_NEXT;
    training_tell(t, GM_TRAINING_EVALUATION);
    return GM_OK;
}

static gm_status stage_evaluate(gm_training *t, double deadline, error *e) {
    if (t->at == t->eval.order.run_count) return evaluation_done(t, e);
    if (t->at % t->shares.parts != t->shares.part) { /* another process has it */
        t->at++;
        return GM_OK;
    }
    if (!t->read) {
        t->runs = 1;
        t->read = calloc(1, sizeof *t->read);
        if (!t->read) return fail_memory(e, "an evaluation", sizeof *t->read);
    }
    if (t->run.stage == RUN_OVER) {
        TRY(dataset_run(t->data, &t->eval.order, t->at, &t->read[0], e));
        training_run_start(t, &t->read[0], false, 1, 0);
    }
    const size_t tokens = t->read[0].count;
    TRY(training_run_work(t, deadline, e));
    t->work_done += (double)tokens * work_of_token(t, false);
    data_run_free(&t->read[0]);
    t->at++;
    return GM_OK;
}

static gm_status stage_best(gm_training *t, double deadline, error *e) {
    TRY(training_keep(t, &t->best, deadline, e));
    t->stage = STAGE_NEXT;
    return GM_OK;
}

/* ---- the end ---- */

static gm_status stage_last(gm_training *t, double deadline, error *e) {
    TRY(training_keep(t, &t->kept, deadline, e));
    const size_t size = trainer_state_size(t->trainer);
    for (size_t i = 0; i < size; i++) {
        if (!isfinite(t->kept.values[i]))
            return fail(e, GM_BAD_ARGUMENT, "the adapter has values that are no finite numbers");
    }
    t->event.kept_step = t->kept.step;
    t->event.seconds_left = 0;
    t->stage = STAGE_OVER;
    training_tell(t, GM_TRAINING_KEPT);
    return GM_OK;
}

/* What is under way is given up, but neither an update nor what follows from an evaluation. */
static void training_give_up(gm_training *t) {
    if (t->stage <= STAGE_PROBE) {
        t->event.end = GM_TRAINING_STOPPED;
        t->stage = STAGE_OVER;
        return;
    }
    if (t->stage == STAGE_UPDATE || t->stage == STAGE_BEST || t->stage >= STAGE_LAST) return;
    training_free_runs(t);
    trainer_forget(t->trainer);
    training_finish(t, GM_TRAINING_STOPPED);
}

static gm_status training_work(gm_training *t, double deadline, error *e) {
    switch (t->stage) {
    case STAGE_SCAN: return stage_scan(t, deadline, e);
    case STAGE_CHECK: return stage_check(t, deadline, e);
    case STAGE_OPEN: return stage_open(t, e);
    case STAGE_RESTORE: return stage_restore(t, deadline, e);
    case STAGE_PROBE: return stage_probe(t, deadline, e);
    case STAGE_NEXT: return stage_decide(t, e);
    case STAGE_READ: return stage_read(t, e);
    case STAGE_RUN: return stage_run(t, deadline, e);
    case STAGE_REDUCE: return stage_reduce(t, deadline, e);
    case STAGE_KEEP: return stage_keep(t, deadline, e);
    case STAGE_UPDATE: return stage_update(t, deadline, e);
    case STAGE_EVALUATE: return stage_evaluate(t, deadline, e);
    case STAGE_BEST: return stage_best(t, deadline, e);
    case STAGE_LAST: return stage_last(t, deadline, e);
    default: return GM_DONE;
    }
}

/* Whether the time counts for predictions. */
static bool stage_is_work(training_stage stage) {
    return stage == STAGE_RUN || stage == STAGE_REDUCE || stage == STAGE_UPDATE || stage == STAGE_EVALUATE;
}

static void training_spend(gm_training *t, training_stage stage, double seconds) {
    t->event.seconds += seconds;
    if (!stage_is_work(stage)) return;
    t->step_seconds += seconds;
    t->work_seconds += seconds;
}

static gm_status training_go_on(gm_training *t, double deadline, error *e) {
    gm_status status = GM_OK;
    double    mark = clock_seconds();
    do {
        const training_stage stage = t->stage;
        if (atomic_load(&t->stopping)) training_give_up(t);
        status = training_work(t, deadline, e);
        const double now = clock_seconds();
        training_spend(t, stage, now - mark);
        mark = now;
        if (status == GM_AGAIN && t->engine->on_gpu && t->stage != STAGE_SCAN &&
            runner_wait(t->engine->gpu.host, deadline))
            status = GM_OK;
    } while (!status && !t->news && mark < deadline);
    return status ? status : t->news ? GM_OK : GM_AGAIN;
}

gm_status gm_training_next(gm_training *t, gm_training_event *event, char *why, size_t why_size) {
    enum { PAUSE_MILLISECONDS = 250 }; /* a longer time between two calls is a pause */
    error        e = { 0 };
    const bool   enters = t->stage != STAGE_SCAN;
    const double start = clock_seconds(), between = start - t->returned;
    gm_status    status = t->failed.status;
    if (status) e = t->failed;
    if (!status && t->returned > 0 && between * 1000 < PAUSE_MILLISECONDS) training_spend(t, t->stage, between);
    t->news = false;
    if (enters) engine_enter(t->engine);
    if (!status) status = training_go_on(t, engine_deadline(t->engine), &e);
    if (enters) engine_leave(t->engine);
    if (status_failed(status)) t->failed = e;
    if (t->news && t->event.kind == GM_TRAINING_STEP) t->event.tokens_per_second = t->sum.tokens / t->step_seconds;
    if (t->news && t->stage != STAGE_OVER) training_predict(t);
    t->returned = clock_seconds();
    *event = t->event;
    return e.status ? error_report(&e, why, why_size) : status;
}
