/* The optional features of a GPU: by number, by name, and as a field of gpu_info. Those from GPU_DEVICE_FEATURES on are
 * no features of the device but kernels and ways of ours, which every device has: disabled, older ones take their
 * place. */

#ifndef GM_GPU_FEATURES_H
#define GM_GPU_FEATURES_H

#include "gpu/host.h"

typedef enum {
    GPU_SUBGROUPS,
    GPU_F16,
    GPU_DOT4,
    GPU_TIMESTAMPS,
    GPU_SUBGROUP_MATRIX,
    GPU_DEVICE_FEATURES,
    GPU_BLOCKS = GPU_DEVICE_FEATURES,
    GPU_MATRIX_ATTENTION,
    GPU_BANDS,
    GPU_DEEP_SPLITS,
    GPU_DOUBLE_BUFFERS,
    GPU_LARGE_BATCHES,
    GPU_FEATURES
} gpu_feature;

extern const char *const gpu_feature_names[GPU_FEATURES];
bool                    *gpu_feature_field(gpu_info *info, gpu_feature which);

/* Marks it as exact, and takes out what would add up in an order of its own. */
void gpu_features_be_exact(gpu_info *info);

/* Parses "subgroups,dot4", as in gpu_options.disable (NULL: none), into a flag for each feature. */
gm_status gpu_features_read(const char *list, bool named[GPU_FEATURES], error *e);

#endif
