/* Fuzzes PNG and inflate. The checksums of the chunks are made right first, so that the fuzzer gets behind them. */

#include "fuzz.h"
#include "fuzz_picture.h"

#include <string.h>

static uint32_t fuzz_crc(const uint8_t *data, size_t n) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? 0xedb88320u ^ crc >> 1 : crc >> 1;
    }
    return ~crc;
}

static void fuzz_repair_chunks(uint8_t *data, size_t size) {
    for (size_t at = 8; at + 12 <= size;) {
        const uint32_t length =
            (uint32_t)data[at] << 24 | (uint32_t)data[at + 1] << 16 | (uint32_t)data[at + 2] << 8 | data[at + 3];
        if (length > size - at - 12) return;
        const uint32_t crc = fuzz_crc(data + at + 4, length + (size_t)4);
        for (int i = 0; i < 4; i++) data[at + 8 + length + i] = (uint8_t)(crc >> (24 - 8 * i));
        at += 12 + (size_t)length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size + 8);
    REQUIRE(copy);
    memcpy(copy, "\x89PNG\r\n\x1a\n", 8);
    if (size > 8) memcpy(copy + 8, data + 8, size - 8);
    fuzz_repair_chunks(copy, size);
    fuzz_picture(copy, size);
    free(copy);
    return 0;
}
