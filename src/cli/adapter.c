/* gemmule adapter: shows, converts and compares LoRA adapters, and merges them into a model. */

#include "cli/adapter.h"

#include "cli/model_argument.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const option options[] = {
    FLAG_OPTION(adapter_values, json, "json", 0, "print one JSON object"),
    FLAG_OPTION(adapter_values, quiet, "quiet", 0, "merge: no progress bar and no table"),
    FLAG_OPTION(adapter_values, ollama, "ollama", 0,
                "merge: also write OUT.Modelfile, for `ollama create NAME -f OUT.Modelfile`"),
    TEXT_OPTION(adapter_values, type, "type", 0, "TYPE",
                "merge: the type of the tensors that change, such as q8_0 or f16; default: as they are"),
    COUNT_OPTION(adapter_values, rank, "rank", 0, "N", 1, 256, "random: the rank; default 16"),
    COUNT_OPTION(adapter_values, seed, "seed", 0, "N", 0, (double)UINT64_MAX,
                 "random: the same seed gives the same adapter; default 0"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

/* ---- info ---- */

typedef struct {
    uint64_t parameters;
    uint32_t least_rank, most_rank;
    float    least_scale, most_scale;
} adapter_facts;

static adapter_facts facts_of(const adapter *a) {
    adapter_facts f = { .parameters = a->bytes / sizeof(float), .least_rank = UINT32_MAX, .least_scale = INFINITY };
    f.most_scale = -INFINITY;
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        if (p->rank < f.least_rank) f.least_rank = p->rank;
        if (p->rank > f.most_rank) f.most_rank = p->rank;
        if (p->scale < f.least_scale) f.least_scale = p->scale;
        if (p->scale > f.most_scale) f.most_scale = p->scale;
    }
    return f;
}

/* Each kind once, with the number of pairs that have it. */
static void print_kinds(const adapter *a) {
    for (size_t i = 0; i < a->count; i++) {
        char   kind[ADAPTER_NAME], other[ADAPTER_NAME];
        size_t same = 0;
        bool   seen = false;
        adapter_kind(a->pairs[i].base, kind);
        for (size_t j = 0; j < a->count; j++) {
            if (strcmp(kind, adapter_kind(a->pairs[j].base, other))) continue;
            seen |= j < i;
            same++;
        }
        if (!seen) printf("%-12s %-21s %zu\n", i ? "" : "corrects", kind, same);
    }
}

static void print_range(const char *label, double least, double most) {
    if (least == most) printf("%-12s %g\n", label, least);
    else printf("%-12s %g to %g\n", label, least, most);
}

static gm_status check_model(const adapter *a, const char *name, error *e) {
    arena     memory = { 0 };
    gguf     *file = NULL;
    model     m = { 0 };
    gm_status status = model_argument_open(name, &memory, &file, e);
    if (!status) status = model_shapes(file, &m, e);
    if (!status) {
        status = adapter_fits(a, &m, file, file, e);
        model_free(&m);
    }
    gguf_free(file);
    arena_free(&memory);
    return status;
}

static int info_json(const adapter *a, const adapter_facts *f, bool checked) {
    report r = { 0 };
    char   hex[65];
    sha256_hex(a->digest, hex);
    report_open(&r, NULL, '{');
    report_text(&r, "name", a->name);
    report_text(&r, "base_model", a->base_model);
    report_count(&r, "parameters", f->parameters);
    report_text(&r, "digest", hex);
    if (checked) report_bool(&r, "fits", true);
    report_open(&r, "pairs", '[');
    for (size_t i = 0; i < a->count; i++) {
        const adapter_pair *p = &a->pairs[i];
        report_open(&r, NULL, '{');
        report_text(&r, "tensor", p->base);
        report_count(&r, "rank", p->rank);
        report_count(&r, "in", p->in);
        report_count(&r, "out", p->out);
        report_count(&r, "experts", p->experts);
        report_number(&r, "scale", p->scale);
        report_close(&r, '}');
    }
    report_close(&r, ']');
    report_close(&r, '}');
    return report_print(&r);
}

static void info_print(const adapter *a, const adapter_facts *f, const char *model_name) {
    char bytes[32], number[32], name[300];
    format_bytes(a->bytes, bytes);
    printf("%-12s %s\n", "adapter", printable(str_of(a->name), name, sizeof name));
    if (a->base_model) printf("%-12s %s\n", "made for", printable(str_of(a->base_model), name, sizeof name));
    printf("%-12s %s, %s as f32\n", "parameters", with_commas(f->parameters, number), bytes);
    print_range("rank", f->least_rank, f->most_rank);
    print_range("scale", f->least_scale, f->most_scale);
    print_kinds(a);
    if (model_name) printf("%-12s %s\n", "fits", printable(str_of(model_name), name, sizeof name));
}

/* gemmule adapter info ADAPTER [MODEL] */
static int info_run(const adapter_values *v, const char *const *given, size_t count) {
    adapter *a = NULL;
    error    e = { 0 };
    int      code = EXIT_OK;
    if (adapter_open(given[0], &a, &e) || (count > 1 && check_model(a, given[1], &e))) {
        code = complain_error(&e);
    } else {
        const adapter_facts f = facts_of(a);
        if (v->json) code = info_json(a, &f, count > 1);
        else info_print(a, &f, count > 1 ? given[1] : NULL);
    }
    adapter_free(a);
    return code;
}

/* ---- convert ---- */

/* gemmule adapter convert ADAPTER OUT */
static int convert_run(const adapter_values *v, const char *const *given, size_t count) {
    adapter *a = NULL;
    error    e = { 0 };
    (void)v, (void)count;
    const bool failed = adapter_open(given[0], &a, &e) || adapter_save(a, given[1], &e);
    adapter_free(a);
    return failed ? complain_error(&e) : EXIT_OK;
}

/* ---- diff ---- */

typedef struct {
    double first, second, both; /* inner products: with itself, with itself, with each other */
} products;

/* The norm of the difference: |x − y|² = |x|² − 2·<x, y> + |y|². */
static double products_distance(products p) {
    const double square = p.first - 2 * p.both + p.second;
    return square > 0 ? sqrt(square) : 0;
}

static gm_status pair_products(const adapter_pair *x, const adapter_pair *y, products *out, error *e) {
    *out = (products){ 0 };
    if (x) TRY(adapter_inner_product(x, x, &out->first, e));
    if (y) TRY(adapter_inner_product(y, y, &out->second, e));
    if (x && y) TRY(adapter_inner_product(x, y, &out->both, e));
    return GM_OK;
}

static void diff_row(const adapter_values *v, report *r, const adapter_pair *x, const adapter_pair *y, products p) {
    char ranks[2][16] = { "-", "-" };
    if (v->json) {
        report_open(r, NULL, '{');
        report_text(r, "tensor", x ? x->base : y->base);
        if (x) report_count(r, "rank_a", x->rank);
        if (y) report_count(r, "rank_b", y->rank);
        report_number(r, "norm_a", sqrt(p.first));
        report_number(r, "norm_b", sqrt(p.second));
        report_number(r, "difference", products_distance(p));
        report_close(r, '}');
        return;
    }
    if (x) snprintf(ranks[0], sizeof ranks[0], "%u", x->rank);
    if (y) snprintf(ranks[1], sizeof ranks[1], "%u", y->rank);
    printf("%-32s %5s %5s %11.5g %11.5g %11.5g%s\n", x ? x->base : y->base, ranks[0], ranks[1], sqrt(p.first),
           sqrt(p.second), products_distance(p),
           x && y ? ""
           : x    ? "  only in A"
                  : "  only in B");
}

typedef struct {
    products sum;
    size_t   only[2], both;
} diff_total;

static gm_status diff_pair(const adapter_values *v, report *r, const adapter_pair *x, const adapter_pair *y,
                           diff_total *total, error *e) {
    products p;
    TRY(pair_products(x, y, &p, e));
    diff_row(v, r, x, y, p);
    total->sum.first += p.first;
    total->sum.second += p.second;
    total->sum.both += p.both;
    if (x && y) total->both++;
    else total->only[x ? 0 : 1]++;
    return GM_OK;
}

static gm_status diff_all(const adapter_values *v, report *r, const adapter *a, const adapter *b, diff_total *total,
                          error *e) {
    for (size_t i = 0; i < a->count; i++)
        TRY(diff_pair(v, r, &a->pairs[i], adapter_find(b, a->pairs[i].base), total, e));
    for (size_t i = 0; i < b->count; i++) {
        if (!adapter_find(a, b->pairs[i].base)) TRY(diff_pair(v, r, NULL, &b->pairs[i], total, e));
    }
    return GM_OK;
}

static int diff_report(const adapter_values *v, report *r, const diff_total *t) {
    const double larger = sqrt(fmax(t->sum.first, t->sum.second)), difference = products_distance(t->sum);
    const bool   same = !t->only[0] && !t->only[1] && difference <= 1e-6 * larger;
    if (v->json) {
        report_close(r, ']');
        report_number(r, "norm_a", sqrt(t->sum.first));
        report_number(r, "norm_b", sqrt(t->sum.second));
        report_number(r, "difference", difference);
        report_bool(r, "same", same);
        report_close(r, '}');
        const int code = report_print(r);
        if (code != EXIT_OK) return code;
    } else {
        printf("%-32s %5s %5s %11.5g %11.5g %11.5g\n", "all", "", "", sqrt(t->sum.first), sqrt(t->sum.second),
               difference);
        printf("%zu in both, %zu only in A, %zu only in B: they change the model %s\n", t->both, t->only[0], t->only[1],
               same ? "in the same way" : "differently");
    }
    return same ? EXIT_OK : EXIT_CHECK_FAILED;
}

/* gemmule adapter diff A B */
static int diff_run(const adapter_values *v, const char *const *given, size_t count) {
    adapter   *a = NULL, *b = NULL;
    error      e = { 0 };
    report     r = { 0 };
    diff_total total = { 0 };
    int        code = EXIT_OK;
    (void)count;
    gm_status status = adapter_open(given[0], &a, &e);
    if (!status) status = adapter_open(given[1], &b, &e);
    if (!status) {
        if (v->json) report_open(&r, NULL, '{'), report_open(&r, "pairs", '[');
        else printf("%-32s %5s %5s %11s %11s %11s\n", "TENSOR", "RANK", "RANK", "NORM A", "NORM B", "DIFFERENCE");
        status = diff_all(v, &r, a, b, &total, &e);
    }
    code = status ? complain_error(&e) : diff_report(v, &r, &total);
    if (status) buffer_free(&r.text);
    adapter_free(a);
    adapter_free(b);
    return code;
}

/* ---- the command ---- */

static const struct {
    const char *name, *arguments;
    size_t      fewest, most;
    int (*run)(const adapter_values *v, const char *const *given, size_t count);
} actions[] = {
    { "info", "ADAPTER [MODEL]", 1, 2, info_run },
    { "convert", "ADAPTER OUT", 2, 2, convert_run },
    { "merge", "MODEL ADAPTER[=SCALE]... OUT", 3, SIZE_MAX, adapter_merge_run },
    { "diff", "ADAPTER ADAPTER", 2, 2, diff_run },
    { "random", "MODEL OUT", 2, 2, adapter_random_run },
};

static int adapter_run(void *values, const arguments *args) {
    const char  *name = args->positional[0];
    const size_t count = args->count - 1;
    for (size_t i = 0; i < COUNT_OF(actions); i++) {
        if (strcmp(name, actions[i].name)) continue;
        if (count >= actions[i].fewest && count <= actions[i].most)
            return actions[i].run(values, args->positional + 1, count);
        return complain_usage("adapter", "%s argument; usage: gemmule adapter %s %s",
                              count < actions[i].fewest ? "missing" : "unexpected", name, actions[i].arguments);
    }
    return complain_usage("adapter", "adapter: expected info, convert, merge, diff or random, not '%s'", name);
}

const command command_adapter = {
    .name = "adapter",
    .arguments = "{info,convert,merge,diff,random} ARGUMENTS",
    .summary = "show, convert, compare and merge LoRA adapters",
    .description =
        "ADAPTER is a PEFT folder (adapter_config.json and adapter_model.safetensors) or a GGUF adapter. "
        "`info ADAPTER [MODEL]` prints what it corrects, and whether it fits a model. "
        "`convert ADAPTER OUT` writes a GGUF if OUT ends with .gguf, otherwise a PEFT folder. "
        "`merge MODEL ADAPTER[=SCALE]... OUT` writes a model with the adapters in its weights, each tensor in its own "
        "type, and prints what that rounding costs. "
        "`diff A B` compares what two adapters change, tensor by tensor, and exits with 1 if they differ. "
        "`random MODEL OUT` writes an adapter with random values for the seven projections of every layer, to measure "
        "speed with.",
    .examples = "  gemmule adapter info my-lora gemma4:e2b\n"
                "  gemmule adapter convert my-lora my-lora.gguf\n"
                "  gemmule adapter merge gemma4:e2b my-lora merged.gguf --ollama\n"
                "  gemmule adapter diff my-lora other.gguf\n"
                "  gemmule adapter random e2b.gguf random.gguf --rank 16\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 1,
    .most = 64,
    .values_size = sizeof(adapter_values),
    .run = adapter_run,
};
