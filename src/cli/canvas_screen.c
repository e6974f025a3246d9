#include "cli/canvas_screen.h"

#include "base/utf8.h"
#include "cli/answer.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LINES = 12 }; /* of a canvas; the rest is left out, so that the screen does not scroll */

bool canvas_screen_wanted(const gm_engine *engine) {
    gm_engine_info info;
    gm_engine_get_info(engine, &info);
    return terminal_output() && !strcmp(info.architecture, "diffusion-gemma");
}

void canvas_screen_clear(canvas_screen *s) {
    if (s->lines) printf("\r\033[%zuA\033[J", s->lines);
    s->lines = 0;
    fflush(stdout);
}

/* Prints a token, a character to a column; newlines are shown as signs. Returns the columns. */
static size_t canvas_screen_token(str text) {
    size_t columns = 0;
    for (size_t i = 0; i < text.length; columns++) {
        const str rest = { text.data + i, text.length - i };
        const int length = utf8_length(rest);
        if (text.data[i] == '\n') fputs("\xe2\x8f\x8e", stdout);
        else answer_print_harmless(stdout, (str){ rest.data, length > 0 ? (size_t)length : 1 });
        i += length > 0 ? (size_t)length : 1;
    }
    return columns;
}

void canvas_screen_show(canvas_screen *s, const gm_engine *engine, const gm_canvas *canvas) {
    const size_t width = terminal_width();
    size_t       column = 0;
    canvas_screen_clear(s);
    for (size_t i = 0; i < canvas->count && s->lines < MOST_LINES; i++) {
        const char *text = "";
        size_t      length = 0;
        const bool  firm = canvas->accepted[i] || canvas->pinned[i];
        gm_token_text(engine, canvas->ids[i], &text, &length);
        if (column && column + length >= width) {
            putchar('\n');
            s->lines++;
            column = 0;
        }
        fputs(dim_on(!firm), stdout);
        column += canvas_screen_token((str){ text, length < width ? length : width - 1 });
        fputs(dim_off(!firm), stdout);
    }
    printf("\n%sblock %zu, step %zu of at most %zu, entropy %.3f%s\n", dim_on(true), canvas->block + 1, canvas->step,
           canvas->most_steps, (double)canvas->mean_entropy, dim_off(true));
    s->lines += 2;
    fflush(stdout);
}
