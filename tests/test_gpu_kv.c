/* Moving rows of keys and values within one buffer on the GPU, also onto themselves. Needs a WebGPU library and a Vulkan driver, like
 * test_gpu_host.
 *
 *     test_gpu_kv [only moves with this in their name] */

#include "gpu/kernels.h"
#include "session/kv_memory.h"
#include "test.h"

#include <stdlib.h>

enum { ROWS = 300 };

static const struct {
    const char *name;
    size_t      from, to, count;
} moves[] = {
    { "apart, up", 0, 200, 100 },
    { "apart, down", 170, 3, 90 },
    { "one row", 7, 8, 1 },
    { "overlapping by most, down", 1, 0, 299 },
    { "overlapping by most, up", 0, 1, 299 },
    { "overlapping, down", 90, 53, 200 },
    { "overlapping, up", 10, 47, 253 },
    { "touching, up", 20, 60, 40 },
};

static void test_move(gpu_host *h, const kv_mover *mover, quant_type type, uint32_t heads, uint32_t head, size_t i) {
    TEST("%s, rows of type %d, %u × %u", moves[i].name, (int)type, heads, head);
    const size_t row = (size_t)gpu_kv_row_bytes(type, heads, head), bytes = (size_t)round_up(row * ROWS, 16);
    uint32_t    *words = malloc(bytes), *got = malloc(bytes), ticket = 0;
    kv_memory    rows;
    error        e = { 0 };
    gm_status    status;
    for (size_t k = 0; k < bytes / 4; k++) words[k] = (uint32_t)k * 2654435761u;
    CHECK_MESSAGE(!kv_memory_new(h, bytes, &rows, &e) && !kv_memory_write(h, &rows, 0, words, bytes, &e), "%s", e.why);
    CHECK_MESSAGE(!kv_mover_move(mover, &rows, bytes, row, moves[i].from, moves[i].to, moves[i].count, &e), "%s",
                  e.why);
    while ((status = kv_memory_read(h, &rows, 0, got, bytes, &ticket, &e)) == GM_AGAIN) gpu_host_wait(h, 10);
    CHECK_MESSAGE(!status, "%s", e.why);
    memmove((char *)words + moves[i].to * row, (char *)words + moves[i].from * row, moves[i].count * row);
    CHECK(!memcmp(words, got, bytes));
    kv_memory_free(h, &rows);
    free(words);
    free(got);
}

int main(int argc, char **argv) {
    gpu_host *h = NULL;
    kv_mover  mover = { 0 };
    error     e = { 0 };
    TEST("the kernel compiles");
    CHECK_MESSAGE(!gpu_host_open(&(gpu_options){ .adapter = -1 }, &h, &e) && !kv_mover_open(&mover, h, &e), "%s",
                  e.why);
    while (h && gpu_pipelines_pending(h)) gpu_host_wait(h, 100); /* until then, rows would move without it */
    for (size_t i = 0; i < COUNT_OF(moves) && mover.pipeline; i++) {
        if (argc > 1 && !strstr(moves[i].name, argv[1])) continue;
        test_move(h, &mover, TYPE_F32, 1, 35, i);
        test_move(h, &mover, TYPE_F16, 2, 64, i);
        test_move(h, &mover, TYPE_Q8_0, 1, 96, i);
        test_move(h, &(kv_mover){ .gpu = h }, TYPE_F16, 33, 512, i); /* without the kernel, in several pieces */
    }
    kv_mover_close(&mover);
    if (h) gpu_host_close(h);
    return test_end();
}
