#include "cli/answer.h"

#include "base/utf8.h"
#include "cli/canvas_screen.h"
#include "cli/cli.h"
#include "cli/terminal.h"

#include <stdio.h>

const char *finish_name(gm_finish finish) {
    static const char *const names[] = { "none", "stop", "length", "tool_calls", "cancelled" };
    return (size_t)finish < COUNT_OF(names) ? names[finish] : "none";
}

/* The state of the screen while an answer is shown. */
typedef struct {
    const answer_style *style;
    progress            bar;
    bool                terminal, thinking, something;
    canvas_screen       canvas;
    char                last; /* character printed */
} screen;

void answer_print_harmless(FILE *out, str text) {
    for (size_t i = 0; i < text.length;) {
        const int  length = utf8_length((str){ text.data + i, text.length - i });
        const bool whole = length > 0;
        uint32_t   code = whole ? utf8_decode(text.data + i, length) : 0;
        if (code == '\n' || code == '\t' || (code >= ' ' && code != 127 && !(code >= 0x80 && code < 0xa0))) {
            fwrite(text.data + i, 1, (size_t)length, out);
        } else {
            fputs("\xef\xbf\xbd", out);
        }
        i += whole ? (size_t)length : 1;
    }
}

static void answer_print_text(FILE *out, str text, bool terminal) {
    if (terminal) answer_print_harmless(out, text);
    else fwrite(text.data, 1, text.length, out);
}

static void end_thinking(screen *s) {
    if (!s->thinking) return;
    s->thinking = false;
    FILE *out = s->terminal ? stdout : stderr;
    fprintf(out, "%s\n%s", dim_off(s->terminal), s->terminal ? "\n" : "");
    fflush(out);
}

static void show_thinking(screen *s, str text) {
    if (!s->style->show_thinking || !s->style->stream || !text.length) return;
    FILE *out = s->terminal ? stdout : stderr;
    if (!s->thinking) fputs(dim_on(s->terminal), out);
    s->thinking = true;
    answer_print_text(out, text, s->terminal || terminal_errors());
    fflush(out);
}

static gm_status show_content(screen *s, str text, error *e) {
    if (!s->style->stream || !text.length) return GM_OK;
    end_thinking(s);
    answer_print_text(stdout, text, s->terminal);
    s->something = true;
    s->last = text.data[text.length - 1];
    return flush_output(e);
}

static gm_status add_call(answer *a, screen *s, str text, error *e) {
    buffer_text(&a->calls, a->call_count ? "," : "");
    buffer_text(&a->calls, "{\"type\":\"function\",\"function\":");
    buffer_str(&a->calls, text);
    buffer_char(&a->calls, '}');
    a->call_count++;
    if (s->something && s->last != '\n') show_content(s, (str){ "\n", 1 }, e);
    show_content(s, text, e);
    return show_content(s, (str){ "\n", 1 }, e);
}

static void answer_add_token(report *r, const gm_engine *engine, const char *key, const gm_token_logprob *token) {
    const char *text = "";
    size_t      length = 0;
    gm_token_text(engine, token->token, &text, &length);
    report_open(r, key, '{');
    report_integer(r, "token", token->token);
    report_str(r, "text", (str){ text, length });
    report_number(r, "logprob", (double)token->logprob);
}

static void add_logprobs(answer *a, const answer_style *style, const gm_piece *piece) {
    if (!style->logprobs_of || !piece->logprobs) return;
    const gm_token_logprob *row = piece->logprobs;
    for (size_t i = 0; i < piece->logprob_tokens; i++, row += 1 + style->alternatives) {
        answer_add_token(&a->logprobs, style->logprobs_of, NULL, row);
        report_open(&a->logprobs, "top", '[');
        for (uint32_t k = 1; k <= style->alternatives; k++) {
            answer_add_token(&a->logprobs, style->logprobs_of, NULL, row + k);
            report_close(&a->logprobs, '}');
        }
        report_close(&a->logprobs, ']');
        report_close(&a->logprobs, '}');
    }
}

static gm_status show_piece(answer *a, screen *s, const gm_piece *piece, error *e) {
    const str text = { piece->text, piece->length };
    add_logprobs(a, s->style, piece);
    if (piece->kind == GM_PIECE_PROGRESS) {
        progress_update(&s->bar, piece->prompt_done, piece->prompt_total);
        return GM_OK;
    }
    progress_end(&s->bar);
    if (piece->kind == GM_PIECE_CANVAS) {
        if (s->style->canvas_of && s->terminal) canvas_screen_show(&s->canvas, s->style->canvas_of, piece->canvas);
        return GM_OK;
    }
    canvas_screen_clear(&s->canvas);
    switch (piece->kind) {
    case GM_PIECE_THINKING:
        buffer_str(&a->thinking, text);
        show_thinking(s, text);
        return GM_OK;
    case GM_PIECE_TOOL_CALL: return add_call(a, s, text, e);
    default: buffer_str(&a->content, text); return show_content(s, text, e);
    }
}

gm_status answer_collect(answer *a, gm_reply *reply, const answer_style *style, error *e) {
    screen    s = { .style = style, .terminal = terminal_output() };
    gm_status status = GM_OK;
    char      why[sizeof e->why] = "";
    progress_start(&s.bar, "reading the prompt", PROGRESS_TOKENS, style->progress);
    bool cancelled = false;
    while (status == GM_OK || status == GM_AGAIN) {
        gm_piece piece = { 0 };
        status = gm_reply_next(reply, &piece, why, sizeof why);
        if (status == GM_CANCELLED && !cancelled) { /* what was written so far and held back still comes */
            cancelled = true;
            gm_reply_stop(reply);
            status = GM_OK;
            continue;
        }
        if (status == GM_OK) status = show_piece(a, &s, &piece, e);
    }
    if (cancelled && status == GM_DONE) status = GM_CANCELLED;
    progress_end(&s.bar);
    canvas_screen_clear(&s.canvas);
    end_thinking(&s);
    if (style->stream && s.something && s.last != '\n') putchar('\n');
    gm_reply_get_stats(reply, &a->stats);

    if (status != GM_DONE) return fail(e, status, "%s", why);
    if (a->content.failed || a->thinking.failed || a->calls.failed || a->logprobs.text.failed) {
        return fail_memory(e, "the answer", a->content.length);
    }
    return flush_output(e);
}

void answer_free(answer *a) {
    buffer_free(&a->content);
    buffer_free(&a->thinking);
    buffer_free(&a->calls);
    buffer_free(&a->logprobs.text);
    *a = (answer){ 0 };
}
