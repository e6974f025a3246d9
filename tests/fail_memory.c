/* Linked into the program (-Wl,--wrap), lets its FAIL_AT-th request for memory fail, counted from 0, and with FAIL_COUNT set
 * prints the number of requests at the end. */

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_long requests;

static bool refuse_memory(void) {
    const char *fail_at = getenv("FAIL_AT");
    const bool  fails = atomic_fetch_add(&requests, 1) == (fail_at ? atol(fail_at) : -1);
    if (fails) errno = ENOMEM;
    return fails;
}

#define WRAP(type, name, parameters, ...)                                                                              \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters { return refuse_memory() ? NULL : __real_##name(__VA_ARGS__); }

WRAP(void *, malloc, (size_t n), n)
WRAP(void *, calloc, (size_t n, size_t size), n, size)
WRAP(void *, realloc, (void *p, size_t n), p, n)
WRAP(void *, aligned_alloc, (size_t alignment, size_t n), alignment, n)
WRAP(char *, strdup, (const char *text), text)
WRAP(char *, realpath, (const char *path, char *out), path, out)

__attribute__((destructor)) static void print_requests(void) {
    if (getenv("FAIL_COUNT")) fprintf(stderr, "%ld\n", atomic_load(&requests));
}
