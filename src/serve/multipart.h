/* Parses multipart/form-data (RFC 7578), as browsers and OpenAI's clients send it. Parts are views into the body; nothing is copied. */

#ifndef GM_SERVE_MULTIPART_H
#define GM_SERVE_MULTIPART_H

#include "base/base.h"

enum {
    FORM_MOST_FIELDS = 32,
    FORM_MOST_HEADERS = 4096, /* bytes, of one field */
    FORM_MOST_BOUNDARY = 70,
};

typedef struct {
    str  name;
    bool file; /* it has a file name */
    str  value;
} form_field;

typedef struct {
    form_field fields[FORM_MOST_FIELDS];
    size_t     count;
} form;

/* "multipart/form-data", with a boundary. */
bool is_form_type(const char *content_type);

/* GM_BAD_FILE: not a form, or one with too much in it. */
gm_status form_parse(str body, const char *content_type, form *out, error *e);

#endif
