/* JPEG by TurboJPEG: with the accurate DCT and smooth upsampling, as Pillow decodes. Baseline and progressive, grey, colour, CMYK. */

#include "media/picture_parts.h"

#include <stdlib.h>
#include <string.h>
#include <turbojpeg.h>

/* The orientation in the segments before the first scan. */
static uint32_t jpeg_orientation(const uint8_t *data, size_t size) {
    for (size_t at = 2; at + 4 <= size && data[at] == 0xff;) {
        const uint32_t marker = data[at + 1];
        if (marker == 0xff) { /* padding */
            at++;
            continue;
        }
        const size_t length = (size_t)data[at + 2] << 8 | data[at + 3];
        if (marker == 0xda || length < 2 || length > size - at - 2) break;
        if (marker == 0xe1 && length >= 8 && memcmp(data + at + 4, "Exif\0\0", 6) == 0)
            return exif_orientation(data + at + 4, length - 2);
        at += 2 + length;
    }
    return 1;
}

bool jpeg_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height) {
    for (size_t at = 2; size >= 9 && at < size - 8 && data[at] == 0xff;) {
        const uint32_t marker = data[at + 1];
        if (marker == 0xff) { /* padding */
            at++;
            continue;
        }
        if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) { /* a frame */
            *height = (uint32_t)data[at + 5] << 8 | data[at + 6];
            *width = (uint32_t)data[at + 7] << 8 | data[at + 8];
            return true;
        }
        at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
    }
    return false;
}

/* Whether the file has its end (EOI). The library would decode one without it, with grey in place of the rest, and only warn; its
 * other warnings are about damage that leaves a picture (Pillow shows it, too). */
static bool jpeg_complete(const uint8_t *data, size_t size) {
    for (size_t at = 2; at + 2 <= size;) {
        const uint32_t marker = data[at + 1];
        if (data[at] != 0xff || marker == 0 || marker == 0xff || (marker >= 0xd0 && marker <= 0xd7)) {
            /* Pixels, or padding: on to the next 0xff. */
            const uint8_t *next = memchr(data + at + 1, 0xff, size - at - 1);
            if (!next) return false;
            at = (size_t)(next - data);
        } else if (marker == 0xd9) {
            return true;
        } else {
            if (at + 4 > size) return false;
            at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
        }
    }
    return false;
}

/* CMYK is stored inverted (Adobe's way), so a value is what is left of the light. */
static void jpeg_cmyk_row(const uint8_t *cmyk, uint8_t *rgb, uint32_t width) {
    for (uint32_t x = 0; x < width; x++, cmyk += 4, rgb += 3) {
        for (uint32_t c = 0; c < 3; c++) {
            const uint32_t ink = (255u - cmyk[c]) * cmyk[3] + 128; /* rounded / 255, as Pillow does it */
            rgb[c] = (uint8_t)(cmyk[3] - (((ink >> 8) + ink) >> 8));
        }
    }
}

static gm_status jpeg_fail(tjhandle decoder, error *e) {
    return fail(e, GM_BAD_FILE, "the JPEG is damaged or cut off: %s", tjGetErrorStr2(decoder));
}

static gm_status jpeg_read(tjhandle decoder, const uint8_t *data, size_t size, bool cmyk, picture *out, error *e) {
    enum { FLAGS = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS };
    uint8_t     *to = out->pixels;
    const size_t bytes = (size_t)out->width * out->height * 4;
    if (cmyk && !(to = malloc(bytes))) return fail_memory(e, "decoding a JPEG", bytes);
    gm_status status = GM_OK;
    const int result = tjDecompress2(decoder, data, (unsigned long)size, to, (int)out->width, 0, (int)out->height,
                                     cmyk ? TJPF_CMYK : TJPF_RGB, FLAGS);
    if (result && tjGetErrorCode(decoder) != TJERR_WARNING) status = jpeg_fail(decoder, e);
    if (!cmyk) return status;
    for (uint32_t y = 0; !status && y < out->height; y++)
        jpeg_cmyk_row(to + (size_t)y * out->width * 4, out->pixels + (size_t)y * out->width * 3, out->width);
    free(to);
    return status;
}

static gm_status jpeg_start(tjhandle decoder, const uint8_t *data, size_t size, picture *out, error *e) {
    int width = 0, height = 0, subsampling = 0, colours = 0;
    if (tjDecompressHeader3(decoder, data, (unsigned long)size, &width, &height, &subsampling, &colours))
        return jpeg_fail(decoder, e);
    TRY(picture_check_size("JPEG", (uint64_t)width, (uint64_t)height, e));
    /* A square of 8 · 8 pixels takes at least one bit, so a short file cannot be a large picture. */
    if ((uint64_t)width * (uint64_t)height / 512 > size)
        return fail(e, GM_BAD_FILE, "the JPEG is cut off: %zu bytes cannot be %d x %d pixels", size, width, height);
    if (!jpeg_complete(data, size))
        return fail(e, GM_BAD_FILE, "the JPEG is cut off: it ends after %zu bytes, without its end marker", size);
    TRY(picture_new("JPEG", (uint64_t)width, (uint64_t)height, out, e));
    return jpeg_read(decoder, data, size, colours == TJCS_CMYK || colours == TJCS_YCCK, out, e);
}

gm_status jpeg_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e) {
    tjhandle decoder = tjInitDecompress();
    if (!decoder) return fail_memory(e, "decoding a JPEG", 0);
    const gm_status status = jpeg_start(decoder, data, size, out, e);
    tjDestroy(decoder);
    *orientation = jpeg_orientation(data, size);
    return status;
}
