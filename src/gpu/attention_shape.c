#include "gpu/attention_shape.h"

#include "gpu/kernel_build.h"

/* On an H200 the long step is faster for heads of 256 and more, the short one below; kernels_gpu compares them
 * (gpu_info.attention_step). */
enum { SHORT_STEP, LONG_STEP };
static const struct {
    uint32_t chunk, value_rows;
} shape_steps[] = { [SHORT_STEP] = { 8, 16 }, [LONG_STEP] = { 16, 32 } };
enum { LONG_STEP_HEAD = 256 };
enum { MOST_BLOCKS = 16 }; /* matrices of a subgroup in each direction: attention_word */

bool attention_shape_possible(const gpu_info *info, uint32_t head) {
    const uint32_t m = info->matrix_rows;
    if (!info->subgroup_matrix || !info->matrix_attention || head % 8) return false;
    if (m != info->matrix_columns || m != info->matrix_depth || (m != 8 && m != 16)) return false;
    return info->subgroup_max == 32 || info->subgroup_max == 64;
}

/* Divides the results among subgroups: by columns as far as that leaves few of them unused, the rest by rows. */
static attention_shape shape_with_step(const gpu_info *info, uint32_t head, uint32_t rows, uint64_t beside, int step) {
    const uint32_t  m = info->matrix_rows, subgroups = ATTENTION_SHAPE_THREADS / info->subgroup_max;
    const uint32_t  all_rows = rows / m, columns = rounded_up(head, m);
    attention_shape s = { .rows = rows,
                          .chunk = shape_steps[step].chunk,
                          .value_rows = shape_steps[step].value_rows,
                          .score_blocks = all_rows * (ATTENTION_SHAPE_OTHERS / m) / subgroups };
    uint32_t        fewest = UINT32_MAX;
    for (uint32_t groups = subgroups; groups && subgroups / groups <= all_rows; groups /= 2) {
        const uint32_t all = rounded_up(columns, groups) * groups;
        if (all >= fewest) continue;
        fewest = all;
        s.column_groups = groups;
        s.column_blocks = all / groups;
        s.row_blocks = all_rows / (subgroups / groups);
    }
    const uint64_t row = s.chunk + 1, values = s.value_rows * (fewest * m / 8 + 1);
    const uint64_t second = max_size(ATTENTION_SHAPE_OTHERS * row, max_size(values, subgroups * m * m / 4));
    s.bytes = 16 * max_size(rows * row + second, rows * (ATTENTION_SHAPE_OTHERS / 4 + 1)) + beside;
    if (s.column_blocks > MOST_BLOCKS || s.row_blocks > MOST_BLOCKS) s.bytes = UINT64_MAX; /* fits no GPU */
    return s;
}

attention_shape attention_shape_of(const gpu_info *info, uint32_t head, uint32_t rows, uint64_t beside) {
    if (info->attention_step)
        return shape_with_step(info, head, rows, beside, info->attention_step == 1 ? SHORT_STEP : LONG_STEP);
    const attention_shape s = shape_with_step(info, head, rows, beside, head < LONG_STEP_HEAD ? SHORT_STEP : LONG_STEP);
    return s.bytes <= info->max_workgroup_bytes ? s : shape_with_step(info, head, rows, beside, SHORT_STEP);
}

const char *attention_word(uint32_t n) {
    static const char *const words[] = { "0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                         "9", "10", "11", "12", "13", "14", "15", "16" };
    return n < COUNT_OF(words) ? words[n] : n == 32 ? "32" : n == 64 ? "64" : "128";
}

void attention_shape_define(gpu_kernel *k, const gpu_info *info, const attention_shape *s) {
    kernel_define(k, "CHUNK", attention_word(s->chunk));
    kernel_define(k, "VALUE_KEYS", attention_word(s->value_rows));
    kernel_define(k, "SUBGROUP", attention_word(info->subgroup_max));
    kernel_define(k, "MATRIX", attention_word(info->matrix_rows));
    kernel_define(k, "SCORE_BLOCKS", attention_word(s->score_blocks));
    kernel_define(k, "ROW_BLOCKS", attention_word(s->row_blocks));
    kernel_define(k, "COLUMN_BLOCKS", attention_word(s->column_blocks));
    kernel_define(k, "COLUMN_GROUPS", attention_word(s->column_groups));
}
