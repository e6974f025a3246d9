/* gemmule eval: asks a set of questions and scores the answers. */

#include "cli/cli.h"
#include "cli/engine_arguments.h"
#include "cli/eval_rules.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/model_argument.h"
#include "cli/terminal.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    engine_values engine;
    const char   *task;
    count_value   first, max;
    number_value  least;
    bool          show, prompts, json, quiet;
} eval_values;

static const option eval_options[] = {
    TEXT_OPTION(eval_values, task, "task", 0, "NAME", "ask only the questions of this task"),
    COUNT_OPTION(eval_values, first, "first", 0, "N", 1, UINT32_MAX, "ask only the first N questions of each set"),
    COUNT_OPTION(eval_values, max, "max", 0, "N", 1, UINT32_MAX, "at most N tokens per answer; default 256"),
    NUMBER_OPTION(eval_values, least, "least", 0, "PERCENT", 0, 100,
                  "exit with 1 if a task scores less than this, or a question could not be asked"),
    FLAG_OPTION(eval_values, show, "show", 0, "show the answers that fail"),
    FLAG_OPTION(eval_values, prompts, "prompts", 0,
                "do not answer; print each question's prompt as the model would get it, one JSON string per line"),
    FLAG_OPTION(eval_values, json, "json", 0, "print one JSON object"),
    FLAG_OPTION(eval_values, quiet, "quiet", 0, "no progress bar"),
};
static const option_group groups[] = {
    OPTION_GROUP("evaluation", eval_options, 0),
    ENGINE_GROUP(offsetof(eval_values, engine)),
};

enum { DEFAULT_MAX = 256, MOST_TASKS = 64 };

/* ---- the tally ---- */

typedef struct {
    char   name[40];
    size_t asked, right, ended, refused;
} task_row;

typedef struct {
    task_row rows[MOST_TASKS];
    size_t   count, tokens;
    double   seconds;
    report   wrong; /* items of a JSON array */
    char     refusal[80];
} tally;

static task_row *row_of(tally *t, str name, error *e) {
    char short_name[sizeof t->rows[0].name];
    printable(name, short_name, sizeof short_name);
    for (size_t i = 0; i < t->count; i++) {
        if (!strcmp(t->rows[i].name, short_name)) return &t->rows[i];
    }
    if (t->count == MOST_TASKS) {
        fail(e, GM_UNSUPPORTED, "an evaluation may have at most %d tasks", MOST_TASKS);
        return NULL;
    }
    task_row *row = &t->rows[t->count++];
    snprintf(row->name, sizeof row->name, "%s", short_name);
    return row;
}

static task_row sum_of(const tally *t) {
    task_row all = { .name = "all" };
    for (size_t i = 0; i < t->count; i++) {
        all.asked += t->rows[i].asked;
        all.right += t->rows[i].right;
        all.ended += t->rows[i].ended;
        all.refused += t->rows[i].refused;
    }
    return all;
}

static double percent(size_t part, size_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

/* ---- one question ---- */

typedef struct {
    str         task;
    gm_message *messages;
    size_t      count;
    const char *tools; /* JSON text, or NULL */
    bool        think;
    const json *check;
    const char *refusal; /* why it cannot be asked yet, or NULL */
} question;

static const char *copy_json(const json *value, arena *a) {
    buffer text = { 0 };
    json_write(&text, value);
    const char *copy = text.failed ? NULL : arena_copy(a, buffer_view(&text));
    buffer_free(&text);
    return copy;
}

static const char *text_field(const json *object, const char *key, arena *a) {
    const json *value = json_get(object, key);
    return json_is(value, JSON_STRING) ? arena_copy(a, value->text) : NULL;
}

static gm_status read_messages(const json *list, question *q, arena *a, error *e) {
    if (!json_is(list, JSON_ARRAY) || !list->count)
        return fail(e, GM_BAD_ARGUMENT, "\"messages\" must be a list of at least one message");
    q->messages = arena_array(a, list->count, sizeof *q->messages);
    if (!q->messages) return fail_memory(e, "the messages", list->count * sizeof *q->messages);
    for (const json *m = list->first; m; m = m->next) {
        gm_message *to = &q->messages[q->count++];
        const json *calls = json_get(m, "tool_calls"), *content = json_get(m, "content");
        *to = (gm_message){
            .role = text_field(m, "role", a),
            .content = text_field(m, "content", a),
            .thinking = text_field(m, "thinking", a),
            .tool_calls = calls ? copy_json(calls, a) : NULL,
            .tool_name = text_field(m, "tool_name", a),
            .tool_call_id = text_field(m, "tool_call_id", a),
        };
        if (!to->role) return fail(e, GM_BAD_ARGUMENT, "messages[%zu].role must be a string", q->count - 1);
        if (!to->content && content && content->kind != JSON_ARRAY && content->kind != JSON_NULL)
            return fail(e, GM_BAD_ARGUMENT, "messages[%zu].content must be a string or a list", q->count - 1);
        if (!to->content) to->content = "";
    }
    return GM_OK;
}

static gm_status read_question(const json *value, question *q, arena *a, error *e) {
    const json *tools = json_get(value, "tools");
    *q = (question){ .task = json_string(json_get(value, "task"), "questions"),
                     .think = json_is(json_get(value, "think"), JSON_TRUE),
                     .check = json_get(value, "check") };
    if (json_get(value, "image")) q->refusal = "images are not supported yet";
    if (json_get(value, "audio")) q->refusal = "audio is not supported yet";
    if (!json_is(value, JSON_OBJECT)) return fail(e, GM_BAD_ARGUMENT, "each line must be a JSON object");
    if (tools && !(q->tools = copy_json(tools, a))) return fail_memory(e, "the tools", 0);
    return read_messages(json_get(value, "messages"), q, a, e);
}

/* ---- answering ---- */

typedef struct {
    const eval_values *values;
    gm_engine         *engine;
    gm_session        *session;
    gm_sampling        sampling;
    tally              tally;
} evaluation;

static void note_wrong(evaluation *v, const question *q, const answer *a) {
    const char *asked = q->messages[q->count - 1].content;
    report     *w = &v->tally.wrong;
    if (v->values->show && !v->values->json) {
        printf("%.*s: %s\n    %.*s%.*s\n", STR_ARGS(q->task), asked, STR_ARGS(buffer_view(&a->content)),
               STR_ARGS(buffer_view(&a->calls)));
    }
    if (!v->values->json) return;
    report_open(w, NULL, '{');
    report_str(w, "task", q->task);
    report_text(w, "question", asked);
    report_str(w, "answer", buffer_view(&a->content));
    report_open(w, "tool_calls", '[');
    if (a->call_count) report_json(w, NULL, buffer_view(&a->calls));
    report_close(w, ']');
    report_text(w, "finish_reason", finish_name(a->stats.finish));
    report_close(w, '}');
}

static gm_status ask_question(evaluation *v, const question *q, const gm_reply_options *options, task_row *row,
                              error *e) {
    gm_reply          *reply = NULL;
    answer             a = { 0 };
    const answer_style style = { 0 };
    bool               passed = false;
    char               why[sizeof e->why] = "";
    gm_status          status = gm_reply_start(v->session, q->messages, q->count, options, &reply, why, sizeof why);
    if (status == GM_OK) status = answer_collect(&a, reply, &style, e);
    else fail(e, status, "%s", why);
    if (status == GM_OK) status = eval_passes(q->check, &a, &passed, e);
    if (status == GM_OK) {
        row->asked++;
        row->right += passed;
        row->ended += a.stats.finish == GM_FINISH_STOP || a.stats.finish == GM_FINISH_TOOL_CALLS;
        v->tally.tokens += a.stats.reply_tokens;
        v->tally.seconds += a.stats.prompt_seconds + a.stats.reply_seconds;
        if (!passed) note_wrong(v, q, &a);
    }
    answer_free(&a);
    gm_reply_free(reply);
    return status;
}

static gm_status print_prompt(const evaluation *v, const question *q, const gm_reply_options *options, error *e) {
    char  why[sizeof e->why] = "";
    char *text = NULL;
    if (gm_render(v->engine, q->messages, q->count, options, &text, why, sizeof why))
        return fail(e, GM_BAD_ARGUMENT, "%s", why);
    buffer quoted = { 0 };
    json_write_string(&quoted, str_of(text));
    gm_free(text);
    if (quoted.failed) fail_memory(e, "the prompt", quoted.length);
    else puts(quoted.data);
    buffer_free(&quoted);
    return e->status;
}

static gm_status ask_line(evaluation *v, str line, error *e) {
    arena     memory = { 0 };
    json     *value;
    question  q = { 0 };
    task_row *row = NULL;
    gm_status status = json_parse(line, &memory, &value, e);
    if (status == GM_OK) status = read_question(value, &q, &memory, e);
    const bool wanted = status == GM_OK && (!v->values->task || str_is(q.task, v->values->task));
    if (wanted && !(row = row_of(&v->tally, q.task, e))) status = e->status;
    if (wanted && row) {
        const gm_reply_options options = {
            .sampling = &v->sampling,
            .tools = q.tools,
            .think = q.think,
            .max_tokens = v->values->max.given ? (uint32_t)v->values->max.value : DEFAULT_MAX,
        };
        if (q.refusal) {
            row->refused++;
            snprintf(v->tally.refusal, sizeof v->tally.refusal, "%s", q.refusal);
        } else {
            status = v->values->prompts ? print_prompt(v, &q, &options, e) : ask_question(v, &q, &options, row, e);
        }
    }
    arena_free(&memory);
    return status;
}

static gm_status ask_set(evaluation *v, const char *path, error *e) {
    buffer    text = { 0 };
    progress  bar;
    size_t    number = 0, taken = 0;
    gm_status status = input_read(path, &text, e);
    str       rest = buffer_view(&text);
    progress_start(&bar, "evaluating", PROGRESS_STEPS, !v->values->quiet && !v->values->json);
    while (status == GM_OK && rest.length && (!v->values->first.given || taken < v->values->first.value)) {
        const char  *end = memchr(rest.data, '\n', rest.length);
        const size_t length = end ? (size_t)(end - rest.data) : rest.length;
        const str    line = { rest.data, length };
        number++;
        rest = (str){ rest.data + length + !!end, rest.length - length - !!end };
        if (line.length && line.data[0] != '\r') {
            error why = { 0 };
            progress_update(&bar, text.length - rest.length, text.length);
            taken++;
            status = ask_line(v, line, &why);
            if (status != GM_OK) fail(e, status, "%s, line %zu: %s", path, number, why.why);
        }
        if (status == GM_OK && interrupted()) status = fail(e, GM_CANCELLED, "interrupted");
    }
    progress_end(&bar);
    buffer_free(&text);
    return status;
}

/* ---- output ---- */

static void print_row(const task_row *row, const char *refusal) {
    printf("%-20s", row->name);
    if (row->asked)
        printf(" %5zu of %5zu right  %5.1f %%   complete %5.1f %%", row->right, row->asked,
               percent(row->right, row->asked), percent(row->ended, row->asked));
    if (row->refused) printf("%s %zu not asked: %s", row->asked ? "," : "", row->refused, refusal);
    putchar('\n');
}

static void report_row(report *j, const task_row *row) {
    report_open(j, NULL, '{');
    report_text(j, "task", row->name);
    report_count(j, "asked", row->asked);
    report_count(j, "right", row->right);
    report_count(j, "ended", row->ended);
    report_count(j, "refused", row->refused);
    report_close(j, '}');
}

static int print_results(evaluation *v, const char *model) {
    const tally   *t = &v->tally;
    const task_row all = sum_of(t);
    if (!v->values->json) {
        for (size_t i = 0; i < t->count; i++) print_row(&t->rows[i], t->refusal);
        if (t->count > 1) print_row(&all, t->refusal);
        return EXIT_OK;
    }
    report         j = { 0 };
    gm_engine_info info;
    gm_engine_get_info(v->engine, &info);
    report_open(&j, NULL, '{');
    report_text(&j, "model", model);
    report_text(&j, "device", info.device);
    report_open(&j, "tasks", '[');
    for (size_t i = 0; i < t->count; i++) report_row(&j, &t->rows[i]);
    report_close(&j, ']');
    report_count(&j, "asked", all.asked);
    report_count(&j, "right", all.right);
    report_count(&j, "ended", all.ended);
    report_count(&j, "refused", all.refused);
    report_count(&j, "completion_tokens", t->tokens);
    report_number(&j, "seconds", t->seconds);
    report_open(&j, "wrong", '[');
    if (t->wrong.text.length) report_json(&j, NULL, buffer_view(&t->wrong.text));
    report_close(&j, ']');
    report_close(&j, '}');
    return t->wrong.text.failed ? complain(EXIT_NO_DEVICE, "not enough memory for the output") : report_print(&j);
}

static bool reaches(const tally *t, double least) {
    for (size_t i = 0; i < t->count; i++) {
        if (t->rows[i].refused || percent(t->rows[i].right, t->rows[i].asked) < least) return false;
    }
    return true;
}

static int eval_run(void *values, const arguments *args) {
    const eval_values *v = values;
    evaluation         state = { .values = v };
    arena              memory = { 0 };
    model_argument     model = { 0 };
    error              e = { 0 };
    int                code;
    interrupt_catch();
    gm_status status = model_argument_resolve(args->positional[0], &memory, &model, &e);
    if (status == GM_OK) status = engine_open(&v->engine, model.engine, &state.engine, &e);
    if (status == GM_OK) status = session_open(&v->engine, state.engine, 0, &state.session, &e);
    if (status == GM_OK) {
        interrupt_watch(state.session);
        gm_sampling_default(state.engine, &state.sampling);
        state.sampling.temperature = 0;
    }
    for (size_t i = 1; status == GM_OK && i < args->count; i++) status = ask_set(&state, args->positional[i], &e);
    if (status == GM_OK && !state.tally.count)
        status = fail(&e, GM_BAD_ARGUMENT, "there are no questions%s%s", v->task ? " for the task " : " in the set",
                      v->task ? v->task : "");
    if (status != GM_OK) code = complain_error(&e);
    else if (v->prompts) code = EXIT_OK;
    else code = print_results(&state, args->positional[0]);
    if (code == EXIT_OK && v->least.given && !v->prompts && !reaches(&state.tally, v->least.value))
        code = EXIT_CHECK_FAILED;
    interrupt_watch(NULL);
    buffer_free(&state.tally.wrong.text);
    gm_session_free(state.session);
    gm_engine_close(state.engine);
    arena_free(&memory);
    return code;
}

const command command_eval = {
    .name = "eval",
    .arguments = "MODEL SET...",
    .summary = "ask a set of questions and score the answers",
    .description =
        "SET has one question per line, in JSON: {\"task\", \"messages\", \"tools\", \"think\", \"check\"}. Messages "
        "and "
        "tools are in OpenAI's form. `check` lists rules that must all hold: exact [texts], contains [texts], number "
        "n, "
        "json value, calls [{\"name\", \"arguments\"}], thinks true. Answers are greedy. For each task, prints how "
        "many "
        "answers are right and how many are complete, not cut off. Questions about images and audio are counted but "
        "not asked yet.",
    .examples = "  gemmule eval box tests/box/text.jsonl\n"
                "  gemmule eval box tests/box/text.jsonl --task arithmetic --show\n"
                "  gemmule eval model.gguf questions.jsonl --json --least 95\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .fewest = 2,
    .most = 16,
    .values_size = sizeof(eval_values),
    .run = eval_run,
};
