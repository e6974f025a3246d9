/* Reads whole files, for tests. */

#ifndef GM_TEST_READ_FILE_H
#define GM_TEST_READ_FILE_H

#include "base/buffer.h"
#include "test.h"

#include <stdio.h>

static inline buffer file_read(const char *path) {
    buffer out = { 0 };
    char   part[4096];
    FILE  *file = fopen(path, "rb");
    CHECK_MESSAGE(file, "there is no %s", path);
    for (size_t n; file && (n = fread(part, 1, sizeof part, file)) > 0;) buffer_append(&out, part, n);
    if (file) fclose(file);
    return out;
}

#endif
