/* gemmule version: the version, and what this machine supports. */

#include "base/pool.h"
#include "cli/cli.h"
#include "cli/report.h"
#include "cpu/kernels.h"

#include <stdio.h>

typedef struct {
    bool json;
} version_values;

static const option options[] = {
    FLAG_OPTION(version_values, json, "json", 0, "print one JSON object"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

static int version_run(void *values, const arguments *args) {
    (void)args;
    const version_values     *v = values;
    const cpu_kernels *const *kernels;
    const size_t              count = cpu_kernels_available(&kernels);
    if (v->json) {
        report r = { 0 };
        report_open(&r, NULL, '{');
        report_text(&r, "version", GM_VERSION);
        report_text(&r, "compiler", COMPILER);
        report_open(&r, "backends", '[');
        report_text(&r, NULL, "cpu");
        report_text(&r, NULL, "gpu"); /* if there is one; see `gemmule devices` */
        report_close(&r, ']');
        report_open(&r, "cpu", '[');
        for (size_t i = 0; i < count; i++) report_text(&r, NULL, kernels[i]->name);
        report_close(&r, ']');
        report_count(&r, "cores", physical_cores());
        report_close(&r, '}');
        return report_print(&r);
    }
    printf("gemmule %s\n", GM_VERSION);
    printf("built by %s\ncpu:", COMPILER);
    for (size_t i = 0; i < count; i++) printf(" %s%s", kernels[i]->name, i + 1 < count ? "," : "");
    printf("; %zu physical cores\n", physical_cores());
    return EXIT_OK;
}

const command command_version = {
    .name = "version",
    .arguments = "",
    .summary = "print the version and what this machine supports",
    .description = "The first line is the version. Then come the compiler, the instruction sets that --cpu accepts on "
                   "this machine "
                   "(the first is the default), and the number of physical cores (the default of --threads).",
    .examples = "  gemmule version\n  gemmule version --json\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .values_size = sizeof(version_values),
    .run = version_run,
};
