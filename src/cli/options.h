/* Command-line options as tables: a row has an option's name, its argument, its help and the field it sets in the command's
 * values. `--name value` equals `--name=value`, and `-f value` equals `-fvalue`; `--` ends the options; everything else is
 * positional. */

#ifndef GM_OPTIONS_H
#define GM_OPTIONS_H

#include "base/base.h"

#include <stddef.h>

/* The types of the fields. All are zero if the option is not given. */
typedef struct {
    uint64_t value;
    bool     given;
} count_value;

typedef struct {
    double value;
    bool   given;
} number_value;

typedef struct {
    const char **items;
    size_t       count;
} texts_value;

typedef enum {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char * */
    OPTION_TEXTS,  /* texts_value: may be given more than once */
    OPTION_COUNT,  /* count_value: a whole number from `low` to `high` */
    OPTION_BYTES,  /* count_value: a number of bytes, with an optional K, M, G or T */
    OPTION_NUMBER, /* number_value: from `low` to `high` */
    OPTION_CHOICE, /* int: the value of the choice */
} option_kind;

typedef struct {
    const char *name; /* NULL ends the list */
    int         value;
} option_choice;

typedef struct {
    const char          *name;   /* "max" for --max; NULL: only a letter */
    char                 letter; /* 'f' for -f; 0: none */
    option_kind          kind;
    size_t               offset;   /* of the field in the group's struct */
    const char          *argument; /* what the help calls the value */
    const char          *help;
    double               low, high;
    const option_choice *choices;
} option;

/* Rows of a table: FLAG_OPTION(values struct, field, name, letter or 0, …). */
#define OPTION_FIELD(type, field, option_name, option_letter)                                                          \
    .name = option_name, .letter = option_letter, .offset = offsetof(type, field)
#define FLAG_OPTION(type, field, name, letter, text)                                                                   \
    { OPTION_FIELD(type, field, name, letter), .kind = OPTION_FLAG, .help = text }
#define TEXT_OPTION(type, field, name, letter, value, text)                                                            \
    { OPTION_FIELD(type, field, name, letter), .kind = OPTION_TEXT, .argument = value, .help = text }
#define TEXTS_OPTION(type, field, name, letter, value, text)                                                           \
    { OPTION_FIELD(type, field, name, letter), .kind = OPTION_TEXTS, .argument = value, .help = text }
#define COUNT_OPTION(type, field, name, letter, value, from, to, text)                                                 \
    { OPTION_FIELD(type, field, name, letter),                                                                         \
      .kind = OPTION_COUNT,                                                                                            \
      .argument = value,                                                                                               \
      .low = from,                                                                                                     \
      .high = to,                                                                                                      \
      .help = text }
#define BYTES_OPTION(type, field, name, letter, value, text)                                                           \
    { OPTION_FIELD(type, field, name, letter), .kind = OPTION_BYTES, .argument = value, .help = text }
#define NUMBER_OPTION(type, field, name, letter, value, from, to, text)                                                \
    { OPTION_FIELD(type, field, name, letter),                                                                         \
      .kind = OPTION_NUMBER,                                                                                           \
      .argument = value,                                                                                               \
      .low = from,                                                                                                     \
      .high = to,                                                                                                      \
      .help = text }
#define CHOICE_OPTION(type, field, name, letter, value, list, text)                                                    \
    { OPTION_FIELD(type, field, name, letter), .kind = OPTION_CHOICE, .argument = value, .choices = list, .help = text }

/* Options that belong together in the help; several commands may share a group. */
typedef struct {
    const char   *title;
    const option *options;
    size_t        count;
    size_t        offset; /* of the group's struct in the command's values */
} option_group;

#define OPTION_GROUP(title, options, offset) { title, options, COUNT_OF(options), offset }

typedef struct {
    const char **positional;
    size_t       count;
    bool         help; /* --help or -h was given; arguments after it were not read */
} arguments;

/* Reads the arguments after the command's name into `values`. GM_BAD_ARGUMENT is a user's mistake. */
gm_status options_parse(int argc, char **argv, const option_group *groups, size_t group_count, void *values,
                        arguments *out, error *e);
void      options_free(const option_group *groups, size_t group_count, void *values, arguments *parsed);

/* Sets one option by its name, as `--name text` would. */
gm_status options_set(const option_group *groups, size_t group_count, void *values, const char *name, const char *text,
                      error *e);
/* The value of an option as text for options_set; false if it was not given. Only for numbers and counts. */
bool option_value_text(const option *o, const void *group_values, char *out, size_t size);

/* Prints text in lines of at most 80 columns, indented by `indent`; the cursor is at `column`, left of that. */
void print_wrapped(const char *text, int column, int indent);
/* Prints the groups for --help, in two columns. */
void options_help(const option_group *groups, size_t group_count);

/* The name that was probably meant by `wrong`, or NULL. */
const char *nearest_name(const char *wrong, const char *const *names, size_t count);

/* Parse the whole text, without spaces and independent of the locale. */
bool parse_count(const char *text, uint64_t *out);
bool parse_number(const char *text, double *out);
bool parse_bytes(const char *text, uint64_t *out); /* "4G", "900M", "65536": powers of 1024, not 0 */

#endif
