/* Bytes that grow at the end. Running out of memory sticks (`failed`), so a writer appends freely and asks once. */

#ifndef GM_BUFFER_H
#define GM_BUFFER_H

#include "base/base.h"

typedef struct {
    char  *data; /* always ends with a NUL behind `length`, once something was appended */
    size_t length, capacity;
    bool   failed;
} buffer; /* zero-initialise */

void              buffer_append(buffer *b, const void *data, size_t length);
void              buffer_str(buffer *b, str text);
void              buffer_text(buffer *b, const char *zero_terminated);
void              buffer_char(buffer *b, char c);
void              buffer_printf(buffer *b, const char *format, ...) PRINTF_LIKE(2, 3);
void              buffer_clear(buffer *b);             /* keeps the memory */
void              buffer_consume(buffer *b, size_t n); /* removes the first n bytes */
void              buffer_free(buffer *b);
bool              buffer_sink(void *b, const void *data, size_t length); /* buffer_append as a gguf_sink */
static inline str buffer_view(const buffer *b) { return (str){ b->data, b->length }; }

#endif
