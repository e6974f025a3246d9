/* gemmule check: recomputes an expectation file and prints how far off every tensor is. */

#include "cli/check.h"

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    engine_values engine;
    number_value  tolerance;
    const char   *image, *audio, *video, *target;
    bool          json, quiet;
} check_values;

static const option check_options[] = {
    NUMBER_OPTION(check_values, tolerance, "tolerance", 0, "X", 0, 1e30,
                  "largest relative error that passes; default 1e-3"),
    TEXT_OPTION(check_values, image, "image", 0, "FILE",
                "the expectation's picture: its soft tokens are then made from this file, not from given patches"),
    TEXT_OPTION(check_values, audio, "audio", 0, "FILE",
                "the expectation's sound: its soft tokens are then made from this file, not from given mel features"),
    TEXT_OPTION(check_values, video, "video", 0, "DIR", "the frames of the expectation's video, one picture each"),
    TEXT_OPTION(check_values, target, "target", 0, "MODEL", "the model that a drafter works for"),
    FLAG_OPTION(check_values, json, "json", 0, "print one JSON object"),
    FLAG_OPTION(check_values, quiet, "quiet", 0, "no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("comparison", check_options, 0),
    ADAPTER_GROUP(offsetof(check_values, engine)),
    ENGINE_GROUP(offsetof(check_values, engine)),
};

static const double default_tolerance = 1e-3;

/* ---- kinds of expectations ---- */

typedef gm_status (*check_function)(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                                    error *e);

static gm_status check_image_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                                    error *e) {
    (void)rest;
    return check_soft_logits(c, want, "image", result, e);
}

static gm_status check_image_greedy(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                                    error *e) {
    (void)rest;
    return check_soft_greedy(c, want, "image", result, e);
}

static gm_status check_audio_greedy(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                                    error *e) {
    (void)rest;
    return check_soft_greedy(c, want, "audio", result, e);
}

static gm_status check_audio_logits(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                                    error *e) {
    (void)rest;
    return check_soft_logits(c, want, "audio", result, e);
}

/* A kind is known by the prefix of the tensor's name; the function gets the rest of the name. */
static const struct {
    const char    *prefix;
    check_function check;   /* NULL: not supported yet */
    const char    *lacking; /* the missing feature */
} kinds[] = {
    { "logits.", check_logits, NULL },
    { "greedy.", check_greedy, NULL },
    { "logits", check_logits, NULL },
    { "loss", check_loss, NULL },
    { "grad.", check_gradient, NULL },
    { "adamw_losses", check_adamw_losses, NULL },
    { "image.logits", check_image_logits, NULL },
    { "audio.logits", check_audio_logits, NULL },
    { "image.soft_tokens", check_image_soft, NULL },
    { "image.greedy", check_image_greedy, NULL },
    { "audio.greedy", check_audio_greedy, NULL },
    { "audio.soft_tokens", check_audio_soft, NULL },
    { "audio.mel", check_audio_mel, NULL },
    { "entropy.", check_entropy, NULL },
    { "accept.", check_accept, NULL },
    { "mask.", check_mask, NULL },
    { "draft", NULL, "drafting is" },
};

/* Inputs of other lines have no line of their own: token ids of prompts and canvases, what conditions a step (which the step before gives), the tokens whose logits a file has, patches of a picture,
 * samples of a sound, and blocks that come with their values. image.plain_logits is for information: with a mask that no released model has. */
static bool is_input(const gguf *expect, const gguf_tensor *t) {
    static const char *const inputs[] = { "rows",
                                          "loss_mask",
                                          "ids",
                                          "image.patches",
                                          "image.positions",
                                          "image.patch_rows",
                                          "image.plain_logits",
                                          "audio.pcm",
                                          "audio.mel_mask" };
    char                     values[100];
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (str_is(t->name, inputs[i])) return true;
    }
    static const char *const prefixes[] = { "ids.", "canvas.", "self_cond_logits." };
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        if (str_starts_with(t->name, prefixes[i])) return true;
    }
    if (str_ends_with(t->name, ".ids")) return true;
    snprintf(values, sizeof values, "%.*s.f32", STR_ARGS(t->name));
    return gguf_find_tensor(expect, values) != NULL;
}

static gm_status check_tensor(check_state *c, const gguf_tensor *t, check_result *result, error *e) {
    char name[80];
    snprintf(name, sizeof name, "%.*s", STR_ARGS(t->name));
    if (str_ends_with(t->name, ".f32")) {
        name[strlen(name) - strlen(".f32")] = 0;
        return check_blocks(c, t, name, result, e);
    }
    if (check_is_video(c)) return check_video(c, t, result, e);
    if (check_is_canvas(c) && str_starts_with(t->name, "logits."))
        return check_canvas_logits(c, t, name + strlen("logits."), result, e);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (!str_starts_with(t->name, kinds[i].prefix)) continue;
        if (!kinds[i].check) return fail(e, GM_UNSUPPORTED, "%s not supported yet", kinds[i].lacking);
        return kinds[i].check(c, t, name + strlen(kinds[i].prefix), result, e);
    }
    return fail(e, GM_UNSUPPORTED, "unknown kind of expectation");
}

/* ---- the list of results ---- */

typedef struct {
    check_result *items;
    size_t        count;
} results;

/* Turns a failure into the problem of its line, unless the check cannot go on. */
static gm_status result_note_failure(check_result *result, gm_status status, const error *why, error *e) {
    if (status == GM_OK) return GM_OK;
    snprintf(result->problem, sizeof result->problem, "%s", why->why);
    if (status == GM_UNSUPPORTED || status == GM_BAD_ARGUMENT) return GM_OK;
    return fail(e, status, "%s", why->why);
}

static void name_result(check_result *result, str name) { printable(name, result->name, sizeof result->name); }

/* Texts are in the metadata: prompts, whose tokens are checked, and what stands for a video. */
static gm_status check_texts(check_state *c, results *out, error *e) {
    gm_status status = GM_OK;
    for (size_t i = 0; status == GM_OK && i < gguf_value_count(c->expect); i++) {
        const gguf_value *value = gguf_value_at(c->expect, i);
        const bool        prompt = str_starts_with(value->key, "prompt.");
        if ((!prompt && !str_is(value->key, "video_text")) || value->type != GGUF_STRING || value->array) continue;
        check_result  *result = &out->items[out->count++];
        const uint8_t *cursor = value->data;
        const str      text = gguf_next_string(&cursor);
        error          why = { 0 };
        name_result(result, value->key);
        const gm_status checked = prompt ? check_prompt(c, text, result->name + strlen("prompt."), result, &why)
                                         : check_video_text(c, text, result, &why);
        status = result_note_failure(result, checked, &why, e);
    }
    return status;
}

static gm_status check_all(check_state *c, results *out, bool progress_wanted, error *e) {
    const size_t tensors = gguf_tensor_count(c->expect);
    progress     bar;
    out->items = calloc(tensors + gguf_value_count(c->expect) + 1, sizeof *out->items);
    if (!out->items) return fail_memory(e, "the results", tensors * sizeof *out->items);
    gm_status status = check_texts(c, out, e);
    progress_start(&bar, "checking", PROGRESS_STEPS, progress_wanted);
    for (size_t i = 0; status == GM_OK && i < tensors; i++) {
        const gguf_tensor *t = gguf_tensor_at(c->expect, i);
        progress_update(&bar, i, tensors);
        if (check_is_video(c) ? check_video_is_input(c, t->name) : is_input(c->expect, t)) continue;
        if (interrupted()) status = fail(e, GM_CANCELLED, "interrupted");
        if (status != GM_OK) break;
        check_result *result = &out->items[out->count++];
        error         why = { 0 };
        name_result(result, t->name);
        status = result_note_failure(result, check_tensor(c, t, result, &why), &why, e);
    }
    progress_end(&bar);
    if (status == GM_OK && !out->count) status = fail(e, GM_BAD_FILE, "%s has no tensors to check", c->expect_path);
    return status;
}

static bool passes(const check_result *result, double tolerance) {
    if (result->problem[0]) return false;
    return result->exact ? result->error == 0 : result->error <= tolerance; /* a NaN fails both */
}

static size_t count_failed(const results *r, double tolerance) {
    size_t failed = 0;
    for (size_t i = 0; i < r->count; i++) failed += !passes(&r->items[i], tolerance);
    return failed;
}

static void check_print_text(const results *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->items[i].problem[0]) printf("%s cannot be computed: %s\n", r->items[i].name, r->items[i].problem);
        else printf("%s %.3e\n", r->items[i].name, r->items[i].error);
    }
}

static int check_print_json(const check_state *c, const results *r, double tolerance) {
    double worst = 0;
    report j = { 0 };
    report_open(&j, NULL, '{');
    report_text(&j, "model", c->model_path);
    report_text(&j, "expect", c->expect_path);
    report_number(&j, "tolerance", tolerance);
    report_open(&j, "tensors", '[');
    for (size_t i = 0; i < r->count; i++) {
        const check_result *item = &r->items[i];
        report_open(&j, NULL, '{');
        report_text(&j, "name", item->name);
        if (item->problem[0]) {
            report_null(&j, "error");
            report_text(&j, "problem", item->problem);
        } else {
            report_number(&j, "error", item->error);
            if (item->error > worst) worst = item->error;
        }
        report_bool(&j, "passed", passes(item, tolerance));
        report_close(&j, '}');
    }
    report_close(&j, ']');
    report_number(&j, "worst", worst);
    report_bool(&j, "passed", !count_failed(r, tolerance));
    report_close(&j, '}');
    return report_print(&j);
}

/* ---- the files ---- */

static bool is_expectation(const gguf *file) {
    str   architecture = { "", 0 };
    bool  found;
    error ignored = { 0 };
    return gguf_get_str(file, "general.architecture", &architecture, &found, &ignored) == GM_OK &&
           str_is(architecture, "expect");
}

/* Explains which of the two arguments is wrong when they are mixed up. */
static gm_status check_roles(const check_state *c, error *e) {
    const bool model_expects = is_expectation(c->model), expect_expects = is_expectation(c->expect);
    bool       blocks = false;
    if (!expect_expects && model_expects) {
        return fail(e, GM_BAD_ARGUMENT, "MODEL comes first and EXPECT second: %s is the expectation file",
                    c->model_path);
    }
    if (!expect_expects) {
        return fail(e, GM_BAD_ARGUMENT, "%s is not an expectation file: its general.architecture is not `expect`",
                    c->expect_path);
    }
    for (size_t i = 0; i < gguf_tensor_count(c->expect); i++) {
        if (str_ends_with(gguf_tensor_at(c->expect, i)->name, ".f32")) blocks = true;
    }
    if (model_expects && !blocks) {
        return fail(e, GM_BAD_ARGUMENT, "%s is an expectation file, not a model: MODEL comes first, EXPECT second",
                    c->model_path);
    }
    return GM_OK;
}

static gm_status open_files(check_state *c, const arguments *args, arena *memory, gguf **file, gguf **expect,
                            error *e) {
    model_argument argument;
    gm_status      status = model_argument_resolve(args->positional[0], memory, &argument, e);
    if (status == GM_OK) status = gguf_open_file(argument.path, file, e);
    if (status == GM_OK) status = gguf_open_file(args->positional[1], expect, e);
    if (status != GM_OK) return status;
    c->model_path = argument.path;
    c->engine_name = argument.engine;
    c->expect_path = args->positional[1];
    c->model = *file;
    c->expect = *expect;
    return check_roles(c, e);
}

static int check_run(void *values, const arguments *args) {
    const check_values *v = values;
    const double        tolerance = v->tolerance.given ? v->tolerance.value : default_tolerance;
    check_state         c = { .values = &v->engine, .picture = v->image, .sound = v->audio, .video = v->video };
    arena               memory = { 0 };
    gguf               *file = NULL, *expect = NULL;
    results             r = { 0 };
    error               e = { 0 };
    int                 code = EXIT_OK;
    interrupt_catch();
    gm_status status = open_files(&c, args, &memory, &file, &expect, &e);
    if (status == GM_OK) status = check_all(&c, &r, !v->json && !v->quiet, &e);
    if (status != GM_OK) code = complain_error(&e);
    else if (v->json) code = check_print_json(&c, &r, tolerance);
    else check_print_text(&r);
    if (code == EXIT_OK && count_failed(&r, tolerance)) code = EXIT_CHECK_FAILED;
    free(r.items);
    free(c.image.rows);
    free(c.audio.rows);
    tokenizer_free(c.words);
    check_end_training(&c);
    check_end_canvas(&c);
    gm_engine_close(c.engine);
    gguf_free(file);
    gguf_free(expect);
    arena_free(&memory);
    return code;
}

const command command_check = {
    .name = "check",
    .arguments = "MODEL EXPECT",
    .summary = "compare results with an expectation file",
    .description =
        "EXPECT is a GGUF file with results of a reference implementation. Computes every tensor in it again (logits: "
        "of all tokens of a prompt, of its last ones, or of those listed in `rows`) and prints a line `name "
        "relative-error` for each: the norm of "
        "the difference divided by the norm of the expected tensor. "
        "For greedy tokens it is the fraction that differs, for a prompt's tokens 0 or 1. With adapters, `logits` are "
        "those with all of them, `logits.NAME` those with the adapter NAME, and `logits.base` those of "
        "the model alone. `loss`, `grad.*` and `adamw_losses` are computed by training the adapter. Quantised blocks "
        "must match "
        "bit for bit (MODEL is then the expectation file itself). Exits with 1 if an error is above the tolerance or "
        "something could not be computed (`name cannot be computed: why`).",
    .examples = "  gemmule check tiny-dense.gguf tiny-dense.expect.gguf --precise --tolerance 1e-4\n"
                "  gemmule check quant-blocks.expect.gguf quant-blocks.expect.gguf\n"
                "  gemmule check tiny-mm.gguf tiny-mm.expect.gguf --mmproj tiny-mm.mmproj.gguf --image tiny-mm.png "
                "--audio tiny-mm.wav\n"
                "  gemmule check tiny-dense.gguf tiny-dense-lora.expect.gguf --adapter tiny-dense-lora --precise\n"
                "  gemmule check model.gguf model.expect.gguf --cpu scalar --threads 1 --json\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 2,
    .values_size = sizeof(check_values),
    .run = check_run,
};
