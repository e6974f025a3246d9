#include "cli/input.h"

#include "cli/interrupt.h"
#include "cli/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

gm_status input_read(const char *path, buffer *out, error *e) {
    const bool  standard = !strcmp(path, "-");
    const char *name = standard ? "standard input" : path;
    FILE       *file = standard ? stdin : fopen(path, "rb");
    gm_status   status = GM_OK;
    char        piece[1 << 16];
    if (!file) return fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "cannot open %s: %s", path, strerror(errno));
    while (status == GM_OK && !feof(file) && !ferror(file)) {
        errno = 0;
        const size_t got = fread(piece, 1, sizeof piece, file);
        buffer_append(out, piece, got);
        if (out->failed) status = fail_memory(e, name, out->length);
        else if (out->length > INPUT_MOST)
            status = fail(e, GM_BAD_ARGUMENT, "%s is longer than %d MiB", name, INPUT_MOST >> 20);
        else if (interrupted()) status = fail(e, GM_CANCELLED, "interrupted");
    }
    if (status == GM_OK && ferror(file)) status = fail(e, GM_IO, "cannot read %s: %s", name, strerror(errno));
    if (!standard) fclose(file);
    return status;
}

gm_status input_text(const char *path, buffer *out, error *e) {
    const size_t before = out->length;
    TRY(input_read(path, out, e));
    buffer_text(out, ""); /* adds the final NUL even if the text is empty */
    if (out->failed) return fail_memory(e, path, out->length);
    const char *begin = out->data + before, *nul = memchr(begin, 0, out->length - before);
    if (!nul) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "there is a NUL byte at offset %zu of %s; is this a text file?",
                (size_t)(nul - begin), strcmp(path, "-") ? path : "standard input");
}

gm_status input_prompt(const char *argument, const char *file, buffer *out, error *e) {
    gm_status status = GM_OK;
    if (!argument && !file) {
        if (terminal_input()) {
            return fail(e, GM_BAD_ARGUMENT, "no text given: pass it as an argument, use -f FILE, or pipe it in");
        }
        argument = "-";
    }
    if (argument && !strcmp(argument, "-")) status = input_text("-", out, e);
    else if (argument) buffer_text(out, argument);
    if (argument && file) buffer_text(out, "\n\n");
    if (status == GM_OK && file) status = input_text(file, out, e);
    if (status == GM_OK && out->failed) status = fail_memory(e, "the prompt", out->length);
    return status;
}
