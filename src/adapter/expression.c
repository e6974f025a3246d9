/* An expression becomes a small program, which runs on all its threads at once, character by character (Thompson). So no
 * expression takes exponential time. */

#include "adapter/expression.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 2000, MOST_TEXT = 1024, DEEPEST_GROUP = 16, MOST_REPEATS = 100 };

typedef enum {
    STEP_CLASS,     /* one character of `set` */
    STEP_SPLIT,     /* goes on at a and at b */
    STEP_JUMP,      /* goes on at a */
    STEP_BEGIN,     /* at the beginning */
    STEP_END,       /* at the end */
    STEP_BOUNDARY,  /* between a word and something else; `opposite`: anywhere else */
    STEP_LOOKAHEAD, /* goes on at b if the program at a matches what follows; `opposite`: if it does not */
    STEP_MATCH,
} step_kind;

typedef struct {
    step_kind kind;
    bool      opposite;
    uint16_t  a, b;
    uint8_t   set[32]; /* a bit for each byte */
} step;

typedef struct {
    str    text;
    size_t at, depth;
    step  *steps;
    size_t count;
    error *e;
} compiler;

/* ---- compiling ---- */

static gm_status compile_choice(compiler *c);

static gm_status expression_fail(const compiler *c, const char *what) {
    return fail(c->e, GM_UNSUPPORTED, "the expression '%.*s': %s at character %zu", STR_ARGS(c->text), what, c->at + 1);
}

static int next_char(const compiler *c) { return c->at < c->text.length ? (unsigned char)c->text.data[c->at] : -1; }

static bool take_text(compiler *c, const char *text) {
    const size_t n = strlen(text);
    if (c->text.length - c->at < n || memcmp(c->text.data + c->at, text, n)) return false;
    c->at += n;
    return true;
}

static gm_status add_step(compiler *c, step s) {
    if (c->count == MOST_STEPS) return expression_fail(c, "too long");
    c->steps[c->count++] = s;
    return GM_OK;
}

static void set_range(uint8_t set[32], int first, int last) {
    for (int i = first; i <= last; i++) set[i / 8] |= (uint8_t)(1 << i % 8);
}

static bool set_has(const uint8_t set[32], int c) { return set[c / 8] >> c % 8 & 1; }

/* \d, \w, \s and their opposites. False: no class. */
static bool set_class(uint8_t set[32], int name) {
    uint8_t   own[32] = { 0 };
    const int lower = name | 32;
    if (lower == 'd') {
        set_range(own, '0', '9');
    } else if (lower == 'w') {
        set_range(own, '0', '9'), set_range(own, 'a', 'z'), set_range(own, 'A', 'Z'), set_range(own, '_', '_');
    } else if (lower == 's') {
        set_range(own, '\t', '\r'), set_range(own, ' ', ' ');
    } else {
        return false;
    }
    for (int i = 0; i < 32; i++) set[i] |= (uint8_t)(name == lower ? own[i] : ~own[i]);
    return true;
}

static bool is_letter_or_digit(int c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Behind a backslash that stands for one character; letters and digits have other meanings. */
static gm_status take_escaped(compiler *c, int *out) {
    const int next = next_char(c);
    if (next < 0 || is_letter_or_digit(next)) return expression_fail(c, "an unknown escape");
    c->at++;
    *out = next;
    return GM_OK;
}

/* Behind "[". */
static gm_status compile_set(compiler *c) {
    step       s = { .kind = STEP_CLASS };
    const bool opposite = take_text(c, "^");
    for (bool first = true;; first = false) {
        int from = next_char(c), to;
        if (from < 0) return expression_fail(c, "a set without ']'");
        c->at++;
        if (from == ']' && !first) break;
        if (from == '\\') {
            const int name = next_char(c);
            if (name >= 0 && set_class(s.set, name)) {
                c->at++;
                continue;
            }
            TRY(take_escaped(c, &from));
        }
        to = from;
        if (next_char(c) == '-' && c->at + 1 < c->text.length && c->text.data[c->at + 1] != ']') {
            c->at++;
            to = next_char(c);
            c->at++;
            if (to == '\\') TRY(take_escaped(c, &to));
            if (to < from) return expression_fail(c, "a range in the wrong order");
        }
        set_range(s.set, from, to);
    }
    for (int i = 0; opposite && i < 32; i++) s.set[i] = (uint8_t)~s.set[i];
    return add_step(c, s);
}

static gm_status compile_escape(compiler *c) {
    step      s = { .kind = STEP_CLASS };
    const int name = next_char(c);
    int       plain = 0;
    if (name == 'b' || name == 'B') {
        c->at++;
        return add_step(c, (step){ .kind = STEP_BOUNDARY, .opposite = name == 'B' });
    }
    if (name >= 0 && set_class(s.set, name)) {
        c->at++;
        return add_step(c, s);
    }
    TRY(take_escaped(c, &plain));
    set_range(s.set, plain, plain);
    return add_step(c, s);
}

/* Behind "(". */
static gm_status compile_group(compiler *c) {
    const bool ahead = take_text(c, "?="), not_ahead = !ahead && take_text(c, "?!");
    if (!ahead && !not_ahead && !take_text(c, "?:") && next_char(c) == '?')
        return expression_fail(c, "a kind of group that is not known");
    if (++c->depth > DEEPEST_GROUP) return expression_fail(c, "too many groups in each other");
    const size_t look = c->count;
    if (ahead || not_ahead) TRY(add_step(c, (step){ .kind = STEP_LOOKAHEAD, .opposite = not_ahead }));
    TRY(compile_choice(c));
    if (!take_text(c, ")")) return expression_fail(c, "a group without ')'");
    c->depth--;
    if (!ahead && !not_ahead) return GM_OK;
    TRY(add_step(c, (step){ .kind = STEP_MATCH }));
    c->steps[look].a = (uint16_t)(look + 1);
    c->steps[look].b = (uint16_t)c->count;
    return GM_OK;
}

static gm_status compile_atom(compiler *c) {
    step      s = { .kind = STEP_CLASS };
    const int next = next_char(c);
    c->at++;
    switch (next) {
    case '(': return compile_group(c);
    case '[': return compile_set(c);
    case '\\': return compile_escape(c);
    case '^': return add_step(c, (step){ .kind = STEP_BEGIN });
    case '$': return add_step(c, (step){ .kind = STEP_END });
    case '*':
    case '+':
    case '?': c->at--; return expression_fail(c, "nothing to repeat");
    case '.': set_range(s.set, 0, 255); break;
    default: set_range(s.set, next, next);
    }
    return add_step(c, s);
}

static size_t take_number(compiler *c) {
    size_t n = 0;
    for (int d; (d = next_char(c)) >= '0' && d <= '9'; c->at++) n = n > MOST_REPEATS ? n : n * 10 + (size_t)(d - '0');
    return n;
}

/* "{m,n}", "{m,}", "{,n}", "{m}"; a brace that starts none of them is a character. */
static bool take_counts(compiler *c, size_t *least, size_t *most) {
    const size_t start = c->at;
    if (!take_text(c, "{")) return false;
    const size_t digits = c->at;
    *least = *most = take_number(c);
    bool any = c->at > digits;
    if (take_text(c, ",")) {
        const size_t more = c->at;
        *most = take_number(c);
        if (c->at == more) *most = SIZE_MAX;
        else any = true;
    }
    if (any && take_text(c, "}")) return true;
    c->at = start;
    return false;
}

/* Appends a copy of the steps from `first` to `end`, with jumps moved. */
static gm_status copy_steps(compiler *c, size_t first, size_t end) {
    const size_t moved = c->count - first;
    for (size_t i = first; i < end; i++) {
        step s = c->steps[i];
        s.a = (uint16_t)(s.a + moved);
        s.b = (uint16_t)(s.b + moved);
        TRY(add_step(c, s));
    }
    return GM_OK;
}

/* x? : split(x, end) x end. The split is put before the steps of x, which move up by one. */
static gm_status insert_split(compiler *c, size_t at) {
    TRY(add_step(c, (step){ 0 }));
    for (size_t i = c->count - 1; i > at; i--) {
        c->steps[i] = c->steps[i - 1];
        c->steps[i].a++;
        c->steps[i].b++;
    }
    c->steps[at] = (step){ .kind = STEP_SPLIT, .a = (uint16_t)(at + 1), .b = (uint16_t)c->count };
    return GM_OK;
}

/* Repeats the atom whose steps start at `first`: `least` copies, then optional ones, or a loop. */
static gm_status repeat_atom(compiler *c, size_t first, size_t least, size_t most) {
    const size_t end = c->count, length = end - first;
    if (least > MOST_REPEATS || (most != SIZE_MAX && most > MOST_REPEATS))
        return expression_fail(c, "too many repetitions");
    if (most < least) return expression_fail(c, "fewer repetitions at most than at least");
    if (!most) {
        c->count = first;
        return GM_OK;
    }
    for (size_t i = 1; i < least; i++) TRY(copy_steps(c, first, end));
    size_t from = first;
    if (most == SIZE_MAX || most > least) { /* x{2,4} = x x x? x?; x{2,} = x x x* */
        const size_t more = most == SIZE_MAX ? 1 : most - least;
        for (size_t i = 0; i < more; i++) {
            const size_t at = c->count;
            if (least || i) TRY(copy_steps(c, from, from + length));
            const size_t start = least || i ? at : first;
            TRY(insert_split(c, start));
            if (!least && !i) from = start + 1;
            if (most != SIZE_MAX) continue;
            TRY(add_step(c, (step){ .kind = STEP_JUMP, .a = (uint16_t)start }));
            c->steps[start].b = (uint16_t)c->count;
        }
    }
    return GM_OK;
}

static gm_status compile_repeated(compiler *c) {
    const size_t first = c->count;
    size_t       least = 1, most = 1;
    TRY(compile_atom(c));
    if (take_text(c, "*")) least = 0, most = SIZE_MAX;
    else if (take_text(c, "+")) most = SIZE_MAX;
    else if (take_text(c, "?")) least = 0;
    else if (!take_counts(c, &least, &most)) return GM_OK;
    take_text(c, "?"); /* lazy: the same for whole matches */
    if (next_char(c) == '+' || next_char(c) == '*') return expression_fail(c, "nothing to repeat");
    return repeat_atom(c, first, least, most);
}

static gm_status compile_sequence(compiler *c) {
    while (next_char(c) >= 0 && next_char(c) != '|' && next_char(c) != ')') TRY(compile_repeated(c));
    return GM_OK;
}

/* a|b : split(a, b) a jump(end) b end */
static gm_status compile_choice(compiler *c) {
    const size_t first = c->count;
    TRY(compile_sequence(c));
    if (!take_text(c, "|")) return GM_OK;
    TRY(insert_split(c, first));
    const size_t jump = c->count;
    TRY(add_step(c, (step){ .kind = STEP_JUMP }));
    c->steps[first].b = (uint16_t)c->count;
    TRY(compile_choice(c));
    c->steps[jump].a = (uint16_t)c->count;
    return GM_OK;
}

/* ---- running ---- */

typedef struct {
    const step *steps;
    size_t      count;
    str         text;
    size_t      budget; /* steps that may still be taken, over all lookaheads */
} program;

static bool is_word_at(str text, size_t at) {
    return at < text.length && (is_letter_or_digit((unsigned char)text.data[at]) || text.data[at] == '_');
}

static bool program_run(program *p, size_t start, size_t at, bool whole, size_t depth);

/* Adds a thread and those that it leads to without reading a character. `seen` says when each step was added last. */
static void add_thread(program *p, size_t pc, size_t at, uint16_t *list, size_t *count, uint16_t *seen, size_t depth) {
    uint16_t waiting[MOST_STEPS + 1];
    size_t   n = 0;
    waiting[n++] = (uint16_t)pc;
    while (n && p->budget) {
        const uint16_t now = waiting[--n];
        if (seen[now] == at + 1) continue;
        seen[now] = (uint16_t)(at + 1);
        p->budget--;
        const step *s = &p->steps[now];
        bool        on = true;
        switch (s->kind) {
        case STEP_CLASS:
        case STEP_MATCH: list[(*count)++] = now; continue;
        case STEP_JUMP: waiting[n++] = s->a; continue;
        case STEP_SPLIT:
            waiting[n++] = s->b;
            waiting[n++] = s->a;
            continue;
        case STEP_BEGIN: on = at == 0; break;
        case STEP_END: on = at == p->text.length; break;
        case STEP_BOUNDARY: on = ((at && is_word_at(p->text, at - 1)) != is_word_at(p->text, at)) != s->opposite; break;
        case STEP_LOOKAHEAD:
            on = program_run(p, s->a, at, false, depth + 1) != s->opposite;
            if (on) waiting[n++] = s->b;
            continue;
        }
        if (on) waiting[n++] = (uint16_t)(now + 1);
    }
}

/* `whole`: to the end of the text; otherwise of what begins at `at`. */
static bool program_run(program *p, size_t start, size_t at, bool whole, size_t depth) {
    uint16_t lists[2][MOST_STEPS], seen[MOST_STEPS] = { 0 };
    size_t   count = 0, next = 0;
    if (depth > 2) p->budget = 0; /* lookaheads in lookaheads in lookaheads */
    add_thread(p, start, at, lists[0], &count, seen, depth);
    for (size_t which = 0; p->budget; at++, which ^= 1, count = next) {
        const bool end = at == p->text.length;
        next = 0;
        for (size_t i = 0; i < count; i++) {
            const step *s = &p->steps[lists[which][i]];
            if (s->kind == STEP_MATCH) {
                if (end || !whole) return true;
            } else if (!end && set_has(s->set, (unsigned char)p->text.data[at])) {
                add_thread(p, lists[which][i] + 1u, at + 1, lists[which ^ 1], &next, seen, depth);
            }
        }
        if (end || !next) return false;
    }
    return false;
}

gm_status expression_match(str expression, str text, bool *out, error *e) {
    if (text.length > MOST_TEXT) return fail(e, GM_UNSUPPORTED, "a module's path has %zu bytes", text.length);
    compiler c = { .text = expression, .e = e };
    c.steps = calloc(MOST_STEPS, sizeof *c.steps);
    if (!c.steps) return fail_memory(e, "an expression", MOST_STEPS * sizeof *c.steps);
    gm_status status = compile_choice(&c);
    if (!status && c.at < expression.length) status = expression_fail(&c, "')' without a group");
    if (!status) status = add_step(&c, (step){ .kind = STEP_MATCH });
    if (!status) {
        program p = { .steps = c.steps, .count = c.count, .text = text, .budget = 10 * 1000 * 1000 };
        *out = program_run(&p, 0, 0, true, 0);
        if (!p.budget) status = fail(e, GM_UNSUPPORTED, "the expression '%.*s' takes too long", STR_ARGS(expression));
    }
    free(c.steps);
    return status;
}
