/* See inflate.h. */

#include "media/inflate.h"

#include <string.h>

static gm_status inflate_fail(error *e, const char *what) {
    return fail(e, GM_BAD_FILE, "the compressed data is damaged: %s", what);
}

static gm_status inflate_fail_short(error *e) {
    return fail(e, GM_BAD_FILE, "the compressed data ends early: the file is cut off or damaged");
}

/* ---- bits, least significant first ---- */

/* Makes `n` bits available (n ≤ 32), or as many as there are. */
static bool inflate_fill(inflate *s, uint32_t n) {
    while (s->bit_count < n) {
        if (s->data == s->end) {
            size_t size = 0;
            if (!s->next(s->user, &s->data, &size)) return false;
            s->end = s->data + size;
            continue;
        }
        s->bits |= (uint64_t)*s->data++ << s->bit_count;
        s->bit_count += 8;
    }
    return true;
}

static uint32_t inflate_take(inflate *s, uint32_t n) {
    const uint32_t value = (uint32_t)(s->bits & ((UINT64_C(1) << n) - 1));
    s->bits >>= n;
    s->bit_count -= n;
    return value;
}

static gm_status inflate_bits(inflate *s, uint32_t n, uint32_t *out, error *e) {
    if (!inflate_fill(s, n)) return inflate_fail_short(e);
    *out = inflate_take(s, n);
    return GM_OK;
}

/* ---- Huffman codes ---- */

static uint32_t bits_reversed(uint32_t code, uint32_t length) {
    uint32_t reversed = 0;
    for (uint32_t i = 0; i < length; i++) reversed |= (code >> i & 1) << (length - 1 - i);
    return reversed;
}

/* Makes a code of the symbols' lengths (0: unused). The lengths must use up all codes, except that a code may be one code of one
 * bit (as zlib allows), or empty where `may_be_empty`. */
static gm_status inflate_code_make(inflate_code *c, const uint8_t *lengths, uint32_t n, bool may_be_empty, error *e) {
    uint16_t first[INFLATE_LONGEST_CODE + 2] = { 0 };
    uint32_t used = 0, longest = 0, code = 0;
    int32_t  left = 1;
    memset(c, 0, sizeof *c);
    for (uint32_t i = 0; i < n; i++) c->counts[lengths[i]]++;
    c->counts[0] = 0;
    for (uint32_t length = 1; length <= INFLATE_LONGEST_CODE; length++) {
        left = left * 2 - c->counts[length];
        if (left < 0) return inflate_fail(e, "a Huffman code has too many symbols");
        if (c->counts[length]) longest = length;
        first[length + 1] = (uint16_t)(first[length] + c->counts[length]);
        used += c->counts[length];
    }
    if (left > 0 && !(used == 0 && may_be_empty) && !(used == 1 && longest == 1))
        return inflate_fail(e, "a Huffman code is incomplete");
    for (uint32_t i = 0; i < n; i++) {
        if (lengths[i]) c->symbols[first[lengths[i]]++] = (uint16_t)i;
    }
    for (uint32_t length = 1, at = 0; length <= INFLATE_PRIMARY_BITS; length++) {
        for (uint32_t i = 0; i < c->counts[length]; i++, at++, code++) {
            for (uint32_t k = bits_reversed(code, length); k < 1u << INFLATE_PRIMARY_BITS; k += 1u << length)
                c->primary[k] = (uint16_t)(c->symbols[at] << 4 | length);
        }
        code <<= 1;
    }
    return GM_OK;
}

/* A code that is not in the primary table: among the codes of each length, in order. */
static gm_status inflate_symbol_slowly(inflate *s, const inflate_code *c, uint32_t *symbol, error *e) {
    uint32_t code = 0, first = 0, at = 0;
    for (uint32_t length = 1; length <= INFLATE_LONGEST_CODE; length++) {
        if (s->bit_count < length) return inflate_fail_short(e);
        code |= (uint32_t)(s->bits >> (length - 1)) & 1;
        const uint32_t count = c->counts[length];
        if (code < first + count) {
            inflate_take(s, length);
            *symbol = c->symbols[at + (code - first)];
            return GM_OK;
        }
        at += count;
        first = (first + count) << 1;
        code <<= 1;
    }
    return inflate_fail(e, "it contains an invalid code");
}

static gm_status inflate_symbol(inflate *s, const inflate_code *c, uint32_t *symbol, error *e) {
    if (s->bit_count < INFLATE_LONGEST_CODE) inflate_fill(s, INFLATE_LONGEST_CODE); /* fewer, at the end of the data */
    const uint32_t entry = c->primary[s->bits & ((1u << INFLATE_PRIMARY_BITS) - 1)];
    if (!entry) return inflate_symbol_slowly(s, c, symbol, e);
    if ((entry & 15) > s->bit_count) return inflate_fail_short(e);
    inflate_take(s, entry & 15);
    *symbol = entry >> 4;
    return GM_OK;
}

/* ---- blocks ---- */

static gm_status inflate_stored_block(inflate *s, error *e) {
    uint32_t length = 0, inverse = 0;
    inflate_take(s, s->bit_count % 8);
    TRY(inflate_bits(s, 16, &length, e));
    TRY(inflate_bits(s, 16, &inverse, e));
    if (length != (inverse ^ 0xffff)) return inflate_fail(e, "the length of a stored block does not match its copy");
    s->stored_left = length;
    s->state = INFLATE_STORED;
    return GM_OK;
}

static gm_status inflate_fixed_codes(inflate *s, error *e) {
    uint8_t lengths[288];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    TRY(inflate_code_make(&s->literals, lengths, 288, false, e));
    memset(lengths, 5, 32);
    return inflate_code_make(&s->distances, lengths, 32, false, e);
}

/* The lengths of both codes, which are themselves coded (RFC 1951, 3.2.7). */
static gm_status inflate_dynamic_codes(inflate *s, error *e) {
    static const uint8_t order[19] = { 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15 };
    uint8_t              lengths[320] = { 0 };
    uint32_t             literals, distances, coded;
    TRY(inflate_bits(s, 5, &literals, e));
    TRY(inflate_bits(s, 5, &distances, e));
    TRY(inflate_bits(s, 4, &coded, e));
    literals += 257, distances += 1, coded += 4;
    if (literals > 286 || distances > 30) return inflate_fail(e, "a block has too many codes");
    for (uint32_t i = 0; i < coded; i++) {
        uint32_t length;
        TRY(inflate_bits(s, 3, &length, e));
        lengths[order[i]] = (uint8_t)length;
    }
    TRY(inflate_code_make(&s->literals, lengths, 19, false, e));
    memset(lengths, 0, 19);
    for (uint32_t i = 0; i < literals + distances;) {
        static const struct {
            uint8_t bits, least;
        } repeats[3] = { { 2, 3 }, { 3, 3 }, { 7, 11 } };
        uint32_t symbol, times;
        TRY(inflate_symbol(s, &s->literals, &symbol, e));
        if (symbol < 16) {
            lengths[i++] = (uint8_t)symbol;
            continue;
        }
        TRY(inflate_bits(s, repeats[symbol - 16].bits, &times, e));
        times += repeats[symbol - 16].least;
        if ((symbol == 16 && i == 0) || times > literals + distances - i)
            return inflate_fail(e, "a repeated code length runs past the end");
        const uint8_t value = symbol == 16 ? lengths[i - 1] : 0;
        memset(lengths + i, value, times);
        i += times;
    }
    if (!lengths[256]) return inflate_fail(e, "a block has no code for its end");
    TRY(inflate_code_make(&s->literals, lengths, literals, false, e));
    return inflate_code_make(&s->distances, lengths + literals, distances, true, e);
}

static gm_status inflate_block_begin(inflate *s, error *e) {
    uint32_t head = 0;
    if (s->last) {
        s->state = INFLATE_ENDED;
        return GM_OK;
    }
    TRY(inflate_bits(s, 3, &head, e));
    s->last = head & 1;
    switch (head >> 1) {
    case 0: return inflate_stored_block(s, e);
    case 1: TRY(inflate_fixed_codes(s, e)); break;
    case 2: TRY(inflate_dynamic_codes(s, e)); break;
    default: return inflate_fail(e, "a block is of an unknown kind");
    }
    s->state = INFLATE_CODED;
    return GM_OK;
}

static gm_status inflate_stored(inflate *s, error *e) {
    while (s->stored_left && s->made < 2 * INFLATE_WINDOW) {
        uint32_t byte = 0;
        TRY(inflate_bits(s, 8, &byte, e));
        s->window[s->made++] = (uint8_t)byte;
        s->stored_left--;
    }
    if (!s->stored_left) s->state = INFLATE_BETWEEN;
    return GM_OK;
}

static gm_status inflate_match(inflate *s, uint32_t symbol, error *e) {
    static const uint16_t length_base[29] = { 3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                              31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258 };
    static const uint8_t  length_bits[29] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                              2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0 };
    uint32_t              extra, length, distance, code;
    if (symbol > 285) return inflate_fail(e, "a length is unknown");
    TRY(inflate_bits(s, length_bits[symbol - 257], &extra, e));
    length = length_base[symbol - 257] + extra;
    TRY(inflate_symbol(s, &s->distances, &code, e));
    if (code > 29) return inflate_fail(e, "a distance is unknown");
    const uint32_t more = code < 4 ? 0 : code / 2 - 1;
    TRY(inflate_bits(s, more, &extra, e));
    distance = (code < 4 ? code + 1 : 1 + ((2 + code % 2) << more)) + extra;
    if (distance > s->made) return inflate_fail(e, "a distance points before the start");
    uint8_t *to = s->window + s->made;
    for (uint32_t i = 0; i < length; i++) to[i] = to[(ptrdiff_t)i - (ptrdiff_t)distance];
    s->made += length;
    return GM_OK;
}

static gm_status inflate_coded(inflate *s, error *e) {
    while (s->made < 2 * INFLATE_WINDOW) {
        uint32_t symbol;
        TRY(inflate_symbol(s, &s->literals, &symbol, e));
        if (symbol < 256) s->window[s->made++] = (uint8_t)symbol;
        else if (symbol > 256) TRY(inflate_match(s, symbol, e));
        else {
            s->state = INFLATE_BETWEEN;
            break;
        }
    }
    return GM_OK;
}

static gm_status inflate_header(inflate *s, error *e) {
    uint32_t method = 0, flags = 0;
    TRY(inflate_bits(s, 8, &method, e));
    TRY(inflate_bits(s, 8, &flags, e));
    if ((method & 15) != 8 || method >> 4 > 7 || (method << 8 | flags) % 31 != 0)
        return fail(e, GM_BAD_FILE, "expected a zlib stream, found one that begins with %02x %02x", method, flags);
    if (flags & 32) return fail(e, GM_BAD_FILE, "the zlib stream needs a dictionary, which the file does not have");
    s->state = INFLATE_BETWEEN;
    return GM_OK;
}

/* ---- the stream ---- */

static void inflate_sum(inflate *s, const uint8_t *data, size_t n) {
    enum { MODULUS = 65521, MOST = 5552 }; /* MOST: as many bytes as 32 bits can sum */
    uint32_t a = s->adler_a, b = s->adler_b;
    while (n) {
        const size_t part = min_size(n, MOST);
        for (size_t i = 0; i < part; i++) a += data[i], b += a;
        a %= MODULUS, b %= MODULUS;
        data += part, n -= part;
    }
    s->adler_a = a, s->adler_b = b;
}

/* Decodes up to 32 KiB more, or to the end. Everything made before must have been taken. */
static gm_status inflate_make(inflate *s, error *e) {
    const size_t keep = min_size(s->made, INFLATE_WINDOW);
    memmove(s->window, s->window + s->made - keep, keep);
    s->made = s->taken = keep;
    while (s->made < 2 * INFLATE_WINDOW && s->state != INFLATE_ENDED) {
        switch (s->state) {
        case INFLATE_HEADER: TRY(inflate_header(s, e)); break;
        case INFLATE_BETWEEN: TRY(inflate_block_begin(s, e)); break;
        case INFLATE_STORED: TRY(inflate_stored(s, e)); break;
        default: TRY(inflate_coded(s, e)); break;
        }
    }
    inflate_sum(s, s->window + keep, s->made - keep);
    return GM_OK;
}

void inflate_start(inflate *s, inflate_next next, void *user) {
    memset(s, 0, offsetof(inflate, literals));
    s->next = next;
    s->user = user;
    s->adler_a = 1;
}

gm_status inflate_read(inflate *s, uint8_t *out, size_t n, error *e) {
    while (n) {
        if (s->taken == s->made) TRY(inflate_make(s, e));
        const size_t part = min_size(n, s->made - s->taken);
        if (!part) return fail(e, GM_BAD_FILE, "the compressed data has %zu bytes less than the picture needs", n);
        memcpy(out, s->window + s->taken, part);
        s->taken += part, out += part, n -= part;
    }
    return GM_OK;
}

gm_status inflate_end(inflate *s, error *e) {
    for (size_t skipped = 0; s->state != INFLATE_ENDED; skipped += s->made - s->taken) {
        if (skipped > 1 << 20) return fail(e, GM_BAD_FILE, "the compressed data is far longer than the picture");
        TRY(inflate_make(s, e));
    }
    uint32_t high = 0, low = 0;
    inflate_take(s, s->bit_count % 8);
    TRY(inflate_bits(s, 16, &high, e));
    TRY(inflate_bits(s, 16, &low, e));
    const uint32_t stored = (high & 255) << 24 | (high >> 8) << 16 | (low & 255) << 8 | low >> 8;
    const uint32_t sum = s->adler_b << 16 | s->adler_a;
    if (stored != sum)
        return fail(e, GM_BAD_FILE, "the checksum of the picture's data is %08x, expected %08x", sum, stored);
    return GM_OK;
}
