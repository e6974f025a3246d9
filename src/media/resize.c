/* The size of a picture before a tower, and resizing to it (gemma4.md 4.1). */

#include "media/picture_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS_PER_SOFT = PICTURE_SOFT_SIDE * PICTURE_SOFT_SIDE };

bool picture_budget_valid(uint32_t n) { return n == 70 || n == 140 || n == 280 || n == 560 || n == 1120; }

gm_status picture_fit(uint32_t width, uint32_t height, uint32_t budget, uint32_t *fit_width, uint32_t *fit_height,
                      error *e) {
    if (!picture_budget_valid(budget))
        return fail(e, GM_BAD_ARGUMENT, "a picture's token budget must be 70, 140, 280, 560 or 1,120, not %u", budget);
    TRY(picture_check_size("picture", width, height, e));
    const double   f = sqrt((double)budget * PIXELS_PER_SOFT / ((double)height * (double)width));
    const uint32_t most = budget * PICTURE_SOFT_SIDE;
    uint32_t       w = (uint32_t)floor(f * width / PICTURE_SOFT_SIDE) * PICTURE_SOFT_SIDE;
    uint32_t       h = (uint32_t)floor(f * height / PICTURE_SOFT_SIDE) * PICTURE_SOFT_SIDE;
    /* A narrow strip: one square wide, and as long as the budget allows. Both cannot be 0: f · f · w · h has room for the budget. */
    if (!h) h = PICTURE_SOFT_SIDE, w = (uint32_t)min_size((size_t)(width / height) * PICTURE_SOFT_SIDE, most);
    else if (!w) w = PICTURE_SOFT_SIDE, h = (uint32_t)min_size((size_t)(height / width) * PICTURE_SOFT_SIDE, most);
    *fit_width = w, *fit_height = h;
    return GM_OK;
}

/* ---- weights of an axis ---- */

/* Output i is the sum of `count[i]` inputs from `first[i]` on, by weights[i · most …] / 2^bits. */
typedef struct {
    uint32_t *first, *count;
    int32_t  *weights;
    uint32_t  most; /* inputs of an output */
    uint32_t  bits;
} resize_axis;

/* The cubic kernel with a = −0.5. */
static double resize_cubic(double t) {
    t = fabs(t);
    return t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/* The weights of output i, in double; returns the largest. */
static double resize_weigh(uint32_t in, uint32_t out, uint32_t i, uint32_t *first, uint32_t *count, double *weights) {
    const double   scale = (double)in / out, stretch = scale > 1 ? scale : 1, support = 2 * stretch;
    const double   centre = (i + 0.5) * scale;
    const double   low = floor(centre - support + 0.5), high = floor(centre + support + 0.5);
    const uint32_t from = low > 0 ? (uint32_t)low : 0, to = high < in ? (uint32_t)high : in;
    double         sum = 0, largest = 0;
    for (uint32_t j = from; j < to; j++) sum += weights[j - from] = resize_cubic((j + 0.5 - centre) / stretch);
    for (uint32_t j = from; j < to; j++) {
        weights[j - from] /= sum;
        if (weights[j - from] > largest) largest = weights[j - from];
    }
    *first = from, *count = to - from;
    return largest;
}

static void resize_axis_free(resize_axis *a) { free(a->first); }

/* Weights as integers: with as many bits as the largest allows, so that it stays below 2^15. */
static gm_status resize_axis_make(resize_axis *a, uint32_t in, uint32_t out, error *e) {
    *a = (resize_axis){ .most = (uint32_t)(4 * fmax(1, (double)in / out)) + 3 };
    const size_t bytes = (size_t)out * (2 * sizeof(uint32_t) + a->most * sizeof(int32_t));
    a->first = malloc(bytes);
    double *weights = malloc(a->most * sizeof *weights);
    if (!a->first || !weights) {
        free(a->first);
        free(weights);
        return fail_memory(e, "resizing a picture", bytes);
    }
    a->count = a->first + out;
    a->weights = (int32_t *)(a->count + out);
    double largest = 0;
    for (uint32_t i = 0; i < out; i++)
        largest = fmax(largest, resize_weigh(in, out, i, &a->first[i], &a->count[i], weights));
    while (a->bits < 22 && floor(0.5 + largest * (2 << a->bits)) < 32768) a->bits++;
    for (uint32_t i = 0; i < out; i++) {
        resize_weigh(in, out, i, &a->first[i], &a->count[i], weights);
        for (uint32_t j = 0; j < a->count[i]; j++) {
            const double w = weights[j] * (1 << a->bits);
            a->weights[(size_t)i * a->most + j] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
        }
    }
    free(weights);
    return GM_OK;
}

static uint8_t resize_clamp(int32_t sum, uint32_t bits) {
    const int32_t value = sum >> bits;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* ---- passes ---- */

static void resize_row(const resize_axis *a, const uint8_t *from, uint8_t *to, uint32_t width) {
    const int32_t half = 1 << (a->bits - 1);
    for (uint32_t x = 0; x < width; x++, to += 3) {
        const int32_t *weights = a->weights + (size_t)x * a->most;
        const uint8_t *in = from + (size_t)a->first[x] * 3;
        int32_t        r = half, g = half, b = half;
        for (uint32_t j = 0; j < a->count[x]; j++, in += 3) {
            r += weights[j] * in[0];
            g += weights[j] * in[1];
            b += weights[j] * in[2];
        }
        to[0] = resize_clamp(r, a->bits), to[1] = resize_clamp(g, a->bits), to[2] = resize_clamp(b, a->bits);
    }
}

/* One row of the result, of several rows of n bytes. */
static void resize_rows(const resize_axis *a, uint32_t y, const uint8_t *from, uint8_t *to, size_t n, int32_t *sums) {
    for (size_t i = 0; i < n; i++) sums[i] = 1 << (a->bits - 1);
    for (uint32_t j = 0; j < a->count[y]; j++) {
        const int32_t  weight = a->weights[(size_t)y * a->most + j];
        const uint8_t *in = from + (size_t)(a->first[y] + j) * n;
        for (size_t i = 0; i < n; i++) sums[i] += weight * in[i];
    }
    for (size_t i = 0; i < n; i++) to[i] = resize_clamp(sums[i], a->bits);
}

static gm_status resize_width(const picture *from, uint32_t width, picture *out, error *e) {
    resize_axis a;
    TRY(picture_allocate(width, from->height, out, e));
    TRY(resize_axis_make(&a, from->width, width, e));
    for (uint32_t y = 0; y < from->height; y++)
        resize_row(&a, from->pixels + (size_t)y * from->width * 3, out->pixels + (size_t)y * width * 3, width);
    resize_axis_free(&a);
    return GM_OK;
}

static gm_status resize_height(const picture *from, uint32_t height, picture *out, error *e) {
    resize_axis  a;
    const size_t n = (size_t)from->width * 3;
    TRY(picture_allocate(from->width, height, out, e));
    TRY(resize_axis_make(&a, from->height, height, e));
    int32_t *sums = malloc(n * sizeof *sums);
    for (uint32_t y = 0; sums && y < height; y++) resize_rows(&a, y, from->pixels, out->pixels + y * n, n, sums);
    resize_axis_free(&a);
    if (!sums) return fail_memory(e, "resizing a picture", n * sizeof *sums);
    free(sums);
    return GM_OK;
}

gm_status picture_resize(const picture *from, uint32_t width, uint32_t height, picture *out, error *e) {
    picture   narrow = { 0 };
    gm_status status = GM_OK;
    *out = (picture){ 0 };
    if (from->width == width && from->height == height) return picture_copy(from->pixels, width, height, out, e);
    if (from->width != width) status = resize_width(from, width, from->height == height ? out : &narrow, e);
    if (!status && from->height != height) status = resize_height(narrow.pixels ? &narrow : from, height, out, e);
    picture_free(&narrow);
    if (status) picture_free(out);
    return status;
}

gm_status picture_fitted(const picture *from, uint32_t budget, picture *out, error *e) {
    uint32_t width = 0, height = 0;
    TRY(picture_fit(from->width, from->height, budget, &width, &height, e));
    return picture_resize(from, width, height, out, e);
}
