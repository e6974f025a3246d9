/* GIF (87a and 89a): the first frame on its screen.
 *
 * As with Pillow, what the frame leaves free has the colour of the transparent index, or of index 0, and transparent pixels keep their
 * palette's colour. A frame that reaches beyond the screen enlarges it. */

#include "media/picture_parts.h"

#include <stdlib.h>
#include <string.h>

enum { GIF_MOST_CODES = 4096 };

/* A reader that stops at the end: `cut` is set when something beyond it was asked for. */
typedef struct {
    const uint8_t *data;
    size_t         size, at;
    bool           cut;
} gif_reader;

static uint32_t gif_u8(gif_reader *r) {
    if (r->at >= r->size) {
        r->cut = true;
        return 0;
    }
    return r->data[r->at++];
}

static uint32_t gif_u16(gif_reader *r) {
    const uint32_t low = gif_u8(r);
    return low | gif_u8(r) << 8;
}

static void gif_skip(gif_reader *r, size_t n) {
    if (r->size - r->at < n) r->cut = true, r->at = r->size;
    else r->at += n;
}

static gm_status gif_fail_cut(const gif_reader *r, error *e) {
    return fail(e, GM_BAD_FILE, "the GIF is cut off: it ends after %zu bytes, before its first frame is complete",
                r->size);
}

typedef struct {
    gif_reader in;
    uint8_t    palette[256][3]; /* what the file does not define is a ramp of greys */
    int32_t    transparent;     /* -1: none */
    uint32_t   width, height;
    uint32_t   left, top, frame_width, frame_height;
    bool       interlaced;
} gif;

static void gif_read_palette(gif *g, uint32_t flags) {
    const uint32_t n = 2u << (flags & 7);
    for (uint32_t i = n; i < 256; i++) memset(g->palette[i], (int)i, 3);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t c = 0; c < 3; c++) g->palette[i][c] = (uint8_t)gif_u8(&g->in);
    }
}

/* Sub-blocks up to the empty one. */
static void gif_skip_blocks(gif_reader *r) {
    for (uint32_t n = gif_u8(r); n && !r->cut; n = gif_u8(r)) gif_skip(r, n);
}

static void gif_read_extension(gif *g) {
    enum { GRAPHIC_CONTROL = 0xf9 };
    if (gif_u8(&g->in) == GRAPHIC_CONTROL) {
        const uint32_t length = gif_u8(&g->in);
        if (!length) return;
        if (length >= 4) {
            const uint32_t flags = gif_u8(&g->in);
            gif_skip(&g->in, 2);
            const uint32_t index = gif_u8(&g->in);
            g->transparent = flags & 1 ? (int32_t)index : -1;
            gif_skip(&g->in, length - 4);
        } else {
            gif_skip(&g->in, length);
        }
    }
    gif_skip_blocks(&g->in);
}

/* From the header to the first frame's descriptor. */
static gm_status gif_read_header(gif *g, error *e) {
    gif_skip(&g->in, 6);
    g->width = gif_u16(&g->in), g->height = gif_u16(&g->in);
    const uint32_t flags = gif_u8(&g->in);
    gif_skip(&g->in, 2);
    if (flags & 128) gif_read_palette(g, flags);
    for (;;) {
        const size_t   at = g->in.at;
        const uint32_t kind = gif_u8(&g->in);
        if (g->in.cut) return gif_fail_cut(&g->in, e);
        if (kind == ',') break;
        if (kind == ';') return fail(e, GM_BAD_FILE, "the GIF has no frame: there is no picture in it");
        if (kind != '!')
            return fail(e, GM_BAD_FILE, "the GIF is damaged: byte %zu is %02x, expected a frame", at, kind);
        gif_read_extension(g);
    }
    g->left = gif_u16(&g->in), g->top = gif_u16(&g->in);
    g->frame_width = gif_u16(&g->in), g->frame_height = gif_u16(&g->in);
    const uint32_t local = gif_u8(&g->in);
    g->interlaced = local & 64;
    if (local & 128) gif_read_palette(g, local);
    if (g->in.cut) return gif_fail_cut(&g->in, e);
    g->width = (uint32_t)max_size(g->width, g->left + g->frame_width);
    g->height = (uint32_t)max_size(g->height, g->top + g->frame_height);
    if (!g->frame_width || !g->frame_height)
        return fail(e, GM_BAD_FILE, "the GIF's first frame has %u x %u pixels", g->frame_width, g->frame_height);
    return picture_check_size("GIF", g->width, g->height, e);
}

/* ---- LZW ---- */

typedef struct {
    gif_reader *in;
    uint32_t    block_left, bits, bit_count;
    uint32_t    clear, next, width,
        first_width; /* the clear code; the next free code; bits of a code, now and after a clear */
    int32_t  previous;
    uint16_t prefix[GIF_MOST_CODES];
    uint8_t  last[GIF_MOST_CODES], first[GIF_MOST_CODES];
    uint8_t  stack[GIF_MOST_CODES];
} gif_lzw;

/* The next code, or -1 where the data ends. */
static int32_t gif_lzw_code(gif_lzw *z) {
    while (z->bit_count < z->width) {
        if (!z->block_left) z->block_left = gif_u8(z->in);
        if (!z->block_left || z->in->cut) return -1;
        z->bits |= gif_u8(z->in) << z->bit_count;
        z->bit_count += 8;
        z->block_left--;
    }
    const uint32_t code = z->bits & ((1u << z->width) - 1);
    z->bits >>= z->width;
    z->bit_count -= z->width;
    return z->in->cut ? -1 : (int32_t)code;
}

static void gif_lzw_clear(gif_lzw *z) {
    z->next = z->clear + 2;
    z->width = z->first_width;
    z->previous = -1;
}

static gm_status gif_lzw_start(gif_lzw *z, gif_reader *in, error *e) {
    const uint32_t bits = gif_u8(in);
    memset(z, 0, sizeof *z);
    z->in = in;
    if (in->cut) return gif_fail_cut(in, e);
    if (bits < 1 || bits > 8)
        return fail(e, GM_BAD_FILE, "the GIF is damaged: its pixels have %u bits, expected 1 to 8", bits);
    z->clear = 1u << bits;
    z->first_width = bits + 1;
    for (uint32_t i = 0; i < z->clear; i++) z->last[i] = z->first[i] = (uint8_t)i;
    gif_lzw_clear(z);
    return GM_OK;
}

/* The string of the next code, its end first, in z->stack; 0 where the picture's data ends. */
static gm_status gif_lzw_string(gif_lzw *z, uint32_t *length, error *e) {
    int32_t code;
    while ((code = gif_lzw_code(z)) == (int32_t)z->clear) gif_lzw_clear(z);
    *length = 0;
    if (code < 0 || code == (int32_t)z->clear + 1) return GM_OK;
    if (code > (int32_t)z->next || (z->previous < 0 && code >= (int32_t)z->clear))
        return fail(e, GM_BAD_FILE, "the GIF is damaged: it has an undefined code");
    /* A code that is only being defined is the string before it, and its first pixel again. */
    uint32_t n = 0, at = (uint32_t)code;
    if (code == (int32_t)z->next) {
        if (z->next >= GIF_MOST_CODES) return fail(e, GM_BAD_FILE, "the GIF is damaged: it has more than 4,096 codes");
        z->stack[n++] = z->first[z->previous];
        at = (uint32_t)z->previous;
    }
    const uint8_t first = z->first[at];
    for (; at >= z->clear; at = z->prefix[at]) z->stack[n++] = z->last[at];
    z->stack[n++] = (uint8_t)at;
    if (z->previous >= 0 && z->next < GIF_MOST_CODES) {
        z->prefix[z->next] = (uint16_t)z->previous;
        z->last[z->next] = first;
        z->first[z->next] = z->first[z->previous];
        if (++z->next == 1u << z->width && z->width < 12) z->width++;
    }
    z->previous = code;
    *length = n;
    return GM_OK;
}

/* ---- the frame ---- */

/* Rows of an interlaced frame come in four passes. */
static uint32_t gif_next_row(uint32_t y, uint32_t height, uint32_t *pass) {
    static const uint8_t first[4] = { 0, 4, 2, 1 }, step[4] = { 8, 8, 4, 2 };
    y += step[*pass];
    while (y >= height && *pass < 3) y = first[++*pass];
    return y;
}

static gm_status gif_draw(const gif *g, gif_lzw *z, picture *out, error *e) {
    const uint64_t pixels = (uint64_t)g->frame_width * g->frame_height;
    uint32_t       x = 0, y = 0, pass = 0;
    for (uint64_t done = 0; done < pixels;) {
        uint32_t n;
        TRY(gif_lzw_string(z, &n, e));
        if (!n && z->in->cut) return gif_fail_cut(z->in, e);
        if (!n)
            return fail(e, GM_BAD_FILE, "the GIF is damaged: its data ends after %llu of %llu pixels",
                        (unsigned long long)done, (unsigned long long)pixels);
        for (; n && done < pixels; done++) {
            const size_t at = (size_t)(g->top + y) * g->width + g->left + x;
            memcpy(out->pixels + at * 3, g->palette[z->stack[--n]], 3);
            if (++x < g->frame_width) continue;
            x = 0;
            y = g->interlaced ? gif_next_row(y, g->frame_height, &pass) : y + 1;
        }
    }
    return GM_OK;
}

gm_status gif_decode(const uint8_t *data, size_t size, picture *out, uint32_t *orientation, error *e) {
    gif g = { .in = { data, size, 0, false }, .transparent = -1 };
    for (uint32_t i = 0; i < 256; i++) memset(g.palette[i], (int)i, 3);
    *orientation = 1;
    TRY(gif_read_header(&g, e));
    gif_lzw *z = malloc(sizeof *z);
    if (!z) return fail_memory(e, "decoding a GIF", sizeof *z);
    gm_status status = gif_lzw_start(z, &g.in, e);
    if (!status) status = picture_new("GIF", g.width, g.height, out, e);
    if (!status) {
        const uint8_t *ground = g.palette[g.transparent < 0 ? 0 : g.transparent];
        for (size_t i = 0; i < (size_t)g.width * g.height; i++) memcpy(out->pixels + i * 3, ground, 3);
        status = gif_draw(&g, z, out, e);
    }
    free(z);
    return status;
}
