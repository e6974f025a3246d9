/* Exit codes, and what the program prints about a failure. */

#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    gm_status status;
    int       exit_code;
} exit_codes[] = {
    { GM_OK, EXIT_OK },
    { GM_DONE, EXIT_OK },
    { GM_BAD_FILE, EXIT_BAD_INPUT },
    { GM_UNSUPPORTED, EXIT_BAD_INPUT },
    { GM_BAD_ARGUMENT, EXIT_BAD_INPUT },
    { GM_NOT_FOUND, EXIT_BAD_INPUT },
    { GM_IO, EXIT_BAD_INPUT },
    { GM_CONTEXT_FULL, EXIT_BAD_INPUT },
    { GM_NO_MEMORY, EXIT_NO_DEVICE },
    { GM_DEVICE_LOST, EXIT_NO_DEVICE },
    { GM_NO_DEVICE, EXIT_NO_DEVICE },
    { GM_BUSY, EXIT_NO_DEVICE },
    { GM_CANCELLED, EXIT_INTERRUPTED },
};

int exit_code_of(gm_status status) {
    for (size_t i = 0; i < COUNT_OF(exit_codes); i++) {
        if (exit_codes[i].status == status) return exit_codes[i].exit_code;
    }
    return EXIT_BAD_INPUT;
}

const char *printable(str text, char *out, size_t size) {
    size_t length = min_size(text.length, size - 1);
    while (length < text.length && length && ((unsigned char)text.data[length] & 0xc0) == 0x80) length--;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        out[i] = c < ' ' || c == 127 ? ' ' : (char)c;
    }
    out[length] = 0;
    return out;
}

static void print_complaint(const char *format, va_list args) {
    char message[2000], line[2000];
    vsnprintf(message, sizeof message, format, args);
    fprintf(stderr, "gemmule: %s\n", printable(str_of(message), line, sizeof line));
}

int complain(int exit_code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_complaint(format, args);
    va_end(args);
    return exit_code;
}

int complain_status(gm_status status, const char *why) {
    if (status == GM_CANCELLED) return EXIT_INTERRUPTED; /* the user pressed Ctrl-C and knows */
    return complain(exit_code_of(status), "%s", why && *why ? why : gm_status_name(status));
}

int complain_error(const error *e) { return complain_status(e->status, e->why); }

int complain_usage(const char *command_name, const char *format, ...) {
    char    message[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return complain(EXIT_USAGE, "%s (gemmule %s --help)", message, command_name);
}

gm_status flush_output(error *e) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return GM_OK;
    return fail(e, GM_IO, "cannot write to standard output: %s", errno ? strerror(errno) : "an earlier write failed");
}
