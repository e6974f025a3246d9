#include "cli/train_report.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- for programs: an object per line ---- */

static void json_line_end(report *r) {
    report_close(r, '}');
    report_print(r);
    fflush(stdout);
}

static void json_data(const gm_training_data *d, const char *path) {
    report r = { 0 };
    report_open(&r, NULL, '{');
    report_text(&r, "event", "data");
    report_text(&r, "file", path);
    report_text(&r, "form", d->form);
    report_count(&r, "records", d->records);
    report_count(&r, "examples", d->examples);
    report_count(&r, "evaluation", d->evaluation);
    report_count(&r, "tokens", d->tokens);
    report_count(&r, "counted", d->counted);
    report_count(&r, "shortest", d->shortest);
    report_count(&r, "longest", d->longest);
    report_count(&r, "truncated", d->truncated);
    report_count(&r, "left_out", d->left_out);
    report_count(&r, "duplicates", d->duplicates);
    report_count(&r, "media", d->media);
    json_line_end(&r);
}

/* A loss is written with all its digits, so that two trainings can be compared. */
static void json_exact(report *r, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    if (isfinite(value)) report_json(r, key, str_of(text));
    else report_null(r, key);
}

static void json_event(const gm_training_event *event, const char *device) {
    static const char *const names[] = { "data", "start", "step", "evaluation", "kept" };
    report                   r = { 0 };
    report_open(&r, NULL, '{');
    report_text(&r, "event", names[event->kind]);
    report_count(&r, "step", event->kind == GM_TRAINING_KEPT ? event->kept_step : event->step);
    report_count(&r, "steps", event->steps);
    if (event->kind == GM_TRAINING_START) {
        report_text(&r, "device", device);
        report_count(&r, "memory", event->memory);
    }
    if (event->kind == GM_TRAINING_STEP) {
        report_count(&r, "epoch", event->epoch);
        json_exact(&r, "loss", event->loss);
        if (isfinite(event->accuracy)) report_number(&r, "accuracy", event->accuracy);
        json_exact(&r, "rate", event->rate);
        json_exact(&r, "norm", event->norm);
        report_number(&r, "tokens_per_second", event->tokens_per_second);
    }
    if (event->kind == GM_TRAINING_EVALUATION) {
        json_exact(&r, "loss", event->eval_loss);
        if (isfinite(event->accuracy)) report_number(&r, "accuracy", event->accuracy);
        report_number(&r, "perplexity", event->perplexity);
        json_exact(&r, "best", event->best_eval_loss);
    }
    report_number(&r, "seconds", event->seconds);
    report_number(&r, "seconds_left", event->seconds_left);
    json_line_end(&r);
}

/* ---- for people ---- */

void train_report_data(train_report *r, const gm_training *t, const char *path) {
    gm_training_data d;
    char             a[32], b[32], c[32];
    if (gm_training_get_data(t, &d, NULL, 0)) return;
    if (r->json) json_data(&d, path);
    if (r->json || r->quiet) return;
    printf("%s: %s\n", path, d.form);
    printf("  %s examples", with_commas(d.examples, a));
    if (d.evaluation) printf(", of which %s are for evaluation", with_commas(d.evaluation, b));
    printf("; %s tokens, %s to %s per example", with_commas(d.tokens, a), with_commas(d.shortest, b),
           with_commas(d.longest, c));
    printf("; %s tokens (%.1f %%) count for the loss\n", with_commas(d.counted, a),
           100 * (double)d.counted / (double)d.tokens);
    if (d.truncated || d.left_out || d.duplicates)
        printf("  %s cut off, %s left out since nothing that counts was left, %s duplicates\n",
               with_commas(d.truncated, a), with_commas(d.left_out, b), with_commas(d.duplicates, c));
    if (d.media) printf("  %s pictures and sounds\n", with_commas(d.media, a));
    fflush(stdout);
}

static void print_start(const train_report *r, const gm_training_event *event) {
    char memory[32], left[32] = "a time that is not known yet";
    format_bytes(event->memory, memory);
    if (isfinite(event->seconds_left)) format_duration(event->seconds_left, left);
    printf("%llu steps on %s: %s of memory besides the model, about %s\n",
           (unsigned long long)(event->steps - event->step), r->device, memory, left);
}

static void print_step(const gm_training_event *event) {
    char left[32] = "?";
    if (isfinite(event->seconds_left)) format_duration(event->seconds_left, left);
    printf("step %llu of %llu: loss %.4f", (unsigned long long)event->step, (unsigned long long)event->steps,
           event->loss);
    if (isfinite(event->accuracy)) printf(", %.0f %% preferred", 100 * event->accuracy);
    printf(", learning rate %.2g, norm %.3g, %.0f tokens/s, %s left\n", event->rate, event->norm,
           event->tokens_per_second, left);
}

static void print_evaluation(const gm_training_event *event) {
    printf("evaluation after step %llu: loss %.4f", (unsigned long long)event->step, event->eval_loss);
    if (isfinite(event->perplexity)) printf(", perplexity %.3f", event->perplexity);
    if (isfinite(event->accuracy)) printf(", %.0f %% preferred", 100 * event->accuracy);
    puts(event->eval_loss > event->best_eval_loss ? "" : ", the best so far");
}

void train_report_event(train_report *r, const gm_training_event *event) {
    /* Without a terminal, some twenty lines tell the course. */
    const uint64_t every = event->steps > 20 ? event->steps / 20 : 1;
    if (event->kind == GM_TRAINING_DATA) return;
    if (r->json) {
        json_event(event, r->device);
        return;
    }
    if (r->quiet) return;
    if (event->kind == GM_TRAINING_START || event->kind == GM_TRAINING_EVALUATION) train_report_clear(r);
    if (event->kind == GM_TRAINING_START) print_start(r, event);
    if (event->kind == GM_TRAINING_STEP && !terminal_errors() &&
        (event->step % every == 0 || event->step == 1 || event->step == event->steps))
        print_step(event);
    if (event->kind == GM_TRAINING_EVALUATION) print_evaluation(event);
    fflush(stdout);
}

void train_report_progress(train_report *r, const gm_training_event *event) {
    static const char filled[] = "##############################", empty[] = "..............................";
    const double      now = clock_seconds(), part = event->steps ? (double)event->step / (double)event->steps : 0;
    char              left[32] = "-:--", line[300];
    if (r->json || r->quiet || !terminal_errors() || !event->steps || now - r->drawn < 0.1) return;
    if (isfinite(event->seconds_left)) format_duration(event->seconds_left, left);
    const size_t width = terminal_width(),
                 bar = width > 110  ? 30
                       : width > 90 ? 14
                                    : 0,
                 full = (size_t)(part * (double)bar);
    int n = 0;
    if (bar) n = snprintf(line, sizeof line, "[%.*s%.*s] ", (int)full, filled, (int)(bar - full), empty);
    n += snprintf(line + n, sizeof line - (size_t)n, "step %llu/%llu", (unsigned long long)event->step,
                  (unsigned long long)event->steps);
    if (event->step)
        n += snprintf(line + n, sizeof line - (size_t)n, "  loss %.4f  rate %.2g  %.0f tok/s", event->loss, event->rate,
                      event->tokens_per_second);
    snprintf(line + n, sizeof line - (size_t)n, "  %s left", left);
    fprintf(stderr, "\r%.*s\033[K", (int)(width > 1 ? width - 1 : 1), line);
    fflush(stderr);
    r->drawn = now;
    r->shown = true;
}

void train_report_clear(train_report *r) {
    if (r->shown) fputs("\r\033[K", stderr);
    if (r->shown) fflush(stderr);
    r->shown = false;
}
