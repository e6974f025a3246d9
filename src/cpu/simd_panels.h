/* Quantised weights times 8-bit activations, for many columns. Arithmetic is the bottleneck, so weights are unpacked once and used
 * for all columns.
 *
 * A panel is WIDE rows of W over a chunk of k, unpacked and transposed so that a register holds 4 values of each row. Columns are
 * transposed in the same way, in tiles of 8. The kernel multiplies a register of weights by 4 values of a column, broadcast, which
 * gives WIDE sums of 4 products in one instruction. A format's bias goes into the initial value of the integer sum (−bias · Σ p);
 * an offset takes one multiply-add per group. The sum of a row and a column does not depend on which
 * other rows and columns are computed with it. */

#ifndef GM_CPU_SIMD_PANELS_H
#define GM_CPU_SIMD_PANELS_H

#include "cpu/simd_columns.h"

enum {
    CHUNK = 2 * UNIT,
    TILE = 8,
    KERNEL = WIDE == 16 ? 8 : 4, /* columns of a tile that the registers hold at once */
    MOST_TILES = 64,             /* more columns take several passes */
    MOST_PACKED = 80,            /* tiles times chunks: 0.5 MB of a second-level cache of at least 1 MB */
    FEW_COLUMNS = 4,             /* fewer are faster without panels */
};

typedef struct {
    uint8_t q[CHUNK / 4][WIDE][4];
    float   scale[CHUNK / 16][WIDE];
    float   offset[CHUNK / 16][WIDE];
} panel;

typedef struct {
    int8_t q[CHUNK / 4][TILE][4];
    float  d[CHUNK / 32][TILE];
    union {                              /* by group */
        float   s[CHUNK / 16][TILE];     /* d · Σ p, for an offset */
        int32_t start[CHUNK / 16][TILE]; /* −bias · Σ p */
    };
} column_tile;

/* 256 values of eight rows, before they are transposed into a panel. */
typedef struct {
    uint8_t q[TILE][UNIT];
    float   scale[TILE][UNIT / 16], offset[TILE][UNIT / 16];
} eight_rows;

typedef struct {
    panel       weights;
    eight_rows  rows;
    column_tile tiles[MOST_PACKED];
} panel_scratch;

_Static_assert(sizeof(panel_scratch) <= MATMUL_SCRATCH, "panels need more scratch memory than there is");

/* ---- columns ---- */

/* Packs 8 columns (zeros if there are fewer): `blocks` times 32 values, starting at `at`. */
INLINE void pack_columns(unpack_traits t, column_tile *tile, const matmul_job *job, size_t first, size_t at,
                         size_t blocks) {
    q8_column    x[TILE];
    const size_t count = min_size(TILE, job->columns - first), halves = t.group == 32 ? 1 : 2;
    for (size_t c = 0; c < count; c++) x[c] = q8_advance(q8_column_of(job, first + c), at);
    for (size_t b = 0; b < blocks; b++) {
        b32 r[TILE];
        for (size_t c = 0; c < TILE; c++) {
            r[c] = c < count ? b_load(x[c].q + 32 * b) : b_set(0);
            tile->d[b][c] = c < count ? x[c].d[b] : 0;
        }
        transpose_8x8(r);
        i32x8 sum[2] = { i32_zero(), i32_zero() }; /* Σ p of the two halves, a lane for each column */
        for (size_t i = 0; i < 8; i++) {
            b_store(tile->q[8 * b + i], r[i]);
            sum[i / 4] = dot(sum[i / 4], b_set(1), r[i]);
        }
        if (t.group == 32) sum[0] = i32_add(sum[0], sum[1]);
        for (size_t half = 0; half < halves; half++) {
            const size_t group = b * halves + half;
            if (t.offset) f32_store(tile->s[group], f32_mul(f32_load(tile->d[b]), f32_from_i32(sum[half])));
            else i32_store(tile->start[group], i32_mul(sum[half], -t.bias));
        }
    }
}

/* ---- weights ---- */

/* Unpacks 256 values of one row, of which `values` are left. The hardware prefetcher cannot follow the many short streams of a
 * panel's rows, so we prefetch the next panel here. */
INLINE void unpack_row(unpack_traits t, eight_rows *rows, size_t r, const uint8_t *w, size_t row_bytes, size_t values) {
    uint8_t padded[MOST_UNIT_BYTES];
    for (size_t line = 0; line < t.unit_bytes; line += 64) prefetch((uintptr_t)w + WIDE * row_bytes + line);
    if (values < UNIT) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, w, values * t.unit_bytes / UNIT);
        w = padded;
    }
    unpacked u;
    t.unpack(&u, w);
    UNROLL for (size_t i = 0; i < 8; i++) b_store(rows->q[r] + 32 * i, u.q[i]);
    const size_t registers = t.group == 32 ? 1 : 2;
    UNROLL for (size_t i = 0; i < registers; i++) {
        f32_store(rows->scale[r] + 8 * i, u.scale[i]);
        if (t.offset) f32_store(rows->offset[r] + 8 * i, u.offset[i]);
    }
}

/* Transposes 8 rows of 8 words, `stride` bytes apart, into columns WIDE words apart. */
INLINE void transpose_words(void *to, const void *from, size_t stride) {
    b32 r[8];
    UNROLL for (size_t i = 0; i < 8; i++) r[i] = b_load((const uint8_t *)from + stride * i);
    transpose_8x8(r);
    UNROLL for (size_t i = 0; i < 8; i++) b_store((uint8_t *)to + 4 * WIDE * i, r[i]);
}

/* Fills a panel with rows [row, row + WIDE) of W (zeros from `last` on): `values` values of k, starting at `at`. */
INLINE void fill_panel(unpack_traits t, panel *p, eight_rows *rows, const matmul_job *job, size_t row, size_t last,
                       size_t at, size_t values) {
    const size_t groups = UNIT / (unsigned)t.group;
    for (size_t unit = 0; unit * UNIT < values; unit++) {
        for (size_t lane = 0; lane < WIDE; lane += 8) {
            const size_t   count = row + lane < last ? min_size(8, last - row - lane) : 0;
            const uint8_t *w = job->w + (row + lane) * job->row_bytes + (at / UNIT + unit) * t.unit_bytes;
            for (size_t r = 0; r < count; r++)
                unpack_row(t, rows, r, w + r * job->row_bytes, job->row_bytes, values - unit * UNIT);
            for (size_t r = count; r < 8; r++) { /* their results are not stored */
                memset(rows->q[r], 0, sizeof rows->q[r]);
                memset(rows->scale[r], 0, sizeof rows->scale[r]);
                memset(rows->offset[r], 0, sizeof rows->offset[r]);
            }
            for (size_t b = 0; b < 8; b++)
                transpose_words(p->q[unit * UNIT / 4 + 8 * b][lane], rows->q[0] + 32 * b, UNIT);
            for (size_t g = 0; g < groups; g += 8) {
                transpose_words(&p->scale[unit * groups + g][lane], &rows->scale[0][g], sizeof rows->scale[0]);
                if (t.offset)
                    transpose_words(&p->offset[unit * groups + g][lane], &rows->offset[0][g], sizeof rows->offset[0]);
            }
        }
    }
}

/* ---- the product ---- */

INLINE int32_t load_i32(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* sums[c] += panel · column c, for columns [from, from + count) of a tile; count is a constant. */
INLINE void multiply_tile(unpack_traits t, wide_f *sums, const panel *p, const column_tile *x, size_t from,
                          size_t count, size_t blocks) {
    const size_t halves = t.group == 32 ? 1 : 2, steps = 8 / halves;
    wide_f       total[KERNEL];
    UNROLL for (size_t c = 0; c < count; c++) total[c] = wide_zero();
    for (size_t b = 0; b < blocks; b++) {
        wide_f scaled[KERNEL]; /* Σ over the groups of the block: scale · Σ q p */
        UNROLL for (size_t half = 0; half < halves; half++) {
            const size_t group = b * halves + half;
            wide_i       products[KERNEL];
            UNROLL for (size_t c = 0; c < count; c++) products[c] =
                wide_i_set(t.offset ? 0 : x->start[group][from + c]);
            UNROLL for (size_t i = 0; i < steps; i++) {
                const size_t at = 8 * b + steps * half + i;
                const wide_i w = wide_i_load(p->q[at]);
                UNROLL for (size_t c = 0; c < count; c++) {
                    const int32_t four = load_i32(x->q[at][from + c]);
                    products[c] = t.is_signed ? wide_dot_signed(products[c], w, four) : wide_dot(products[c], w, four);
                }
            }
            const wide_f scale = wide_load(p->scale[group]);
            UNROLL for (size_t c = 0; c < count; c++) {
                const wide_f product = wide_from_i(products[c]);
                scaled[c] = half ? wide_fma(product, scale, scaled[c]) : wide_mul(product, scale);
                if (t.offset)
                    total[c] = wide_fma(wide_load(p->offset[group]), wide_set(x->s[group][from + c]), total[c]);
            }
        }
        UNROLL for (size_t c = 0; c < count; c++) total[c] = wide_fma(scaled[c], wide_set(x->d[b][from + c]), total[c]);
    }
    UNROLL for (size_t c = 0; c < count; c++) sums[c] = total[c];
}

/* Writes or adds a tile's sums: `rows` values of each column. */
INLINE void put_sums(const matmul_job *job, const wide_f *sums, size_t row, size_t rows, size_t column, size_t columns,
                     bool add) {
    for (size_t c = 0; c < columns; c++) {
        float *y = y_column_of(job, column + c) + row;
        if (rows == WIDE) {
            wide_store(y, add ? wide_add(wide_load(y), sums[c]) : sums[c]);
            continue;
        }
        float lanes[WIDE];
        wide_store(lanes, sums[c]);
        for (size_t r = 0; r < rows; r++) y[r] = add ? y[r] + lanes[r] : lanes[r];
    }
}

INLINE void multiply_panel(unpack_traits t, const matmul_job *job, const panel *p, const column_tile *x, size_t row,
                           size_t rows, size_t column, size_t columns, size_t blocks, bool add) {
    wide_f sums[KERNEL];
    for (size_t from = 0; from < columns; from += KERNEL) {
        const size_t count = min_size(KERNEL, columns - from);
        if (count <= 4) multiply_tile(t, sums, p, x, from, 4, blocks);
        else multiply_tile(t, sums, p, x, from, KERNEL, blocks);
        put_sums(job, sums, row, rows, column + from, count, add);
    }
}

/* Rows [first, last) times columns [column, column + columns), at most MOST_TILES tiles of them. */
INLINE void multiply_columns_by_panels(unpack_traits t, const matmul_job *job, size_t first, size_t last, size_t column,
                                       size_t columns, panel_scratch *scratch) {
    const size_t tiles = (columns + TILE - 1) / TILE, chunks = (job->k + CHUNK - 1) / CHUNK;
    const size_t at_once = MOST_PACKED / tiles; /* chunks packed together */
    for (size_t pass = 0; pass < chunks; pass += at_once) {
        const size_t end = min_size(chunks, pass + at_once);
        for (size_t chunk = pass; chunk < end; chunk++) {
            const size_t blocks = min_size(CHUNK, job->k - chunk * CHUNK) / 32;
            for (size_t tile = 0; tile < tiles; tile++)
                pack_columns(t, &scratch->tiles[(chunk - pass) * tiles + tile], job, column + tile * TILE,
                             chunk * CHUNK, blocks);
        }
        for (size_t row = first; row < last; row += WIDE)
            for (size_t chunk = pass; chunk < end; chunk++) {
                const size_t values = min_size(CHUNK, job->k - chunk * CHUNK);
                fill_panel(t, &scratch->weights, &scratch->rows, job, row, last, chunk * CHUNK, values);
                for (size_t tile = 0; tile < tiles; tile++)
                    multiply_panel(t, job, &scratch->weights, &scratch->tiles[(chunk - pass) * tiles + tile], row,
                                   min_size(WIDE, last - row), column + tile * TILE,
                                   min_size(TILE, columns - tile * TILE), values / 32, chunk > 0);
            }
    }
}

#if defined(SHARE_KERNELS)
/* Where code must be small, similar types share a pair of functions and differ only in their unpacking. */
#define FOR_KIND(call, t, ...)                                                                                         \
    do {                                                                                                               \
        if ((t).group == 16 && (t).offset)                                                                             \
            call(((unpack_traits){ (t).unpack, (t).unit_bytes, 16, 0, true, false }), __VA_ARGS__);                    \
        else if ((t).group == 16)                                                                                      \
            call(((unpack_traits){ (t).unpack, (t).unit_bytes, 16, (t).bias, false, false }), __VA_ARGS__);            \
        else if ((t).offset) call(((unpack_traits){ (t).unpack, (t).unit_bytes, 32, 0, true, false }), __VA_ARGS__);   \
        else if ((t).is_signed)                                                                                        \
            call(((unpack_traits){ (t).unpack, (t).unit_bytes, 32, SIGNED_BIAS, false, true }), __VA_ARGS__);          \
        else call(((unpack_traits){ (t).unpack, (t).unit_bytes, 32, (t).bias, false, false }), __VA_ARGS__);           \
    } while (0)

static void few_columns(unpack_traits t, const matmul_job *job, size_t first, size_t last, void *scratch) {
    FOR_KIND(multiply_columns, t, job, first, last, scratch);
}

static void many_columns(unpack_traits t, const matmul_job *job, size_t first, size_t last, size_t column,
                         size_t columns, void *scratch) {
    FOR_KIND(multiply_columns_by_panels, t, job, first, last, column, columns, scratch);
}
#else
#define few_columns multiply_columns
#define many_columns multiply_columns_by_panels
#endif

/* One pair of functions for each type, with the type's traits as constants. */
#define DEFINE_MATMUL(type, traits)                                                                                    \
    static void few_columns_##type(const matmul_job *job, size_t first, size_t last, void *scratch) {                  \
        few_columns(traits, job, first, last, scratch);                                                                \
    }                                                                                                                  \
    static void many_columns_##type(const matmul_job *job, size_t first, size_t last, void *scratch) {                 \
        for (size_t column = 0; column < job->columns; column += MOST_TILES * TILE)                                    \
            many_columns(traits, job, first, last, column, min_size(MOST_TILES *TILE, job->columns - column),          \
                         scratch);                                                                                     \
    }
TRAITS_OF_TYPES(DEFINE_MATMUL)
#undef DEFINE_MATMUL

typedef void (*matmul_function)(const matmul_job *job, size_t first, size_t last, void *scratch);

/* An instruction set may define special kernels for few columns of a type. They keep columns in the scratch memory, permuted, with at most
 * so many bytes for each unit. */
enum { MOST_SPECIAL_UNIT = 512 };
#if !defined(SPECIAL_FEW_COLUMNS)
#define SPECIAL_FEW_COLUMNS [TYPE_F32] = NULL
#endif

static void simd_matmul_q8(const matmul_job *job, size_t first, size_t last, void *scratch) {
#define FEW(type, traits) [TYPE_##type] = few_columns_##type,
#define MANY(type, traits) [TYPE_##type] = many_columns_##type,
    static const matmul_function few[TYPE_COUNT] = { TRAITS_OF_TYPES(FEW) };
    static const matmul_function many[TYPE_COUNT] = { TRAITS_OF_TYPES(MANY) };
#undef FEW
#undef MANY
    static const matmul_function special[TYPE_COUNT] = { SPECIAL_FEW_COLUMNS };
    const bool                   fits = job->k / UNIT * MOST_SPECIAL_UNIT <= MATMUL_SCRATCH; /* a column at least */
    const matmul_function        for_few = special[job->type] && fits ? special[job->type] : few[job->type];
    (job->columns < FEW_COLUMNS || job->alone ? for_few : many[job->type])(job, first, last, scratch);
}

#endif
