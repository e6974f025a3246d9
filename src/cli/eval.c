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
    ADAPTER_GROUP(offsetof(eval_values, engine)),
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
    char     refusal[sizeof((error *)0)->why];
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

static task_row tally_sum(const tally *t) {
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
    const json *turns;   /* what the user says in a conversation that the model has itself; NULL: one question */
    const json *results; /* what tools answer in it, by their names */
    const json *check;
    bool        media; /* a picture or a sound belongs to it, which not every model can perceive */
    const char *text;  /* of the last message */
    buffer      said;  /* by everybody but the model */
} question;

static const char *copy_json(const json *value, arena *a) {
    buffer text = { 0 };
    json_write(&text, value);
    const char *copy = text.failed ? NULL : arena_copy(a, buffer_view(&text));
    buffer_free(&text);
    return copy;
}

static const char *question_text(const json *object, const char *key, arena *a) {
    const json *value = json_get(object, key);
    return json_is(value, JSON_STRING) ? arena_copy(a, value->text) : NULL;
}

/* The bytes of a file that a question names, beside its set. */
static gm_status question_read_file(const char *set, const json *name, arena *a, gm_part *out, error *e) {
    buffer      path = { 0 }, bytes = { 0 };
    const char *slash = strrchr(set, '/');
    if (!json_is(name, JSON_STRING))
        return fail(e, GM_BAD_ARGUMENT, "\"image\" and \"audio\" must be the names of files");
    if (slash) buffer_append(&path, set, (size_t)(slash + 1 - set));
    buffer_str(&path, name->text);
    gm_status status = path.failed ? fail_memory(e, "a path", path.length) : input_read(path.data, &bytes, e);
    out->data = status ? NULL : arena_copy(a, buffer_view(&bytes));
    out->size = bytes.length;
    if (!status && !out->data) status = fail_memory(e, "a file", bytes.length);
    buffer_free(&path);
    buffer_free(&bytes);
    return status;
}

/* Content as a list: texts, and the places of the question's picture and sound. */
static gm_status question_read_parts(const json *content, const gm_part media[3], gm_message *to, arena *a,
                                     buffer *text, error *e) {
    static const char *const types[] = {
        [GM_PART_TEXT] = "text", [GM_PART_IMAGE] = "image", [GM_PART_AUDIO] = "audio"
    };
    gm_part *parts = arena_array(a, content->count, sizeof *parts);
    if (!parts) return fail_memory(e, "the messages", content->count * sizeof *parts);
    for (const json *item = content->first; item; item = item->next) {
        const str type = json_string(json_get(item, "type"), "");
        size_t    kind = 0;
        while (kind < COUNT_OF(types) && !str_is(type, types[kind])) kind++;
        if (kind == COUNT_OF(types))
            return fail(e, GM_BAD_ARGUMENT, "a part must be text, image or audio, found '%.*s'", STR_ARGS(type));
        gm_part *part = &parts[to->part_count++];
        *part = media[kind];
        part->kind = (gm_part_kind)kind;
        if (kind == GM_PART_TEXT && !(part->text = question_text(item, "text", a)))
            return fail(e, GM_BAD_ARGUMENT, "a part of type text needs a text");
        if (kind == GM_PART_TEXT) buffer_text(text, part->text);
        else if (!part->data)
            return fail(e, GM_BAD_ARGUMENT, "there is a place for a file, but no \"%s\" beside the messages",
                        types[kind]);
    }
    to->parts = parts;
    return GM_OK;
}

/* A text alone: what it is about comes first. */
static gm_status question_lead_with(const gm_part media[3], gm_message *to, arena *a, error *e) {
    gm_part *parts = arena_array(a, 3, sizeof *parts);
    if (!parts) return fail_memory(e, "the messages", 3 * sizeof *parts);
    for (int kind = GM_PART_IMAGE; kind <= GM_PART_AUDIO; kind++) {
        if (!media[kind].data) continue;
        parts[to->part_count] = media[kind];
        parts[to->part_count++].kind = (gm_part_kind)kind;
    }
    parts[to->part_count++] = (gm_part){ .text = to->content };
    to->content = NULL;
    to->parts = parts;
    return GM_OK;
}

static gm_status question_read_messages(const json *list, const gm_part media[3], question *q, arena *a, error *e) {
    if (!json_is(list, JSON_ARRAY) || !list->count)
        return fail(e, GM_BAD_ARGUMENT, "\"messages\" must be a list of at least one message");
    q->messages = arena_array(a, list->count, sizeof *q->messages);
    if (!q->messages) return fail_memory(e, "the messages", list->count * sizeof *q->messages);
    for (const json *m = list->first; m; m = m->next) {
        gm_message *to = &q->messages[q->count++];
        const json *calls = json_get(m, "tool_calls"), *content = json_get(m, "content");
        *to = (gm_message){
            .role = question_text(m, "role", a),
            .content = question_text(m, "content", a),
            .thinking = question_text(m, "thinking", a),
            .tool_calls = calls ? copy_json(calls, a) : NULL,
            .tool_name = question_text(m, "tool_name", a),
            .tool_call_id = question_text(m, "tool_call_id", a),
        };
        if (!to->role) return fail(e, GM_BAD_ARGUMENT, "messages[%zu].role must be a string", q->count - 1);
        if (!to->content && content && content->kind != JSON_ARRAY && content->kind != JSON_NULL)
            return fail(e, GM_BAD_ARGUMENT, "messages[%zu].content must be a string or a list", q->count - 1);
        buffer    text = { 0 };
        gm_status status = GM_OK;
        if (json_is(content, JSON_ARRAY) && content->count)
            status = question_read_parts(content, media, to, a, &text, e);
        else buffer_text(&text, to->content ? to->content : "");
        if (q->media && to->content && q->count == list->count) status = question_lead_with(media, to, a, e);
        if (!to->content && !to->part_count) to->content = "";
        if (strcmp(to->role, "assistant") != 0) buffer_printf(&q->said, "%s\n", text.data ? text.data : "");
        q->text = arena_copy(a, buffer_view(&text));
        buffer_free(&text);
        if (status) return status;
        if (!q->text || q->said.failed) return fail_memory(e, "the messages", q->said.length);
    }
    return GM_OK;
}

static gm_status question_read_turns(question *q, arena *a, error *e) {
    bool texts = json_is(q->turns, JSON_ARRAY) && q->turns->count;
    for (const json *turn = texts ? q->turns->first : NULL; turn; turn = turn->next)
        texts &= json_is(turn, JSON_STRING);
    if (!texts) return fail(e, GM_BAD_ARGUMENT, "\"turns\" must be a list of texts");
    q->messages = arena_array(a, 1, sizeof *q->messages);
    if (!q->messages) return fail_memory(e, "the messages", sizeof *q->messages);
    q->messages[q->count++] = (gm_message){ .role = "user", .content = arena_copy(a, q->turns->first->text) };
    return GM_OK;
}

static gm_status question_read(const json *value, const char *set, question *q, arena *a, error *e) {
    const json *image = json_get(value, "image"), *audio = json_get(value, "audio");
    gm_part     media[3] = { 0 };
    const json *tools = json_get(value, "tools");
    *q = (question){ .task = json_string(json_get(value, "task"), "questions"),
                     .think = json_is(json_get(value, "think"), JSON_TRUE),
                     .check = json_get(value, "check") };
    if (!json_is(value, JSON_OBJECT)) return fail(e, GM_BAD_ARGUMENT, "each line must be a JSON object");
    if (tools && !(q->tools = copy_json(tools, a))) return fail_memory(e, "the tools", 0);
    q->turns = json_get(value, "turns");
    q->results = json_get(value, "results");
    q->media = image || audio;
    if (image) TRY(question_read_file(set, image, a, &media[GM_PART_IMAGE], e));
    if (audio) TRY(question_read_file(set, audio, a, &media[GM_PART_AUDIO], e));
    return q->turns ? question_read_turns(q, a, e)
                    : question_read_messages(json_get(value, "messages"), media, q, a, e);
}

/* ---- answering ---- */

typedef struct {
    const eval_values *values;
    gm_engine         *engine;
    gm_session        *session;
    gm_sampling        sampling;
    const char        *set; /* the path of the one being read */
    tally              tally;
} evaluation;

static void note_wrong(evaluation *v, str task, const char *asked, const answer *a) {
    report *w = &v->tally.wrong;
    if (v->values->show && !v->values->json) {
        printf("%.*s: %s\n    %.*s%.*s\n", STR_ARGS(task), asked, STR_ARGS(buffer_view(&a->content)),
               STR_ARGS(buffer_view(&a->calls)));
    }
    if (!v->values->json) return;
    report_open(w, NULL, '{');
    report_str(w, "task", task);
    report_text(w, "question", asked);
    report_str(w, "answer", buffer_view(&a->content));
    report_open(w, "tool_calls", '[');
    if (a->call_count) report_json(w, NULL, buffer_view(&a->calls));
    report_close(w, ']');
    report_text(w, "finish_reason", finish_name(a->stats.finish));
    report_close(w, '}');
}

static gm_status answer_messages(evaluation *v, const gm_message *messages, size_t count,
                                 const gm_reply_options *options, answer *a, error *e) {
    gm_reply          *reply = NULL;
    const answer_style style = { 0 };
    char               why[sizeof e->why] = "";
    gm_status          status = gm_reply_start(v->session, messages, count, options, &reply, why, sizeof why);
    if (status == GM_OK) status = answer_collect(a, reply, &style, e);
    else fail(e, status, "%s", why);
    gm_reply_free(reply);
    if (status != GM_OK) return status;
    v->tally.tokens += a->stats.reply_tokens;
    v->tally.seconds += a->stats.prompt_seconds + a->stats.reply_seconds;
    return GM_OK;
}

static gm_status score_answer(evaluation *v, const question *q, const char *asked, const answer *a, str said,
                              task_row *row, error *e) {
    bool               passed = false;
    const eval_context context = { v->set, said };
    const gm_status    status = eval_passes(q->check, a, &context, &passed, e);
    if (status != GM_OK) return status;
    row->asked++;
    row->right += passed;
    row->ended += a->stats.finish == GM_FINISH_STOP || a->stats.finish == GM_FINISH_TOOL_CALLS;
    if (!passed) note_wrong(v, q->task, asked, a);
    return GM_OK;
}

static gm_status ask_question(evaluation *v, const question *q, const gm_reply_options *options, task_row *row,
                              error *e) {
    answer    a = { 0 };
    error     why = { 0 };
    gm_status status = answer_messages(v, q->messages, q->count, options, &a, &why);
    if (q->media && status == GM_UNSUPPORTED) { /* another question may be one for this model */
        row->refused++;
        snprintf(v->tally.refusal, sizeof v->tally.refusal, "%s", why.why);
        status = GM_OK;
    } else if (status) {
        fail(e, status, "%s", why.why);
    } else {
        status = score_answer(v, q, q->text, &a, buffer_view(&q->said), row, e);
    }
    answer_free(&a);
    return status;
}

/* ---- a conversation that the model has itself ---- */

enum { MOST_ROUNDS = 3 }; /* of tool calls before an answer */

typedef struct {
    arena      *memory;
    gm_message *messages;
    size_t      count, capacity;
    buffer      said; /* by the user and the tools */
} talk;

static gm_status talk_add(talk *t, gm_message message, error *e) {
    if (t->count == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 64;
        gm_message  *larger = arena_array(t->memory, capacity, sizeof *larger);
        if (!larger) return fail_memory(e, "the messages", capacity * sizeof *larger);
        if (t->count) memcpy(larger, t->messages, t->count * sizeof *larger);
        t->messages = larger;
        t->capacity = capacity;
    }
    const bool model = !strcmp(message.role, "assistant");
    if (!model) buffer_printf(&t->said, "%s\n", message.content ? message.content : "");
    if (!message.content || t->said.failed) return fail_memory(e, "a message", 0);
    t->messages[t->count++] = message;
    return GM_OK;
}

/* What the set says that this tool answers; for any other tool, that there is none. */
static const char *tool_result(const question *q, str name, arena *memory) {
    const json *known = json_is(q->results, JSON_OBJECT) ? json_get_str(q->results, name) : NULL;
    if (json_is(known, JSON_STRING)) return arena_copy(memory, known->text);
    buffer why = { 0 }, text = { 0 };
    buffer_printf(&why, "There is no tool named '%.*s'. The tools are: ", STR_ARGS(name));
    for (const json *each = json_is(q->results, JSON_OBJECT) ? q->results->first : NULL; each; each = each->next)
        buffer_printf(&why, "%.*s%s", STR_ARGS(each->key), each->next ? ", " : "");
    buffer_char(&why, '.');
    buffer_text(&text, "{\"error\":");
    json_write_string(&text, buffer_view(&why));
    buffer_char(&text, '}');
    const char *copy = why.failed || text.failed ? NULL : arena_copy(memory, buffer_view(&text));
    buffer_free(&why);
    buffer_free(&text);
    return copy;
}

/* Adds the answer, and what its calls come back with. */
static gm_status talk_add_answer(talk *t, const question *q, const answer *a, error *e) {
    buffer list = { 0 };
    json  *calls = NULL;
    buffer_printf(&list, "[%.*s]", STR_ARGS(buffer_view(&a->calls)));
    const char *text = list.failed ? NULL : arena_copy(t->memory, buffer_view(&list));
    buffer_free(&list);
    if (!text) return fail_memory(e, "the calls", a->calls.length);
    gm_status status = talk_add(t,
                                (gm_message){ .role = "assistant",
                                              .content = arena_copy(t->memory, buffer_view(&a->content)),
                                              .tool_calls = a->call_count ? text : NULL },
                                e);
    if (status == GM_OK) status = json_parse(str_of(text), t->memory, &calls, e);
    for (const json *each = status == GM_OK ? calls->first : NULL; each && status == GM_OK; each = each->next) {
        const str name = json_string(json_get(json_get(each, "function"), "name"), "");
        status = talk_add(t,
                          (gm_message){ .role = "tool",
                                        .content = tool_result(q, name, t->memory),
                                        .tool_name = arena_copy(t->memory, name) },
                          e);
    }
    return status;
}

/* Says each turn and scores each answer; calls are answered until one comes without. */
static gm_status ask_talk(evaluation *v, const question *q, const gm_reply_options *options, task_row *row,
                          arena *memory, error *e) {
    talk      t = { .memory = memory };
    gm_status status = GM_OK;
    for (const json *turn = q->turns->first; turn && status == GM_OK; turn = turn->next) {
        const char *asked = arena_copy(memory, turn->text);
        bool        called = true;
        status = talk_add(&t, (gm_message){ .role = "user", .content = asked }, e);
        for (int round = 1; called && status == GM_OK; round++) {
            answer a = { 0 };
            status = answer_messages(v, t.messages, t.count, options, &a, e);
            called = a.call_count && round < MOST_ROUNDS;
            if (status == GM_OK) status = talk_add_answer(&t, q, &a, e);
            if (status == GM_OK && !called) status = score_answer(v, q, asked, &a, buffer_view(&t.said), row, e);
            answer_free(&a);
        }
    }
    buffer_free(&t.said);
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
    const gm_status status = quoted.failed ? fail_memory(e, "the prompt", quoted.length) : GM_OK;
    if (!status) puts(quoted.data);
    buffer_free(&quoted);
    return status;
}

static gm_status ask_line(evaluation *v, str line, error *e) {
    arena     memory = { 0 };
    json     *value;
    question  q = { 0 };
    task_row *row = NULL;
    gm_status status = json_parse(line, &memory, &value, e);
    if (status == GM_OK) status = question_read(value, v->set, &q, &memory, e);
    const bool wanted = status == GM_OK && (!v->values->task || str_is(q.task, v->values->task));
    if (wanted && !(row = row_of(&v->tally, q.task, e))) status = e->status;
    if (wanted && row) {
        const gm_reply_options options = {
            .sampling = &v->sampling,
            .tools = q.tools,
            .think = q.think,
            .max_tokens = v->values->max.given ? (uint32_t)v->values->max.value : DEFAULT_MAX,
        };
        if (v->values->prompts) status = print_prompt(v, &q, &options, e);
        else if (q.turns) status = ask_talk(v, &q, &options, row, &memory, e);
        else status = ask_question(v, &q, &options, row, e);
    }
    buffer_free(&q.said);
    arena_free(&memory);
    return status;
}

static gm_status ask_set(evaluation *v, const char *path, error *e) {
    buffer    text = { 0 };
    progress  bar;
    size_t    number = 0, taken = 0;
    gm_status status = input_read(path, &text, e);
    str       rest = buffer_view(&text);
    v->set = path;
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

static void eval_print_row(const task_row *row, const char *refusal) {
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
    const task_row all = tally_sum(t);
    if (!v->values->json) {
        for (size_t i = 0; i < t->count; i++) eval_print_row(&t->rows[i], t->refusal);
        if (t->count > 1) eval_print_row(&all, t->refusal);
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
    if (status == GM_OK) status = engine_open(&v->engine, model.engine, !v->quiet && !v->json, &state.engine, &e);
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
        "and tools are in OpenAI's form. `check` lists rules that must all hold: exact [texts], contains [texts], "
        "number n, json value, calls [{\"name\", \"arguments\"}], thinks true, words FILE (beside the set: every word "
        "of "
        "the answer is in it or was said before). With \"turns\" [texts] instead of messages, the user says one text "
        "after another, each answer is checked, and \"results\" {name: text} has the tools' answers. Answers are "
        "greedy. For each task, prints how many answers are right and how many are complete, not cut off. Questions "
        "about pictures or sounds that the model cannot perceive are counted, but not asked.",
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
