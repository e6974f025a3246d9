/* gemmule chat: a conversation in the terminal, or line by line from a pipe. */

#include "cli/chat.h"

#include "cli/answer.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    engine_values engine;
    chat_settings settings;
    const char   *system;
    count_value   context;
    bool          think, quiet;
} chat_values;

static const option chat_options[] = {
    TEXT_OPTION(chat_values, system, "system", 0, "TEXT",
                "system prompt, \"\": none; default: that of the Ollama model, else none"),
    FLAG_OPTION(chat_values, think, "think", 0, "let the model think before it answers, and show it"),
    COUNT_OPTION(chat_values, settings.max, "max", 0, "N", 1, UINT32_MAX,
                 "at most N tokens an answer; default: the Ollama model's num_predict, else as many as fit"),
    COUNT_OPTION(chat_values, context, "ctx", 0, "N", 1, UINT32_MAX,
                 "most tokens of the conversation; default: the Ollama model's num_ctx, else 8192, or the model's "
                 "limit if that is less"),
    FLAG_OPTION(chat_values, quiet, "quiet", 0, "no speed after the answers, no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("chat", chat_options, 0),
    SAMPLING_GROUP(offsetof(chat_values, settings.sampling)),
    ENGINE_GROUP(offsetof(chat_values, engine)),
};

/* ---- which model ---- */

static gm_status choose_model(const arguments *args, arena *a, const char **out, error *e) {
    model_choice how;
    if (model_argument_choose(args->count ? args->positional[0] : NULL, a, out, &how, e)) return e->status;
    if (how == CHOICE_STORE) fprintf(stderr, "using %s from Ollama's store\n", *out);
    if (how == CHOICE_BOX) {
        fprintf(stderr, "using the small model in the box; `ollama pull gemma4:e2b` gets a big one, or name a GGUF "
                        "file\n");
    }
    return GM_OK;
}

/* ---- answering ---- */

/* How many tokens the prompt has, roughly: text that looks like a special token counts as one. */
static gm_status count_prompt(const chat_state *s, const gm_message *messages, size_t count,
                              const gm_reply_options *options, size_t *tokens, error *e) {
    char     *text = NULL;
    char      why[sizeof e->why] = "";
    gm_status status = gm_render(s->engine, messages, count, options, &text, why, sizeof why);
    if (status == GM_OK) status = gm_tokenize(s->engine, text, strlen(text), true, NULL, 0, tokens, why, sizeof why);
    gm_free(text);
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

/* Drops the oldest turns until the prompt leaves room for an answer, as long as there are any. */
static gm_status make_room(chat_state *s, const gm_reply_options *options, error *e) {
    const size_t room = min_size(s->context / 4, 1024);
    size_t       dropped = 0;
    gm_status    status;
    for (;;) {
        gm_message *messages = NULL;
        size_t      count = 0, tokens = 0;
        status = conversation_messages(&s->talk, &messages, &count, e);
        if (status == GM_OK) status = count_prompt(s, messages, count, options, &tokens, e);
        free(messages);
        if (status != GM_OK || tokens + room <= s->context || !conversation_drop_oldest(&s->talk)) break;
        dropped++;
    }
    if (dropped) {
        fprintf(stderr, "%s(the context of %zu tokens is full: dropped the oldest %zu turn%s)%s\n",
                dim_on(terminal_errors()), s->context, dropped, dropped == 1 ? "" : "s", dim_off(terminal_errors()));
    }
    return status;
}

static void print_speed(const chat_state *s, const gm_reply_stats *stats, gm_status status) {
    const bool dim = terminal_errors();
    if (s->quiet) return;
    const double speed = stats->reply_seconds > 0 ? (double)stats->reply_tokens / stats->reply_seconds : 0;
    fprintf(stderr, "%s(%zu tokens, %.1f tokens per second; prompt %zu, of which %zu were known, %.1f s%s%s)%s\n",
            dim_on(dim), stats->reply_tokens, speed, stats->prompt_tokens, stats->cached_tokens, stats->prompt_seconds,
            status == GM_CANCELLED ? "; stopped" : "", stats->finish == GM_FINISH_LENGTH ? "; cut off" : "",
            dim_off(dim));
}

static gm_status answer_question(chat_state *s, answer *a, error *e) {
    gm_message      *messages = NULL;
    size_t           count = 0;
    gm_reply        *reply = NULL;
    char             why[sizeof e->why] = "";
    gm_sampling      sampling;
    gm_reply_options options = { .sampling = &sampling,
                                 .think = s->talk.think,
                                 .max_tokens = (uint32_t)s->talk.settings.max.value };
    gm_status        status = sampling_choose(&s->talk.settings.sampling, s->engine, &sampling, e);
    if (status == GM_OK) status = make_room(s, &options, e);
    if (status == GM_OK) status = conversation_messages(&s->talk, &messages, &count, e);
    if (status == GM_OK) {
        status = gm_reply_start(s->session, messages, count, &options, &reply, why, sizeof why);
        if (status != GM_OK) fail(e, status, "%s", why);
    }
    free(messages);
    if (status != GM_OK) return status;
    interrupt_clear();
    interrupt_watch(s->session);
    const answer_style style = { .stream = true, .show_thinking = s->talk.think, .progress = !s->quiet };
    status = answer_collect(a, reply, &style, e);
    interrupt_watch(NULL);
    gm_reply_free(reply);
    return status;
}

/* One turn. A question without any answer is taken back; an answer that was stopped stays as far as it went. */
static gm_status take_turn(chat_state *s, str question, error *e) {
    answer    a = { 0 };
    gm_status status = conversation_add(&s->talk, true, question, e);
    if (status != GM_OK) return status;
    status = answer_question(s, &a, e);
    if (status == GM_OK || a.content.length) {
        error     ignored = { 0 };
        gm_status kept = conversation_add(&s->talk, false, buffer_view(&a.content), &ignored);
        if (kept != GM_OK && status == GM_OK) status = fail(e, kept, "%s", ignored.why);
    } else {
        conversation_remove_last(&s->talk);
    }
    if (status == GM_OK || status == GM_CANCELLED || status == GM_CONTEXT_FULL) print_speed(s, &a.stats, status);
    answer_free(&a);
    return status;
}

/* ---- the loop ---- */

/* A line that ends in a backslash goes on in the next one. */
static line_result read_question(chat_state *s, buffer *line, buffer *question, error *e) {
    const char *prompt = "> ";
    buffer_clear(question);
    for (;;) {
        const line_result result = line_editor_read(s->lines, prompt, line, e);
        if (result != LINE_READ) return result == LINE_END && question->length ? LINE_READ : result;
        const bool goes_on = line->length && line->data[line->length - 1] == '\\';
        buffer_append(question, line->data, line->length - goes_on);
        if (!goes_on) return LINE_READ;
        buffer_char(question, '\n');
        prompt = "… ";
    }
}

static gm_status take_line(chat_state *s, const buffer *question, error *e) {
    const char *text = question->data + strspn(question->data, " \t\n");
    if (!*text) return GM_OK;
    line_editor_remember(s->lines, question->data);
    if (text[0] == '/' && text[1] != '/') return chat_command(s, text, e);
    return take_turn(s, str_of(text[0] == '/' ? text + 1 : question->data), e);
}

/* At a terminal a failure is told and the chat goes on; in a script it ends the program. */
static int chat_loop(chat_state *s) {
    buffer line = { 0 }, question = { 0 };
    bool   interrupted_before = false;
    int    code = EXIT_OK;
    while (!s->leave && code == EXIT_OK) {
        error             e = { 0 };
        const line_result result = read_question(s, &line, &question, &e);
        interrupt_clear();
        if (result == LINE_END) break;
        if (result == LINE_FAILED) code = complain_error(&e);
        if (result == LINE_INTERRUPTED) {
            if (!s->interactive || interrupted_before) code = EXIT_INTERRUPTED;
            else fputs("\n(Ctrl-C again, Ctrl-D or /exit leaves)\n", stderr);
        }
        interrupted_before = result == LINE_INTERRUPTED;
        if (result != LINE_READ) continue;
        if (question.failed) {
            code = complain(EXIT_NO_DEVICE, "not enough memory for the question");
        } else if (take_line(s, &question, &e) != GM_OK) {
            const int told = complain_error(&e);
            if (!s->interactive) code = told;
            else interrupt_clear();
        }
    }
    if (s->interactive && !s->leave) putchar('\n');
    buffer_free(&line);
    buffer_free(&question);
    return code;
}

static gm_status chat_open(chat_state *s, const chat_values *v, const arguments *args, arena *memory, error *e) {
    const char    *name = NULL;
    model_argument model;
    gm_engine_info info;
    gm_status      status = choose_model(args, memory, &name, e);
    if (status == GM_OK) status = model_argument_resolve(name, memory, &model, e);
    if (status == GM_OK) status = engine_open(&v->engine, model.engine, &s->engine, e);
    if (status == GM_OK) status = session_open(&v->engine, s->engine, v->context.value, &s->session, e);
    if (status == GM_OK) status = line_editor_new(s->interactive, &s->lines, e);
    if (status == GM_OK) status = conversation_set_system(&s->talk, v->system, e);
    if (status != GM_OK) return status;
    gm_engine_get_info(s->engine, &info);
    s->context = gm_session_context(s->session);
    s->talk.settings = v->settings;
    s->talk.think = v->think;
    if (s->interactive) {
        fprintf(stderr, "%s on %s. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n",
                *info.name ? info.name : name, info.device);
    }
    return GM_OK;
}

static int chat_run(void *values, const arguments *args) {
    const chat_values *v = values;
    chat_state         s = { .interactive = terminal_input(), .quiet = v->quiet };
    arena              memory = { 0 };
    error              e = { 0 };
    interrupt_catch();
    const int code = chat_open(&s, v, args, &memory, &e) == GM_OK ? chat_loop(&s) : complain_error(&e);
    conversation_free(&s.talk);
    line_editor_free(s.lines);
    gm_session_free(s.session);
    gm_engine_close(s.engine);
    arena_free(&memory);
    return code;
}

const command command_chat = {
    .name = "chat",
    .arguments = "[MODEL]",
    .summary = "talk with a model",
    .description = "A conversation in the terminal, with line editing and a history. Answers are streamed; Ctrl-C "
                   "stops one, twice at "
                   "the prompt leaves. A line that ends in a backslash goes on in the next; /help lists the commands. "
                   "When the context "
                   "is full the oldest turns are dropped, and that is said. When standard input is no terminal, each "
                   "line is a turn, "
                   "answers go to standard output, and the end of the input ends the program with 0. "
                   "Without MODEL: $GEMMULE_MODEL, else the first usable Gemma 4 in Ollama's store, else the model in "
                   "the box.",
    .examples = "  gemmule chat\n"
                "  gemmule chat gemma4:e2b --system \"Answer in one sentence.\"\n"
                "  printf 'Hello\\nAnd again\\n' | gemmule chat model.gguf --seed 1\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 0,
    .most = 1,
    .values_size = sizeof(chat_values),
    .run = chat_run,
};
