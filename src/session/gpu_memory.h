/* What a model and a session take of a GPU's memory. */

#ifndef GM_GPU_MEMORY_H
#define GM_GPU_MEMORY_H

#include "gpu/budget.h"
#include "gpu/host.h"
#include "model/config.h"

enum { GPU_MEMORY_CONTEXT = 8192 }; /* what is planned for when nothing is said, unless the model was made for less */

/* Keys and values of a session that holds `context` tokens. */
uint64_t gpu_memory_kv(const model_config *config, quant_type type, size_t context);

/* How the weights of `g` are best kept in `limit` bytes (0: no limit) beside such a session and its plans, and beside a tower of
 * `tower` bytes if there is room for one. `canvas`: the denoiser of a diffusion model, whose own weights and whose plan for one canvas must
 * fit, too; NULL: none. `gpu`: NULL if there is none to ask. */
gm_status gpu_memory_plan(const graph *g, const graph *canvas, const model_config *config, quant_type kv,
                          size_t context, uint64_t tower, uint64_t limit, uint32_t slots, const gpu_info *gpu,
                          gpu_budget *out, error *e);

#endif
