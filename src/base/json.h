/* JSON: a parser into a tree, and the few functions that write it. */

#ifndef GM_JSON_H
#define GM_JSON_H

#include "base/arena.h"
#include "base/buffer.h"

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_kind;

/* Children are a linked list in the order of the text; a duplicate key keeps both, and json_get finds the last, as
 * JavaScript does. */
typedef struct json json;
struct json {
    json_kind kind;
    str       key;  /* inside an object */
    str       text; /* a string's value, unescaped, valid UTF-8; a number as it was written */
    double    number;
    json     *first, *next;
    size_t    count; /* children */
};

/* Parses one value, followed by nothing but white space. At most 100 levels deep. Names line and column of an error. */
gm_status json_parse(str text, arena *a, json **out, error *e);
/* The same for a large text that may be changed and outlives the tree: strings without escapes are not copied. */
gm_status json_parse_in_place(char *text, size_t length, arena *a, json **out, error *e);

const json *json_get(const json *object, const char *key); /* NULL if absent or not an object */
const json *json_get_str(const json *object, str key);
str         json_string(const json *value, const char *otherwise); /* its text if it is a string */
bool        json_integer(const json *value, int64_t *out);         /* false unless it is a whole number that fits */
/* Fails if the object has a key twice: programs disagree about which one counts. */
gm_status          json_check_keys(const json *object, error *e);
static inline bool json_is(const json *value, json_kind kind) { return value && value->kind == kind; }

void json_write(buffer *out, const json *value); /* compact */
void json_write_string(buffer *out, str text);   /* quoted and escaped; broken UTF-8 becomes U+FFFD */
void json_write_number(buffer *out,
                       double  value); /* shortest text that reads back the same; null for NaN and infinities */

/* What a value is, for messages: "a number"; NULL is "nothing". */
const char *json_describe(const json *value);

#endif
