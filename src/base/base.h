/* For every file: errors that travel up, strings with a length, arithmetic that detects overflow. */

#ifndef GM_BASE_H
#define GM_BASE_H

#include <gemmule.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(string, first) __attribute__((format(printf, string, first)))
#else
#define PRINTF_LIKE(string, first)
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Why something failed, for the user. Zero-initialise. Later failures do not replace the first, which is the cause.
 *
 * Whether a call failed is said by what it returns: a gm_status, or a pointer or handle that is NULL or 0. Callers test that and
 * pass it on; they read e->status only to return it when there is no handle, and where an error leaves the program. */
typedef struct {
    gm_status status;
    char      why[400];
} error;

/* Returns from this function with the status of the call, unless that is GM_OK. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const gm_status tried_ = (call);                                                                               \
        if (tried_) return tried_;                                                                                     \
    } while (0)

/* GM_AGAIN and GM_DONE are not failures. */
static inline bool status_failed(gm_status status) { return status >= GM_BAD_FILE; }

/* Records the failure (unless there is one already) and returns its status, so that callers write `return fail(...)`. */
gm_status fail(error *e, gm_status status, const char *format, ...) PRINTF_LIKE(3, 4);

/* Reports that `bytes` for `what` could not be allocated. */
gm_status fail_memory(error *e, const char *what, uint64_t bytes);

/* Copies the message to a caller's buffer (which may be NULL) and returns the status. */
gm_status error_report(const error *e, char *why, size_t why_size);

/* Bytes that somebody else owns, not ended by a NUL. */
typedef struct {
    const char *data;
    size_t      length;
} str;

str  str_of(const char *zero_terminated); /* NULL gives the empty string */
bool str_equal(str a, str b);
bool str_is(str a, const char *zero_terminated);
bool str_starts_with(str a, const char *prefix);
bool str_ends_with(str a, const char *suffix);
int  str_compare(str a, str b); /* bytewise */
char ascii_lower(char c);

/* For "%.*s". */
#define STR_ARGS(s) (int)((s).length > 200 ? 200 : (s).length), (s).data

/* false on overflow; *out is then untouched. */
bool mul_u64(uint64_t a, uint64_t b, uint64_t *out);
bool add_u64(uint64_t a, uint64_t b, uint64_t *out);

/* "2,048": a number for people to read. Returns `out`. */
const char *with_commas(uint64_t n, char out[32]);

static inline size_t   min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t   max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline uint64_t round_up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
