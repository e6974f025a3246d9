#include "session/kv_memory.h"

#include "gpu/kernels.h"
#include "gpu/pipeline.h"

#include <stdlib.h>
#include <string.h>

enum { DETOUR_BYTES = 4 << 20 };

gm_status kv_memory_new(gpu_host *gpu, uint64_t bytes, kv_memory *out, error *e) {
    *out = (kv_memory){ 0 };
    if (gpu) {
        out->device = gpu_buffer_new(gpu, round_up(bytes, 16), e);
        return out->device ? GM_OK : e->status;
    }
    out->host = malloc(bytes);
    return out->host ? GM_OK : fail_memory(e, "keys and values", bytes);
}

void kv_memory_free(gpu_host *gpu, kv_memory *m) {
    if (m->device) gpu_buffer_free(gpu, m->device);
    free(m->host);
    *m = (kv_memory){ 0 };
}

bool kv_memory_there(const kv_memory *m) { return m->host || m->device; }

gm_status kv_memory_copy(gpu_host *gpu, const kv_memory *to, uint64_t to_offset, const kv_memory *from,
                         uint64_t from_offset, uint64_t bytes, error *e) {
    if (!bytes) return GM_OK;
    if (!gpu) {
        memcpy(to->host + to_offset, from->host + from_offset, bytes);
        return GM_OK;
    }
    const uint32_t words[] = {
        GPU_LIST_VERSION,        GPU_COPY | 8u << 16,           from->device,
        (uint32_t)from_offset,   (uint32_t)(from_offset >> 32), to->device,
        (uint32_t)to_offset,     (uint32_t)(to_offset >> 32),   (uint32_t)bytes,
        (uint32_t)(bytes >> 32),
    };
    return gpu_submit(gpu, words, COUNT_OF(words), e);
}

gm_status kv_memory_write(gpu_host *gpu, const kv_memory *to, uint64_t offset, const void *data, uint64_t bytes,
                          error *e) {
    if (gpu) return gpu_buffer_write(gpu, to->device, offset, data, bytes, e);
    memcpy(to->host + offset, data, bytes);
    return GM_OK;
}

static gm_status memory_ask(gpu_host *gpu, const kv_memory *from, uint64_t offset, uint64_t bytes, uint32_t ticket,
                            error *e) {
    const uint32_t words[] = {
        GPU_LIST_VERSION, GPU_READ | 6u << 16,     from->device, (uint32_t)offset, (uint32_t)(offset >> 32),
        (uint32_t)bytes,  (uint32_t)(bytes >> 32), ticket
    };
    return gpu_submit(gpu, words, COUNT_OF(words), e);
}

gm_status kv_memory_read(gpu_host *gpu, const kv_memory *from, uint64_t offset, void *data, uint64_t bytes,
                         uint32_t *ticket, error *e) {
    if (!gpu) {
        memcpy(data, from->host + offset, bytes);
        return GM_OK;
    }
    if (!*ticket) {
        *ticket = gpu_ticket_new(gpu);
        if (!*ticket) return fail_memory(e, "a ticket", sizeof *ticket);
        TRY(memory_ask(gpu, from, offset, bytes, *ticket, e));
    }
    uint64_t    size = 0;
    const void *arrived = gpu_ticket_data(gpu, *ticket, &size);
    TRY(gpu_host_problem(gpu, e));
    if (!arrived) return GM_AGAIN;
    gm_status status = GM_OK;
    if (size < bytes)
        status = fail(e, GM_IO, "the GPU returned %llu bytes of keys and values, expected %llu",
                      (unsigned long long)size, (unsigned long long)bytes);
    else memcpy(data, arrived, bytes);
    gpu_ticket_done(gpu, *ticket);
    *ticket = 0;
    return status;
}

/* ---- moving ---- */

gm_status kv_mover_open(kv_mover *m, gpu_host *gpu, error *e) {
    *m = (kv_mover){ .gpu = gpu };
    if (!gpu) return GM_OK;
    gpu_kernel kernel;
    gpu_kv_copy_kernel(gpu_host_info(gpu), &(gpu_kv_move){ .target = 1, .count = 1, .words = 1 }, &kernel);
    m->pipeline = gpu_kernel_pipeline(gpu, &kernel, e);
    m->numbers = m->pipeline ? gpu_buffer_new(gpu, sizeof(gpu_kv_move), e) : 0;
    if (!m->numbers) {
        kv_mover_close(m);
        return e->status;
    }
    return GM_OK;
}

void kv_mover_close(kv_mover *m) {
    if (m->numbers) gpu_buffer_free(m->gpu, m->numbers);
    *m = (kv_mover){ 0 };
}

static gm_status mover_submit(const kv_mover *m, gpu_id rows, uint64_t bytes, const gpu_kv_move *move, error *e) {
    gpu_kernel        kernel;
    gpu_words         words = { 0 };
    const gpu_binding bindings[] = { { KV_COPY_ROWS, rows, 0, bytes }, { KV_COPY_JOB, m->numbers, 0, sizeof *move } };
    const gpu_id      group = gpu_group_new(m->gpu, m->pipeline, bindings, COUNT_OF(bindings), e);
    if (!group) return e->status;
    gpu_kv_copy_kernel(gpu_host_info(m->gpu), move, &kernel);
    gpu_words_begin(&words);
    gpu_words_write(&words, m->numbers, 0, (const uint32_t[]){ move->source, move->target, move->count, move->words },
                    4);
    gpu_words_dispatch(&words, m->pipeline, group, kernel.x, kernel.y, kernel.z);
    const gm_status status =
        words.failed ? fail_memory(e, "a command list", sizeof *move) : gpu_submit(m->gpu, words.data, words.count, e);
    free(words.data);
    gpu_group_free(m->gpu, group);
    return status;
}

/* Through a buffer beside it, in pieces: in the order in which none overwrites what another has yet to move. */
static gm_status mover_detour(gpu_host *gpu, const kv_memory *rows, size_t row, size_t from, size_t to, size_t count,
                              error *e) {
    const size_t most = min_size(count, max_size(DETOUR_BYTES / row, 1));
    kv_memory    beside = { 0 };
    TRY(kv_memory_new(gpu, (uint64_t)most * row, &beside, e));
    gm_status status = GM_OK;
    for (size_t done = 0, n; done < count && !status; done += n) {
        n = min_size(count - done, most);
        const size_t first = to < from ? done : count - done - n;
        status = kv_memory_copy(gpu, &beside, 0, rows, (uint64_t)(from + first) * row, (uint64_t)n * row, e);
        if (!status) status = kv_memory_copy(gpu, rows, (uint64_t)(to + first) * row, &beside, 0, (uint64_t)n * row, e);
    }
    kv_memory_free(gpu, &beside);
    return status;
}

gm_status kv_mover_move(const kv_mover *m, const kv_memory *rows, uint64_t bytes, size_t row, size_t from, size_t to,
                        size_t count, error *e) {
    if (from == to || !count) return GM_OK;
    if (!m->gpu) {
        memmove(rows->host + to * row, rows->host + from * row, count * row);
        return GM_OK;
    }
    const gpu_kv_move move = { (uint32_t)from, (uint32_t)to, (uint32_t)count, (uint32_t)(row / sizeof(uint32_t)) };
    const gm_status   status = m->pipeline ? mover_submit(m, rows->device, bytes, &move, e) : GM_AGAIN;
    return status == GM_AGAIN ? mover_detour(m->gpu, rows, row, from, to, count, e) : status;
}
