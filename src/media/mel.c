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

/* Two frames at once, one in each lane of a vector, which every processor has in a register: with longer vectors gcc copies them through
 * memory, and takes four times as long. Each frame gets what it would get alone. */
enum { MEL_LANES = 2 };
typedef double mel_lanes __attribute__((vector_size(MEL_LANES * sizeof(double))));

typedef struct {
    mel_lanes re, im;
} complex_lanes;

/* The FFT of 256 complex numbers in place; z is in bit-reversed order. */
static void fft_256(const mel_tables *t, complex_lanes *z) {
    for (int half = 1; half < FFT_HALF; half *= 2)
        for (int start = 0; start < FFT_HALF; start += 2 * half)
            for (int j = 0; j < half; j++) {
                const complex_number root = t->root[j * (FFT_HALF / half)];
                const complex_lanes  a = z[start + j], b = z[start + j + half];
                const mel_lanes      re = root.re * b.re - root.im * b.im, im = root.re * b.im + root.im * b.re;
                z[start + j] = (complex_lanes){ a.re + re, a.im + im };
                z[start + j + half] = (complex_lanes){ a.re - re, a.im - im };
            }
}

/* |FFT| of 512 real numbers, of which the first MEL_WINDOW are given. Even and odd ones are the parts of 256 complex numbers, whose
 * FFT Z gives X[k] = (Z[k] + Z*[−k]) / 2 − i·e^(−2πi·k/512) · (Z[k] − Z*[−k]) / 2. */
static void fft_magnitudes(const mel_tables *t, const mel_lanes *x, mel_lanes *out) {
    complex_lanes z[FFT_HALF];
    for (int k = 0; k < FFT_HALF; k++) {
        const int from = 2 * t->reversed[k];
        z[k] = from < MEL_WINDOW ? (complex_lanes){ x[from], x[from + 1] } : (complex_lanes){ 0 };
    }
    fft_256(t, z);
    for (int k = 0; k < FFT_BINS; k++) {
        const complex_lanes  a = z[k % FFT_HALF], b = z[(FFT_HALF - k) % FFT_HALF];
        const complex_lanes  even = { (a.re + b.re) / 2, (a.im - b.im) / 2 };
        const complex_lanes  odd = { (a.im + b.im) / 2, (b.re - a.re) / 2 };
        const complex_number root = k < FFT_HALF ? t->root[k] : (complex_number){ -1, 0 };
        const mel_lanes      re = even.re + (root.re * odd.re - root.im * odd.im);
        const mel_lanes      im = even.im + (root.re * odd.im + root.im * odd.re);
        const mel_lanes      squared = re * re + im * im;
        for (int lane = 0; lane < MEL_LANES; lane++) out[k][lane] = (float)sqrt(squared[lane]);
    }
}

/* The frames from `first` on; `count` of them are written. */
static void mel_some_frames(const mel_tables *t, const float *samples, size_t sample_count, size_t first, size_t count,
                            float *out) {
    mel_lanes x[MEL_WINDOW], magnitude[FFT_BINS];
    for (size_t n = 0; n < MEL_WINDOW; n++)
        for (size_t lane = 0; lane < MEL_LANES; lane++) {
            const size_t at = (first + lane) * MEL_HOP + n; /* plus MEL_HOP */
            const bool   given = at >= MEL_HOP && at - MEL_HOP < sample_count;
            x[n][lane] = given ? samples[at - MEL_HOP] * t->window[n] : 0;
        }
    fft_magnitudes(t, x, magnitude);
    for (int b = 0; b < MEL_BINS; b++) {
        mel_lanes sum = { 0 };
        for (int k = t->range[b].first; k < t->range[b].first + t->range[b].count; k++)
            sum += t->filter[b][k] * magnitude[k];
        for (size_t lane = 0; lane < count; lane++) out[lane * MEL_BINS + b] = (float)log(sum[lane] + MEL_FLOOR);
    }
}

gm_status mel_features(const float *samples, size_t count, float *out, error *e) {
    mel_tables *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "the tables of the mel features", sizeof *t);
    mel_make_tables(t);
    const size_t valid = mel_valid(count), frames = mel_frames(count);
    const size_t real = min_size(valid, frames);
    for (size_t i = 0; i < real; i += MEL_LANES)
        mel_some_frames(t, samples, count, i, min_size(MEL_LANES, real - i), out + i * MEL_BINS);
    if (frames > valid) memset(out + valid * MEL_BINS, 0, (frames - valid) * MEL_BINS * sizeof *out);
    free(t);
    return GM_OK;
}
