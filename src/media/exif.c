/* EXIF orientation: how the camera was held. */

#include "media/picture_parts.h"

#include <stdlib.h>
#include <string.h>

/* A block is a TIFF file: its header names the byte order and the place of the first directory. */
typedef struct {
    const uint8_t *data;
    size_t         size;
    bool           big; /* big-endian */
} exif_block;

static uint32_t exif_u16(const exif_block *b, size_t at) {
    return b->big ? (uint32_t)b->data[at] << 8 | b->data[at + 1] : (uint32_t)b->data[at + 1] << 8 | b->data[at];
}

static uint32_t exif_u32(const exif_block *b, size_t at) {
    return b->big ? exif_u16(b, at) << 16 | exif_u16(b, at + 2) : exif_u16(b, at + 2) << 16 | exif_u16(b, at);
}

uint32_t exif_orientation(const uint8_t *data, size_t size) {
    enum { HEADER = 8, ENTRY = 12, TAG_ORIENTATION = 0x112, TYPE_SHORT = 3, TYPE_LONG = 4 };
    if (size >= 6 && memcmp(data, "Exif\0\0", 6) == 0) data += 6, size -= 6;
    if (size < HEADER || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0)) return 1;
    const exif_block b = { data, size, data[0] == 'M' };
    const uint32_t   directory = exif_u32(&b, 4);
    if (directory < HEADER || directory > size - 2) return 1;
    const uint32_t entries = exif_u16(&b, directory);
    for (uint32_t i = 0; i < entries; i++) {
        const size_t at = (size_t)directory + 2 + (size_t)i * ENTRY;
        if (at > size || size - at < ENTRY) return 1;
        if (exif_u16(&b, at) != TAG_ORIENTATION) continue;
        const uint32_t type = exif_u16(&b, at + 2);
        const uint32_t value = type == TYPE_SHORT ? exif_u16(&b, at + 8) : type == TYPE_LONG ? exif_u32(&b, at + 8) : 1;
        return value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}

gm_status exif_apply(picture *p, uint32_t orientation, error *e) {
    if (orientation < 2 || orientation > 8) return GM_OK;
    /* Pixel (x, y) of the result is pixel (right ? W−1−u : u, down ? H−1−v : v), where (u, v) is (x, y), or (y, x) if the sides swap. */
    const bool     swaps = orientation >= 5;
    const bool     right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool     down = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const uint32_t w = p->width, h = p->height;
    picture        turned = { swaps ? h : w, swaps ? w : h, NULL };
    const size_t   bytes = (size_t)w * h * 3;
    turned.pixels = malloc(bytes);
    if (!turned.pixels) return fail_memory(e, "a picture", bytes);
    uint8_t *to = turned.pixels;
    for (uint32_t y = 0; y < turned.height; y++) {
        for (uint32_t x = 0; x < turned.width; x++, to += 3) {
            const uint32_t u = swaps ? y : x, v = swaps ? x : y;
            const size_t   from = ((size_t)(down ? h - 1 - v : v) * w + (right ? w - 1 - u : u)) * 3;
            memcpy(to, p->pixels + from, 3);
        }
    }
    free(p->pixels);
    *p = turned;
    return GM_OK;
}
