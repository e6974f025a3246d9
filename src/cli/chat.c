/* gemmule chat: a conversation in the terminal, or from a pipe, line by line. */

#include "cli/chat.h"

#include "media/picture.h"
#include "media/video.h"

#include "cli/answer.h"
#include "cli/canvas_screen.h"
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
    video_values  video;
} chat_values;

static const option chat_options[] = {
    TEXT_OPTION(chat_values, system, "system", 0, "TEXT",
                "system prompt, \"\" for none; default: the Ollama model's, if it has one"),
    FLAG_OPTION(chat_values, think, "think", 0, "let the model think before it answers, and show its thoughts"),
    COUNT_OPTION(chat_values, settings.max, "max", 0, "N", 1, UINT32_MAX,
                 "at most N tokens per answer; default: the Ollama model's num_predict, or as many as fit"),
    COUNT_OPTION(
        chat_values, context, "ctx", 0, "N", 1, UINT32_MAX,
        "context size in tokens; default: the Ollama model's num_ctx, or 8192, or the model's limit if that is "
        "smaller"),
    FLAG_OPTION(chat_values, quiet, "quiet", 0, "hide the speed after each answer and the progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("chat", chat_options, 0),
    VIDEO_GROUP(offsetof(chat_values, video)),
    SAMPLING_GROUP(offsetof(chat_values, settings.sampling)),
    ADAPTER_GROUP(offsetof(chat_values, engine)),
    ENGINE_GROUP(offsetof(chat_values, engine)),
};

/* ---- choosing the model ---- */

static gm_status chat_choose_model(const arguments *args, arena *a, const char **out, error *e) {
    model_choice how;
    TRY(model_argument_choose(args->count ? args->positional[0] : NULL, a, out, &how, e));
    if (how == CHOICE_STORE) fprintf(stderr, "using %s from Ollama's store\n", *out);
    if (how == CHOICE_BOX) {
        fprintf(stderr, "using the small model in the box; get a big one with `ollama pull gemma4:e2b`, or give the "
                        "path of a GGUF file\n");
    }
    return GM_OK;
}

/* ---- answering ---- */

/* An estimate of the prompt's length: text that looks like a special token counts as one; pictures and frames count
 * as the most that they usually have. */
static gm_status count_prompt(const chat_state *s, const gm_message *messages, size_t count,
                              const gm_reply_options *options, size_t *tokens, error *e) {
    char     *text = NULL;
    char      why[sizeof e->why] = "";
    gm_status status = gm_render(s->engine, messages, count, options, &text, why, sizeof why);
    if (status == GM_OK) status = gm_tokenize(s->engine, text, strlen(text), true, NULL, 0, tokens, why, sizeof why);
    gm_free(text);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < messages[i].part_count; k++) {
            const gm_part *part = &messages[i].parts[k];
            if (part->kind == GM_PART_VIDEO) *tokens += part->frame_count * VIDEO_BUDGET;
            else if (part->kind != GM_PART_TEXT) *tokens += PICTURE_BUDGET;
        }
    }
    return status == GM_OK ? GM_OK : fail(e, status, "%s", why);
}

/* Drops the oldest turns until the prompt leaves room for an answer, or only the last question is left. */
static gm_status chat_make_room(chat_state *s, const gm_reply_options *options, error *e) {
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
        char context[32];
        fprintf(stderr, "%s(the context of %s tokens is full; dropped the oldest %zu turn%s)%s\n",
                dim_on(terminal_errors()), with_commas(s->context, context), dropped, dropped == 1 ? "" : "s",
                dim_off(terminal_errors()));
    }
    return status;
}

static void print_speed(const chat_state *s, const gm_reply_stats *stats, gm_status status) {
    const bool dim = terminal_errors();
    char       reply[32], prompt[32], cached[32];
    if (s->quiet) return;
    const double speed = stats->reply_seconds > 0 ? (double)stats->reply_tokens / stats->reply_seconds : 0;
    fprintf(stderr, "%s(%s token%s, %.1f tokens per second; prompt: %s tokens, %s cached, %.1f s%s%s)%s\n", dim_on(dim),
            with_commas(stats->reply_tokens, reply), stats->reply_tokens == 1 ? "" : "s", speed,
            with_commas(stats->prompt_tokens, prompt), with_commas(stats->cached_tokens, cached), stats->prompt_seconds,
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
                                 .max_tokens = (uint32_t)s->talk.settings.max.value,
                                 .want_canvas = !s->quiet && canvas_screen_wanted(s->engine) };
    gm_status        status = sampling_choose(&s->talk.settings.sampling, s->engine, &sampling, e);
    if (status == GM_OK) status = chat_make_room(s, &options, e);
    if (status == GM_OK) status = conversation_messages(&s->talk, &messages, &count, e);
    if (status == GM_OK) {
        status = gm_reply_start(s->session, messages, count, &options, &reply, why, sizeof why);
        if (status != GM_OK) fail(e, status, "%s", why);
    }
    free(messages);
    if (status != GM_OK) return status;
    interrupt_clear();
    interrupt_watch(s->session);
    const answer_style style = { .stream = true,
                                 .show_thinking = s->talk.think,
                                 .progress = !s->quiet,
                                 .canvas_of = options.want_canvas ? s->engine : NULL };
    status = answer_collect(a, reply, &style, e);
    interrupt_watch(NULL);
    gm_reply_free(reply);
    return status;
}

/* One turn. A question that got no answer is removed; an answer that was stopped is kept as far as it went. */
static gm_status run_turn(chat_state *s, str question, error *e) {
    answer    a = { 0 };
    gm_status status = conversation_add(&s->talk, true, question, e);
    if (status != GM_OK) return status;
    conversation_attach(&s->talk, &s->attached, &s->attached_count);
    status = answer_question(s, &a, e);
    if (status == GM_OK || a.content.length) {
        error     ignored = { 0 };
        gm_status kept = conversation_add(&s->talk, false, buffer_view(&a.content), &ignored);
        if (kept != GM_OK && status == GM_OK) status = fail(e, kept, "%s", ignored.why);
    } else {
        conversation_remove_last(&s->talk);
    }
    const bool cut_off = status == GM_CONTEXT_FULL && a.stats.reply_tokens;
    if (status == GM_OK || status == GM_CANCELLED || cut_off) print_speed(s, &a.stats, status);
    answer_free(&a);
    return status;
}

/* ---- the loop ---- */

/* A backslash at the end of a line continues it on the next. */
static line_result chat_read_question(chat_state *s, buffer *line, buffer *question, error *e) {
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

static gm_status handle_line(chat_state *s, const buffer *question, error *e) {
    const char *text = question->data + strspn(question->data, " \t\n");
    if (!*text) return GM_OK;
    line_editor_remember(s->lines, question->data);
    if (text[0] == '/' && text[1] != '/') return chat_command(s, text, e);
    return run_turn(s, str_of(text[0] == '/' ? text + 1 : question->data), e);
}

/* On a terminal the chat continues after an error; in a script an error ends the program. */
static int chat_loop(chat_state *s) {
    buffer line = { 0 }, question = { 0 };
    bool   interrupted_before = false;
    int    code = EXIT_OK;
    while (!s->leave && code == EXIT_OK) {
        error             e = { 0 };
        const line_result result = chat_read_question(s, &line, &question, &e);
        interrupt_clear();
        if (result == LINE_END) break;
        if (result == LINE_FAILED) code = complain_error(&e);
        if (result == LINE_INTERRUPTED) {
            if (!s->interactive || interrupted_before) code = EXIT_INTERRUPTED;
            else fputs("\n(press Ctrl-C again, press Ctrl-D or type /exit to leave)\n", stderr);
        }
        interrupted_before = result == LINE_INTERRUPTED;
        if (result != LINE_READ) continue;
        if (question.failed) {
            code = complain(EXIT_NO_DEVICE, "not enough memory for the question");
        } else if (handle_line(s, &question, &e) != GM_OK) {
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
    gm_status      status = chat_choose_model(args, memory, &name, e);
    if (status == GM_OK) status = model_argument_resolve(name, memory, &model, e);
    if (status == GM_OK) status = engine_open(&v->engine, model.engine, !v->quiet, &s->engine, e);
    if (status == GM_OK) status = session_open(&v->engine, s->engine, v->context.value, &s->session, e);
    if (status == GM_OK) status = line_editor_new(s->interactive, &s->lines, e);
    if (status == GM_OK) status = conversation_set_system(&s->talk, v->system, e);
    if (status != GM_OK) return status;
    gm_engine_get_info(s->engine, &info);
    s->context = gm_session_context(s->session);
    s->talk.settings = v->settings;
    s->talk.think = v->think;
    if (s->interactive) {
        fprintf(stderr, "%s on %s. Type /help for the commands; Ctrl-C stops an answer, Ctrl-D leaves.\n",
                *info.name ? info.name : name, info.device);
    }
    return GM_OK;
}

static int chat_run(void *values, const arguments *args) {
    const chat_values *v = values;
    chat_state         s = { .interactive = terminal_input(), .quiet = v->quiet, .video = v->video };
    arena              memory = { 0 };
    error              e = { 0 };
    interrupt_catch();
    const int code = chat_open(&s, v, args, &memory, &e) == GM_OK ? chat_loop(&s) : complain_error(&e);
    conversation_free(&s.talk);
    chat_media_free(&s.attached, &s.attached_count);
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
    .description =
        "A conversation in the terminal, with line editing and history. Answers are streamed. Ctrl-C stops an answer; "
        "pressed twice at the prompt, it leaves. A backslash at the end of a line continues it on the next; /help "
        "lists "
        "the commands. When the context is full, the oldest turns are dropped, with a notice. If standard input is not "
        "a terminal, each line is a turn, answers go to standard output, and the end of input ends the chat. Without "
        "MODEL, uses $GEMMULE_MODEL, or the first usable Gemma 4 in Ollama's store, or the model in the box.",
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
