/* The layout of repacked weights, and the defines with which wgsl/weights.wgsl reads each type, in one table. */

#include "gpu/weights.h"

#include "gpu/kernel_build.h"

/* The planes' bits per chunk of 32 weights; weights.wgsl explains the defines. */
typedef struct {
    const char *name; /* NULL: no kernel reads this type */
    const char *low, *high, *values, *is_signed, *scales, *span, *bias, *affine;
    uint32_t    low_bits, high_bits, scale_bits, block_bits;
} plane_format;

static const plane_format formats[TYPE_COUNT] = {
    /*                       low   high values   signed scales span  bias  affine bits of each plane */
    [TYPE_F32] = { "F32", "32", "0", "0", "0", "0", "32", "0", "0", 1024, 0, 0, 0 },
    [TYPE_F16] = { "F16", "16", "0", "0", "0", "0", "32", "0", "0", 512, 0, 0, 0 },
    [TYPE_BF16] = { "BF16", "16", "0", "0", "0", "0", "32", "0", "0", 512, 0, 0, 0 },
    [TYPE_Q4_0] = { "Q4_0", "4", "0", "0", "0", "D", "32", "8", "1", 128, 0, 16, 0 },
    [TYPE_Q4_1] = { "Q4_1", "4", "0", "0", "0", "DM", "32", "0", "1", 128, 0, 32, 0 },
    [TYPE_Q5_0] = { "Q5_0", "4", "1", "0", "0", "D", "32", "16", "1", 128, 32, 16, 0 },
    [TYPE_Q5_1] = { "Q5_1", "4", "1", "0", "0", "DM", "32", "0", "1", 128, 32, 32, 0 },
    [TYPE_Q8_0] = { "Q8_0", "8", "0", "0", "1", "D", "32", "0", "0", 256, 0, 16, 0 },
    [TYPE_Q2_K] = { "Q2_K", "2", "0", "0", "0", "K2", "16", "0", "1", 64, 0, 16, 4 },
    [TYPE_Q3_K] = { "Q3_K", "2", "1", "0", "0", "K3", "16", "4", "1", 64, 32, 16, 0 },
    [TYPE_Q4_K] = { "Q4_K", "4", "0", "0", "0", "K4", "32", "0", "1", 128, 0, 16, 0 },
    [TYPE_Q5_K] = { "Q5_K", "4", "1", "0", "0", "K4", "32", "0", "1", 128, 32, 16, 0 },
    [TYPE_Q6_K] = { "Q6_K", "4", "2", "0", "0", "K6", "16", "32", "1", 128, 64, 16, 2 },
    [TYPE_IQ4_NL] = { "IQ4_NL", "4", "0", "IQ4", "1", "D", "32", "0", "0", 128, 0, 16, 0 },
    [TYPE_IQ4_XS] = { "IQ4_XS", "4", "0", "IQ4", "1", "XS", "32", "0", "0", 128, 0, 8, 0 },
    [TYPE_MXFP4] = { "MXFP4", "4", "0", "MXFP4", "1", "E8", "32", "0", "0", 128, 0, 8, 0 },
};

static const plane_format *format_of(quant_type type) {
    return (unsigned)type < TYPE_COUNT && formats[type].name ? &formats[type] : NULL;
}

/* ---- layout ---- */

/* A plane's bytes for so many chunks, rounded up to 256 so that every plane starts at a multiple of that. */
static uint64_t plane_bytes(uint64_t chunks, uint32_t bits) { return round_up((chunks * bits + 7) / 8, 256); }

static uint64_t tile_bytes(const plane_format *f, uint64_t chunks) {
    return plane_bytes(chunks, f->low_bits) + plane_bytes(chunks, f->high_bits) + plane_bytes(chunks, f->scale_bits) +
           plane_bytes(chunks, f->block_bits);
}

/* The most steps of `step` chunks, up to `count`, that fit into a binding and that 32-bit word numbers can address. */
static uint64_t steps_that_fit(const plane_format *f, uint64_t step, uint64_t count, uint64_t most_bytes) {
    const uint64_t most = most_bytes < UINT32_MAX ? most_bytes : UINT32_MAX;
    uint64_t       low = 0, high = count; /* low fits, high + 1 does not */
    while (low < high) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (tile_bytes(f, middle * step) <= most) low = middle;
        else high = middle - 1;
    }
    return low;
}

gm_status weight_layout_make(weight_layout *out, quant_type type, const uint64_t ne[3], uint64_t most_bytes, error *e) {
    const plane_format *f = format_of(type);
    const quant_format *block = quant_format_of((uint32_t)type);
    if (!f)
        return fail(e, GM_UNSUPPORTED, "weights of type %s cannot be used on the GPU", block ? block->name : "unknown");
    const uint64_t k = ne[0], rows = ne[1], experts = ne[2];
    uint64_t       all_rows, elements;
    if (!k || !rows || !experts || k % block->block || k > UINT32_MAX - 32 || !mul_u64(rows, experts, &all_rows) ||
        all_rows > UINT32_MAX || !mul_u64(k, all_rows, &elements) || elements > (uint64_t)1 << 48) {
        return fail(e, GM_BAD_FILE, "a weight of type %s with shape %llu x %llu x %llu cannot be laid out on the GPU",
                    f->name, (unsigned long long)k, (unsigned long long)rows, (unsigned long long)experts);
    }
    const uint64_t chunks = (k + 31) / 32, unit = experts > 1 ? rows : 1; /* rows that must not be separated */
    uint64_t       units = steps_that_fit(f, chunks * unit, all_rows / unit, most_bytes);
    if (unit == 1 && units < all_rows && units > 32)
        units -= units % 32; /* transposed products take 32 rows at a time */
    if (!units) {
        return fail(e, GM_UNSUPPORTED,
                    "%s of a weight of type %s takes %llu bytes, but a binding of this GPU holds %llu",
                    experts > 1 ? "an expert" : "a row", f->name, (unsigned long long)tile_bytes(f, chunks * unit),
                    (unsigned long long)most_bytes);
    }
    *out = (weight_layout){
        .type = type,
        .k = (uint32_t)k,
        .rows = (uint32_t)rows,
        .experts = (uint32_t)experts,
        .chunks = (uint32_t)chunks,
        .tile_rows = (uint32_t)(units * unit),
        .tiles = (uint32_t)((all_rows / unit + units - 1) / units),
    };
    return GM_OK;
}

weight_tile weight_tile_of(const weight_layout *layout, uint32_t tile) {
    const plane_format *f = format_of(layout->type);
    const uint64_t      all_rows = (uint64_t)layout->rows * layout->experts, first = (uint64_t)tile * layout->tile_rows;
    const uint64_t      rows = min_size(layout->tile_rows, all_rows - first), chunks = rows * layout->chunks;
    const uint64_t      high = plane_bytes(chunks, f->low_bits), scales = high + plane_bytes(chunks, f->high_bits);
    const uint64_t      blocks = scales + plane_bytes(chunks, f->scale_bits);
    return (weight_tile){
        .first_row = (uint32_t)first,
        .rows = (uint32_t)rows,
        .first_expert = (uint32_t)(first / layout->rows),
        .experts = (uint32_t)(rows / layout->rows),
        .high = (uint32_t)(high / 16),
        .scales = (uint32_t)(scales / 16),
        .blocks = (uint32_t)(blocks / 16),
        .bytes = tile_bytes(f, chunks),
    };
}

uint64_t weight_bytes(const weight_layout *layout) {
    const uint64_t whole = layout->tiles > 1 ? weight_tile_of(layout, 0).bytes * (layout->tiles - 1) : 0;
    return whole + weight_tile_of(layout, layout->tiles - 1).bytes;
}

/* ---- defines and constants of shaders ---- */

static void describe_type(gpu_kernel *kernel, const plane_format *f) {
    kernel_define(kernel, "WEIGHT", f->name);
    kernel_define(kernel, "QUANTISED", f->scales[0] == '0' ? "0" : "1");
    kernel_define(kernel, "LOW", f->low);
    kernel_define(kernel, "HIGH", f->high);
    kernel_define(kernel, "VALUES", f->values);
    kernel_define(kernel, "SIGNED", f->is_signed);
    kernel_define(kernel, "SCALES", f->scales);
    kernel_define(kernel, "SPAN", f->span);
    kernel_define(kernel, "BIAS", f->bias);
    kernel_define(kernel, "AFFINE", f->affine);
}

void weight_describe(gpu_kernel *kernel, const weight_layout *layout, const weight_tile *tile) {
    describe_type(kernel, format_of(layout->type));
    kernel_constant(kernel, "w_high", tile->high);
    kernel_constant(kernel, "w_scales", tile->scales);
    kernel_constant(kernel, "w_blocks", tile->blocks);
}

/* ---- repacking ---- */

/* Pieces start at multiples of 16 chunks, which share a word of block scales. Padded rows are never split. */
uint32_t weight_piece_unit(const weight_layout *layout) { return layout->k % 32 ? layout->chunks : 16; }

uint64_t weight_source_bytes(const weight_layout *layout, uint64_t chunks) {
    const quant_format *block = quant_format_of((uint32_t)layout->type);
    if (layout->k % 32) return chunks / layout->chunks * quant_row_bytes(block, layout->k);
    return quant_row_bytes(block, chunks * 32);
}

uint64_t weight_staging_least(const weight_layout *layout) {
    return round_up(weight_source_bytes(layout, weight_piece_unit(layout)), 4);
}

weight_piece weight_piece_at(const weight_layout *layout, uint32_t tile, uint32_t chunk, uint64_t staging) {
    const weight_tile t = weight_tile_of(layout, tile);
    const uint64_t    all = (uint64_t)t.rows * layout->chunks, unit = weight_piece_unit(layout);
    const uint64_t    fit = staging / 4 * 4 / weight_source_bytes(layout, unit) * unit;
    const uint32_t    count = (uint32_t)min_size(fit, all - chunk);
    const uint64_t    before = (uint64_t)t.first_row * layout->chunks + chunk;
    return (weight_piece){
        .source = weight_source_bytes(layout, before),
        .bytes = weight_source_bytes(layout, count),
        .parameters = { chunk, count, layout->k, layout->chunks, t.high, t.scales, t.blocks, 0 },
        .next = chunk + count < all ? chunk + count : 0,
    };
}

weight_piece weight_piece_of_expert(const weight_layout *layout, uint32_t expert, uint32_t slot, uint32_t chunk,
                                    uint64_t staging, uint32_t *tile) {
    const uint32_t each = layout->rows * layout->chunks, slots = layout->tile_rows / layout->rows;
    *tile = slot / slots;
    const uint32_t before = slot % slots * each;
    weight_piece   piece = weight_piece_at(layout, *tile, before + chunk, staging);
    const uint32_t count = (uint32_t)min_size(piece.parameters[1], each - chunk);
    piece.parameters[1] = count;
    piece.source = weight_source_bytes(layout, (uint64_t)expert * each + chunk);
    piece.bytes = weight_source_bytes(layout, count);
    piece.next = chunk + count < each ? chunk + count : 0;
    return piece;
}

size_t weight_expert_planes(const weight_layout *layout, uint32_t slot, uint32_t *tile,
                            weight_range out[WEIGHT_PLANES]) {
    const plane_format *f = format_of(layout->type);
    const uint32_t      bits[WEIGHT_PLANES] = { f->low_bits, f->high_bits, f->scale_bits, f->block_bits };
    const uint64_t      each = (uint64_t)layout->rows * layout->chunks, slots = layout->tile_rows / layout->rows;
    size_t              count = 0;
    *tile = (uint32_t)(slot / slots);
    const uint64_t chunks = (uint64_t)weight_tile_of(layout, *tile).rows * layout->chunks;
    for (uint64_t i = 0, plane = 0; i < WEIGHT_PLANES; plane += plane_bytes(chunks, bits[i++])) {
        const uint64_t bytes = each * bits[i] / 8;
        if (bytes) out[count++] = (weight_range){ plane + slot % slots * bytes, bytes };
    }
    return count;
}

void weight_repack_kernel(gpu_kernel *out, const gpu_info *info, const weight_layout *layout,
                          const weight_piece *piece) {
    static const struct {
        const char *block, *bytes;
    } sizes[TYPE_COUNT] = {
        [TYPE_Q4_0] = { "32", "18" },   [TYPE_Q4_1] = { "32", "20" },   [TYPE_Q5_0] = { "32", "22" },
        [TYPE_Q5_1] = { "32", "24" },   [TYPE_Q8_0] = { "32", "34" },   [TYPE_Q2_K] = { "256", "84" },
        [TYPE_Q3_K] = { "256", "110" }, [TYPE_Q4_K] = { "256", "144" }, [TYPE_Q5_K] = { "256", "176" },
        [TYPE_Q6_K] = { "256", "210" }, [TYPE_IQ4_NL] = { "32", "18" }, [TYPE_IQ4_XS] = { "256", "136" },
        [TYPE_MXFP4] = { "32", "17" },
    };
    *out = (gpu_kernel){ .file = "repack.wgsl" };
    describe_type(out, format_of(layout->type));
    if (sizes[layout->type].block) {
        kernel_define(out, "BLOCK", sizes[layout->type].block);
        kernel_define(out, "BYTES", sizes[layout->type].bytes);
    }
    for (int i = 0; i < REPACK_BINDS; i++) kernel_bind(out, i);
    kernel_spread(out, info, (piece->parameters[1] + 63) / 64);
}
