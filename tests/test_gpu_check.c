/* The program on the GPU, which in `make test` is SwiftShader: `gemmule check --backend gpu` on the fixtures, with and without optional
 * features, and `gemmule bench --profile`. All of them run in this process, so that shaders are compiled once (quick_gpu.c); the linker
 * puts this file's main before the program's.
 *
 *     test_gpu_check [part of a fixture's name, "profile", or "short": without 8-bit products that lack features] */

#include "base/arena.h"
#include "base/json.h"
#include "test.h"

#include <math.h>

#include <unistd.h>

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

#define PLAIN "--gpu-disable", "subgroups,dot4,f16"

/* Prompts with an image and with a sound, from the soft tokens of the expectation. */
#define SOFT { "image.logits ", "audio.logits " }
/* The towers, and the picture and the sound of the fixtures. Without them the tower reads what the expectation has of its own:
 * patches and mel features. */
#define TOWERS(name) "--mmproj", "tests/fixtures/" name ".mmproj.gguf"
#define PICTURE "--image", "tests/fixtures/tiny-mm.png"
#define MEDIA PICTURE, "--audio", "tests/fixtures/tiny-mm.wav"
#define ADAPTER(name) "--adapter", "tests/fixtures/" name
#define VIDEO "--video", "tests/fixtures/tiny-mm-video"

/* Compiling 8-bit products takes most of the time. At least one model uses each kind of kernel. */
static const struct {
    const char *name, *expect /* NULL: as the model */, *tolerance, *options[10];
    const char *lines[2]; /* that must be there, if the file also has what cannot be computed yet */
} rows[] = {
    { "tiny-dense", NULL, "5e-3", { 0 }, { 0 } },
    { "tiny-moe", NULL, "5e-3", { 0 }, { 0 } },
    { "tiny-diffusion", NULL, "5e-3", { 0 }, { 0 } },
    { "tiny-mm", NULL, "5e-3", { TOWERS("tiny-mm"), MEDIA }, { 0 } },
    { "tiny-mm-bidir", NULL, "5e-3", { TOWERS("tiny-mm-bidir"), PICTURE }, { 0 } },
    { "small-dense-Q4_K_M", NULL, "3e-2", { "--precise", "--kv", "q8_0" }, { 0 } },
    { "tiny-dense", NULL, "1e-4", { "--precise" }, { 0 } },
    { "tiny-dense-ollama", "tiny-dense", "1e-4", { "--precise" }, { 0 } },
    { "tiny-moe", NULL, "1e-4", { "--precise" }, { 0 } },
    { "tiny-moe-split", "tiny-moe", "1e-4", { "--precise" }, { 0 } },
    { "tiny-diffusion", NULL, "1e-4", { "--precise" }, { 0 } },
    { "tiny-diffusion", "tiny-diffusion-image", "1e-4", { "--precise", TOWERS("tiny-diffusion"), PICTURE }, { 0 } },
    { "tiny-mm", NULL, "1e-4", { "--precise", TOWERS("tiny-mm"), MEDIA }, { 0 } },
    /* logits, loss, gradients and steps of training */
    { "tiny-dense", "tiny-dense-lora", "1e-4", { "--precise", ADAPTER("tiny-dense-lora") }, { 0 } },
    { "tiny-dense", "tiny-dense-long", "1e-4", { "--precise", ADAPTER("tiny-dense-lora"), PLAIN }, { 0 } },
    { "tiny-moe", "tiny-moe-lora", "1e-4", { "--precise", ADAPTER("tiny-moe-lora") }, { 0 } },
    { "tiny-dense",
      "tiny-dense-adapters",
      "1e-4",
      { "--precise", ADAPTER("tiny-dense-adapters/embedding"), ADAPTER("tiny-dense-adapters/head"),
        ADAPTER("tiny-dense-adapters/part"), ADAPTER("tiny-dense-lora") },
      { 0 } },
    { "tiny-mm", "tiny-mm-video", "1e-4", { "--precise", TOWERS("tiny-mm"), VIDEO }, { 0 } },
    { "tiny-mm-ollama", "tiny-mm", "1e-4", { "--precise" }, { 0 } },
    { "tiny-unified", NULL, "1e-4", { "--precise", TOWERS("tiny-unified"), MEDIA }, { 0 } },
    { "tiny-mm-bidir", NULL, "1e-4", { "--precise", TOWERS("tiny-mm-bidir"), PICTURE }, { 0 } },
    { "small-dense-Q4_K_M", NULL, "6e-2", { 0 }, { 0 } },
    { "small-moe-Q4_K_M", NULL, "0.15", { 0 }, { 0 } },
    { "tiny-dense", NULL, "1e-4", { "--precise", PLAIN }, { 0 } },
    { "tiny-moe", NULL, "1e-4", { "--precise", PLAIN }, { 0 } },
    { "tiny-diffusion", NULL, "1e-4", { "--precise", PLAIN }, { 0 } },
    { "tiny-mm", NULL, "1e-4", { "--precise", TOWERS("tiny-mm"), PLAIN }, { 0 } },
    { "tiny-mm-bidir", NULL, "1e-4", { "--precise", PLAIN }, SOFT },
    { "small-dense-Q4_K_M", NULL, "6e-2", { PLAIN }, { 0 } },
    { "small-moe-Q4_K_M", NULL, "0.15", { PLAIN }, { 0 } },
    /* The tiny models above and the op test cover the f32 kernels without features. */
    { "small-dense-Q4_K_M", NULL, "1e-3", { "--precise" }, { 0 } },
    { "small-moe-Q4_K_M", NULL, "1e-3", { "--precise" }, { 0 } },
    { "small-dense-Q4_K_M",
      "small-dense-Q4_K_M-lora",
      "1e-4",
      { "--precise", ADAPTER("small-dense-Q4_K_M-lora") },
      { 0 } },
    /* Widths, heads and windows that no real model has. */
    { "odd-dense", NULL, "1e-4", { "--precise" }, { 0 } },
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

/* ---- bench --profile ---- */

static double profile_number(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return json_is(value, JSON_NUMBER) ? value->number : -1;
}

/* Every dispatch of a phase is in one row, with a time. Returns the number of rows. */
static size_t check_phase(const json *phase, const char *name) {
    double count = 0, share = 0, microseconds = 0;
    size_t rows_seen = 0;
    for (const json *row = json_get(phase, "kinds") ? json_get(phase, "kinds")->first : NULL; row; row = row->next) {
        const str what = json_string(json_get(row, "what"), "");
        CHECK_MESSAGE(what.length && json_string(json_get(row, "kernel"), "").length, "%s: a row without a name", name);
        CHECK_MESSAGE(profile_number(row, "count") >= 1 && profile_number(row, "microseconds") >= 0, "%s: %.*s", name,
                      (int)what.length, what.data);
        count += profile_number(row, "count");
        share += profile_number(row, "share");
        microseconds += profile_number(row, "microseconds");
        rows_seen++;
    }
    CHECK_MESSAGE(rows_seen > 5, "%s: %zu rows", name, rows_seen);
    CHECK_MESSAGE(count == profile_number(phase, "dispatches"), "%s: %g dispatches in rows", name, count);
    CHECK_MESSAGE(microseconds > 0 && fabs(share - 1) < 1e-3, "%s: %g us, share %g", name, microseconds, share);
    return rows_seen;
}

/* Bytes and arithmetic of the row whose `what` begins with `begin`, for one dispatch. */
static void check_work(const json *phase, const char *begin, double bytes, double flops) {
    for (const json *row = json_get(phase, "kinds") ? json_get(phase, "kinds")->first : NULL; row; row = row->next) {
        if (strncmp(json_string(json_get(row, "what"), "").data, begin, strlen(begin))) continue;
        const double count = profile_number(row, "count");
        CHECK_MESSAGE(profile_number(row, "flops") / count == flops, "%s: %g flops", begin,
                      profile_number(row, "flops") / count);
        CHECK_MESSAGE(profile_number(row, "bytes") / count >= bytes &&
                          profile_number(row, "bytes") / count < 1.3 * bytes,
                      "%s: %g bytes", begin, profile_number(row, "bytes") / count);
        return;
    }
    CHECK_MESSAGE(false, "no row begins with %s", begin);
}

/* Whether every tag is closed by its own, and how many bars there are. */
static bool svg_is_whole(const char *at, size_t *bars) {
    char   open[16][16] = { { 0 } };
    size_t depth = 0;
    for (*bars = 0; (at = strchr(at, '<')); at++) {
        const bool   closes = at[1] == '/';
        const char  *name = at + 1 + closes, *end = strchr(at, '>');
        const size_t length = strcspn(name, " >/");
        if (!end || length >= sizeof open[0]) return false;
        *bars += !strncmp(at, "<rect class=\"time\"", 18);
        if (closes && (!depth || strlen(open[depth - 1]) != length || strncmp(open[depth - 1], name, length)))
            return false;
        if (closes) depth--;
        else if (end[-1] != '/') {
            if (depth == COUNT_OF(open)) return false;
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)length, name);
        }
        at = end;
    }
    return !depth;
}

static size_t read_whole(const char *path, char *out, size_t size) {
    FILE  *file = fopen(path, "r");
    size_t length = 0;
    if (file) length = fread(out, 1, size - 1, file), fclose(file);
    out[length] = 0;
    return length;
}

static void test_profile(char *program) {
    static char output[100000], svg[100000];
    char        path[] = "/tmp/gemmule-profile-XXXXXX";
    const int   made = mkstemp(path);
    char       *arguments[] = { program,
                                "bench",
                                "tests/fixtures/small-dense-Q4_K_M.gguf",
                                "--backend",
                                "gpu",
                                "-p",
                                "20",
                                "-n",
                                "2",
                                "-r",
                                "1",
                                "-d",
                                "20",
                                "--json",
                                "--profile",
                                path,
                                "--gpu-disable",
                                "timestamps" };
    TEST("bench --profile");
    close(made);
    const int code = run_program(arguments, (int)COUNT_OF(arguments) - 2, output, sizeof output);
    CHECK_MESSAGE(!code, "exit status %d\n%s", code, output);
    arena       memory = { 0 };
    error       e = { 0 };
    json       *root = NULL;
    const bool  parsed = !json_parse(str_of(output), &memory, &root, &e);
    const json *profile = json_get(root, "profile"), *prefill = json_get(profile, "prefill"),
               *decode = json_get(profile, "decode");
    CHECK_MESSAGE(parsed && prefill && decode, "%s", output);
    const size_t rows_seen = check_phase(prefill, "prefill") + check_phase(decode, "decode");
    CHECK(profile_number(prefill, "tokens") == 20 &&
          profile_number(decode, "tokens") == profile_number(decode, "runs"));
    CHECK(profile_number(decode, "dispatches") ==
          profile_number(decode, "runs") * profile_number(root, "dispatches_per_token"));
    CHECK(profile_number(profile, "bytes_per_second") > 0 && profile_number(profile, "flops_per_second") > 0);
    check_work(decode, "Q6_K token_embd", 1024 * 256 / 256 * 210, 2.0 * 1024 * 256);
    size_t bars = 0;
    CHECK(read_whole(path, svg, sizeof svg) > 1000 && svg_is_whole(svg, &bars));
    CHECK_MESSAGE(bars == rows_seen, "%zu bars for %zu rows", bars, rows_seen);
    arena_free(&memory);

    TEST("bench --profile without timestamps");
    remove(path);
    CHECK(run_program(arguments, (int)COUNT_OF(arguments), output, sizeof output) != 0);
    CHECK(!*output && read_whole(path, svg, sizeof svg) == 0);
}

int __wrap_main(int argc, char **argv) {
    static char output[20000];
    const bool  is_short = argc > 1 && !strcmp(argv[1], "short");
    const char *only = argc > 1 && !is_short ? argv[1] : NULL;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *wanted = rows[i].expect ? rows[i].expect : rows[i].name;
        char        model[100], expect[100];
        const char *arguments[20] = { argv[0],       "check",           model,    expect, "--backend", "gpu",
                                      "--tolerance", rows[i].tolerance, "--quiet" };
        int         count = 9;
        snprintf(model, sizeof model, "tests/fixtures/%s.gguf", rows[i].name);
        snprintf(expect, sizeof expect, "tests/fixtures/%s.expect.gguf", wanted);
        for (size_t o = 0; o < COUNT_OF(rows[i].options) && rows[i].options[o]; o++)
            arguments[count++] = rows[i].options[o];
        if (only && !strstr(rows[i].name, only)) continue;
        if (is_short && strstr(rows[i].name, "small") && count > 9 && !strcmp(arguments[9], "--gpu-disable")) continue;
        TEST("%s with %s at %s %s %s %s", rows[i].name, wanted, rows[i].tolerance, count > 9 ? arguments[9] : "",
             count > 10 ? arguments[10] : "", count > 11 ? arguments[11] : "");
        const int    code = run_program((char **)arguments, count, output, sizeof output);
        const double most = strtod(rows[i].tolerance, NULL);
        for (size_t l = 0; l < COUNT_OF(rows[i].lines) && rows[i].lines[l]; l++)
            CHECK_MESSAGE(has_line(output, rows[i].lines[l], most), "%s", output);
        if (!rows[i].lines[0]) CHECK_MESSAGE(!code, "exit status %d\n%s", code, output);
    }
    if (!only || !strcmp(only, "profile")) test_profile(argv[0]); /* the shaders are compiled already */
    return test_end();
}
