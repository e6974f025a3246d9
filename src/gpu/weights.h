/* The layout of a tensor in its GPU buffers after repacking (wgsl/weights.wgsl reads it).
 *
 * A row of k weights is ceil(k/32) chunks of 32. Quantised blocks are split into planes of whole words: the low bits of
 * the quants, their high bits, the scales, the block scales. One buffer holds all planes of one tile. A tile is as many
 * whole rows (whole experts, if there are several) as one binding can hold. Values stay exact.
 *
 * To upload a tile, its bytes go through a staging buffer in pieces of whole chunks (weight_piece), and the repack
 * kernel moves each piece into the tile. */

#ifndef GM_GPU_WEIGHTS_H
#define GM_GPU_WEIGHTS_H

#include "gguf/quant.h"
#include "gpu/kernel.h"

typedef struct {
    quant_type type;
    uint32_t   k, rows, experts; /* the tensor [k, rows, experts] */
    uint32_t   chunks;           /* per row */
    uint32_t   tile_rows;        /* per tile, over experts · rows; the last tile may have fewer */
    uint32_t   tiles;
} weight_layout;

typedef struct {
    uint32_t first_row, rows;       /* over experts · rows */
    uint32_t first_expert, experts; /* with several experts: a tile holds whole experts */
    uint32_t high, scales, blocks;  /* where planes start, in units of 16 bytes; the low bits are at 0 */
    uint64_t bytes;                 /* of the tile's buffer: a multiple of 256 */
} weight_tile;

/* Tiles for bindings of at most `most_bytes`. Fails for a type that no kernel reads, for a shape that is not made of
 * whole blocks or exceeds 32 bits, and for a row (or an expert) larger than a binding. */
gm_status weight_layout_make(weight_layout *out, quant_type type, const uint64_t ne[3], uint64_t most_bytes, error *e);
weight_tile weight_tile_of(const weight_layout *layout, uint32_t tile);
uint64_t    weight_bytes(const weight_layout *layout); /* of all tiles */

/* The defines and constants of a kernel that includes weights.wgsl and reads this tile. */
void weight_describe(gpu_kernel *kernel, const weight_layout *layout, const weight_tile *tile);

/* ---- repacking ---- */

enum { WEIGHT_PIECE_WORDS = 8 };
/* Pieces that can be on their way to the GPU at once. Those of experts are small, and a read may take milliseconds however small it is. */
enum { GPU_LANES = 4, GPU_EXPERT_LANES = 16 };

typedef struct {
    uint64_t source;                         /* where its bytes start in the tensor, and how many there are */
    uint64_t bytes;                          /* (rounded up to 4 in the staging buffer) */
    uint32_t parameters[WEIGHT_PIECE_WORDS]; /* the kernel's "piece" buffer */
    uint32_t next;                           /* the first chunk of the next piece; 0: this was the last */
} weight_piece;

/* The piece of a tile that starts with `chunk` (initially 0) and fits into a staging buffer of `staging` bytes, which
 * must be at least weight_staging_least. */
weight_piece weight_piece_at(const weight_layout *layout, uint32_t tile, uint32_t chunk, uint64_t staging);
uint64_t     weight_staging_least(const weight_layout *layout);
/* A piece of expert `expert` of the file that goes to slot `slot` of this layout, from the expert's chunk `chunk` on; `*tile` is where.
 * An expert must be made of whole units. `next` counts chunks of the expert. */
weight_piece weight_piece_of_expert(const weight_layout *layout, uint32_t expert, uint32_t slot, uint32_t chunk,
                                    uint64_t staging, uint32_t *tile);
/* Where the planes of the expert in slot `slot` are in the tile's buffer, in whole words; `*tile` is which. Returns how many there are. An expert
 * must be made of whole units. */
enum { WEIGHT_PLANES = 4 };
typedef struct {
    uint64_t at, bytes;
} weight_range;
size_t weight_expert_planes(const weight_layout *layout, uint32_t slot, uint32_t *tile,
                            weight_range out[WEIGHT_PLANES]);
/* Pieces start at multiples of so many chunks. */
uint32_t weight_piece_unit(const weight_layout *layout);
/* Bytes of the file that so many chunks come from; `chunks` is a multiple of the unit, or all of a tile. */
uint64_t weight_source_bytes(const weight_layout *layout, uint64_t chunks);

enum { WEIGHT_PIECE_FLAG = 7 }; /* this parameter is the tile's index in "flags"; the dispatcher sets it */

/* What the repack kernel binds. */
enum { REPACK_RAW, REPACK_PLANES, REPACK_PIECE, REPACK_FLAGS, REPACK_BINDS };

/* Moves a piece from the staging buffer (RAW) into its tile (PLANES), and records damage in FLAGS. All tensors of a type
 * share one pipeline. */
void weight_repack_kernel(gpu_kernel *out, const gpu_info *info, const weight_layout *layout,
                          const weight_piece *piece);

#endif
