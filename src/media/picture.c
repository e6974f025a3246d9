/* Recognises a picture by its first bytes, and has it decoded. */

#include "media/picture_parts.h"
#include "media/sound.h"

#include <stdlib.h>
#include <string.h>

gm_status picture_check_size(const char *kind, uint64_t width, uint64_t height, error *e) {
    char pixels[32];
    if (!width || !height)
        return fail(e, GM_BAD_FILE, "the %s has %llu x %llu pixels: there is no picture in it", kind,
                    (unsigned long long)width, (unsigned long long)height);
    if (width > PICTURE_MOST_SIDE || height > PICTURE_MOST_SIDE || width * height > PICTURE_MOST_PIXELS)
        return fail(e, GM_UNSUPPORTED, "the %s has %llu x %llu pixels; at most %d along a side and %s in all are read",
                    kind, (unsigned long long)width, (unsigned long long)height, PICTURE_MOST_SIDE,
                    with_commas(PICTURE_MOST_PIXELS, pixels));
    return GM_OK;
}

gm_status picture_allocate(uint32_t width, uint32_t height, picture *out, error *e) {
    const size_t bytes = (size_t)width * height * 3;
    *out = (picture){ width, height, calloc(bytes, 1) };
    return out->pixels ? GM_OK : fail_memory(e, "a picture", bytes);
}

gm_status picture_new(const char *kind, uint64_t width, uint64_t height, picture *out, error *e) {
    TRY(picture_check_size(kind, width, height, e));
    return picture_allocate((uint32_t)width, (uint32_t)height, out, e);
}

gm_status picture_copy(const void *pixels, uint32_t width, uint32_t height, picture *out, error *e) {
    TRY(picture_new("picture", width, height, out, e));
    memcpy(out->pixels, pixels, (size_t)width * height * 3);
    return GM_OK;
}

void picture_free(picture *p) {
    free(p->pixels);
    *p = (picture){ 0 };
}

/* ---- kinds ---- */

#ifdef GM_MEDIA_LIBRARIES
#define WITH_LIBRARIES(decoder) decoder
#define PICTURE_ADVICE "convert it to PNG or JPEG"
#else
#define WITH_LIBRARIES(decoder) NULL
#define PICTURE_ADVICE "convert it to PNG"
#endif

/* A kind begins with `magic` at byte `at`, where "?" stands for any byte. Those without a decoder are refused by name. */
static const struct picture_kind {
    const char *name;
    uint8_t     at, length;
    const char *magic;
    gm_status (*decode)(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e);
    bool (*measure)(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height);
} picture_kinds[] = {
    { "PNG", 0, 8, "\x89PNG\r\n\x1a\n", png_decode, png_measure },
    { "GIF", 0, 6, "GIF87a", gif_decode, NULL },
    { "GIF", 0, 6, "GIF89a", gif_decode, NULL },
    { "JPEG", 0, 3, "\xff\xd8\xff", WITH_LIBRARIES(jpeg_decode), WITH_LIBRARIES(jpeg_measure) },
    { "WebP", 0, 12, "RIFF????WEBP", WITH_LIBRARIES(webp_decode), WITH_LIBRARIES(webp_measure) },
    { "AVIF", 4, 8, "ftypavif", NULL, NULL },
    { "AVIF", 4, 8, "ftypavis", NULL, NULL },
    { "HEIC", 4, 7, "ftyphei", NULL, NULL },
    { "HEIC", 4, 7, "ftyphev", NULL, NULL },
    { "HEIC", 4, 8, "ftypmif1", NULL, NULL },
    { "HEIC", 4, 8, "ftypmsf1", NULL, NULL },
    { "JPEG XL", 0, 2, "\xff\x0a", NULL, NULL },
    { "JPEG XL", 0, 12, "\0\0\0\x0cJXL \r\n\x87\n", NULL, NULL },
    { "JPEG 2000", 0, 12, "\0\0\0\x0cjP  \r\n\x87\n", NULL, NULL },
    { "TIFF", 0, 4, "II*\0", NULL, NULL },
    { "TIFF", 0, 4, "MM\0*", NULL, NULL },
    { "Photoshop", 0, 4, "8BPS", NULL, NULL },
    { "BMP", 0, 2, "BM", NULL, NULL },
    { "ICO", 0, 4, "\0\0\1\0", NULL, NULL },
    { "SVG", 0, 4, "<svg", NULL, NULL },
    { "PDF", 0, 5, "%PDF-", NULL, NULL },
};

static const char *const picture_sounds[SOUND_KINDS] = {
    [SOUND_WAV] = "WAV", [SOUND_FLAC] = "FLAC", [SOUND_MP3] = "MP3", [SOUND_OGG] = "Ogg", [SOUND_AAC] = "AAC",
};

static bool picture_is_kind(const struct picture_kind *kind, const uint8_t *data, size_t size) {
    if (size < (size_t)kind->at + kind->length) return false;
    for (uint32_t i = 0; i < kind->length; i++) {
        if (kind->magic[i] != '?' && (uint8_t)kind->magic[i] != data[kind->at + i]) return false;
    }
    return true;
}

static gm_status picture_fail_unknown(const uint8_t *data, size_t size, error *e) {
    char hex[3 * 8 + 1] = "";
    for (size_t i = 0; i < size && i < 8; i++) {
        static const char digits[] = "0123456789abcdef";
        memcpy(hex + 3 * i, (char[]){ ' ', digits[data[i] >> 4], digits[data[i] & 15], 0 }, 4);
    }
    if (!size) return fail(e, GM_BAD_FILE, "the picture is empty: it has 0 bytes");
    const char *heard = picture_sounds[sound_recognise(data, size)];
    if (heard) return fail(e, GM_BAD_FILE, "not a picture (PNG, JPEG, GIF or WebP): it is a %s sound", heard);
    return fail(e, GM_BAD_FILE, "not a picture: expected PNG, JPEG, GIF or WebP, found %zu bytes that begin with%s",
                size, hex);
}

/* NULL: none of them. */
static const struct picture_kind *picture_recognise(const uint8_t *data, size_t size) {
    for (size_t i = 0; i < COUNT_OF(picture_kinds); i++) {
        if (picture_is_kind(&picture_kinds[i], data, size)) return &picture_kinds[i];
    }
    return NULL;
}

gm_status picture_decode(const void *bytes, size_t size, picture *out, error *e) {
    const struct picture_kind *kind = picture_recognise(bytes, size);
    uint32_t                   orientation = 1;
    *out = (picture){ 0 };
    if (!kind) return picture_fail_unknown(bytes, size, e);
    if (!kind->decode)
        return fail(e, GM_UNSUPPORTED, "the picture is in the format %s, which gemmule does not read: " PICTURE_ADVICE,
                    kind->name);
    gm_status status = kind->decode(bytes, size, out, &orientation, e);
    if (!status) status = exif_apply(out, orientation, e);
    if (status) picture_free(out);
    return status;
}

bool picture_measure(const void *bytes, size_t size, uint32_t *width, uint32_t *height) {
    const struct picture_kind *kind = picture_recognise(bytes, size);
    return kind && kind->measure && kind->measure(bytes, size, width, height) && *width && *height;
}
