/* What the decoders of sound share with each other; sound.h is for everybody else. */

#ifndef GM_SOUND_PARTS_H
#define GM_SOUND_PARTS_H

#include "media/sound.h"

/* A file being decoded, some frames at a time. A frame has one value per channel. */
typedef struct sound_reader sound_reader;
struct sound_reader {
    uint32_t rate, channels;
    uint64_t frames; /* that the file says it has; 0: it does not say */
    /* Up to `most` frames as f32; *got = 0 at the end. */
    gm_status (*read)(sound_reader *r, float *out, size_t most, size_t *got, error *e);
    void (*close)(sound_reader *r); /* frees the reader */
    bool estimated;                 /* frames is a guess, or a cut-off file has fewer */
    /* Not NULL: another program is still decoding the file, and nothing above is known. GM_AGAIN: it was not done at `deadline`. */
    gm_status (*prepare)(sound_reader *r, double deadline, error *e);
    bool (*waits)(sound_reader *r); /* with prepare: whether that program still runs */
};

/* The bytes must outlive the reader. */
gm_status wav_open(const void *bytes, size_t size, sound_reader **out, error *e);

/* By libsndfile: FLAC, MP3, Ogg. */
gm_status sndfile_open(const void *bytes, size_t size, sound_kind kind, sound_reader **out, error *e);
/* By the program ffmpeg: everything with AAC, and WebM. */
gm_status ffmpeg_open(const void *bytes, size_t size, sound_kind kind, sound_reader **out, error *e);

/* "FLAC", "MP3", … */
const char *sound_kind_name(sound_kind kind);

/* Fails unless rate and channels are within the limits of sound.h. */
gm_status sound_check_format(uint32_t rate, uint32_t channels, error *e);

/* ---- resampling to SOUND_RATE ---- */

typedef struct {
    float *data;
    size_t count, capacity;
} samples; /* zero-initialise; grows at the end */

gm_status samples_append(samples *s, const float *data, size_t count, error *e);

/* A windowed sinc: what lies above half of the lower rate comes out more than 80 dB below; the lower 90 % pass. No delay. */
typedef struct resampler resampler;

gm_status resampler_new(uint32_t rate, resampler **out, error *e);
void      resampler_free(resampler *r);
/* Appends to `out` what the samples so far determine. */
gm_status resampler_push(resampler *r, const float *data, size_t count, samples *out, error *e);
/* The sound is over: appends the rest, ⌈count · 16,000 / rate⌉ samples in all. */
gm_status resampler_end(resampler *r, samples *out, error *e);

#endif
