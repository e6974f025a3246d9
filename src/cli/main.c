/* The `gemmule` program: the table of commands, the help, and the dispatch of arguments to a command. */

#include "cli/cli.h"

#include "base/buffer.h"
#include "cli/interrupt.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const command *const commands[] = {
    &command_run,      &command_chat,  &command_transcribe, &command_serve,   &command_list,  &command_inspect,
    &command_tokenize, &command_check, &command_eval,       &command_bench,   &command_synth, &command_adapter,
    &command_data,     &command_train, &command_devices,    &command_version,
};

/* ---- help ---- */

static void print_help(FILE *out) {
    fprintf(out, "gemmule runs Gemma 4 from GGUF files, entirely on this machine.\n\n"
                 "usage: gemmule COMMAND [ARGUMENTS]\n\ncommands:\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "  %-10s %s\n\n"
            "MODEL is the path of a GGUF file, the name of a model in Ollama's store\n"
            "(gemma4:e2b), or `box`, the model that comes with the program.\n"
            "`gemmule COMMAND --help` explains a command.\n\n"
            "exit codes: 0 success, 1 a check failed, 2 bad input, 3 wrong usage,\n"
            "            4 no device or not enough memory, 130 interrupted\n\n"
            "environment:\n"
            "  OLLAMA_MODELS   folder of Ollama's store; default ~/.ollama/models\n"
            "  GEMMULE_MODEL   default model of `gemmule chat` and `gemmule serve`\n"
            "  GEMMULE_BOX     file to use as `box`\n"
            "  GEMMULE_WEBGPU  WebGPU library to use (Dawn or wgpu-native)\n"
            "  XDG_CACHE_HOME  folder for what is known about the use of experts; default ~/.cache\n"
            "  XDG_STATE_HOME  folder for the history of `gemmule chat`; default ~/.local/state\n\n"
            "examples:\n"
            "  gemmule chat box\n"
            "  gemmule run gemma4:e2b \"Why is the sky blue?\"\n"
            "  gemmule chat gemma4:e4b\n"
            "  gemmule inspect model.gguf\n",
            "help", "explain a command");
}

static void print_command_help(const command *c) {
    printf("%s\n\nusage: gemmule %s%s%s [OPTIONS]\n\n", c->summary, c->name, *c->arguments ? " " : "", c->arguments);
    print_wrapped(c->description, 0, 0);
    options_help(c->groups, c->group_count);
    printf("\nexamples:\n%s", c->examples);
}

/* ---- dispatch ---- */

static const command *find_command(const char *name) {
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (!strcmp(commands[i]->name, name)) return commands[i];
    }
    return NULL;
}

/* What people type who know other programs. */
static const struct {
    const char *word, *command;
} familiar_words[] = {
    { "ls", "list" },          { "models", "list" },     { "ps", "list" },         { "show", "inspect" },
    { "info", "inspect" },     { "generate", "run" },    { "complete", "run" },    { "prompt", "run" },
    { "ask", "run" },          { "infer", "run" },       { "server", "serve" },    { "start", "serve" },
    { "interactive", "chat" }, { "talk", "chat" },       { "benchmark", "bench" }, { "perplexity", "eval" },
    { "gpus", "devices" },     { "encode", "tokenize" },
};

/* The command that was probably meant, or NULL. */
static const char *nearest_command(const char *word) {
    const char *names[COUNT_OF(commands) + 1] = { "help" };
    for (size_t i = 0; i < COUNT_OF(familiar_words); i++) {
        if (!strcmp(word, familiar_words[i].word)) return familiar_words[i].command;
    }
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        names[i + 1] = commands[i]->name;
        if (strlen(word) > 1 && str_starts_with(str_of(commands[i]->name), word)) return commands[i]->name;
    }
    return nearest_name(word, names, COUNT_OF(names));
}

static int unknown_command(const char *name) {
    const char *hint = nearest_command(name);
    if (hint) return complain(EXIT_USAGE, "unknown command '%s'; did you mean '%s'? (gemmule --help)", name, hint);
    if (!strcmp(name, "pull") || !strcmp(name, "download"))
        return complain(EXIT_USAGE, "gemmule does not download models; use `ollama pull NAME` (gemmule --help)");
    if (str_ends_with(str_of(name), ".gguf") || strchr(name, ':'))
        return complain(EXIT_USAGE, "'%s' is not a command; try `gemmule chat %s` (gemmule --help)", name, name);
    buffer list = { 0 };
    for (size_t i = 0; i < COUNT_OF(commands); i++) buffer_printf(&list, "%s%s", i ? ", " : "", commands[i]->name);
    const int code = complain(EXIT_USAGE, "unknown command '%s'; the commands are %s (gemmule --help)", name,
                              list.failed ? "in the help" : list.data);
    buffer_free(&list);
    return code;
}

static int check_positional(const command *c, const arguments *args) {
    if (args->count < c->fewest)
        return complain_usage(c->name, "missing argument; usage: gemmule %s %s", c->name, c->arguments);
    if (args->count > c->most)
        return complain_usage(c->name, "unexpected argument '%s'; usage: gemmule %s%s%s", args->positional[c->most],
                              c->name, *c->arguments ? " " : "", c->arguments);
    return EXIT_OK;
}

static int run_command(const command *c, int argc, char **argv) {
    error     e = { 0 };
    arguments args = { 0 };
    int       code;
    void     *values = calloc(1, c->values_size);
    if (!values) return complain(EXIT_NO_DEVICE, "not enough memory");
    if (options_parse(argc, argv, c->groups, c->group_count, values, &args, &e) != GM_OK) {
        code = e.status == GM_NO_MEMORY ? complain_error(&e) : complain_usage(c->name, "%s: %s", c->name, e.why);
    } else if (args.help) {
        print_command_help(c);
        code = EXIT_OK;
    } else {
        code = check_positional(c, &args);
        if (code == EXIT_OK) code = c->run(values, &args);
    }
    options_free(c->groups, c->group_count, values, &args);
    free(values);
    return code;
}

static int run_help(int argc, char **argv) {
    if (argc == 0 || !strcmp(argv[0], "--help") || !strcmp(argv[0], "help")) {
        print_help(stdout);
        return EXIT_OK;
    }
    const command *c = find_command(argv[0]);
    if (!c) return unknown_command(argv[0]);
    print_command_help(c);
    return EXIT_OK;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) return run_help(argc - 2, argv + 2);
    if (!strcmp(name, "--version")) name = "version";
    const command *c = find_command(name);
    return c ? run_command(c, argc - 2, argv + 2) : unknown_command(name);
}

/* A layer of Mesa's looks for a Wayland display when a GPU is opened, and libwayland complains on stderr where the folder for its
 * socket is not named, as on servers. This is the folder that a login names. */
static void set_runtime_folder(void) {
    char folder[40];
    snprintf(folder, sizeof folder, "/run/user/%lu", (unsigned long)getuid());
    setenv("XDG_RUNTIME_DIR", folder, 0);
}

int main(int argc, char **argv) {
    const char *charset = setlocale(LC_CTYPE, "");
    /* The line editor must know that input is UTF-8. Only LC_CTYPE is set, so numbers keep their decimal points. */
    if (!charset || (!strstr(charset, "UTF-8") && !strstr(charset, "utf8"))) setlocale(LC_CTYPE, "C.UTF-8");
    interrupt_catch_file_trouble();
    set_runtime_folder();
    error     e = { 0 };
    const int code = dispatch(argc, argv);
    if (flush_output(&e) != GM_OK && code == EXIT_OK) return complain_error(&e);
    return interrupted() && code == EXIT_OK ? EXIT_INTERRUPTED : code;
}
