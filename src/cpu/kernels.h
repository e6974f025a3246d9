/* The CPU's kernels: one table of functions per instruction set. The scalar table is the reference; the others compute the same up
 * to rounding. The table is chosen once, at run time (on wasm at compile time). Kernels know nothing about graphs and threads: they
 * compute the range they are given. */

#ifndef GM_CPU_KERNELS_H
#define GM_CPU_KERNELS_H

#include "gguf/quant.h"
#include "graph/run.h"

/* 8-bit activations: x ≈ d·q with |q| ≤ 127 and one scale d per 32 values. Rows of k values, a multiple of 32, are adjacent. */
typedef struct {
    int8_t *q; /* [rows, k] */
    float  *d; /* [rows, k/32] */
    float  *s; /* [rows, k/16]: d · Σ q over 16 values, for formats with an offset */
} q8;

/* y[column, row] = W[row] · x[column] for some rows of W and all columns. */
typedef struct {
    const uint8_t *w; /* row 0 */
    size_t         row_bytes;
    size_t         k; /* length of a row */
    quant_type     type;
    const float   *x;  /* f32 columns, k apart: for matmul_f32 */
    q8             x8; /* the same in 8 bits: for matmul_q8 */
    float         *y;
    size_t         y_stride; /* between columns of y */
    size_t         columns;
    bool           alone;   /* every column gets bitwise the sums that it would get if it were the only one */
    const int32_t *x_index; /* column c reads x[x_index[c]] and writes y[y_index[c]]; NULL: c (experts use these) */
    const int32_t *y_index;
} matmul_job;

/* Keys and values of one layer: slots of kv_heads × head values. */
typedef struct {
    const void *k, *v;
    quant_type  type; /* F32, F16 or Q8_0 */
    size_t      kv_heads, head;
} kv_view;

/* out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token's record says it sees, for the tokens of one
 * span. h uses K/V head h / (heads / kv_heads). The scale is 1. */
typedef struct {
    const float        *q;    /* [tokens, heads, head] */
    float              *out;  /* same */
    float              *logs; /* [tokens, heads]: log Σ_j e^(q[t, h] · k_j); NULL: not wanted */
    kv_view             kv;
    size_t              heads, tokens;
    const token_record *records; /* [tokens] */
    bool                sliding; /* which fields of the records count */
} attention_job;

static inline uint32_t attention_first(const attention_job *job, size_t token) {
    return record_first(&job->records[token], job->sliding);
}

static inline uint32_t attention_last(const attention_job *job, size_t token) {
    return record_last(&job->records[token], job->sliding);
}

enum {
    MATMUL_SCRATCH = 1 << 20, /* bytes of scratch memory per thread that the kernels may use, aligned to 64 */
    ATTENTION_SCRATCH = 1 << 20,
    BACK_SCRATCH = 512 << 10, /* before that of a product: tiles of the gradients of attention */
    THREAD_SCRATCH = BACK_SCRATCH + MATMUL_SCRATCH,
};

typedef struct {
    const char *name; /* "scalar", "avx2", "avx512", "neon", "wasm" */

    /* One row: y = x · r · w, r = 1/sqrt(mean(x²) + eps); w may be NULL; y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, size_t n);
    /* The gradient of x, of that of the result: r · (w·d − x·r²·mean(w·d·x)). */
    void (*rms_norm_back)(float *y, const float *x, const float *w, const float *d, float eps, size_t n);
    /* One row: y = (x − mean) / sqrt(variance + eps) · w + b; b may be NULL; y may be x. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, float eps, size_t n);
    void (*add)(float *y, const float *a, const float *b, size_t n); /* y may be a or b, here and below */
    void (*mul)(float *y, const float *a, const float *b, size_t n);
    void (*clamp)(float *y, const float *a, float least, float most, size_t n); /* NaN stays NaN */
    void (*scale)(float *y, const float *a, float factor, size_t n);
    void (*geglu)(float *y, const float *gate, const float *up, size_t n); /* gelu_tanh(gate) · up */
    void (*geglu_back)(float *y, const float *gate, const float *up, const float *d,
                       size_t n);                                         /* gelu'(gate) · up · d */
    void (*gate)(float *y, const float *a, const float *b, size_t n);     /* a · sigmoid(b) */
    void (*softcap)(float *y, const float *x, float cap, size_t n);       /* cap · tanh(x / cap) */
    void (*add_scaled)(float *y, const float *x, float factor, size_t n); /* y += factor · x */
    /* y += Σ_r factors[r] · x[r · stride ...]: several rows at once. */
    void (*add_rows)(float *y, const float *x, size_t stride, const float *factors, size_t rows, size_t n);
    /* One head in place: NeoX pairs (j, j + n/2); table: n/2 cosines, then n/2 sines. */
    void (*rope)(float *x, const float *table, size_t n);
    /* Rows of k values, k a multiple of 32. */
    void (*quantise)(q8 out, const float *x, size_t rows, size_t k);
    /* Stores n values in a K/V type. For Q8_0 n is a multiple of 32. */
    void (*store)(void *out, quant_type type, const float *x, size_t n);
    /* out = factor · the row of n values (an embedding). */
    void (*load_row)(float *out, quant_type type, const void *row, float factor, size_t n);

    /* Rows [first, last) of W times all columns. q8: quantised types; f32: every type, f32 activations and sums. */
    void (*matmul_q8)(const matmul_job *job, size_t first, size_t last, void *scratch);
    void (*matmul_f32)(const matmul_job *job, size_t first, size_t last, void *scratch);
    /* The fewest rows worth a call; calls with a multiple of it are fastest. */
    size_t row_multiple;

    /* The job consists of attention_tasks(job) parts that can run in parallel. */
    size_t (*attention_tasks)(const attention_job *job);
    void (*attention)(const attention_job *job, size_t task, void *scratch);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_scalar;

/* All tables that this machine can run, the best first; the scalar one is the last. */
size_t             cpu_kernels_available(const cpu_kernels *const **list);
const cpu_kernels *cpu_kernels_best(void);
const cpu_kernels *cpu_kernels_by_name(const char *name); /* NULL: this machine cannot run it */

/* Whether matmul_q8 supports this type. */
bool cpu_type_has_q8(quant_type type);

#endif
