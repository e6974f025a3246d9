/* Log-mel features:
 *
 *   frame i = the 320 samples from 160·i − 160 on, times a Hann window, and 192 zeros
 *   feature[i][b] = ln(Σ_k filter_b[k] · |FFT(frame i)[k]| + 0.001)
 *
 * The filters are 128 triangles over 130 points that are equally far apart in mel = 2595 · log10(1 + f / 700), from 0 to 8 kHz. A frame is
 * valid if the sample after its last one is a real one, not padding. */

#include "media/sound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MEL_WINDOW = 320,
    MEL_HOP = 160,
    MEL_PAD = 128,
    FFT_SIZE = 512,
    FFT_HALF = FFT_SIZE / 2,
    FFT_BINS = FFT_HALF + 1
};
#define MEL_PI 3.14159265358979323846
#define MEL_FLOOR 0.001

size_t mel_frames(size_t samples) {
    const size_t padded = (size_t)round_up(samples, MEL_PAD) + MEL_HOP;
    return padded < MEL_WINDOW + 1 ? 0 : (padded - MEL_WINDOW - 1) / MEL_HOP + 1;
}

size_t mel_valid(size_t samples) { return samples ? (samples - 1) / MEL_HOP : 0; }

size_t mel_tokens(size_t valid) { return ((valid + 1) / 2 + 1) / 2; }

typedef struct {
    double re, im;
} complex_number;

typedef struct {
    float          window[MEL_WINDOW];
    complex_number root[FFT_HALF]; /* e^(−2πi·k/512) */
    uint8_t        reversed[FFT_HALF];
    struct {
        uint16_t first, count; /* the bins of a filter that are not 0 */
    } range[MEL_BINS];
    double filter[MEL_BINS][FFT_BINS];
} mel_tables;

static void mel_make_filters(mel_tables *t) {
    double point[MEL_BINS + 2];
    for (int i = 0; i < MEL_BINS + 2; i++)
        point[i] = 700 * (pow(10, log10(1 + SOUND_RATE / 2 / 700.0) * i / (MEL_BINS + 1)) - 1);
    for (int b = 0; b < MEL_BINS; b++)
        for (int k = 0; k < FFT_BINS; k++) {
            const double f = (double)k * SOUND_RATE / FFT_SIZE;
            const double up = (f - point[b]) / (point[b + 1] - point[b]);
            const double down = (point[b + 2] - f) / (point[b + 2] - point[b + 1]);
            t->filter[b][k] = fmax(0, fmin(up, down));
            if (!t->filter[b][k]) continue;
            if (!t->range[b].count) t->range[b].first = (uint16_t)k;
            t->range[b].count = (uint16_t)(k - t->range[b].first + 1);
        }
}

static void mel_make_tables(mel_tables *t) {
    for (int i = 0; i < MEL_WINDOW; i++) t->window[i] = (float)(0.5 - 0.5 * cos(2 * MEL_PI * i / MEL_WINDOW));
    for (int k = 0; k < FFT_HALF; k++)
        t->root[k] = (complex_number){ cos(2 * MEL_PI * k / FFT_SIZE), -sin(2 * MEL_PI * k / FFT_SIZE) };
    for (int k = 0; k < FFT_HALF; k++)
        for (int bit = 0; bit < 8; bit++) t->reversed[k] |= (uint8_t)((k >> bit & 1) << (7 - bit));
    mel_make_filters(t);
}

static complex_number complex_mul(complex_number a, complex_number b) {
    return (complex_number){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

/* The FFT of 256 complex numbers in place; z is in bit-reversed order. */
static void fft_256(const mel_tables *t, complex_number *z) {
    for (int half = 1; half < FFT_HALF; half *= 2)
        for (int start = 0; start < FFT_HALF; start += 2 * half)
            for (int j = 0; j < half; j++) {
                complex_number      *a = &z[start + j], *b = a + half;
                const complex_number w = complex_mul(t->root[j * (FFT_HALF / half)], *b);
                *b = (complex_number){ a->re - w.re, a->im - w.im };
                *a = (complex_number){ a->re + w.re, a->im + w.im };
            }
}

/* |FFT| of 512 real numbers, of which the first MEL_WINDOW are given. Even and odd ones are the parts of 256 complex numbers, whose
 * FFT Z gives X[k] = (Z[k] + Z*[−k]) / 2 − i·e^(−2πi·k/512) · (Z[k] − Z*[−k]) / 2. */
static void fft_magnitudes(const mel_tables *t, const float *x, float *out) {
    complex_number z[FFT_HALF];
    for (int k = 0; k < FFT_HALF; k++) {
        const int from = 2 * t->reversed[k];
        z[k] = from < MEL_WINDOW ? (complex_number){ x[from], x[from + 1] } : (complex_number){ 0, 0 };
    }
    fft_256(t, z);
    for (int k = 0; k < FFT_BINS; k++) {
        const complex_number a = z[k % FFT_HALF], b = z[(FFT_HALF - k) % FFT_HALF];
        const complex_number even = { (a.re + b.re) / 2, (a.im - b.im) / 2 };
        const complex_number odd = { (a.im + b.im) / 2, (b.re - a.re) / 2 };
        const complex_number root = k < FFT_HALF ? t->root[k] : (complex_number){ -1, 0 };
        const complex_number turned = complex_mul(root, odd);
        out[k] =
            (float)sqrt((even.re + turned.re) * (even.re + turned.re) + (even.im + turned.im) * (even.im + turned.im));
    }
}

static void mel_frame(const mel_tables *t, const float *samples, size_t count, size_t i, float *out) {
    float x[MEL_WINDOW], magnitude[FFT_BINS];
    for (size_t n = 0; n < MEL_WINDOW; n++) {
        const size_t at = i * MEL_HOP + n; /* plus MEL_HOP */
        x[n] = at >= MEL_HOP && at - MEL_HOP < count ? samples[at - MEL_HOP] * t->window[n] : 0;
    }
    fft_magnitudes(t, x, magnitude);
    for (int b = 0; b < MEL_BINS; b++) {
        double sum = 0;
        for (int k = t->range[b].first; k < t->range[b].first + t->range[b].count; k++)
            sum += t->filter[b][k] * magnitude[k];
        out[b] = (float)log(sum + MEL_FLOOR);
    }
}

gm_status mel_features(const float *samples, size_t count, float *out, error *e) {
    mel_tables *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "the tables of the mel features", sizeof *t);
    mel_make_tables(t);
    const size_t valid = mel_valid(count), frames = mel_frames(count);
    for (size_t i = 0; i < valid && i < frames; i++) mel_frame(t, samples, count, i, out + i * MEL_BINS);
    if (frames > valid) memset(out + valid * MEL_BINS, 0, (frames - valid) * MEL_BINS * sizeof *out);
    free(t);
    return GM_OK;
}
