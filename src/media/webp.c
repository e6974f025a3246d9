/* WebP by libwebp: lossy and lossless; of an animation the first frame, on black. Alpha is dropped. */

#include "media/picture_parts.h"

#include <string.h>
#include <webp/decode.h>

static uint32_t webp_u24(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16; }

/* The contents of the first chunk of this name in a RIFF file, or NULL. */
static const uint8_t *webp_chunk(const uint8_t *data, size_t size, const char *name, size_t *length) {
    for (size_t at = 12; size >= at + 8;) {
        const size_t n = webp_u24(data + at + 4) | (size_t)data[at + 7] << 24;
        if (n > size - at - 8) break;
        if (memcmp(data + at, name, 4) == 0) {
            *length = n;
            return data + at + 8;
        }
        at += 8 + n + n % 2;
    }
    return NULL;
}

bool webp_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height) {
    int columns = 0, rows = 0;
    if (!WebPGetInfo(data, size, &columns, &rows)) return false;
    *width = (uint32_t)columns;
    *height = (uint32_t)rows;
    return true;
}

/* What to decode, and where it goes. */
typedef struct {
    const uint8_t *data;
    size_t         size;
    uint32_t       x, y, width, height;
    uint32_t       canvas_width, canvas_height;
} webp_frame;

static gm_status webp_fail(error *e, const char *what) {
    return fail(e, GM_BAD_FILE, "the WebP is damaged or cut off: %s", what);
}

static gm_status webp_first_frame(const uint8_t *data, size_t size, webp_frame *out, error *e) {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(data, size, &features) != VP8_STATUS_OK) return webp_fail(e, "its header is not valid");
    *out = (webp_frame){ data, size, 0, 0, 0, 0, (uint32_t)features.width, (uint32_t)features.height };
    if (features.has_animation) {
        enum { FRAME_HEADER = 16 };
        size_t         length;
        const uint8_t *frame = webp_chunk(data, size, "ANMF", &length);
        if (!frame || length < FRAME_HEADER) return webp_fail(e, "an animation without a complete frame");
        out->x = 2 * webp_u24(frame), out->y = 2 * webp_u24(frame + 3);
        out->data = frame + FRAME_HEADER, out->size = length - FRAME_HEADER;
        if (WebPGetFeatures(out->data, out->size, &features) != VP8_STATUS_OK || features.has_animation)
            return webp_fail(e, "the header of its first frame is not valid");
    }
    out->width = (uint32_t)features.width, out->height = (uint32_t)features.height;
    if ((uint64_t)out->x + out->width > out->canvas_width || (uint64_t)out->y + out->height > out->canvas_height)
        return webp_fail(e, "its first frame is larger than the picture");
    return GM_OK;
}

gm_status webp_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e) {
    webp_frame frame = { 0 };
    TRY(webp_first_frame(data, size, &frame, e));
    TRY(picture_new("WebP", frame.canvas_width, frame.canvas_height, out, e));
    const size_t row = (size_t)out->width * 3, skipped = frame.y * row + (size_t)frame.x * 3;
    if (!WebPDecodeRGBInto(frame.data, frame.size, out->pixels + skipped, row * out->height - skipped, (int)row))
        return webp_fail(e, "its pixels cannot be decoded");
    size_t         length = 0;
    const uint8_t *exif = webp_chunk(data, size, "EXIF", &length);
    *orientation = exif ? exif_orientation(exif, length) : 1;
    return GM_OK;
}
