/* Pictures: from a file's bytes to the pixels that a vision tower reads.
 *
 *     picture_decode → RGB, upright → picture_fit, picture_resize → what the tower cuts into patches
 *
 * PNG and GIF are decoded here on every host. JPEG and WebP are decoded by libraries where the build has them
 * (GEMMULE_MEDIA); in a browser, the browser decodes them. Results are those of Pillow's convert('RGB') after exif_transpose, with
 * one exception: of 16-bit grey values we keep the high byte, as of 16-bit colours (Pillow cuts off grey values above 255). */

#ifndef GM_PICTURE_H
#define GM_PICTURE_H

#include "base/base.h"

/* Larger pictures are refused before anything is allocated for them. */
enum { PICTURE_MOST_SIDE = 32768, PICTURE_MOST_PIXELS = 100000000 };

/* 8 bits each of red, green and blue, row by row from the top, without gaps. */
typedef struct {
    uint32_t width, height;
    uint8_t *pixels;
} picture; /* zero-initialise */

/* The first (or only) picture in the bytes of a file, recognised by content, turned upright by its EXIF orientation. GM_BAD_FILE:
 * damaged or no picture at all; GM_UNSUPPORTED: a kind that this build does not read, named, or too large. */
gm_status picture_decode(const void *bytes, size_t size, picture *out, error *e);
/* The size of such a picture by its header alone, before it is turned upright. False: the header does not tell (a GIF's frame may be larger
 * than its screen), or this build does not read the file. Decoding may still fail. */
bool picture_measure(const void *bytes, size_t size, uint32_t *width, uint32_t *height);
/* Copies raw pixels. */
gm_status picture_copy(const void *pixels, uint32_t width, uint32_t height, picture *out, error *e);
void      picture_free(picture *p);

/* ---- the size that a tower sees (gemma4.md 4.1) ---- */

enum { PICTURE_BUDGET = 280, PICTURE_SOFT_SIDE = 48 }; /* soft tokens by default; pixels along the side of one */

/* Whether n is 70, 140, 280, 560 or 1120. */
bool picture_budget_valid(uint32_t n);

/* The size to which a picture is stretched: multiples of 48, with at most `budget` squares of 48 · 48. Small pictures are enlarged. */
gm_status picture_fit(uint32_t width, uint32_t height, uint32_t budget, uint32_t *fit_width, uint32_t *fit_height,
                      error *e);

/* Antialiased bicubic in fixed point, equal to torchvision's for 8 bits to the last bit. */
gm_status picture_resize(const picture *from, uint32_t width, uint32_t height, picture *out, error *e);

/* picture_fit, then picture_resize. */
gm_status picture_fitted(const picture *from, uint32_t budget, picture *out, error *e);

#endif
