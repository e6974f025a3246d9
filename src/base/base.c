/* Errors, strings with a length, checked arithmetic, and two public functions that belong nowhere else. */

#include "base/base.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages quote names from files. Control characters and bytes that are not UTF-8 (such as a cut-off end) become '?', because
 * they could control a terminal. */
static void make_printable(char *text) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        int           n = utf8_length((str){ text + i, length - i });
        unsigned char c = (unsigned char)text[i];
        bool          steers = c < 0x20 || c == 0x7f || (n == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0);
        if (n < 1) {
            text[i++] = '?';
        } else if (steers) {
            for (int k = 0; k < n; k++) text[i++] = c == '\n' || c == '\t' ? ' ' : '?';
        } else {
            i += (size_t)n;
        }
    }
}

gm_status fail(error *e, gm_status status, const char *format, ...) {
    if (!e) return status;
    if (e->status != GM_OK) return e->status;
    e->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(e->why, sizeof e->why, format, args) < 0) e->why[0] = 0;
    va_end(args);
    make_printable(e->why);
    return status;
}

gm_status fail_memory(error *e, const char *what, uint64_t bytes) {
    return fail(e, GM_NO_MEMORY, "out of memory: %s needs %llu bytes", what, (unsigned long long)bytes);
}

gm_status error_report(const error *e, char *why, size_t why_size) {
    if (why && why_size) {
        size_t length = min_size(strlen(e->why), why_size - 1);
        while (length && ((unsigned char)e->why[length] & 0xc0) == 0x80) length--; /* no half character at the end */
        memcpy(why, e->why, length);
        why[length] = 0;
    }
    return e->status;
}

str str_of(const char *zero_terminated) {
    return zero_terminated ? (str){ zero_terminated, strlen(zero_terminated) } : (str){ "", 0 };
}

bool str_equal(str a, str b) { return a.length == b.length && (!a.length || !memcmp(a.data, b.data, a.length)); }

bool str_is(str a, const char *zero_terminated) { return str_equal(a, str_of(zero_terminated)); }

bool str_starts_with(str a, const char *prefix) {
    str p = str_of(prefix);
    return a.length >= p.length && str_equal((str){ a.data, p.length }, p);
}

bool str_ends_with(str a, const char *suffix) {
    str s = str_of(suffix);
    if (a.length < s.length) return false;
    return !s.length || !memcmp(a.data + (a.length - s.length), s.data, s.length);
}

int str_compare(str a, str b) {
    size_t shared = min_size(a.length, b.length);
    int    order = shared ? memcmp(a.data, b.data, shared) : 0;
    if (order) return order < 0 ? -1 : 1;
    return a.length < b.length ? -1 : a.length > b.length;
}

char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

bool mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

bool add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}

const char *gm_status_name(gm_status status) {
    static const struct {
        gm_status   status;
        const char *name;
    } names[] = {
        { GM_OK, "GM_OK" },
        { GM_AGAIN, "GM_AGAIN" },
        { GM_DONE, "GM_DONE" },
        { GM_BAD_FILE, "GM_BAD_FILE" },
        { GM_UNSUPPORTED, "GM_UNSUPPORTED" },
        { GM_BAD_ARGUMENT, "GM_BAD_ARGUMENT" },
        { GM_NOT_FOUND, "GM_NOT_FOUND" },
        { GM_IO, "GM_IO" },
        { GM_NO_MEMORY, "GM_NO_MEMORY" },
        { GM_DEVICE_LOST, "GM_DEVICE_LOST" },
        { GM_CONTEXT_FULL, "GM_CONTEXT_FULL" },
        { GM_NO_DEVICE, "GM_NO_DEVICE" },
        { GM_CANCELLED, "GM_CANCELLED" },
        { GM_BUSY, "GM_BUSY" },
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (names[i].status == status) return names[i].name;
    }
    return "unknown status";
}

void gm_free(void *data) { free(data); }

const char *with_commas(uint64_t n, char out[32]) {
    char   digits[32];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), used = 0;
    for (size_t i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = 0;
    return out;
}
