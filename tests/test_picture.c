/* Pictures: decoding against Pillow (tests/make_pictures.py), the size rule and resizing, and files that are damaged, cut
 * off, enormous, or no pictures at all. */

#include "base/sha256.h"
#include "gguf/gguf.h"
#include "media/inflate.h"
#include "media/picture.h"
#include "read_file.h"
#include "test.h"

#define FOLDER "tests/fixtures/pictures/"

#ifdef GM_MEDIA_LIBRARIES
static const bool has_libraries = true;
#else
static const bool has_libraries = false;
#endif

static buffer fixture_read(const char *name) {
    char path[200];
    snprintf(path, sizeof path, FOLDER "%s", name);
    return file_read(path);
}

static void pixels_digest(const picture *p, char hex[65]) {
    sha256  s;
    uint8_t digest[32];
    sha256_start(&s);
    sha256_add(&s, p->pixels, (size_t)p->width * p->height * 3);
    sha256_end(&s, digest);
    sha256_hex(digest, hex);
}

static bool needs_library(const char *name) { return !strncmp(name, "jpeg", 4) || !strncmp(name, "webp", 4); }

/* ---- against Pillow, and numpy ---- */

static void check_decoded(const char *name, uint32_t width, uint32_t height, const char *want) {
    buffer  file = fixture_read(name);
    picture p = { 0 };
    error   e = { 0 };
    char    got[65];
    TEST("%s", name);
    const gm_status status = picture_decode(file.data, file.length, &p, &e);
    if (needs_library(name) && !has_libraries) {
        CHECK(status == GM_UNSUPPORTED && strstr(e.why, name[0] == 'j' ? "JPEG" : "WebP"));
    } else {
        CHECK_MESSAGE(status == GM_OK, "%s", e.why);
        CHECK_MESSAGE(p.width == width && p.height == height, "%u x %u", p.width, p.height);
        uint32_t   columns = 0, lines = 0;
        const bool measured = picture_measure(file.data, file.length, &columns, &lines);
        CHECK_MESSAGE(measured ? (size_t)columns * lines == (size_t)width * height && /* it may lie on its side */
                                     (columns == width || columns == height)
                               : strstr(name, ".gif") != NULL,
                      "the header says %u x %u", columns, lines);
        if (p.pixels) {
            pixels_digest(&p, got);
            CHECK_MESSAGE(!strcmp(got, want), "the pixels are not those of Pillow");
        }
    }
    picture_free(&p);
    buffer_free(&file);
}

static void check_resized(const char *name, uint32_t budget, uint32_t width, uint32_t height, const char *want) {
    buffer  file = fixture_read(name);
    picture p = { 0 }, out = { 0 };
    error   e = { 0 };
    char    got[65] = "";
    TEST("%s resized for %u tokens", name, budget);
    if (has_libraries || !needs_library(name)) {
        CHECK_MESSAGE(!picture_decode(file.data, file.length, &p, &e) && !picture_fitted(&p, budget, &out, &e), "%s",
                      e.why);
        CHECK_MESSAGE(out.width == width && out.height == height, "%u x %u", out.width, out.height);
        if (out.pixels) pixels_digest(&out, got);
        CHECK(!strcmp(got, want));
    }
    picture_free(&p);
    picture_free(&out);
    buffer_free(&file);
}

static void lists(void) {
    buffer   list = fixture_read("pictures.txt"), sizes = fixture_read("resized.txt");
    char     name[64], digest[65];
    uint32_t width, height, budget, rows = 0;
    int      n;
    for (const char *line = list.data;
         line && sscanf(line, "%63s %u %u %64s\n%n", name, &width, &height, digest, &n) == 4; line += n, rows++)
        check_decoded(name, width, height, digest);
    for (const char *line = sizes.data;
         line && sscanf(line, "%63s %u %u %u %64s\n%n", name, &budget, &width, &height, digest, &n) == 5;
         line += n, rows++)
        check_resized(name, budget, width, height, digest);
    TEST("all rows");
    CHECK(rows > 80);
    buffer_free(&list);
    buffer_free(&sizes);
}

static void size_rule(void) {
    static const struct {
        uint32_t width, height, budget, fit_width, fit_height;
    } rows[] = {
        { 224, 224, 280, 768, 768 },   { 640, 480, 280, 912, 672 }, { 1920, 1080, 280, 1056, 576 },
        { 100, 1000, 280, 240, 2496 }, { 30, 3000, 280, 48, 8016 }, { 4000, 3000, 280, 912, 672 },
        { 512, 512, 280, 768, 768 },   { 224, 224, 70, 384, 384 },  { 640, 480, 70, 432, 336 },
        { 1920, 1080, 70, 528, 288 },  { 100, 1000, 70, 96, 1248 }, { 30, 3000, 70, 48, 3360 },
        { 4000, 3000, 70, 432, 336 },  { 512, 512, 70, 384, 384 },  { 32768, 1, 1120, 53760, 48 },
        { 1, 32768, 70, 48, 3360 },    { 48, 48, 140, 528, 528 },   { 1, 1, 1120, 1584, 1584 },
        { 3000, 30, 70, 3360, 48 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t width = 0, height = 0;
        TEST("size of %u x %u for %u tokens", rows[i].width, rows[i].height, rows[i].budget);
        CHECK(picture_fit(rows[i].width, rows[i].height, rows[i].budget, &width, &height, NULL) == GM_OK);
        CHECK_MESSAGE(width == rows[i].fit_width && height == rows[i].fit_height, "%u x %u", width, height);
        CHECK(width / 48 * (height / 48) <= rows[i].budget);
    }
    TEST("a budget that does not exist");
    uint32_t width, height;
    error    e = { 0 };
    CHECK(picture_fit(10, 10, 100, &width, &height, &e) == GM_BAD_ARGUMENT && strstr(e.why, "280"));
}

/* The fixture's picture at 70 tokens, as HF cuts it into patches: (row, column, channel) of 16 · 16 pixels. */
static void fixture_patches(void) {
    buffer  file = file_read("tests/fixtures/tiny-mm.png");
    buffer  tensors = file_read("tests/fixtures/tiny-mm.expect.gguf");
    gguf   *expect = NULL;
    picture p = { 0 }, out = { 0 };
    error   e = { 0 };
    TEST("the patches of tiny-mm.png");
    CHECK_MESSAGE(gguf_open_memory(tensors.data, tensors.length, &expect, &e) == GM_OK, "%s", e.why);
    const gguf_tensor *want = expect ? gguf_find_tensor(expect, "image.patches") : NULL;
    CHECK(want && !picture_decode(file.data, file.length, &p, &e) && !picture_fitted(&p, 70, &out, &e));
    if (want && out.pixels) {
        const float *patches = (const float *)(const void *)gguf_tensor_data(expect, want);
        size_t       wrong = 0;
        CHECK(want->ne[0] == 768 && want->ne[1] == (uint64_t)(out.width / 16) * (out.height / 16));
        for (size_t i = 0; i < want->ne[0] * want->ne[1]; i++) {
            const size_t patch = i / 768, x = patch % (out.width / 16) * 16 + i % 48 / 3,
                         y = patch / (out.width / 16) * 16 + i % 768 / 48;
            wrong += patches[i] != (float)out.pixels[(y * out.width + x) * 3 + i % 3] * (1.0f / 255.0f);
        }
        CHECK_MESSAGE(!wrong, "%zu values differ", wrong);
    }
    gguf_free(expect);
    buffer_free(&tensors);
    picture_free(&p);
    picture_free(&out);
    buffer_free(&file);
}

/* ---- bad input ---- */

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static uint32_t crc_of(const uint8_t *data, size_t n) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? 0xedb88320u ^ crc >> 1 : crc >> 1;
    }
    return ~crc;
}

/* A copy of exactly n bytes, so that a sanitizer notices a read beyond them. */
static gm_status decode_copy(const void *data, size_t n, error *e) {
    picture  p = { 0 };
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    *e = (error){ 0 };
    const gm_status status = picture_decode(copy, n, &p, e);
    if (status) CHECK_MESSAGE(e->why[0] && !p.pixels, "a failure without a reason, or with pixels");
    picture_free(&p);
    free(copy);
    return status;
}

static void cut_off(void) {
    static const char *const names[] = { "png-3-4-interlaced.png", "png-pieces.png",    "gif-transparent.gif",
                                         "jpeg-progressive.jpg",   "jpeg-colour.jpg",   "webp-lossy.webp",
                                         "webp-exact.webp",        "webp-animated.webp" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (needs_library(names[i]) && !has_libraries) continue;
        buffer file = fixture_read(names[i]);
        error  e;
        TEST("%s, cut off at every byte", names[i]);
        /* The last bytes of a GIF, and of an animation, come after the first frame. */
        const size_t needed =
            strstr(names[i], "animated") ? file.length / 2 : file.length - (names[i][0] == 'g' ? 2 : 0);
        for (size_t n = 0; n < needed; n++)
            CHECK_MESSAGE(decode_copy(file.data, n, &e) == GM_BAD_FILE, "%zu bytes: %s", n, e.why);
        TEST("%s, each byte changed", names[i]);
        for (size_t n = 0; n < file.length; n++) { /* some changes are harmless, none may crash */
            file.data[n] = (char)(file.data[n] ^ 0x55);
            decode_copy(file.data, file.length, &e);
            file.data[n] = (char)(file.data[n] ^ 0x55);
        }
        CHECK(decode_copy(file.data, file.length, &e) == GM_OK);
        buffer_free(&file);
    }
}

static void damaged_png(void) {
    static const struct {
        const char *what;
        size_t      at; /* byte of the file */
        uint8_t     value;
        bool        repaired; /* the checksum of IHDR matches */
        const char *says;
    } rows[] = {
        { "a wrong checksum", 20, 9, false, "checksum of the IHDR chunk" },
        { "a depth of 3 bits", 24, 3, true, "3 bits" },
        { "colour type 5", 25, 5, true, "colour type 5" },
        { "an unknown compression", 26, 1, true, "compression 1" },
        { "an unknown interlace", 28, 2, true, "interlace 2" },
        { "a width of 0", 19, 0, true, "0 x 19" },
        { "too few rows", 23, 20, true, "less than the picture needs" },
        { "another first chunk", 15, 'X', true, "IHDR" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        buffer   file = fixture_read("png-2-8.png");
        uint8_t *data = (uint8_t *)file.data;
        error    e;
        TEST("a PNG with %s", rows[i].what);
        data[rows[i].at] = rows[i].value;
        if (rows[i].repaired) put_u32(data + 29, crc_of(data + 12, 17));
        CHECK(decode_copy(data, file.length, &e) == GM_BAD_FILE);
        CHECK_MESSAGE(strstr(e.why, rows[i].says), "%s", e.why);
        buffer_free(&file);
    }
}

/* The checksum inside the compressed data, with that of the chunk repaired. */
static void damaged_data(void) {
    buffer       file = fixture_read("png-2-8.png");
    uint8_t     *data = (uint8_t *)file.data;
    const size_t idat = 33, end = file.length - 12 - 4; /* IDAT's checksum is before IEND */
    error        e;
    TEST("a PNG with a wrong sum of its data");
    CHECK(!memcmp(data + idat + 4, "IDAT", 4));
    data[end - 1] ^= 1;
    put_u32(data + end, crc_of(data + idat + 4, end - idat - 4));
    CHECK(decode_copy(data, file.length, &e) == GM_BAD_FILE && strstr(e.why, "checksum of the picture's data"));
    data[end - 1] ^= 1;
    TEST("a PNG whose compressed bytes are changed one by one");
    uint32_t failed = 0;
    for (size_t i = idat + 8; i < end; i++) {
        data[i] ^= 0x24;
        put_u32(data + end, crc_of(data + idat + 4, end - idat - 4));
        failed += decode_copy(data, file.length, &e) == GM_BAD_FILE;
        data[i] ^= 0x24;
    }
    CHECK(failed >= end - idat - 9); /* one byte may hold padding */
    buffer_free(&file);
}

static void bombs(void) {
    static const struct {
        uint32_t    width, height;
        gm_status   status;
        const char *says;
    } rows[] = {
        { 40000, 10, GM_UNSUPPORTED, "40000 x 10" },          { 10, 40000, GM_UNSUPPORTED, "10 x 40000" },
        { 20000, 20000, GM_UNSUPPORTED, "100,000,000" },      { 0xffffffff, 0xffffffff, GM_UNSUPPORTED, "4294967295" },
        { 9000, 9000, GM_BAD_FILE, "cannot be 9000 x 9000" }, /* small enough, but not in so few bytes */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        buffer   file = fixture_read("png-2-8.png");
        uint8_t *data = (uint8_t *)file.data;
        error    e;
        TEST("a PNG of %u x %u", rows[i].width, rows[i].height);
        put_u32(data + 16, rows[i].width);
        put_u32(data + 20, rows[i].height);
        put_u32(data + 29, crc_of(data + 12, 17));
        CHECK(decode_copy(data, file.length, &e) == rows[i].status);
        CHECK_MESSAGE(strstr(e.why, rows[i].says), "%s", e.why);
        buffer_free(&file);
    }
    buffer gif = fixture_read("gif-plain.gif");
    error  e;
    TEST("a GIF of 65535 x 65535");
    memset(gif.data + 6, 0xff, 4);
    CHECK(decode_copy(gif.data, gif.length, &e) == GM_UNSUPPORTED && strstr(e.why, "65535 x 65535"));
    buffer_free(&gif);
    if (!has_libraries) return;
    buffer jpeg = fixture_read("jpeg-colour.jpg");
    TEST("a JPEG of 9000 x 9000, and one of 60000 x 10");
    for (size_t at = 2; at + 9 < jpeg.length;
         at += 2 + ((size_t)(uint8_t)jpeg.data[at + 2] << 8 | (uint8_t)jpeg.data[at + 3])) {
        if ((uint8_t)jpeg.data[at + 1] != 0xc0) continue;
        memcpy(jpeg.data + at + 5, "\x23\x28\x23\x28", 4);
        CHECK_MESSAGE(decode_copy(jpeg.data, jpeg.length, &e) == GM_BAD_FILE && strstr(e.why, "cannot be 9000 x 9000"),
                      "%s", e.why);
        memcpy(jpeg.data + at + 5, "\x00\x0a\xea\x60", 4);
        CHECK_MESSAGE(decode_copy(jpeg.data, jpeg.length, &e) == GM_UNSUPPORTED && strstr(e.why, "60000 x 10"), "%s",
                      e.why);
        break;
    }
    buffer_free(&jpeg);
}

static void other_kinds(void) {
#define BYTES(text) text, sizeof text - 1
    static const struct {
        const char *data;
        size_t      size;
        gm_status   status;
        const char *says;
    } rows[] = {
        { BYTES(""), GM_BAD_FILE, "0 bytes" },
        { BYTES("\x89PNG"), GM_BAD_FILE, "begin with 89 50 4e 47" },
        { BYTES("hello, world"), GM_BAD_FILE, "expected PNG, JPEG, GIF or WebP" },
        { BYTES("\0\0\0\x18"
                "ftypheic\0\0\0\0mif1heic"),
          GM_UNSUPPORTED, "HEIC" },
        { BYTES("\0\0\0\x18"
                "ftypmif1\0\0\0\0mif1heic"),
          GM_UNSUPPORTED, "HEIC" },
        { BYTES("\0\0\0\x1c"
                "ftypavif\0\0\0\0mif1avif"),
          GM_UNSUPPORTED, "AVIF" },
        { BYTES("BM6\0\0\0"), GM_UNSUPPORTED, "BMP" },
        { BYTES("II*\0\x08\0\0\0"), GM_UNSUPPORTED, "TIFF" },
        { BYTES("%PDF-1.7"), GM_UNSUPPORTED, "PDF" },
        { BYTES("GIF89a\1\0\1\0\0\0\0;"), GM_BAD_FILE, "no frame" },
        { BYTES("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\0\0\0\0\0"), GM_BAD_FILE, "0 x 0" },
        { BYTES("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\x0c"), GM_BAD_FILE, "12 bits" },
        { BYTES("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\1\x3f\0;"), GM_BAD_FILE, "an undefined code" },
        { BYTES("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\1\x2c\0;"), GM_BAD_FILE, "0 of 1 pixels" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        error e;
        TEST("bytes that are no picture we read: %s", rows[i].says);
        CHECK(decode_copy(rows[i].data, rows[i].size, &e) == rows[i].status);
        CHECK_MESSAGE(strstr(e.why, rows[i].says), "%s", e.why);
    }
}

int main(void) {
    lists();
    size_rule();
    fixture_patches();
    cut_off();
    damaged_png();
    damaged_data();
    bombs();
    other_kinds();
    return test_end();
}
