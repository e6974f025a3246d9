/* PNG (ISO 15948): all colour types and depths, palettes, interlace.
 *
 * Strict where Pillow is: checksums of chunks and of the compressed data must be right, and the file must be complete up to its IEND
 * chunk. Lenient where it is: what follows IEND, chunks that we do not need (whatever their checksum), and compressed data that
 * goes on after the last row. Transparency (tRNS, alpha) is dropped. An animation's default picture is its first. */

#include "media/inflate.h"
#include "media/picture_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t       width, height, depth, colour, interlaced;
    uint32_t       samples; /* per pixel */
    const uint8_t *data;    /* the file */
    size_t         size;
    size_t         first_idat, idat_bytes;
    uint8_t        palette[256][3]; /* colours beyond the file's palette are a ramp of greys */
    bool           has_header, has_palette, has_end;
    uint32_t       orientation;
    uint32_t       crc_table[256];
} png;

static uint32_t png_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

bool png_measure(const uint8_t *data, size_t size, uint32_t *width, uint32_t *height) {
    enum { SIZE_AT = 16 }; /* the signature, the length and the name of IHDR */
    if (size < SIZE_AT + 8) return false;
    *width = png_u32(data + SIZE_AT);
    *height = png_u32(data + SIZE_AT + 4);
    return true;
}

static void png_crc_table(uint32_t table[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++) table[i] = table[i] & 1 ? 0xedb88320u ^ table[i] >> 1 : table[i] >> 1;
    }
}

static uint32_t png_crc(const uint32_t table[256], const uint8_t *data, size_t n) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

/* ---- chunks ---- */

typedef struct {
    const uint8_t *name, *data;
    uint32_t       length;
    size_t         next; /* where the next chunk begins */
} png_chunk;

static bool png_chunk_is(const png_chunk *c, const char *name) { return memcmp(c->name, name, 4) == 0; }

static gm_status png_chunk_at(const png *p, size_t at, png_chunk *out, error *e) {
    if (p->size - at < 12)
        return fail(e, GM_BAD_FILE, "the PNG is cut off: it ends after %zu bytes, before its IEND chunk", p->size);
    *out = (png_chunk){ p->data + at + 4, p->data + at + 8, png_u32(p->data + at), 0 };
    if (out->length > p->size - at - 12)
        return fail(e, GM_BAD_FILE, "the PNG is cut off: the chunk at byte %zu has %u bytes, but only %zu are left", at,
                    out->length, p->size - at - 12);
    out->next = at + 12 + out->length;
    return GM_OK;
}

static bool png_chunk_intact(const png *p, const png_chunk *c) {
    return png_crc(p->crc_table, c->name, c->length + (size_t)4) == png_u32(c->data + c->length);
}

static gm_status png_header(png *p, const png_chunk *c, error *e) {
    /* Samples per pixel of each colour type, and a bit for each depth that it may have. */
    static const struct {
        uint8_t  samples;
        uint32_t depths;
    } types[7] = { { 1, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 16 },
                   { 0, 0 },
                   { 3, 1 << 8 | 1 << 16 },
                   { 1, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 },
                   { 2, 1 << 8 | 1 << 16 },
                   { 0, 0 },
                   { 4, 1 << 8 | 1 << 16 } };
    if (!png_chunk_is(c, "IHDR") || c->length != 13)
        return fail(e, GM_BAD_FILE, "the PNG does not begin with an IHDR chunk of 13 bytes");
    p->width = png_u32(c->data), p->height = png_u32(c->data + 4);
    p->depth = c->data[8], p->colour = c->data[9], p->interlaced = c->data[12];
    if (p->colour > 6 || p->depth > 16 || !(types[p->colour].depths >> p->depth & 1))
        return fail(e, GM_BAD_FILE, "the PNG has colour type %u with %u bits, which does not exist", p->colour,
                    p->depth);
    if (c->data[10] || c->data[11] || p->interlaced > 1)
        return fail(e, GM_BAD_FILE, "the PNG has compression %u, filter %u, interlace %u; 0, 0 and 0 or 1 exist",
                    c->data[10], c->data[11], p->interlaced);
    p->samples = types[p->colour].samples;
    p->has_header = true;
    return picture_check_size("PNG", p->width, p->height, e);
}

static gm_status png_take_chunk(png *p, const png_chunk *c, size_t at, error *e) {
    const bool needed = !(c->name[0] & 32); /* an upper-case letter: a decoder must know it */
    if (!png_chunk_intact(p, c)) {
        if (!needed) return GM_OK;
        return fail(e, GM_BAD_FILE, "the PNG is damaged: the checksum of the %.4s chunk at byte %zu is wrong",
                    (const char *)c->name, at);
    }
    if (!p->has_header) return png_header(p, c, e);
    if (png_chunk_is(c, "PLTE")) {
        if (c->length % 3 || c->length > sizeof p->palette)
            return fail(e, GM_BAD_FILE, "the PNG's palette has %u bytes; expected 3 for each of at most 256 colours",
                        c->length);
        memcpy(p->palette, c->data, c->length);
        p->has_palette = true;
    } else if (png_chunk_is(c, "IDAT")) {
        if (!p->first_idat) p->first_idat = at;
        p->idat_bytes += c->length;
    } else if (png_chunk_is(c, "eXIf")) {
        p->orientation = exif_orientation(c->data, c->length);
    } else if (png_chunk_is(c, "IEND")) {
        p->has_end = true;
    } else if (needed) {
        return fail(e, GM_UNSUPPORTED, "the PNG has an unknown %.4s chunk, which is needed to decode it",
                    (const char *)c->name);
    }
    return GM_OK;
}

static gm_status png_chunks(png *p, error *e) {
    png_chunk c = { 0 };
    for (size_t at = 8; !p->has_end; at = c.next) {
        TRY(png_chunk_at(p, at, &c, e));
        TRY(png_take_chunk(p, &c, at, e));
    }
    if (!p->first_idat) return fail(e, GM_BAD_FILE, "the PNG has no IDAT chunk: there is no picture in it");
    if (p->colour == 3 && !p->has_palette)
        return fail(e, GM_BAD_FILE, "the PNG uses palette colours, but has no palette");
    return GM_OK;
}

/* The IDAT chunks one by one: what they contain is one stream. */
typedef struct {
    const png *file;
    size_t     at;
} png_idat;

static bool png_idat_next(void *user, const uint8_t **data, size_t *size) {
    png_idat *from = user;
    png_chunk c = { 0 };
    error     ignored = { 0 }; /* png_chunks has seen them all */
    if (png_chunk_at(from->file, from->at, &c, &ignored) || !png_chunk_is(&c, "IDAT")) return false;
    *data = c.data, *size = c.length;
    from->at = c.next;
    return true;
}

/* ---- rows ---- */

static uint32_t png_paeth(uint32_t a, uint32_t b, uint32_t c) {
    const int32_t p = (int32_t)(a + b - c);
    const int32_t pa = abs(p - (int32_t)a), pb = abs(p - (int32_t)b), pc = abs(p - (int32_t)c);
    return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/* Undoes the filter of a row. `left` is the distance to the same byte of the pixel to the left. */
static gm_status png_unfilter(uint32_t filter, uint8_t *row, const uint8_t *above, size_t n, size_t left, error *e) {
    const size_t head = min_size(left, n); /* has no pixel to its left */
    switch (filter) {
    case 0: break;
    case 1:
        for (size_t i = left; i < n; i++) row[i] = (uint8_t)(row[i] + row[i - left]);
        break;
    case 2:
        for (size_t i = 0; i < n; i++) row[i] = (uint8_t)(row[i] + above[i]);
        break;
    case 3:
        for (size_t i = 0; i < head; i++) row[i] = (uint8_t)(row[i] + above[i] / 2);
        for (size_t i = left; i < n; i++) row[i] = (uint8_t)(row[i] + (row[i - left] + above[i]) / 2);
        break;
    case 4:
        for (size_t i = 0; i < head; i++) row[i] = (uint8_t)(row[i] + above[i]);
        for (size_t i = left; i < n; i++)
            row[i] = (uint8_t)(row[i] + png_paeth(row[i - left], above[i], above[i - left]));
        break;
    default: return fail(e, GM_BAD_FILE, "the PNG is damaged: a row has filter %u, expected 0 to 4", filter);
    }
    return GM_OK;
}

/* Writes a row's pixels as RGB, each `step` bytes after the one before. */
static void png_expand(const png *p, const uint8_t *row, uint32_t width, uint8_t *out, size_t step) {
    const uint32_t bytes = p->depth == 16 ? 2 : 1; /* of a sample; of 16 bits the first byte is the high one */
    const uint32_t pixel = p->samples * bytes, most = (1u << (p->depth < 8 ? p->depth : 8)) - 1;
    for (uint32_t x = 0; x < width; x++, out += step) {
        if (p->samples >= 3) {
            for (uint32_t c = 0; c < 3; c++) out[c] = row[x * pixel + c * bytes];
            continue;
        }
        uint32_t value = row[p->depth < 8 ? x * p->depth / 8 : x * pixel];
        if (p->depth < 8) value = value >> (8 - p->depth - x * p->depth % 8) & most;
        if (p->colour == 3) memcpy(out, p->palette[value], 3);
        else memset(out, (int)(value * (255 / most)), 3);
    }
}

/* Every dx-th column from x and every dy-th row from y. Without interlace one pass has all pixels. */
typedef struct {
    uint8_t x, y, dx, dy;
} png_pass;

static gm_status png_read_pass(const png *p, png_pass pass, inflate *stream, uint8_t *rows[2], picture *out, error *e) {
    const uint32_t width = (p->width + pass.dx - 1 - pass.x) / pass.dx;
    const uint32_t bits = p->depth * p->samples;
    const size_t   n = ((size_t)width * bits + 7) / 8;
    if (!width) return GM_OK;
    memset(rows[1], 0, n);
    for (uint32_t y = pass.y; y < p->height; y += pass.dy) {
        uint8_t filter, *row = rows[0];
        TRY(inflate_read(stream, &filter, 1, e));
        TRY(inflate_read(stream, row, n, e));
        TRY(png_unfilter(filter, row, rows[1], n, max_size(bits / 8, 1), e));
        png_expand(p, row, width, out->pixels + ((size_t)y * p->width + pass.x) * 3, (size_t)pass.dx * 3);
        rows[0] = rows[1], rows[1] = row;
    }
    return GM_OK;
}

static gm_status png_read(const png *p, picture *out, error *e) {
    static const png_pass whole[1] = { { 0, 0, 1, 1 } };
    static const png_pass adam7[7] = { { 0, 0, 8, 8 }, { 4, 0, 8, 8 }, { 0, 4, 4, 8 }, { 2, 0, 4, 4 },
                                       { 0, 2, 2, 4 }, { 1, 0, 2, 2 }, { 0, 1, 1, 2 } };
    const size_t          row_bytes = ((size_t)p->width * p->depth * p->samples + 7) / 8;
    /* Deflate makes at most 1032 bytes of one, so a short file cannot be a large picture. */
    if ((row_bytes + 1) * p->height / 1032 > p->idat_bytes)
        return fail(e, GM_BAD_FILE, "the PNG is damaged: %zu compressed bytes cannot be %u x %u pixels", p->idat_bytes,
                    p->width, p->height);
    TRY(picture_new("PNG", p->width, p->height, out, e));
    const size_t bytes = sizeof(inflate) + 2 * row_bytes;
    inflate     *stream = malloc(bytes);
    if (!stream) return fail_memory(e, "decoding a PNG", bytes);
    png_idat  from = { p, p->first_idat };
    uint8_t  *rows[2] = { (uint8_t *)(stream + 1), (uint8_t *)(stream + 1) + row_bytes };
    gm_status status = GM_OK;
    inflate_start(stream, png_idat_next, &from);
    for (uint32_t i = 0; i < (p->interlaced ? 7 : 1) && !status; i++)
        status = png_read_pass(p, p->interlaced ? adam7[i] : whole[0], stream, rows, out, e);
    if (!status) status = inflate_end(stream, e);
    free(stream);
    return status;
}

gm_status png_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e) {
    png p = { .data = data, .size = size, .orientation = 1 };
    png_crc_table(p.crc_table);
    for (uint32_t i = 0; i < 256; i++) memset(p.palette[i], (int)i, 3);
    TRY(png_chunks(&p, e));
    *orientation = p.orientation;
    return png_read(&p, out, e);
}
