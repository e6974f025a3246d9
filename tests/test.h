/* A minimal test framework: begin each case with TEST, CHECK conditions, and end main with `return test_end();`.
 *
 * A case is one row of a table or one function; it fails if any CHECK inside it fails. The last line that a test program
 * prints is "N passed, N failed", which tools/test.sh adds up. */

#ifndef GM_TEST_H
#define GM_TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int             test_passed, test_failed;
static bool            test_open, test_bad;
static char            test_name[200];
static struct timespec test_began;

/* With TEST_SECONDS in the environment, each case says how long it took. */
static void test_tell_seconds(void) {
    struct timespec now;
    if (!getenv("TEST_SECONDS")) return;
    timespec_get(&now, TIME_UTC);
    const double seconds = (double)(now.tv_sec - test_began.tv_sec) + 1e-9 * (double)(now.tv_nsec - test_began.tv_nsec);
    printf("%7.2f s %s\n", seconds, test_name);
    test_began = now;
}

static void test_close(void) {
    if (!test_open) return;
    test_tell_seconds();
    if (test_bad) test_failed++;
    else test_passed++;
    test_open = false;
}

/* The last line, and the exit status. */
static inline int test_end(void) {
    test_close();
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed || !test_passed;
}

/* With TEST_STOPS in the environment, the first failure ends the program. */
static inline void test_go_on(void) {
    if (!test_failed || !getenv("TEST_STOPS")) return;
    const int status = test_end();
    fflush(stdout);
    _Exit(status); /* nothing is closed: the case may have left anything */
}

/* Begins a case and ends the one before. */
#define TEST(...)                                                                                                      \
    do {                                                                                                               \
        test_close();                                                                                                  \
        test_go_on();                                                                                                  \
        snprintf(test_name, sizeof test_name, __VA_ARGS__);                                                            \
        if (!test_began.tv_sec) timespec_get(&test_began, TIME_UTC);                                                   \
        test_open = true;                                                                                              \
        test_bad = false;                                                                                              \
    } while (0)

#define CHECK(condition) CHECK_MESSAGE(condition, "%s", #condition)

/* Like CHECK, with a message for failures. */
#define CHECK_MESSAGE(condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            test_bad = true;                                                                                           \
            printf("FAIL %s (%s:%d): ", test_name, __FILE__, __LINE__);                                                \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#endif
