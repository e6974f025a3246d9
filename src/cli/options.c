#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

bool parse_count(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)text[0])) return false; /* strtoull would accept spaces and a minus sign */
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end) return false;
    *out = value;
    return true;
}

bool parse_bytes(const char *text, uint64_t *out) {
    static const char units[] = "KMGT";
    const size_t      length = strlen(text);
    const char       *unit = length ? strchr(units, toupper((unsigned char)text[length - 1])) : NULL;
    char              digits[32];
    uint64_t          value = 0, scale = 1;
    snprintf(digits, sizeof digits, "%.*s", (int)min_size(length - (unit != NULL), sizeof digits), text);
    for (const char *u = units; unit && u <= unit; u++) scale *= 1024;
    return parse_count(digits, &value) && mul_u64(value, scale, out) && *out;
}

bool parse_number(const char *text, double *out) {
    if (text[strspn(text, "+-.0123456789eE")]) return false; /* no hexadecimal, no "nan", no spaces */
    char        *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value)) return false;
    *out = value;
    return true;
}

/* "a whole number from 1 to 20" */
static void describe_range(const option *o, char *out, size_t size) {
    const char *kind = o->kind == OPTION_COUNT ? "a whole number" : "a number";
    /* %.10g would round the largest count up to a number that does not fit. */
    if (o->high >= (double)UINT64_MAX)
        snprintf(out, size, "%s from %.10g to %llu", kind, o->low, (unsigned long long)UINT64_MAX);
    else snprintf(out, size, "%s from %.10g to %.10g", kind, o->low, o->high);
}

/* ---- names ---- */

enum { LONGEST_NAME = 64 };

/* How many edits turn a into b: a letter inserted, deleted or replaced, or two neighbours swapped. */
static size_t edit_distance(const char *a, const char *b) {
    size_t       rows[3][LONGEST_NAME + 1]; /* row i % 3: from the first i letters of a to the first j of b */
    const size_t from = strlen(a), to = strlen(b);
    if (from > LONGEST_NAME || to > LONGEST_NAME) return SIZE_MAX;
    for (size_t j = 0; j <= to; j++) rows[0][j] = j;
    for (size_t i = 1; i <= from; i++) {
        size_t       *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= to; j++) {
            row[j] = min_size(above[j - 1] + (a[i - 1] != b[j - 1]), min_size(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min_size(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[from % 3][to];
}

const char *nearest_name(const char *wrong, const char *const *names, size_t count) {
    const char *best = NULL;
    size_t      least = 1 + (strlen(wrong) + 2) / 3; /* anything further away is not a typo */
    for (size_t i = 0; i < count; i++) {
        const size_t distance = edit_distance(wrong, names[i]);
        if (distance < least) {
            least = distance;
            best = names[i];
        }
    }
    return best;
}

/* ---- the tables ---- */

typedef struct {
    const option *option;
    char         *field;
} found_option;

/* The option called `name` (of `length` bytes), or with this letter when name is NULL. */
static found_option find_option(const option_group *groups, size_t group_count, void *values, const char *name,
                                size_t length, char letter) {
    for (size_t g = 0; g < group_count; g++) {
        for (size_t i = 0; i < groups[g].count; i++) {
            const option *o = &groups[g].options[i];
            const bool same = name ? o->name && str_equal(str_of(o->name), (str){ name, length }) : o->letter == letter;
            if (same) return (found_option){ o, (char *)values + groups[g].offset + o->offset };
        }
    }
    return (found_option){ NULL, NULL };
}

static gm_status unknown_option(const option_group *groups, size_t group_count, const char *given, error *e) {
    enum { MOST = 100 };
    const char  *names[MOST] = { "help" };
    size_t       count = 1;
    const size_t length = strcspn(given, "=");
    char         name[LONGEST_NAME + 1];
    for (size_t g = 0; g < group_count; g++) {
        for (size_t i = 0; i < groups[g].count && count < MOST; i++) {
            if (groups[g].options[i].name) names[count++] = groups[g].options[i].name;
        }
    }
    snprintf(name, sizeof name, "%.*s", (int)min_size(length, LONGEST_NAME), given);
    const char *hint = strncmp(name, "--", 2) ? NULL : nearest_name(name + 2, names, count);
    if (hint) return fail(e, GM_BAD_ARGUMENT, "unknown option %s; did you mean --%s?", name, hint);
    return fail(e, GM_BAD_ARGUMENT, "unknown option %s", name);
}

static void option_title(const option *o, char *out, size_t size) {
    if (o->name) snprintf(out, size, "--%s", o->name);
    else snprintf(out, size, "-%c", o->letter);
}

static gm_status set_choice(const option *o, int *field, const char *text, error *e) {
    char   title[LONGEST_NAME], list[200] = "";
    size_t used = 0;
    for (const option_choice *c = o->choices; c->name; c++) {
        if (!strcmp(c->name, text)) {
            *field = c->value;
            return GM_OK;
        }
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", c->name);
    }
    option_title(o, title, sizeof title);
    return fail(e, GM_BAD_ARGUMENT, "%s takes one of %s, not '%s'", title, list, text);
}

static gm_status set_number(const option *o, void *field, const char *text, error *e) {
    char         title[LONGEST_NAME], range[100];
    uint64_t     count = 0;
    double       number = 0;
    const bool   whole = o->kind == OPTION_COUNT;
    const bool   reads = whole ? parse_count(text, &count) : parse_number(text, &number);
    const double value = whole ? (double)count : number;
    if (!reads || value < o->low || value > o->high) {
        option_title(o, title, sizeof title);
        describe_range(o, range, sizeof range);
        return fail(e, GM_BAD_ARGUMENT, "%s takes %s, not '%s'", title, range, text);
    }
    if (whole) *(count_value *)field = (count_value){ count, true };
    else *(number_value *)field = (number_value){ number, true };
    return GM_OK;
}

static gm_status set_bytes(const option *o, count_value *field, const char *text, error *e) {
    char title[LONGEST_NAME];
    option_title(o, title, sizeof title);
    field->given = parse_bytes(text, &field->value);
    if (field->given) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "%s takes a number of bytes such as 4G, 900M or 65536, not '%s'", title, text);
}

static gm_status add_text(texts_value *texts, const char *text, error *e) {
    const size_t bytes = (texts->count + 1) * sizeof *texts->items;
    const char **items = realloc(texts->items, bytes);
    if (!items) return fail_memory(e, "the arguments", bytes);
    texts->items = items;
    texts->items[texts->count++] = text;
    return GM_OK;
}

static gm_status set_value(found_option found, const char *text, error *e) {
    void *field = found.field;
    switch (found.option->kind) {
    case OPTION_FLAG: *(bool *)field = true; return GM_OK;
    case OPTION_TEXT: *(const char **)field = text; return GM_OK;
    case OPTION_TEXTS: return add_text(field, text, e);
    case OPTION_CHOICE: return set_choice(found.option, field, text, e);
    case OPTION_BYTES: return set_bytes(found.option, field, text, e);
    case OPTION_COUNT:
    case OPTION_NUMBER: break;
    }
    return set_number(found.option, field, text, e);
}

gm_status options_set(const option_group *groups, size_t group_count, void *values, const char *name, const char *text,
                      error *e) {
    const found_option found = find_option(groups, group_count, values, name, strlen(name), 0);
    if (!found.option) return fail(e, GM_BAD_ARGUMENT, "unknown setting '%s'", name);
    return set_value(found, text, e);
}

bool option_value_text(const option *o, const void *group_values, char *out, size_t size) {
    const void *field = (const char *)group_values + o->offset;
    if (o->kind == OPTION_COUNT || o->kind == OPTION_BYTES) {
        const count_value *count = field;
        if (count->given) snprintf(out, size, "%llu", (unsigned long long)count->value);
        return count->given;
    }
    if (o->kind == OPTION_NUMBER) {
        const number_value *number = field;
        if (number->given) snprintf(out, size, "%.17g", number->value);
        return number->given;
    }
    return false;
}

/* ---- the command line ---- */

/* Parses the option at argv[*at], which may use argv[*at + 1], too. */
static gm_status parse_option(int argc, char **argv, int *at, const option_group *groups, size_t group_count,
                              void *values, error *e) {
    const char  *given = argv[*at];
    const bool   is_long = given[1] == '-';
    const size_t length = is_long ? strcspn(given + 2, "=") : 0;
    const char  *text = is_long ? (given[2 + length] ? given + 2 + length + 1 : NULL) : (given[2] ? given + 2 : NULL);
    found_option found = find_option(groups, group_count, values, is_long ? given + 2 : NULL, length, given[1]);
    char         title[LONGEST_NAME];

    if (!found.option) return unknown_option(groups, group_count, given, e);
    option_title(found.option, title, sizeof title);
    if (found.option->kind == OPTION_FLAG) {
        if (text) return fail(e, GM_BAD_ARGUMENT, "%s takes no value, but got '%s'", title, text);
    } else if (!text) {
        if (*at + 1 >= argc)
            return fail(e, GM_BAD_ARGUMENT, "%s needs a value: %s %s", title, title, found.option->argument);
        text = argv[++*at];
    }
    return set_value(found, text, e);
}

gm_status options_parse(int argc, char **argv, const option_group *groups, size_t group_count, void *values,
                        arguments *out, error *e) {
    texts_value positional = { 0 };
    bool        ended = false;
    gm_status   status = GM_OK;
    *out = (arguments){ 0 };
    for (int i = 0; i < argc && status == GM_OK; i++) {
        if (ended || argv[i][0] != '-' || !argv[i][1]) {
            status = add_text(&positional, argv[i], e); /* "-" alone is positional: standard input */
        } else if (!strcmp(argv[i], "--")) {
            ended = true;
        } else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            out->help = true;
            break;
        } else {
            status = parse_option(argc, argv, &i, groups, group_count, values, e);
        }
    }
    out->positional = positional.items;
    out->count = positional.count;
    return status;
}

void options_free(const option_group *groups, size_t group_count, void *values, arguments *parsed) {
    for (size_t g = 0; g < group_count; g++) {
        for (size_t i = 0; i < groups[g].count; i++) {
            if (groups[g].options[i].kind != OPTION_TEXTS) continue;
            texts_value *texts = (void *)((char *)values + groups[g].offset + groups[g].options[i].offset);
            free(texts->items);
            *texts = (texts_value){ 0 };
        }
    }
    free(parsed->positional);
    *parsed = (arguments){ 0 };
}

/* ---- help ---- */

enum { HELP_COLUMN = 26, HELP_WIDTH = 80 };

void print_wrapped(const char *text, int column, int indent) {
    while (*text) {
        const size_t room = (size_t)(HELP_WIDTH - indent);
        size_t       length = strlen(text);
        if (length > room) {
            for (length = room; length && text[length] != ' ';) length--;
            if (!length) length = strcspn(text, " ");
        }
        printf("%*s%.*s\n", indent - column, "", (int)length, text);
        text += length;
        text += strspn(text, " ");
        column = 0;
    }
}

void options_help(const option_group *groups, size_t group_count) {
    for (size_t g = 0; g < group_count; g++) {
        printf("\n%s:\n", groups[g].title);
        for (size_t i = 0; i < groups[g].count; i++) {
            const option *o = &groups[g].options[i];
            char          left[100];
            int           used = snprintf(left, sizeof left, "  ");
            if (o->letter)
                used += snprintf(left + used, sizeof left - (size_t)used, "-%c%s", o->letter, o->name ? ", " : "");
            if (o->name) used += snprintf(left + used, sizeof left - (size_t)used, "--%s", o->name);
            if (o->argument) used += snprintf(left + used, sizeof left - (size_t)used, " %s", o->argument);
            fputs(left, stdout);
            print_wrapped(o->help, used, HELP_COLUMN);
        }
    }
}
