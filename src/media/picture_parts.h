/* What the files about pictures share: decoders for one format each, and their output. */

#ifndef GM_PICTURE_PARTS_H
#define GM_PICTURE_PARTS_H

#include "media/picture.h"

/* Checks the limits, then allocates black pixels. `kind` is for the message: "PNG". */
gm_status picture_new(const char *kind, uint64_t width, uint64_t height, picture *out, error *e);

/* Allocates without a check. */
gm_status picture_allocate(uint32_t width, uint32_t height, picture *out, error *e);

/* Checks the limits only. */
gm_status picture_check_size(const char *kind, uint64_t width, uint64_t height, error *e);

/* Decoders. *orientation is set to the EXIF orientation (1 to 8). On failure, *out may hold pixels; the caller frees it. */
gm_status png_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e);
gm_status gif_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e);
gm_status jpeg_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e);
gm_status webp_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e);

/* The size that the header tells; see picture_measure. The first bytes are those of the kind. */
bool png_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height);
bool jpeg_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height);
bool webp_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height);

/* The orientation in an EXIF block, with or without "Exif\0\0" before it; 1 (upright) if there is none. */
uint32_t exif_orientation(const uint8_t *data, size_t size);

/* Turns and mirrors the picture so that it is upright. */
gm_status exif_apply(picture *p, uint32_t orientation, error *e);

#endif
