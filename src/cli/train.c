/* gemmule train: teaches a model, and writes what it learned as an adapter. */

#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/peers.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/train_report.h"
#include "train/training_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    engine_values engine;
    const char   *out, *targets, *layers;
    count_value   rank, epochs, batch, accumulate, max_tokens, max_steps, eval_every, seed, patience, checkpoint_every;
    count_value   memory;
    number_value  alpha, rate, warmup, eval_split, beta, dropout, lora_plus, clip, decay;
    int           schedule, loss;
    bool          rslora, resume, overwrite, estimate, json, quiet;
} train_values;

static const option_choice schedules[] = { { "constant", 1 }, { "linear", 2 }, { "cosine", 3 }, { NULL, 0 } };
static const option_choice losses[] = { { "completions", 1 }, { "dpo", 2 }, { NULL, 0 } };

static const option result_options[] = {
    TEXT_OPTION(train_values, out, "out", 'o', "PATH",
                "the adapter: a PEFT folder, or a GGUF file if it ends with .gguf; default: adapter"),
    FLAG_OPTION(train_values, resume, "resume", 0,
                "go on with the training whose checkpoint is beside the adapter; give all other options again"),
    FLAG_OPTION(train_values, overwrite, "overwrite", 0, "replace an adapter or a checkpoint that is there already"),
    COUNT_OPTION(train_values, checkpoint_every, "checkpoint-every", 0, "N", 1, 1e9,
                 "write a checkpoint every N steps; default 50"),
    FLAG_OPTION(train_values, estimate, "estimate", 0,
                "measure this device, print what memory and time the training would take, and write nothing"),
    FLAG_OPTION(train_values, json, "json", 0,
                "print a JSON object per line: data, start, step, evaluation, kept, end"),
    FLAG_OPTION(train_values, quiet, "quiet", 0, "print only the result"),
};

static const option learning_options[] = {
    COUNT_OPTION(train_values, epochs, "epochs", 0, "N", 1, 1e6, "go through all examples N times; default 3"),
    COUNT_OPTION(train_values, max_steps, "max-steps", 0, "N", 1, 1e12, "end after N steps"),
    COUNT_OPTION(train_values, batch, "batch", 0, "N", 1, 65536, "examples that are computed together; default 8"),
    COUNT_OPTION(train_values, accumulate, "accumulate", 0, "N", 1, 65536, "batches per step; default 1"),
    COUNT_OPTION(train_values, max_tokens, "max-tokens", 0, "N", 8, 1e6,
                 "cut examples off after N tokens; default 2048"),
    NUMBER_OPTION(train_values, rate, "lr", 0, "X", 0, 1e6, "the highest learning rate; default 2e-4"),
    CHOICE_OPTION(train_values, schedule, "schedule", 0, "S", schedules,
                  "how the learning rate falls to 0: constant, linear or cosine; default cosine"),
    NUMBER_OPTION(train_values, warmup, "warmup", 0, "N", 0, 1e12,
                  "steps in which the learning rate rises, or below 1 their share; default 0.05"),
    NUMBER_OPTION(train_values, decay, "decay", 0, "X", 0, 1e6, "weight decay of AdamW; default 0"),
    NUMBER_OPTION(train_values, clip, "clip", 0, "X", 0, 1e9, "limit the norm of all gradients, 0: do not; default 1"),
    CHOICE_OPTION(train_values, loss, "loss", 0, "L", losses,
                  "completions, or dpo for preference pairs; default: what the examples are for"),
    NUMBER_OPTION(train_values, beta, "beta", 0, "X", 1e-6, 1e5,
                  "of dpo: how strongly the model is held near what it was; default 0.1"),
    NUMBER_OPTION(train_values, eval_split, "eval-split", 0, "F", 0, 0.9,
                  "keep this share of the examples for evaluation; default: none"),
    COUNT_OPTION(train_values, eval_every, "eval-every", 0, "N", 1, 1e9, "evaluate every N steps; default: each epoch"),
    COUNT_OPTION(train_values, patience, "patience", 0, "N", 1, 1e6,
                 "end after N evaluations that are not better than the best, and write the best adapter"),
    COUNT_OPTION(train_values, seed, "seed", 0, "N", 0, 18446744073709551615.0,
                 "of the adapter, the order of the examples, dropout and the split; default 0"),
    BYTES_OPTION(train_values, memory, "memory", 0, "N",
                 "the most memory for activations, such as 4G; what does not fit is computed twice. Default: most of "
                 "what is free"),
};

static const option adapter_shape_options[] = {
    COUNT_OPTION(train_values, rank, "rank", 0, "N", 1, 4096, "of the matrices A and B; default 16"),
    NUMBER_OPTION(train_values, alpha, "alpha", 0, "X", 1e-6, 1e6,
                  "the adapter counts times X / rank; default: twice the rank"),
    FLAG_OPTION(train_values, rslora, "rslora", 0, "divide by the root of the rank instead (rsLoRA)"),
    TEXT_OPTION(train_values, targets, "targets", 0, "LIST",
                "what is trained: q, k, v, o, gate, up, down, experts, router, head, embedding and others, with "
                "commas; default q,k,v,o,gate,up,down"),
    TEXT_OPTION(train_values, layers, "layers", 0, "LIST", "of these layers, such as 0-5,9; default: all"),
    NUMBER_OPTION(train_values, dropout, "dropout", 0, "F", 0, 0.99,
                  "hide this share of its input from the adapter while it learns; default 0"),
    NUMBER_OPTION(train_values, lora_plus, "lora-plus", 0, "X", 0.001, 1e5,
                  "B learns X times as fast as A (LoRA+), such as 16; default 1"),
};

static const option_group groups[] = {
    OPTION_GROUP("result", result_options, 0),
    OPTION_GROUP("learning", learning_options, 0),
    OPTION_GROUP("adapter", adapter_shape_options, 0),
    ENGINE_GROUP(offsetof(train_values, engine)),
};

typedef struct {
    const train_values *values;
    const char         *model, *data, *out;
    char         checkpoint[4096], curve[4096], file[4096]; /* paths; file: what tells that an adapter is there */
    gm_engine   *engine;
    gm_training *training;
    train_report report;
    peers        peers;
    buffer       resumed;
    uint64_t     saved_step;
    bool         saved; /* a checkpoint is on disk */
} train_job;

/* ---- paths ---- */

static gm_status train_paths(train_job *j, error *e) {
    const char  *out = j->values->out ? j->values->out : "adapter";
    const size_t length = strlen(out);
    const bool   single = str_ends_with(str_of(out), ".gguf");
    const char  *slash = length && out[length - 1] == '/' ? "" : "/";
    j->out = out;
    if (!single && j->values->targets && strstr(j->values->targets, "experts"))
        return fail(
            e, GM_BAD_ARGUMENT,
            "PEFT has no form for adapters of experts: give --out a path that ends with .gguf, such as %.60s.gguf",
            out);
    if (!length || length > sizeof j->file - 64)
        return fail(e, GM_BAD_ARGUMENT, "--out needs a path, not '%.60s'", out);
    snprintf(j->file, sizeof j->file, single ? "%s" : "%s%sadapter_model.safetensors", out, slash);
    snprintf(j->checkpoint, sizeof j->checkpoint, single ? "%s.checkpoint" : "%s%scheckpoint.gguf", out, slash);
    snprintf(j->curve, sizeof j->curve, single ? "%s.loss.svg" : "%s%sloss.svg", out, slash);
    if (j->values->estimate || j->values->overwrite || j->values->resume) return GM_OK;
    if (!access(j->checkpoint, F_OK))
        return fail(e, GM_BAD_ARGUMENT,
                    "%s: a training was interrupted here. Go on with --resume, or begin anew with --overwrite",
                    j->checkpoint);
    return access(j->file, F_OK) ? GM_OK
                                 : fail(e, GM_BAD_ARGUMENT,
                                        "%s: there is an adapter already; give another --out, or "
                                        "--overwrite",
                                        j->file);
}

/* The folder must exist before the first checkpoint. */
static gm_status train_make_folder(const train_job *j, error *e) {
    if (str_ends_with(str_of(j->out), ".gguf") || !mkdir(j->out, 0777) || errno == EEXIST) return GM_OK;
    return fail(e, GM_IO, "%s: the folder cannot be made: %s", j->out, strerror(errno));
}

/* ---- settings ---- */

static gm_training_options train_settings(const train_job *j) {
    static const char *const schedule_names[] = { NULL, "constant", "linear", "cosine" };
    static const char *const loss_names[] = { NULL, "completions", "dpo" };
    const train_values      *v = j->values;
    return (gm_training_options){
        .path = j->data,
        .max_tokens = (size_t)v->max_tokens.value,
        .eval_split = v->eval_split.value,
        .name = j->out,
        .rank = (uint32_t)v->rank.value,
        .alpha = v->alpha.value,
        .rslora = v->rslora,
        .targets = v->targets,
        .layers = v->layers,
        .loss = loss_names[v->loss],
        .beta = v->beta.value,
        .epochs = (uint32_t)v->epochs.value,
        .max_steps = v->max_steps.value,
        .batch = (uint32_t)v->batch.value,
        .accumulate = (uint32_t)(max_size((size_t)v->accumulate.value, 1) * j->peers.parts),
        .rate = v->rate.value,
        .schedule = schedule_names[v->schedule],
        .warmup = v->warmup.given && v->warmup.value <= 0 ? -1 : v->warmup.value,
        .decay = v->decay.value,
        .clip = v->clip.given && v->clip.value <= 0 ? -1 : v->clip.value,
        .dropout = v->dropout.value,
        .lora_plus = v->lora_plus.value,
        .eval_every = (uint32_t)v->eval_every.value,
        .patience = (uint32_t)v->patience.value,
        .keep_every = (uint32_t)v->checkpoint_every.value,
        .seed = v->seed.value,
        .memory = v->memory.value,
        .checkpoint = v->resume ? j->resumed.data : NULL,
        .checkpoint_size = j->resumed.length,
    };
}

static gm_status train_open(train_job *j, error *e) {
    char           why[sizeof e->why] = "";
    gm_engine_info info;
    TRY(train_paths(j, e));
    if (j->values->resume) {
        TRY(input_read(j->checkpoint, &j->resumed, e));
        j->saved = true;
    }
    TRY(engine_open(&j->values->engine, j->model, !j->report.json && !j->report.quiet, &j->engine, e));
    gm_engine_get_info(j->engine, &info);
    j->report.device = info.device;
    const gm_training_options o = train_settings(j);
    const gm_status           status = gm_training_new(j->engine, &o, &j->training, why, sizeof why);
    if (status) return fail(e, status, "%s", why);
    if (j->peers.parts > 1)
        training_share(j->training, &(training_shares){ peers_sum, &j->peers, j->peers.part, j->peers.parts });
    return GM_OK;
}

/* ---- training ---- */

static gm_status train_save_checkpoint(train_job *j, uint64_t step, error *e) {
    char why[sizeof e->why] = "", kept[120] = "Nothing was kept";
    if (j->values->estimate || j->peers.part) return GM_OK; /* process 0 writes for all */
    TRY(train_make_folder(j, e));
    const gm_status status = gm_training_save(j->training, j->checkpoint, why, sizeof why);
    if (!status) {
        j->saved = true;
        j->saved_step = step;
        return GM_OK;
    }
    if (j->saved)
        snprintf(kept, sizeof kept, "The checkpoint of step %llu is there: go on with --resume",
                 (unsigned long long)j->saved_step);
    return fail(e, status, "the checkpoint of step %llu cannot be written: %s. %s", (unsigned long long)step, why,
                kept);
}

static gm_status train_loop(train_job *j, gm_training_event *event, error *e) {
    char      why[sizeof e->why] = "";
    gm_status status;
    progress  bar;
    bool      reading = true;
    progress_start(&bar, "reading", PROGRESS_BYTES, !j->report.json && !j->report.quiet);
    do {
        if (interrupted()) gm_training_stop(j->training);
        status = gm_training_next(j->training, event, why, sizeof why);
        if (reading) progress_update(&bar, event->done, event->total);
        if (status == GM_OK || status_failed(status)) {
            if (reading) progress_end(&bar);
            reading = false;
        }
        if (status == GM_OK && event->kind == GM_TRAINING_DATA) train_report_data(&j->report, j->training, j->data);
        if (status == GM_OK) train_report_event(&j->report, event);
        if (status == GM_OK && event->kind == GM_TRAINING_START && j->values->estimate) break;
        if (status == GM_OK && event->kind == GM_TRAINING_KEPT) {
            const gm_status saved = train_save_checkpoint(j, event->kept_step, e);
            if (saved) status = saved;
        }
        train_report_progress(&j->report, event);
    } while (status == GM_OK || status == GM_AGAIN);
    progress_end(&bar);
    train_report_clear(&j->report);
    if (status_failed(status)) return fail(e, status, "%s", why);
    return GM_OK;
}

/* ---- the end ---- */

static gm_status train_save_adapter(const train_job *j, error *e) {
    char why[sizeof e->why] = "";
    TRY(train_make_folder(j, e));
    const gm_status status = gm_training_save_adapter(j->training, j->out, why, sizeof why);
    if (!status) return GM_OK;
    return fail(e, status, "the adapter cannot be written: %s.%s", why,
                j->saved ? " The checkpoint has everything: go on with --resume when it can be written" : "");
}

static void train_report_end(const train_job *j, const gm_training_event *event, const char *end) {
    report r = { 0 };
    if (!j->report.json) return;
    report_open(&r, NULL, '{');
    report_text(&r, "event", "end");
    report_text(&r, "end", end);
    report_count(&r, "step", event->step);
    report_count(&r, "steps", event->steps);
    report_text(&r, "adapter", j->out);
    report_number(&r, "seconds", event->seconds);
    report_close(&r, '}');
    report_print(&r);
}

static gm_status train_finish(train_job *j, const gm_training_event *event, error *e) {
    char time[32];
    if (j->peers.part) return GM_OK;
    TRY(train_save_adapter(j, e));
    TRY(train_curve_save(j->training, j->curve, e));
    unlink(j->checkpoint); /* it is of no more use */
    format_duration(event->seconds, time);
    train_report_end(j, event, event->end == GM_TRAINING_PATIENCE ? "patience" : "complete");
    if (j->report.json) return GM_OK;
    if (event->end == GM_TRAINING_PATIENCE)
        printf("Ended after step %llu: %llu evaluations were not better than the best (%.4f), whose adapter is kept.\n",
               (unsigned long long)event->step, (unsigned long long)j->values->patience.value, event->best_eval_loss);
    printf("Learned in %s: %s, with the loss curve in %s\nUse it: gemmule run %s --adapter %s \"…\"\n", time, j->out,
           j->curve, j->model, j->out);
    return GM_OK;
}

/* Interrupted: the checkpoint was written with the last event. */
static int train_stopped(const train_job *j, const gm_training_event *event) {
    train_report_end(j, event, "stopped");
    if (!j->saved) return complain(EXIT_INTERRUPTED, "stopped before the first step; nothing was kept");
    return complain(EXIT_INTERRUPTED, "stopped after step %llu of %llu. Go on with the same command and --resume",
                    (unsigned long long)event->kept_step, (unsigned long long)event->steps);
}

/* All bad lines that are known, not only the first; and what is left of a training that failed. */
static int train_complain(train_job *j, const gm_training_event *event, gm_status status, const error *e) {
    size_t n = 0;
    while (j->training && gm_training_problem(j->training, n)) n++;
    for (size_t i = 0; i < n && n > 1; i++)
        complain(EXIT_BAD_INPUT, "%s, %s", j->data, gm_training_problem(j->training, i));
    if (n > 1) return exit_code_of(status);
    complain_error(e);
    error ignored = { 0 };
    if (status == GM_NO_MEMORY)
        return complain(exit_code_of(status), "to need less: --max-tokens, --batch 1, fewer --targets or --layers, a "
                                              "lower --rank");
    if (!j->training || j->values->estimate || j->peers.part || !event->kept_step) return exit_code_of(status);
    if (train_save_adapter(j, &ignored)) return exit_code_of(status);
    train_curve_save(j->training, j->curve, &ignored);
    return complain(exit_code_of(status), "what was learned up to step %llu is in %s",
                    (unsigned long long)event->kept_step, j->out);
}

static int train_command_run(void *values, const arguments *args) {
    train_job         j = { .values = values, .model = args->positional[0], .data = args->positional[1] };
    error             e = { 0 };
    gm_training_event event = { 0 };
    int               code = EXIT_OK;
    gm_status         status = peers_open(&j.peers, &e);
    j.report = (train_report){ .json = j.values->json, .quiet = j.values->quiet || j.peers.part, .device = "" };
    if (j.peers.parts == 1) interrupt_catch(); /* else mpirun ends all of them */
    if (!status && j.values->estimate && j.peers.parts > 1)
        status = fail(&e, GM_BAD_ARGUMENT, "--estimate measures one process: run it without mpirun");
    if (!status) status = train_open(&j, &e);
    if (!status) status = train_loop(&j, &event, &e);
    if (!status && event.end == GM_TRAINING_STOPPED) code = train_stopped(&j, &event);
    else if (!status && !j.values->estimate) status = train_finish(&j, &event, &e);
    if (status) code = train_complain(&j, &event, status, &e);
    gm_training_free(j.training);
    gm_engine_close(j.engine);
    buffer_free(&j.resumed);
    peers_close(&j.peers, status != GM_OK, code);
    return code;
}

const command command_train = {
    .name = "train",
    .arguments = "MODEL FILE",
    .summary = "teach the model from examples, and write what it learned as an adapter",
    .description =
        "Reads examples (see `gemmule data`), trains a LoRA adapter on them, and writes it, with its loss curve, to "
        "--out. MODEL stays as it is: the adapter is used with --adapter. Before it begins, it says what is in the "
        "examples, and what memory and time it will take. Ctrl-C stops it after writing a checkpoint, and --resume "
        "goes on from there as if it had never stopped.",
    .examples = "  gemmule train gemma4:e2b chats.jsonl --out my-adapter\n"
                "  gemmule train gemma4:e2b chats.jsonl --out my-adapter --eval-split 0.1 --patience 3 --epochs 10\n"
                "  gemmule train gemma4:e2b chats.jsonl --out my-adapter --resume\n"
                "  gemmule train gemma4:e4b pairs.jsonl --loss dpo --beta 0.1 --lr 5e-6 --out polite.gguf\n"
                "  gemmule train box facts.jsonl --epochs 20 --lr 1e-3 --json\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 2,
    .values_size = sizeof(train_values),
    .run = train_command_run,
};
