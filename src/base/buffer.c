/* Bytes that grow at the end. */

#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `more` bytes and the NUL. */
static bool buffer_reserve(buffer *b, size_t more) {
    if (b->failed) return false;
    if (more >= SIZE_MAX - b->length) return !(b->failed = true);
    size_t needed = b->length + more + 1;
    if (needed <= b->capacity) return true;
    size_t capacity = max_size(needed, b->capacity <= SIZE_MAX / 2 ? b->capacity * 2 : needed);
    capacity = max_size(capacity, 64);
    char *data = realloc(b->data, capacity);
    if (!data) return !(b->failed = true);
    b->data = data;
    b->capacity = capacity;
    return true;
}

void buffer_append(buffer *b, const void *data, size_t length) {
    if (!buffer_reserve(b, length)) return;
    if (length) memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = 0;
}

bool buffer_sink(void *b, const void *data, size_t length) {
    buffer_append(b, data, length);
    return !((const buffer *)b)->failed;
}

void buffer_str(buffer *b, str text) { buffer_append(b, text.data, text.length); }

void buffer_text(buffer *b, const char *zero_terminated) { buffer_str(b, str_of(zero_terminated)); }

void buffer_char(buffer *b, char c) { buffer_append(b, &c, 1); }

void buffer_printf(buffer *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        b->failed = true;
        return;
    }
    if (!buffer_reserve(b, (size_t)length)) return;
    va_start(args, format);
    vsnprintf(b->data + b->length, (size_t)length + 1, format, args);
    va_end(args);
    b->length += (size_t)length;
}

void buffer_clear(buffer *b) {
    b->length = 0;
    if (b->data) b->data[0] = 0;
}

void buffer_consume(buffer *b, size_t n) {
    n = min_size(n, b->length);
    if (!n) return;
    memmove(b->data, b->data + n, b->length - n + 1);
    b->length -= n;
}

void buffer_free(buffer *b) {
    free(b->data);
    *b = (buffer){ 0 };
}
