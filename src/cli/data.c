/* gemmule data: what is in a file of examples, and how the model sees them. */

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "model/config.h"
#include "session/engine.h"
#include "train/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    count_value  preview, max_tokens, seed;
    number_value eval_split;
    const char  *mmproj;
    bool         json;
} data_values;

static const option options[] = {
    COUNT_OPTION(data_values, preview, "preview", 0, "N", 1, 1e6,
                 "show the first N examples as the model sees them; what counts for the loss is marked, with colour "
                 "on a terminal and otherwise as {+text+}"),
    COUNT_OPTION(data_values, max_tokens, "max-tokens", 0, "N", 8, 1e9,
                 "cut examples off after N tokens; by default they may have any length"),
    NUMBER_OPTION(data_values, eval_split, "eval-split", 0, "F", 0, 0.9,
                  "share of the examples to keep for evaluation; default: none"),
    COUNT_OPTION(data_values, seed, "seed", 0, "N", 0, 18446744073709551615.0,
                 "random seed that chooses them; default 0"),
    TEXT_OPTION(data_values, mmproj, "mmproj", 0, "FILE",
                "the model's vision and audio towers, if they are in a file of their own (llama.cpp's mmproj)"),
    FLAG_OPTION(data_values, json, "json", 0, "print one JSON object; with --preview, with token ids and weights"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

typedef struct {
    const data_values *values;
    const char        *path;
    arena              memory;
    gguf              *model, *projector;
    tokenizer         *words;
    data_options       options;
    dataset           *data;
} data_state;

/* ---- reading ---- */

static gm_status data_open_model(data_state *s, const char *name, error *e) {
    engine_origin origin;
    model_config  config;
    const char   *path;
    TRY(engine_find_model(name, &s->memory, &path, &origin, e));
    TRY(gguf_open_file(path, &s->model, e));
    TRY(model_config_read(s->model, &s->memory, &config, e));
    TRY(tokenizer_new(s->model, &s->words, e));
    if (s->values->mmproj) {
        TRY(gguf_open_file(s->values->mmproj, &s->projector, e));
        TRY(engine_check_projector(s->projector, config.width, e));
    }
    s->options = (data_options){
        .words = s->words,
        .variant = engine_chat_variant(&config, &origin),
        .system = origin.system,
        .max_tokens = (size_t)s->values->max_tokens.value,
        .eval_share = s->values->eval_split.value,
        .seed = s->values->seed.value,
        .model = s->model,
        .projector = s->projector,
    };
    return GM_OK;
}

static gm_status data_scan_all(data_state *s, error *e) {
    const data_source source_of = { .path = s->path };
    progress          bar;
    gm_status         status;
    uint64_t          done, total;
    TRY(dataset_open(&source_of, &s->options, &s->data, e));
    progress_start(&bar, "reading", PROGRESS_BYTES, !s->values->json);
    do {
        status = interrupted() ? fail(e, GM_CANCELLED, "interrupted") : dataset_scan(s->data, clock_seconds() + 0.1, e);
        dataset_progress(s->data, &done, &total);
        progress_update(&bar, done, total);
    } while (status == GM_AGAIN);
    progress_end(&bar);
    return status;
}

/* ---- for people ---- */

static void data_print_count(const char *what, uint64_t n, const char *more) {
    char number[32];
    printf("%-16s %14s%s%s\n", what, with_commas(n, number), *more ? "  " : "", more);
}

static void data_print_histogram(const data_stats *s) {
    enum { WIDTH = 40 };
    uint64_t most = 1;
    size_t   first = 0, last = DATA_BINS - 1;
    char     number[32], low[32], high[32];
    for (size_t i = 0; i < DATA_BINS; i++) most = s->histogram[i] > most ? s->histogram[i] : most;
    while (!s->histogram[first]) first++;
    while (!s->histogram[last]) last--;
    printf("\ntokens               examples\n");
    for (size_t i = first; i <= last; i++) {
        const int bar = (int)((s->histogram[i] * WIDTH + most - 1) / most);
        with_commas(i ? (UINT64_C(32) << (i - 1)) + 1 : 1, low);
        with_commas(UINT64_C(32) << i, high);
        printf("%8s%s%-8s %10s", low, i == DATA_BINS - 1 ? " or more " : " – ", i == DATA_BINS - 1 ? "" : high,
               with_commas(s->histogram[i], number));
        if (bar) printf("  %.*s", bar, "########################################");
        putchar('\n');
    }
}

static size_t data_count_eval(const dataset *d) {
    size_t n = 0;
    for (size_t i = 0; i < dataset_count(d); i++) n += dataset_is_eval(d, i);
    return n;
}

static void data_print_stats(const data_state *s) {
    const data_stats *t = dataset_stats(s->data);
    char              note[160] = "", low[32], high[32];
    printf("%s: %s\n\n", s->path, dataset_describe(s->data));
    if (t->examples + t->left_out != t->records)
        snprintf(note, sizeof note, "from %llu conversations, since the model sees earlier turns differently later",
                 (unsigned long long)t->records);
    data_print_count("examples", t->examples, note);
    snprintf(note, sizeof note, "%s to %s per example", with_commas(t->shortest, low), with_commas(t->longest, high));
    data_print_count("tokens", t->tokens, note);
    snprintf(note, sizeof note, "%.1f %%", 100.0 * (double)t->counted / (double)t->tokens);
    data_print_count("count for loss", t->counted, note);
    snprintf(note, sizeof note, "longer than %zu tokens", s->options.max_tokens);
    data_print_count("cut off", t->truncated, t->truncated ? note : "");
    snprintf(note, sizeof note, "nothing that counts is left; the first is line %llu",
             (unsigned long long)t->left_out_line);
    data_print_count("left out", t->left_out, t->left_out ? note : "");
    snprintf(note, sizeof note, "the first is line %llu, which repeats line %llu",
             (unsigned long long)t->duplicate_line, (unsigned long long)t->duplicate_of);
    data_print_count("duplicates", t->duplicates, t->duplicates ? note : "");
    if (t->media) data_print_count("pictures, sounds", t->media, "");
    if (s->options.eval_share > 0) data_print_count("for evaluation", data_count_eval(s->data), "");
    data_print_histogram(t);
}

static gm_status data_print_preview(const data_state *s, error *e) {
    const bool  colour = terminal_output();
    const char *on = colour ? "\033[32m" : "{+", *off = colour ? "\033[0m" : "+}";
    for (size_t i = 0; i < dataset_count(s->data) && i < s->values->preview.value; i++) {
        data_example x;
        TRY(dataset_example(s->data, i, &x, e));
        for (size_t k = 0; k < x.sequences; k++) {
            const data_sequence *q = &x.sequence[k];
            buffer               text = { 0 };
            data_preview(s->words, q, on, off, &text);
            printf("\n--- line %llu%s: %zu tokens, %zu count%s%s\n", (unsigned long long)x.line,
                   x.sequences == 1 ? ""
                   : k              ? ", rejected"
                                    : ", chosen",
                   q->count, q->counted, q->truncated ? ", cut off" : "",
                   dataset_is_eval(s->data, i) ? ", for evaluation" : "");
            if (!text.failed) printf("%.*s\n", (int)text.length, text.data);
            const bool failed = text.failed;
            buffer_free(&text);
            if (failed) {
                data_example_free(&x);
                return fail_memory(e, "the preview", q->count);
            }
        }
        data_example_free(&x);
    }
    return GM_OK;
}

/* ---- for programs ---- */

static void data_report_sequence(report *r, const tokenizer *words, const data_sequence *q) {
    buffer text = { 0 };
    data_preview(words, q, "", "", &text);
    report_open(r, NULL, '{');
    report_str(r, "text", buffer_view(&text));
    report_bool(r, "truncated", q->truncated);
    report_open(r, "ids", '[');
    for (size_t i = 0; i < q->count; i++) report_integer(r, NULL, q->ids[i]);
    report_close(r, ']');
    report_open(r, "weights", '[');
    for (size_t i = 0; i < q->count; i++) report_integer(r, NULL, q->weights[i] != 0);
    report_close(r, ']');
    report_close(r, '}');
    if (text.failed) r->text.failed = true;
    buffer_free(&text);
}

static gm_status data_report_preview(report *r, const data_state *s, error *e) {
    report_open(r, "preview", '[');
    for (size_t i = 0; i < dataset_count(s->data) && i < s->values->preview.value; i++) {
        data_example x;
        TRY(dataset_example(s->data, i, &x, e));
        report_open(r, NULL, '{');
        report_count(r, "line", x.line);
        report_bool(r, "eval", dataset_is_eval(s->data, i));
        report_open(r, "sequences", '[');
        for (size_t k = 0; k < x.sequences; k++) data_report_sequence(r, s->words, &x.sequence[k]);
        report_close(r, ']');
        report_close(r, '}');
        data_example_free(&x);
    }
    report_close(r, ']');
    return GM_OK;
}

static gm_status data_report(report *r, const data_state *s, error *e) {
    const data_stats *t = dataset_stats(s->data);
    report_open(r, NULL, '{');
    report_text(r, "file", s->path);
    report_text(r, "form", dataset_describe(s->data));
    report_count(r, "records", t->records);
    report_count(r, "examples", t->examples);
    report_count(r, "tokens", t->tokens);
    report_count(r, "counted", t->counted);
    report_count(r, "shortest", t->shortest);
    report_count(r, "longest", t->longest);
    report_count(r, "truncated", t->truncated);
    report_count(r, "left_out", t->left_out);
    report_count(r, "duplicates", t->duplicates);
    report_count(r, "media", t->media);
    report_count(r, "evaluation", data_count_eval(s->data));
    report_open(r, "histogram", '[');
    for (size_t i = 0; i < DATA_BINS; i++) report_count(r, NULL, t->histogram[i]);
    report_close(r, ']');
    if (s->values->preview.given) TRY(data_report_preview(r, s, e));
    report_close(r, '}');
    return GM_OK;
}

/* ---- the command ---- */

/* All bad lines that are known, not only the first. */
static int data_complain(const data_state *s, gm_status status, const error *e) {
    size_t n = 0;
    while (s->data && dataset_problem(s->data, n)) n++;
    for (size_t i = 0; i < n && n > 1; i++) complain(EXIT_BAD_INPUT, "%s, %s", s->path, dataset_problem(s->data, i));
    return n > 1 ? exit_code_of(status) : complain_error(e);
}

static int data_command_run(void *values, const arguments *args) {
    data_state s = { .values = values, .path = args->positional[1] };
    error      e = { 0 };
    report     r = { 0 };
    int        code = EXIT_OK;
    interrupt_catch();
    gm_status status = data_open_model(&s, args->positional[0], &e);
    if (!status) status = data_scan_all(&s, &e);
    if (!status && s.values->json) {
        status = data_report(&r, &s, &e);
        if (status) buffer_free(&r.text);
        else code = report_print(&r);
    } else if (!status) {
        data_print_stats(&s);
        if (s.values->preview.given) status = data_print_preview(&s, &e);
    }
    if (status) code = data_complain(&s, status, &e);
    dataset_free(s.data);
    tokenizer_free(s.words);
    gguf_free(s.projector);
    gguf_free(s.model);
    arena_free(&s.memory);
    return code;
}

const command command_data = {
    .name = "data",
    .arguments = "MODEL FILE",
    .summary = "check examples to learn from, and show them as the model sees them",
    .description =
        "Reads FILE line by line and prints how many examples and tokens it has, how many tokens count for the loss, "
        "which are too long or duplicates, and a histogram of lengths. FILE is JSONL, a JSON list or CSV with "
        "messages (also with tools and thinking), prompt and completion, instruction, input and output (Alpaca), "
        "conversations (ShareGPT), or prompt, chosen and rejected; or it is plain text. The form is recognised. Bad "
        "lines are named with their numbers. Reads only the tokenizer of MODEL, not the weights.",
    .examples = "  gemmule data gemma4:e2b chats.jsonl\n"
                "  gemmule data gemma4:e2b chats.jsonl --preview 3 --max-tokens 1024\n"
                "  gemmule data model.gguf questions.csv --eval-split 0.1 --seed 7 --json\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 2,
    .values_size = sizeof(data_values),
    .run = data_command_run,
};
