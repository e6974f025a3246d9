/* Range and conditional requests (RFC 9110), for a single range. Pure functions on text. */

#ifndef GM_SERVE_BYTE_RANGE_H
#define GM_SERVE_BYTE_RANGE_H

#include "base/base.h"

#include <time.h>

typedef enum {
    RANGE_WHOLE, /* none, several, or not understood: the standard says to send the whole file */
    RANGE_PART,
    RANGE_OUTSIDE, /* 416 */
} range_kind;

/* "bytes=0-99", "bytes=100-", "bytes=-50" of a file of `size` bytes; first and last are set for RANGE_PART. */
range_kind byte_range_parse(const char *text, uint64_t size, uint64_t *first, uint64_t *last);

enum { HTTP_DATE_SIZE = 32 };
/* "Sun, 15 Nov 2026 10:00:00 GMT" */
void http_date(time_t at, char out[HTTP_DATE_SIZE]);
bool http_date_parse(const char *text, time_t *out);

/* Whether the entity tag (with its quotes) is in an If-None-Match list, or the list is "*". */
bool etag_listed(const char *list, const char *etag);

#endif
