/* The `gemmule` program: what its commands share.
 *
 * A command is a table entry: name, help texts, option tables and a function. main.c parses the arguments into the
 * command's values and calls the function. */

#ifndef GM_CLI_H
#define GM_CLI_H

#include "cli/options.h"

/* Exit codes are part of the interface: scripts rely on them. */
enum {
    EXIT_OK = 0,
    EXIT_CHECK_FAILED = 1,
    EXIT_BAD_INPUT = 2, /* a missing, truncated or wrong file, or data that does not fit */
    EXIT_USAGE = 3,
    EXIT_NO_DEVICE = 4, /* no device, or not enough memory */
    EXIT_INTERRUPTED = 130,
};

typedef struct {
    const char         *name;
    const char         *arguments;   /* "MODEL [PROMPT|-]" */
    const char         *summary;     /* for the list of commands */
    const char         *description; /* for its own help */
    const char         *examples;
    const option_group *groups;
    size_t              group_count;
    size_t              fewest, most; /* positional arguments */
    size_t              values_size;
    int (*run)(void *values, const arguments *args); /* returns the exit code */
} command;

extern const command command_list, command_devices, command_inspect, command_tokenize, command_run, command_chat,
    command_transcribe, command_serve, command_check, command_eval, command_bench, command_synth, command_adapter,
    command_data, command_train, command_version;

int exit_code_of(gm_status status);

/* Prints "gemmule: …" as one line to stderr and returns the code, so that commands write `return complain(...)`. */
int complain(int exit_code, const char *format, ...) PRINTF_LIKE(2, 3);
/* The same for a failure of the library. */
int complain_error(const error *e);
int complain_status(gm_status status, const char *why);
/* A mistake in the arguments; points to the help. */
int complain_usage(const char *command_name, const char *format, ...) PRINTF_LIKE(2, 3);

/* Copies text into `out` for display and returns it. Control characters become spaces, since file contents must not control
 * a terminal; text that does not fit is cut between characters. */
const char *printable(str text, char *out, size_t size);

/* Flushes stdout. A full disk or a closed terminal is GM_IO. */
gm_status flush_output(error *e);

#endif
