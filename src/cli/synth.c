/* gemmule synth: writes a file with the shapes of a real model and random weights. */

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "model/synth.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    count_value layers, vocabulary, window, seed;
    const char *quant, *flavour;
    bool        towers, skewed, json, quiet;
} synth_values;

static const option options[] = {
    COUNT_OPTION(synth_values, layers, "layers", 0, "N", 2, 1000, "number of layers; default: all"),
    COUNT_OPTION(synth_values, vocabulary, "vocabulary", 0, "N", 512, 262144,
                 "number of tokens; default 262144. A smaller vocabulary reads text as bytes"),
    COUNT_OPTION(synth_values, window, "window", 0, "N", 1, 1024,
                 "how many positions sliding layers see; default: the model's 512 or 1024"),
    TEXT_OPTION(synth_values, quant, "quant", 0, "TYPE", "quantisation: q4_k_m, q4_0, q8_0 or f16; default q4_k_m"),
    TEXT_OPTION(synth_values, flavour, "flavour", 0, "F",
                "write metadata and types like llama.cpp or like ollama; default llama.cpp"),
    FLAG_OPTION(
        synth_values, towers, "towers", 0,
        "add vision and audio towers: in the same file as Ollama does, or in OUT.mmproj.gguf as llama.cpp does"),
    FLAG_OPTION(synth_values, skewed, "skewed", 0,
                "experts that are used unequally, as in trained models: a tenth of them for about half of the tokens"),
    COUNT_OPTION(synth_values, seed, "seed", 0, "N", 0, (double)UINT64_MAX,
                 "random seed; the same seed gives the same file; default 0"),
    FLAG_OPTION(synth_values, json, "json", 0,
                "print one JSON object with the path and size of the file; no progress bar"),
    FLAG_OPTION(synth_values, quiet, "quiet", 0, "no progress bar and no message"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

static bool show_progress(void *user, uint64_t done, uint64_t total) {
    progress_update(user, done, total);
    return !interrupted();
}

static int synth_run(void *values, const arguments *args) {
    const synth_values *v = values;
    const char         *size = args->positional[0], *path = args->positional[1];
    const synth_options wanted = {
        .size = size,
        .layers = (int)v->layers.value,
        .quant = v->quant,
        .flavour = v->flavour,
        .vocabulary = (int)v->vocabulary.value,
        .window = (int)v->window.value,
        .towers = v->towers,
        .skewed = v->skewed,
        .seed = v->seed.value,
    };
    progress bar;
    error    e = { 0 };
    interrupt_catch();
    progress_start(&bar, "writing", PROGRESS_BYTES, !v->json && !v->quiet);
    const gm_status status = synth_write(&wanted, path, show_progress, &bar, &e);
    progress_end(&bar);
    if (status == GM_BAD_ARGUMENT) return complain_usage("synth", "synth: %s", e.why);
    if (status != GM_OK) return complain_error(&e);

    struct stat    info;
    const uint64_t bytes = stat(path, &info) ? 0 : (uint64_t)info.st_size;
    if (v->json) {
        report r = { 0 };
        report_open(&r, NULL, '{');
        report_text(&r, "path", path);
        report_count(&r, "bytes", bytes);
        report_close(&r, '}');
        return report_print(&r);
    }
    if (!v->quiet) {
        char text[32];
        format_bytes(bytes, text);
        fprintf(stderr, "%s: %s, random weights with the shapes of %s\n", path, text, size);
    }
    return EXIT_OK;
}

const command command_synth = {
    .name = "synth",
    .arguments = "{e2b,e4b,12b,26b,31b,diffusion} OUT",
    .summary = "write a model with random weights",
    .description =
        "The file has the tensors, shapes, types, metadata and vocabulary size of a released Gemma 4. It serves to "
        "measure speed and memory, and to compare engines on the same file, without the real weights. Its answers are "
        "noise. `diffusion` has the shapes of DiffusionGemma 26B-A4B. A full e2b takes 3.4 GB, a full 31b 18.7 GB; "
        "--layers makes it smaller.",
    .examples = "  gemmule synth e2b e2b.gguf\n"
                "  gemmule synth 26b moe.gguf --layers 6 --quant q4_0\n"
                "  gemmule synth e4b seeing.gguf --layers 2 --towers\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 2,
    .values_size = sizeof(synth_values),
    .run = synth_run,
};
