/* Sound: every kind of WAV, other formats, resampling, mel features, pieces; and everything that is refused. */

#include "base/buffer.h"
#include "gguf/gguf.h"
#include "media/sound_parts.h"
#include "test.h"

#include <math.h>
#ifdef GM_MEDIA_LIBRARIES
#include <errno.h>
#include <signal.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

static const double pi = 3.14159265358979323846;

/* ---- WAV files, made here --------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t    tag, bits, channels, rate;
    bool        extensible;
    double      step; /* the distance of two values; 0: a float's */
    const char *name;
} wav_kind;

static const wav_kind plain = { 1, 16, 1, 16000, false, 1.0 / 32768, "16 bits" };

static void put_bytes(buffer *b, uint64_t x, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) buffer_char(b, (char)(x >> (8 * i)));
}

/* The byte of A-law (6) or µ-law (7) whose value is the nearest, by trying all: formulas of the standard, in other words than the decoder's. */
static uint8_t put_law(uint32_t tag, double x) {
    uint8_t best = 0;
    double  least = 2;
    for (int code = 0; code < 256; code++) {
        const int    bits = tag == 6 ? code ^ 0x55 : ~code & 255, segment = bits >> 4 & 7, step = bits & 15;
        const double a = segment ? ldexp(step + 16.5, segment - 1) / 2048 : (step + 0.5) / 2048;
        const double mu = (ldexp(step + 16.5, segment) - 16.5) / 4096;
        const double size = tag == 6 ? a : mu, value = (bits & 0x80) == (tag == 6 ? 0x80 : 0) ? size : -size;
        if (fabs(value - x) < least) least = fabs(value - x), best = (uint8_t)code;
    }
    return best;
}

static void put_value(buffer *b, const wav_kind *k, double x) {
    if (k->tag == 6 || k->tag == 7) {
        put_bytes(b, put_law(k->tag, x), 1);
    } else if (k->tag == 3 && k->bits == 32) {
        const float f = (float)x;
        buffer_append(b, &f, sizeof f);
    } else if (k->tag == 3) {
        buffer_append(b, &x, sizeof x);
    } else {
        const size_t  bytes = (k->bits + 7) / 8;
        const int64_t whole = (int64_t)floor(x * ldexp(1, (int)k->bits - 1)) * (1 << (8 * bytes - k->bits));
        put_bytes(b, (uint64_t)(bytes == 1 ? whole + 128 : whole), bytes);
    }
}

static double tone(double frequency, double at) { return 0.5 * sin(2 * pi * frequency * at); }

static void put_format(buffer *b, const wav_kind *k) {
    const uint32_t bytes = (k->bits + 7) / 8;
    buffer_text(b, "fmt ");
    put_bytes(b, k->extensible ? 40 : 16, 4);
    put_bytes(b, k->extensible ? 0xfffe : k->tag, 2);
    put_bytes(b, k->channels, 2);
    put_bytes(b, k->rate, 4);
    put_bytes(b, (uint64_t)k->rate * bytes * k->channels, 4);
    put_bytes(b, (uint64_t)bytes * k->channels, 2);
    put_bytes(b, k->extensible ? 8 * bytes : k->bits, 2);
    if (!k->extensible) return;
    put_bytes(b, 22, 2);
    put_bytes(b, k->bits, 2);
    put_bytes(b, 0, 4);
    put_bytes(b, k->tag, 2);
    buffer_append(b, "\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71", 14);
}

/* Channel c has the tone of 440 Hz times (1, ½, ¼, …)[c]. */
static void put_data(buffer *b, const wav_kind *k, size_t frames) {
    for (size_t i = 0; i < frames; i++)
        for (uint32_t c = 0; c < k->channels; c++) put_value(b, k, ldexp(tone(440, (double)i / k->rate), -(int)c));
}

static buffer make_wav(const wav_kind *k, size_t frames) {
    const size_t bytes = (k->bits + 7) / 8 * k->channels * frames;
    buffer       b = { 0 };
    buffer_text(&b, "RIFF");
    put_bytes(&b, 4 + 8 + (k->extensible ? 40 : 16) + 8 + bytes, 4);
    buffer_text(&b, "WAVE");
    put_format(&b, k);
    buffer_text(&b, "data");
    put_bytes(&b, bytes, 4);
    put_data(&b, k, frames);
    return b;
}

static double mean_factor(uint32_t channels) {
    double sum = 0;
    for (uint32_t c = 0; c < channels; c++) sum += ldexp(1, -(int)c);
    return sum / channels;
}

/* A decoder whose time is always up goes on where it was, and gives what sound_decode gives. */
static void test_steps(void) {
    const wav_kind kind = { 1, 16, 2, 44100, false, 0, "44.1 kHz, stereo" };
    buffer         b = make_wav(&kind, 44100);
    sound          whole = { 0 }, s = { 0 };
    sound_decoder *d = NULL;
    error          e = { 0 };
    size_t         steps = 0, before = 0;
    TEST("decoding in steps");
    CHECK_MESSAGE(!sound_decode(b.data, b.length, &whole, &e) && !sound_decoder_new(b.data, b.length, &d, &e), "%s",
                  e.why);
    CHECK(d && sound_decoder_total(d) == SOUND_RATE);
    for (gm_status status = GM_AGAIN; d && status == GM_AGAIN; steps++) {
        status = sound_decoder_step(d, 0, &s, &e);
        CHECK_MESSAGE(status == GM_AGAIN || !status, "%s", e.why);
        if (status != GM_AGAIN) break;
        CHECK(!s.samples && sound_decoder_done(d) >= before);
        before = sound_decoder_done(d);
    }
    CHECK_MESSAGE(steps > 10 && before > SOUND_RATE / 2, "%zu steps, %zu samples before the last", steps, before);
    CHECK(s.count == whole.count && s.samples && !memcmp(s.samples, whole.samples, s.count * sizeof *s.samples));
    sound_decoder_free(d);
    sound_free(&s);
    d = NULL;
    CHECK(!sound_decoder_new(b.data, b.length, &d, &e) && sound_decoder_step(d, 0, &s, &e) == GM_AGAIN);
    sound_decoder_free(d); /* halfway */
    sound_free(&whole);
    buffer_free(&b);
}

static void test_wav_kinds(void) {
    static const wav_kind kinds[] = {
        { 1, 8, 1, 16000, false, 1.0 / 128, "8 bits" },
        { 1, 12, 1, 16000, false, 1.0 / 2048, "12 bits in two bytes" },
        plain,
        { 1, 16, 2, 16000, false, 1.0 / 32768, "16 bits, stereo" },
        { 1, 16, 6, 16000, true, 1.0 / 32768, "16 bits, 5.1, extensible" },
        { 1, 24, 2, 16000, false, 1.0 / 8388608, "24 bits" },
        { 1, 20, 1, 16000, true, 1.0 / 524288, "20 bits in three bytes, extensible" },
        { 1, 32, 1, 16000, false, 0, "32 bits" },
        { 3, 32, 2, 16000, false, 0, "floats" },
        { 3, 32, 1, 16000, true, 0, "floats, extensible" },
        { 3, 64, 2, 16000, false, 0, "doubles" },
        { 6, 8, 1, 16000, false, 1.0 / 64, "A-law" },
        { 7, 8, 2, 16000, false, 1.0 / 64, "µ-law" },
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const wav_kind *k = &kinds[i];
        buffer          b = make_wav(k, 999);
        sound           s;
        error           e = { 0 };
        TEST("WAV: %s", k->name);
        CHECK_MESSAGE(!sound_decode(b.data, b.length, &s, &e), "%s", e.why);
        CHECK(s.count == 999);
        double worst = 0;
        for (size_t t = 0; t < s.count; t++)
            worst = fmax(worst, fabs(s.samples[t] - tone(440, (double)t / 16000) * mean_factor(k->channels)));
        CHECK_MESSAGE(worst <= k->step + 1e-7, "off by %g", worst);
        sound_free(&s);
        buffer_free(&b);
    }
}

/* Chunks in odd places, and lengths that are not known. */
static void test_wav_chunks(void) {
    static const char *const names[] = { "odd chunks", "RF64", "a stream of unknown length",
                                         "a stream with sizes of 0" };
    for (int i = 0; i < 4; i++) {
        buffer b = { 0 };
        sound  s;
        error  e = { 0 };
        TEST("WAV: %s", names[i]);
        buffer_text(&b, i == 1 ? "RF64" : "RIFF");
        put_bytes(&b, i == 0 ? 4 + 12 + 24 + 8 + 200 + 12 : i == 3 ? 0 : 0xffffffff, 4);
        buffer_text(&b, "WAVE");
        if (i == 0) buffer_append(&b, "LIST\3\0\0\0abc\0", 12);
        if (i == 1) {
            buffer_text(&b, "ds64");
            put_bytes(&b, 28, 4);
            put_bytes(&b, 300, 8);
            put_bytes(&b, 200, 8);
            put_bytes(&b, 100, 8);
            put_bytes(&b, 0, 4);
        }
        put_format(&b, &plain);
        buffer_text(&b, "data");
        put_bytes(&b, i == 0 ? 200 : i == 3 ? 0 : 0xffffffff, 4);
        put_data(&b, &plain, 100);
        if (i < 2) buffer_append(&b, "LIST\2\0\0\0ab", 10);
        if (i > 1) buffer_char(&b, 'x'); /* half a sample */
        CHECK_MESSAGE(!sound_decode(b.data, b.length, &s, &e), "%s", e.why);
        CHECK_MESSAGE(s.count == 100, "%zu", s.count);
        sound_free(&s);
        buffer_free(&b);
    }
}

static void test_wav_cut_off(void) {
    const wav_kind k = { 1, 16, 2, 44100, true, 0, "" };
    buffer         b = make_wav(&k, 50);
    TEST("WAV: a file that is cut off anywhere is refused");
    for (size_t n = 0; n < b.length; n++) {
        char *part = malloc(n + 1); /* of its own, so that a sanitizer sees its end */
        sound s;
        error e = { 0 };
        memcpy(part, b.data, n);
        CHECK_MESSAGE(sound_decode(part, n, &s, &e) == GM_BAD_FILE && e.why[0] && !s.samples, "%zu bytes", n);
        free(part);
    }
    buffer_free(&b);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

static void expect_refusal(const char *name, const void *bytes, size_t size, gm_status status, const char *why) {
    sound s;
    error e = { 0 };
    TEST("refused: %s", name);
    const gm_status got = sound_decode(bytes, size, &s, &e);
    CHECK_MESSAGE(got == status && strstr(e.why, why), "%d: %s", got, e.why);
    CHECK(!s.samples);
}

static void test_refusals(void) {
    static const struct {
        const char *name;
        size_t      at;
        uint32_t    value, bytes;
        gm_status   status;
        const char *why;
    } patches[] = {
        { "MP3 in a WAV file", 20, 0x55, 2, GM_UNSUPPORTED, "format 0x0055 with 16 bits" },
        { "no channels", 22, 0, 2, GM_BAD_FILE, "0 channels; 1 to 64" },
        { "65 channels", 22, 65, 2, GM_BAD_FILE, "65 channels" },
        { "a rate of 0", 24, 0, 4, GM_BAD_FILE, "0 samples per second" },
        { "a rate of 4 GHz", 24, 4000000000, 4, GM_BAD_FILE, "4000000000 samples per second" },
        { "a frame of 3 bytes", 32, 3, 2, GM_BAD_FILE, "take 3 bytes; 2 were expected" },
        { "samples of 0 bits", 34, 0, 2, GM_UNSUPPORTED, "0 bits" },
        { "samples of 48 bits", 34, 48, 2, GM_UNSUPPORTED, "48 bits" },
        { "data that is longer than the file", 40, 500, 4, GM_BAD_FILE, "should have 500 bytes, but has 200" },
        { "no samples", 40, 0, 4, GM_BAD_FILE, "no samples" },
    };
    buffer b = make_wav(&plain, 100), bad = { 0 };
    for (size_t i = 0; i < COUNT_OF(patches); i++) {
        char patched[244];
        memcpy(patched, b.data, sizeof patched);
        for (uint32_t k = 0; k < patches[i].bytes; k++)
            patched[patches[i].at + k] = (char)(patches[i].value >> (8 * k));
        expect_refusal(patches[i].name, patched, sizeof patched, patches[i].status, patches[i].why);
    }
    buffer_free(&b);
    expect_refusal("a short format", "RIFF\x1c\0\0\0WAVEfmt \4\0\0\0\1\0\1\0data\4\0\0\0abcd", 36, GM_BAD_FILE,
                   "has 4 bytes; at least 16");
    expect_refusal("no format", "RIFF\x10\0\0\0WAVEdata\4\0\0\0abcd", 24, GM_BAD_FILE, "no chunk 'fmt '");
    expect_refusal("nothing", "", 0, GM_BAD_FILE, "0 bytes");
    expect_refusal("a picture", "\x89PNG\r\n\x1a\n", 8, GM_BAD_FILE, "it is a PNG picture");
    expect_refusal("anything else", "hello", 5, GM_BAD_FILE, "begins with the bytes 68 65 6c 6c");

    const wav_kind      floats = { 3, 64, 2, 16000, false, 0, "" };
    static const double values[] = { NAN, INFINITY, 1e300, 2e38 }; /* the last overflows when it is resampled */
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        bad = make_wav(&floats, 100);
        memcpy(bad.data + bad.length - 8, &values[i], 8);
        expect_refusal(i ? "a sample that is too large" : "a sample that is NaN", bad.data, bad.length, GM_BAD_FILE,
                       "sample 99");
        buffer_free(&bad);
    }
    TEST("refused: samples at a rate of 0, and no samples at all");
    sound s;
    error e = { 0 };
    CHECK(sound_from_samples(NULL, 0, 1, 0, &s, &e) == GM_BAD_FILE && strstr(e.why, "per second"));
    e = (error){ 0 };
    CHECK(sound_from_samples(NULL, 0, 1, 48000, &s, &e) == GM_BAD_FILE && strstr(e.why, "no samples"));
}

static void test_recognition(void) {
    static const struct {
        const char *bytes;
        size_t      size;
        sound_kind  kind;
    } rows[] = {
        { "RIFF\4\0\0\0WAVE", 12, SOUND_WAV },
        { "RIFF\4\0\0\0WEBP", 12, SOUND_UNKNOWN },
        { "fLaC", 4, SOUND_FLAC },
        { "ID3\4\0\0\0\0\0\2xxfLaC", 16, SOUND_FLAC },
        { "ID3\4\0\0\0\0\0\2xx", 12, SOUND_MP3 },
        { "\xff\xfb\x90\x64", 4, SOUND_MP3 },
        { "\xff\xf3\x40\xc4", 4, SOUND_MP3 },
        { "\xff\xff\xff\xff", 4, SOUND_UNKNOWN },
        { "\xff\xf1\x50\x80", 4, SOUND_AAC },
        { "OggS", 4, SOUND_OGG },
        { "\0\0\0\x20"
          "ftypM4A ",
          12, SOUND_MP4 },
        { "\xff\xd8\xff\xe0", 4, SOUND_UNKNOWN },
        { "\x1a\x45\xdf\xa3", 4, SOUND_WEBM },
        { "R", 1, SOUND_UNKNOWN },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("recognised: %zu", i);
        CHECK(sound_recognise(rows[i].bytes, rows[i].size) == rows[i].kind);
    }
}

/* ---- resampling ----------------------------------------------------------------------------------------------------------- */

/* How much louder than the tone is what differs from the ideal, in dB; without the ends, where the sound begins and ends. */
static double residue(uint32_t rate, double frequency) {
    const size_t n = rate / 2;
    float       *in = malloc(n * sizeof *in);
    sound        s;
    error        e = { 0 };
    for (size_t i = 0; i < n; i++) in[i] = (float)tone(frequency, (double)i / rate);
    CHECK_MESSAGE(!sound_from_samples(in, n, 1, rate, &s, &e), "%s", e.why);
    CHECK(s.count == ((uint64_t)n * 16000 + rate - 1) / rate);
    double wrong = 0, whole = 0;
    for (size_t i = s.count / 4; i < s.count * 3 / 4; i++) {
        const double ideal = tone(frequency, (double)i / 16000), want = frequency < 8000 ? ideal : 0;
        wrong += (s.samples[i] - want) * (s.samples[i] - want);
        whole += 0.125; /* a tone's mean square */
    }
    sound_free(&s);
    free(in);
    return 10 * log10(wrong / whole + 1e-30);
}

static void test_resampling(void) {
    static const uint32_t rates[] = { 8000,  11025, 12000,  22050, 24000, 32000, 44100,
                                      48000, 96000, 192000, 15999, 16001, 44099, 47999 };
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        const double half = fmin(rates[i], 16000) / 2;
        TEST("resampled from %u Hz", rates[i]);
        for (int k = 1; k <= 9; k++) { /* the pass band, to its end, with everything that the images add */
            const double dB = residue(rates[i], half * 0.9 * k / 9 - 1);
            CHECK_MESSAGE(dB < -80, "%g Hz: %g dB", half * 0.9 * k / 9, dB);
        }
        for (int k = 0; k <= 8 && rates[i] > 16001; k++) { /* the stop band, from its beginning */
            const double f = 8000.5 + (rates[i] / 2.0 - 8001) * k / 8, dB = residue(rates[i], f);
            CHECK_MESSAGE(dB < -80, "%g Hz: %g dB", f, dB);
        }
    }
    TEST("16 kHz stays as it is");
    float in[1000];
    sound s;
    error e = { 0 };
    for (int i = 0; i < 1000; i++) in[i] = (float)sin(i * i);
    CHECK(!sound_from_samples(in, 1000, 1, 16000, &s, &e) && s.count == 1000 && !memcmp(s.samples, in, sizeof in));
    sound_free(&s);
    TEST("one sample is enough");
    CHECK(!sound_from_samples(in, 1, 1, 8000, &s, &e) && s.count == 2);
    sound_free(&s);
}

/* ---- mel features ------------------------------------------------------------------------------------------------------- */

static void test_mel_counts(void) {
    static const size_t rows[][3] = { /* samples, valid frames, tokens */
                                      { 0, 0, 0 },   { 160, 0, 0 },  { 161, 1, 1 },     { 320, 1, 1 },
                                      { 321, 2, 1 }, { 1600, 9, 3 }, { 16000, 99, 25 }, { 480000, 2999, 750 }
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("%zu samples have %zu frames", rows[i][0], rows[i][1]);
        CHECK(mel_valid(rows[i][0]) == rows[i][1] && mel_tokens(rows[i][1]) == rows[i][2]);
        CHECK(mel_frames(rows[i][0]) >= mel_valid(rows[i][0]));
    }
    CHECK(raw_frames(0) == 0 && raw_frames(1) == 1 && raw_frames(640) == 1 && raw_frames(641) == 2);
}

static void test_mel_vectors(void) {
    static const struct {
        int    frame, bin; /* bin −1: the sum */
        double want;
    } rows[] = { { 0, 0, -6.90776 },   { 0, 5, 0.54321 },    { 0, 20, 1.60782 },   { 0, 24, 2.83757 },
                 { 0, 64, -1.24126 },  { 0, 127, -2.15304 }, { 0, -1, -103.5836 }, { 1, 0, -6.90776 },
                 { 1, 5, -4.95307 },   { 1, 20, -0.33679 },  { 1, 24, 3.52731 },   { 1, 64, -6.39757 },
                 { 1, 127, -6.90180 }, { 1, -1, -646.4964 }, { 5, 24, 3.52727 },   { 5, 30, -1.34832 },
                 { 5, -1, -650.8761 } };
    float pcm[1600], mel[10][MEL_BINS];
    error e = { 0 };
    TEST("mel features of a tone");
    for (int n = 0; n < 1600; n++) pcm[n] = (float)tone(440, n / 16000.0);
    CHECK(mel_frames(1600) == 10 && mel_valid(1600) == 9);
    CHECK(!mel_features(pcm, 1600, mel[0], &e));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double got = rows[i].bin < 0 ? 0 : mel[rows[i].frame][rows[i].bin];
        for (int b = 0; b < MEL_BINS && rows[i].bin < 0; b++) got += mel[rows[i].frame][b];
        const double room = rows[i].bin < 0 ? 0.02 : 5e-5;
        CHECK_MESSAGE(fabs(got - rows[i].want) < room, "frame %d, bin %d: %.5f", rows[i].frame, rows[i].bin, got);
    }
    for (int b = 0; b < MEL_BINS; b++) CHECK(mel[9][b] == 0);
}

static double distance_of(const float *got, const float *want, size_t n) {
    double wrong = 0, whole = 0;
    for (size_t i = 0; i < n; i++) {
        wrong += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        whole += (double)want[i] * want[i];
    }
    return sqrt(wrong / whole);
}

static buffer sound_file(const char *path) {
    FILE  *f = fopen(path, "rb");
    buffer b = { 0 };
    char   part[4096];
    for (size_t n; f && (n = fread(part, 1, sizeof part, f));) buffer_append(&b, part, n);
    if (f) fclose(f);
    return b;
}

/* The witness's samples and features of the same file. */
static void test_mel_fixture(void) {
    buffer  b = sound_file("tests/fixtures/tiny-mm.wav");
    buffer  expect = sound_file("tests/fixtures/tiny-mm.expect.gguf");
    source *from = NULL;
    gguf   *g = NULL;
    sound   s;
    error   e = { 0 };
    TEST("the fixture's sound");
    CHECK_MESSAGE(!source_memory(expect.data, expect.length, &from, &e) && !gguf_new(from, &g, &e) && !gguf_step(g, &e),
                  "%s", e.why);
    CHECK_MESSAGE(!sound_decode(b.data, b.length, &s, &e), "%s", e.why);
    const gguf_tensor *pcm = gguf_find_tensor(g, "audio.pcm"), *mel = gguf_find_tensor(g, "audio.mel"),
                      *mask = gguf_find_tensor(g, "audio.mel_mask");
    CHECK(pcm && mel && mask && pcm->ne[0] == s.count && mel->ne[1] == mel_frames(s.count));
    CHECK(!memcmp(gguf_tensor_data(g, pcm), s.samples, s.count * sizeof *s.samples));
    const size_t frames = mel_frames(s.count);
    float       *got = malloc(frames * MEL_BINS * sizeof *got);
    CHECK(!mel_features(s.samples, s.count, got, &e));
    const double off = distance_of(got, (const float *)gguf_tensor_data(g, mel), frames * MEL_BINS);
    CHECK_MESSAGE(off < 1e-6, "off by %g", off);
    for (size_t i = 0; i < frames; i++) {
        int32_t valid;
        memcpy(&valid, gguf_tensor_data(g, mask) + 4 * i, 4);
        CHECK((valid != 0) == (i < mel_valid(s.count)));
    }
    free(got);
    sound_free(&s);
    gguf_free(g);
    buffer_free(&expect);
    buffer_free(&b);
}

/* ---- pieces --------------------------------------------------------------------------------------------------------------- */

static void test_pieces(void) {
    const size_t total = 95 * SOUND_RATE + 7;
    float       *x = malloc(total * sizeof *x);
    for (size_t i = 0; i < total; i++) x[i] = (float)tone(200, (double)i / SOUND_RATE);
    TEST("pieces are cut at the quietest point");
    const size_t quiet = 27 * SOUND_RATE;
    memset(x + quiet, 0, (SOUND_RATE / 5) * sizeof *x);
    const size_t first = sound_piece(x, total);
    CHECK_MESSAGE(first > quiet && first < quiet + (SOUND_RATE / 5), "%zu", first);
    TEST("pieces follow one another and leave nothing out");
    size_t at = 0, pieces = 0;
    for (; at < total; pieces++) {
        const size_t n = sound_piece(x + at, total - at);
        CHECK(n >= MEL_SHORTEST && n <= SOUND_PIECE);
        at += n;
    }
    CHECK(at == total && pieces == 4);
    TEST("a piece is never too short for a token");
    for (size_t left = SOUND_PIECE - 2; left < SOUND_PIECE + 3 * SOUND_RATE; left += 997) {
        const size_t n = sound_piece(x + SOUND_PIECE, left);
        CHECK(n == left ? left <= SOUND_PIECE : left - n >= SOUND_RATE && n >= SOUND_PIECE - 5 * SOUND_RATE);
    }
    TEST("silence makes long pieces");
    memset(x, 0, total * sizeof *x);
    CHECK(sound_piece(x, total) > SOUND_PIECE - SOUND_RATE);
    free(x);
}

/* ---- formats that other programs decode ------------------------------------------------------------------------------------ */

#ifdef GM_MEDIA_LIBRARIES

/* libsndfile does not free everything when a Vorbis header is broken. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:vorbis_info_init"; }

static sf_count_t into_length(void *b) { return (sf_count_t)((buffer *)b)->length; }
static sf_count_t into_read(void *p, sf_count_t n, void *b) { return (void)p, (void)n, (void)b, 0; }

/* The place to write is kept before the buffer. */
typedef struct {
    buffer     b;
    sf_count_t at;
} written;

static sf_count_t into_seek(sf_count_t offset, int whence, void *user) {
    written *w = user;
    return w->at = offset + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? w->at : (sf_count_t)w->b.length);
}

static sf_count_t into_write(const void *p, sf_count_t n, void *user) {
    written *w = user;
    for (sf_count_t i = 0; i < n; i++, w->at++)
        if (w->at < (sf_count_t)w->b.length) w->b.data[w->at] = ((const char *)p)[i];
        else buffer_char(&w->b, ((const char *)p)[i]);
    return n;
}

static sf_count_t into_tell(void *user) { return ((written *)user)->at; }

static buffer encode(int format, int rate, sf_count_t frames) {
    SF_VIRTUAL_IO io = { into_length, into_seek, into_read, into_write, into_tell };
    SF_INFO       info = { .samplerate = rate, .channels = 2, .format = format };
    written       w = { 0 };
    SNDFILE      *f = sf_open_virtual(&io, SFM_WRITE, &info, &w);
    CHECK_MESSAGE(f, "%s", sf_strerror(NULL));
    for (sf_count_t i = 0; f && i < frames; i++) {
        const float x = (float)tone(440, (double)i / rate), both[2] = { x, x / 2 };
        sf_writef_float(f, both, 1);
    }
    if (f) sf_close(f);
    return w.b;
}

/* The size of the tone of 440 Hz within the sound, and of everything else, relative to what was encoded. */
static void tone_of(const sound *s, double *size, double *rest) {
    double re = 0, im = 0, all = 0, n = 0;
    for (size_t i = s->count / 4; i < s->count * 3 / 4; i++, n++) {
        re += s->samples[i] * cos(2 * pi * 440 * (double)i / 16000);
        im += s->samples[i] * sin(2 * pi * 440 * (double)i / 16000);
        all += (double)s->samples[i] * s->samples[i];
    }
    *size = 2 * sqrt(re * re + im * im) / n / 0.375;
    *rest = sqrt(fabs(2 * all / n - 0.375 * 0.375 * *size * *size)) / 0.375;
}

static void test_libsndfile(void) {
    static const struct {
        const char *name;
        int         format, rate;
        sound_kind  kind;
        double      room;
    } rows[] = {
        { "FLAC", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 44100, SOUND_FLAC, 1e-3 },
        { "MP3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, SOUND_MP3, 0.05 },
        { "Ogg Vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, SOUND_OGG, 0.05 },
        { "Opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, SOUND_OGG, 0.05 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("%s", rows[i].name);
        buffer b = encode(rows[i].format, rows[i].rate, rows[i].rate);
        sound  s;
        error  e = { 0 };
        double size = 0, rest = 0;
        CHECK(sound_recognise(b.data, b.length) == rows[i].kind);
        CHECK_MESSAGE(!sound_decode(b.data, b.length, &s, &e), "%s", e.why);
        tone_of(&s, &size, &rest);
        CHECK_MESSAGE(labs((long)s.count - 16000) < 1000, "%zu samples", s.count);
        CHECK_MESSAGE(fabs(size - 1) < rows[i].room && rest < rows[i].room, "%g, %g", size, rest);
        sound_free(&s);

        TEST("%s, cut off", rows[i].name); /* a shorter sound or an error, and for FLAC always an error */
        for (size_t n = 4; n < b.length; n += b.length / 9) {
            char *part = malloc(n);
            e = (error){ 0 };
            memcpy(part, b.data, n);
            const gm_status status = sound_decode(part, n, &s, &e);
            CHECK(status ? e.why[0] && !s.samples : s.count > 0 && s.count < 17000);
            CHECK(status == GM_BAD_FILE || rows[i].kind != SOUND_FLAC);
            sound_free(&s);
            free(part);
        }
        buffer_free(&b);
    }
}

/* The number in a file, once it is there. */
static long read_number(const char *path) {
    long number = 0;
    for (int i = 0; i < 12000 && !number; i++) {
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%ld\n", &number) != 1) number = 0;
        if (f) fclose(f);
        if (!number) usleep(10000);
    }
    return number;
}

/* An ffmpeg that does not end: the decoder comes back, and takes it along when it is freed. */
static void test_ffmpeg_freed(const char *m4a, size_t size, const char *folder, const char *program) {
    char           path[80];
    sound_decoder *d = NULL;
    sound          s;
    error          e = { 0 };
    TEST("a decoder does not wait for ffmpeg, and ends it");
    snprintf(path, sizeof path, "%s/number", folder);
    FILE *f = fopen(program, "w");
    fprintf(f, "#!/bin/sh\necho $$ >%s\nexec /bin/sleep 1000\n", path);
    fclose(f);
    CHECK_MESSAGE(!sound_decoder_new(m4a, size, &d, &e), "%s", e.why);
    for (int i = 0; i < 3; i++) {
        CHECK(d && sound_decoder_step(d, 0, &s, &e) == GM_AGAIN);
        CHECK(d && !sound_decoder_total(d) && !sound_decoder_done(d));
    }
    const long child = read_number(path);
    CHECK_MESSAGE(child > 0 && !kill((pid_t)child, 0), "process %ld", child);
    sound_decoder_free(d);
    CHECK(kill((pid_t)child, 0) && errno == ESRCH);
    remove(path);
}

/* A program of that name, which stands for the real one: it must be called with files that it can read and write. */
static void test_ffmpeg(void) {
    static const char m4a[] = "\0\0\0\x18"
                              "ftypM4A \0\0\0\0M4A mp42";
    char              folder[] = "/tmp/gemmule-test-XXXXXX", program[64], *path = strdup(getenv("PATH"));
    sound             s;
    error             e = { 0 };
    TEST("M4A without ffmpeg is refused with a hint");
    CHECK(mkdtemp(folder) && !setenv("PATH", folder, 1));
    CHECK(sound_decode(m4a, sizeof m4a, &s, &e) == GM_UNSUPPORTED &&
          strstr(e.why, "M4A is decoded by the program ffmpeg"));
    CHECK(strstr(e.why, "apt-get install ffmpeg"));

    snprintf(program, sizeof program, "%s/ffmpeg", folder);
    static const struct {
        const char *what, *script;
        gm_status   status;
        const char *says;
    } rows[] = {
        { "M4A by ffmpeg", "/bin/grep -q ftypM4A /dev/fd/3 && exec /bin/cat tests/fixtures/tiny-mm.wav >&4", GM_OK,
          "" },
        { "ffmpeg's complaint is passed on", "echo 'moov atom not found' >&2\nexit 1", GM_BAD_FILE,
          "M4A file: moov atom not found" },
        { "ffmpeg ends after Ctrl-C", "exit 255", GM_CANCELLED, "interrupted while ffmpeg decoded the M4A file" },
        { "ffmpeg tells of the signal", "echo 'Exiting normally, received signal 2.' >&2\nexit 255", GM_CANCELLED,
          "interrupted while ffmpeg decoded the M4A file" },
        { "ffmpeg ends with 255 and a complaint", "echo 'Operation not permitted' >&2\nexit 255", GM_BAD_FILE,
          "M4A file: Operation not permitted" },
        { "Ctrl-C ends ffmpeg", "kill -INT $$", GM_CANCELLED, "interrupted while ffmpeg decoded the M4A file" },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("%s", rows[i].what);
        FILE *f = fopen(program, "w");
        fprintf(f, "#!/bin/sh\n%s\n", rows[i].script);
        fclose(f);
        chmod(program, 0755);
        e = (error){ 0 };
        const gm_status status = sound_decode(m4a, sizeof m4a, &s, &e);
        CHECK_MESSAGE(status == rows[i].status && strstr(e.why, rows[i].says), "%d: %s", (int)status, e.why);
        CHECK_MESSAGE(s.count == (status ? 0 : 27200), "%zu samples", s.count);
        sound_free(&s);
    }
    test_ffmpeg_freed(m4a, sizeof m4a, folder, program);
    remove(program);
    rmdir(folder);
    setenv("PATH", path, 1);
    free(path);
}

#endif

int main(void) {
    test_wav_kinds();
    test_steps();
    test_wav_chunks();
    test_wav_cut_off();
    test_refusals();
    test_recognition();
    test_resampling();
    test_mel_counts();
    test_mel_vectors();
    test_mel_fixture();
    test_pieces();
#ifdef GM_MEDIA_LIBRARIES
    test_libsndfile();
    test_ffmpeg();
#endif
    return test_end();
}
