#include "gpu/features.h"

#include <string.h>

const char *const gpu_feature_names[GPU_FEATURES] = { [GPU_SUBGROUPS] = "subgroups",
                                                      [GPU_F16] = "f16",
                                                      [GPU_DOT4] = "dot4",
                                                      [GPU_TIMESTAMPS] = "timestamps",
                                                      [GPU_SUBGROUP_MATRIX] = "subgroup_matrix",
                                                      [GPU_BLOCKS] = "blocks",
                                                      [GPU_MATRIX_ATTENTION] = "matrix_attention",
                                                      [GPU_BANDS] = "bands",
                                                      [GPU_DEEP_SPLITS] = "deep_splits",
                                                      [GPU_DOUBLE_BUFFERS] = "double_buffers",
                                                      [GPU_LARGE_BATCHES] = "large_batches" };

bool *gpu_feature_field(gpu_info *info, gpu_feature which) {
    switch (which) {
    case GPU_SUBGROUPS: return &info->subgroups;
    case GPU_F16: return &info->f16;
    case GPU_DOT4: return &info->dot4;
    case GPU_TIMESTAMPS: return &info->timestamps;
    case GPU_BLOCKS: return &info->blocks;
    case GPU_MATRIX_ATTENTION: return &info->matrix_attention;
    case GPU_BANDS: return &info->bands;
    case GPU_DEEP_SPLITS: return &info->deep_splits;
    case GPU_DOUBLE_BUFFERS: return &info->double_buffers;
    case GPU_LARGE_BATCHES: return &info->large_batches;
    default: return &info->subgroup_matrix;
    }
}

void gpu_features_be_exact(gpu_info *info) {
    info->exact = true;
    info->subgroups = info->subgroup_matrix = info->blocks = false;
}

gm_status gpu_features_read(const char *list, bool named[GPU_FEATURES], error *e) {
    memset(named, 0, GPU_FEATURES * sizeof *named);
    while (list && *list) {
        const size_t length = strcspn(list, ",");
        size_t       i = 0;
        while (i < GPU_FEATURES && !str_is((str){ list, length }, gpu_feature_names[i])) i++;
        if (i == GPU_FEATURES) {
            return fail(e, GM_BAD_ARGUMENT,
                        "'%.*s' is not a GPU feature: the features are subgroups, f16, dot4, timestamps, "
                        "subgroup_matrix, blocks, matrix_attention, bands, deep_splits, double_buffers and "
                        "large_batches",
                        (int)min_size(length, 100), list);
        }
        named[i] = true;
        list += length + (list[length] == ',');
    }
    return GM_OK;
}
