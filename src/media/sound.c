/* From the bytes of a sound file to mono at 16 kHz: what the file is, who decodes it, and the mean of its channels. */

#include "media/sound_parts.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SOUND_BLOCK = 2048 }; /* values that are decoded at a time */

/* ---- recognition --------------------------------------------------------------------------------------------------------- */

static const char *const sound_names[SOUND_KINDS] = {
    [SOUND_UNKNOWN] = "unknown", [SOUND_WAV] = "WAV", [SOUND_FLAC] = "FLAC", [SOUND_MP3] = "MP3",
    [SOUND_OGG] = "Ogg",         [SOUND_MP4] = "M4A", [SOUND_AAC] = "AAC",   [SOUND_WEBM] = "WebM",
};

const char *sound_kind_name(sound_kind kind) { return sound_names[kind]; }

static bool sound_has(const uint8_t *p, size_t size, size_t at, const char *text, size_t length) {
    return size >= at + length && !memcmp(p + at, text, length);
}

/* The length of a tag of MP3 players at the beginning; 0 if there is none. */
static size_t sound_tag(const uint8_t *p, size_t size) {
    if (size < 10 || memcmp(p, "ID3", 3)) return 0;
    const size_t length =
        10 + ((size_t)(p[6] & 127) << 21 | (size_t)(p[7] & 127) << 14 | (size_t)(p[8] & 127) << 7 | (p[9] & 127));
    return min_size(length, size);
}

sound_kind sound_recognise(const void *bytes, size_t size) {
    const uint8_t *p = bytes;
    const size_t   tag = sound_tag(p, size);
    if (sound_has(p, size, 8, "WAVE", 4) && (!memcmp(p, "RIFF", 4) || !memcmp(p, "RF64", 4) || !memcmp(p, "BW64", 4)))
        return SOUND_WAV;
    if (sound_has(p, size, tag, "fLaC", 4)) return SOUND_FLAC;
    if (sound_has(p, size, 0, "OggS", 4)) return SOUND_OGG;
    if (sound_has(p, size, 4, "ftyp", 4)) return SOUND_MP4;
    if (sound_has(p, size, 0, "\x1a\x45\xdf\xa3", 4)) return SOUND_WEBM;
    if (sound_has(p, size, 0, "ADIF", 4)) return SOUND_AAC;
    /* Frames of MPEG begin with 11 set bits; layer 0 is AAC's. Bit rate 15 and sampling rate 3 do not exist. */
    if (size - tag >= 4 && p[tag] == 0xff && (p[tag + 1] & 0xe0) == 0xe0) {
        const bool aac = (p[tag + 1] & 0xf6) == 0xf0;
        if (aac) return (p[tag + 2] >> 2 & 15) < 13 ? SOUND_AAC : SOUND_UNKNOWN;
        if ((p[tag + 1] & 6) && (p[tag + 2] >> 4) != 15 && (p[tag + 2] >> 2 & 3) != 3) return SOUND_MP3;
    }
    return tag ? SOUND_MP3 : SOUND_UNKNOWN;
}

bool sound_is_foreign(const void *bytes, size_t size) {
#ifdef GM_MEDIA_LIBRARIES
    const sound_kind kind = sound_recognise(bytes, size);
    return kind == SOUND_MP4 || kind == SOUND_AAC || kind == SOUND_WEBM;
#else
    (void)bytes, (void)size;
    return false;
#endif
}

/* Says what the file is instead, if it is something common. */
static gm_status sound_refuse(const uint8_t *p, size_t size, error *e) {
    static const struct {
        const char *start, *what;
    } others[] = {
        { "\x89PNG", "a PNG picture" },
        { "\xff\xd8\xff", "a JPEG picture" },
        { "GIF8", "a GIF picture" },
        { "FORM", "an AIFF file" },
        { "RIFX", "a big-endian WAV file" },
        { "caff", "a CAF file" },
        { "%PDF", "a PDF" },
        { "PK\3\4", "a zip archive" },
        { "GGUF", "a GGUF file" },
    };
    const char *expected = "not a sound that can be read (WAV, FLAC, MP3, Ogg, Opus, M4A or AAC)";
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (sound_has(p, size, 0, others[i].start, strlen(others[i].start)))
            return fail(e, GM_BAD_FILE, "%s: it is %s", expected, others[i].what);
    uint8_t first[4] = { 0 };
    memcpy(first, p, min_size(size, 4));
    return fail(e, GM_BAD_FILE, "%s: it begins with the bytes %02x %02x %02x %02x", expected, first[0], first[1],
                first[2], first[3]);
}

gm_status sound_check_format(uint32_t rate, uint32_t channels, error *e) {
    if (rate < SOUND_RATE_MIN || rate > SOUND_RATE_MAX)
        return fail(e, GM_BAD_FILE, "the sound has %u samples per second; 1,000 to 768,000 were expected",
                    (unsigned)rate);
    if (!channels || channels > SOUND_CHANNELS)
        return fail(e, GM_BAD_FILE, "the sound has %u channels; 1 to %d were expected", (unsigned)channels,
                    SOUND_CHANNELS);
    return GM_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------ */

void sound_free(sound *s) {
    free(s->samples);
    *s = (sound){ 0 };
}

gm_status samples_append(samples *s, const float *data, size_t count, error *e) {
    if (count > (size_t)SOUND_LONGEST * SOUND_RATE - s->count)
        return fail(e, GM_BAD_FILE, "the sound is longer than %d hours", SOUND_LONGEST / 3600);
    if (count > s->capacity - s->count) {
        const size_t capacity = max_size(s->count + count, s->capacity + s->capacity / 2);
        float       *more = realloc(s->data, capacity * sizeof *more);
        if (!more) return fail_memory(e, "a sound", capacity * sizeof *more);
        s->data = more;
        s->capacity = capacity;
    }
    if (count) memcpy(s->data + s->count, data, count * sizeof *data);
    s->count += count;
    return GM_OK;
}

/* Far beyond any sound, whose samples are around 1; larger ones could add up to infinity when they are resampled. */
#define LOUDEST 1e30f

/* The mean of the channels, in place. `before` counts the frames that came earlier, for the message. */
static gm_status sound_mix(float *values, size_t frames, uint32_t channels, uint64_t before, error *e) {
    for (size_t i = 0; i < frames; i++) {
        double sum = 0;
        for (uint32_t c = 0; c < channels; c++) sum += values[i * channels + c];
        values[i] = (float)(sum / channels);
        if (!isfinite(values[i]))
            return fail(e, GM_BAD_FILE, "sample %llu of the sound is not a finite number",
                        (unsigned long long)(before + i));
        if (fabsf(values[i]) > LOUDEST)
            return fail(e, GM_BAD_FILE, "sample %llu of the sound is %g, expected a number around 1",
                        (unsigned long long)(before + i), (double)values[i]);
    }
    return GM_OK;
}

/* ---- decoders ------------------------------------------------------------------------------------------------------------ */

struct sound_decoder {
    sound_reader *reader;
    resampler    *to_16k;
    samples       decoded;
    uint64_t      frames; /* read so far */
};

/* The reader becomes the decoder's, also if this fails. */
static gm_status decoder_of_reader(sound_reader *r, sound_decoder **out, error *e) {
    sound_decoder *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) {
        r->close(r);
        return fail_memory(e, "a sound's decoder", sizeof *d);
    }
    d->reader = r;
    *out = d;
    return GM_OK;
}

void sound_decoder_free(sound_decoder *d) {
    if (!d) return;
    resampler_free(d->to_16k);
    d->reader->close(d->reader);
    free(d->decoded.data);
    free(d);
}

bool sound_decoder_waits(const sound_decoder *d) { return d->reader->prepare && d->reader->waits(d->reader); }

size_t sound_decoder_done(const sound_decoder *d) { return d->decoded.count; }

size_t sound_decoder_total(const sound_decoder *d) {
    if (d->reader->prepare) return 0;
    return (size_t)(d->reader->frames / d->reader->rate) * SOUND_RATE +
           (size_t)(d->reader->frames % d->reader->rate * SOUND_RATE / d->reader->rate);
}

size_t sound_decoder_least(const sound_decoder *d) { return d->reader->estimated ? 0 : sound_decoder_total(d); }

gm_status sound_decoder_step(sound_decoder *d, double deadline, sound *out, error *e) {
    float         block[SOUND_BLOCK];
    sound_reader *r = d->reader;
    size_t        got = 0;
    *out = (sound){ 0 };
    if (r->prepare) TRY(r->prepare(r, deadline, e));
    if (!d->to_16k) TRY(resampler_new(r->rate, &d->to_16k, e));
    const size_t most = SOUND_BLOCK / r->channels;
    do {
        TRY(r->read(r, block, most, &got, e));
        TRY(sound_mix(block, got, r->channels, d->frames, e));
        TRY(resampler_push(d->to_16k, block, got, &d->decoded, e));
        d->frames += got;
        if (got && clock_seconds() > deadline) return GM_AGAIN;
    } while (got);
    if (!d->frames) return fail(e, GM_BAD_FILE, "the sound has no samples");
    TRY(resampler_end(d->to_16k, &d->decoded, e));
    *out = (sound){ d->decoded.data, d->decoded.count };
    d->decoded = (samples){ 0 };
    return GM_OK;
}

/* All of it at once. Frees the decoder. */
static gm_status decoder_finish(sound_decoder *d, sound *out, error *e) {
    const gm_status status = sound_decoder_step(d, INFINITY, out, e);
    sound_decoder_free(d);
    return status;
}

static gm_status sound_open(const void *bytes, size_t size, sound_reader **out, error *e) {
    const sound_kind kind = size ? sound_recognise(bytes, size) : SOUND_UNKNOWN;
    if (!size) return fail(e, GM_BAD_FILE, "the sound is empty: it has 0 bytes");
    if (kind == SOUND_UNKNOWN) return sound_refuse(bytes, size, e);
    if (kind == SOUND_WAV) return wav_open(bytes, size, out, e);
#ifdef GM_MEDIA_LIBRARIES
    if (kind == SOUND_FLAC || kind == SOUND_MP3 || kind == SOUND_OGG) return sndfile_open(bytes, size, kind, out, e);
    return ffmpeg_open(bytes, size, kind, out, e);
#else
    return fail(e, GM_UNSUPPORTED, "this build decodes only WAV itself, and the sound is %s: pass its samples instead",
                sound_kind_name(kind));
#endif
}

gm_status sound_decoder_new(const void *bytes, size_t size, sound_decoder **out, error *e) {
    sound_reader *r = NULL;
    *out = NULL;
    TRY(sound_open(bytes, size, &r, e));
    return decoder_of_reader(r, out, e);
}

gm_status sound_decode(const void *bytes, size_t size, sound *out, error *e) {
    sound_decoder *d = NULL;
    *out = (sound){ 0 };
    TRY(sound_decoder_new(bytes, size, &d, e));
    return decoder_finish(d, out, e);
}

/* ---- samples that somebody else decoded ------------------------------------------------------------------------------------ */

typedef struct {
    sound_reader reader;
    const float *at;
    size_t       frames;
} raw_reader;

static gm_status raw_read(sound_reader *r, float *out, size_t most, size_t *got, error *e) {
    (void)e;
    raw_reader  *raw = (raw_reader *)r;
    const size_t frames = min_size(most, raw->frames);
    if (frames) memcpy(out, raw->at, frames * r->channels * sizeof *out), raw->at += frames * r->channels;
    raw->frames -= frames;
    *got = frames;
    return GM_OK;
}

static void raw_close(sound_reader *r) { free(r); }

gm_status sound_decoder_of_samples(const float *values, size_t frames, uint32_t channels, uint32_t rate,
                                   sound_decoder **out, error *e) {
    *out = NULL;
    TRY(sound_check_format(rate, channels, e));
    raw_reader *raw = malloc(sizeof *raw);
    if (!raw) return fail_memory(e, "a sound's reader", sizeof *raw);
    *raw = (raw_reader){ { .rate = rate, .channels = channels, .frames = frames, .read = raw_read, .close = raw_close },
                         values,
                         frames };
    return decoder_of_reader(&raw->reader, out, e);
}

gm_status sound_from_samples(const float *values, size_t frames, uint32_t channels, uint32_t rate, sound *out,
                             error *e) {
    sound_decoder *d = NULL;
    *out = (sound){ 0 };
    TRY(sound_decoder_of_samples(values, frames, channels, rate, &d, e));
    return decoder_finish(d, out, e);
}
