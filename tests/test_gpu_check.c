/* The fixtures on the GPU, which in `make test` is SwiftShader: `gemmule check --backend gpu` with and without optional features. All
 * of them run in this process, so that shaders are compiled once (quick_gpu.c); the linker puts this file's main before the program's.
 *
 *     test_gpu_check [part of a fixture's name] */

#include "base/base.h"
#include "test.h"

#include <unistd.h>

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

#define PLAIN "--gpu-disable", "subgroups,dot4,f16"

/* Compiling 8-bit products takes most of the time. At least one model uses each kind of kernel. */
static const struct {
    const char *name, *tolerance, *options[4];
    bool        soft; /* prompts with an image and with a sound, from their soft tokens; there are no towers yet */
} rows[] = {
    { "tiny-dense", "5e-3", { "--kv", "f32" }, false }, /* with greedy tokens */
    { "tiny-dense", "5e-3", { 0 }, false },
    { "tiny-moe", "5e-3", { "--kv", "f32" }, false },
    { "tiny-moe", "5e-3", { 0 }, false },
    { "tiny-mm", "5e-3", { 0 }, true },
    { "tiny-mm-bidir", "5e-3", { 0 }, true },
    { "small-dense-Q4_K_M", "3e-2", { "--precise", "--kv", "q8_0" }, false },
    { "tiny-dense", "1e-4", { "--precise" }, false },
    { "tiny-moe", "1e-4", { "--precise" }, false },
    { "tiny-mm", "1e-4", { "--precise" }, true },
    { "tiny-mm-bidir", "1e-4", { "--precise" }, true },
    { "small-dense-Q4_K_M", "6e-2", { 0 }, false },
    { "small-moe-Q4_K_M", "0.15", { 0 }, false },
    { "tiny-dense", "1e-4", { "--precise", PLAIN }, false },
    { "tiny-moe", "1e-4", { "--precise", PLAIN }, false },
    { "tiny-mm", "1e-4", { "--precise", PLAIN }, true },
    { "tiny-mm-bidir", "1e-4", { "--precise", PLAIN }, true },
    { "small-dense-Q4_K_M", "6e-2", { PLAIN }, false },
    { "small-moe-Q4_K_M", "0.15", { PLAIN }, false },
    /* The tiny models above and the op test cover the f32 kernels without features. */
    { "small-dense-Q4_K_M", "1e-3", { "--precise" }, false },
    { "small-moe-Q4_K_M", "1e-3", { "--precise" }, false },
    /* Widths, heads and windows that no real model has. */
    { "odd-dense", "1e-4", { "--precise" }, false },
};

/* Runs the program with its output in `out`. */
static int run_program(char **arguments, int count, char *out, size_t size) {
    FILE *captured = tmpfile();
    fflush(stdout);
    const int own = dup(1), into = captured ? dup2(fileno(captured), 1) : -1;
    const int code = into < 0 ? -1 : __real_main(count, arguments);
    fflush(stdout);
    dup2(own, 1);
    close(own);
    if (captured) rewind(captured);
    out[captured ? fread(out, 1, size - 1, captured) : 0] = 0;
    if (captured) fclose(captured);
    return code;
}

/* Whether the output has a line `NAME ERROR` with an error of at most `most`. */
static bool has_line(const char *output, const char *name, double most) {
    const char  *at = strstr(output, name);
    char        *end = NULL;
    const double found = at ? strtod(at + strlen(name), &end) : 0;
    return at && (at == output || at[-1] == '\n') && end > at + strlen(name) && found <= most;
}

int __wrap_main(int argc, char **argv) {
    static char output[20000];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char        model[100], expect[100];
        const char *arguments[20] = { argv[0],       "check",           model,    expect, "--backend", "gpu",
                                      "--tolerance", rows[i].tolerance, "--quiet" };
        int         count = 9;
        snprintf(model, sizeof model, "tests/fixtures/%s.gguf", rows[i].name);
        snprintf(expect, sizeof expect, "tests/fixtures/%s.expect.gguf", rows[i].name);
        for (size_t o = 0; o < COUNT_OF(rows[i].options) && rows[i].options[o]; o++)
            arguments[count++] = rows[i].options[o];
        if (argc > 1 && !strstr(rows[i].name, argv[1])) continue;
        TEST("%s at %s %s %s %s", rows[i].name, rows[i].tolerance, count > 9 ? arguments[9] : "",
             count > 10 ? arguments[10] : "", count > 11 ? arguments[11] : "");
        const int    code = run_program((char **)arguments, count, output, sizeof output);
        const double most = strtod(rows[i].tolerance, NULL);
        if (rows[i].soft)
            CHECK_MESSAGE(has_line(output, "image.logits ", most) && has_line(output, "audio.logits ", most), "%s",
                          output);
        else CHECK_MESSAGE(!code, "exit status %d\n%s", code, output);
    }
    return test_end();
}
