#include "serve/byte_range.h"

#include <string.h>
#include <strings.h>

/* Reads digits at `*at`; false if there are none, or too many for 64 bits. */
static bool range_read_number(const char **at, uint64_t *out) {
    const char *start = *at;
    for (*out = 0; **at >= '0' && **at <= '9'; ++*at) {
        if (!mul_u64(*out, 10, out) || !add_u64(*out, (uint64_t)(**at - '0'), out)) return false;
    }
    return *at > start;
}

static range_kind set_part(uint64_t from, uint64_t to, uint64_t *first, uint64_t *last) {
    *first = from;
    *last = to;
    return RANGE_PART;
}

range_kind byte_range_parse(const char *text, uint64_t size, uint64_t *first, uint64_t *last) {
    static const char unit[] = "bytes=";
    uint64_t          from, to = UINT64_MAX;
    if (!text || strncasecmp(text, unit, sizeof unit - 1) != 0) return RANGE_WHOLE;
    const char *at = text + sizeof unit - 1;
    at += strspn(at, " \t");
    if (*at == '-') { /* the last N bytes */
        uint64_t count;
        at++;
        if (!range_read_number(&at, &count) || at[strspn(at, " \t")]) return RANGE_WHOLE;
        if (!count || !size) return RANGE_OUTSIDE;
        return set_part(count < size ? size - count : 0, size - 1, first, last);
    }
    if (!range_read_number(&at, &from) || *at++ != '-') return RANGE_WHOLE;
    const bool open = !at[strspn(at, " \t")];
    if (!open && (!range_read_number(&at, &to) || at[strspn(at, " \t")] || to < from)) return RANGE_WHOLE;
    if (from >= size) return RANGE_OUTSIDE;
    return set_part(from, to < size ? to : size - 1, first, last);
}

/* We only ever set LC_CTYPE, so days and months have their English names. */
void http_date(time_t at, char out[HTTP_DATE_SIZE]) {
    struct tm parts;
    out[0] = 0;
    if (gmtime_r(&at, &parts)) strftime(out, HTTP_DATE_SIZE, "%a, %d %b %Y %H:%M:%S GMT", &parts);
}

bool http_date_parse(const char *text, time_t *out) {
    struct tm   parts = { 0 };
    const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    if (!end || *end) return false;
    *out = timegm(&parts);
    return true;
}

bool etag_listed(const char *list, const char *etag) {
    const size_t length = strlen(etag);
    if (!strcmp(list, "*")) return true;
    for (const char *at = list; *at;) {
        at += strspn(at, " \t,");
        if (!strncmp(at, "W/", 2)) at += 2;
        const size_t item = strcspn(at, ",");
        size_t       trimmed = item;
        while (trimmed && (at[trimmed - 1] == ' ' || at[trimmed - 1] == '\t')) trimmed--;
        if (trimmed == length && !memcmp(at, etag, length)) return true;
        at += item;
    }
    return false;
}
