/* gemmule inspect: how much GPU memory the model takes, and what does not fit the budget. */

#include "cli/inspect.h"

#include "cli/terminal.h"

#include <inttypes.h>
#include <stdio.h>

static const char *inspect_kv_name(const inspection *f) { return quant_format_of(f->kv_type)->name; }

/* "layers 1.2 GB, head 330 MB" */
static void list_kinds(const uint64_t bytes[BUDGET_KINDS], char *out, size_t size) {
    int used = 0;
    *out = 0;
    for (size_t i = 0; i < BUDGET_KINDS; i++) {
        char amount[32];
        if (!bytes[i] || (size_t)used >= size) continue;
        format_bytes(bytes[i], amount);
        used += snprintf(out + used, size - (size_t)used, "%s%s %s", used ? ", " : "", budget_kind_names[i], amount);
    }
}

static uint64_t budget_sum(const uint64_t bytes[BUDGET_KINDS]) {
    uint64_t sum = 0;
    for (size_t i = 0; i < BUDGET_KINDS; i++) sum += bytes[i];
    return sum;
}

void inspect_print_gpu(const inspection *f) {
    const gpu_budget *b = &f->gpu;
    char              total[32], weights[32], other[32], kinds[300], note[400];
    if (f->gpu_problem.status) {
        inspect_line("GPU memory", "%s", f->gpu_problem.why);
        return;
    }
    format_bytes(b->total, total);
    inspect_line("GPU memory", "%s with %" PRIu64 " tokens of keys and values in %s", total, f->context,
                 inspect_kv_name(f));
    format_bytes(budget_sum(b->resident), weights);
    list_kinds(b->resident, kinds, sizeof kinds);
    inspect_line("  weights", "%s: %s", weights, kinds);
    format_bytes(b->options.kv, other);
    inspect_line("  keys and values", "%s", other);
    format_bytes(b->options.plans, other);
    inspect_line("  activations", "about %s", other);
    format_bytes(b->staging + b->slot, other);
    inspect_line("  uploading", "%s", other);
    gpu_budget_explain(b, false, note, sizeof note);
    if (!*note) return;
    format_bytes(b->options.limit, other);
    format_bytes(b->everything, total);
    if (b->options.limit) inspect_line("beyond the budget", "of %s (everything takes %s); %s", other, total, note);
    else inspect_line("outside", "(everything takes %s); %s", total, note);
}

static void report_kinds(report *r, const char *key, const uint64_t bytes[BUDGET_KINDS]) {
    report_open(r, key, '{');
    for (size_t i = 0; i < BUDGET_KINDS; i++) report_count(r, budget_kind_names[i], bytes[i]);
    report_close(r, '}');
}

void inspect_report_gpu(report *r, const inspection *f) {
    const gpu_budget *b = &f->gpu;
    report_open(r, "gpu", '{');
    report_count(r, "context", f->context);
    report_text(r, "kv", inspect_kv_name(f));
    report_text(r, "problem", f->gpu_problem.status ? f->gpu_problem.why : NULL);
    if (!f->gpu_problem.status) {
        report_count(r, "budget", b->options.limit);
        report_count(r, "bytes", b->total);
        report_count(r, "bytes_unlimited", b->everything);
        report_kinds(r, "weights", b->resident);
        report_count(r, "kv_bytes", b->options.kv);
        report_count(r, "activations", b->options.plans);
        report_count(r, "staging", b->staging);
        report_count(r, "slot", b->slot);
        report_kinds(r, "outside", b->outside);
        report_count(r, "bus_bytes_per_token", b->token_bytes);
        report_count(r, "experts", b->experts);
        report_count(r, "expert_slots", b->slots);
        report_count(r, "expert_bytes_per_token", b->expert_bytes);
    }
    report_close(r, '}');
}
