/* Resampling to 16 kHz by a windowed sinc.
 *
 *   y[i] = Σ_k x[k] · h(i·M/L − k),   16,000 / rate = L / M in lowest terms
 *   h(t) = 2c · sinc(2c·t) · kaiser(t / reach),   c the cut-off in cycles per sample of the input
 *
 * The pass band ends at 90 % of half of the lower rate, and the stop band begins at half of it. There is a row of coefficients for
 * every fraction that i·M/L can have, or, if there are too many, for up to 1,024 of them; between two rows the result is interpolated. */

#include "media/sound_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESAMPLE_ROWS = 1024, RESAMPLE_LANES = 8 };
#define RESAMPLE_STOP_DB 96.0 /* 80 are promised; rounding and interpolation take a little */
#define RESAMPLE_PASS 0.9
#define RESAMPLE_PI 3.14159265358979323846

struct resampler {
    uint64_t up, down;   /* L and M */
    size_t   rows, taps; /* taps is a multiple of RESAMPLE_LANES */
    size_t   left;       /* a row's first coefficient belongs to the sample ⌊i·M/L⌋ − left */
    float   *table;      /* [rows + 1][taps] */
    float   *input;      /* the samples from number `first` on; the sound begins after `left` zeros */
    size_t   count, capacity;
    uint64_t first; /* counted with the zeros */
    uint64_t total; /* samples of the sound so far */
    uint64_t next;  /* the next output, i */
};

/* The modified Bessel function of order 0, by its series. */
static double bessel_i0(double x) {
    double sum = 1, term = 1;
    for (int k = 1; term > sum * 1e-17; k++) {
        term *= (x / (2 * k)) * (x / (2 * k));
        sum += term;
    }
    return sum;
}

static double sinc(double x) { return x ? sin(RESAMPLE_PI * x) / (RESAMPLE_PI * x) : 1; }

/* The rows. Each sums to 1, so that a constant stays what it is. */
static void resampler_fill(resampler *r, double cutoff, double reach) {
    const double beta = 0.1102 * (RESAMPLE_STOP_DB - 8.7), scale = bessel_i0(beta); /* Kaiser's rule */
    for (size_t row = 0; row <= r->rows; row++) {
        float *out = r->table + row * r->taps;
        double sum = 0;
        for (size_t k = 0; k < r->taps; k++) {
            const double t = (double)row / (double)r->rows + (double)r->left - (double)k, u = t / reach;
            const double window = fabs(u) < 1 ? bessel_i0(beta * sqrt(1 - u * u)) / scale : 0;
            out[k] = (float)(window * sinc(2 * cutoff * t));
            sum += out[k];
        }
        for (size_t k = 0; k < r->taps; k++) out[k] = (float)(out[k] / sum);
    }
}

gm_status resampler_new(uint32_t rate, resampler **out, error *e) {
    uint64_t a = SOUND_RATE, b = rate;
    while (b) {
        const uint64_t rest = a % b;
        a = b, b = rest;
    }
    resampler *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) return fail_memory(e, "a resampler", sizeof *r);
    r->up = SOUND_RATE / a;
    r->down = rate / a;
    if (rate == SOUND_RATE) return GM_OK;

    const double half = fmin(1, (double)SOUND_RATE / rate) / 2; /* of the lower rate, in cycles per sample */
    const double width = half * (1 - RESAMPLE_PASS);
    const double reach = (RESAMPLE_STOP_DB - 8) / (2.285 * 2 * RESAMPLE_PI * width) / 2; /* Kaiser's rule */
    r->left = (size_t)ceil(reach);
    r->taps = round_up(2 * r->left + 1, RESAMPLE_LANES);
    /* The lower the cut-off, the smoother the filter: rows may be farther apart. */
    r->rows = min_size((size_t)r->up, (size_t)ceil(RESAMPLE_ROWS * 2 * half));
    r->table = malloc((r->rows + 1) * r->taps * sizeof *r->table);
    r->capacity = 4 * r->taps;
    r->input = calloc(r->capacity, sizeof *r->input);
    if (r->table && r->input) {
        r->count = r->left;
        resampler_fill(r, half - width / 2, reach);
        return GM_OK;
    }
    const uint64_t bytes = (r->rows + 1) * r->taps * sizeof *r->table;
    resampler_free(r);
    *out = NULL;
    return fail_memory(e, "a resampler", bytes);
}

void resampler_free(resampler *r) {
    if (!r) return;
    free(r->table);
    free(r->input);
    free(r);
}

/* In lanes, so that the compiler may use vectors without changing the order of the sum. */
static float resampler_dot(const float *a, const float *b, size_t n) {
    float lanes[RESAMPLE_LANES] = { 0 }, sum = 0;
    for (size_t i = 0; i < n; i += RESAMPLE_LANES)
        for (size_t j = 0; j < RESAMPLE_LANES; j++) lanes[j] += a[i + j] * b[i + j];
    for (size_t j = 0; j < RESAMPLE_LANES; j++) sum += lanes[j];
    return sum;
}

static float resampler_output(const resampler *r, size_t at) {
    const double fraction = (double)(r->next * r->down % r->up) / (double)r->up * (double)r->rows;
    const size_t row = (size_t)fraction;
    const float  rest = r->rows == r->up ? 0 : (float)(fraction - (double)row);
    const float *c = r->table + row * r->taps, *x = r->input + at;
    const float  y = resampler_dot(c, x, r->taps);
    return rest ? y + rest * (resampler_dot(c + r->taps, x, r->taps) - y) : y;
}

/* All outputs that need no sample beyond those that are there, up to output number `end`. Then forgets what is no longer needed. */
static gm_status resampler_run(resampler *r, uint64_t end, samples *out, error *e) {
    float block[256];
    for (;;) {
        size_t filled = 0;
        for (; filled < COUNT_OF(block) && r->next < end; filled++, r->next++) {
            const uint64_t at = r->next * r->down / r->up - r->first;
            if (at + r->taps > r->count) break;
            block[filled] = resampler_output(r, (size_t)at);
        }
        if (!filled) break;
        TRY(samples_append(out, block, filled, e));
    }
    const uint64_t needed = r->next * r->down / r->up,
                   gone = needed - r->first < r->count ? needed - r->first : r->count;
    memmove(r->input, r->input + gone, (r->count - (size_t)gone) * sizeof *r->input);
    r->count -= (size_t)gone;
    r->first += gone;
    return GM_OK;
}

gm_status resampler_push(resampler *r, const float *data, size_t count, samples *out, error *e) {
    if (!r->table) return samples_append(out, data, count, e);
    r->total += count;
    while (count) {
        const size_t fits = min_size(count, r->capacity - r->count);
        memcpy(r->input + r->count, data, fits * sizeof *data);
        r->count += fits;
        data += fits;
        count -= fits;
        TRY(resampler_run(r, UINT64_MAX, out, e));
    }
    return GM_OK;
}

gm_status resampler_end(resampler *r, samples *out, error *e) {
    if (!r->table) return GM_OK;
    const uint64_t end = (r->total * r->up + r->down - 1) / r->down;
    while (r->next < end) {
        memset(r->input + r->count, 0, (r->capacity - r->count) * sizeof *r->input);
        r->count = r->capacity;
        TRY(resampler_run(r, end, out, e));
    }
    return GM_OK;
}
