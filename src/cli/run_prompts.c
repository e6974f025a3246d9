#include "cli/run_prompts.h"

#include "base/new_file.h"
#include "cli/answer.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/peers.h"
#include "cli/terminal.h"
#include "serve/chat_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_COMPLAINTS = 10, /* bad lines that are named; the rest is counted */
    WINDOW = 8,           /* times `parallel`: prompts that may be begun while an earlier one is not answered */
};

typedef struct {
    size_t       number; /* of the line, from 1 */
    chat_request request;
    buffer       id;     /* JSON; empty: none */
    buffer       result; /* a line; empty: not answered yet */
    str          before; /* the line of an earlier run */
    bool         again;  /* that line is an error: the prompt is asked again */
    bool         sent;   /* the answer, to process 0 */
} prompt_line;

/* One of the answers that are being written. */
typedef struct {
    gm_session  *session;
    gm_reply    *reply;
    prompt_line *line;
    answer       answer;
} prompt_slot;

typedef struct {
    const prompts_options *options;
    arena                  memory;
    buffer                 text;    /* the file */
    buffer                 earlier; /* the output of an earlier run */
    prompt_line           *lines;
    size_t                 count, capacity, bad;
    FILE                  *out;
    gm_engine             *engine;
    gm_sampling            sampling;
    prompt_slot           *slots;
    size_t                 next;      /* to begin */
    size_t                 end;       /* after the last one that may begin */
    size_t                 written;   /* lines in the output */
    size_t                 again;     /* of them, errors of an earlier run */
    size_t                 rewritten; /* of them, lines that are in the file which replaces the output */
    size_t                 failed;
    progress               bar;
    peers                  peers;
    bool                   shared; /* each process answers its part of the prompts */
} prompts_state;

/* ---- reading ---- */

/* {"prompt": …} is short for a message of the user's; the other fields stay. */
static void prompts_write_request(buffer *out, const json *root) {
    bool comma = false;
    buffer_char(out, '{');
    for (const json *field = root->first; field; field = field->next) {
        if (str_is(field->key, "id")) continue;
        if (comma) buffer_char(out, ',');
        comma = true;
        if (str_is(field->key, "prompt")) {
            buffer_text(out, "\"messages\":[{\"role\":\"user\",\"content\":");
            json_write(out, field);
            buffer_text(out, "}]");
            continue;
        }
        json_write_string(out, field->key);
        buffer_char(out, ':');
        json_write(out, field);
    }
    buffer_char(out, '}');
}

static gm_status line_read(prompt_line *line, str text, error *e) {
    arena     scratch = { 0 };
    json     *root = NULL;
    buffer    body = { 0 };
    char      param[CHAT_PARAM_SIZE];
    gm_status status = json_parse(text, &scratch, &root, e);
    if (!status && !json_is(root, JSON_OBJECT))
        status = fail(e, GM_BAD_ARGUMENT, "expected a JSON object, found %s", json_describe(root));
    const json *prompt = status ? NULL : json_get(root, "prompt"), *id = status ? NULL : json_get(root, "id");
    if (!status && (prompt != NULL) == (json_get(root, "messages") != NULL))
        status = fail(e, GM_BAD_ARGUMENT, "expected either \"prompt\" or \"messages\"");
    if (!status && prompt && !json_is(prompt, JSON_STRING))
        status = fail(e, GM_BAD_ARGUMENT, "\"prompt\" must be a string, not %s", json_describe(prompt));
    if (!status && id) json_write(&line->id, id);
    if (!status) prompts_write_request(&body, root);
    if (!status && (body.failed || line->id.failed)) status = fail_memory(e, "a prompt", text.length);
    if (!status) status = chat_request_parse(&body, &line->request, param, e);
    buffer_free(&body);
    arena_free(&scratch);
    return status;
}

static gm_status prompts_add(prompts_state *s, size_t number, str text, error *e) {
    error problem = { 0 };
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        prompt_line *lines = realloc(s->lines, capacity * sizeof *lines);
        if (!lines) return fail_memory(e, "the prompts", capacity * sizeof *lines);
        s->lines = lines;
        s->capacity = capacity;
    }
    prompt_line *line = &s->lines[s->count++];
    *line = (prompt_line){ .number = number };
    const gm_status status = line_read(line, text, &problem);
    if (!status) return GM_OK;
    if (status == GM_NO_MEMORY) return fail(e, status, "%s", problem.why);
    if (s->bad++ < MOST_COMPLAINTS && !s->peers.part)
        complain(EXIT_BAD_INPUT, "%s, line %zu: %s", s->options->prompts, number, problem.why);
    return GM_OK;
}

static bool prompt_is_blank(str text) {
    for (size_t i = 0; i < text.length; i++) {
        if (!strchr(" \t\r", text.data[i]) || !text.data[i]) return false;
    }
    return true;
}

/* All lines are checked before the first one is answered. */
static gm_status prompts_read(prompts_state *s, error *e) {
    TRY(input_read(s->options->prompts, &s->text, e));
    const str all = buffer_view(&s->text);
    size_t    number = 1;
    for (size_t at = 0; at < all.length; number++) {
        const char  *end = memchr(all.data + at, '\n', all.length - at);
        const size_t length = end ? (size_t)(end - all.data) - at : all.length - at;
        const str    text = { all.data + at, length };
        if (!prompt_is_blank(text)) TRY(prompts_add(s, number, text, e));
        at += length + 1;
    }
    if (s->bad)
        return fail(e, GM_BAD_ARGUMENT, "%s has %zu bad line%s; nothing was answered", s->options->prompts, s->bad,
                    s->bad == 1 ? "" : "s");
    return s->count ? GM_OK : fail(e, GM_BAD_ARGUMENT, "%s has no prompts", s->options->prompts);
}

/* ---- the output ---- */

/* Whether the text is the answer to the line; *failed: it says why there is none. */
static bool is_answer_of(str text, size_t number, bool *failed) {
    arena      scratch = { 0 };
    json      *root = NULL;
    error      ignored = { 0 };
    int64_t    found = 0;
    const bool fine = !json_parse(text, &scratch, &root, &ignored) && json_integer(json_get(root, "line"), &found) &&
                      found == (int64_t)number;
    *failed = fine && json_get(root, "error");
    arena_free(&scratch);
    return fine;
}

/* Counts the answers that an earlier run has written. A last line that is not whole is cut off. */
static gm_status prompts_open_out(prompts_state *s, error *e) {
    const char *path = s->options->out;
    size_t      at = 0;
    if (s->peers.part && access(path, F_OK)) return GM_OK; /* process 0 writes */
    if (!s->peers.part) s->out = fopen(path, "a+b");
    if (!s->peers.part && !s->out) return fail(e, GM_IO, "cannot open %s: %s", path, strerror(errno));
    gm_status status = input_read(path, &s->earlier, e);
    const str all = buffer_view(&s->earlier);
    while (!status && at < all.length) {
        const char *end = memchr(all.data + at, '\n', all.length - at);
        if (!end) break;
        const str line = { all.data + at, (size_t)(end - all.data) - at };
        bool      failed = false;
        if (s->written == s->count || !is_answer_of(line, s->lines[s->written].number, &failed)) {
            status = fail(e, GM_BAD_ARGUMENT, "line %zu of %s is not the answer to a prompt of %s; use another --out",
                          s->written + 1, path, s->options->prompts);
            break;
        }
        s->lines[s->written].before = (str){ line.data, line.length + 1 };
        s->lines[s->written++].again = failed;
        s->again += failed;
        at += line.length + 1;
    }
    if (!status && s->out && at < all.length && ftruncate(fileno(s->out), (off_t)at))
        status = fail(e, GM_IO, "cannot cut off the last line of %s, which is not whole: %s", path, strerror(errno));
    return status;
}

/* Process 0 writes to the file when all have read it, and found the same. */
static gm_status prompts_agree(prompts_state *s, error *e) {
    const float mine[] = { (float)s->count, (float)s->written };
    float       sums[] = { mine[0], mine[1] };
    TRY(peers_sum(&s->peers, sums, COUNT_OF(sums), e));
    if (sums[0] == mine[0] * (float)s->peers.parts && sums[1] == mine[1] * (float)s->peers.parts) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT,
                "process %zu finds %zu prompts and %zu answers, others do not: %s and %s must be in a folder that all "
                "machines share",
                s->peers.part, s->count, s->written, s->options->prompts, s->options->out);
}

/* Writes to the new file what takes the place of the earlier run's lines, up to the first one whose answer is not there yet; `all`: that
 * one stays as it is. */
static void prompts_rewrite(prompts_state *s, new_file *file, bool all, error *problem) {
    for (; s->rewritten < s->written; s->rewritten++) {
        prompt_line *line = &s->lines[s->rewritten];
        const bool   there = line->result.length || line->result.failed;
        if (line->again && !there && !all) return;
        const str text = there ? buffer_view(&line->result) : line->before;
        if (line->result.failed) fail_memory(problem, "an answer", line->result.length);
        new_file_write(file, text.data, text.length);
        buffer_free(&line->result);
    }
}

/* Writes the answers that are there, in the order of the prompts. */
static gm_status prompts_write(prompts_state *s, error *e) {
    while (s->written < s->count && (s->lines[s->written].result.length || s->lines[s->written].result.failed)) {
        prompt_line *line = &s->lines[s->written];
        if (line->result.failed) return fail_memory(e, "an answer", line->result.length);
        const bool fine =
            fwrite(line->result.data, 1, line->result.length, s->out) == line->result.length && !fflush(s->out);
        if (!fine) return fail(e, GM_IO, "cannot write to %s: %s", s->options->out, strerror(errno));
        buffer_free(&line->result);
        chat_request_free(&line->request);
        progress_update(&s->bar, ++s->written, s->count);
    }
    return GM_OK;
}

/* ---- answering ---- */

static void line_finish(prompts_state *s, prompt_line *line, const answer *a, const char *problem) {
    report r = { 0 };
    report_open(&r, NULL, '{');
    report_count(&r, "line", line->number);
    if (line->id.length) report_json(&r, "id", buffer_view(&line->id));
    if (problem) {
        report_text(&r, "error", problem);
        s->failed++;
    } else {
        report_str(&r, "content", buffer_view(&a->content));
        if (a->thinking.length && line->request.think) report_str(&r, "thinking", buffer_view(&a->thinking));
        if (a->call_count) {
            report_open(&r, "tool_calls", '[');
            report_json(&r, NULL, buffer_view(&a->calls));
            report_close(&r, ']');
        }
        report_text(&r, "finish_reason", finish_name(a->stats.finish));
        report_open(&r, "usage", '{');
        report_count(&r, "prompt_tokens", a->stats.prompt_tokens);
        report_count(&r, "completion_tokens", a->stats.reply_tokens);
        report_close(&r, '}');
    }
    report_close(&r, '}');
    buffer_char(&r.text, '\n');
    line->result = r.text;
}

static void slot_collect(prompt_slot *q, const gm_piece *piece) {
    const str text = { piece->text, piece->length };
    if (piece->kind == GM_PIECE_CONTENT) buffer_str(&q->answer.content, text);
    if (piece->kind == GM_PIECE_THINKING) buffer_str(&q->answer.thinking, text);
    if (piece->kind != GM_PIECE_TOOL_CALL) return;
    if (q->answer.call_count++) buffer_char(&q->answer.calls, ',');
    buffer_str(&q->answer.calls, text);
}

static void slot_end(prompts_state *s, prompt_slot *q, const char *problem) {
    line_finish(s, q->line, &q->answer, problem);
    gm_reply_free(q->reply);
    answer_free(&q->answer);
    q->reply = NULL;
    q->line = NULL;
}

/* Without a seed of its own, each line gets one that depends on --seed and its number only. */
static void slot_start(prompts_state *s, prompt_slot *q, prompt_line *line) {
    char             why[400] = "";
    gm_sampling      sampling = s->sampling;
    gm_reply_options options;
    sampling.seed += line->number;
    options = chat_request_options(&line->request, &sampling);
    if (!options.max_tokens) options.max_tokens = s->options->most;
    options.think = options.think || s->options->think;
    line->request.think = options.think;
    options.logprobs = 0;
    options.want_logprobs = false;
    q->line = line;
    if (gm_reply_start(q->session, line->request.messages, line->request.message_count, &options, &q->reply, why,
                       sizeof why))
        slot_end(s, q, why);
}

/* One call for the slot. Only what would hit every prompt is an error. */
static gm_status slot_advance(prompts_state *s, prompt_slot *q, error *e) {
    gm_piece        piece = { 0 };
    char            why[sizeof e->why] = "";
    const gm_status status = gm_reply_next(q->reply, &piece, why, sizeof why);
    gm_reply_get_stats(q->reply, &q->answer.stats);
    if (status == GM_OK) slot_collect(q, &piece);
    if (status == GM_OK || status == GM_AGAIN) return GM_OK;
    const bool full = status == GM_CONTEXT_FULL && q->answer.stats.finish == GM_FINISH_LENGTH;
    if (status == GM_DEVICE_LOST || status == GM_CANCELLED) return fail(e, status, "%s", why);
    slot_end(s, q, status == GM_DONE || full ? NULL : why);
    return GM_OK;
}

static bool prompt_is_mine(const prompts_state *s, size_t i) {
    return !s->shared || i % s->peers.parts == s->peers.part;
}

/* Gives each slot a prompt and a call. *busy: some are not answered. */
static gm_status prompts_round(prompts_state *s, bool *busy, error *e) {
    *busy = false;
    if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
    for (size_t i = 0; i < s->options->parallel; i++) {
        prompt_slot *q = &s->slots[i];
        while (s->next < s->end && !prompt_is_mine(s, s->next)) s->next++;
        if (!q->line && q->session && s->next < s->end) slot_start(s, q, &s->lines[s->next++]);
        if (q->line) TRY(slot_advance(s, q, e));
        *busy = *busy || q->line;
    }
    return GM_OK;
}

/* Asks again what an earlier run could not answer. The answers go into a new file, which replaces the old one in the end. What is answered
 * by an interrupt is kept. */
static gm_status prompts_answer_again(prompts_state *s, error *e) {
    gm_status status = GM_OK;
    error     stopped = { 0 }, problem = { 0 };
    new_file *file = NULL;
    TRY(new_file_open(s->options->out, NEW_FILE_KEPT, &file, e));
    for (bool busy = true; busy && !status;) {
        while (s->next < s->written && !s->lines[s->next].again) s->next++;
        const size_t most = min_size(s->written, s->rewritten + WINDOW * s->options->parallel);
        s->end = s->next < most ? s->next + 1 : s->next;
        status = prompts_round(s, &busy, &stopped);
        prompts_rewrite(s, file, false, &problem);
        busy = busy || s->next < s->written;
    }
    prompts_rewrite(s, file, true, &problem);
    TRY(new_file_end(file, &problem, e));
    fclose(s->out); /* the old one */
    s->out = fopen(s->options->out, "ab");
    if (!s->out) return fail(e, GM_IO, "cannot open %s: %s", s->options->out, strerror(errno));
    return status ? fail(e, status, "%s", stopped.why) : GM_OK;
}

/* ---- several processes ---- */

/* What goes before an answer in a message. */
typedef struct {
    uint64_t prompt;
    uint64_t failed;
} answer_head;

/* Sends the answers that are there. */
static gm_status prompts_send(prompts_state *s, error *e) {
    while (s->written < s->next && (!prompt_is_mine(s, s->written) || s->lines[s->written].sent)) s->written++;
    for (size_t i = s->written; i < s->next; i++) {
        prompt_line *line = &s->lines[i];
        const bool   there = line->result.length || line->result.failed;
        if (!prompt_is_mine(s, i) || line->sent || !there) continue;
        const answer_head head = { i, s->failed };
        buffer            message = { 0 };
        buffer_append(&message, &head, sizeof head);
        buffer_str(&message, buffer_view(&line->result));
        const bool      fine = !message.failed && !line->result.failed;
        const gm_status status =
            fine ? peers_send(&s->peers, buffer_view(&message), e) : fail_memory(e, "an answer", line->result.length);
        buffer_free(&message);
        buffer_free(&line->result);
        chat_request_free(&line->request);
        s->failed = 0;
        line->sent = true;
        if (status) return status;
    }
    return GM_OK;
}

/* Takes answers that others have sent; *any: there were some. */
static gm_status prompts_receive(prompts_state *s, bool *any, error *e) {
    gm_status status = GM_OK;
    for (*any = false; s->shared && !status;) {
        buffer      message = { 0 };
        answer_head head = { 0 };
        status = peers_receive(&s->peers, &message, e);
        const bool there = !status && message.length > sizeof head;
        if (there) memcpy(&head, message.data, sizeof head);
        if (there && head.prompt < s->count && !prompt_is_mine(s, (size_t)head.prompt)) {
            buffer_append(&s->lines[head.prompt].result, message.data + sizeof head, message.length - sizeof head);
            s->failed += (size_t)head.failed;
            *any = true;
        } else if (!status && message.length) status = fail(e, GM_IO, "a message of another process is not an answer");
        buffer_free(&message);
        if (!there) break;
    }
    return status;
}

/* Any other process than 0: it answers its part and sends it. */
static gm_status prompts_answer_part(prompts_state *s, error *e) {
    bool busy = false;
    s->end = s->count;
    for (s->next = s->written; busy || s->next < s->end;) {
        TRY(prompts_round(s, &busy, e));
        TRY(prompts_send(s, e));
    }
    return GM_OK;
}

static gm_status prompts_answer(prompts_state *s, error *e) {
    bool busy, any;
    if (s->again && !s->peers.part) TRY(prompts_answer_again(s, e));
    s->shared = s->peers.parts > 1;
    if (s->peers.part) return prompts_answer_part(s, e);
    for (s->next = s->written; s->written < s->count;) {
        s->end = min_size(s->count, s->written + WINDOW * s->options->parallel * s->peers.parts);
        TRY(prompts_round(s, &busy, e));
        TRY(prompts_receive(s, &any, e));
        TRY(prompts_write(s, e));
        if (!busy && !any)
            nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL); /* only others have something to do */
    }
    return GM_OK;
}

static gm_status prompts_open(prompts_state *s, error *e) {
    const prompts_options *o = s->options;
    model_argument         model;
    TRY(model_argument_resolve(o->model, &s->memory, &model, e));
    TRY(engine_open(o->engine, model.engine, !o->quiet && !s->peers.part, &s->engine, e));
    TRY(sampling_choose(o->sampling, s->engine, &s->sampling, e));
    s->slots = calloc(o->parallel, sizeof *s->slots);
    if (!s->slots) return fail_memory(e, "the sessions", o->parallel * sizeof *s->slots);
    for (size_t i = 0; i < min_size(o->parallel, max_size(s->count - s->written, s->again)); i++)
        TRY(session_open(o->engine, s->engine, o->context, &s->slots[i].session, e));
    return GM_OK;
}

static void prompts_free(prompts_state *s) {
    for (size_t i = 0; s->slots && i < s->options->parallel; i++) {
        gm_reply_free(s->slots[i].reply);
        answer_free(&s->slots[i].answer);
        gm_session_free(s->slots[i].session);
    }
    for (size_t i = 0; i < s->count; i++) {
        chat_request_free(&s->lines[i].request);
        buffer_free(&s->lines[i].id);
        buffer_free(&s->lines[i].result);
    }
    gm_engine_close(s->engine);
    free(s->slots);
    free(s->lines);
    buffer_free(&s->text);
    buffer_free(&s->earlier);
    arena_free(&s->memory);
}

int run_prompts(const prompts_options *options) {
    prompts_state s = { .options = options };
    error         e = { 0 };
    int           code = EXIT_OK;
    gm_status     status = peers_open(&s.peers, &e);
    if (s.peers.parts == 1) interrupt_catch(); /* else mpirun ends all of them */
    if (!status) status = prompts_read(&s, &e);
    if (!status) status = prompts_open_out(&s, &e);
    if (!status) status = prompts_agree(&s, &e);
    const size_t before = s.written;
    if (!status && (s.written < s.count || s.again)) status = prompts_open(&s, &e);
    progress_start(&s.bar, "answering", PROGRESS_STEPS, !options->quiet && !s.peers.part);
    if (!status) status = prompts_answer(&s, &e);
    progress_end(&s.bar);
    if (s.out && fclose(s.out) && !status)
        status = fail(&e, GM_IO, "cannot write to %s: %s", options->out, strerror(errno));
    if (status) code = complain_error(&e);
    else if (s.failed && !s.peers.part)
        code = complain(EXIT_CHECK_FAILED, "%zu of %zu prompts have no answer; see \"error\" in %s", s.failed, s.count,
                        options->out);
    if (s.out && !options->quiet && (before || status))
        fprintf(stderr, "gemmule: %s has %zu of %zu answers%s\n", options->out, s.written, s.count,
                status ? "; run the command again to continue" : "");
    prompts_free(&s);
    peers_close(&s.peers, status != GM_OK, code);
    return code;
}
