/* The scalar table: the plain version of every kernel. What a diffusion model needs (not the gradients, products in 8 bits or sound) gives the
 * same bits everywhere: cpu/exact.h. */

#include "cpu/exact.h"
#include "cpu/reference.h"
#include "cpu/unpack.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static void rms_norm(float *y, const float *x, const float *w, float eps, size_t n) {
    float lanes[EXACT_LANES] = { 0 };
    for (size_t i = 0; i < n; i++) lanes[i % EXACT_LANES] += x[i] * x[i];
    const float r = exact_inverse_root(exact_lanes_sum(lanes) * (1 / (float)n) + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * r * (w ? w[i] : 1);
}

static void rms_norm_back(float *y, const float *x, const float *w, const float *d, float eps, size_t n) {
    double squares = 0, dot = 0;
    for (size_t i = 0; i < n; i++) {
        squares += (double)x[i] * x[i];
        dot += (double)(w ? w[i] : 1) * d[i] * x[i];
    }
    const double r = 1 / sqrt(squares / (double)n + eps), pull = r * r * dot / (double)n;
    for (size_t i = 0; i < n; i++) y[i] = (float)(r * ((double)(w ? w[i] : 1) * d[i] - x[i] * pull));
}

static void centred_norm(float *y, const float *x, const float *w, const float *b, float eps, size_t n) {
    float       sums[EXACT_LANES] = { 0 }, squares[EXACT_LANES] = { 0 };
    const float share = 1 / (float)n;
    for (size_t i = 0; i < n; i++) sums[i % EXACT_LANES] += x[i];
    const float centre = exact_lanes_sum(sums) * share;
    for (size_t i = 0; i < n; i++) squares[i % EXACT_LANES] += (x[i] - centre) * (x[i] - centre);
    const float r = exact_inverse_root(exact_lanes_sum(squares) * share + eps);
    for (size_t i = 0; i < n; i++) y[i] = (x[i] - centre) * r * w[i] + (b ? b[i] : 0);
}

static void add(float *y, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void mul(float *y, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void clamp(float *y, const float *a, float least, float most, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a[i] < least ? least : a[i] > most ? most : a[i];
}

static void scale(float *y, const float *a, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a[i] * factor;
}

static void geglu(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = exact_gelu(gate[i]) * up[i];
}

/* gelu'(x) = (1 + t)/2 + x/2 · (1 − t²) · √(2/π) · (1 + 3 · 0.044715 x²), t = tanh(√(2/π) · (x + 0.044715 x³)) */
static void geglu_back(float *y, const float *gate, const float *up, const float *d, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float x = gate[i], t = tanhf(0.79788456f * x * (1 + 0.044715f * x * x));
        const float slope = 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
        y[i] = slope * up[i] * d[i];
    }
}

static void gate(float *y, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a[i] / (1 + expf(-b[i]));
}

static void softcap(float *y, const float *x, float cap, size_t n) {
    const float inverse = 1 / cap;
    for (size_t i = 0; i < n; i++) y[i] = cap * exact_tanh(x[i] * inverse);
}

static void add_scaled(float *y, const float *x, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

static void add_rows(float *y, const float *x, size_t stride, const float *factors, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) y[i] += factors[r] * x[r * stride + i];
    }
}

static void rope(float *x, const float *table, size_t n) {
    const size_t half = n / 2;
    for (size_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half], cosine = table[i], sine = table[i + half];
        x[i] = a * cosine - b * sine;
        x[i + half] = b * cosine + a * sine;
    }
}

/* Converts 32 values to 8 bits and returns the scale. Values so small that 1/d would overflow become zeros. 8 bits cannot
 * represent NaN or infinity, so the scale becomes NaN and a damaged model shows in its logits. */
static float quantise_32(int8_t *q, const float *x) {
    float most = 0, spoilt = 0; /* spoilt: 0, or NaN */
    for (size_t i = 0; i < 32; i++) {
        most = fmaxf(most, fabsf(x[i]));
        spoilt += x[i] * 0;
    }
    const float d = most / 127, inverse = d > 1e-35f ? 1 / d : 0;
    for (size_t i = 0; i < 32; i++) {
        const float scaled = rintf(x[i] * inverse);
        q[i] = scaled >= -127 && scaled <= 127 ? (int8_t)scaled : 0;
    }
    return (inverse > 0 ? d : 0) + spoilt;
}

static void quantise(q8 out, const float *x, size_t rows, size_t k) {
    for (size_t i = 0; i < rows * k / 32; i++) {
        const int8_t *q = out.q + 32 * i;
        out.d[i] = quantise_32(out.q + 32 * i, x + 32 * i);
        for (size_t half = 0; half < 2; half++) {
            int sum = 0;
            for (size_t j = 0; j < 16; j++) sum += q[16 * half + j];
            out.s[2 * i + half] = out.d[i] * (float)sum;
        }
    }
}

static void store_q8_0(uint8_t *out, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += 32, out += 34) {
        int8_t         q[32];
        const uint16_t d = f32_to_f16(quantise_32(q, x + i));
        memcpy(out, &d, sizeof d);
        memcpy(out + 2, q, sizeof q);
    }
}

static void store(void *out, quant_type type, const float *x, size_t n) {
    if (type == TYPE_F32) memcpy(out, x, n * sizeof *x);
    else if (type == TYPE_F16)
        for (size_t i = 0; i < n; i++) ((uint16_t *)out)[i] = f32_to_f16(x[i]);
    else store_q8_0(out, x, n);
}

static void load_row(float *out, quant_type type, const void *row, float factor, size_t n) {
    const quant_format *format = quant_format_of((uint32_t)type);
    format->dequantise(out, row, n / format->block);
    scale(out, out, factor, n);
}

bool cpu_type_has_q8(quant_type type) { return unpack_of(type) != NULL; }

const cpu_kernels cpu_kernels_scalar = {
    .name = "scalar",
    .rms_norm = rms_norm,
    .rms_norm_back = rms_norm_back,
    .layer_norm = centred_norm,
    .add = add,
    .mul = mul,
    .clamp = clamp,
    .scale = scale,
    .geglu = geglu,
    .geglu_back = geglu_back,
    .gate = gate,
    .softcap = softcap,
    .add_scaled = add_scaled,
    .add_rows = add_rows,
    .rope = rope,
    .quantise = quantise,
    .store = store,
    .load_row = load_row,
    .matmul_q8 = reference_matmul_q8,
    .matmul_f32 = reference_matmul_f32,
    .row_multiple = 16,
    .attention_tasks = reference_attention_tasks,
    .attention = reference_attention,
};
