#include "cli/line_editor.h"

#include "base/new_file.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HISTORY_LINES = 1000 };

struct line_editor {
    EditLine   *edit; /* NULL: plain lines */
    History    *history;
    HistEvent   event;
    char       *history_path; /* NULL: not kept */
    const char *prompt;
};

static char *current_prompt(EditLine *edit) {
    line_editor *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt; /* libedit wants char *, but only reads it */
}

/* Creates the folders above `path`, private to the user. */
static void history_make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

static char *find_history_path(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    buffer      path = { 0 };
    if (state && *state == '/') buffer_printf(&path, "%s/gemmule/history", state);
    else if (home && *home == '/') buffer_printf(&path, "%s/.local/state/gemmule/history", home);
    else return NULL;
    if (path.failed) buffer_free(&path);
    return path.data;
}

static void open_history(line_editor *l) {
    l->history = history_init();
    if (!l->history) return;
    history(l->history, &l->event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &l->event, H_SETUNIQUE, 1);
    l->history_path = find_history_path();
    if (l->history_path) history(l->history, &l->event, H_LOAD, l->history_path);
    el_set(l->edit, EL_HIST, history, l->history);
}

gm_status line_editor_new(bool edit, line_editor **out, error *e) {
    line_editor *l = calloc(1, sizeof *l);
    if (!l) return fail_memory(e, "the line editor", sizeof *l);
    *out = l;
    if (!edit) return GM_OK;
    l->prompt = "";
    l->edit = el_init("gemmule", stdin, stdout, stderr);
    if (!l->edit) return GM_OK; /* unknown terminal: plain lines */
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, current_prompt);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->edit, EL_SIGNAL, 0); /* we handle Ctrl-C */
    open_history(l);
    el_source(l->edit, NULL); /* the user's ~/.editrc */
    return GM_OK;
}

void line_editor_free(line_editor *l) {
    if (!l) return;
    if (l->edit) el_end(l->edit);
    if (l->history) history_end(l->history);
    free(l->history_path);
    free(l);
}

static void cut_newline(buffer *line) {
    while (line->length && (line->data[line->length - 1] == '\n' || line->data[line->length - 1] == '\r')) {
        line->data[--line->length] = 0;
    }
}

static line_result read_edited(line_editor *l, const char *prompt, buffer *out) {
    int count = 0;
    l->prompt = prompt;
    errno = 0;
    const char *text = el_gets(l->edit, &count);
    if (interrupted()) {
        el_reset(l->edit);
        return LINE_INTERRUPTED;
    }
    if (!text || count <= 0) return LINE_END;
    buffer_append(out, text, (size_t)count);
    return LINE_READ;
}

static line_result read_plain(buffer *out, error *e) {
    for (;;) {
        errno = 0;
        const int c = getchar();
        if (interrupted()) return LINE_INTERRUPTED;
        if (c == EOF && ferror(stdin)) {
            fail(e, GM_IO, "cannot read standard input: %s", strerror(errno));
            return LINE_FAILED;
        }
        if (c == EOF) return out->length ? LINE_READ : LINE_END;
        buffer_char(out, (char)c);
        if (out->length > INPUT_MOST) {
            fail(e, GM_BAD_ARGUMENT, "a line of standard input is longer than %d MiB", INPUT_MOST >> 20);
            return LINE_FAILED;
        }
        if (c == '\n') return LINE_READ;
    }
}

line_result line_editor_read(line_editor *l, const char *prompt, buffer *out, error *e) {
    buffer_clear(out);
    const line_result result = l->edit ? read_edited(l, prompt, out) : read_plain(out, e);
    if (out->failed) {
        fail_memory(e, "a line", out->length);
        return LINE_FAILED;
    }
    if (result == LINE_READ) cut_newline(out);
    if (result == LINE_READ && memchr(out->data, 0, out->length)) {
        fail(e, GM_BAD_ARGUMENT, "there is a NUL byte in standard input; is it text?");
        return LINE_FAILED;
    }
    return result;
}

static gm_status save_history(line_editor *l, error *e) {
    const error fine = { 0 };
    new_file   *file = NULL;
    TRY(new_file_open(l->history_path, NEW_FILE_KEPT, &file, e));
    history(l->history, &l->event, H_SAVE_FP, new_file_stream(file)); /* does not say whether its writes worked */
    return new_file_end(file, &fine, e);
}

void line_editor_remember(line_editor *l, const char *text) {
    if (!l->history || !*text) return;
    history(l->history, &l->event, H_ENTER, text);
    if (!l->history_path) return;
    history_make_folders(l->history_path);
    error e = { 0 };
    if (!save_history(l, &e)) return;
    complain(EXIT_OK, "the history is not saved: %s", e.why);
    free(l->history_path); /* once is enough */
    l->history_path = NULL;
}
