/* Weights on the GPU: how a tensor lies in its buffers once it is repacked (wgsl/weights.wgsl says how it is read).
 *
 * A row of k weights is ceil(k/32) chunks of 32. Quantised blocks are taken apart into planes of whole words: the low bits of
 * the quants, their high bits, the scales, the block scales; one buffer holds all planes of one tile. A tile is some whole rows
 * (some whole experts, if there are several), as many as one binding may hold. Values stay exact.
 *
 * Uploading: for each tile, its bytes go through a staging buffer in pieces of whole chunks (weight_piece), and the repack kernel
 * moves each piece into the tile. */

#ifndef GM_GPU_WEIGHTS_H
#define GM_GPU_WEIGHTS_H

#include "gguf/quant.h"
#include "gpu/kernel.h"

typedef struct {
    quant_type type;
    uint32_t   k, rows, experts; /* the tensor [k, rows, experts] */
    uint32_t   chunks;           /* of a row */
    uint32_t   tile_rows;        /* of a tile, over experts · rows; the last may have fewer */
    uint32_t   tiles;
} weight_layout;

typedef struct {
    uint32_t first_row, rows;       /* over experts · rows */
    uint32_t first_expert, experts; /* with several experts: a tile holds whole ones */
    uint32_t high, scales, blocks;  /* where planes begin, in 16 bytes; the quants are at 0 */
    uint64_t bytes;                 /* of the tile's buffer: a multiple of 256 */
} weight_tile;

/* Tiles for bindings of at most `most_bytes`. Fails for a type that no kernel reads, a shape that is not made of whole
 * blocks or beyond 32 bits, and a row (or an expert) that is larger than a binding. */
gm_status weight_layout_make(weight_layout *out, quant_type type, const uint64_t ne[3], uint64_t most_bytes, error *e);
weight_tile weight_tile_of(const weight_layout *layout, uint32_t tile);
uint64_t    weight_bytes(const weight_layout *layout); /* of all tiles */

/* Defines and constants of a kernel that includes weights.wgsl and reads this tile. */
void weight_describe(gpu_kernel *kernel, const weight_layout *layout, const weight_tile *tile);

/* ---- repacking ---- */

enum { WEIGHT_PIECE_WORDS = 8 };

typedef struct {
    uint64_t source;                         /* where its bytes begin in the tensor, and how many there are */
    uint64_t bytes;                          /* (the staging buffer needs them rounded up to 4) */
    uint32_t parameters[WEIGHT_PIECE_WORDS]; /* the kernel's "piece" buffer */
    uint32_t next; /* chunk of the tile that the next piece begins with; 0: this was the last */
} weight_piece;

/* The piece of a tile that begins with `chunk` (0 first) and fits into a staging buffer of `staging` bytes, at least
 * weight_staging_least. */
weight_piece weight_piece_at(const weight_layout *layout, uint32_t tile, uint32_t chunk, uint64_t staging);
uint64_t     weight_staging_least(const weight_layout *layout);
/* Pieces begin at multiples of so many chunks. */
uint32_t weight_piece_unit(const weight_layout *layout);
/* Bytes of the file that so many chunks are made of: whole units, or all of a tile. */
uint64_t weight_source_bytes(const weight_layout *layout, uint64_t chunks);

enum { WEIGHT_PIECE_FLAG = 7 }; /* of the parameters: which of "flags" is the tile's, set by whoever dispatches */

/* Binds "raw" (the staging buffer), "planes" (the tile), "piece", and "flags", where damage is noted. One pipeline serves every
 * tensor of a type. */
void weight_repack_kernel(gpu_kernel *out, const gpu_info *info, const weight_layout *layout,
                          const weight_piece *piece);

#endif
