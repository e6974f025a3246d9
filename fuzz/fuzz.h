/* What must hold for every input. */

#ifndef GM_FUZZ_H
#define GM_FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "does not hold: %s\n", #condition);                                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
