/* WAV: PCM of 8 to 32 bits, floats of 32 and 64 bits, A-law and µ-law; plain, extensible, and RF64.
 *
 * A file whose data is shorter than its header says is refused. A recorder that writes to a pipe cannot know the length: it leaves
 * a size of 0xFFFFFFFF, or 0 for file and data; then the data goes to the end of the file. */

#include "media/sound_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WAV_PCM = 1, WAV_FLOAT = 3, WAV_A_LAW = 6, WAV_MU_LAW = 7, WAV_EXTENSIBLE = 0xfffe };
enum { WAV_HEADER = 12, WAV_CHUNK = 8, WAV_FORMAT = 16, WAV_EXTENSIBLE_FORMAT = 40 };
#define WAV_UNKNOWN 0xffffffffu

typedef float (*wav_sample)(const uint8_t *p);

typedef struct {
    sound_reader   reader;
    const uint8_t *at;
    size_t         frames; /* that are left */
    size_t         sample_bytes;
    wav_sample     sample;
} wav_reader;

static uint32_t wav_u16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t wav_u32(const uint8_t *p) { return wav_u16(p) | wav_u16(p + 2) << 16; }
static uint64_t wav_u64(const uint8_t *p) { return wav_u32(p) | (uint64_t)wav_u32(p + 4) << 32; }

/* ---- samples: a format narrower than its bytes is aligned to the high end, so only whole bytes matter ---- */

static float wav_pcm8(const uint8_t *p) { return (float)(p[0] - 128) / 128; }
static float wav_pcm16(const uint8_t *p) { return (float)(int16_t)wav_u16(p) / 32768; }
static float wav_pcm24(const uint8_t *p) {
    return (float)((int32_t)(wav_u16(p) << 8 | (uint32_t)p[2] << 24) >> 8) / 8388608;
}
static float wav_pcm32(const uint8_t *p) { return (float)((double)(int32_t)wav_u32(p) / 2147483648.0); }

static float wav_float32(const uint8_t *p) {
    const uint32_t bits = wav_u32(p);
    float          x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float wav_float64(const uint8_t *p) {
    const uint64_t bits = wav_u64(p);
    double         x;
    memcpy(&x, &bits, sizeof x);
    return fabs(x) <= 3e38 ? (float)x : NAN; /* refused like any value that is not a number */
}

/* Sign, 3 bits of exponent, 4 of mantissa; the bits of a byte are stored inverted, all of them or every other. */
static float wav_a_law(const uint8_t *p) {
    const int byte = p[0] ^ 0x55, exponent = byte >> 4 & 7, mantissa = byte & 15;
    const int size = exponent ? (mantissa * 16 + 264) << (exponent - 1) : mantissa * 16 + 8;
    return (float)(byte & 0x80 ? size : -size) / 32768;
}

static float wav_mu_law(const uint8_t *p) {
    const int byte = ~p[0] & 0xff, size = (((byte & 15) * 8 + 132) << (byte >> 4 & 7)) - 132;
    return (float)(byte & 0x80 ? -size : size) / 32768;
}

static const struct {
    uint32_t   tag, bytes;
    wav_sample sample;
} wav_formats[] = {
    { WAV_PCM, 1, wav_pcm8 },    { WAV_PCM, 2, wav_pcm16 },     { WAV_PCM, 3, wav_pcm24 },
    { WAV_PCM, 4, wav_pcm32 },   { WAV_FLOAT, 4, wav_float32 }, { WAV_FLOAT, 8, wav_float64 },
    { WAV_A_LAW, 1, wav_a_law }, { WAV_MU_LAW, 1, wav_mu_law },
};

static gm_status wav_read(sound_reader *r, float *out, size_t most, size_t *got, error *e) {
    (void)e;
    wav_reader  *w = (wav_reader *)r;
    const size_t frames = min_size(most, w->frames), values = frames * r->channels;
    for (size_t i = 0; i < values; i++, w->at += w->sample_bytes) out[i] = w->sample(w->at);
    w->frames -= frames;
    *got = frames;
    return GM_OK;
}

static void wav_close(sound_reader *r) { free(r); }

/* ---- chunks ---- */

typedef struct {
    const uint8_t *format, *data;
    uint64_t       format_size, data_size; /* data_size as far as the file goes */
} wav_chunks;

/* Finds the format and the data. Other chunks may stand anywhere; each begins at an even place. */
static gm_status wav_scan(const uint8_t *bytes, size_t size, wav_chunks *out, error *e) {
    const uint32_t whole = wav_u32(bytes + 4);
    const bool     streamed = whole == 0 || whole == WAV_UNKNOWN;
    uint64_t       long_data = WAV_UNKNOWN;
    for (uint64_t at = WAV_HEADER; at + WAV_CHUNK <= size && !out->data;) {
        const uint8_t *chunk = bytes + at, *content = chunk + WAV_CHUNK;
        const uint64_t there = size - at - WAV_CHUNK, stated = wav_u32(chunk + 4);
        uint64_t       length = stated;
        if (!memcmp(chunk, "data", 4)) {
            if (stated == WAV_UNKNOWN) length = long_data;
            if (length == WAV_UNKNOWN || (!length && streamed)) length = there;
            out->data = content;
            out->data_size = length;
        }
        if (length > there)
            return fail(e, GM_BAD_FILE,
                        "the WAV file is cut off: its chunk at byte %llu should have %llu bytes, but has %llu",
                        (unsigned long long)at, (unsigned long long)length, (unsigned long long)there);
        if (!memcmp(chunk, "fmt ", 4)) out->format = content, out->format_size = length;
        if (!memcmp(chunk, "ds64", 4) && length >= 16) long_data = wav_u64(content + 8);
        at += WAV_CHUNK + length + (length & 1);
    }
    if (!out->data) return fail(e, GM_BAD_FILE, "the WAV file has no chunk 'data': it ends before its samples");
    if (!out->format) return fail(e, GM_BAD_FILE, "the WAV file has no chunk 'fmt ' before its samples");
    return GM_OK;
}

gm_status wav_open(const void *bytes, size_t size, sound_reader **out, error *e) {
    wav_chunks c = { 0 };
    if (size < WAV_HEADER) return fail(e, GM_BAD_FILE, "the WAV file is cut off after %zu bytes", size);
    TRY(wav_scan(bytes, size, &c, e));
    if (c.format_size < WAV_FORMAT)
        return fail(e, GM_BAD_FILE, "the WAV file's chunk 'fmt ' has %llu bytes; at least 16 were expected",
                    (unsigned long long)c.format_size);
    uint32_t       tag = wav_u16(c.format);
    const uint32_t channels = wav_u16(c.format + 2), rate = wav_u32(c.format + 4);
    const uint32_t frame_bytes = wav_u16(c.format + 12), bits = wav_u16(c.format + 14), sample_bytes = (bits + 7) / 8;
    /* The actual format is the first field of the 16 bytes that name it. */
    if (tag == WAV_EXTENSIBLE && c.format_size >= WAV_EXTENSIBLE_FORMAT) tag = wav_u16(c.format + 24);
    TRY(sound_check_format(rate, channels, e));

    wav_sample sample = NULL;
    for (size_t i = 0; i < COUNT_OF(wav_formats); i++)
        if (wav_formats[i].tag == tag && wav_formats[i].bytes == sample_bytes) sample = wav_formats[i].sample;
    if (!sample)
        return fail(e, GM_UNSUPPORTED,
                    "the WAV file has samples of format 0x%04x with %u bits; PCM of 8 to 32 bits, "
                    "floats of 32 or 64 bits, A-law and µ-law can be read",
                    (unsigned)tag, (unsigned)bits);
    if (frame_bytes != sample_bytes * channels)
        return fail(e, GM_BAD_FILE, "the WAV file says that %u channels of %u bits take %u bytes; %u were expected",
                    (unsigned)channels, (unsigned)bits, (unsigned)frame_bytes, (unsigned)(sample_bytes * channels));

    wav_reader *w = malloc(sizeof *w);
    if (!w) return fail_memory(e, "a WAV file's reader", sizeof *w);
    *w = (wav_reader){ .reader = { .rate = rate,
                                   .channels = channels,
                                   .frames = c.data_size / frame_bytes,
                                   .read = wav_read,
                                   .close = wav_close },
                       .at = c.data,
                       .frames = (size_t)(c.data_size / frame_bytes),
                       .sample_bytes = sample_bytes,
                       .sample = sample };
    *out = &w->reader;
    return GM_OK;
}
