/* Linked into the program (-Wl,--wrap), ends it by SIGKILL when its DIE_AT-th new file is about to take its place, counted from 1. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __wrap_rename(const char *from, const char *to) {
    static long renames;
    const char *die_at = getenv("DIE_AT");
    if (++renames == (die_at ? atol(die_at) : 0)) raise(SIGKILL);
    return __real_rename(from, to);
}
