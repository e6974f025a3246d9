/* Sound for the audio towers: from the bytes of a file to mono at 16 kHz, and from there to what a tower reads. Plain arrays; nothing
 * here knows a model or an engine. */

#ifndef GM_SOUND_H
#define GM_SOUND_H

#include "base/base.h"

enum {
    SOUND_RATE = 16000,
    SOUND_PIECE = 30 * SOUND_RATE, /* the most that a tower hears at once */
    SOUND_LONGEST = 6 * 60 * 60,   /* seconds that are decoded; more is an error */
    SOUND_CHANNELS = 64,           /* the most channels of a file */
    SOUND_RATE_MIN = 1000,         /* Hz, of a file */
    SOUND_RATE_MAX = 768000,
};

/* ---- decoding ---------------------------------------------------------------------------------------------------------- */

typedef enum {
    SOUND_UNKNOWN,
    SOUND_WAV,
    SOUND_FLAC,
    SOUND_MP3,
    SOUND_OGG, /* Vorbis, Opus or FLAC in Ogg */
    SOUND_MP4, /* M4A */
    SOUND_AAC, /* without a container */
    SOUND_WEBM,
    SOUND_KINDS,
} sound_kind;

/* What the bytes are, whatever the file is called. */
sound_kind sound_recognise(const void *bytes, size_t size);
/* Whether another program decodes it, which takes as long as it likes. */
bool sound_is_foreign(const void *bytes, size_t size);

typedef struct {
    float *samples; /* mono, 16 kHz */
    size_t count;
} sound; /* zero-initialise */

void sound_free(sound *s);

/* Decoding step by step, for sounds of any length. The bytes must outlive the decoder. */
typedef struct sound_decoder sound_decoder;

gm_status sound_decoder_new(const void *bytes, size_t size, sound_decoder **out, error *e);
/* The same from samples: `frames` times `channels` values in turn. */
gm_status sound_decoder_of_samples(const float *values, size_t frames, uint32_t channels, uint32_t rate,
                                   sound_decoder **out, error *e);
/* GM_AGAIN: more is to be done, and the clock is past `deadline`; it waits that long for another program that decodes the file. GM_OK: *out
 * is the whole sound, which is the caller's now. Errors are those of sound_decode. */
gm_status sound_decoder_step(sound_decoder *d, double deadline, sound *out, error *e);
/* Whether a step could only wait for another program. */
bool sound_decoder_waits(const sound_decoder *d);
/* Samples at 16 kHz: those decoded so far, about as many as the file says it has (0: it does not say), and as many as it surely has. */
size_t sound_decoder_done(const sound_decoder *d);
size_t sound_decoder_total(const sound_decoder *d);
size_t sound_decoder_least(const sound_decoder *d);
/* Ends the program that decodes the file, if there is one. */
void sound_decoder_free(sound_decoder *d);

/* A file in memory: the mean of its channels, resampled. WAV is decoded here on every host; natively FLAC, MP3 and Ogg by
 * libsndfile, and MP4, AAC and WebM by the program ffmpeg, if there is one. Fails if the file is cut off, has no samples, or has
 * one that is not a number. Takes about a millisecond per second of sound, and does not return before it is done. */
gm_status sound_decode(const void *bytes, size_t size, sound *out, error *e);

/* The same from samples: `frames` times `channels` values in turn. */
gm_status sound_from_samples(const float *values, size_t frames, uint32_t channels, uint32_t rate, sound *out,
                             error *e);

/* ---- pieces ------------------------------------------------------------------------------------------------------------ */

/* The length of the next piece, where `left` samples are left: all of them if a tower hears them at once; otherwise up to the
 * quietest point of the last 5 s of a piece. The piece after it is never too short for a token. */
size_t sound_piece(const float *samples, size_t left);

/* ---- what towers read -------------------------------------------------------------------------------------------------- */

enum {
    MEL_BINS = 128,
    MEL_SHORTEST = 161, /* the fewest samples that give a token */
    RAW_FRAME = 640,    /* samples per token of a model without an audio encoder */
};

/* Frames of the log-mel features of up to SOUND_PIECE samples; the valid ones come first, the rest is padding. */
size_t mel_frames(size_t samples);
size_t mel_valid(size_t samples);
/* Tokens that `valid` frames become. */
size_t mel_tokens(size_t valid);

/* ln(mel + 0.001) of each frame [mel_frames][MEL_BINS]; 0 for frames of padding. */
gm_status mel_features(const float *samples, size_t count, float *out, error *e);

/* The samples in frames [raw_frames][RAW_FRAME]; the last one ends with zeros. */
size_t raw_frames(size_t samples);
void   raw_features(const float *samples, size_t count, float *out);

#endif
