/* Fuzzes pictures of every kind, as files: GIF, JPEG, WebP and EXIF, and what is none of them. */

#include "fuzz_picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_picture(data, size);
    return 0;
}
